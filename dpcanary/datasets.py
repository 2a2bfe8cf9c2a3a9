"""Sources of data: read, checked, and cut into private, auxiliary and test records."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_npz
from dpcanary.randomness import Purpose, generator
from dpcanary.splits import Labels, SplitDataset


def load_source(source: str) -> tuple[NDArray[np.float64], Labels]:
    """Features and labels of a source.

    Args:
        source: `digits`, or the path of an .npz with `features` and `labels`.

    Raises:
        InputError: if the source is not there or not what it must be.
    """
    if source == "digits":
        from sklearn.datasets import load_digits

        features, labels = load_digits(return_X_y=True)
        return _checked(source, features, labels)
    if not source.endswith(".npz"):
        raise InputError(f"unknown dataset source {source!r}: give 'digits' or a path to an .npz")
    arrays = read_npz(Path(source))
    missing = {"features", "labels"} - arrays.keys()
    if missing:
        raise InputError(f"{source} has no array {' and no '.join(sorted(missing))}")
    return _checked(source, arrays["features"], arrays["labels"])


def _checked(
    source: str, features: NDArray[np.generic], labels: NDArray[np.generic]
) -> tuple[NDArray[np.float64], Labels]:
    if features.ndim < 2 or labels.shape != features.shape[:1]:
        raise InputError(
            f"{source}: features must be records x features, or records x channels x height x"
            f" width, and labels one per record; their shapes are {features.shape} and"
            f" {labels.shape}"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min(initial=0) < 0:
        raise InputError(f"{source}: labels must be integers from 0")
    numbers = features.astype(np.float64)
    bad = ~np.isfinite(numbers).reshape(len(numbers), -1).all(axis=1)
    if bad.any():
        raise InputError(
            f"{source}: record {int(np.argmax(bad))} has a feature that is NaN or infinite"
            f" ({int(bad.sum())} such records); mend or drop them"
        )
    return numbers, labels.astype(np.int64)


def split_dataset(*, source: str, num_records: int, seed: int) -> SplitDataset:
    """Cuts a source at random: private records, equally many of each class, and the others.

    Of the others, half are auxiliary and half test records. Features are standardised by the mean
    and standard deviation of the auxiliary records, so that scaling reads nothing private; images
    by those of each channel.

    Args:
        source: see `load_source`.
        num_records: private records.
        seed: the experiment's seed.

    Raises:
        InputError: if records or classes are too few.
    """
    features, labels = load_source(source)
    order = generator(seed=seed, purpose=Purpose.RECORDS).permutation(len(labels))
    private = _balanced(source, labels, order, num_records)
    others = order[~np.isin(order, private)]
    auxiliary, test = others[: len(others) // 2], others[len(others) // 2 :]
    if len(auxiliary) == 0:
        raise InputError(f"{source}: {num_records} of its {len(labels)} records leave none to test")
    # Of a channel, all pixels of all records together.
    axes = (0, *range(2, features.ndim))
    mean = features[auxiliary].mean(axis=axes, keepdims=True)
    scale = features[auxiliary].std(axis=axes, keepdims=True)
    standard = ((features - mean) / np.where(scale > 0, scale, 1.0)).astype(np.float32)
    return SplitDataset(
        features=standard[private],
        labels=labels[private],
        auxiliary_features=standard[auxiliary],
        auxiliary_labels=labels[auxiliary],
        test_features=standard[test],
        test_labels=labels[test],
    )


def _balanced(
    source: str, labels: Labels, order: NDArray[np.int64], num_records: int
) -> NDArray[np.int64]:
    """The first records of every class in this order."""
    num_classes = int(labels.max()) + 1
    per_class, rest = divmod(num_records, num_classes)
    if rest or per_class == 0:
        raise InputError(
            f"{source}: num_records {num_records} is no multiple of its {num_classes} classes"
        )
    counts = np.bincount(labels, minlength=num_classes)
    if counts.min() < per_class:
        short = int(np.argmin(counts))
        raise InputError(
            f"{source}: class {short} has {counts[short]} records, num_records {num_records} needs"
            f" {per_class} of each of the {num_classes} classes"
        )
    chosen = [order[labels[order] == label][:per_class] for label in range(num_classes)]
    return np.concatenate(chosen)
