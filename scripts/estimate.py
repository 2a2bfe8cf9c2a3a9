"""Turns an audit's scores into lower bounds on epsilon, at every recorded step."""

import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from dpcanary.estimation import estimate_epsilon
from dpcanary.files import read_arrays
from dpcanary.program import run
from dpcanary.stages import EstimationStage
from dpcanary.tables import write_table


def main(argv: Sequence[str]) -> None:
    """Writes one row per repeat, step, threshold rule and conversion."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=EstimationStage.model_validate_json, required=True)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    header, arrays = read_arrays(args.scores)
    rows = estimates(args.settings, arrays)
    table = pd.DataFrame(rows).assign(
        noise_multiplier=header["noise_multiplier"], seconds=header["seconds"]
    )
    write_table(args.output, table)


def estimates(stage: EstimationStage, arrays: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the table."""
    repeats = range(len(arrays["world0_scores"]))
    choices = itertools.product(
        repeats, enumerate(arrays["step"]), stage.threshold_rules, stage.conversions
    )
    rows = []
    for repeat, (index, step), rule, conversion in choices:
        estimate = estimate_epsilon(
            world0_scores=arrays["world0_scores"][repeat, :, index],
            world1_scores=arrays["world1_scores"][repeat, :, index],
            delta=stage.delta,
            significance=stage.significance,
            conversion=conversion,
            threshold_rule=rule,
        )
        # Accuracy is measured on the last step's models alone.
        last = step == arrays["step"][-1]
        accuracy = arrays["test_accuracy"][repeat].mean() if last else float("nan")
        rows.append({"repeat": repeat, "step": step, **vars(estimate), "test_accuracy": accuracy})
    return rows


if __name__ == "__main__":
    run(main)
