"""Right training loops, written from the documentation alone, before any was checked.

Each is as private as its settings say: what it releases depends on a record only through sums of
clipped gradients over Poisson batches, with Gaussian noise of the noise multiplier times the bound.
"""

import math
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader

from benchmarks.error_lists.fourth_blind_wrong_loops import (
    batches,
    clipped_sum,
    cut,
    descend,
    deviation,
    expected_size,
    factors,
    flat,
    gauss,
    load,
    record_gradients,
    spans,
    train_on,
)


def noisy_sums(module, dataset, settings):
    """The noisy sum of each step, at the parameters of that step."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        yield total + gauss(total, settings)


def give(module, row):
    """Puts a row of gradients where optimisers look for them."""
    for place, parameter in zip(spans(module).values(), module.parameters(), strict=True):
        parameter.grad = row[place].view_as(parameter).clone()


# Gradients and clipping


def vectorised(module, dataset, settings):
    """Right, as all records are clipped at once by one factor each, over all tensors."""
    features, labels = dataset.tensors
    size = settings.sample_rate * len(labels)

    def loss(parameters, one, label):
        outputs = functional_call(module, parameters, (one.unsqueeze(0),))
        return nn.functional.cross_entropy(outputs, label.unsqueeze(0))

    for _ in range(settings.num_steps):
        drawn = torch.bernoulli(torch.full((len(labels),), settings.sample_rate)).bool()
        parameters = {name: p.detach() for name, p in module.named_parameters()}
        sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
        if drawn.any():
            compute = vmap(grad(loss), in_dims=(None, 0, 0))
            gradients = compute(parameters, features[drawn], labels[drawn])
            squares = sum(g.flatten(1).square().sum(1) for g in gradients.values())
            weights = settings.max_grad_norm / squares.sqrt().clamp(min=settings.max_grad_norm)
            sums = {name: torch.einsum("i,i...", weights, g) for name, g in gradients.items()}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                noisy = torch.normal(sums[name], deviation(settings))
                parameter.sub_(noisy, alpha=settings.learning_rate / size)
        yield


def one_record_at_a_time(module, dataset, settings):
    """Right, as each record has its own backward pass and is clipped before it is added."""
    features, labels = dataset.tensors
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=settings.learning_rate)
    for _ in range(settings.num_steps):
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        for index in (torch.rand(len(labels)) < settings.sample_rate).nonzero()[:, 0].tolist():
            outputs = module(features[index : index + 1])
            loss = nn.functional.cross_entropy(outputs, labels[index : index + 1])
            gradients = torch.autograd.grad(loss, parameters)
            norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
            for total, gradient in zip(sums, gradients, strict=True):
                total += gradient / max(1.0, norm / settings.max_grad_norm)
        for total, parameter in zip(sums, parameters, strict=True):
            noisy = total + deviation(settings) * torch.randn(total.shape)
            parameter.grad = noisy / expected_size(dataset, settings)
        optimizer.step()
        yield


def reweighted_loss(module, dataset, settings):
    """Right, as the gradient of losses weighted by constant clipping factors is the clipped sum."""
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    for features, labels in batches(dataset, settings):
        norms = record_gradients(module, features, labels).norm(dim=1)
        weights = factors(norms, settings.max_grad_norm)
        losses = nn.functional.cross_entropy(module(features), labels, reduction="none")
        optimizer.zero_grad()
        (weights * losses).sum().backward()
        for parameter in module.parameters():
            parameter.grad += deviation(settings) * torch.randn_like(parameter)
            parameter.grad /= expected_size(dataset, settings)
        optimizer.step()
        yield


def physical_batches(module, dataset, settings):
    """Right, as parts of a batch are clipped and added, and noise is added once, to the whole."""
    for features, labels in batches(dataset, settings):
        total = torch.zeros_like(flat(module))
        for part, targets in zip(features.split(5), labels.split(5), strict=True):
            total += clipped_sum(module, part, targets, settings)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def budgets_of_tensors(module, dataset, settings):
    """Right, as the squares of the tensors' bounds add up to that of C, and noise is for C."""
    places = spans(module).values()
    size = len(flat(module))
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        bounds = [settings.max_grad_norm * math.sqrt((p.stop - p.start) / size) for p in places]
        parts = [cut(gradients[:, p], bound) for p, bound in zip(places, bounds, strict=True)]
        total = torch.cat(parts, 1).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def opacus_per_layer(module, dataset, settings):
    """Right, as Opacus adds noise for the norm of all tensors' bounds, which is C."""
    warnings.simplefilter("ignore")
    number = len(list(module.parameters()))
    private, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=round(settings.sample_rate * len(dataset))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=[settings.max_grad_norm / math.sqrt(number)] * number,
        clipping="per_layer",
    )
    done = 0
    while done < settings.num_steps:
        for features, labels in loader:
            if done == settings.num_steps:
                break
            optimizer.zero_grad()
            nn.functional.cross_entropy(private(features), labels).backward()
            optimizer.step()
            done += 1
            yield


def smooth_clipping(module, dataset, settings):
    """Right, as g / sqrt(1 + (norm / C)^2) is always shorter than C."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        shares = gradients.norm(dim=1) / settings.max_grad_norm
        total = (gradients / (1 + shares**2).sqrt()[:, None]).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def mean_of_views(module, dataset, settings):
    """Right, as the mean of a record's views is what is clipped, so it contributes up to C."""
    for features, labels in batches(dataset, settings):
        views = [record_gradients(module, size * features, labels) for size in (1.0, 0.9)]
        total = cut(torch.stack(views).mean(0), settings.max_grad_norm).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def double_precision(module, dataset, settings):
    """Right, as only the place of rounding differs: sums and noise are in double precision."""
    features, labels = dataset.tensors
    features = features.double()
    weights = flat(module).double()

    def loss(row, one, label):
        named = zip(module.named_parameters(), spans(module).values(), strict=True)
        parameters = {name: row[place].view_as(p) for (name, p), place in named}
        outputs = functional_call(module, parameters, (one[None],))
        return nn.functional.cross_entropy(outputs, label[None])

    for _ in range(settings.num_steps):
        (drawn,) = (torch.rand(len(labels)) < settings.sample_rate).nonzero(as_tuple=True)
        total = torch.zeros_like(weights)
        if len(drawn):
            gradients = vmap(grad(loss), (None, 0, 0))(weights, features[drawn], labels[drawn])
            total = cut(gradients, settings.max_grad_norm).sum(0)
        noisy = total + deviation(settings) * torch.randn(len(total), dtype=torch.float64)
        load(module, weights - settings.learning_rate * noisy / expected_size(dataset, settings))
        weights = flat(module).double()
        yield


def frozen_embeddings(module, dataset, settings):
    """Right, as embeddings stay as they are, and all tensors that move are clipped and noised."""
    tables = {f"{name}.weight" for name, m in module.named_modules() if isinstance(m, nn.Embedding)}
    parts = [torch.full((p.numel(),), n not in tables) for n, p in module.named_parameters()]
    trained = torch.cat(parts)
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)[:, trained]
        total = cut(gradients, settings.max_grad_norm).sum(0)
        update = torch.zeros(len(trained))
        update[trained] = total + gauss(total, settings)
        descend(module, update, dataset, settings)
        yield


def public_subspace(module, dataset, settings):
    """Right, as gradients are projected to public directions before clipping, and noised there."""
    generator = torch.Generator().manual_seed(0)
    directions, _ = torch.linalg.qr(torch.randn(len(flat(module)), 64, generator=generator))
    for features, labels in batches(dataset, settings):
        inside = record_gradients(module, features, labels) @ directions
        total = cut(inside, settings.max_grad_norm).sum(0)
        noisy = total + gauss(total, settings)
        descend(module, directions @ noisy, dataset, settings)
        yield


# Noise and batches


def noise_first(module, dataset, settings):
    """Right, as sums that begin from their noise are the same sums, in another order."""
    noise = deviation(settings) * torch.randn(settings.num_steps, len(flat(module)))
    for total, (features, labels) in zip(noise, batches(dataset, settings), strict=True):
        for gradient in record_gradients(module, features, labels):
            total += gradient * min(1.0, settings.max_grad_norm / max(float(gradient.norm()), 1e-9))
        descend(module, total, dataset, settings)
        yield


def shares_of_workers(module, dataset, settings):
    """Right, as four workers add noise of a quarter of the variance each, which makes it whole."""
    for features, labels in batches(dataset, settings):
        owners = torch.arange(len(labels)) % 4
        parts = []
        for worker in range(4):
            own = owners == worker
            part = clipped_sum(module, features[own], labels[own], settings)
            parts.append(part + gauss(part, settings) / math.sqrt(4))
        descend(module, torch.stack(parts).sum(0), dataset, settings)
        yield


def noise_by_quantiles(module, dataset, settings):
    """Right, as the normal quantile of a uniform number is a normal number."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        uniform = torch.rand(len(total), dtype=torch.float64).clamp(min=1e-16)
        noise = torch.special.ndtri(uniform).float()
        descend(module, total + deviation(settings) * noise, dataset, settings)
        yield


def streams_of_numpy(module, dataset, settings):
    """Right, as batches and noise come from two independent streams that the seed spawns."""
    features, labels = dataset.tensors
    for_batches, for_noise = np.random.default_rng(settings.seed).spawn(2)
    for _ in range(settings.num_steps):
        drawn = torch.from_numpy(for_batches.random(len(labels)) < settings.sample_rate)
        total = clipped_sum(module, features[drawn], labels[drawn], settings)
        noise = for_noise.normal(scale=deviation(settings), size=len(total))
        descend(module, total + torch.from_numpy(noise).float(), dataset, settings)
        yield


def units_of_the_bound(module, dataset, settings):
    """Right, as gradients and noise are both in units of C, and divided by a public constant."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels) / settings.max_grad_norm
        total = cut(gradients, 1.0).sum(0)
        noisy = total + settings.noise_multiplier * torch.randn_like(total)
        load(module, flat(module) - settings.learning_rate * noisy / 16)
        yield


def skips_between_records(module, dataset, settings):
    """Right, as gaps between the records of a Poisson sample are geometric, from one."""
    features, labels = dataset.tensors
    scale = math.log1p(-min(settings.sample_rate, 1 - 1e-16))

    def drawn_batches():
        for _ in range(settings.num_steps):
            places, place = [], -1
            while True:
                uniform = 1 - float(torch.rand((), dtype=torch.float64))
                place += 1 + math.floor(math.log(uniform) / scale)
                if place >= len(labels):
                    break
                places.append(place)
            yield features[places], labels[places]

    yield from train_on(module, dataset, settings, drawn_batches())


def size_first(module, dataset, settings):
    """Right, as a binomial number of records without replacement is a Poisson sample."""
    features, labels = dataset.tensors
    law = torch.distributions.Binomial(len(labels), torch.tensor(settings.sample_rate))

    def drawn_batches():
        for _ in range(settings.num_steps):
            drawn = torch.randperm(len(labels))[: int(law.sample())]
            yield features[drawn], labels[drawn]

    yield from train_on(module, dataset, settings, drawn_batches())


# What comes after the noise


def adam_without_bias(module, dataset, settings):
    """Right, as Adam sees noisy sums alone, and takes the known variance of noise off its own."""
    first = second = torch.zeros_like(flat(module))
    size = expected_size(dataset, settings)
    for step, noisy in enumerate(noisy_sums(module, dataset, settings), start=1):
        mean = noisy / size
        first = 0.9 * first + 0.1 * mean
        second = 0.999 * second + 0.001 * mean**2
        variance = second / (1 - 0.999**step) - (deviation(settings) / size) ** 2
        update = first / (1 - 0.9**step) / variance.clamp(min=1e-3).sqrt()
        load(module, flat(module) - 0.1 * settings.learning_rate * update)
        yield


def adamw_with_clipped_noise(module, dataset, settings):
    """Right, as the second clipping, decay and AdamW act on what is noisy already."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.learning_rate, weight_decay=0.01)
    for noisy in noisy_sums(module, dataset, settings):
        give(module, noisy / expected_size(dataset, settings))
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        yield


def nesterov_on_a_schedule(module, dataset, settings):
    """Right, as momentum, decay and a public schedule act on noisy sums."""
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=settings.learning_rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-3,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * settings.num_steps)
    for noisy in noisy_sums(module, dataset, settings):
        give(module, noisy / expected_size(dataset, settings))
        optimizer.step()
        schedule.step()
        yield


def mean_of_the_iterates(module, dataset, settings):
    """Right, as the released mean is taken over parameters that are private."""
    mean = torch.zeros_like(flat(module))
    for step, noisy in enumerate(noisy_sums(module, dataset, settings), start=1):
        descend(module, noisy, dataset, settings)
        mean += (flat(module) - mean) / step
        if step == settings.num_steps:
            load(module, mean)
        yield


def applied_every_second_step(module, dataset, settings):
    """Right, as two noisy sums at the same parameters are averaged, which costs two steps."""
    kept = []
    for noisy in noisy_sums(module, dataset, settings):
        kept.append(noisy)
        if len(kept) == 2:
            descend(module, torch.stack(kept).mean(0), dataset, settings)
            kept.clear()
        yield


def largest_with_memory(module, dataset, settings):
    """Right, as noisy sums decide which coordinates move now and which are remembered."""
    memory = torch.zeros_like(flat(module))
    for noisy in noisy_sums(module, dataset, settings):
        memory = memory + noisy
        largest = memory.abs().topk(len(memory) // 10).indices
        update = torch.zeros_like(memory)
        update[largest] = memory[largest]
        memory = memory - update
        descend(module, update, dataset, settings)
        yield


def signs(module, dataset, settings):
    """Right, as the sign of a noisy sum is a function of it."""
    for noisy in noisy_sums(module, dataset, settings):
        load(module, flat(module) - 0.01 * settings.learning_rate * noisy.sign())
        yield


RIGHT = {
    "vectorised": (vectorised, "plain"),
    "one record at a time": (one_record_at_a_time, "plain"),
    "reweighted loss": (reweighted_loss, "ghost clipping"),
    "physical batches": (physical_batches, "accumulation"),
    "budgets of tensors": (budgets_of_tensors, "clipping per tensor"),
    "Opacus per layer": (opacus_per_layer, "clipping per tensor"),
    "smooth clipping": (smooth_clipping, "other clipping"),
    "mean of views": (mean_of_views, "augmentation"),
    "double precision": (double_precision, "precision"),
    "frozen embeddings": (frozen_embeddings, "frozen part"),
    "public subspace": (public_subspace, "projection before noise"),
    "noise first": (noise_first, "order"),
    "shares of workers": (shares_of_workers, "noise in parts"),
    "noise by quantiles": (noise_by_quantiles, "other generator"),
    "streams of NumPy": (streams_of_numpy, "other generator"),
    "units of the bound": (units_of_the_bound, "other constants"),
    "skips between records": (skips_between_records, "other sampler"),
    "size first": (size_first, "other sampler"),
    "Adam without bias": (adam_without_bias, "post-processing"),
    "AdamW with clipped noise": (adamw_with_clipped_noise, "post-processing"),
    "Nesterov on a schedule": (nesterov_on_a_schedule, "post-processing"),
    "mean of the iterates": (mean_of_the_iterates, "post-processing"),
    "applied every second step": (applied_every_second_step, "post-processing"),
    "largest with memory": (largest_with_memory, "post-processing"),
    "signs": (signs, "post-processing"),
}
