"""Divides a module into units whose gradients can be found one by one.

A unit starts as a submodule that owns parameters itself. Where that does not work out (the records
are not a dimension of what it is given, or its parameters are used by others), the submodule that
contains it takes its place, in the end the module itself. Whether it works out is not guessed at:
it is tried on two records, against automatic differentiation of the whole module.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor, nn

from dpcanary.errors import InputError
from dpcanary.training.modules.attention import LayeredAttention
from dpcanary.training.modules.recording import Call, Dims, Recorder, Unit

# Given units, the names of those whose gradients of single records are wrong.
Wrong = Callable[[tuple[Unit, ...]], set[str]]


def prepared(module: nn.Module) -> nn.Module:
    """A copy in whose layers the rules can look: no changes in place, attention by layers."""
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
        wrong: tells which units' gradients are wrong.

    Raises:
        InputError: if not even the module as a whole can be differentiated record by record.
    """
    # Without norm layers that have no weights, which PyTorch gives parameters that are None.
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
                "its parameters in a way that torch.func does not see"
            )
        names = (set(probed) - failed) | {name.rpartition(".")[0] for name in failed}


def _units(module: nn.Module, names: set[str]) -> tuple[Unit, ...]:
    """Units of these names, without those inside of others, in the order of their parameters."""
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
    """Units with what a forward pass of two and one of three records show; None where unclear."""
    recorder = Recorder(module, units)
    of_two = recorder.record(features)[1]
    of_three = recorder.record(features[[0, 1, 0]])[1]
    found: dict[str, Unit | None] = {}
    for index, unit in enumerate(units):
        two, three = ([c for c in calls if c.unit == index] for calls in (of_two, of_three))
        dims = {_record_dims(a, b) for a, b in zip(two, three, strict=False)} or {((), ())}
        (inputs, outputs), *others = dims
        changed = any(tensor._version != version for c in two for tensor, version in c.watched)
        clear = not others and len(two) == len(three) and -1 not in inputs
        clear = clear and not {None, -1} & set(outputs)
        known = replace(unit, copies=changed, input_dims=inputs, output_dims=outputs)
        found[unit.name] = known if clear else None
    return found


def _record_dims(two: Call, three: Call) -> tuple[Dims, Dims]:
    """Where the records are in a call's inputs and outputs."""
    inputs = zip(two.tensors, three.tensors, strict=True)
    outputs = zip(two.outputs, three.outputs, strict=True)
    return (
        tuple(_record_dim(a, b) for a, b in inputs),
        tuple(_record_dim(a, b) for a, b in outputs),
    )


def _record_dim(two: Tensor, three: Tensor) -> int | None:
    """The dimension that is 2 and 3 where there are two and three records.

    Returns:
        None if the shapes agree; -1 if they differ otherwise.
    """
    if two.shape == three.shape:
        return None
    differing = [
        i
        for i, sizes in enumerate(zip(two.shape, three.shape, strict=False))
        if len(set(sizes)) > 1
    ]
    if two.dim() != three.dim() or len(differing) != 1 or two.shape[differing[0]] != 2:
        return -1
    return differing[0] if three.shape[differing[0]] == 3 else -1
