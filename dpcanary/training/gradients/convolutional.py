"""Small convolutional networks on the host: compiled convolutions, each with its max pooling.

The loss depends on one position of each pooling window. So the gradients take a quarter of the
arithmetic of the convolutions, or less, and the gradients of single records in the few weights of
the convolutions can be kept: one backward pass gives the norms and then the clipped sums.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.training.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.gradients.perceptron import DenseLayers, is_plain, linear_layers, scales_of
from dpcanary.training.kernels.convolution_kernel import (
    input_gradients,
    pooled_convolutions,
    record_gradients,
)
from dpcanary.training.losses import residuals, target_outputs
from dpcanary.training.modules.units import keep_freed_memory
from dpcanary.training.training_settings import Loss

# With 64, a step still takes less than two thirds of the module path's time.
_MOST_CHANNELS = 64
_LEAST_WINDOW = 4  # positions of a pooling window, of which one has a gradient
# Records of one run that are computed at once, and the bytes of what is kept of them.
_RECORDS_TOGETHER, _BYTES_TOGETHER = 256, 2**26
# Runs of a block: enough to share the cost of drawing its batches.
_RUNS_TOGETHER = 16

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Stage:
    """A convolution, its max pooling and its ReLU."""

    weight_shape: tuple[int, int, int, int]  # channels out, channels in, kernel height and width
    padding: tuple[int, int]  # zeros on each side of the image: vertical, horizontal
    window: tuple[int, int, int, int]  # height, width, vertical stride, horizontal stride
    relu: bool
    output_shape: tuple[int, int, int]  # channels, height, width

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return math.prod(self.weight_shape) + self.weight_shape[0]


def split_module(
    module: nn.Module, shape: tuple[int, ...]
) -> tuple[list[Stage], list[nn.Module]] | None:
    """The stages of a network and the layers of its head; None if a layer is of another kind.

    Args:
        module: an `nn.Sequential` of convolutions, each with a max pooling and maybe a ReLU before
            or after it; then `nn.Flatten`; then what `linear_layers` accepts.
        shape: of a record.
    """
    layers = [*module] if type(module) is nn.Sequential else []
    if not all(map(is_plain, [module, *layers])):
        return None
    flat = next((i for i, layer in enumerate(layers) if type(layer) is nn.Flatten), 0)
    stages: list[Stage] = []
    starts = [i for i, layer in enumerate(layers[:flat]) if type(layer) is nn.Conv2d]
    if len(shape) != 3 or starts[:1] != [0]:
        return None
    for start, stop in zip(starts, [*starts[1:], flat], strict=True):
        stage = _stage(layers[start:stop], shape)
        if stage is None:
            return None
        stages.append(stage)
        shape = stage.output_shape
    flatten, head = layers[flat], layers[flat + 1 :]
    assert isinstance(flatten, nn.Flatten)
    linear = linear_layers(head)
    whole = (flatten.start_dim, flatten.end_dim) in ((1, -1), (1, 3))
    fits = whole and bool(linear) and linear[0].in_features == math.prod(shape)
    return (stages, head) if fits else None


def _stage(layers: Sequence[nn.Module], shape: tuple[int, ...]) -> Stage | None:
    """The stage of these layers on images of this shape; None if it has no kernel."""
    convolution, kinds = layers[0], [type(layer) for layer in layers[1:]]
    if kinds not in ([nn.MaxPool2d], [nn.MaxPool2d, nn.ReLU], [nn.ReLU, nn.MaxPool2d]):
        return None
    assert isinstance(convolution, nn.Conv2d)
    pooling = next(layer for layer in layers if isinstance(layer, nn.MaxPool2d))
    padding = convolution.padding
    if isinstance(padding, str) or not _has_kernel(convolution, pooling):
        return None
    if convolution.in_channels != shape[0]:
        return None
    size, stride = _pair(pooling.kernel_size), _pair(pooling.stride)
    convolved = [shape[i + 1] + 2 * padding[i] - convolution.kernel_size[i] + 1 for i in (0, 1)]
    height, width = ((convolved[i] - size[i]) // stride[i] + 1 for i in (0, 1))
    if height < 1 or width < 1:
        return None
    outs = convolution.out_channels
    return Stage(
        (outs, convolution.in_channels, *_pair(convolution.kernel_size)),
        (padding[0], padding[1]),
        (*size, *stride),
        nn.ReLU in kinds,
        (outs, height, width),
    )


def _has_kernel(convolution: nn.Conv2d, pooling: nn.MaxPool2d) -> bool:
    return (
        convolution.stride == convolution.dilation == (1, 1)
        and convolution.groups == 1
        and convolution.bias is not None
        and convolution.padding_mode == "zeros"
        and max(convolution.in_channels, convolution.out_channels) <= _MOST_CHANNELS
        and _pair(pooling.padding) == (0, 0)
        and _pair(pooling.dilation) == (1, 1)
        and not pooling.ceil_mode
        and not pooling.return_indices
        and math.prod(_pair(pooling.stride)) >= _LEAST_WINDOW
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class _Images(NamedTuple):
    """What a stage reads and makes."""

    inputs: Floats  # shape (records, channels in, height, width)
    rows: NDArray[np.int64]  # the inputs that it takes, shape (n,)
    maxima: Floats  # its outputs, shape (n, channels out, height, width)
    winners: NDArray[np.int32]  # the positions of the maxima, in the same shape


class ConvolutionalPath(GradientPath):
    """Gradients of networks that `split_module` accepts, one run after the other.

    A row of the buffer holds the parameters in the module's order.
    """

    name = "convolutional"
    shared_above = math.inf  # records outside of a run's batch are not cheap

    def __init__(self, table: RecordTable, module: nn.Sequential, *, loss: Loss) -> None:
        keep_freed_memory()
        split = split_module(module, tuple(table.features.shape[1:]))
        assert split is not None
        self._stages, dense = split
        self._head = DenseLayers(dense)
        self.table, self._loss = table, loss
        self._targets = target_outputs(table.labels, self._head.num_outputs)
        self.num_outputs = self._head.num_outputs
        self._convolved = sum(stage.num_parameters for stage in self._stages)
        self.num_parameters = self._convolved + self._head.num_parameters
        self.runs_together = _RUNS_TOGETHER
        # Maxima, winners and slopes of every stage, and the gradient in its weights.
        images = sum(3 * math.prod(stage.output_shape) for stage in self._stages)
        fitting = _BYTES_TOGETHER // (4 * (images + self._convolved))
        self._records_together = max(1, min(fitting, _RECORDS_TOGETHER))

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """See `GradientPath`."""
        for run, rows in enumerate(batch.rows.expand(len(parameters), -1)):
            # Matrix products round by the alignment of their arguments. Copies are aligned alike,
            # so that a run's sums do not depend on its place in the block.
            row, sums = parameters[run].clone(), torch.zeros(1, self.num_parameters)
            drawn = batch.weights[run].nonzero().squeeze(1)
            for some in torch.split(drawn, self._records_together):
                part = Batch(rows[some], batch.weights[run, some].unsqueeze(0))
                self._add_sums(row, part, max_grad_norm, sums)
            out[run] = sums[0]

    def _add_sums(self, row: Tensor, batch: Batch, max_grad_norm: float, out: Tensor) -> None:
        """Adds the sums of the run with the parameters `row` to `out`, shape (1, parameters)."""
        head = row[None, self._convolved :]
        images = self._forward(row, self.table.features.numpy(), batch.rows.numpy())
        inputs = self._head.forward(head, _flat(images[-1].maxima))
        outputs = inputs.pop()
        slopes = residuals(outputs, self._targets[batch.rows], self._loss, dim=-1)
        gradients = self._head.backward(head, inputs, slopes)
        pulled = self._head.input_gradients(head, gradients[0])
        convolved = self._backward(row, images, pulled)
        norms = convolved.square().sum(dim=1).unsqueeze(0)
        squares = [values.square().sum(dim=-1) for values in inputs]
        self._head.add_squared_norms(gradients, squares, norms)
        scales = scales_of(norms, max_grad_norm, batch.weights)
        out[:, : self._convolved].addmm_(scales, convolved)
        self._head.add_sums(inputs, gradients, scales, out[:, self._convolved :])

    def _forward(self, row: Tensor, inputs: Floats, rows: NDArray[np.int64]) -> list[_Images]:
        """The stages of one run, in order."""
        of_stages = []
        for stage, (weights, biases) in self._weights(row):
            shape = (len(rows), *stage.output_shape)
            maxima = torch.empty(shape).numpy()  # aligned, unlike NumPy's own
            images = _Images(inputs, rows, maxima, np.empty(shape, np.int32))
            pooled_convolutions(
                inputs, rows, weights, biases, stage.padding, stage.window, stage.relu, *images[2:]
            )
            of_stages.append(images)
            inputs, rows = images.maxima, np.arange(len(rows))
        return of_stages

    def _backward(self, row: Tensor, images: list[_Images], pulled: Tensor) -> Tensor:
        """Each record's gradient in the weights of the stages, shape (n, their parameters).

        `pulled` is the gradient in the flat outputs of the last stage, shape (1, n, width).
        """
        stop, gradients = self._convolved, torch.empty(pulled.shape[1], self._convolved)
        slopes = pulled.numpy().reshape(images[-1].maxima.shape)
        stages = [*zip(self._weights(row), images, strict=True)]
        for (stage, (weights, _)), (inputs, rows, maxima, winners) in reversed(stages):
            start = stop - stage.num_parameters
            pooled, size = (slopes, maxima, winners, stage.relu), weights.shape[2:]
            part = gradients[:, start:stop].numpy()
            record_gradients(inputs, rows, *pooled, stage.padding, size, part)
            if start:  # the images themselves need no gradient
                slopes = np.empty_like(inputs)
                input_gradients(*pooled, weights, stage.padding, slopes)
            stop = start
        return gradients

    def _weights(self, row: Tensor) -> Iterator[tuple[Stage, tuple[Floats, Floats]]]:
        """Each stage with its weights and biases, views of one run's parameters."""
        first, flat = 0, row.numpy()
        for stage in self._stages:
            last = first + stage.num_parameters
            outs = stage.weight_shape[0]
            yield (
                stage,
                (flat[first : last - outs].reshape(stage.weight_shape), flat[last - outs : last]),
            )
            first = last

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """See `GradientPath`."""
        logits = torch.empty(len(parameters), len(features), self.num_outputs)
        for run in range(len(parameters)):
            row = parameters[run].clone()  # see `clipped_sums`
            head = row[None, self._convolved :]
            for rows in torch.split(torch.arange(len(features)), self._records_together):
                images = self._forward(row, features.numpy(), rows.numpy())
                logits[run, rows] = self._head.forward(head, _flat(images[-1].maxima))[-1][0]
        return logits

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums, since runs take turns."""
        return 4 * self.num_parameters


def _flat(maxima: Floats) -> Tensor:
    """Features of the head, shape (1, n, width)."""
    return torch.from_numpy(maxima).flatten(1).unsqueeze(0)
