"""One contract for all accountants: known epsilons, order, agreement, and phases."""

from collections.abc import Callable
from inspect import signature
from itertools import product
from math import exp, inf, isnan, log, nan, sqrt
from time import process_time
from typing import Any

import numpy as np
import pytest
from accounts import bounds_of, noise_for, setting, tails_of_step, upper_of
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling import some_of
from scipy.stats import norm

from dpcanary import account_by_adjacency, account_epsilon
from dpcanary.accounting import Phase, account_epsilon_curve, account_phases
from dpcanary.accounting.audit_noise import NoiseStage, noise_of
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism, steps_of_epochs
from dpcanary.accounting.phases import curve_of_phases
from dpcanary.accounting.pld import least_delta
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_delta, gdp_epsilon, gdp_mu
from dpcanary.errors import AccountingError, InputError

PLD, PRV, CLOSED_FORM, GROUP_PRIVACY, LOOSE = AccountingMethod
BOTH = ("add_remove", "substitute")
SENSITIVITY = {"substitute": 2, "add_remove": 1, "zero_out": 1}
EXAMPLES = {CLOSED_FORM: 100, PLD: 4, GROUP_PRIVACY: 2}  # one for others, which are slow
each_method = pytest.mark.parametrize("method", AccountingMethod)


def log_uniform(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(0, 1).map(lambda share: least * (most / least) ** share)


def settings_for(method: AccountingMethod) -> st.SearchStrategy[dict[str, Any]]:
    adjacencies = [Adjacency.SUBSTITUTE] if method is GROUP_PRIVACY else [*Adjacency]
    # Rare sampling takes prv long, and group privacy refuses it for large epsilons.
    rates = log_uniform(0.25 if method in (PRV, GROUP_PRIVACY) else 0.02, 0.5)
    return st.builds(
        dict,
        method=st.just(method),
        adjacency=st.sampled_from(adjacencies),
        sample_rate=st.just(1.0) if method is CLOSED_FORM else rates,
        noise_multiplier=log_uniform(3.0, 20.0),
        num_steps=st.integers(1, 16),
        delta=log_uniform(1e-8, 1e-2),
    )


def for_examples(method: AccountingMethod, holds: Callable[..., None], **strategies: Any) -> None:
    settings(max_examples=EXAMPLES.get(method, 1))(given(**strategies)(holds))()


# (sample_rate, noise_multiplier): epsilon under add/remove, under substitute and by group privacy,
# at delta 1e-5 after 500 steps, printed to three digits.
ANCHORS = {
    (1.0, 22.370): (4.375, 9.992, 11.042),
    (0.25, 42.080): (0.465, 0.990, 0.994),
    (0.25, 5.574): (4.475, 9.997, 11.399),
    (0.0625, 10.495): (0.470, 0.993, 1.006),
    (0.0625, 1.6773): (4.140, 7.997, 10.579),
}


def test_upper_epsilons_match_the_table() -> None:
    kinds = [("add_remove", PLD), ("substitute", PLD), ("substitute", GROUP_PRIVACY)]
    for (q, sigma), epsilons in ANCHORS.items():
        arguments = setting(sample_rate=q, noise_multiplier=sigma)
        uppers = [upper_of(**arguments | {"adjacency": name}, method=by) for name, by in kinds]
        assert uppers == pytest.approx(epsilons, abs=6e-4), (q, sigma)


def divergence(adjacency: str, epsilon: float, **step: float) -> float:
    """Hockey-stick divergence of one step in the worse direction, without a loss distribution."""
    reach = 12 * step["noise_multiplier"] + 1
    above, below = tails_of_step(adjacency, np.linspace(-reach, reach, 200_001), **step)
    excesses = (above[0] - exp(epsilon) * above[1], below[1] - exp(epsilon) * below[0])
    return float(np.max(excesses))


@pytest.mark.parametrize(("q", "sigma"), [(0.25, 2.0), (0.05, 0.8), (0.7, 5.0)])
def test_one_sampled_step_has_the_divergence_of_its_best_threshold(q: float, sigma: float) -> None:
    step = {"sample_rate": q, "noise_multiplier": sigma}
    for method, adjacency in product((PLD, PRV), Adjacency):
        arguments = setting(adjacency=adjacency, num_steps=1, delta=1e-4, method=method, **step)
        epsilons = vars(bounds_of(**arguments)).values()
        lower, estimate, upper = (divergence(adjacency, epsilon, **step) for epsilon in epsilons)
        assert lower >= 1e-4 * (1 - 1e-6)
        assert estimate == pytest.approx(1e-4, rel=2e-3)
        assert upper <= 1e-4 * (1 + 1e-6)


@pytest.mark.parametrize("adjacency", BOTH)
def test_noise_at_rare_sampling_is_right_and_soon_found(adjacency: str) -> None:
    """Most losses of a step are tiny, but some are large: one grid for both would be huge."""
    q, epsilon, delta = 0.001, 10.0, 1e-5
    start = process_time()
    sigma = noise_for(adjacency=adjacency, epsilon=epsilon, delta=delta, sample_rate=q, num_steps=1)
    assert process_time() - start < 10
    exact, less = (
        divergence(adjacency, epsilon, sample_rate=q, noise_multiplier=noise)
        for noise in (sigma, sigma * (1 - 1e-4))
    )
    assert exact <= delta < less


@each_method
def test_epsilon_falls_with_noise_and_delta_and_rises_with_rate_and_steps(method) -> None:
    signs = {"sample_rate": 1, "num_steps": 1, "noise_multiplier": -1, "delta": -1}
    if method is CLOSED_FORM:
        del signs["sample_rate"]

    def holds(start: dict[str, Any]) -> None:
        before = upper_of(**start)
        for name, sign in signs.items():
            after = upper_of(**start | {name: 2 * start[name]})
            assert sign * (after - before) > 0 or before == after == 0

    for_examples(method, holds, start=settings_for(method))


@settings(max_examples=15)
@given(start=settings_for(PLD))
def test_adjacencies_are_ordered(start) -> None:
    """Group privacy bounds a substitution by a removal and an addition."""
    add_remove, zero_out, substitute = (
        upper_of(**start | {"adjacency": name}) for name in ("add_remove", "zero_out", "substitute")
    )
    group = upper_of(**start | {"adjacency": "substitute", "method": GROUP_PRIVACY})
    assert add_remove == zero_out <= substitute
    assert add_remove < substitute or substitute == 0
    assert substitute <= group * (1 + 1e-3) + 1e-6  # the errors of their grids


def test_prv_has_the_values_of_add_remove_for_zero_out() -> None:
    same = [bounds_of(**setting(adjacency=name), method=PRV) for name in ("zero_out", "add_remove")]
    assert same[0] == same[1]


@each_method
def test_calibration_and_accounting_are_inverse(method) -> None:
    def holds(start: dict[str, Any], epsilon: float) -> None:
        sigma = noise_for(**start, epsilon=epsilon)
        assert upper_of(**start | {"noise_multiplier": sigma}) <= epsilon
        assert upper_of(**start | {"noise_multiplier": sigma * (1 - 1e-4)}) > epsilon

    # Group privacy needs a delta that is far smaller the larger epsilon is, and then refuses it.
    most = 4.0 if method is GROUP_PRIVACY else 100.0
    start = settings_for(method).map(lambda start: start | {"delta": 1e-5})
    for_examples(method, holds, start=start, epsilon=log_uniform(0.5, most))


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize("method", [PLD, PRV, CLOSED_FORM])
def test_full_batches_are_a_gaussian_mechanism(method, adjacency) -> None:
    sizes = [(22.37, 500, 1e-5), (22.37, 500, 1e-12), (4.0, 500, 1e-5), (1e4, 500, 1e-5)]
    sizes += [(1e4, 500, 1e-8), (1e4, 1, 1e-12)]  # tiny, and about 110 under substitute at 4
    for sigma, steps, delta in sizes:
        exact = gdp_epsilon(mu=SENSITIVITY[adjacency] * sqrt(steps) / sigma, delta=delta)
        mechanism = Mechanism(adjacency, sample_rate=1.0, noise_multiplier=sigma, num_steps=steps)
        bounds = account_epsilon(mechanism, delta=delta, method=method)
        assert bounds.lower <= exact * (1 + 1e-12)
        assert bounds.upper >= exact * (1 - 1e-12)
        # prv-accountant's errors are absolute: they do not shrink with a small epsilon.
        error = 1e-4 if method is PRV else 1e-7
        assert bounds.estimate == pytest.approx(exact, rel=5e-4, abs=error)


@each_method
def test_nothing_leaks_where_delta_covers_it(method) -> None:
    options = setting(sample_rate=1.0, noise_multiplier=1e4, num_steps=1, delta=0.01, method=method)
    bounds = bounds_of(**options)
    assert bounds.lower == 0.0
    assert bounds.upper <= (2e-3 if method is PRV else 0.0)


MECHANISMS = [(0.25, 5.574, 500), (0.01, 1.0, 1000), (0.0625, 1.6773, 500), (0.25, 0.7, 3)]
MECHANISMS += [(0.001, 0.25, 10), (0.9, 2.0, 10), (1.0, 22.37, 500)]  # rates, noises, steps
CASES = [*product(MECHANISMS, (1e-5, 1e-8), BOTH)]


@pytest.mark.parametrize(("mechanism", "delta", "adjacency"), some_of(CASES, every=7))
def test_prv_and_pld_agree(mechanism, delta, adjacency) -> None:
    arguments = dict(zip(("sample_rate", "noise_multiplier", "num_steps"), mechanism, strict=True))
    arguments |= {"adjacency": adjacency, "delta": delta}
    pld, prv = (bounds_of(**arguments, method=method) for method in (PLD, PRV))
    # Each interval holds the other's best value, up to 1e-4, and the best values nearly agree.
    assert pld.lower <= prv.estimate <= pld.upper * (1 + 1e-4)
    assert prv.lower <= pld.estimate <= prv.upper
    assert prv.estimate == pytest.approx(pld.estimate, rel=2e-4)


@each_method
def test_a_curve_has_the_epsilons_of_single_calls_in_the_order_of_its_steps(method) -> None:
    rate, steps = 1.0 if method is CLOSED_FORM else 0.25, [100, 5, 20]
    mechanism = Mechanism("substitute", sample_rate=rate, noise_multiplier=5.574, num_steps=1)
    curve = account_epsilon_curve(mechanism, steps=steps, delta=1e-5, method=method)
    longer = [mechanism.after(count) for count in steps]
    single = [account_epsilon(own, delta=1e-5, method=method).upper for own in longer]
    assert curve == pytest.approx(single, rel=1e-9)
    assert curve[1] < curve[2] < curve[0]


def test_full_steps_are_collapsed_and_noise_that_is_not_given_is_asked_for() -> None:
    sampled = Mechanism("substitute", sample_rate=0.5, num_steps=4, noise_multiplier=2.0)
    assert sampled.collapsed() == sampled
    mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=4)
    full = mechanism.with_noise(2.0).collapsed()
    assert (full.noise_multiplier, full.num_steps) == (1.0, 1)
    with pytest.raises(InputError, match="noise_multiplier is nan"):
        account_epsilon(mechanism, delta=1e-5, method="closed_form")
    same = mechanism.with_noise(float("nan"))
    assert mechanism == same
    assert hash(mechanism) == hash(same)
    assert mechanism != mechanism.with_noise(1.0)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_noise_of_an_audit_is_calibrated_under_its_adjacency(adjacency) -> None:
    """Full batches are one Gaussian mechanism, and 40 passes of shuffled batches are another."""
    targets = {"noise_multiplier": None, "target_epsilon": 3.0, "target_delta": 1e-6}
    stage = NoiseStage(adjacency=adjacency, sample_rate=1.0, accounted_steps=40, **targets)
    exact = sqrt(40) / gdp_mu(epsilon=3.0, delta=1e-6)
    assert noise_of(stage) == pytest.approx(SENSITIVITY[adjacency] * exact, rel=1e-3)
    shuffled = stage.model_copy(update={"batches_per_pass": 7, "sample_rate": 1 / 7})
    moves = sqrt(5) if adjacency == "add_remove" else SENSITIVITY[adjacency]
    assert noise_of(shuffled) == pytest.approx(moves * exact, rel=1e-3)


@pytest.mark.parametrize(("noises", "steps", "most"), [
    ([12.0, 20.0, 9.0], [30, 50, 1], 1.001),
    pytest.param(
        [6.0, *6.0 * 2 ** (np.arange(0.9, 100) / 100), 12.0], [5] * 102, 1.02,
        marks=pytest.mark.long,
    ),
], ids=["few", "hundreds"])  # fmt: skip
def test_full_batches_are_one_gaussian_mechanism_on_the_safe_side(noises, steps, most) -> None:
    """Noise of more than 100 phases is rounded, never up: nearly all are just below a grid's."""
    phases = [Phase(float(noise), 1.0, count) for noise, count in zip(noises, steps, strict=True)]
    mu = sqrt(sum(phase.num_steps / phase.noise_multiplier**2 for phase in phases))
    epsilons = account_phases(phases, delta=1e-6)
    for epsilon, sensitivity in ((epsilons.add_remove, 1), (epsilons.substitute, 2)):
        exact = gdp_epsilon(mu=sensitivity * mu, delta=1e-6)
        assert exact - 1e-6 <= epsilon <= most * exact
    assert isnan(epsilons.group_privacy)


def test_phases_of_the_same_kind_are_one() -> None:
    noise, rate = 0.9, 0.02
    mechanism = Mechanism("substitute", sample_rate=rate, num_steps=90, noise_multiplier=noise)
    whole = account_by_adjacency(mechanism, delta=1e-6)
    same, composed = (
        account_phases([Phase(noise, rate, 40), Phase(noise + change, rate, 50)], delta=1e-6)
        for change in (0.0, 1e-9)
    )
    assert same == whole
    assert composed.substitute == pytest.approx(whole.substitute, rel=2e-3)
    assert composed.add_remove == pytest.approx(whole.add_remove, rel=2e-3)


def test_phases_have_the_round_off_of_their_steps_on_the_safe_side() -> None:
    noise, rate, steps = 20.0, 0.1, 20_000
    whole = Mechanism("substitute", sample_rate=rate, num_steps=steps, noise_multiplier=noise)
    delta = 1.01 * least_delta(steps)
    halves = [Phase(share * noise, rate, steps // 2) for share in (1, 1 - 1e-9)]
    expected, epsilons = (
        account_by_adjacency(whole, delta=delta),
        account_phases(halves, delta=delta),
    )
    assert epsilons.add_remove == pytest.approx(expected.add_remove, rel=2e-3)
    assert epsilons.substitute == pytest.approx(expected.substitute, rel=2e-3)
    # A larger epsilon than dp-accounting can represent.
    mu = 2 * sqrt(1 / 0.08**2 + 1 / 0.09**2)
    loose = account_phases([Phase(0.08, 1.0, 1), Phase(0.09, 1.0, 1)], delta=1e-6)
    assert loose.method == "loose"
    assert 700 < gdp_epsilon(mu=mu, delta=1e-6) <= loose.substitute
    # Noise whose square is 0.
    with pytest.raises(AccountingError, match=r"2 phases under substitute, .*dp-accounting failed"):
        curve_of_phases([Phase(1e-200, 0.1, 1), Phase(1.0, 0.1, 1)], Adjacency.SUBSTITUTE)


def test_phases_with_very_different_losses_share_a_grid_of_few_points() -> None:
    """A fine grid for the losses of the second would have millions of points for the first."""
    phases = [Phase(0.3, 0.001, 10), Phase(4.0, 0.001, 10_000)]
    epsilon = account_phases(phases, delta=1e-5).substitute
    alone, *parts = (
        upper_of(adjacency="substitute", delta=delta, **vars(phase))
        for phase, delta in ((phases[0], 1e-5), (phases[0], 5e-6), (phases[1], 5e-6))
    )
    assert alone < epsilon < sum(parts)


def test_phases_lie_between_their_extremes_and_below_renyi() -> None:
    phases = [Phase(1.1, 0.05, 100), Phase(1.6, 0.02, 200)]
    epsilon = account_phases(phases, delta=1e-6).add_remove
    renyi = RdpAccountant()
    for phase in phases:
        event = PoissonSampledDpEvent(phase.sample_rate, GaussianDpEvent(phase.noise_multiplier))
        renyi.compose(event, phase.num_steps)
        alone = Mechanism("add_remove", **vars(phase))
        assert account_by_adjacency(alone, delta=1e-6).add_remove < epsilon
    assert epsilon < renyi.get_epsilon(1e-6)
    for phases, delta, message in (
        ([], 1e-6, "empty"),
        ([Phase(1.0, 1.5, 3)], 1e-6, "sample_rate"),
        ([Phase(1.0, 0.5, 3)], 2.0, "delta"),
    ):
        with pytest.raises(InputError, match=message):
            account_phases(phases, delta=delta)


def test_a_part_of_a_step_counts_as_one_step() -> None:
    assert [steps_of_epochs(n, steps_per_pass=10) for n in (1e-9, 0.1, 0.11, 2.0)] == [1, 1, 2, 20]


@given(log_mu=st.floats(-7, 4), log_delta=st.floats(-35, -4.6))
def test_gaussian_conversions_invert_each_other(log_mu: float, log_delta: float) -> None:
    mu, delta = exp(log_mu), exp(log_delta)
    epsilon = gdp_epsilon(mu=mu, delta=delta)
    if gdp_delta(mu=mu, epsilon=0.0) <= delta:
        assert epsilon == 0.0
        return
    assert epsilon > 0
    assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(delta, rel=1e-8)
    assert gdp_mu(epsilon=epsilon, delta=delta) == pytest.approx(mu, rel=1e-8)


def test_gaussian_delta_matches_direct_integration_and_conversions_have_their_ends() -> None:
    for mu, epsilon in [(0.5, 0.3), (2.0, 3.0), (4.0, 12.0), (1.0, -0.7)]:
        x = np.linspace(epsilon / mu - mu / 2, epsilon / mu + 12, 400_001)
        excess = norm.pdf(x) * -np.expm1(epsilon - mu * x - mu**2 / 2)
        direct = np.trapezoid(excess, x)
        assert gdp_delta(mu=mu, epsilon=epsilon) == pytest.approx(direct, rel=1e-8)
    assert gdp_epsilon(mu=0.0, delta=1e-5) == 0.0
    assert gdp_epsilon(mu=inf, delta=1e-5) == gdp_mu(epsilon=inf, delta=1e-5) == inf
    for mu in (1e7, 1e9, 1e100):
        assert mu**2 / 2 <= gdp_epsilon(mu=mu, delta=1e-5) <= mu**2 / 2 * (1 + 1e-6)
    assert gdp_delta(mu=0.0, epsilon=1.0) == 0.0
    assert gdp_delta(mu=0.0, epsilon=log(0.25)) == pytest.approx(0.75)
    assert gdp_delta(mu=inf, epsilon=1.0) == 1.0
    assert gdp_delta(mu=gdp_mu(epsilon=0.0, delta=1e-5), epsilon=0.0) == pytest.approx(1e-5)


BAD = {"mu": (-1.0, nan), "delta": (0.0, 1.0, nan), "epsilon": (nan,)}


@pytest.mark.parametrize("function", [gdp_delta, gdp_epsilon, gdp_mu])
def test_gaussian_conversions_refuse_bad_arguments(function) -> None:
    good = dict.fromkeys(signature(function).parameters, 0.5)
    further = {gdp_delta: [("epsilon", inf)], gdp_mu: [("epsilon", -1.0)]}
    cases = [(name, value) for name in good for value in BAD[name]]
    for name, value in cases + further.get(function, []):
        with pytest.raises(InputError, match=name):
            function(**good | {name: value})
