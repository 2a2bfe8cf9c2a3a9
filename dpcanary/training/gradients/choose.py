"""Which gradient path a module takes."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from dpcanary.canaries import DirectionCanary, GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients.gradient_path import GradientPath, RecordTable
from dpcanary.training.gradients.linear import LinearPath
from dpcanary.training.gradients.perceptron import ACTIVATIONS, PerceptronPath
from dpcanary.training.gradients.rotation import spanning_basis
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.options import Initialisation, Loss, Optimizer, Precision
from dpcanary.training.slots import Slots


def path_of(
    module: nn.Module,
    table: RecordTable,
    *,
    dpsgd: DPSGD,
    precision: Precision,
    basis: Tensor | None,
) -> GradientPath:
    """The fastest path that knows the module.

    Args:
        module: the architecture.
        table: the records.
        dpsgd: the mechanism.
        precision: of matrix products.
        basis: of a linear head that is trained in the span of its records.

    Raises:
        InputError: if no path can train the module, or not at this precision.
    """
    if (is_linear(module) or _is_perceptron(module)) and not table.features.is_floating_point():
        table = replace(table, features=table.features.float())
    flat = table.features.dim() == 2
    if flat and is_linear(module):
        assert isinstance(module, nn.Linear)
        _check_outputs(module.out_features, table, dpsgd.loss)
        _check_width(module, table)
        return LinearPath(
            table,
            num_outputs=module.out_features,
            loss=dpsgd.loss,
            precision=precision,
            basis=basis,
        )
    if flat and _is_perceptron(module):
        assert isinstance(module, nn.Sequential)
        last = module[-1]
        assert isinstance(last, nn.Linear)
        _check_width(module[0], table)
        _check_outputs(last.out_features, table, dpsgd.loss)
        return PerceptronPath(table, module, loss=dpsgd.loss, precision=precision)
    if precision is not Precision.FLOAT32:
        raise InputError(
            f"precision {precision} is for linear heads and perceptrons; use float32 for a"
            f" {type(module).__name__}"
        )
    vectorise = table.features.device.type != "cpu"
    path = ModulePath(module, table, dpsgd.loss, vectorise_runs=vectorise)
    _check_outputs(path.num_outputs, table, dpsgd.loss)
    return path


def basis_of(
    module: nn.Module,
    table: RecordTable,
    slots: Slots,
    *,
    dpsgd: DPSGD,
    initialisation: Initialisation,
) -> Tensor | None:
    """A basis in which to train a linear head, where that takes less work; see `rotation`.

    It spans the records, the input canaries, and the gradients of canaries in one coordinate. A
    canary in any direction is observed by the length of the whole change as well, which a part of
    the parameters cannot tell.
    """
    is_direction = isinstance(slots.canaries[0], DirectionCanary)
    zeros = initialisation is Initialisation.ZEROS
    if not is_linear(module) or is_direction or dpsgd.optimizer is Optimizer.ADAM or not zeros:
        return None
    features = table.features[: table.null].float()
    vectors = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    touched = _touched_features(slots, module, features.shape[1])
    # A row for each: the length C matters to no direction, only to rounding.
    units = vectors.new_zeros(len(touched), vectors.shape[1])
    units[torch.arange(len(touched)), touched] = dpsgd.max_grad_norm
    return spanning_basis(torch.cat([vectors, units]))


def _touched_features(slots: Slots, module: nn.Module, num_features: int) -> list[int]:
    """The features whose weights hold a gradient canary; the bias counts as the last feature."""
    assert isinstance(module, nn.Linear)
    weights = module.out_features * num_features
    coordinates = [
        canary.coordinate for canary in slots.canaries if isinstance(canary, GradientCanary)
    ]
    features = [c % num_features if c < weights else num_features for c in coordinates]
    return list(dict.fromkeys(features))


def is_linear(module: nn.Module) -> bool:
    """Whether the linear path knows the module."""
    return type(module) is nn.Linear and module.bias is not None


def _is_perceptron(module: nn.Module) -> bool:
    if type(module) is not nn.Sequential:
        return False
    layers = list(module)
    alternate = len(layers) % 2 == 1 and all(is_linear(layer) for layer in layers[::2])
    return alternate and all(type(layer) in ACTIVATIONS for layer in layers[1::2])


def _check_width(layer: nn.Module, table: RecordTable) -> None:
    width = table.features.shape[1]
    if layer.in_features != width:
        raise InputError(f"the model takes {layer.in_features} features, the records have {width}")


def _check_outputs(num_outputs: int, table: RecordTable, loss: Loss) -> None:
    classes = int(table.labels.max()) + 1
    if num_outputs == 1 and (loss is Loss.CROSS_ENTROPY or classes > 2):
        raise InputError("a model of one output needs loss binary_cross_entropy and two classes")
    if 1 < num_outputs < classes:
        raise InputError(
            f"the model has {num_outputs} outputs, the records and canaries {classes} classes"
        )
