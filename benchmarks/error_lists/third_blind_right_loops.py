"""A third blind list: loops that are as private as their settings say, written in many ways.

Written from the documentation of `dpcanary check` alone, and never run through it. Each docstring
says why: what is released depends on a record only through noisy sums of clipped gradients over
Poisson batches, whatever is done with the noisy sums.
"""

import math
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.error_lists.third_blind_wrong_loops import (
    added,
    clipped_sums,
    descend,
    deviation_of,
    dp_sgd,
    expected_size,
    factors_of,
    gradients_of_records,
    named,
    normal_noise,
    norms_of,
    poisson,
    weighted_sums,
)

# Gradients of single records, in other ways


def by_helpers(module, dataset, settings):
    """Plain DP-SGD: whole gradients are clipped, summed, noised, and divided by a constant."""
    yield from dp_sgd(module, dataset, settings)


def opacus_per_layer(module, dataset, settings):
    """Opacus clips each tensor to C / sqrt(tensors), so whole gradients have norms up to C."""
    warnings.simplefilter("ignore")
    parameters = list(module.parameters())
    bound = settings.max_grad_norm / math.sqrt(len(parameters))
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(parameters, lr=settings.learning_rate, momentum=0.5),
        data_loader=DataLoader(dataset, batch_size=round(expected_size(dataset, settings))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=[bound] * len(parameters),
        clipping="per_layer",
    )
    step = 0
    while step < settings.num_steps:
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
            step += 1
            yield
            if step == settings.num_steps:
                break


def functional_vmap(module, dataset, settings):
    """The vmap of grad gives each record's own gradient, and the rest is as in textbooks."""
    features, labels = dataset.tensors
    parameters = dict(module.named_parameters())

    def loss(values, one, label):
        outputs = torch.func.functional_call(module, values, (one[None],))
        return nn.functional.cross_entropy(outputs, label[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    for _ in range(settings.num_steps):
        chosen = torch.bernoulli(torch.full((len(labels),), settings.sample_rate)).bool()
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        if chosen.any():
            values = {name: value.detach() for name, value in parameters.items()}
            gradients = each(values, features[chosen], labels[chosen])
            factors = factors_of(norms_of(list(gradients.values())), settings.max_grad_norm)
            for name, gradient in gradients.items():
                sums[name] = torch.tensordot(factors, gradient, dims=1)
        with torch.no_grad():
            for name, value in parameters.items():
                noisy = sums[name] + deviation_of(settings) * torch.randn_like(value)
                value -= settings.learning_rate * noisy / expected_size(dataset, settings)
        yield


def record_by_record(module, dataset, settings):
    """PyTorch's own clip_grad_norm_ is called after each record's backward pass: norms up to C."""
    features, labels = dataset.tensors
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=settings.learning_rate)
    for _ in range(settings.num_steps):
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for row in range(len(labels)):
            if torch.rand(()) >= settings.sample_rate:
                continue
            optimizer.zero_grad()
            outputs = module(features[row : row + 1])
            nn.functional.cross_entropy(outputs, labels[row : row + 1]).backward()
            nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)
            for total, parameter in zip(sums, parameters, strict=True):
                total += parameter.grad
        for total, parameter in zip(sums, parameters, strict=True):
            noise = torch.normal(0.0, deviation_of(settings), size=total.shape)
            parameter.grad = (total + noise) / expected_size(dataset, settings)
        optimizer.step()
        yield


def two_passes(module, dataset, settings):
    """Norms come first, then one pass of the losses times factors: its sum is of clipped ones."""
    features, labels = dataset.tensors
    parameters = list(module.parameters())
    for _ in range(settings.num_steps):
        rows = poisson(len(labels), settings)
        norms = norms_of(gradients_of_records(module, features[rows], labels[rows]))
        losses = nn.functional.cross_entropy(module(features[rows]), labels[rows], reduction="none")
        weighted = (factors_of(norms, settings.max_grad_norm) * losses).sum()
        sums = torch.autograd.grad(weighted, parameters)
        for parameter, total in zip(parameters, sums, strict=True):
            noise = deviation_of(settings) * torch.randn_like(total)
            step = settings.learning_rate / expected_size(dataset, settings)
            parameter.data.add_(total + noise, alpha=-step)
        yield


def micro_batches(module, dataset, settings):
    """Clipped sums of eights are added up, and noise is added once before the one update."""
    features, labels = dataset.tensors
    for _ in range(settings.num_steps):
        rows = poisson(len(labels), settings)
        totals = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for part in rows.split(8):
            gradients = gradients_of_records(module, features[part], labels[part])
            totals = added(totals, clipped_sums(gradients, settings.max_grad_norm))
        noisy = added(totals, normal_noise(totals, deviation_of(settings)))
        descend(module, noisy, settings.learning_rate / expected_size(dataset, settings))
        yield


def one_flat_matrix(module, dataset, settings):
    """All tensors are one row per record, so norm, sum and one vector of noise are textbook."""
    features, labels = dataset.tensors
    parameters = list(module.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    for _ in range(settings.num_steps):
        rows = poisson(len(labels), settings)
        gradients = gradients_of_records(module, features[rows], labels[rows])
        matrix = torch.cat([gradient.flatten(1) for gradient in gradients], dim=1)
        norms = torch.linalg.vector_norm(matrix, dim=1, keepdim=True)
        clipped = matrix / (norms / settings.max_grad_norm).clamp(min=1)
        noisy = clipped.sum(dim=0) + deviation_of(settings) * torch.randn(matrix.shape[1])
        pairs = zip(noisy.split(sizes), parameters, strict=True)
        directions = [part.view_as(parameter) for part, parameter in pairs]
        descend(module, directions, settings.learning_rate / expected_size(dataset, settings))
        yield


# Clipping by other bounds


def budgets_of_tensors(module, dataset, settings):
    """Each tensor has its own bound, squares of bounds add up to C squared, noise is of C."""
    sizes = [parameter.numel() for parameter in module.parameters()]
    bounds = [settings.max_grad_norm * math.sqrt(size / sum(sizes)) for size in sizes]

    def clip(batch):
        pairs = zip(batch.gradients, bounds, strict=True)
        return [clipped_sums([gradient], bound)[0] for gradient, bound in pairs]

    yield from dp_sgd(module, dataset, settings, clip=clip)


def smooth_clipping(module, dataset, settings):
    """The factor C / sqrt(C^2 + norm^2) keeps every norm below C without a corner."""

    def clip(batch):
        squares = settings.max_grad_norm**2 + batch.norms**2
        return weighted_sums(batch.gradients, settings.max_grad_norm / squares.sqrt())

    yield from dp_sgd(module, dataset, settings, clip=clip)


def values_then_norm(module, dataset, settings):
    """Outlying values are cut before the norm is, so what is summed has norms up to C anyway."""

    def clip(batch):
        limit = settings.max_grad_norm / 2
        cut = [gradient.clamp(-limit, limit) for gradient in batch.gradients]
        return clipped_sums(cut, settings.max_grad_norm)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def lighter_classes(module, dataset, settings):
    """Public class weights of at most one follow clipping, so norms only become smaller."""

    def clip(batch):
        weights = torch.where(batch.labels == 1, 0.6, 1.0)
        factors = factors_of(batch.norms, settings.max_grad_norm)
        return weighted_sums(batch.gradients, weights * factors)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def falling_bound(module, dataset, settings):
    """The bound falls by a fixed schedule and the noise with it: the multiplier is the same."""

    def bound(batch):
        return settings.max_grad_norm * 0.96**batch.step

    yield from dp_sgd(module, dataset, settings, bound=bound)


# What is done with noisy sums


def given_to(optimizer, size):
    """A move by an optimizer of PyTorch, which gets noisy sums divided by the size."""

    def move(batch, noisy):
        for parameter, one in zip(optimizer.param_groups[0]["params"], noisy, strict=True):
            parameter.grad = one / size
        optimizer.step()

    return move


def adam(module, dataset, settings):
    """Adam gets noisy gradients alone, so its moments and steps are post-processing."""
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.learning_rate, amsgrad=True)
    move = given_to(optimizer, expected_size(dataset, settings))
    yield from dp_sgd(module, dataset, settings, move=move)


def nesterov_with_cosine(module, dataset, settings):
    """Momentum, weight decay and a fixed schedule see the parameters and noisy gradients only."""
    rate = settings.learning_rate
    optimizer = torch.optim.SGD(
        module.parameters(), lr=rate, momentum=0.8, nesterov=True, weight_decay=1e-3
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * settings.num_steps)
    move = given_to(optimizer, expected_size(dataset, settings))
    for _ in dp_sgd(module, dataset, settings, move=move):
        schedule.step()
        yield


def orthogonal_updates(module, dataset, settings):
    """As in Muon, noisy matrices are made nearly orthogonal, which is post-processing."""

    def orthogonal(matrix):
        current = matrix / (matrix.norm() + 1e-12)
        for _ in range(5):
            square = current @ current.T
            current = 1.5 * current - 0.5 * square @ current
        return current * matrix.norm() / (current.norm() + 1e-12)

    def move(batch, noisy):
        directions = [orthogonal(one) if one.dim() == 2 else one for one in noisy]
        descend(module, directions, settings.learning_rate / expected_size(dataset, settings))

    yield from dp_sgd(module, dataset, settings, move=move)


def averaged_at_the_end(module, dataset, settings):
    """The released parameters are a mean of the iterates, each of which is private already."""
    parameters = list(module.parameters())
    means = [parameter.detach().clone() for parameter in parameters]
    for step, _ in enumerate(dp_sgd(module, dataset, settings)):
        for mean, parameter in zip(means, parameters, strict=True):
            mean.lerp_(parameter.detach(), 1 / (step + 2))
        yield
    with torch.no_grad():
        for mean, parameter in zip(means, parameters, strict=True):
            parameter.copy_(mean)


def gradients_ahead(module, dataset, settings):
    """Gradients are taken where earlier noisy sums lead, which are public by composition."""
    velocities = [torch.zeros_like(parameter) for parameter in module.parameters()]
    rate = settings.learning_rate / expected_size(dataset, settings)
    kept = 0.5

    def draw(step):
        descend(module, velocities, -kept)
        return poisson(len(dataset), settings)

    def move(batch, noisy):
        descend(module, noisy, rate)
        for velocity, one in zip(velocities, noisy, strict=True):
            velocity.mul_(kept).sub_(rate * one)

    yield from dp_sgd(module, dataset, settings, draw=draw, move=move)


def divided_by_the_bound(module, dataset, settings):
    """Gradients are clipped to 1 after division by C, so C is in the learning rate, not noise."""

    def clip(batch):
        scaled = [gradient / settings.max_grad_norm for gradient in batch.gradients]
        return clipped_sums(scaled, 1.0)

    yield from dp_sgd(module, dataset, settings, clip=clip, bound=lambda batch: 1.0)


# Frozen parts, precision, generators and sampling


def first_tensor_frozen(module, dataset, settings):
    """The first tensor never moves, so norms and noise are of what is trained and released."""

    def clip(batch):
        return clipped_sums(batch.gradients[1:], settings.max_grad_norm)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def gradual_unfreezing(module, dataset, settings):
    """Tensors join from the last to the first by a fixed schedule, in norm, noise and update."""

    def clip(batch):
        num_trained = 1 + batch.step // 2
        return clipped_sums(batch.gradients[-num_trained:], settings.max_grad_norm)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def double_precision(module, dataset, settings):
    """Sums and noise are in float64 and only the new parameters are rounded, after the noise."""
    parameters = list(module.parameters())

    def clip(batch):
        doubles = [gradient.double() for gradient in batch.gradients]
        return clipped_sums(doubles, settings.max_grad_norm)

    def move(batch, noisy):
        rate = settings.learning_rate / expected_size(dataset, settings)
        for parameter, one in zip(parameters, noisy, strict=True):
            parameter.data.copy_(parameter.data.double() - rate * one)

    yield from dp_sgd(module, dataset, settings, clip=clip, move=move)


def numpy_generators(module, dataset, settings):
    """Batches and noise have their own streams of Philox, spawned from one seed: independent."""
    streams = np.random.SeedSequence(settings.seed).spawn(2)
    sampler, noiser = (np.random.Generator(np.random.Philox(stream)) for stream in streams)

    def draw(step):
        return torch.from_numpy(np.flatnonzero(sampler.random(len(dataset)) < settings.sample_rate))

    def noise(batch, sums):
        return [
            torch.from_numpy(noiser.normal(0, deviation_of(settings), tuple(total.shape))).float()
            for total in sums
        ]

    yield from dp_sgd(module, dataset, settings, draw=draw, noise=noise)


def four_workers(module, dataset, settings):
    """Each of four shards is sampled and noised with half of the deviation: variances add up."""
    features, labels = dataset.tensors
    rate = settings.learning_rate / expected_size(dataset, settings)
    for _ in range(settings.num_steps):
        totals = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for worker in range(4):
            own = torch.arange(worker, len(labels), 4)
            rows = own[torch.rand(len(own)) < settings.sample_rate]
            gradients = gradients_of_records(module, features[rows], labels[rows])
            sums = clipped_sums(gradients, settings.max_grad_norm)
            noisy = added(sums, normal_noise(sums, deviation_of(settings) / 2))
            totals = added(totals, noisy)
        descend(module, totals, rate)
        yield


def gaps_between_records(module, dataset, settings):
    """Gaps between drawn records are geometric, which is the law of independent coins."""
    generator = np.random.default_rng(settings.seed)

    def draw(step):
        gaps = generator.geometric(settings.sample_rate, size=len(dataset))
        places = np.cumsum(gaps) - 1
        return torch.from_numpy(places[places < len(dataset)])

    yield from dp_sgd(module, dataset, settings, draw=draw)


def size_before_records(module, dataset, settings):
    """A binomial size, then so many different records: the same law as independent coins."""
    count = torch.tensor(float(len(dataset)))
    rate = torch.tensor(float(settings.sample_rate))

    def draw(step):
        return torch.randperm(len(dataset))[: int(torch.binomial(count, rate))]

    yield from dp_sgd(module, dataset, settings, draw=draw)


RIGHT = named(
    {
        "plain": [by_helpers],
        "library": [opacus_per_layer],
        "gradients": [functional_vmap, record_by_record, two_passes],
        "accumulation": [micro_batches],
        "order": [one_flat_matrix],
        "clipping": [budgets_of_tensors, smooth_clipping, values_then_norm, lighter_classes],
        "schedule": [falling_bound],
        "optimiser": [adam, nesterov_with_cosine],
        "post-processing": [orthogonal_updates, averaged_at_the_end],
        "momentum": [gradients_ahead],
        "normalisation": [divided_by_the_bound],
        "frozen part": [first_tensor_frozen, gradual_unfreezing],
        "precision": [double_precision],
        "generators": [numpy_generators],
        "workers": [four_workers],
        "sampling": [gaps_between_records, size_before_records],
    }
)
