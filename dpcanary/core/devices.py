"""The devices that models compute on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpcanary.errors import InputError

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda", "auto")


def chosen_device(device: "str | torch.device") -> "torch.device":
    """The device named `cpu`, `cuda` or `auto` (a GPU if there is one), or a device of PyTorch.

    Raises:
        InputError: if there is no such device, or no GPU for `cuda`.
    """
    import torch  # loads slowly, and programs' options only need the names

    available = torch.cuda.is_available()
    if device == "auto":
        device = "cuda" if available else "cpu"
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"unknown device {device!r}: give cpu, cuda or auto") from None
    if chosen.type not in DEVICES:
        raise InputError(f"device {device!r} is not supported: give cpu, cuda or auto")
    if chosen.type == "cuda" and not available:
        raise InputError("device is cuda, but PyTorch finds no GPU; set device to cpu or auto")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device is {chosen}, and PyTorch finds {torch.cuda.device_count()} GPUs, whose numbers"
            " begin at 0; set device to cuda or auto"
        )
    return chosen


@contextmanager
def reproducible_convolutions() -> Iterator[None]:
    """While inside, a GPU's convolutions are in float32, and the same at every repetition.

    By default PyTorch rounds their inputs to a mantissa of 10 bits. On a processor nothing changes.
    """
    import torch

    # `flags` turns off what it is not told, cuDNN itself too.
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield
