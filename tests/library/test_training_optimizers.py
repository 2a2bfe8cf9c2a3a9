"""Steps of optimisers are those of PyTorch's classes."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcanary.training.dpsgd import Stepping, state_tensors
from dpcanary.training.settings import Optimizer


@pytest.mark.parametrize("optimizer", Optimizer)
@settings(max_examples=20)
@given(
    rates=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8),
    momentum=st.sampled_from([0.0, 0.3, 0.7, 0.99]),
    fused=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_steps_are_those_of_pytorchs_classes(optimizer, rates, momentum, fused, seed):
    """Bit for bit, at learning rates that change, and with as much state as is counted."""
    draws = torch.Generator().manual_seed(seed)
    parameters, twin = torch.randn(3, 101, generator=draws), torch.zeros(3, 101, requires_grad=True)
    twin.data.copy_(parameters)
    theirs = {
        Optimizer.SGD: lambda: torch.optim.SGD([twin], fused=fused),
        Optimizer.MOMENTUM: lambda: torch.optim.SGD([twin], momentum=momentum, fused=fused),
        Optimizer.ADAM: lambda: torch.optim.Adam([twin], fused=fused),
    }[optimizer]()
    stepping = Stepping(optimizer, parameters, momentum=momentum, fused=fused)
    for step, rate in enumerate(rates):
        gradients = torch.randn(3, 101, generator=draws) * 10.0 ** (step - 4)
        twin.grad, theirs.param_groups[0]["lr"] = gradients.clone(), rate
        stepping.step(gradients, rate)
        theirs.step()
        assert torch.equal(parameters, twin)
    kept = [state for state in theirs.state[twin].values() if state is not None and state.dim() > 0]
    assert len(kept) == state_tensors(optimizer) or momentum == 0.0


@pytest.mark.long
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
