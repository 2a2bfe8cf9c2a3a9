"""Epsilon of DP-SGD under add/remove, zero-out and substitute adjacency."""

from dpcanary.accounting.calibration import calibrate_noise
from dpcanary.accounting.epsilon import (
    account_epsilon,
    account_epsilon_curve,
    privacy_profile,
)
from dpcanary.accounting.setting import EpsilonBounds

__all__ = [
    "EpsilonBounds",
    "account_epsilon",
    "account_epsilon_curve",
    "calibrate_noise",
    "privacy_profile",
]
