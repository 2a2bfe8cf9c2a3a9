"""The worst case on Poisson samples and on shuffled batches, and what a process must return."""

from collections.abc import Sequence

import numpy as np
import pytest
from by_hand import Floats
from scipy.special import logsumexp
from scipy.stats import binom, kstest, norm

from dpcanary.adversaries.adversary_settings import DrawingStage, OtherRecords
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.adversaries.shuffled_case import moves_of, pass_ratios
from dpcanary.adversaries.worst_case import draw_worst_case, final_sum, log_likelihood_ratio
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.scoring.scores import ScoringContext

RECORD_STEPS = (1, 20, 100)
GRADIENT = {"zero": 0.0, "opposite": -1.0}
every_adjacency = pytest.mark.parametrize("adjacency", Adjacency)


def drawing(runs: Sequence[int], sigma: float, **changes: object) -> Drawing:
    settings = {
        "function": "dpcanary.adversaries.worst_case:draw_worst_case", "observe": "sum",
        "adjacency": "substitute", "sample_rate": 1.0, "record_steps": RECORD_STEPS, "seed": 3,
    }  # fmt: skip
    return Drawing(DrawingStage.model_validate(settings | changes, strict=False), sigma, runs)


@every_adjacency
@pytest.mark.parametrize(("q", "sigma", "steps"), [
    (1.0, 22.37, 500),
    (0.25, 5.574, 500),
    (0.01, 3.0, 900),
    (0.3, 0.4, 7),
    (0.3, 0.05, 40),  # with little noise, the terms are too far apart for powers
    (0.5, 0.02, 1),
    (1.0, 0.03, 1),
])  # fmt: skip
def test_the_likelihood_ratio_is_that_of_the_densities(q, sigma, steps, adjacency, monkeypatch):
    """By scipy, for sums up to 12 standard deviations into the tails."""
    edge = steps * q + 12 * np.sqrt(steps * (sigma**2 + q * (1 - q)))
    sums = np.linspace(-edge, edge, 25_001)
    known = {"sample_rate": q, "noise_multiplier": sigma, "num_steps": steps}
    ratios = log_likelihood_ratio(sums, **known, adjacency=adjacency)
    counts, some = np.arange(steps + 1), slice(None, None, 50)
    logs = binom.logpmf(counts, steps, q) - counts**2 / (2 * steps * sigma**2)
    tilts = sums[some, None] * counts / (steps * sigma**2)
    expected = logsumexp(logs + tilts, axis=1)
    if adjacency is Adjacency.SUBSTITUTE:
        expected = expected - logsumexp(logs - tilts, axis=1)
        np.testing.assert_allclose(ratios, -ratios[::-1], rtol=1e-9, atol=1e-9)  # odd
    np.testing.assert_allclose(ratios[some], expected, rtol=1e-12, atol=1e-12)
    if sigma > 0.1:  # else it is flat between the counts
        assert (np.diff(ratios[::60]) > 0).all()
    grid = log_likelihood_ratio(sums[:400].reshape(4, 100), **known, adjacency=adjacency)
    assert np.array_equal(grid, ratios[:400].reshape(4, 100))
    monkeypatch.setattr("dpcanary.adversaries.worst_case._BLOCK", 7 * (steps + 1))
    in_blocks = log_likelihood_ratio(sums[:1000], **known, adjacency=adjacency)
    np.testing.assert_allclose(in_blocks, ratios[:1000], rtol=1e-12)
    if steps < 10:  # far out, k = T dominates in world 0, and the least possible k in world 1
        ends = log_likelihood_ratio(sigma**2 * np.array([1e9, 2e9]), **known, adjacency=adjacency)
        slope = 2 if q == 1 and adjacency is Adjacency.SUBSTITUTE else 1
        assert ends[1] - ends[0] == pytest.approx(slope * 1e9, rel=1e-6)


@every_adjacency
@pytest.mark.parametrize("way", [
    {"sample_rate": 1.0},
    {"sample_rate": 0.0625},
    {"batches_per_pass": 5, "other_records": "zero"},
    {"batches_per_pass": 5, "other_records": "opposite"},
])  # fmt: skip
def test_final_sums_and_their_scores_follow_the_mixture(adjacency, way):
    """Of shuffled batches, every pass moves the sum by the same, wherever the target is."""
    sigma, steps = 0.7, (10, 30, 60)
    drawn_runs = drawing(range(10_000), sigma, adjacency=adjacency, record_steps=steps, **way)
    sums = draw_worst_case(drawn_runs)
    stage, signs = drawn_runs.stage, (1, -1 if adjacency is Adjacency.SUBSTITUTE else 0)
    known = stage.sample_rate, sigma, steps, None, stage.model_dump()
    context = ScoringContext(*known, adjacency=adjacency)
    scores = final_sum(sums[:, :, None], context)[:, :, 0]
    for column, step in enumerate(steps):
        counts, deviation, densities = np.arange(step + 1), sigma * np.sqrt(step), []
        for world in (0, 1):
            weights = binom.pmf(counts, step, stage.sample_rate)
            means = signs[world] * counts
            if "batches_per_pass" in way:
                move = moves_of(adjacency, OtherRecords(way["other_records"]))[world]
                weights, means = np.ones(1), np.array([move.size * step / 5])

            def cdf(x: Floats, law: object = (weights, means, deviation)) -> Floats:
                weights, means, deviation = law
                return norm.cdf((x[:, None] - means) / deviation) @ weights

            drawn = sums[world::2, column]
            assert kstest(drawn, cdf).pvalue > 1e-3
            if column:  # the steps before and after a recorded step are independent
                before = sums[world::2, column - 1]
                correlation = np.corrcoef(before, drawn - before)[0, 1]
                assert abs(correlation) < 4.5 / np.sqrt(len(before))
            parts = norm.logpdf(sums[:50, column, None], means, deviation)
            densities.append(logsumexp(parts, b=weights, axis=1))
        expected = densities[0] - densities[1]
        np.testing.assert_allclose(scores[:50, column], expected, rtol=1e-8, atol=1e-8)


def datasets(adjacency: Adjacency, others: float, count: int) -> tuple[list[float], list[float]]:
    """The gradients of all records in both worlds; the target is the first one of world 0."""
    rest = [others] * (count - 1)
    world1 = {"substitute": [-1.0, *rest], "zero_out": [0.0, *rest], "add_remove": rest}
    return [1.0, *rest], world1[adjacency]


def naive_pass(records: list[float], size: int, sigma: float, stream: np.random.Generator):
    """The noisy sums of one pass over shuffled records."""
    order = stream.permutation(records)
    sums = [order[first : first + size].sum() for first in range(0, len(order), size)]
    return np.array(sums) + sigma * stream.standard_normal(len(sums))


def naive_ratio(sums: Floats, worlds: Sequence[list[float]], size: int, sigma: float) -> float:
    """From the densities of all sums that each world can have, each order being as likely."""
    densities = []
    for records in worlds:
        parts = []
        for place in range(len(records)):
            # All but the first record are alike, so its place fixes the order.
            order = [*records[1:][:place], records[0], *records[1:][place:]]
            means = [sum(order[first : first + size]) for first in range(0, len(order), size)]
            parts.append(norm.logpdf(sums, means, sigma).sum())
        densities.append(logsumexp(parts) - np.log(len(records)))
    return densities[0] - densities[1]


# Under `add_remove`, with one record in a batch, one record less would be one batch less.
@every_adjacency
@pytest.mark.parametrize("others", GRADIENT)
@pytest.mark.parametrize(("batches", "size", "sigma"), [(4, 3, 0.8), (2, 2, 0.5), (1, 5, 1.3)])
def test_a_pass_has_the_ratio_of_its_densities(adjacency, others, batches, size, sigma):
    worlds = datasets(adjacency, GRADIENT[others], batches * size)
    stream, moves = np.random.default_rng(5), moves_of(adjacency, OtherRecords(others))
    for records in worlds:
        for _ in range(20):
            sums = naive_pass(records, size, sigma, stream)
            seen = sums - size * GRADIENT[others]
            ratio = pass_ratios(seen, moves, noise_multiplier=sigma)
            expected = naive_ratio(sums, worlds, size, sigma)
            assert ratio == pytest.approx(expected, rel=1e-9, abs=1e-9)


def coins(drawing: Drawing) -> Floats:
    """Draws of each run's own stream, shape (runs, steps, 2)."""
    shape = len(drawing.stage.record_steps), 2
    return np.stack([drawing.generator(run).random(shape) for run in drawing.runs])


def by_step(drawing: Drawing) -> Floats:
    """Runs and steps in the wrong order."""
    return np.zeros((len(drawing.stage.record_steps), len(drawing.runs)))


def test_a_process_of_ones_own_has_one_slot_and_a_stream_for_every_run() -> None:
    whole, part, of_other_seed = (
        draw_shard(drawing(runs, 1.5, seed=seed, function=f"{__name__}:coins"))
        for runs, seed in ((range(40), 1), (range(11, 17), 1), (range(40), 2))
    )
    assert whole.observation.shape == (40, 3, 1, 2)
    assert part.world.tolist() == [[1], [0], [1], [0], [1], [0]]
    assert np.isnan(whole.test_accuracy).all()
    assert whole.header["noise_multiplier"] == 1.5
    assert whole.header["seconds"] > 0
    np.testing.assert_array_equal(part.observation, whole.observation[11:17])
    draws = np.concatenate([whole.observation, of_other_seed.observation])
    assert len(np.unique(draws)) == draws.size


@pytest.mark.parametrize(("changes", "message"), [
    ({"function": f"{__name__}:by_step"}, r"shape \(3, 10\); it must begin with \(10, 3\)"),
    ({"function": "no.such:draw"}, "there is no function 'no.such:draw'.*installed here"),
    ({"observe": "change"}, "observed by its sum or ratio, not by 'change'"),
])  # fmt: skip
def test_a_process_that_does_not_fit_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_shard(drawing(range(10), 1.0, **changes))
