"""Views of images: random flips and shifts, over which a record's gradient is averaged.

Averaging before clipping (augmentation multiplicity; De et al., 2022, Section 3.2) costs no
privacy, since a record still has one clipped gradient per step.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpcanary.core.randomness import philox_key
from dpcanary.errors import InputError
from dpcanary.training.kernels.philox import random_words
from dpcanary.training.training_settings import Purpose

# Pixels by which a view is shifted at most, in each direction; what moves in is mirrored.
_SHIFT = 4
_SHIFTS = 2 * _SHIFT + 1


@dataclass(frozen=True)
class Views:
    """Draws the views of every step, a function of seed, run, step and row of the table."""

    multiplicity: int
    num_rows: int
    seed: int
    runs: Tensor

    def at(self, step: int, rows: Tensor) -> Tensor:
        """Random words of 32 bits, shape (runs, n, multiplicity), for rows (n,) or (runs, n)."""
        words = np.empty((len(self.runs), self.num_rows * self.multiplicity), np.uint32)
        runs = self.runs.cpu().numpy()
        random_words(words, philox_key(seed=self.seed), step, runs, Purpose.VIEWS.value)
        drawn = torch.from_numpy(words.astype(np.int64)).to(rows.device)
        by_row = drawn.view(len(self.runs), self.num_rows, self.multiplicity)
        models = torch.arange(len(self.runs), device=rows.device).unsqueeze(1)
        return by_row[models, rows.expand(len(self.runs), -1)]


def check_augmented(shape: tuple[int, ...]) -> None:
    """Refuses records that are no images (channels, height, width), or too small to be shifted."""
    if len(shape) != 3 or min(shape[1:]) <= _SHIFT:
        raise InputError(
            f"augmentation_multiplicity is for images of more than {_SHIFT} x {_SHIFT} pixels; the"
            f" records have shape {shape}"
        )


def augmented(images: Tensor, words: Tensor) -> Tensor:
    """Views of images: mirrored or not, and shifted by up to four pixels each way.

    Every combination is as probable as any other, up to 2^-12.

    Args:
        images: shape (n, channels, height, width).
        words: from `Views.at`, shape (n, multiplicity).

    Returns:
        Shape (multiplicity, n, channels, height, width).
    """
    height, width = images.shape[2:]
    padded = pad(images, (_SHIFT,) * 4, mode="reflect").permute(0, 2, 3, 1)
    down, across = words & 0x7FFF, words >> 16 & 0x7FFF
    columns = torch.arange(width, device=images.device)
    is_mirrored = (words >> 31).bool().unsqueeze(2)
    source_columns = torch.where(is_mirrored, columns.flip(0), columns)  # (n, multiplicity, width)
    source_columns = source_columns + (across * _SHIFTS >> 15).unsqueeze(2)
    lines = torch.arange(height, device=images.device) + (down * _SHIFTS >> 15).unsqueeze(2)
    image = torch.arange(len(images), device=images.device)[:, None, None, None]
    pixels = padded[image, lines.unsqueeze(3), source_columns.unsqueeze(2)]
    return pixels.permute(1, 0, 4, 2, 3)
