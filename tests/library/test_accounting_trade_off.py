"""Trade-off curves, and what they mean: against closed forms, thresholds, and accountants."""

import re
from math import exp, inf, nan

import numpy as np
import pytest
from accounts import bounds_of, tails_of_step, upper_of
from dp_accounting.pld.privacy_loss_distribution import NeighborRel, from_gaussian_mechanism
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from dpcanary import AccountingError, InputError, Mechanism, account_by_adjacency
from dpcanary.accounting import (
    Phase,
    ShuffledMechanism,
    account_group,
    account_phases,
    calibrate_guess,
    gdp_epsilon,
    limits_of_curve,
    meaning_of,
    meaning_of_epsilons,
    trade_off_curve,
)
from dpcanary.accounting import exact_trade_off as trade_off
from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.curve import GaussianCurve
from dpcanary.accounting.exact_trade_off import gaussian_distance
from dpcanary.accounting.groups import curves_of_group
from dpcanary.accounting.meaning import EpsilonCurve
from dpcanary.core.adjacency import Adjacency
from dpcanary.estimation import shown_success
from dpcanary.reports.headline import Headline, meaning_in_words

STEP = {"sample_rate": 0.0625, "noise_multiplier": 1.6773}
every_adjacency = pytest.mark.parametrize("adjacency", Adjacency)


def _curve(adjacency="substitute", sample_rate=0.0625, noise_multiplier=1.6773, num_steps=500):
    step = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier}
    return trade_off_curve(Mechanism(adjacency, num_steps=num_steps, **step))


@every_adjacency
def test_without_sampling_the_curve_is_gaussian(adjacency) -> None:
    mu = 2.0 if adjacency == "substitute" else 1.0
    curve = _curve(adjacency, 1.0, 5.0, num_steps=25)
    rates = np.append(norm.cdf(np.linspace(-6, 6, 4001)), [0.0, 1.0])
    np.testing.assert_allclose(curve.fnr(rates), norm.cdf(norm.isf(rates) - mu), rtol=1e-9)
    assert curve.epsilon(1e-5) == pytest.approx(gdp_epsilon(mu=mu, delta=1e-5), rel=1e-12)
    assert gaussian_distance(curve, delta=1e-5) == 0.0


@every_adjacency
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.5), (0.01, 10.0), (0.5, 1.0), (0.9, 2.0)])
def test_one_step_against_thresholds_on_its_gradient(adjacency, q, sigma) -> None:
    cuts = np.linspace(-8 * sigma - 2, 8 * sigma + 2, 3001)
    (_, fpr), (fnr, _) = tails_of_step(adjacency, cuts, sample_rate=q, noise_multiplier=sigma)
    own = _curve(adjacency, q, sigma, num_steps=1).fnr(fpr)
    assert (own <= fnr).all()  # never above the exact curve
    np.testing.assert_allclose(own, fnr, atol=1e-5)
    tail = fnr > 1e-8
    np.testing.assert_allclose(own[tail], fnr[tail], rtol=5e-3)


@pytest.mark.parametrize(("adjacency", "delta"), [("substitute", 1e-5), ("add_remove", 1e-2)])
def test_the_other_accountant_has_the_same_profile(adjacency, delta) -> None:
    """The profile at epsilon is 1 minus the least of FNR + exp(epsilon) FPR, in either order."""
    bounds = bounds_of(adjacency=adjacency, delta=delta, method="prv", num_steps=500, **STEP)
    low = np.geomspace(1e-15, 0.5, 20_001)
    fpr = np.concatenate([low, 1 - low])
    fnr = _curve(adjacency).fnr(fpr)
    lower, upper = (
        1 - min(np.min(fnr + np.exp(e) * fpr), np.min(fpr + np.exp(e) * fnr))
        for e in (bounds.upper, bounds.lower)
    )
    assert lower <= delta * (1 + 1e-3)
    assert upper >= delta * (1 - 1e-3)


def test_epsilons_are_the_accountants_and_rates_keep_their_shape() -> None:
    curve = _curve()
    assert curve.epsilon(1e-5) == upper_of(
        adjacency="substitute", num_steps=500, delta=1e-5, **STEP
    )
    assert curve.fnr(np.full((4, 5), 0.1)).shape == (4, 5)
    assert curve.fnr(0.1) == curve.fnr([0.1])[0]


def test_the_gaussian_distance_is_that_of_a_finer_search_also_in_the_accounting_table() -> None:
    curve = _curve("substitute", 0.0625, 1.0, num_steps=25)
    epsilon = curve.epsilon(1e-5)
    mu = brentq(lambda mu: gdp_epsilon(mu=mu, delta=1e-5) - epsilon, 0.1, 2.0)
    rates = np.linspace(0, 1, 400_001)
    finer = np.abs(curve.fnr(rates) - GaussianCurve(mu).fnr(rates)).max()
    assert gaussian_distance(curve, delta=1e-5) == pytest.approx(finer, abs=1e-4)
    options = {"record_steps": (25, 500), "canary_period": None, "delta": 1e-5}
    for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE):
        stage = AccountingStage(sample_rate=0.0625, adjacency=adjacency, **options)
        table = upper_bounds(stage, noise_multiplier=1.6773)
        expected = [
            gaussian_distance(_curve(adjacency, num_steps=steps), delta=1e-5) for steps in (25, 500)
        ]
        assert table["gaussian_distance"].tolist() == pytest.approx(expected, abs=1e-6)
    full = upper_bounds(AccountingStage(sample_rate=1.0, **options), noise_multiplier=22.37)
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


FULL = Mechanism("substitute", sample_rate=1.0, num_steps=100, noise_multiplier=10.0)
SAMPLED = Mechanism("substitute", sample_rate=0.01, num_steps=2000, noise_multiplier=0.9)


@pytest.mark.parametrize("size", [1, 3])
def test_limits_of_the_gaussian_mechanism_have_closed_forms(size):
    """At sample rate 1, mu is the size of a group under add/remove adjacency, and twice that."""
    meaning = meaning_of(FULL, values=[2, 10, 10_000], group_size=size)
    assert meaning.is_exact
    for limits, mu in ((meaning.add_remove, size), (meaning.substitute, 2 * size)):
        for rate, power in limits.true_positive_rates.items():
            assert power == pytest.approx(ndtr(mu + ndtri(rate)), rel=1e-9)
        assert limits.advantage == pytest.approx(2 * ndtr(mu / 2) - 1, rel=1e-9)
    for count, chance in meaning.add_remove.guesses.items():
        assert chance == pytest.approx(ndtr(size + ndtri(1 / count)), rel=1e-9)
    for count, chance in meaning.substitute.guesses.items():
        assert chance == pytest.approx(ndtr(2 * size + ndtri((1 - chance) / (count - 1))), rel=1e-8)
    # For two values, both adjacencies give the same limit; for more, that of add/remove is lower.
    assert meaning.substitute.guesses[2] == pytest.approx(ndtr(size), rel=1e-9)
    assert meaning.guesses[2] == pytest.approx(ndtr(size), rel=1e-9)
    assert meaning.guesses[10] == meaning.add_remove.guesses[10]


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 12.0, inf])
def test_limits_of_pure_privacy_have_closed_forms(epsilon):
    limits = limits_of_curve(EpsilonCurve(epsilon, 0.0), values=[2, 10])
    ratio = exp(epsilon) if epsilon < inf else inf
    for rate, power in limits.true_positive_rates.items():
        assert power == pytest.approx(min(ratio * rate, 1 - (1 - rate) / ratio), rel=1e-9)
    advantage = (ratio - 1) / (ratio + 1) if epsilon < inf else 1.0
    assert limits.advantage == pytest.approx(advantage, abs=1e-9)
    for count, chance in limits.guesses.items():
        expected = 1 / (1 + (count - 1) / ratio)
        assert chance == pytest.approx(expected, rel=1e-9)


# By riskcal 1.5.1 (get_beta_from_pld, get_advantage_from_pld), of dp-accounting 0.6.0's losses
# with a grid of 1e-4, add/remove adjacency: FPR, FNR; and the advantage.
RISKCAL: dict[tuple[float, int, float], tuple[dict[float, float], float]] = {
    # Its rates below 0.1 move by more than 1e-4 with its grid here; dp-accounting's are below.
    (0.01, 2000, 0.9): ({0.1: 0.721535}, 0.265406),
    (0.25, 500, 5.574): ({0.1: 0.607693, 0.01: 0.905734, 0.001: 0.981076}, 0.384996),
    (0.1, 100, 2.0): ({0.1: 0.772411, 0.01: 0.962288, 0.001: 0.994322}, 0.205861),
}


@pytest.mark.parametrize("settings", RISKCAL)
def test_limits_equal_those_of_riskcal(settings):
    rate, steps, noise = settings
    mechanism = Mechanism("add_remove", sample_rate=rate, num_steps=steps, noise_multiplier=noise)
    limits = meaning_of(mechanism).add_remove
    errors, advantage = RISKCAL[settings]
    for fpr, fnr in errors.items():
        assert 1 - limits.true_positive_rates[fpr] == pytest.approx(fnr, abs=1e-4)
    assert limits.advantage == pytest.approx(advantage, abs=1e-4)


@pytest.mark.parametrize(
    "adjacency", ["add_remove", pytest.param("substitute", marks=pytest.mark.long)]
)
def test_limits_are_those_of_dp_accountings_privacy_profile(adjacency):
    """FNR is the largest of 1 - delta - exp(eps) FPR and its mirror image, over all epsilons."""
    relation = {"add_remove": "ADD_OR_REMOVE_ONE", "substitute": "REPLACE_ONE"}[adjacency]
    loss = from_gaussian_mechanism(
        SAMPLED.noise_multiplier,
        sampling_prob=SAMPLED.sample_rate,
        value_discretization_interval=1e-4,
        neighboring_relation=NeighborRel[relation],
    ).self_compose(SAMPLED.num_steps)
    epsilons = np.linspace(0.0, 8.0, 201)
    steep, flat = (  # of the record's presence against its absence, and the other way
        1 - np.array(masses.get_delta_for_epsilon(epsilons))
        for masses in (loss._pmf_remove, loss._pmf_add)
    )
    limits = getattr(meaning_of(SAMPLED), adjacency)
    for rate, power in limits.true_positive_rates.items():
        bounds = [*(steep - np.exp(epsilons) * rate), *(np.exp(-epsilons) * (flat - rate))]
        assert 1 - power == pytest.approx(max(bounds), abs=1e-4)
    assert limits.advantage == pytest.approx(1 - steep[0], abs=1e-4)


@pytest.mark.parametrize(
    ("gradients", "sigma", "least"),
    [(np.eye(10), 0.8, 0.85), (np.array([[1.0], [-1.0]]), 2.0, 1.0)],
)
def test_no_simulated_attack_exceeds_the_limit_and_the_best_is_near_it(gradients, sigma, least):
    """The values have orthogonal gradients; two with opposite gradients attain the limit."""
    q, steps, count, values = 0.2, 20, 100_000, len(gradients)
    rng = np.random.default_rng(0)
    scores = np.zeros((count, values))
    for _ in range(steps):
        sums = sigma * rng.standard_normal((count, gradients.shape[1]))
        sums += (rng.random((count, 1)) < q) * gradients[0]
        # The likelihood ratio of each value to an absent record.
        scores += np.log1p(q * np.expm1((sums @ gradients.T - 0.5) / sigma**2))
    share = float(np.mean(scores.argmax(axis=1) == 0))
    mechanism = Mechanism("substitute", sample_rate=q, num_steps=steps, noise_multiplier=sigma)
    limit, error = meaning_of(mechanism, values=[values]).guesses[values], 3 * (0.25 / count) ** 0.5
    assert least * limit - error <= share <= limit + error


@pytest.mark.long
def test_a_group_of_one_is_a_record_and_larger_groups_are_easier():
    sampled = Mechanism("substitute", sample_rate=0.2, num_steps=20, noise_multiplier=4.0)
    presence, inverse = curves_of_group(sampled, group_size=1)
    exact = trade_off_curve(sampled.under("add_remove"))
    rates = np.array([0.001, 0.01, 0.1, 0.5])
    assert presence.fnr(rates) == pytest.approx(exact.fnr(rates), abs=2e-4)
    assert inverse.fnr(exact.fnr(rates)) == pytest.approx(rates, abs=2e-4)
    before = meaning_of(sampled)
    for size in (2, 4):
        group = meaning_of(sampled, group_size=size)
        assert (group.group_size, group.is_exact, group.by_epsilons) == (size, False, False)
        presence, _ = curves_of_group(sampled, group_size=size)
        rates, powers = zip(*group.add_remove.true_positive_rates.items(), strict=True)
        assert 1 - presence.fnr(rates) == pytest.approx(powers)
        for larger, smaller in (
            (group.add_remove, before.add_remove), (group.substitute, before.substitute),
        ):  # fmt: skip
            assert larger.advantage > smaller.advantage
            assert all(larger.guesses[k] > smaller.guesses[k] for k in larger.guesses)
        # Its curve has the epsilon of the group.
        epsilons, delta = account_group(sampled, group_size=size, delta=1e-5), 1e-5
        ratio = exp(epsilons.add_remove)
        for rate, power in group.add_remove.true_positive_rates.items():
            assert power <= min(delta + ratio * rate, 1.0) + 1e-9
        before = group


def test_equal_phases_mean_what_one_training_means():
    short = SAMPLED.after(200)
    half = Phase(short.noise_multiplier, short.sample_rate, 100)
    other = Phase(short.noise_multiplier * 1.000001, short.sample_rate, 100)
    whole, parts = meaning_of(short), meaning_of([half, other])
    with pytest.raises(InputError, match="group_size is 2: several records of a person need a Me"):
        meaning_of([half, other], group_size=2)
    for mine, their in ((whole.add_remove, parts.add_remove), (whole.substitute, parts.substitute)):
        assert mine.advantage == pytest.approx(their.advantage, abs=2e-3)
        for count, chance in mine.guesses.items():
            assert chance == pytest.approx(their.guesses[count], rel=1e-2)
    assert meaning_of(account_phases([half, other], delta=1e-5)) == parts
    assert meaning_of(account_phases([half, half], delta=1e-5)) == whole


def test_rounded_noise_of_many_phases_is_not_exact():
    phases = [Phase(50.0 + i, 1.0, 1) for i in range(101)]
    epsilons = account_phases(phases, delta=1e-5)
    assert meaning_of(account_phases(phases[:3], delta=1e-5), values=[2]).is_exact
    assert not meaning_of(epsilons, values=[2]).is_exact
    with pytest.raises(InputError, match="phases is empty"):
        meaning_of([])


def test_shuffled_batches_mean_their_guarantee():
    shuffled = ShuffledMechanism(
        "substitute", batches_per_pass=10, num_steps=40, noise_multiplier=4.0
    )
    meaning = meaning_of(shuffled, values=[2])
    assert not meaning.is_exact  # what is guaranteed is a bound
    # Four passes, each of which moves by 2.
    assert meaning.substitute.guesses[2] == pytest.approx(ndtr(2 * 2 / 4.0 / 2), rel=1e-9)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        (FULL, {"max_guess": 0.2, "values": 10}),
        (FULL, {"max_guess": 0.6, "values": 2}),
        (SAMPLED, {"max_guess": 0.2, "values": 10}),
        (FULL, {"max_guess": 0.01, "values": 10_000, "group_size": 3}),
    ],
)
def test_calibrated_noise_reaches_the_largest_guess(mechanism, options):
    size, count = options.get("group_size", 1), options["values"]
    noise = calibrate_guess(mechanism, **options)
    for factor, is_below in ((1.0, True), (0.999, False)):
        tried = mechanism.with_noise(factor * noise)
        guess = meaning_of(tried, values=[count], group_size=size).guesses[count]
        assert (guess <= options["max_guess"]) is is_below


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: meaning_of(FULL, values=[1]), "values is 1"),
        (lambda: meaning_of(FULL, false_positive_rates=[1.0]), "false_positive_rates is"),
        (lambda: calibrate_guess(FULL, max_guess=0.1, values=10), "it must be larger"),
        (lambda: meaning_of(FULL, group_size=0), "group_size is 0"),
        (lambda: meaning_of(FULL.with_noise(nan), group_size=2), "noise_multiplier is nan"),
        (lambda: meaning_of_epsilons(add_remove=-1.0, substitute=2.0, delta=0.1), "epsilon is -1"),
        (lambda: EpsilonCurve(1.0, 1e-5).epsilon(1e-6), "no epsilon at a delta below"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises((InputError, AccountingError), match=message):
        wrong()


def test_without_an_exact_curve_the_epsilons_alone_count(capsys, monkeypatch):
    def refuses(mechanism):
        raise AccountingError("no trade-off curve")

    monkeypatch.setattr(trade_off, "trade_off_curve", refuses)
    epsilons = account_by_adjacency(SAMPLED.after(10), delta=1e-4)
    of_each = {name: getattr(epsilons, name) for name in ("add_remove", "substitute")}
    meaning = meaning_of(epsilons)
    assert meaning == meaning_of_epsilons(**of_each, delta=1e-4)
    assert (meaning.is_exact, meaning.by_epsilons) == (False, True)
    assert "by the epsilons alone: no trade-off curve" in capsys.readouterr().err


def test_the_first_page_of_a_report_says_what_epsilon_means():
    sentence = meaning_in_words(meaning_of(FULL))
    limit = 100 * meaning_of(FULL).guesses[10]
    [shown] = re.findall(r"one of 10 values.* at most ([\d.]+) % by any", sentence)
    assert 0 <= float(shown) - limit <= 0.1
    assert "such as a random code" in sentence  # a diagnosis follows in part from other features
    assert meaning_in_words(None) == ""
    parts = {"training": "DP-SGD.", "attack": "100 models", "adjacency": "substitute", "shown": 3.0}
    parts |= {"delta": 1e-5, "significance": 0.05, "assumption": "none"}
    headline = Headline(**parts, substitute=10.0, add_remove=4.4, meaning=sentence)
    assert headline.answer[2] == sentence


def test_shown_success_holds_jointly_and_is_near_the_truth():
    rng = np.random.default_rng(0)
    limits = limits_of_curve(GaussianCurve(2.0), values=[2])
    exceeded = 0
    for _ in range(100):
        shown = shown_success(
            world0_scores=rng.normal(2, 1, 500), world1_scores=rng.normal(0, 1, 500)
        )
        powers = limits.true_positive_rates
        exceeded += shown.advantage > limits.advantage or any(
            power > powers[rate] for rate, power in shown.true_positive_rates.items()
        )
        assert shown.guess == (1 + shown.advantage) / 2
        assert shown.advantage > 0.5
    assert exceeded <= 5 + 3 * (100 * 0.05 * 0.95) ** 0.5
    assert "false ones. These hold jointly with 95" in str(shown)
    shown = shown_success(
        world0_scores=np.ones(500), world1_scores=np.zeros(500), false_positive_rates=[0.12345]
    )
    assert "% at 12.4 % false ones" in str(shown)
    # Scores without a signal show no success.
    shown = shown_success(world0_scores=np.zeros(100), world1_scores=np.zeros(100))
    assert (shown.advantage, shown.guess) == (0.0, 0.5)
    assert "at least 0 %. This holds with 95" in str(shown)
    assert all(power == rate for rate, power in shown.true_positive_rates.items())
