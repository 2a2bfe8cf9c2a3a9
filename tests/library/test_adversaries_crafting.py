"""Canaries, their targets and the trainings that choose them, against autograd and loops."""

import copy
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import inf
from types import SimpleNamespace
from unittest.mock import Mock

import by_hand
import numpy as np
import pytest
import torch
from by_hand import CPU, Floats, cosine, crafting_for, gradients_of, overlapping_classes, start_of
from one_record_at_a_time import clipped_sum
from scipy.special import expit, softmax
from scipy.stats import chisquare
from torch import nn

from dpcanary.adversaries import gradient as of_gradients
from dpcanary.adversaries import input as of_records
from dpcanary.adversaries.crafting import Crafting, RecordGradients, Target, craft_canaries
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.randomness import generator
from dpcanary.data.canaries import CanarySet, GradientCanary, InputCanary
from dpcanary.data.records import Records, Split
from dpcanary.errors import InputError
from dpcanary.papers.cebere import gradient_canaries as of_cebere
from dpcanary.papers.cebere.gradient_canaries import random_dimensions, simulated_dimensions
from dpcanary.scoring import scores
from dpcanary.scoring.scores import ScoringContext, canary_loss, coordinate
from dpcanary.training import simulated_trainings as simulation
from dpcanary.training.batches import KnownBatches
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.models import module_of
from dpcanary.training.noise import Noise
from dpcanary.training.simulated_trainings import Movement, Reference
from dpcanary.training.training_settings import Initialisation, Loss, Optimizer, Purpose

NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 40, 9, 5


def some_data(num_features: int = NUM_FEATURES) -> Split:
    records = overlapping_classes(100, num_features, NUM_CLASSES)
    return Split(records[:NUM_RECORDS], records[NUM_RECORDS:], records[:0])


DATA = some_data()
PRIVATE, AUXILIARY = DATA.private, DATA.auxiliary


def attack_on(data: Split, *, sizes: list[int]) -> Crafting:
    """What canaries are made from, with a reference model, which is linear without sizes."""
    settings = {"model": "mlp" if sizes else "linear", "hidden_sizes": sizes}
    training = {"learning_rate": 0.5, "num_steps": 100, "sample_rate": 0.2}
    training["initialisation"] = "per_run" if sizes else "zeros"
    return by_hand.with_reference(crafting_for(data, **settings, **training))


@pytest.fixture(scope="module")
def attack() -> Crafting:
    return attack_on(DATA, sizes=[8])


def changed(crafting: Crafting, **changes: object) -> Crafting:
    """Change settings of the stage, and keep the data and the reference model."""
    return replace(crafting, stage=crafting.stage.model_copy(update=changes))


def with_data(crafting: Crafting, **parts: Records) -> Crafting:
    return replace(crafting, data=replace(crafting.data, **parts))


def at_reference(crafting: Crafting, records: Records) -> Floats:
    """The gradient of each record at the reference model."""
    return gradients_of(crafting.module, crafting.reference.parameters, records)


TOKENS = Records(np.array([[0, 5], [3, 3], [5, 0]]), [0, 2, 1])
OF_TOKENS = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 3))


def test_gradients_of_tokens_equal_autograd(monkeypatch):
    """Those of numbers are compared with autograd in the tests of canaries below."""
    parameters = start_of(OF_TOKENS).astype(np.float32)
    gradients = RecordGradients(OF_TOKENS, parameters, Loss.CROSS_ENTROPY)
    expected = gradients_of(OF_TOKENS, parameters, TOKENS)
    of_target = gradients.of_target(Target(1, TOKENS.features[1], int(TOKENS.labels[1])))
    np.testing.assert_allclose(of_target.numpy(), expected[1], rtol=1e-9, atol=1e-12)
    cosines = gradients.cosines(TOKENS, of_target)
    np.testing.assert_allclose(cosines, [cosine(g, expected[1]) for g in expected], atol=1e-9)
    monkeypatch.setattr("dpcanary.adversaries.crafting._BYTES_AT_ONCE", 8 * len(of_target) * 2)
    np.testing.assert_allclose(gradients.cosines(TOKENS, of_target), cosines, rtol=1e-12)


def test_zero_gradients_have_cosine_zero_and_the_first_of_equally_sure_records_are_targets(attack):
    parameters = np.array([4000.0, 0.0, 0.0, 0.0], np.float32)
    gradients = RecordGradients(nn.Linear(1, 2), parameters, Loss.CROSS_ENTROPY)
    records = Records(np.array([[1.0], [-1.0]], np.float32), [0, 0])
    target = gradients.of(gradients.inputs(records.features[1]), gradients.labels(0))
    assert gradients.cosines(records, target).tolist() == [0.0, pytest.approx(1.0)]
    reference = Reference(np.zeros(1, np.float32), np.array([0.5, 0.2, 0.2, 0.1, 0.2]))
    assert reference.least_confident(3).tolist() == [3, 1, 2]
    assert reference.least_confident(5).tolist() == [3, 1, 2, 4, 0]
    # Certain of class 0, whose records have no gradient: the first cosine would be their own label.
    certain = np.zeros_like(attack.reference.parameters)
    certain[-NUM_CLASSES] = 1000.0
    crafting = replace(attack, reference=Reference(certain, np.zeros(NUM_RECORDS)))
    canaries = of_records.mislabeled(changed(crafting, num_slots=NUM_RECORDS))
    assert 0 in PRIVATE.labels
    assert all(canary.label != PRIVATE.labels[canary.target] for canary in canaries)


def test_mislabeled_is_the_most_opposed_label(attack: Crafting) -> None:
    crafting = changed(attack, num_slots=NUM_RECORDS)
    for canary, target in zip(of_records.mislabeled(crafting), crafting.targets, strict=True):
        relabelled = Records(np.tile(target.features, (NUM_CLASSES, 1)), np.arange(NUM_CLASSES))
        gradients = at_reference(attack, relabelled)
        cosines = [cosine(gradient, gradients[target.label]) for gradient in gradients]
        assert canary.label == int(np.argmin(cosines)) != target.label
        assert canary.target == target.index
        assert np.array_equal(canary.features, target.features)


def test_natural_is_the_most_opposed_auxiliary_record_that_is_left(attack: Crafting) -> None:
    crafting = changed(attack, num_slots=NUM_RECORDS)
    candidates = at_reference(attack, AUXILIARY)
    free, favourites = set(range(len(AUXILIARY))), set()
    for canary, target in zip(of_records.natural(crafting), crafting.targets, strict=True):
        [own] = at_reference(attack, PRIVATE[target.index : target.index + 1])
        cosines = [cosine(gradient, own) for gradient in candidates]
        favourites.add(int(np.argmin(cosines)))
        best = min(free, key=lambda record: cosines[record])
        free.remove(best)
        assert np.array_equal(canary.features, AUXILIARY.features[best])
        assert (canary.label, canary.target) == (AUXILIARY.labels[best], target.index)
    assert len(favourites) < NUM_RECORDS - 5  # so the rule changes the result here
    few = of_records.natural(changed(with_data(attack, auxiliary=AUXILIARY[:7]), num_slots=7))
    rows = [canary.features.tolist() for canary in few]
    assert sorted(rows) == sorted(AUXILIARY.features[:7].tolist())


def objective(gradient: Floats, target: Floats) -> float:
    return cosine(gradient, target) + float(np.mean((gradient - target) ** 2))


@contextmanager
def full_bar(total: int, unit: str):
    """A progress bar that must be full in the end."""
    ticks: list[int] = []
    yield SimpleNamespace(update=ticks.append)
    assert sum(ticks) == total


@pytest.mark.parametrize(("sizes", "num_features", "most"), [([], 30, -0.65), ([8], 9, 0.0)])
def test_crafted_inputs_oppose_their_targets(sizes, num_features, most):
    attack = attack_on(some_data(num_features), sizes=sizes)
    steps = {"num_slots": 2, "crafting_steps": 800, "crafting_step_size": 0.02}
    crafting = replace(changed(attack, **steps), progress=full_bar)
    directions = np.random.default_rng(0).normal(size=(25, num_features)).astype(np.float32)
    directions *= 0.05 / np.linalg.norm(directions, axis=1, keepdims=True)
    for canary, target in zip(of_records.crafted_inputs(crafting), crafting.targets, strict=True):
        assert (canary.target, canary.label) == (target.index, target.label)
        assert canary.features.dtype == np.float32
        rows = [target.features, canary.features, np.zeros_like(target.features)]
        rows = Records(np.stack([*rows, *(canary.features + directions)]), [target.label] * 28)
        own, crafted, start, *near = at_reference(crafting, rows)
        assert cosine(crafted, own) < most
        assert objective(crafted, own) < objective(start, own)
        if not sizes:  # otherwise it is not at a minimum yet
            real = at_reference(crafting, crafting.data.auxiliary)
            assert objective(crafted, own) < min(objective(each, own) for each in [*near, *real])
            assert cosine(crafted, own) < min(cosine(each, own) for each in real)


NUMBERS = np.random.default_rng(3).normal(2.0, 3.0, 100).astype(np.float32)


def test_canaries_where_labels_are_numbers_have_an_extreme_label_that_the_adversary_knows():
    private = Records(PRIVATE.features, NUMBERS[:NUM_RECORDS])
    auxiliary = Records(AUXILIARY.features, NUMBERS[NUM_RECORDS:])
    data = Split(private, auxiliary, auxiliary[:0])
    settings = {"learning_rate": 0.05, "num_steps": 50, "sample_rate": 0.2, "num_slots": 12}
    settings |= {"model": "linear", "initialisation": "zeros"}
    crafting = by_hand.with_reference(crafting_for(data, loss="squared_error", **settings))
    inputs = np.column_stack([private.features, np.ones(NUM_RECORDS)])
    parameters, errors = np.zeros(NUM_FEATURES + 1), np.zeros(NUM_RECORDS)
    for _ in range(50):
        parameters -= 0.05 * 2 * inputs.T @ (inputs @ parameters - private.labels) / NUM_RECORDS
        errors += np.square(inputs @ parameters - private.labels) / 50
    np.testing.assert_allclose(crafting.reference.mean_confidence, -errors, rtol=1e-4)
    assert [target.index for target in crafting.targets] == np.argsort(-errors)[:12].tolist()
    extremes = [auxiliary.labels.min(), auxiliary.labels.max()]
    for canary, target in zip(of_records.mislabeled(crafting), crafting.targets, strict=True):
        # A gradient is along features and 1, with the sign of the error.
        predicted = np.append(target.features, 1.0) @ parameters
        own, *others = (np.sign(predicted - label) for label in (target.label, *extremes))
        assert canary.label == extremes[others.index(-own)]
    assert {canary.label for canary in of_records.flipped_labels(crafting)} == {*extremes}
    assert {canary.label for canary in of_records.blank_records(crafting)} == {extremes[1]}
    for canary, target in zip(of_records.natural(crafting), crafting.targets, strict=True):
        [row] = np.flatnonzero((auxiliary.features == canary.features).all(axis=1))
        assert (canary.label, canary.target) == (auxiliary.labels[row], target.index)


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_crafted_inputs_oppose_targets_whose_labels_are_numbers_of_any_scale(scale):
    """As a linear model has it: a gradient is twice the error, times features and 1."""
    private = Records(PRIVATE.features, scale * NUMBERS[:NUM_RECORDS])
    auxiliary = Records(AUXILIARY.features, scale * NUMBERS[NUM_RECORDS:])
    data = Split(private, auxiliary, auxiliary[:0])
    settings = {"model": "linear", "initialisation": "zeros", "num_steps": 1, "sample_rate": 0.2}
    settings |= {"num_slots": 3, "crafting_steps": 1_500, "crafting_step_size": 0.02}
    crafting = by_hand.with_reference(
        crafting_for(data, loss="squared_error", learning_rate=1e-6, **settings)
    )
    for canary, target in zip(of_records.crafted_inputs(crafting), crafting.targets, strict=True):
        assert canary.label == target.label
        weights = crafting.reference.parameters.astype(float)
        own, crafted = (
            2
            * (np.append(record.features, 1.0) @ weights - target.label)
            * np.append(record.features, 1)
            for record in (target, canary)
        )
        assert own @ crafted < -0.3 * np.linalg.norm(own) * np.linalg.norm(crafted)


def test_a_target_without_gradient_has_no_crafted_input(refuses):
    gradients = RecordGradients(
        nn.Linear(NUM_FEATURES, 1), np.zeros(NUM_FEATURES + 1, np.float32), Loss.SQUARED_ERROR
    )
    target = Target(7, PRIVATE.features[7], 0.0)
    search = {"gradients": gradients, "num_steps": 3, "step_size": 0.1}
    message = "the gradient of private record 7, its target, is 0 at the reference model"
    refuses(message, of_records.crafted_input, target=target, **search)


def test_a_crafted_input_that_ends_at_its_target_is_refused(attack, refuses):
    module = nn.Linear(NUM_FEATURES, NUM_CLASSES)
    count = sum(parameter.numel() for parameter in module.parameters())
    gradients = RecordGradients(module, np.zeros(count, np.float32), Loss.CROSS_ENTROPY)
    blank = Target(0, np.zeros(NUM_FEATURES, np.float32), 1)
    still = {"gradients": gradients, "num_steps": 1, "step_size": 1e-60}
    refuses("both worlds would be the same", of_records.crafted_input, target=blank, **still)


def of_one_label(crafting: Crafting, label: float) -> Crafting:
    alike = Records(PRIVATE.features, [label] * NUM_RECORDS)
    return with_data(crafting, private=alike, auxiliary=alike, test=alike)


# Functions of canaries that return too few, no list, and a list of something else.
first_alone = Mock(return_value=[InputCanary(AUXILIARY.features[0], 1, 0)])
no_list = Mock(return_value=None)
numbers = Mock(return_value=[1, 2, 3])
without_index = Mock(return_value=[GradientCanary(7, Records(np.ones((1, 2)), [0]))])

beyond = Mock(return_value=[InputCanary(AUXILIARY.features[0], 1, NUM_RECORDS)])
own_targets = Mock(return_value=[InputCanary(AUXILIARY.features[0], 1, i) for i in range(3)])


def crafted_by(function: str):
    named = {"function": f"{__name__}:{function}", "num_slots": 3}
    return lambda crafting: craft_canaries(changed(crafting, **named))


WITH_NAN = np.where(np.arange(60)[:, None] == 11, np.nan, AUXILIARY.features)
INTEGERS = Records(np.ones(PRIVATE.features.shape, np.int64), PRIVATE.labels)
DIVERGED = Reference(np.full(125, np.nan), np.zeros(NUM_RECORDS))


@pytest.mark.parametrize(("call", "message"), [
    (crafted_by("first_alone"), "first_alone made 1 canaries for 3 slots"),
    (crafted_by("no_list"), "no_list returned None; it must return a list of canaries"),
    (crafted_by("numbers"), "numbers returned 1; it must return a list of canaries"),
    (crafted_by("without_index"), "whose target is a Records; it must be the index of a private"),
    (crafted_by("beyond"), "whose target is 40, and there are 40 private records"),
    (crafted_by("nothing"), "there is no function '.*:nothing'"),
    (lambda own: of_records.mislabeled(changed(own, num_slots=41)),
     "41 is more than the 40 private rec"),
    (lambda own: of_records.natural(changed(with_data(own, auxiliary=AUXILIARY[:7]), num_slots=8)),
     "num_slots 8 is more than the 7 auxiliary records"),
    (lambda own: of_records.natural(with_data(own, auxiliary=Records(WITH_NAN, AUXILIARY.labels))),
     r"candidate 11 for a canary has a gradient .* not finite"),
    (lambda own: of_records.mislabeled(replace(own, reference=DIVERGED)),
     r"candidate 0 .* not finite: lower the reference's learn"),
    (lambda own: of_records.mislabeled(of_one_label(own, 0)), "needs at least 2 classes, or other"),
    (lambda own: of_records.mislabeled(of_one_label(own, 1.5)), "label needs at least 2 classes"),
    (lambda own: of_records.flipped_labels(of_one_label(own, 0)), "records have one class only"),
    (lambda own: replace(own, reference=None).gradients, "must not say uses_reference=False"),
    (lambda own: of_records.crafted_inputs(changed(own, crafting_step_size=inf, crafting_steps=2)),
     "crafted_input diverged; lower crafting_step"),
    (lambda own: of_records.crafted_inputs(with_data(own, private=INTEGERS)),
     "needs features that are real numbers"),
    (lambda _: random_dimensions(crafting_of(num_slots=19, **LINEAR)),
     "num_slots 19 is more than the model's 18 parameters"),
    # A config refuses this rate.
    (lambda _: random_dimensions(changed(crafting_of(drift_steps=[STEPS]), learning_rate=1e39)),
     "training without noise diverged"),
])  # fmt: skip
def test_what_cannot_be_crafted_is_refused(attack, call, message):
    with pytest.raises(InputError, match=message):
        call(attack)


def test_the_labels_of_targets_are_those_of_the_records_that_a_function_chose(attack):
    rising = np.argsort(PRIVATE.labels, kind="stable")
    records = Records(PRIVATE.features[rising], PRIVATE.labels[rising])
    crafted = crafted_by("own_targets")(with_data(replace(attack, reference=None), private=records))
    assert crafted.target_labels == (0, 0, 0)


def test_reference_equals_plain_torch():
    """Those that start from zeros have a test of their own, of labels that are numbers."""
    module, ticks = crafting_for(DATA, hidden_sizes=[8]).module, []
    dpsgd = DPSGD(0.0, 0.1, 0.01, (20,), optimizer=Optimizer.ADAM)  # it is not clipped
    options = {"module": module, "records": PRIVATE, "device": CPU, "on_progress": ticks.append}
    start = Initialisation.PER_RUN
    reference = simulation.train_reference(dpsgd=dpsgd, initialisation=start, **options)
    twin = copy.deepcopy(module)
    descent = torch.optim.Adam(twin.parameters(), lr=0.01)
    features, labels = torch.from_numpy(PRIVATE.features), torch.from_numpy(PRIVATE.labels)
    confidences = []
    for _ in range(20):
        descent.zero_grad()
        nn.functional.cross_entropy(twin(features), labels).backward()
        descent.step()
        losses = nn.functional.cross_entropy(twin(features), labels, reduction="none")
        confidences.append((-losses.detach().double()).exp().numpy())
    trained = start_of(twin)
    np.testing.assert_allclose(reference.parameters, trained, rtol=0, atol=1e-4)
    np.testing.assert_allclose(reference.mean_confidence, np.mean(confidences, axis=0), atol=1e-5)
    assert np.abs(trained).max() > 0.15
    assert sum(ticks) == 20


@pytest.mark.parametrize(("loss", "logits", "expected"), [
    (Loss.CROSS_ENTROPY, [[1.0, -2.0, 0.5], [0.3, 0.1, -4.0]],
     [softmax([1.0, -2.0, 0.5])[1], softmax([0.3, 0.1, -4.0])[0]]),
    (Loss.BINARY_CROSS_ENTROPY, [[1.0, -2.0, 0.5], [0.3, 0.1, -4.0]], [expit(-2.0), expit(0.3)]),
    (Loss.BINARY_CROSS_ENTROPY, [[0.7], [0.7]], [expit(0.7), expit(-0.7)]),
])  # fmt: skip
def test_confidence_is_the_probability_of_the_label(loss, logits, expected) -> None:
    confidence = simulation._confidence(torch.tensor(logits), torch.tensor([1, 0]), loss)
    assert confidence.tolist() == pytest.approx(expected)


# Gradient canaries, simulated trainings and what is observed, on records of three classes.
COUNT, CLASSES, BATCH, STEPS, RATE, CLIP = 60, 3, 16, 12, 0.7, 0.4
PARAMETERS = 4 * (5 + 1) + CLASSES * 5
SIXTY = overlapping_classes(COUNT, 5, CLASSES)
FIXED = {"sampling": "fixed", "batch_size": BATCH, "canary_period": 1}
SAMPLED = {"sampling": "poisson", "batch_size": None, "canary_period": None, "sample_rate": 0.25}
LINEAR = {"model": "linear", "hidden_sizes": []}


def crafting_of(**changes: object) -> Crafting:
    """By default, on known batches."""
    defaults = {"learning_rate": RATE, "num_steps": STEPS, "max_grad_norm": CLIP, **FIXED}
    data = Split(SIXTY, SIXTY[:0], SIXTY[:0])
    return crafting_for(data, **defaults | {"adjacency": "add_remove"} | changes)


def known_batches(left_out: list[int]) -> list[np.ndarray]:
    others = np.delete(np.arange(COUNT), left_out)
    batches = KnownBatches(others, batch_size=BATCH, seed=6)
    return [batches.at(step) for step in range(STEPS)]


def path_by_hand(module, batches, *, clip=CLIP, factors=(RATE / BATCH,) * STEPS, start=None):
    """The parameters before and after every step of a training without noise."""
    path = [start_of(module) if start is None else start]
    for factor, batch in zip(factors, batches, strict=True):
        gradients = torch.from_numpy(gradients_of(module, path[-1], SIXTY[batch]))
        step = factor * clipped_sum(gradients, torch.ones(len(batch)), clip).numpy()
        path.append(path[-1] - step)
    return path


def movement_of(path: list[Floats]) -> Movement:
    updates = np.diff(path, axis=0)
    final = np.abs(path[-1] - path[0])
    return Movement(np.abs(updates).sum(axis=0), (updates**2).sum(axis=0), final)


def coordinates_of(canaries: list[GradientCanary]) -> list[int]:
    return [canary.coordinate for canary in canaries]


def test_drawn_dimensions_directions_and_labels_are_uniform():
    canaries = [random_dimensions(crafting_of(seed=seed))[0] for seed in range(400)]
    # Chi-squared with 38 degrees of freedom: mean 38, standard deviation 8.7.
    counts = np.bincount(coordinates_of(canaries), minlength=PARAMETERS)
    assert chisquare(counts).statistic < 38 + 5 * 8.7
    assert len({canary.target for canary in canaries}) > 50

    drawn = [of_cebere.random_directions(crafting_of(seed=seed))[0].gradient for seed in range(300)]
    squares = (np.array(drawn) ** 2).mean(axis=0) / CLIP**2
    # A squared coordinate is Beta(1/2, (p-1)/2): standard deviation about sqrt(2) / p.
    np.testing.assert_allclose(squares, 1 / PARAMETERS, atol=5 * 2**0.5 / PARAMETERS / 300**0.5)
    assert np.abs(np.mean(drawn, axis=0)).max() < 5 * CLIP / (300 * PARAMETERS) ** 0.5

    canaries = of_records.flipped_labels(crafting_of(num_slots=COUNT))
    pairs = Counter((SIXTY.labels[canary.target], canary.label) for canary in canaries)
    for label, other in product(range(CLASSES), repeat=2):
        assert (pairs[label, other] > 3) == (other != label)  # 10 are expected


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
    canaries = (simulated_dimensions if ranking else of_gradients.least_updated)(crafting)
    assert coordinates_of(canaries) == np.argsort(ranks)[:10].tolist()
    assert [canary.target for canary in canaries] == targets


def movement(**changes: object) -> Movement:
    """On known batches of all records, without noise."""
    defaults = {"module": crafting_of().module, "records": SIXTY, "seed": 6, "device": CPU}
    defaults |= {"dpsgd": DPSGD(0.0, CLIP, RATE, STEPS, **FIXED, adjacency="add_remove")}
    defaults |= {"initialisation": Initialisation.FIXED}
    return simulation.simulated_movement(**defaults | changes)


@pytest.mark.parametrize(("rate", "model"), [(0.2, {}), (0.02, LINEAR)])
def test_movement_on_sampled_batches_equals_a_loop(rate, model):
    """At the lower rate, some batches are empty. The learning rate falls."""
    module = crafting_of(**model).module
    dpsgd = DPSGD(0.0, CLIP, lambda step: 1 / (1 + step), (STEPS,), sample_rate=rate)
    start = Initialisation.ZEROS if model else Initialisation.FIXED
    changes = {"module": module, "dpsgd": dpsgd, "initialisation": start}
    stream = generator(seed=6, purpose=4)  # the documented key
    batches = [np.flatnonzero(stream.random(COUNT) < rate) for _ in range(STEPS)]
    assert (min(map(len, batches)) == 0) == (rate == 0.02)
    factors = tuple(1 / (1 + step) / (rate * COUNT) for step in range(STEPS))
    start = start_of(module) * (not model)
    moved = movement_of(path_by_hand(module, batches, factors=factors, start=start))
    for name, values in vars(movement(**changes)).items():
        expected = getattr(moved, name)
        np.testing.assert_allclose(values, expected, atol=1e-5 * expected.max())


def test_simulated_noise_is_not_that_of_the_runs():
    """Canaries that were chosen by the runs' own noise would depend on what they are to show."""
    moved = movement(dpsgd=DPSGD(500.0, CLIP, RATE, 1, **FIXED)).final
    drawn, scale = torch.zeros(1, len(moved)), 500.0 * CLIP * RATE / BATCH
    there = {"runs": torch.tensor([0]), "step": 0, "purpose": Purpose.SIMULATED_NOISE}
    Noise(seed=6).add(drawn, factor=0.0, scale=scale, **there)
    gaps = np.sort(moved) - np.sort(np.abs(drawn[0].numpy()))
    # Gradients are as long as the 500th part of one coordinate's noise.
    assert np.abs(gaps).max() < 0.02 * scale


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
@pytest.mark.parametrize(("craft", "sampling"), [
    (random_dimensions, {}), (simulated_dimensions, {}), (random_dimensions, SAMPLED),
], ids=["random", "simulated", "sampled"])  # fmt: skip
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
    path = path_by_hand(crafting.module, batches, factors=(RATE / size,) * STEPS)
    for canary in canaries:
        expected = [path[step][canary.coordinate] - path[0][canary.coordinate] for step in (5, 12)]
        np.testing.assert_allclose(canary.drift, expected, rtol=1e-4, atol=1e-7)


def test_the_drift_of_each_slot_and_step_is_taken_off():
    canaries = (GradientCanary(0, 0, (1.0, 2.0)), GradientCanary(1, 1, (3.0, 5.0)))
    context = ScoringContext(1.0, 1.0, (2, 4), CanarySet(canaries, (0, 0)))
    changes = np.random.default_rng(3).normal(size=(4, 2, 2))
    np.testing.assert_array_equal(coordinate(changes, context), [[1, 3], [2, 5]] - changes)


@pytest.mark.parametrize(("weights", "variance"), [("kaiming", 2 / 40), ("xavier", 2 / 100)])
def test_initial_weights_have_the_variance_of_their_name(weights, variance):
    """The first layer has 40 inputs and 60 outputs."""
    stage = crafting_of(hidden_sizes=[60], initial_weights=weights).stage
    layer = module_of(stage, shape=(40,), num_classes=CLASSES)[0]
    assert layer.weight.var().item() == pytest.approx(variance, rel=0.1)
    assert layer.weight.abs().max().item() <= (3 * variance) ** 0.5
    assert not layer.bias.any()


def test_cosine_is_that_of_the_change():
    """The score is the change along the canary over the length of the whole change, or 0."""
    observed = np.array([[[[3.0, 5.0], [-4.0, 5.0]]], [[[0.0, 0.0], [2.0, 2.0]]]])
    context = ScoringContext(1.0, 1.0, (2,), None)
    assert scores.cosine(observed, context).tolist() == [[[-0.6, 0.8]], [[0.0, -1.0]]]


@pytest.mark.parametrize(("loss", "outputs"), [
    (Loss.CROSS_ENTROPY, 4), *((Loss.BINARY_CROSS_ENTROPY, outputs) for outputs in (1, 2, 4)),
    (Loss.LOGISTIC, 1), (Loss.SQUARED_ERROR, 1),
])  # fmt: skip
@pytest.mark.parametrize("adjacency", [*Adjacency])
def test_loss_is_that_of_pytorch(loss, outputs, adjacency):
    """The canaries and targets of the two slots have different labels."""
    logits = np.random.default_rng(3).normal(size=(7, 2, 2, 2, outputs))
    last = max(2, outputs) - 1
    canaries = tuple(InputCanary(np.zeros(1, np.float32), label, 0) for label in (last, 0))
    options = {"adjacency": adjacency, "loss": loss}
    context = ScoringContext(1.0, 1.0, (1, 2), CanarySet(canaries, (0, 1)), **options)

    def losses(record: int, *labels: int) -> np.ndarray:
        values = torch.from_numpy(logits[..., record, :]).flatten(0, 2)
        goals = torch.tensor(labels).repeat(14)
        if loss is Loss.SQUARED_ERROR:
            return nn.functional.mse_loss(values[:, 0], goals.double(), reduction="none").numpy()
        if loss is Loss.CROSS_ENTROPY:
            return nn.functional.cross_entropy(values, goals, reduction="none").numpy()
        goals = goals[:, None] if outputs == 1 else nn.functional.one_hot(goals, outputs)
        binary = nn.functional.binary_cross_entropy_with_logits
        return binary(values, goals.double(), reduction="none").mean(dim=-1).numpy()

    expected = -losses(1, last, 0)
    if adjacency is Adjacency.SUBSTITUTE:
        expected = losses(1, last, 0) - losses(0, 0, 1)
    np.testing.assert_allclose(canary_loss(logits, context).ravel(), expected, rtol=1e-12)
