"""From measured updates to findings: does each property hold that the accountant assumes?"""

from collections.abc import Callable
from dataclasses import dataclass

from dpcanary.mechanism_check import noise, parts, sampling
from dpcanary.mechanism_check.measurements import Measured, Measurements


@dataclass(frozen=True)
class Finding:
    """One property of the mechanism, as it was measured.

    Attributes:
        name: of the property.
        expected: what the accountant assumes, in words.
        measured: what was measured, in words; and where, if the property does not hold there.
        p_value: if the property holds, it is at most p with probability at most p; 0 or 1 for what
            is not random.
        holds: whether nothing speaks against it.
        meaning: what it would mean if it does not hold.
    """

    name: str
    expected: str
    measured: str
    p_value: float
    holds: bool
    meaning: str


@dataclass(frozen=True)
class _Property:
    name: str
    expected: str
    measure: Callable[[Measurements], Measured]
    meaning: str
    is_random: bool = True


def findings_of(found: Measurements, *, significance: float) -> list[Finding]:
    """What the measurements say of each property.

    Args:
        found: the measurements.
        significance: probability that a right mechanism fails any of the properties, at most.
    """
    level = level_of_each(significance)
    findings = []
    for one in _PROPERTIES:
        measured = one.measure(found)
        holds = measured.p_value > level
        text = measured.text if holds else measured.text_with_places(level)
        findings.append(Finding(one.name, one.expected, text, measured.p_value, holds, one.meaning))
    return findings


def level_of_each(significance: float) -> float:
    """Each random property's equal part of the significance (Bonferroni)."""
    return significance / sum(one.is_random for one in _PROPERTIES)


_PROPERTIES = (
    _Property(
        "sampling rate",
        "every record is in a batch with the sample rate",
        sampling.sampling_rate,
        "batches are larger or smaller than accounted: amplification by sampling differs",
    ),
    _Property(
        "Poisson sampling",
        "batch sizes vary like binomial numbers",
        sampling.batch_sizes,
        "batches are not Poisson samples: for shuffled or fixed-size batches, the accounted"
        " epsilon does not hold",
    ),
    _Property(
        "new batch in each step",
        "a record is in both of two steps with the squared sample rate",
        sampling.both_steps,
        "batches of different steps depend on each other, as in passes over shuffled data",
    ),
    _Property(
        "normalisation",
        "sums are divided by the expected batch size",
        parts.normalisation,
        "gradients are divided by something else, such as the size of the batch that was drawn",
        is_random=False,
    ),
    _Property(
        "clipping",
        "the whole gradient of each record is clipped to C, before summing",
        parts.clipping,
        "the sensitivity is not C: gradients are clipped after averaging, per layer, or not",
        is_random=False,
    ),
    _Property(
        "noise scale",
        "noise multiplier times C, over the expected batch size",
        noise.noise_scale,
        "the noise is not what is accounted",
    ),
    _Property(
        "constant noise",
        "the same scale in every training, up to chance",
        noise.constant_noise,
        "the scale of the noise depends on the batch, for example on its size, or is made equal",
    ),
    _Property(
        "Gaussian noise",
        "a normal distribution, with 0.3173, 0.0455, 0.0027 beyond 1, 2, 3 deviations",
        noise.gaussian,
        "the accountant is that of Gaussian noise",
    ),
    _Property(
        "independent steps",
        "the noise of two steps has twice the variance of one",
        noise.independent_steps,
        "noise is drawn again in later steps, and cancels or adds up",
    ),
    _Property(
        "independent coordinates",
        "noise of different parameters and trainings is independent",
        noise.independent_coordinates,
        "noise is shared or cancels between parameters or trainings, so it can be removed",
    ),
)
