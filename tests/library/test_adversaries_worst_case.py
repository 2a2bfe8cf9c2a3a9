"""The worst case on Poisson samples and on shuffled batches, and what a process must return."""

from collections.abc import Sequence

import numpy as np
import pytest
from by_hand import Floats
from scipy.special import logsumexp
from scipy.stats import binom, norm

from dpcanary.adversaries.adversary_settings import DrawingStage, OtherRecords
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.adversaries.shuffled_case import moves_of, pass_ratios
from dpcanary.adversaries.worst_case import log_likelihood_ratio
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import InputError

GRADIENT = {"zero": 0.0, "opposite": -1.0}
every_adjacency = pytest.mark.parametrize("adjacency", Adjacency)


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
    setup = {"sample_rate": q, "noise_multiplier": sigma, "num_steps": steps}
    ratios = log_likelihood_ratio(sums, **setup, adjacency=adjacency)
    counts, some = np.arange(steps + 1), slice(None, None, 50)
    logs = binom.logpmf(counts, steps, q) - counts**2 / (2 * steps * sigma**2)
    tilts = sums[some, None] * counts / (steps * sigma**2)
    expected = logsumexp(logs + tilts, axis=1)
    if adjacency is Adjacency.SUBSTITUTE:
        expected = expected - logsumexp(logs - tilts, axis=1)
    np.testing.assert_allclose(ratios[some], expected, rtol=1e-12, atol=1e-12)
    grid = log_likelihood_ratio(sums[:400].reshape(4, 100), **setup, adjacency=adjacency)
    assert np.array_equal(grid, ratios[:400].reshape(4, 100))
    monkeypatch.setattr("dpcanary.adversaries.worst_case._BLOCK", 7 * (steps + 1))
    in_blocks = log_likelihood_ratio(sums[:1000], **setup, adjacency=adjacency)
    np.testing.assert_allclose(in_blocks, ratios[:1000], rtol=1e-12)
    if steps < 10:  # far out, k = T dominates in world 0, and the least possible k in world 1
        ends = log_likelihood_ratio(sigma**2 * np.array([1e9, 2e9]), **setup, adjacency=adjacency)
        slope = 2 if q == 1 and adjacency is Adjacency.SUBSTITUTE else 1
        assert ends[1] - ends[0] == pytest.approx(slope * 1e9, rel=1e-6)


def datasets(adjacency: Adjacency, others: float, count: int) -> tuple[list[float], list[float]]:
    """The gradients of all records in both worlds; the target is the first one of world 0."""
    rest = [others] * (count - 1)
    world1 = {"substitute": [-1.0, *rest], "zero_out": [0.0, *rest], "add_remove": rest}
    return [1.0, *rest], world1[adjacency]


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
    for records in 20 * worlds:  # one pass over them, shuffled
        sums = np.add.reduceat(stream.permutation(records), range(0, len(records), size))
        sums += sigma * stream.standard_normal(batches)
        seen = sums - size * GRADIENT[others]
        ratio = pass_ratios(seen, moves, noise_multiplier=sigma)
        expected = naive_ratio(sums, worlds, size, sigma)
        assert ratio == pytest.approx(expected, rel=1e-9, abs=1e-9)


def by_step(drawing: Drawing) -> Floats:
    """Runs and steps in the wrong order."""
    return np.zeros((len(drawing.stage.record_steps), len(drawing.runs)))


@pytest.mark.parametrize(("changes", "message"), [
    ({"function": f"{__name__}:by_step"}, r"shape \(3, 10\); it must begin with \(10, 3\)"),
    ({"function": "no.such:draw"}, "there is no function 'no.such:draw'.*installed here"),
    ({"observe": "change"}, "observed by its sum or ratio, not by 'change'"),
])  # fmt: skip
def test_a_process_that_does_not_fit_is_named(changes: dict[str, str], message: str) -> None:
    setup = {"adjacency": "substitute", "sample_rate": 1.0, "record_steps": (1, 20, 100), "seed": 3}
    setup |= {"function": "dpcanary.adversaries.worst_case:draw_worst_case", "observe": "sum"}
    stage = DrawingStage.model_validate(setup | changes, strict=False)
    with pytest.raises(InputError, match=message):
        draw_shard(Drawing(stage, 1.0, range(10)))
