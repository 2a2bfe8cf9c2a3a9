"""The generators that code of the user's may draw from, and that hold for a whole process."""

import random

import numpy as np
import torch


def seed_global_generators(seed: int) -> None:
    """Seeds the generators of Python, NumPy and PyTorch, for code that is not ours.

    Args:
        seed: in [0, 2^63). NumPy's takes 32 bits of it.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the user's code may draw from it
    torch.manual_seed(seed)
