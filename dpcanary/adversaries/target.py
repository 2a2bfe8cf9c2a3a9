"""Target records: those for which canaries are crafted."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.purposes import Purpose
from dpcanary.randomness import generator
from dpcanary.records import Records


@dataclass(frozen=True)
class Target:
    """A target record, for which a canary is crafted.

    Attributes:
        index: among the private records.
        features: shape (...).
        label: class index.
    """

    index: int
    features: NDArray[np.float32]
    label: int


def targets_at(indices: Iterable[int], private: Records) -> list[Target]:
    """The private records at these indices, as targets."""
    return [
        Target(int(index), private.features[index], int(private.labels[index])) for index in indices
    ]


def drawn_targets(private: Records, *, seed: int, count: int) -> list[Target]:
    """Private records that are drawn at random.

    Args:
        private: the private records.
        seed: the audit's seed.
        count: targets.
    """
    stream = generator(seed=seed, purpose=Purpose.TARGETS)
    return targets_at(stream.permutation(len(private))[:count], private)
