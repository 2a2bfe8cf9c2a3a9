"""Scores against their definitions."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import CanarySet, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.scoring.scores import (
    ScoringContext,
    as_observed,
    coordinate,
    gradient_norm,
    logit_confidence,
    logit_difference,
)


def context(canaries: CanarySet | None = None) -> ScoringContext:
    return ScoringContext(
        sample_rate=0.5, noise_multiplier=1.0, record_steps=(5, 10, 15), canaries=canaries
    )


def inputs(*, target_labels: list[int], labels: list[int]) -> ScoringContext:
    """The context of input canaries, one for each slot."""
    canaries = [InputCanary(np.zeros(2, np.float32), label, k) for k, label in enumerate(labels)]
    return context(CanarySet(tuple(canaries), tuple(target_labels)))


def naive_logit(logits: np.ndarray, label: int) -> float:
    """log(p / (1 - p)), where p is from the softmax."""
    exponentials = [np.exp(float(value)) for value in logits]
    p = exponentials[label] / sum(exponentials)
    return log(p / (1 - p))


def confidence(logits: list[float], label: int) -> float:
    """The logit-confidence of one record."""
    (found,) = logit_confidence(np.array([logits]), np.array([label]))
    return float(found)


@pytest.mark.parametrize("labels", [*([label] * 4 for label in range(5)), [0, 4, 2, 2]])
def test_logit_confidence_is_the_log_odds(labels: list[int]) -> None:
    logits = np.random.default_rng(0).normal(0.0, 3.0, (50, 4, 5))
    expected = [
        [naive_logit(row, label) for row, label in zip(rows, labels, strict=True)]
        for rows in logits
    ]
    found = logit_confidence(logits, np.array(labels))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("logits", "label", "expected"),
    [
        ([1000.0, -1000.0, -1000.0], 0, 2000.0 - log(2)),
        ([-1000.0, 1000.0, 1000.0], 0, -2000.0 - log(2)),
        ([1000.0, 1000.0, -1000.0], 1, 0.0),
        ([-1000.0, -1000.0, -1000.0], 2, -log(2)),
        ([1e5, 0.0, -1e5], 2, -2e5),
        ([0.3, -1.1], 1, -1.4),
    ],
)
def test_logit_confidence_is_stable(logits: list[float], label: int, expected: float) -> None:
    assert confidence(logits, label) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(
    ("target_labels", "labels"), [([1], [3]), ([2], [2]), ([1, 0, 3], [3, 2, 3])]
)
def test_logit_difference_takes_target_then_substitute(
    target_labels: list[int], labels: list[int]
) -> None:
    logits = np.random.default_rng(2).normal(size=(7, 3, len(labels), 2, 4))
    score = logit_difference(logits, inputs(target_labels=target_labels, labels=labels))
    assert score.shape == (7, 3, len(labels))
    for run, step, slot in np.ndindex(score.shape):
        target, substitute = logits[run, step, slot]
        expected = naive_logit(target, target_labels[slot]) - naive_logit(substitute, labels[slot])
        assert score[run, step, slot] == pytest.approx(expected, abs=1e-9)


def test_logit_difference_needs_input_canaries() -> None:
    logits = np.zeros((2, 3, 1, 2, 4))
    with pytest.raises(InputError, match="logit_difference needs the file of input canaries"):
        logit_difference(logits, context())
    gradients = CanarySet((GradientCanary(coordinate=0, target=0),), (1,))
    with pytest.raises(InputError, match=r"gradient canaries have no labels: .* input canaries"):
        logit_difference(logits, context(gradients))


def test_higher_means_world_0() -> None:
    """A model in world 0 fits the target, and the gradient +C moves its coordinate down."""
    told = inputs(target_labels=[0], labels=[1])
    fits_target = np.array([[[[[3.0, 0.0], [0.0, 0.0]]]]])
    fits_substitute = np.array([[[[[0.0, 0.0], [0.0, 3.0]]]]])
    assert logit_difference(fits_target, told)[0, 0, 0] == pytest.approx(3.0)
    assert logit_difference(fits_substitute, told)[0, 0, 0] == pytest.approx(-3.0)
    learning_rate, gradient = 0.1, np.array([[[2.0]], [[-2.0]]])
    scores = coordinate(-learning_rate * gradient, context())
    assert scores.shape == (2, 1, 1)
    assert scores.ravel() == pytest.approx([0.2, -0.2])


@pytest.mark.parametrize(
    ("adjacency", "sign"), [("add_remove", -1.0), ("zero_out", -1.0), ("substitute", 1.0)]
)
def test_a_small_gradient_is_of_the_world_that_trains_on_the_canary(
    adjacency: str, sign: float
) -> None:
    """That is world 0, whose scores are higher; but world 1 under `substitute`."""
    norms = np.random.default_rng(4).exponential(size=(5, 3, 2))
    score = gradient_norm(norms, replace(context(), adjacency=Adjacency(adjacency)))
    np.testing.assert_array_equal(score, sign * norms)


def test_a_process_may_observe_its_score() -> None:
    observed = np.random.default_rng(3).normal(size=(4, 3, 1))
    np.testing.assert_array_equal(as_observed(observed, context()), observed)
