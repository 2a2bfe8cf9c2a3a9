"""The noise: tests of what moves where gradients are 0, against independent normal numbers."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
from scipy.stats import beta, binom, norm

from dpcanary.checking.mechanism.exact_laws import (
    binomial_p_values,
    constancy_p_value,
    correlation,
    disjoint_pairs,
    least,
    probabilities_of,
    squares_p_value,
    squares_p_values,
    variance_along,
    variance_within,
)
from dpcanary.checking.mechanism.probe import TENSORS, Array
from dpcanary.checking.mechanism.property_tests import Measured, Property, Test, exact
from dpcanary.checking.mechanism.undone_postprocessing import SKIPPED
from dpcanary.checking.mechanism.update_evidence import (
    LEAST_NOISE,
    Evidence,
    batches_differ,
    clips_to_limit,
)

# The ends of the intervals in which values of the noise are counted, in standard deviations.
EDGES = (-np.inf, *np.arange(-3.5, 4.0, 0.5), np.inf)
# Correlations of so many coordinates are computed, at most.
_MOST_COORDINATES = 3_000
# Two vectors of sorted sizes that are as close as this (root mean square, in standard deviations)
# have the same numbers: independent ones differ by about .1.
_SAME = 0.005
# Largest share of values that occur more than once. Of 10^4 numbers in single precision, a few do.
_REPEATED = 0.02
# What is said of a loop whose trainings have the same noise.
SAME_IN_ALL = "those of all trainings are the same"
# P-value of the noise's scale below which the scale is wrong.
_OTHER_SCALE = 1e-4
# So close, in standard deviations of the noise, an update is to what it would be without noise.
_AS_IT_IS = 1e-3


def _everything(evidence: Evidence) -> Array:
    """The noise of all places, shape (R, T, values)."""
    return np.concatenate([*evidence.noise.values()], axis=2)


def _tested(
    law: Callable[[Array], tuple[Any, float]], shown: str, evidence: Evidence
) -> tuple[Any, list[Test]]:
    """A law's statistic of the noise of all places together, and its tests of all and of each."""
    of_all, p_value = law(_everything(evidence))
    tests = [Test("", p_value)]
    for place, values in evidence.noise.items():
        value, p_value = law(values)
        tests.append(Test(f"{place} {shown.format(value)}", p_value))
    return of_all, tests


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


def _noise_scale(evidence: Evidence) -> Measured:
    """Sums of squares of the noise: of all, by place, by step, and of each coordinate."""
    sigma = evidence.measurements.settings.noise_multiplier
    scale, tests = 0.0, []
    if evidence.noise:
        everything = _everything(evidence)
        scale = _root_mean_square(everything)
        tests.append(Test("", squares_p_value(everything)))
        scales, p_values = squares_p_values(everything, (0, 2))
        step, p_value = least(p_values)
        tests.append(Test(f"{scales[step]:.3g} in step {step + 1}", p_value))
    for place, values in evidence.noise_everywhere.items():
        tests.append(Test(f"{place} {_root_mean_square(values):.4g}", squares_p_value(values)))
        scales, p_values = squares_p_values(values, (0, 1))
        worst, p_value = least(p_values)
        tests.append(Test(f"{place} {scales[worst]:.3g} in coordinate {worst}", p_value))
    tests += _along_gradients(evidence)
    return Measured(f"{scale:.4g} times as much as {sigma:g} C", tests)


def _along_gradients(evidence: Evidence) -> list[Test]:
    """How often an update has the very gradient of one record along it, as if without noise.

    Batches of few records often have one alone, so noise that leaves out the direction of the sum
    shows here. With noise, the density along a gradient is at most that of the noise at 0.
    """
    measured, sigma = evidence.measurements, evidence.measurements.settings.noise_multiplier
    if measured.frozen:
        return []  # some of the noise is ours
    few = measured.small_noisy is not None
    trainings, scales = (
        (measured.small_noisy, evidence.of_small) if few else (measured.noisy, evidence.scales)
    )
    if trainings is None or sigma < LEAST_NOISE:
        return []
    steps = min(trainings.moved.shape[1], len(scales))
    along = trainings.parts[:, :steps].sum(axis=2) / sqrt(len(TENSORS)) / scales[:steps, None]
    gaps = np.abs(along - np.minimum(1.0, trainings.norms[:, :steps])) / sigma
    count = int((gaps < _AS_IT_IS).sum())
    p_value = float(binom(gaps.size, 2 * _AS_IT_IS * norm.pdf(0)).sf(count - 1))
    return [Test(f"{count} gradients of {gaps.size:,} are in updates without noise", p_value)]


def _noise_and_gradients(evidence: Evidence) -> Measured:
    """The mean of the noise along the gradients that are likely to be in the update.

    Along the gradient of a record that is clipped to c, an update is c times 0 or 1 and noise. Of
    the noise, the mean weighted by the probability that the record is in it is 0 (the score of a
    shift), whatever the batch. The weighted sum is a martingale, so nearly normal.
    """
    measured, rate = evidence.measurements, evidence.measurements.settings.sample_rate
    sigma = measured.settings.noise_multiplier
    if squares_p_value(_everything(evidence)) < _OTHER_SCALE:
        # Weights would be wrong; a scale that is estimated has errors that add up over records.
        return Measured("not measured where the noise has another scale", [])
    if (
        measured.frozen
        or sigma < LEAST_NOISE
        or not clips_to_limit(evidence)
        or batches_differ(evidence)
    ):
        return Measured("not measured where sums are not of gradients that are clipped to C", [])
    tests, total, squares = [], 0.0, 0.0
    kinds = {"": (measured.noisy, evidence.scales)}
    if measured.small_noisy is not None:
        kinds[" of few records"] = (measured.small_noisy, evidence.of_small)
    for name, (trainings, scales) in kinds.items():
        steps = min(trainings.moved.shape[1], len(scales))
        along = trainings.parts[:, :steps].sum(axis=2) / sqrt(len(TENSORS)) / scales[:steps, None]
        clipped = np.minimum(1.0, trainings.norms[:, :steps])
        inside, outside = (norm.pdf((along - mean) / sigma) for mean in (clipped, 0.0))
        weights = rate * inside / (rate * inside + (1 - rate) * outside + 1e-300) * clipped
        scores = weights * (along - clipped) / sigma
        own, square = float(scores.sum()), float((scores**2).sum())
        deviations = own / sqrt(square) if square else 0.0
        place = f"{deviations:.1f} standard errors from 0 along gradients{name}"
        tests.append(Test(place, 2 * float(norm.sf(abs(deviations)))))
        total, squares = total + own, squares + square
    deviations = total / sqrt(squares) if squares else 0.0
    tests.append(Test("", 2 * float(norm.sf(abs(deviations)))))
    if deviations < 0 and any(words == SKIPPED for words, _ in measured.unclear):
        tests = []  # noise along gradients makes them long; steps may be skipped by the length
    return Measured(f"noise is {deviations:.1f} standard errors from 0 along gradients", tests)


def _constant_noise(evidence: Evidence) -> Measured:
    """Scales of single steps."""

    def law(values: Array) -> tuple[str, float]:
        rows = values.reshape(1, -1, values.shape[2])
        scales = np.sqrt((rows**2).mean(axis=2))
        return f"from {scales.min():.3g} to {scales.max():.3g}", constancy_p_value(rows)

    scales, tests = _tested(law, "{}", evidence)
    everything = _everything(evidence)
    if everything.shape[1] > 1:
        tests.append(Test("within trainings", constancy_p_value(everything)))
    return Measured(f"scales {scales}", tests)


def _gaussian(evidence: Evidence) -> Measured:
    """Numbers of values in intervals of half a standard deviation, which are binomial."""
    by_place = {name: probabilities_of(values.ravel()) for name, values in evidence.noise.items()}
    everything = np.concatenate([*by_place.values()])
    beyond = [
        f"{np.mean(np.minimum(everything, 1 - everything) < norm.sf(deviations)):.4f}"
        for deviations in (1, 2, 3)
    ]
    tests = [Test(name, _counts_p_value(uniform)) for name, uniform in by_place.items()]
    text = f"{', '.join(beyond)} beyond 1, 2, 3 deviations"
    return Measured(text, [Test("", _counts_p_value(everything)), *tests])


def _counts_p_value(uniform: Array) -> float:
    """The p-value of the counts between `EDGES`, whose probabilities are given (Bonferroni)."""
    counts, edges = np.histogram(uniform, norm.cdf(EDGES))
    return least(binomial_p_values(counts, uniform.size, np.diff(edges)))[1]


def _precision(evidence: Evidence) -> Measured:
    """Values that occur more than once, among those of first steps from parameters that are 0."""
    noisy = evidence.measurements.noisy
    silent = noisy.silent[:, 0][:, noisy.before[0, 0][:, len(noisy.records.sizes) :] == 0]
    sizes = np.abs(silent).astype(np.float32).ravel()
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return Measured("no noise in the first step", [])
    share = 1 - len(np.unique(sizes)) / len(sizes)
    text = f"{share:.1%} of {len(sizes):,} values occur again"
    if share > _REPEATED and len(silent) > 1 and np.allclose(silent, silent[0], rtol=1e-3):
        text = f"{text}: {SAME_IN_ALL}"
    return Measured(text, [exact(share <= _REPEATED)])


def _largest_correlation(
    rows: Array, skipped: Array | None = None, freedom: int | None = None
) -> tuple[int, int, float, float]:
    """The two rows with the largest correlation, this, and its p-value among all pairs.

    `freedom` is the number of independent values of a row, if these are not all.
    """
    lengths = np.linalg.norm(rows, axis=1)
    scaled = (rows / np.where(lengths > 0, lengths, 1.0)[:, None]).astype(np.float32)
    products = scaled @ scaled.T
    np.fill_diagonal(products, 0.0)
    if skipped is not None:
        products[skipped] = 0.0
    first, second = np.unravel_index(int(np.abs(products).argmax()), products.shape)
    largest = float(products[first, second])
    pairs = len(rows) * (len(rows) - 1) / 2
    p_value = beta(0.5, ((freedom or rows.shape[1]) - 1) / 2).sf(min(1.0, largest**2))
    return int(first), int(second), largest, float(min(1.0, pairs * p_value))


def _independent_steps(evidence: Evidence) -> Measured:
    """Correlations of the noise of two steps: of each lag, and of any two of all trainings."""
    everything = _everything(evidence)
    num_steps, tests, largest = everything.shape[1], [], 0.0
    for lag in range(1, num_steps // 2 + 1):
        first, second = disjoint_pairs(num_steps, lag)
        own, p_value = correlation(everything[:, first].ravel(), everything[:, second].ravel())
        largest = max(largest, abs(own))
        tests.append(Test(f"correlated by {own:.2g} after {lag} steps", p_value))
    rows = everything.reshape(-1, everything.shape[2])
    if len(rows) > 1:
        row, other, own, p_value = _largest_correlation(rows)
        names = [divmod(number, num_steps) for number in (row, other)]
        place = " and ".join(f"step {step + 1} of training {run + 1}" for run, step in names)
        tests.append(Test(f"correlated by {own:.2g}: {place}", p_value))
    tests.append(_same_numbers(evidence))
    if num_steps > 1:
        variance, p_value = variance_within(everything)
        tests.append(Test(f"sums of steps vary by {variance:.2f} within trainings", p_value))
    return Measured(f"correlated by up to {largest:.2g}", tests)


def _same_numbers(evidence: Evidence) -> Test:
    """Whether the numbers of one vector of noise are those of another, in any order."""
    silent = evidence.noisy[..., len(evidence.measurements.noisy.records.sizes) :]
    rows = silent.reshape(-1, silent.shape[-1])
    rows = rows[(rows != 0).any(axis=1)]
    if len(rows) < 2:
        return Test("", 1.0)
    ordered = np.sort(np.abs(rows), axis=1) / _root_mean_square(rows)
    # Equal vectors have equal sums, so they are neighbours in the order of these, or nearly so.
    ordered = ordered[np.argsort(ordered.sum(axis=1))]
    closest = min(
        float(np.sqrt(((ordered[ahead:] - ordered[:-ahead]) ** 2).mean(axis=1)).min())
        for ahead in range(1, min(4, len(ordered)))
    )
    return exact(closest > _SAME, "the same numbers occur again, in the same or another order")


def _independent_coordinates(evidence: Evidence) -> Measured:
    """Variances of sums of noise, and correlations between coordinates."""
    everything = _everything(evidence)
    rows = everything.reshape(-1, everything.shape[2])
    over_steps, p_steps = variance_along(rows.T, np.ones(len(rows)))
    over_parameters, p_parameters = variance_along(rows, np.ones(rows.shape[1]))
    tests = [
        Test(f"{over_steps:.2f} in sums over steps", p_steps),
        Test(f"{over_parameters:.2f} in sums over all coordinates", p_parameters),
    ]
    for place, values in evidence.noise.items():
        own = values.reshape(-1, values.shape[2])
        for each, text in ((own.T, "sums over steps"), (own, "sums over coordinates")):
            variance, p_value = variance_along(each, np.ones(each.shape[1]))
            tests.append(Test(f"{place} {variance:.2f} in {text}", p_value))
    largest, more = _between_coordinates(evidence)
    text = (
        f"variances of sums {over_steps:.2f} and {over_parameters:.2f} of 1,"
        f" correlations up to {largest:.2g}"
    )
    return Measured(text, [*tests, *more, *_sums_of_tensors(evidence)])


def _between_coordinates(evidence: Evidence) -> tuple[float, list[Test]]:
    """The largest correlation of two coordinates over all steps, and its test."""
    noisy = evidence.noisy
    num_trainings, num_steps, values, columns = noisy.shape
    names = ["first", "first", "second", "second", "embedding", "embedding", "hidden", "hidden"]
    # Records' gradients are in their columns: two coordinates of one column share them.
    number = len(evidence.measurements.noisy.records.sizes)
    used = np.r_[number:columns, 0:number]
    used = used[: max(columns - number, _MOST_COORDINATES // values)]
    # Gradients fall along a training, so those of records that are in most batches fall together.
    # Their mean over trainings is not noise; without it, each step has one value less.
    values_used = noisy[..., used]
    if num_trainings > 1:
        values_used = values_used - values_used.mean(axis=0)
    rows = values_used.reshape(num_trainings * num_steps, -1).T
    column = np.tile(used, values)
    same = (column[:, None] == column[None, :]) & (column < number)[:, None]
    freedom = max(1, num_trainings - 1) * num_steps
    first, second, own, p_value = _largest_correlation(rows, same, freedom)
    coordinates = " and ".join(
        f"{names[index // len(used)]} in column {column[index]}" for index in (first, second)
    )
    return abs(own), [Test(f"correlated by {own:.2g}: {coordinates}", p_value)]


def _sums_of_tensors(evidence: Evidence) -> list[Test]:
    """Variances of the sums of all values of a tensor, in which gradients of two logits cancel."""
    tests = []
    for tensor in TENSORS[:3]:
        beside = evidence.noise.get(f"{tensor.name} beside gradients")
        silent = evidence.noise.get(tensor.name)
        if beside is not None and silent is not None:
            rows = np.concatenate([silent, beside], axis=2)
            # What is beside a gradient is the sum of two values, over the root of 2.
            weights = np.r_[np.ones(silent.shape[2]), np.full(beside.shape[2], sqrt(2))]
            variance, p_value = variance_along(rows.reshape(-1, rows.shape[2]), weights)
            tests.append(Test(f"{tensor.name} {variance:.2f} in its sum", p_value))
    return tests


PROPERTIES = (
    Property(
        "noise scale",
        "noise multiplier times C, in every parameter and step",
        _noise_scale,
        "the noise is not what is accounted",
    ),
    Property(
        "noise and gradients",
        "the noise has the mean 0 along the gradients of a batch",
        _noise_and_gradients,
        "the noise depends on the gradients that it hides, for example by being drawn again where"
        " it opposes them",
        needs_noise=True,
    ),
    Property(
        "constant noise",
        "the same scale in every step, up to chance",
        _constant_noise,
        "the scale of the noise depends on the batch, for example on its size, changes with steps,"
        " or is made equal",
        needs_noise=True,
    ),
    Property(
        "Gaussian noise",
        "a normal distribution, with 0.3173, 0.0455, 0.0027 beyond 1, 2, 3 deviations",
        _gaussian,
        "the accountant is that of Gaussian noise",
        needs_noise=True,
    ),
    Property(
        "precision of noise",
        f"at most {_REPEATED:.0%} of values occur more than once",
        _precision,
        "the noise has few different values, as in half precision: which ones are possible shows"
        " what it was added to",
        is_random=False,
        needs_noise=True,
    ),
    Property(
        "independent steps",
        "the noise of different steps and trainings is independent",
        _independent_steps,
        "noise is used again, and cancels or adds up: with a fixed seed, a pool, or in part",
        needs_noise=True,
    ),
    Property(
        "independent coordinates",
        "the noise of different parameters is independent",
        _independent_coordinates,
        "noise is shared or cancels between parameters, so it can be removed",
        needs_noise=True,
    ),
)
