"""Wrong and right models for `dpcanary check --model`, written from its documentation alone.

Each function gives a pair: what `--model` takes, a tuple of module and loss, and what `--features`
takes, a pair of inputs (a tensor, or a tuple of several) and labels. So
`(module, loss), records = function()`, then `check_model(module, records, loss)`. WRONG and RIGHT
map names to pairs of such a function and the kind of result that is expected of it.
"""

from types import MethodType

import torch
from opacus.layers import DPGRU
from torch import nn
from torch.nn import functional

NUM_RECORDS = 24
NUM_CLASSES = 3
VOCABULARY = 40


def labels():
    """Draws a class for each record."""
    return torch.randint(NUM_CLASSES, (NUM_RECORDS,))


def vectors():
    """Draws records that are vectors."""
    return torch.randn(NUM_RECORDS, 12), labels()


def sentences():
    """Draws records that are sentences of two to seven words, padded with zeros."""
    words = torch.randint(1, VOCABULARY, (NUM_RECORDS, 7))
    return words * (torch.arange(7) < torch.randint(2, 8, (NUM_RECORDS, 1))), labels()


class _Model(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def perceptron(kind):
    """Gives the parts of a perceptron to a model of some kind."""
    torch.manual_seed(0)
    return kind(hidden=nn.Linear(12, 16), head=nn.Linear(16, NUM_CLASSES))


def bag_of_words(kind, words=1):
    """Gives an embedding of words and a head to a model of some kind."""
    torch.manual_seed(0)
    return kind(embedding=nn.Embedding(VOCABULARY, 8), head=nn.Linear(8 * words, NUM_CLASSES))


class _Plain(_Model):
    def forward(self, inputs):
        return self.head(functional.relu(self.hidden(inputs)))


class _FunctionalBatchNorm(_Model):
    def forward(self, inputs):
        hidden = self.hidden(inputs)
        if self.training and len(hidden) > 1:
            hidden = functional.batch_norm(hidden, None, None, training=True)
        return self.head(functional.relu(hidden))


def batch_norm_as_a_function():
    """A validator that looks for layers finds no batch norm, but records are scaled by others."""
    return (perceptron(_FunctionalBatchNorm), nn.CrossEntropyLoss()), vectors()


class _DynamicQuantisation(_Model):
    def forward(self, inputs):
        hidden = functional.relu(self.hidden(inputs))
        scale = hidden.detach().abs().max() / 127 if hidden.numel() else hidden.new_ones(())
        rounded = torch.round(hidden / (scale + 1e-12)) * scale
        return self.head(hidden + (rounded - hidden).detach())


def dynamic_quantisation():
    """The scale of quantised activations is the largest of the batch, so of another record."""
    return (perceptron(_DynamicQuantisation), nn.CrossEntropyLoss()), vectors()


class _LongestInBatch(_Model):
    def forward(self, words):
        mask = (words != 0).float()
        longest = mask.sum(dim=1).max() if len(words) else 1.0
        return self.head((self.embedding(words) * mask.unsqueeze(-1)).sum(dim=1) / longest)


def mean_over_the_longest():
    """Sums over words are divided by the length of the longest sentence of the batch."""
    return (bag_of_words(_LongestInBatch), nn.CrossEntropyLoss()), sentences()


class _CompactNumbers(_Model):
    def forward(self, categories):
        _, numbers = torch.unique(categories, return_inverse=True)
        return self.head(self.embedding(numbers).flatten(1))


def categories_numbered_in_the_batch():
    """Categories get numbers by their order in the batch, so embeddings depend on the others."""
    model = bag_of_words(_CompactNumbers, words=3)
    categories = torch.randint(20, (NUM_RECORDS, 3)) * 500
    return (model, nn.CrossEntropyLoss()), (categories, labels())


def weighted_cross_entropy():
    """A mean with class weights is divided by the sum of the weights of the batch."""
    return (perceptron(_Plain), nn.CrossEntropyLoss(torch.tensor([1.0, 6.0, 2.0]))), vectors()


class _TwoTowers(_Model):
    def forward(self, query, document):
        return torch.stack([self.queries(query), self.documents(document)], dim=1)


def in_batch_negatives():
    """A contrastive loss takes the other records of the batch for its negatives."""
    torch.manual_seed(0)
    queries = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
    documents = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 8))

    def loss(embeddings, _labels):
        query, document = functional.normalize(embeddings, dim=-1).unbind(dim=1)
        return functional.cross_entropy(query @ document.T / 0.2, torch.arange(len(query)))

    inputs = (torch.randn(NUM_RECORDS, 10), torch.randn(NUM_RECORDS, 14))
    return (_TwoTowers(queries=queries, documents=documents), loss), (inputs, labels())


def hard_example_mining():
    """Whether a record counts is decided by whether its loss is in the larger half of a batch."""

    def loss(outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return losses.topk(max(1, len(losses) // 2)).values.mean()

    return (perceptron(_Plain), loss), vectors()


class _VectorQuantised(_Model):
    def forward(self, inputs):
        encoded = self.encoder(inputs)
        codes = torch.cdist(encoded.detach(), self.codebook).argmin(dim=1)
        chosen = self.codebook[codes]
        if self.training:
            with torch.no_grad():
                for code in codes.unique():
                    mean = encoded[codes == code].mean(dim=0)
                    self.codebook[code] = 0.99 * self.codebook[code] + 0.01 * mean
        return self.head(encoded + (chosen - encoded).detach())


def codebook_of_averages():
    """The codebook, released with the model, holds moving averages of the encoded records."""
    torch.manual_seed(0)
    encoder, head = nn.Linear(12, 6), nn.Linear(6, NUM_CLASSES)
    model = _VectorQuantised(encoder=encoder, head=head, codebook=nn.Buffer(torch.randn(8, 6)))
    return (model, nn.CrossEntropyLoss()), vectors()


class _BalancedExperts(_Model):
    def forward(self, inputs):
        scores = self.router(inputs).sigmoid()
        chosen = (scores + self.balance).topk(2, dim=1).indices
        places = torch.zeros_like(scores).scatter(1, chosen, 1.0)
        if self.training:
            load = places.sum(dim=0)
            self.balance += 0.001 * torch.sign(load.mean() - load)
        outputs = torch.stack([expert(inputs) for expert in self.experts], dim=1)
        return ((places * scores).unsqueeze(-1) * outputs).sum(dim=1)


def balance_of_experts():
    """The biases that balance experts are counts of where records went, without noise."""
    torch.manual_seed(0)
    router, balance = nn.Linear(12, 4), nn.Buffer(torch.zeros(4))
    experts = nn.ModuleList(nn.Linear(12, NUM_CLASSES) for _ in range(4))
    model = _BalancedExperts(router=router, experts=experts, balance=balance)
    return (model, nn.CrossEntropyLoss()), vectors()


class _CachedMask(_Model):
    mask = None

    def forward(self, words):
        if self.mask is None or self.mask.shape != words.shape:
            self.mask = (words != 0).float()
        weights = self.mask / self.mask.sum(dim=1, keepdim=True)
        return self.head((self.embedding(words) * weights.unsqueeze(-1)).sum(dim=1))


def cached_mask():
    """The mask of padding is kept for later batches of its shape, with the lengths of others."""
    return (bag_of_words(_CachedMask), nn.CrossEntropyLoss()), sentences()


class _ScaledBackward(_Model):
    def forward(self, inputs):
        hidden = torch.tanh(self.hidden(inputs))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-8))
        return self.head(hidden)


def backward_scaled_by_the_batch():
    """A hook divides gradients of activations by the norm over all records of the batch."""
    return (perceptron(_ScaledBackward), nn.CrossEntropyLoss()), vectors()


class _TiedAutoencoder(_Model):
    def forward(self, inputs):
        return torch.tanh(self.encoder(inputs)) @ self.encoder.weight


def decoder_of_a_borrowed_weight():
    """The decoder uses the encoder's weight outside of its layer, where no hook sees it."""
    torch.manual_seed(0)
    inputs, _ = vectors()
    return (_TiedAutoencoder(encoder=nn.Linear(12, 5)), nn.MSELoss()), (inputs, inputs.clone())


def _equalised_forward(layer, inputs):
    scale = (2 / layer.in_features) ** 0.5
    return functional.linear(inputs, layer.weight * scale, layer.bias)


def equalised_by_patching():
    """The forward pass of linear layers is replaced, so samplers for linear layers are wrong."""
    model = perceptron(_Plain)
    for layer in (model.hidden, model.head):
        nn.init.normal_(layer.weight)
        layer.forward = MethodType(_equalised_forward, layer)
    return (model, nn.CrossEntropyLoss()), vectors()


class _FoldedFrames(_Model):
    def forward(self, videos):
        hidden = functional.relu(self.convolution(videos.flatten(0, 1))).mean(dim=(2, 3))
        return self.head(hidden.view(len(videos), -1, 6).mean(dim=1))


def frames_folded_into_the_batch():
    """The convolution takes frames for records, so there is a gradient for each frame."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 6, 3, padding=1)
    model = _FoldedFrames(convolution=convolution, head=nn.Linear(6, NUM_CLASSES))
    return (model, nn.CrossEntropyLoss()), (torch.randn(NUM_RECORDS, 5, 2, 6, 6), labels())


class _NormalisedByHand(_Model):
    def forward(self, inputs):
        hidden = torch.tanh(self.hidden(inputs))
        return self.head(hidden / ((hidden * hidden).sum(dim=1, keepdim=True).sqrt() + 1e-8))


def root_of_zero():
    """A blank record has a finite loss, and a gradient that is NaN from the root of zero."""
    model = perceptron(_NormalisedByHand)
    model.hidden.bias = None
    inputs, targets = vectors()
    inputs[1::2] = 0
    return (model, nn.CrossEntropyLoss()), (inputs, targets)


WRONG = {
    "batch norm as a function": (batch_norm_as_a_function, "mixes records"),
    "dynamic quantisation": (dynamic_quantisation, "mixes records"),
    "mean over the longest": (mean_over_the_longest, "mixes records"),
    "categories numbered in the batch": (categories_numbered_in_the_batch, "mixes records"),
    "weighted cross-entropy": (weighted_cross_entropy, "loss"),
    "in-batch negatives": (in_batch_negatives, "loss"),
    "hard example mining": (hard_example_mining, "loss"),
    "codebook of averages": (codebook_of_averages, "buffer"),
    "balance of experts": (balance_of_experts, "buffer"),
    "cached mask": (cached_mask, "state"),
    "backward scaled by the batch": (backward_scaled_by_the_batch, "backward mixes"),
    "decoder of a borrowed weight": (decoder_of_a_borrowed_weight, "gradients"),
    "equalised by patching": (equalised_by_patching, "gradients"),
    "frames folded into the batch": (frames_folded_into_the_batch, "gradients"),
    "root of zero": (root_of_zero, "not finite"),
}


class _WeightNormalised(_Model):
    def forward(self, inputs):
        norms = self.direction.norm(dim=1, keepdim=True)
        return inputs @ (self.length * self.direction / norms).T


def weight_norm():
    """Weights are normalised by themselves, and each record still stands alone."""
    torch.manual_seed(0)
    layers = [
        _WeightNormalised(
            direction=nn.Parameter(torch.randn(outputs, inputs)),
            length=nn.Parameter(torch.ones(outputs, 1)),
        )
        for inputs, outputs in ((12, 16), (16, NUM_CLASSES))
    ]
    return (nn.Sequential(layers[0], nn.SiLU(), layers[1]), nn.CrossEntropyLoss()), vectors()


class _Vit(_Model):
    def forward(self, images):
        patches = self.patches(images).flatten(2).transpose(1, 2)
        places = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1)
        places = self.norm(places + self.positions)
        places = places + self.mixing(places.transpose(1, 2)).transpose(1, 2)
        return self.head(places[:, 0])


def parameters_of_the_model_itself():
    """Positions and a token are parameters of the whole model, which all records share."""
    torch.manual_seed(0)
    model = _Vit(
        token=nn.Parameter(torch.randn(1, 1, 8) / 4),
        positions=nn.Parameter(torch.randn(1, 10, 8) / 4),
        patches=nn.Conv2d(1, 8, 2, stride=2),
        norm=nn.LayerNorm(8),
        mixing=nn.Linear(10, 10),
        head=nn.Linear(8, NUM_CLASSES),
    )
    return (model, nn.CrossEntropyLoss()), (torch.randn(NUM_RECORDS, 1, 6, 6), labels())


class _FrozenNorm(_Model):
    def forward(self, images):
        return (images - self.mean) / self.deviation


def frozen_statistics():
    """What was a batch norm holds constants of public images, and changes no more."""
    torch.manual_seed(0)
    mean, deviation = nn.Buffer(torch.randn(6, 1, 1)), nn.Buffer(torch.rand(6, 1, 1) + 0.5)
    norm = _FrozenNorm(mean=mean, deviation=deviation)
    layers = [nn.Conv2d(2, 6, 3, stride=2), norm, nn.GELU(), nn.Conv2d(6, 6, 2)]
    model = nn.Sequential(*layers, nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(24, NUM_CLASSES))
    images = torch.randn(NUM_RECORDS, 2, 8, 8)
    return (model, nn.CrossEntropyLoss(label_smoothing=0.1)), (images, labels())


class _Hypernetwork(_Model):
    def forward(self, inputs):
        matrices = self.weights(inputs[:, :4]).view(-1, NUM_CLASSES, 8)
        hidden = torch.tanh(self.features(inputs[:, 4:]))
        return torch.bmm(matrices, hidden.unsqueeze(-1)).squeeze(-1)


def weights_from_the_record():
    """Each record goes through weights of its own, computed from itself."""
    torch.manual_seed(0)
    weights = nn.Linear(4, 8 * NUM_CLASSES)
    model = _Hypernetwork(weights=weights, features=nn.Linear(8, 8))
    return (model, nn.CrossEntropyLoss()), vectors()


class _Denoiser(_Model):
    def forward(self, inputs):
        if self.training:
            inputs = inputs + 0.3 * torch.randn_like(inputs)
        return self.decoder(functional.relu(self.encoder(inputs)))


def noisy_inputs():
    """Every record gets random noise of its own, which no other record changes."""
    torch.manual_seed(0)
    inputs, _ = vectors()
    model = _Denoiser(encoder=nn.Linear(12, 6), decoder=nn.Linear(6, 12))
    return (model, nn.MSELoss()), (inputs, inputs.clone())


class _AttentionWithin(_Model):
    def forward(self, words):
        present = words != 0
        embedded = self.embedding(words)
        scores = self.query(embedded) @ self.key(embedded).transpose(1, 2) / 8**0.5
        scores = scores.masked_fill(~present.unsqueeze(1), -1e9)
        attended = scores.softmax(dim=-1) @ self.value(embedded) * present.unsqueeze(-1)
        return self.head(attended.sum(dim=1) / present.sum(dim=1, keepdim=True))


def attention_within_records():
    """Words attend to words of their own sentence, and means are over its own length."""
    model = bag_of_words(_AttentionWithin)
    model.query, model.key, model.value = (nn.Linear(8, 8) for _ in range(3))
    return (model, nn.CrossEntropyLoss()), sentences()


class _SharedTower(_Model):
    def forward(self, left, right):
        return 4 * functional.cosine_similarity(self.tower(left), self.tower(right), dim=1)


def shared_tower():
    """Both inputs of a record go through the same layers, which are used twice in a pass."""
    torch.manual_seed(0)
    model = _SharedTower(tower=nn.Sequential(nn.Linear(10, 16), nn.ELU(), nn.Linear(16, 8)))
    inputs = (torch.randn(NUM_RECORDS, 10), torch.randn(NUM_RECORDS, 10))
    return (model, nn.BCEWithLogitsLoss()), (inputs, torch.randint(2, (NUM_RECORDS,)).float())


class _LowRank(_Model):
    def forward(self, inputs):
        return self.base(inputs) + 2 * self.up(self.down(inputs))


def adapters_and_public_weights():
    """Adapters train beside frozen layers, and class weights do not change the divisor."""
    model = perceptron(_Plain)
    for name in ("hidden", "head"):
        base = getattr(model, name).requires_grad_(False)
        down = nn.Linear(base.in_features, 2, bias=False)
        up = nn.Linear(2, base.out_features, bias=False)
        setattr(model, name, _LowRank(base=base, down=down, up=up))

    def loss(outputs, targets):
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return (torch.tensor([1.0, 6.0, 2.0])[targets] * losses).mean()

    return (model, loss), vectors()


class _PointGraph(_Model):
    def forward(self, clouds):
        near = torch.cdist(clouds, clouds).topk(4, dim=2, largest=False).indices
        neighbours = clouds[torch.arange(len(clouds)).view(-1, 1, 1), near]
        centres = clouds.unsqueeze(2).expand_as(neighbours)
        messages = functional.relu(self.edges(torch.cat([centres, neighbours - centres], dim=-1)))
        return self.head(messages.amax(dim=2).mean(dim=1))


def graph_within_records():
    """Nearest neighbours are points of the same cloud, so no record sees another."""
    torch.manual_seed(0)
    model = _PointGraph(edges=nn.Linear(6, 16), head=nn.Linear(16, NUM_CLASSES))
    return (model, nn.CrossEntropyLoss()), (torch.randn(NUM_RECORDS, 9, 3), labels())


class _Counts(_Model):
    def forward(self, sequences):
        return self.head(self.recurrent(sequences)[0][:, -1]).squeeze(-1)


def recurrent_counts():
    """A recurrent layer starts anew for every record, and the loss is that of counts."""
    torch.manual_seed(0)
    model = _Counts(recurrent=DPGRU(3, 8, batch_first=True), head=nn.Linear(8, 1))
    counts = torch.poisson(torch.full((NUM_RECORDS,), 2.0))
    return (model, nn.PoissonNLLLoss()), (torch.randn(NUM_RECORDS, 5, 3), counts)


RIGHT = {
    "weight norm": (weight_norm, "passes"),
    "parameters of the model itself": (parameters_of_the_model_itself, "passes"),
    "frozen statistics": (frozen_statistics, "passes"),
    "weights from the record": (weights_from_the_record, "passes"),
    "noisy inputs": (noisy_inputs, "passes"),
    "attention within records": (attention_within_records, "passes"),
    "shared tower": (shared_tower, "passes"),
    "adapters and public weights": (adapters_and_public_weights, "passes"),
    "graph within records": (graph_within_records, "passes"),
    "recurrent counts": (recurrent_counts, "passes"),
}
