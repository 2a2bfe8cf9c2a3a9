"""What measured updates say of each property that the accountant assumes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import f, norm

from dpcanary.mechanism_check.laws import (
    Array,
    binomial_p_values,
    constancy_p_value,
    correlation,
    probabilities_of,
    spread_p_value,
    squares_p_value,
    two_sided,
    variance_of_means,
)
from dpcanary.mechanism_check.measurements import SMALL, STABLE, Measurements, Tensors

# Of the intervals in which values of the noise are counted, in standard deviations.
EDGES = (-np.inf, *np.arange(-3.5, 4.0, 0.5), np.inf)
# So many places are named in which a property fails.
_MOST_NAMED = 3
# Least part of a record that is in a batch, over the usual part.
_PRESENT = 0.01
# Relative: in a second step, gradients are smaller by up to a twentieth.
_CLOSE = 0.1
# Relative deviations of parts. Single precision has 1e-7; small updates, and norms plus 1e-6, less.
_EXACT = 1e-3


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


class _Test(NamedTuple):
    """A p-value, and the place that was tested with the value found there; empty for all."""

    place: str
    p_value: float


# What was measured, in words, and the tests of it.
_Measured = tuple[str, list[_Test]]


@dataclass(frozen=True)
class _Property:
    """What is measured; if `needs_noise`, of the tensors that get any."""

    name: str
    expected: str
    measure: Callable[[Measurements], _Measured]
    meaning: str
    is_random: bool = True
    needs_noise: bool = False


def findings_of(found: Measurements, *, significance: float) -> list[Finding]:
    """What the measurements say; a right mechanism fails with this probability, at most."""
    # That a tensor gets no noise is found by the scale of its noise.
    noise = {name: values for name, values in found.noise.items() if values.any()}
    noisy = replace(
        found, noise=noise, noise_of_two={key: found.noise_of_two[key] for key in noise}
    )
    level, findings = level_of_each(significance), []
    for prop in _PROPERTIES:
        if prop.needs_noise:
            text, tests = prop.measure(noisy) if noise else ("no noise", [_Test("", 0.0)])
        else:
            text, tests = prop.measure(found)
        # All tests together (Bonferroni).
        p_value = float(min(1.0, len(tests) * min(test.p_value for test in tests)))
        if p_value <= level:
            text += _failing_places(tests, level)
        findings.append(
            Finding(prop.name, prop.expected, text, p_value, p_value > level, prop.meaning)
        )
    return findings


def level_of_each(significance: float) -> float:
    """Each random property's equal part of the significance (Bonferroni)."""
    return significance / sum(prop.is_random for prop in _PROPERTIES)


def _failing_places(tests: list[_Test], level: float) -> str:
    """The places in which a property fails, worst first, unless every test fails."""
    failing = [test for test in tests if len(tests) * test.p_value <= level]
    worst_first = sorted(failing, key=lambda test: test.p_value)
    places = [test.place for test in worst_first if test.place]
    if not places or len(failing) == len(tests):
        return ""
    more = len(places) - _MOST_NAMED
    return f": {', '.join(places[:_MOST_NAMED] + ([f'{more} more'] if more > 0 else []))}"


# Sampling


def _sampling_rate(found: Measurements) -> _Measured:
    """The share of records in a batch, and in how many batches each record is."""
    drawn, rate = found.drawn, found.sample_rate
    num_trainings, num_records = drawn.shape
    counts = drawn.sum(axis=0)
    of_records = binomial_p_values(counts, num_trainings, rate)
    record = int(np.argmin(of_records))
    expected, deviation = num_trainings * rate, sqrt(num_trainings * rate * (1 - rate))
    spread = (
        f"each record in {counts.mean():.1f} ± {counts.std():.1f} batches"
        f" of {expected:.1f} ± {deviation:.1f}"
    )
    return f"{drawn.mean():.4f} of {rate:g}", [
        _Test("", float(binomial_p_values(drawn.sum(), drawn.size, rate))),
        _Test(
            f"record {record} in {counts[record]} of {num_trainings} batches",
            min(1.0, num_records * of_records[record]),
        ),
        _Test(spread, spread_p_value(counts, num_trainings, rate)),
    ]


def _batch_sizes(found: Measurements) -> _Measured:
    """The spread of the sizes of batches, among that of binomial numbers."""
    sizes, (_, count) = found.drawn.sum(axis=1), found.drawn.shape
    deviation = sqrt(count * found.sample_rate * (1 - found.sample_rate))
    text = f"standard deviation {sizes.std():.2f} of {deviation:.2f}"
    return text, [_Test("", spread_p_value(sizes, count, found.sample_rate))]


def _both_steps(found: Measurements) -> _Measured:
    """The share of records that are in both batches of two steps."""
    steady = found.norms <= STABLE
    one, two = (
        np.mean([*parts.values()], axis=0)[:, steady] for parts in (found.parts, found.parts_of_two)
    )
    usual = _usual_parts(one, found.drawn[:, steady], found.norms[steady])
    both = np.array([_in_both(parts / usual) for parts in two])
    expected = found.sample_rate**2
    p_value = float(binomial_p_values(both.sum(), both.size, expected))
    return f"{both.mean():.5f} of {expected:.5f}", [_Test("", p_value)]


def _in_both(parts: Array) -> NDArray[np.bool_]:
    """Which records were in both batches of one training, shape (records,).

    Parts (after two steps, over the usual ones of one step) are 0, a, b, or a + b for records in
    both. If all is right, a and b are 1; but they must not be taken for a + b if they differ, as
    they do in divisions by the batch that was drawn.
    """
    present = parts[parts > _PRESENT]
    if not present.size:
        return np.zeros(parts.shape, dtype=bool)
    least, most = float(present.min()), float(present.max())
    other = most - least
    if other < _CLOSE * most:  # all records were in both, or none
        return parts > 1.5
    has_sum = np.abs(present - other).min() < _CLOSE * other
    return parts > (most - least / 2 if has_sum else most)


def _usual_parts(parts: Array, drawn: NDArray[np.bool_], norms: Array) -> Array:
    """The median part in one step of records with the same norm of gradients, shape (records,)."""
    usual = np.minimum(1.0, norms)  # if none of them was in a batch
    for size in np.unique(norms):
        present = parts[:, norms == size][drawn[:, norms == size]]
        if present.size:
            usual[norms == size] = np.median(present)
    return usual


# How gradients are divided and clipped. Nothing is random here.


def _normalisation(found: Measurements) -> _Measured:
    """The parts of records with small gradients, which are not clipped."""
    small = found.norms == SMALL
    return _parts_compared(found, found.drawn & small, np.ones(len(found.drawn)))


def _clipping(found: Measurements) -> _Measured:
    """The parts of other records, over those of small ones: normalisation does not matter then."""
    small = found.norms == SMALL
    ratios = np.stack([parts[:, small] / SMALL for parts in found.parts.values()], axis=1)
    divisors = np.array(
        [
            np.median(parts[:, drawn]) if drawn.any() else 0.0
            for parts, drawn in zip(ratios, found.drawn[:, small], strict=True)
        ]
    )
    comparable = found.drawn & ~small & (divisors > 0)[:, None]
    return _parts_compared(found, comparable, np.where(divisors > 0, divisors, 1.0))


def _parts_compared(found: Measurements, chosen: NDArray[np.bool_], divisors: Array) -> _Measured:
    """The chosen parts, shape (R, N), over what they must be times each training's divisor."""
    if not chosen.any():
        return "no record was in any batch", [_Test("", 0.0)]
    expected = np.minimum(1.0, found.norms) * divisors[:, None]
    ratios = {name: parts / expected for name, parts in found.parts.items()}
    in_tensors = {name: values[chosen] for name, values in ratios.items()}
    of_all = np.stack([*ratios.values()])
    at_norms = {
        f"{size:g} C": of_all[:, chosen & (found.norms == size)]
        for size in np.unique(found.norms[chosen.any(axis=0)])
    }
    everything = of_all[:, chosen]
    low, high = float(everything.min()), float(everything.max())
    shown = f"{low:.4g} to {high:.4g}"
    if high - low < _EXACT * low:
        shown = f"{(low + high) / 2:.4g}"
    text = f"{shown} times as much{_wrong('in', in_tensors)}{_wrong('at', at_norms)}"
    return text, [_Test("", float(_is_one(everything)))]


def _wrong(word: str, groups: dict[str, Array]) -> str:
    """The groups whose ratios are wrong, unless all of them are."""
    wrong = [name for name, ratios in groups.items() if not _is_one(ratios)]
    return f", {word} {', '.join(wrong)}" if 0 < len(wrong) < len(groups) else ""


def _is_one(ratios: Array) -> bool:
    return bool(np.abs(ratios - 1).max() < _EXACT)


# The noise


def _joined(noise: Tensors) -> Array:
    """The noise of all tensors, shape (R, parameters)."""
    return np.concatenate([values.reshape(len(values), -1) for values in noise.values()], axis=1)


def _tested(
    law: Callable[..., tuple[Any, float]], shown: str, *noise: Tensors
) -> tuple[Any, list[_Test]]:
    """A law's statistic of all tensors together, and its tests of all of them and of each."""
    of_all, p_value = law(*map(_joined, noise))
    tests = [_Test("", p_value)]
    for name in noise[0]:
        value, p_value = law(*(tensors[name] for tensors in noise))
        tests.append(_Test(f"{name} {shown.format(value)}", p_value))
    return of_all, tests


def _noise_scale(found: Measurements) -> _Measured:
    """Sums of squares of one step's noise."""

    def law(values: Array) -> tuple[float, float]:
        return float(np.sqrt((values**2).mean())), squares_p_value(values)

    scale, tests = _tested(law, "{:.4g}", found.noise)
    return f"{scale:.4g} times as much", tests


def _constant_noise(found: Measurements) -> _Measured:
    """Scales of single trainings."""

    def law(values: Array) -> tuple[str, float]:
        rows = values.reshape(len(values), -1)
        scales = np.sqrt((rows**2).mean(axis=1))
        return f"from {scales.min():.3g} to {scales.max():.3g}", constancy_p_value(rows)

    scales, tests = _tested(law, "{}", found.noise)
    return f"scales {scales}", tests


def _gaussian(found: Measurements) -> _Measured:
    """Numbers of values in intervals of half a standard deviation, which are binomial."""
    by_tensor = {name: probabilities_of(values.ravel()) for name, values in found.noise.items()}
    everything = np.concatenate([*by_tensor.values()])
    beyond = [
        f"{np.mean(np.minimum(everything, 1 - everything) < norm.sf(deviations)):.4f}"
        for deviations in (1, 2, 3)
    ]
    tests = [_Test(name, _counts_p_value(uniform)) for name, uniform in by_tensor.items()]
    text = f"{', '.join(beyond)} beyond 1, 2, 3 deviations"
    return text, [_Test("", _counts_p_value(everything)), *tests]


def _counts_p_value(uniform: Array) -> float:
    """Of the numbers of values between `EDGES`, whose probabilities are given (Bonferroni)."""
    counts, edges = np.histogram(uniform, norm.cdf(EDGES))
    p_values = binomial_p_values(counts, uniform.size, np.diff(edges))
    return float(min(1.0, len(p_values) * p_values.min()))


def _independent_steps(found: Measurements) -> _Measured:
    """The ratio of the variances after two steps and one, which has an F distribution."""

    def law(one: Array, two: Array) -> tuple[float, float]:
        ratio, distribution = float((two**2).mean() / (one**2).mean()), f(two.size, one.size)
        return ratio, two_sided(distribution.cdf(ratio / 2), distribution.sf(ratio / 2))

    ratio, tests = _tested(law, "{:.3g}", found.noise, found.noise_of_two)
    return f"{ratio:.3f} times the variance", tests


def _independent_coordinates(found: Measurements) -> _Measured:
    """Variances of sums of noise, and correlations between tensors."""
    everything = _joined(found.noise)
    over_trainings, p_trainings = variance_of_means(everything, (0,))
    over_parameters, p_parameters = variance_of_means(everything, (1,))
    pairs = {
        f"{one} and {two}": _aligned(found.noise[one], found.noise[two])
        for one, two in combinations(found.noise, 2)
    }
    largest = max((abs(value) for value, _ in pairs.values()), default=0.0)
    text = (
        f"variances of sums {over_trainings:.2f} and {over_parameters:.2f} of 1,"
        f" correlations up to {largest:.2g}"
    )
    return text, [
        _Test("", p_trainings),
        _Test("", p_parameters),
        *(test for name, values in found.noise.items() for test in _sums(name, values)),
        *(_Test(f"{pair} correlated by {value:.2g}", p) for pair, (value, p) in pairs.items()),
    ]


def _sums(name: str, values: Array) -> list[_Test]:
    """Of one tensor: sums over trainings, over all its coordinates, of columns and of rows."""
    values = values.reshape(len(values), *(size for size in values.shape[1:] if size > 1))
    within = tuple(range(1, values.ndim))
    ways = {(0,): "sums over trainings", within: "sums over coordinates"}
    if len(within) > 1:
        ways |= {(1,): "sums of columns", (2,): "sums of rows"}
    tests = []
    for axes, text in ways.items():
        variance, p_value = variance_of_means(values, axes)
        tests.append(_Test(f"{name} {variance:.2f} in {text}", p_value))
    return tests


def _aligned(first: Array, second: Array) -> tuple[float, float]:
    """The correlation of two tensors' values in the order of their memory, as far as both go."""
    one, two = (values.reshape(len(values), -1) for values in (first, second))
    width = min(one.shape[1], two.shape[1])
    return correlation(one[:, :width].ravel(), two[:, :width].ravel())


_PROPERTIES = (
    _Property(
        "sampling rate",
        "every record is in a batch with the sample rate",
        _sampling_rate,
        "batches are larger or smaller than accounted: amplification by sampling differs",
    ),
    _Property(
        "Poisson sampling",
        "batch sizes vary like binomial numbers",
        _batch_sizes,
        "batches are not Poisson samples: for shuffled or fixed-size batches, the accounted"
        " epsilon does not hold",
    ),
    _Property(
        "new batch in each step",
        "a record is in both of two steps with the squared sample rate",
        _both_steps,
        "batches of different steps depend on each other, as in passes over shuffled data",
    ),
    _Property(
        "normalisation",
        "sums are divided by the expected batch size",
        _normalisation,
        "gradients are divided by something else, such as the size of the batch that was drawn",
        is_random=False,
    ),
    _Property(
        "clipping",
        "the whole gradient of each record is clipped to C, before summing",
        _clipping,
        "the sensitivity is not C: gradients are clipped after averaging, per layer, or not",
        is_random=False,
    ),
    _Property(
        "noise scale",
        "noise multiplier times C, over the expected batch size",
        _noise_scale,
        "the noise is not what is accounted",
    ),
    _Property(
        "constant noise",
        "the same scale in every training, up to chance",
        _constant_noise,
        "the scale of the noise depends on the batch, for example on its size, or is made equal",
        needs_noise=True,
    ),
    _Property(
        "Gaussian noise",
        "a normal distribution, with 0.3173, 0.0455, 0.0027 beyond 1, 2, 3 deviations",
        _gaussian,
        "the accountant is that of Gaussian noise",
        needs_noise=True,
    ),
    _Property(
        "independent steps",
        "the noise of two steps has twice the variance of one",
        _independent_steps,
        "noise is drawn again in later steps, and cancels or adds up",
        needs_noise=True,
    ),
    _Property(
        "independent coordinates",
        "noise of different parameters and trainings is independent",
        _independent_coordinates,
        "noise is shared or cancels between parameters or trainings, so it can be removed",
        needs_noise=True,
    ),
)
