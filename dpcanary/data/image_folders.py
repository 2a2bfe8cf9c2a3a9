"""A folder of images: a folder for each class, perhaps below folders for training and test."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from dpcanary.core.files import files_in_folder
from dpcanary.data.archives import reading_source
from dpcanary.data.record_source import Source
from dpcanary.data.records import Records
from dpcanary.errors import InputError

_LOG = logging.getLogger(__name__)
_IMAGES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm"),
)
_PARTS = {"train": "training", "training": "training", "test": "test"}
_GREY = ("1", "L", "LA")


def read_image_folder(folder: Path, *, size: int | None) -> Source:
    """Reads images as bytes, shape (n, 3, height, width), or (n, 1, ...) if all are grey.

    The class of an image is the folder that it is in; classes are numbered in alphabetical order.
    Images in `train/<class>/` and `test/<class>/` are the two parts of the source.

    Args:
        folder: with a folder for each class.
        size: height and width of what is read: the middle of each image, made larger or smaller. By
            default, images are as they are, and must all have the same size.

    Raises:
        InputError: if there are no classes, an image is damaged, or sizes differ.
    """
    files = files_in_folder(folder, *_IMAGES)
    top = {path.relative_to(folder).parts[0] for path in files}
    has_parts = bool(top) and top <= {*_PARTS}
    roots = {part: folder / part for part in sorted(top)} if has_parts else {"train": folder}
    labelled = {part: _labelled(root) for part, root in roots.items()}
    named = {_PARTS[part]: found for part, found in labelled.items()}
    classes = sorted({name for found in named.values() for name, _ in found})
    if len(classes) < 2 or "training" not in named:
        raise InputError(
            f"{folder} holds no images of two classes: it must have a folder for each class, such"
            f" as {folder / 'cats' / '1.png'}, or Parquet files"
        )
    if num_others := len(files_in_folder(folder)) - sum(map(len, named.values())):
        _LOG.warning("%s: %d files are not images in a class, and are left out", folder, num_others)
    is_grey = all(_mode(path) in _GREY for found in named.values() for _, path in found)
    mode = "L" if is_grey else "RGB"
    parts = {}
    for part, found in named.items():
        images = _stacked(folder, [_image(path, mode, size) for _, path in found])
        labels = np.array([classes.index(name) for name, _ in found])
        parts[part] = Records(images, labels)
    return Source(str(folder), parts["training"], parts.get("test"), class_names=tuple(classes))


def _labelled(root: Path) -> list[tuple[str, Path]]:
    """The class of each image, and its path."""
    paths = [path for path in files_in_folder(root, *_IMAGES) if path.parent != root]
    return [(path.relative_to(root).parts[0], path) for path in paths]


def _mode(path: Path) -> str:
    with reading_source(path), Image.open(path) as image:
        return str(image.mode)


def _image(path: Path, mode: str, size: int | None) -> NDArray[np.uint8]:
    """An image of shape (channels, height, width)."""
    with reading_source(path), Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert(mode)
        fitted = upright if size is None else ImageOps.fit(upright, (size, size))
        pixels = np.asarray(fitted, dtype=np.uint8)
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)


def _stacked(folder: Path, images: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    sizes = Counter(f"{image.shape[2]} x {image.shape[1]}" for image in images)
    if len(sizes) > 1:
        common = ", ".join(f"{name} ({count:,})" for name, count in sizes.most_common(3))
        raise InputError(
            f"{folder}: its images have {len(sizes)} sizes, such as {common}; set image_size (the"
            " option --image-size), to which each is cut and scaled"
        )
    return np.stack(images)
