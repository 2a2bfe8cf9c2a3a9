"""Statistics with a known null distribution: against naive twins, exact laws and closed forms."""

import itertools
import logging

import numpy as np
import pytest
from scipy.special import betainccinv, ndtr, ndtri
from scipy.stats import beta

from dpcanary import InputError, Mechanism, estimate_epsilon
from dpcanary.accounting import gdp_mu, trade_off_curve
from dpcanary.estimation.calibration import simulation, store
from dpcanary.estimation.calibration.simulation import (
    compute_null_table,
    default_num_samples,
    simulate_statistics,
)
from dpcanary.estimation.calibration.statistics import (
    NullTable,
    _critical_values,
    curve_of,
    make_null_table,
    observed_statistics,
    pair_statistics,
    rule_statistic,
    scan_terms,
)
from dpcanary.estimation.calibration.store import null_table
from dpcanary.estimation.families import (
    AUC,
    GDP,
    GRID,
    PUBLISHED_SCAN,
    STRICT_SCAN,
    Family,
    direct_family,
)
from dpcanary.estimation.subsampled_family import subsampled_family
from dpcanary.files import read_arrays, write_arrays

RULES = ("combined", "calibrated", "rank_sum")
DIRECT = direct_family(1e-5)


def clopper_pearson(errors: int, num: int, level: float) -> float:
    return 1.0 if errors == num else float(betainccinv(errors + 1, num - errors, level))


def naive_statistics(x: np.ndarray, y: np.ndarray, family: Family) -> list[float]:
    """Both scans and the AUC from the matrix of comparisons, one threshold at a time."""
    wins = x[:, None] > y[None, :]
    found = []
    for level in (0.025, 0.0025):
        strengths = []
        for threshold in x:
            fnr = clopper_pearson(int((x < threshold).sum()), len(x), level)
            fpr = clopper_pearson(int((y >= threshold).sum()), len(y), level)
            with np.errstate(invalid="ignore", divide="ignore"):
                strengths.append(float(family.strength(np.array([fpr]), np.array([fnr]))[0]))
        found.append(max(strengths))
    share = (wins.sum() + 0.5) / (wins.size + 1)
    return [*np.clip(found, -50, 50), np.sqrt(2) * ndtri(share)]


@pytest.mark.parametrize("family", [GDP, DIRECT], ids=["gdp", "direct"])
@pytest.mark.parametrize("sizes", [(7, 7), (30, 12), (12, 40), (1, 3)])
@pytest.mark.parametrize("decimals", [0, 6])
def test_statistics_agree_with_a_naive_twin(family, sizes, decimals):
    rng = np.random.default_rng([*sizes, decimals])
    terms = scan_terms(family=family, sizes=sizes, significance=0.05)
    for mu in (0.0, 1.0, 6.0):
        x = np.round(rng.normal(mu, 1, sizes[0]), decimals)
        y = np.round(rng.normal(0, 1, sizes[1]), decimals)
        expected = naive_statistics(x, y, family)
        assert observed_statistics(x, y, terms) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("family", [GDP, DIRECT], ids=["gdp", "direct"])
def test_simulated_statistics_are_those_of_the_simulated_scores(family):
    looks, thetas, num_samples = [(3, 5), (20, 9), (40, 30)], np.array([0.0, 1.0, 2.5]), 50
    curves = family.curves(thetas)
    terms = [scan_terms(family=family, sizes=sizes, significance=0.05) for sizes in looks]
    found = simulate_statistics(
        curves=curves, looks=looks, scans=terms, num_samples=num_samples, seed=3
    )
    rng = np.random.default_rng([3, 0])
    normals0, normals1 = (rng.standard_normal((num_samples, size)) for size in looks[-1])
    for look, b, g in itertools.product(range(3), range(0, num_samples, 7), range(3)):
        n0, n1 = looks[look]
        x, y = normals0[b, :n0], np.interp(normals1[b, :n1], GRID, curves[g])
        expected = observed_statistics(x, y, terms[look])
        assert np.clip(found[look, :2, b, g], -50, 50) == pytest.approx(expected[:2], rel=1e-6)
        assert found[look, 2, b, g] == pytest.approx(np.mean(x[:, None] < y), abs=1e-6)


@pytest.mark.parametrize("family", [GDP, DIRECT], ids=["gdp", "direct"])
@pytest.mark.parametrize("sizes", [(1, 3), (40, 40), (700, 300), (9_000, 12_000)])
def test_statistics_are_the_same_without_numba(monkeypatch, family, sizes):
    """To the last bit, so that tables are; of many scores, not all are told apart."""
    arguments = {
        "curves": family.curves(np.linspace(0, 5, 9)),
        "looks": [sizes],
        "scans": [scan_terms(family=family, sizes=sizes, significance=0.1)],
        "num_samples": 12,
        "seed": 2,
    }
    compiled = simulate_statistics(**arguments)
    monkeypatch.setattr(simulation, "is_installed", lambda package: False)
    assert np.array_equal(simulate_statistics(**arguments), compiled)
    monkeypatch.setattr(simulation, "_AT_ONCE", 100)  # several blocks of scores
    assert np.array_equal(simulate_statistics(**arguments), compiled)


def test_simulation_does_not_depend_on_the_number_of_cores(monkeypatch):
    arguments = {
        "curves": GDP.curves(np.array([0.0, 1.0])),
        "looks": [(2_000, 2_000)],
        "scans": [scan_terms(family=GDP, sizes=(2_000, 2_000), significance=0.05)],
        "num_samples": 1_203,  # more than two jobs
        "seed": 5,
    }
    first = simulate_statistics(**arguments)
    monkeypatch.setattr(simulation, "_num_cores", lambda: 1)
    assert (simulate_statistics(**arguments) == first).all()


def test_every_job_draws_its_own_normals(monkeypatch):
    sizes, per_job, num_jobs = (70, 50), 6, 4
    monkeypatch.setattr(simulation, "_NORMALS_PER_JOB", per_job * sum(sizes))
    found = simulate_statistics(
        curves=GDP.curves(np.array([0.7])),
        looks=[sizes],
        scans=[scan_terms(family=GDP, sizes=sizes, significance=0.1)],
        num_samples=per_job * num_jobs,
        seed=8,
    )
    of_jobs = found[0, -1, :, 0].reshape(num_jobs, per_job)  # 1 - AUC
    assert len(np.unique(of_jobs, axis=0)) == num_jobs


@pytest.mark.parametrize("family", [GDP, DIRECT], ids=["gdp", "direct"])
def test_strength_inverts_the_curves(family):
    thetas = np.array([0.3, 1.0, 2.0, 3.5])
    curves = family.curves(thetas)
    for theta, curve in zip(thetas, curves, strict=True):
        inside = (curve > -6) & (np.abs(GRID) < 6)
        fpr, fnr = ndtr(-GRID[inside]), ndtr(curve[inside])
        assert family.strength(fpr, fnr) == pytest.approx(theta, abs=1e-4)


def test_direct_curves_are_those_of_the_definition():
    """The largest curve below all lines that (epsilon, delta) allows, in both directions."""
    epsilon, delta = 1.3, 1e-5
    fpr = np.array([1e-4, 0.01, 0.2, 0.5, 0.9])
    [curve] = DIRECT.curves(np.array([epsilon]))
    expected = [
        max(0, 1 - delta - np.exp(epsilon) * a, (1 - delta - a) / np.exp(epsilon)) for a in fpr
    ]
    assert ndtr(np.interp(-ndtri(fpr), GRID, curve)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("delta", [1e-5, 1e-3, 0.05])
def test_simulated_audits_of_direct_curves_keep_the_significance(delta):
    """Where f is 0, a score of world 1 is below all of world 0; it once made scores NaN."""
    family, sizes, num_audits = direct_family(delta), (100, 100), 4_000
    table = null_table(family=family, looks=(sizes,), significance=0.05)
    terms = scan_terms(family=family, sizes=sizes, significance=0.05)
    rng = np.random.default_rng(11)
    for epsilon in (0.5, 1.0, 2.0):
        fpr = rng.random((num_audits, sizes[1]))
        world1 = np.maximum(1 - delta - np.exp(epsilon) * fpr, (1 - delta - fpr) / np.exp(epsilon))
        world0 = rng.random((num_audits, sizes[0]))
        for rule in RULES:
            above = sum(
                table.bound(rule=rule, look=0, statistics=observed_statistics(x, y, terms))
                > epsilon
                for x, y in zip(world0, np.maximum(world1, 0.0), strict=True)
            )
            assert above / num_audits <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / num_audits)


def exact_rank_sum_tail(size: int) -> np.ndarray:
    """P(U >= u) for every u without signal, by counting (the Gaussian binomial coefficients)."""
    counts = {(0, 0): np.ones(1)}
    for m, n in itertools.product(range(size + 1), repeat=2):
        if (m, n) != (0, 0):
            total = np.zeros(m * n + 1)
            if m > 0:  # the largest score is of world 0 and beats all n
                total[n : n + len(counts[m - 1, n])] += counts[m - 1, n]
            if n > 0:
                total[: len(counts[m, n - 1])] += counts[m, n - 1]
            counts[m, n] = total
    law = counts[size, size] / counts[size, size].sum()
    return law[::-1].cumsum()[::-1]


@pytest.mark.parametrize("size", [5, 12, 30])
def test_critical_values_of_the_rank_sum_without_signal_are_the_exact_ones(size):
    table = null_table(family=GDP, looks=((size, size),), significance=0.05)
    tail = exact_rank_sum_tail(size)
    num_pairs = size * size
    values = np.sqrt(2) * ndtri((np.arange(num_pairs + 1) + 0.5) / (num_pairs + 1))
    rejected = values.astype(np.float32) > table.critical["rank_sum"][0, 0] + 1e-6
    # On the safe side, by no more than the confidence of the simulation allows.
    least = np.flatnonzero(rejected)[0]
    assert tail[least] <= 0.05
    assert tail[max(least - 2, 0)] > 0.044


@pytest.mark.parametrize("sizes", [(1, 1), (3, 2), (10, 10), (20, 50)])
def test_critical_value_at_separate_worlds_has_the_closed_form(sizes):
    """All of world 0 is above world 1 with P(U >= f(V)), U and V the least of n uniforms."""
    for theta in (0.5, 2.0, 3.5):
        statistics = pair_statistics(
            curve=curve_of(theta),
            sizes=sizes,
            terms=scan_terms(family=GDP, sizes=sizes, significance=0.05),
            num_samples=40_000,
            seed=1,
        )
        separate = np.mean(statistics[AUC] == statistics[AUC].max())
        v = beta(1, sizes[1])
        grid = v.ppf((np.arange(20_000) + 0.5) / 20_000)
        exact = np.mean(beta(1, sizes[0]).sf(ndtr(-ndtri(grid) - theta)))
        if not statistics[AUC].max() > np.sqrt(2) * ndtri(1 - 1 / (sizes[0] * sizes[1])):
            separate = 0.0  # never seen
        assert separate == pytest.approx(exact, abs=4 * np.sqrt(exact / 40_000) + 1e-4)


def handmade(**changes: object) -> NullTable:
    values = np.array([[0.5, 1.0, 2.0, 3.0, 3.0]], np.float32)
    options = {
        "thetas": np.array([0.0, 1.0, 2.0, 3.0, 4.0]),
        "components": {"rank_sum": (AUC,)},
        "critical": {"rank_sum": values},
        "scales": np.zeros((1, 3, 5), np.float32),
        "sparse_from": np.array([9.0]),
    }
    return NullTable(**{**options, **changes})


@pytest.mark.parametrize(
    ("value", "sparse_from", "expected"),
    [
        (0.4, 9.0, 0.0),
        (0.5, 9.0, 0.0),  # not above the critical value at 0
        (0.75, 9.0, 0.5),
        (1.0, 9.0, 0.0),  # the critical value at 1 itself: 1 is not rejected
        (1.5, 9.0, 1.5),
        (1.5, 1.0, 1.0),  # rounded down where values are few
        (2.9, 1.0, 2.0),
        (2.5, 2.5, 2.0),  # the first of few values is inside of the cell
        (3.0, 9.0, 2.0),
        (3.1, 9.0, 4.0),  # beyond all
    ],
)
def test_bounds_from_a_table(value, sparse_from, expected):
    table = handmade(sparse_from=np.array([sparse_from]))
    statistics = np.array([0.0, 0.0, value], np.float32)
    assert table.bound(rule="rank_sum", look=0, statistics=statistics) == pytest.approx(expected)


def test_critical_values_of_one_look_are_order_statistics():
    values = np.random.default_rng(0).permutation(np.arange(1000.0)).astype(np.float32)
    [[value]] = _critical_values(values[None, :, None], 0.05)
    num_beyond = int((values > value).sum())
    assert 20 <= num_beyond <= 50  # .05 of 1,000, less 3.1 standard deviations of 6.9


def test_looks_are_rejected_jointly_and_each_at_one_level():
    rng = np.random.default_rng(1)
    common = rng.standard_normal((1, 20_000, 1))
    values = (common + rng.standard_normal((3, 20_000, 1))).astype(np.float32)
    critical = _critical_values(values, 0.05)
    beyond = values > critical[:, None]
    assert 0.044 < beyond.any(axis=0).mean() <= 0.05
    each = beyond.mean(axis=1).ravel()
    assert each.max() - each.min() < 1e-3
    assert each.max() < 0.03


def test_scales_come_from_other_samples_than_the_critical_values():
    """A rule of several statistics keeps its level although they are compared on its scales."""
    rng = np.random.default_rng(2)
    statistics = np.sort(rng.standard_normal((1, 3, 8_000, 1)).astype(np.float32), axis=2)
    thetas = np.array([0.0])
    options = {"thetas": thetas, "significance": 0.05, "sparse_from": np.zeros(1)}
    components = {"combined": (STRICT_SCAN, AUC)}
    table = make_null_table(statistics=statistics, components=components, **options)
    # The scales saw the least quarter alone: all critical values come from the other samples.
    assert (table.scales < np.quantile(statistics, 0.26)).all()
    rest = rule_statistic((STRICT_SCAN, AUC), statistics[0, :, 2_000:], table.scales[0], thetas)
    assert (rest > table.critical["combined"][0]).mean() <= 0.05


def test_tables_are_kept_on_disk(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    computed = []

    def compute() -> dict[str, np.ndarray]:
        computed.append(1)
        return {"a": np.arange(3)}

    for _ in range(2):
        assert store.cached_arrays("null", about="x", compute=compute)["a"].tolist() == [0, 1, 2]
    assert len(computed) == 1
    [path] = tmp_path.glob("null-*.npz")
    path.write_bytes(path.read_bytes()[:50])  # a damaged file is computed again
    store.cached_arrays("null", about="x", compute=compute)
    store.cached_arrays("null", about="y", compute=compute)
    assert len(computed) == 3
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("DPCANARY_CACHE", str(blocked / "below"))
    with caplog.at_level(logging.WARNING):
        store.cached_arrays("null", about="x", compute=compute)
    assert "DPCANARY_CACHE" in caplog.text
    assert len(computed) == 4


def test_a_table_is_of_its_family_its_looks_and_its_significance(monkeypatch):
    names = []

    def asked(_kind, *, about, **_):
        names.append(about)
        raise InterruptedError

    monkeypatch.setattr(store, "cached_arrays", asked)
    question = {"family": GDP, "looks": ((10, 10),), "significance": 0.05}
    for change in (
        {},
        {"significance": 0.0502},
        {"significance": 0.05 + 1e-12},
        {"looks": ((10, 11),)},
        {"looks": ((5, 5), (10, 10))},
        {"family": direct_family(1e-5)},
        {"family": direct_family(1.0001e-5)},
    ):
        with pytest.raises(InterruptedError):
            store.own_table.__wrapped__(**{**question, **change})
    assert len({*names}) == 7


def test_a_table_of_another_question_is_not_believed(tmp_path, monkeypatch, caplog):
    """Exchanged files, changed numbers, and folders that others may write to."""
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    tmp_path.chmod(0o700)

    def asked(about: str) -> list[int]:
        number = {"x": 1, "y": 2}[about]
        compute = {"a": np.full(3, number)}
        return store.cached_arrays("null", about=about, compute=lambda: compute)["a"].tolist()

    assert asked("x") == [1, 1, 1]
    [path] = tmp_path.glob("null-*.npz")
    assert asked("y") == [2, 2, 2]
    [other] = {*tmp_path.glob("null-*.npz")} - {path}
    path.write_bytes(other.read_bytes())
    assert asked("x") == [1, 1, 1]
    header, _ = read_arrays(path)
    write_arrays(path, header=header, arrays={"a": np.full(3, 7)})
    assert asked("x") == [1, 1, 1]
    write_arrays(path, header={"about": "x"}, arrays={"a": np.full(3, 7)})  # of an older version
    assert asked("x") == [1, 1, 1]
    # Planted, with a right header.
    planted = {"a": np.full(3, 9)}
    write_arrays(path, header={"about": "x", "sha256": store._digest(planted)}, arrays=planted)
    tmp_path.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert asked("x") == [1, 1, 1]
    assert "others may write to" in caplog.text


def test_what_cannot_be_kept_is_there_all_the_same(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path / "new"))

    def full(*args: object, **keys: object) -> None:
        raise InputError("cannot write: the disk is full")

    monkeypatch.setattr(store, "write_arrays", full)
    with caplog.at_level(logging.WARNING):
        found = store.cached_arrays("null", about="x", compute=lambda: {"a": np.ones(2)})
    assert found["a"].tolist() == [1.0, 1.0]
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0  # a new folder is private
    assert "the disk is full; they are not kept for later" in caplog.text


def test_sizes_of_the_package_are_found_without_computing(monkeypatch, tmp_path):
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    rng = np.random.default_rng(0)
    for n0, n1 in ((4, 4), (63, 63), (64, 64), (200, 230), (1_250, 1_250), (20_000, 17_000)):
        estimate_epsilon(
            world0_scores=rng.normal(2, 1, n0), world1_scores=rng.normal(0, 1, n1), delta=1e-5
        )
    assert not list(tmp_path.iterdir())
    estimate_epsilon(world0_scores=np.zeros(8), world1_scores=np.zeros(5), delta=1e-5)
    assert list(tmp_path.iterdir())


def test_tabulated_sizes_are_exact():
    for size in store.TABULATED:
        table = store.packaged_table(sizes=(size, size), significance=0.05)
        assert table is not None
        assert table.trusted_to == np.inf


@pytest.mark.parametrize("sizes", [(3, 3), (72, 72), (300_000, 300_000), (200, 250), (150, 151)])
def test_other_sizes_are_not_in_the_package(sizes):
    assert store.packaged_table(sizes=sizes, significance=0.05) is None
    assert store.packaged_table(sizes=(100, 100), significance=0.01) is None


@pytest.mark.long
@pytest.mark.parametrize(
    "sizes",
    [
        (180, 180),
        pytest.param((1_000, 1_200), marks=pytest.mark.exhaustive),
        pytest.param((450, 450), marks=pytest.mark.exhaustive),
        pytest.param((1_111, 1_111), marks=pytest.mark.exhaustive),
    ],
)
def test_tables_between_sizes_are_exact(sizes):
    """Interpolated critical values against computed ones, to .2 % of mu.

    Both have errors of simulation: of at most .05 % here for 100,000 samples at mu = 1.
    """
    own = compute_null_table(family=GDP, looks=[sizes], significance=0.05, num_samples=100_000)
    table = store.packaged_table(sizes=sizes, significance=0.05)
    assert table is not None
    for rule in RULES:
        for mu in np.linspace(0.5, min(table.trusted_to, 4.0), 6):
            computed = np.interp(mu, own.thetas, own.critical[rule][0])
            found = np.interp(mu, table.thetas, table.critical[rule][0])
            allowed = 0.002 * mu + 0.06 / np.sqrt(min(sizes))
            assert found == pytest.approx(computed, abs=allowed), (rule, mu)


def test_significance_too_small_to_be_simulated():
    with pytest.raises(InputError, match=r"at least 0\.001.*simultaneous"):
        estimate_epsilon(world0_scores=[1.0], world1_scores=[0.0], delta=1e-5, significance=0.0005)
    assert default_num_samples([(10, 10)], 0.001) >= 20_000


@pytest.mark.parametrize(
    ("adjacency", "q", "steps", "noise"),
    [
        ("substitute", 0.0625, 500, 1.6773),
        pytest.param("add_remove", 0.01, 500, 0.8, marks=pytest.mark.exhaustive),
        ("substitute", 0.25, 2, 3.0),
    ],
)
def test_subsampled_curves_are_those_of_the_accountant(adjacency, q, steps, noise):
    """At a noise between those of the family's curves."""
    mechanism = Mechanism(adjacency, sample_rate=q, noise_multiplier=noise, num_steps=steps)
    family, curve = subsampled_family(mechanism), trade_off_curve(mechanism)
    fpr = ndtr(np.linspace(-4, 4, 33))
    fnr = curve.fnr(fpr)
    seen = (fnr > 1e-5) & (fnr < 1 - 1e-5)
    thetas = family.strength(fpr[seen], fnr[seen])
    theta = float(np.median(thetas))
    assert thetas == pytest.approx(theta, rel=2e-3)
    [moved] = family.curves(np.array([theta]))
    assert ndtr(np.interp(-ndtri(fpr), GRID, moved)) == pytest.approx(fnr, abs=3e-5)
    epsilon = family.epsilon(theta, 1e-5)
    assert epsilon == pytest.approx(curve.epsilon(1e-5), rel=1e-3)
    assert epsilon <= curve.epsilon(1e-5) * (1 + 1e-4)


@pytest.mark.long
def test_epsilons_of_subsampled_curves_are_the_accountants():
    """At noises and deltas between those that are kept, and after very many steps."""
    for mechanism in (
        Mechanism("add_remove", sample_rate=0.02, noise_multiplier=2.3, num_steps=200),
        Mechanism("substitute", sample_rate=0.01, noise_multiplier=4.0, num_steps=25_000),
    ):
        family, curve = subsampled_family(mechanism), trade_off_curve(mechanism)
        theta = gdp_mu(epsilon=curve.epsilon(1e-5), delta=1e-5)
        for delta in (2e-10, 1e-5, 7e-4):
            found, exact = family.epsilon(theta, delta), curve.epsilon(delta)
            assert found == pytest.approx(exact, rel=2e-3, abs=2e-4), (mechanism, delta)
    with pytest.raises(InputError, match=r"delta is 1e-11; .* and 25000 steps it must be from 3"):
        family.epsilon(theta, 1e-11)


def test_without_sampling_the_exact_family_is_the_gaussian_one():
    assert (
        subsampled_family(
            Mechanism("substitute", sample_rate=1.0, noise_multiplier=3.0, num_steps=10)
        )
        is GDP
    )


def test_published_scan_is_the_statistic_of_rule_in_sample():
    rng = np.random.default_rng(4)
    scores = {"world0_scores": rng.normal(1, 1, 300), "world1_scores": rng.normal(0, 1, 300)}
    terms = scan_terms(family=GDP, sizes=(300, 300), significance=0.05)
    found = observed_statistics(*scores.values(), terms)[PUBLISHED_SCAN]
    published = estimate_epsilon(**scores, delta=1e-5, threshold_rule="in_sample")
    assert found == pytest.approx(published.mu_lower, rel=1e-6)
    calibrated = estimate_epsilon(**scores, delta=1e-5, threshold_rule="calibrated")
    assert calibrated.threshold == published.threshold
    assert calibrated.mu_lower < published.mu_lower


def test_each_delta_has_tables_of_its_own():
    """A cached table is looked up by the family's name."""
    assert len({direct_family(delta).name for delta in (1e-5, 1.1e-5, 0.01)}) == 3
