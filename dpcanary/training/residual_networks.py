"""Networks for metagradients and for audits in one run, after Boglioni et al. (2025)."""

import math

import torch
from torch import Tensor, nn

from dpcanary.errors import InputError


class _Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return self.factor * values


class Residual(nn.Module):
    """Adds a body's outputs to its inputs, or to those of a shortcut where the shape changes."""

    def __init__(self, *layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)
        self.shortcut = shortcut or nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, channels, h, w) to the shape of the body's outputs."""
        total: Tensor = self.body(images) + self.shortcut(images)
        return total


def resnet9(
    num_classes: int = 10,
    *,
    width: int = 64,
    logit_scale: float = 0.125,
    activation: type[nn.Module] = nn.GELU,
) -> nn.Module:
    """ResNet-9 for 3 x 32 x 32 images: 6,573,130 parameters with ten classes and width 64.

    It is made for smooth training (Engstrom et al., 2025): group norm before the activation,
    average pooling, and scaled logits. The activation is our choice: with ReLU, metagradients vary
    more from place to place (docs/metagradients.md has numbers).

    Args:
        num_classes: number of outputs.
        width: channels of the first layer, even; the last has eight times as many.
        logit_scale: factor on the logits. A smaller one needs a larger learning rate.
        activation: after every group norm.
    """
    if width < 2 or width % 2:
        raise InputError(f"width is {width}; ResNet-9 needs an even one of at least 2")

    def layer(ins: int, outs: int) -> nn.Sequential:
        groups = math.gcd(32, outs // 2)  # at width 64: 32, as Opacus takes for batch norm
        return nn.Sequential(
            nn.Conv2d(ins, outs, 3, padding=1, bias=False), nn.GroupNorm(groups, outs), activation()
        )

    return nn.Sequential(
        layer(3, width),
        layer(width, 2 * width),
        nn.AvgPool2d(2),
        Residual(layer(2 * width, 2 * width), layer(2 * width, 2 * width)),
        layer(2 * width, 4 * width),
        nn.AvgPool2d(2),
        layer(4 * width, 8 * width),
        nn.AvgPool2d(2),
        Residual(layer(8 * width, 8 * width), layer(8 * width, 8 * width)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, num_classes),
        _Scaled(logit_scale),
    )


class _StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters have mean 0 and norm `gain` (De et al., 2022)."""

    def __init__(self, ins: int, outs: int, size: int, *, stride: int = 1) -> None:
        super().__init__(ins, outs, size, stride, padding=size // 2)
        self.gain = nn.Parameter(torch.ones(outs))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        assert self.bias is not None
        nn.init.zeros_(self.bias)
        if hasattr(self, "gain"):  # not yet where PyTorch's constructor calls this
            nn.init.ones_(self.gain)

    def forward(self, images: Tensor) -> Tensor:
        filters = self.weight.flatten(1)
        filters = filters - filters.mean(dim=1, keepdim=True)
        norms = filters.square().sum(dim=1).clamp(min=1e-4).sqrt()
        weight = filters * (self.gain / norms).unsqueeze(1)
        weight = weight.view_as(self.weight)
        return nn.functional.conv2d(images, weight, self.bias, self.stride, self.padding)


def _activated(ins: int, outs: int, size: int, *, stride: int = 1) -> nn.Sequential:
    """A layer of De et al.: activation, 16 groups, standardised convolution."""
    convolution = _StandardisedConv2d(ins, outs, size, stride=stride)
    return nn.Sequential(nn.ReLU(), nn.GroupNorm(16, ins), convolution)


def _wide_block(ins: int, outs: int, *, stride: int) -> Residual:
    """Two layers and a shortcut, which is a layer where the shape changes."""
    same = ins == outs and stride == 1
    return Residual(
        _activated(ins, outs, 3, stride=stride),
        _activated(outs, outs, 3),
        shortcut=None if same else _activated(ins, outs, 1, stride=stride),
    )


def wrn16_4(num_classes: int = 10) -> nn.Module:
    """WRN-16-4 for 3 x 32 x 32 images: 2,753,818 parameters with ten classes.

    It is the network of De et al. (2022) in the form of their code: group norm after the
    activation, and standardised filters with a gain and a bias.
    """
    layers: list[nn.Module] = [_StandardisedConv2d(3, 16, 3)]
    ins = 16
    for outs, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [_wide_block(ins, outs, stride=stride), _wide_block(outs, outs, stride=1)]
        ins = outs
    layers += [nn.ReLU(), nn.GroupNorm(16, ins)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(ins, num_classes)]
    return nn.Sequential(*layers)
