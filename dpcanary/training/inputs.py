"""What an ensemble is trained on: the mechanism's settings and the records."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.splits import SplitDataset
from dpcanary.stages import TrainingStage


@dataclass(frozen=True)
class DPSGD:
    """Settings of DP-SGD with Poisson sampling.

    Attributes:
        sample_rate: q.
        noise_multiplier: sigma, in units of max_grad_norm.
        max_grad_norm: C.
        learning_rate: of SGD.
        record_steps: steps to observe, ascending; training ends with the last one.
    """

    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    record_steps: tuple[int, ...]

    @classmethod
    def from_stage(cls, stage: TrainingStage, *, noise_multiplier: float) -> "DPSGD":
        """The mechanism that a training stage is told, with its noise."""
        return cls(
            sample_rate=stage.sample_rate,
            noise_multiplier=noise_multiplier,
            max_grad_norm=stage.max_grad_norm,
            learning_rate=stage.learning_rate,
            record_steps=stage.record_steps,
        )


@dataclass(frozen=True)
class Records:
    """The private records and the records that accuracy is measured on.

    Attributes:
        features: shape (N, F).
        labels: shape (N,).
        test_features: shape (M, F).
        test_labels: shape (M,).
        num_classes: classes.
        target: index of the target record.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_features: NDArray[np.float32]
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
