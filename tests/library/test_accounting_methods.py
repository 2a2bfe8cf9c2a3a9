"""The accountants against each other, and properties of every answer."""

from itertools import pairwise
from math import sqrt

import mpmath
import numpy as np
import pytest
from accounts import bounds_of, noise_for, setting, uppers_of
from dp_accounting.pld.privacy_loss_distribution import NeighborRel, from_gaussian_mechanism
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from dpcanary import account_epsilon, calibrate_noise
from dpcanary.accounting import EpsilonBounds, gdp_mu
from dpcanary.accounting.mechanism import Mechanism, Question
from dpcanary.accounting.noise import NoiseStage, noise_of
from dpcanary.accounting.pld import composed_losses, step_deltas
from dpcanary.accounting.prv import AddLoss, RemoveLoss, SubstituteLoss
from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError


def _upper(*, num_steps: int, **given) -> float:
    return uppers_of(steps=[num_steps], **given)[0]


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [
        (1.0, 22.37, 500),
        (0.25, 5.574, 500),
        (0.0625, 1.6773, 500),
        (0.01, 1.0, 1000),
        (0.001, 0.25, 10),
        (0.25, 0.7, 3),
        (0.9, 2.0, 10),
    ],
)
def test_prv_and_pld_agree(
    q: float, sigma: float, steps: int, delta: float, adjacency: str
) -> None:
    given = setting(
        adjacency=adjacency, sample_rate=q, noise_multiplier=sigma, num_steps=steps, delta=delta
    )
    pld, prv = (bounds_of(**given, method=method) for method in ("pld", "prv"))
    # Each interval holds the other's best value, up to 1e-4, and the best values nearly agree.
    assert pld.lower <= prv.estimate <= pld.upper * (1 + 1e-4)
    assert prv.lower <= pld.estimate <= prv.upper
    assert prv.estimate == pytest.approx(pld.estimate, rel=2e-4)


@pytest.mark.parametrize("q", [1.0, 0.9, 0.01, 1e-4])
@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.4, 1.0, 30.0])
@pytest.mark.parametrize("adjacency", AdjacencyType)
def test_deltas_of_a_step_are_those_of_dp_accounting_s_loop(adjacency, q, sigma) -> None:
    """At losses of both signs, at those that bound the direction, beyond them, and at 0."""
    loss = GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=adjacency)
    bounds = loss.connect_dots_bounds()
    epsilons = np.linspace(bounds.epsilon_lower - 1, bounds.epsilon_upper + 1, 801)
    edges = [0.0] if q == 1 else [0.0, np.log1p(-q), -np.log1p(-q)]
    epsilons = np.append(epsilons, edges)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        found = step_deltas(loss, epsilons)
    theirs = np.array([loss.get_delta_for_epsilon(epsilon) for epsilon in epsilons])
    # Both round exponents, which are as large as the losses.
    assert found == pytest.approx(theirs, abs=2e-15 + 1e-17 * bounds.epsilon_upper, rel=0)


@pytest.mark.parametrize("q", [0.5, 0.99, 1 - 1e-6, 1 - 1e-10, 1 - 1e-15])
@pytest.mark.parametrize("sigma", [0.08, 0.15, 1.0])
def test_deltas_of_an_addition_are_exact_up_to_the_largest_loss(sigma, q) -> None:
    """Which is -log(1 - q): the masses near it are those of rare batches without the record."""
    edge = -np.log1p(-q)
    epsilons = np.array([edge * share for share in (0.02, 0.5, 0.9, 0.999, 1 - 1e-6, 1.0, 1.01)])
    loss = GaussianPrivacyLoss(sigma, sampling_prob=q, adjacency_type=AdjacencyType.ADD)
    with mpmath.workdps(60), np.errstate(over="raise", invalid="raise", divide="raise"):
        exact = [float(_delta_of_addition(epsilon, q, sigma)) for epsilon in epsilons]
        assert step_deltas(loss, epsilons) == pytest.approx(exact, abs=1e-14, rel=0)


def _delta_of_addition(epsilon: float, q: float, sigma: float) -> mpmath.mpf:
    """N(0, s^2) against its mixture with N(1, s^2), below the point where the loss is epsilon."""
    share = (mpmath.exp(-mpmath.mpf(epsilon)) - 1 + mpmath.mpf(q)) / mpmath.mpf(q)
    if share <= 0:
        return mpmath.mpf(0)
    point = (mpmath.mpf(1) / 2 + mpmath.mpf(sigma) ** 2 * mpmath.log(share)) / sigma
    without, having = mpmath.ncdf(point), mpmath.ncdf(point - 1 / mpmath.mpf(sigma))
    return without - mpmath.exp(epsilon) * ((1 - mpmath.mpf(q)) * without + q * having)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize(("q", "sigma", "steps"), [(1.0, 9.0, 40), (0.7, 4.0, 40), (0.02, 0.6, 7)])
def test_distributions_are_those_that_dp_accounting_makes(q, sigma, steps, adjacency) -> None:
    given = setting(
        adjacency=adjacency, sample_rate=q, noise_multiplier=sigma, num_steps=steps, delta=1e-6
    )
    question = Question(Mechanism(**{k: v for k, v in given.items() if k != "delta"}), 1e-6)
    [ours] = composed_losses(question, [steps], pessimistic=True)
    collapsed = question.mechanism.collapsed()
    theirs = from_gaussian_mechanism(
        collapsed.noise_multiplier,
        value_discretization_interval=ours.directions[0]._discretization,
        sampling_prob=collapsed.sample_rate,
        neighboring_relation=NeighborRel[
            {"substitute": "REPLACE_ONE", "add_remove": "ADD_OR_REMOVE_ONE"}[adjacency]
        ],
    ).self_compose(collapsed.num_steps)
    assert ours.distribution._symmetric == theirs._symmetric
    for mine, other in zip(ours.directions, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        for epsilon in (-1.0, 0.0, 0.1, 1.0, 3.0):
            delta = other.get_delta_for_epsilon(epsilon)
            assert mine.get_delta_for_epsilon(epsilon) == pytest.approx(delta, rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("q", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 30.0])
@pytest.mark.parametrize("kind", [SubstituteLoss, RemoveLoss, AddLoss])
def test_losses_are_those_of_their_densities(kind, q: float, sigma: float) -> None:
    loss = kind(q, sigma)
    draws = np.linspace(-6, 6, 41) * sigma
    log_p, log_q = loss.log_densities(draws)
    losses = log_p - log_q
    # P's mass where the loss is at most losses[i], as a sum of P's density.
    fine = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 200_001)
    fine_p, fine_q = loss.log_densities(fine)
    mass = np.exp(fine_p)
    mass /= mass.sum()
    direct = [mass[fine_p - fine_q <= value].sum() for value in losses]
    np.testing.assert_allclose(loss.below(losses), direct, atol=2e-4)
    np.testing.assert_allclose(loss.above(losses), 1 - np.array(direct), atol=2e-4)


@pytest.mark.parametrize("q", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.0, 30.0])
def test_substitute_inverse(q: float, sigma: float) -> None:
    loss = SubstituteLoss(q, sigma)
    largest = np.subtract(*loss.log_densities(np.array(8 * sigma + 1)))
    t = np.linspace(-largest, largest, 101)
    log_p, log_q = loss.log_densities(loss.inverse(t))
    np.testing.assert_allclose(log_p - log_q, t, rtol=1e-9, atol=1e-11 * largest)


def test_losses_keep_precision_in_both_tails() -> None:
    loss = SubstituteLoss(0.25, 2.0)
    far = np.array([6.0, 8.0])
    # The pair is symmetric: P(L > t) = E_P[...] and P(L < -t) come from mirrored mixtures.
    assert 0 < loss.above(far)[1] < loss.above(far)[0] < 1e-8
    assert 0 < loss.below(-far)[1] < loss.below(-far)[0] < 1e-10
    tail = loss.probability(far[:1], far[1:])
    assert tail[0] == pytest.approx(loss.above(far)[0] - loss.above(far)[1], rel=1e-12)


def test_divergence_bounds_are_those_of_gaussians() -> None:
    # Without sampling both divergences are alpha mu^2 / 2.
    for alpha in (1.1, 2.0, 63.0):
        assert SubstituteLoss(1.0, 5.0).rdp(alpha) == pytest.approx(alpha * 0.16 / 2, rel=1e-9)
        assert RemoveLoss(1.0, 0.5).rdp(alpha) == pytest.approx(alpha * 4 / 2, rel=1e-9)
    # For alpha = 2 it is log(1 + q^2 (e^(1/s^2) - 1)).
    expected = np.log1p(0.01**2 * np.expm1(1.0))
    assert RemoveLoss(0.01, 1.0).rdp(2.0) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "adjacency"),
    [("pld", "substitute"), ("prv", "add_remove"), ("group_privacy", "substitute")],
)
@pytest.mark.parametrize(
    ("name", "values", "sign"),
    [
        ("sample_rate", (0.05, 0.15, 0.25), 1),
        ("noise_multiplier", (3.0, 6.0, 60.0), -1),
        ("num_steps", (1, 50, 500), 1),
        ("delta", (1e-8, 1e-5, 1e-3), -1),
    ],
)
def test_epsilon_is_monotone(method: str, adjacency: str, name: str, values, sign: int) -> None:
    uppers = [
        _upper(**setting(adjacency=adjacency, **{name: value}), method=method) for value in values
    ]
    assert all(sign * (after - before) > 0 for before, after in pairwise(uppers))


def test_adjacencies_are_ordered() -> None:
    add, substitute, group = (
        bounds_of(**setting(adjacency=adjacency), method=method)
        for adjacency, method in [
            ("add_remove", "pld"),
            ("substitute", "pld"),
            ("substitute", "group_privacy"),
        ]
    )
    assert add.upper < substitute.lower
    assert substitute.upper < group.lower


@pytest.mark.parametrize("method", ["pld", "prv"])
def test_zero_out_has_the_values_of_add_remove(method: str) -> None:
    found = [
        bounds_of(**setting(adjacency=adjacency), method=method)
        for adjacency in ("zero_out", Adjacency.ADD_REMOVE)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["pld", "prv", "closed_form", "group_privacy"])
def test_nothing_leaks_where_delta_covers_it(method: str) -> None:
    bounds = bounds_of(
        **setting(sample_rate=1.0, noise_multiplier=1e4, num_steps=1, delta=0.01), method=method
    )
    assert bounds.lower == 0.0
    assert bounds.upper <= (2e-3 if method == "prv" else 0.0)
    assert isinstance(bounds, EpsilonBounds)


@pytest.mark.parametrize(
    ("q", "method"),
    [(0.25, "pld"), (1.0, "pld"), (0.25, "prv"), (1.0, "closed_form"), (0.25, "group_privacy")],
)
def test_curve_equals_single_calls(q: float, method: str) -> None:
    given = setting(sample_rate=q)
    del given["num_steps"]
    steps = [500, 25, 100]
    curve = uppers_of(**given, steps=steps, method=method)
    single = [bounds_of(**given, num_steps=t, method=method).upper for t in steps]
    assert curve == pytest.approx(single, rel=1e-9)
    assert curve[1] < curve[2] < curve[0]


CALIBRATED = [
    ("pld", 0.25, "substitute"),
    ("pld", 0.25, "add_remove"),
    ("pld", 1.0, "substitute"),
    ("prv", 0.25, "substitute"),
    ("closed_form", 1.0, "add_remove"),
    ("group_privacy", 0.25, "substitute"),
]


@pytest.mark.parametrize(
    ("method", "q", "adjacency", "epsilon"),
    [
        (*case, epsilon)
        for case in CALIBRATED
        for epsilon in (0.1, 1.0, 10.0, 100.0)
        # For an epsilon of 100, group privacy needs a delta of about 1e-27. It refuses that, as
        # test_accounting_errors.py shows.
        if (case[0], epsilon) != ("group_privacy", 100.0)
    ],
)
def test_calibration_round_trip(method: str, q: float, adjacency: str, epsilon: float) -> None:
    given = setting(sample_rate=q, adjacency=adjacency, num_steps=20, method=method)
    del given["noise_multiplier"]
    sigma = noise_for(**given, epsilon=epsilon)
    assert _upper(**given, noise_multiplier=sigma) <= epsilon
    assert _upper(**given, noise_multiplier=sigma * (1 - 1e-4)) > epsilon


def test_collapsing_keeps_sampled_settings() -> None:
    steps = {"num_steps": 4, "noise_multiplier": 2.0}
    sampled = Mechanism(Adjacency.SUBSTITUTE, sample_rate=0.5, **steps)
    assert sampled.collapsed() is sampled
    full = Mechanism(Adjacency.SUBSTITUTE, sample_rate=1.0, **steps).collapsed()
    assert (full.noise_multiplier, full.num_steps) == (1.0, 1)


def test_noise_that_is_not_given_is_asked_for() -> None:
    mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=500)
    with pytest.raises(InputError, match="noise_multiplier is nan"):
        account_epsilon(mechanism, delta=1e-5, method="closed_form")
    same = Mechanism("substitute", sample_rate=1.0, num_steps=500, noise_multiplier=float("nan"))
    assert mechanism == same
    assert hash(mechanism) == hash(same)
    assert mechanism != mechanism.with_noise(1.0)
    sigma = calibrate_noise(mechanism, epsilon=9.992, delta=1e-5, method="closed_form")
    known = mechanism.with_noise(sigma)
    assert account_epsilon(known, delta=1e-5, method="closed_form").upper <= 9.992
    assert known.under("add_remove").adjacency is Adjacency.ADD_REMOVE


@pytest.mark.parametrize(
    ("adjacency", "sensitivity"),
    [(Adjacency.ADD_REMOVE, 1), (Adjacency.ZERO_OUT, 1), (Adjacency.SUBSTITUTE, 2)],
)
def test_the_noise_of_an_audit_is_calibrated_under_its_adjacency(
    adjacency: Adjacency, sensitivity: int
) -> None:
    """Full batches are one Gaussian mechanism, which has a closed form."""
    stage = NoiseStage(
        adjacency=adjacency,
        sample_rate=1.0,
        accounted_steps=40,
        noise_multiplier=None,
        target_epsilon=3.0,
        target_delta=1e-6,
    )
    exact = sensitivity * sqrt(40) / gdp_mu(epsilon=3.0, delta=1e-6)
    assert noise_of(stage) == pytest.approx(exact, rel=1e-3)
