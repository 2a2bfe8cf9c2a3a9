"""Ensemble training against a plain loop over runs, steps and records, and its randomness."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom, kstest, norm

from dpcanary.canaries import GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.randomness import Purpose, generator
from dpcanary.training import ensemble
from dpcanary.training.ensemble import EnsembleResult, train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.sampling import Draws, RunStreams

CPU = torch.device("cpu")
NUM_RECORDS, NUM_FEATURES, NUM_CLASSES, TARGET = 24, 6, 3, 4
WIDTH = NUM_CLASSES * (NUM_FEATURES + 1)
SEED = 11
SETTINGS = DPSGD(
    sample_rate=0.3,
    noise_multiplier=0.7,
    max_grad_norm=1.3,
    learning_rate=0.8,
    record_steps=(1, 4, 9),
)
Canary = InputCanary | GradientCanary


def some_records(seed: int = 0, num_test: int = 40) -> Records:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, NUM_RECORDS + num_test)
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))
    features = (centres[labels] + rng.normal(size=(len(labels), NUM_FEATURES))).astype(np.float32)
    return Records(
        features=features[:NUM_RECORDS],
        labels=labels[:NUM_RECORDS],
        test_features=features[NUM_RECORDS:],
        test_labels=labels[NUM_RECORDS:],
        num_classes=NUM_CLASSES,
        target=TARGET,
    )


RECORDS = some_records()
INPUT = InputCanary(
    features=np.linspace(-2.0, 2.0, NUM_FEATURES, dtype=np.float32),
    label=int(RECORDS.labels[TARGET] + 1) % NUM_CLASSES,
)
GRADIENT = GradientCanary(coordinate=9)


def train(
    runs: Sequence[int],
    *,
    canary: Canary = INPUT,
    records: Records = RECORDS,
    dpsgd: DPSGD = SETTINGS,
    seed: int = SEED,
    num_threads: int = 1,
) -> EnsembleResult:
    return train_ensemble(
        records=records,
        canary=canary,
        dpsgd=dpsgd,
        runs=runs,
        seed=seed,
        device=CPU,
        num_threads=num_threads,
    )


def draw(num_steps: int, runs: Sequence[int], *, sample_rate: float = 0.3, width: int = 5) -> Draws:
    streams = RunStreams(
        seed=SEED, runs=runs, sample_rate=sample_rate, num_records=NUM_RECORDS, width=width
    )
    with ThreadPoolExecutor(2) as pool:
        return streams.draw(num_steps, pool)


# --- a plain loop ------------------------------------------------------------------------------


def twin_stream(purpose: int, run: int) -> np.random.Generator:
    """The documented stream, spelled out: SFC64 keyed by (seed; purpose, run)."""
    return np.random.Generator(
        np.random.SFC64(np.random.SeedSequence(SEED, spawn_key=(purpose, run)))
    )


def twin_gradient(
    weights: NDArray[np.float64], features: NDArray[np.float32], label: int, max_grad_norm: float
) -> NDArray[np.float64]:
    """Clipped cross-entropy gradient of one record, in double precision."""
    row = np.append(features.astype(np.float64), 1.0)
    logits = weights @ row
    probabilities = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    probabilities[label] -= 1.0
    gradient = np.outer(probabilities, row)
    return gradient / max(1.0, np.linalg.norm(gradient) / max_grad_norm)


def twin_run(
    run: int, canary: Canary, dpsgd: DPSGD
) -> tuple[list[NDArray[np.float64]], float, float]:
    """One run, record by record: observations, accuracy and the largest weight."""
    world = run % 2
    batches, noises = twin_stream(2, run), twin_stream(3, run)
    weights = np.zeros((NUM_CLASSES, NUM_FEATURES + 1))
    seen = []
    for step in range(1, dpsgd.record_steps[-1] + 1):
        uniform = batches.random(NUM_RECORDS, np.float32)
        total = np.zeros_like(weights)
        for record in range(NUM_RECORDS):
            if uniform[record] >= dpsgd.sample_rate:
                continue
            features, label = RECORDS.features[record], int(RECORDS.labels[record])
            if record == TARGET and isinstance(canary, GradientCanary):
                total.flat[canary.coordinate] += (-1.0) ** world * dpsgd.max_grad_norm
                continue
            if record == TARGET and world == 1:
                features, label = canary.features, canary.label
            total += twin_gradient(weights, features, label, dpsgd.max_grad_norm)
        noise = noises.standard_normal(WIDTH, dtype=np.float32).reshape(weights.shape)
        total += dpsgd.noise_multiplier * dpsgd.max_grad_norm * noise
        weights -= dpsgd.learning_rate / (dpsgd.sample_rate * NUM_RECORDS) * total
        if step in dpsgd.record_steps:
            if isinstance(canary, GradientCanary):
                seen.append(weights.flat[canary.coordinate])
            else:
                pair = np.array([RECORDS.features[TARGET], canary.features], dtype=np.float64)
                seen.append(pair @ weights[:, :-1].T + weights[:, -1])
    right = 0
    for features, label in zip(RECORDS.test_features, RECORDS.test_labels, strict=True):
        right += int(np.argmax(weights @ np.append(features, 1.0)) == label)
    return seen, right / len(RECORDS.test_labels), float(np.abs(weights).max())


@pytest.mark.parametrize("canary", [INPUT, GRADIENT], ids=["input", "gradient"])
@pytest.mark.parametrize("sample_rate", [0.3, 1.0])
@pytest.mark.parametrize("noise_multiplier", [0.0, 0.7])
def test_equals_a_loop_over_runs_steps_and_records(
    canary: Canary, sample_rate: float, noise_multiplier: float
) -> None:
    dpsgd = replace(SETTINGS, sample_rate=sample_rate, noise_multiplier=noise_multiplier)
    runs = [0, 1, 6, 7, 1_000_003]
    result = train(runs, canary=canary, dpsgd=dpsgd)
    for row, run in enumerate(runs):
        seen, accuracy, size = twin_run(run, canary, dpsgd)
        np.testing.assert_allclose(result.observations[row], seen, rtol=0, atol=1e-5 * size)
        assert result.test_accuracy[row] == pytest.approx(accuracy, abs=1e-6)
    assert result.test_accuracy.min() > 1 / NUM_CLASSES  # the models do learn


# --- shards, blocks, threads -------------------------------------------------------------------


@pytest.mark.parametrize("canary", [INPUT, GRADIENT], ids=["input", "gradient"])
def test_cutting_runs_otherwise_changes_rounding_alone(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = range(2 * ensemble.RUNS_AT_ONCE + 5)
    whole = train(runs, canary=canary)
    assert len(whole.observations) == len(whole.test_accuracy) == len(runs)
    scale = np.abs(whole.observations).max()

    def assert_same(found: EnsembleResult, order: Sequence[int]) -> None:
        expected = whole.observations[order]
        np.testing.assert_allclose(found.observations, expected, rtol=0, atol=1e-5 * scale)
        # Rounding may tip a test record that lies on a boundary, hardly more than one.
        difference = np.abs(found.test_accuracy - whole.test_accuracy[order])
        assert difference.max() <= 1.01 / len(RECORDS.test_labels)
        assert np.mean(difference > 0) < 0.02

    assert_same(train(runs[50:], canary=canary), list(runs[50:]))
    backwards = list(reversed(runs))
    assert_same(train(backwards, canary=canary), backwards)
    assert_same(train([77], canary=canary), [77])
    monkeypatch.setattr(ensemble, "RUNS_AT_ONCE", 7)
    assert_same(train(runs, canary=canary), list(runs))
    # Neighbours do differ, so that the comparison above means something.
    spread = np.abs(np.diff(whole.observations[:, -1], axis=0))
    assert np.median(spread) > 0.01 * scale


def assert_same_bits(one: EnsembleResult, two: EnsembleResult) -> None:
    assert one.observations.tobytes() == two.observations.tobytes()
    assert one.test_accuracy.tobytes() == two.test_accuracy.tobytes()


def test_same_cutting_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = range(3, 80)
    once = train(runs)
    assert_same_bits(once, train(runs))
    assert_same_bits(once, train(np.asarray(runs)))
    for num_threads in (2, 5):
        assert_same_bits(once, train(runs, num_threads=num_threads))
    monkeypatch.setattr(ensemble, "_BYTES_AHEAD", 1)  # one step drawn ahead
    assert_same_bits(once, train(runs))
    monkeypatch.setattr(ensemble, "_BYTES_AHEAD", 2 * 4 * 64 * WIDTH)  # two steps
    assert_same_bits(once, train(runs))


def test_recorded_steps_do_not_change_the_training() -> None:
    few = train(range(6))
    many = train(range(6), dpsgd=replace(SETTINGS, record_steps=tuple(range(1, 10))))
    assert np.array_equal(many.observations[:, [0, 3, 8]], few.observations)
    assert np.array_equal(many.test_accuracy, few.test_accuracy)


def test_seed_changes_every_run() -> None:
    one, two = train(range(6)), train(range(6), seed=SEED + 1)
    assert (np.abs(one.observations - two.observations) > 0).all()


def test_progress_counts_model_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "RUNS_AT_ONCE", 4)
    done: list[int] = []
    train_ensemble(
        records=RECORDS,
        canary=INPUT,
        dpsgd=SETTINGS,
        runs=range(10),
        seed=SEED,
        device=CPU,
        on_progress=done.append,
    )
    assert sum(done) == 10 * SETTINGS.record_steps[-1]
    assert min(done) > 0


# --- the two worlds ----------------------------------------------------------------------------


def test_world_0_never_sees_the_substitute() -> None:
    other = InputCanary(features=5.0 - INPUT.features, label=(INPUT.label + 1) % NUM_CLASSES)
    one, two = train(range(20)), train(range(20), canary=other)
    of_target = 0
    assert np.array_equal(
        one.observations[0::2, :, of_target], two.observations[0::2, :, of_target]
    )
    assert np.array_equal(one.test_accuracy[0::2], two.test_accuracy[0::2])
    changed = np.abs(one.observations[1::2, -1, 0] - two.observations[1::2, -1, 0]).max(axis=1)
    assert (changed > 0.01).all()


def test_world_1_never_sees_the_target() -> None:
    features, labels = RECORDS.features.copy(), RECORDS.labels.copy()
    features[TARGET] = 4.0
    labels[TARGET] = (labels[TARGET] + 1) % NUM_CLASSES
    one = train(range(20))
    two = train(range(20), records=replace(RECORDS, features=features, labels=labels))
    of_substitute = 1
    assert np.array_equal(
        one.observations[1::2, :, of_substitute], two.observations[1::2, :, of_substitute]
    )
    changed = np.abs(one.observations[0::2, -1, 1] - two.observations[0::2, -1, 1]).max(axis=1)
    assert (changed > 0.01).all()


def test_no_world_sees_the_record_that_a_gradient_canary_replaces() -> None:
    features, labels = RECORDS.features.copy(), RECORDS.labels.copy()
    features[TARGET] = 4.0
    labels[TARGET] = (labels[TARGET] + 1) % NUM_CLASSES
    one = train(range(20), canary=GRADIENT)
    changed = replace(RECORDS, features=features, labels=labels)
    two = train(range(20), canary=GRADIENT, records=changed)
    assert_same_bits(one, two)


@pytest.mark.parametrize("canary", [INPUT, GRADIENT], ids=["input", "gradient"])
def test_batches_hold_either_target_or_substitute(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[NDArray[np.float32]] = []
    clip = ensemble.clipped_residuals

    def spy(problem: object, weights: object, inclusion: torch.Tensor, norm: float) -> torch.Tensor:
        seen.append(inclusion.numpy().copy())
        return clip(problem, weights, inclusion, norm)

    monkeypatch.setattr(ensemble, "clipped_residuals", spy)
    runs = range(3, 33)
    train(runs, canary=canary)
    inclusion = np.stack(seen, axis=1)  # (runs, steps, records and substitute)
    sampled = draw(SETTINGS.record_steps[-1], runs).sampled
    others = np.delete(np.arange(NUM_RECORDS), TARGET)
    assert np.array_equal(inclusion[:, :, others], sampled[:, :, others])
    target = inclusion[:, :, TARGET]
    if isinstance(canary, GradientCanary):
        assert inclusion.shape[2] == NUM_RECORDS
        assert not target.any()
        return
    substitute = inclusion[:, :, NUM_RECORDS]
    world1 = (np.array(runs) % 2 == 1)[:, None]
    assert np.array_equal(target, sampled[:, :, TARGET] & ~world1)
    assert np.array_equal(substitute, sampled[:, :, TARGET] & world1)
    assert target.any()
    assert substitute.any()
    assert not (target * substitute).any()


# --- randomness --------------------------------------------------------------------------------


def test_stream_does_not_depend_on_how_much_is_drawn_at_once() -> None:
    at_once = draw(21, [4, 9])
    streams = RunStreams(seed=SEED, runs=[4, 9], sample_rate=0.3, num_records=NUM_RECORDS, width=5)
    with ThreadPoolExecutor(1) as pool:
        parts = [streams.draw(num_steps, pool) for num_steps in (7, 1, 13)]
    sevens = RunStreams(seed=SEED, runs=[9], sample_rate=0.3, num_records=NUM_RECORDS, width=5)
    with ThreadPoolExecutor(1) as pool:
        thrice = [sevens.draw(7, pool) for _ in range(3)]
    assert np.array_equal(np.concatenate([p.noise for p in parts], axis=1), at_once.noise)
    assert np.array_equal(np.concatenate([p.sampled for p in parts], axis=1), at_once.sampled)
    assert np.array_equal(np.concatenate([p.noise for p in thrice], axis=1)[0], at_once.noise[1])
    sampled = np.concatenate([p.sampled for p in thrice], axis=1)[0]
    assert np.array_equal(sampled, at_once.sampled[1])


def test_streams_have_the_documented_keys() -> None:
    keys = {"RECORDS": 1, "BATCHES": 2, "NOISE": 3, "SIMULATION": 4, "WORST_CASE": 5}
    assert {purpose.name: purpose.value for purpose in Purpose} == keys
    for purpose in Purpose:
        own = generator(seed=SEED, purpose=purpose, index=7)
        assert np.array_equal(own.random(9), twin_stream(purpose.value, 7).random(9))


def test_noise_is_standard_normal() -> None:
    noise = draw(400, range(64), width=40).noise.astype(np.float64)
    count = noise.size
    assert abs(noise.mean()) < 4.5 / np.sqrt(count)  # standard error 1 / sqrt(n)
    assert abs(noise.var() - 1.0) < 4.5 * np.sqrt(2.0 / count)
    assert abs((noise**4).mean() - 3.0) < 4.5 * np.sqrt(96.0 / count)
    assert kstest(noise.ravel()[::5], norm.cdf).pvalue > 1e-3
    # of each parameter, over runs and steps
    each = noise.reshape(-1, 40)
    assert np.abs(each.mean(axis=0)).max() < 4.5 / np.sqrt(len(each))
    assert np.abs(each.var(axis=0) - 1.0).max() < 4.5 * np.sqrt(2.0 / len(each))


@pytest.mark.parametrize("sample_rate", [0.0625, 0.3])
def test_every_record_is_sampled_at_the_rate(sample_rate: float) -> None:
    sampled = draw(1000, range(64), sample_rate=sample_rate).sampled
    trials = 64 * 1000
    error = np.sqrt(sample_rate * (1 - sample_rate) / trials)
    assert np.abs(sampled.mean(axis=(0, 1)) - sample_rate).max() < 4.5 * error
    # Independent records: the batch sizes are binomial, mean and variance.
    sizes = sampled.sum(axis=2).ravel()
    variance = NUM_RECORDS * sample_rate * (1 - sample_rate)
    assert abs(sizes.mean() - NUM_RECORDS * sample_rate) < 4.5 * np.sqrt(variance / trials)
    kurtosis = 3.0 + (1.0 - 6.0 * sample_rate * (1 - sample_rate)) / variance
    assert abs(sizes.var() - variance) < 4.5 * variance * np.sqrt((kurtosis - 1.0) / trials)


def test_full_batches_at_rate_one() -> None:
    assert draw(5, range(3), sample_rate=1.0).sampled.all()


def assert_uncorrelated(rows: NDArray[np.float64]) -> None:
    """Correlations of independent rows of n values are about N(0, 1/n), pair by pair."""
    pairs = np.corrcoef(rows)[np.triu_indices(len(rows), 1)] * np.sqrt(rows.shape[1])
    assert np.abs(pairs).max() < norm.isf(1e-4 / len(pairs))
    assert abs((pairs**2).mean() - 1.0) < 4.5 * np.sqrt(2.0 / len(pairs))


def test_runs_are_independent() -> None:
    draws = draw(500, [*range(40), 10**6, 2**31, 2**32, 2**32 + 1], width=20)
    runs = len(draws.noise)
    assert_uncorrelated(draws.noise.reshape(runs, -1).astype(np.float64))
    assert_uncorrelated(draws.sampled.reshape(runs, -1).astype(np.float64))


def test_steps_and_parameters_are_independent() -> None:
    noise = draw(30, range(800), width=20).noise.astype(np.float64)
    assert_uncorrelated(noise[:, :, 3].T)  # steps, over runs
    assert_uncorrelated(noise[:, 7, :].T)  # parameters, over runs
    sampled = draw(30, range(800)).sampled.astype(np.float64)
    assert_uncorrelated(sampled[:, 7, :].T)  # records, over runs


def test_streams_of_different_purposes_seeds_and_runs_differ() -> None:
    keys = [(seed, purpose, run) for seed in (0, 1, 2) for purpose in Purpose for run in (0, 1, 2)]
    rows = np.array(
        [generator(seed=s, purpose=p, index=i).standard_normal(4_000) for s, p, i in keys]
    )
    assert all(not np.array_equal(one, two) for one, two in combinations(rows, 2))
    assert_uncorrelated(rows)


def test_noise_and_canary_reach_the_weights_as_the_mechanism_says() -> None:
    """A coordinate of a dead feature holds the canary and the noise alone.

    Its change over T steps is -lr C / (q N) times +-Bin(T, q) + N(0, T sigma^2).
    """
    q, sigma, steps = 0.25, 0.9, (1, 6)
    features = RECORDS.features.copy()
    features[:, 2] = 0.0
    dpsgd = replace(SETTINGS, sample_rate=q, noise_multiplier=sigma, record_steps=steps)
    result = train(
        range(6_000),
        canary=GradientCanary(coordinate=(NUM_FEATURES + 1) + 2),
        records=replace(RECORDS, features=features),
        dpsgd=dpsgd,
    )
    rate = dpsgd.learning_rate * dpsgd.max_grad_norm / (q * NUM_RECORDS)
    sums = -result.observations.astype(np.float64) / rate
    for column, num_steps in enumerate(steps):
        counts = np.arange(num_steps + 1)
        weights = binom.pmf(counts, num_steps, q)
        deviation = sigma * np.sqrt(num_steps)
        for world, sign in ((0, 1.0), (1, -1.0)):

            def cdf(x: NDArray[np.float64], means: NDArray[np.float64] = sign * counts):
                return norm.cdf((x[:, None] - means) / deviation) @ weights  # noqa: B023

            found = sums[world::2, column]
            assert kstest(found, cdf).pvalue > 1e-3
            variance = num_steps * (sigma**2 + q * (1 - q))
            error = np.sqrt(variance / len(found))
            assert abs(found.mean() - sign * q * num_steps) < 4.5 * error


def test_global_random_states_are_left_alone() -> None:
    torch_before = torch.get_rng_state()
    kind, key, *rest = np.random.get_state()  # noqa: NPY002
    train(range(4))
    torch_after = torch.get_rng_state()
    kind_after, key_after, *rest_after = np.random.get_state()  # noqa: NPY002
    assert torch.equal(torch_before, torch_after)
    assert (kind, rest) == (kind_after, rest_after)
    assert np.array_equal(key, key_after)


def test_global_random_states_do_not_matter() -> None:
    one = train(range(4))
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert_same_bits(one, train(range(4)))


# --- divergence and edges ----------------------------------------------------------------------


def overflowing_at_first_step(peak: float) -> DPSGD:
    """Settings whose first update overflows where the noise exceeds `peak`: all else is tiny."""
    sigma, largest = 1_000.0, float(np.finfo(np.float32).max)
    unit = sigma * SETTINGS.max_grad_norm / (SETTINGS.sample_rate * NUM_RECORDS)
    rate = largest / (peak * unit)
    return replace(SETTINGS, noise_multiplier=sigma, learning_rate=rate, record_steps=(1, 2))


def test_divergence_names_the_run_and_the_step() -> None:
    """The learning rate lies where one run's largest noise, and no other's, overflows."""
    runs = range(20, 26)
    noise = np.abs(draw(1, runs, width=WIDTH).noise[:, 0]).max(axis=1)
    second, first = np.sort(noise)[-2:]
    assert first > 1.02 * second  # room for the gradients
    culprit = runs[int(np.argmax(noise))]
    between = overflowing_at_first_step(float(first + second) / 2)
    with pytest.raises(InputError, match=rf"^run {culprit} diverged by step 1; lower"):
        train(runs, canary=GRADIENT, dpsgd=between)
    others = [run for run in runs if run != culprit]
    assert np.isfinite(
        train(others, canary=GRADIENT, dpsgd=replace(between, record_steps=(1,))).observations
    ).all()
    above = overflowing_at_first_step(1.05 * float(first))
    with pytest.raises(InputError, match=r"^run \d+ diverged by step 2; lower"):
        train(runs, canary=GRADIENT, dpsgd=above)


@pytest.mark.parametrize("canary", [INPUT, GRADIENT], ids=["input", "gradient"])
def test_divergence_is_found_with_every_canary(canary: Canary) -> None:
    dpsgd = replace(SETTINGS, learning_rate=1e39)
    with pytest.raises(InputError, match=r"^run \d+ diverged by step \d+; lower learning_rate"):
        train(range(8), canary=canary, dpsgd=dpsgd)


def test_record_without_a_gradient_is_no_division_by_zero() -> None:
    """A margin of 1e4 leaves a softmax residual of exactly 0, so a gradient of norm 0."""
    features = (RECORDS.features * np.float32(1e4)).astype(np.float32)
    dpsgd = replace(SETTINGS, noise_multiplier=0.0, record_steps=(30,))
    result = train(range(4), records=replace(RECORDS, features=features), dpsgd=dpsgd)
    assert np.isfinite(result.observations).all()


def test_what_is_drawn_ahead_is_bounded_by_records_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few parameters and many records: it is the batches that fill the memory."""
    drawn: list[int] = []
    whole = ensemble.RunStreams.draw

    def counted(self, num_steps, pool):
        draws = whole(self, num_steps, pool)
        drawn.append(draws.noise.nbytes + draws.sampled.nbytes + 4 * draws.sampled.size)
        return draws

    monkeypatch.setattr(ensemble.RunStreams, "draw", counted)
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(20_000, 2)).astype(np.float32), rng.integers(0, 2, 20_000)
    records = Records(features, labels, features[:5], labels[:5], 2, target=0)
    dpsgd = replace(SETTINGS, sample_rate=0.1, record_steps=(30,))
    train_ensemble(
        records=records,
        canary=GradientCanary(coordinate=0),
        dpsgd=dpsgd,
        runs=range(32),
        seed=0,
        device=torch.device("cpu"),
    )
    assert len(drawn) > 1
    assert max(drawn) <= 33 * 2**20
