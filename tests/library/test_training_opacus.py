"""Ensemble training against Opacus, on the same batches and the same noise."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer, optimizer
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.randomness import philox_key
from dpcanary.records import Records
from dpcanary.training.block import Block
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.gradient_path import GradientPath
from dpcanary.training.kernels import philox
from dpcanary.training.noise import Noise
from dpcanary.training.plan import Plan, default_observation
from dpcanary.training.settings import Initialisation, Loss, Optimizer, WorldAssignment
from dpcanary.training.slots import table_of

# The input of a single nn.Linear needs no gradient, so PyTorch warns; Opacus's hooks still work.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

CPU = torch.device("cpu")
NUM_RECORDS, NUM_FEATURES, NUM_CLASSES, TARGET, SEED = 60, 12, 4, 5, 8
NUM_STEPS, SAMPLE_RATE = 20, 0.25
SETTINGS = DPSGD(
    noise_multiplier=0.6,
    max_grad_norm=1.5,
    learning_rate=0.5,
    record_steps=(1, 8, NUM_STEPS),
    sample_rate=SAMPLE_RATE,
)
MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(NUM_FEATURES, NUM_CLASSES),
    "tanh": lambda: nn.Sequential(
        nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, NUM_CLASSES)
    ),
    "relu": lambda: nn.Sequential(nn.Linear(NUM_FEATURES, 9), nn.ReLU(), nn.Linear(9, NUM_CLASSES)),
}
every_model = pytest.mark.parametrize("model", MODELS)
every_optimizer = pytest.mark.parametrize("kind", list(Optimizer))


def module_of(model: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MODELS[model]()


def some_records(seed: int) -> Records:
    """Records whose gradient norms spread widely around the clipping norms below."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0.0, 0.7, (NUM_RECORDS, 1)))
    features = (rng.normal(size=(NUM_RECORDS, NUM_FEATURES)) * scale).astype(np.float32)
    labels = rng.integers(0, NUM_CLASSES, NUM_RECORDS)
    return Records(features, labels)


def some_direction(count: int, *, seed: int, target: int = TARGET) -> DirectionCanary:
    """A direction of length 1.2: not a unit vector, and too short for Opacus to clip it."""
    gradient = np.random.default_rng(seed).normal(size=count)
    gradient *= 1.2 / np.linalg.norm(gradient)
    return DirectionCanary(gradient.astype(np.float32), target)


def mechanism(kind: Optimizer, **changed: object) -> DPSGD:
    # A step of Adam has about the length of the rate, whatever the gradient.
    rate = 0.02 if kind is Optimizer.ADAM else 0.1 if kind is Optimizer.MOMENTUM else 0.5
    return replace(SETTINGS, optimizer=kind, learning_rate=rate, **changed)


class OpacusModel:
    """A module under Opacus's GradSampleModule and DPOptimizer."""

    def __init__(self, module: nn.Module, dpsgd: DPSGD) -> None:
        self.inner = copy.deepcopy(module)
        self.module = GradSampleModule(self.inner)
        is_softmax = dpsgd.loss is Loss.CROSS_ENTROPY
        self.loss = nn.CrossEntropyLoss() if is_softmax else nn.BCEWithLogitsLoss()
        rate = dpsgd.learning_rate_at(0)
        parameters = self.inner.parameters()
        if dpsgd.optimizer is Optimizer.ADAM:
            descent = torch.optim.Adam(parameters, lr=rate)
        else:
            momentum = dpsgd.momentum if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
            descent = torch.optim.SGD(parameters, lr=rate, momentum=momentum)
        self.optimizer = DPOptimizer(
            descent,
            noise_multiplier=dpsgd.noise_multiplier,
            max_grad_norm=dpsgd.max_grad_norm,
            expected_batch_size=dpsgd.sample_rate * NUM_RECORDS,
        )
        self.norms: list[float] = []

    @property
    def parameters(self) -> NDArray[np.float32]:
        return parameters_to_vector(self.inner.parameters()).detach().numpy()

    @torch.no_grad()
    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.inner(torch.from_numpy(features)).numpy()

    def step(self, features: Tensor, labels: Tensor, inserted: Mapping[int, Tensor] = {}) -> None:
        """One step, in which `inserted` gradients replace those of some rows."""
        self.optimizer.zero_grad()
        wanted = labels
        if isinstance(self.loss, nn.BCEWithLogitsLoss):
            wanted = nn.functional.one_hot(labels, NUM_CLASSES).float()
        self.loss(self.module(features), wanted).backward()
        for row, gradient in inserted.items():
            first = 0
            for parameter in self.inner.parameters():
                part = gradient[first : first + parameter.numel()]
                parameter.grad_sample[row] = part.view(parameter.shape)
                first += parameter.numel()
        per_record = [p.grad_sample.flatten(1) for p in self.inner.parameters()]
        self.norms.extend(torch.cat(per_record, dim=1).norm(dim=1).tolist())
        self.optimizer.step()


@pytest.fixture
def opacus_noise(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.float32]]:
    """Standard normals, one vector per step, which Opacus uses instead of its own draws."""
    queue: list[NDArray[np.float32]] = []

    def generate(std: float, reference: Tensor, **_: object) -> Tensor:
        part = torch.from_numpy(queue[0][: reference.numel()]).view(reference.shape)
        queue[0] = queue[0][reference.numel() :]
        if len(queue[0]) == 0:
            queue.pop(0)
        return std * part

    monkeypatch.setattr(optimizer, "_generate_noise", generate)
    return queue


def assert_equal(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    """To 1e-5 of the largest, since a parameter near 0 is a sum of larger terms that cancel."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def assert_some_clipped(norms: list[float], max_grad_norm: float) -> None:
    clipped = np.mean(np.array(norms) > max_grad_norm)
    assert 0.02 < clipped < 0.98


def path_without_canaries(module: nn.Module, records: Records, dpsgd: DPSGD) -> GradientPath:
    table = table_of(records, [GradientCanary(0, TARGET)], CPU)
    return path_of(module, table, dpsgd=dpsgd, basis=None)


# --- whole runs --------------------------------------------------------------------------------

RUNS = (0, 1, 10, 11)


def block_of(
    module: nn.Module, records: Records, canaries: Sequence[Canary], dpsgd: DPSGD
) -> Block:
    """Runs whose parameters can be read after every step."""
    plan = Plan(
        module=module,
        records=records,
        canaries=canaries,
        dpsgd=dpsgd,
        seed=SEED,
        observe=default_observation(canaries),
        worlds=WorldAssignment.COINS if len(canaries) > 1 else WorldAssignment.ALTERNATE,
        initialisation=Initialisation.FIXED,
        device=CPU,
    )
    return Block(plan, RUNS)


def sampled(run: int, step: int, rate: float) -> NDArray[np.int64]:
    """Records of a run's Poisson sample."""
    mask, key = np.empty((1, NUM_RECORDS), np.float32), philox_key(seed=SEED)
    philox.sample_mask(mask, np.uint64(round(rate * 2**32)), key, step, np.array([run]), 2)
    return np.flatnonzero(mask[0])


def noise_of(
    run: int, step: int, module: nn.Module, records: Records, dpsgd: DPSGD
) -> NDArray[np.float32]:
    """Standard normals of a run's step, in the module's order."""
    path = path_without_canaries(module, records, dpsgd)
    out = torch.zeros(1, path.num_parameters)
    Noise(seed=SEED).add(out, factor=0.0, scale=1.0, runs=torch.tensor([run]), step=step)
    return path.decode(out)[0].numpy()


def comes_in(
    canary: Canary, world: int, dpsgd: DPSGD, records: Records, count: int
) -> tuple[NDArray[np.float32], int, Tensor | None] | None:
    """What takes the target's place: features, label and, if any, a gradient for theirs."""
    substitute = dpsgd.adjacency is Adjacency.SUBSTITUTE
    target = (records.features[canary.target], int(records.labels[canary.target]))
    if isinstance(canary, InputCanary):
        crafted = (canary.features, canary.label, None)
        if substitute:
            return (*target, None) if world == 0 else crafted
        return crafted if world == 0 else None
    sign = 1.0 if world == 0 else -1.0 if substitute else 0.0
    if isinstance(canary, DirectionCanary):
        return (*target, sign * torch.from_numpy(canary.gradient))
    gradient = torch.zeros(count)
    gradient[canary.coordinate] = sign * 10 * dpsgd.max_grad_norm  # Opacus itself clips it to C
    return (*target, gradient)


def batch_of(
    run: int,
    step: int,
    canaries: Sequence[Canary],
    worlds: Sequence[int],
    dpsgd: DPSGD,
    records: Records,
    count: int,
) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Features and labels of a run's step, and the gradients that replace those of some rows."""
    features, labels, inserted = [], [], {}
    slots = {canary.target: slot for slot, canary in enumerate(canaries)}
    for record in sampled(run, step, dpsgd.sample_rate).tolist():
        there = (records.features[record], int(records.labels[record]), None)
        if record in slots:
            slot = slots[record]
            there = comes_in(canaries[slot], worlds[slot], dpsgd, records, count)
        if there is None:
            continue
        if there[2] is not None:
            inserted[len(labels)] = there[2]
        features.append(there[0])
        labels.append(there[1])
    stacked = np.array(features, np.float32).reshape(-1, NUM_FEATURES)
    return torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.int64), inserted


def assert_every_step_equals_opacus(
    module: nn.Module,
    records: Records,
    canaries: Sequence[Canary],
    dpsgd: DPSGD,
    opacus_noise: list[NDArray[np.float32]],
) -> list[int]:
    """Advances a block and Opacus's models side by side; returns their batch sizes."""
    block = block_of(module, records, canaries, dpsgd)
    theirs = {run: OpacusModel(module, dpsgd) for run in RUNS}
    worlds = block.worlds if len(canaries) > 1 else np.array(RUNS)[:, None] % 2
    sizes, before = [], None
    seen: list[list[NDArray[np.float32]]] = [[] for _ in RUNS]
    count = sum(parameter.numel() for parameter in module.parameters())
    for step in range(NUM_STEPS):
        block.advance()
        ours = block.parameters(slice(None)).numpy()
        for row, run in enumerate(RUNS):
            features, labels, inserted = batch_of(
                run, step, canaries, worlds[row].tolist(), dpsgd, records, count
            )
            opacus_noise.append(noise_of(run, step, module, records, dpsgd))
            theirs[run].step(features, labels, inserted)
            assert not opacus_noise
            assert_equal(ours[row], theirs[run].parameters)
            sizes.append(len(features))
            if step + 1 in dpsgd.record_steps and isinstance(canaries[0], InputCanary):
                pairs = [[records.features[one.target], one.features] for one in canaries]
                seen[row].append(theirs[run].logits(np.array(pairs)))
        assert before is None or (ours != before).any(axis=1).all() or dpsgd.noise_multiplier == 0
        before = ours.copy()
    assert_some_clipped([n for run in RUNS for n in theirs[run].norms], dpsgd.max_grad_norm)
    assert_result_equals_opacus(module, records, canaries, dpsgd, theirs, seen)
    return sizes


def assert_result_equals_opacus(
    module: nn.Module,
    records: Records,
    canaries: Sequence[Canary],
    dpsgd: DPSGD,
    theirs: dict[int, OpacusModel],
    seen: Sequence[Sequence[NDArray[np.float32]]],
) -> None:
    """Compares the results of whole runs: observations, accuracy, parameters."""
    test_records = records[:7]
    result = train_ensemble(
        module=module,
        records=records,
        test_records=test_records,
        canary=canaries,
        dpsgd=dpsgd,
        runs=RUNS,
        seed=SEED,
        initialisation=Initialisation.FIXED,
        keep_parameters=True,
    )
    assert result.parameters is not None
    start = parameters_to_vector(module.parameters()).detach().numpy()
    for row, run in enumerate(RUNS):
        model = theirs[run]
        assert_equal(result.parameters[row], model.parameters)
        right = model.logits(test_records.features).argmax(axis=1) == test_records.labels
        assert result.test_accuracy[row] == pytest.approx(np.mean(right), abs=1e-6)
        if isinstance(canaries[0], InputCanary):
            assert_equal(result.observations[row], np.stack(seen[row]))
            continue
        change = model.parameters - start
        error = 1e-5 * np.abs(model.parameters).max()
        if isinstance(canaries[0], GradientCanary):
            expected = change[[one.coordinate for one in canaries]]
        else:
            along = [change @ one.gradient / np.linalg.norm(one.gradient) for one in canaries]
            expected = [[value, np.linalg.norm(change)] for value in along]
            error *= np.sqrt(len(change))
        np.testing.assert_allclose(result.observations[row, -1], expected, rtol=0, atol=error)


@every_model
@every_optimizer
@pytest.mark.parametrize("noise_multiplier", [0.0, 0.6])
@pytest.mark.parametrize("loss", list(Loss))
def test_runs_with_an_input_canary_equal_opacus(
    *,
    model: str,
    kind: Optimizer,
    noise_multiplier: float,
    loss: Loss,
    opacus_noise: list[NDArray[np.float32]],
) -> None:
    records = some_records(3)
    norm = 1.5 if loss is Loss.CROSS_ENTROPY else 0.5
    dpsgd = mechanism(kind, noise_multiplier=noise_multiplier, loss=loss, max_grad_norm=norm)
    substitute = -3.0 * records.features[TARGET]
    canary = InputCanary(substitute, int(records.labels[TARGET] + 1) % NUM_CLASSES, TARGET)
    assert_every_step_equals_opacus(module_of(model), records, [canary], dpsgd, opacus_noise)


@every_model
@every_optimizer
@pytest.mark.parametrize("canary", ["coordinate", "direction"])
def test_runs_with_a_gradient_canary_equal_opacus(
    *,
    model: str,
    kind: Optimizer,
    canary: str,
    opacus_noise: list[NDArray[np.float32]],
) -> None:
    module, dpsgd = module_of(model), mechanism(kind)
    count = sum(parameter.numel() for parameter in module.parameters())
    there: Canary = GradientCanary(coordinate=count - 2, target=TARGET)  # a bias of the last layer
    if canary == "direction":
        there = some_direction(count, seed=0)
    assert_every_step_equals_opacus(module, some_records(4), [there], dpsgd, opacus_noise)


SLOT_TARGETS = (TARGET, 40, 0, 17)


@every_model
@pytest.mark.parametrize("kind", ["input", "coordinate", "direction"])
@pytest.mark.parametrize("adjacency", [Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE])
@pytest.mark.parametrize("rate", [SAMPLE_RATE, 0.9])
def test_runs_with_several_slots_equal_opacus(
    *,
    model: str,
    kind: str,
    adjacency: Adjacency,
    rate: float,
    opacus_noise: list[NDArray[np.float32]],
) -> None:
    """Each slot has its own world; batches come as lists and as weights."""
    module, records = module_of(model), some_records(6)
    dpsgd = mechanism(Optimizer.MOMENTUM, adjacency=adjacency, sample_rate=rate)
    count = sum(parameter.numel() for parameter in module.parameters())
    slots: list[Canary] = []
    for slot, target in enumerate(SLOT_TARGETS):
        if kind == "input":
            slots.append(InputCanary((slot - 2.5) * records.features[target], slot, target))
        elif kind == "coordinate":
            slots.append(GradientCanary(slot * count // len(SLOT_TARGETS), target))
        else:
            slots.append(some_direction(count, seed=slot, target=target))
    assert_every_step_equals_opacus(module, records, slots, dpsgd, opacus_noise)


@pytest.mark.parametrize("model", ["linear", "tanh"])
@pytest.mark.parametrize("rate", [0.02, 0.9])
def test_runs_with_few_records_or_nearly_all_equal_opacus(
    model: str, rate: float, opacus_noise: list[NDArray[np.float32]]
) -> None:
    """With empty batches among them, under `add_remove`."""
    records = some_records(5)
    dpsgd = mechanism(Optimizer.MOMENTUM, sample_rate=rate, adjacency=Adjacency.ADD_REMOVE)
    canary = InputCanary(-records.features[TARGET], 1, TARGET)
    module = module_of(model)
    sizes = assert_every_step_equals_opacus(module, records, [canary], dpsgd, opacus_noise)
    assert (min(sizes) == 0) == (rate == 0.02)
