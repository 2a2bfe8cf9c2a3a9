"""Trade-off curves against closed forms, thresholds on one step, and an accountant."""

import numpy as np
import pytest
from accounts import bounds_of, tails_of_step, upper_of
from scipy.optimize import brentq
from scipy.stats import norm

from dpcanary import AccountingError, InputError, Mechanism
from dpcanary.accounting import gdp_epsilon, trade_off_curve
from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.curve import GaussianCurve
from dpcanary.accounting.exact_trade_off import gaussian_distance
from dpcanary.core.adjacency import Adjacency

LOW = np.geomspace(1e-8, 0.5, 2001)
RATES = np.concatenate([[0.0], LOW, 1 - LOW[-2::-1], [1.0]])


STEP = {"sample_rate": 0.0625, "noise_multiplier": 1.6773}
every_adjacency = pytest.mark.parametrize("adjacency", Adjacency)


def _curve(adjacency="substitute", sample_rate=0.0625, noise_multiplier=1.6773, num_steps=500):
    step = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier}
    return trade_off_curve(Mechanism(adjacency, num_steps=num_steps, **step))


@every_adjacency
def test_without_sampling_the_curve_is_gaussian(adjacency) -> None:
    mu = 2.0 if adjacency == "substitute" else 1.0
    curve = _curve(adjacency, 1.0, 5.0, num_steps=25)
    np.testing.assert_allclose(curve.fnr(RATES), norm.cdf(norm.isf(RATES) - mu), rtol=1e-9)
    assert curve.epsilon(1e-5) == pytest.approx(gdp_epsilon(mu=mu, delta=1e-5), rel=1e-12)
    assert gaussian_distance(curve, delta=1e-5) == 0.0


@every_adjacency
@pytest.mark.parametrize(
    ("q", "sigma"), [(0.01, 0.5), (0.01, 10.0), (0.0625, 1.0), (0.5, 1.0), (0.9, 2.0)]
)
def test_one_step_against_thresholds_on_its_gradient(adjacency, q, sigma) -> None:
    cuts = np.linspace(-8 * sigma - 2, 8 * sigma + 2, 3001)
    (_, fpr), (fnr, _) = tails_of_step(adjacency, cuts, sample_rate=q, noise_multiplier=sigma)
    own = _curve(adjacency, q, sigma, num_steps=1).fnr(fpr)
    assert (own <= fnr).all()  # never above the exact curve
    np.testing.assert_allclose(own, fnr, atol=1e-5)
    tail = fnr > 1e-8
    np.testing.assert_allclose(own[tail], fnr[tail], rtol=5e-3)


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_the_other_accountant_has_the_same_profile(adjacency, delta) -> None:
    """The profile at epsilon is 1 minus the least of FNR + exp(epsilon) FPR, in either order."""
    bounds = bounds_of(adjacency=adjacency, delta=delta, method="prv", num_steps=500, **STEP)
    fpr = np.concatenate([np.geomspace(1e-15, 0.5, 20_001), 1 - np.geomspace(1e-15, 0.5, 20_001)])
    fnr = _curve(adjacency).fnr(fpr)
    lower, upper = (
        1 - min(np.min(fnr + np.exp(e) * fpr), np.min(fpr + np.exp(e) * fnr))
        for e in (bounds.upper, bounds.lower)
    )
    assert lower <= delta * (1 + 1e-3)
    assert upper >= delta * (1 - 1e-3)


@every_adjacency
def test_curves_are_convex_and_fall(adjacency) -> None:
    """In a long, a short and a single step; under substitute, the worlds can be exchanged."""
    for case in ((0.0625, 1.6773, 500), (0.25, 2.0, 25), (0.01, 0.4, 1)):
        curve, rates = _curve(adjacency, *case), np.linspace(0, 1, 2001)
        fnr = curve.fnr(rates)
        assert fnr[0] == pytest.approx(1.0, abs=1e-12)
        assert fnr[-1] == 0.0
        assert (fnr <= 1 - rates).all()
        assert (np.diff(fnr) <= 0).all()
        assert (np.diff(fnr, 2) >= -1e-14).all()
        if adjacency == "substitute":
            rates = np.linspace(0.001, 0.5, 500)
            np.testing.assert_allclose(curve.fnr(curve.fnr(rates)), rates, rtol=1e-8)


def test_epsilons_are_the_accountants_and_rates_keep_their_shape() -> None:
    expected = upper_of(adjacency="add_remove", num_steps=500, delta=1e-5, **STEP)
    assert _curve("add_remove").epsilon(1e-5) == expected
    curve = _curve()
    assert curve.fnr(np.full((4, 5), 0.1)).shape == (4, 5)
    assert curve.fnr(0.1) == curve.fnr([0.1])[0] == pytest.approx(0.353, abs=1e-3)


def test_the_gaussian_distance_is_that_of_a_finer_search_also_in_the_accounting_table() -> None:
    curve = _curve("substitute", 0.0625, 1.0, num_steps=25)
    epsilon = curve.epsilon(1e-5)
    mu = brentq(lambda mu: gdp_epsilon(mu=mu, delta=1e-5) - epsilon, 0.1, 2.0)
    rates = np.linspace(0, 1, 400_001)
    finer = np.abs(curve.fnr(rates) - GaussianCurve(mu).fnr(rates)).max()
    assert gaussian_distance(curve, delta=1e-5) == pytest.approx(finer, abs=1e-4)
    known = {"record_steps": (25, 500), "canary_period": None, "delta": 1e-5}
    stage = AccountingStage(sample_rate=0.0625, **known)
    for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE):
        own = stage.model_copy(update={"adjacency": adjacency})
        table = upper_bounds(own, noise_multiplier=1.6773)
        for steps, distance in zip(stage.record_steps, table["gaussian_distance"], strict=True):
            expected = gaussian_distance(_curve(adjacency, num_steps=steps), delta=1e-5)
            assert distance == pytest.approx(expected, abs=1e-6)
    full = upper_bounds(stage.model_copy(update={"sample_rate": 1.0}), noise_multiplier=22.37)
    assert full["gaussian_distance"].tolist() == [0.0, 0.0]


def test_refusals_name_the_mechanism_and_what_to_do() -> None:
    curve = _curve()
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match=f"fpr has the value {rate}"):
            curve.fnr([0.5, rate])
    with pytest.raises(AccountingError, match="delta=1e-16"):
        curve.epsilon(1e-16)
    for refused in (curve.epsilon, lambda delta: gaussian_distance(curve, delta=delta)):
        with pytest.raises(InputError, match="delta is 0"):
            refused(0.0)
    expected = (
        "no trade-off curve for adjacency='substitute', sample_rate=0.001, noise_multiplier=0.7,"
        " num_steps=10000: the losses of a step span too wide a grid; raise noise_multiplier"
    )
    with pytest.raises(AccountingError, match=f"^{expected}$"):
        _curve(sample_rate=1e-3, noise_multiplier=0.7, num_steps=10_000)
