"""Clipped sums and ensemble training against Opacus, on the same batches and the same noise."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from one_record_at_a_time import BINARY, MODELS, Entry, Training, parameters_of, table_for
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer, optimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import InputCanary
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.gradient_path import Batch
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.noise import Noise
from dpcanary.training.settings import Loss, Optimizer

# The input of a single nn.Linear needs no gradient, so PyTorch warns; Opacus's hooks still work.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.usefixtures("compiled_kernels"),
]

NUM_CLASSES, SEED, RUNS = 3, 8, (0, 1, 10, 11)
SETTINGS = DPSGD(
    noise_multiplier=0.6,
    max_grad_norm=1.5,
    learning_rate=0.3,
    record_steps=(1, 3, 7),
    sample_rate=0.25,
    momentum=0.7,
)


class OpacusModel:
    """A module under Opacus's GradSampleModule and DPOptimizer."""

    def __init__(self, module: nn.Module, dpsgd: DPSGD, batch_size: float) -> None:
        self.inner = copy.deepcopy(module)
        self.module = GradSampleModule(self.inner)
        is_softmax = dpsgd.loss is Loss.CROSS_ENTROPY
        self.loss = nn.CrossEntropyLoss() if is_softmax else nn.BCEWithLogitsLoss()
        parameters, rate = self.inner.parameters(), dpsgd.learning_rate_at(0)
        if dpsgd.optimizer is Optimizer.ADAM:
            descent = torch.optim.Adam(parameters, lr=rate)
        else:
            momentum = dpsgd.momentum if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
            descent = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
        self.optimizer = DPOptimizer(
            descent,
            noise_multiplier=dpsgd.noise_multiplier,
            max_grad_norm=dpsgd.max_grad_norm,
            expected_batch_size=batch_size,
        )

    @property
    def parameters(self) -> NDArray[np.float32]:
        return parameters_to_vector(self.inner.parameters()).detach().numpy()

    def step(self, batch: list[Entry], shape: tuple[int, ...]) -> Tensor:
        """One step; returns the norms of the batch's gradients."""
        self.optimizer.zero_grad()
        features = torch.stack([torch.zeros(shape), *(entry[0] for entry in batch)])[1:]
        labels = torch.tensor([entry[1] for entry in batch], dtype=torch.int64)
        if isinstance(self.loss, nn.BCEWithLogitsLoss):
            labels = nn.functional.one_hot(labels, NUM_CLASSES).float()
        self.loss(self.module(features), labels).backward()
        parameters = [*self.inner.parameters()]
        norms = torch.cat([p.grad_sample.flatten(1) for p in parameters], dim=1).norm(dim=1)
        self.optimizer.step()
        return norms


@pytest.fixture
def opacus_noise(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Standard normals, one vector per step, which Opacus uses instead of its own draws."""
    queue: list[Tensor] = []

    def generate(std: float, reference: Tensor, **_: object) -> Tensor:
        part, queue[0] = queue[0].split([n := reference.numel(), len(queue[0]) - n])
        return std * part.view(reference.shape)

    monkeypatch.setattr(optimizer, "_generate_noise", generate)
    return queue


@pytest.mark.parametrize(
    ("model", "num_slots", "changed"),
    [
        ("tanh", 1, {"optimizer": Optimizer.ADAM, "learning_rate": 0.02}),
        ("wide", 3, {"loss": BINARY, "max_grad_norm": 0.7}),
        ("wide", 1, {"adjacency": Adjacency.ADD_REMOVE, "sample_rate": 0.02}),
        ("relu first", 2, {"optimizer": Optimizer.MOMENTUM, "sample_rate": 0.9}),
    ],
)
def test_runs_equal_opacus(
    model: str, num_slots: int, changed: dict, opacus_noise: list[Tensor]
) -> None:
    module = MODELS[model].module(NUM_CLASSES)
    features = MODELS[model].features(60).numpy()
    records = Records(features, np.random.default_rng(3).integers(0, NUM_CLASSES, 60))
    dpsgd = replace(SETTINGS, **changed)
    canaries = [
        InputCanary((slot - 2.5) * features[target], slot, target)
        for slot, target in enumerate((5, 40, 0)[:num_slots])
    ]
    known = {"module": module, "records": records, "dpsgd": dpsgd, "seed": SEED}
    result = train_ensemble(canary=canaries, runs=RUNS, keep_parameters=True, **known)
    training = Training(canaries=canaries, **known)
    norms, sizes = [], []
    for row, run in enumerate(RUNS):
        theirs = OpacusModel(module, dpsgd, training.batch_size)
        for step in range(dpsgd.record_steps[-1]):
            noise, runs = torch.zeros(1, result.parameters.shape[1]), torch.tensor([run])
            Noise(seed=SEED).add(noise, factor=0.0, scale=1.0, runs=runs, step=step)
            opacus_noise[:] = [noise[0]]
            batch = training.batch(run, step)
            norms += theirs.step(batch, features.shape[1:]).tolist()
            sizes.append(len(batch))
        # A parameter near 0 is a sum of larger terms that cancel.
        error = np.abs(result.parameters[row] - theirs.parameters).max()
        assert error <= 1e-5 * np.abs(theirs.parameters).max()
    assert 0.02 < np.mean(np.array(norms) > dpsgd.max_grad_norm) < 0.98
    assert (min(sizes) == 0) == (dpsgd.sample_rate == 0.02)


@pytest.mark.parametrize("name", ["convnet", "transformer"])
def test_clipped_sums_of_modules_equal_opacus(name: str) -> None:
    # Opacus has an attention of its own.
    module = ModuleValidator.fix(MODELS[name].module(NUM_CLASSES))
    table = table_for(MODELS[name], NUM_CLASSES)
    rows = torch.arange(8)
    parameters = parameters_of(module, 1)
    vector_to_parameters(parameters[0], module.parameters())
    wrapped = GradSampleModule(module, loss_reduction="sum")
    nn.CrossEntropyLoss(reduction="sum")(
        wrapped(table.features[rows]), table.labels[rows]
    ).backward()
    per_record = torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], dim=1)
    norm = 0.99 * float(per_record.norm(dim=1).median())
    theirs = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=norm,
        expected_batch_size=len(rows),
        loss_reduction="sum",
    )
    theirs.clip_and_accumulate()
    expected = torch.cat([p.summed_grad.flatten() for p in module.parameters()])
    plain = ModuleValidator.fix(MODELS[name].module(NUM_CLASSES))
    path = ModulePath(plain, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    out = torch.empty_like(parameters)
    path.clipped_sums(parameters, Batch(rows, torch.ones(1, len(rows))), norm, out)
    assert (out[0] - expected).norm() <= 1e-5 * expected.norm()
