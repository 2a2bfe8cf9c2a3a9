"""Networks for images: their sizes, and what the layers of ResNet-9 and WRN-16-4 compute."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpcanary.training.models import convnet, resnet18
from dpcanary.training.modules.supported import check_supported
from dpcanary.training.residual_networks import resnet9, wrn16_4


@pytest.mark.parametrize(("make", "size"), [
    (convnet, 62_006), (resnet18, 11_173_962),
    # As many as with batch norm, which has a weight and a bias for each channel too.
    (resnet9, 6_573_130),
    # With batch norm 2,748,890 (Zagoruyko and Komodakis, 2016). De et al. (2022) add a gain and a
    # bias for each of 2,256 filters, and a norm of its own to each of three shortcuts.
    (wrn16_4, 2_748_890 + 2 * 2_256 + 2 * (16 + 64 + 128)),
])  # fmt: skip
def test_networks_have_their_published_sizes(make: Callable[..., nn.Module], size: int) -> None:
    assert sum(parameter.numel() for parameter in make().parameters()) == size
    assert make(7)(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("width", [2, 6, 24])
def test_resnet9_may_be_narrow_and_scales_its_logits(width: int):
    module, images = resnet9(7, width=width), torch.randn(2, 3, 32, 32)
    check_supported(module, images)
    logits = module(images)
    assert logits.shape == (2, 7)
    torch.testing.assert_close(logits, 0.125 * module[:-1](images))
    norms = [layer for layer in module.modules() if isinstance(layer, nn.GroupNorm)]
    assert norms[0].num_channels == width
    assert all(norm.num_channels > norm.num_groups for norm in norms)


def test_blocks_have_shortcuts():
    """What is left where the last layer of a body gives zeros."""
    network, images = wrn16_4(), torch.randn(2, 64, 4, 4)
    check_supported(network, torch.randn(2, 3, 8, 8))
    for block in (network[2], network[3]):
        nn.init.zeros_(block.body[1][2].gain)
    assert torch.equal(network[2](images), images)
    torch.testing.assert_close(network[3](images), network[3].shortcut(images))
    images, block = torch.randn(2, 8, 4, 4), resnet9(3, width=4)[3]
    nn.init.zeros_(block.body[1][1].weight)
    assert torch.equal(block(images), images)


def test_filters_are_standardised():
    """Shifts and scales of a filter change nothing; its gain does."""
    torch.manual_seed(0)
    layer, images = wrn16_4()[0], torch.randn(2, 3, 8, 8)
    weight = layer.weight.detach().numpy().reshape(16, -1)
    plain = (weight - weight.mean(axis=1, keepdims=True)) / weight.std(axis=1, keepdims=True)
    plain = torch.from_numpy((plain / 27**0.5).reshape(16, 3, 3, 3))
    expected = nn.functional.conv2d(images, plain, padding=1)
    torch.testing.assert_close(layer(images), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        layer.weight.mul_(3.0).add_(0.7)
        layer.gain.mul_(2.0)
        layer.bias.fill_(1.0)
    torch.testing.assert_close(layer(images), 2 * expected + 1, rtol=1e-4, atol=1e-5)
    layer.reset_parameters()
    assert torch.equal(layer.gain, torch.ones(16))
    assert torch.equal(layer.bias, torch.zeros(16))
