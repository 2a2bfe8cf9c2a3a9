"""Prints the audits of an experiment: name, settings, runs and shards."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpcanary.program import run
from dpcanary.settings import Experiment

_SHOWN = ["canary", "dataset", "sample_rate", "noise_multiplier", "target_epsilon", "num_steps"]


def main(argv: Sequence[str]) -> None:
    """Prints one line per audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True)
    args = parser.parse_args(argv)
    experiment = Experiment.model_validate_json(args.experiment.read_text(encoding="utf-8"))
    print(table(experiment).to_string(na_rep="-"))


def table(experiment: Experiment) -> pd.DataFrame:
    """One row per audit."""
    rows = {
        name: {
            **{key: getattr(audit, key) for key in _SHOWN},
            "runs": audit.total_runs,
            "shards": len(audit.shards),
        }
        for name, audit in experiment.audits.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


if __name__ == "__main__":
    run(main)
