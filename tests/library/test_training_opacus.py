"""Trainings against Opacus, on the same batches and noise; steps against PyTorch's optimisers."""

import copy
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_record_at_a_time import BINARY, MODELS, Training, labels_for, optimiser_of
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer, optimizer
from running import printed_by
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from dpcanary.core.adjacency import Adjacency
from dpcanary.data.canaries import InputCanary
from dpcanary.data.records import Records
from dpcanary.training.dpsgd import DPSGD, Stepping, state_tensors
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.noise import Noise
from dpcanary.training.training_settings import Optimizer

# The input of a single nn.Linear needs no gradient, so PyTorch warns; Opacus's hooks still work.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.usefixtures("compiled_kernels"),
]

NUM_CLASSES, SEED, RUNS = 3, 8, (0, 1, 10, 11)
KNOWN = {"learning_rate": 0.3, "record_steps": (1, 3, 7), "sample_rate": 0.25, "momentum": 0.7}
SETTINGS = DPSGD(noise_multiplier=0.6, max_grad_norm=1.5, **KNOWN)


@pytest.fixture
def opacus_noise(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Standard normals, one vector per step, which Opacus uses instead of its own draws."""
    queue: list[Tensor] = []

    def generate(std: float, reference: Tensor, **_: object) -> Tensor:
        part, queue[0] = queue[0].split([n := reference.numel(), len(queue[0]) - n])
        return std * part.view(reference.shape)

    monkeypatch.setattr(optimizer, "_generate_noise", generate)
    return queue


@pytest.mark.parametrize(("model", "num_slots", "changed"), [
    ("tanh", 1, {"optimizer": Optimizer.ADAM, "learning_rate": 0.02}),
    ("wide", 3, {"loss": BINARY, "max_grad_norm": 0.7}),
    ("wide", 1, {"adjacency": Adjacency.ADD_REMOVE, "sample_rate": 0.02}),
    ("relu first", 2, {"optimizer": Optimizer.MOMENTUM, "sample_rate": 0.9}),
])  # fmt: skip
def test_runs_equal_opacus(model, num_slots, changed, opacus_noise):
    module = MODELS[model].module(NUM_CLASSES)
    features = MODELS[model].features(60).numpy()
    records = Records(features, labels_for(NUM_CLASSES, 60))
    dpsgd = replace(SETTINGS, **changed)
    canaries = [
        InputCanary((slot - 2.5) * features[target], slot, target)
        for slot, target in enumerate((5, 40, 0)[:num_slots])
    ]
    options = {"module": module, "records": records, "dpsgd": dpsgd, "seed": SEED}
    result = train_ensemble(canary=canaries, runs=RUNS, keep_parameters=True, **options)
    training = Training(canaries=canaries, **options)
    scales = {"noise_multiplier": dpsgd.noise_multiplier, "max_grad_norm": dpsgd.max_grad_norm}
    scales |= {"expected_batch_size": training.batch_size}
    loss = nn.BCEWithLogitsLoss() if dpsgd.loss is BINARY else nn.CrossEntropyLoss()
    norms, sizes = [], []
    for row, run in enumerate(RUNS):
        wrapped = GradSampleModule(copy.deepcopy(module))
        parameters = [*wrapped.parameters()]
        descent = optimiser_of(dpsgd.optimizer, dpsgd.momentum)
        theirs = DPOptimizer(descent(parameters, lr=dpsgd.learning_rate_at(0)), **scales)
        for step in range(dpsgd.record_steps[-1]):
            noise, runs = torch.zeros(1, result.parameters.shape[1]), torch.tensor([run])
            Noise(seed=SEED).add(noise, factor=0.0, scale=1.0, runs=runs, step=step)
            opacus_noise[:] = [noise[0]]
            batch = training.batch(run, step)
            inputs = torch.stack([torch.zeros(features.shape[1:]), *(x for x, *_ in batch)])[1:]
            labels = torch.tensor([label for _, label, _ in batch], dtype=torch.int64)
            if dpsgd.loss is BINARY:
                labels = nn.functional.one_hot(labels, NUM_CLASSES).float()
            theirs.zero_grad()
            loss(wrapped(inputs), labels).backward()
            gradients = torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1)
            norms += gradients.norm(dim=1).tolist()
            sizes.append(len(batch))
            theirs.step()
        expected = parameters_to_vector(parameters).detach().numpy()
        # A parameter near 0 is a sum of larger terms that cancel.
        error = np.abs(result.parameters[row] - expected).max()
        assert error <= 1e-5 * np.abs(expected).max()
    assert 0.02 < np.mean(np.array(norms) > dpsgd.max_grad_norm) < 0.98
    assert (min(sizes) == 0) == (dpsgd.sample_rate == 0.02)


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
    theirs = optimiser_of(optimizer, momentum)([twin], fused=fused)
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
def test_a_training_loads_no_compiler(tmp_path):
    """PyTorch's takes a second; its optimisers would load it."""
    code = """
import sys, torch
from dpcanary.training import DPSGD, GradientCanary, Records, train_ensemble
train_ensemble(module=torch.nn.Linear(3, 2), records=Records([[1.0, 2, 3]] * 4, [0, 1, 0, 1]),
               canary=GradientCanary(0, 0), dpsgd=DPSGD(1.0, 1.0, 0.1, 2), runs=4, seed=0)
print("torch._dynamo" in sys.modules)
"""
    assert printed_by([sys.executable, "-c", code], tmp_path).splitlines()[-1] == "False"
