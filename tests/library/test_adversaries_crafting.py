"""Crafted canaries, the reference model and simulated training, against autograd and loops."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.adversaries.catalogue import BUILT_IN
from dpcanary.adversaries.crafting import (
    Crafting,
    RecordGradients,
    Target,
    craft_canaries,
    input_canary,
)
from dpcanary.adversaries.gradient import least_updated
from dpcanary.adversaries.input import crafted_input, crafted_inputs, mislabeled, natural
from dpcanary.adversaries.settings import CraftingStage
from dpcanary.canaries import GradientCanary, InputCanary, canary_type
from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.training import simulation
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.models import descent_of, mechanism_of, module_of
from dpcanary.training.settings import Initialisation, Loss, Optimizer
from dpcanary.training.simulation import Reference, simulated_movement, train_reference

Floats = NDArray[np.float64]
NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 120, 9, 5
CPU = torch.device("cpu")


def some_records(count: int, seed: int, num_features: int = NUM_FEATURES) -> Records:
    """Overlapping classes. Their centres are the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(NUM_CLASSES, num_features))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, count)
    features = centres[labels] + rng.normal(size=(count, num_features))
    return Records(features.astype(np.float32), labels)


def some_data(num_features: int = NUM_FEATURES) -> Split:
    """Private and auxiliary records. No adversary needs test records."""
    private = some_records(NUM_RECORDS, 0, num_features)
    return Split(private, some_records(200, 1, num_features), private[:0])


DATA = some_data()
PRIVATE, AUXILIARY = DATA.private, DATA.auxiliary


def stage_of(kind: str, **changes: object) -> CraftingStage:
    linear = kind == "linear"
    settings = {
        "function": "",
        "num_slots": 1,
        "drift_steps": [],
        "is_private": True,
        "model": kind,
        "model_seed": 7,
        "hidden_sizes": [] if linear else [8],
        "initialisation": "zeros" if linear else "per_run",
        "learning_rate": 0.5,
        "num_steps": 200,
        "seed": 6,
        "sample_rate": 0.2,
    }
    return CraftingStage.model_validate_json(json.dumps(settings | changes))


def crafting_of(kind: str, data: Split = DATA) -> Crafting:
    """What canaries are made from, with a trained reference model."""
    stage = stage_of(kind)
    reference = train_reference(
        module=module_of(stage, shape=data.private.features.shape[1:], num_classes=NUM_CLASSES),
        records=data.private,
        dpsgd=descent_of(stage),
        initialisation=stage.initialisation,
        device=CPU,
    )
    return Crafting(stage, data, reference, CPU)


def told(crafting: Crafting, **changes: object) -> Crafting:
    """The same input with other settings."""
    settings = crafting.stage.model_dump(mode="json") | changes
    return replace(crafting, stage=CraftingStage.model_validate_json(json.dumps(settings)))


def target_of(crafting: Crafting, record: int) -> Target:
    private = crafting.data.private
    return Target(record, private.features[record], int(private.labels[record]))


@pytest.fixture(scope="module", params=["linear", "mlp"])
def attack(request: pytest.FixtureRequest) -> Crafting:
    return crafting_of(request.param)


def autograd_gradient(
    module: nn.Module, parameters: NDArray[np.float32], features: NDArray[np.float32], label: int
) -> Floats:
    """Gradient of one record's cross-entropy in all parameters, by autograd, flattened."""
    trained = copy.deepcopy(module).double()
    vector_to_parameters(torch.from_numpy(parameters).double(), trained.parameters())
    inputs = torch.from_numpy(features.astype(np.float64))[None, :]
    nn.CrossEntropyLoss()(trained(inputs), torch.tensor([label])).backward()
    return torch.cat([parameter.grad.flatten() for parameter in trained.parameters()]).numpy()


def gradients_by_hand(crafting: Crafting, records: Records) -> list[Floats]:
    """Gradients of these records at the reference model."""
    return [
        gradient_by_hand(crafting, features, int(label))
        for features, label in zip(records.features, records.labels, strict=True)
    ]


def gradient_by_hand(crafting: Crafting, features: NDArray[np.float32], label: int) -> Floats:
    return autograd_gradient(crafting.module, crafting.reference.parameters, features, label)


def cosine(one: Floats, two: Floats) -> float:
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


@contextmanager
def bar_of(total: int, unit: str) -> Iterator[SimpleNamespace]:
    """A progress bar that must be full in the end."""
    ticks: list[int] = []
    yield SimpleNamespace(update=ticks.append)
    assert sum(ticks) == total


# --- gradients of single records ---------------------------------------------------------------


def test_record_gradients_equal_autograd(attack: Crafting, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, expected = attack.gradients, gradients_by_hand(attack, PRIVATE)
    found = gradients.of_target(target_of(attack, 3))
    np.testing.assert_allclose(found.numpy(), expected[3], rtol=1e-9, atol=1e-12)
    cosines = gradients.cosines(PRIVATE, found)
    np.testing.assert_allclose(cosines, [cosine(g, expected[3]) for g in expected], atol=1e-9)
    assert cosines[3] == pytest.approx(1.0)
    monkeypatch.setattr("dpcanary.adversaries.crafting._BYTES_AT_ONCE", 8 * len(found) * 7)
    np.testing.assert_allclose(gradients.cosines(PRIVATE, found), cosines, rtol=1e-12)


def test_null_gradient_has_cosine_zero() -> None:
    module = nn.Linear(1, 2)
    parameters = np.array([4000.0, 0.0, 0.0, 0.0], np.float32)
    gradients = RecordGradients(module, parameters, Loss.CROSS_ENTROPY)
    records = Records(np.array([[1.0], [-1.0]], np.float32), [0, 0])
    target = gradients.of(gradients.inputs(records.features[1]), gradients.labels(0))
    assert gradients.cosines(records, target).tolist() == [0.0, pytest.approx(1.0)]


def test_token_ids_stay_whole_numbers() -> None:
    module = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 3))
    parameters = parameters_to_vector(module.parameters()).detach().numpy()
    gradients = RecordGradients(module, parameters, Loss.CROSS_ENTROPY)
    records = Records(np.array([[0, 5], [3, 3], [5, 0]]), [0, 2, 1])
    expected = []
    for tokens, label in zip(records.features, records.labels, strict=True):
        module.zero_grad()
        outputs = module(torch.from_numpy(tokens)[None])
        nn.CrossEntropyLoss()(outputs, torch.tensor([label])).backward()
        expected.append(parameters_to_vector(p.grad for p in module.parameters()).double().numpy())
    found = gradients.of(gradients.inputs(records.features[1]), gradients.labels(2))
    np.testing.assert_allclose(found.numpy(), expected[1], rtol=1e-5, atol=1e-6)
    cosines = [cosine(gradient, expected[1]) for gradient in expected]
    np.testing.assert_allclose(gradients.cosines(records, found), cosines, atol=1e-5)


# --- targets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slots", [1, 7, NUM_RECORDS])
def test_targets_are_the_records_that_the_reference_is_least_sure_of(
    attack: Crafting, num_slots: int
) -> None:
    confidence = attack.reference.mean_confidence
    expected = sorted(range(NUM_RECORDS), key=lambda record: confidence[record])[:num_slots]
    targets = told(attack, num_slots=num_slots).targets
    assert [target.index for target in targets] == expected
    assert [target.label for target in targets] == PRIVATE.labels[expected].tolist()
    for target in targets:
        np.testing.assert_array_equal(target.features, PRIVATE.features[target.index])


def test_of_equally_sure_records_the_first_ones_are_targets() -> None:
    reference = Reference(np.zeros(1, np.float32), np.array([0.5, 0.2, 0.2, 0.1, 0.2]))
    assert reference.least_confident(3).tolist() == [3, 1, 2]
    assert reference.least_confident(5).tolist() == [3, 1, 2, 4, 0]
    with pytest.raises(InputError, match="num_slots 6 is more than the 5 private records"):
        reference.least_confident(6)


CRAFTED = [
    name for name, entry in BUILT_IN.items() if entry.is_trained and not entry.uses_optimised
]


@pytest.mark.parametrize("name", CRAFTED)
def test_every_slot_has_a_target_of_its_own(attack: Crafting, name: str) -> None:
    """With fewer slots, the canaries are the first ones of more slots."""
    entry = BUILT_IN[name]
    known = {
        "crafting_steps": 3,
        "crafting_step_size": 0.1,
        "simulation": "noiseless",
        "ranking": "per_step",
        "num_simulations": 2,
    }
    steps = {key: known[key] for key in entry.settings}
    expected = np.argsort(attack.reference.mean_confidence)[:6].tolist()
    one, four, six = (
        craft_canaries(told(attack, function=entry.function, num_slots=num_slots, **steps))
        for num_slots in (1, 4, 6)
    )
    for found in (one, four, six):
        num_slots = len(found.canaries)
        assert [canary.target for canary in found.canaries] == expected[:num_slots]
        assert found.target_labels == tuple(PRIVATE.labels[expected[:num_slots]])
        for own, other in zip(found.canaries, six.canaries, strict=False):
            assert type(own) is type(other) is canary_type(six.canaries)
            for attribute, value in vars(own).items():
                np.testing.assert_array_equal(value, getattr(other, attribute))


def test_more_slots_than_records_are_refused(attack: Crafting) -> None:
    with pytest.raises(InputError, match="num_slots 121 is more than the 120 private records"):
        mislabeled(told(attack, num_slots=121))


# Crafting functions as another package may define them.


def first_auxiliary(crafting: Crafting) -> list[InputCanary]:
    record = crafting.data.auxiliary[:1]
    return [input_canary(record, target) for target in crafting.targets]


def one_alone(crafting: Crafting) -> list[InputCanary]:
    return first_auxiliary(crafting)[:1]


def no_list(crafting: Crafting) -> None:
    """Forgets to return what it made."""


def numbers(crafting: Crafting) -> list[int]:
    return [1, 2, 3]


def test_canaries_of_ones_own(attack: Crafting) -> None:
    crafting = told(attack, function=f"{__name__}:first_auxiliary", num_slots=3)
    found = craft_canaries(crafting)
    assert [canary.target for canary in found.canaries] == [t.index for t in crafting.targets]
    assert found.labels == (AUXILIARY.labels[0],) * 3
    for canary in found.canaries:
        np.testing.assert_array_equal(canary.features, AUXILIARY.features[0])
        assert type(canary.label) is int


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{__name__}:one_alone", "one_alone made 1 canaries for 3 slots"),
        (f"{__name__}:no_list", "no_list returned None; it must return a list of canaries"),
        (f"{__name__}:numbers", "numbers returned 1; it must return a list of canaries"),
        (f"{__name__}:nothing", "there is no function '.*:nothing'"),
        ("no.such.module:craft", "there is no function 'no.such.module:craft'.*installed here"),
    ],
)
def test_a_crafting_function_that_does_not_fit_is_named(
    attack: Crafting, function: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        craft_canaries(told(attack, function=function, num_slots=3))


# --- mislabeled and natural --------------------------------------------------------------------


def test_mislabeled_is_the_most_opposed_label(attack: Crafting) -> None:
    found = mislabeled(told(attack, num_slots=NUM_RECORDS))
    assert {canary.target for canary in found} == set(range(NUM_RECORDS))
    for canary in found:
        target = target_of(attack, canary.target)
        own = gradient_by_hand(attack, target.features, target.label)
        cosines = [
            cosine(gradient_by_hand(attack, target.features, other), own)
            for other in range(NUM_CLASSES)
        ]
        assert canary.label == int(np.argmin(cosines))
        assert canary.label != target.label
        assert np.array_equal(canary.features, target.features)
        assert min(cosines) < 0


def test_mislabeled_at_an_untrained_model_is_another_label() -> None:
    parameters = np.zeros(NUM_CLASSES * (NUM_FEATURES + 1), np.float32)
    reference = Reference(parameters, np.zeros(1))
    for label in range(NUM_CLASSES):
        private = Records(PRIVATE.features[:1], [label])
        data = replace(DATA, private=private)
        [found] = mislabeled(Crafting(stage_of("linear"), data, reference, CPU))
        assert found.label != label


def test_natural_is_the_most_opposed_auxiliary_record_that_is_left(attack: Crafting) -> None:
    crafting = told(attack, num_slots=100)
    candidates = gradients_by_hand(attack, AUXILIARY)
    free, favourites = set(range(len(AUXILIARY))), set()
    for canary, target in zip(natural(crafting), crafting.targets, strict=True):
        own = gradient_by_hand(attack, target.features, target.label)
        cosines = [cosine(gradient, own) for gradient in candidates]
        favourites.add(int(np.argmin(cosines)))
        best = min(free, key=lambda record: cosines[record])
        free.remove(best)
        assert canary.target == target.index
        assert np.array_equal(canary.features, AUXILIARY.features[best])
        assert canary.label == AUXILIARY.labels[best]
    assert len(favourites) < 90  # so the rule changes the result here


def test_natural_may_need_every_auxiliary_record(attack: Crafting) -> None:
    few = replace(attack, data=replace(DATA, auxiliary=AUXILIARY[:7]))
    found = natural(told(few, num_slots=7))
    rows = [canary.features.tolist() for canary in found]
    assert sorted(rows) == sorted(AUXILIARY.features[:7].tolist())
    with pytest.raises(InputError, match="num_slots 8 is more than the 7 auxiliary records"):
        natural(told(few, num_slots=8))


def test_a_candidate_whose_gradient_is_not_finite_is_named(attack: Crafting) -> None:
    features = AUXILIARY.features.copy()
    features[11, 2] = np.nan
    auxiliary = Records(features, AUXILIARY.labels)
    with pytest.raises(InputError, match=r"candidate 11 for a canary has a gradient .* not finite"):
        natural(replace(attack, data=replace(DATA, auxiliary=auxiliary)))
    reference = replace(attack.reference, parameters=attack.reference.parameters + np.nan)
    with pytest.raises(InputError, match=r"candidate 0 .* not finite: lower the reference's learn"):
        mislabeled(replace(attack, reference=reference))


# --- crafted -----------------------------------------------------------------------------------


def objective(gradient: Floats, target: Floats) -> float:
    return cosine(gradient, target) + float(np.mean((gradient - target) ** 2))


@pytest.mark.parametrize("record", [None, 0, 17])
@pytest.mark.parametrize("num_features", [9, 30])
def test_crafted_input_opposes_the_target(record: int | None, num_features: int) -> None:
    crafting = crafting_of("linear", some_data(num_features))
    record = crafting.targets[0].index if record is None else record
    target = target_of(crafting, record)
    found = crafted_input(
        gradients=crafting.gradients, target=target, num_steps=1_000, step_size=0.02
    )
    assert (found.target, found.label) == (record, target.label)
    assert found.features.shape == target.features.shape
    assert found.features.dtype == np.float32
    assert np.isfinite(found.features).all()

    def gradient(features: NDArray[np.float32]) -> Floats:
        return gradient_by_hand(crafting, features, target.label)

    own, crafted = gradient(target.features), gradient(found.features)
    assert cosine(crafted, own) < -0.3
    assert objective(crafted, own) < objective(gradient(np.zeros_like(target.features)), own)
    # A local minimum: all points nearby have a higher objective.
    rng = np.random.default_rng(record)
    for direction in rng.normal(size=(50, num_features)).astype(np.float32):
        near = found.features + 0.05 * direction / np.linalg.norm(direction)
        assert objective(gradient(near), own) > objective(crafted, own)
    if num_features < 30:
        return  # too few directions: the minimum near zero is not a good one
    assert cosine(crafted, own) < -0.65
    real = gradients_by_hand(crafting, crafting.data.auxiliary)
    assert objective(crafted, own) < min(objective(gradient, own) for gradient in real)
    assert cosine(crafted, own) < min(cosine(gradient, own) for gradient in real)


def test_crafted_input_of_a_perceptron_opposes_the_target() -> None:
    crafting = crafting_of("mlp")
    [target] = crafting.targets
    found = crafted_input(
        gradients=crafting.gradients, target=target, num_steps=500, step_size=0.02
    )
    own = gradient_by_hand(crafting, target.features, target.label)
    crafted = gradient_by_hand(crafting, found.features, target.label)
    start = gradient_by_hand(crafting, np.zeros_like(target.features), target.label)
    assert objective(crafted, own) < min(objective(start, own), 0.0)


def test_every_slots_input_is_crafted_for_its_target(attack: Crafting) -> None:
    steps = {"crafting_steps": 40, "crafting_step_size": 0.05}
    crafting = replace(told(attack, num_slots=4, **steps), progress=bar_of)
    found = crafted_inputs(crafting)
    assert len({canary.features.tobytes() for canary in found}) == 4
    for canary, target in zip(found, crafting.targets, strict=True):
        alone = crafted_input(
            gradients=attack.gradients, target=target, num_steps=40, step_size=0.05
        )
        assert (canary.target, canary.label) == (target.index, target.label)
        np.testing.assert_array_equal(canary.features, alone.features)


@pytest.mark.parametrize(
    ("features", "step_size", "message"),
    [
        (PRIVATE.features[0], float("inf"), "crafted_input diverged; lower crafting_step_size"),
        (np.arange(NUM_FEATURES), 1.0, "needs features that are real numbers"),
    ],
)
def test_inputs_that_cannot_be_crafted(attack: Crafting, features, step_size, message) -> None:
    target = Target(0, features, int(PRIVATE.labels[0]))
    with pytest.raises(InputError, match=message):
        crafted_input(gradients=attack.gradients, target=target, num_steps=20, step_size=step_size)


# --- reference and simulated training ----------------------------------------------------------


def module_named(kind: str) -> nn.Module:
    torch.manual_seed(7)
    if kind == "linear":
        return nn.Linear(NUM_FEATURES, NUM_CLASSES)
    between = nn.LayerNorm(8) if kind == "any module" else nn.Tanh()
    return nn.Sequential(nn.Linear(NUM_FEATURES, 8), between, nn.Linear(8, NUM_CLASSES))


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAM])
def test_reference_equals_plain_torch(kind: str, optimizer: Optimizer) -> None:
    num_steps, rate = (200, 0.5) if optimizer is Optimizer.SGD else (20, 0.01)
    module = module_named(kind)
    # From zeros, one gradient is 0 up to rounding errors, and Adam steps by their sign.
    zeros = kind == "linear" and optimizer is Optimizer.SGD
    ticks: list[int] = []
    found = train_reference(
        module=module,
        records=PRIVATE,
        dpsgd=DPSGD(0.0, float("inf"), rate, (num_steps,), optimizer=optimizer),
        initialisation=Initialisation.ZEROS if zeros else Initialisation.PER_RUN,
        device=CPU,
        on_progress=ticks.append,
    )
    twin = copy.deepcopy(module)
    if zeros:
        nn.init.zeros_(twin.weight)
        nn.init.zeros_(twin.bias)
    kinds = {Optimizer.SGD: torch.optim.SGD, Optimizer.ADAM: torch.optim.Adam}
    optimiser = kinds[optimizer](twin.parameters(), lr=rate)
    features, labels = torch.from_numpy(PRIVATE.features), torch.from_numpy(PRIVATE.labels)
    confidences = []
    for _ in range(num_steps):
        optimiser.zero_grad()
        nn.CrossEntropyLoss()(twin(features), labels).backward()
        optimiser.step()
        with torch.no_grad():
            probabilities = torch.softmax(twin(features), dim=1)
        confidences.append(probabilities[torch.arange(len(labels)), labels].double().numpy())
    trained = torch.cat([parameter.flatten() for parameter in twin.parameters()]).detach().numpy()
    np.testing.assert_allclose(found.parameters, trained, rtol=0, atol=1e-4)
    np.testing.assert_allclose(found.mean_confidence, np.mean(confidences, axis=0), atol=1e-5)
    expected = np.argsort(np.mean(confidences, axis=0))
    assert found.least_confident(3).tolist() == expected[:3].tolist()
    assert np.abs(trained).max() > 0.15
    assert sum(ticks) == num_steps


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_simulated_updates_equal_a_loop(kind: str) -> None:
    module = module_named(kind)
    q, norm_bound, rate, seed = 0.2, 2.5, 0.7, 6
    arguments = {
        "module": module,
        "records": PRIVATE,
        "dpsgd": DPSGD(0.0, norm_bound, lambda step: rate / (1 + step), (15,), sample_rate=q),
        "initialisation": Initialisation.ZEROS if kind == "linear" else Initialisation.FIXED,
        "device": CPU,
    }
    found = simulated_movement(**arguments, seed=seed).absolute
    # The documented key: purpose 4, index 0.
    stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(4, 0))))
    start = torch.cat([parameter.flatten() for parameter in module.parameters()]).detach().numpy()
    weights = np.zeros(len(start)) if kind == "linear" else start.astype(np.float64)
    moved, clipped, taken = np.zeros(weights.size), 0, 0
    for step in range(15):
        total = np.zeros(weights.size)
        for record in np.flatnonzero(stream.random(len(PRIVATE)) < q):
            features, label = PRIVATE.features[record], int(PRIVATE.labels[record])
            gradient = autograd_gradient(module, weights, features, label)
            size = np.linalg.norm(gradient)
            total += gradient * min(1.0, norm_bound / size)
            clipped, taken = clipped + (size > norm_bound), taken + 1
        update = rate / (1 + step) / (q * len(PRIVATE)) * total
        weights -= update
        moved += np.abs(update)
    assert 0 < clipped < taken
    np.testing.assert_allclose(found, moved, rtol=0, atol=1e-5 * moved.max())
    assert not np.array_equal(found, simulated_movement(**arguments, seed=seed + 1).absolute)


@pytest.mark.parametrize("kind", ["linear", "mlp", "any module"])
def test_simulated_steps_without_records_move_nothing(kind: str) -> None:
    """With a small rate and few records, most batches are empty."""
    moved = simulated_movement(
        module=module_named(kind),
        records=PRIVATE,
        dpsgd=DPSGD(0.0, 1.0, 0.5, (5,), sample_rate=1e-5),
        initialisation=Initialisation.ZEROS if kind == "linear" else Initialisation.FIXED,
        device=CPU,
        seed=0,
    )
    assert not moved.absolute.any()


# --- gradient ----------------------------------------------------------------------------------


def test_least_updated_coordinates_are_those_of_a_dead_feature() -> None:
    features = PRIVATE.features.copy()
    features[:, 5] = 0.0
    crafting = crafting_of("linear", replace(DATA, private=Records(features, PRIVATE.labels)))
    dead = np.arange(NUM_CLASSES) * NUM_FEATURES + 5  # weights come before biases
    for num_slots in (1, 5):
        found = least_updated(told(crafting, num_slots=num_slots))
        assert [canary.coordinate for canary in found] == dead[:num_slots].tolist()


def test_gradients_have_coordinates_of_their_own(attack: Crafting) -> None:
    crafting = replace(told(attack, num_slots=20), progress=bar_of)
    moved = simulated_movement(
        module=attack.module,
        records=PRIVATE,
        dpsgd=mechanism_of(crafting.stage, record_steps=(200,), noise_multiplier=0.0),
        initialisation=crafting.stage.initialisation,
        seed=6,
        device=CPU,
    ).absolute
    expected = sorted(range(len(moved)), key=lambda j: moved[j])[:20]
    pairs = zip(expected, crafting.targets, strict=True)
    found = least_updated(crafting)
    assert found == [GradientCanary(coordinate, target.index) for coordinate, target in pairs]


def test_slots_may_be_as_many_as_parameters() -> None:
    crafting = crafting_of("linear")
    found = least_updated(told(crafting, num_slots=50))
    assert {canary.coordinate for canary in found} == set(range(50))
    with pytest.raises(InputError, match="num_slots 51 is more than the model's 50 parameters"):
        least_updated(told(crafting, num_slots=51))


@pytest.mark.parametrize("loss", Loss)
def test_confidence_is_the_probability_of_the_label(loss):
    """Also of the one logit of two classes."""
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -4.0]])
    found = simulation._confidence(logits, torch.tensor([1, 2]), loss)
    exponentials = np.exp(logits.numpy().astype(np.float64))
    if loss is Loss.CROSS_ENTROPY:
        wanted = exponentials / exponentials.sum(axis=1, keepdims=True)
    else:
        wanted = exponentials / (1 + exponentials)
        [one, other] = simulation._confidence(
            torch.tensor([[0.7], [0.7]]), torch.tensor([1, 0]), loss
        )
        assert float(one) == pytest.approx(1 / (1 + np.exp(-0.7)))
        assert float(one + other) == pytest.approx(1)
    assert found.tolist() == pytest.approx([wanted[0, 1], wanted[1, 2]])
