"""The shard file: raw observations of some runs, with a header that says where they come from."""

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, sha256_of_file, write_arrays
from dpcanary.stages import TrainingStage

FORMAT = "dpcanary-shard-1"
# Header entries in which the shards of one audit may differ.
_OF_ONE_SHARD = {"device", "seconds", "software"}
_ARRAYS = {"run", "step", "observation", "test_accuracy"}


@dataclass(frozen=True)
class Shard:
    """Observations of some runs of one audit.

    Attributes:
        header: settings, hashes of the inputs, software, device, seconds.
        run: shape (n,), ascending run indices.
        step: shape (s,), recorded steps, ascending.
        observation: shape (n, s, ...); what the scores are computed from.
        test_accuracy: shape (n,), in [0, 1]; NaN where no model is trained.
    """

    header: dict[str, Any]
    run: NDArray[np.int64]
    step: NDArray[np.int64]
    observation: NDArray[Any]
    test_accuracy: NDArray[np.float32]


def make_shard(
    stage: TrainingStage,
    *,
    runs: range,
    observation: NDArray[Any],
    test_accuracy: NDArray[np.float32],
    noise_multiplier: float,
    inputs: Mapping[str, Path],
    device: str,
    seconds: float,
) -> Shard:
    """Observations with where they come from.

    Args:
        stage: what the runs were told.
        runs: run indices.
        observation: shape (n, s, ...).
        test_accuracy: shape (n,).
        noise_multiplier: sigma.
        inputs: files that the runs read, by role; their hashes are kept.
        device: where the runs were trained.
        seconds: how long that took.
    """
    loaded = [name for name in ("numpy", "torch") if name in sys.modules]
    header: dict[str, Any] = {
        "settings": stage.model_dump(mode="json"),
        "noise_multiplier": noise_multiplier,
        "inputs": hashes_of(inputs),
        "device": device,
        "seconds": seconds,
        "software": {
            "python": platform.python_version(),
            **{name: str(sys.modules[name].__version__) for name in loaded},
        },
    }
    run, step = np.array(runs, dtype=np.int64), np.array(stage.record_steps, dtype=np.int64)
    return Shard(header, run, step, observation, test_accuracy)


def hashes_of(inputs: Mapping[str, Path]) -> dict[str, str]:
    """Hash of each input's bytes, by role."""
    return {role: sha256_of_file(path) for role, path in inputs.items()}


def check_origin(shard: Shard, stage: TrainingStage, *, canary: Path | None, place: Path) -> None:
    """Shards must be of the audit that they are taken for, not just of one another's.

    Args:
        shard: the pooled shards.
        stage: what the audit's runs are told.
        canary: the audit's canary file, where it has one.
        place: the shards' folder, for the message.

    Raises:
        InputError: if the runs were told something else, or had another canary.
    """
    expected = {} if canary is None else hashes_of({"canary": canary})
    had = {role: digest for role, digest in shard.header["inputs"].items() if role == "canary"}
    for what, matches in (
        ("settings", shard.header["settings"] == stage.model_dump(mode="json")),
        ("canary", had == expected),
    ):
        if not matches:
            raise InputError(
                f"{place}: its shards were made with another {what}: they are of another audit, or"
                " out of date; delete them and run again"
            )


def write_shard(path: Path, shard: Shard) -> None:
    """Writes a shard atomically."""
    arrays = {
        "run": shard.run,
        "step": shard.step,
        "observation": shard.observation,
        "test_accuracy": shard.test_accuracy,
    }
    write_arrays(path, header={"format": FORMAT, **shard.header}, arrays=arrays)


def read_shard(path: Path) -> Shard:
    """Reads and checks one shard.

    Raises:
        InputError: if the file is truncated, is no shard, or its arrays do not fit together.
    """
    header, arrays = read_arrays(path)
    if header.pop("format", None) != FORMAT or set(arrays) != _ARRAYS:
        raise InputError(f"{path} is no shard file of this version of dpcanary")
    shard = Shard(header=header, **arrays)
    fits = shard.observation.shape[:2] == (len(shard.run), len(shard.step))
    if not fits or len(shard.test_accuracy) != len(shard.run):
        raise InputError(f"{path}: its arrays do not fit together; delete it and run again")
    return shard


def pool_shards(paths: Sequence[Path], *, num_runs: int) -> Shard:
    """Joins the shards of one audit, in any order.

    Args:
        paths: shard files.
        num_runs: runs that the audit has; each must be there once.

    Returns:
        All runs, ascending; `seconds` in the header is the sum.

    Raises:
        InputError: if shards come from different settings or inputs, if runs are missing or
            repeated, or if an observation is not a number; names the file and the run.
    """
    shards = [read_shard(path) for path in paths]
    for path, shard in zip(paths, shards, strict=True):
        _check_same_origin(paths[0], shards[0], path, shard)
        _check_numbers(path, shard)
    run = np.concatenate([shard.run for shard in shards])
    _check_runs(run, num_runs, paths[0].parent)
    order = np.argsort(run)
    header = {**shards[0].header, "seconds": sum(shard.header["seconds"] for shard in shards)}
    return Shard(
        header=header,
        run=run[order],
        step=shards[0].step,
        observation=np.concatenate([shard.observation for shard in shards])[order],
        test_accuracy=np.concatenate([shard.test_accuracy for shard in shards])[order],
    )


def _check_same_origin(first: Path, expected: Shard, path: Path, shard: Shard) -> None:
    for key in sorted(expected.header.keys() | shard.header.keys()):
        if key not in _OF_ONE_SHARD and expected.header.get(key) != shard.header.get(key):
            raise InputError(
                f"{path} and {first} differ in {key!r}: they are not of the same audit; delete the"
                " one that is out of date and run again"
            )
    if not np.array_equal(expected.step, shard.step):
        raise InputError(f"{path} and {first} recorded different steps; delete one and run again")


def _check_numbers(path: Path, shard: Shard) -> None:
    bad = np.isnan(shard.observation).reshape(len(shard.run), -1).any(axis=1)
    if bad.any():
        run = shard.run[int(np.argmax(bad))]
        raise InputError(f"{path}: run {run} has a NaN observation; delete the file and run again")


def _check_runs(run: NDArray[np.int64], num_runs: int, folder: Path) -> None:
    counts = np.bincount(run, minlength=num_runs)
    for problem, wrong in (("missing", counts[:num_runs] == 0), ("there twice", counts > 1)):
        if wrong.any():
            raise InputError(
                f"{folder}: run {int(np.argmax(wrong))} is {problem} ({int(wrong.sum())} such runs)"
            )
    if len(counts) > num_runs:
        raise InputError(f"{folder}: run {len(counts) - 1} is not one of the audit's {num_runs}")
