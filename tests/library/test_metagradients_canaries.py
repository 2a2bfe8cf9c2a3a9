"""Canaries by metagradient descent, what a metastep draws, and how smooth training is."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from dpcanary.adversaries.metagradient import (
    Metastep,
    OptimisedCanaries,
    drawn_training,
    optimise_canaries,
)
from dpcanary.metagradients.reverse import Smoothness, loss_gap_objective, metasmoothness
from dpcanary.metagradients.training import Descent, Task, Training, trained
from dpcanary.records import Records
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.settings import Initialisation

SHAPE, NUM_CLASSES = (1, 6, 6), 4
DESCENT = Descent((0.3,) * 24, momentum=0.8, weight_decay=1e-3)
LIMITS = {"lower": -1.0, "upper": 1.0}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(72, NUM_CLASSES),
    )


def records(count: int, *, seed: int) -> Records:
    """Records whose classes have means of their own."""
    means = np.random.default_rng(5).uniform(-0.5, 0.5, (NUM_CLASSES, *SHAPE))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, count)
    noise = rng.uniform(-0.5, 0.5, (count, *SHAPE))
    return Records((means[labels] + noise).astype(np.float32), labels)


DATA, CANARIES = records(80, seed=0), records(16, seed=1)


def optimised(**changes: object) -> OptimisedCanaries:
    arguments = {
        "module": net(),
        "records": DATA,
        "canaries": CANARIES,
        "descent": DESCENT,
        "batch_size": 22,
        "step_size": 0.04,
        "num_metasteps": 12,
        "seed": 3,
        **LIMITS,
    }
    return optimise_canaries(**{**arguments, **changes})


def task() -> Task:
    return Task(module=net(), records=DATA, canary_labels=CANARIES.labels)


def draw(index: int = 0, *, seed: int = 0, of: Task | None = None) -> tuple[Training, np.ndarray]:
    return drawn_training(of or task(), descent=DESCENT, batch_size=22, seed=seed, index=index)


def gap_of(training: Training, canaries: Records, inserted: np.ndarray) -> float:
    """Mean loss of the canaries that are out minus that of those that are in, after training."""
    pixels = torch.from_numpy(canaries.features)
    module = copy.deepcopy(training.task.module)
    nn.utils.vector_to_parameters(trained(training, pixels), module.parameters())
    with torch.no_grad():
        labels = torch.from_numpy(canaries.labels)
        losses = nn.functional.cross_entropy(module(pixels), labels, reduction="none").numpy()
    return np.delete(losses, inserted).mean() - losses[inserted].mean()


def test_the_gap_grows():
    """Each fresh split, start and order is trained on both sets of canaries."""
    own, own_task = optimised(), task()
    draws = [draw(index, seed=99, of=own_task) for index in range(8)]
    differences = [gap_of(a, own.canaries, b) - gap_of(a, CANARIES, b) for a, b in draws]
    mean, error = np.mean(differences), np.std(differences, ddof=1) / np.sqrt(8)
    assert mean > 5 * error > 0
    assert mean > 0.5
    gaps = [step.loss_gap for step in own.metasteps]
    assert np.mean(gaps[-3:]) > np.mean(gaps[:3]) + 0.5
    first, inserted = draw(seed=3, of=own_task)
    assert gaps[0] == pytest.approx(gap_of(first, CANARIES, inserted), rel=1e-5)


def test_a_seeded_descent_is_identical():
    seen: list[Metastep] = []
    one = optimised(num_metasteps=2, progress=seen.append)
    vector = 4 * sum(part.numel() for part in net().parameters())
    two = optimised(num_metasteps=2, memory_budget=14 * vector)
    assert [step.index for step in seen] == [0, 1]
    assert tuple(seen) == one.metasteps
    np.testing.assert_array_equal(one.canaries.features, two.canaries.features)
    assert two.metasteps[0].num_replayed > 0 == one.metasteps[0].num_replayed
    assert one.metasteps[1].loss_gap == two.metasteps[1].loss_gap
    other = optimised(num_metasteps=2, seed=4)
    assert not np.array_equal(one.canaries.features, other.canaries.features)


def test_pixels_move_by_signed_steps_within_the_limits():
    one = optimised(num_metasteps=1)
    moves = one.canaries.features - CANARIES.features
    inside = np.abs(one.canaries.features) < 1
    np.testing.assert_allclose(np.abs(moves[inside]), 0.04, atol=1e-6)
    narrow = optimised(
        num_metasteps=3,
        step_size=0.5,
        lower=CANARIES.features.min() * np.ones(SHAPE),
        upper=np.array([[[2.0]]]),
    )
    assert narrow.canaries.features.min() == CANARIES.features.min()
    assert narrow.canaries.features.max() <= 2.0
    np.testing.assert_array_equal(narrow.canaries.labels, CANARIES.labels)
    assert narrow.canaries.features.dtype == np.float32


def test_metasteps_draw_a_half_a_start_and_an_order_of_their_own():
    draws = [draw(0), draw(1), draw(0, seed=1)]
    for training, inserted in draws:
        assert len(inserted) == len(set(inserted)) == 8
        used = np.concatenate([batch.canaries for batch in training.batches])
        assert set(used) == set(inserted)
    (first, first_inserted), (again, again_inserted) = draws[0], draw(0)
    assert torch.equal(again.start, first.start)
    np.testing.assert_array_equal(again_inserted, first_inserted)
    for other, inserted in draws[1:]:
        assert not torch.equal(other.start, first.start)
        assert not np.array_equal(inserted, first_inserted)
        assert not np.array_equal(other.batches[0].records[:5], first.batches[0].records[:5])


def test_models_start_elsewhere_than_those_of_an_audit_with_the_same_seed():
    own = initial_parameters(net(), Initialisation.PER_RUN, seed=5, runs=[0, 1, 2])
    start = draw(1, seed=5)[0].start
    assert not any(torch.equal(start, other) for other in own)


def test_every_canary_is_in_as_often_as_out():
    own_task = task()
    counts = np.zeros(16)
    for index in range(200):
        counts[draw(index, of=own_task)[1]] += 1
    assert np.abs(counts - 100).max() < 4.5 * np.sqrt(200 / 4)


def test_the_callers_module_is_left_alone():
    module = net()
    before = nn.utils.parameters_to_vector(module.parameters()).clone()
    state = torch.random.get_rng_state()
    optimised(module=module, num_metasteps=1)
    assert torch.equal(nn.utils.parameters_to_vector(module.parameters()), before)
    assert torch.equal(torch.random.get_rng_state(), state)
    own = Task(module=module, records=DATA, canary_labels=CANARIES.labels)
    assert own.module is not module  # which may move to another device


# --- smoothness --------------------------------------------------------------------------------


def smoothness(step_size: float) -> tuple[Smoothness, float]:
    """Along random signs; and the agreement of parameters, computed plainly."""
    own_task = Task(module=net().double(), records=DATA, canary_labels=CANARIES.labels)
    training, inserted = draw(of=own_task)
    pixels = own_task.pixels(CANARIES.features)
    direction = torch.from_numpy(np.random.default_rng(2).choice([-1.0, 1.0], pixels.shape))
    found = metasmoothness(
        training=training,
        pixels=pixels,
        direction=direction,
        step_size=step_size,
        objective=loss_gap_objective(own_task, inserted),
    )
    z0, z1, z2 = (trained(training, pixels + k * step_size * direction).numpy() for k in range(3))
    weights = np.abs(z2 - z0)
    return found, np.average(np.sign(z1 - z0) * np.sign(z2 - z1), weights=weights)


def test_training_is_smooth_at_small_steps():
    (small, of_small), (large, of_large) = smoothness(1e-4), smoothness(0.5)
    assert small.parameter_signs == pytest.approx(of_small, abs=1e-9)
    assert large.parameter_signs == pytest.approx(of_large, abs=1e-9)
    assert small.gradient_cosine > 0.9999
    assert small.gradient_signs > 0.999
    assert small.parameter_signs > 0.99
    assert small.predicted_change == pytest.approx(small.change, rel=1e-2)
    assert large.gradient_cosine < small.gradient_cosine
    assert large.gradient_signs < 0.99 * small.gradient_signs
    assert large.parameter_signs < small.parameter_signs


def test_a_quadratic_of_the_pixels_has_a_known_smoothness():
    """The objective is the sum of squares of pixels, whatever was trained."""
    training, _ = draw()
    pixels = torch.ones(16, *SHAPE)
    direction = torch.zeros_like(pixels)
    direction[:4] = -1.0
    found = metasmoothness(
        training=training,
        pixels=pixels,
        direction=direction,
        step_size=3.0,
        objective=lambda parameters, z: z.square().sum(),
    )
    # Derivatives are 2 everywhere, and at the second place -4 for a quarter of the canaries.
    assert found.gradient_signs == pytest.approx(0.5)
    assert found.gradient_cosine == pytest.approx((0.75 * 2 - 0.25 * 4) / np.sqrt(0.75 * 4 + 4))
    assert found.predicted_change == pytest.approx(-3.0 * 2 * 4 * 36)
    assert found.change == pytest.approx((4 - 1) * 4 * 36)
