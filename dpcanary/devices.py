"""Where models compute."""

from typing import TYPE_CHECKING

from dpcanary.errors import InputError

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda", "auto")


def chosen_device(device: "str | torch.device") -> "torch.device":
    """The device of this name. `auto` takes a GPU where there is one.

    Args:
        device: `cpu`, `cuda`, `auto`, or a device of PyTorch's.

    Raises:
        InputError: if there is no such device, or no GPU for `cuda`.
    """
    import torch  # loads slowly, and settings need the names alone

    available = torch.cuda.is_available()
    if device == "auto":
        return torch.device("cuda" if available else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise InputError(f"unknown device {device!r}: give cpu, cuda or auto") from None
    if found.type not in DEVICES:
        raise InputError(f"device {device!r} is not supported: give cpu, cuda or auto")
    if found.type == "cuda" and not available:
        raise InputError("device is cuda, but PyTorch finds no GPU; set device to cpu or auto")
    return found
