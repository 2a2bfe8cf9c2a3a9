"""What an experiment will cost, estimated before any of it runs.

`shapes` finds the sizes of its datasets. `training` and `crafting` hold probes, which train models
and craft canaries for a moment on this machine; `probing` runs them. `jobs` lists the jobs, with
constants for all other work, and `report` adds up the costs.
"""
