"""Substitute epsilon by group privacy: a substitution is one removal and one addition.

Theorem 4.1 of Pradhan et al.: eps_S = 2 eps_AR(d), where d solves (1 + exp(eps_AR(d))) d = delta.
Looser than accounting for the substitution itself; kept to show by how much.
"""

from collections.abc import Callable
from dataclasses import replace
from math import exp

from scipy.optimize import brentq

from dpcanary.accounting.pld import (
    INSTEAD,
    ComposedLoss,
    arithmetic_guard,
    check_delta,
    composed_losses,
)
from dpcanary.accounting.setting import Accountant, EpsilonBounds, Setting
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError


def _epsilons(setting: Setting, steps: list[int], *, pessimistic: bool) -> list[float]:
    if setting.adjacency is not Adjacency.SUBSTITUTE:
        raise setting.refusal(
            "group privacy bounds the substitute epsilon only", instead="use method='pld'"
        )
    single = replace(setting, adjacency=Adjacency.ADD_REMOVE)
    try:
        losses = composed_losses(single, steps, pessimistic=pessimistic)
        return [
            _doubled(replace(single, num_steps=num_steps), loss)
            for num_steps, loss in zip(steps, losses, strict=True)
        ]
    except AccountingError as error:
        raise setting.refusal(
            f"the add/remove epsilon that it rests on cannot be told ({error.reason})",
            instead="use method='pld' or 'prv', which account the substitution itself",
        ) from error


def _doubled(setting: Setting, loss: ComposedLoss) -> float:
    """Solves the theorem's equation in the epsilon of one removal."""

    def excess(epsilon: float) -> float:
        return (1 + exp(epsilon)) * loss.delta(epsilon) - setting.delta

    if excess(0.0) <= 0:
        return 0.0
    with arithmetic_guard(setting):
        epsilon = brentq(excess, 0.0, _above_root(setting, loss, excess), xtol=1e-9)
    return 2 * float(epsilon)


def _above_root(setting: Setting, loss: ComposedLoss, excess: Callable[[float], float]) -> float:
    # The solution's delta is below delta / 2, and about exp(-epsilon) of delta.
    delta = setting.delta / 2
    while True:
        check_delta(setting, delta)
        high = loss.epsilon(delta)
        if excess(high) <= 0:
            return high
        delta /= 3


def _uppers(setting: Setting, steps: list[int]) -> list[float]:
    return _epsilons(setting, steps, pessimistic=True)


def _bounds(setting: Setting) -> EpsilonBounds:
    steps = [setting.num_steps]
    [upper] = _epsilons(setting, steps, pessimistic=True)
    [lower] = _epsilons(setting, steps, pessimistic=False)
    return EpsilonBounds(lower, upper, upper)


accountant = Accountant(bounds=_bounds, uppers=_uppers, instead=INSTEAD)
