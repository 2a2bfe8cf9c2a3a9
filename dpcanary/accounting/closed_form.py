"""The accountant for full batches: without sampling, DP-SGD is exactly a Gaussian mechanism."""

from dataclasses import replace

from dpcanary.accounting.setting import Accountant, EpsilonBounds, Setting
from dpcanary.gdp import gdp_epsilon


def _epsilon(setting: Setting) -> float:
    if setting.sample_rate < 1:
        raise setting.refusal(
            "the closed form holds at sample_rate=1 only", instead="use method='pld'"
        )
    setting = setting.collapsed()
    mu = setting.adjacency.sensitivity / setting.noise_multiplier
    return gdp_epsilon(mu=mu, delta=setting.delta)


def _bounds(setting: Setting) -> EpsilonBounds:
    epsilon = _epsilon(setting)
    return EpsilonBounds(epsilon, epsilon, epsilon)


def _uppers(setting: Setting, steps: list[int]) -> list[float]:
    return [_epsilon(replace(setting, num_steps=num_steps)) for num_steps in steps]


accountant = Accountant(bounds=_bounds, uppers=_uppers, instead="raise noise_multiplier")
