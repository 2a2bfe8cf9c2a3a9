"""Audits of differentially private training under substitute adjacency.

The public functions are loaded when they are first used, so that a program which needs one of
them does not pay for, or depend on, the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpcanary.accounting import EpsilonBounds as EpsilonBounds
    from dpcanary.accounting import account_epsilon as account_epsilon
    from dpcanary.accounting import calibrate_noise as calibrate_noise
    from dpcanary.adjacency import Adjacency as Adjacency
    from dpcanary.estimation import EpsilonEstimate as EpsilonEstimate
    from dpcanary.estimation import estimate_epsilon as estimate_epsilon

__version__ = "0.1.0"

_MODULE_OF = {
    "Adjacency": "dpcanary.adjacency",
    "EpsilonBounds": "dpcanary.accounting",
    "EpsilonEstimate": "dpcanary.estimation",
    "account_epsilon": "dpcanary.accounting",
    "calibrate_noise": "dpcanary.accounting",
    "estimate_epsilon": "dpcanary.estimation",
}

__all__ = [*_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'dpcanary' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
