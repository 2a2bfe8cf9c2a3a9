"""Scores against their definitions, and those of trained ensembles, which are higher in world 0."""

from dataclasses import replace
from functools import cache
from math import log

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import nn

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import Canary, CanarySet, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.log_sums import log_sums
from dpcanary.observations import Observation
from dpcanary.records import Records
from dpcanary.scoring.scores import (
    ScoringContext,
    as_observed,
    coordinate,
    ensemble_scores,
    gradient_norm,
    logit_confidence,
    logit_difference,
)
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.runs import EnsembleResult

CONTEXT = ScoringContext(
    sample_rate=0.5, noise_multiplier=1.0, record_steps=(5, 10, 15), canaries=None
)


def log_odds(logits: np.ndarray, label: int) -> float:
    """log(p / (1 - p)), where p is from the softmax, or of label 1 from the sigmoid of one."""
    if len(logits) == 1:
        return float(logits[0] if label == 1 else -logits[0])
    p = np.exp(logits.astype(np.float64))
    return float(np.log(p[label] / (p.sum() - p[label])))


@pytest.mark.parametrize(("logits", "label", "expected"), [
    ([1000.0, -1000.0, -1000.0], 0, 2000.0 - log(2)),
    ([-1000.0, 1000.0, 1000.0], 0, -2000.0 - log(2)),
    ([1000.0, 1000.0, -1000.0], 1, 0.0),
    ([-1000.0, -1000.0, -1000.0], 2, -log(2)),
    ([1e5, 0.0, -1e5], 2, -2e5),
    ([0.3, -1.1], 1, -1.4),
])  # fmt: skip
def test_logit_confidence_is_stable(logits: list[float], label: int, expected: float) -> None:
    [score] = logit_confidence(np.array([logits]), np.array([label]))
    assert score == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_logit_difference_needs_input_canaries() -> None:
    gradients = CanarySet((GradientCanary(coordinate=0, target=0),), (1,))
    for canaries, message in (
        (None, "logit_difference needs the file of input canaries"),
        (gradients, r"gradient canaries have no labels: .* input canaries"),
    ):
        with pytest.raises(InputError, match=message):
            logit_difference(np.zeros((2, 3, 1, 2, 4)), replace(CONTEXT, canaries=canaries))


def test_other_scores_are_what_is_observed_with_the_sign_of_world_0() -> None:
    """The gradient +C moves its coordinate down.

    A small gradient is of the world that trains on the canary. That is world 0, whose scores are
    higher; but world 1 under `substitute`.
    """
    observed = np.random.default_rng(4).exponential(size=(5, 3, 2))
    np.testing.assert_array_equal(coordinate(observed, CONTEXT), -observed)
    np.testing.assert_array_equal(as_observed(observed, CONTEXT), observed)
    for adjacency, sign in (("add_remove", -1.0), ("zero_out", -1.0), ("substitute", 1.0)):
        score = gradient_norm(observed, replace(CONTEXT, adjacency=Adjacency(adjacency)))
        np.testing.assert_array_equal(score, sign * observed)


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 5)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_logarithms_of_sums_are_those_of_scipy(shape, scale) -> None:
    terms = scale * np.random.default_rng(0).standard_normal(shape)
    terms[..., 2] = -np.inf
    before = terms.copy()
    np.testing.assert_allclose(log_sums(terms), logsumexp(terms, axis=-1), rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(terms, before)
    assert np.shape(log_sums(terms)) == shape[:-1]
    extended = log_sums(np.array([0.0, -40.0], np.longdouble))
    assert extended.dtype == np.longdouble
    assert float(extended) == pytest.approx(np.exp(-40.0), rel=1e-3)


NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 20, 6, 3
NUM_PARAMETERS = NUM_CLASSES * (NUM_FEATURES + 1)
RECORD_STEPS = (1, 3)
LEARNING_RATE = 2.0
LENGTH = 0.8  # of the direction canaries' gradients

FULL_BATCHES: dict[str, object] = {}
# Under `substitute`, the targets of the two slots are not among the other records.
FIXED_BATCHES = {"sampling": "fixed", "batch_size": NUM_RECORDS - 2, "canary_period": 1}


def direction(first: int) -> np.ndarray:
    """A gradient in every second parameter; those for `first` 0 and 1 are orthogonal."""
    gradient = np.zeros(NUM_PARAMETERS, np.float32)
    gradient[first::2] = np.where(np.arange(len(gradient[first::2])) % 3, 1.0, -1.0)
    return gradient * (LENGTH / np.linalg.norm(gradient)).astype(np.float32)


def far_off(feature: int) -> np.ndarray:
    """Features far from those of all other records and canaries."""
    features = np.zeros(NUM_FEATURES, np.float32)
    features[feature] = 6.0
    return features


# Two of each kind, for runs with one or two slots.
CANARIES: dict[str, list[Canary]] = {
    "gradient": [GradientCanary(4, target=3), GradientCanary(11, target=8)],
    "direction": [DirectionCanary(direction(0), target=3), DirectionCanary(direction(1), target=8)],
    "input": [InputCanary(far_off(1), 0, target=3), InputCanary(far_off(5), 1, target=8)],
}


@cache
def records() -> Records:
    """Random records with all labels. The targets are far from the others."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NUM_RECORDS, NUM_FEATURES)).astype(np.float32)
    features[3], features[8] = far_off(0), far_off(4)
    return Records(features, np.arange(NUM_RECORDS) % NUM_CLASSES)


def trained(
    kind: str, *, adjacency: str, num_slots: int, sampling: dict[str, object]
) -> EnsembleResult:
    """Runs with a strong signal and little noise."""
    torch.manual_seed(1)
    return train_ensemble(
        module=nn.Linear(NUM_FEATURES, NUM_CLASSES),
        records=records(),
        canary=CANARIES[kind][:num_slots],
        dpsgd=DPSGD(0.05, 1.0, LEARNING_RATE, RECORD_STEPS, adjacency=adjacency, **sampling),
        runs=60,
        seed=2,
    )


# Each pair of kind, adjacency, number of slots and sampling is in one of these.
TRAININGS = [
    ("gradient", "substitute", 1, FULL_BATCHES), ("gradient", "add_remove", 2, FIXED_BATCHES),
    ("gradient", "zero_out", 1, FIXED_BATCHES), ("direction", "substitute", 2, FIXED_BATCHES),
    ("direction", "add_remove", 1, FULL_BATCHES), ("direction", "zero_out", 2, FULL_BATCHES),
    ("input", "substitute", 1, FIXED_BATCHES), ("input", "add_remove", 1, FULL_BATCHES),
    ("input", "zero_out", 2, FIXED_BATCHES),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "adjacency", "num_slots", "sampling"), TRAININGS)
def test_world_0_scores_higher(kind, adjacency, num_slots, sampling) -> None:
    """By twenty standard errors of the mean for every slot; with one slot, in every run.

    After one full step, by learning rate times sensitivity times the length of the canary's
    gradient over the batch size.
    """
    result = trained(kind, adjacency=adjacency, num_slots=num_slots, sampling=sampling)
    scores = ensemble_scores(result)
    assert scores.shape == (60, len(RECORD_STEPS), num_slots)
    for slot, step in np.ndindex(num_slots, len(RECORD_STEPS)):
        world = result.worlds[:, slot]
        worlds = [scores[world == index, step, slot] for index in (0, 1)]
        assert min(map(len, worlds)) >= 20
        error = np.hypot(*(own.std(ddof=1) / np.sqrt(len(own)) for own in worlds))
        difference = worlds[0].mean() - worlds[1].mean()
        assert difference > 20 * error
        if num_slots == 1:
            assert worlds[0].min() > worlds[1].max()
        if kind != "input" and step == 0 and sampling is FULL_BATCHES:
            per_record = LEARNING_RATE / NUM_RECORDS
            length = LENGTH if kind == "direction" else 1.0
            moved = per_record * Adjacency(adjacency).sensitivity * length
            noise = per_record * result.dpsgd.noise_multiplier
            error = noise * np.sqrt(sum(1 / len(own) for own in worlds))
            assert difference == pytest.approx(moved, abs=4 * error)


def result_of(
    canaries: list[Canary], observe: Observation, observations: np.ndarray, *, adjacency: str
) -> EnsembleResult:
    """A result with given observations, without training."""
    runs = len(observations)
    return EnsembleResult(
        dpsgd=DPSGD(1.0, 1.0, 0.1, RECORD_STEPS, adjacency=adjacency), observe=observe,
        canaries=CanarySet(tuple(canaries), target_labels=(1, 0)), runs=np.arange(runs),
        worlds=np.zeros((runs, len(canaries)), np.int64),
        observations=observations.astype(np.float32),
        test_accuracy=np.full(runs, np.nan, np.float32), parameters=None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["gradient", "direction"])
def test_gradient_canaries_score_by_minus_the_change(kind):
    changes, lengths = np.random.default_rng(3).normal(size=(2, 5, 2, 2)).astype(np.float32)
    both = np.stack([changes, lengths], axis=-1)
    for observe, observations in (
        (Observation.CHANGE, changes), (Observation.CHANGE_AND_LENGTH, both),
    ):  # fmt: skip
        result = result_of(CANARIES[kind], observe, observations, adjacency="substitute")
        np.testing.assert_array_equal(ensemble_scores(result), -changes)


@pytest.mark.parametrize("num_outputs", [1, NUM_CLASSES])
@pytest.mark.parametrize("adjacency", [*Adjacency])
def test_input_canaries_score_by_log_odds(adjacency, num_outputs):
    """Under `substitute`, of the target minus the canary's; otherwise of the canary."""
    logits = np.random.default_rng(5).normal(size=(5, 2, 2, 2, num_outputs)).astype(np.float32)
    result = result_of(CANARIES["input"], Observation.LOGITS, logits, adjacency=adjacency)
    scores = ensemble_scores(result)
    assert scores.dtype == np.float64
    for run, step, slot in np.ndindex(5, 2, 2):
        target_label, label = ((1, 0), (0, 1))[slot]
        target, canary = logits[run, step, slot]
        expected = log_odds(canary, label)
        if adjacency is Adjacency.SUBSTITUTE:
            expected = log_odds(target, target_label) - expected
        assert scores[run, step, slot] == pytest.approx(expected, rel=1e-9, abs=1e-9)
