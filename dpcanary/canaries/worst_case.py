"""S1: the worst-case pair of datasets (Pradhan et al., Section 3.1, Equations 2 and 3).

The target's gradient is +C in world 0 and -C in world 1, every other record's is 0, so a run is
one-dimensional: at each step, +-C if the canary is sampled, plus noise. Runs are drawn directly.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

from dpcanary.adjacency import world_of
from dpcanary.randomness import Purpose, generator

Array = NDArray[np.float64]

# Runs that share a stream; a run's draws are its row there, so its index alone fixes them.
_RUNS_PER_STREAM = 1024
# Mixture components whose log-probability is this far below the largest are left out.
_NEGLIGIBLE = 80.0
# Observations x components evaluated at once.
_BLOCK = 2**21


def draw_final_sums(
    *,
    runs: range,
    sample_rate: float,
    noise_multiplier: float,
    record_steps: Sequence[int],
    seed: int,
) -> Array:
    """Sums of the noisy gradients up to each recorded step, in units of C.

    Between recorded steps, the number of times that the canary is sampled is binomial and the
    noise Gaussian, so steps need not be drawn one by one.

    Args:
        runs: run indices, step 1; they fix each run's world and randomness.
        sample_rate: q.
        noise_multiplier: sigma.
        record_steps: ascending.
        seed: the audit's seed.

    Returns:
        Shape (runs, steps).
    """
    gaps = np.diff(record_steps, prepend=0)
    shape = (_RUNS_PER_STREAM, len(gaps))
    sums = []
    for stream, rows, signs in _streams(runs, seed):
        noise = stream.standard_normal(shape) * (noise_multiplier * np.sqrt(gaps))
        sampled = stream.binomial(gaps, sample_rate, size=shape)
        sums.append(np.cumsum(signs * sampled[rows] + noise[rows], axis=1))
    return np.concatenate(sums)


def draw_transcript_scores(
    *,
    runs: range,
    sample_rate: float,
    noise_multiplier: float,
    record_steps: Sequence[int],
    seed: int,
) -> Array:
    """Log-likelihood ratios of all noisy gradients up to each recorded step (visible state).

    Ours, beside the paper's score of the final sum: the exact tight attack at sample_rate < 1.

    Args:
        runs: run indices, step 1; they fix each run's world and randomness.
        sample_rate: q.
        noise_multiplier: sigma.
        record_steps: ascending.
        seed: the audit's seed.

    Returns:
        Shape (runs, steps); higher means world 0 is likelier.
    """
    shape = (_RUNS_PER_STREAM, record_steps[-1])
    last_steps = np.asarray(record_steps) - 1
    scores = []
    for stream, rows, signs in _streams(runs, seed):
        noise = stream.standard_normal(shape) * noise_multiplier
        sampled = stream.random(shape) < sample_rate
        ratios = log_likelihood_ratio(
            signs * sampled[rows] + noise[rows],
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
            num_steps=1,
        )
        scores.append(np.cumsum(ratios, axis=1)[:, last_steps])
    return np.concatenate(scores)


def log_likelihood_ratio(
    sums: Array, *, sample_rate: float, noise_multiplier: float, num_steps: int
) -> Array:
    """Log-likelihood ratio of world 0 to world 1 from the sum of some steps' noisy gradients.

    With B ~ Bin(T, q), the sum given B = k is N(+-k, T sigma^2) (Equations 2 and 3, C = 1). All
    components of the binomial mixture count whose probability is within e^-80 of the largest.

    Args:
        sums: any shape, in units of C.
        sample_rate: q.
        noise_multiplier: sigma.
        num_steps: T, the steps in the sum.

    Returns:
        The shape of `sums`.
    """
    variance = num_steps * noise_multiplier**2
    counts = np.arange(num_steps + 1)
    # log P(B = k) - k^2 / (2 variance); what depends on the sum alone cancels in the ratio.
    weights = binom.logpmf(counts, num_steps, sample_rate) - counts**2 / (2.0 * variance)
    probable = binom.logpmf(counts, num_steps, sample_rate)
    kept = probable > probable.max() - _NEGLIGIBLE
    counts, weights = counts[kept], weights[kept]
    flat = np.ravel(sums)
    ratios = np.empty(len(flat))
    for block in _blocks(len(flat), max(1, _BLOCK // len(counts))):
        tilts = flat[block, None] * (counts / variance)
        ratios[block] = logsumexp(weights + tilts, axis=1) - logsumexp(weights - tilts, axis=1)
    return ratios.reshape(np.shape(sums))


def _streams(
    runs: range, seed: int
) -> Iterator[tuple[np.random.Generator, slice, NDArray[np.int64]]]:
    """For each stream that the runs touch: the stream, its runs' rows, and their +1 or -1."""
    first, last = runs.start, runs.stop - 1
    for index in range(first // _RUNS_PER_STREAM, last // _RUNS_PER_STREAM + 1):
        start = index * _RUNS_PER_STREAM
        own = np.arange(max(first, start), min(last, start + _RUNS_PER_STREAM - 1) + 1)
        stream = generator(seed=seed, purpose=Purpose.WORST_CASE, index=index)
        rows = slice(int(own[0]) - start, int(own[-1]) - start + 1)
        yield stream, rows, (1 - 2 * world_of(own))[:, None]


def _blocks(length: int, size: int) -> Iterator[slice]:
    return (slice(first, first + size) for first in range(0, length, size))
