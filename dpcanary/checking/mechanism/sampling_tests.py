"""Which records are in a batch: tests of the draws that updates almost without noise show."""

from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, hypergeom

from dpcanary.checking.mechanism.exact_laws import (
    binomial_p_values,
    disjoint_pairs,
    least,
    spread_p_value,
    squares_p_value,
)
from dpcanary.checking.mechanism.measurements import DENSE_RATE, PRESENT_IN_DENSE
from dpcanary.checking.mechanism.probe_trainings import Trainings
from dpcanary.checking.mechanism.property_tests import Measured, Property, Test
from dpcanary.checking.mechanism.update_evidence import Evidence

SAMPLING_RATE = "sampling rate"
# Batches of at least so many records are compared with each other.
_LEAST_COMPARED = 3
Drawn = NDArray[np.bool_]


def _binomial(count: float, trials: float, rate: float) -> float:
    return float(binomial_p_values(int(count), int(trials), rate))


def _sampling_rate(evidence: Evidence) -> Measured:
    """The share of records in a batch: of all, by step, by label, by norm, and of each record."""
    drawn, rate = evidence.drawn, evidence.measurements.settings.sample_rate
    num_trainings, num_steps, num_records = drawn.shape
    records, batches = evidence.measurements.quiet.records, num_trainings * num_steps
    counts = drawn.sum(axis=(0, 1))
    record, p_value = least(binomial_p_values(counts, batches, rate))
    expected, deviation = batches * rate, sqrt(batches * rate * (1 - rate))
    spread = (
        f"each record in {counts.mean():.1f} ± {counts.std():.1f} batches"
        f" of {expected:.1f} ± {deviation:.1f}"
    )
    tests = [
        Test("", _binomial(drawn.sum(), drawn.size, rate)),
        Test(f"record {record} in {counts[record]} of {batches} batches", p_value),
        Test(spread, spread_p_value(counts, batches, rate)),
    ]
    groups = {f"label {label}": records.labels == label for label in (0, 1)}
    groups |= {
        f"gradients of {norm:g} C": records.classes == index
        for index, norm in enumerate(records.norms)
    }
    for name, group in groups.items():
        own = counts[group]
        if own.size:
            place = f"{own.sum() / (own.size * batches):.4f} of records with {name}"
            tests.append(Test(place, _binomial(own.sum(), own.size * batches, rate)))
    of_steps = drawn.sum(axis=(0, 2))
    step, p_value = least(binomial_p_values(of_steps, num_trainings * num_records, rate))
    share = of_steps[step] / (num_trainings * num_records)
    tests.append(Test(f"{share:.4f} in step {step + 1}", p_value))
    return Measured(f"{drawn.mean():.4f} of {rate:g}", tests)


def _batch_sizes(evidence: Evidence) -> Measured:
    """The spread of the sizes of batches, and their tails, among binomial numbers."""
    drawn, rate = evidence.drawn, evidence.measurements.settings.sample_rate
    sizes, count = drawn.sum(axis=2).ravel(), drawn.shape[2]
    deviation = sqrt(count * rate * (1 - rate))
    tests = [Test("", spread_p_value(sizes, count, rate))]
    law = binom(count, rate)
    for share in (0.5, 0.1, 0.02, 0.005):
        most, fewest = int(law.isf(share)), int(law.ppf(share))
        above, below = (sizes > most).sum(), (sizes < fewest).sum()
        tests += [
            Test(f"{above} batches larger than {most}", _binomial(above, sizes.size, law.sf(most))),
            Test(
                f"{below} batches smaller than {fewest}",
                _binomial(below, sizes.size, law.cdf(fewest - 1)),
            ),
        ]
    tests += _sizes_of_dense(evidence)
    text = f"sizes {sizes.mean():.1f} ± {sizes.std():.2f} of {count * rate:.1f} ± {deviation:.2f}"
    return Measured(text, tests)


def _sizes_of_dense(evidence: Evidence) -> list[Test]:
    """The spread of batches at a large sample rate, at which laws with the same mean differ most.

    A loop that has its sample rate from elsewhere draws as many as in the other trainings.
    """
    dense, rate = evidence.measurements.dense, evidence.measurements.settings.sample_rate
    if dense is None or rate >= DENSE_RATE or not dense.moved.size:
        return []
    count, width = len(dense.records.sizes), dense.records.width
    own = np.abs(dense.moved[..., : count * width])
    of_records = own.reshape(*own.shape[:-1], count, width).max(axis=(2, 4))
    sizes = (of_records > PRESENT_IN_DENSE).sum(axis=2).ravel()
    near = abs(sizes.mean() / count - rate) < abs(sizes.mean() / count - DENSE_RATE)
    if near or len(sizes) < 2:
        return []
    deviation = sqrt(count * DENSE_RATE * (1 - DENSE_RATE))
    place = (
        f"sizes {sizes.mean():.1f} ± {sizes.std():.2f} of {count * DENSE_RATE:.1f}"
        f" ± {deviation:.2f} at the sample rate {DENSE_RATE:g}"
    )
    return [Test(place, spread_p_value(sizes, count, DENSE_RATE))]


def _new_batches(evidence: Evidence) -> Measured:
    """Records that are in two batches: of the same training at any lag, and of any two batches."""
    drawn, rate = evidence.drawn, evidence.measurements.settings.sample_rate
    num_steps, tests, shown = drawn.shape[1], [], ""
    for lag in range(1, num_steps // 2 + 1):
        # As no step is in two pairs, the number is binomial, given the first steps' sizes.
        first, second = (drawn[:, steps] for steps in disjoint_pairs(num_steps, lag))
        count, trials = int((first & second).sum()), int(first.sum())
        if trials:
            text = f"{count / trials:.4f} again after {lag} steps"
            shown = shown or text
            tests.append(Test(text, _binomial(count, trials, rate)))
    pair, p_value = _most_alike(drawn, rate)
    tests.append(Test(pair, p_value))
    return Measured(f"{shown or 'one step'} of {rate:g}", tests)


def _most_alike(drawn: Drawn, rate: float) -> tuple[str, float]:
    """The two batches with the least probable number of common records.

    Given their sizes, the number is hypergeometric.
    """
    rows = drawn.reshape(-1, drawn.shape[2])
    used = np.flatnonzero((rows.sum(axis=1) >= _LEAST_COMPARED) & ~rows.all(axis=1))
    if len(used) < 2 or rate == 1:
        return "", 1.0
    batches = rows[used].astype(np.float32)
    first, second = np.triu_indices(len(used), 1)
    common = (batches @ batches.T).astype(np.int64)[first, second]
    sizes = rows[used].sum(axis=1)
    index, p_value = _least_hypergeometric(common, sizes[first], sizes[second], drawn.shape[2])
    steps = [divmod(int(used[k]), drawn.shape[1]) for k in (first[index], second[index])]
    names = " and ".join(f"step {step + 1} of training {run + 1}" for run, step in steps)
    return f"{common[index]} records in both {names}", p_value


def _least_hypergeometric(
    common: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64], total: int
) -> tuple[int, float]:
    """The index of the number of common elements that is least probable, if large; its p-value."""
    keys, inverse = np.unique(
        np.stack([common, np.minimum(first, second), np.maximum(first, second)]),
        axis=1,
        return_inverse=True,
    )
    # Equal numbers have equal p-values: each is computed once, and counts as often as it occurs.
    rarest, p_value = least(hypergeom(total, keys[1], keys[2]).sf(keys[0] - 1), len(common))
    return int(np.flatnonzero(inverse.ravel() == rarest)[0]), p_value


def _independent_records(evidence: Evidence) -> Measured:
    """Batches in which two records are together: of each pair, and of all neighbours."""
    drawn, rate = evidence.drawn, evidence.measurements.settings.sample_rate
    rows = drawn.reshape(-1, drawn.shape[2])
    tests, shown = [], ""
    for distance in (1, 2, rows.shape[1] // 2):
        left, right = (rows[:, side] for side in disjoint_pairs(rows.shape[1], distance))
        both = int((left & right).sum())
        text = f"{both / left.size:.5f} with the record {distance} further"
        shown = shown or text
        tests.append(Test(text, _binomial(both, left.size, rate * rate)))
    counts = rows.sum(axis=0)
    used = np.flatnonzero((counts > 0) & (counts < len(rows)))
    if len(used) > 1:
        first, second = np.triu_indices(len(used), 1)
        chosen = rows[:, used].astype(np.float32)
        common = (chosen.T @ chosen).astype(np.int64)[first, second]
        index, p_value = _least_hypergeometric(
            common, counts[used][first], counts[used][second], len(rows)
        )
        pair = f"records {used[first[index]]} and {used[second[index]]}"
        tests.append(Test(f"{pair} together in {common[index]} batches", p_value))
    return Measured(f"{shown} of {rate * rate:.5f}", tests)


def _empty_batches(evidence: Evidence) -> Measured:
    """Draws and noise of trainings on few records."""
    measured = evidence.measurements
    if measured.failed:
        note = (
            f"with an empty batch, {measured.failed}. This is not tested further. That a training"
            " stops shows that a batch was empty"
        )
        return Measured("the loop stops", [], note)
    quiet, noisy = measured.small_quiet, measured.small_noisy
    if quiet is None or noisy is None:
        return Measured("none at this sample rate", [])
    rate, num_steps = measured.settings.sample_rate, measured.settings.num_steps
    count, num_trainings = len(quiet.records.sizes), len(quiet.num_updates)
    tests = []
    if (quiet.num_updates == num_steps).all():
        sizes = quiet.drawn.sum(axis=2).ravel()
        law = binom(count, rate)
        empty = int((sizes == 0).sum())
        text = f"{empty} of {sizes.size} batches, {sizes.size * law.pmf(0):.1f} expected"
        tests.append(Test("", _binomial(empty, sizes.size, law.pmf(0))))
        tests.append(
            Test(
                f"{sizes.sum()} records drawn, {sizes.size * count * rate:.0f} expected",
                _binomial(sizes.sum(), sizes.size * count, rate),
            )
        )
        for most in range(2, count):
            if sizes.size * law.sf(most) < 1:
                break
            above = int((sizes > most).sum())
            place = f"{above} batches larger than {most}"
            tests.append(Test(place, _binomial(above, sizes.size, law.sf(most))))
    else:
        text = "steps without records cannot be seen"
        drawn = _drawn_in_all(quiet)
        trials = len(drawn) * num_trainings * num_steps
        place = f"{drawn.sum():.0f} draws, {trials * rate:.0f} expected"
        tests.append(Test(place, _binomial(drawn.sum(), trials, rate)))
    scales = np.ones(num_steps)
    scales[: len(evidence.of_small)] = evidence.of_small
    deviation = measured.settings.noise_multiplier * sqrt(float((scales**2).sum()))
    if not measured.filter and not measured.weight_decay:
        total = noisy.in_all[..., count:] / deviation
        share = float(np.sqrt((total**2).mean()))
        place = f"the noise of all steps is {share:.3g} times as much"
        tests.append(Test(place, squares_p_value(total)))
    return Measured(text, tests)


def _drawn_in_all(quiet: Trainings) -> NDArray[np.float64]:
    """How often the records with small gradients were drawn in all trainings, shape (records,)."""
    norms = quiet.records.norms[quiet.records.classes]
    small = norms < 0.5
    parts = quiet.records.parts(quiet.in_all)[0].mean(axis=1)[:, small]
    drawn: NDArray[np.float64] = np.rint(parts * sqrt(5) / norms[small]).sum(axis=0)
    return drawn


PROPERTIES = (
    Property(
        SAMPLING_RATE,
        "every record is in a batch with the sample rate",
        _sampling_rate,
        "batches are larger or smaller than accounted, or records have rates of their own:"
        " amplification by sampling differs",
    ),
    Property(
        "Poisson sampling",
        "batch sizes vary like binomial numbers",
        _batch_sizes,
        "batches are not Poisson samples: for shuffled, fixed-size or cut batches, the accounted"
        " epsilon does not hold",
    ),
    Property(
        "new batch in each step",
        "a record that was in one batch is in another one with the sample rate",
        _new_batches,
        "batches depend on each other, as in passes over shuffled data, or repeat",
    ),
    Property(
        "independent records",
        "two records are in the same batch with the squared sample rate",
        _independent_records,
        "records are drawn together or instead of each other: what one does shows by another",
    ),
    Property(
        "empty batches",
        "batches without records are steps like all others, with noise",
        _empty_batches,
        "whether a batch is empty shows: it is skipped, drawn again or gets no noise; or"
        " batches larger than usual are cut",
    ),
)
