"""Models of the user's own."""

from collections.abc import Sequence

import torch
from torch import nn

from dpcanary.errors import InputError
from dpcanary.plugins import function_named


def own_module(reference: str, *, seed: int, shape: Sequence[int], num_classes: int) -> nn.Module:
    """The module that a user's function makes; it may draw from PyTorch's generator.

    Args:
        reference: the function, `package.module:function`. It is called without arguments.
        seed: of PyTorch's generator while the function runs, so that all jobs get the same module.
        shape: of one record's features.
        num_classes: outputs.

    Raises:
        InputError: if there is no such function, it fails, or its module does not map a batch of
            records to an output per class.
    """
    make = function_named(reference)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = make()
        except Exception as error:  # whatever the user's code raises
            raise InputError(f"model {reference} fails: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise InputError(f"model {reference} returns no torch.nn.Module but {type(module)}")
    _check_outputs(reference, module, tuple(shape), num_classes)
    return module


def _check_outputs(
    reference: str, module: nn.Module, shape: tuple[int, ...], num_classes: int
) -> None:
    try:
        with torch.no_grad():
            found = tuple(module(torch.zeros(2, *shape)).shape)
    except Exception as error:  # whatever the user's code raises
        raise InputError(
            f"model {reference} cannot take records of shape {shape}: {error}"
        ) from error
    if found != (2, num_classes):
        raise InputError(
            f"model {reference} maps 2 records to shape {found}; for {num_classes} classes it must"
            f" be (2, {num_classes})"
        )
