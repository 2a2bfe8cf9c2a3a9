"""What a config may say.

`audit`, `dataset`, `figure` and `experiment` are closed pydantic models. `parsing` turns a config
into an `Experiment`, and `references` checks its parts against each other. A config names sweeps:
audits that share most settings. A list as a value sweeps over its items, and `Experiment.audits`
holds one `Audit` for every combination.
"""
