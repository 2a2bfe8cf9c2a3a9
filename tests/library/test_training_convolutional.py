"""Clipped sums of small convolutional networks against automatic differentiation in float64."""

import copy
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcanary.canaries import GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients import convolutional
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.convolutional import ConvolutionalPath, split_module
from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.losses import record_losses
from dpcanary.training.models import convnet, resnet18
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.settings import Loss, Sampling

NUM_RECORDS, NUM_CLASSES = 14, 3
Conv, Pool, ReLU, Flat, Linear = nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear

ACCEPTED: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, int, int]]] = {
    "convnet": (convnet, (3, 32, 32)),
    "relu first": (
        lambda: nn.Sequential(Conv(2, 4, 3), ReLU(), Pool(2), Flat(), Linear(36, NUM_CLASSES)),
        (2, 8, 8),
    ),
    "no relu": (
        lambda: nn.Sequential(Conv(1, 7, 2), Pool(2), Flat(), Linear(63, NUM_CLASSES)),
        (1, 7, 7),
    ),
    "uneven": (  # kernel, padding, window and image differ by dimension; rows are left over
        lambda: nn.Sequential(
            Conv(3, 7, (3, 4), padding=(1, 2)),
            Pool((3, 2), (2, 3)),
            ReLU(),
            Conv(7, 13, (2, 1), padding=(0, 1)),
            Pool((1, 2), (2, 2)),
            Flat(),
            Linear(13 * 3 * 4, 5),
            nn.Tanh(),
            Linear(5, NUM_CLASSES),
        ),
        (3, 13, 17),
    ),
    "overlapping windows": (
        lambda: nn.Sequential(Conv(2, 3, 3), Pool(3, 2), ReLU(), Flat(), Linear(27, NUM_CLASSES)),
        (2, 9, 9),
    ),
    "wide rows": (
        lambda: nn.Sequential(
            Conv(5, 6, 5), Pool(2), ReLU(), Flat(), Linear(6 * 18, 4), nn.Sigmoid(), Linear(4, 3)
        ),
        (5, 6, 41),
    ),
    "as large as the image": (
        lambda: nn.Sequential(Conv(2, 3, 4, padding=1), Pool(3), ReLU(), Flat(), Linear(3, 3)),
        (2, 4, 4),
    ),
}


# Each with the shape of its images; all of these take the module path.
DECLINED: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "strided": (nn.Sequential(Conv(2, 4, 3, 2), Pool(2), Flat(), Linear(4, 3)), (2, 7, 7)),
    "dilated": (
        nn.Sequential(Conv(2, 4, 3, dilation=2), Pool(2), Flat(), Linear(4, 3)),
        (2, 7, 7),
    ),
    "grouped": (nn.Sequential(Conv(2, 4, 3, groups=2), Pool(2), Flat(), Linear(16, 3)), (2, 6, 6)),
    "no bias": (
        nn.Sequential(Conv(2, 4, 3, bias=False), Pool(2), Flat(), Linear(16, 3)),
        (2, 6, 6),
    ),
    "same padding": (
        nn.Sequential(Conv(2, 4, 3, padding="same"), Pool(2), Flat(), Linear(36, 3)),
        (2, 6, 6),
    ),
    "reflected": (
        nn.Sequential(
            Conv(2, 4, 3, padding=1, padding_mode="reflect"), Pool(2), Flat(), Linear(36, 3)
        ),
        (2, 6, 6),
    ),
    "many channels": (nn.Sequential(Conv(2, 65, 3), Pool(2), Flat(), Linear(260, 3)), (2, 6, 6)),
    "padded pooling": (
        nn.Sequential(Conv(2, 4, 3), Pool(2, padding=1), Flat(), Linear(36, 3)),
        (2, 6, 6),
    ),
    "dilated pooling": (
        nn.Sequential(Conv(2, 4, 3), Pool(2, dilation=2), Flat(), Linear(4, 3)),
        (2, 6, 6),
    ),
    "ceiling": (
        nn.Sequential(Conv(2, 4, 3), Pool(2, ceil_mode=True), Flat(), Linear(36, 3)),
        (2, 7, 7),
    ),
    "small stride": (nn.Sequential(Conv(2, 4, 3), Pool(2, 1), Flat(), Linear(36, 3)), (2, 6, 6)),
    "no pooling": (nn.Sequential(Conv(2, 4, 3), ReLU(), Flat(), Linear(64, 3)), (2, 6, 6)),
    "tanh": (
        nn.Sequential(Conv(2, 4, 3), nn.Tanh(), Pool(2), Flat(), Linear(16, 3)),
        (2, 6, 6),
    ),
    "average": (nn.Sequential(Conv(2, 4, 3), nn.AvgPool2d(2), Flat(), Linear(16, 3)), (2, 6, 6)),
    "two relus": (
        nn.Sequential(Conv(2, 4, 3), ReLU(), Pool(2), ReLU(), Flat(), Linear(16, 3)),
        (2, 6, 6),
    ),
    "pooling first": (
        nn.Sequential(Pool(2), Conv(2, 4, 3), Pool(2), Flat(), Linear(4, 3)),
        (2, 8, 8),
    ),
    "rows of images": (
        nn.Sequential(Conv(2, 4, 3), Pool(2), Flat(2), Flat(), Linear(16, 3)),
        (2, 6, 6),
    ),
    "normalised head": (
        nn.Sequential(Conv(2, 4, 3), Pool(2), Flat(), nn.LayerNorm(16), Linear(16, 3)),
        (2, 6, 6),
    ),
    "head without bias": (
        nn.Sequential(Conv(2, 4, 3), Pool(2), Flat(), Linear(16, 3, bias=False)),
        (2, 6, 6),
    ),
    "nested": (
        nn.Sequential(nn.Sequential(Conv(2, 4, 3), Pool(2)), Flat(), Linear(16, 3)),
        (2, 6, 6),
    ),
    "perceptron": (nn.Sequential(Flat(), Linear(72, 3)), (2, 6, 6)),
    "resnet18": (resnet18(3), (3, 32, 32)),
}


def case(name: str, *, num_records: int = NUM_RECORDS) -> tuple[nn.Sequential, RecordTable]:
    torch.manual_seed(sum(map(ord, name)))
    make, shape = ACCEPTED[name]
    features = torch.randn(num_records, *shape)
    labels = torch.randint(0, NUM_CLASSES, (num_records,))
    return make(), RecordTable(features, labels, num_canaries=1)


def parameters_of(module: nn.Module, runs: int) -> Tensor:
    own = nn.utils.parameters_to_vector(module.parameters()).detach()
    return own + 0.1 * torch.randn(runs, len(own))


def gradients(
    module: nn.Module, row: Tensor, features: Tensor, labels: Tensor, loss: Loss
) -> Tensor:
    """Of single records, by automatic differentiation in float64."""
    module = copy.deepcopy(module).double()
    nn.utils.vector_to_parameters(row.double(), module.parameters())
    found = []
    for x, y in zip(features.double().split(1), labels.split(1), strict=True):
        value = record_losses(module(x), y, loss).sum()
        parts = torch.autograd.grad(value, list(module.parameters()))
        found.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(found)


def clipped(per_record: Tensor, weights: Tensor, max_grad_norm: float) -> Tensor:
    norms = per_record.norm(dim=1).clamp(min=1e-30)
    return (weights.double() * (max_grad_norm / norms).clamp(max=1.0)) @ per_record


def assert_sums(
    module: nn.Sequential,
    table: RecordTable,
    parameters: Tensor,
    *,
    loss: Loss = Loss.CROSS_ENTROPY,
) -> None:
    """Compares sums of three runs with the truth, on shared rows and on lists of each run's own."""
    path = ConvolutionalPath(table, module, loss=loss)
    weights = torch.tensor([[1.0] * 7, [1, 0, 1, 1, 0, 0, 1], [0.0] * 7])
    own = torch.stack([torch.randperm(table.null)[:7] for _ in range(3)])
    own[weights == 0] = table.null
    for rows in (own[0], own):
        truth = [
            gradients(module, row, table.features[picked], table.labels[picked], loss)
            for row, picked in zip(parameters, rows.expand(3, 7), strict=True)
        ]
        middle = float(truth[0].norm(dim=1).median())
        for max_grad_norm in (middle, 1e-3 * middle, math.inf):
            out = torch.full_like(parameters, 7.0)
            path.clipped_sums(parameters, Batch(rows, weights), max_grad_norm, out)
            for run in range(3):
                expected = clipped(truth[run], weights[run], max_grad_norm)
                assert (out[run] - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("name", ACCEPTED)
def test_clipped_sums_are_those_of_single_records(name):
    module, table = case(name)
    assert_sums(module, table, parameters_of(module, 3))


@pytest.mark.parametrize("name", ["convnet", "uneven", "overlapping windows"])
def test_the_first_of_equal_maxima_wins(name):
    """Multiples of 1/8 have exact sums, so both sides see the same ties, also at the ReLU's 0."""
    module, table = case(name)
    features = torch.randint(-1, 2, table.features.shape).float()
    features[4] = 0.0
    table = RecordTable(features, table.labels, num_canaries=1)
    parameters = torch.randint(-1, 2, parameters_of(module, 3).shape) / 8
    assert_sums(module, table, parameters)


@pytest.mark.parametrize("outputs", [1, 2])
def test_binary_cross_entropy(outputs):
    torch.manual_seed(outputs)
    module = nn.Sequential(Conv(2, 4, 3), Pool(2), ReLU(), Flat(), Linear(36, outputs))
    table = RecordTable(torch.randn(14, 2, 8, 8), torch.randint(0, 2, (14,)), num_canaries=1)
    assert_sums(module, table, parameters_of(module, 3), loss=Loss.BINARY_CROSS_ENTROPY)


@pytest.mark.parametrize("most_bytes", [1, 2**20, 2**26])
@pytest.mark.parametrize("name", ["convnet", "uneven"])
def test_sums_and_logits_are_those_of_the_module_path(name, most_bytes, monkeypatch):
    """On more records than are computed at once, and not a multiple of these."""
    monkeypatch.setattr(convolutional, "_BYTES_TOGETHER", most_bytes)
    module, table = case(name, num_records=300)
    ours = ConvolutionalPath(table, module, loss=Loss.CROSS_ENTROPY)
    theirs = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    assert (ours.num_parameters, ours.num_outputs) == (theirs.num_parameters, theirs.num_outputs)
    parameters = parameters_of(module, 2)
    batch = Batch(torch.randperm(299), (torch.rand(2, 299) < 0.95).float())
    for max_grad_norm in (0.5, math.inf):
        found, expected = torch.empty_like(parameters), torch.empty_like(parameters)
        ours.clipped_sums(parameters, batch, max_grad_norm, found)
        theirs.clipped_sums(parameters, batch, max_grad_norm, expected)
        assert (found - expected).norm() <= 1e-5 * expected.norm()
    logits = (path.logits(parameters, table.features) for path in (ours, theirs))
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)


def test_a_run_has_the_same_bits_in_any_company():
    """Among other runs, in another place, in another thread, and beside records of weight 0."""
    module, table = case("convnet", num_records=140)
    path = ConvolutionalPath(table, module, loss=Loss.CROSS_ENTROPY)
    parameters = parameters_of(module, 7)
    rows, ones = torch.randperm(139)[:128], torch.ones(7, 128)
    whole = torch.empty_like(parameters)
    path.clipped_sums(parameters, Batch(rows, ones), 1.0, whole)

    def alone(run: int) -> Tensor:
        more = torch.cat([rows, torch.tensor([table.null])])
        weights = torch.cat([ones[:1], torch.zeros(1, 1)], dim=1)
        out = torch.empty(1, path.num_parameters)
        own = parameters[run][None].clone()  # aligned otherwise than in the block
        path.clipped_sums(own, Batch(more, weights), 1.0, out)
        return out[0]

    with ThreadPoolExecutor(3) as threads:
        assert torch.equal(torch.stack([*threads.map(alone, range(7))]), whole)


def test_runs_do_not_depend_on_blocks_or_threads():
    """Whole runs with an input canary, which adds a row of another weight in each world."""
    rng = np.random.default_rng(0)
    records = Records(rng.standard_normal((30, 2, 8, 8), np.float32), rng.integers(0, 3, 30))
    module = ACCEPTED["relu first"][0]()
    dpsgd = DPSGD(
        noise_multiplier=0.5,
        max_grad_norm=1.0,
        learning_rate=0.5,
        record_steps=(4,),
        sampling=Sampling.FIXED,
        batch_size=9,
        canary_period=2,
    )
    found = [
        train_ensemble(
            module=module,
            records=records,
            canary=InputCanary(-records.features[2], 1, 2),
            dpsgd=dpsgd,
            runs=range(6),
            seed=0,
            keep_parameters=True,
            num_threads=threads,
            runs_at_once=at_once,
        ).parameters
        for threads, at_once in ((1, 6), (1, 1), (2, 4))
    ]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize("place", [0, 460, -1])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_reach_the_sums(place, value):
    """A parameter of the first stage, of the second, and of the head; the other run is finite."""
    module, table = case("convnet")
    path = ConvolutionalPath(table, module, loss=Loss.CROSS_ENTROPY)
    parameters = parameters_of(module, 2)
    parameters[0, place] = value
    out = torch.empty_like(parameters)
    path.clipped_sums(parameters, Batch(torch.arange(8), torch.ones(2, 8)), 1.0, out)
    assert not out[0].isfinite().all()
    assert out[1].isfinite().all()


def test_a_pixel_that_is_not_a_number_reaches_the_sums():
    """It affects the last position of one window alone, and counts as the largest."""
    module, table = case("convnet")
    table.features[1, 0, -1, -1] = math.nan
    path = ConvolutionalPath(table, module, loss=Loss.CROSS_ENTROPY)
    parameters = parameters_of(module, 1)
    for row, finite in ((0, True), (1, False)):
        out = torch.empty_like(parameters)
        path.clipped_sums(parameters, Batch(torch.tensor([row]), torch.ones(1, 1)), 1.0, out)
        assert bool(out.isfinite().all()) == finite


def test_a_run_that_diverges_is_reported():
    rng = np.random.default_rng(0)
    records = Records(rng.standard_normal((30, 2, 8, 8), np.float32), rng.integers(0, 3, 30))
    dpsgd = DPSGD(noise_multiplier=0.5, max_grad_norm=1e20, learning_rate=1e20, record_steps=(6,))
    with pytest.raises(InputError, match="diverged at step"):
        train_ensemble(
            module=ACCEPTED["relu first"][0](),
            records=records,
            canary=GradientCanary(0, 0),
            dpsgd=dpsgd,
            runs=2,
            seed=0,
        )


def test_a_zero_gradient_is_not_divided_by():
    """Without clipping, too; nothing of an image reaches the logits, and the loss is constant."""
    module, table = case("relu first")
    path = ConvolutionalPath(table, module, loss=Loss.CROSS_ENTROPY)
    parameters = torch.zeros(1, path.num_parameters)
    parameters[0, -NUM_CLASSES:] = torch.tensor([200.0, 0.0, 0.0])
    rows = (table.labels == 0).nonzero().squeeze(1)
    for max_grad_norm in (1.0, math.inf):
        out = torch.full_like(parameters, 7.0)
        path.clipped_sums(parameters, Batch(rows, torch.ones(1, len(rows))), max_grad_norm, out)
        assert torch.equal(out, torch.zeros_like(out))


def chosen(module: nn.Module, features: Tensor) -> object:
    """The type of the path that training takes."""
    dpsgd = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.1, record_steps=(1,))
    table = RecordTable(features, torch.zeros(len(features), dtype=torch.int64), num_canaries=1)
    return type(path_of(module, table, dpsgd=dpsgd, basis=None))


@pytest.mark.parametrize("name", ACCEPTED)
def test_small_convolutional_networks_take_this_path(name):
    module, table = case(name)
    assert chosen(module, table.features) is ConvolutionalPath


@pytest.mark.parametrize("name", DECLINED)
def test_other_networks_do_not(name):
    module, shape = DECLINED[name]
    assert split_module(module, shape) is None
    assert chosen(module, torch.randn(4, *shape)) is ModulePath


def test_images_of_another_shape_are_refused_as_by_any_module():
    for shape in ((3, 28, 28), (1, 32, 32), (3, 4, 4)):
        with pytest.raises(InputError, match="does not run on records of shape"):
            chosen(convnet(), torch.randn(4, *shape))
