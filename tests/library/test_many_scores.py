"""Worlds of which not all thresholds are told apart: naive twins, and the laws that they keep.

The limit from which this is so is lowered, so that scores are few.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from scipy.special import betainc, betainccinv
from scipy.stats import ks_2samp

from dpcanary import InputError, estimate_epsilon
from dpcanary.estimation import error_rates
from dpcanary.estimation.calibration import simulation, statistics, store
from dpcanary.estimation.calibration.simulation import compute_null_table, simulate_statistics
from dpcanary.estimation.calibration.statistics import observed_statistics, scan_terms
from dpcanary.estimation.error_rates import (
    MOST_TOLD_APART,
    clopper_pearson_upper_table,
    compute_local_level,
    counts_told_apart,
    failure_probability,
    next_told_apart,
    simultaneous_local_level,
)
from dpcanary.estimation.families import GDP, direct_family

LIMIT = 300
CACHED = (
    counts_told_apart, scan_terms, simultaneous_local_level, store.own_table, store.null_table,
)  # fmt: skip


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """More than 300 scores are many: told apart are those of 8 errors, and some ten besides."""
    for module in (error_rates, simulation):
        monkeypatch.setattr(module, "MOST_TOLD_APART", LIMIT)
    monkeypatch.setattr(store, "_LARGEST_SIZE", LIMIT)
    monkeypatch.setattr(error_rates, "_AT_ENDS", 8)
    monkeypatch.setattr(error_rates, "_IN_HALF", 10)
    for cached in CACHED:
        cached.cache_clear()
    yield
    for cached in CACHED:
        cached.cache_clear()


@pytest.mark.parametrize("num_scores", [1, 7, 5_000, MOST_TOLD_APART])
def test_of_few_scores_all_counts_are_told_apart(num_scores):
    assert [*counts_told_apart(num_scores)] == [*range(num_scores + 1)]


@pytest.mark.parametrize("num_scores", [MOST_TOLD_APART + 1, 1_000_000, 10_000_001])
def test_of_many_scores_counts_are_dense_where_they_are_few(num_scores):
    counts = counts_told_apart(num_scores)
    assert (counts[0], counts[-1]) == (0, num_scores)
    assert (np.diff(counts) > 0).all()
    assert len(counts) < 2_600
    assert [*counts[:256]] == [*range(256)]
    assert [*(num_scores - counts[::-1])] == [*counts]
    # In standard deviations of a count k, steps are the same everywhere.
    half = counts[(counts > 2_000) & (counts < num_scores / 2)]
    steps = np.diff(half) / np.sqrt(half[1:])
    assert steps.max() < 1.05 * np.sqrt(2 * num_scores) / 1_024 + 1 / np.sqrt(2_000)
    errors = np.array([0, 3, 255, 1_000, num_scores // 2 + 1, num_scores])
    rounded = next_told_apart(errors, num_scores)
    assert (rounded >= errors).all()
    assert np.isin(rounded, counts).all()
    assert [*rounded[:3], rounded[-1]] == [0, 3, 255, num_scores]


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("family", [GDP, direct_family(1e-5)], ids=["gdp", "direct"])
@pytest.mark.parametrize("sizes", [(400, 400), (350, 900), (900, 40)])
@pytest.mark.parametrize("decimals", [0, 6])
def test_statistics_agree_with_a_naive_twin(family, sizes, decimals):
    """By order statistics, as the proof has it: scores x_(r) of some ranks against all y."""
    rng = np.random.default_rng([*sizes, decimals])
    terms = scan_terms(family=family, sizes=sizes, significance=0.05)
    kept0, kept1 = map(counts_told_apart, sizes)
    for mu in (0.0, 1.0, 4.0):
        x = np.round(rng.normal(mu, 1, sizes[0]), decimals)
        y = np.round(rng.normal(0, 1, sizes[1]), decimals)
        ordered = np.sort(x)
        strengths, losses = {0.025: [], 0.0025: []}, 0
        for place, fn in enumerate(kept0[:-1]):
            fp = min(k for k in kept1 if k >= (y >= ordered[fn]).sum())
            losses += int(fp) * int(kept0[place + 1] - fn)
            for level, found in strengths.items():
                fnr, fpr = (
                    1.0 if k == n else betainccinv(k + 1, n - k, level)
                    for k, n in ((fn, sizes[0]), (fp, sizes[1]))
                )
                found.append(float(family.strength(np.array([fpr]), np.array([fnr]))[0]))
        found = observed_statistics(x, y, terms)
        expected = np.clip([max(one) for one in strengths.values()], -50, 50)
        assert found[:2] == pytest.approx(expected, rel=1e-5, abs=1e-5)
        raw = np.array([0.0, 0.0, losses / (sizes[0] * sizes[1])], np.float32)
        share = statistics.on_normal_scale(raw, sizes[0] * sizes[1])[2]
        assert found[2] == pytest.approx(share, abs=1e-5)


@pytest.mark.parametrize("sizes", [(3, 5), (118, 132), (700, 900)])
def test_the_scale_of_many_shares_is_that_of_each(sizes):
    num_pairs = sizes[0] * sizes[1]
    lost = np.concatenate([[0, num_pairs], np.random.default_rng(0).integers(0, num_pairs, 20_000)])
    raw = np.zeros((3, len(lost)), np.float32)
    raw[2] = lost / num_pairs
    alone = [
        statistics.on_normal_scale(raw[:, k : k + 1].copy(), num_pairs)[2, 0] for k in range(500)
    ]
    found = statistics.on_normal_scale(raw.copy(), num_pairs)[2]
    np.testing.assert_array_equal(found[:500], alone)
    assert np.isfinite(found).all()


@pytest.mark.usefixtures("_few")
def test_a_score_that_rises_lowers_no_statistic():
    """The argument for validity: a better comparison of two scores can only help."""
    rng = np.random.default_rng(3)
    terms = scan_terms(family=GDP, sizes=(400, 500), significance=0.05)
    for _ in range(200):
        x, y = rng.normal(1, 1, 400), rng.normal(0, 1, 500)
        before = observed_statistics(x, y, terms)
        x[rng.integers(400, size=5)] += rng.exponential(size=5)
        y[rng.integers(500, size=5)] -= rng.exponential(size=5)
        assert (observed_statistics(x, y, terms) >= before).all()


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("sizes", [(400, 600), (1_000, 320)])
def test_simulated_statistics_have_the_law_of_those_of_all_scores(sizes):
    """Order statistics that are drawn alone, against those of scores that are all drawn."""
    thetas, num_samples = np.array([0.0, 1.5]), 4_000
    terms = scan_terms(family=GDP, sizes=sizes, significance=0.05)
    drawn = simulate_statistics(
        curves=GDP.curves(thetas), looks=[sizes], scans=[terms], num_samples=num_samples, seed=1
    )[0]
    statistics.on_normal_scale(drawn, sizes[0] * sizes[1])
    rng = np.random.default_rng(2)
    for place, theta in enumerate(thetas):
        whole = [
            observed_statistics(rng.normal(theta, 1, sizes[0]), rng.normal(0, 1, sizes[1]), terms)
            for _ in range(num_samples)
        ]
        for one, other in zip(drawn[:, :, place], np.transpose(whole), strict=True):
            assert ks_2samp(one, other).pvalue > 1e-4
            assert abs(one.mean() - other.mean()) < 4 * np.hypot(one.std(), other.std()) / np.sqrt(
                num_samples
            )


@pytest.mark.usefixtures("_few")
def test_several_looks_see_the_first_scores():
    looks, thetas = [(200, 200), (500, 400)], np.array([0.5])
    terms = [scan_terms(family=GDP, sizes=sizes, significance=0.05) for sizes in looks]
    found = simulate_statistics(
        curves=GDP.curves(thetas), looks=looks, scans=terms, num_samples=20, seed=4
    )
    rng = np.random.default_rng([4, 0])
    drawn0, drawn1 = (rng.standard_normal((20, size)) for size in looks[-1])
    for look, (n0, n1) in enumerate(looks):
        for b in range(20):
            expected = observed_statistics(drawn0[b, :n0], drawn1[b, :n1] - 0.5, terms[look])
            assert found[look, :2, b, 0] == pytest.approx(expected[:2], rel=1e-4, abs=1e-4)


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize(
    ("in_half", "least_rate", "least_share"),
    [
        pytest.param(10, 0.0, 0.7, id="few told apart, so bounds are rounded down"),
        pytest.param(100, 0.03, 0.88, id="more"),
    ],
)
@pytest.mark.parametrize("mu", [0.0, 1.0, 2.6])
def test_bounds_keep_their_significance_and_most_of_their_strength(
    in_half, least_rate, least_share, mu, monkeypatch
):
    """Of 2,000 audits at 5 %, 6.5 % are three Monte-Carlo errors too many."""
    monkeypatch.setattr(error_rates, "_IN_HALF", in_half)
    sizes, rng = (2_000, 2_000), np.random.default_rng(5)
    made = {"family": GDP, "looks": [sizes], "significance": 0.05, "num_samples": 10_000}
    table = compute_null_table(**made)
    terms = scan_terms(family=GDP, sizes=sizes, significance=0.05)
    bounds = {rule: [] for rule in table.components}
    for _ in range(2_000):
        found = observed_statistics(rng.normal(mu, 1, 2_000), rng.normal(0, 1, 2_000), terms)
        for rule, kept in bounds.items():
            kept.append(table.bound(rule=rule, look=0, statistics=found))
    rates = {rule: np.mean(np.array(kept) > mu + 1e-9) for rule, kept in bounds.items()}
    assert max(rates.values()) < 0.065, rates
    assert min(rates.values()) >= least_rate, rates
    assert np.mean(bounds["combined"]) >= least_share * mu


@pytest.mark.parametrize("mu", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("sizes", [(33_000, 33_000), (40_000, 48_000), (100_000, 100_000)])
def test_the_package_has_the_critical_values_of_many_scores(sizes, mu):
    """Of 4,000 audits at 5 %, 6 % are three Monte-Carlo errors too many.

    Just above 32,768 scores, critical values are between those of all thresholds and of some: a
    little too large. The scores are drawn as
    `test_simulated_statistics_have_the_law_of_those_of_all_scores` has it.
    """
    table = store.packaged_table(sizes=sizes, significance=0.05)
    terms = scan_terms(family=GDP, sizes=sizes, significance=0.05)
    audits = statistics.pair_statistics(
        curve=statistics.curve_of(mu), sizes=sizes, terms=terms, num_samples=4_000, seed=11
    )
    for rule in table.components:
        bounds = [table.bound(rule=rule, look=0, statistics=audit) for audit in audits.T]
        rate = np.mean(np.array(bounds) > mu + 1e-9)
        assert 0.015 < rate < 0.06, rule


@pytest.mark.usefixtures("_few")
def test_local_level_is_that_of_the_counts_told_apart():
    num_scores, repeats = 700, 20_000
    ranks = counts_told_apart(num_scores)[:-1] + 1
    uniform = np.sort(np.random.default_rng(5).random((repeats, num_scores)), axis=1)
    least = (1 - betainc(ranks, num_scores - ranks + 1.0, uniform[:, ranks - 1])).min(axis=1)
    for level in (0.002, 0.02):
        exact = failure_probability(num_scores=num_scores, local_level=level)
        error = np.sqrt(exact * (1 - exact) / repeats)
        assert abs((least < level).mean() - exact) < 3.5 * error
    local = compute_local_level(num_scores=num_scores, level=0.025)
    assert 0.995 * 0.025 <= failure_probability(num_scores=num_scores, local_level=local) <= 0.025


@pytest.mark.parametrize("level", [1e-3, 0.01])
def test_stirlings_series_is_the_same_where_both_are_exact(level, monkeypatch):
    exact = failure_probability(num_scores=3_000, local_level=level)
    monkeypatch.setattr(error_rates, "_LARGE", 0)
    found = failure_probability(num_scores=3_000, local_level=level)
    assert found == pytest.approx(exact, abs=1e-10)


def test_a_level_beyond_all_precision_is_refused(monkeypatch):
    monkeypatch.setattr(error_rates, "failure_probability", lambda **_: 1e-7)
    with pytest.raises(InputError, match="beyond the precision of rule 'simultaneous'"):
        compute_local_level(num_scores=400_000, level=1e-9)


def test_fourier_transforms_change_no_digit_that_counts(monkeypatch):
    """Steps of thousands of counts occur with a million scores."""
    exact = {
        level: failure_probability(num_scores=3_000, local_level=level) for level in (1e-3, 0.01)
    }
    monkeypatch.setattr(error_rates, "_LONG", 1)
    for level, value in exact.items():
        found = failure_probability(num_scores=3_000, local_level=level)
        assert found == pytest.approx(value, abs=1e-9)


@pytest.mark.usefixtures("_few")
def test_simultaneous_bounds_are_those_of_more_errors():
    rng = np.random.default_rng(7)
    x, y = rng.normal(2, 1, 700), rng.normal(0, 1, 700)
    found = estimate_epsilon(
        world0_scores=x, world1_scores=y, delta=1e-5, threshold_rule="simultaneous"
    )
    local = compute_local_level(num_scores=700, level=0.025)
    table, kept = clopper_pearson_upper_table(num_trials=700, level=local), counts_told_apart(700)
    strengths = []
    for threshold in x:
        fn, fp = (x < threshold).sum(), (y >= threshold).sum()
        fnr, fpr = (table[min(k for k in kept if k >= errors)] for errors in (fn, fp))
        strengths.append(float(GDP.strength(np.array([fpr]), np.array([fnr]))[0]))
    assert found.mu_lower == pytest.approx(max(strengths), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_a_million_scores_in_each_world(mu, tmp_path, monkeypatch):
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    rng = np.random.default_rng(8)
    x, y = rng.normal(mu, 1, 1_000_000), rng.normal(0, 1, 1_000_000)
    for rule in ("combined", "simultaneous"):
        found = estimate_epsilon(world0_scores=x, world1_scores=y, delta=1e-5, threshold_rule=rule)
        assert mu * 0.985 - 1e-9 <= found.mu_lower <= mu + 0.006
