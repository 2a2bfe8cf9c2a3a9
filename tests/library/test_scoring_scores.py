"""Scores against their definitions, of what is observed and of results of trainings."""

from math import log

import numpy as np
import pytest
from scipy.special import logsumexp

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.log_sums import log_sums
from dpcanary.data.canaries import CanarySet, DirectionCanary, GradientCanary, InputCanary
from dpcanary.data.observations import Observation
from dpcanary.errors import InputError
from dpcanary.scoring import scores as scoring
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.runs import EnsembleResult


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
])  # fmt: skip
def test_logit_confidence_is_stable(logits: list[float], label: int, expected: float) -> None:
    [score] = scoring.logit_confidence(np.array([logits]), np.array([label]))
    assert score == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_logit_difference_needs_input_canaries() -> None:
    context = scoring.ScoringContext(0.5, 1.0, (5, 10, 15), canaries=None)
    with pytest.raises(InputError, match="the file of input canaries"):
        scoring.logit_difference(np.zeros((2, 3, 1, 2, 4)), context)


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


ZEROS, SLOTS = np.zeros(6, np.float32), ((3, 0), (8, 1))  # the target and the label of each slot
CANARIES = {
    "gradient": [GradientCanary(4 + label, target) for target, label in SLOTS],
    "direction": [DirectionCanary(ZEROS + 0.1 + label, target) for target, label in SLOTS],
    "input": [InputCanary(ZEROS, label, target) for target, label in SLOTS],
}


def scores_of(kind: str, observe: str, observations: np.ndarray, adjacency: str) -> np.ndarray:
    """Score given observations of five runs and two slots, without training."""
    return scoring.ensemble_scores(EnsembleResult(
        dpsgd=DPSGD(1.0, 1.0, 0.1, (1, 3), adjacency=adjacency), observe=Observation(observe),
        canaries=CanarySet(tuple(CANARIES[kind]), target_labels=(1, 0)), runs=np.arange(5),
        worlds=np.zeros((5, 2), np.int64), observations=observations, parameters=None,
        test_accuracy=np.full(5, np.nan, np.float32),
    ))  # fmt: skip


@pytest.mark.parametrize("kind", ["gradient", "direction"])
def test_gradient_canaries_score_by_minus_the_change(kind):
    both = np.random.default_rng(3).normal(size=(5, 2, 2, 2)).astype(np.float32)
    for observe, observations in (("change", both[..., 0]), ("change_and_length", both)):
        scores = scores_of(kind, observe, observations, "substitute")
        np.testing.assert_array_equal(scores, -both[..., 0])


@pytest.mark.parametrize("num_outputs", [1, 3])
@pytest.mark.parametrize("adjacency", [*Adjacency])
def test_input_canaries_score_by_log_odds(adjacency, num_outputs):
    """Under `substitute`, of the target minus the canary's; otherwise of the canary."""
    logits = np.random.default_rng(5).normal(size=(5, 2, 2, 2, num_outputs)).astype(np.float32)
    scores = scores_of("input", "logits", logits, adjacency)
    assert scores.dtype == np.float64
    for run, step, slot in np.ndindex(5, 2, 2):
        target_label, label = ((1, 0), (0, 1))[slot]
        target, canary = logits[run, step, slot]
        expected = log_odds(canary, label)
        if adjacency is Adjacency.SUBSTITUTE:
            expected = log_odds(target, target_label) - expected
        assert scores[run, step, slot] == pytest.approx(expected, rel=1e-9, abs=1e-9)
