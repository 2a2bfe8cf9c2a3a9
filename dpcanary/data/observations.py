"""What can be observed of a trained run, and the shard file that stores it."""

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.argument_checks import Choice
from dpcanary.core.files import read_arrays, sha256_of_file, write_arrays
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError


def parity(runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """World of each run: 0 for even run indices, 1 for odd ones.

    Every even number of consecutive runs therefore has half of its runs in each world.

    Example:
        >>> parity(np.arange(4)).tolist()
        [0, 1, 0, 1]
    """
    return runs % 2


def drawn_values(
    runs: Sequence[int], *, seed: int, purpose: int, num_slots: int, num_candidates: int
) -> NDArray[np.int64]:
    """The index of the value that each slot of each run holds, shape (runs, slots).

    Each value has the same probability, whatever all else is. It depends on seed, run and slot
    alone: more slots change none of the first ones.
    """
    streams = (generator(seed=seed, purpose=purpose, index=run) for run in runs)
    return np.stack([stream.integers(0, num_candidates, num_slots) for stream in streams])


FORMAT = "dpcanary-shard-2"
_ARRAYS = {"run", "world", "step", "observation", "test_accuracy"}


class Observation(Choice):
    """What is stored of a trained run, for every recorded step and slot.

    Attributes:
        CHANGE: the change of the parameters since the start, along the slot's gradient canary.
        VALUE: the parameters along the slot's gradient canary, for an adversary that does not know
            where the run started.
        CHANGE_AND_LENGTH: the change along the canary, and the length of the change of all
            parameters.
        NOISY_GRADIENTS: the sum of clipped gradients and noise along the slot's canary, in units
            of the clipping norm, for every step since the recorded one before; shape (steps,), and
            0 behind the last of them where others are further apart.
        GRADIENT_NORM: the norm of the gradient of the slot's input canary, before clipping.
        LOGITS: logits of the slot's target and of its input canary, shape (2, outputs).
    """

    CHANGE = "change"
    VALUE = "value"
    CHANGE_AND_LENGTH = "change_and_length"
    NOISY_GRADIENTS = "noisy_gradients"
    LOGITS = "logits"
    GRADIENT_NORM = "gradient_norm"

    @property
    def is_of_gradients(self) -> bool:
        """Whether it is observed of gradient canaries; the others are of input canaries."""
        return self not in (Observation.LOGITS, Observation.GRADIENT_NORM)


@dataclass(frozen=True)
class Shard:
    """Observations of some runs of one audit.

    Attributes:
        header: see `shard_header`; of trained models also `baseline`, what `test_accuracy` is for
            the best constant prediction.
        run: run indices, shape (n,).
        world: shape (n, K), 0 or 1; the world of each of K slots. Where slots hold secrets, it is
            the index of the true value of each.
        step: shape (S,), recorded steps, ascending.
        observation: shape (n, S, K, ...).
        test_accuracy: shape (n,), in [0, 1], or R^2 for squared error; NaN where no model is
            trained.
    """

    header: dict[str, Any]
    run: NDArray[np.int64]
    world: NDArray[np.uint8]
    step: NDArray[np.int64]
    observation: NDArray[Any]
    test_accuracy: NDArray[np.float32]


def shard_header(
    *,
    settings: Mapping[str, Any],
    noise_multiplier: float,
    inputs: Mapping[str, str],
    device: str,
    seconds: float,
    packages: Sequence[str],
    num_candidates: int | None = None,
) -> dict[str, Any]:
    """The header of a shard: how its job made the observations, and in how many seconds.

    `inputs` are hashes of the files that the job read, by role; see `hashes_of`. `packages` are
    those that the job computed with. `num_candidates` are the values of each slot, where slots
    hold secrets.
    """
    versions = {name: str(sys.modules[name].__version__) for name in packages}
    of_secrets = {"num_candidates": num_candidates} if num_candidates else {}
    return {
        **of_secrets,
        "settings": dict(settings),
        "noise_multiplier": noise_multiplier,
        "inputs": dict(inputs),
        "device": device,
        "seconds": seconds,
        "software": {"python": platform.python_version(), **versions},
    }


def hashes_of(inputs: Mapping[str, Path]) -> dict[str, str]:
    """Hash of each input's bytes, by role."""
    return {role: sha256_of_file(path) for role, path in inputs.items()}


def shard_path(folder: Path, index: int) -> Path:
    """The path of an audit's shard. Its name is its index, so that more runs only add files."""
    return folder / f"{index:05d}.npz"


def write_shard(path: Path, shard: Shard, *, origin: str = "") -> None:
    """Writes a shard atomically; `origin` as in `files.write_arrays`."""
    arrays = {name: getattr(shard, name) for name in sorted(_ARRAYS)}
    header = {"format": FORMAT, **shard.header}
    write_arrays(path, header=header, arrays=arrays, origin=origin)


def read_shard(path: Path) -> Shard:
    """Reads and checks a shard.

    Raises:
        InputError: if the file is truncated or no shard, or its arrays do not fit together.
    """
    header, arrays = read_arrays(path)
    if header.pop("format", None) != FORMAT or set(arrays) != _ARRAYS:
        raise InputError(f"{path} is no shard file of this version of dpcanary")
    shard = Shard(header=header, **arrays)
    dimensions = shard.run.ndim, shard.step.ndim, shard.world.ndim
    fits = dimensions == (1, 1, 2) and (
        shard.run.shape == shard.test_accuracy.shape == shard.world.shape[:1]
        and shard.observation.shape[:3] == (len(shard.run), len(shard.step), shard.world.shape[1])
    )
    if not fits or shard.world.max(initial=0) >= header.get("num_candidates", 2):
        raise InputError(f"{path}: its arrays do not fit together; delete it and run again")
    return shard
