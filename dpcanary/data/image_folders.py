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
_IMAGES = (*(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"), *(".tif", ".tiff", ".ppm", ".pgm"))
_PARTS = {
    **dict.fromkeys(("train", "training"), "training"),
    **dict.fromkeys(("test", "val", "valid", "validation"), "test"),
}
_GREY = ("1", "L", "LA")
# Pillow saturates others, such as 16 bits, when it makes bytes of them.
_OF_BYTES = (*_GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


def read_image_folder(folder: Path, *, size: int | None) -> Source:
    """Reads images as bytes, shape (n, 3, height, width), or (n, 1, ...) if all are grey.

    The class of an image is the folder that it is in; classes are numbered in alphabetical order.
    Images in `train/<class>/` and `test/<class>/` (or `val`) are the two parts of the source.

    Args:
        folder: with a folder for each class.
        size: height and width of what is read: the middle of each image, made larger or smaller. By
            default, images are as they are, and must all have the same size.

    Raises:
        InputError: if there are no classes, an image is damaged or has more than 8 bits a channel,
            sizes differ, or folders of parts stand beside others or each other.
    """
    named = {part: _labelled(root) for part, root in _parts(folder).items()}
    classes = sorted({name for labelled in named.values() for name, _ in labelled})
    if len(classes) < 2 or "training" not in named:
        raise InputError(
            f"{folder} holds no images of two classes: it must have a folder for each class, such"
            f" as {folder / 'cats' / '1.png'}, or Parquet files"
        )
    if num_others := len(files_in_folder(folder)) - sum(map(len, named.values())):
        _LOG.warning(
            "%s: files left out, as they are not images in a class: %d", folder, num_others
        )
    is_grey = all(_mode(path) in _GREY for labelled in named.values() for _, path in labelled)
    mode = "L" if is_grey else "RGB"
    parts = {}
    for part, labelled in named.items():
        images = _stacked(folder, [path for _, path in labelled], mode, size)
        parts[part] = Records(images, np.searchsorted(classes, [name for name, _ in labelled]))
    return Source(
        str(folder),
        parts["training"],
        parts.get("test"),
        class_names=tuple(classes),
        names=tuple(str(path.relative_to(folder)) for _, path in named["training"]),
    )


def num_channels(folder: Path) -> int:
    """Channels of the images in a folder: 1 if all are grey, 3 if not, 0 if there are none."""
    modes = {_mode(path) for _, path in _labelled(folder)}
    return 1 + 2 * bool(modes - {*_GREY}) if modes else 0


def _parts(folder: Path) -> dict[str, Path]:
    """The folder of each part: `folder` itself where none below it has the name of a part."""
    top = sorted({name for name, _ in _labelled(folder)})
    parts = {name: _PARTS[name.lower()] for name in top if name.lower() in _PARTS}
    if not parts:
        return {"training": folder}
    if others := [name for name in top if name not in parts]:
        raise InputError(
            f"{folder} has folders of parts ({', '.join(parts)}) beside others"
            f" ({', '.join(others[:5])}): move the others, or rename a class of this name"
        )
    if len({*parts.values()}) < len(parts):
        raise InputError(
            f"{folder}: of the folders {', '.join(parts)}, two are the same part, training or test"
            " (val is one for test); leave one out"
        )
    return {part: folder / name for name, part in parts.items()}


def _labelled(root: Path) -> list[tuple[str, Path]]:
    """The class of each image, and its path."""
    paths = [path for path in files_in_folder(root, *_IMAGES) if path.parent != root]
    return [(path.relative_to(root).parts[0], path) for path in paths]


def _mode(path: Path) -> str:
    with reading_source(path), Image.open(path) as image:
        if image.mode not in _OF_BYTES:
            raise InputError(
                f"{path} has the mode {image.mode}: its pixels are no bytes; save it with 8 bits a"
                " channel"
            )
        return str(image.mode)


def _image(path: Path, mode: str, size: int | None) -> NDArray[np.uint8]:
    """An image of shape (channels, height, width)."""
    with reading_source(path), Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert(mode)
        fitted = upright if size is None else ImageOps.fit(upright, (size, size))
        pixels = np.asarray(fitted, dtype=np.uint8)
    return np.moveaxis(np.atleast_3d(pixels), -1, 0)


def _stacked(folder: Path, paths: list[Path], mode: str, size: int | None) -> NDArray[np.uint8]:
    stacked, sizes = np.empty(0, np.uint8), Counter[str]()
    for row, path in enumerate(paths):
        image = _image(path, mode, size)
        if row == 0:
            stacked = np.empty((len(paths), *image.shape), np.uint8)
        sizes[f"{image.shape[2]} x {image.shape[1]}"] += 1
        if len(sizes) == 1:
            stacked[row] = image
    if len(sizes) > 1:
        common = ", ".join(f"{name} ({count:,})" for name, count in sizes.most_common(3))
        raise InputError(
            f"{folder}: its images have {len(sizes)} sizes, such as {common}; set image_size (the"
            " option --image-size), to which each is cut and scaled; model convnet takes 32"
        )
    return stacked
