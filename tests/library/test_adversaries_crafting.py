"""Canaries that are records, their targets and the reference model, against autograd and loops."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from by_hand import (
    CPU,
    Floats,
    cosine,
    crafting_for,
    gradients_of,
    overlapping_classes,
    record_gradient,
    start_of,
    with_reference,
)
from numpy.typing import NDArray
from torch import nn

from dpcanary.adversaries.crafting import (
    Crafting,
    RecordGradients,
    Target,
    craft_canaries,
    input_canary,
)
from dpcanary.adversaries.input import (
    crafted_input,
    crafted_inputs,
    flipped_labels,
    mislabeled,
    natural,
)
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.training import simulation
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.settings import Initialisation, Loss, Optimizer
from dpcanary.training.simulation import Reference, train_reference

NUM_RECORDS, NUM_AUXILIARY, NUM_FEATURES, NUM_CLASSES = 40, 60, 9, 5


def some_data(num_features: int = NUM_FEATURES) -> Split:
    records = overlapping_classes(NUM_RECORDS + NUM_AUXILIARY, num_features, NUM_CLASSES)
    return Split(records[:NUM_RECORDS], records[NUM_RECORDS:], records[:0])


DATA = some_data()
PRIVATE, AUXILIARY = DATA.private, DATA.auxiliary


def attack_on(data: Split, *, sizes: list[int]) -> Crafting:
    """What canaries are made from, with a reference model, which is linear without sizes."""
    settings = {"model": "mlp" if sizes else "linear", "hidden_sizes": sizes}
    known = {"learning_rate": 0.5, "num_steps": 100, "sample_rate": 0.2}
    known["initialisation"] = "per_run" if sizes else "zeros"
    return with_reference(crafting_for(data, **settings, **known))


@pytest.fixture(scope="module")
def attack() -> Crafting:
    return attack_on(DATA, sizes=[8])


def changed(crafting: Crafting, **changes: object) -> Crafting:
    """The same data and reference with other settings."""
    return replace(crafting, stage=crafting.stage.model_copy(update=changes))


def with_data(crafting: Crafting, **parts: Records) -> Crafting:
    return replace(crafting, data=replace(crafting.data, **parts))


def by_hand(crafting: Crafting, features: NDArray, label: int) -> Floats:
    """The gradient of one record at the reference model."""
    return record_gradient(crafting.module, crafting.reference.parameters, features, label)


def all_by_hand(crafting: Crafting, records: Records) -> list[Floats]:
    return gradients_of(crafting.module, crafting.reference.parameters, records)


TOKENS = Records(np.array([[0, 5], [3, 3], [5, 0]]), [0, 2, 1])
OF_TOKENS = nn.Sequential(nn.Embedding(6, 4), nn.Flatten(), nn.Linear(8, 3))
OF_NUMBERS = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES))


@pytest.mark.parametrize(
    ("module", "records"), [(OF_NUMBERS, PRIVATE), (OF_TOKENS, TOKENS)], ids=["numbers", "tokens"]
)
def test_record_gradients_equal_autograd(module, records, monkeypatch):
    parameters = start_of(module).astype(np.float32)
    gradients = RecordGradients(module, parameters, Loss.CROSS_ENTROPY)
    expected = gradients_of(module, parameters, records)
    of_target = gradients.of_target(Target(1, records.features[1], int(records.labels[1])))
    np.testing.assert_allclose(of_target.numpy(), expected[1], rtol=1e-9, atol=1e-12)
    cosines = gradients.cosines(records, of_target)
    np.testing.assert_allclose(cosines, [cosine(g, expected[1]) for g in expected], atol=1e-9)
    monkeypatch.setattr("dpcanary.adversaries.crafting._BYTES_AT_ONCE", 8 * len(of_target) * 2)
    np.testing.assert_allclose(gradients.cosines(records, of_target), cosines, rtol=1e-12)


def test_zero_gradients_have_cosine_zero_and_the_first_of_equally_sure_records_are_targets():
    parameters = np.array([4000.0, 0.0, 0.0, 0.0], np.float32)
    gradients = RecordGradients(nn.Linear(1, 2), parameters, Loss.CROSS_ENTROPY)
    records = Records(np.array([[1.0], [-1.0]], np.float32), [0, 0])
    target = gradients.of(gradients.inputs(records.features[1]), gradients.labels(0))
    assert gradients.cosines(records, target).tolist() == [0.0, pytest.approx(1.0)]
    reference = Reference(np.zeros(1, np.float32), np.array([0.5, 0.2, 0.2, 0.1, 0.2]))
    assert reference.least_confident(3).tolist() == [3, 1, 2]
    assert reference.least_confident(5).tolist() == [3, 1, 2, 4, 0]


def first_alone(crafting: Crafting) -> list[InputCanary]:
    return [input_canary(crafting.data.auxiliary[:1], crafting.targets[0])]


def no_list(crafting: Crafting) -> None:
    pass


def numbers(crafting: Crafting) -> list[int]:
    return [1, 2, 3]


def test_mislabeled_is_the_most_opposed_label(attack: Crafting) -> None:
    crafting = changed(attack, num_slots=NUM_RECORDS)
    for canary, target in zip(mislabeled(crafting), crafting.targets, strict=True):
        gradients = [by_hand(attack, target.features, label) for label in range(NUM_CLASSES)]
        cosines = [cosine(gradient, gradients[target.label]) for gradient in gradients]
        assert canary.label == int(np.argmin(cosines)) != target.label
        assert canary.target == target.index
        assert np.array_equal(canary.features, target.features)


def test_natural_is_the_most_opposed_auxiliary_record_that_is_left(attack: Crafting) -> None:
    crafting = changed(attack, num_slots=NUM_RECORDS)
    candidates = all_by_hand(attack, AUXILIARY)
    free, favourites = set(range(len(AUXILIARY))), set()
    for canary, target in zip(natural(crafting), crafting.targets, strict=True):
        own = by_hand(attack, target.features, target.label)
        cosines = [cosine(gradient, own) for gradient in candidates]
        favourites.add(int(np.argmin(cosines)))
        best = min(free, key=lambda record: cosines[record])
        free.remove(best)
        assert canary.target == target.index
        assert np.array_equal(canary.features, AUXILIARY.features[best])
        assert canary.label == AUXILIARY.labels[best]
    assert len(favourites) < NUM_RECORDS - 5  # so the rule changes the result here
    few = natural(changed(with_data(attack, auxiliary=AUXILIARY[:7]), num_slots=7))
    rows = [canary.features.tolist() for canary in few]
    assert sorted(rows) == sorted(AUXILIARY.features[:7].tolist())


def objective(gradient: Floats, target: Floats) -> float:
    return cosine(gradient, target) + float(np.mean((gradient - target) ** 2))


@contextmanager
def full_bar(total: int, unit: str) -> Iterator[SimpleNamespace]:
    """A progress bar that must be full in the end."""
    ticks: list[int] = []
    yield SimpleNamespace(update=ticks.append)
    assert sum(ticks) == total


@pytest.mark.parametrize(
    ("sizes", "num_features", "most"), [([], 30, -0.65), ([8], NUM_FEATURES, 0.0)]
)
def test_crafted_inputs_oppose_their_targets(sizes, num_features, most):
    attack = attack_on(some_data(num_features), sizes=sizes)
    steps = {"num_slots": 2, "crafting_steps": 800, "crafting_step_size": 0.02}
    crafting = replace(changed(attack, **steps), progress=full_bar)
    rng = np.random.default_rng(0)
    for canary, target in zip(crafted_inputs(crafting), crafting.targets, strict=True):
        assert (canary.target, canary.label) == (target.index, target.label)
        assert canary.features.dtype == np.float32

        def gradient(features: NDArray[np.float32], label: int = target.label) -> Floats:
            return by_hand(crafting, features, label)

        own, crafted = gradient(target.features), gradient(canary.features)
        assert cosine(crafted, own) < most
        assert objective(crafted, own) < objective(gradient(np.zeros_like(target.features)), own)
        if sizes:
            continue  # not at a minimum yet
        for direction in rng.normal(size=(25, num_features)).astype(np.float32):
            near = canary.features + 0.05 * direction / np.linalg.norm(direction)
            assert objective(gradient(near), own) > objective(crafted, own)
        for measure in (objective, cosine):
            real = all_by_hand(crafting, crafting.data.auxiliary)
            assert measure(crafted, own) < min(measure(each, own) for each in real)


def crafted_by(function: str) -> Callable[[Crafting], object]:
    return lambda crafting: craft_canaries(changed(crafting, function=function, num_slots=3))


def of_one_class(crafting: Crafting) -> Crafting:
    alike = Records(PRIVATE.features, [0] * NUM_RECORDS)
    return with_data(crafting, private=alike, auxiliary=alike, test=alike)


def crafted_for(features: NDArray, step_size: float) -> Callable[[Crafting], object]:
    target = Target(0, features, int(PRIVATE.labels[0]))
    return lambda crafting: crafted_input(
        gradients=crafting.gradients, target=target, num_steps=20, step_size=step_size
    )


WITH_NAN = AUXILIARY.features.copy()
WITH_NAN[11, 2] = np.nan
DIVERGED = Reference(np.full(125, np.nan), np.zeros(NUM_RECORDS))


@pytest.mark.parametrize(("call", "message"), [
    (crafted_by(f"{__name__}:first_alone"), "first_alone made 1 canaries for 3 slots"),
    (crafted_by(f"{__name__}:no_list"), "no_list returned None; it must return a list of can"),
    (crafted_by(f"{__name__}:numbers"), "numbers returned 1; it must return a list of canar"),
    (crafted_by(f"{__name__}:nothing"), "there is no function '.*:nothing'"),
    (lambda own: mislabeled(changed(own, num_slots=41)), "41 is more than the 40 private rec"),
    (lambda own: natural(changed(with_data(own, auxiliary=AUXILIARY[:7]), num_slots=8)),
     "num_slots 8 is more than the 7 auxiliary records"),
    (lambda own: natural(with_data(own, auxiliary=Records(WITH_NAN, AUXILIARY.labels))),
     r"candidate 11 for a canary has a gradient .* not finite"),
    (lambda own: mislabeled(replace(own, reference=DIVERGED)),
     r"candidate 0 .* not finite: lower the reference's learn"),
    (lambda own: mislabeled(of_one_class(own)), "needs a dataset of at least 2 classes"),
    (lambda own: flipped_labels(of_one_class(own)), "the records have one class only"),
    (lambda own: replace(own, reference=None).gradients, "must not say uses_reference=False"),
    (crafted_for(PRIVATE.features[0], np.inf), "crafted_input diverged; lower crafting_step"),
    (crafted_for(np.arange(NUM_FEATURES), 1.0), "needs features that are real numbers"),
])  # fmt: skip
def test_what_cannot_be_crafted_is_refused(attack, call, message):
    with pytest.raises(InputError, match=message):
        call(attack)


@pytest.mark.parametrize(("sizes", "optimizer", "of_torch", "rate", "num_steps"), [
    ([], Optimizer.SGD, torch.optim.SGD, 0.5, 100),
    ([8], Optimizer.SGD, torch.optim.SGD, 0.5, 100),
    ([8], Optimizer.ADAM, torch.optim.Adam, 0.01, 20),
])  # fmt: skip
def test_reference_equals_plain_torch(sizes, optimizer, of_torch, rate, num_steps):
    """The linear model starts from zeros."""
    module = crafting_for(DATA, model="mlp" if sizes else "linear", hidden_sizes=sizes).module
    ticks: list[int] = []
    reference = train_reference(
        module=module,
        records=PRIVATE,
        dpsgd=DPSGD(0.0, 0.1, rate, (num_steps,), optimizer=optimizer),  # it is not clipped
        initialisation=Initialisation.PER_RUN if sizes else Initialisation.ZEROS,
        device=CPU,
        on_progress=ticks.append,
    )
    twin = copy.deepcopy(module)
    for part in twin.parameters() if not sizes else ():
        nn.init.zeros_(part)
    optimiser = of_torch(twin.parameters(), lr=rate)
    features, labels = torch.from_numpy(PRIVATE.features), torch.from_numpy(PRIVATE.labels)
    confidences = []
    for _ in range(num_steps):
        optimiser.zero_grad()
        nn.CrossEntropyLoss()(twin(features), labels).backward()
        optimiser.step()
        with torch.no_grad():
            probabilities = torch.softmax(twin(features), dim=1)
        confidences.append(probabilities[torch.arange(len(labels)), labels].double().numpy())
    trained = start_of(twin)
    np.testing.assert_allclose(reference.parameters, trained, rtol=0, atol=1e-4)
    np.testing.assert_allclose(reference.mean_confidence, np.mean(confidences, axis=0), atol=1e-5)
    assert np.abs(trained).max() > 0.15
    assert sum(ticks) == num_steps


def test_confidence_is_the_probability_of_the_label() -> None:
    logits = torch.tensor([[1.0, -2.0, 0.5], [0.3, 0.1, -4.0]])
    labels, powers = torch.tensor([1, 2]), np.exp(logits.numpy().astype(np.float64))
    softmax, sigmoid = powers / powers.sum(axis=1, keepdims=True), powers / (1 + powers)
    for loss, expected in ((Loss.CROSS_ENTROPY, softmax), (Loss.BINARY_CROSS_ENTROPY, sigmoid)):
        confidence = simulation._confidence(logits, labels, loss)
        assert confidence.tolist() == pytest.approx([expected[0, 1], expected[1, 2]])
    of_one_logit = simulation._confidence(
        torch.tensor([[0.7], [0.7]]), torch.tensor([1, 0]), Loss.BINARY_CROSS_ENTROPY
    )
    probability = 1 / (1 + np.exp(-0.7))
    assert of_one_logit.tolist() == pytest.approx([probability, 1 - probability])
