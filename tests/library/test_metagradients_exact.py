"""Metagradients against finite differences and against one graph of a whole training."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from dpcanary.errors import InputError
from dpcanary.metagradients.reverse import (
    Metagradient,
    loss_gap_objective,
    metagradient,
    planned_segments,
)
from dpcanary.metagradients.training import (
    Batch,
    Descent,
    Task,
    Training,
    shuffled_batches,
    trained,
)
from dpcanary.records import Records
from dpcanary.training.residual_networks import resnet9

NUM_RECORDS, NUM_CANARIES, BATCH_SIZE, NUM_STEPS = 14, 6, 5, 12
INSERTED = np.array([0, 2, 5])
OPTIMISERS = {
    "plain": {},
    "decay": {"weight_decay": 0.05},
    "momentum": {"momentum": 0.8, "weight_decay": 0.05},
    "nesterov": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.05},
}


def small_net() -> nn.Module:
    """Smooth, so that finite differences have no kinks to cross."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def rates(num_steps: int) -> tuple[float, ...]:
    return tuple(np.linspace(0.4, 0.1, num_steps))


def training_of(
    net: Callable[[], nn.Module] = small_net,
    *,
    shape: tuple[int, ...] = (1, 4, 4),
    dtype: torch.dtype = torch.float64,
    num_steps: int = NUM_STEPS,
    learning_rates: tuple[float, ...] | None = None,
    **optimiser: object,
) -> tuple[Training, Tensor]:
    """A training, and the pixels of its canaries; half of these are in."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    module = net().to(dtype)
    records = Records(rng.normal(size=(NUM_RECORDS, *shape)), rng.integers(0, 3, NUM_RECORDS))
    task = Task(module=module, records=records, canary_labels=rng.integers(0, 3, NUM_CANARIES))
    batches = shuffled_batches(
        num_records=NUM_RECORDS,
        inserted=INSERTED,
        batch_size=BATCH_SIZE,
        num_steps=num_steps,
        stream=rng,
    )
    descent = Descent(learning_rates or rates(num_steps), **optimiser)
    start = nn.utils.parameters_to_vector(module.parameters())
    pixels = torch.from_numpy(rng.normal(size=(NUM_CANARIES, *shape))).to(dtype)
    return Training(task, start, batches, descent), pixels


def found(training: Training, pixels: Tensor, memory_budget: int | None = None) -> Metagradient:
    objective = loss_gap_objective(training.task, INSERTED)
    return metagradient(
        training=training, pixels=pixels, objective=objective, memory_budget=memory_budget
    )


def value(training: Training, pixels: Tensor) -> float:
    """The objective by training alone, from equation 3 of the paper."""
    parameters = trained(training, pixels)
    outputs = functional_call(
        training.task.module, training.task.named(parameters), (pixels.to(parameters),)
    )
    losses = nn.functional.cross_entropy(outputs, training.task.canary_labels, reduction="none")
    return sum(float(loss) * (1 if i in INSERTED else -1) for i, loss in enumerate(losses))


def difference(training: Training, pixels: Tensor, direction: Tensor, h: float = 1e-3) -> float:
    """The central difference of fourth order along a direction."""
    minus2, minus1, plus1, plus2 = (
        value(training, pixels + multiple * h * direction) for multiple in (-2, -1, 1, 2)
    )
    return (8 * (plus1 - minus1) - (plus2 - minus2)) / (12 * h)


def unit(pixels: Tensor, coordinate: tuple[int, ...]) -> Tensor:
    direction = torch.zeros_like(pixels)
    direction[coordinate] = 1
    return direction


@pytest.mark.parametrize("name", OPTIMISERS)
def test_they_are_central_differences(name: str):
    """In float64; canaries 0 and 2 are trained on, 1 and 4 are not."""
    training, pixels = training_of(**OPTIMISERS[name])
    own = found(training, pixels)
    assert own.value == pytest.approx(value(training, pixels), rel=1e-12)
    scale = own.gradient.abs().max()
    for coordinate in ((0, 0, 1, 2), (2, 0, 3, 0), (1, 0, 0, 0), (4, 0, 2, 3), (5, 0, 1, 1)):
        expected = difference(training, pixels, unit(pixels, coordinate))
        assert float(own.gradient[coordinate]) == pytest.approx(
            expected, rel=1e-6, abs=float(scale) * 1e-8
        )


def test_differences_along_random_directions_agree():
    """A sum over all pixels, so that no share of any canary or step is left out."""
    training, pixels = training_of(**OPTIMISERS["nesterov"])
    own = found(training, pixels)
    for seed in range(3):
        direction = torch.from_numpy(np.random.default_rng(seed).normal(size=pixels.shape))
        expected = difference(training, pixels, direction)
        assert float((own.gradient * direction).sum()) == pytest.approx(expected, rel=1e-6)


def unrolled(training: Training, pixels: Tensor, objective: Callable[..., Tensor]) -> Tensor:
    """The derivative by automatic differentiation of the whole training, written plainly."""
    task, descent = training.task, training.descent

    def loss_of(parameters: dict[str, Tensor], canaries: Tensor, batch: Batch) -> Tensor:
        features = torch.cat([task.features[batch.records], canaries[batch.canaries]])
        labels = torch.cat([task.labels[batch.records], task.canary_labels[batch.canaries]])
        outputs = functional_call(task.module, parameters, (features,))
        return nn.functional.cross_entropy(outputs, labels)

    def outcome(canaries: Tensor) -> Tensor:
        weights = task.named(training.start)
        buffers: dict[str, Tensor] = {}
        for rate, batch in zip(descent.learning_rates, training.batches, strict=True):
            slopes = grad(loss_of)(weights, canaries, batch)
            for name, weight in weights.items():
                slope = slopes[name] + descent.weight_decay * weight
                if descent.momentum:
                    before = buffers.get(name)
                    after = slope if before is None else descent.momentum * before + slope
                    buffers[name] = after
                    slope = slope + descent.momentum * after if descent.nesterov else after
                weights = {**weights, name: weight - rate * slope}
        return objective(weights, canaries)

    return grad(outcome)(pixels)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_they_are_the_gradient_of_one_graph(name: str):
    training, pixels = training_of(**OPTIMISERS[name])
    signs = torch.tensor([1.0 if i in INSERTED else -1.0 for i in range(NUM_CANARIES)]).double()

    def objective(weights: dict[str, Tensor], canaries: Tensor) -> Tensor:
        outputs = functional_call(training.task.module, weights, (canaries,))
        labels = training.task.canary_labels
        return signs @ nn.functional.cross_entropy(outputs, labels, reduction="none")

    expected = unrolled(training, pixels, objective)
    own = found(training, pixels).gradient
    torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-12)


def test_every_part_counts():
    """Canaries that are out have only a direct part; those that are in have both."""
    training, pixels = training_of(**OPTIMISERS["momentum"])
    final = trained(training, pixels)
    direct = pixels.clone().requires_grad_()
    objective = loss_gap_objective(training.task, INSERTED)
    objective(final, direct).backward()
    own = found(training, pixels).gradient
    out = np.setdiff1d(np.arange(NUM_CANARIES), INSERTED)
    torch.testing.assert_close(own[out], direct.grad[out], rtol=1e-12, atol=0)
    through = (own - direct.grad)[INSERTED]
    assert (through.flatten(1).norm(dim=1) > 0.1 * own[INSERTED].flatten(1).norm(dim=1)).all()


def test_an_objective_may_lack_either_part():
    training, pixels = training_of(**OPTIMISERS["momentum"])
    weights = torch.linspace(-1, 1, len(training.start), dtype=torch.float64)
    through = metagradient(training=training, pixels=pixels, objective=lambda p, z: weights @ p)
    step = 1e-5 * unit(pixels, (0, 0, 1, 2))
    change = float(weights @ (trained(training, pixels + step) - trained(training, pixels - step)))
    assert float(through.gradient[0, 0, 1, 2]) == pytest.approx(change / 2e-5, rel=1e-6)
    alone = metagradient(training=training, pixels=pixels, objective=lambda p, z: z.sum())
    assert torch.equal(alone.gradient, torch.ones_like(pixels))


def test_single_precision_of_a_residual_network():
    """ResNet-9 in miniature against itself in double precision."""
    options = {"shape": (3, 32, 32), "num_steps": 6, **OPTIMISERS["nesterov"]}

    def net() -> nn.Module:
        return resnet9(3, width=4)

    double, pixels = training_of(net, **options)
    single, _ = training_of(net, dtype=torch.float32, **options)
    expected, own = found(double, pixels), found(single, pixels.float())
    assert own.value == pytest.approx(expected.value, rel=1e-4)
    error = (own.gradient.double() - expected.gradient).norm() / expected.gradient.norm()
    assert 0 < float(error) < 1e-3
    for coordinate in ((0, 1, 20, 7), (1, 2, 5, 5)):
        slope = difference(double, pixels, unit(pixels, coordinate), h=1e-5)
        assert float(expected.gradient[coordinate]) == pytest.approx(slope, rel=1e-4)


# --- memory ------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [8, 9, 10, 11])
def test_the_memory_changes_nothing(capacity: int):
    training, pixels = training_of(dtype=torch.float32, **OPTIMISERS["nesterov"])
    full = found(training, pixels)
    own = found(training, pixels, memory_budget=4 * len(training.start) * capacity)
    assert full.num_replayed == 0 < own.num_replayed
    assert torch.equal(own.gradient, full.gradient)
    assert torch.equal(own.parameters, full.parameters)
    assert (own.value, own.losses) == (full.value, full.losses)


def test_a_repetition_is_identical():
    training, pixels = training_of(dtype=torch.float32, **OPTIMISERS["nesterov"])
    one, two = found(training, pixels), found(training, pixels)
    assert torch.equal(one.gradient, two.gradient)
    assert torch.equal(one.parameters, two.parameters)
    before = pixels.clone()
    found(training, pixels)
    assert torch.equal(pixels, before)
    start = training.start.clone()
    same = Training(training.task, start, training.batches, training.descent)
    start.zero_()
    assert torch.equal(found(same, pixels).gradient, one.gradient)


@pytest.mark.parametrize("num_steps", [1, 2, 3, 10, 97, 500])
def test_segments_cover_all_steps_and_fit(num_steps: int):
    least = None
    for capacity in range(1, num_steps + 2):
        try:
            segments = planned_segments(num_steps, capacity)
        except InputError:
            assert least is None
            continue
        least = least or capacity
        assert [step for segment in segments for step in segment] == list(range(num_steps))
        longest = max(len(segment) for segment in segments)
        assert len(segments[-1]) == longest
        assert 2 * (len(segments) - 1) + longest <= capacity
        assert (len(segments) == 1) == (capacity >= num_steps)
    assert least <= np.sqrt(8 * num_steps) + 1
    assert planned_segments(num_steps, None) == (range(num_steps),)


# --- the training ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMISERS)
def test_training_is_pytorchs(name: str):
    training, pixels = training_of(**OPTIMISERS[name])
    module = training.task.module
    nn.utils.vector_to_parameters(training.start.clone(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0, **OPTIMISERS[name])
    task = training.task
    for rate, batch in zip(training.descent.learning_rates, training.batches, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        features = torch.cat([task.features[batch.records], pixels[batch.canaries]])
        labels = torch.cat([task.labels[batch.records], task.canary_labels[batch.canaries]])
        nn.functional.cross_entropy(module(features), labels).backward()
        optimizer.step()
    expected = nn.utils.parameters_to_vector(module.parameters())
    torch.testing.assert_close(trained(training, pixels), expected, rtol=1e-10, atol=1e-12)


def test_every_epoch_has_every_record_once():
    stream = np.random.default_rng(3)
    inserted = np.array([1, 4, 6])
    batches = shuffled_batches(
        num_records=9, inserted=inserted, batch_size=4, num_steps=7, stream=stream
    )
    assert len(batches) == 7
    for epoch in range(2):
        parts = batches[3 * epoch : 3 * epoch + 3]
        assert all(len(part.records) + len(part.canaries) == 4 for part in parts)
        assert sorted(np.concatenate([part.records for part in parts])) == list(range(9))
        assert sorted(np.concatenate([part.canaries for part in parts])) == list(inserted)
    assert not np.array_equal(batches[0].records, batches[3].records)
