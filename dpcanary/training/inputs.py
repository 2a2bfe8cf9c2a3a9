"""What an ensemble is trained on: the mechanism's settings and the records."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.splits import SplitDataset
from dpcanary.vocabulary import Loss, Optimizer, Sampling

Schedule = Callable[[int], float]


@dataclass(frozen=True)
class DPSGD:
    """Settings of DP-SGD.

    Attributes:
        noise_multiplier: sigma, in units of max_grad_norm.
        max_grad_norm: C.
        learning_rate: a number, or a function of the step (0 for the first).
        record_steps: steps to observe, ascending; training ends with the last one.
        sample_rate: q of Poisson sampling.
        adjacency: what the worlds are; see `placement`.
        sampling: Poisson or fixed batches.
        batch_size: of fixed batches.
        canary_period: k: with fixed batches, the canary comes in at steps k, 2 k, ...
        optimizer: which one.
        momentum: of Optimizer.MOMENTUM.
        loss: which one.
    """

    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float | Schedule
    record_steps: tuple[int, ...]
    sample_rate: float = 1.0
    adjacency: Adjacency = Adjacency.SUBSTITUTE
    sampling: Sampling = Sampling.POISSON
    batch_size: int | None = None
    canary_period: int | None = None
    optimizer: Optimizer = Optimizer.SGD
    momentum: float = 0.9
    loss: Loss = Loss.CROSS_ENTROPY

    def __post_init__(self) -> None:
        fixed = self.sampling is Sampling.FIXED
        if fixed != (self.batch_size is not None) or fixed != (self.canary_period is not None):
            raise InputError("fixed sampling, and it alone, needs batch_size and canary_period")
        steps = (0, *self.record_steps)
        if len(steps) == 1 or any(one >= two for one, two in pairwise(steps)):
            raise InputError(f"record_steps must ascend from 1; they are {self.record_steps}")
        if not 0 < self.sample_rate <= 1 or self.noise_multiplier < 0 or self.max_grad_norm <= 0:
            raise InputError("sample_rate must lie in (0, 1], noise and norm must not be negative")
        if fixed and min(self.batch_size or 0, self.canary_period or 0) < 1:
            raise InputError("batch_size and canary_period must be at least 1")
        if fixed and self.sample_rate != 1.0:
            raise InputError("fixed sampling has no sample_rate; leave it at 1")

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, 0 for the first."""
        rate = self.learning_rate
        return rate(step) if callable(rate) else rate

    def expected_batch_size(self, num_records: int) -> float:
        """What gradient sums are divided by: never the size that was drawn."""
        return float(self.batch_size or self.sample_rate * num_records)


@dataclass(frozen=True)
class Records:
    """The private records and the records that accuracy is measured on.

    Attributes:
        features: shape (N, ...).
        labels: shape (N,).
        test_features: shape (M, ...).
        test_labels: shape (M,).
        num_classes: classes.
        target: index of the target record.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    test_features: NDArray[Any]
    test_labels: NDArray[np.int64]
    num_classes: int
    target: int

    @classmethod
    def from_split(cls, split: SplitDataset, *, target: int) -> "Records":
        """The private and test records of a dataset."""
        return cls(
            features=split.features,
            labels=split.labels,
            test_features=split.test_features,
            test_labels=split.test_labels,
            num_classes=split.num_classes,
            target=target,
        )
