"""S1: the worst-case pair of datasets (Pradhan et al., Section 3.1, Equations 2 and 3).

The target's gradient is +C in world 0 and -C in world 1, and every other record's gradient is 0.
A run is therefore one-dimensional: each step adds noise, and +C or -C if the canary is sampled.
Runs are drawn directly, without a model.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.adversaries.settings import Purpose
from dpcanary.errors import InputError
from dpcanary.scoring.scores import Array, ScoringContext

# Mixture components are left out if their log-probability is this far below the largest.
_NEGLIGIBLE = 80.0
# Observations x components evaluated at once.
_BLOCK = 2**21


def draw_worst_case(drawing: Drawing) -> Array:
    """Draws what the adversary observes, shape (runs, steps).

    `stage.observe` is `sum`, the released model alone, or `log_likelihood_ratio`, of all noisy
    gradients.

    Raises:
        InputError: if `stage.observe` is something else.
    """
    match drawing.stage.observe:
        case "sum":
            return _final_sums(drawing)
        case "log_likelihood_ratio":
            return _transcript_ratios(drawing)
        case other:
            raise InputError(f"the worst case is observed by its sum or ratio, not by {other!r}")


def _final_sums(drawing: Drawing) -> Array:
    """Sums of the noisy gradients up to each recorded step, in units of C.

    Between two recorded steps, the number of times that the canary is sampled is binomial and the
    noise is Gaussian, so single steps need not be drawn.
    """
    gaps = np.diff(drawing.stage.record_steps, prepend=0)
    shape = (RUNS_PER_STREAM, len(gaps))
    sums = []
    for stream, rows, signs in _streams(drawing):
        noise = stream.standard_normal(shape) * (drawing.noise_multiplier * np.sqrt(gaps))
        sampled = stream.binomial(gaps, drawing.stage.sample_rate, size=shape)
        sums.append(np.cumsum(signs * sampled[rows] + noise[rows], axis=1))
    return np.concatenate(sums)


def _transcript_ratios(drawing: Drawing) -> Array:
    """Log-likelihood ratios of all noisy gradients up to each recorded step (visible state).

    The paper has only the final sum. At a sample rate below 1, this is the exact tight attack.
    """
    rate, sigma = drawing.stage.sample_rate, drawing.noise_multiplier
    last_steps = np.asarray(drawing.stage.record_steps) - 1
    shape = (RUNS_PER_STREAM, drawing.stage.record_steps[-1])
    found = []
    for stream, rows, signs in _streams(drawing):
        noise = stream.standard_normal(shape) * sigma
        sampled = stream.random(shape) < rate
        gradients = signs * sampled[rows] + noise[rows]
        ratios = log_likelihood_ratio(
            gradients, sample_rate=rate, noise_multiplier=sigma, num_steps=1
        )
        found.append(np.cumsum(ratios, axis=1)[:, last_steps])
    return np.concatenate(found)


def _streams(drawing: Drawing) -> Iterator[tuple[np.random.Generator, slice, NDArray[np.int64]]]:
    """Each stream that the runs touch, with the rows of its runs and their signs, +1 or -1."""
    for stream, rows, worlds in drawing.streams(Purpose.WORST_CASE):
        yield stream, rows, (1 - 2 * worlds)[:, None]


def final_sum(observed: Array, context: ScoringContext) -> Array:
    """Score: the log-likelihood ratio of sums of noisy gradients, shape (runs, steps, 1)."""
    ratios = [
        log_likelihood_ratio(
            observed[:, index],
            sample_rate=context.sample_rate,
            noise_multiplier=context.noise_multiplier,
            num_steps=step,
        )
        for index, step in enumerate(context.record_steps)
    ]
    return np.stack(ratios, axis=1)


def log_likelihood_ratio(
    sums: Array, *, sample_rate: float, noise_multiplier: float, num_steps: int
) -> Array:
    """Log-likelihood ratios of world 0 to world 1 of sums of noisy gradients, any shape.

    With B ~ Bin(T, q), the sum given B = k is N(+-k, T sigma^2) (Equations 2 and 3, C = 1).
    Components of the mixture whose probability is below e^-80 of the largest are left out.

    Args:
        sums: in units of C.
        sample_rate: q.
        noise_multiplier: sigma.
        num_steps: T, the steps in each sum.
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
        ratios[block] = logsumexp(weights + tilts, axis=1) - logsumexp(weights - tilts, axis=1)
    return ratios.reshape(np.shape(sums))
