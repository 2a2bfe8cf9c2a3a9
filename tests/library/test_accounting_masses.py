"""Losses of one step and their composed masses, against dp-accounting's own and exact numbers."""

from itertools import product
from math import inf

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from dpcanary.accounting.loss_masses import LossMasses
from dpcanary.accounting.mechanism import Mechanism, Question
from dpcanary.accounting.pld import _loss_of_step, step_deltas
from dpcanary.accounting.prv import RemoveLoss, SubstituteLoss

strict_arithmetic = {"over": "raise", "invalid": "raise", "divide": "raise"}  # the accountant's


def of_library(masses: LossMasses) -> DensePLDPmf:
    place = masses._discretization, masses._lower_loss
    return DensePLDPmf(*place, masses._probs, masses._infinity_mass, True)


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize(("q", "num_steps", "sigma"), [
    (0.25, 500, 12.1), (0.01, 1000, 0.7), (0.001, 10_000, 0.5), (0.5, 20, 30.0), (0.1, 100, 0.4),
])  # fmt: skip
def test_masses_compose_and_answer_as_those_of_the_library(q, num_steps, sigma, adjacency) -> None:
    """In both directions, which are the same under substitute adjacency."""
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=num_steps, noise_multiplier=sigma)
    step = _loss_of_step(Question(mechanism, 1e-6), True)
    for masses in {id(masses): masses for masses in (step._pmf_remove, step._pmf_add)}.values():
        assert isinstance(masses, LossMasses)
        ours = masses.self_compose(num_steps)
        theirs = of_library(masses).self_compose(num_steps)
        for name in ("_lower_loss", "_infinity_mass", "size"):
            assert getattr(ours, name) == getattr(theirs, name)
        np.testing.assert_array_equal(ours._probs, theirs._probs)
        for delta in (0.9, 0.3, 0.1, 1e-3, 1e-5, 1e-8):
            epsilon = ours.get_epsilon_for_delta(delta)
            assert epsilon == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-13)
            of_theirs = theirs.get_delta_for_epsilon(epsilon)
            assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(of_theirs, rel=1e-13)
            assert epsilon == 0 or of_theirs == pytest.approx(delta, rel=1e-6)


def masses_of(lower_loss, masses, infinity_mass=0.0) -> LossMasses:
    return LossMasses(0.5, lower_loss, np.array(masses), infinity_mass, True)


def test_a_delta_and_an_epsilon_at_the_edges() -> None:
    masses = masses_of(-1, [0.1, 0.2, 0.3, 0.4])  # of losses -1/2, 0, 1/2 and 1
    epsilons = [-2.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0]  # a loss of epsilon has no part
    exact = of_library(masses).get_delta_for_epsilon(epsilons)
    assert [*map(masses.get_delta_for_epsilon, epsilons)] == pytest.approx(exact, rel=1e-15)
    assert masses_of(1, [0.2], 0.1).get_delta_for_epsilon(7.0) == 0.1
    assert masses_of(1, [0.2, 0.3], 0.1).get_epsilon_for_delta(0.05) == inf
    assert masses_of(-3, [0.5, 0.5]).get_epsilon_for_delta(1e-9) == 0.0  # all losses below 0
    assert masses_of(0, [1.0]).get_epsilon_for_delta(0.0) == 0.0
    # Delta is 0.2 at 0 and (1 - exp(epsilon - 1/2)) / 2 = 0.1 at the log of 0.8 plus 1/2.
    assert masses_of(1, [0.5]).get_epsilon_for_delta(0.1) == pytest.approx(0.5 + np.log(0.8))
    assert masses_of(1, [0.5]).get_epsilon_for_delta(0.25) == 0.0
    # exp(-loss) is 0: the loss itself is the answer, as in the library.
    far = masses_of(2000, [0.5, 0.25])
    assert far.get_epsilon_for_delta(0.1) == of_library(far).get_epsilon_for_delta(0.1) == 1000.5
    infinite = masses_of(1, [0.5], 0.1)  # all delta is of its loss, and none is left for others
    expected = of_library(infinite).get_epsilon_for_delta(0.1)
    assert infinite.get_epsilon_for_delta(0.1) == pytest.approx(expected)


def test_masses_that_rounding_left_below_0_are_no_error() -> None:
    """With the largest loss first, their sums are 0.2, 0.199, 0.499, 0.498 and 0.598."""
    masses = masses_of(1, [0.1, -1e-3, 0.3, -1e-3, 0.2])
    alone = masses_of(1, [-1e-3, 0.2])
    deltas = (0.19, 0.1995, 0.2, 0.4, 0.4985, 0.55, 0.5975, 0.7)
    for losses, delta in product((masses, alone), deltas):
        with np.errstate(**strict_arithmetic):
            epsilon = losses.get_epsilon_for_delta(delta)
        expected = of_library(losses).get_epsilon_for_delta(delta)
        assert epsilon == pytest.approx(expected, abs=1e-12, rel=1e-6)


@pytest.mark.parametrize("q", [1.0, 0.9, 0.01, 1e-4])
@pytest.mark.parametrize("adjacency", AdjacencyType)
def test_deltas_of_a_step_are_those_of_dp_accounting_s_loop(adjacency, q) -> None:
    """At losses of both signs, at those that bound the direction, beyond them, and at 0."""
    for sigma in (0.02, 0.1, 0.4, 1.0, 30.0):
        loss = GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=adjacency)
        bounds = loss.connect_dots_bounds()
        edges = [0.0] if q == 1 else [0.0, np.log1p(-q), -np.log1p(-q)]
        epsilons = np.linspace(bounds.epsilon_lower - 1, bounds.epsilon_upper + 1, 201)
        epsilons = np.append(epsilons, edges)
        with np.errstate(**strict_arithmetic):
            deltas = step_deltas(loss, epsilons)
        theirs = np.array([loss.get_delta_for_epsilon(epsilon) for epsilon in epsilons])
        # Both round exponents, which are as large as the losses.
        assert deltas == pytest.approx(theirs, abs=2e-15 + 1e-17 * bounds.epsilon_upper, rel=0)


@pytest.mark.parametrize("q", [0.5, 0.99, 1 - 1e-6, 1 - 1e-10, 1 - 1e-15])
def test_deltas_of_an_addition_are_exact_up_to_the_largest_loss(q) -> None:
    """Which is -log(1 - q): the masses near it are those of rare batches without the record."""
    epsilons = -np.log1p(-q) * np.array([0.02, 0.5, 0.9, 0.999, 1 - 1e-6, 1.0, 1.01])
    for sigma in (0.08, 0.15, 1.0):
        loss = GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=AdjacencyType.ADD)
        with mpmath.workdps(60), np.errstate(**strict_arithmetic):
            exact = [float(delta_of_addition(epsilon, q, sigma)) for epsilon in epsilons]
            assert step_deltas(loss, epsilons) == pytest.approx(exact, abs=1e-14, rel=0)


def delta_of_addition(epsilon: float, q: float, sigma: float) -> mpmath.mpf:
    """N(0, s^2) against its mixture with N(1, s^2), below the point where the loss is epsilon."""
    share = (mpmath.exp(-mpmath.mpf(epsilon)) - 1 + mpmath.mpf(q)) / mpmath.mpf(q)
    if share <= 0:
        return mpmath.mpf(0)
    point = (mpmath.mpf(1) / 2 + mpmath.mpf(sigma) ** 2 * mpmath.log(share)) / sigma
    without, having = mpmath.ncdf(point), mpmath.ncdf(point - 1 / mpmath.mpf(sigma))
    return without - mpmath.exp(epsilon) * ((1 - mpmath.mpf(q)) * without + q * having)


def test_losses_under_substitute_are_inverted_and_precise_in_tails_and_divergences() -> None:
    for q, sigma in product((1.0, 0.5, 0.01), (0.05, 0.4, 1.0, 30.0)):
        loss = SubstituteLoss(q, sigma)
        largest = np.subtract(*loss.log_densities(np.array(8 * sigma + 1)))
        t = np.linspace(-largest, largest, 101)
        log_p, log_q = loss.log_densities(loss.inverse(t))
        np.testing.assert_allclose(log_p - log_q, t, rtol=1e-9, atol=1e-11 * largest)
    loss = SubstituteLoss(0.25, 2.0)
    far = np.array([6.0, 8.0])
    # The pair is symmetric: P(L > t) = E_P[...] and P(L < -t) come from mirrored mixtures.
    assert 0 < loss.above(far)[1] < loss.above(far)[0] < 1e-8
    assert 0 < loss.below(-far)[1] < loss.below(-far)[0] < 1e-10
    tail = loss.probability(far[:1], far[1:])
    assert tail[0] == pytest.approx(loss.above(far)[0] - loss.above(far)[1], rel=1e-12)
    for alpha in (1.1, 2.0, 63.0):
        assert SubstituteLoss(1.0, 5.0).rdp(alpha) == pytest.approx(alpha * 0.16 / 2, rel=1e-9)
        assert RemoveLoss(1.0, 0.5).rdp(alpha) == pytest.approx(alpha * 4 / 2, rel=1e-9)
    # For alpha = 2 it is log(1 + q^2 (e^(1/s^2) - 1)).
    expected = np.log1p(0.01**2 * np.expm1(1.0))
    assert RemoveLoss(0.01, 1.0).rdp(2.0) == pytest.approx(expected, rel=1e-6)
