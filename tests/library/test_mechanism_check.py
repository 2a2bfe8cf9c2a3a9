"""The check of a training loop: right ones pass at the stated rate, planted errors are found."""

import json
import re
import sys
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import product
from math import comb, sqrt
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
import torch
from sampling import exhaustive, some_of
from scipy.stats import binom
from torch.nn.utils import vector_to_parameters
from typer.testing import CliRunner

from benchmarks.check import LISTS, NOT_FOUND, OTHER_SETTINGS, RIGHT, TABLE, WRONG
from benchmarks.error_lists import own_loops
from benchmarks.error_lists.own_loops import Loop, by_hand, one_at_a_time, opacus
from dpcanary import Records, check_mechanism
from dpcanary.checking.mechanism import exact_laws, property_tests
from dpcanary.checking.mechanism.jax_probe import JaxProbe
from dpcanary.checking.mechanism.measurements import Measurements, Plan
from dpcanary.checking.mechanism.mechanism_check import PROPERTIES, smallest_errors
from dpcanary.checking.mechanism.probe import TENSORS, Probe, by_column, probe_records
from dpcanary.checking.mechanism.probe_runs import FRAMEWORKS, Settings, records_of
from dpcanary.checking.mechanism.probe_trainings import Trainings, joined
from dpcanary.checking.mechanism.property_tests import Property, findings_of, level_of_each
from dpcanary.checking.mechanism.sampling_tests import _least_hypergeometric
from dpcanary.checking.mechanism.trace import Trace
from dpcanary.checking.mechanism.undone_postprocessing import without_postprocessing
from dpcanary.checking.neighbours.random_states import drawn_until_now
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.training import DPSGD, InputCanary, train_ensemble

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
OTHER = {**OTHER_SETTINGS, "num_trainings": 40, "seed": 1}


def named(value) -> str:
    """A loop's name, or the settings of its check."""
    if isinstance(value, Loop):
        return value.name.replace(" ", "-")
    return "others" if value else "defaults"


def failing(check) -> set[str]:
    return {finding.name for finding in check.findings if not finding.holds}


def said(check) -> str:
    return " ".join(str(check).split())


# What is said of loops that are private in another way.
NOTES = {
    "Opacus, Adam": "Adam is given noisy gradients alone",
    "SGD with momentum": "SGD is given noisy gradients alone",
    "momentum by hand": "momentum of 0.8 after the noise: post-processing",
    "weight decay by hand": "weight decay of 0.1: post-processing",
    "schedule by hand": "updates are 0.3074 to 1 times the learning rate",
    "sums, not means": "updates are 20 times the learning rate",
    "normalising clipping (AUTO-S)": "n C / (n + 0.01 C) of a norm n (AUTO-S)",
    "scaled to C": "every gradient is scaled to norm C",
    "L1 clipping": "gradients above C get norms of 0.3",
    "sum projected onto a ball": "sums longer than 3 C are projected onto a ball",
    "twice C with its noise": "C is 2 times that of the settings, and the noise with it",
    "C falls with its noise": "C is 0.496 to 1 times that of the settings in different steps",
    "first layer frozen": "not trained: first.weight in 24 of 24 steps",
}
# Loops whose noisy sums are looked at, since what follows the noise hides properties of updates.
REPLAYED = {
    *("Nesterov's momentum by hand", "learning rates of tensors", "mean of two noisy gradients"),
    *("pulled to the start", "moving average at the end", "average of all at the end"),
    "Opacus, averaged at the end",
    *("clipped once more to .5", "of length 1", "largest tenth of values", "Adam by hand"),
    *("long gradients skipped", "used a step later", "weights projected onto a ball"),
    *("noisy gradients rounded", "every third step", "sharpened by record"),
}
AT_OTHER_SETTINGS = {
    *("bias not clipped", "embedding not clipped", "noise 2 % less", "microbatches of two"),
    *("bias without noise", "same numbers in another order"),
}
FURTHER = [loop for loops in LISTS["further"] for loop in loops]
FURTHER_SETTINGS = {
    "opposing noise flipped": {"num_steps": 10, "num_records": 100},
    "steps undone by the clean loss": {"num_steps": 6, "num_records": 100},
    # Few batches are empty: their number shows a law only in as many trainings as by default.
    "sizes of a uniform law": {"num_trainings": 30},
}


def assert_judged(loop: Loop, settings: dict) -> None:
    check = loop.check(**settings)
    if not loop.found_by:
        assert check.passes, str(check)
        for text in ("A right mechanism fails with a probability of at most 0.001", "Not seen by"):
            assert text in said(check)
        notes = [finding.note for finding in check.findings]
        note = NOTES.get(loop.name, "given the same noisy sums" if loop.name in REPLAYED else "")
        assert any(note in own for own in notes), notes
        assert not check.not_judged
        return
    measured = {finding.name: finding.measured for finding in check.findings if not finding.holds}
    assert any(loop.place in measured[name] for name in loop.found_by if name in measured), check
    assert "an accountant that assumes them does not describe this training" in said(check)
    assert f"Look first at: {check.ranked[0].name} (" in said(check)


@pytest.mark.long
@pytest.mark.parametrize(("loop", "settings"), [
    *some_of(((loop, {}) for loop in WRONG), 20),
    *((loop, OTHER | {"num_trainings": 20}) for loop in WRONG if loop.name in AT_OTHER_SETTINGS),
    *some_of(((loop, {"num_trainings": 10}) for loop in RIGHT), 4),
    *((loop, {"num_trainings": 10} | FURTHER_SETTINGS.get(loop.name, {})) for loop in FURTHER),
], ids=named)  # fmt: skip
def test_each_loop_is_judged_as_it_should_be(loop, settings):
    assert_judged(loop, settings)


@pytest.mark.long
def test_what_is_private_in_another_way_is_not_called_wrong():
    """One loop in every run of the tests; all are above."""
    [loop] = [loop for loop in FURTHER if loop.name == "C falls with its noise"]
    assert_judged(loop, {"num_trainings": 10})


@pytest.mark.long
@pytest.mark.parametrize("loop", NOT_FOUND, ids=named)
def test_what_is_said_not_to_be_found_is_not_found(loop):
    """Else the documents must say how it is found."""
    assert not failing(loop.check(num_trainings=20))


@pytest.mark.long
def test_the_cause_is_named_first():
    """Gradients that are not clipped make others vanish, as if records were left out."""
    settings = {"sample_rate": 1.0, "num_records": 20, "num_trainings": 10}
    check = check_mechanism(
        partial(by_hand, sums=own_loops.clipped_by(own_loops.unclipped)), **settings
    )
    assert check.ranked[0].name == "clipping"
    assert {"sampling rate", "clipping"} <= failing(check)
    assert "Look first at: clipping (the sensitivity is above C" in said(check)
    settings = {"sample_rate": 0.5, "num_records": 20, "num_trainings": 10}
    seeded = check_mechanism(with_constant_seed, **settings)
    assert "precision of noise" in failing(seeded)
    assert "Look first at: precision of noise (all trainings draw the same random" in said(seeded)
    assert "From it may follow: new batch in each step" in said(seeded)

    noise_late = own_loops.at_steps(lambda number: float(number > 0))
    late = check_mechanism(partial(by_hand, noise=noise_late), **settings)
    assert "constant seed" not in said(late)


def with_constant_seed(module, dataset, settings):
    torch.manual_seed(42)
    opacus(module, dataset, settings)


@pytest.mark.long
@pytest.mark.parametrize("changes", some_of([
    OTHER,
    {"max_grad_norm": 0.1, "learning_rate": 1.0, "noise_multiplier": 5.0},
    {"max_grad_norm": 3.0, "learning_rate": 0.01, "sample_rate": 0.5},
    {"num_records": 100, "num_trainings": 20, "seed": 3},
    {"num_records": 1000, "num_trainings": 20, "sample_rate": 0.01},
    {"num_records": 20, "num_trainings": 10, "sample_rate": 0.5, "learning_rate": 0.5},
    # Gradients of records that are in most batches fall together along a training.
    {"train": one_at_a_time, "sample_rate": 0.95, "num_records": 20},
    {"train": one_at_a_time, "sample_rate": 0.95, "num_records": 20, "seed": 1},
    {"learning_rate": 4.0, "sample_rate": 0.8, "num_records": 100},
    {"learning_rate": 1.0},
    {"sample_rate": 1.0, "num_records": 20, "num_trainings": 10},
], every=2))  # fmt: skip
def test_a_right_loop_passes_at_other_settings(changes):
    check = check_mechanism(**{"train": by_hand} | changes)
    assert check.passes, str(check)


@pytest.mark.long
def test_checks_in_jax_leave_no_code_behind():
    """Linux gives a process 65,530 mappings, and a check of a loop takes thousands."""
    [loop] = [loop for loop in RIGHT if loop.name == "jax_privacy"]

    def mappings_after(seed):
        loop.check(seed=seed, num_trainings=10)
        return len(Path("/proc/self/maps").read_text().splitlines())

    first, *later = map(mappings_after, range(2))
    assert max(later) < first + 100


@pytest.mark.exhaustive
def test_right_loops_fail_in_200_repetitions_at_most_as_stated():
    num_checks = 200 // len(RIGHT) + 1
    passes = [
        loop.check(seed=100 + seed, num_trainings=10).passes
        for loop in RIGHT
        for seed in range(num_checks)
    ]
    assert not too_many(np.logical_not(passes), 0.001)


def right_trainings(rng, settings, count: int, num_trainings: int, noise: float) -> Trainings:
    """What is measured of a right mechanism. Its gradients stay as they are at the start."""
    step = settings.learning_rate * settings.max_grad_norm / (settings.sample_rate * count)
    records = probe_records(num_records=count, max_grad_norm=settings.max_grad_norm, step=step)
    shape = (num_trainings, settings.num_steps)
    drawn = rng.random((*shape, count)) < settings.sample_rate
    before = np.broadcast_to(records.start, (*shape, *records.start.shape))
    clipped = np.minimum(1.0, records.norms_at(before)) / len(TENSORS) ** 0.5
    along = records.signs * drawn * clipped
    moved = noise * rng.standard_normal(before.shape)
    for plus, minus in ((0, 1), (2, 3), (4, 5)):
        moved[..., plus, :count] += along / 2**0.5
        moved[..., minus, :count] -= along / 2**0.5
    moved[..., 6, :count] += along
    moved[..., 7, :count] += along
    num_updates = np.full(num_trainings, settings.num_steps)
    return Trainings(records, num_updates, before, moved, moved.sum(axis=1), 0.0, "")


def right_measurements(
    rng, num_records: int, num_trainings: int, rate: float, num_steps: int = 4
) -> Measurements:
    settings = Settings(rate, 1.0, 1.0, 0.1, num_steps, seed=0)
    kinds = [
        right_trainings(rng, settings, count, num_trainings, noise)
        for count in (num_records, round(2 / rate))
        for noise in (1e-7, 1.0)
    ]
    return Measurements(settings, *kinds)


def findings(measurements: Measurements, significance: float = 0.001) -> dict:
    """By name."""
    results = findings_of(measurements, PROPERTIES, significance=significance)
    return {finding.name: finding for finding in results}


def too_many(failures, level: float) -> bool:
    failures = np.asarray(failures)
    return binom(failures.size, level).sf(failures.sum() - 1) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize(("sizes", "num_checks"), [
    ((20, 10, 0.5), 100), *map(exhaustive, [((20, 10, 0.5), 400), ((40, 12, 0.25), 400)]),
])  # fmt: skip
def test_every_property_keeps_its_level(sizes, num_checks):
    """False alarms stay below the level in small measurements, whose laws are far from normal."""
    rng = np.random.default_rng(0)
    checks = [findings(right_measurements(rng, *sizes), 0.5) for _ in range(num_checks)]
    p_values = {name: np.array([own[name].p_value for own in checks]) for name in checks[0]}
    for prop in PROPERTIES:
        if not prop.is_random:
            assert (p_values.pop(prop.name) == 1.0).all()
    for name, level in product(p_values, (0.2, 0.05, 0.01, 0.001)):
        assert not too_many(p_values[name] <= level, level), name
    least = np.min([*p_values.values()], axis=0)
    for significance in (0.5, 0.2, 0.05, 0.01):
        assert not too_many(least <= level_of_each(significance, PROPERTIES), significance)
    # The comparison sees p-values that are far too small; Bonferroni's are somewhat too large.
    assert too_many(p_values["noise scale"] / 3 <= 0.2, 0.2)


def test_the_level_is_shared_out_among_what_is_random_and_the_tests_of_a_property():
    """Three of the four properties are random, and two need noise."""
    kinds = [(True, False), (True, False), (True, True), (False, True)]
    nothing = property_tests.Measured("", [])
    properties = [Property("p", "", lambda _: nothing, "", *kind) for kind in kinds]
    assert level_of_each(0.06, properties) == pytest.approx(0.02)
    measurements = right_measurements(np.random.default_rng(0), 20, 10, 0.5)
    p_values = (0.3, 0.004, 1.0, 0.9, 0.7)
    tests = [property_tests.Test(f"place {index}", p) for index, p in enumerate(p_values)]
    prop = Property("p", "", lambda _: property_tests.Measured("", tests), "")
    [holding, _] = findings_of(measurements, [prop, prop], significance=0.039)
    [failing, _] = findings_of(measurements, [prop, prop], significance=0.041)
    assert holding.p_value == failing.p_value == pytest.approx(5 * 0.004)
    assert (holding.holds, failing.holds) == (True, False)
    assert "place 1" in failing.measured


def test_pairs_share_no_step_or_record():
    """Laws of pairs are exact because each number is in one pair at most."""
    for count, distance in product(range(30), (1, 2, 3, 10)):
        first, second = exact_laws.disjoint_pairs(count, distance)
        assert (second == first + distance).all()
        assert len({*first, *second}) == 2 * len(first) == count // (2 * distance) * 2 * distance
        assert {*first, *second} <= {*range(count)}


@pytest.mark.parametrize(("first", "second", "total"), [(3, 4, 9), (6, 5, 8), (2, 2, 30)])
def test_p_values_of_common_records_are_sums_over_outcomes(first, second, total):
    """So many or more of `first` records are among `second` ones; the number itself counts."""
    ways = [comb(first, k) * comb(total - first, second - k) for k in range(min(first, second) + 1)]
    for common in range(max(0, first + second - total), len(ways)):
        expected = sum(ways[common:]) / comb(total, second)
        counts = (np.array([number]) for number in (common, first, second))
        assert _least_hypergeometric(*counts, total) == (0, pytest.approx(expected, rel=1e-9))
    # The second of the three pairs of batches is the rarest.
    most = len(ways) - 1
    counts = np.array([most - 1, most, most - 1]), np.full(3, first), np.full(3, second)
    index, p_value = _least_hypergeometric(*counts, total)
    assert index == 1
    assert p_value == pytest.approx(min(1.0, 3 * ways[most] / comb(total, second)))


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_p_values_of_binomial_numbers_are_sums_over_outcomes(rate):
    """Twice the probability of no larger, or of no smaller ones; each holds the number itself."""
    law = [comb(7, count) * rate**count * (1 - rate) ** (7 - count) for count in range(8)]
    expected = [min(1.0, 2 * min(sum(law[: count + 1]), sum(law[count:]))) for count in range(8)]
    p_values = exact_laws.binomial_p_values
    assert p_values(np.arange(8), 7, rate) == pytest.approx(expected, rel=1e-9)
    assert p_values(7, 7, rate) == pytest.approx(expected[-1], rel=1e-9)


def test_the_variance_within_groups_has_the_law_that_is_stated():
    """Few rows in a group, whose mean takes a third of the degrees of freedom; 3,000 draws."""
    rng = np.random.default_rng(0)
    variances, p_values = np.array(
        [exact_laws.variance_within(rng.normal(0, 2.5, (2, 3, 4))) for _ in range(3_000)]
    ).T
    assert abs(variances.mean() - 1) < 4 * variances.std() / sqrt(3_000)
    for level in (0.3, 0.1, 0.02):
        assert not too_many(p_values <= level, level)
        assert not too_many(p_values > level, 1 - level)


def test_the_law_of_a_spread_is_exact_and_far_from_it_there_is_next_to_no_probability():
    """Compared with all outcomes of three binomial numbers of five trials."""
    spread_p_value, trials, rate = exact_laws.spread_p_value, 5, 0.3  # 2 is the centre
    outcomes = np.array([*product(range(trials + 1), repeat=3)])
    probabilities = binom(trials, rate).pmf(outcomes).prod(axis=1)
    squares = ((outcomes - 2) ** 2).sum(axis=1)
    for own, counts in zip(squares, outcomes, strict=True):
        below, above = probabilities[squares <= own].sum(), probabilities[squares >= own].sum()
        expected = min(1.0, 2 * min(below, above))
        assert spread_p_value(counts, trials, rate) == pytest.approx(expected, rel=1e-9)
    assert spread_p_value(np.zeros(50, dtype=int), 1000, 0.5) < 1e-9
    assert spread_p_value(np.full(50, 500), 1000, 0.5) < 1e-9
    assert spread_p_value(np.full(50, 1000), 1000, 1.0) == 1.0
    assert spread_p_value(np.array([999, *[1000] * 49]), 1000, 1.0) < 1e-12


def with_noise(measurements: Measurements, change) -> Measurements:
    """With other updates where there is noise, shape (R, T, 8, columns)."""
    return replace(
        measurements, noisy=replace(measurements.noisy, moved=change(measurements.noisy.moved))
    )


def failing_of(measurements: Measurements) -> set[str]:
    return {name for name, finding in findings(measurements).items() if not finding.holds}


def bias_scaled(error: float, columns: int):
    """A change of noise, by a relative error in the bias where no record has a gradient."""

    def scaled(moved):
        is_scaled = (np.arange(8) == 7)[:, None] & (np.arange(moved.shape[-1]) >= columns)
        return moved * (1 + error * is_scaled)

    return scaled


def test_a_wrong_scale_is_not_found_as_something_else_and_a_parameter_without_noise_is_named():
    """Also where no small training is possible, as at a sample rate above 0.9."""
    measurements = right_measurements(np.random.default_rng(0), 40, 12, 0.25)
    assert not failing_of(measurements)
    assert failing_of(with_noise(measurements, lambda moved: 0.1 * moved)) == {"noise scale"}
    measurements = with_noise(
        replace(measurements, small_quiet=None, small_noisy=None), bias_scaled(-1.0, 40)
    )
    scale = findings(measurements)["noise scale"]
    assert "hidden.bias 0" in scale.measured
    assert not scale.holds


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_batches_that_count_too_much_or_too_little_are_found(share):
    """One batch of one training against the median of its step."""
    measurements = right_measurements(np.random.default_rng(0), 40, 12, 0.25)
    moved = measurements.quiet.moved.copy()
    moved[2, 1] *= share
    assert failing_of(replace(measurements, quiet=replace(measurements.quiet, moved=moved))) == {
        "normalisation"
    }


def test_another_number_of_updates_than_steps_and_repeated_noise_fail():
    """In one training of twelve. More updates leak more; with fewer, some step is hidden."""
    measurements = right_measurements(np.random.default_rng(0), 40, 12, 0.25)
    for kind, more in product(("quiet", "noisy"), (-1, 1)):
        trainings = getattr(measurements, kind)
        num_updates = trainings.num_updates + more * (np.arange(12) == 7)
        changed = replace(measurements, **{kind: replace(trainings, num_updates=num_updates)})
        assert "steps" in failing_of(changed), (kind, more)
    for sign in (1, -1):
        again = with_noise(
            measurements, lambda moved, s=sign: np.concatenate([moved[:6], s * moved[:6]])
        )
        assert "independent steps" in failing_of(again)


@pytest.mark.parametrize("num_seen", [4, 2])
def test_skipped_batches_are_found_where_a_tensor_is_frozen(num_seen):
    measurements = right_measurements(np.random.default_rng(0), 40, 12, 0.25)
    for kind in ("quiet", "noisy", "small_quiet", "small_noisy"):
        trainings = getattr(measurements, kind)
        seen = num_seen if "small" in kind else 4
        moved = trainings.moved[:, :seen].copy()
        moved[:, :, [*TENSORS[2].values]] = 0
        own = trainings.with_updates(moved, num_updates=np.full(12, seen))
        measurements = replace(measurements, **{kind: own})
    measurements = without_postprocessing(measurements)
    assert measurements.frozen == "embedding.weight in 4 of 4 steps"
    assert failing_of(measurements) == ({"empty batches"} if num_seen < 4 else set())


@pytest.mark.long
def test_the_smallest_errors_are_those_that_are_just_found():
    """Twice the error of the text is found, half of it is not."""
    sizes, steps = (200, 30, 0.1), 8
    settings = Settings(0.1, 1.0, 1.0, 0.1, num_steps=steps, seed=0)
    small = smallest_errors(Plan(settings, 200, 30, seed=0), level_of_each(0.001, PROPERTIES))

    def share_found(name: str, change) -> float:
        rng = np.random.default_rng(1)
        return np.mean([not findings(change(rng))[name].holds for _ in range(10)])

    def scaled(error: float, rng) -> Measurements:
        return with_noise(right_measurements(rng, *sizes, steps), bias_scaled(error, 200))

    def rated(rates, rng) -> Measurements:
        right = right_measurements(rng, *sizes, steps)
        drawn = rng.random((30, steps, 200)) < rates
        moved = np.zeros_like(right.quiet.moved)
        moved[..., 6, :200] = drawn
        return replace(right, quiet=replace(right.quiet, moved=moved))

    # Half of the records, in no order that labels or norms have.
    signs = np.where(np.random.default_rng(7).permutation(200) % 2, 1.0, -1.0)
    for factor, is_found in ((2.0, True), (0.5, False)):
        for name, change in (
            ("noise scale", partial(scaled, factor * small.noise)),
            ("sampling rate", partial(rated, 0.1 * (1 + factor * small.rate))),
            ("sampling rate", partial(rated, 0.1 * (1 + factor * small.differing_rates * signs))),
        ):
            share = share_found(name, change)
            assert share > 0.8 if is_found else share < 0.2, (name, factor)


def test_gradients_of_the_probe_are_those_of_autograd():
    records = probe_records(num_records=40, max_grad_norm=0.7, step=0.01)
    probe = Probe(records, Trace())
    with torch.no_grad():
        for parameter in probe.parameters():
            parameter += 0.02 * torch.randn(parameter.shape)
    features, labels = records.dataset().tensors
    flat = torch.cat([own.detach().flatten() for own in probe.parameters()]).double().numpy()
    expected = records.norms_at(by_column(flat, records.num_columns))
    for index in range(40):
        loss = torch.nn.functional.cross_entropy(probe(features[index][None]), labels[index][None])
        gradients = torch.autograd.grad(loss, [*probe.parameters()])
        gradient = torch.cat([own.flatten() for own in gradients]).double().numpy()
        moved = by_column(-gradient, records.num_columns)
        along, across = records.parts(moved)
        norm = expected[index] * 0.7
        np.testing.assert_allclose(along[:, index], norm / 5**0.5, rtol=1e-4)
        np.testing.assert_allclose(across[:, index], 0.0, atol=1e-5 * norm)
        np.testing.assert_allclose(np.delete(moved, index, axis=1), 0.0, atol=1e-6)
    start = records.norms_at(records.start)
    np.testing.assert_allclose(start, records.norms[records.classes], rtol=1e-4)


def test_the_probe_in_jax_is_that_of_pytorch():
    records = probe_records(num_records=40, max_grad_norm=0.7, step=0.01)
    probe, ours = JaxProbe(records), Probe(records, Trace())
    features, labels = records.arrays()
    loss = torch.nn.functional.cross_entropy(ours(torch.tensor(features)), torch.tensor(labels))
    expected = torch.autograd.grad(loss, [*ours.parameters()])
    value, gradients = jax.value_and_grad(probe.loss)(probe.parameters, features, labels)
    assert float(value) == pytest.approx(float(loss.detach()), rel=1e-5)
    for gradient, reference in zip(probe.tensors(gradients), expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-7)


def test_steps_that_are_not_seen_are_said():
    """A loop that trains a copy of the parameters, which the module does not see."""

    def hidden(module, dataset, settings):
        copied = deepcopy(module)
        copied.trace = Trace()
        for _ in one_at_a_time(copied, dataset, settings):
            pass

    check = check_mechanism(hidden, num_trainings=10, num_steps=2, num_records=100)
    assert "steps" in failing(check)
    assert "a generator that yields after each step" in said(check)


def test_checks_that_cannot_be_made_are_refused():
    def broken(module, dataset, settings):
        raise KeyError("input_ids")

    def insensitive(module, dataset, settings):
        """It moves the probe so far that gradients vanish, as if records were left out."""
        opacus(module, dataset, settings, optimizer=lambda own, lr: torch.optim.Adam(own, lr=0.1))

    def unnamed(probe, dataset, settings):
        yield [*probe.parameters.values()]

    in_jax = {"framework": "jax"}
    for loop, settings, message in (
        (insensitive, {}, r"whatever settings\.learning_rate is"),
        (broken, {}, r"failed on a probe \(KeyError: 'input_ids'\); it must"),
        (lambda *_: sys.exit(0), {}, r"failed on a probe \(SystemExit: 0\)"),
        (by_hand, {"sample_rate": 0.004}, "a whole number, at least 10: give sample_rate 0.05, or"),
        (by_hand, {"sample_rate": 0.0833, "num_records": 120}, "sample_rate 0.08333333333333333,"),
        (by_hand, {"learning_rate": 100.0}, "learning_rate 100 is too large for a probe"),
        (by_hand, {"framework": "keras"}, "framework is 'keras'; it must be one of torch, jax"),
        (lambda *_: None, in_jax, r"in jax, it must .*yield.* the parameters"),
        (unnamed, in_jax, r"in jax, it must .*yield.* the parameters"),
        (by_hand, {"num_steps": 1}, "num_steps is 1; it must be"),
    ):
        with pytest.raises(InputError, match=message):
            check_mechanism(loop, **settings)


@pytest.mark.parametrize("fails", [False, True])
def test_generators_are_afterwards_as_before(fails, monkeypatch):
    of_gpus = {0: 5, 1: 6}  # stands for states of two accelerators

    def loop(module, dataset, settings):
        of_gpus.update({0: settings.seed, 1: settings.seed})
        if fails:
            raise ValueError

    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", of_gpus.get)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: of_gpus.update({device: state})
    )
    before = drawn_until_now()
    with pytest.raises(InputError) if fails else nullcontext():
        check_mechanism(loop, num_trainings=10, num_steps=2)
    assert (drawn_until_now(), of_gpus) == (before, {0: 5, 1: 6})


def undone(number, parameter, before) -> None:
    parameter.copy_(before)


def undone_but_for_a_third(number, parameter, before) -> None:
    parameter.copy_(before if number % 3 else parameter)


def averaged(number, parameter, before) -> None:
    parameter.lerp_(before, 0.4)


def with_more(number, parameter, before) -> None:
    parameter += 1e-4 * torch.randn(parameter.shape)


@pytest.mark.parametrize(("change", "is_right", "is_averaged"), [
    (undone, False, False), (undone_but_for_a_third, True, True), (averaged, True, True),
    (with_more, False, True),
])  # fmt: skip
def test_what_is_added_to_parameters_beside_an_optimizer_is_seen(change, is_right, is_averaged):
    """After each step of Adam. What follows from its earlier steps, as averages do, is no more."""

    def train(module, dataset, settings):
        parameters = [*module.parameters()]
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        for number in range(settings.num_steps):
            module(dataset.tensors[0])
            before = [parameter.detach().clone() for parameter in parameters]
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape)
            optimizer.step()
            with torch.no_grad():
                for parameter, own in zip(parameters, before, strict=True):
                    change(number, parameter, own)

    settings = Settings(0.5, 1.0, 1.0, 0.1, 9, seed=0)
    records = records_of(settings, 40)
    with FRAMEWORKS["torch"](train, records) as run:
        trainings = joined([run(settings)], records, settings, by_sums=False)
    assert (trainings.replay_error < 0.01) == is_right
    assert trainings.is_averaged == is_averaged


def adam_without_gradients(module, dataset, settings):
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
    for _ in range(settings.num_steps):
        module(dataset.tensors[0])
        optimizer.step()


@pytest.mark.parametrize("loop", [lambda *_: None, adam_without_gradients])
def test_a_loop_that_does_nothing_fails(loop):
    check = check_mechanism(loop)
    assert failing(check) >= {"sampling rate", "noise scale", "normalisation", "clipping"}


def own_trainer(module, dataset, settings):
    """The trainer of this package. Its canary is the record that it replaces.

    It trains two models at once, so their steps are not seen: each is reached from the start.
    """
    features, labels = (tensor.numpy() for tensor in dataset.tensors)
    start = deepcopy(module)
    names = ("noise_multiplier", "max_grad_norm", "sample_rate", "learning_rate")
    own = {name: getattr(settings, name) for name in names}
    for num_steps in range(1, settings.num_steps + 1):
        result = train_ensemble(
            module=start,
            records=Records(features, labels),
            canary=InputCanary(features[0], int(labels[0]), 0),
            dpsgd=DPSGD(**own, record_steps=(num_steps,)),
            runs=[0, 1],
            seed=settings.seed,
            keep_parameters=True,
        )
        assert result.parameters is not None
        vector_to_parameters(torch.from_numpy(result.parameters[0]), module.parameters())
        yield


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, OTHER], ids=["defaults", "other settings"])
def test_the_trainer_of_this_package_is_the_mechanism_that_is_accounted(changes):
    check = check_mechanism(own_trainer, **{**changes, "num_trainings": 12, "num_steps": 5})
    assert check.passes, str(check)


def masked(text: str) -> list[str]:
    """Lines without numbers, which may differ between versions of PyTorch."""
    return [re.sub(r"\d+([.]\d+)?", "#", line) for line in text.strip().splitlines()]


@pytest.mark.long
def test_the_command(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(name: str, *options: str):
        return CliRunner().invoke(app, ["check", f"checked_training:{name}", *options])

    good = run("train")
    assert good.exit_code == 0, good.output
    assert "Nothing speaks against the mechanism that is accounted." in good.stdout
    page = (EXAMPLES.parent / "check.md").read_text()
    [shown] = re.findall(r"\$ dpcanary check checked_training:train\n((?:.*\n)*?)```", page)
    assert masked(good.stdout) == masked(shown)
    page = " ".join((EXAMPLES.parent / "reliability.md").read_text().split())
    assert f"{len(WRONG)} wrong loops and {len(RIGHT)} right ones" in page
    rows = pd.read_csv(TABLE, sep="\t").query("list == 'main'")
    for kind, loops in (("wrong", (*WRONG, *NOT_FOUND)), ("right", RIGHT)):
        assert {*rows["loop"][rows["kind"] == kind]} == {loop.name for loop in loops}
    assert {*rows["loop"][rows["result"] == "not found"]} == {loop.name for loop in NOT_FOUND}
    bad = run("train_by_hand", "--num-trainings", "20")
    assert (bad.exit_code, "FAIL  normalisation" in bad.stdout) == (3, True)
    report = json.loads(run("train", "--num-trainings", "20", "--json").stdout)
    assert report["passes"]
    assert len(report["findings"]) == len(PROPERTIES)
    assert report["not_seen"][0].startswith("errors of your own model and data")
    assert "has no function 'trian'" in str(run("trian").exception)
    assert run("").exit_code == 2
