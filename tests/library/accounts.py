"""Accounting from the settings of a test, and the exact probabilities of one step."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from numpy.typing import NDArray
from scipy.stats import norm

from dpcanary.accounting.epsilon import account_epsilon, account_epsilon_curve
from dpcanary.accounting.mechanism import EpsilonBounds, Mechanism, Phase
from dpcanary.accounting.noise_calibration import calibrate_noise


def bounds_of(*, delta: float, method: str = "pld", **mechanism: Any) -> EpsilonBounds:
    return account_epsilon(Mechanism(**mechanism), delta=delta, method=method)


def upper_of(*, num_steps: int, delta: float, method: str = "pld", **mechanism: Any) -> float:
    training = Mechanism(num_steps=num_steps, **mechanism)
    [upper] = account_epsilon_curve(training, steps=[num_steps], delta=delta, method=method)
    return upper


def noise_for(*, epsilon: float, delta: float, method: str = "pld", **mechanism: Any) -> float:
    return calibrate_noise(Mechanism(**mechanism), epsilon=epsilon, delta=delta, method=method)


def setting(**changes: Any) -> dict[str, Any]:
    base = {"sample_rate": 0.25, "noise_multiplier": 5.574, "num_steps": 500, "delta": 1e-5}
    return {"adjacency": "substitute", **base, **changes}


def renyi_epsilon(parts: Iterable[Mechanism | Phase], *, delta: float) -> float:
    """By the Rényi accountant of dp-accounting, for add/remove; its orders differ from ours."""
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    for part in parts:
        gaussian = GaussianDpEvent(part.noise_multiplier)
        accountant.compose(PoissonSampledDpEvent(part.sample_rate, gaussian), part.num_steps)
    return accountant.get_epsilon(delta)


def tails_of_step(
    adjacency: str, cuts: NDArray[np.float64], *, sample_rate: float, noise_multiplier: float
) -> NDArray[np.float64]:
    """Probabilities that a noisy gradient is above or below cuts, shape (tails, worlds, cuts).

    The densities' ratio rises with the gradient, so that no test is better than a threshold.
    """
    q, sigma = sample_rate, noise_multiplier
    centres = (1.0, -1.0 if adjacency == "substitute" else 0.0)
    return np.array([
        [(1 - q) * tail(cuts / sigma) + q * tail((cuts - centre) / sigma) for centre in centres]
        for tail in (norm.sf, norm.cdf)
    ])  # fmt: skip
