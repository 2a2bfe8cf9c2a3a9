"""Where models are trained."""

import torch

from dpcanary.errors import InputError


def chosen_device(name: str) -> torch.device:
    """The device of this name; `auto` takes a GPU where there is one.

    Args:
        name: `cpu`, `cuda` or `auto`.

    Raises:
        InputError: if there is no GPU for `cuda`.
    """
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("device is cuda, but PyTorch finds no GPU; set device to cpu or auto")
    return torch.device("cuda" if available and name != "cpu" else "cpu")
