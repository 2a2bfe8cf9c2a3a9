"""An audit's scores as a table of lower bounds, from all of its runs or from the first ones."""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.estimation.estimate import estimate_epsilon
from dpcanary.estimation.options import Independence
from dpcanary.estimation.stage import EstimationStage
from dpcanary.scoring.score_file import AuditScores

_OF_SLOTS = (
    "the slots of a run do not influence each other, and all slots have the same distributions of"
    " scores"
)


def estimates_table(stage: EstimationStage, scores: AuditScores) -> pd.DataFrame:
    """Lower bounds on an audit's epsilon.

    Args:
        stage: how scores become bounds.
        scores: of the audit.

    Returns:
        One row per repeat, step, threshold rule and conversion; and per slot, if there are
        several and the runs are what is independent. `num_runs` is the runs of both worlds that
        the bound rests on. `slot` is empty where all slots are pooled. `test_accuracy`, the mean
        over the runs, is known at the last step alone.

    Raises:
        InputError: if the scores of a slot are all of one world.
    """
    choices = itertools.product(
        range(len(scores.scores)),
        enumerate(scores.step),
        _slots(stage, scores),
        stage.threshold_rules,
        stage.conversions,
    )
    rows = []
    for repeat, (index, step), slot, rule, conversion in choices:
        chosen = slice(None) if slot is None else slice(slot, slot + 1)
        worlds = scores.of_worlds(repeat=repeat, step=index, slots=chosen)
        _check_worlds(worlds, slot, scores.audit)
        estimate = estimate_epsilon(
            world0_scores=worlds[0],
            world1_scores=worlds[1],
            delta=stage.delta,
            significance=stage.significance,
            conversion=conversion,
            threshold_rule=rule,
        )
        last = step == scores.step[-1]
        accuracy = scores.test_accuracy[repeat].mean() if last else float("nan")
        row = {"repeat": repeat, "step": step, "slot": slot, **vars(estimate)}
        rows.append({**row, "test_accuracy": accuracy})
    table = pd.DataFrame(rows).assign(
        num_runs=scores.scores.shape[1],
        num_slots=scores.num_slots,
        noise_multiplier=scores.header["noise_multiplier"],
        seconds=scores.header["seconds"],
    )
    if scores.num_slots > 1 and stage.independent is Independence.SLOTS:
        table["assumption"] += f"; {_OF_SLOTS}"
    return table


def estimates_by_runs(
    stage: EstimationStage, scores: AuditScores, num_runs: Sequence[int]
) -> pd.DataFrame:
    """Lower bounds at the last step from the first runs of every repeat.

    Args:
        stage: how scores become bounds.
        scores: of the audit.
        num_runs: numbers of runs, of both worlds together.

    Returns:
        The rows of `estimates_table` for each number of runs.

    Raises:
        InputError: if a number is odd, below 2, or more than a repeat has.
    """
    last = scores.at_last_step()
    parts = [last.of_first_runs(number) for number in sorted({*num_runs})]
    return pd.concat([estimates_table(stage, part) for part in parts])


def _slots(stage: EstimationStage, scores: AuditScores) -> Iterator[int | None]:
    """The slots that get a bound of their own; None for all slots together."""
    if scores.num_slots == 1 or stage.independent is Independence.SLOTS:
        yield None
    else:
        yield from range(scores.num_slots)


def _check_worlds(
    worlds: tuple[NDArray[np.float64], NDArray[np.float64]],
    slot: int | None,
    audit: str,
) -> None:
    if min(map(len, worlds)) == 0:
        what = "all slots" if slot is None else f"slot {slot}"
        pooled = (
            ", or set `independent: slots`, which assumes that slots do not influence each other"
        )
        raise InputError(
            f"audit {audit}: all runs have {what} in one world, which proves nothing; train more"
            f" runs{'' if slot is None else pooled}"
        )
