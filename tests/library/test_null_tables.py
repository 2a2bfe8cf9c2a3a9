"""Statistics with a known null distribution: against naive twins, exact laws and closed forms.

With the fixture `few_distinct`, more than 300 scores are so many that not all thresholds count.
"""

import logging
from itertools import pairwise, product
from unittest.mock import Mock

import numpy as np
import pytest
from sampling import exhaustive
from scipy.special import betainccinv, ndtr, ndtri
from scipy.stats import ks_2samp

from dpcanary import InputError, Mechanism, estimate_epsilon
from dpcanary.accounting import gdp_mu, trade_off_curve
from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.estimation.error_rates import distinct_counts
from dpcanary.estimation.families import AUC, GDP, GRID, STRICT_SCAN, Family, direct_family
from dpcanary.estimation.null_distributions import null_tables as store
from dpcanary.estimation.null_distributions import simulated_nulls as simulation
from dpcanary.estimation.null_distributions import statistics
from dpcanary.estimation.null_distributions.simulated_nulls import (
    pair_statistics,
    simulate_statistics,
)
from dpcanary.estimation.null_distributions.statistics import observed_statistics, scan_terms
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.estimation.subsampled_family import subsampled_family

CALIBRATED = [rule for rule, entry in RULES.items() if entry.is_calibrated]
DIRECT = direct_family(1e-5)
each_family = pytest.mark.parametrize("family", [GDP, DIRECT], ids=["gdp", "direct"])


def normal_scores(rng: np.random.Generator, mu: float, sizes: tuple[int, int]) -> list[np.ndarray]:
    return [rng.normal(mean, 1, size) for mean, size in zip((mu, 0), sizes, strict=True)]


def naive_statistics(x, y, family: Family, significance: float) -> list[float]:
    """Both scans and the AUC, one threshold at a time, at the distinguished counts."""
    kept0, kept1 = distinct_counts(len(x)), distinct_counts(len(y))
    ordered, losses, strengths = np.sort(x), 0, ([], [])
    for fn, next_fn in pairwise(kept0):
        fp = min(k for k in kept1 if k >= (y >= ordered[fn]).sum())
        losses += int(fp) * int(next_fn - fn)
        for level, scan in zip((significance / 2, significance / 20), strengths, strict=True):
            fnr, fpr = (
                1.0 if k == n else betainccinv(k + 1, n - k, level)
                for k, n in ((fn, len(x)), (fp, len(y)))
            )
            with np.errstate(invalid="ignore", divide="ignore"):
                scan.append(float(family.strength(np.array([fpr]), np.array([fnr]))[0]))
    won = (len(x) * len(y) - losses + 0.5) / (len(x) * len(y) + 1)
    return [*np.clip([max(scan) for scan in strengths], -50, 50), np.sqrt(2) * ndtri(won)]


@each_family
@pytest.mark.parametrize("sizes", [(7, 7), (30, 12), (12, 40), (1, 3), (400, 350), (900, 40)])
@pytest.mark.usefixtures("few_distinct")
def test_statistics_agree_with_a_naive_twin(family, sizes):
    rng = np.random.default_rng(sizes)
    cases = ((0.0, 6, 0.05), (1.0, 0, 0.2), (1.0, 6, 0.05), (6.0, 0, 0.1))
    for mu, decimals, significance in cases:
        x, y = (np.round(scores, decimals) for scores in normal_scores(rng, mu, sizes))
        terms = scan_terms(family=family, sizes=sizes, significance=significance)
        expected = naive_statistics(x, y, family, significance)
        assert observed_statistics(x, y, terms) == pytest.approx(expected, rel=1e-5, abs=1e-5)


@each_family
@pytest.mark.parametrize("looks", [[(3, 5), (20, 9), (40, 30)], [(200, 200), (500, 400)]])
@pytest.mark.usefixtures("few_distinct")
def test_simulated_statistics_are_those_of_the_simulated_scores(family, looks):
    curves, num_samples = family.curves(np.array([0.0, 1.0, 2.5])), 30
    terms = [scan_terms(family=family, sizes=sizes, significance=0.05) for sizes in looks]
    options = {"looks": looks, "scans": terms, "num_samples": num_samples, "seed": 3}
    simulated = simulate_statistics(curves=curves, **options)
    rng = np.random.default_rng([3, 0])
    normals0, normals1 = (rng.standard_normal((num_samples, size)) for size in looks[-1])
    for look, b, g in product(range(len(looks)), range(0, num_samples, 7), range(3)):
        n0, n1 = looks[look]
        x, y = normals0[b, :n0], np.interp(normals1[b, :n1], GRID, curves[g])
        expected = observed_statistics(x, y, terms[look])
        scans = np.clip(simulated[look, :2, b, g], -50, 50)
        assert scans == pytest.approx(expected[:2], rel=1e-4, abs=1e-4)
        if n0 <= 300:
            assert simulated[look, 2, b, g] == pytest.approx(np.mean(x[:, None] < y), abs=1e-6)


@each_family
@pytest.mark.parametrize("sizes", [(1, 3), (40, 40), (280, 230), (700, 900)])
@pytest.mark.usefixtures("few_distinct")
def test_statistics_are_the_same_without_numba_in_blocks_on_one_core(monkeypatch, family, sizes):
    per_job, num_jobs = 6, 3
    monkeypatch.setattr(simulation, "_NORMALS_PER_JOB", per_job * sum(sizes))
    arguments = {"curves": family.curves(np.linspace(0, 5, 9)), "looks": [sizes], "seed": 2}
    arguments["scans"] = [scan_terms(family=family, sizes=sizes, significance=0.1)]
    arguments["num_samples"] = per_job * num_jobs
    compiled = simulate_statistics(**arguments)
    without = {"_num_cores": lambda: 1, "is_installed": lambda package: False, "_AT_ONCE": 100}
    for name, value in without.items():
        monkeypatch.setattr(simulation, name, value)
        assert np.array_equal(simulate_statistics(**arguments), compiled)
    if sizes == (280, 230):  # every job draws its own normals
        of_jobs = compiled[0, -1, :, 3].reshape(num_jobs, per_job)
        assert len(np.unique(of_jobs, axis=0)) == num_jobs


@pytest.mark.parametrize(("sizes", "num_samples"), [
    ((400, 600), 1_500), exhaustive(((1_000, 320), 4_000)),
])  # fmt: skip
@pytest.mark.usefixtures("few_distinct")
def test_simulated_statistics_have_the_law_of_those_of_all_scores(sizes, num_samples):
    """Order statistics that are drawn alone, against those of scores that are all drawn."""
    terms, rng = scan_terms(family=GDP, sizes=sizes, significance=0.05), np.random.default_rng(2)
    options = {"sizes": sizes, "terms": terms, "num_samples": num_samples, "seed": 1}
    for theta in (0.0, 1.5):
        drawn = pair_statistics(curve=statistics.curve_of(theta), **options)
        audits = (normal_scores(rng, theta, sizes) for _ in range(num_samples))
        whole = np.transpose([observed_statistics(*audit, terms) for audit in audits])
        for values, others in zip(drawn, whole, strict=True):
            assert ks_2samp(values, others).pvalue > 1e-4
            error = np.hypot(values.std(), others.std()) / np.sqrt(num_samples)
            assert abs(values.mean() - others.mean()) < 4 * error


def test_the_scale_of_many_shares_is_that_of_each():
    for num_pairs in (15, 15_576, 630_000):
        lost = np.random.default_rng(0).integers(0, num_pairs, 20_000)
        raw = (np.array([[0], [0], [1]]) * [0, num_pairs, *lost] / num_pairs).astype(np.float32)
        scaled = statistics.on_normal_scale(raw.copy(), num_pairs)[2]
        for k in range(500):
            assert scaled[k] == statistics.on_normal_scale(raw[:, [k]].copy(), num_pairs)[2, 0]
        assert np.isfinite(scaled).all()


@pytest.mark.parametrize("size", [5, 12, 30])
def test_critical_values_of_the_rank_sum_without_signal_are_the_exact_ones(size):
    """P(U >= u) by counting: the Gaussian binomial coefficients."""
    counts = np.array([1] + [0] * size**2, object)  # of the product of (1 - x^(n + i)) / (1 - x^i)
    for i in range(1, size + 1):
        counts[size + i :] -= counts[: -size - i].copy()
        for u in range(i, len(counts)):
            counts[u] += counts[u - i]
    tail = (counts / counts.sum()).astype(float)[::-1].cumsum()[::-1]
    table = store.null_table(family=GDP, looks=((size, size),), significance=0.05)
    values = np.sqrt(2) * ndtri((np.arange(size**2 + 1) + 0.5) / (size**2 + 1))
    rejected = values.astype(np.float32) > table.critical["rank_sum"][0, 0] + 1e-6
    # On the safe side, by no more than the confidence of the simulation allows.
    least = np.flatnonzero(rejected)[0]
    assert tail[least] <= 0.05
    assert tail[max(least - 2, 0)] > 0.044


def test_bounds_from_a_table():
    """At the second of two looks, where the critical values of the thetas are these."""
    critical, thetas = np.array([[9.0] * 5, [0.5, 1.0, 2.0, 3.0, 3.0]], np.float32), np.arange(5.0)
    for value, sparse_from, expected in (
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
    ):
        fields = thetas, {"rank_sum": (AUC,)}, {"rank_sum": critical}, np.zeros((2, 3, 5))
        table = statistics.NullTable(*fields, sparse_from=np.array([5.0, sparse_from]))
        values = np.array([0.0, 0.0, value], np.float32)
        assert table.bound(rule="rank_sum", look=1, statistics=values) == pytest.approx(expected)


def test_critical_values_of_looks_are_order_statistics_that_hold_jointly():
    values = np.random.default_rng(0).permutation(np.arange(1000.0)).astype(np.float32)
    [[value]] = statistics._critical_values(values[None, :, None], 0.05)
    assert 20 <= (values > value).sum() <= 50  # 0.05 of 1,000, less 3.1 deviations of 6.9
    rng = np.random.default_rng(1)
    common = rng.standard_normal((1, 20_000, 1))
    values = (common + rng.standard_normal((3, 20_000, 1))).astype(np.float32)
    beyond = values > statistics._critical_values(values, 0.05)[:, None]
    assert 0.044 < beyond.any(axis=0).mean() <= 0.05
    each = beyond.mean(axis=1).ravel()
    assert each.max() - each.min() < 1e-3
    assert each.max() < 0.03


def test_scales_come_from_other_samples_than_the_critical_values():
    """A rule of several statistics keeps its level although they are compared on its scales."""
    rng, thetas, parts = np.random.default_rng(2), np.array([0.0]), (STRICT_SCAN, AUC)
    samples = np.sort(rng.standard_normal((1, 3, 8_000, 1)).astype(np.float32), axis=2)
    options = {"thetas": thetas, "significance": 0.05, "sparse_from": np.zeros(1)}
    options |= {"statistics": samples, "components": {"combined": parts}}
    table = statistics.make_null_table(**options)
    # The scales saw the least quarter alone: all critical values come from the other samples.
    assert (table.scales < np.quantile(samples, 0.26)).all()
    rest = statistics.rule_statistic(parts, samples[0, :, 2_000:], table.scales[0], thetas)
    assert (rest > table.critical["combined"][0]).mean() <= 0.05


def test_tables_are_kept_on_disk_and_others_are_not_believed(tmp_path, monkeypatch, caplog):
    """Damaged and exchanged files, changed numbers, and folders that others may write to."""
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    tmp_path.chmod(0o700)
    caplog.set_level(logging.WARNING)
    computed = []

    def is_right(about: str) -> bool:
        def compute() -> dict[str, np.ndarray]:
            computed.append(about)
            return {"a": np.full(3, ord(about))}

        return {*store.cached_arrays("null", about=about, compute=compute)["a"]} == {ord(about)}

    assert is_right("x")
    [path] = tmp_path.glob("null-*.npz")
    assert is_right("y")
    [other] = {*tmp_path.glob("null-*.npz")} - {path}
    header, _ = read_arrays(path)
    own, theirs = path.read_bytes(), other.read_bytes()
    changed = {"a": np.full(3, 7)}
    for change in (
        lambda: path.write_bytes(own),  # which is none
        lambda: path.write_bytes(own[:50]),
        lambda: path.write_bytes(theirs),
        lambda: write_arrays(path, header=header, arrays=changed),
        lambda: write_arrays(path, header={"about": "x"}, arrays=changed),  # an older version's
    ):
        change()
        assert is_right("x")
    assert computed == [*"xyxxxx"]
    # Planted, with a right header.
    write_arrays(path, header={"about": "x", "sha256": store._digest(changed)}, arrays=changed)
    tmp_path.chmod(0o777)
    assert is_right("x")
    assert "others may write to" in caplog.text
    # What cannot be kept is there all the same.
    monkeypatch.setenv("DPCANARY_CACHE", str(path / "below"))
    assert is_right("x")
    assert "set DPCANARY_CACHE" in caplog.text.splitlines()[-1]
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path / "new"))
    full = InputError("cannot write: the disk is full")
    monkeypatch.setattr(store, "write_arrays", Mock(side_effect=full))
    assert is_right("x")
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0  # a new folder is private
    assert "the disk is full; they are not kept for later" in caplog.text


def test_a_table_is_of_its_family_its_looks_and_its_significance(monkeypatch):
    asked = Mock(side_effect=InterruptedError)
    monkeypatch.setattr(store, "cached_arrays", asked)
    question = {"family": GDP, "looks": ((10, 10),), "significance": 0.05}
    changes = [{}, {"significance": 0.0502}, {"significance": 0.05 + 1e-12}]
    changes += [{"looks": ((10, 11),)}, {"looks": ((5, 5), (10, 10))}]
    changes += [{"family": direct_family(delta)} for delta in (1e-5, 1.0001e-5, 0.01)]
    for change in changes:
        with pytest.raises(InterruptedError):
            store.own_table.__wrapped__(**{**question, **change})
    assert len({call.kwargs["about"] for call in asked.call_args_list}) == len(changes)


def test_sizes_of_the_package_are_exact_and_found_without_computing(monkeypatch, tmp_path):
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    for size in store.TABULATED:
        table = store.packaged_table(sizes=(size, size), significance=0.05)
        assert table is not None
        assert table.trusted_to == np.inf
    for sizes in ((3, 3), (72, 72), (300_000, 300_000), (200, 250), (150, 151)):
        assert store.packaged_table(sizes=sizes, significance=0.05) is None
    assert store.packaged_table(sizes=(100, 100), significance=0.01) is None
    rng = np.random.default_rng(0)
    for sizes in ((4, 4), (63, 63), (64, 64), (200, 230), (1_250, 1_250), (20_000, 17_000)):
        world0, world1 = normal_scores(rng, 2.0, sizes)
        estimate_epsilon(world0_scores=world0, world1_scores=world1, delta=1e-5)
    # As many pairs as no integer of 32 bits holds.
    world0, world1 = normal_scores(rng, 1.0, (80_000, 80_000))
    many = {"world0_scores": world0, "world1_scores": world1, "delta": 1e-5}
    for rule in ("combined", "simultaneous"):
        assert 0.96 <= estimate_epsilon(**many, threshold_rule=rule).mu_lower <= 1.006
    assert not list(tmp_path.iterdir())
    estimate_epsilon(world0_scores=np.zeros(8), world1_scores=np.zeros(5), delta=1e-5)
    assert list(tmp_path.iterdir())
    assert simulation.default_num_samples([(10, 10)], 0.001) >= 20_000


@pytest.mark.long
@pytest.mark.parametrize("sizes", [
    (180, 180), *(exhaustive((sizes,)) for sizes in ((1_000, 1_200), (450, 450), (1_111, 1_111))),
])  # fmt: skip
def test_tables_between_sizes_are_exact(sizes):
    """Interpolated critical values against computed ones, to 0.2 % of mu.

    Both have errors of simulation: of at most 0.05 % here for 100,000 samples at mu = 1.
    """
    options = {"family": GDP, "looks": [sizes], "significance": 0.05}
    own = simulation.compute_null_table(**options, num_samples=100_000)
    table = store.packaged_table(sizes=sizes, significance=0.05)
    assert table is not None
    for rule in CALIBRATED:
        for mu in np.linspace(0.5, min(table.trusted_to, 4.0), 6):
            computed = np.interp(mu, own.thetas, own.critical[rule][0])
            interpolated = np.interp(mu, table.thetas, table.critical[rule][0])
            allowed = 0.002 * mu + 0.06 / np.sqrt(min(sizes))
            assert interpolated == pytest.approx(computed, abs=allowed), (rule, mu)


@pytest.mark.long
def test_tables_of_conversion_direct_are_those_that_would_be_computed(monkeypatch, tmp_path):
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path))
    size = store.DIRECT_SIZES[0]
    options = {"looks": ((size, size),), "significance": 0.05}
    packaged = store.null_table.__wrapped__(family=DIRECT, **options)
    assert not [*tmp_path.glob("*.npz")]
    other = store.null_table.__wrapped__(family=direct_family(1.1e-5), **options)
    assert len([*tmp_path.glob("*.npz")]) == 1
    own = store.own_table.__wrapped__(family=DIRECT, **options)
    for rule, critical in own.critical.items():
        assert packaged.critical[rule].tobytes() == critical.tobytes()
    for name in ("thetas", "scales", "sparse_from"):
        assert getattr(packaged, name).tobytes() == getattr(own, name).tobytes()
    assert other.thetas.tobytes() != own.thetas.tobytes()
    for sizes, level in (((size, size + 1), 0.05), ((size + 1,) * 2, 0.05), ((size,) * 2, 0.051)):
        assert store.packaged_direct_table(sizes=sizes, significance=level) is None


@pytest.mark.parametrize(("adjacency", "q", "steps", "noise"), [
    ("substitute", 0.0625, 500, 1.6773), ("substitute", 0.25, 2, 3.0),
    exhaustive(("add_remove", 0.01, 500, 0.8)),
])  # fmt: skip
def test_subsampled_curves_are_those_of_the_accountant(adjacency, q, steps, noise):
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
    full = Mechanism(adjacency, sample_rate=1.0, noise_multiplier=noise, num_steps=steps)
    assert subsampled_family(full) is GDP


@pytest.mark.long
def test_epsilons_of_subsampled_curves_are_the_accountants():
    """At noises and deltas between those that are kept, and after very many steps."""
    for adjacency, q, noise, steps in (
        ("add_remove", 0.02, 2.3, 200), ("substitute", 0.01, 4.0, 25_000),
    ):  # fmt: skip
        mechanism = Mechanism(adjacency, sample_rate=q, noise_multiplier=noise, num_steps=steps)
        family, curve = subsampled_family(mechanism), trade_off_curve(mechanism)
        theta = gdp_mu(epsilon=curve.epsilon(1e-5), delta=1e-5)
        for delta in (2e-10, 1e-5, 7e-4):
            epsilon, exact = family.epsilon(theta, delta), curve.epsilon(delta)
            assert epsilon == pytest.approx(exact, rel=2e-3, abs=2e-4), (mechanism, delta)
    with pytest.raises(InputError, match=r"delta is 1e-11; .* and 25000 steps it must be from 3"):
        family.epsilon(theta, 1e-11)


def test_rule_calibrated_names_the_threshold_of_rule_in_sample():
    x, y = normal_scores(np.random.default_rng(4), 1.0, (1290, 1290))
    options = {"world0_scores": x, "world1_scores": y, "delta": 1e-5}
    published = estimate_epsilon(**options, threshold_rule="in_sample")
    calibrated = estimate_epsilon(**options, threshold_rule="calibrated")
    assert calibrated.threshold == published.threshold
    assert calibrated.mu_lower < published.mu_lower
