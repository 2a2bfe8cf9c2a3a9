"""Substitute epsilon by group privacy: a substitution is one removal and one addition.

Theorem 4.1 of Pradhan et al.: eps_S = 2 eps_AR(d), where d solves (1 + exp(eps_AR(d))) d = delta.
It is looser than accounting for the substitution itself, and is here to show by how much.
"""

from dataclasses import replace
from functools import partial
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
            f"it rests on the add/remove epsilon, which cannot be accounted ({error.reason})",
            instead="use method='pld' or 'prv', which account the substitution itself",
        ) from error


def _doubled(setting: Setting, loss: ComposedLoss) -> float:
    """Solves the theorem's equation for the epsilon of one removal, and doubles it."""

    def excess(epsilon: float) -> float:
        return (1 + exp(epsilon)) * loss.delta(epsilon) - setting.delta

    if excess(0.0) <= 0:
        return 0.0
    with arithmetic_guard(setting):
        # At the solution, delta is below half of the given one: about exp(-epsilon) of it.
        delta = setting.delta / 2
        check_delta(setting, delta)
        while excess(high := loss.epsilon(delta)) > 0:
            delta /= 3
            check_delta(setting, delta)
        return 2 * float(brentq(excess, 0.0, high, xtol=1e-9))


def _bounds(setting: Setting) -> EpsilonBounds:
    [upper] = _epsilons(setting, [setting.num_steps], pessimistic=True)
    [lower] = _epsilons(setting, [setting.num_steps], pessimistic=False)
    return EpsilonBounds(lower, upper, upper)


accountant = Accountant(
    bounds=_bounds, uppers=partial(_epsilons, pessimistic=True), instead=INSTEAD
)
