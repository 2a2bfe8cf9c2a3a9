"""DP-SGD in its plainest form: gradients of single records, in double precision, in a loop.

What the library computes for many models at once is compared with this, for every model below.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus.layers import DPRNN, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.randomness import philox_key
from dpcanary.data.canaries import Canary, DirectionCanary, InputCanary
from dpcanary.data.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import RecordTable
from dpcanary.training.kernels import philox
from dpcanary.training.models import convnet
from dpcanary.training.training_settings import Loss, Optimizer, Sampling

CROSS_ENTROPY, BINARY = Loss.CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY
SQUARED = Loss.SQUARED_ERROR
NUM_TOKENS = 20
# The loss and the number of outputs by name. With one output there are two classes.
OUTPUTS = {
    "softmax 2": (CROSS_ENTROPY, 2), "softmax 3": (CROSS_ENTROPY, 3),
    "softmax 10": (CROSS_ENTROPY, 10), "sigmoid 1": (BINARY, 1), "sigmoid 3": (BINARY, 3),
    "sigmoid 4": (BINARY, 4), "logistic": (Loss.LOGISTIC, 1), "numbers": (SQUARED, 1),
}  # fmt: skip
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def covering(axes: Sequence[Sequence[Any]], possible: Callable[..., bool]) -> list[tuple]:
    """A few choices, found greedily, such that every possible pair of values occurs in one."""
    choices = [choice for choice in product(*axes) if possible(*choice)]
    positions = [{value: i for i, value in enumerate(axis)} for axis in axes]
    indices = np.array([[p[v] for p, v in zip(positions, c, strict=True)] for c in choices])
    size = max(len(axis) for axis in axes)
    pairs = np.stack(
        [
            (number * size + indices[:, a]) * size + indices[:, b]
            for number, (a, b) in enumerate(combinations(range(len(axes)), 2))
        ],
        axis=1,
    )  # of each choice, the number of each of its pairs of values
    missing = np.zeros(pairs.max() + 1, dtype=bool)
    missing[pairs] = True
    rng, covering_choices = np.random.default_rng(0), []
    while missing.any():
        candidates = rng.permutation(len(choices))[:300]
        best = candidates[missing[pairs[candidates]].sum(axis=1).argmax()]
        covering_choices.append(choices[best])
        missing[pairs[best]] = False
    return covering_choices


class Net(nn.Module):
    """Layers and parameters by name, and a function of them and of a batch."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(self, *inputs, **named)


class Scale(nn.Module):
    """A layer that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.tanh(self.factor)


def masked_attention(net: Net, x: Tensor) -> Tensor:
    """The queries differ from keys and values. The first position is always visible."""
    later = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1)
    padded = (x[..., 0] > 1.5) & (torch.arange(5, device=x.device) > 0)
    attended, weights = net.attention(
        net.queries(x), x, x, attn_mask=later, key_padding_mask=padded
    )
    logits = net.head(attended.mean(dim=1))
    return logits + weights.sum(dim=1)[:, torch.arange(logits.shape[1]) % 5]


def three_calls(net: Net, x: Tensor) -> Tensor:
    """Calls its layers three times, and one layer never."""
    for _ in range(3):
        x = net.conv(net.norm(torch.tanh(net.linear(x))).unsqueeze(1)).squeeze(1)
    return net.head(x)


def changes_in_place(net: Net, x: Tensor) -> Tensor:
    """Changes a layer's input and a layer's output in place."""
    x = nn.functional.relu_(net.first(x))
    y = net.norm(net.second(x))
    y += x
    return net.head(torch.tanh(y.mul_(2.0)).mean(dim=(2, 3)))


def twice(net: Net, x: Tensor) -> Tensor:
    """Calls one convolution twice, beside layers that have rules and one that has none."""
    x = torch.tanh(net.norm(net.first(x)))
    return net.head(net.scale(net.shared(torch.tanh(net.shared(x)))).mean(dim=(2, 3)))


def mean_of_embeddings(net: Net, tokens: Tensor) -> Tensor:
    return net.head(net.embedding(tokens).mean(dim=1))


def both_ways(net: Net, tokens: Tensor) -> Tensor:
    """Gives the recurrent layer a state, and takes its outputs and one of its last states."""
    steps = net.embedding(tokens).transpose(0, 1)
    outputs, last = net.gru(steps, steps.new_full((2, len(tokens), 5), 0.3))
    return net.head(torch.cat([outputs.mean(dim=0), last[1]], dim=1))


def perceptron(*layers: int | type[nn.Module]) -> Callable[[int], nn.Module]:
    """Layers of these widths, with activations between them; the outputs come last."""

    def make(outputs: int) -> nn.Module:
        parts: list[nn.Module] = []
        width = layers[0]
        for layer in (*layers[1:], outputs):
            if isinstance(layer, int):
                parts.append(nn.Linear(width, layer))
                width = layer
            else:
                parts.append(layer())
        return nn.Sequential(*parts)

    return make


def headed(*make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """Layers before tanh and a linear head."""
    return lambda k: nn.Sequential(
        *(layer() for layer in make), nn.Tanh(), nn.Flatten(), nn.LazyLinear(k)
    )


def convolutions(*make: Callable[[], nn.Module]) -> Callable[[int], nn.Module]:
    """Layers before a linear head."""
    return lambda k: nn.Sequential(*(layer() for layer in make), nn.Flatten(), nn.LazyLinear(k))


Conv, Pool, ReLU, Linear = nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Linear
MODULE = ("module in turns", "module together")
LINEAR = ("linear", *MODULE)
PERCEPTRON = ("small perceptron", "perceptron", *MODULE)
CONVOLUTIONAL = ("convolutional", *MODULE)


@dataclass(frozen=True)
class Model:
    """An architecture, the shape of its records, and the paths that compute its gradients.

    The first path is the one that training on the host takes. No shape stands for token ids.
    """

    make: Callable[[int], nn.Module]
    shape: tuple[int, ...] = ()
    paths: tuple[str, ...] = MODULE

    def module(self, outputs: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            module = self.make(outputs)
            module(self.features(2))  # gives lazy layers their shapes
        return module

    def features(self, count: int, seed: int = 0) -> Tensor:
        """Records whose gradient norms spread widely."""
        rng = np.random.default_rng(seed)
        if not self.shape:
            return torch.from_numpy(rng.integers(0, NUM_TOKENS, (count, 9)))
        scale = np.exp(rng.normal(0.0, 0.7, (count, *(1 for _ in self.shape))))
        return torch.from_numpy((rng.normal(size=(count, *self.shape)) * scale).astype(np.float32))


def net(
    function: Callable[[Net, Tensor], Any], shape: tuple[int, ...], width: int, **make: Callable
) -> Model:
    """A `Net` whose head has so many inputs; its other parts are made by functions."""
    return Model(
        lambda k: Net(function, **{n: m() for n, m in make.items()}, head=Linear(width, k)), shape
    )


# Widths (with the bias) lie below, at and above multiples of 16, to which rows are padded.
MODELS = {
    "linear 1": Model(lambda k: Linear(1, k), (1,), LINEAR),
    "linear 6": Model(lambda k: Linear(6, k), (6,), LINEAR),
    "linear 15": Model(lambda k: Linear(15, k), (15,), LINEAR),
    "linear 33": Model(lambda k: Linear(33, k), (33,), (*LINEAR, "linear in a basis")),
    "no hidden layer": Model(perceptron(6), (6,), PERCEPTRON),
    "one of everything": Model(perceptron(1, 1, nn.Sigmoid), (1,), PERCEPTRON),
    "tanh": Model(perceptron(6, 9, nn.Tanh, 4, nn.Tanh), (6,), PERCEPTRON),
    "relu": Model(perceptron(9, 7, ReLU, 5, ReLU), (9,), PERCEPTRON),
    "three kinds": Model(perceptron(4, 6, nn.Tanh, 5, nn.Sigmoid, 7, ReLU), (4,), PERCEPTRON),
    # The compiled pass takes 16 numbers at a time, and widths up to 64.
    "16 at a time": Model(perceptron(15, 16, nn.Tanh, 17, nn.Sigmoid), (15,), PERCEPTRON),
    "widest": Model(perceptron(64, 64, nn.Tanh, 63, ReLU), (64,), PERCEPTRON),
    "wide": Model(perceptron(65, 5, nn.Tanh), (65,), PERCEPTRON[1:]),
    "convnet": Model(convnet, (3, 32, 32), CONVOLUTIONAL),
    "relu first": Model(
        lambda k: nn.Sequential(Conv(2, 4, 3), ReLU(), Pool(2), nn.Flatten(), Linear(36, k)),
        (2, 8, 8), CONVOLUTIONAL,
    ),
    "no relu": Model(
        convolutions(lambda: Conv(1, 7, 2), lambda: Pool(2)), (1, 7, 7), CONVOLUTIONAL
    ),
    # Kernel, padding, window and image differ by dimension; rows are left over.
    "uneven": Model(lambda k: nn.Sequential(
        *(Conv(3, 7, (3, 4), padding=(1, 2)), Pool((3, 2), (2, 3)), ReLU()),
        *(Conv(7, 13, (2, 1), padding=(0, 1)), Pool((1, 2), (2, 2)), nn.Flatten()),
        *(Linear(13 * 3 * 4, 5), nn.Tanh(), Linear(5, k)),
    ), (3, 13, 17), CONVOLUTIONAL),
    "overlapping windows": Model(
        convolutions(lambda: Conv(2, 3, 3), lambda: Pool(3, 2), ReLU), (2, 9, 9), CONVOLUTIONAL
    ),
    "wide rows": Model(lambda k: nn.Sequential(
        *(Conv(5, 6, 5), Pool(2), ReLU(), nn.Flatten(), Linear(108, 4), nn.Sigmoid(), Linear(4, k)),
    ), (5, 6, 41), CONVOLUTIONAL),
    "as large as the image": Model(
        convolutions(lambda: Conv(2, 3, 4, padding=1), lambda: Pool(3), ReLU), (2, 4, 4),
        CONVOLUTIONAL,
    ),
    "no bias": Model(lambda k: Linear(6, k, bias=False), (6,)),
    "few positions": Model(headed(lambda: Linear(6, 9)), (2, 6)),
    "many positions": Model(headed(lambda: Linear(6, 5)), (2, 7, 6)),
    "strided": Model(headed(lambda: Conv(2, 4, (4, 3), (2, 3), (2, 1))), (2, 11, 13)),
    "stride above kernel": Model(headed(lambda: Conv(2, 4, 2, 3)), (2, 9, 7)),
    "dilated": Model(headed(lambda: Conv(2, 4, 3, (3, 1), dilation=(2, 3))), (2, 12, 11)),
    "grouped": Model(headed(lambda: Conv(4, 6, 3, groups=2, bias=False)), (4, 8, 8)),
    "few places": Model(headed(lambda: Conv(4, 60, 3, (2, 1), 1, groups=2)), (4, 6, 3)),
    "reflected": Model(
        headed(lambda: Conv(2, 4, (4, 3), padding="same", padding_mode="reflect")), (2, 6, 6)
    ),
    "sequence": Model(headed(lambda: nn.Conv1d(4, 5, 4, 3, padding=2, dilation=2)), (4, 17)),
    "volume": Model(
        headed(lambda: nn.Conv3d(2, 4, (2, 3, 2), (2, 1, 2), (1, 0, 1), (1, 2, 1))), (2, 6, 7, 5)
    ),
    "norms": Model(headed(
        *(lambda: Conv(3, 4, 3), lambda: nn.GroupNorm(2, 4, eps=0.1)),
        *(lambda: ReLU(inplace=True), lambda: nn.InstanceNorm2d(4, affine=True, eps=0.1)),
        *(lambda: nn.LayerNorm((6, 6), eps=0.1), lambda: nn.RMSNorm(6, eps=0.1)),
    ), (3, 8, 8)),
    "norms without weights": Model(headed(
        *(lambda: Conv(3, 4, 3), lambda: nn.GroupNorm(2, 4, affine=False)),
        *(lambda: nn.InstanceNorm2d(4), lambda: nn.LayerNorm(6, elementwise_affine=False)),
    ), (3, 8, 8)),
    "inplace ReLU": Model(headed(lambda: Conv(2, 4, 3), lambda: ReLU(inplace=True)), (2, 6, 6)),
    "in place": net(
        changes_in_place, (2, 6, 6), 4, first=lambda: Conv(2, 4, 3),
        second=lambda: Conv(4, 4, 3, padding=1), norm=lambda: nn.GroupNorm(2, 4),
    ),
    "text": net(mean_of_embeddings, (), 6, embedding=lambda: nn.Embedding(NUM_TOKENS, 6)),
    "padded text": net(
        mean_of_embeddings, (), 6, embedding=lambda: nn.Embedding(NUM_TOKENS, 6, padding_idx=0)
    ),
    "transformer": Model(
        headed(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)), (5, 8)
    ),
    "positions first": net(
        lambda net, x: net.head(net.layer(x.transpose(0, 1))[-1]), (5, 8), 8,
        layer=lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, norm_first=True),
    ),
    "attention": net(
        masked_attention, (5, 8), 8, queries=lambda: Linear(8, 8),
        attention=lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "attention of Opacus": net(
        lambda net, x: net.head(net.attention(x, x, x)[0].mean(dim=1)), (5, 8), 8,
        attention=lambda: DPMultiheadAttention(8, 2, batch_first=True),
    ),
    "scale": Model(headed(lambda: Linear(6, 6), Scale), (6,)),
    # A parameter of its own makes it one unit. Nothing uses the other one.
    "own parameter": net(
        lambda net, x: net.head(torch.tanh(x @ net.matrix)), (6,), 4,
        matrix=lambda: nn.Parameter(torch.randn(6, 4)), unused=lambda: nn.Parameter(torch.randn(2)),
    ),
    "transposed": Model(headed(lambda: nn.ConvTranspose2d(2, 3, 3)), (2, 4, 4)),
    "recurs": net(
        three_calls, (6,), 6, linear=lambda: Linear(6, 6), norm=lambda: nn.LayerNorm(6),
        conv=lambda: nn.Conv1d(1, 1, 3, padding=1), unused=lambda: Linear(2, 2),
    ),
    "twice": net(
        twice, (3, 6, 6), 4, first=lambda: Conv(3, 4, 3, padding=1),
        norm=lambda: nn.GroupNorm(2, 4, eps=0.3),
        shared=lambda: Conv(4, 4, 3, padding=1, bias=False), scale=Scale,
    ),
    # Also uses the embedding's weight without calling the embedding.
    "another's weight": net(
        lambda net, x: net.head(net.embedding(x).mean(dim=1) @ net.embedding.weight.T), (),
        NUM_TOKENS, embedding=lambda: nn.Embedding(NUM_TOKENS, 6),
    ),
    # Passes records times positions to its linear layer as one dimension.
    "merges": net(
        lambda net, x: net.head(net.inner(x.flatten(0, 1)).view(len(x), -1, 4).mean(dim=1)), (5, 8),
        4, inner=lambda: nn.Sequential(Linear(8, 4), nn.Tanh()),
    ),
    "LSTM": net(
        lambda net, x: net.head(net.lstm(x)[0][:, -1]), (4, 6), 5,
        lstm=lambda: nn.LSTM(6, 5, batch_first=True),
    ),
    "deep LSTM": net(
        lambda net, x: net.head(net.lstm(x.transpose(0, 1))[1][0][-1]), (4, 6), 5,
        lstm=lambda: nn.LSTM(6, 5, 2, bias=False),
    ),
    "GRU both ways": net(
        both_ways, (), 15, embedding=lambda: nn.Embedding(NUM_TOKENS, 4),
        gru=lambda: nn.GRU(4, 5, bidirectional=True),
    ),
    "RNN of Opacus": net(
        lambda net, x: net.head(net.rnn(x)[0].mean(dim=1)), (4, 6), 10,
        rnn=lambda: DPRNN(6, 5, 2, batch_first=True, bidirectional=True, nonlinearity="relu"),
    ),
    "PReLU": Model(convolutions(lambda: Conv(3, 4, 3), lambda: nn.PReLU(4)), (3, 4, 4)),
}  # fmt: skip
TAKE_TURNS = {"PReLU"}  # PyTorch mixes runs and records up when it vectorises it


def labels_for(outputs: int, count: int, *, numbers: bool = False) -> NDArray[Any]:
    """Classes, or `numbers`."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, max(2, outputs), count)
    return rng.normal(0.3, 2.0, count).astype(np.float32) if numbers else labels


def table_for(
    model: Model, outputs: int, *, count: int = 13, device: str = "cpu", scale: float = 1.0,
    numbers: bool = False,
) -> RecordTable:  # fmt: skip
    """Private records, one canary, and a null record that is a copy of the first record."""
    features = model.features(count + 1) * (scale if model.shape else 1)
    features = torch.cat([features, features[:1]])
    labels = torch.from_numpy(labels_for(outputs, count + 2, numbers=numbers))
    labels[-1] = 0
    return RecordTable(features.to(device), labels.to(device), num_canaries=1)


def parameters_of(module: nn.Module, runs: int, *, spread: float = 0.1) -> Tensor:
    """Random parameters around the module's own, shape (runs, parameters)."""
    own = parameters_to_vector(module.parameters()).detach()
    noise = np.random.default_rng(1).normal(0.0, spread, (runs, len(own)))
    return own + torch.from_numpy(noise.astype(np.float32))


def plain_loss(logits: Tensor, label: float, loss: Loss) -> Tensor:
    """The loss of one record by its formula."""
    if loss is SQUARED:
        return nn.functional.mse_loss(logits[0], torch.tensor(label, dtype=logits.dtype))
    if loss is CROSS_ENTROPY:
        return torch.logsumexp(logits, 0) - logits[label]
    targets = torch.zeros(len(logits), dtype=torch.bool)
    targets[0 if len(logits) == 1 else label] = label if len(logits) == 1 else True
    return -nn.functional.logsigmoid(torch.where(targets, logits, -logits)).sum() / len(logits)


def in_double(module: nn.Module, row: Tensor) -> nn.Module:
    """A copy of the module in double precision with the parameters `row`, for any records."""
    double = copy.deepcopy(module).double()
    vector_to_parameters(row.double(), double.parameters())
    double.register_forward_pre_hook(
        lambda _, x: x[0].double() if x[0].is_floating_point() else x[0].clone()
    )
    return double


def plain_gradients(
    module: nn.Module, row: Tensor, records: Iterable[tuple[Tensor, float]], loss: Loss
) -> Tensor:
    """Gradient of each record's loss at the parameters `row`, shape (records, parameters)."""
    double = in_double(module, row)
    parameters, gradients = [*double.parameters()], [torch.empty(0, len(row), dtype=torch.float64)]
    for features, label in records:
        own = plain_loss(double(features[None])[0], label, loss)
        parts = torch.autograd.grad(own, parameters, materialize_grads=True, allow_unused=True)
        gradients.append(torch.cat([part.flatten() for part in parts])[None])
    return torch.cat(gradients)


def clipped_sum(gradients: Tensor, weights: Tensor, max_grad_norm: float) -> Tensor:
    """The sum of clipped gradients of shape (records, parameters), weighted."""
    norms = gradients.norm(dim=1).clamp(min=1e-300)
    return (weights.double() * (max_grad_norm / norms).clamp(max=1.0)) @ gradients


def optimiser_of(optimizer: Optimizer, momentum: float) -> Callable[..., torch.optim.Optimizer]:
    """The class of PyTorch's that takes such steps."""
    if optimizer is Optimizer.ADAM:
        return torch.optim.Adam
    return partial(torch.optim.SGD, momentum=momentum if optimizer is Optimizer.MOMENTUM else 0.0)


Vector = NDArray[np.float64]
# What a batch holds: features, a label and, if any, a gradient in place of the record's own.
Entry = tuple[Tensor, float, Tensor | None]
# Purposes of random streams, as the documentation lists them.
BATCHES, FIXED_BATCHES, WORLDS = 2, 7, 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training by its definition, one run, one step and one record at a time."""

    module: nn.Module
    records: Records
    canaries: Sequence[Canary]
    dpsgd: DPSGD
    seed: int
    halves: bool = False

    @property
    def batch_size(self) -> float:
        """What sums are divided by."""
        return self.dpsgd.batch_size or self.dpsgd.sample_rate * len(self.records)

    def worlds(self, run: int) -> list[int]:
        """The run's parity; of several slots, 1 for large words (in halves, the larger half)."""
        if len(self.canaries) == 1:
            return [run % 2]
        words = np.empty((1, len(self.canaries)), np.uint32)
        philox.random_words(words, philox_key(seed=self.seed), 0, np.array([run]), WORLDS)
        least = sorted(words[0])[len(self.canaries) // 2] if self.halves else 2**31
        return [int(word >= least) for word in words[0]]

    def batch(self, run: int, step: int) -> list[Entry]:
        """The records of a run's step, with what the run's world has in place of the targets."""
        drawn, takes_part = self._sampled(run, step)
        entries: list[Entry] = [self.record(record) for record in drawn]
        for canary, world, is_in in zip(self.canaries, self.worlds(run), takes_part, strict=True):
            entry = self._of_slot(canary, world) if is_in else None
            entries += [entry] if entry else []
        return entries

    def record(self, record: int) -> Entry:
        features = torch.from_numpy(self.records.features[record])
        return features, self.records.labels[record].item(), None

    def _sampled(self, run: int, step: int) -> tuple[list[int], list[bool]]:
        """Records other than the targets, and whether each slot takes part."""
        count, targets = len(self.records), [canary.target for canary in self.canaries]
        if self.dpsgd.sampling is Sampling.FIXED:
            size, period = self.dpsgd.batch_size, self.dpsgd.canary_period
            apart = targets if self.dpsgd.adjacency is Adjacency.SUBSTITUTE else []
            others = [record for record in range(count) if record not in apart]
            epoch, piece = divmod(step, len(others) // size)
            key = np.random.SeedSequence(self.seed, spawn_key=(FIXED_BATCHES, epoch))
            order = np.random.Generator(np.random.SFC64(key)).permutation(others)
            inserted = (step + 1) % period == 0
            return order[size * piece :][:size].tolist(), [inserted] * len(targets)
        mask = np.empty((1, count), np.float32)
        threshold = np.uint64(round(self.dpsgd.sample_rate * 2**32))
        key = philox_key(seed=self.seed)
        philox.sample_mask(mask, threshold, key, step, np.array([run]), BATCHES)
        sampled = np.flatnonzero(mask[0]).tolist()
        others = [record for record in sampled if record not in targets]
        return others, [target in sampled for target in targets]

    def _of_slot(self, canary: Canary, world: int) -> Entry | None:
        """What a world trains on in a slot."""
        substitute = self.dpsgd.adjacency is Adjacency.SUBSTITUTE
        target = self.record(canary.target)
        if isinstance(canary, InputCanary):
            crafted = torch.from_numpy(np.asarray(canary.features)), canary.label, None
            return ((target, crafted) if substitute else (crafted, None))[world]
        if world == 1 and not substitute:
            return None
        if isinstance(canary, DirectionCanary):
            gradient = torch.from_numpy(canary.gradient).double()
        else:
            count = sum(parameter.numel() for parameter in self.module.parameters())
            gradient = torch.zeros(count, dtype=torch.float64)
            gradient[canary.coordinate] = self.dpsgd.max_grad_norm
        return *target[:2], -gradient if world == 1 else gradient

    def gradients(self, theta: Vector, entries: Sequence[Entry]) -> Tensor:
        """The gradients of a batch before they are clipped, shape (entries, parameters)."""
        records = [entry[:2] for entry in entries if entry[2] is None]
        row = torch.from_numpy(theta)
        own = plain_gradients(self.module, row, records, self.dpsgd.loss)
        canaries = [entry[2] for entry in entries if entry[2] is not None]
        return torch.cat([own, *(gradient[None] for gradient in canaries)])
