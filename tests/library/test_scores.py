"""Scores against their definitions."""

from math import log

import numpy as np
import pytest

from dpcanary.scores import coordinate_score, logit_confidence, logit_difference_score


def naive_logit(logits: np.ndarray, label: int) -> float:
    """log(p / (1 - p)), p from the softmax, in the plainest way."""
    exponentials = [np.exp(float(value)) for value in logits]
    p = exponentials[label] / sum(exponentials)
    return log(p / (1 - p))


def test_logit_confidence_is_the_log_odds() -> None:
    logits = np.random.default_rng(0).normal(0.0, 3.0, (50, 4, 5))
    for label in range(5):
        expected = [[naive_logit(row, label) for row in rows] for rows in logits]
        np.testing.assert_allclose(logit_confidence(logits, label), expected, rtol=1e-9, atol=1e-9)


def test_two_classes_give_the_difference_of_logits() -> None:
    assert logit_confidence(np.array([0.3, -1.1]), 0) == pytest.approx(1.4)
    assert logit_confidence(np.array([0.3, -1.1]), 1) == pytest.approx(-1.4)


@pytest.mark.parametrize(
    ("logits", "label", "expected"),
    [
        ([1000.0, -1000.0, -1000.0], 0, 2000.0 - log(2)),
        ([-1000.0, 1000.0, 1000.0], 0, -2000.0 - log(2)),
        ([1000.0, 1000.0, -1000.0], 1, 0.0),
        ([-1000.0, -1000.0, -1000.0], 2, -log(2)),
        ([1e5, 0.0, -1e5], 2, -2e5),
    ],
)
def test_logit_confidence_is_stable(logits: list[float], label: int, expected: float) -> None:
    assert logit_confidence(np.array(logits), label) == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_logit_confidence_ignores_a_common_shift() -> None:
    logits = np.random.default_rng(1).normal(size=(20, 6))
    shifted = logit_confidence(logits + 700.0, 3)
    np.testing.assert_allclose(shifted, logit_confidence(logits, 3), atol=1e-10)


def test_logit_difference_takes_target_then_substitute() -> None:
    logits = np.random.default_rng(2).normal(size=(7, 3, 2, 4))
    score = logit_difference_score(logits, target_label=1, substitute_label=3)
    assert score.shape == (7, 3)
    for run in range(7):
        for step in range(3):
            target, substitute = logits[run, step]
            expected = naive_logit(target, 1) - naive_logit(substitute, 3)
            assert score[run, step] == pytest.approx(expected, abs=1e-9)


def test_higher_means_world_0() -> None:
    """World 0 trained on the target, so fits it; its gradient +C moves the coordinate down."""
    fits_target = np.array([[[[3.0, 0.0], [0.0, 0.0]]]])
    fits_substitute = np.array([[[[0.0, 0.0], [0.0, 3.0]]]])
    world0 = logit_difference_score(fits_target, target_label=0, substitute_label=1)
    world1 = logit_difference_score(fits_substitute, target_label=0, substitute_label=1)
    assert world0[0, 0] == pytest.approx(3.0)
    assert world1[0, 0] == pytest.approx(-3.0)
    learning_rate, gradient = 0.1, np.array([2.0, -2.0])
    assert coordinate_score(-learning_rate * gradient) == pytest.approx([0.2, -0.2])
