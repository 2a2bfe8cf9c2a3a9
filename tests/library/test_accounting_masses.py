"""Masses of privacy losses, against dp-accounting's own methods."""

from math import inf

import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf

from dpcanary.accounting.loss_masses import LossMasses
from dpcanary.accounting.mechanism import Mechanism, Question
from dpcanary.accounting.pld import _loss_of_step, composed_losses

# Sample rate, steps and noise multiplier.
MECHANISMS = [
    (0.25, 500, 12.1),
    (0.01, 1000, 0.7),
    (0.001, 10_000, 0.5),
    (0.5, 20, 30.0),
    (0.1, 100, 0.4),
]


def _masses_of_step(adjacency, sample_rate, num_steps, noise_multiplier):
    """On the grid of all steps, in both directions, which substitute adjacency has alike."""
    mechanism = Mechanism(
        adjacency, sample_rate=sample_rate, num_steps=num_steps, noise_multiplier=noise_multiplier
    )
    step = _loss_of_step(Question(mechanism, 1e-5), True)
    return {id(one): one for one in (step._pmf_remove, step._pmf_add)}.values()


def _as_library(masses):
    return DensePLDPmf(
        masses._discretization, masses._lower_loss, masses._probs, masses._infinity_mass, True
    )


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove", "zero_out"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_masses_compose_as_those_of_the_library(mechanism, adjacency):
    for masses in _masses_of_step(adjacency, *mechanism):
        assert isinstance(masses, LossMasses)
        ours = masses.self_compose(mechanism[1])
        theirs = _as_library(masses).self_compose(mechanism[1])
        assert ours._lower_loss == theirs._lower_loss
        assert ours._infinity_mass == theirs._infinity_mass
        assert ours.size == theirs.size
        np.testing.assert_array_equal(ours._probs, theirs._probs)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_epsilons_are_those_of_the_library_and_give_back_their_delta(mechanism, adjacency):
    for masses in _masses_of_step(adjacency, *mechanism):
        composed = masses.self_compose(mechanism[1])
        library = _as_library(composed)
        for delta in (0.9, 0.3, 0.1, 1e-3, 1e-5, 1e-8):
            epsilon = composed.get_epsilon_for_delta(delta)
            assert epsilon == pytest.approx(library.get_epsilon_for_delta(delta), rel=1e-13)
            assert composed.get_delta_for_epsilon(epsilon) == pytest.approx(
                library.get_delta_for_epsilon(epsilon), rel=1e-13
            )
            if epsilon > 0:
                assert library.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-6)


def _masses(lower_loss, masses, infinity_mass=0.0):
    return LossMasses(0.5, lower_loss, np.array(masses), infinity_mass, True)


def test_a_delta_at_the_edges():
    masses = _masses(-1, [0.1, 0.2, 0.3, 0.4])  # of losses -1/2, 0, 1/2 and 1
    for epsilon in (-2.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0):  # a loss of epsilon has no part
        exact = _as_library(masses).get_delta_for_epsilon(epsilon)
        assert masses.get_delta_for_epsilon(epsilon) == pytest.approx(exact, rel=1e-15)
    assert _masses(1, [0.2], 0.1).get_delta_for_epsilon(7.0) == 0.1


def test_an_epsilon_at_the_edges():
    assert _masses(1, [0.2, 0.3], 0.1).get_epsilon_for_delta(0.05) == inf
    assert _masses(-3, [0.5, 0.5]).get_epsilon_for_delta(1e-9) == 0.0  # all losses below 0
    assert _masses(0, [1.0]).get_epsilon_for_delta(0.0) == 0.0
    # Delta is .2 at 0 and (1 - exp(epsilon - 1/2)) / 2 = .1 at the log of .8 plus 1/2.
    assert _masses(1, [0.5]).get_epsilon_for_delta(0.1) == pytest.approx(0.5 + np.log(0.8))
    assert _masses(1, [0.5]).get_epsilon_for_delta(0.25) == 0.0
    # exp(-loss) is 0: the loss itself is the answer, as in the library.
    far = _masses(2000, [0.5, 0.25])
    assert far.get_epsilon_for_delta(0.1) == _as_library(far).get_epsilon_for_delta(0.1) == 1000.5
    # All delta is of an infinite loss, and none is left for the others.
    assert _masses(1, [0.5], 0.1).get_epsilon_for_delta(0.1) == pytest.approx(
        _as_library(_masses(1, [0.5], 0.1)).get_epsilon_for_delta(0.1)
    )


def test_masses_that_rounding_left_below_0_are_no_error():
    """With the largest loss first, their sums are .2, .199, .499, .498 and .598."""
    masses = _masses(1, [0.1, -1e-3, 0.3, -1e-3, 0.2])
    library = _as_library(masses)
    with np.errstate(over="raise", invalid="raise", divide="raise"):  # as the accountant has it
        for delta in (0.19, 0.1995, 0.2, 0.4, 0.4985, 0.55, 0.5975, 0.7):
            found = masses.get_epsilon_for_delta(delta)
            assert found == pytest.approx(library.get_epsilon_for_delta(delta), abs=1e-12)
    alone = _masses(1, [-1e-3, 0.2])
    assert alone.get_epsilon_for_delta(0.1995) == pytest.approx(
        _as_library(alone).get_epsilon_for_delta(0.1995)
    )


def test_the_accountant_composes_these():
    mechanism = Mechanism("add_remove", sample_rate=0.1, num_steps=7, noise_multiplier=1.0)
    [loss] = composed_losses(Question(mechanism, 1e-5), [7], pessimistic=True)
    assert all(isinstance(one, LossMasses) for one in loss.directions)
