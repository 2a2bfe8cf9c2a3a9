"""The generators that code of the user's may draw from, and that hold for a whole process."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.random import get_state, set_state


def seed_global_generators(seed: int) -> None:
    """Seeds the generators of Python, NumPy and PyTorch, for code that is not ours.

    Args:
        seed: in [0, 2^63). NumPy's takes 32 bits of it.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the user's code may draw from it
    seed_torch(seed)


def seed_torch(seed: int) -> None:
    """Seeds PyTorch's generators as `torch.manual_seed` does.

    Where there is no accelerator, that would keep requests for all kinds of them, with traces of
    the stack, which takes a millisecond each time.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Puts the generators back into their states at the end, those of accelerators too.

    Code that is seeded inside would else leave states that follow from a public seed.
    """
    of_python, of_numpy = random.getstate(), get_state()  # noqa: NPY002
    accelerator = torch.accelerator.current_accelerator()
    kind = "cuda" if accelerator is None else accelerator.type
    with torch.random.fork_rng(range(torch.accelerator.device_count()), device_type=kind):
        try:
            yield
        finally:
            random.setstate(of_python)
            set_state(of_numpy)  # noqa: NPY002
