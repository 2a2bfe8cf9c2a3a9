"""Epsilons that can always be computed, and are looser than those of the exact accountants.

There are two upper bounds, and the smaller one counts. Privacy loss distributions stay valid on a
coarse grid, where losses are rounded up further. Rényi divergences of steps add up, and each order
gives an epsilon [Mironov, 2017; Canonne, Kamath and Steinke, 2020]. They are integrated for
the dominating pair of the adjacency itself: accountants that know add/remove alone halve the
substitute epsilon.
"""

from collections.abc import Callable
from math import inf, log, log1p, pi, sqrt

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from numpy.typing import NDArray

from dpcanary.accounting import pld
from dpcanary.accounting.mechanism import EpsilonBounds, Mechanism, Question
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.log_sums import log_sums
from dpcanary.errors import AccountingError

INSTEAD = "raise noise_multiplier or delta"

Array = NDArray[np.float64]

# Orders close to 1 serve large epsilons, large ones small epsilons.
_ORDERS = 1 + np.geomspace(1e-6, 1e4, 300)
_FINER_ORDERS = 41
_MOST_POINTS = 60_000  # of a quadrature
_PER_DEVIATION = 8  # points: the trapezoid rule is then exact to double precision


def epsilon_bounds(question: Question, steps: list[int], lower: bool) -> list[EpsilonBounds]:
    """See `Accountant`. The lower bound is 0: it is unknown how loose the upper one is."""
    mechanism = question.mechanism
    of_step = renyi_divergences(mechanism, _ORDERS)
    answers = []
    for num_steps in steps:

        def of_all_steps(orders: Array, num_steps: int = num_steps) -> Array:
            return num_steps * renyi_divergences(mechanism, orders)

        coarse = num_steps * of_step
        upper = smallest_epsilon(of_all_steps, delta=question.delta, coarse=coarse)
        upper = min(upper, _on_a_coarse_grid(question.after(num_steps)))
        answers.append(EpsilonBounds(0.0, upper, upper))
    return answers


def _on_a_coarse_grid(question: Question) -> float:
    """Infinite where dp-accounting cannot represent the mechanism, or delta is near round-off."""
    try:
        [bounds] = pld.epsilon_bounds(question, [question.mechanism.num_steps], False)
    except AccountingError:
        return inf
    return bounds.upper


def smallest_epsilon(
    divergences: Callable[[Array], Array], *, delta: float, coarse: Array | None = None
) -> float:
    """The smallest epsilon that Rényi divergences imply, by a search over their orders.

    Args:
        divergences: of all steps, at several orders.
        delta: where epsilon is asked for.
        coarse: the divergences at the orders of the coarse search, where they are known.
    """
    if coarse is None:
        coarse = divergences(_ORDERS)
    epsilon, best = compute_epsilon(_ORDERS, coarse, delta)
    # Divergences of rare records rise steeply with the order: the neighbours can be 3 % worse.
    nearest = int(np.argmin(np.abs(_ORDERS - best)))
    low, high = _ORDERS[max(nearest - 1, 0)], _ORDERS[min(nearest + 1, len(_ORDERS) - 1)]
    finer = 1 + np.geomspace(low - 1, high - 1, _FINER_ORDERS)
    of_finer, _ = compute_epsilon(finer, divergences(finer), delta)
    return max(0.0, min(float(epsilon), float(of_finer)))


def renyi_divergences(mechanism: Mechanism, orders: Array) -> Array:
    """The larger Rényi divergence of one step in either direction, at each order.

    Infinite at orders whose integrand is too wide for the quadrature: they bound nothing.
    """
    q, sigma = mechanism.sample_rate, mechanism.noise_multiplier
    if q == 1:  # of two Gaussians
        return np.asarray(orders * mechanism.adjacency.sensitivity**2 / (2 * sigma**2))
    return np.array([_divergence(mechanism.adjacency, q, sigma, order) for order in orders])


def _divergence(adjacency: Adjacency, q: float, sigma: float, order: float) -> float:
    """By the trapezoid rule; P^order Q^(1-order) decays like a Gaussian beyond 2 order."""
    reach = 2 * order + 14 * sigma
    deviations = reach / sigma
    if 2 * _PER_DEVIATION * deviations > _MOST_POINTS:
        return inf
    points = 2 * int(_PER_DEVIATION * deviations) + 1
    outputs, step = np.linspace(-reach, reach, points, retstep=True)
    centres = (1.0, -1.0) if adjacency is Adjacency.SUBSTITUTE else (1.0, 0.0)
    log_p, log_q = (_log_mixture(outputs, q, sigma, centre) for centre in centres)
    normalisation = log(float(step) / (sigma * sqrt(2 * pi)))
    divergences = [
        (float(log_sums(order * first + (1 - order) * second)) + normalisation) / (order - 1)
        for first, second in ((log_p, log_q), (log_q, log_p))
    ]
    # Near order 1 the sum is 1 but for rounding, which the division enlarges.
    round_off = 1e-13 / (order - 1)
    return max(0.0, *divergences) + round_off


def _log_mixture(outputs: Array, q: float, sigma: float, centre: float) -> Array:
    """Log density of (1 - q) N(0, sigma^2) + q N(centre, sigma^2), without its normalisation."""
    at_zero = -(outputs**2) / (2 * sigma**2)
    if centre == 0:
        return np.asarray(at_zero)
    at_centre = -((outputs - centre) ** 2) / (2 * sigma**2)
    return np.asarray(np.logaddexp(log1p(-q) + at_zero, log(q) + at_centre))
