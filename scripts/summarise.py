"""Joins settings, estimates and accounted bounds of all audits into one table."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.files import read_json
from dpcanary.program import run
from dpcanary.tables import read_table, write_table
from dpcanary.vocabulary import Canary

_COLUMNS = [
    "audit",
    "sweep",
    "canary",
    "score",
    "adjacency",
    "dataset",
    "model",
    "sample_rate",
    "noise_multiplier",
    "max_grad_norm",
    "num_steps",
    "learning_rate",
    "num_runs",
    "repeat",
    "step",
    "threshold_rule",
    "conversion",
    "significance",
    "delta",
    "epsilon_lower",
    "mu_lower",
    "epsilon_upper_substitute",
    "epsilon_upper_add_remove",
    "epsilon_upper_group_privacy",
    "accounting_method",
    "test_accuracy",
    "seconds",
    "fpr_upper",
    "fnr_upper",
    "threshold",
    "assumption",
]


# Settings of an audit that the summary repeats.
_SETTINGS = [
    "canary",
    "score",
    "adjacency",
    "dataset",
    "model",
    "sample_rate",
    "max_grad_norm",
    "num_steps",
    "learning_rate",
    "num_runs",
]


def main(argv: Sequence[str]) -> None:
    """Writes the summary: one row per audit, repeat, step and estimate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True)
    parser.add_argument("--estimates", type=Path, nargs="+", required=True)
    parser.add_argument("--accounting", type=Path, nargs="+", required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    experiment = read_json(args.experiment)
    tables = [
        joined(described(experiment, estimates.stem), estimates, accounting)
        for estimates, accounting in zip(args.estimates, args.accounting, strict=True)
    ]
    write_table(args.output, pd.concat(tables)[_COLUMNS])


def described(experiment: dict[str, Any], audit: str) -> dict[str, Any]:
    """An audit's name, sweep and settings."""
    settings = {key: experiment["audits"][audit][key] for key in _SETTINGS}
    if not Canary(settings["canary"]).is_trained:
        settings |= {"dataset": "crafted", "model": "gradient_sum"}
    [sweep] = [name for name, audits in experiment["sweeps"].items() if audit in audits]
    return {"audit": audit, "sweep": sweep, **settings}


def joined(audit: dict[str, Any], estimates: Path, accounting: Path) -> pd.DataFrame:
    """The rows of one audit.

    Raises:
        InputError: if the two tables were not made for the same mechanism.
    """
    lower, upper = read_table(estimates), read_table(accounting)
    merged = lower.merge(upper, on=["step", "noise_multiplier"], validate="many_to_one")
    if len(merged) != len(lower):
        raise InputError(
            f"{estimates} and {accounting} differ in steps or noise: one is out of date; delete it"
        )
    return merged.assign(**audit)


if __name__ == "__main__":
    run(main)
