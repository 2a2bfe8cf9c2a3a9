"""Which convolutional networks have compiled kernels, and the shapes of their layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dpcanary.training.gradients.dense_layers import linear_layers

# With 64, a step still takes less than two thirds of the module path's time.
_MOST_CHANNELS = 64
_LEAST_WINDOW = 4  # positions of a pooling window, of which one has a gradient


@dataclass(frozen=True)
class Stage:
    """A convolution, its max pooling and its ReLU.

    Attributes:
        weight_shape: (channels out, channels in, kernel height, kernel width).
        padding: zeros on each side of the image, (vertical, horizontal).
        window: of the pooling: (height, width, vertical stride, horizontal stride).
        relu: whether there is a ReLU.
        output_shape: (channels, height, width).
    """

    weight_shape: tuple[int, int, int, int]
    padding: tuple[int, int]
    window: tuple[int, int, int, int]
    relu: bool
    output_shape: tuple[int, int, int]

    @property
    def num_parameters(self) -> int:
        """Weights and biases."""
        return math.prod(self.weight_shape) + self.weight_shape[0]


def split_module(
    module: nn.Module, shape: tuple[int, ...]
) -> tuple[list[Stage], list[nn.Module]] | None:
    """The stages of a network and the layers of its head; None if any layer is of another kind.

    Args:
        module: an `nn.Sequential` of convolutions, each with a max pooling and maybe a ReLU before
            or after it; then `nn.Flatten`; then what `dense_layers.linear_layers` accepts.
        shape: of a record.
    """
    layers = [*module] if type(module) is nn.Sequential else []
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
    pooling = next((layer for layer in layers if isinstance(layer, nn.MaxPool2d)), None)
    if kinds not in ([nn.MaxPool2d], [nn.MaxPool2d, nn.ReLU], [nn.ReLU, nn.MaxPool2d]):
        return None
    assert isinstance(convolution, nn.Conv2d)
    assert pooling is not None
    if not _has_kernel(convolution, pooling) or convolution.in_channels != shape[0]:
        return None
    assert not isinstance(convolution.padding, str)
    padding = convolution.padding
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
    plain = (
        convolution.stride == convolution.dilation == (1, 1)
        and convolution.groups == 1
        and convolution.bias is not None
        and not isinstance(convolution.padding, str)
        and convolution.padding_mode == "zeros"
        and max(convolution.in_channels, convolution.out_channels) <= _MOST_CHANNELS
    )
    return (
        plain
        and _pair(pooling.padding) == (0, 0)
        and _pair(pooling.dilation) == (1, 1)
        and not pooling.ceil_mode
        and not pooling.return_indices
        and math.prod(_pair(pooling.stride)) >= _LEAST_WINDOW
    )


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
