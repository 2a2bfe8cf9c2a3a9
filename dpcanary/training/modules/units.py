"""Divides a module into units whose gradients can be found one by one.

At first, each submodule that owns parameters is a unit. A unit may fail: its inputs may have no
dimension for the records, or other modules may use its parameters. Then the submodule that contains
it takes its place, in the end the module itself. Failures are found on two records, by comparison
with automatic differentiation of the whole module.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

from torch import Tensor, nn

from dpcanary.errors import InputError
from dpcanary.training.modules.attention import LayeredAttention
from dpcanary.training.modules.recording import Dims, Recorder, Unit

# Takes units and returns the names of those whose per-record gradients are wrong.
Wrong = Callable[[tuple[Unit, ...]], set[str]]


def prepared(module: nn.Module) -> nn.Module:
    """A copy without in-place layers, whose attention calls layers that have rules."""
    module = copy.deepcopy(module).train()
    if LayeredAttention.applies_to(module):
        return LayeredAttention(module)
    for name, layer in list(module.named_modules()):
        if getattr(layer, "inplace", None) is True:
            layer.inplace = False
        if LayeredAttention.applies_to(layer):
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, LayeredAttention(layer))
    return module


def find_units(module: nn.Module, features: Tensor, wrong: Wrong) -> tuple[Unit, ...]:
    """The smallest units whose gradients come out right.

    Args:
        module: from `prepared`.
        features: two records, shape (2, ...).
        wrong: finds the units whose gradients are wrong.

    Raises:
        InputError: if not even the module as a whole can be differentiated record by record.
    """
    # Norm layers without weights have parameters that are None, which `parameters` leaves out.
    layers = module.named_modules()
    names = {name for name, layer in layers if [*layer.parameters(recurse=False)]}
    while True:
        probed = _probed(module, _units(module, names), features)
        failed = {name for name, unit in probed.items() if unit is None}
        units = tuple(unit for unit in probed.values() if unit is not None)
        failed = failed or wrong(units)
        if not failed:
            return units
        if "" in failed:
            raise InputError(
                "the gradients of single records cannot be found: the module's outputs depend on "
                "its parameters in a way that torch.func cannot trace"
            )
        names = (set(probed) - failed) | {name.rpartition(".")[0] for name in failed}


def _units(module: nn.Module, names: set[str]) -> tuple[Unit, ...]:
    """The outermost units of these names, in the order of their parameters."""
    starts, total = {}, 0
    for name, parameter in module.named_parameters():
        starts[name] = total
        total += parameter.numel()
    units = []
    for name in names:
        above = name.split(".")
        if name and any(".".join(above[:i]) in names for i in range(len(above))):
            continue
        own = dict(module.get_submodule(name).named_parameters(prefix=name))
        start = min(starts[parameter] for parameter in own)
        size = sum(parameter.numel() for parameter in own.values())
        units.append(Unit(name, start, start + size, copies=True))
    return tuple(sorted(units, key=lambda unit: unit.start))


def _probed(module: nn.Module, units: Sequence[Unit], features: Tensor) -> dict[str, Unit | None]:
    """Units with their layout, from passes over two and three records; None if it is unclear."""
    recorder = Recorder(module, units)
    of_two = recorder.record(features)[1]
    of_three = recorder.record(features[[0, 1, 0]])[1]
    found: dict[str, Unit | None] = {}
    for index, unit in enumerate(units):
        two, three = ([c for c in calls if c.unit == index] for calls in (of_two, of_three))
        dims = {
            (_record_dims(a.tensors, b.tensors), _record_dims(a.outputs, b.outputs))
            for a, b in zip(two, three, strict=False)
        } or {((), ())}
        (inputs, outputs), *others = dims
        known = tuple(dim for dim in outputs if dim not in (None, -1))
        clear = not others and len(two) == len(three) and -1 not in inputs and known == outputs
        changed = any(tensor._version != version for c in two for tensor, version in c.watched)
        seen = replace(unit, copies=changed, input_dims=inputs, output_dims=known)
        found[unit.name] = seen if clear else None
    return found


def _record_dims(two: Sequence[Tensor], three: Sequence[Tensor]) -> Dims:
    return tuple(_record_dim(a, b) for a, b in zip(two, three, strict=True))


def _record_dim(two: Tensor, three: Tensor) -> int | None:
    """The only dimension in which the shapes differ: of size 2 for two records, 3 for three.

    Returns:
        None if the shapes agree; -1 if they differ otherwise.
    """
    sizes = list(zip_longest(two.shape, three.shape))
    differing = [pair for pair in sizes if pair[0] != pair[1]]
    if not differing:
        return None
    return sizes.index((2, 3)) if differing == [(2, 3)] else -1
