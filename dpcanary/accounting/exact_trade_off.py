"""The exact trade-off curve of DP-SGD, from the privacy loss distribution of its steps.

Tests between two worlds trade false positives for false negatives. The curve gives the least false
negative rate (FNR) for each false positive rate (FPR) [Dong, Roth and Su, 2022]. It holds without
any central-limit argument. At sample rate 1 it is Gaussian, in closed form.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from dp_accounting.pld.pld_pmf import PLDPmf
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpcanary.accounting.curve import GaussianCurve, TradeOffCurve
from dpcanary.accounting.epsilon import checked_question
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.pld import ComposedLoss, check_delta, composed_losses
from dpcanary.core.argument_checks import checked_real
from dpcanary.core.gdp import gdp_mu
from dpcanary.errors import AccountingError

Array = NDArray[np.float64]


def errors_by_threshold(masses: PLDPmf) -> tuple[Array, Array]:
    """Errors of the tests that reject the null at a loss of at least t, for falling t down to 0.

    The first test rejects at an infinite loss only. The last entry is no test: it continues the
    curve with the slope -1, which it has at the threshold 0.

    Returns:
        The null's mass at which the null is rejected, not falling; and the other distribution's
        mass at which it is not, not rising. Both have shape (tests,).
    """
    # dp-accounting has no public access to the masses.
    dense = masses.to_dense_pmf()
    lowest, interval = dense._lower_loss, dense._discretization
    kept = dense._probs[max(0, -lowest) :][::-1]
    losses = interval * (max(0, lowest) + np.arange(len(kept))[::-1])
    # In long double, so that long sums add nothing to the round-off of the composition.
    null = _running_sum(kept * np.exp(-losses))
    power = dense._infinity_mass + _running_sum(kept)
    false_positives = np.append(null, null[-1] + 1).astype(np.float64)
    return false_positives, np.append(1 - power, -power[-1]).astype(np.float64)


def _running_sum(masses: Array) -> NDArray[np.longdouble]:
    """Sums of the first 0, 1, ... masses; the transforms leave some masses just below 0."""
    sums = np.cumsum(masses, dtype=np.longdouble)
    return np.maximum.accumulate(np.concatenate([np.zeros(1, np.longdouble), sums]))


# FPRs at which two curves are compared, as standard normal quantiles.
_QUANTILES = np.linspace(-8.0, 8.0, 2001)
# Quantiles for `largest_mu`: finer, since a curve may have a kink where mu is largest.
_FURTHEST_QUANTILE = 4.75
_FINE_QUANTILES = np.linspace(-_FURTHEST_QUANTILE, _FURTHEST_QUANTILE, 40_001)


@dataclass(frozen=True, eq=False)
class LossCurve(TradeOffCurve):
    """The curve of a composed loss.

    A likelihood-ratio test is best at each FPR. In the discretised losses, the points of these
    tests are the corners of a polygon, and the tests between them are random mixtures of two. So
    the straight lines between corners are exact, and the discretisation is pessimistic.

    Thresholds of at least 0 are taken from the loss of world 0 against world 1, the others from
    that of world 1 against world 0: the sums of each side are then precise in its own tail.

    Attributes:
        loss: of all steps, pessimistic.
        steep: FPRs and FNRs where the slope is at most -1. World 1 is the null hypothesis.
        flat: the same where the slope is at least -1. World 0 is the null hypothesis.
    """

    loss: ComposedLoss
    steep: tuple[Array, Array]
    flat: tuple[Array, Array]

    @classmethod
    def of(cls, loss: ComposedLoss) -> "LossCurve":
        """The curve of a loss."""
        towards0, towards1 = loss.directions
        steep = errors_by_threshold(towards0)
        flat = steep if towards1 is towards0 else errors_by_threshold(towards1)
        return cls(loss, steep, flat)

    def epsilon(self, delta: float) -> float:
        """See TradeOffCurve."""
        question = replace(self.loss.question, delta=checked_real("delta", delta, most=1.0))
        check_delta(question, question.delta)
        return replace(self.loss, question=question).epsilon(question.delta)

    def _fnr(self, fpr: Array) -> Array:
        # `slack` raises all deltas. It lowers one side of the curve, and moves the other left.
        slack = self.loss.slack
        steep = np.interp(fpr, *self.steep) - slack
        positives, negatives = self.flat
        flat = np.interp(fpr + slack, negatives[::-1], positives[::-1])
        return np.asarray(np.maximum(np.maximum(steep, flat), 0.0))


def trade_off_curve(mechanism: Mechanism) -> TradeOffCurve:
    """The trade-off curve of world 1 against world 0, under the mechanism's adjacency.

    Below sample rate 1 it lies below the exact curve by the accountant's discretisation, which is
    far less than a Monte-Carlo error.

    Raises:
        AccountingError: the losses cannot be represented on a grid: rare sampling with little
            noise.

    Example:
        >>> curve = trade_off_curve(Mechanism("substitute", sample_rate=0.0625, num_steps=500,
        ...                                   noise_multiplier=1.6773))
        >>> curve.fnr([0.01, 0.1]).round(3).tolist()
        [0.747, 0.353]
        >>> round(curve.epsilon(1e-5), 3)
        7.997
    """
    try:
        [curve] = curves_by_steps(mechanism, [mechanism.num_steps])
    except AccountingError as error:
        raise AccountingError.about(
            f"no trade-off curve for {mechanism.in_words()}",
            reason=error.reason or str(error),
            instead="raise noise_multiplier",
        ) from error
    return curve


def curves_by_steps(mechanism: Mechanism, steps: list[int]) -> Iterator[TradeOffCurve]:
    """The curve after each of several numbers of steps, in place of the mechanism's own number.

    All share the discretisation of a step. Errors as those of `trade_off_curve`.
    """
    question = checked_question(mechanism, delta=0.5)  # curves have no delta
    if mechanism.sample_rate == 1:
        sensitivity = mechanism.adjacency.sensitivity
        for num_steps in steps:
            yield GaussianCurve(sensitivity * sqrt(num_steps) / mechanism.noise_multiplier)
        return
    for loss in composed_losses(question, steps, pessimistic=True):
        yield LossCurve.of(loss)


def largest_mu(curve: TradeOffCurve) -> float:
    """The largest mu = Phi^-1(1 - FPR) - Phi^-1(FNR) over all tests of a curve.

    An audit with conversion `gdp` and infinitely many runs would state it. If the curve is not
    Gaussian, the epsilon of this mu is not that of the curve. Rates below 1e-6 are left out.

    Example:
        >>> round(largest_mu(GaussianCurve(1.5)), 6)
        1.5
    """
    others = ndtri(curve.fnr(ndtr(_FINE_QUANTILES)))
    seen = np.abs(others) < _FURTHEST_QUANTILE
    return float((-_FINE_QUANTILES - others)[seen].max(initial=0.0))


def gaussian_distance(curve: TradeOffCurve, *, delta: float) -> float:
    """How far a curve is from the Gaussian one that has the same epsilon at a delta.

    Returns:
        Largest difference in FNR over all FPRs: 0 for a Gaussian curve, such as that of any
        mechanism with sample rate 1.

    Raises:
        InputError: delta is not between 0 and 1.
        AccountingError: the curve has no epsilon at this delta.
    """
    gaussian = GaussianCurve(gdp_mu(epsilon=curve.epsilon(delta), delta=delta))
    if isinstance(curve, GaussianCurve):
        return 0.0
    rates = ndtr(_QUANTILES)
    return float(np.abs(curve.fnr(rates) - gaussian.fnr(rates)).max())
