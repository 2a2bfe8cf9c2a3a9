"""Models for `dpcanary check --model`, written from its documentation alone.

Each function builds a case: a module, its loss, and records. In `WRONG`, the gradient of a record
is not what DP-SGD needs: it depends on other records, is computed wrongly, is not finite, or the
forward pass keeps something of the records. The models in `RIGHT` are unusual, and each record is
on its own. The text beside each function says in which kind of property the error lies.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from opacus.grad_sample import register_grad_sampler
from torch import Tensor, nn

NUM_RECORDS = 24
NUM_CLASSES = 3
NUM_FEATURES = 10
NUM_WORDS = 40
LENGTH = 7


class Case(NamedTuple):
    """What `check_model` is given."""

    module: nn.Module
    loss: Callable[[Any, Tensor], Tensor]
    records: tuple[Any, Tensor]


class Network(nn.Module):
    """Layers with names, and a function `function(network, *inputs)` that uses them."""

    def __init__(self, function: Callable[..., Tensor], **layers: Any) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the function."""
        return self.function(self, *inputs)


def perceptron(*layers: nn.Module, width: int = 12) -> nn.Sequential:
    """Return linear layers before and after the given ones."""
    first, last = nn.Linear(NUM_FEATURES, width), nn.Linear(width, NUM_CLASSES)
    return nn.Sequential(first, *layers, last)


def head(width: int) -> nn.Linear:
    """Return a last layer."""
    return nn.Linear(width, NUM_CLASSES)


def random_numbers(*shape: int, seed: int = 1) -> Tensor:
    """Return Gaussian features that are equal in every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels() -> Tensor:
    """Return labels of which the first class has two thirds, so that classes are not balanced."""
    generator = torch.Generator().manual_seed(2)
    drawn = torch.randint(0, 2 * NUM_CLASSES, (NUM_RECORDS,), generator=generator)
    return (drawn - NUM_CLASSES).clamp(min=0)


def table(module: nn.Module, loss: Callable = functional.cross_entropy) -> Case:
    """Return a case whose records are vectors of features."""
    return Case(module, loss, (random_numbers(NUM_RECORDS, NUM_FEATURES), labels()))


def series(module: nn.Module) -> Case:
    """Return a case whose records are short series of feature vectors."""
    features = random_numbers(NUM_RECORDS, LENGTH, NUM_FEATURES)
    return Case(module, functional.cross_entropy, (features, labels()))


def padded_words() -> Tensor:
    """Return sentences of 2 to 7 words, of which the rest is the padding word 0."""
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(1, NUM_WORDS, (NUM_RECORDS, LENGTH), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (NUM_RECORDS, 1), generator=generator)
    return words * (torch.arange(LENGTH) < lengths)


# Wrong: outputs depend on the other records of the batch.


def attention_over_batch() -> Case:
    """Attention is written for (time, batch, features) and given batches first: records mix."""

    def forward(network: Any, features: Tensor) -> Tensor:
        queries, keys, values = network.projected(features).chunk(3, dim=-1)
        weights = torch.einsum("ibd,jbd->bij", queries, keys).div(math.sqrt(8)).softmax(dim=-1)
        return network.head(torch.einsum("bij,jbd->ibd", weights, values).mean(dim=1))

    return series(Network(forward, projected=nn.Linear(NUM_FEATURES, 3 * 8), head=head(8)))


def reshape_for_transpose() -> Case:
    """`reshape` in place of `transpose` puts steps of one record into the series of another."""

    def forward(network: Any, features: Tensor) -> Tensor:
        size, length, _ = features.shape
        time_first = network.inputs(features).reshape(length, size, -1)
        hidden = torch.zeros_like(time_first[0])
        for inputs in time_first:
            hidden = torch.tanh(inputs + 0.5 * hidden)
        return network.head(hidden)

    return series(Network(forward, inputs=nn.Linear(NUM_FEATURES, 12), head=head(12)))


def longest_in_batch() -> Case:
    """How much padding enters the mean of a record depends on the longest record beside it."""

    def forward(network: Any, words: Tensor) -> Tensor:
        longest = int((words != 0).sum(dim=1).max()) if len(words) else 1
        return network.head(network.words(words[:, :longest]).mean(dim=1))

    module = Network(forward, words=nn.Embedding(NUM_WORDS, 8), head=head(8))
    return Case(module, functional.cross_entropy, (padded_words(), labels()))


def early_exit_of_batch() -> Case:
    """One difficult record sends the whole batch through further layers."""

    def forward(network: Any, features: Tensor) -> Tensor:
        hidden = torch.tanh(network.first(features))
        early = network.first_head(hidden)
        late = network.head(torch.tanh(network.second(hidden)))
        easy = early.softmax(dim=1).amax(dim=1) > 0.42
        return early + 0 * late if bool(easy.all()) else late + 0 * early

    first, second = nn.Linear(NUM_FEATURES, 12), nn.Linear(12, 12)
    return table(Network(forward, first=first, first_head=head(12), second=second, head=head(12)))


def scale_of_quantisation() -> Case:
    """The largest activation of the batch sets the scale to which all are rounded to 8 bits."""

    def forward(_: Any, hidden: Tensor) -> Tensor:
        step = hidden.detach().abs().max() / 127 if len(hidden) else 1
        return hidden + (torch.round(hidden / step) * step - hidden).detach()

    return table(perceptron(Network(forward), nn.Tanh()))


def mixup_of_hidden() -> Case:
    """Manifold mixup: each record's activations get a fifth of another's, drawn at random."""

    def forward(network: Any, hidden: Tensor) -> Tensor:
        if not network.training:
            return hidden
        return 0.8 * hidden + 0.2 * hidden[torch.randperm(len(hidden))]

    return table(perceptron(nn.Tanh(), Network(forward)))


def experts_choose_records() -> Case:
    """Expert-choice routing: whether an expert takes a record depends on its other scores."""

    def forward(network: Any, features: Tensor) -> Tensor:
        scores = network.router(features).softmax(dim=1)
        mixed: Any = 0
        for column, expert in enumerate(network.experts):
            chosen = torch.zeros(len(features))
            chosen[scores[:, column].topk(math.ceil(len(features) / 2)).indices] = 1
            mixed = mixed + (chosen * scores[:, column])[:, None] * expert(features)
        return network.head(torch.tanh(mixed))

    experts = nn.ModuleList(nn.Linear(NUM_FEATURES, 8) for _ in range(4))
    router = nn.Linear(NUM_FEATURES, 4)
    return table(Network(forward, router=router, experts=experts, head=head(8)))


# Wrong: the loss or the backward pass mixes records, or gradients are wrong or not finite.


class NormalisedBackward(torch.autograd.Function):
    """The identity, whose gradient is scaled to norm 1 over the whole batch."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden: Tensor) -> Tensor:
        """Return the input."""
        return hidden.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Divide by the norm of the gradients of all records."""
        return gradient / (gradient.norm() + 1e-12)


def gradient_normalised() -> Case:
    """The forward pass keeps records apart, but the backward pass divides by all gradients."""
    normalised = Network(lambda _, hidden: NormalisedBackward.apply(hidden))
    return table(perceptron(nn.Tanh(), normalised))


def negatives_in_batch() -> Case:
    """The other records of the batch are the negative examples of a contrastive loss."""

    def contrast(views: Tensor, _: Tensor) -> Tensor:
        first, second = functional.normalize(views, dim=-1).unbind(dim=1)
        return functional.cross_entropy(first @ second.T / 0.2, torch.arange(len(views)))

    module = nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.Tanh(), nn.Linear(16, 6))
    return Case(module, contrast, (random_numbers(NUM_RECORDS, 2, NUM_FEATURES), labels()))


def balance_of_classes() -> Case:
    """A record is weighted by how rare its class is among the labels of its batch."""

    def balanced(outputs: Tensor, classes: Tensor) -> Tensor:
        counts = torch.bincount(classes, minlength=NUM_CLASSES).clamp(min=1)
        weights = len(classes) / (NUM_CLASSES * counts)
        losses = functional.cross_entropy(outputs, classes, reduction="none")
        return (weights[classes] * losses).mean()

    return table(perceptron(nn.ReLU()), balanced)


class GatedResidual(nn.Module):
    """Adds a gated tanh of its inputs, with one gate per feature."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((NUM_FEATURES,), 0.5))

    def forward(self, features: Tensor) -> Tensor:
        """Return the features and their gated part."""
        return features + self.gate * torch.tanh(features)


@register_grad_sampler(GatedResidual)
def gated_residual_gradients(
    layer: GatedResidual, activations: list[Tensor], backprops: Tensor
) -> dict[nn.Parameter, Tensor]:
    """Return the gradients of single records; the tanh is forgotten."""
    return {layer.gate: (backprops * activations[0]).sum(dim=1)}


def own_grad_sampler() -> Case:
    """The grad sampler that was registered for the layer forgets its activation function."""

    def forward(network: Any, features: Tensor) -> Tensor:
        return network.head(network.gated(features).mean(dim=1))

    return series(Network(forward, gated=GatedResidual(), head=head(NUM_FEATURES)))


def empty_documents() -> Case:
    """The square root's gradient at a record of zeros is NaN, which clipping lets through."""

    def unit_length(network: Any, features: Tensor) -> Tensor:
        hidden = network.words(features)
        length = (hidden * hidden).sum(dim=1, keepdim=True).sqrt()
        return network.head(hidden / (length + 1e-6))

    words = nn.Linear(NUM_FEATURES, 12, bias=False)
    case = table(Network(unit_length, words=words, head=head(12)))
    case.records[0][::8] = 0
    return case


# Wrong: the forward pass keeps something of the records.


def actnorm() -> Case:
    """Glow's actnorm: shift and scale start from the first batch's statistics, without noise."""

    def forward(layer: Any, hidden: Tensor) -> Tensor:
        if layer.training and not layer.started:
            with torch.no_grad():
                layer.shift.copy_(-hidden.mean(dim=0))
                layer.scale.copy_(1 / (hidden.std(dim=0, correction=0) + 0.1))
            layer.started = True
        return (hidden + layer.shift) * layer.scale

    shift, scale = nn.Parameter(torch.zeros(12)), nn.Parameter(torch.ones(12))
    return table(perceptron(Network(forward, shift=shift, scale=scale, started=False), nn.ReLU()))


def codebook() -> Case:
    """The codes of a vector-quantised model are moving averages of private activations."""

    def forward(layer: Any, hidden: Tensor) -> Tensor:
        nearest = torch.cdist(hidden.detach(), layer.codes).argmin(dim=1)
        chosen = layer.codes[nearest]
        if layer.training:
            for code in nearest.unique():
                layer.codes[code].lerp_(hidden.detach()[nearest == code].mean(dim=0), 0.1)
        return hidden + (chosen - hidden).detach()

    layer = Network(forward)
    layer.register_buffer("codes", random_numbers(6, 8, seed=4))
    return table(perceptron(layer, width=8))


def carried_state() -> Case:
    """A plain attribute takes the mean state of a batch's records into the next batch."""

    def forward(network: Any, features: Tensor) -> Tensor:
        hidden = network.last_state.expand(len(features), -1)
        for inputs in network.inputs(features).unbind(dim=1):
            hidden = torch.tanh(inputs + 0.9 * hidden)
        if len(features):
            network.last_state = hidden.detach().mean(dim=0)
        return network.head(hidden)

    inputs = nn.Linear(NUM_FEATURES, 12)
    return series(Network(forward, inputs=inputs, head=head(12), last_state=torch.zeros(12)))


# Right: unusual, and every record on its own.


def hand_written_lstm() -> Case:
    """Layers are called once per step of time, and each step uses the record's own state."""

    def forward(network: Any, features: Tensor) -> Tensor:
        hidden = cell = features.new_zeros(len(features), 6)
        for inputs in features.unbind(dim=1):
            gates = network.inputs(inputs) + network.states(hidden)
            take, forget, new, give = gates.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + take.sigmoid() * new.tanh()
            hidden = give.sigmoid() * cell.tanh()
        return network.head(hidden)

    inputs, states = nn.Linear(NUM_FEATURES, 4 * 6), nn.Linear(6, 4 * 6, bias=False)
    return series(Network(forward, inputs=inputs, states=states, head=head(6)))


def causal_attention() -> Case:
    """Masked attention over the time of one record does not look at another record."""

    def forward(network: Any, features: Tensor) -> Tensor:
        queries, keys, values = network.projected(network.norm(features)).chunk(3, dim=-1)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return network.head((features + attended)[:, -1])

    projected, norm = nn.Linear(NUM_FEATURES, 3 * NUM_FEATURES), nn.LayerNorm(NUM_FEATURES)
    return series(Network(forward, projected=projected, norm=norm, head=head(NUM_FEATURES)))


def depthwise_convolution() -> Case:
    """Group norm takes the mean of channels of one record, and not of the batch."""

    def forward(network: Any, features: Tensor) -> Tensor:
        channels = features.transpose(1, 2)
        hidden = functional.gelu(network.norm(network.depthwise(channels)))
        return network.head((channels + network.pointwise(hidden)).mean(dim=2))

    return series(
        Network(
            forward,
            depthwise=nn.Conv1d(NUM_FEATURES, NUM_FEATURES, 3, padding=1, groups=NUM_FEATURES),
            norm=nn.GroupNorm(2, NUM_FEATURES),
            pointwise=nn.Conv1d(NUM_FEATURES, NUM_FEATURES, 1),
            head=head(NUM_FEATURES),
        )
    )


def shared_tower() -> Case:
    """A layer that is used twice gets the sum of both gradients of one record."""

    def forward(network: Any, features: Tensor) -> Tensor:
        first, second = features.chunk(2, dim=1)
        return network.head((network.tower(first) - network.tower(second)).square())

    tower = nn.Sequential(nn.Linear(NUM_FEATURES // 2, 8), nn.Tanh(), nn.Linear(8, 6))
    return table(Network(forward, tower=tower, head=head(6)))


class StraightThroughSign(torch.autograd.Function):
    """The sign, with the gradient of a clamped identity, element by element."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden: Tensor) -> Tensor:
        """Return the signs."""
        return torch.where(hidden >= 0, 1.0, -1.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keep the inputs."""
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Let gradients of small inputs through."""
        (hidden,) = ctx.saved_tensors
        return gradient * (hidden.abs() <= 1)


def straight_through() -> Case:
    """A gradient that is no derivative is still one of each record alone."""
    sign = Network(lambda _, hidden: StraightThroughSign.apply(hidden))
    return table(perceptron(sign, nn.Linear(12, 12), nn.Tanh()))


def unused_frozen_layer() -> Case:
    """A frozen layer of the pretraining, which nothing calls, holds nothing private."""

    def forward(network: Any, features: Tensor) -> Tensor:
        return network.head(functional.elu(network.body(features)))

    old_head = nn.Linear(12, 50).requires_grad_(False)
    return table(
        Network(forward, body=nn.Linear(NUM_FEATURES, 12), old_head=old_head, head=head(12))
    )


def double_precision_inside() -> Case:
    """Types change on the way, and each record's numbers stay its own."""

    def forward(network: Any, features: Tensor) -> Tensor:
        pooled = torch.logsumexp(4 * network.inputs(features).double(), dim=1) / 4
        return network.head(pooled.float())

    return series(Network(forward, inputs=nn.Linear(NUM_FEATURES, 12), head=head(12)))


def common_dropout() -> Case:
    """A mask that is drawn for the whole batch is independent of every record."""

    def forward(layer: Any, hidden: Tensor) -> Tensor:
        if not layer.training:
            return hidden
        return hidden * (torch.rand(hidden.shape[-1]) < 0.8) / 0.8

    return table(perceptron(nn.ReLU(), Network(forward)))


def annealed() -> nn.Module:
    """Return a layer that divides by a temperature, which falls with each pass in training."""

    def forward(layer: Any, outputs: Tensor) -> Tensor:
        if layer.training:
            layer.passes += 1
        return outputs / (1 + torch.exp(-layer.passes / 100))

    layer = Network(forward)
    layer.register_buffer("passes", torch.zeros((), dtype=torch.long))
    return layer


def annealed_temperature() -> Case:
    """The buffer counts steps, which everybody knows; no record changes it."""
    return table(nn.Sequential(perceptron(nn.ReLU()), annealed()))


def gated_experts() -> Case:
    """Means over the words of one record, and experts that all records use without a limit."""

    def forward(network: Any, words: Tensor, features: Tensor) -> Tensor:
        present = (words != 0).float().unsqueeze(2)
        pooled = (network.words(words) * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)
        gates = network.router(features).softmax(dim=1)
        outputs = torch.stack([expert(pooled) for expert in network.experts], dim=1)
        return network.head(torch.tanh((gates.unsqueeze(2) * outputs).sum(dim=1)))

    words, router = nn.Embedding(NUM_WORDS, 8), nn.Linear(NUM_FEATURES, 3)
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    module = Network(forward, words=words, router=router, experts=experts, head=head(8))
    inputs = (padded_words(), random_numbers(NUM_RECORDS, NUM_FEATURES))
    return Case(module, functional.cross_entropy, (inputs, labels()))


def named(kind: str, *functions: Callable[..., Any]) -> dict[str, tuple[Callable[..., Any], str]]:
    """Return the functions by their names in words, each with the kind that is expected."""
    return {function.__name__.replace("_", " "): (function, kind) for function in functions}


WRONG = {
    **named("records mixed", attention_over_batch, reshape_for_transpose, longest_in_batch),
    **named("records mixed", early_exit_of_batch, scale_of_quantisation, mixup_of_hidden),
    **named("records mixed", experts_choose_records),
    **named("mixed backward", gradient_normalised),
    **named("loss mixed", negatives_in_batch, balance_of_classes),
    **named("grad sample", own_grad_sampler),
    **named("not finite", empty_documents),
    **named("parameters changed", actnorm),
    **named("buffer", codebook),
    **named("state", carried_state),
}

RIGHT = {
    **named("passes", hand_written_lstm, causal_attention, depthwise_convolution, shared_tower),
    **named("passes", straight_through, unused_frozen_layer, double_precision_inside),
    **named("passes", common_dropout, annealed_temperature, gated_experts),
}
