"""What an experiment will cost, before anything of it is run.

`shapes` tells how large its datasets are. `training` and `crafting` are probes: they train models
and craft canaries for a moment on this machine, and `probing` runs them. `jobs` lists what there is
to do, with constants for all other work, and `report` adds up.
"""
