"""A gradient canary's signal reaches the final coordinate through every optimiser."""

import numpy as np
import pytest
import torch

from dpcanary.training.dpsgd import DPSGD, optimizer_of
from dpcanary.training.settings import Optimizer

RUNS, STEPS, MU, RATE = 100_000, 250, 2.0, 0.01
# Standard error of the distance between two normal samples, in units of their standard deviation.
ERROR = np.sqrt(2 / RUNS + MU**2 / (4 * RUNS))


def gradients_of_steps(seed: int):
    """Unit noise around +s in world 0 and -s in world 1, such that their sums are MU apart."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.tensor([1.0, -1.0])[:, None].expand(2, RUNS)
    for _ in range(STEPS):
        noise = torch.empty(2, RUNS).normal_(generator=generator)
        yield noise.add_(signs, alpha=MU / (2 * STEPS**0.5))


def distance(parameters: torch.Tensor) -> float:
    zero, one = parameters.numpy().astype(np.float64)
    return abs(zero.mean() - one.mean()) / np.sqrt((zero.var() + one.var()) / 2)


def distance_of(optimizer: Optimizer) -> float:
    parameters, gradients = torch.zeros(2, RUNS), torch.empty(2, RUNS)
    dpsgd = DPSGD(1.0, 1.0, RATE, (STEPS,), optimizer=optimizer)
    stepping = optimizer_of(dpsgd, parameters, gradients)
    for of_step in gradients_of_steps(seed=0):
        gradients.copy_(of_step)
        stepping.step()
    return distance(parameters)


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
def test_linear_optimisers_keep_the_distance_that_their_weights_leave(optimizer):
    """SGD weighs all steps alike; momentum weighs the one k steps before the end by 1 - 0.9^k."""
    decay = 0.9 if optimizer is Optimizer.MOMENTUM else 0.0
    weights = 1 - decay ** np.arange(1, STEPS + 1)
    expected = MU * weights.sum() / np.sqrt(STEPS * (weights**2).sum())
    assert distance_of(optimizer) == pytest.approx(expected, abs=3 * ERROR)


def test_adam_keeps_less_of_the_distance():
    """It divides by a root mean square that the noise of the first steps dominates."""
    parameter = torch.zeros(2, RUNS, requires_grad=True)
    adam = torch.optim.Adam([parameter], lr=RATE)
    for of_step in gradients_of_steps(seed=1):
        parameter.grad = of_step
        adam.step()
    expected = distance(parameter.detach())
    assert expected == pytest.approx(1.95, abs=3 * ERROR)
    assert distance_of(Optimizer.ADAM) == pytest.approx(expected, abs=3 * np.sqrt(2) * ERROR)
