"""S1: the worst-case pair of datasets (Pradhan et al., Section 3.1, Equations 2 and 3).

The target's gradient is +C in world 0 and -C in world 1, and every other record's gradient is 0.
Under `add_remove` and `zero_out`, world 1 has no gradient in its place. A run is therefore
one-dimensional: each step adds noise, and +C or -C if the canary is sampled. Runs are drawn
directly, without a model. `shuffled_case` is that of shuffled batches.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.adversaries.settings import Purpose
from dpcanary.adversaries.shuffled_case import draw_ratios, draw_sums, sum_ratios
from dpcanary.errors import InputError
from dpcanary.log_sums import log_sums
from dpcanary.scoring.scores import Array, ScoringContext

Signs = NDArray[np.int64]  # +1, or -1 or 0, by the run's world, shape (runs, 1)
# Mixture components are left out if their log-probability is this far below the largest.
_NEGLIGIBLE = 80.0
# Observations x components evaluated at once: they stay in the core's cache.
_BLOCK = 50_000


def draw_worst_case(drawing: Drawing) -> Array:
    """Draws what the adversary observes, shape (runs, steps).

    `stage.observe` is `sum`, the released model alone, or `log_likelihood_ratio`, of all noisy
    gradients.

    Raises:
        InputError: if `stage.observe` is something else.
    """
    draws = {"sum": _sums, "log_likelihood_ratio": _transcript_ratios}
    observe = drawing.stage.observe
    if observe not in draws:
        raise InputError(f"the worst case is observed by its sum or ratio, not by {observe!r}")
    if drawing.stage.batches_per_pass is not None:
        return draw_sums(drawing) if observe == "sum" else draw_ratios(drawing)
    difference = int(drawing.stage.adjacency.sensitivity)
    return np.concatenate(
        [
            draws[observe](drawing, stream, rows, signs=(1 - difference * worlds)[:, None])
            for stream, rows, worlds in drawing.streams(Purpose.WORST_CASE)
        ]
    )


def _sums(drawing: Drawing, stream: np.random.Generator, rows: slice, signs: Signs) -> Array:
    """Sums of the noisy gradients up to each recorded step, in units of C.

    Between two recorded steps, the number of times that the canary is sampled is binomial and the
    noise is Gaussian, so single steps need not be drawn.
    """
    gaps = np.diff(drawing.stage.record_steps, prepend=0)
    shape = (RUNS_PER_STREAM, len(gaps))
    noise = stream.standard_normal(shape) * (drawing.noise_multiplier * np.sqrt(gaps))
    sampled = stream.binomial(gaps, drawing.stage.sample_rate, size=shape)
    return np.cumsum(signs * sampled[rows] + noise[rows], axis=1)


def _transcript_ratios(
    drawing: Drawing, stream: np.random.Generator, rows: slice, signs: Signs
) -> Array:
    """Log-likelihood ratios of all noisy gradients up to each recorded step (visible state).

    The paper has only the final sum. At a sample rate below 1, this is the exact tight attack.
    """
    stage, sigma = drawing.stage, drawing.noise_multiplier
    steps, rate = stage.record_steps, stage.sample_rate
    noise = stream.standard_normal((RUNS_PER_STREAM, steps[-1])) * sigma
    sampled = stream.random(noise.shape) < rate
    gradients = signs * sampled[rows] + noise[rows]
    ratios = log_likelihood_ratio(
        gradients,
        sample_rate=rate,
        noise_multiplier=sigma,
        num_steps=1,
        adjacency=stage.adjacency,
    )
    return np.cumsum(ratios, axis=1)[:, np.asarray(steps) - 1]


def final_sum(observed: Array, context: ScoringContext) -> Array:
    """Score: the log-likelihood ratio of sums of noisy gradients, shape (runs, steps, 1)."""
    settings, sigma = context.runs_settings, context.noise_multiplier
    is_shuffled = settings.get("batches_per_pass") is not None
    ratios = [
        sum_ratios(observed[:, index], settings, noise_multiplier=sigma, num_steps=step)
        if is_shuffled
        else log_likelihood_ratio(
            observed[:, index],
            sample_rate=context.sample_rate,
            noise_multiplier=sigma,
            num_steps=step,
            adjacency=context.adjacency,
        )
        for index, step in enumerate(context.record_steps)
    ]
    return np.stack(ratios, axis=1)


def log_likelihood_ratio(
    sums: Array,
    *,
    sample_rate: float,
    noise_multiplier: float,
    num_steps: int,
    adjacency: Adjacency = Adjacency.SUBSTITUTE,
) -> Array:
    """Log-likelihood ratios of world 0 to world 1 of sums of noisy gradients, any shape.

    With B ~ Bin(T, q), the sum given B = k is N(+-k, T sigma^2) (Equations 2 and 3, C = 1). Under
    `add_remove` and `zero_out`, that of world 1 is N(0, T sigma^2).
    Components of the mixture whose probability is below e^-80 of the largest are left out.

    Sums are in units of C. q is the sample rate, sigma the noise multiplier, and T the steps in
    each sum.
    """
    variance = num_steps * noise_multiplier**2
    counts = np.arange(num_steps + 1)
    probable = binom.logpmf(counts, num_steps, sample_rate)
    # log P(B = k) - k^2 / (2 variance). Terms that depend on the sum alone cancel in the ratio.
    weights = probable - counts**2 / (2.0 * variance)
    kept = probable > probable.max() - _NEGLIGIBLE
    counts, weights = counts[kept], weights[kept]
    flat = np.ravel(sums)
    ratios = np.empty(len(flat))
    size = max(1, _BLOCK // len(counts))
    for first in range(0, len(flat), size):
        block = slice(first, first + size)
        tilts = flat[block, None] * (counts / variance)
        ratios[block] = log_sums(weights + tilts)
        if adjacency is Adjacency.SUBSTITUTE:
            ratios[block] -= log_sums(weights - tilts)
    return ratios.reshape(np.shape(sums))
