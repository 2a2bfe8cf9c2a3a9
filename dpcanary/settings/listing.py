"""The audits of an experiment as a table for a reader."""

import pandas as pd

from dpcanary.settings.experiment import Experiment

_COLUMNS = ("canary", "dataset", "sample_rate", "noise_multiplier", "target_epsilon", "num_steps")


def table_of_audits(experiment: Experiment) -> str:
    """One line per audit: its name, main settings, runs and shards."""
    rows = {
        name: {
            **{key: getattr(audit, key) for key in _COLUMNS},
            "runs": audit.total_runs,
            "shards": len(audit.shards),
        }
        for name, audit in experiment.audits.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").to_string(na_rep="-")
