"""S1: the worst-case pair of datasets (Pradhan et al., Section 3.1, Equations 2 and 3).

The target's gradient is +C in world 0 and -C in world 1, and every other record's gradient is 0.
Under `add_remove` and `zero_out`, world 1 has no gradient in its place. A run is therefore
one-dimensional: each step adds noise, and +C or -C if the canary is sampled. Runs are drawn
directly, without a model. `shuffled_case` is that of shuffled batches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dpcanary.adversaries.adversary_settings import Purpose
from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.adversaries.shuffled_case import draw_ratios, draw_sums, sum_ratios
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.log_sums import log_sums
from dpcanary.errors import InputError
from dpcanary.scoring.scores import Array, ScoringContext

Signs = NDArray[np.int64]  # +1, or -1 or 0, by the run's world, shape (runs, 1)
# Mixture components are left out if their log-probability is this far below the largest.
_NEGLIGIBLE = 80.0
# Terms of mixtures that are evaluated at once: they stay in the core's cache.
_BLOCK = 20_000
# Exponentials of numbers of this range are finite, and none is 0.
_WIDEST = 600.0


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
    mixture = _Mixture(int(counts[kept][0]), weights[kept])
    tilts = np.ravel(sums) / variance
    ratios = mixture.log_sums(tilts)
    if adjacency is Adjacency.SUBSTITUTE:
        ratios -= mixture.log_sums(-tilts)
    return ratios.reshape(np.shape(sums))


@dataclass(frozen=True)
class _Mixture:
    """Sums of exp(weight_k + k tilt) over a range of counts k, which are polynomials in exp(tilt).

    Attributes:
        first: the least count.
        weights: of it and of those after it, shape (counts,).
    """

    first: int
    weights: Array

    def log_sums(self, tilts: Array) -> Array:
        """Their logarithms, shape (tilts,)."""
        most = len(self.weights) - 1
        widest = max(1, most) * np.abs(tilts).max(initial=0.0) + np.ptp(self.weights)
        of_block, terms = self._term_by_term, most + 1
        if widest < _WIDEST:
            of_block, terms = self._by_powers, 1
        sums = np.empty(len(tilts))
        size = max(1, _BLOCK // terms)
        for start in range(0, len(tilts), size):
            block = slice(start, start + size)
            sums[block] = of_block(tilts[block])
        return self.first * tilts + sums

    def _by_powers(self, tilts: Array) -> Array:
        """By Horner's rule, in a tenth of the time; all terms are positive, so it is stable."""
        largest = self.weights.max()
        powers = np.exp(tilts)
        sums = np.zeros(len(tilts))
        for coefficient in np.exp(self.weights[::-1] - largest):
            sums *= powers
            sums += coefficient
        return np.asarray(largest + np.log(sums))

    def _term_by_term(self, tilts: Array) -> Array:
        return log_sums(self.weights + tilts[:, None] * np.arange(len(self.weights)))
