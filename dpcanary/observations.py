"""The shard file: raw observations of some runs, with a header that says where they come from."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, sha256_of_file, write_arrays
from dpcanary.stages import TrainingStage

FORMAT = "dpcanary-shard-1"
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


def shard_path(folder: Path, index: int) -> Path:
    """Place of an audit's shard: its name is its index, so that more runs only add names."""
    return folder / f"{index:05d}.npz"


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
