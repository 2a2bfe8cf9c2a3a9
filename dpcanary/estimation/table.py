"""Tables of lower bounds from an audit's scores: of all its runs, or of the first ones."""

import itertools
from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import (
    Conversion,
    EstimationStage,
    Independence,
    RankRule,
)
from dpcanary.estimation.lower_bound import (
    EpsilonEstimate,
    estimate_epsilon,
    estimate_epsilon_at_looks,
)
from dpcanary.estimation.ranks.rank_bound import estimate_epsilon_from_ranks
from dpcanary.estimation.ranks.rank_methods import RANK_RULES
from dpcanary.estimation.rule_catalogue import Proof, threshold_rule_named
from dpcanary.scoring.score_file import MEASURES, AuditScores

Scores = NDArray[np.float64]

# Columns of bounds from scores of two worlds alone, and of bounds from ranks alone.
_OF_THRESHOLDS = ("fpr_upper", "fnr_upper", "threshold")
_OF_RANKS = ("num_candidates", "exposure")
OF_SLOTS = (
    "the slots of a run do not influence each other, and all slots have the same distributions of"
    " scores"
)


def estimates_table(stage: EstimationStage, scores: AuditScores) -> pd.DataFrame:
    """Lower bounds on an audit's epsilon.

    Returns:
        One row per repeat, step, threshold rule and conversion, and also per slot if there are
        several slots and the bounds treat runs as independent, and per look if the stage has looks.
        Where slots hold secrets, there is one row per repeat, step, rank rule and conversion.
        Rules of guesses pool all slots whatever is independent, and have no rows if there is one
        slot, whose worlds are no coins. A rule that lacks a conversion, as
        `steinke` does, uses one that it has.
        `num_runs` counts the runs of both worlds that the bound rests on. `slot` is empty if all
        slots are pooled. `test_accuracy`, or `test_r2` where labels are numbers, is the mean over
        the runs and only known at the last step; `baseline_accuracy` is that of the most frequent
        class.

    Raises:
        InputError: if all scores of a bound are of one world, or if the scores of looks end between
            two looks.
    """
    if scores.num_candidates:
        return _with_header(_rows_of_ranks(stage, scores, scores.num_candidates), scores)
    repeats, steps = range(len(scores.scores)), enumerate(scores.step)
    choices = itertools.product(repeats, steps, _bounds_of_step(stage, scores.num_slots))
    if stage.looks and scores.num_runs not in stage.looks:
        looks = ", ".join(map(str, stage.looks))
        raise InputError(
            f"audit {scores.audit}: {scores.num_runs} runs are none of its looks {looks}"
        )
    rows = []
    for repeat, (index, step), (slot, rule, conversion) in choices:
        chosen = slice(None) if slot is None else slice(slot, slot + 1)
        both = scores.of_worlds(repeat=repeat, step=index, slots=chosen)
        if min(map(len, both)) == 0:
            raise _one_world_error(scores.audit, slot)
        row = _place(scores, repeat, index) | {"slot": slot}
        mechanism = _mechanism(stage, scores, step, conversion)
        for num_runs, estimate in _estimates(stage, both, rule, conversion, mechanism).items():
            rows.append({**row, **vars(estimate), "num_runs": num_runs or scores.num_runs})
    table = _with_header(rows, scores)
    if scores.num_slots > 1 and stage.independent is Independence.SLOTS:
        # Rules of guesses have their own words for it.
        assumes = ~table["threshold_rule"].map(lambda name: threshold_rule_named(name).guesses)
        table.loc[assumes, "assumption"] += f"; {OF_SLOTS}"
        pooled = table.loc[assumes, "proof"].map(lambda proof: Proof(proof).of_pooled_slots().value)
        table.loc[assumes, "proof"] = pooled
    return table


def _measured(scores: AuditScores, repeat: int) -> dict[str, float | None]:
    """The mean over the runs at the last step; None for what was not measured."""
    mean = float(scores.test_accuracy[repeat].mean())
    if scores.header.get("measure") == "r2":
        return dict(zip(MEASURES, (None, None, mean), strict=True))
    return dict(zip(MEASURES, (mean, scores.header.get("baseline"), None), strict=True))


def _with_header(rows: list[dict[str, Any]], scores: AuditScores) -> pd.DataFrame:
    """The table of bounds, with what all of an audit's have in common."""
    table = pd.DataFrame(rows).astype(dict.fromkeys(MEASURES, float))
    missing = {column: nan for column in (*_OF_THRESHOLDS, *_OF_RANKS) if column not in table}
    return table.assign(
        **missing,
        num_slots=scores.num_slots,
        noise_multiplier=scores.header["noise_multiplier"],
        seconds=scores.header["seconds"],
    )


def _place(scores: AuditScores, repeat: int, index: int) -> dict[str, Any]:
    """What a row says of its repeat and its recorded step."""
    is_last = index in (-1, len(scores.step) - 1)
    measured = _measured(scores, repeat) if is_last else dict.fromkeys(MEASURES)
    return {"repeat": repeat, "step": scores.step[index], **measured}


def _rows_of_ranks(
    stage: EstimationStage, scores: AuditScores, num_candidates: int
) -> list[dict[str, Any]]:
    """A row per repeat, step, rank rule and conversion, from the secrets of all runs of a repeat.

    Rule `single` has rows where a repeat has one secret.
    """
    alone = scores.num_runs * scores.num_slots == 1
    rules = [rule for rule in stage.rank_rules if alone or rule is not RankRule.SINGLE]
    rows = []
    for repeat, index in np.ndindex(len(scores.scores), len(scores.step)):
        bounds = dict.fromkeys(
            (rule, RANK_RULES[rule].conversion(conversion))
            for rule, conversion in itertools.product(rules, stage.conversions)
        )
        for rule, conversion in bounds:
            estimate = estimate_epsilon_from_ranks(
                ranks=scores.scores[repeat, :, :, index].ravel(),
                num_candidates=num_candidates,
                delta=stage.delta,
                significance=stage.significance,
                conversion=conversion,
                rule=rule,
                adjacency=stage.adjacency,
                mechanism=_mechanism(stage, scores, int(scores.step[index]), conversion),
            )
            of_threshold = {"slot": None, "num_looks": 1, "threshold_rule": rule.value}
            row = _place(scores, repeat, index) | vars(estimate) | of_threshold
            rows.append(row | {"num_runs": scores.num_runs})
    return rows


def _bounds_of_step(
    stage: EstimationStage, num_slots: int
) -> list[tuple[int | None, str, Conversion]]:
    """The slot (None if all are pooled), rule and conversion of each bound."""
    pooled = num_slots == 1 or stage.independent is Independence.SLOTS
    bounds = itertools.product(
        [None] if pooled else range(num_slots), stage.threshold_rules, stage.conversions
    )
    allowed: dict[tuple[int | None, str, Conversion], None] = {}  # a set in order
    for slot, rule, conversion in bounds:
        entry = threshold_rule_named(rule)
        if not entry.guesses:
            allowed[slot, rule, entry.conversion(conversion)] = None
        elif num_slots > 1:
            allowed[None, rule, entry.conversion(conversion)] = None
    return list(allowed)


def estimates_by_runs(
    stage: EstimationStage, scores: AuditScores, num_runs: Sequence[int]
) -> pd.DataFrame:
    """The rows of `estimates_table` at the last step, from the first runs of every repeat.

    Each number of runs, of both worlds together, has its own rows. Those that are looks of the
    stage hold jointly with the other looks; each of the others holds alone.

    Raises:
        InputError: if there is a number of runs that `AuditScores.of_first_runs` refuses.
    """
    last, alone = scores.at_last_step(), stage.model_copy(update={"looks": ()})
    parts = []
    for number in sorted({*num_runs}):
        of_number = last.of_first_runs(number)
        table = estimates_table(stage if number in stage.looks else alone, of_number)
        parts.append(table[table["num_runs"] == number])
    return pd.concat(parts)


def _estimates(
    stage: EstimationStage,
    both: tuple[Scores, Scores],
    rule: str,
    conversion: Conversion,
    mechanism: Mechanism | None,
) -> dict[int, EpsilonEstimate]:
    """One bound for each look that has come, by its number of runs; without looks, under 0."""
    options: dict[str, Any] = {
        "world0_scores": both[0],
        "world1_scores": both[1],
        "delta": stage.delta,
        "significance": stage.significance,
        "conversion": conversion,
        "threshold_rule": rule,
        "mechanism": mechanism,
    }
    if not stage.looks:
        return {0: estimate_epsilon(**options, guessed_share=stage.guessed_share)}
    sizes = [(look // 2, look // 2) for look in stage.looks]
    bounds = estimate_epsilon_at_looks(looks=sizes, **options)
    return dict(zip(stage.looks, bounds, strict=False))


def _mechanism(
    stage: EstimationStage, scores: AuditScores, step: int, conversion: Conversion
) -> Mechanism | None:
    """The mechanism that is accounted up to a step, for the conversion that takes one."""
    if conversion is not Conversion.SUBSAMPLED_GAUSSIAN:
        return None
    return Mechanism(
        adjacency=stage.adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=scores.header["noise_multiplier"],
        num_steps=1 if stage.in_first_step else int(step) // (stage.canary_period or 1),
    )


def _one_world_error(audit: str, slot: int | None) -> InputError:
    what, also = "all slots", ""
    if slot is not None:
        what = f"slot {slot}"
        also = ", or set `independent: slots`, which assumes that slots do not influence each other"
    return InputError(
        f"audit {audit}: all runs have {what} in one world, which shows nothing;"
        f" train more runs{also}"
    )


def ceiling_of(
    *,
    num_world0: int,
    num_world1: int,
    delta: float,
    significance: float,
    threshold_rule: str,
    conversion: Conversion | str = Conversion.DIRECT,
) -> float:
    """The bound on epsilon if all scores of world 0 are above all of world 1.

    It is the largest bound that the rule can give: bounds rise with the empirical ROC curve. The
    arguments are those of `estimate_epsilon`; the conversion is not `subsampled_gaussian`.

    Example:
        >>> ceiling = ceiling_of(
        ...     num_world0=2500, num_world1=2500, delta=1e-5, significance=0.05,
        ...     threshold_rule="simultaneous",
        ... )  # fmt: skip
        >>> 5.7 < ceiling < 5.9
        True
    """
    return estimate_epsilon(
        world0_scores=np.ones(num_world0),
        world1_scores=np.zeros(num_world1),
        delta=delta,
        significance=significance,
        threshold_rule=threshold_rule,
        conversion=conversion,
    ).epsilon_lower


def ceilings_table(stage: EstimationStage, scores: list[AuditScores]) -> pd.DataFrame:
    """What conversion `direct` can show at most with the runs of some audits, by a valid rule.

    Returns:
        One row per audit: `audit`, `threshold_rule`, `delta`, the scores of both worlds in the
        first repeat, and `epsilon`.

    Raises:
        InputError: if no rule is valid.
    """
    valid = [rule for rule in stage.threshold_rules if threshold_rule_named(rule).is_valid]
    if not valid:
        raise InputError("threshold_rules has no valid rule, so nothing is shown")
    rows = []
    for of_audit in scores:
        num_world0, num_world1 = map(len, of_audit.of_worlds(repeat=0, step=-1))
        ceiling = ceiling_of(
            num_world0=num_world0,
            num_world1=num_world1,
            delta=stage.delta,
            significance=stage.significance,
            threshold_rule=valid[0],
        )
        rows.append((of_audit.audit, valid[0], stage.delta, num_world0, num_world1, ceiling))
    columns = ["audit", "threshold_rule", "delta", "num_world0", "num_world1", "epsilon"]
    return pd.DataFrame(rows, columns=columns)
