"""Ensemble training against Opacus itself, on the same batches and the same noise."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer, optimizer
from torch import Tensor, nn

from dpcanary.canaries import GradientCanary, InputCanary
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.linear import clipped_residuals, descend, linear_problem
from dpcanary.training.sampling import RunStreams

# nn.Linear alone has no input that needs a gradient; Opacus's hooks on it work all the same.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")

CPU = torch.device("cpu")
NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 60, 12, 4
WIDTH = NUM_CLASSES * (NUM_FEATURES + 1)
NUM_STEPS, SAMPLE_RATE = 20, 0.25


class OpacusModel:
    """One linear head under Opacus's GradSampleModule and DPOptimizer.

    Parameters and noise go in and out in our layout: (classes, features + 1), the bias last.
    """

    def __init__(
        self, *, noise_multiplier: float, max_grad_norm: float, rate: float, reduction: str
    ) -> None:
        linear = nn.Linear(NUM_FEATURES, NUM_CLASSES)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        self.linear = linear
        self.module = GradSampleModule(linear, loss_reduction=reduction)
        self.loss = nn.CrossEntropyLoss(reduction=reduction)
        batch_size = SAMPLE_RATE * NUM_RECORDS
        self.optimizer = DPOptimizer(
            torch.optim.SGD(
                linear.parameters(), lr=rate / (1 if reduction == "mean" else batch_size)
            ),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=batch_size,
            loss_reduction=reduction,
        )
        self.norms: list[float] = []

    @property
    def weights(self) -> NDArray[np.float32]:
        return torch.column_stack([self.linear.weight, self.linear.bias]).detach().numpy()

    @torch.no_grad()
    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return self.module(torch.from_numpy(features)).numpy()

    def step(
        self, features: Tensor, labels: Tensor, canary: tuple[int, int, float] | None = None
    ) -> None:
        """A step; `canary` is (row, coordinate, value) of a gradient that replaces its record's."""
        self.optimizer.zero_grad()
        self.loss(self.module(features), labels).backward()
        if canary is not None:
            row, coordinate, value = canary
            for parameter in self.module.parameters():
                parameter.grad_sample[row] = 0.0
            label, feature = divmod(coordinate, NUM_FEATURES + 1)
            if feature == NUM_FEATURES:
                self.linear.bias.grad_sample[row, label] = value
            else:
                self.linear.weight.grad_sample[row, label, feature] = value
        per_record = [p.grad_sample.flatten(1) for p in self.module.parameters()]
        self.norms.extend(torch.cat(per_record, dim=1).norm(dim=1).tolist())
        self.optimizer.step()


@pytest.fixture
def opacus_noise(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.float32]]:
    """Standard normals, one array per step, that Opacus scales and adds in place of its own."""
    queue: list[NDArray[np.float32]] = []
    parts: list[Tensor] = []

    def generate(std: float, reference: Tensor, **_: object) -> Tensor:
        if not parts:
            noise = torch.from_numpy(queue.pop(0)).reshape(NUM_CLASSES, NUM_FEATURES + 1)
            parts.extend([noise[:, :-1], noise[:, -1]])  # DPOptimizer goes weight, bias
        part = parts.pop(0)
        assert part.shape == reference.shape
        return std * part

    monkeypatch.setattr(optimizer, "_generate_noise", generate)
    return queue


def some_records(seed: int) -> Records:
    """Records whose gradient norms spread widely, about the clipping norms below."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0.0, 0.7, (NUM_RECORDS, 1)))
    features = (rng.normal(size=(NUM_RECORDS, NUM_FEATURES)) * scale).astype(np.float32)
    labels = rng.integers(0, NUM_CLASSES, NUM_RECORDS)
    return Records(features, labels, features[:7], labels[:7], NUM_CLASSES, target=5)


def assert_equal_weights(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> None:
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def assert_some_clipped(norms: list[float], max_grad_norm: float) -> None:
    clipped = np.mean(np.array(norms) > max_grad_norm)
    assert 0.02 < clipped < 0.98


def batches(seed: int) -> Iterator[NDArray[np.bool_]]:
    """Poisson batches, two of them empty and one of them full."""
    rng = np.random.default_rng(seed)
    for step in range(NUM_STEPS):
        sampled = rng.random(NUM_RECORDS) < SAMPLE_RATE
        if step in (7, 13):
            sampled[:] = False
        if step == 9:
            sampled[:] = True
        yield sampled


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("noise_multiplier", [0.0, 0.8])
@pytest.mark.parametrize("max_grad_norm", [1.2, 2.5, 6.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_step_equals_opacus(
    *,
    seed: int,
    max_grad_norm: float,
    noise_multiplier: float,
    reduction: str,
    opacus_noise: list[NDArray[np.float32]],
) -> None:
    records, rate = some_records(seed), 0.5
    problem = linear_problem(
        features=records.features, labels=records.labels, num_classes=NUM_CLASSES, device=CPU
    )
    # A second run, on other batches, must not leak into the first.
    weights = torch.zeros(2, NUM_CLASSES, NUM_FEATURES + 1)
    theirs = OpacusModel(
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        rate=rate,
        reduction=reduction,
    )
    rng = np.random.default_rng(seed + 100)
    before = theirs.weights.copy()
    for sampled, other in zip(batches(seed), batches(seed + 50), strict=True):
        noise = rng.normal(size=(2, WIDTH)).astype(np.float32)
        inclusion = torch.from_numpy(np.stack([sampled, other])).float()
        residuals = clipped_residuals(problem, weights, inclusion, max_grad_norm)
        scaled = torch.from_numpy(noise) * (noise_multiplier * max_grad_norm)
        descend(problem, weights, residuals, scaled, rate / (SAMPLE_RATE * NUM_RECORDS))

        opacus_noise.append(noise[0])
        chosen = torch.from_numpy(sampled)
        theirs.step(
            torch.from_numpy(records.features)[chosen], torch.from_numpy(records.labels)[chosen]
        )
        assert not opacus_noise  # Opacus drew its noise from the queue, in empty batches too
        assert_equal_weights(weights[0].numpy(), theirs.weights)
        moved = not np.array_equal(theirs.weights, before)
        assert moved == (noise_multiplier > 0 or sampled.any())
        before = theirs.weights.copy()
    assert_some_clipped(theirs.norms, max_grad_norm)


def replay(
    run: int, records: Records, canary: InputCanary | GradientCanary, dpsgd: DPSGD, seed: int
) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float32]]]:
    """The batches and standard normals that `train_ensemble` gives a run."""
    streams = RunStreams(
        seed=seed,
        runs=[run],
        sample_rate=dpsgd.sample_rate,
        num_records=NUM_RECORDS,
        width=WIDTH,
    )
    with ThreadPoolExecutor(1) as pool:
        draws = streams.draw(dpsgd.record_steps[-1], pool)
    yield from zip(draws.sampled[0], draws.noise[0], strict=True)


RECORD_STEPS = (1, 8, NUM_STEPS)
RUNS = (0, 1, 2, 3, 10, 11)


def settings(max_grad_norm: float) -> DPSGD:
    return DPSGD(
        sample_rate=SAMPLE_RATE,
        noise_multiplier=0.6,
        max_grad_norm=max_grad_norm,
        learning_rate=0.5,
        record_steps=RECORD_STEPS,
    )


def opacus_model(dpsgd: DPSGD) -> OpacusModel:
    return OpacusModel(
        noise_multiplier=dpsgd.noise_multiplier,
        max_grad_norm=dpsgd.max_grad_norm,
        rate=dpsgd.learning_rate,
        reduction="mean",
    )


@pytest.mark.parametrize("max_grad_norm", [1.5, 4.0])
def test_input_canary_runs_equal_opacus(
    max_grad_norm: float, opacus_noise: list[NDArray[np.float32]]
) -> None:
    records, dpsgd = some_records(3), settings(max_grad_norm)
    substitute = -3.0 * records.features[records.target]
    canary = InputCanary(features=substitute, label=int(records.labels[records.target] + 1) % 4)
    result = train_ensemble(
        records=records, canary=canary, dpsgd=dpsgd, runs=RUNS, seed=8, device=CPU
    )
    for row, run in enumerate(RUNS):
        features, labels = records.features.copy(), records.labels.copy()
        if run % 2 == 1:  # world 1 holds the canary in the target's place
            features[records.target], labels[records.target] = canary.features, canary.label
        theirs, seen = opacus_model(dpsgd), []
        for step, (sampled, noise) in enumerate(replay(run, records, canary, dpsgd, 8), start=1):
            opacus_noise.append(noise)
            theirs.step(torch.from_numpy(features[sampled]), torch.from_numpy(labels[sampled]))
            if step in RECORD_STEPS:
                pair = np.stack([records.features[records.target], canary.features])
                seen.append(theirs.logits(pair))
        assert_some_clipped(theirs.norms, max_grad_norm)
        assert result.observations[row].shape == (len(RECORD_STEPS), 2, NUM_CLASSES)
        for ours, expected in zip(result.observations[row], seen, strict=True):
            assert_equal_weights(ours, expected)
        right = np.mean(theirs.logits(records.test_features).argmax(axis=1) == records.test_labels)
        assert result.test_accuracy[row] == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("coordinate", [16, 2 * (NUM_FEATURES + 1) + NUM_FEATURES])
def test_gradient_canary_runs_equal_opacus(
    coordinate: int, opacus_noise: list[NDArray[np.float32]]
) -> None:
    records, dpsgd = some_records(4), settings(1.5)
    canary = GradientCanary(coordinate=coordinate)
    result = train_ensemble(
        records=records, canary=canary, dpsgd=dpsgd, runs=RUNS, seed=9, device=CPU
    )
    for row, run in enumerate(RUNS):
        sign = 1.0 if run % 2 == 0 else -1.0
        theirs, seen, sizes = opacus_model(dpsgd), [], []
        for step, (sampled, noise) in enumerate(replay(run, records, canary, dpsgd, 9), start=1):
            opacus_noise.append(noise)
            inserted = None
            if sampled[records.target]:
                # 10 C: Opacus itself clips it to C
                position = int(sampled[: records.target].sum())
                inserted = (position, coordinate, sign * 10 * dpsgd.max_grad_norm)
            theirs.step(
                torch.from_numpy(records.features[sampled]),
                torch.from_numpy(records.labels[sampled]),
                inserted,
            )
            sizes.append(np.abs(theirs.weights).max())
            if step in RECORD_STEPS:
                seen.append(theirs.weights.ravel()[coordinate])
        assert_some_clipped(theirs.norms, dpsgd.max_grad_norm)
        errors = np.abs(result.observations[row] - np.array(seen))
        assert (errors <= 1e-5 * np.array(sizes)[np.array(RECORD_STEPS) - 1]).all()
