"""What a module keeps of a forward pass, such as running averages of records.

A buffer that holds statistics of private records is released with the model, without noise; so is a
parameter that the forward pass itself changes. Audits, the check of a model and the watch of a
training look for both by the functions below.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class KeptState:
    """What forward passes in training mode changed in a module.

    Attributes:
        changed: names of buffers and parameters that a forward pass changes.
        of_records: those of them that are another after a forward pass of other records: they hold
            something of the records. A counter of passes, or the vectors of spectral normalisation,
            change, but hold nothing of a record.
    """

    changed: tuple[str, ...]
    of_records: tuple[str, ...]


def kept_state(
    module: nn.Module, first: Callable[[], object], *others: Callable[[], object]
) -> KeptState:
    """Compares a module's buffers and parameters after forward passes of different records.

    The module's mode is left as it is; what trains is in training mode. Buffers, parameters and the
    state of PyTorch's generators are afterwards what they were before. Gradients are not touched.

    Args:
        module: what is called, or any module around it.
        first: runs the forward pass of some records, without a backward pass.
        others: run those of other records, at least one. Give it another number of records as
            well: a buffer that counts records is then found, too.
    """
    before = _tensors(module)
    states = []
    for call in (first, *others):
        with unchanged_state(module):
            with torch.no_grad():
                call()
            states.append({name: own.detach().clone() for name, own in _tensors(module).items()})
    values = {name: own.detach() for name, own in before.items()}
    names = dict.fromkeys(name for state in states for name in state)
    changed = dict.fromkeys(
        name for state in states for name in names if not _same(values, state, name)
    )
    of_records = [
        name for name in changed if not all(_same(states[0], state, name) for state in states[1:])
    ]
    return KeptState(tuple(changed), tuple(of_records))


@contextmanager
def unchanged_state(module: nn.Module) -> Iterator[None]:
    """Puts buffers, parameters and attributes, and PyTorch's generators, back at the end.

    Both parts of two blocks with the same generators draw the same random numbers. An attribute
    that is changed in place, such as a list, stays changed.
    """
    attributes = [(layer, {**vars(layer)}) for layer in module.modules()]
    held = [
        (table, {name: own for name, own in table.items()})
        for layer in module.modules()
        for table in (layer._buffers, layer._parameters)
    ]
    values = [
        (own, own.detach().clone())
        for _, table in held
        for own in table.values()
        if own is not None and _is_known(own)
    ]
    devices = sorted({own.device.index or 0 for own, _ in values if own.is_cuda})
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            with torch.no_grad():
                for own, value in values:
                    if not torch.equal(own, value):
                        own.copy_(value)
            for table, before in held:
                table.clear()
                table.update(before)  # type: ignore[arg-type]
            for layer, before in attributes:
                vars(layer).clear()
                vars(layer).update(before)


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    return {name: own for name, own in tensors.items() if _is_known(own)}


def _is_known(value: object) -> bool:
    """Whether it is a tensor that has its shape, as lazy layers' do not before their first call."""
    lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
    return isinstance(value, Tensor) and not isinstance(value, lazy)


def _same(first: dict[str, Tensor], second: dict[str, Tensor], name: str) -> bool:
    if name not in first or name not in second:
        return False
    a, b = first[name], second[name]
    if a.shape != b.shape:
        return False
    # NaN of both states is no change.
    return bool(((a == b) | ((a != a) & (b != b))).all())
