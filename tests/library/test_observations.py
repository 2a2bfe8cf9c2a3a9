"""Shards: what is written comes back, and a mixed or broken set is refused with the reason."""

from pathlib import Path

import numpy as np
import pytest

from dpcanary.errors import InputError
from dpcanary.observations import Shard, read_shard, shard_path, write_shard
from dpcanary.settings import Audit
from dpcanary.vocabulary import Canary


def shard(first: int, num_runs: int, **header: object) -> Shard:
    run = np.arange(first, first + num_runs)
    return Shard(
        header={"settings": {"a": 1}, "inputs": {"data": "x"}, "seconds": 2.0, **header},
        run=run,
        step=np.array([5, 10]),
        observation=run[:, None] * np.array([1.0, 10.0]),
        test_accuracy=np.full(num_runs, 0.5, np.float32),
    )


def written(folder: Path, one: Shard) -> Path:
    path = shard_path(folder, 0)
    write_shard(path, one)
    return path


def test_what_is_written_comes_back(tmp_path):
    path = written(tmp_path, shard(4, 3, device="cuda"))
    back, expected = read_shard(path), shard(4, 3, device="cuda")
    assert back.header == expected.header
    for name in ("run", "step", "observation", "test_accuracy"):
        np.testing.assert_array_equal(getattr(back, name), getattr(expected, name))


def test_names_are_those_that_the_workflow_makes(tmp_path):
    audit = Audit(
        canary=Canary.WORST_CASE, sample_rate=0.5, noise_multiplier=1.0, num_steps=1, num_runs=4000
    )
    paths = [shard_path(tmp_path, index) for index in range(8)]
    assert [path.stem for path in paths] == audit.shards


def test_foreign_files_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", run=np.arange(4))
    with pytest.raises(InputError, match="not written by dpcanary"):
        read_shard(tmp_path / "x.npz")
    from dpcanary.files import write_arrays

    write_arrays(tmp_path / "y.npz", header={"format": "other"}, arrays={"run": np.arange(4)})
    with pytest.raises(InputError, match="no shard file"):
        read_shard(tmp_path / "y.npz")


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    odd = Shard(**{**vars(shard(0, 4)), "test_accuracy": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match="do not fit together"):
        read_shard(written(tmp_path, odd))


def test_a_truncated_shard_is_refused_with_advice(tmp_path):
    path = written(tmp_path, shard(0, 4))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="delete it and run again"):
        read_shard(path)
