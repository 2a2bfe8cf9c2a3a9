"""A check of the law of secrets: on a model that never saw them, their ranks are uniform."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpcanary.estimation.ranks.rank_laws import Ranks, checked_ranks
from dpcanary.estimation.ranks.rank_methods import exposure_weights, tail_of_sum


@dataclass(frozen=True)
class UniformityCheck:
    """How well ranks agree with the uniform law.

    Attributes:
        p_value: of the smallest of the three below, with Bonferroni's correction.
        p_low: of ranks that are as low as these. If it is small, secrets can be guessed without
            the model's training: their law is not what it was taken for, or they stand elsewhere.
        p_high: of ranks that are as high. If it is small, ties are many, or candidates are treated
            differently, as by a tokeniser; bounds then are valid, and low.
        p_shape: of a distance as large from the uniform law, by the test of Kolmogorov and Smirnov.
        num_secrets: ranks that were compared.
        num_candidates: of each.
    """

    p_value: float
    p_low: float
    p_high: float
    p_shape: float
    num_secrets: int
    num_candidates: int


def check_uniform_ranks(*, ranks: ArrayLike, num_candidates: int) -> UniformityCheck:
    """Tests whether ranks on a model that never saw the secrets are uniform.

    They must be, if each secret was drawn fairly from its candidates. The p-values for low and for
    high ranks are exact for the sums of exposures; that of the shape is conservative.

    Args:
        ranks: shape (m,), on a model that was trained without the secrets, such as the one before
            fine-tuning.
        num_candidates: k, at least 2.

    Raises:
        InputError: if a rank is out of range.

    Example:
        >>> import numpy as np
        >>> ranks = np.random.default_rng(0).integers(1, 1001, 200)
        >>> check_uniform_ranks(ranks=ranks, num_candidates=1000).p_value > 0.05
        True
        >>> check_uniform_ranks(ranks=(ranks + 3) // 4, num_candidates=1000).p_low < 0.001
        True
    """
    valid_ranks = checked_ranks(ranks, num_candidates)
    low = _p_value_of_low(valid_ranks, num_candidates)
    high = _p_value_of_low(num_candidates + 1 - valid_ranks, num_candidates)
    shape = _p_value_of_shape(valid_ranks, num_candidates)
    p_value = min(1.0, 3 * min(low, high, shape))
    return UniformityCheck(p_value, low, high, shape, len(valid_ranks), num_candidates)


def _p_value_of_low(ranks: Ranks, num_candidates: int) -> float:
    weights, thresholds = exposure_weights(ranks, num_candidates)
    return tail_of_sum(weights, thresholds / num_candidates)


def _p_value_of_shape(ranks: Ranks, num_candidates: int) -> float:
    from scipy.stats import kstwo  # takes long to import

    values = np.unique(ranks)
    values = np.union1d(values, values - 1)  # between these, the distance is no larger
    shares = np.searchsorted(np.sort(ranks), values, side="right") / len(ranks)
    distance = float(np.abs(shares - values / num_candidates).max())
    return float(kstwo.sf(distance, len(ranks)))
