"""Scores against their definitions."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
from scipy.special import logsumexp

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import CanarySet, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.log_sums import log_sums
from dpcanary.scoring.scores import (
    ScoringContext,
    as_observed,
    coordinate,
    gradient_norm,
    logit_confidence,
    logit_difference,
)

CONTEXT = ScoringContext(
    sample_rate=0.5, noise_multiplier=1.0, record_steps=(5, 10, 15), canaries=None
)


def inputs(*, target_labels: list[int], labels: list[int]) -> ScoringContext:
    """The context of input canaries, one for each slot."""
    canaries = [InputCanary(np.zeros(2, np.float32), label, k) for k, label in enumerate(labels)]
    return replace(CONTEXT, canaries=CanarySet(tuple(canaries), tuple(target_labels)))


def naive_logit(logits: np.ndarray, label: int) -> float:
    """log(p / (1 - p)), where p is from the softmax."""
    exponentials = [np.exp(float(value)) for value in logits]
    p = exponentials[label] / sum(exponentials)
    return log(p / (1 - p))


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [4, 4, 4, 4], [0, 4, 2, 2]])
def test_logit_confidence_is_the_log_odds(labels: list[int]) -> None:
    logits = np.random.default_rng(0).normal(0.0, 3.0, (50, 4, 5))
    expected = [
        [naive_logit(row, label) for row, label in zip(rows, labels, strict=True)]
        for rows in logits
    ]
    scores = logit_confidence(logits, np.array(labels))
    np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)


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
    [score] = logit_confidence(np.array([logits]), np.array([label]))
    assert score == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_logit_difference_takes_target_then_substitute() -> None:
    target_labels, labels = [1, 0, 3], [3, 2, 3]
    logits = np.random.default_rng(2).normal(size=(7, 3, 3, 2, 4))
    score = logit_difference(logits, inputs(target_labels=target_labels, labels=labels))
    assert score.shape == (7, 3, 3)
    for run, step, slot in np.ndindex(score.shape):
        target, substitute = logits[run, step, slot]
        expected = naive_logit(target, target_labels[slot]) - naive_logit(substitute, labels[slot])
        assert score[run, step, slot] == pytest.approx(expected, abs=1e-9)


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
