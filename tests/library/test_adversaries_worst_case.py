"""The draws of the worst case against their exact distribution, and their shard."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom, ks_2samp, kstest, norm

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.adversaries.settings import DrawingStage
from dpcanary.adversaries.worst_case import draw_worst_case, final_sum, log_likelihood_ratio
from dpcanary.errors import InputError
from dpcanary.observations import read_shard, write_shard
from dpcanary.scoring.scores import ScoringContext

Floats = NDArray[np.float64]
RECORD_STEPS = (1, 20, 100)
WORST_CASE = "dpcanary.adversaries.worst_case:draw_worst_case"
SETTINGS = [
    (1.0, 22.37, 500),
    (0.25, 5.574, 500),
    (0.0625, 1.6773, 500),
    (0.3, 0.4, 7),
    (0.5, 1, 1),
]
both_observations = pytest.mark.parametrize("observe", ["sum", "log_likelihood_ratio"])


def drawing(
    observe: str,
    runs: Sequence[int],
    q: float,
    sigma: float,
    *,
    seed: int = 1,
    function: str = WORST_CASE,
) -> Drawing:
    settings = {
        "function": function,
        "observe": observe,
        "adjacency": "substitute",
        "sample_rate": q,
        "record_steps": RECORD_STEPS,
        "seed": seed,
    }
    return Drawing(DrawingStage.model_validate(settings, strict=False), sigma, runs)


def draw(observe: str, runs: Sequence[int], q: float, sigma: float, seed: int = 1) -> Floats:
    return draw_worst_case(drawing(observe, runs, q, sigma, seed=seed))


def context(q: float, sigma: float) -> ScoringContext:
    return ScoringContext(q, sigma, RECORD_STEPS, canaries=None)


# --- the distribution of the sums, and their likelihood ratio ---------------------------------


def mixture_log_density(sums: Floats, q: float, sigma: float, steps: int, sign: int) -> Floats:
    """Log-density of the sum in one world, from scipy's distributions."""
    counts = np.arange(steps + 1)
    parts = norm.logpdf(np.ravel(sums)[:, None], sign * counts, sigma * np.sqrt(steps))
    return np.asarray(logsumexp(binom.logpmf(counts, steps, q) + parts, axis=1))


@pytest.mark.parametrize(("q", "sigma", "steps"), SETTINGS)
def test_log_likelihood_ratio_equals_the_densities(q: float, sigma: float, steps: int) -> None:
    deviation = np.sqrt(steps * (sigma**2 + q * (1 - q)))
    edge = steps * q + 12.0 * deviation  # 12 standard deviations into the tail
    sums = np.linspace(-edge, edge, 401)
    found = log_likelihood_ratio(sums, sample_rate=q, noise_multiplier=sigma, num_steps=steps)
    world0 = mixture_log_density(sums, q, sigma, steps, 1)
    world1 = mixture_log_density(sums, q, sigma, steps, -1)
    np.testing.assert_allclose(found, world0 - world1, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found, -found[::-1], rtol=1e-9, atol=1e-9)  # odd
    assert (np.diff(found) > 0).all()
    assert found[200] == pytest.approx(0.0, abs=1e-9)
    grid = sums[:400].reshape(4, 100)
    assert np.array_equal(
        log_likelihood_ratio(grid, sample_rate=q, noise_multiplier=sigma, num_steps=steps),
        found[:400].reshape(4, 100),
    )


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [
        (0.25, 12.0, 500),
        (0.01, 3.0, 900),
        (1.0, 20.0, 60),
        (0.3, 0.05, 40),
        (0.5, 0.02, 1),
        (1.0, 0.03, 1),
    ],
)
def test_ratios_by_powers_and_term_by_term_are_those_of_scipy(q, sigma, steps, adjacency) -> None:
    """With little noise, the terms are too far apart for powers."""
    deviation = np.sqrt(steps * (sigma**2 + q * (1 - q)))
    sums = np.random.default_rng(0).uniform(-1, 1, 25_000) * (steps * q + 9 * deviation)
    known = {"sample_rate": q, "noise_multiplier": sigma, "num_steps": steps}
    found = log_likelihood_ratio(sums, **known, adjacency=Adjacency(adjacency))
    counts = np.arange(steps + 1)
    logs = binom.logpmf(counts, steps, q) - counts**2 / (2 * steps * sigma**2)
    some = slice(None, None, 50)
    tilts = sums[some, None] * counts / (steps * sigma**2)
    expected = logsumexp(logs + tilts, axis=1)
    if adjacency == "substitute":
        expected = expected - logsumexp(logs - tilts, axis=1)
    np.testing.assert_allclose(found[some], expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(
        found[:7], log_likelihood_ratio(sums[:7], **known, adjacency=Adjacency(adjacency))
    )


@pytest.mark.parametrize(("adjacency", "sign"), [("substitute", -1), ("add_remove", 0)])
def test_the_score_of_a_sum_is_the_ratio_under_the_adjacency(adjacency: str, sign: int) -> None:
    q, sigma, steps = 0.3, 0.8, (2, 5)
    sums = np.random.default_rng(0).normal(size=(6, 2, 1))
    context = ScoringContext(q, sigma, steps, None, {}, adjacency=Adjacency(adjacency))
    found = final_sum(sums, context)
    for index, step in enumerate(steps):
        column = sums[:, index, 0]
        world0, world1 = (mixture_log_density(column, q, sigma, step, to) for to in (1, sign))
        np.testing.assert_allclose(found[:, index, 0], world0 - world1, rtol=1e-8, atol=1e-8)


def test_blocks_of_sums_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.linspace(-100.0, 100.0, 1001)
    settings = {"sample_rate": 0.25, "noise_multiplier": 2.0, "num_steps": 50}
    whole = log_likelihood_ratio(sums, **settings)
    for size in (1, 51 * 7):
        monkeypatch.setattr("dpcanary.adversaries.worst_case._BLOCK", size)
        np.testing.assert_allclose(log_likelihood_ratio(sums, **settings), whole, rtol=1e-12)


def test_log_likelihood_ratio_is_linear_at_rate_one_and_stable_far_out() -> None:
    """N(T, T s^2) against N(-T, T s^2): ((g + T)^2 - (g - T)^2) / (2 T s^2) = 2 g / s^2."""
    sums = np.array([-1e4, -3.0, 0.0, 0.5, 700.0])
    found = log_likelihood_ratio(sums, sample_rate=1.0, noise_multiplier=3.0, num_steps=50)
    np.testing.assert_allclose(found, 2.0 * sums / 9.0, rtol=1e-12)
    # Far out, k = T dominates in world 0 and k = 0 in world 1: the slope is 1 / s^2.
    far = np.array([1e6, 1e6 + 1.0])
    found = log_likelihood_ratio(far, sample_rate=0.25, noise_multiplier=2.0, num_steps=10)
    assert found[1] - found[0] == pytest.approx(1.0 / 4.0, rel=1e-6)


@pytest.mark.parametrize(("q", "sigma"), [(1.0, 5.0), (0.25, 1.0), (0.0625, 0.3)])
def test_final_sums_follow_the_mixture(q: float, sigma: float) -> None:
    sums = draw("sum", range(20_000), q, sigma)
    assert sums.shape == (20_000, 3)
    for column, steps in enumerate(RECORD_STEPS):
        counts = np.arange(steps + 1)
        weights, deviation = binom.pmf(counts, steps, q), sigma * np.sqrt(steps)
        variance = steps * (q * (1 - q) + sigma**2)
        for world, sign in ((0, 1), (1, -1)):
            means = sign * counts

            def cdf(x: Floats, means: Floats = means, scale: float = deviation) -> Floats:
                return norm.cdf((x[:, None] - means) / scale) @ weights  # noqa: B023

            found = sums[world::2, column]
            assert kstest(found, cdf).pvalue > 1e-3
            assert abs(found.mean() - sign * steps * q) < 4.5 * np.sqrt(variance / len(found))
            # The standard error of the variance, from the sample itself.
            error = np.std((found - found.mean()) ** 2) / np.sqrt(len(found))
            assert abs(found.var() - variance) < 4.5 * error
            # The steps before and after a recorded step are independent.
            if column:
                before, gained = sums[world::2, column - 1], np.diff(sums, axis=1)[world::2]
                correlation = np.corrcoef(before, gained[:, column - 1])[0, 1]
                assert abs(correlation) < 4.5 / np.sqrt(len(before))


def test_the_score_of_a_sum_is_its_likelihood_ratio_at_that_step() -> None:
    q, sigma = 0.25, 1.0
    sums = draw_shard(drawing("sum", range(50), q, sigma)).observation
    scores = final_sum(sums, context(q, sigma))
    assert scores.shape == sums.shape == (50, 3, 1)
    for column, steps in enumerate(RECORD_STEPS):
        world0, world1 = (
            mixture_log_density(sums[:, column], q, sigma, steps, sign) for sign in (1, -1)
        )
        np.testing.assert_allclose(scores[:, column, 0], world0 - world1, rtol=1e-8, atol=1e-8)


# --- the transcript ----------------------------------------------------------------------------


def test_transcript_at_rate_one_is_the_gaussian_mechanism() -> None:
    """2 g_T / s^2 with g_T = +-T + N(0, T s^2): mean +-2 T / s^2, variance 4 T / s^2."""
    sigma, count = 5.0, 20_000
    scores = draw("log_likelihood_ratio", range(count), 1.0, sigma)
    for column, steps in enumerate(RECORD_STEPS):
        deviation = 2.0 * np.sqrt(steps) / sigma
        for world, sign in ((0, 1), (1, -1)):
            found, mean = scores[world::2, column], sign * 2.0 * steps / sigma**2
            size = len(found)
            assert abs(found.mean() - mean) < 4.5 * deviation / np.sqrt(size)
            assert abs(found.var() / deviation**2 - 1.0) < 4.5 * np.sqrt(2.0 / size)
            assert kstest(found, norm(mean, deviation).cdf).pvalue > 1e-3


def test_transcript_is_a_log_likelihood_ratio() -> None:
    """E[exp(score)] in world 1 and E[exp(-score)] in world 0 are 1. The worlds are symmetric."""
    scores = draw("log_likelihood_ratio", range(40_000), 0.25, 4.0)
    for column in range(len(RECORD_STEPS)):
        for world, sign in ((0, -1.0), (1, 1.0)):
            ratios = np.exp(sign * scores[world::2, column])
            assert abs(ratios.mean() - 1.0) < 4.5 * ratios.std() / np.sqrt(len(ratios))
        assert ks_2samp(scores[0::2, column], -scores[1::2, column]).pvalue > 1e-3
        assert scores[0::2, column].mean() > 0 > scores[1::2, column].mean()


def test_transcript_tells_more_than_the_final_sum_at_low_rates() -> None:
    q, sigma = 0.05, 0.4
    transcript = draw("log_likelihood_ratio", range(4_000), q, sigma)[:, -1]
    sums = draw("sum", range(4_000), q, sigma)[:, -1]
    wrong = [np.mean(s[0::2] <= 0) + np.mean(s[1::2] >= 0) for s in (transcript, sums)]
    assert wrong[0] < wrong[1] - 0.02


# --- shards of runs ----------------------------------------------------------------------------


@both_observations
def test_any_split_into_shards_gives_the_same_rows(observe: str) -> None:
    whole = draw(observe, range(3_000), 0.25, 1.0)
    cuts = [0, 1, 7, 1_023, 1_024, 1_026, 2_500, 3_000]
    shards = [range(first, last) for first, last in pairwise(cuts)]
    parts = np.concatenate([draw(observe, shard, 0.25, 1.0) for shard in shards])
    assert np.array_equal(parts, whole)
    assert np.array_equal(draw(observe, range(900, 2_100), 0.25, 1.0), whole[900:2_100])
    assert len(np.unique(whole)) == whole.size  # no two runs share their randomness
    assert not np.array_equal(draw(observe, range(3_000), 0.25, 1.0, seed=2), whole)


@both_observations
def test_the_shard_of_a_drawing(observe: str, tmp_path) -> None:
    told = drawing(observe, range(7, 20), 0.25, 1.5)
    write_shard(tmp_path / "shard.npz", draw_shard(told))
    shard = read_shard(tmp_path / "shard.npz")
    assert shard.run.tolist() == list(range(7, 20))
    assert shard.world.tolist() == [[run % 2] for run in range(7, 20)]
    assert shard.step.tolist() == list(RECORD_STEPS)
    np.testing.assert_array_equal(shard.observation[:, :, 0], draw(observe, told.runs, 0.25, 1.5))
    assert np.isnan(shard.test_accuracy).all()
    assert shard.header.pop("seconds") > 0
    assert shard.header.pop("software")
    assert shard.header == {
        "settings": told.stage.model_dump(mode="json"),
        "noise_multiplier": 1.5,
        "inputs": {},
        "device": "cpu",
    }


@pytest.mark.parametrize("observe", ["change", ""])
def test_the_worst_case_has_no_other_observations(observe: str) -> None:
    with pytest.raises(InputError, match=f"observed by its sum or ratio, not by '{observe}'"):
        draw(observe, range(4), 0.25, 1.0)


# Processes as another package may define them.


def coins(drawing: Drawing) -> Floats:
    """Draws of each run's own stream, shape (runs, steps, 2), plus 100 in world 1."""
    shape = len(drawing.stage.record_steps), 2
    drawn = np.stack([drawing.generator(run).random(shape) for run in drawing.runs])
    return drawn + 100.0 * drawing.worlds[:, None, None]


def by_step(drawing: Drawing) -> Floats:
    """Runs and steps in the wrong order."""
    return np.zeros((len(drawing.stage.record_steps), len(drawing.runs)))


def a_number(drawing: Drawing) -> float:
    return 1.0


def test_a_process_of_ones_own_has_one_slot_and_a_stream_for_every_run() -> None:
    def drawn(runs: range, seed: int = 1) -> Floats:
        told = drawing("coins", runs, 1.0, 1.0, seed=seed, function=f"{__name__}:coins")
        return draw_shard(told).observation

    whole = drawn(range(40))
    assert whole.shape == (40, 3, 1, 2)
    assert ((whole > 99).all(axis=(1, 2, 3)) == np.arange(40) % 2).all()
    np.testing.assert_array_equal(drawn(range(11, 17)), whole[11:17])
    assert len(np.unique(whole % 100)) == whole.size
    assert not np.array_equal(drawn(range(40), seed=2), whole)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (f"{__name__}:by_step", r"by_step returned shape \(3, 10\); it must begin with \(10, 3\)"),
        (f"{__name__}:a_number", r"a_number returned shape \(\); it must begin with \(10, 3\)"),
        (f"{__name__}:nothing", "there is no function '.*:nothing'"),
        ("no.such.module:draw", "there is no function 'no.such.module:draw'.*installed here"),
    ],
)
def test_a_process_that_does_not_fit_is_named(function: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_shard(drawing("sum", range(10), 1.0, 1.0, function=function))
