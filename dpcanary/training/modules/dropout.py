"""Dropout in audits: masks come from the run's own random streams, by seed, run and step.

A mask is drawn independently of the records and of the world, so it changes what both worlds train
on alike, and the adversary sees models without dropout, as after training.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.core.randomness import philox_key
from dpcanary.training.kernels.philox import random_words
from dpcanary.training.training_settings import Purpose

# Layers that drop units, and the attribute that holds how many.
_SHARES: dict[type[nn.Module], str] = {
    nn.modules.dropout._DropoutNd: "p",
    nn.MultiheadAttention: "dropout",
    nn.RNNBase: "dropout",
}
# Layers that draw a mask of their input's shape, or one number for a channel; and the dimensions of
# a channel.
_DIMENSIONS: dict[type[nn.Module], int] = {
    nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3,
}  # fmt: skip


def dropping_layers(model: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Layers of a model that drop units: name, layer, and the attribute that says how many."""
    return [
        (name, layer, attribute)
        for name, layer in model.named_modules()
        for kind, attribute in _SHARES.items()
        if isinstance(layer, kind) and getattr(layer, attribute) > 0
    ]


def turn_off_dropout(model: nn.Module) -> None:
    """Sets dropout to 0."""
    for _, layer, attribute in dropping_layers(model):
        setattr(layer, attribute, 0.0)


class KeyedDropout(nn.Module):
    """Dropout by a generator that `masks_drawn` sets; without one, nothing is dropped.

    Args:
        p: the share that is dropped.
        dimensions: of a channel, which is dropped as a whole; 0 for single numbers.
    """

    def __init__(self, p: float, dimensions: int = 0) -> None:
        super().__init__()
        self.p, self.dimensions = p, dimensions
        self.generator: torch.Generator | None = None

    @staticmethod
    def of(layer: nn.Module) -> "KeyedDropout | None":
        """What stands in for a layer of PyTorch's; None for layers of other kinds."""
        if type(layer) not in _DIMENSIONS or not layer.p:
            return None
        return KeyedDropout(float(layer.p), _DIMENSIONS[type(layer)])  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Drops units, and scales the others up so that the mean stays."""
        if self.generator is None:
            return x
        channels = x.dim() - self.dimensions
        if self.dimensions == 2:  # as in PyTorch, channels may have one dimension here, or none
            channels = max(2, channels)
        shape = [*x.shape[:channels], *[1] * (x.dim() - channels)]
        # On the host, so that every device drops the same units.
        kept = torch.rand(shape, generator=self.generator) >= self.p
        return x * (kept.to(x) / max(1.0 - self.p, 1e-30))


@contextmanager
def masks_drawn(module: nn.Module, seed: int | None) -> Iterator[None]:
    """Lets `KeyedDropout` layers draw from the stream of a seed; None drops nothing.

    The layers share one generator, so that no two of them drop alike.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    layers = [layer for layer in module.modules() if isinstance(layer, KeyedDropout)]
    for layer in layers:
        layer.generator = generator
    try:
        yield
    finally:
        for layer in layers:
            layer.generator = None


def dropout_seeds(*, seed: int, step: int, runs: NDArray[np.int64]) -> Tensor:
    """The seed of each run's masks in a step, shape (runs,), on the host."""
    words = np.empty((len(runs), 2), np.uint32)
    random_words(words, philox_key(seed=seed), step, runs, Purpose.DROPOUT.value)
    # PyTorch's generator on the host keeps 32 bits of a seed.
    return torch.from_numpy(words[:, 1].astype(np.int64))
