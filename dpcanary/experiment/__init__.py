"""From a config to what its jobs make.

`audit_config`, `dataset_settings`, `figure_config` and `experiment_config` are closed pydantic
models. `config_parsing` turns a config into an `Experiment`, and `config_references` checks its
parts against each other. A config names sweeps: audits that share most settings. A list as a value
sweeps over its items, and `Experiment.audits` holds one `Audit` for every combination.
"""
