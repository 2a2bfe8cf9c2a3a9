"""Twenty-five training loops that are as private as their settings say: of a fifth blind list.

In each, parameters depend on a record only through sums of gradients clipped to C, over Poisson
batches of the sample rate, with fresh Gaussian noise of the noise multiplier times C. RIGHT has,
for each name, the loop and what is unusual.
"""

import math
from functools import partial
from itertools import chain, islice, repeat

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.error_lists.fifth_blind_wrong_loops import (
    added,
    batches_of,
    clipped_sums,
    descend,
    deviation_of,
    dp_sgd,
    factors_of,
    gaussian,
    generator_of,
    gradients_of,
    norms_of,
    poisson,
    step_size,
    take_step,
    weighted_sums,
    with_opacus,
    with_units,
)


def noisy_means(module, dataset, settings):
    """Gives noisy mean gradients, one step after the other, at the module's parameters."""
    generator = generator_of(settings)
    expected = settings.sample_rate * len(dataset)
    for features, labels in batches_of(dataset, settings, generator):
        gradients = gradients_of(module, features, labels)
        sums = clipped_sums(gradients, settings.max_grad_norm)
        noisy = added(sums, gaussian(sums, deviation_of(settings), generator))
        yield [total / expected for total in noisy]


# The mechanism, written in other ways.


def one_record_after_another(module, dataset, settings):
    """The textbook's loop: each record alone is clipped, and the sum gets noise once."""
    features, labels = dataset.tensors
    torch.manual_seed(settings.seed)
    for _ in range(settings.num_steps):
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        drawn = torch.rand(len(labels)) < settings.sample_rate
        for one, label in zip(features[drawn], labels[drawn], strict=True):
            module.zero_grad()
            cross_entropy(module(one[None]), label[None]).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
            for total, parameter in zip(sums, module.parameters(), strict=True):
                total += parameter.grad
        with torch.no_grad():
            for total, parameter in zip(sums, module.parameters(), strict=True):
                total += deviation_of(settings) * torch.randn_like(total)
                parameter -= step_size(dataset, settings) * total
        yield


def by_torch_func(module, dataset, settings):
    """Gradients of single records by vmap of grad are the same as those of records alone."""
    generator = generator_of(settings)

    def loss_of(parameters, one, label):
        return cross_entropy(functional_call(module, parameters, (one[None],)), label[None])

    per_record = vmap(grad(loss_of), (None, 0, 0))
    for features, labels in batches_of(dataset, settings, generator):
        parameters = {name: one.detach() for name, one in module.named_parameters()}
        if len(labels):
            gradients = per_record(parameters, features, labels)
            sums = clipped_sums(list(gradients.values()), settings.max_grad_norm)
        else:
            sums = [torch.zeros_like(one) for one in parameters.values()]
        take_step(module, sums, dataset, settings, generator)
        yield


def micro_batches(module, dataset, settings):
    """Clipped sums of parts of seven records are accumulated, and noise is added to all at once."""
    generator = generator_of(settings)
    for features, labels in batches_of(dataset, settings, generator):
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for first in range(0, len(labels), 7):
            part = slice(first, first + 7)
            gradients = gradients_of(module, features[part], labels[part])
            sums = added(sums, clipped_sums(gradients, settings.max_grad_norm))
        take_step(module, sums, dataset, settings, generator)
        yield


def second_backward_pass(module, dataset, settings):
    """As in ghost clipping, factors weigh the losses, whose gradient is then the clipped sum."""
    generator = generator_of(settings)
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    expected = settings.sample_rate * len(dataset)
    for features, labels in batches_of(dataset, settings, generator):
        norms = norms_of(gradients_of(module, features, labels))
        factors = factors_of(norms, settings.max_grad_norm).detach()
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if len(labels):
            losses = cross_entropy(module(features), labels, reduction="none")
            (factors * losses).sum().backward()
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = (parameter.grad + deviation_of(settings) * noise) / expected
        optimizer.step()
        yield


def all_records_with_mask(module, dataset, settings):
    """Gradients of all records are taken, and a random mask leaves out those not in the batch."""
    features, labels = dataset.tensors
    generator = generator_of(settings)
    rates = torch.full((len(labels),), settings.sample_rate)
    for _ in range(settings.num_steps):
        mask = torch.bernoulli(rates, generator=generator)
        gradients = gradients_of(module, features, labels)
        factors = factors_of(norms_of(gradients), settings.max_grad_norm)
        sums = weighted_sums(gradients, mask * factors)
        take_step(module, sums, dataset, settings, generator)
        yield


def flat_vector(module, dataset, settings):
    """All parameters are one vector, so one norm, one sum and one draw of noise serve for all."""
    generator = generator_of(settings)
    vector = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    for features, labels in batches_of(dataset, settings, generator):
        gradients = gradients_of(module, features, labels)
        matrix = torch.cat([gradient.flatten(1) for gradient in gradients], 1)
        matrix = torch.renorm(matrix, 2, 0, settings.max_grad_norm)
        noise = deviation_of(settings) * torch.randn(len(vector), generator=generator)
        vector = vector - step_size(dataset, settings) * (matrix.sum(0) + noise)
        torch.nn.utils.vector_to_parameters(vector.clone(), module.parameters())
        yield


def noise_on_parameters(module, dataset, settings):
    """Parameters take the step first and the noise, scaled by the same constants, after it."""
    generator = generator_of(settings)
    rate = step_size(dataset, settings)
    for features, labels in batches_of(dataset, settings, generator):
        gradients = gradients_of(module, features, labels)
        descend(module, clipped_sums(gradients, settings.max_grad_norm), rate)
        with torch.no_grad():
            for parameter in module.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise, alpha=rate * deviation_of(settings))
        yield


def double_precision(module, dataset, settings):
    """Norms, sums and noise are in float64, and only the update is rounded to float32."""
    generator = generator_of(settings)
    for features, labels in batches_of(dataset, settings, generator):
        gradients = gradients_of(module, features, labels)
        sums = clipped_sums([one.double() for one in gradients], settings.max_grad_norm)
        normal = partial(torch.randn, dtype=torch.float64, generator=generator)
        noisy = [total + deviation_of(settings) * normal(total.shape) for total in sums]
        rate = step_size(dataset, settings)
        descend(module, [(rate * total).to(torch.float32) for total in noisy], 1.0)
        yield


def with_data_loader(module, dataset, settings):
    """A loader takes Poisson batches from a sampler, and gives empty batches as such."""
    generator = generator_of(settings)
    batches = [
        poisson(len(dataset), settings.sample_rate, generator).tolist()
        for _ in range(settings.num_steps)
    ]
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=list, generator=generator)
    for rows in loader:
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        if rows:
            features, labels = (torch.stack(column) for column in zip(*rows, strict=True))
            gradients = gradients_of(module, features, labels)
            sums = clipped_sums(gradients, settings.max_grad_norm)
        take_step(module, sums, dataset, settings, generator)
        yield


# Batches and noise, drawn in other ways.


def size_first(module, dataset, settings):
    """A binomial size and then a subset of that size have the law of independent draws."""
    random = np.random.default_rng(settings.seed)

    def draw(step, generator):
        size = random.binomial(len(dataset), settings.sample_rate)
        return torch.from_numpy(random.choice(len(dataset), size, replace=False))

    yield from dp_sgd(module, dataset, settings, draw=draw)


def gaps_between_records(module, dataset, settings):
    """Geometric gaps from one drawn record to the next have the law of independent draws."""
    random = np.random.default_rng(settings.seed)

    def draw(step, generator):
        gaps = random.geometric(settings.sample_rate, len(dataset))
        positions = np.cumsum(gaps) - 1
        return torch.from_numpy(positions[positions < len(dataset)])

    yield from dp_sgd(module, dataset, settings, draw=draw)


def box_muller(module, dataset, settings):
    """Normal numbers by Box and Muller in float64, from uniform ones above 0, are Gaussian."""

    def unit(shape, generator):
        uniform = torch.rand((2, *shape), dtype=torch.float64, generator=generator)
        radius = (-2 * torch.log1p(-uniform[0])).sqrt()
        return (radius * torch.cos(2 * math.pi * uniform[1])).float()

    yield from with_units(module, dataset, settings, unit)


def noise_of_two_servers(module, dataset, settings):
    """Two servers add independent noise of half of the variance each, which is all of it."""
    second = torch.Generator().manual_seed(settings.seed + 123_456_789)

    def noise(step, sums, generator):
        part = deviation_of(settings) / 2**0.5
        return added(gaussian(sums, part, generator), gaussian(sums, part, second))

    yield from dp_sgd(module, dataset, settings, noise=noise)


# Clipping in other ways.


def bounds_of_layers(module, dataset, settings):
    """Each tensor is clipped to C over the root of their number: all together, to at most C."""

    def clip(gradients, generator):
        bound = settings.max_grad_norm / len(gradients) ** 0.5
        return [total for one in gradients for total in clipped_sums([one], bound)]

    yield from dp_sgd(module, dataset, settings, clip=clip)


def normalised(module, dataset, settings):
    """Gradients are scaled to a norm of C n / (n + 0.01), which is below C (AUTO-S)."""

    def clip(gradients, generator):
        return weighted_sums(gradients, settings.max_grad_norm / (norms_of(gradients) + 0.01))

    yield from dp_sgd(module, dataset, settings, clip=clip)


def bound_that_falls(module, dataset, settings):
    """The bound falls with the step, and the noise with it: their ratio is as accounted."""
    state = {"bound": settings.max_grad_norm}

    def clip(gradients, generator):
        return clipped_sums(gradients, state["bound"])

    def noise(step, sums, generator):
        drawn = gaussian(sums, settings.noise_multiplier * state["bound"], generator)
        state["bound"] = settings.max_grad_norm * 0.97 ** (step + 1)
        return drawn

    yield from dp_sgd(module, dataset, settings, clip=clip, noise=noise)


def blocks_in_turn(module, dataset, settings):
    """Steps train every other tensor in turn, and clip and noise what they train."""
    generator = generator_of(settings)
    parameters = list(module.parameters())
    for step, (features, labels) in enumerate(batches_of(dataset, settings, generator)):
        block = slice(step % 2, None, 2)
        gradients = gradients_of(module, features, labels)[block]
        sums = clipped_sums(gradients, settings.max_grad_norm)
        noisy = added(sums, gaussian(sums, deviation_of(settings), generator))
        with torch.no_grad():
            for parameter, total in zip(parameters[block], noisy, strict=True):
                parameter -= step_size(dataset, settings) * total
        yield


# What is done with noisy gradients.


def adam(module, dataset, settings):
    """Adam sees noisy gradients alone, so its moments are post-processing."""
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
    for means in noisy_means(module, dataset, settings):
        for parameter, mean in zip(module.parameters(), means, strict=True):
            parameter.grad = mean
        optimizer.step()
        yield


def nesterov_with_schedule(module, dataset, settings):
    """Momentum and a cosine schedule use noisy gradients and public numbers."""
    optimizer = torch.optim.SGD(module.parameters(), settings.learning_rate, 0.8, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * settings.num_steps)
    for means in noisy_means(module, dataset, settings):
        for parameter, mean in zip(module.parameters(), means, strict=True):
            parameter.grad = mean
        optimizer.step()
        schedule.step()
        yield


def opacus_with_adamw(module, dataset, settings):
    """Opacus clips, samples and adds noise, and AdamW takes what it gives."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.learning_rate)
    module, optimizer, loader = with_opacus(module, dataset, settings, optimizer)
    for features, labels in islice(chain.from_iterable(repeat(loader)), settings.num_steps):
        optimizer.zero_grad()
        cross_entropy(module(features), labels).backward()
        optimizer.step()


def average_released(module, dataset, settings):
    """The moving average of noisy parameters, which is released, is post-processing."""
    average = [parameter.detach().clone() for parameter in module.parameters()]
    for means in noisy_means(module, dataset, settings):
        descend(module, means, settings.learning_rate)
        for kept, parameter in zip(average, module.parameters(), strict=True):
            kept.lerp_(parameter.detach(), 0.1)
        yield
    with torch.no_grad():
        for kept, parameter in zip(average, module.parameters(), strict=True):
            parameter.copy_(kept)


def cut_and_rounded(module, dataset, settings):
    """Noisy gradients are cut to a range and rounded to a grid, after the noise."""
    for means in noisy_means(module, dataset, settings):
        rounded = [torch.round(mean.clamp(-0.5, 0.5) * 1024) / 1024 for mean in means]
        descend(module, rounded, settings.learning_rate)
        yield


def one_step_late(module, dataset, settings):
    """A step applies the noisy gradient of the step before, as a pipeline would."""
    waiting = None
    for means in noisy_means(module, dataset, settings):
        if waiting is not None:
            descend(module, waiting, settings.learning_rate)
        waiting = means
        yield


def adam_without_bias_of_noise(module, dataset, settings):
    """The known variance of the noise is taken off the second moment of noisy gradients."""
    first = [torch.zeros_like(parameter) for parameter in module.parameters()]
    second = [torch.zeros_like(parameter) for parameter in module.parameters()]
    variance = (deviation_of(settings) / (settings.sample_rate * len(dataset))) ** 2
    for step, means in enumerate(noisy_means(module, dataset, settings), 1):
        directions = []
        for one, two, mean in zip(first, second, means, strict=True):
            one.mul_(0.9).add_(mean, alpha=0.1)
            two.mul_(0.99).addcmul_(mean, mean, value=0.01)
            corrected = (two / (1 - 0.99**step) - variance).clamp(min=1e-4)
            directions.append(one / (1 - 0.9**step) / corrected.sqrt())
        descend(module, directions, 0.1 * settings.learning_rate)
        yield


def projected(module, dataset, settings):
    """After each step, tensors are projected onto balls of their public initial norms."""
    largest = [float(parameter.detach().norm()) for parameter in module.parameters()]
    for means in noisy_means(module, dataset, settings):
        descend(module, means, settings.learning_rate)
        with torch.no_grad():
            for parameter, norm in zip(module.parameters(), largest, strict=True):
                parameter.mul_(min(1.0, norm / max(1e-12, float(parameter.norm()))))
        yield


RIGHT = {
    "one record after another": (one_record_after_another, "textbook"),
    "by torch.func": (by_torch_func, "gradients"),
    "micro-batches": (micro_batches, "accumulation"),
    "second backward pass": (second_backward_pass, "gradients"),
    "all records with a mask": (all_records_with_mask, "sampling"),
    "flat vector": (flat_vector, "vectorised"),
    "noise on parameters": (noise_on_parameters, "order"),
    "double precision": (double_precision, "dtype"),
    "with a data loader": (with_data_loader, "sampling"),
    "size first": (size_first, "sampling"),
    "gaps between records": (gaps_between_records, "sampling"),
    "Box and Muller": (box_muller, "generator"),
    "noise of two servers": (noise_of_two_servers, "noise"),
    "bounds of layers": (bounds_of_layers, "clipping"),
    "normalised": (normalised, "clipping"),
    "bound that falls": (bound_that_falls, "clipping"),
    "blocks in turn": (blocks_in_turn, "frozen parts"),
    "Adam": (adam, "optimiser"),
    "Nesterov with schedule": (nesterov_with_schedule, "optimiser"),
    "Opacus with AdamW": (opacus_with_adamw, "library"),
    "average released": (average_released, "averaging"),
    "cut and rounded": (cut_and_rounded, "post-processing"),
    "one step late": (one_step_late, "post-processing"),
    "Adam without the bias of noise": (adam_without_bias_of_noise, "post-processing"),
    "projected": (projected, "post-processing"),
}
