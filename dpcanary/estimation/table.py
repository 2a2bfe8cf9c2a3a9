"""Tables of lower bounds from an audit's scores: of all its runs, or of the first ones."""

import itertools
from collections.abc import Sequence

import pandas as pd

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

    Returns:
        One row per repeat, step, threshold rule and conversion, and also per slot if there are
        several slots and the bounds treat runs as independent. `num_runs` counts the runs of both
        worlds that the bound rests on. `slot` is empty if all slots are pooled. `test_accuracy`,
        the mean over the runs, is only known at the last step.

    Raises:
        InputError: if all scores of a bound are of one world.
    """
    pooled = scores.num_slots == 1 or stage.independent is Independence.SLOTS
    choices = itertools.product(
        range(len(scores.scores)),
        enumerate(scores.step),
        [None] if pooled else range(scores.num_slots),
        stage.threshold_rules,
        stage.conversions,
    )
    rows = []
    for repeat, (index, step), slot, rule, conversion in choices:
        chosen = slice(None) if slot is None else slice(slot, slot + 1)
        world0_scores, world1_scores = scores.of_worlds(repeat=repeat, step=index, slots=chosen)
        if min(len(world0_scores), len(world1_scores)) == 0:
            raise _one_world_error(scores.audit, slot)
        estimate = estimate_epsilon(
            world0_scores=world0_scores,
            world1_scores=world1_scores,
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
    """The rows of `estimates_table` at the last step, from the first runs of every repeat.

    Each number of runs, of both worlds together, has its own rows.

    Raises:
        InputError: if there is a number of runs that `AuditScores.of_first_runs` refuses.
    """
    last = scores.at_last_step()
    parts = [last.of_first_runs(number) for number in sorted({*num_runs})]
    return pd.concat([estimates_table(stage, part) for part in parts])


def _one_world_error(audit: str, slot: int | None) -> InputError:
    what, also = "all slots", ""
    if slot is not None:
        what = f"slot {slot}"
        also = ", or set `independent: slots`, which assumes that slots do not influence each other"
    return InputError(
        f"audit {audit}: all runs have {what} in one world, which proves nothing;"
        f" train more runs{also}"
    )
