"""Models for `dpcanary check --model`, wrong and right, by one who had read only the documentation.

Each entry of WRONG and RIGHT is a function without arguments and the kind of its error or oddity.
The function returns the three arguments of `check_model(model, records, loss)`: a module, a dataset
of inputs and labels, and a loss module with `reduction="mean"`. On the command line, `--model` is
given (module, loss), and `--features` the records.
"""

import math

import torch
from opacus.grad_sample import register_grad_sampler
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

NUM_RECORDS = 24
NUM_FEATURES = 12
NUM_CLASSES = 4
NUM_WORDS = 20
LENGTH = 6


# ---------------------------------------------------------------------------------------- records


def generator(seed=5):
    """Gives random numbers that are the same in every call."""
    return torch.Generator().manual_seed(seed)


def labels(classes=NUM_CLASSES):
    """Draws a class for each record."""
    return torch.randint(classes, (NUM_RECORDS,), generator=generator(6))


def vectors():
    """Draws records of a few numbers, of different sizes."""
    sizes = 0.5 + torch.rand(NUM_RECORDS, 1, generator=generator(7))
    values = sizes * torch.randn(NUM_RECORDS, NUM_FEATURES, generator=generator())
    return TensorDataset(values, labels())


def series():
    """Draws records that are series of vectors."""
    values = torch.randn(NUM_RECORDS, LENGTH, NUM_FEATURES, generator=generator())
    return TensorDataset(values, labels())


def images():
    """Draws small pictures of one channel."""
    return TensorDataset(torch.randn(NUM_RECORDS, 1, 8, 8, generator=generator()), labels())


def tokens():
    """Draws sentences of words from 1, which are padded with 0 to one length."""
    words = torch.randint(1, NUM_WORDS, (NUM_RECORDS, LENGTH), generator=generator())
    lengths = torch.randint(2, LENGTH + 1, (NUM_RECORDS, 1), generator=generator(8))
    return words * (torch.arange(LENGTH) < lengths)


def sentences():
    """Gives sentences with a class each."""
    return TensorDataset(tokens(), labels())


def classifier(body, width):
    """Puts a linear classifier behind a module."""
    return nn.Sequential(body, nn.Linear(width, NUM_CLASSES))


def perceptron(*middle, first=nn.Linear):
    """Makes two linear layers with something in between."""
    return nn.Sequential(first(NUM_FEATURES, 8), *middle, first(8, NUM_CLASSES))


class _Parts(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


# ------------------------------------------------------------------------------------------- wrong


class _AttentivePooling(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.score = nn.Linear(NUM_FEATURES, 1)
        self.dim = dim

    def weights(self, x):
        return torch.softmax(self.score(x).squeeze(-1), dim=self.dim)

    def forward(self, x):
        return (self.weights(x).unsqueeze(-1) * x).sum(1)


def softmax_over_the_batch():
    """The softmax of the attention was written for one series, so in a batch it is over records."""
    return classifier(_AttentivePooling(dim=0), NUM_FEATURES), series(), nn.CrossEntropyLoss()


class _SelfAttention(_Parts):
    def forward(self, x):
        return (x + self.attention(x, x, x)[0]).mean(1)


def attention_without_batch_first():
    """`batch_first` is False by default, so records attend to the same step of other records."""
    body = _SelfAttention(attention=DPMultiheadAttention(NUM_FEATURES, 2))
    return classifier(body, NUM_FEATURES), series(), nn.CrossEntropyLoss()


def broadcast_squared_error():
    """Predictions are (B, 1) and labels (B,), so each prediction is compared with all labels."""
    values, classes = vectors().tensors
    model = nn.Sequential(nn.Linear(NUM_FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, TensorDataset(values, classes.float()), nn.MSELoss()


class _SortedEncoder(_Parts):
    def forward(self, words):
        order = (words > 0).sum(1).argsort(descending=True)
        lengths = (words > 0).sum(1)[order]
        states, _ = self.recurrent(self.embedding(words[order]))
        return states[torch.arange(len(words)), lengths - 1]


def order_of_lengths_not_undone():
    """The batch is sorted by length and not put back, so records get the labels of others."""
    recurrent = DPLSTM(8, 8, batch_first=True)
    body = _SortedEncoder(embedding=nn.Embedding(NUM_WORDS, 8), recurrent=recurrent)
    return classifier(body, 8), sentences(), nn.CrossEntropyLoss()


class _FakeQuantise(nn.Module):
    def forward(self, x):
        scale = x.detach().abs().max().clamp(min=1e-6) / 7
        return x + ((x / scale).round() * scale - x).detach()


def scale_of_the_whole_tensor():
    """Dynamic quantisation takes its scale from the largest activation of the whole batch."""
    return perceptron(nn.ReLU(), _FakeQuantise()), vectors(), nn.CrossEntropyLoss()


class _Equilibrium(nn.Module):
    def __init__(self, tolerance, most):
        super().__init__()
        self.inward = nn.Linear(NUM_FEATURES, 10)
        self.again = nn.Linear(10, 10, bias=False)
        self.tolerance = tolerance
        self.most = most

    def forward(self, x):
        driven = self.inward(x)
        state = torch.zeros_like(driven)
        for _ in range(self.most):
            following = torch.tanh(driven + self.again(state))
            moved = (following - state).detach().abs()
            state = following
            if moved.numel() and moved.max() < self.tolerance:
                break
        return state


def iterates_until_all_converge():
    """The slowest record of the batch decides how often the layer is repeated for all of them."""
    return classifier(_Equilibrium(0.02, 40), 10), vectors(), nn.CrossEntropyLoss()


class _PairLoss(nn.Module):
    reduction = "mean"

    def forward(self, output, _):
        first, second = output.chunk(2, dim=1)
        similar = functional.normalize(first, dim=1) @ functional.normalize(second, dim=1).T / 0.2
        return functional.cross_entropy(
            similar, torch.arange(len(output)), reduction=self.reduction
        )


class _TwoViews(_Parts):
    def forward(self, x):
        part = x * (torch.arange(x.shape[1]) % 3 > 0)
        return torch.cat([self.encoder(x), self.encoder(part)], dim=1)


def negatives_from_the_batch():
    """The contrastive loss of a record takes all other records of the batch as negatives."""
    return _TwoViews(encoder=nn.Linear(NUM_FEATURES, 8)), vectors(), _PairLoss()


class _ChangeGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


class _NormaliseGradient(nn.Module):
    def forward(self, x):
        return _ChangeGradient.apply(x, lambda gradient: gradient / (gradient.norm() + 1e-12))


def gradient_normalised_in_the_backward_pass():
    """The gradient at an activation is divided by its norm over the whole batch."""
    return perceptron(_NormaliseGradient(), nn.ReLU()), vectors(), nn.CrossEntropyLoss()


class _Codebook(nn.Module):
    def __init__(self, num_codes=6, width=8):
        super().__init__()
        self.register_buffer("codes", torch.randn(num_codes, width, generator=generator()))
        self.register_buffer("counts", torch.ones(num_codes))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x):
        nearest = torch.cdist(x.detach(), self.codes).argmin(1)
        chosen = self.codes[nearest]
        if self.training:
            assigned = functional.one_hot(nearest, len(self.codes)).to(x.dtype)
            self.counts = 0.99 * self.counts + 0.01 * assigned.sum(0)
            self.sums = 0.99 * self.sums + 0.01 * assigned.T @ x.detach()
            self.codes = self.sums / self.counts.unsqueeze(1)
        return x + (chosen - x).detach()


def codes_by_moving_averages():
    """The codes of a VQ layer are averages of private activations, released without noise."""
    return perceptron(_Codebook()), vectors(), nn.CrossEntropyLoss()


class _ShownAttention(_AttentivePooling):
    def __init__(self):
        super().__init__(dim=1)
        self.register_buffer("last", None)

    def weights(self, x):
        weights = super().weights(x)
        self.last = weights.detach()
        return weights


def last_attention_is_saved():
    """The attention of the last batch is a buffer, None at first, and ends up in the state dict."""
    return classifier(_ShownAttention(), NUM_FEATURES), series(), nn.CrossEntropyLoss()


class _RunningScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 1.0

    def forward(self, x):
        if self.training and len(x):
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean().item()
        return x / self.scale


def running_scale_in_an_attribute():
    """A running size of the private records is kept in a number of Python, not in a buffer."""
    model = nn.Sequential(_RunningScale(), perceptron(nn.ReLU()))
    return model, vectors(), nn.CrossEntropyLoss()


class _StepByStep(nn.Sequential):
    def forward(self, x):
        flat = super().forward(x.reshape(-1, x.shape[-1]))
        return flat.reshape(-1, x.shape[1], NUM_CLASSES).mean(1)


def steps_flattened_into_the_batch():
    """All layers see (records x steps) as the batch, so each step is clipped as if a record."""
    return _StepByStep(perceptron(nn.ReLU())), series(), nn.CrossEntropyLoss()


class _TiedLanguageModel(_Parts):
    def forward(self, words):
        hidden = torch.tanh(self.hidden(self.embedding(words).mean(1)))
        return functional.linear(hidden, self.embedding.weight)


def output_tied_by_a_function():
    """Hooks do not see the second use of the embedding, so its part of the gradient is missing."""
    model = _TiedLanguageModel(embedding=nn.Embedding(NUM_WORDS, 8), hidden=nn.Linear(8, 8))
    words = tokens()
    return model, TensorDataset(words[:, 1:], words[:, 0]), nn.CrossEntropyLoss()


class _EqualisedLinear(nn.Module):
    def __init__(self, inward, outward):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outward, inward))
        self.bias = nn.Parameter(torch.zeros(outward))
        self.scale = 1 / math.sqrt(inward)

    def forward(self, x):
        return functional.linear(x, self.weight * self.scale, self.bias)


@register_grad_sampler(_EqualisedLinear)
def equalised_grad_sampler(layer, activations, backprops):
    """Gives the gradients of a plain linear layer."""
    return {
        layer.weight: torch.einsum("ni,nj->nij", backprops, activations[0]),
        layer.bias: backprops,
    }


def sampler_forgets_the_scale():
    """A grad sampler of one's own was copied from nn.Linear, without the scale of the weights."""
    return perceptron(nn.ReLU(), first=_EqualisedLinear), vectors(), nn.CrossEntropyLoss()


class _Spread(nn.Module):
    def forward(self, x):
        return x.flatten(2).var(2, unbiased=False).sqrt()


def root_of_zero_for_a_blank_picture():
    """The gradient of a standard deviation is NaN for a blank picture, as every third is here."""
    pictures, classes = images().tensors
    pictures[::3] = 0.0
    model = nn.Sequential(nn.Conv2d(1, 4, 3), _Spread(), nn.Linear(4, NUM_CLASSES))
    return model, TensorDataset(pictures, classes), nn.CrossEntropyLoss()


# -------------------------------------------------------------------------------------------- right


class _OwnScale(_Parts):
    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
        normal = ((x - mean) / std).transpose(1, 2)
        return (self.forecast(normal).transpose(1, 2) * std + mean).flatten(1)


def series_normalised_by_itself():
    """Statistics are those of one record, over its own steps."""
    values = series().tensors[0]
    targets = torch.randn(NUM_RECORDS, 2 * NUM_FEATURES, generator=generator(9))
    return _OwnScale(forecast=nn.Linear(LENGTH, 2)), TensorDataset(values, targets), nn.MSELoss()


class _LowRank(nn.Linear):
    def __init__(self, inward, outward, rank=2):
        super().__init__(inward, outward)
        self.weight.requires_grad_(False)
        self.bias.requires_grad_(False)
        self.down = nn.Linear(inward, rank, bias=False)
        self.up = nn.Linear(rank, outward, bias=False)

    def forward(self, x):
        return super().forward(x) + self.up(self.down(x))


def low_rank_adapters():
    """The base is frozen, the adapters are plain linear layers in a subclass of nn.Linear."""
    return perceptron(nn.GELU(), first=_LowRank), vectors(), nn.CrossEntropyLoss()


class _Hypernetwork(_Parts):
    def forward(self, x):
        condition, rest = x.chunk(2, dim=1)
        matrices = self.weights(condition).reshape(len(x), 8, rest.shape[1])
        return torch.bmm(matrices, rest.unsqueeze(-1)).squeeze(-1).tanh()


def weights_made_by_each_record():
    """Half of each record makes a matrix, by which its other half is transformed."""
    body = _Hypernetwork(weights=nn.Linear(NUM_FEATURES // 2, NUM_FEATURES // 2 * 8))
    return classifier(body, 8), vectors(), nn.CrossEntropyLoss()


class _DeepSet(_Parts):
    def forward(self, words):
        there = (words > 0).unsqueeze(-1).float()
        each = torch.relu(self.each(self.embedding(words))) * there
        return each.sum(1) / there.sum(1).clamp(min=1)


def masked_mean_of_each_sentence():
    """The mask and the count of words are those of the record."""
    embedding = nn.Embedding(NUM_WORDS, 8, padding_idx=0)
    body = _DeepSet(embedding=embedding, each=nn.Linear(8, 8))
    return classifier(body, 8), sentences(), nn.CrossEntropyLoss()


def one_layer_ten_times():
    """A layer is used ten times for every record, whatever the records."""
    return classifier(_Equilibrium(-1.0, 10), 10), vectors(), nn.CrossEntropyLoss()


class _StandardisedConv(nn.Conv2d):
    def forward(self, x):
        flat = self.weight.flatten(1)
        mean, std = flat.mean(1, keepdim=True), flat.std(1, keepdim=True)
        weight = ((flat - mean) / (std + 1e-5)).view_as(self.weight)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding)


def standardised_weights_with_group_norm():
    """Statistics of weights, and of groups of channels within a record, replace batch norm."""
    body = [_StandardisedConv(1, 8, 3), nn.GroupNorm(4, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(2)]
    model = nn.Sequential(*body, nn.Flatten(), nn.Linear(32, NUM_CLASSES))
    return model, images(), nn.CrossEntropyLoss()


class _Positions(nn.Module):
    def __init__(self):
        super().__init__()
        angles = torch.arange(LENGTH).unsqueeze(1) / 10 ** torch.linspace(0, 2, NUM_FEATURES)
        self.register_buffer("sines", angles.sin())
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return x + self.sines


def positions_and_a_counter_in_buffers():
    """Buffers hold constants and the number of passes, and nothing of records."""
    model = nn.Sequential(_Positions(), _AttentivePooling(dim=1), nn.Linear(NUM_FEATURES, 4))
    return model, series(), nn.CrossEntropyLoss()


class _TaggingLoss(nn.Module):
    reduction = "mean"

    def forward(self, output, tags):
        there = (tags >= 0).float()
        each = functional.cross_entropy(output.transpose(1, 2), tags.clamp(min=0), reduction="none")
        losses = (each * there).sum(1) / there.sum(1).clamp(min=1)
        return losses if self.reduction == "none" else losses.mean()


def tags_weighted_within_each_sentence():
    """Every sentence counts the same in the loss, however much of it is padding."""
    words = tokens()
    tags = torch.where(words > 0, words % NUM_CLASSES, -1)
    model = nn.Sequential(
        nn.Embedding(NUM_WORDS, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES)
    )
    return model, TensorDataset(words, tags), _TaggingLoss()


class _Adversarial(_Parts):
    def forward(self, x):
        hidden = torch.relu(self.body(x))
        reversed_hidden = _ChangeGradient.apply(hidden, lambda gradient: -0.3 * gradient)
        return torch.cat([self.label(hidden), self.domain(reversed_hidden)], dim=1)


class _TwoLosses(nn.Module):
    reduction = "mean"

    def forward(self, output, classes):
        first = functional.cross_entropy(output[:, :NUM_CLASSES], classes, reduction=self.reduction)
        return first + functional.cross_entropy(
            output[:, NUM_CLASSES:], classes % 2, reduction=self.reduction
        )


def gradient_reversal():
    """The backward pass is turned around by a constant factor, for each record alike."""
    body, label, domain = nn.Linear(NUM_FEATURES, 8), nn.Linear(8, NUM_CLASSES), nn.Linear(8, 2)
    return _Adversarial(body=body, label=label, domain=domain), vectors(), _TwoLosses()


class _Experts(_Parts):
    def forward(self, x):
        best, which = self.gate(x).topk(2, dim=1)
        weights = torch.zeros(len(x), 4).scatter(1, which, best.softmax(1))
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return torch.relu((weights.unsqueeze(-1) * outputs).sum(1))


def two_experts_without_a_capacity():
    """Which experts a record gets depends on this record alone."""
    experts = nn.ModuleList(nn.Linear(NUM_FEATURES, 8) for _ in range(4))
    body = _Experts(gate=nn.Linear(NUM_FEATURES, 4), experts=experts)
    return classifier(body, 8), vectors(), nn.CrossEntropyLoss()


WRONG = {
    entry.__name__: (entry, kind)
    for entry, kind in (
        (softmax_over_the_batch, "mixes records"),
        (attention_without_batch_first, "mixes records"),
        (broadcast_squared_error, "loss mixes records"),
        (order_of_lengths_not_undone, "outputs of others"),
        (scale_of_the_whole_tensor, "mixes records"),
        (iterates_until_all_converge, "mixes records"),
        (negatives_from_the_batch, "loss mixes records"),
        (gradient_normalised_in_the_backward_pass, "backward mixes records"),
        (codes_by_moving_averages, "buffer"),
        (last_attention_is_saved, "buffer"),
        (running_scale_in_an_attribute, "hidden state"),
        (steps_flattened_into_the_batch, "sample gradients"),
        (output_tied_by_a_function, "sample gradients"),
        (sampler_forgets_the_scale, "sample gradients"),
        (root_of_zero_for_a_blank_picture, "not finite"),
    )
}

RIGHT = {
    entry.__name__: (entry, kind)
    for entry, kind in (
        (series_normalised_by_itself, "own statistics"),
        (low_rank_adapters, "frozen base"),
        (weights_made_by_each_record, "hypernetwork"),
        (masked_mean_of_each_sentence, "masked words"),
        (one_layer_ten_times, "shared layer"),
        (standardised_weights_with_group_norm, "standardised weights"),
        (positions_and_a_counter_in_buffers, "buffers"),
        (tags_weighted_within_each_sentence, "own loss"),
        (gradient_reversal, "own backward"),
        (two_experts_without_a_capacity, "mixture of experts"),
    )
}
