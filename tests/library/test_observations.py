"""Files of shards and of scores: what is written comes back, and other files are refused."""

import hashlib
import platform
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpcanary.core.files import read_arrays, write_arrays
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
from dpcanary.scoring.score_file import AuditScores, read_scores, write_scores

NUM_REPEATS, NUM_RUNS = 2, 8


def shard(*, num_slots: int = 1) -> Shard:
    """Observations that all differ, of runs 4 to 7."""
    run, slot = np.arange(4, 8), np.arange(num_slots)
    return Shard(
        header={"settings": {"a": 1}, "inputs": {"data": "x"}, "seconds": 2.0, "device": "cuda"},
        run=run,
        world=((run[:, None] + slot) % 2).astype(np.uint8),
        step=np.array([5, 10]),
        observation=run[:, None, None] * np.array([1.0, 10.0])[:, None] + 0.5 * slot,
        test_accuracy=np.full(4, 0.5, np.float32),
    )


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
FORMATS = [(shard, write_shard, read_shard, "format"), (scores, write_scores, read_scores, "audit")]
each_format = pytest.mark.parametrize(("make", "write", "read", "key"), FORMATS)


@each_format
@pytest.mark.parametrize("num_slots", [1, 3])
def test_what_is_written_comes_back(tmp_path, num_slots, make, write, read, key):
    path, content = tmp_path / "x.npz", make(num_slots=num_slots)
    content.test_accuracy[1] = np.nan  # of a process, which has none
    write(path, content)
    assert_same(read(path), content)
    if make is scores:
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
    others += [(header | {"format": "dpcanary-shard-1"}, arrays)] if make is shard else []
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
    misfits = [{"scores": (2, 8, 3), "world": (2, 8)}] if make is scores else []
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
        write_shard(tmp_path / "x.npz", replace(shard(), world=worlds))
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
    known = {"settings": {"seed": 3}, "noise_multiplier": 2.0, "inputs": inputs}
    known |= {"device": "cpu", "seconds": 1.5}
    header = shard_header(**known, packages=["numpy"])  # not what happens to be loaded
    software = {"python": platform.python_version(), "numpy": np.__version__}
    assert header == known | {"software": software}
    write_shard(tmp_path / "x.npz", replace(shard(), header=dict(header)))
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
