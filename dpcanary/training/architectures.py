"""The networks that audits of CIFAR-10 train (Cebere et al., 2024)."""

from functools import partial

import torch
from torch import Tensor, nn

_norm = partial(nn.GroupNorm, 32)  # as many groups as Opacus uses in place of batch norm


def convnet(num_classes: int = 10) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) for 3 x 32 x 32 images: 62,006 parameters with ten classes.

    The ReLU comes after the maximum, on a quarter of the values. It is the same function.
    """
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, num_classes),
    )


class _Block(nn.Module):
    """Two convolutions and a shortcut (He et al., 2016)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            _norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            _norm(channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), _norm(channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, channels_in, h, w) to (n, channels, h / stride, w / stride)."""
        return torch.relu(self.body(images) + self.shortcut(images))


def resnet18(num_classes: int = 10) -> nn.Module:
    """ResNet-18 for 3 x 32 x 32 images: 11,173,962 parameters with ten classes.

    It has the form for CIFAR-10 (3 x 3 stem, no pooling after it), and group normalisation in
    place of batch normalisation, which would mix the records of a batch.
    """
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1, bias=False), _norm(64), nn.ReLU()]
    channels_in = 64
    for channels in (64, 128, 256, 512):
        stride = channels // channels_in
        layers += [_Block(channels_in, channels, stride), _Block(channels, channels, stride=1)]
        channels_in = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, num_classes)]
    return nn.Sequential(*layers)
