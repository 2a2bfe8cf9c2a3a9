"""CIFAR-10: the official binary archive, or its images in .npz files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.datasets.archives import reading, tar_members
from dpcanary.datasets.source import Source
from dpcanary.errors import InputError
from dpcanary.files import read_npz
from dpcanary.records import Records, integer_labels, records_from

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_BATCHES = (*(f"data_batch_{index}.bin" for index in range(1, 6)), "test_batch.bin")


def read_cifar10(files: Sequence[Path]) -> Source:
    """Reads images as bytes, shape (n, 3, 32, 32), in the official order.

    Args:
        files: `cifar-10-binary.tar.gz`; or .npz files with arrays `images`, uint8 of shape
            (n, 32, 32, 3), and `labels`: the training part, then optionally the test part.

    Raises:
        InputError: if a file is damaged or has another form, or a label is above 9.
    """
    if all(path.suffix == ".npz" for path in files):
        parts = [_part_of_arrays(path) for path in files]
    elif len(files) == 1:
        parts = _parts_of_archive(files[0])
    else:
        raise InputError(
            f"cifar10: {' and '.join(map(str, files))}: give the official archive alone, or .npz"
            " files"
        )
    return Source("cifar10", *parts, class_names=CLASSES)


def _parts_of_archive(path: Path) -> list[Records]:
    with reading(path):
        batches = {
            name: _records(f"{path}: {name}", content.read())
            for name, content in tar_members(path)
            if name in _BATCHES
        }
    for name in _BATCHES:
        if name not in batches:
            raise InputError(f"{path} has no member {name}: it is not CIFAR-10's binary archive")
    *training, test = (batches[name] for name in _BATCHES)
    return [
        Records(part[:, 1:].reshape(-1, *_SHAPE), part[:, 0].astype(np.int64))
        for part in (np.concatenate(training), test)
    ]


def _records(where: str, content: bytes) -> NDArray[np.uint8]:
    """Labels and pixels, shape (n, 3073)."""
    if len(content) % _RECORD_BYTES:
        raise InputError(f"{where}: {len(content)} bytes are no multiple of {_RECORD_BYTES}")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    _check_labels(where, records[:, 0])
    return records


def _part_of_arrays(path: Path) -> Records:
    arrays = read_npz(path)
    for name in ("images", "labels"):
        if name not in arrays:
            raise InputError(f"{path} has no array {name}")
    images = arrays["images"]
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise InputError(
            f"{path}: images must be uint8 of shape (n, 32, 32, 3), not {images.dtype} of shape"
            f" {images.shape}"
        )
    labels = integer_labels(str(path), arrays["labels"])
    _check_labels(str(path), labels)
    return records_from(path, np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels)


def _check_labels(where: str, labels: NDArray[Any]) -> None:
    wrong = np.flatnonzero(labels >= len(CLASSES))
    if len(wrong):
        raise InputError(
            f"{where}: record {wrong[0]} has label {labels[wrong[0]]}; CIFAR-10's are 0 to 9"
        )
