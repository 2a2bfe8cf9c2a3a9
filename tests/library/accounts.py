"""Accounting from the settings of a test, which hold those of the mechanism and the delta."""

from typing import Any

from dpcanary.accounting.epsilon import account_epsilon, account_epsilon_curve
from dpcanary.accounting.mechanism import EpsilonBounds, Mechanism
from dpcanary.accounting.noise_calibration import calibrate_noise


def bounds_of(*, delta: float, method: str = "pld", **mechanism: Any) -> EpsilonBounds:
    return account_epsilon(Mechanism(**mechanism), delta=delta, method=method)


def upper_of(*, num_steps: int, delta: float, method: str = "pld", **mechanism: Any) -> float:
    known = Mechanism(num_steps=num_steps, **mechanism)
    [upper] = account_epsilon_curve(known, steps=[num_steps], delta=delta, method=method)
    return upper


def noise_for(*, epsilon: float, delta: float, method: str = "pld", **mechanism: Any) -> float:
    return calibrate_noise(Mechanism(**mechanism), epsilon=epsilon, delta=delta, method=method)


def setting(**changes: Any) -> dict[str, Any]:
    base = {"sample_rate": 0.25, "noise_multiplier": 5.574, "num_steps": 500, "delta": 1e-5}
    return {"adjacency": "substitute", **base, **changes}
