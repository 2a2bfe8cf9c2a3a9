"""What an experiment will cost, before anything of it is run.

`shapes` tells how large its datasets are, `jobs` lists what there is to do in units of what a probe
measures; `programs`, `analysis`, `training` and `crafting` are the probes, which do a little of the
work on this machine; `measuring` runs them, and `report` adds up.
"""
