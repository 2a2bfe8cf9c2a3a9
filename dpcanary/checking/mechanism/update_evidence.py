"""What the tests of several properties share: the scale of updates, and the noise by place."""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from dpcanary.checking.mechanism.measurements import Measurements
from dpcanary.checking.mechanism.probe import TENSORS, Array
from dpcanary.checking.mechanism.probe_trainings import Trainings

# Relative deviations that are put down to single precision.
EXACT = 2e-3
# A batch whose parts deviate by less from a common multiple of the right ones is scaled as a whole.
_COMMON = 0.03
# Below this noise multiplier, even the smallest gradients show in the noise.
LEAST_NOISE = 0.1
# So does a part, over C, that clipping makes larger than this.
_SMALL_PART = 0.03
# A deviation in place of an infinite one.
_FAR = 1e9
# Norms from which on a part shows that its record is in a batch.
_VISIBLE = 1e-3
Tensors = dict[str, Array]


@dataclass(frozen=True)
class Evidence:
    """Measurements, with updates in units of their own scale.

    Attributes:
        measurements: the measurements.
        scales: how many times as large as assumed the updates of each step are, shape (T,).
        of_small: the scales of trainings on few records, shape (T,).
        of_batches: scales of single batches almost without noise, shape (R, T); NaN if empty, 1 if
            the parts of a batch have none in common.
        deviation: of the parts of a batch from their common scale, relative; the median.
        noisy: updates with noise, over that of the noise; shape (R, T, 8, columns).
        noise: over the scale of the step, and the noise's own; standard normal if all is right.
            Shape (R, T, values) by place; without places that get none.
        noise_everywhere: the same with those that get none.
    """

    measurements: Measurements
    scales: Array
    of_small: Array
    of_batches: Array
    deviation: float
    noisy: Array
    noise: Tensors
    noise_everywhere: Tensors

    @property
    def drawn(self) -> NDArray[np.bool_]:
        """Which records were in a batch, shape (R, T, N)."""
        return self.measurements.quiet.drawn


def evidence_of(measurements: Measurements) -> Evidence:
    """What the measurements say of scales and noise."""
    of_batches, deviation, scales = _scales(measurements.quiet)
    small = measurements.small_quiet
    of_small = np.ones(0) if small is None else _scales(small)[2]
    steps = min(measurements.noisy.moved.shape[1], len(scales))
    unit = measurements.settings.noise_multiplier * scales[:steps, None, None]
    noisy = measurements.noisy.moved[:, :steps] / unit
    everywhere = _noise(measurements, noisy)
    return Evidence(
        measurements=measurements,
        scales=scales,
        of_small=of_small,
        of_batches=of_batches,
        deviation=deviation,
        noisy=noisy,
        noise={place: values for place, values in everywhere.items() if values.any()},
        noise_everywhere=everywhere,
    )


def _scales(quiet: Trainings) -> tuple[Array, float, Array]:
    """Scales of batches, shape (R, T); the deviation from them; and scales of steps, shape (T,)."""
    expected = np.minimum(1.0, quiet.norms)[:, :, None] / sqrt(len(TENSORS))
    of_batches, off = _common(quiet, expected)
    if _of_finite(off, 95) > _COMMON:
        # Clipping is not to C. Then parts are compared with those of equal records.
        of_batches, off = _common(quiet, _usual(quiet))
    scales = np.ones(of_batches.shape[1])
    if _of_finite(off, 95) < _COMMON:
        for step in range(len(scales)):
            own = of_batches[:, step][np.isfinite(of_batches[:, step])]
            # If it differs between trainings, a step has no scale.
            if own.size and np.ptp(own) < _COMMON * own.max():
                scales[step] = np.median(own)
    else:
        of_batches = np.where(np.isfinite(of_batches), 1.0, np.nan)
    scales = np.where(np.abs(scales - 1) < EXACT / 4, 1.0, scales)
    # A batch may have no record that can be compared.
    unknown = np.isnan(of_batches) & quiet.drawn.any(axis=2)
    return np.where(unknown, scales, of_batches), _of_finite(off, 50), scales


def fresh(quiet: Trainings) -> NDArray[np.bool_]:
    """Which records are drawn with the gradient that they had at the start, shape (R, T, N)."""
    start = quiet.records.norms[quiet.records.classes]
    same: NDArray[np.bool_] = quiet.drawn & (np.abs(quiet.norms_of_all / start - 1) < EXACT / 4)
    if quiet.norm_factors is not None:
        # Although the gradients are equal, other parts are clipped, or to another C.
        same &= (quiet.norm_factors == quiet.norm_factors[0])[:, None]
    return same


def _usual(quiet: Trainings) -> Array:
    """The median part of equal records in each tensor, shape (R, T, 5, N); NaN if not `fresh`."""
    usual, at_start = np.full(quiet.parts.shape, np.nan), fresh(quiet)
    parts = np.moveaxis(quiet.parts, 2, -1)
    for index in range(len(quiet.records.norms)):
        own = at_start & (quiet.records.classes == index)
        if own.any():
            np.moveaxis(usual, 2, -1)[own] = np.median(parts[own], axis=0)
    return usual


def clipped_norms(evidence: Evidence) -> Array:
    """Norms of the parts of records in updates over C, shape (R, T, N); NaN if not drawn."""
    quiet = evidence.measurements.quiet
    squares = (quiet.parts**2).sum(axis=2)
    # What the size of the batch does is seen as normalisation.
    norms = np.sqrt(squares) / evidence.of_batches[..., None]
    return np.where(evidence.drawn, norms, np.nan)


def batches_differ(evidence: Evidence) -> bool:
    """Whether the batches of a step have different scales, as if each had a divisor of its own."""
    lowest, highest = (
        choose(np.where(np.isfinite(evidence.of_batches), evidence.of_batches, other), axis=0)
        for choose, other in ((np.min, np.inf), (np.max, -np.inf))
    )
    differ = highest > (1 + 2 * max(EXACT, evidence.deviation)) * lowest
    return bool((differ & np.isfinite(highest)).any())


def clips_to_limit(evidence: Evidence) -> bool:
    """Whether nearly all parts have the norm of the gradient, or C if that is larger."""
    norms = evidence.measurements.quiet.norms
    shown = np.isfinite(own := clipped_norms(evidence)) & (norms > _VISIBLE * 10)
    if not shown.any():
        return False
    off = np.abs(own[shown] / np.minimum(1.0, norms[shown]) - 1)
    return float(np.percentile(off, 99)) <= max(EXACT, 3 * evidence.deviation) < _COMMON


def _common(quiet: Trainings, expected: Array) -> tuple[Array, Array]:
    """Medians of batches of parts over expected ones, (R, T), and deviations from them."""
    shown = quiet.drawn & (quiet.norms > _VISIBLE)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = np.where(shown[:, :, None], quiet.parts / expected, np.nan)
        flat = np.where(np.isfinite(ratios), ratios, np.nan).reshape(*ratios.shape[:2], -1)
        medians = np.full(flat.shape[:2], np.nan)
        present = np.isfinite(flat).any(axis=2)
        medians[present] = np.nanmedian(flat[present], axis=1)
        off = np.abs(flat / medians[..., None] - 1)
        # No multiple of the right parts has a median that is not positive.
        return medians, np.where(medians[..., None] > 0, off, np.where(np.isnan(flat), off, _FAR))


def _of_finite(values: Array, percentile: float) -> float:
    finite = values[np.isfinite(values)]
    return float(np.percentile(finite, percentile)) if finite.size else 0.0


def _noise(measurements: Measurements, noisy: Array) -> Tensors:
    """The noise of all steps by place."""
    records = measurements.noisy.records
    along, across = records.parts(noisy)
    silent = noisy[..., len(records.sizes) :]
    shape = (*noisy.shape[:2], -1)
    noises = {tensor.name: silent[:, :, list(tensor.values)].reshape(shape) for tensor in TENSORS}
    names = [f"{tensor.name} beside gradients" for tensor in TENSORS[:3]]
    if np.abs(measurements.quiet.across[..., 3, :]).max(initial=0.0) < _SMALL_PART:
        # Weight and bias of the hidden layer may be clipped to limits of their own.
        names.append("hidden.* beside gradients")
    noises |= {name: across[:, :, row] for row, name in enumerate(names)}
    least = measurements.quiet.parts[..., measurements.quiet.records.classes == 0]
    if measurements.settings.noise_multiplier >= LEAST_NOISE and np.abs(least).max() < _SMALL_PART:
        noises["along small gradients"] = along[..., records.classes == 0].reshape(shape)
    return {place: values for place, values in noises.items() if values.size}
