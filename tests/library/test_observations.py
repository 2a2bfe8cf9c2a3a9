"""Files of shards and of scores, and shards that become scores one by one, in bounded memory."""

import hashlib
import os
import platform
import tracemalloc
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.data.canaries import CanarySet, InputCanary, read_canaries, write_canaries
from dpcanary.data.observations import (
    Shard,
    hashes_of,
    parity,
    read_shard,
    shard_header,
    shard_path,
    write_shard,
)
from dpcanary.errors import InputError
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.scoring.pooling import checked_shards, pool_scores
from dpcanary.scoring.score_file import AuditScores, read_scores, write_scores
from dpcanary.scoring.scores import ScoringContext, logit_difference
from dpcanary.scoring.scoring_settings import ScoringStage

NUM_REPEATS, NUM_RUNS = 2, 8
AUDIT = {
    "canary": "worst_case", "score": "transcript", "sample_rate": 0.5, "noise_multiplier": 2.0,
    "num_steps": 10, "record_every": 5, "num_runs": 8,
}  # fmt: skip
LABELS = (3, 0, 1)  # of the canaries of three slots
LOGITS = {**AUDIT, "canary": "mislabeled", "score": "logit_difference", "dataset": "digits"}
LOGITS |= {"num_slots": len(LABELS)}
NAMES = {"audit": "a", "canary": "worst_case", "score": "transcript"}


def stage_of(audit: dict[str, object]) -> ScoringStage:
    datasets = {"digits": {"source": "digits", "num_records": 60}}
    config = {"experiment": "e", "delta": 1e-5, "datasets": datasets, "audits": {"a": audit}}
    return parse_experiment(config).stage(ScoringStage, audit="a")


STAGE = stage_of(AUDIT)
SETTINGS = STAGE.runs_settings


def shard(first: int, num_runs: int, *, num_slots: int = 1, **header: object) -> Shard:
    """Runs with their index as observation at step 5, and ten times their index at step 10.

    Each further slot has half more.
    """
    run, slot = np.arange(first, first + num_runs), np.arange(num_slots)
    defaults = {"settings": SETTINGS, "inputs": {}, "noise_multiplier": 2.0, "seconds": 2.0}
    return Shard(
        header={**defaults, **header}, run=run, world=parity(run[:, None] + slot).astype(np.uint8),
        step=np.array([5, 10]), test_accuracy=(run / 100).astype(np.float32),
        observation=run[:, None, None] * np.array([1.0, 10.0])[:, None] + 0.5 * slot,
    )  # fmt: skip


def scores(*, num_slots: int = 1) -> AuditScores:
    """Scores that all differ. With one slot, runs alternate between the worlds."""
    shape = (NUM_REPEATS, NUM_RUNS, num_slots)
    runs = np.broadcast_to(np.arange(NUM_RUNS)[:, None], shape)
    world = parity(runs) if num_slots == 1 else np.random.default_rng(0).integers(0, 2, shape)
    return AuditScores(
        header={"audit": "fig-gradient", "sample_rate": 0.1, "seconds": 3.5},
        step=np.array([10, 20, 30]),
        scores=np.arange(np.prod(shape) * 3).reshape(*shape, 3) / 7,
        world=world.astype(np.uint8),
        test_accuracy=(np.arange(NUM_REPEATS * NUM_RUNS).reshape(shape[:2]) / 20).astype("float32"),
    )


def arrays_of(content):
    return {name: array for name, array in vars(content).items() if name != "header"}


def assert_same(content, other):
    assert content.header == other.header
    for name, array in arrays_of(content).items():
        np.testing.assert_array_equal(array, getattr(other, name), strict=True)


# What makes contents of a format, how they are written and read, and what is in all headers.
FORMATS = [
    (partial(shard, 4, 4), write_shard, read_shard, "format"),
    (scores, write_scores, read_scores, "audit"),
]
each_format = pytest.mark.parametrize(("make", "write", "read", "key"), FORMATS)


@each_format
@pytest.mark.parametrize("num_slots", [1, 3])
def test_what_is_written_comes_back(tmp_path, num_slots, make, write, read, key):
    path, content = tmp_path / "x.npz", make(num_slots=num_slots)
    content.test_accuracy[1] = np.nan  # of a process, which has none
    write(path, content)
    assert_same(read(path), content)
    if key == "audit":
        assert (read(path).audit, read(path).num_slots) == ("fig-gradient", num_slots)
        content.scores[0, 3], content.scores[1, 2] = np.inf, -np.inf
    else:
        logits = np.random.default_rng(0).normal(size=(4, 2, num_slots, 2, 10))
        content = replace(content, observation=logits.astype(np.float32))
    write(path, content)
    assert_same(read(path), content)


@each_format
def test_damaged_missing_and_foreign_files_are_refused(tmp_path, make, write, read, key):
    path = tmp_path / "x.npz"
    write(path, make())
    header, arrays = read_arrays(path)
    world = {"world": arrays["world"]}
    others = [({name: header[name] for name in {*header} - {key}}, arrays)]
    others += [(header, {name: arrays[name] for name in {*arrays} - {"world"}}), (header, world)]
    others += [(header, arrays | {"more": np.arange(4)})]
    others += [(header | {"format": "dpcanary-shard-1"}, arrays)] if key == "format" else []
    own = path.read_bytes()
    for other_header, other_arrays in others:
        write_arrays(path, header=other_header, arrays=other_arrays)
        with pytest.raises(InputError, match=r"x\.npz is no (shard|score) file"):
            read(path)
    path.write_bytes(own[:-20])
    with pytest.raises(InputError, match="delete it and run again"):
        read(path)
    with pytest.raises(InputError, match="does not exist"):
        read(tmp_path / "none.npz")


@each_format
def test_arrays_that_do_not_fit_are_refused(tmp_path, make, write, read, key):
    """In each axis, one more or one less, or none. Without an axis for slots two would fit."""
    content = make(num_slots=2)
    misfits = [{"scores": (2, 8, 3), "world": (2, 8)}] if key == "audit" else []
    for name, array in arrays_of(content).items():
        for axis, change in product(range(array.ndim), (-1, 1)):
            shape = list(array.shape)
            shape[axis] += change
            misfits.append({name: shape})
        if array.ndim > 1:
            misfits.append({name: array.shape[:-1]})
    for misfit in misfits:
        arrays = {name: np.zeros(shape) for name, shape in misfit.items()}
        write(tmp_path / "x.npz", replace(content, **arrays))
        with pytest.raises(InputError, match=r"x\.npz: its arrays do not fit together"):
            read(tmp_path / "x.npz")


def test_worlds_other_than_0_and_1_and_scores_of_nan_are_refused(tmp_path):
    """A run of such a world would be in neither, and the bound would be of the others."""
    for world in (2, 255):
        worlds = np.array([[0], [1], [world], [1]], np.uint8)
        write_shard(tmp_path / "x.npz", replace(shard(4, 4), world=worlds))
        with pytest.raises(InputError, match=r"x\.npz: its arrays do not fit together"):
            read_shard(tmp_path / "x.npz")
    broken = scores(num_slots=2)
    broken.scores[1, 5, 1, 2] = broken.scores[1, 6, 0, 0] = np.nan
    write_scores(tmp_path / "x.npz", broken)
    with pytest.raises(InputError, match=r"score of run 5 of repeat 1 is NaN: .* never drop it"):
        read_scores(tmp_path / "x.npz")


def test_names_of_shards_are_those_that_the_workflow_makes(tmp_path):
    audit = Audit(
        canary="worst_case", sample_rate=0.5, noise_multiplier=1.0, num_steps=1, num_runs=4000
    )
    assert [shard_path(tmp_path, index).stem for index in range(8)] == audit.shards


def test_headers_say_where_observations_come_from(tmp_path):
    (tmp_path / "data.npz").write_bytes(b"some bytes")
    inputs = hashes_of({"data": tmp_path / "data.npz"})
    assert inputs == {"data": hashlib.sha256(b"some bytes").hexdigest()}
    fields = {"settings": {"seed": 3}, "noise_multiplier": 2.0, "inputs": inputs}
    fields |= {"device": "cpu", "seconds": 1.5}
    header = shard_header(**fields, packages=["numpy"])  # not what happens to be loaded
    software = {"python": platform.python_version(), "numpy": np.__version__}
    assert header == fields | {"software": software}
    write_shard(tmp_path / "x.npz", replace(shard(4, 4), header=dict(header)))
    assert read_shard(tmp_path / "x.npz").header == header


@pytest.mark.parametrize(
    ("num_slots", "slots"), [(1, slice(None)), (3, slice(None)), (3, slice(1, 2)), (3, slice(1, 9))]
)
def test_scores_of_the_worlds(num_slots, slots):
    """Each slot of each run goes to its own world, compared with a loop."""
    audit = scores(num_slots=num_slots)
    for repeat, step in product(range(NUM_REPEATS), range(3)):
        worlds = audit.of_worlds(repeat=repeat, step=step, slots=slots)
        for index in (0, 1):
            expected = [
                audit.scores[repeat, run, slot, step]
                for run, slot in product(range(NUM_RUNS), range(num_slots)[slots])
                if audit.world[repeat, run, slot] == index
            ]
            assert expected
            np.testing.assert_array_equal(worlds[index], expected)


@pytest.mark.parametrize(("num_slots", "num_runs"), [(1, 2), (1, 6), (1, 8), (3, 1), (3, 5)])
def test_scores_of_the_last_step_and_of_the_first_runs(num_slots, num_runs):
    audit = scores(num_slots=num_slots)
    last = audit.at_last_step()
    assert_same(last, replace(audit, step=np.array([30]), scores=audit.scores[..., [2]]))
    assert_same(last.at_last_step(), last)
    first = {
        name: np.stack([getattr(audit, name)[repeat, :num_runs] for repeat in range(NUM_REPEATS)])
        for name in ("scores", "world", "test_accuracy")
    }
    assert_same(audit.of_first_runs(num_runs), replace(audit, **first))
    assert_same(audit, scores(num_slots=num_slots))


@pytest.mark.parametrize(("num_slots", "num_runs", "message"), [
    *((1, count, "half of the runs are of each world") for count in (-2, 0, 1, 9)),
    (1, 10, "more than the 8 runs of a repeat of audit fig-gradient: train more runs or ask"),
    (3, 9, "more than the 8 runs"),
    (3, 0, "give at least 1"),
])  # fmt: skip
def test_first_runs_that_cannot_be_taken(num_slots, num_runs, message):
    with pytest.raises(InputError, match=rf"num_runs {num_runs}\b.*{message}"):
        scores(num_slots=num_slots).of_first_runs(num_runs)


def written(folder: Path, *shards: Shard) -> list[Path]:
    paths = [shard_path(folder, index) for index in range(len(shards))]
    for path, content in zip(paths, shards, strict=True):
        write_shard(path, content)
    return paths


def pooled_of(paths: list[Path], stage: ScoringStage = STAGE, canaries=None) -> AuditScores:
    return pool_scores(paths, stage, canaries=canaries, names=NAMES)


@pytest.mark.parametrize("num_repeats", [1, 3])
def test_runs_are_put_in_order_whatever_their_shards(tmp_path, num_repeats):
    stage = stage_of({**AUDIT, "num_runs": 4, "num_repeats": num_repeats})
    total = 4 * num_repeats
    fields = {"settings": stage.runs_settings, "baseline": 0.3}
    last = shard(1, total - 1, device="cuda", software={"torch": "x"}, **fields)
    by_run = ("run", "world", "observation", "test_accuracy")
    last = replace(last, **{name: getattr(last, name)[::-1] for name in by_run})
    pooled = pooled_of(written(tmp_path, last, shard(0, 1, **fields)), stage)
    runs = np.arange(total).reshape(num_repeats, 4)
    np.testing.assert_array_equal(pooled.world[..., 0], runs % 2)
    np.testing.assert_array_equal(pooled.scores[:, :, 0], runs[..., None] * [1.0, 10.0])
    np.testing.assert_array_equal(pooled.test_accuracy, (runs / 100).astype(np.float32))
    np.testing.assert_array_equal(pooled.step, [5, 10])
    expected = {"sample_rate": 0.5, "noise_multiplier": 2.0, "batch_size": None, "seconds": 4.0}
    expected |= {"measure": "accuracy", "baseline": 0.3}
    assert pooled.header == NAMES | expected


OTHER, ZEROS = {"settings": {**SETTINGS, "seed": 2}}, np.zeros((4, 2, 3))
NAN = np.where(np.arange(8) == 5, np.nan, 0).reshape(4, 2, 1)
SECONDS = [
    (shard(4, 4, **OTHER), r"00001\.npz was made with other settings"),
    (shard(4, 4, inputs={"canaries": "x"}), r"00001\.npz was made with other canaries: it is"),
    (shard(4, 4, inputs={"data": "y"}), "00001.npz and .*00000.npz differ in 'inputs'"),
    (shard(4, 4, noise_multiplier=3.0), "differ in 'noise_multiplier'"),
    (shard(4, 4, extra=1), "differ in 'extra'"),
    (shard(2, 6), r"00001\.npz: run 2 is there twice \(2 such runs\)"),
    (shard(5, 3), r"run 4 is missing \(1 such runs\)"),
    (shard(4, 3), "run 7 is missing"),
    (shard(4, 5), r"00001\.npz: run 8 is not one of the audit's 8"),
    (shard(-1, 5), r"00001\.npz: run -1 is not one of the audit's 8"),
]
SECONDS += [(replace(shard(4, 4), **arrays), message) for arrays, message in (
    ({"run": np.array([4, 5, 6, 6])}, r"run 6 is there twice \(1 such runs\)"),
    ({"step": np.array([5, 11])}, r"00001\.npz recorded different steps"),
    ({"step": np.array([5]), "observation": ZEROS[:, :1, :1]}, "recorded different steps"),
    ({"world": ZEROS[:, 0].astype(np.uint8), "observation": ZEROS}, "has 3 slots, its audit 1; d"),
    ({"observation": NAN}, r"00001\.npz: run 6 has a NaN"),
)]  # fmt: skip


@pytest.mark.parametrize(("second", "message"), SECONDS)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, second, message):
    with pytest.raises(InputError, match=message):
        [*checked_shards(written(tmp_path, shard(0, 4), second), STAGE, canaries=None)]


def test_shards_must_have_the_audits_settings_and_canaries(tmp_path):
    """It is not enough that they agree with one another."""
    with pytest.raises(InputError, match="other settings: it is of another audit, or out of"):
        pooled_of(written(tmp_path, shard(0, 4, **OTHER), shard(4, 4, **OTHER)))
    paths = written(tmp_path, shard(0, 8))
    with pytest.raises(InputError, match="made with other canaries"):
        [*checked_shards(paths, STAGE, canaries=paths[0])]


def test_scores_are_told_of_the_audit_and_are_numbers_of_a_shape(tmp_path, monkeypatch):
    contexts, paths = [], written(tmp_path, shard(0, 4), shard(4, 4))
    name = "dpcanary.scoring.scores.as_observed"

    def remembered(observed: np.ndarray, context: ScoringContext) -> np.ndarray:
        contexts.append(context)
        assert observed.dtype == np.float64
        return -observed

    monkeypatch.setattr(name, remembered)
    pooled = pooled_of(paths)
    context = ScoringContext(0.5, 2.0, (5, 10), canaries=None, runs_settings=STAGE.runs_settings)
    assert contexts == [context, context]
    np.testing.assert_array_equal(pooled.scores[0, :, 0, 0], -np.arange(8))
    monkeypatch.setattr(name, lambda observed, _: observed[..., 0])
    with pytest.raises(InputError, match=r"as_observed returned shape \(4, 2\) for 4 runs, 2 st"):
        pooled_of(paths)
    monkeypatch.setattr(name, lambda observed, _: np.where(observed == 60, np.nan, observed))
    with pytest.raises(InputError, match="as_observed returned NaN for run 6"):
        pooled_of(paths)


def logit_shards(folder: Path, stage: ScoringStage, *, runs_per_shard: int) -> list[Path]:
    """A canary file, and shards with the logits of ten classes, the same in each shard."""
    features, path = np.zeros(64, np.float32), folder / "canaries.npz"
    canaries = (InputCanary(features, label, 5 + slot) for slot, label in enumerate(LABELS))
    write_canaries(path, CanarySet(tuple(canaries), target_labels=(1,) * len(LABELS)))
    header = shard(0, 1, settings=stage.runs_settings, inputs=hashes_of({"canaries": path})).header
    step = np.array(stage.record_steps)
    rng, shape = np.random.default_rng(0), (runs_per_shard, len(LABELS))
    logits = rng.normal(size=(runs_per_shard, len(step), len(LABELS), 2, 10)).astype(np.float32)
    accuracy, shards = np.full(runs_per_shard, 0.5, np.float32), []
    for start in range(0, stage.num_runs * stage.num_repeats, runs_per_shard):
        run, world = start + np.arange(runs_per_shard), rng.integers(0, 2, shape, np.uint8)
        shards.append(Shard(header, run, world, step, logits, accuracy))
    return written(folder, *shards)


def test_scores_are_those_of_all_runs_at_once(tmp_path):
    stage = stage_of({**LOGITS, "num_runs": 10, "num_repeats": 3})
    paths = logit_shards(tmp_path, stage, runs_per_shard=6)
    pooled = pooled_of(paths, stage, tmp_path / "canaries.npz")
    shards = [read_shard(path) for path in paths]
    logits = np.concatenate([part.observation for part in shards]).astype(np.float64)
    context = ScoringContext(0.5, 2.0, stage.record_steps, read_canaries(tmp_path / "canaries.npz"))
    scores = logit_difference(logits, context)  # (runs, steps, slots)
    expected = scores.reshape(3, 10, 2, len(LABELS)).transpose(0, 1, 3, 2)
    world = np.concatenate([part.world for part in shards]).reshape(3, 10, len(LABELS))
    np.testing.assert_array_equal(pooled.scores, expected)
    np.testing.assert_array_equal(pooled.world, world)


def test_memory_is_the_scores_and_one_shard(tmp_path, monkeypatch):
    """For 20,000 runs, whose logits as float64 are twenty times as large as their scores."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # saves time
    stage = stage_of({**LOGITS, "num_runs": 20_000})
    paths = logit_shards(tmp_path, stage, runs_per_shard=100)
    tracemalloc.start()
    pooled = pooled_of(paths, stage, canaries=tmp_path / "canaries.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = pooled.scores.nbytes
    assert size == 20_000 * 2 * len(LABELS) * 8
    # The scores, each run's accuracy and world, whether it was seen, and 100 runs' logits.
    assert peak < 2.5 * size
