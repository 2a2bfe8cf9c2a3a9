"""Training of DP-SGD ensembles, and the simulated trainings that canaries are made from."""
