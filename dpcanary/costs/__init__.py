"""What an experiment will cost, before anything of it is run.

`shapes` tells how large its datasets are, `jobs` lists what there is to do in units of what a probe
measures, `training`, `crafting` and `analysis` are the probes, which do a little of the work on
this machine, `measuring` runs them, `sizes` tells how large the files become, and `report` adds up.
"""
