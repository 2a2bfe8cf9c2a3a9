"""Which gradient path a module takes."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from dpcanary.data.canaries import DirectionCanary, GradientCanary
from dpcanary.errors import InputError
from dpcanary.training.augmentation import check_augmented
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import GradientPath, RecordTable
from dpcanary.training.gradients.convolutional import ConvolutionalPath, split_module
from dpcanary.training.gradients.linear import LinearPath, spanning_basis
from dpcanary.training.gradients.perceptron import (
    PerceptronPath,
    SmallPerceptronPath,
    is_plain,
    is_small,
    linear_layers,
)
from dpcanary.training.losses import check_num_outputs
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.slots import Slots
from dpcanary.training.training_settings import Initialisation, Loss, Optimizer


def path_of(
    module: nn.Module, table: RecordTable, *, dpsgd: DPSGD, basis: Tensor | None
) -> GradientPath:
    """The fastest path that can train the module.

    Args:
        module: the architecture.
        table: the records.
        dpsgd: the mechanism.
        basis: from `basis_of`, for a linear head that is trained in the span of its records.

    Raises:
        InputError: if no path can train the module.
    """
    shape, loss = tuple(table.features.shape[1:]), dpsgd.loss
    if loss.is_of_classes and table.labels.is_floating_point():
        raise InputError(
            f"labels are numbers, and loss {loss} needs classes, which are integers from 0: number"
            " the classes, or train with loss squared_error"
        )
    multiplicity = dpsgd.augmentation_multiplicity
    if multiplicity:
        check_augmented(shape)
    layers = linear_layers(
        [*module] if type(module) is nn.Sequential and is_plain(module) else [module]
    )
    if layers and not table.features.is_floating_point():
        table = replace(table, features=table.features.float())
    path: GradientPath
    on_host = table.features.device.type == "cpu"
    if layers and len(shape) == 1:
        if layers[0].in_features != shape[0]:
            raise InputError(
                f"the model takes {layers[0].in_features} features, the records have {shape[0]}"
            )
        num_outputs = layers[-1].out_features
        # The labels are read before a path is made, because a path makes one-hot vectors of them.
        _check_outputs(num_outputs, table, loss)
        if not isinstance(module, nn.Sequential):
            return LinearPath(table, num_outputs=num_outputs, loss=loss, basis=basis)
        small = is_small(layers, table.features.device)
        return (SmallPerceptronPath if small else PerceptronPath)(table, module, loss=loss)
    if (
        on_host
        and not multiplicity
        and table.features.dtype == torch.float32
        and isinstance(module, nn.Sequential)
        and split_module(module, shape)
    ):
        path = ConvolutionalPath(table, module, loss=loss)
    else:
        if isinstance(module, nn.Linear | nn.Conv2d) and not is_plain(module):
            module = nn.Sequential(
                module
            )  # the layer is then a part, and hooks of parts are heeded
        path = ModulePath(
            module, table, loss, vectorise_runs=not on_host, multiplicity=multiplicity
        )
    _check_outputs(path.num_outputs, table, loss)
    return path


def basis_of(
    module: nn.Module,
    table: RecordTable,
    slots: Slots,
    *,
    dpsgd: DPSGD,
    initialisation: Initialisation,
) -> Tensor | None:
    """A basis in which to train a linear head, where that takes less work; see `linear`.

    The basis spans the records, the input canaries and the gradients of canaries in one coordinate.
    Canaries in any direction, Adam, and a start other than zero need all parameters.
    """
    is_direction = isinstance(slots.canaries[0], DirectionCanary)
    zeros = initialisation is Initialisation.ZEROS
    if is_direction or dpsgd.optimizer is Optimizer.ADAM or not zeros:
        return None
    layers = linear_layers([module])
    if not layers:
        return None
    features = table.features[: table.null].float()
    vectors = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
    # The features whose weights hold a gradient canary; the bias counts as the last feature.
    width = features.shape[1]
    weights = layers[0].out_features * width
    coordinates = [c.coordinate for c in slots.canaries if isinstance(c, GradientCanary)]
    touched = list(dict.fromkeys(c % width if c < weights else width for c in coordinates))
    # A vector along each of their axes. Its length C affects only the rounding.
    units = vectors.new_zeros(len(touched), vectors.shape[1])
    units[torch.arange(len(touched)), touched] = dpsgd.max_grad_norm
    return spanning_basis(torch.cat([vectors, units]))


def _check_outputs(num_outputs: int, table: RecordTable, loss: Loss) -> None:
    check_num_outputs(num_outputs, loss)
    if not loss.is_of_classes:
        return
    classes = int(table.labels.max()) + 1
    if num_outputs == 1 and (loss is Loss.CROSS_ENTROPY or classes > 2):
        raise InputError(
            "a model of one output needs two classes and loss logistic, or loss squared_error"
        )
    if 1 < num_outputs < classes:
        raise InputError(
            f"the model has {num_outputs} outputs, the records and canaries {classes} classes"
        )
