"""A second blind list for `check --model`, by one who has read only the documentation.

Each function returns `((module, loss), (inputs, labels))`: what `--model` and `--features` take.
"""

import torch
from torch import nn
from torch.nn import functional


def _records(kind="rows"):
    generator = torch.Generator().manual_seed(5)
    labels = torch.randint(0, 3, (64,), generator=generator)
    if kind == "words":
        return torch.randint(0, 20, (64, 6), generator=generator), labels
    if kind == "images":
        return torch.randn(64, 2, 8, 8, generator=generator), labels
    return torch.randn(64, 8, generator=generator), labels


class _Between(nn.Module):
    """Two linear layers, and a function of the hidden values between."""

    def __init__(self, middle):
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(8, 12), nn.Linear(12, 3), middle

    def forward(self, rows):
        return self.last(self.middle(torch.tanh(self.first(rows))))


class _Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, values):
        return self.function(values)


def _rows(function, loss=None):
    middle = function if isinstance(function, nn.Module) else _Function(function)
    return (_Between(middle), loss or nn.CrossEntropyLoss()), _records()


def _list(*layers, kind="rows"):
    return (nn.Sequential(*layers), nn.CrossEntropyLoss()), _records(kind)


class _Kept(nn.Module):
    def __init__(self, update):
        super().__init__()
        self.register_buffer("kept", torch.zeros(12))
        self.update, self.history = update, []

    def forward(self, values):
        if self.training:
            self.update(self, values.detach())
        return values


def centred_by_batch():
    """The batch's mean of hidden values is subtracted, so records mix."""
    return _rows(lambda h: h - h.mean(0))


def softmax_over_records():
    """A softmax over dimension 0 in place of the features'."""
    return _rows(lambda h: h * functional.softmax(h, 0))


def attention_between_records():
    """Batch-first attention is forgotten, so records attend to each other."""
    return _rows(lambda h: h + functional.softmax(h @ h.T, -1) @ h)


def scaled_by_largest():
    """Values are scaled by the largest of the batch, as dynamic quantisation does."""
    return _rows(lambda h: h / h.abs().max().clamp(min=1e-3))


def mixup():
    """Hidden mixup takes part of the next record."""
    return _rows(lambda h: 0.8 * h + 0.2 * h.roll(1, 0))


def batch_norm():
    """Batch normalisation without running statistics."""
    return _rows(nn.BatchNorm1d(12, track_running_stats=False))


def gate_by_batch():
    """A squeeze gate pools over the batch too."""
    return _rows(lambda h: h * torch.sigmoid(h.mean()))


def running_maximum():
    """An observer keeps the largest values of private records in a buffer."""

    def update(self, values):
        self.kept.copy_(torch.maximum(self.kept, values.amax(0)))

    return _rows(_Kept(update))


def last_record():
    """The last hidden record is kept in a buffer for debugging."""
    return _rows(_Kept(lambda self, values: self.kept.copy_(values[-1])))


def prototype_parameter():
    """A forward pass moves prototypes, which are parameters, to the batch's mean."""

    class Prototype(nn.Module):
        def __init__(self):
            super().__init__()
            self.centre = nn.Parameter(torch.zeros(12))

        def forward(self, values):
            if self.training:
                with torch.no_grad():
                    self.centre.lerp_(values.detach().mean(0), 0.1)
            return values - self.centre

    return _rows(Prototype())


def batch_weighted_loss():
    """Class weights are computed from the labels of the batch."""

    def loss(outputs, labels):
        weight = 1 / (1 + torch.bincount(labels, minlength=3).float())
        return functional.cross_entropy(outputs, labels, weight=weight)

    return _rows(nn.Identity(), loss)


def contrastive_loss():
    """A contrastive term takes the other records as negatives."""

    def loss(outputs, labels):
        others = torch.logsumexp(outputs @ outputs.T, 1).mean()
        return functional.cross_entropy(outputs, labels) + 0.1 * others

    return _rows(nn.Identity(), loss)


def renormed_embedding():
    """`max_norm` changes parameters of the words that occur."""
    return _list(nn.Embedding(20, 8, max_norm=0.5), nn.Flatten(), nn.Linear(48, 3), kind="words")


def hardest_records():
    """Only the half of the batch with the highest losses counts."""

    def loss(outputs, labels):
        each = functional.cross_entropy(outputs, labels, reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()

    return _rows(nn.Identity(), loss)


def infinite_root():
    """The root's gradient is infinite at zero, so that of units that are off is NaN."""
    return _rows(lambda h: torch.sqrt(torch.relu(h) ** 2))


def group_norm():
    """Group normalisation is per record."""
    return _list(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 3),
        kind="images",
    )


def instance_norm():
    """Instance normalisation without running statistics is per record."""
    return _list(
        nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4), nn.Flatten(), nn.Linear(144, 3), kind="images"
    )


def residual():
    """A residual with layer normalisation."""
    return _rows(nn.LayerNorm(12))


def gated():
    """Gates by the record's own mean."""
    return _rows(lambda h: h * torch.sigmoid(h.mean(-1, keepdim=True)))


def with_dropout():
    """Dropout draws for each record."""
    return _rows(nn.Dropout(0.3))


def constant_buffer():
    """A public constant in a buffer, which nothing changes."""
    return _rows(_Kept(lambda self, values: None))


def words_mean():
    """Embeddings are averaged over the words of a record."""
    return _list(
        nn.Embedding(20, 8), _Function(lambda words: words.mean(1)), nn.Linear(8, 3), kind="words"
    )


def smoothed_loss():
    """Label smoothing and public class weights, summed with fixed weights."""

    def loss(outputs, labels):
        weight = torch.tensor([1.0, 2.0, 0.5])[labels]
        each = functional.cross_entropy(outputs, labels, reduction="none", label_smoothing=0.1)
        return (weight * each).mean()

    return _rows(nn.Identity(), loss)


def sorted_features():
    """Sorts the features within each record."""
    return _rows(lambda h: h.sort(-1).values)


def strided_convolution():
    """Grouped, strided and dilated convolution."""
    return _list(
        nn.Conv2d(2, 4, 3, stride=2, groups=2), nn.Flatten(), nn.Linear(36, 3), kind="images"
    )


WRONG = {
    **{
        f.__name__: (f, "mixes records")
        for f in (
            centred_by_batch,
            softmax_over_records,
            attention_between_records,
            scaled_by_largest,
            mixup,
            batch_norm,
            gate_by_batch,
        )
    },
    **{
        f.__name__: (f, "keeps records")
        for f in (running_maximum, last_record, prototype_parameter, renormed_embedding)
    },
    **{
        f.__name__: (f, "loss mixes")
        for f in (batch_weighted_loss, contrastive_loss, hardest_records)
    },
    "infinite_root": (infinite_root, "not finite"),
}
RIGHT = {
    f.__name__: (f, "right")
    for f in (
        group_norm,
        instance_norm,
        residual,
        gated,
        with_dropout,
        constant_buffer,
        words_mean,
        smoothed_loss,
        sorted_features,
        strided_convolution,
    )
}
