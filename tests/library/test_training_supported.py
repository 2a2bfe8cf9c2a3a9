"""Modules that cannot be trained record by record are refused; the message names the layer."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from one_record_at_a_time import Net as Named
from torch import Tensor, nn

from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.modules.supported import check_outputs, check_parameters, check_supported
from dpcanary.training.slots import table_of
from dpcanary.training.training_settings import Loss


def Net(*layers: nn.Module) -> nn.Module:  # noqa: N802, as its class is called in messages
    return Named(lambda net, x: net.layers(x), layers=nn.Sequential(*layers))


def after_linear(function: Callable) -> nn.Module:
    """A function of the outputs of a linear layer, and of the module."""
    return Named(lambda net, x: function(net.linear(x), net), linear=nn.Linear(4, 4))


class Counts(nn.Module):
    """Has a state that changes in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x


def changed(change: Callable[[nn.Sequential], object]) -> nn.Module:
    net = Net(nn.Linear(4, 4), nn.Linear(4, 4))
    change(net.layers)
    return net


@pytest.mark.parametrize(("module", "message"), [
    (Net(nn.Linear(4, 4), nn.BatchNorm1d(4)),
     r"layer 'layers\.1' \(BatchNorm1d\) mixes .* use GroupNorm"),
    (Net(nn.Linear(4, 4), nn.LazyBatchNorm1d()), r"'layers\.1' \(LazyBatchNorm1d\) mixes"),
    (Net(nn.SyncBatchNorm(4)), r"'layers\.0' \(SyncBatchNorm\) mixes"),
    (Net(nn.Linear(4, 4), nn.InstanceNorm1d(4, track_running_stats=True)),
     r"'layers\.1' \(InstanceNorm1d\) keeps statistics .* GroupNorm"),
    (Net(nn.Linear(4, 4), nn.AlphaDropout(0.1)), r"'layers\.1' \(AlphaDropout\) drops"),
    (Net(nn.MultiheadAttention(4, 2, dropout=0.1, add_bias_kv=True)), r"'layers\.0' .* drops"),
    (nn.LSTM(4, 4, proj_size=2), r"^LSTM: .* nn.LSTM itself, without proj_size"),
    (Net(type("Own", (nn.GRU,), {})(4, 4, 2, dropout=0.1)), r"'layers\.0' \(Own\) drops units"),
    (Net(nn.Embedding(9, 4, max_norm=1.0)), r"'layers\.0' \(Embedding\) .* max_norm to None"),
    (Net(nn.Linear(4, 4), Counts()), r"buffer 'layers\.1\.seen' changes"),
    (Net(nn.utils.spectral_norm(nn.Linear(4, 4))), r"buffer 'layers\.0\.weight_[uv]' changes"),
    (after_linear(lambda x, _: x + torch.rand(())), "outputs are random"),
    (after_linear(lambda x, _: nn.functional.dropout(x, 0.5)), "outputs are random"),
    (after_linear(lambda x, _: x - x.mean(dim=0)), "depends on the other records"),
    (after_linear(lambda x, net: x if net.training else 2 * x), "between training and evaluation"),
    (after_linear(lambda x, _: (x, x)), "returns tuple"),
    (after_linear(lambda x, _: x.sum()), r"returns \(\) for 2 records; .* \(2, outputs\)"),
    (after_linear(lambda x, _: x / 0.0), "not finite"),
    (Net(nn.Linear(5, 4)), r"does not run on records of shape \(4,\)"),
    (after_linear(lambda x, _: {"x": x}["y"]), r"does not run .* torch\.float32: KeyError: 'y'"),
])  # fmt: skip
def test_layers_and_behaviour_that_are_refused(module, message):
    with pytest.raises(InputError, match=message):
        check_supported(module, torch.randn(2, 4))


@pytest.mark.parametrize(("module", "message"), [
    (changed(lambda layers: setattr(layers[1], "weight", layers[0].weight)),
     r"'layers\.0\.weight' and 'layers\.1\.weight' are the same tensor"),
    (changed(lambda layers: layers[0].bias.requires_grad_(False)), r"'layers\.0\.bias' is frozen"),
    (changed(lambda layers: layers[0].bias.data[1].fill_(torch.nan)),
     r"'layers\.0\.bias' is NaN or infinite; initialise the module again"),
    (Net(nn.Linear(4, 4).double()), r"'layers\.0\.weight' is torch\.float64"),
    (Net(nn.Linear(4, 4, dtype=torch.complex64)), r"'layers\.0\.weight' is torch\.complex64"),
    (Net(nn.LazyLinear(4)), r"'layers\.0\.weight' has no shape yet"),
    (Net(nn.Tanh()), "Net has no parameters"),
])  # fmt: skip
def test_parameters_that_are_refused(module, message):
    with pytest.raises(InputError, match=message):
        check_parameters(module)


def test_checks_accept_dropout_and_constant_buffers_and_leave_the_random_state_alone():
    module = Net(nn.Linear(4, 4), nn.Dropout(0.4), nn.ReLU(inplace=True), nn.GroupNorm(2, 4))
    module.register_buffer("constant", torch.ones(1))
    state = torch.random.get_rng_state()
    check_parameters(module)
    check_supported(module, torch.randn(2, 4, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(torch.random.get_rng_state(), state)


def overwrites(x: Tensor, net: nn.Module) -> Tensor:
    """The gradient of the weight needs an input that is overwritten here."""
    y = net.linear(x)
    x += 1.0
    return y


class HasRandomGradients(torch.autograd.Function):
    """No two gradients agree."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(())


def packed(net: nn.Module, x: Tensor) -> Tensor:
    steps = nn.utils.rnn.pack_padded_sequence(x, [3] * len(x), batch_first=True)
    return net.linear(net.gru(steps)[1][-1])


@pytest.mark.parametrize(("module", "shape", "message"), [
    (after_linear(overwrites), (4,), "cannot be differentiated"),
    (after_linear(lambda x, _: HasRandomGradients.apply(x)), (4,),
     "gradients of single records cannot be found"),
    (Named(packed, gru=nn.GRU(4, 5), linear=nn.Linear(5, 3)), (6, 4),
     "packed sequences mix the steps of all records: pad the records"),
    (Named(lambda net, x: net.drop(x.mean(dim=1)) @ net.weight,
           drop=nn.Dropout(0.2), weight=nn.Parameter(torch.ones(4, 3))), (6, 4),
     "'drop' drops units in 'the module', whose gradients are only found as a whole"),
    (nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)), (4,), "takes logits"),
    (after_linear(lambda x, _: x - x.mean(dim=0)), (4,), "depends on the other records"),
])  # fmt: skip
def test_modules_without_gradients_of_single_records_or_logits_are_refused(module, shape, message):
    features = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    features[1] = features[0]
    table = table_of(Records(features, np.arange(6) % 3), [], torch.device("cpu"))
    with pytest.raises(InputError, match=message):
        ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_softmax_before_cross_entropy_is_refused(classes):
    layers, features = (nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, classes)), torch.randn(2, 4)
    with pytest.raises(InputError, match=r"probabilities .* takes logits .* remove the last one"):
        check_outputs(nn.Sequential(*layers, nn.Softmax(dim=1)), features, Loss.CROSS_ENTROPY)
    # Logits, and logarithms of probabilities, which another softmax leaves as they are.
    for right in (nn.Sequential(*layers), nn.Sequential(*layers, nn.LogSoftmax(dim=1))):
        check_outputs(right, features, Loss.CROSS_ENTROPY)
    for loss in (Loss.CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY):
        # One output is no distribution, also where it is 1.
        check_outputs(after_linear(lambda x, _: torch.ones(2, 1)), features, loss)


def test_several_outputs_are_refused_where_the_loss_is_of_one():
    features = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))
    for loss in (Loss.LOGISTIC, Loss.SQUARED_ERROR):
        with pytest.raises(InputError, match=f"loss {loss} needs a model of one output; .* has 3"):
            check_outputs(nn.Linear(4, 3), features, loss)
    squashed = nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())
    check_outputs(squashed, features, Loss.SQUARED_ERROR)  # its outputs are no logits


@pytest.mark.parametrize(("outputs", "loss"), [
    (1, Loss.CROSS_ENTROPY), (3, Loss.CROSS_ENTROPY), (1, Loss.LOGISTIC),
    (1, Loss.BINARY_CROSS_ENTROPY), (3, Loss.BINARY_CROSS_ENTROPY),
])  # fmt: skip
def test_a_sigmoid_before_the_loss_is_refused(outputs, loss):
    layers = nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, outputs)
    features = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))
    for squashes in (nn.Sigmoid(), nn.Hardsigmoid()):
        with pytest.raises(InputError, match=r"between 0 and 1, .* remove what squashes"):
            check_outputs(nn.Sequential(*layers, squashes), features, loss)
    # These could be taken for squashed: far from 0, their outputs here stay between 0 and 1.
    small, saturated = nn.Linear(4, outputs), nn.Linear(3, outputs)
    for layer in (small, saturated):
        nn.init.constant_(layer.weight, 1e-2)
        nn.init.constant_(layer.bias, 0.5)
    assert ((small(features) > 0) & (small(features) < 1)).all()
    for right in (
        nn.Sequential(*layers), nn.Sequential(*layers, nn.Tanh()), small,
        after_linear(lambda x, _: small(x).square().exp() - 1),  # overflows
        nn.Sequential(copy.deepcopy(small), nn.Tanh()),
        nn.Sequential(nn.Linear(4, 3), nn.Tanh(), saturated),
    ):  # fmt: skip
        check_outputs(right, features, loss)
