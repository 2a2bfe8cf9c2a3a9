"""Which gradient path a module takes."""

import torch
from torch import Tensor, nn

from dpcanary.canaries import AnyCanary, DirectionCanary
from dpcanary.errors import InputError
from dpcanary.training.inputs import DPSGD
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.paths.linear import LinearPath, as_matrix
from dpcanary.training.paths.path import Path, Table
from dpcanary.training.paths.perceptron import ACTIVATIONS, PerceptronPath
from dpcanary.training.paths.rotation import spanning_basis
from dpcanary.training.placement import Placement
from dpcanary.vocabulary import Initialisation, Loss, Optimizer, Precision


def path_of(
    module: nn.Module, table: Table, *, dpsgd: DPSGD, precision: Precision, basis: Tensor | None
) -> Path:
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
    flat = table.features.dim() == 2 and table.features.is_floating_point()
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
    table: Table,
    placement: Placement,
    *,
    canary: AnyCanary,
    dpsgd: DPSGD,
    initialisation: Initialisation,
) -> Tensor | None:
    """A basis in which to train a linear head, where that takes less work; see `rotation`.

    It spans the records and, for a gradient canary, its gradient. A canary in any direction is
    observed by the length of the whole change as well, which a part of the parameters cannot tell.
    """
    seen_whole = isinstance(canary, DirectionCanary) or dpsgd.optimizer is Optimizer.ADAM
    if not is_linear(module) or seen_whole or initialisation is not Initialisation.ZEROS:
        return None
    features = table.features
    vectors = torch.cat([features, features.new_ones(len(features), 1)], dim=1)[: table.null]
    if placement.gradient is not None:
        gradient = as_matrix(placement.gradient.unsqueeze(0), features.shape[1])[0]
        touched = gradient[gradient.any(dim=1)].to(features.device)
        vectors = torch.cat([vectors[: table.canary], touched])
    return spanning_basis(vectors)


def is_linear(module: nn.Module) -> bool:
    """Whether the linear path knows the module."""
    return type(module) is nn.Linear and module.bias is not None


def _is_perceptron(module: nn.Module) -> bool:
    if type(module) is not nn.Sequential:
        return False
    layers = list(module)
    alternate = len(layers) % 2 == 1 and all(is_linear(layer) for layer in layers[::2])
    return alternate and all(type(layer) in ACTIVATIONS for layer in layers[1::2])


def _check_width(layer: nn.Module, table: Table) -> None:
    width = table.features.shape[1]
    if layer.in_features != width:
        raise InputError(f"the model takes {layer.in_features} features, the records have {width}")


def _check_outputs(num_outputs: int, table: Table, loss: Loss) -> None:
    classes = int(table.labels.max()) + 1
    if num_outputs == 1 and (loss is Loss.CROSS_ENTROPY or classes > 2):
        raise InputError("a model of one output needs loss binary_cross_entropy and two classes")
    if 1 < num_outputs < classes:
        raise InputError(f"the model has {num_outputs} outputs, the records {classes} classes")
