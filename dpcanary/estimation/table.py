"""An audit's scores as a table of lower bounds, from all of its runs or from the first ones."""

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon
from dpcanary.stages import EstimationStage

# Of a score file: `step` (S), `world0_scores` and `world1_scores` (repeats, runs per world, S),
# `test_accuracy` (repeats, runs).
Arrays = Mapping[str, NDArray[Any]]


def estimates_table(
    stage: EstimationStage, *, header: Mapping[str, Any], arrays: Arrays
) -> pd.DataFrame:
    """Lower bounds on an audit's epsilon.

    Args:
        stage: how scores become bounds.
        header: of the score file; its `noise_multiplier` and `seconds` are repeated in each row.
        arrays: of the score file.

    Returns:
        One row per repeat, step, threshold rule and conversion. `num_runs` is the runs of both
        worlds that the bound rests on. `test_accuracy`, the mean over these runs, is known at the
        last step alone.
    """
    num_runs = arrays["world0_scores"].shape[1] + arrays["world1_scores"].shape[1]
    choices = itertools.product(
        range(len(arrays["world0_scores"])),
        enumerate(arrays["step"]),
        stage.threshold_rules,
        stage.conversions,
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
        last = step == arrays["step"][-1]
        accuracy = arrays["test_accuracy"][repeat].mean() if last else float("nan")
        rows.append({"repeat": repeat, "step": step, **vars(estimate), "test_accuracy": accuracy})
    shared = {key: header[key] for key in ("noise_multiplier", "seconds")}
    return pd.DataFrame(rows).assign(num_runs=num_runs, **shared)


def last_step(arrays: Arrays) -> Arrays:
    """The arrays at the last recorded step alone."""
    at_step = {name: arrays[name][..., -1:] for name in ("step", "world0_scores", "world1_scores")}
    return {**arrays, **at_step}


def first_runs(arrays: Arrays, num_runs: int, *, audit: str) -> Arrays:
    """The arrays of the first runs of every repeat, half of them of each world.

    A smaller number's runs are among a larger one's: nothing is drawn, nothing trained anew.

    Args:
        arrays: of the score file.
        num_runs: runs of both worlds together.
        audit: its name, for the errors.

    Raises:
        InputError: if the number is odd, below 2, or more than a repeat has.
    """
    most = 2 * min(arrays[f"world{world}_scores"].shape[1] for world in (0, 1))
    if num_runs < 2 or num_runs % 2:
        raise InputError(f"num_runs {num_runs}: half of the runs are of each world: give 2, 4, ...")
    if num_runs > most:
        raise InputError(
            f"num_runs {num_runs} is more than the {most} runs of a repeat of audit {audit}:"
            " train more runs or ask for fewer"
        )
    half = num_runs // 2
    # Runs alternate between the worlds.
    return {
        **arrays,
        "world0_scores": arrays["world0_scores"][:, :half],
        "world1_scores": arrays["world1_scores"][:, :half],
        "test_accuracy": arrays["test_accuracy"][:, :num_runs],
    }
