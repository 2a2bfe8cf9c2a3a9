"""Random records in place of a dataset's: what takes time depends on their shape alone."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.costs.shapes import Shape
from dpcanary.training.inputs import Records
from dpcanary.vocabulary import ModelKind

# Records of a batch that convolutions are timed on: their time is proportional to them.
CONVOLVED = 32

Features = NDArray[np.float32]
Labels = NDArray[np.int64]


def is_convolved(model: ModelKind) -> bool:
    """Whether a model's steps take so long that smaller batches must do."""
    return model in (ModelKind.CONVNET, ModelKind.RESNET18)


def random_features(shape: Shape, count: int) -> tuple[Features, Labels]:
    """Standard normal features, shape (count, ...), and labels of all classes in turn."""
    # The same few numbers over and over: to draw gigabytes would take longer than to use them.
    block = np.random.default_rng(0).standard_normal((min(count, 4096), *shape.features))
    repeats = -(-count // max(1, len(block)))
    features = np.concatenate([block.astype(np.float32)] * max(1, repeats))[:count]
    return features, np.arange(count) % shape.num_classes


def random_records(shape: Shape) -> Records:
    """Private records, the first of them the target; no test records."""
    features, labels = random_features(shape, shape.num_records)
    return Records(features, labels, features[:0], labels[:0], shape.num_classes, target=0)
