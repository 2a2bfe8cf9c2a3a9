"""A gradient canary's signal reaches the final coordinate through every optimiser."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from dpcanary.training.dpsgd import Stepping
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
    parameters = torch.zeros(2, RUNS)
    stepping = Stepping(optimizer, parameters, momentum=0.9)
    for of_step in gradients_of_steps(seed=0):
        stepping.step(of_step, RATE)
    return distance(parameters)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("optimizer", [*Optimizer])
def test_steps_are_those_of_pytorchs_classes(optimizer, fused):
    """Bit for bit, with a learning rate that changes, at values other than the defaults."""
    torch.manual_seed(0)
    parameters, twin = torch.randn(3, 1001), torch.zeros(3, 1001, requires_grad=True)
    twin.data.copy_(parameters)
    theirs = {
        Optimizer.SGD: lambda: torch.optim.SGD([twin], fused=fused),
        Optimizer.MOMENTUM: lambda: torch.optim.SGD([twin], momentum=0.7, fused=fused),
        Optimizer.ADAM: lambda: torch.optim.Adam([twin], fused=fused),
    }[optimizer]()
    stepping = Stepping(optimizer, parameters, momentum=0.7, fused=fused)
    for step in range(8):
        gradients, rate = torch.randn(3, 1001) * 10.0 ** (step - 4), 0.3 / (1 + step)
        stepping.step(gradients, rate)
        twin.grad, theirs.param_groups[0]["lr"] = gradients.clone(), rate
        theirs.step()
        assert torch.equal(parameters, twin)


def test_a_training_loads_no_compiler():
    """PyTorch's takes a second; its optimisers would load it."""
    code = """
import sys, torch
from dpcanary.training import DPSGD, GradientCanary, Records, train_ensemble
train_ensemble(module=torch.nn.Linear(3, 2), records=Records([[1.0, 2, 3]] * 4, [0, 1, 0, 1]),
               canary=GradientCanary(0, 0), dpsgd=DPSGD(1.0, 1.0, 0.1, 2), runs=4, seed=0)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


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
