"""Epsilon from dp-accounting's privacy loss distributions.

The upper epsilon comes from connect-the-dots discretisation [Doroshenko et al., 2022], which is
pessimistic and off by the square of the grid interval only, so it is the estimate as well. The
lower one comes from rounding every loss down, which costs about half an interval per step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import expm1, inf, log, log1p, sinh, sqrt

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import (
    NeighborRel,
    PrivacyLossDistribution,
    from_gaussian_mechanism,
)

from dpcanary.accounting.setting import Accountant, EpsilonBounds, Setting
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError

# Points on a step's grid, and on the composed one: a second or so of work each.
_STEP_POINTS = {True: 1_000_000, False: 200_000}  # pessimistic (vectorised), optimistic (a loop)
_COMPOSED_POINTS = 4_000_000
# Where losses are large, this interval (over sqrt(T)) keeps the epsilon to 1e-5 of itself.
_COARSE_INTERVAL = 1e-3
# exp(-loss) underflows at 745, and dp-accounting then returns a quantile of the loss instead.
_LARGEST_EPSILON = 700.0
INSTEAD = "use method='prv', or 'closed_form' at sample_rate=1"


@dataclass(frozen=True)
class StepLoss:
    """The loss of one step on a grid, to be composed to any number of steps.

    Attributes:
        setting: what is accounted; its num_steps is the most that will be composed.
        pessimistic: whether deltas are rounded up (for an upper epsilon) or down.
    """

    setting: Setting
    pessimistic: bool

    @cached_property
    def _distribution(self) -> PrivacyLossDistribution:
        substitute = self.setting.adjacency is Adjacency.SUBSTITUTE
        return from_gaussian_mechanism(
            self.setting.noise_multiplier,
            value_discretization_interval=_interval(self.setting, self.pessimistic),
            sampling_prob=self.setting.sample_rate,
            neighboring_relation=(
                NeighborRel.REPLACE_ONE if substitute else NeighborRel.ADD_OR_REMOVE_ONE
            ),
            pessimistic_estimate=self.pessimistic,
            use_connect_dots=self.pessimistic,
        )

    def composed(self, num_steps: int) -> "ComposedLoss":
        """The loss of num_steps steps."""
        with arithmetic_guard(self.setting):
            return ComposedLoss(
                setting=replace(self.setting, num_steps=num_steps),
                distribution=self._distribution.self_compose(num_steps),
                pessimistic=self.pessimistic,
            )


@dataclass(frozen=True)
class ComposedLoss:
    """The loss of all steps.

    Attributes:
        setting: what is accounted.
        distribution: dp-accounting's distribution.
        pessimistic: whether deltas are rounded up or down.
    """

    setting: Setting
    distribution: PrivacyLossDistribution
    pessimistic: bool

    def epsilon(self, delta: float) -> float:
        """Epsilon at a delta, with the round-off counted on the safe side.

        Raises:
            AccountingError: dp-accounting cannot tell an epsilon as large as this.
        """
        with arithmetic_guard(self.setting):
            epsilon = float(self.distribution.get_epsilon_for_delta(delta - self._slack))
        if not epsilon < _LARGEST_EPSILON:
            raise self.setting.refusal(
                f"epsilon is {epsilon:.4g}, and beyond {_LARGEST_EPSILON:g} it underflows",
                instead="raise noise_multiplier, or use method='closed_form' at sample_rate=1",
            )
        return epsilon

    def delta(self, epsilon: float) -> float:
        """Delta at an epsilon, with the round-off counted on the safe side."""
        return float(self.distribution.get_delta_for_epsilon(epsilon)) + self._slack

    @property
    def _slack(self) -> float:
        round_off = _round_off(self.setting.num_steps)
        return round_off if self.pessimistic else -round_off


@contextmanager
def arithmetic_guard(setting: Setting) -> Iterator[None]:
    """Turns overflow, and anything else that dp-accounting trips over, into a refusal."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            yield
    except AccountingError:
        raise
    except (ArithmeticError, ValueError, MemoryError) as error:
        raise setting.refusal(f"dp-accounting failed ({error})", instead=INSTEAD) from error


def composed_losses(
    setting: Setting, steps: list[int], *, pessimistic: bool
) -> Iterator[ComposedLoss]:
    """The loss after each of some numbers of steps, from one discretisation of a step.

    Args:
        setting: what is accounted; its num_steps is ignored.
        steps: the numbers of steps.
        pessimistic: whether deltas are rounded up or down.

    Raises:
        AccountingError: dp-accounting cannot represent this setting.
    """
    longest = replace(setting, num_steps=max(steps))
    shared = StepLoss(longest, pessimistic)
    for num_steps in steps:
        single = replace(setting, num_steps=num_steps).collapsed()
        step = StepLoss(single, pessimistic) if setting.sample_rate == 1 else shared
        yield step.composed(single.num_steps)


def check_delta(setting: Setting, delta: float) -> None:
    """Refuses a delta that round-off would drown."""
    floor = 5 * _round_off(setting.collapsed().num_steps)
    if delta < floor:
        raise setting.refusal(
            f"rounding errors drown a delta of {delta:.2g}, under {floor:.2g}",
            instead="raise delta, or use method='closed_form' at sample_rate=1",
        )


def _round_off(num_steps: int) -> float:
    # Measured against the closed form: 2e-17 to 5e-17 a step at 500 to 100,000 steps, next to
    # the mass of 1e-15 that dp-accounting cuts off the composition's tail.
    return 2e-15 + 1e-16 * num_steps


def _interval(setting: Setting, pessimistic: bool) -> float:
    """The grid interval: a small part of a step's loss, within what time and memory allow."""
    num_steps = setting.num_steps
    scale = setting.adjacency.sensitivity * setting.sample_rate / setting.noise_multiplier
    wanted = min(scale / 20, 0.02 / num_steps)
    if pessimistic:
        # With little noise, losses are far larger than `scale`, which is that of most steps.
        coarse = min(_COARSE_INTERVAL / sqrt(num_steps), _deviation(setting) / 1000)
        wanted = max(scale / 100, coarse)
    span = _span(setting)
    # dp-accounting keeps T/400 + 68 times a step's span: its Chernoff orders end at 20 / span.
    composed_span = span * min(num_steps, num_steps / 400 + 68)
    interval = max(wanted, span / _STEP_POINTS[pessimistic], composed_span / _COMPOSED_POINTS)
    if pessimistic and interval > _deviation(setting) / 10:
        raise setting.refusal("the losses of a step span too wide a grid", instead=INSTEAD)
    return interval


def _span(setting: Setting) -> float:
    """Width of one step's losses, out to where the noise has mass e^-50."""
    q, sigma = setting.sample_rate, setting.noise_multiplier
    x = 1 + 10 * sigma
    none = log1p(-q) if q < 1 else -inf
    ends = [np.logaddexp(none, log(q) + (2 * s * x - 1) / (2 * sigma**2)) for s in (1, -1)]
    return float(setting.adjacency.sensitivity * (ends[0] - ends[1]))


def _deviation(setting: Setting) -> float:
    """Standard deviation of one step's likelihood ratio, capped at that of a large one."""
    inverse = min(setting.noise_multiplier**-2, 50.0)
    if setting.adjacency is Adjacency.SUBSTITUTE:
        return setting.sample_rate * sqrt(4 * sinh(inverse))
    return setting.sample_rate * sqrt(expm1(inverse))


def _uppers(setting: Setting, steps: list[int]) -> list[float]:
    check_delta(replace(setting, num_steps=max(steps)), setting.delta)
    losses = composed_losses(setting, steps, pessimistic=True)
    return [loss.epsilon(setting.delta) for loss in losses]


def _bounds(setting: Setting) -> EpsilonBounds:
    [upper] = _uppers(setting, [setting.num_steps])
    [loss] = composed_losses(setting, [setting.num_steps], pessimistic=False)
    return EpsilonBounds(loss.epsilon(setting.delta), upper, upper)


accountant = Accountant(bounds=_bounds, uppers=_uppers, instead=INSTEAD)
