"""What to try where scores show nothing."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.printing import rounded_down
from dpcanary.estimation.lower_bound import EpsilonEstimate, estimate_epsilon
from dpcanary.estimation.rule_catalogue import ThresholdRule
from dpcanary.estimation.table import ceiling_of


def hint_of_zero(
    *,
    world0_scores: NDArray[np.float64],
    world1_scores: NDArray[np.float64],
    bound: EpsilonEstimate,
    if_reversed: str,
    if_weak: str,
    mechanism: Mechanism | None = None,
) -> str:
    """What to try if a bound is 0; empty if it is not.

    Args:
        world0_scores: those that the bound is from.
        world1_scores: of world 1.
        bound: by a rule that needs no further argument.
        if_reversed: what to do if low scores stand for world 0; after "If low scores stand for
            world 0, as losses do,".
        if_weak: a sentence on what else helps.
        mechanism: that of the bound, if it is by conversion `subsampled_gaussian`.
    """
    if bound.epsilon_lower > 0:
        return ""
    most = ceiling_of(
        num_world0=len(world0_scores),
        num_world1=len(world1_scores),
        delta=bound.delta,
        significance=bound.significance,
        threshold_rule=ThresholdRule.SIMULTANEOUS,
    )
    if most == 0:
        return "So few scores show little at best: make more runs."
    other = estimate_epsilon(
        world0_scores=-world0_scores,
        world1_scores=-world1_scores,
        delta=bound.delta,
        significance=bound.significance,
        threshold_rule=bound.threshold_rule,
        conversion=bound.conversion,
        mechanism=mechanism,
    )
    epsilon = rounded_down(other.epsilon_lower)
    if epsilon != rounded_down(0.0):
        return (
            f"With the signs of all scores changed the bound would be {epsilon}. If low scores"
            f" stand for world 0, as losses do, {if_reversed}; decide that by what the scores are,"
            " not by this number."
        )
    return (
        "The bound is 0: these scores do not show that the worlds differ. The attack may be too"
        f" weak, or the scores too few.{if_weak}"
    )
