"""Shard files: writing and reading them, and the refusal of damaged or foreign files."""

import hashlib
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpcanary.errors import InputError
from dpcanary.files import write_arrays
from dpcanary.observations import (
    FORMAT,
    Shard,
    hashes_of,
    read_shard,
    shard_header,
    shard_path,
    write_shard,
)
from dpcanary.settings.audit import Audit

ARRAYS = ("run", "world", "step", "observation", "test_accuracy")


def shard(first: int, num_runs: int, *, num_slots: int = 1, **header: object) -> Shard:
    run = np.arange(first, first + num_runs)
    slot = np.arange(num_slots)
    return Shard(
        header={"settings": {"a": 1}, "inputs": {"data": "x"}, "seconds": 2.0, **header},
        run=run,
        world=((run[:, None] + slot) % 2).astype(np.uint8),
        step=np.array([5, 10]),
        observation=run[:, None, None] * np.array([1.0, 10.0])[:, None] + 0.5 * slot,
        test_accuracy=np.full(num_runs, 0.5, np.float32),
    )


def written(folder: Path, one: Shard) -> Path:
    path = shard_path(folder, 0)
    write_shard(path, one)
    return path


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("shape", [(), (2, 10)], ids=["changes", "logits"])
def test_what_is_written_comes_back(tmp_path, num_slots, shape):
    observation = np.random.default_rng(0).normal(size=(3, 2, num_slots, *shape))
    expected = shard(4, 3, num_slots=num_slots, device="cuda")
    expected = replace(expected, observation=observation.astype(np.float32))
    back = read_shard(written(tmp_path, expected))
    assert back.header == expected.header
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(back, name), getattr(expected, name))
        assert getattr(back, name).dtype == getattr(expected, name).dtype


def test_names_are_those_that_the_workflow_makes(tmp_path):
    audit = Audit(
        canary="worst_case", sample_rate=0.5, noise_multiplier=1.0, num_steps=1, num_runs=4000
    )
    paths = [shard_path(tmp_path, index) for index in range(8)]
    assert [path.stem for path in paths] == audit.shards


def test_headers_say_where_observations_come_from(tmp_path):
    (tmp_path / "data.npz").write_bytes(b"some bytes")
    inputs = hashes_of({"data": tmp_path / "data.npz"})
    assert inputs == {"data": hashlib.sha256(b"some bytes").hexdigest()}
    header = shard_header(
        settings={"seed": 3},
        noise_multiplier=2.0,
        inputs=inputs,
        device="cpu",
        seconds=1.5,
        packages=["numpy"],  # not what happens to be loaded
    )
    software = header.pop("software")
    assert {*software} == {"python", "numpy"}
    assert header == {
        "settings": {"seed": 3},
        "noise_multiplier": 2.0,
        "inputs": inputs,
        "device": "cpu",
        "seconds": 1.5,
    }
    assert software["python"] == platform.python_version()
    assert software["numpy"] == np.__version__
    back = read_shard(written(tmp_path, replace(shard(0, 4), header=header)))
    assert back.header == header


@pytest.mark.parametrize(
    ("header", "without", "more"),
    [
        ({"format": "dpcanary-shard-1"}, (), {}),
        ({}, (), {}),
        ({"format": FORMAT}, ("world",), {}),
        ({"format": FORMAT}, (), {"more": np.arange(4)}),
    ],
    ids=["former version", "no format", "no worlds", "one array more"],
)
def test_files_of_another_format_are_refused(tmp_path, header, without, more):
    arrays = {name: getattr(shard(0, 4), name) for name in ARRAYS if name not in without}
    write_arrays(tmp_path / "x.npz", header=header, arrays=arrays | more)
    with pytest.raises(InputError, match=r"x\.npz is no shard file of this version of dpcanary"):
        read_shard(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "changes",
    [
        {"test_accuracy": (3,)},
        {"run": (5,)},
        {"step": (1,)},
        {"world": (3, 2)},
        {"world": (4, 3)},
        {"world": (4,)},
        {"observation": (3, 2, 2)},
        {"observation": (4, 3, 2)},
        {"observation": (4, 2, 1)},
        {"observation": (4, 2)},
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes):
    arrays = {name: np.zeros(shape) for name, shape in changes.items()}
    with pytest.raises(InputError, match="do not fit together"):
        read_shard(written(tmp_path, replace(shard(0, 4, num_slots=2), **arrays)))


@pytest.mark.parametrize("world", [2, 255])
def test_worlds_other_than_0_and_1_are_refused(tmp_path, world):
    """A run of such a world would be in neither, and the bound would be of the others."""
    worlds = np.array([[0], [1], [world], [1]], np.uint8)
    with pytest.raises(InputError, match=r"00000\.npz: its arrays do not fit together"):
        read_shard(written(tmp_path, replace(shard(0, 4), world=worlds)))


def test_a_truncated_shard_is_refused_with_advice(tmp_path):
    path = written(tmp_path, shard(0, 4))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="delete it and run again"):
        read_shard(path)
