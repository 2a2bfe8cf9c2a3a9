"""The random numbers of a run: every run begins with the same ones, and what it draws is seen."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
import torch
from numpy.random import get_state

from dpcanary.core.global_generators import (
    global_generators_kept,
    seed_global_generators,
    seed_torch,
)


@contextmanager
def same_random_numbers(seed: int) -> Iterator[None]:
    """While inside, generators begin from a seed, and so does the operating system's entropy.

    A training that seeds a generator of its own from the operating system is then repeatable.
    Generators of `torch.Generator` that call `seed()` are not reached, nor is the time.
    """
    entropy = random.Random(seed)

    def seeded() -> int:
        value = entropy.getrandbits(63)
        seed_torch(value)
        return value

    def seed_of_python(generator: random.Random, a: Any = None, version: int = 2) -> None:
        of_python(generator, entropy.getrandbits(64) if a is None else a, version)

    of_python = random.Random.seed
    hidden: random.Random = random.seed.__self__  # type: ignore[attr-defined]  # of `random`
    replaced = [
        (random.Random, "seed", seed_of_python),
        (random, "seed", lambda *args, **named: seed_of_python(hidden, *args, **named)),
        (random, "_urandom", entropy.randbytes),
        (np.random.bit_generator, "randbits", entropy.getrandbits),
        (torch, "seed", seeded),
        (torch.random, "seed", seeded),
    ]
    with ExitStack() as stack:
        stack.enter_context(global_generators_kept())
        for owner, name, value in replaced:
            stack.enter_context(patch.object(owner, name, value))
        seed_global_generators(seed)
        yield


def drawn_until_now() -> dict[str, int]:
    """A checksum of the state of each generator that holds for the whole process."""
    numbers: Any = get_state()  # noqa: NPY002 - the user's code may draw from it
    states = {
        "Python": repr(random.getstate()).encode(),
        "NumPy": np.asarray(numbers[1]).tobytes() + repr(numbers[2:]).encode(),
        "PyTorch": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for device, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"PyTorch on GPU {device}"] = state.numpy().tobytes()
    return {name: crc32(state) for name, state in states.items()}
