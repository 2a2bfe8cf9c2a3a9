"""Epsilon by prv-accountant, with privacy random variables of our own.

The way of Pradhan et al. [after Gopi et al., 2021]: the loss of one step is discretised and
composed by fast Fourier transforms, with a bound on the error of both. It shares no code with
the "pld" accountant.
"""

from dataclasses import replace
from math import log, sqrt
from warnings import catch_warnings, simplefilter

import numpy as np
from prv_accountant.accountant import PRVAccountant, compute_safe_domain_size
from scipy.integrate import IntegrationWarning

from dpcanary.accounting.losses import AddLoss, MixtureLoss, RemoveLoss, SubstituteLoss
from dpcanary.accounting.setting import Accountant, EpsilonBounds, Setting
from dpcanary.adjacency import Adjacency
from dpcanary.gdp import gdp_epsilon

_INSTEAD = "use method='pld'"
_POINTS = 1_000_000
_FAILURES = (ArithmeticError, ValueError, RuntimeError, MemoryError, AssertionError)


def _bounds(setting: Setting) -> EpsilonBounds:
    single = setting.collapsed()
    directions = [_direction(setting, single, loss) for loss in _losses(single)]
    return EpsilonBounds(
        lower=max(bounds.lower for bounds in directions),
        estimate=max(bounds.estimate for bounds in directions),
        upper=max(bounds.upper for bounds in directions),
    )


def _uppers(setting: Setting, steps: list[int]) -> list[float]:
    return [_bounds(replace(setting, num_steps=num_steps)).upper for num_steps in steps]


def _losses(single: Setting) -> list[MixtureLoss]:
    if single.adjacency is Adjacency.SUBSTITUTE:
        kinds: list[type[MixtureLoss]] = [SubstituteLoss]
    else:
        # Without sampling both directions are the same Gaussian pair.
        kinds = [RemoveLoss, AddLoss] if single.sample_rate < 1 else [RemoveLoss]
    return [kind(single.sample_rate, single.noise_multiplier) for kind in kinds]


def _direction(setting: Setting, single: Setting, loss: MixtureLoss) -> EpsilonBounds:
    """Bounds of one direction; anything that fails inside prv-accountant is a refusal."""
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"), catch_warnings():
            simplefilter("error", IntegrationWarning)
            return _compose(single, loss)
    except (*_FAILURES, IntegrationWarning) as error:
        reason = f"prv-accountant failed ({error or type(error).__name__})"
        raise setting.refusal(reason, instead=_INSTEAD) from error


def _compose(single: Setting, loss: MixtureLoss) -> EpsilonBounds:
    delta_error = 1e-3 * single.delta
    accountant = PRVAccountant(
        prvs=loss,
        eps_error=_epsilon_error(single, loss, delta_error),
        delta_error=delta_error,
        max_self_compositions=single.num_steps,
    )
    domain = accountant.composer.prvs[0].domain
    lost = loss.below(np.asarray(domain.t_min())) + loss.above(np.asarray(domain.t_max()))
    if single.num_steps * lost > delta_error:
        raise ValueError(f"its domain loses mass {single.num_steps * float(lost):.2g}")
    values = accountant.compute_epsilon(single.delta, [single.num_steps])
    # Below 0 there is nothing left to bound; NaN passes through to be refused.
    return EpsilonBounds(*(0.0 if value < 0 else value for value in values))


def _epsilon_error(single: Setting, loss: MixtureLoss, delta_error: float) -> float:
    """One per cent of the epsilon to expect, or the least that the largest grid allows."""
    mu = single.adjacency.sensitivity * single.sample_rate / single.noise_multiplier
    expected = gdp_epsilon(mu=mu * sqrt(single.num_steps), delta=single.delta)
    wanted = 0.01 * min(max(expected, 0.1), 10.0)
    # prv-accountant's own width and mesh, without which a grid can outgrow the memory.
    half_width = float(compute_safe_domain_size([loss], [single.num_steps], wanted, delta_error))
    meshes = sqrt(single.num_steps / 2 * log(12 / delta_error))
    affordable = 2 * half_width * meshes / _POINTS
    if affordable > 10 * wanted:
        raise ValueError(f"epsilon would be known to {affordable:.2g} only")
    return max(wanted, affordable)


accountant = Accountant(bounds=_bounds, uppers=_uppers, instead=_INSTEAD)
