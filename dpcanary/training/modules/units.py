"""Divides a module into units whose gradients can be found one by one.

At first, each submodule that owns parameters is a unit. A unit may fail: its inputs may have no
dimension for the records, or other modules may use its parameters. Then the submodule that contains
it takes its place, in the end the module itself. Failures are found on two records, by comparison
with automatic differentiation of the whole module.
"""

import copy
import ctypes
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
from torch import Tensor, nn

from dpcanary.errors import InputError
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.dropout import KeyedDropout
from dpcanary.training.modules.layer_rules import contribution
from dpcanary.training.modules.recording import Dims, Recorder, Unit, Used, used_by_one
from dpcanary.training.training_settings import Loss

# Parameters of mallopt, from malloc.h of the GNU C library, and their new values. Blocks of up to
# 32 MiB (the largest value allowed) come from the heap, which is only shrunk by 1 GiB or more.
_SETTINGS = {-3: 1 << 25, -1: 1 << 30}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def keep_freed_memory() -> bool:
    """Tells the C library not to return memory to the system after every step.

    A step frees its activations at the end. Otherwise the system would take these pages back and
    clear them one by one in every step. The setting holds for the whole process.

    Returns:
        Whether the C library knows the setting; if not, training is only slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not the GNU C library
        return False
    return all(mallopt(setting, value) == 1 for setting, value in _SETTINGS.items())


# A wrong gradient typically errs by its own magnitude. Rounding in single precision, and in a GPU's
# convolutions of reduced precision, stays well below this share.
TOLERANCE = 5e-3
_NEGLIGIBLE = 1e-5  # share of the whole gradient: rounding where a unit's own gradient is zero
_SPREAD = 0.05  # of random parameters around the module's own, since zeros could hide an error


def find_units(
    module: nn.Module, rewritten: nn.Module, features: Tensor, labels: Tensor, loss: Loss
) -> tuple[Unit, ...]:
    """The smallest units whose gradients come out right.

    Args:
        module: the user's.
        rewritten: its copy from `prepared`.
        features: two records, shape (2, ...).
        labels: shape (2,).
        loss: of each record.

    Raises:
        InputError: if not even the module as a whole can be differentiated record by record, or its
            outputs do not depend on its parameters.
    """
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    noise = torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
    row = flat + _SPREAD * noise.to(flat.device)
    parts = zip(torch.split(features, 1), torch.split(labels, 1), strict=True)
    truth = torch.stack([_gradient(module, row, x, label, loss) for x, label in parts])
    # Norm layers without weights have parameters that are None, which `parameters` leaves out.
    layers = rewritten.named_modules()
    names = {name for name, layer in layers if [*layer.parameters(recurse=False)]}
    while True:
        probed = _probed(rewritten, _units(rewritten, names), features)
        failed = {name for name, unit in probed.items() if unit is None}
        units = tuple(unit for unit in probed.values() if unit is not None)
        if not failed:
            recorder = Recorder(rewritten, units)
            recorder.load(row)
            used = used_by_one(recorder, features, labels, loss)
            failed = {
                unit.name
                for unit, layer, calls in zip(units, recorder.layers, used, strict=True)
                if not _is_right(unit, layer, calls, row, truth)
            }
        if not failed:
            _check_dropout(rewritten, names)
            return units
        if "" in failed:
            raise InputError(
                "the gradients of single records cannot be found: the module's outputs depend on"
                " its parameters in a way that torch.func cannot trace. Linear, convolutional,"
                " embedding, attention and recurrent layers, norms without batch statistics, and"
                " what is made of operations that torch.func.vmap takes are supported; build the"
                " module of these, or audit your own training loop as it is (docs/own_training.md)"
            )
        names = (set(probed) - failed) | {name.rpartition(".")[0] for name in failed}


def _check_dropout(module: nn.Module, units: set[str]) -> None:
    """Refuses dropout inside of a unit that is called again, where it would drop other units."""
    for name, layer in module.named_modules():
        above = [unit for unit in units if not unit or name.startswith(f"{unit}.")]
        if isinstance(layer, KeyedDropout) and layer.p and above:
            raise InputError(
                f"layer {name!r} drops units in {above[0] or 'the module'!r}, whose gradients are"
                " only found as a whole: put dropout outside of modules that use parameters"
                " without a layer, or turn it off"
            )


def _gradient(
    module: nn.Module, row: Tensor, features: Tensor, labels: Tensor, loss: Loss
) -> Tensor:
    """Gradient of one record's loss in all parameters, by automatic differentiation."""
    module = copy.deepcopy(module).train()
    nn.utils.vector_to_parameters(row, module.parameters())
    try:
        with torch.enable_grad():
            value = record_losses(module(features.clone()), labels, loss).sum()
            parameters = [*module.parameters()]
            parts = torch.autograd.grad(value, parameters, allow_unused=True)
    except RuntimeError as error:
        raise InputError(f"the module cannot be differentiated: {error}") from error
    if all(part is None for part in parts):
        raise InputError(
            "the outputs of the module's copy do not depend on its parameters, as where a `forward`"
            " that was set on the object calls another one: define it in the module's class"
        )
    pairs = zip(parts, parameters, strict=True)
    own = [torch.zeros_like(values) if part is None else part for part, values in pairs]
    return torch.cat([part.flatten() for part in own])


def _is_right(
    unit: Unit, layer: nn.Module, calls: Sequence[Used], row: Tensor, truth: Tensor
) -> bool:
    """Whether a unit's norms and a weighted sum are those of `truth`, shape (2, parameters)."""
    part = slice(unit.start, unit.stop)
    gradients = truth[:, part]
    squared, sums = truth.new_zeros(1, 2), truth.new_zeros(1, gradients.shape[1])
    scales = truth.new_tensor([[1.0, 2.0]])
    try:
        if calls:
            contributed = contribution(unit, layer, row[None, part], calls)
            squared = contributed.squared_norms
            contributed.write_sums(scales, sums)
    except RuntimeError:  # from an operation that torch.func does not know
        return False
    norms = torch.linalg.vector_norm(gradients, dim=1)
    far = torch.linalg.vector_norm(sums - scales @ gradients)
    limit = TOLERANCE * norms.sum() + _NEGLIGIBLE * truth.norm()
    return bool((squared.sqrt() - norms).abs().max() <= limit and far <= 2 * limit)


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
        parameters = dict(module.get_submodule(name).named_parameters(prefix=name))
        start = min(starts[parameter] for parameter in parameters)
        size = sum(parameter.numel() for parameter in parameters.values())
        units.append(Unit(name, start, start + size, copies=True))
    return tuple(sorted(units, key=lambda unit: unit.start))


def _probed(module: nn.Module, units: Sequence[Unit], features: Tensor) -> dict[str, Unit | None]:
    """Units with their layout, from passes over two and three records; None if it is unclear."""
    recorder = Recorder(module, units)
    of_two = recorder.record(features)[1]
    of_three = recorder.record(features[[0, 1, 0]])[1]
    probed: dict[str, Unit | None] = {}
    for index, unit in enumerate(units):
        two, three = ([c for c in calls if c.unit == index] for calls in (of_two, of_three))
        dims = {
            (_record_dims(a.tensors, b.tensors), _record_dims(a.outputs, b.outputs))
            for a, b in zip(two, three, strict=False)
        } or {((), ())}
        (inputs, outputs), *others = dims
        record_dims = tuple(dim for dim in outputs if dim not in (None, -1))
        clear = (
            not others and len(two) == len(three) and -1 not in inputs and record_dims == outputs
        )
        changed = any(tensor._version != version for c in two for tensor, version in c.watched)
        with_layout = replace(unit, copies=changed, input_dims=inputs, output_dims=record_dims)
        probed[unit.name] = with_layout if clear else None
    return probed


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
