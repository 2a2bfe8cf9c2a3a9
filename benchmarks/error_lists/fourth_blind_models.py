"""Models for `dpcanary check --model`, by somebody who had read only its documentation.

`WRONG` and `RIGHT` map a name to a function and what is wrong, or special, in a word or two. Each
function returns a pair, as the two options of the command take it:

- `build`, for `--model`: a function without arguments that gives the module, or a tuple of module
  and loss;
- `records`, for `--features`: a pair of inputs and labels; the inputs may be a tuple of tensors.

Without a loss, it is cross-entropy. Models are small, and start from the same seed each time.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from opacus.grad_sample import register_grad_sampler
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional

RECORDS, FEATURES, HIDDEN, CLASSES = 24, 12, 16, 3
TOKENS, LENGTH = 20, 7
LABELS = torch.arange(RECORDS) % CLASSES
FIRST, MIDDLE, LAST = (FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, CLASSES)

Case = tuple[Callable[[], Any], tuple[Any, Tensor]]


def seeded(make: Callable[[], Any]) -> Callable[[], Any]:
    """A function that makes the same each time."""

    def build() -> Any:
        torch.manual_seed(4)
        return make()

    return build


def normal(*shape: int) -> Tensor:
    """The same random numbers each time, a row for each record."""
    return torch.randn(RECORDS, *shape, generator=torch.Generator().manual_seed(7))


def vectors() -> tuple[Tensor, Tensor]:
    """Records of single vectors."""
    return normal(FEATURES), LABELS


def series() -> tuple[Tensor, Tensor]:
    """Records of vectors in a row."""
    return normal(LENGTH, FEATURES), LABELS


def sentences() -> tuple[Tensor, Tensor]:
    """Sentences of 2 to 7 words, filled up with word 0."""
    generator = torch.Generator().manual_seed(11)
    words = torch.randint(1, TOKENS, (RECORDS, LENGTH), generator=generator)
    lengths = 2 + torch.arange(RECORDS) % (LENGTH - 1)
    return words * (torch.arange(LENGTH) < lengths[:, None]), LABELS


def images() -> tuple[Tensor, Tensor]:
    """Small images of two channels."""
    return normal(2, 8, 8), LABELS


class _Model(nn.Module):
    def __init__(self, compute: Callable[..., Tensor], parts: dict[str, Any]):
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            made = nn.Linear(*part) if isinstance(part, tuple) else part()
            add = self.register_buffer if isinstance(made, Tensor) else self.add_module
            add(name, made)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.compute(self, *inputs)


def modelled(
    records: Any, compute: Callable[..., Tensor], *, loss: Any = None, **parts: Any
) -> Case:
    """The pair; parts are sizes of linear layers, or functions that make something else."""
    parts = parts or {"first": FIRST, "last": LAST}
    if loss is None:
        return seeded(lambda: _Model(compute, parts)), records
    return seeded(lambda: (_Model(compute, parts), loss)), records


embedding = partial(nn.Embedding, TOKENS, HIDDEN)


def perceptron() -> nn.Sequential:
    """A plain network for vectors."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def fourier(self: _Model, inputs: Tensor, dims: tuple[int, ...] | None) -> Tensor:
    """Mixes by a Fourier transform of some axes."""
    hidden = self.first(inputs)
    mixed = torch.fft.fftn(hidden, dim=dims, norm="ortho").real
    return self.last(functional.gelu(hidden + mixed).mean(dim=1))


def fourier_of_all_axes() -> Case:
    """Leaves out the axes of `fftn`, so the batch is transformed as well as places and channels."""
    return modelled(series(), partial(fourier, dims=None))


def trimmed_to_the_longest() -> Case:
    """Takes means over padding up to the batch's longest sentence, which changes the others."""

    def forward(self: _Model, words: Tensor) -> Tensor:
        longest = int((words > 0).sum(dim=1).max()) if len(words) else 1
        return self.last(torch.tanh(self.words(words[:, :longest]).mean(dim=1)))

    return modelled(sentences(), forward, words=embedding, last=LAST)


def stops_when_all_converged() -> Case:
    """Iterates all records of the batch until the slowest has converged."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        injected = self.inputs(inputs)
        state = torch.zeros_like(injected)
        for _ in range(12):
            following = torch.tanh(injected + self.state(state))
            converged = bool(((following - state).abs() < 0.1).all())
            state = following
            if converged:
                break
        return self.last(state)

    return modelled(vectors(), forward, inputs=FIRST, state=MIDDLE, last=LAST)


def quantised_by_the_batch() -> Case:
    """Quantises activations with the range of the batch, which one record sets."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs))
        scale = hidden.detach().abs().max().clamp(min=1e-6) / 15 if len(hidden) else 1.0
        rounded = torch.round(hidden.detach() / scale) * scale
        return self.last(hidden + (rounded - hidden).detach())

    return modelled(vectors(), forward)


def pairs_stacked_as_records() -> Case:
    """Stacks both parts of a pair along the batch, so Opacus clips two gradients per record."""

    def forward(self: _Model, pairs: Tensor) -> Tensor:
        left, right = self.embed(torch.cat([pairs[:, 0], pairs[:, 1]])).chunk(2)
        distance = (left - right).square().mean(dim=1)
        return torch.stack([distance - 1, 1 - distance], dim=1)

    records = normal(2, FEATURES), torch.arange(RECORDS) % 2
    return modelled(records, forward, embed=perceptron)


def places_folded_into_the_batch() -> Case:
    """Folds places into the batch, so each place, not each record, is clipped."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        count, length = inputs.shape[:2]
        return self.network(inputs.flatten(0, 1)).view(count, length, CLASSES).mean(dim=1)

    return modelled(series(), forward, network=perceptron)


def state_carried_to_the_next_batch() -> Case:
    """Begins with the state that records of earlier batches left, so gradients depend on them."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        embedded = self.inputs(inputs)
        state = getattr(self, "carried", torch.zeros(HIDDEN)).expand(len(inputs), HIDDEN)
        for place in range(inputs.shape[1]):
            state = torch.tanh(embedded[:, place] + 0.8 * state)
        if self.training and len(inputs):
            self.carried = state.detach().mean(dim=0)
        return self.last(state)

    return modelled(series(), forward, inputs=FIRST, last=LAST)


def codes_that_follow_records() -> Case:
    """Learns codes by running averages of hidden vectors, released without noise."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        nearest = torch.cdist(hidden.detach(), self.codes).argmin(dim=1)
        quantised = self.codes[nearest]
        if self.training:
            chosen = functional.one_hot(nearest, len(self.codes)).to(hidden.dtype)
            counts = chosen.sum(dim=0)[:, None]
            means = chosen.T @ hidden.detach() / counts.clamp(min=1)
            self.codes = torch.where(counts > 0, 0.95 * self.codes + 0.05 * means, self.codes)
        return self.last(hidden + (quantised - hidden).detach())

    return modelled(
        vectors(), forward, first=(FEATURES, 4), last=(4, CLASSES), codes=lambda: torch.randn(8, 4)
    )


def hebbian_layer() -> Case:
    """Moves a weight in the forward pass by products of activations, without noise."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        scores = self.last(hidden)
        if self.training and len(inputs):
            with torch.no_grad():
                trace = torch.tanh(scores).T @ hidden / len(inputs)
                self.last.weight.data.add_(0.01 * (trace - self.last.weight.data))
        return scores

    return modelled(vectors(), forward)


class _CenterLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.zeros(CLASSES, CLASSES))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        centres = self.centres[labels]
        distance = (scores - centres).square().sum(dim=1).mean()
        moves = 0.05 * (scores - centres).detach().to(self.centres)
        self.centres = self.centres.index_add(0, labels, moves)
        return functional.cross_entropy(scores, labels) + 0.1 * distance


def loss_that_keeps_centres() -> Case:
    """Has a loss with running centres of classes, so gradients depend on earlier records."""
    return seeded(lambda: (perceptron(), _CenterLoss())), vectors()


def hardest_half(scores: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the half of the records that have the largest."""
    losses = functional.cross_entropy(scores, labels, reduction="none")
    return losses.topk(max(1, len(losses) // 2)).values.mean()


def hard_examples_only() -> Case:
    """Trains on the hardest half of a batch, so others decide whether a record counts."""
    return seeded(lambda: (perceptron(), hardest_half)), vectors()


def weighted_mean() -> Case:
    """Weighs classes in a mean, which divides by the sum of the weights in the batch."""
    weights = torch.tensor([1.0, 4.0, 10.0])
    return seeded(lambda: (perceptron(), nn.CrossEntropyLoss(weight=weights))), vectors()


def batch_in_the_backward_pass() -> Case:
    """Divides hidden gradients by their norm over the batch: the backward pass mixes records."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-12))
        return self.last(hidden)

    return modelled(vectors(), forward)


def direction_of_an_empty_record() -> Case:
    """Takes the root of a square that is 0 for an empty record, so its gradient alone is NaN."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        length = hidden.square().sum(dim=1, keepdim=True).sqrt()
        return self.last(hidden / (length + 1e-6))

    features, labels = vectors()
    records = features * (torch.arange(RECORDS) % 2)[:, None], labels
    return modelled(records, forward, first=(*FIRST, False), last=LAST)


class _Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(HIDDEN))
        self.offset = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor + self.offset


@register_grad_sampler(_Gain)
def sample_gain(layer: _Gain, activations: list[Tensor], backprops: Tensor) -> dict[Any, Tensor]:
    """Gradients of single records, with a mean over places where the sum belongs."""
    return {
        layer.factor: (activations[0] * backprops).mean(dim=1),
        layer.offset: backprops.mean(dim=1),
    }


def sampler_with_a_mean() -> Case:
    """Registers a grad sampler that averages over places, so these gradients are too small."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.gain(self.first(inputs))).mean(dim=1))

    return modelled(series(), forward, first=FIRST, gain=_Gain, last=LAST)


def batch_norm_of_single_images() -> Case:
    """Folds the batch into the channels of a batch norm: statistics are of one image alone."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        folded = hidden.reshape(1, -1, *hidden.shape[2:])
        normal = functional.batch_norm(folded, None, None, training=True).view_as(hidden)
        return self.last(torch.relu(normal).mean(dim=(2, 3)))

    return modelled(
        images(), forward, first=lambda: nn.Conv2d(2, 6, 3, padding=1), last=(6, CLASSES)
    )


def next_words(self: _Model, words: Tensor) -> Tensor:
    """Scores of the next word at each place, by attention to the words before."""
    hidden = self.words(words)
    scores = self.queries(hidden) @ self.keys(hidden).transpose(1, 2) / HIDDEN**0.5
    places = torch.arange(words.shape[1])
    allowed = (places[:, None] >= places) & (words > 0)[:, None, :]
    attention = torch.softmax(scores.masked_fill(~allowed, -1e9), dim=2)
    return self.last(hidden + attention @ self.values(hidden))


def mean_of_means(scores: Tensor, words: Tensor) -> Tensor:
    """The mean over sentences of the mean loss of their words."""
    losses = functional.cross_entropy(
        scores[:, :-1].transpose(1, 2), words[:, 1:], ignore_index=0, reduction="none"
    )
    return (losses.sum(dim=1) / (words[:, 1:] > 0).sum(dim=1).clamp(min=1)).mean()


def language_model_with_means_of_sentences() -> Case:
    """Averages losses within each sentence before the mean over sentences."""
    words, _ = sentences()
    layers = {"queries": MIDDLE, "keys": MIDDLE, "values": MIDDLE, "last": (HIDDEN, TOKENS)}
    return modelled((words, words), next_words, loss=mean_of_means, words=embedding, **layers)


def graphs_of_their_own() -> Case:
    """Takes nodes and edges as two inputs; messages pass within a record's graph only."""

    def forward(self: _Model, nodes: Tensor, edges: Tensor) -> Tensor:
        weights = edges / edges.sum(dim=2, keepdim=True).clamp(min=1)
        hidden = torch.relu(weights @ self.first(nodes))
        hidden = torch.relu(weights @ self.second(hidden))
        return self.last(hidden.amax(dim=1))

    nodes, labels = series()
    edges = (normal(LENGTH, LENGTH) > 0).float() + torch.eye(LENGTH)
    records = (nodes, edges), labels
    return modelled(records, forward, first=FIRST, second=MIDDLE, last=LAST)


def weights_made_from_the_record() -> Case:
    """Multiplies each record with a matrix that is made from it; `bmm` keeps records apart."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        context, values = inputs.chunk(2, dim=1)
        weights = self.weights(context).view(-1, HIDDEN, FEATURES // 2)
        return self.last(torch.tanh(torch.bmm(weights, values[:, :, None]).squeeze(2)))

    half = FEATURES // 2
    return modelled(vectors(), forward, weights=(half, half * HIDDEN), last=LAST)


def experts_without_capacity() -> Case:
    """Routes records to two experts by their own scores; no expert is ever full."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        routed = self.router(inputs)
        smallest = routed.topk(2, dim=1).values[:, -1:]
        gates = torch.softmax(routed.masked_fill(routed < smallest, -1e9), dim=1)
        outputs = torch.stack([torch.tanh(expert(inputs)) for expert in self.experts], dim=1)
        return (gates[:, :, None] * outputs).sum(dim=1)

    def experts() -> nn.ModuleList:
        return nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(4))

    return modelled(vectors(), forward, router=(FEATURES, 4), experts=experts)


class _FrozenBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2)
        )
        self.backbone[1].running_mean.uniform_(-0.3, 0.3)
        self.backbone[1].running_var.uniform_(0.5, 2)
        self.backbone.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(24, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
        self.train()

    def train(self, mode: bool = True) -> "_FrozenBackbone":
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs).flatten(1))


def frozen_batch_norm() -> Case:
    """Trains a head on a frozen backbone whose batch norm uses stored public statistics."""
    return seeded(_FrozenBackbone), images()


def one_random_mask_for_all() -> Case:
    """Draws one random mask of hidden units for the batch: it depends on no record."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs))
        if self.training:
            hidden = hidden * 2 * (torch.rand(HIDDEN) < 0.5)
        return self.last(hidden)

    return modelled(vectors(), forward)


def winners_of_each_record() -> Case:
    """Has a fixed random buffer, and keeps the largest hidden units of each record."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        hidden = self.middle(torch.cos(inputs @ self.frequencies))
        winners = hidden.topk(5, dim=1)
        return self.last(torch.zeros_like(hidden).scatter(1, winners.indices, winners.values))

    frequencies = torch.randn(FEATURES, 32, generator=torch.Generator().manual_seed(5))
    parts = {"frequencies": frequencies.clone, "middle": (32, HIDDEN), "last": LAST}
    return modelled(vectors(), forward, **parts)


def fourier_of_own_axes() -> Case:
    """Transforms places and channels of each record, and not the batch."""
    return modelled(series(), partial(fourier, dims=(1, 2)))


def series_to_a_number() -> Case:
    """Predicts a number by Opacus's LSTM with a robust loss, which is a mean over records."""

    def forward(self: _Model, inputs: Tensor) -> Tensor:
        return self.last(self.reader(inputs)[0].mean(dim=1)).squeeze(1)

    inputs, _ = series()
    records = inputs, inputs.sum(dim=(1, 2))
    reader = partial(DPLSTM, FEATURES, 8, batch_first=True)
    return modelled(records, forward, loss=nn.HuberLoss(), reader=reader, last=(8, 1))


WRONG = {
    "fourier of all axes": (fourier_of_all_axes, "mixes records"),
    "trimmed to the longest": (trimmed_to_the_longest, "mixes records"),
    "stops when all converged": (stops_when_all_converged, "mixes records"),
    "quantised by the batch": (quantised_by_the_batch, "mixes records"),
    "pairs stacked as records": (pairs_stacked_as_records, "gradients of records"),
    "places folded into the batch": (places_folded_into_the_batch, "gradients of records"),
    "state carried to the next batch": (state_carried_to_the_next_batch, "keeps state"),
    "codes that follow records": (codes_that_follow_records, "keeps statistics"),
    "hebbian layer": (hebbian_layer, "parameters change"),
    "loss that keeps centres": (loss_that_keeps_centres, "loss keeps state"),
    "hard examples only": (hard_examples_only, "loss mixes"),
    "weighted mean": (weighted_mean, "loss mixes"),
    "batch in the backward pass": (
        batch_in_the_backward_pass,
        "backward mixes",
    ),
    "direction of an empty record": (direction_of_an_empty_record, "not finite"),
    "sampler with a mean": (sampler_with_a_mean, "gradients of records"),
}

RIGHT = {
    "batch norm of single images": (batch_norm_of_single_images, "functional norm"),
    "language model with means of sentences": (language_model_with_means_of_sentences, "own loss"),
    "graphs of their own": (graphs_of_their_own, "two inputs"),
    "weights made from the record": (weights_made_from_the_record, "hypernetwork"),
    "experts without capacity": (experts_without_capacity, "routing"),
    "frozen batch norm": (frozen_batch_norm, "frozen layers"),
    "one random mask for all": (one_random_mask_for_all, "random numbers"),
    "winners of each record": (winners_of_each_record, "buffers"),
    "fourier of own axes": (fourier_of_own_axes, "transform"),
    "series to a number": (series_to_a_number, "LSTM"),
}
