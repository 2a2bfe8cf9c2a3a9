"""How often an attack succeeds, from its scores: lower bounds without conversion to an epsilon."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpcanary.core.argument_checks import checked_real
from dpcanary.core.printing import confidence_in_words, percent_down, percent_up
from dpcanary.estimation.error_rates import (
    checked_significance,
    checked_worlds,
    clopper_pearson_upper,
    count_errors,
    next_distinct,
    simultaneous_local_level,
)

_FALSE_POSITIVE_RATES = (0.1, 0.01, 0.001)


@dataclass(frozen=True)
class ShownSuccess:
    """Lower bounds on the success of an attack with independent scores, which hold jointly.

    They are to be compared with the limits of `accounting.meaning_of`, under the same adjacency.

    Attributes:
        true_positive_rates: at each of some false positive rates.
        advantage: the largest difference of true and false positive rate, at least 0.
        guess: the chance to guess which of both worlds a run is from, if both are equally likely.
        significance: probability with which any of these may exceed the truth.
    """

    true_positive_rates: dict[float, float]
    advantage: float
    guess: float
    significance: float

    def __str__(self) -> str:
        rates = ", ".join(
            f"{percent_down(power)} at {percent_up(rate)} false ones"
            for rate, power in self.true_positive_rates.items()
            if power > rate
        )
        positives = f"; true positives: {rates}" if rates else ""
        holds = "These hold jointly" if rates else "This holds"
        confidence = confidence_in_words(self.significance)
        return (
            "an advantage (true less false positives) of at least"
            f" {percent_down(self.advantage)}{positives}. {holds} with {confidence}"
            " confidence, for independent scores"
        )


def shown_success(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    significance: float = 0.05,
    false_positive_rates: Sequence[float] = _FALSE_POSITIVE_RATES,
) -> ShownSuccess:
    """Bounds an attack's success from below, at all thresholds at once.

    Clopper-Pearson bounds of both error rates hold at all thresholds jointly, as for rule
    `simultaneous`. So the best threshold may be chosen on the scores. Nothing is assumed of the
    mechanism.

    Args:
        world0_scores: shape (n0,); independent. Higher means world 0 is likelier: a positive.
        world1_scores: shape (n1,); independent.
        significance: probability with which any bound may exceed the truth.
        false_positive_rates: each above 0 and below 1.

    Raises:
        InputError: if a score is NaN or an argument is out of range.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> shown = shown_success(
        ...     world0_scores=rng.normal(2.0, 1.0, 5_000), world1_scores=rng.normal(0.0, 1.0, 5_000)
        ... )
        >>> 0.62 < shown.advantage < 0.683  # the truth is 0.683
        True
    """
    scores0, scores1 = checked_worlds(world0_scores, world1_scores)
    level = checked_significance(significance)
    rates = [checked_real("false_positive_rates", rate, most=1.0) for rate in false_positive_rates]
    _, false_positives, false_negatives = count_errors(world0_scores=scores0, world1_scores=scores1)
    fpr, fnr = (
        clopper_pearson_upper(
            next_distinct(errors, size),
            num_trials=size,
            level=simultaneous_local_level(num_scores=size, level=level / 2),
        )
        for errors, size in ((false_positives, len(scores1)), (false_negatives, len(scores0)))
    )
    tpr = 1 - fnr
    powers = {rate: max(rate, float(tpr[fpr <= rate].max(initial=0.0))) for rate in rates}
    advantage = max(0.0, float(np.max(tpr - fpr)))
    return ShownSuccess(powers, advantage, (1 + advantage) / 2, level)
