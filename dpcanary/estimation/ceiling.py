"""The largest bound that a number of runs can give, however well an adversary does."""

import numpy as np
import pandas as pd

from dpcanary.errors import InputError
from dpcanary.estimation.estimate import estimate_epsilon
from dpcanary.estimation.options import Conversion
from dpcanary.estimation.rules import threshold_rule_named
from dpcanary.estimation.stage import EstimationStage
from dpcanary.scoring.score_file import AuditScores


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

    It is the largest bound that the rule can give: bounds rise with the empirical ROC curve.

    Args:
        num_world0: scores of world 0.
        num_world1: scores of world 1.
        delta: in (0, 1).
        significance: of the bound.
        threshold_rule: by name.
        conversion: see `Conversion`; not `subsampled_gaussian`.

    Raises:
        InputError: see `estimate_epsilon`.

    Example:
        >>> ceiling = ceiling_of(
        ...     num_world0=2500, num_world1=2500, delta=1e-5, significance=0.05,
        ...     threshold_rule="simultaneous",
        ... )  # fmt: skip
        >>> 5.7 < ceiling < 5.9
        True
    """
    scores = np.arange(num_world0 + num_world1, dtype=np.float64)
    return estimate_epsilon(
        world0_scores=scores[num_world1:],
        world1_scores=scores[:num_world1],
        delta=delta,
        significance=significance,
        threshold_rule=threshold_rule,
        conversion=conversion,
    ).epsilon_lower


def ceilings_table(stage: EstimationStage, scores: list[AuditScores]) -> pd.DataFrame:
    """What conversion `direct` can prove at most with the runs of some audits.

    Args:
        stage: the settings of their estimates; the first valid rule counts.
        scores: of the audits.

    Returns:
        One row per audit: `audit`, `threshold_rule`, `delta`, the scores of both worlds in the
        first repeat, and `epsilon`.

    Raises:
        InputError: if no rule is valid.
    """
    valid = [rule for rule in stage.threshold_rules if threshold_rule_named(rule).is_valid]
    if not valid:
        raise InputError("threshold_rules has no valid rule, so nothing is proven")
    known: dict[tuple[int, int], float] = {}
    rows = []
    for one in scores:
        world0, world1 = one.of_worlds(repeat=0, step=-1)
        sizes = len(world0), len(world1)
        if sizes not in known:
            known[sizes] = ceiling_of(
                num_world0=len(world0),
                num_world1=len(world1),
                delta=stage.delta,
                significance=stage.significance,
                threshold_rule=valid[0],
            )
        rows.append((one.audit, valid[0], stage.delta, *sizes, known[sizes]))
    columns = ["audit", "threshold_rule", "delta", "num_world0", "num_world1", "epsilon"]
    return pd.DataFrame(rows, columns=columns)
