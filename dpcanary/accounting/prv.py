"""Epsilon by prv-accountant, with privacy random variables of our own.

This is the method of Pradhan et al. [after Gopi et al., 2021]: the loss of one step is discretised
and composed by fast Fourier transforms, with a bound on the error of both. It shares no code with
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
    """The largest bounds of all directions; a failure inside prv-accountant is a refusal."""
    single = setting.collapsed()
    kinds: list[type[MixtureLoss]] = [SubstituteLoss]
    if single.adjacency is not Adjacency.SUBSTITUTE:
        # Without sampling both directions are the same Gaussian pair.
        kinds = [RemoveLoss, AddLoss] if single.sample_rate < 1 else [RemoveLoss]
    losses = [kind(single.sample_rate, single.noise_multiplier) for kind in kinds]
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"), catch_warnings():
            simplefilter("error", IntegrationWarning)
            directions = [_compose(single, loss) for loss in losses]
    except (*_FAILURES, IntegrationWarning) as error:
        reason = f"prv-accountant failed ({error or type(error).__name__})"
        raise setting.refusal(reason, instead=_INSTEAD) from error
    return EpsilonBounds(*map(max, zip(*directions, strict=True)))


def _uppers(setting: Setting, steps: list[int]) -> list[float]:
    return [_bounds(replace(setting, num_steps=num_steps)).upper for num_steps in steps]


def _compose(single: Setting, loss: MixtureLoss) -> list[float]:
    """Lower bound, estimate and upper bound for one direction."""
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
    # An epsilon is at least 0. NaN is kept here, so that the caller refuses it.
    return [0.0 if value < 0 else value for value in values]


def _epsilon_error(single: Setting, loss: MixtureLoss, delta_error: float) -> float:
    """One per cent of the expected epsilon, or the smallest error that the largest grid allows."""
    mu = single.adjacency.sensitivity * single.sample_rate / single.noise_multiplier
    expected = gdp_epsilon(mu=mu * sqrt(single.num_steps), delta=single.delta)
    wanted = 0.01 * min(max(expected, 0.1), 10.0)
    # These are prv-accountant's own width and mesh. Without this limit a grid may exceed memory.
    half_width = float(compute_safe_domain_size([loss], [single.num_steps], wanted, delta_error))
    meshes = sqrt(single.num_steps / 2 * log(12 / delta_error))
    affordable = 2 * half_width * meshes / _POINTS
    if affordable > 10 * wanted:
        raise ValueError(f"epsilon would be known to {affordable:.2g} only")
    return max(wanted, affordable)


accountant = Accountant(bounds=_bounds, uppers=_uppers, instead=_INSTEAD)
