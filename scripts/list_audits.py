"""Prints the audits of an experiment: name, settings, runs and shards."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dpcanary.files import read_json
from dpcanary.program import run
from dpcanary.settings import Audit

_SHOWN = ["canary", "dataset", "sample_rate", "noise_multiplier", "target_epsilon", "num_steps"]


def main(argv: Sequence[str]) -> None:
    """Prints one line per audit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True)
    args = parser.parse_args(argv)
    print(table(read_json(args.experiment)["audits"]).to_string(na_rep="-"))


def table(audits: dict[str, dict[str, object]]) -> pd.DataFrame:
    """One row per audit."""
    rows = {name: {key: settings[key] for key in _SHOWN} for name, settings in audits.items()}
    counted = {name: Audit(**settings) for name, settings in audits.items()}  # type: ignore[arg-type]
    return pd.DataFrame.from_dict(rows, orient="index").assign(
        runs=[audit.total_runs for audit in counted.values()],
        shards=[len(audit.shards) for audit in counted.values()],
    )


if __name__ == "__main__":
    run(main)
