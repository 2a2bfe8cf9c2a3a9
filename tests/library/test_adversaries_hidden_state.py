"""Gradient canaries, simulated trainings and what is observed, against loops and closed forms."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import (
    CPU,
    Floats,
    clipped_sum,
    cosine,
    crafting_for,
    overlapping_classes,
    start_of,
)
from torch import nn

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.gradient import (
    least_updated,
    random_dimensions,
    random_directions,
    simulated_dimensions,
)
from dpcanary.adversaries.input import flipped_labels
from dpcanary.canaries import CanarySet, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.observations import Observation
from dpcanary.randomness import generator
from dpcanary.records import Split
from dpcanary.scoring import scores
from dpcanary.scoring.scores import ScoringContext, canary_loss, coordinate
from dpcanary.training.batches import KnownBatches
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.models import module_of
from dpcanary.training.noise import Noise
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.settings import Initialisation, Loss, Purpose
from dpcanary.training.simulation import Movement, simulated_movement

COUNT, FEATURES, CLASSES, BATCH, STEPS, RATE, CLIP = 60, 5, 3, 16, 12, 0.7, 0.4
PARAMETERS = 4 * (FEATURES + 1) + CLASSES * 5
PRIVATE = overlapping_classes(COUNT, FEATURES, CLASSES)
FIXED = {"sampling": "fixed", "batch_size": BATCH, "canary_period": 1}
SAMPLED = {"sampling": "poisson", "batch_size": None, "canary_period": None, "sample_rate": 0.25}
LINEAR = {"model": "linear", "hidden_sizes": []}


def crafting_of(**changes: object) -> Crafting:
    """By default, on known batches."""
    known = {"learning_rate": RATE, "num_steps": STEPS, "max_grad_norm": CLIP, **FIXED}
    data = Split(PRIVATE, PRIVATE[:0], PRIVATE[:0])
    return crafting_for(data, **known | {"adjacency": "add_remove"} | changes)


def mechanism(noise: float, record_steps: object, **changes: object) -> DPSGD:
    return DPSGD(noise, CLIP, RATE, record_steps, **FIXED | changes)


def known_batches(left_out: list[int]) -> list[np.ndarray]:
    others = np.delete(np.arange(COUNT), left_out)
    batches = KnownBatches(others, batch_size=BATCH, seed=6)
    return [batches.at(step) for step in range(STEPS)]


def path_by_hand(
    module: nn.Module,
    batches: list[np.ndarray],
    *,
    clip: float = CLIP,
    factors: Sequence[float] = (RATE / BATCH,) * STEPS,
    start: Floats | None = None,
) -> list[Floats]:
    """The parameters before and after every step of a training without noise."""
    path = [start_of(module) if start is None else start]
    for factor, batch in zip(factors, batches, strict=True):
        path.append(path[-1] - factor * clipped_sum(module, path[-1], PRIVATE[batch], clip))
    return path


def movement_of(path: list[Floats]) -> Movement:
    updates = np.diff(path, axis=0)
    final = np.abs(path[-1] - path[0])
    return Movement(np.abs(updates).sum(axis=0), (updates**2).sum(axis=0), final)


def coordinates_of(canaries: list[GradientCanary]) -> list[int]:
    return [canary.coordinate for canary in canaries]


def test_drawn_dimensions_directions_and_labels_are_uniform():
    canaries = [random_dimensions(crafting_of(seed=seed))[0] for seed in range(400)]
    counts = np.bincount(coordinates_of(canaries), minlength=PARAMETERS)
    # Chi-squared with 38 degrees of freedom: mean 38, standard deviation 8.7.
    assert ((counts - 400 / PARAMETERS) ** 2).sum() * PARAMETERS / 400 < 38 + 5 * 8.7
    assert len({canary.target for canary in canaries}) > 50

    drawn = [random_directions(crafting_of(seed=seed))[0].gradient for seed in range(300)]
    squares = (np.array(drawn) ** 2).mean(axis=0) / CLIP**2
    # A squared coordinate is Beta(1/2, (p-1)/2): standard deviation about sqrt(2) / p.
    np.testing.assert_allclose(squares, 1 / PARAMETERS, atol=5 * 2**0.5 / PARAMETERS / 300**0.5)
    assert np.abs(np.mean(drawn, axis=0)).max() < 5 * CLIP / (300 * PARAMETERS) ** 0.5

    others = {label: [] for label in range(CLASSES)}
    for canary in flipped_labels(crafting_of(num_slots=COUNT)):
        others[int(PRIVATE.labels[canary.target])].append(canary.label)
    for label, drawn in others.items():
        for other in range(CLASSES):
            assert (drawn.count(other) > 3) == (other != label)  # 10 are expected


def test_there_are_no_more_slots_than_parameters():
    canaries = least_updated(crafting_of(num_slots=18, **LINEAR))
    assert sorted(coordinates_of(canaries)) == list(range(18))
    with pytest.raises(InputError, match="num_slots 19 is more than the model's 18 parameters"):
        random_dimensions(crafting_of(num_slots=19, **LINEAR))


@pytest.mark.parametrize("ranking", ["per_step", "final_model", None])
@pytest.mark.parametrize(("simulation", "adjacency"), [
    *(("noiseless", adjacency) for adjacency in Adjacency), ("unclipped", "add_remove"),
])  # fmt: skip
def test_simulated_dimensions_equal_a_loop(ranking, simulation, adjacency):
    """On the batches of the runs. `least_updated`, without a ranking, sums absolute updates."""
    settings = {"simulation": simulation, "adjacency": adjacency, "num_slots": 10}
    crafting = crafting_of(**settings, **({"ranking": ranking} if ranking else {}))
    targets = [target.index for target in crafting.targets]
    batches = known_batches(targets if adjacency == "substitute" else [])
    clip = np.inf if ranking and simulation == "unclipped" else CLIP
    moved = movement_of(path_by_hand(crafting.module, batches, clip=clip))
    ranks = {"per_step": moved.squared, "final_model": moved.final, None: moved.absolute}[ranking]
    canaries = (simulated_dimensions if ranking else least_updated)(crafting)
    assert coordinates_of(canaries) == np.argsort(ranks)[:10].tolist()
    assert [canary.target for canary in canaries] == targets


def movement(**changes: object) -> Movement:
    """On known batches of all records, without noise."""
    known = {
        "module": crafting_of().module, "records": PRIVATE,
        "dpsgd": mechanism(0.0, STEPS, adjacency="add_remove"),
        "initialisation": Initialisation.FIXED, "seed": 6, "device": CPU,
    }  # fmt: skip
    return simulated_movement(**known | changes)


@pytest.mark.parametrize(("rate", "model"), [(0.2, {}), (0.02, LINEAR)])
def test_movement_on_sampled_batches_equals_a_loop(rate, model):
    """At the lower rate, some batches are empty. The learning rate falls."""
    module = crafting_of(**model).module
    changes = {
        "module": module,
        "dpsgd": DPSGD(0.0, CLIP, lambda step: 1 / (1 + step), (STEPS,), sample_rate=rate),
        "initialisation": Initialisation.ZEROS if model else Initialisation.FIXED,
    }
    moved = movement(**changes)
    stream = generator(seed=6, purpose=4)  # the documented key
    batches = [np.flatnonzero(stream.random(COUNT) < rate) for _ in range(STEPS)]
    assert (min(map(len, batches)) == 0) == (rate == 0.02)
    start = start_of(module) * (0.0 if model else 1.0)
    factors = [1 / (1 + step) / (rate * COUNT) for step in range(STEPS)]
    path = path_by_hand(module, batches, factors=factors, start=start)
    for name, values in vars(movement_of(path)).items():
        np.testing.assert_allclose(getattr(moved, name), values, atol=1e-5 * values.max())
    assert not np.array_equal(moved.absolute, movement(**changes, seed=7).absolute)


@pytest.mark.parametrize(
    ("purpose", "is_theirs"), [(Purpose.SIMULATED_NOISE, True), (Purpose.NOISE, False)]
)
def test_simulated_noise_is_not_that_of_the_runs(purpose, is_theirs):
    """Canaries that were chosen by the runs' own noise would depend on what they are to show."""
    moved = movement(dpsgd=mechanism(500.0, 1)).final
    drawn = torch.zeros(1, len(moved))
    run, scale = torch.zeros(1, dtype=torch.int64), 500.0 * CLIP * RATE / BATCH
    Noise(seed=6).add(drawn, factor=0.0, scale=scale, runs=run, step=0, purpose=purpose)
    gaps = np.sort(moved) - np.sort(np.abs(drawn[0].numpy()))
    # Gradients are as long as the 500th part of one coordinate's noise.
    assert (np.abs(gaps).max() < 0.02 * scale) == is_theirs


def test_noisy_simulation_chooses_with_the_audits_noise():
    def order(**changes: object) -> tuple[int, ...]:
        canaries = simulated_dimensions(crafting_of(num_slots=10, **changes))
        return tuple(coordinates_of(canaries))

    noisy = {"simulation": "noisy", "noise": 100.0}
    little = order(simulation="noisy", noise=1e-6)
    assert little == order()
    # Each simulation has noise of its own.
    assert len({little, order(**noisy), order(**noisy, num_simulations=1)}) == 3
    assert order(**noisy, seed=7) != order(**noisy)


def test_simulations_of_unknown_starts():
    """Several start at random, which is their only difference; one starts from the module."""
    per_run = {"initialisation": Initialisation.PER_RUN}
    moved = {count: movement(num_simulations=count, **per_run).squared for count in (1, 3)}
    np.testing.assert_array_equal(moved[1], movement().squared)
    for count, squared in moved.items():
        crafting = crafting_of(initialisation="per_run", num_slots=10, num_simulations=count)
        coordinates = coordinates_of(simulated_dimensions(crafting))
        assert coordinates == np.argsort(squared)[:10].tolist()
    assert not np.allclose(moved[3], 3 * moved[1], rtol=0.1)


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize(
    ("craft", "sampling"),
    [(random_dimensions, {}), (simulated_dimensions, {}), (random_dimensions, SAMPLED)],
    ids=["random", "simulated", "sampled"],
)
def test_drift_is_that_of_a_training_without_canaries(craft, sampling, adjacency):
    """Sampled batches are replaced by their mean, without the targets."""
    changes = {"num_slots": 3, "drift_steps": [5, STEPS], "adjacency": adjacency}
    crafting = crafting_of(**changes, **sampling)
    canaries = craft(crafting)
    targets = [canary.target for canary in canaries]
    if sampling:
        batches, size = [np.delete(np.arange(COUNT), targets)] * STEPS, COUNT
    else:
        batches, size = known_batches(targets if adjacency == "substitute" else []), BATCH
    path = path_by_hand(crafting.module, batches, factors=[RATE / size] * STEPS)
    for canary in canaries:
        expected = [path[step][canary.coordinate] - path[0][canary.coordinate] for step in (5, 12)]
        np.testing.assert_allclose(canary.drift, expected, rtol=1e-4, atol=1e-7)


def test_the_drift_of_each_slot_and_step_is_taken_off_unless_the_training_diverges():
    several = crafting_of(num_slots=2, drift_steps=[STEPS])
    stage = several.stage.model_copy(update={"learning_rate": 1e39})  # a config refuses it
    with pytest.raises(InputError, match="training without noise diverged"):
        random_dimensions(replace(several, stage=stage))
    canaries = (GradientCanary(0, 0, (1.0, 2.0)), GradientCanary(1, 1, (3.0, 5.0)))
    context = ScoringContext(1.0, 1.0, (2, 4), CanarySet(canaries, (0, 0)))
    changes = np.random.default_rng(3).normal(size=(4, 2, 2))
    np.testing.assert_array_equal(coordinate(changes, context), [[1, 3], [2, 5]] - changes)


def run_of(observe: str, **changes: object) -> EnsembleResult:
    canary = GradientCanary(3, 0)
    if not Observation(observe).is_of_gradients:
        label = int(PRIVATE.labels[0] + 1) % CLASSES
        canary = InputCanary(PRIVATE.features[0], label, 0)
    arguments = {
        "module": crafting_of().module, "records": PRIVATE, "canary": canary,
        "dpsgd": mechanism(1.0, (2, 4), adjacency="add_remove", canary_period=2), "runs": 6,
        "seed": 1, "observe": observe, "keep_parameters": True,
    }  # fmt: skip
    return train_ensemble(**arguments | changes)


@pytest.mark.parametrize(("weights", "variance"), [("kaiming", 2 / 40), ("xavier", 2 / 100)])
def test_initial_weights_have_the_variance_of_their_name(weights, variance):
    """The first layer has 40 inputs and 60 outputs."""
    stage = crafting_of(hidden_sizes=[60], initial_weights=weights).stage
    layer = module_of(stage, shape=(40,), num_classes=CLASSES)[0]
    weight = layer.weight.detach().double()
    assert weight.var().item() == pytest.approx(variance, rel=0.1)
    assert weight.abs().max().item() <= (3 * variance) ** 0.5
    assert not layer.bias.any()
    own = run_of("value", initialisation="per_run", initial_weights=weights)
    plain = run_of("value", initialisation="per_run")
    assert not np.array_equal(own.observations, plain.observations)


def test_cosine_is_that_of_the_change():
    [canary] = random_directions(crafting_of())
    result = run_of("change_and_length", canary=canary)
    changes = result.parameters - start_of(crafting_of().module)
    expected = [-cosine(change, canary.gradient.astype(np.float64)) for change in changes]
    context = ScoringContext(1.0, 1.0, (2, 4), result.canaries)
    cosines = scores.cosine(result.observations.astype(np.float64), context)
    np.testing.assert_allclose(cosines[:, -1, 0], expected, rtol=0, atol=1e-5)
    assert scores.cosine(np.zeros((2, 1, 1, 2)), context).tolist() == [[[0.0]], [[0.0]]]


@pytest.mark.parametrize(("loss", "outputs"), [
    (Loss.CROSS_ENTROPY, 4), *((Loss.BINARY_CROSS_ENTROPY, outputs) for outputs in (1, 2, 4)),
])  # fmt: skip
@pytest.mark.parametrize("adjacency", [*Adjacency])
def test_loss_is_that_of_pytorch(loss, outputs, adjacency):
    """Of two slots, whose canaries and targets have different labels."""
    logits = np.random.default_rng(3).normal(size=(7, 2, 2, 2, outputs))
    last = max(2, outputs) - 1
    canaries = tuple(InputCanary(np.zeros(1, np.float32), label, 0) for label in (last, 0))
    known = {"adjacency": adjacency, "loss": loss}
    context = ScoringContext(1.0, 1.0, (1, 2), CanarySet(canaries, (0, 1)), **known)

    def losses(record: int, *labels: int) -> np.ndarray:
        values = torch.from_numpy(logits[..., record, :]).flatten(0, 2)
        goals = torch.tensor(labels).repeat(14)
        if loss is Loss.CROSS_ENTROPY:
            return nn.functional.cross_entropy(values, goals, reduction="none").numpy()
        goals = goals[:, None] if outputs == 1 else nn.functional.one_hot(goals, outputs)
        binary = nn.functional.binary_cross_entropy_with_logits
        return binary(values, goals.double(), reduction="none").mean(dim=-1).numpy()

    expected = -losses(1, last, 0)
    if adjacency is Adjacency.SUBSTITUTE:
        expected = losses(1, last, 0) - losses(0, 0, 1)
    np.testing.assert_allclose(canary_loss(logits, context).ravel(), expected, rtol=1e-12)
