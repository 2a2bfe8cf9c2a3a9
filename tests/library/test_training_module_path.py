"""Clipped sums of arbitrary modules against per-record differentiation and against Opacus."""

import copy
import math
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.losses import record_losses
from dpcanary.training.models import convnet, resnet18
from dpcanary.training.modules.layer_rules import convolution, linear
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.modules.units import keep_freed_memory, prepared
from dpcanary.training.settings import Loss

NUM_RECORDS, NUM_CLASSES, NUM_TOKENS = 14, 3, 20


class Text(nn.Module):
    """Takes token ids; the head gets the mean of their embeddings."""

    def __init__(self, padding_idx: int | None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 6, padding_idx=padding_idx)
        self.head = nn.Linear(6, NUM_CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens).mean(dim=1))


class Attends(nn.Module):
    """Masked attention whose queries differ from its keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        padded = (x[..., 0] > 1.5) & (torch.arange(5) > 0)  # the first place is always visible
        attended, weights = self.attention(
            self.queries(x), x, x, attn_mask=later, key_padding_mask=padded
        )
        return self.head(attended.mean(dim=1)) + weights.sum(dim=1)[:, :NUM_CLASSES]


class PositionsFirst(nn.Module):
    """A transformer layer that takes the records in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True)
        self.head = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.transpose(0, 1))[-1])


class Scale(nn.Module):
    """A layer that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(self.factor)


class OwnParameter(nn.Module):
    """Has a parameter of its own, so that it is one unit, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(6, 4))
        self.unused = nn.Parameter(torch.randn(2))
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x @ self.matrix))


class Recurs(nn.Module):
    """Calls its layers three times, and one layer never."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(6, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.conv(self.norm(torch.tanh(self.linear(x))).unsqueeze(1)).squeeze(1)
        return self.head(x)


class InPlace(nn.Module):
    """Changes a layer's input and a layer's output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.relu_(self.first(x))
        y = self.norm(self.second(x))
        y += x
        return self.head(torch.tanh(y.mul_(2.0)).mean(dim=(2, 3)))


class UsesAnothersWeight(nn.Module):
    """Also uses the embedding's weight without calling the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 6)
        self.head = nn.Linear(NUM_TOKENS, NUM_CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(dim=1)
        return self.head(nn.functional.linear(x, self.embedding.weight))


class MergesDimensions(nn.Module):
    """Passes records times positions to its linear layer as one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        merged = self.inner(x.flatten(0, 1))
        return self.head(merged.view(len(x), -1, 4).mean(dim=1))


def images(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(NUM_RECORDS, *shape)


def tokens() -> Tensor:
    return torch.randint(0, NUM_TOKENS, (NUM_RECORDS, 9))


def headed(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(NUM_CLASSES))


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(6, NUM_CLASSES), images(6)),
    "no bias": (lambda: nn.Linear(6, NUM_CLASSES, bias=False), images(6)),
    "perceptron": (lambda: headed(nn.Linear(6, 9)), images(6)),
    "few positions": (lambda: headed(nn.Linear(6, 9)), images(2, 6)),
    "many positions": (lambda: headed(nn.Linear(6, 5)), images(2, 7, 6)),
    "convnet": (convnet, images(3, 32, 32)),
    "strided": (lambda: headed(nn.Conv2d(2, 4, (4, 3), (2, 3), (2, 1))), images(2, 11, 13)),
    "stride above kernel": (lambda: headed(nn.Conv2d(2, 4, 2, 3)), images(2, 9, 7)),
    "dilated": (lambda: headed(nn.Conv2d(2, 4, 3, (3, 1), dilation=(2, 3))), images(2, 12, 11)),
    "grouped": (lambda: headed(nn.Conv2d(4, 6, 3, groups=2, bias=False)), images(4, 8, 8)),
    "few places": (lambda: headed(nn.Conv2d(4, 60, 3, 2, groups=2)), images(4, 6, 6)),
    "reflected": (
        lambda: headed(nn.Conv2d(2, 4, (4, 3), padding="same", padding_mode="reflect")),
        images(2, 6, 6),
    ),
    "sequence": (lambda: headed(nn.Conv1d(4, 5, 4, 3, padding=2, dilation=2)), images(4, 17)),
    "volume": (
        lambda: headed(nn.Conv3d(2, 4, (2, 3, 2), (2, 1, 2), (1, 0, 1), (1, 2, 1))),
        images(2, 6, 7, 5),
    ),
    "norms": (
        lambda: headed(
            nn.Conv2d(3, 4, 3),
            nn.GroupNorm(2, 4),
            nn.ReLU(inplace=True),
            nn.InstanceNorm2d(4, affine=True),
            nn.LayerNorm((6, 6)),
            nn.RMSNorm(6),
        ),
        images(3, 8, 8),
    ),
    "norms without weights": (
        lambda: headed(
            nn.Conv2d(3, 4, 3),
            nn.GroupNorm(2, 4, affine=False),
            nn.InstanceNorm2d(4),
            nn.LayerNorm((6, 6), elementwise_affine=False),
        ),
        images(3, 8, 8),
    ),
    "inplace ReLU": (lambda: headed(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True)), images(2, 6, 6)),
    "in place": (InPlace, images(2, 6, 6)),
    "text": (lambda: Text(None), tokens),
    "padded text": (lambda: Text(0), tokens),
    "transformer": (
        lambda: headed(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)),
        images(5, 8),
    ),
    "positions first": (PositionsFirst, images(5, 8)),
    "attention": (Attends, images(5, 8)),
    "scale": (lambda: headed(nn.Linear(6, 6), Scale()), images(6)),
    "own parameter": (OwnParameter, images(6)),
    "transposed": (lambda: headed(nn.ConvTranspose2d(2, 3, 3)), images(2, 4, 4)),
    "recurs": (Recurs, images(6)),
    "anothers weight": (UsesAnothersWeight, tokens),
    "merges": (MergesDimensions, images(5, 8)),
}


def table_of(features: Tensor, labels: Tensor) -> RecordTable:
    """A table whose last record but one is the only slot's canary; the last fills up batches."""
    return RecordTable(features, labels, num_canaries=1)


def case(name: str, *, labels: int = NUM_CLASSES) -> tuple[nn.Module, RecordTable]:
    """A module of the zoo with all layers initialised, and records for it."""
    torch.manual_seed(sum(map(ord, name)))
    make, draw = ZOO[name]
    module, features = make(), draw()
    module(features[:2].clone())
    return module, table_of(features, torch.randint(0, labels, (NUM_RECORDS,)))


def parameters_of(module: nn.Module, runs: int) -> Tensor:
    """Random parameters around the module's own, shape (runs, parameters)."""
    own = nn.utils.parameters_to_vector(module.parameters()).detach()
    return own + 0.1 * torch.randn(runs, len(own))


def gradients(
    module: nn.Module, row: Tensor, features: Tensor, labels: Tensor, loss: Loss
) -> Tensor:
    """Gradients by automatic differentiation, one record at a time; returned as float64."""
    module = copy.deepcopy(module)
    nn.utils.vector_to_parameters(row, module.parameters())
    found = []
    for x, y in zip(features.split(1), labels.split(1), strict=True):
        parts = torch.autograd.grad(
            record_losses(module(x.clone()), y, loss).sum(),
            list(module.parameters()),
            materialize_grads=True,
            allow_unused=True,
        )
        found.append(torch.cat([part.flatten() for part in parts]).double())
    return torch.stack(found)


def clipped(gradients: Tensor, weights: Tensor, max_grad_norm: float) -> Tensor:
    norms = gradients.norm(dim=1).clamp(min=1e-30)
    return (weights * (max_grad_norm / norms).clamp(max=1.0)) @ gradients


def assert_sums(
    module: nn.Module, table: RecordTable, *, vectorised: bool, loss: Loss = Loss.CROSS_ENTROPY
) -> None:
    """Compares clipped sums of three runs with the truth, on shared rows and on each run's own."""
    path = ModulePath(module, table, loss, vectorise_runs=vectorised)
    assert path.vectorises == vectorised
    parameters = parameters_of(module, 3)
    weights = torch.tensor([[1.0] * 6, [1, 0, 1, 1, 0, 0], [0.0] * 6])
    own = torch.stack([torch.randperm(NUM_RECORDS - 1)[:6] for _ in range(3)])
    own[weights == 0] = table.null
    for rows in (own[0], own):
        truth = [
            gradients(module, row, table.features[picked], table.labels[picked], loss)
            for row, picked in zip(parameters, rows.expand(3, 6), strict=True)
        ]
        middle = float(truth[0].norm(dim=1).median())
        for max_grad_norm in (middle, math.inf):
            out = torch.full_like(parameters, 7.0)
            path.clipped_sums(parameters, Batch(rows, weights), max_grad_norm, out)
            for run in range(3):
                expected = clipped(truth[run], weights[run].double(), max_grad_norm)
                assert (out[run] - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_clipped_sums_are_those_of_single_records(name, vectorised):
    assert_sums(*case(name), vectorised=vectorised)


# Cases in which a unit without a rule is differentiated; their units, or None if these are layers.
DIFFERENTIATED: dict[str, tuple[str, ...] | None] = {
    "scale": None,
    "transposed": None,
    "recurs": None,
    "own parameter": ("",),
    "anothers weight": ("",),
    "merges": ("",),
}


@pytest.mark.parametrize("name", ZOO)
def test_layers_are_units(name, monkeypatch):
    """Without this test, a wrong rule could go unnoticed, as the parent replaces the layer."""

    def refused(*_: object) -> None:
        raise AssertionError("a layer has no rule")

    if name not in DIFFERENTIATED:
        monkeypatch.setattr("dpcanary.training.modules.layer_rules.any_layer", refused)
    module, table = case(name)
    found = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False).unit_names
    layers = tuple(
        name
        for name, layer in prepared(module).named_modules()
        if any(parameter is not None for parameter in layer._parameters.values())
    )
    assert found == (DIFFERENTIATED.get(name) or layers)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_runs_take_turns_if_the_module_cannot_be_vectorised():
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, NUM_CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    table = table_of(torch.randn(NUM_RECORDS, 4, 6), torch.randint(0, 3, (NUM_RECORDS,)))
    module = Reads()
    assert not ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=True).vectorises
    assert_sums(module, table, vectorised=False)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("vectorised", [False, True])
def test_binary_cross_entropy(outputs, vectorised):
    torch.manual_seed(outputs)
    module = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, outputs))
    table = table_of(torch.randn(NUM_RECORDS, 6), torch.randint(0, 2, (NUM_RECORDS,)))
    assert_sums(module, table, vectorised=vectorised, loss=Loss.BINARY_CROSS_ENTROPY)


@pytest.mark.parametrize("vectorised", [False, True])
def test_zero_gradients_and_records_of_weight_zero(vectorised):
    """A record of zeros has a zero gradient here; its scale must not become 0 / 0."""
    module = nn.Linear(6, NUM_CLASSES, bias=False)
    table = table_of(torch.randn(NUM_RECORDS, 6), torch.randint(0, 3, (NUM_RECORDS,)))
    table.features[[4, table.null]] = 0.0
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorised)
    parameters = parameters_of(module, 2)
    rows = torch.tensor([[4, table.null], [table.null, table.null]])
    for max_grad_norm in (1.0, math.inf):
        out = torch.full_like(parameters, 7.0)
        weights = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        path.clipped_sums(parameters, Batch(rows, weights), max_grad_norm, out)
        assert torch.equal(out, torch.zeros_like(out))


@pytest.mark.parametrize("name", ["convnet", "transformer", "padded text"])
def test_logits(name):
    module, table = case(name)
    parameters = parameters_of(module, 2)
    expected = []
    for row in parameters:
        nn.utils.vector_to_parameters(row, module.parameters())
        expected.append(module(table.features).detach())
    for vectorised in (False, True):
        path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorised)
        found = path.logits(parameters, table.features)
        torch.testing.assert_close(found, torch.stack(expected), rtol=1e-5, atol=1e-5)
        assert (path.num_outputs, path.num_parameters) == (found.shape[2], parameters.shape[1])


@pytest.mark.parametrize("length", [1, 4, 40])
def test_both_ways_of_a_linear_layer(length):
    """Few positions take products of pairs; many positions keep gradients."""
    inputs, gradient = torch.randn(2, 3, length, 8), torch.randn(2, 3, length, 5)
    found = linear(nn.Linear(8, 5), [inputs], [gradient])
    weight = torch.einsum("rnlo,rnli->rnoi", gradient, inputs).flatten(2)
    truth = torch.cat([weight, gradient.sum(dim=2)], dim=2)
    scales, out = torch.rand(2, 3), torch.empty(2, 45)
    found.write_sums(scales, out)
    torch.testing.assert_close(found.squared_norms, truth.square().sum(dim=2))
    torch.testing.assert_close(out, torch.einsum("rn,rnp->rp", scales, truth))


def test_token_norms_of_a_few_records_at_a_time(monkeypatch):
    monkeypatch.setattr("dpcanary.training.modules.layer_rules._BYTES_OF_PAIRS", 4 * 9 * 9 * 4)
    assert_sums(*case("padded text"), vectorised=False)


@pytest.mark.parametrize("size", [5, 40])
def test_both_ways_of_a_convolution(size, monkeypatch):
    """The byte limit also forces a few records at a time."""
    monkeypatch.setattr("dpcanary.training.modules.layer_rules._CONVOLUTION_CPU_BYTES", 20_000)
    layer = nn.Conv2d(4, 24, 3, (2, 1), 1, groups=2).requires_grad_(False)
    inputs = torch.randn(2, 5, 4, size, 6)
    outputs = torch.stack([layer(x) for x in inputs])
    gradient = torch.randn_like(outputs)
    found = convolution(layer, [inputs], [gradient])
    assert found is not None
    layer.requires_grad_(True)
    truth = torch.stack(
        [
            torch.cat([p.flatten() for p in torch.autograd.grad(layer(x), layer.parameters(), g)])
            for x, g in zip(
                inputs.view(10, 1, 4, size, 6), gradient.flatten(0, 1)[:, None], strict=True
            )
        ]
    ).view(2, 5, -1)
    scales, out = torch.rand(2, 5), torch.empty(2, truth.shape[2])
    found.write_sums(scales, out)
    torch.testing.assert_close(found.squared_norms, truth.square().sum(dim=2), rtol=1e-5, atol=1e-4)
    expected = torch.einsum("rn,rnp->rp", scales, truth)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)


def opacus_sums(
    module: nn.Module, features: Tensor, labels: Tensor, max_grad_norm: float
) -> tuple[Tensor, Tensor]:
    """Per-record gradients, as float64, and their clipped sum, both from Opacus."""
    module = copy.deepcopy(module).train()
    wrapped = GradSampleModule(module, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=max_grad_norm,
        expected_batch_size=len(labels),
        loss_reduction="sum",
    )
    nn.CrossEntropyLoss(reduction="sum")(wrapped(features), labels).backward()
    per_record = torch.cat([p.grad_sample.flatten(1) for p in module.parameters()], dim=1)
    optimizer.clip_and_accumulate()
    summed = torch.cat([p.summed_grad.flatten() for p in module.parameters()])
    return per_record.double(), summed


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("name", ["convnet", "resnet18", "transformer"])
def test_opacus_agrees(name):
    torch.manual_seed(5)
    module, features = {
        "convnet": (convnet(), torch.randn(8, 3, 32, 32)),
        "resnet18": (resnet18(), torch.randn(3, 3, 32, 32)),
        "transformer": (case("transformer")[0], torch.randn(8, 5, 8)),
    }[name]
    module = ModuleValidator.fix(module)  # Opacus has an attention of its own
    table = table_of(features, torch.randint(0, 3, (len(features),)))
    per_record, _ = opacus_sums(module, features, table.labels, 1.0)
    norms = per_record.norm(dim=1)
    max_grad_norm = float(norms.median()) * 0.99
    _, expected = opacus_sums(module, features, table.labels, max_grad_norm)
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    row = nn.utils.parameters_to_vector(module.parameters()).detach()
    out = torch.empty(1, len(row))
    batch = Batch(torch.arange(len(features)), torch.ones(1, len(features)))
    path.clipped_sums(row[None], batch, max_grad_norm, out)
    truth = clipped(per_record, batch.weights[0].double(), max_grad_norm)
    assert (out[0] - truth).norm() <= 1e-5 * truth.norm()
    # Opacus sums the squares of millions of numbers in single precision.
    tolerance = 1e-4 if name == "resnet18" else 1e-5
    assert (out[0] - expected).norm() <= tolerance * expected.norm()


def test_threads_share_a_path():
    """Runs get the same sums at the same time as one after the other."""
    module, table = case("convnet")
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    parameters = parameters_of(module, 12)
    batch = Batch(torch.arange(8), torch.ones(12, 8))
    alone = torch.empty_like(parameters)
    path.clipped_sums(parameters, batch, 1.0, alone)
    together = torch.empty_like(parameters)

    def work(run: int) -> None:
        own = Batch(batch.rows, batch.weights[:1])
        for _ in range(5):
            path.clipped_sums(parameters[run][None], own, 1.0, together[run][None])

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(12)))
    assert torch.equal(alone, together)


def test_a_layer_that_pytorch_vectorises_wrongly_takes_turns():
    """The derivative of PReLU mixes runs and records up unless there are as many of both."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.PReLU(4), nn.Flatten(), nn.Linear(16, 3))
    table = table_of(torch.randn(6, 3, 4, 4), torch.randint(0, 3, (6,)))
    batch, parameters = Batch(torch.arange(5), torch.ones(2, 5)), parameters_of(module, 2)
    found = []
    for vectorise in (True, False):
        path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorise)
        out = torch.empty_like(parameters)
        path.clipped_sums(parameters, batch, 0.1, out)
        found.append(out)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("vectorise", [False, True], ids=["in turns", "together"])
@pytest.mark.parametrize("name", ["convnet", "norms", "text"])
def test_sums_without_clipping_need_no_norms(name, vectorise):
    """A norm that clips nothing takes the way of clipped sums."""
    module, table = case(name)
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorise)
    parameters = parameters_of(module, 3)
    batch = Batch(torch.arange(8), torch.tensor([[1.0] * 8, [0.0] * 8, [0.5, 2.0] * 4]))
    clipped, unclipped = torch.empty_like(parameters), torch.empty_like(parameters)
    path.clipped_sums(parameters, batch, 1e20, clipped)
    path.clipped_sums(parameters, batch, math.inf, unclipped)
    assert (clipped - unclipped).norm() <= 1e-5 * clipped.norm()
    assert not unclipped[1].any()


def test_the_users_module_is_not_changed():
    module, table = case("norms")
    before = parameters_of(module, 0), [copy.deepcopy(p) for p in module.parameters()]
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    rows = parameters_of(module, 2)
    path.clipped_sums(rows, Batch(torch.arange(4), torch.ones(2, 4)), 1.0, torch.empty_like(rows))
    for parameter, old in zip(module.parameters(), before[1], strict=True):
        assert torch.equal(parameter, old)
        assert parameter.requires_grad
        assert parameter.grad is None
    assert module[2].inplace
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


class Squashed(nn.Module):
    """A large layer that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512) / 20)

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.tanh(self.weight)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


@pytest.mark.parametrize("generic", [False, True])
def test_no_tensor_holds_records_times_parameters(generic, monkeypatch):
    """No tensor is near the size of all 20 gradients, for a layer with a rule and one without."""
    monkeypatch.setattr("dpcanary.training.modules.layer_rules._CPU_BYTES", 1 << 21)
    module = nn.Sequential(
        Squashed() if generic else nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 2)
    )
    table = table_of(torch.randn(20, 512), torch.randint(0, 2, (20,)))
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    parameters = parameters_of(module, 1)
    out = torch.empty_like(parameters)
    with Largest() as largest:
        path.clipped_sums(parameters, Batch(torch.arange(20), torch.ones(1, 20)), 1.0, out)
    assert 512 * 512 <= largest.numbers <= 3 * path.num_parameters


def test_freed_memory_is_kept():
    """Without the setting, each of the tensors would take 2048 new pages."""
    if not keep_freed_memory():
        pytest.skip("another C library")

    def pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.zeros(1 << 21)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages()
    assert pages() < 2048


@pytest.mark.parametrize("vectorise_runs", [False, True])
def test_a_batch_that_does_not_fit_is_split(vectorise_runs, monkeypatch):
    module, table = case("convnet")
    path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorise_runs)
    start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    parameters = torch.stack([start, 0.9 * start])
    count = len(table.labels) - 2
    rows = torch.stack([torch.arange(count), torch.arange(count).flip(0)])
    batch = Batch(rows, torch.ones(2, count))
    whole, parts = torch.empty_like(parameters), torch.empty_like(parameters)
    path.clipped_sums(parameters, batch, 0.7, whole)
    monkeypatch.setattr("dpcanary.training.modules.module_path._BYTES_AT_ONCE", 1)
    path.clipped_sums(parameters, batch, 0.7, parts)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-5 * float(whole.abs().max()))


def test_bytes_of_a_run():
    module, table = case("convnet")
    alone = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=False)
    assert alone.bytes_per_run(128) == 4 * alone.num_parameters  # the sums
    together = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=True)
    growth = together.bytes_per_run(129) - together.bytes_per_run(128)
    # At least twice the layers' inputs and outputs, but not all parameters of every record.
    assert 2 * 4 * (3072 + 4704 + 1176 + 1600 + 400) < growth < 4 * together.num_parameters * 4
    assert (alone.runs_together, together.runs_together) == (1, None)


def test_architectures_have_their_published_sizes():
    sizes = {convnet: 62_006, resnet18: 11_173_962}
    for make, size in sizes.items():
        assert sum(parameter.numel() for parameter in make(10).parameters()) == size
        assert make(7)(torch.randn(2, 3, 32, 32)).shape == (2, 7)
