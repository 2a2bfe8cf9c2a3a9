"""From bounds on the two error rates to a lower bound on epsilon, at every threshold at once."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpcanary.estimation.options import Conversion
from dpcanary.gdp import gdp_epsilon

Array = NDArray[np.float64]


class ConversionRule(NamedTuple):
    """One conversion.

    Attributes:
        strength: (fpr_upper, fnr_upper, delta) -> what the bounds prove at each threshold; the
            threshold of largest strength gives the largest epsilon.
        epsilon: (strength of at least 0, delta) -> epsilon_lower.
        mu: strength of at least 0 -> mu_lower, or NaN if the conversion knows no mu.
        assumption: what must hold so that the bound is valid.
    """

    strength: Callable[[Array, Array, float], Array]
    epsilon: Callable[[float, float], float]
    mu: Callable[[float], float]
    assumption: str


def _direct_strength(fpr_upper: Array, fnr_upper: Array, delta: float) -> Array:
    with np.errstate(divide="ignore"):
        return np.maximum(
            np.log(np.maximum(1.0 - delta - fpr_upper, 0.0) / fnr_upper),
            np.log(np.maximum(1.0 - delta - fnr_upper, 0.0) / fpr_upper),
        )


CONVERSION_RULES = {
    Conversion.GDP: ConversionRule(
        strength=lambda fpr_upper, fnr_upper, delta: -ndtri(fpr_upper) - ndtri(fnr_upper),
        epsilon=lambda strength, delta: gdp_epsilon(mu=strength, delta=delta),
        mu=lambda strength: strength,
        assumption=(
            "the mechanism's trade-off curve is Gaussian (mu-GDP): exact for DP-SGD at"
            " sample_rate 1, a central-limit approximation below"
        ),
    ),
    Conversion.DIRECT: ConversionRule(
        strength=_direct_strength,
        epsilon=lambda strength, delta: strength,
        mu=lambda strength: float("nan"),
        assumption="none on the mechanism: the definition of (epsilon, delta)-DP alone",
    ),
}
