"""Shards: what is written comes back, and a mixed or broken set is refused with the reason."""

import numpy as np
import pytest

from dpcanary.errors import InputError
from dpcanary.observations import Shard, pool_shards, read_shard, write_shard


def shard(first: int, num_runs: int, **header: object) -> Shard:
    run = np.arange(first, first + num_runs)
    return Shard(
        header={"settings": {"a": 1}, "inputs": {"data": "x"}, "seconds": 2.0, **header},
        run=run,
        step=np.array([5, 10]),
        observation=run[:, None] * np.array([1.0, 10.0]),
        test_accuracy=np.full(num_runs, 0.5, np.float32),
    )


def written(folder, *shards: Shard):
    paths = [folder / f"{index:05d}.npz" for index in range(len(shards))]
    for path, one in zip(paths, shards, strict=True):
        write_shard(path, one)
    return paths


def test_pooling_orders_runs_and_adds_seconds(tmp_path):
    paths = written(tmp_path, shard(4, 3), shard(0, 4, device="cuda", software={"torch": "x"}))
    pooled = pool_shards(paths, num_runs=7)
    np.testing.assert_array_equal(pooled.run, np.arange(7))
    np.testing.assert_array_equal(pooled.observation[:, 1], 10.0 * np.arange(7))
    assert pooled.header["seconds"] == 4.0


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (shard(4, 4, settings={"a": 2}), "differ in 'settings'"),
        (shard(4, 4, inputs={"data": "y"}), "differ in 'inputs'"),
        (shard(4, 4, extra=1), "differ in 'extra'"),
        (shard(2, 6), r"run 2 is there twice \(2 such runs\)"),
        (shard(5, 3), r"run 4 is missing \(1 such runs\)"),
        (shard(4, 3), "run 7 is missing"),
        (shard(4, 5), "run 8 is not one of the audit's 8"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, second, message):
    with pytest.raises(InputError, match=message):
        pool_shards(written(tmp_path, shard(0, 4), second), num_runs=8)


def test_different_steps_are_refused(tmp_path):
    other = Shard(**{**vars(shard(4, 4)), "step": np.array([5, 11])})
    with pytest.raises(InputError, match="different steps"):
        pool_shards(written(tmp_path, shard(0, 4), other), num_runs=8)


def test_a_nan_names_the_run(tmp_path):
    broken = shard(0, 4)
    broken.observation[2, 1] = np.nan
    with pytest.raises(InputError, match=r"00000\.npz: run 2 has a NaN"):
        pool_shards(written(tmp_path, broken), num_runs=4)


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
        read_shard(written(tmp_path, odd)[0])


def test_a_truncated_shard_is_refused_with_advice(tmp_path):
    [path] = written(tmp_path, shard(0, 4))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="delete it and run again"):
        pool_shards([path], num_runs=4)
