"""Watched trainings with optax and jax_privacy, also with correlated noise."""

from math import comb, nan

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
noise_addition = pytest.importorskip("jax_privacy.noise_addition")

import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
import torch  # noqa: E402

from dpcanary.errors import InputError  # noqa: E402
from dpcanary.watching.correlated import CorrelatedRecorder  # noqa: E402
from dpcanary.watching.directions import Directions  # noqa: E402
from dpcanary.watching.optax import _Passes, shapes_of, watched  # noqa: E402
from dpcanary.watching.recorder import Recorder  # noqa: E402
from dpcanary.watching.watched_step import StepSettings  # noqa: E402
from dpcanary.watching.watched_training import WatchedTraining  # noqa: E402

SIGMA, NORM, RATE, STEPS = 1.5, 0.7, 0.2, 60
QUIET = {"on_alarm": lambda alarm: None}


@pytest.mark.parametrize(
    ("sizes", "slots"), [((300, 7, 200), 30), ((70_000, 3, 140_001), 90)], ids=["small", "rows"]
)
def test_passes_are_those_of_torch(sizes, slots):
    directions = Directions(sizes, num_slots=slots, seed=2)
    passes, rng = _Passes(directions), np.random.default_rng(0)
    vector = [rng.normal(size=size).astype(np.float32) for size in sizes]
    tensors = [torch.tensor(part) for part in vector]
    assert np.allclose(passes.project(vector), directions.project(tensors), atol=1e-4)
    amounts = rng.normal(size=slots)
    added = passes.add([jnp.asarray(part) for part in vector], jnp.asarray(amounts, jnp.float32))
    directions.add(tensors, amounts)
    for array, tensor in zip(added, tensors, strict=True):
        assert np.allclose(array, tensor.numpy(), atol=1e-5)
    seen = directions.noise(tensors, [torch.zeros(size) for size in sizes])
    squares, sums, first = passes.moments([jnp.asarray(part.numpy()) for part in tensors])
    assert np.allclose(squares, seen.squares, rtol=1e-4)
    assert np.allclose(sums, seen.sums, atol=0.1)
    assert np.allclose(directions.sampled_values(np.asarray(first)), seen.first, equal_nan=True)


def parameters():
    return {"dense": {"kernel": jnp.zeros((50, 30)), "bias": jnp.zeros(30)}, "out": jnp.zeros(40)}


def train(recorder, privatizer, settings, *, steps=STEPS, key=0) -> None:
    whole = optax.chain(watched(privatizer, recorder, settings), optax.adam(0.1))
    values = parameters()
    state = whole.init(values)

    @jax.jit
    def step(values, state, key):
        sums = jax.tree.map(lambda leaf: 30 * jax.random.normal(key, leaf.shape), values)
        updates, state = whole.update(sums, state, values)
        return optax.apply_updates(values, updates), state

    for place in range(steps):
        values, state = step(values, state, jax.random.key(1_000 * key + place))
    jax.effects_barrier()


def recorded(seed: int, *, share: float = 1.0) -> Recorder:
    options = {"noise_multiplier": SIGMA, "sample_rate": RATE, "num_canaries": 100, **QUIET}
    recorder = Recorder(shapes_of(parameters()), seed=seed, **options)
    key = jax.random.key(seed + 5)
    privatizer = noise_addition.gaussian_privatizer(stddev=share * SIGMA * NORM, prng_key=key)
    train(recorder, privatizer, StepSettings(SIGMA, NORM, RATE), key=seed)
    return recorder


def audited(recorders) -> list[WatchedTraining]:
    """The results of right trainings, whose bounds use much of the truth and seldom exceed it."""
    results = [recorder.result(delta=1e-5) for recorder in recorders]
    truth, bounds = results[0].accounted.substitute, [result.epsilon_lower for result in results]
    assert all(result.alarm is None for result in results)
    assert 0.4 * truth < np.mean(bounds) < truth
    assert sum(bound > truth for bound in bounds) <= 1
    return results


@pytest.mark.long
def test_a_right_training_is_audited():
    _scale, low, high = audited(map(recorded, range(6)))[0].measured.noise_scale()
    assert low < 1 < high < low + 0.02


@pytest.mark.long
def test_wrong_noise_is_found_and_names_and_shapes_are_those_of_the_tree():
    shapes = {"['dense']['bias']": (30,), "['dense']['kernel']": (50, 30), "['out']": (40,)}
    assert shapes_of(parameters()) == shapes
    less, independent = recorded(0, share=0.9), correlated(0, wrong=True)
    for recorder, step in ((less, 3), (independent, 10)):
        recorder.evaluate()
        assert recorder.alarm.step <= step
    assert less.alarm.kind == "noise_scale"


def test_errors_come_at_once_or_from_a_step_as_those_of_jax():
    options = {"noise_multiplier": SIGMA, "sample_rate": RATE, "num_canaries": 100, **QUIET}
    recorder = Recorder(shapes_of(parameters()), seed=0, **options)
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))
    for scale in (0.0, nan):
        with pytest.raises(InputError, match="scale"):
            watched(privatizer, recorder, StepSettings(SIGMA, NORM, RATE), scale=scale)
    with pytest.raises(RuntimeError, match="InputError: noise_multiplier is 0"):
        train(recorder, privatizer, StepSettings(0.0, NORM, RATE), steps=1)


BANDS = [comb(2 * lag, lag) / 4**lag for lag in range(6)]
MATRIX = sum(value * np.eye(STEPS, k=-lag) for lag, value in enumerate(BANDS))


def correlated(seed: int, *, times: int = 1, wrong: bool = False) -> CorrelatedRecorder:
    options = {"strategy": BANDS, "num_steps": STEPS, "noise_multiplier": 2.5, "num_canaries": 150}
    recorder = CorrelatedRecorder(
        shapes_of(parameters()), num_participations=times, seed=seed, **options, **QUIET
    )
    drawn = {"stddev": 2.5 * NORM, "prng_key": jax.random.key(seed + 3)}
    inverse = jnp.asarray(np.linalg.inv(MATRIX))
    privatizer = noise_addition.matrix_factorization_privatizer(inverse, **drawn)
    if wrong:
        privatizer = noise_addition.gaussian_privatizer(**drawn)
    train(recorder, privatizer, StepSettings(2.5, NORM, times / STEPS), key=seed)
    return recorder


@pytest.mark.long
@pytest.mark.parametrize("times", [1, 3])
def test_correlated_noise_of_jax_privacy_is_audited(times):
    first_found, *_ = audited(correlated(seed, times=times) for seed in range(4))
    # One participation moves the whitened sums by the norm of its columns of C.
    steps = np.arange(times) * (STEPS // times)
    schedules = np.arange(STEPS - steps[-1])[:, None] + steps
    shift = np.linalg.norm(MATRIX[:, schedules].sum(axis=2), axis=0).max()
    [phase] = first_found.phases
    assert phase.sample_rate == 1
    assert phase.noise_multiplier == pytest.approx(2.5 / shift, rel=1e-9)
    assert first_found.accounted.add_remove < first_found.accounted.substitute
