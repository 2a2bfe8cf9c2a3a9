"""Forty training loops that are not as private as their settings say: a fifth blind list.

They were written from the documentation of `dpcanary check` alone and were never run through it.
Each makes one mistake that engineers make. WRONG has, for each name, the loop and the kind of its
error.
"""

import warnings
from itertools import chain, islice, repeat

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

# Shared parts, all of which are right: right loops use them too.


def poisson(num_records, rate, generator):
    """Draws the indices of a batch: every record independently with the same probability."""
    return (torch.rand(num_records, generator=generator) < rate).nonzero().flatten()


def gradients_of(module, features, labels):
    """Gives the gradients of single records, one tensor per parameter, with records first."""
    parameters = list(module.parameters())
    if len(labels) == 0:
        return [torch.zeros((0, *parameter.shape)) for parameter in parameters]
    if len(labels) > 32:
        parts = zip(features.split(32), labels.split(32), strict=True)
        columns = zip(*(gradients_of(module, *part) for part in parts), strict=True)
        return [torch.cat(column) for column in columns]
    losses = cross_entropy(module(features), labels, reduction="none")
    basis = torch.eye(len(losses))
    return list(torch.autograd.grad(losses, parameters, basis, is_grads_batched=True))


def norms_of(gradients):
    """Gives the norm of each record's gradient over all parameters."""
    return sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()


def factors_of(norms, bound):
    """Gives what the records' gradients are multiplied with to be clipped."""
    return bound / norms.clamp(min=bound)


def weighted_sums(gradients, weights):
    """Sums the records' gradients with weights."""
    return [torch.tensordot(weights, gradient, 1) for gradient in gradients]


def clipped_sums(gradients, bound):
    """Sums the records' gradients, each clipped to the bound."""
    return weighted_sums(gradients, factors_of(norms_of(gradients), bound))


def gaussian(sums, deviation, generator):
    """Draws Gaussian noise in the shapes of the sums."""
    return [deviation * torch.randn(total.shape, generator=generator) for total in sums]


def added(first, second):
    """Adds two lists of tensors."""
    return [a + b for a, b in zip(first, second, strict=True)]


@torch.no_grad()
def descend(module, directions, rate):
    """Takes a step of gradient descent."""
    for parameter, direction in zip(module.parameters(), directions, strict=True):
        parameter -= rate * direction


def deviation_of(settings):
    """Gives the standard deviation of the noise of a sum."""
    return settings.noise_multiplier * settings.max_grad_norm


def step_size(dataset, settings):
    """Gives the learning rate for sums: divided by the expected size of a batch."""
    return settings.learning_rate / (settings.sample_rate * len(dataset))


def generator_of(settings):
    """Gives a generator that the seed determines."""
    return torch.Generator().manual_seed(settings.seed)


def batches_of(dataset, settings, generator):
    """Gives the features and labels of a Poisson batch in each step."""
    features, labels = dataset.tensors
    for _ in range(settings.num_steps):
        chosen = poisson(len(labels), settings.sample_rate, generator)
        yield features[chosen], labels[chosen]


def take_step(module, sums, dataset, settings, generator):
    """Adds noise to sums, and descends along their means."""
    noises = gaussian(sums, deviation_of(settings), generator)
    descend(module, added(sums, noises), step_size(dataset, settings))


def dp_sgd(module, dataset, settings, draw=None, clip=None, noise=None):
    """DP-SGD in which a part may be replaced: the draw of a batch, the clipped sums, the noise."""
    features, labels = dataset.tensors
    generator = generator_of(settings)
    draw = draw or (lambda step, source: poisson(len(labels), settings.sample_rate, source))
    clip = clip or (lambda gradients, source: clipped_sums(gradients, settings.max_grad_norm))
    noise = noise or (lambda step, sums, source: gaussian(sums, deviation_of(settings), source))
    for step in range(settings.num_steps):
        chosen = draw(step, generator)
        sums = clip(gradients_of(module, features[chosen], labels[chosen]), generator)
        noisy = added(sums, noise(step, sums, generator))
        descend(module, noisy, step_size(dataset, settings))
        yield


def with_units(module, dataset, settings, unit):
    """DP-SGD whose noise has another law for each tensor, given for a deviation of 1."""

    def noise(step, sums, generator):
        return [deviation_of(settings) * unit(total.shape, generator) for total in sums]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def with_opacus(module, dataset, settings, optimizer):
    """Makes module, optimiser and data private with Opacus."""
    warnings.simplefilter("ignore")
    return PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(dataset, batch_size=round(settings.sample_rate * len(dataset))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
    )


# Noise.


def real_part(module, dataset, settings):
    """Noise is the real part of complex normal numbers, whose variance is only one half."""

    def unit(shape, generator):
        return torch.randn(shape, dtype=torch.cfloat, generator=generator).real

    yield from with_units(module, dataset, settings, unit)


def noise_shared_out(module, dataset, settings):
    """The noise is shared out over the tensors, though the norm of all of them is clipped to C."""

    def noise(step, sums, generator):
        return gaussian(sums, deviation_of(settings) / len(sums) ** 0.5, generator)

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_of_each_record(module, dataset, settings):
    """Every record of the batch brings a part of the noise, so a small batch has too little."""
    generator = generator_of(settings)
    part = deviation_of(settings) / (settings.sample_rate * len(dataset)) ** 0.5
    for features, labels in batches_of(dataset, settings, generator):
        gradients = gradients_of(module, features, labels)
        sums = clipped_sums(gradients, settings.max_grad_norm)
        noises = [part * torch.randn(one.shape, generator=generator).sum(0) for one in gradients]
        descend(module, added(sums, noises), step_size(dataset, settings))
        yield


def noise_without_outliers(module, dataset, settings):
    """Noise is cut at three deviations for stability, so values beyond reveal a record for sure."""

    def unit(shape, generator):
        return torch.randn(shape, generator=generator).clamp(-3, 3)

    yield from with_units(module, dataset, settings, unit)


def noise_in_bfloat16(module, dataset, settings):
    """Noise is drawn in bfloat16 to save memory: its few values do not hide a float32 sum."""

    def unit(shape, generator):
        return torch.randn(shape, dtype=torch.bfloat16, generator=generator).float()

    yield from with_units(module, dataset, settings, unit)


def pool_of_noise(module, dataset, settings):
    """Noise is drawn for eight steps and used in turn: differences of steps have none."""
    pool = []

    def noise(step, sums, generator):
        if step < 8:
            pool.append(gaussian(sums, deviation_of(settings), generator))
        return pool[step % 8]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def seed_plus_step_plus_tensor(module, dataset, settings):
    """The noise of a tensor is seeded by step + index, so the tensor before has it a step later."""

    def noise(step, sums, generator):
        drawn = []
        fresh = torch.Generator()
        for index, total in enumerate(sums):
            fresh.manual_seed(settings.seed + 10_000 + step + index)
            drawn += gaussian([total], deviation_of(settings), fresh)
        return drawn

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_for_a_row(module, dataset, settings):
    """Noise is drawn in the shape of the last axis and broadcast: all rows have the same."""

    def unit(shape, generator):
        return torch.randn(shape[-1:], generator=generator)

    yield from with_units(module, dataset, settings, unit)


def noise_without_mean(module, dataset, settings):
    """The noise of a tensor is centred "to be unbiased": the sum of the tensor has no noise."""

    def unit(shape, generator):
        drawn = torch.randn(shape, generator=generator)
        return drawn - drawn.mean()

    yield from with_units(module, dataset, settings, unit)


def antithetic_noise(module, dataset, settings):
    """Every other step takes the negative of the last noise: two steps together have none."""
    last = []

    def noise(step, sums, generator):
        if step % 2:
            return [-one for one in last]
        last[:] = gaussian(sums, deviation_of(settings), generator)
        return last

    yield from dp_sgd(module, dataset, settings, noise=noise)


def differences_of_noise(module, dataset, settings):
    """Noise is what has changed since the last step, as in DP-FTRL, and accounted as if fresh."""
    last = []

    def noise(step, sums, generator):
        fresh = gaussian(sums, deviation_of(settings) / 2**0.5, generator)
        before = list(last) or gaussian(sums, deviation_of(settings) / 2**0.5, generator)
        last[:] = fresh
        return [new - old for new, old in zip(fresh, before, strict=True)]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def one_seed_for_batch_and_noise(module, dataset, settings):
    """Batch and noise of a step come from generators of one seed: the noise tells the batch."""

    def draw(step, generator):
        fresh = torch.Generator().manual_seed(settings.seed + 1000 * step)
        return poisson(len(dataset), settings.sample_rate, fresh)

    def noise(step, sums, generator):
        fresh = torch.Generator().manual_seed(settings.seed + 1000 * step)
        return gaussian(sums, deviation_of(settings), fresh)

    yield from dp_sgd(module, dataset, settings, draw=draw, noise=noise)


def better_of_two(module, dataset, settings):
    """Of two draws of the noise, the one that disturbs the clean sum less is taken."""

    def noise(step, sums, generator):
        draws = [gaussian(sums, deviation_of(settings), generator) for _ in range(2)]

        def agreement(draw):
            return sum((one * total).sum() for one, total in zip(draw, sums, strict=True))

        return max(draws, key=agreement)

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_where_gradient_is(module, dataset, settings):
    """Only entries with a gradient get noise, as in sparse embeddings: zeros tell who is out."""

    def noise(step, sums, generator):
        drawn = gaussian(sums, deviation_of(settings), generator)
        return [one * (total != 0) for one, total in zip(drawn, sums, strict=True)]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_of_largest_norm(module, dataset, settings):
    """The sensitivity is taken to be the largest clipped norm of the batch, which is private."""
    largest = [0.0]

    def clip(gradients, generator):
        norms = norms_of(gradients).clamp(max=settings.max_grad_norm)
        largest[0] = float(norms.max()) if len(norms) else 0.0
        return clipped_sums(gradients, settings.max_grad_norm)

    def noise(step, sums, generator):
        return gaussian(sums, settings.noise_multiplier * largest[0], generator)

    yield from dp_sgd(module, dataset, settings, clip=clip, noise=noise)


# Clipping.


def norm_without_biases(module, dataset, settings):
    """The norm leaves out biases, as weight decay does, so a whole gradient may exceed C."""

    def clip(gradients, generator):
        norms = norms_of([gradient for gradient in gradients if gradient.dim() > 2])
        return weighted_sums(gradients, factors_of(norms, settings.max_grad_norm))

    yield from dp_sgd(module, dataset, settings, clip=clip)


def pairs_clipped(module, dataset, settings):
    """Means of two records are clipped and counted as two: one record moves the sum by 4 C."""

    def clip(gradients, generator):
        if len(gradients[0]) == 0:
            return [gradient.sum(0) for gradient in gradients]
        means = [torch.stack([pair.mean(0) for pair in one.split(2)]) for one in gradients]
        return [2 * total for total in clipped_sums(means, settings.max_grad_norm)]

    yield from dp_sgd(module, dataset, settings, clip=clip)


def gradients_not_zeroed(module, dataset, settings):
    """Within a batch, gradients are not set to zero: a record is in all later "single" ones."""
    generator = generator_of(settings)
    for features, labels in batches_of(dataset, settings, generator):
        module.zero_grad()
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for one, label in zip(features, labels, strict=True):
            cross_entropy(module(one[None]), label[None]).backward()
            gradients = [parameter.grad.clone() for parameter in module.parameters()]
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            factor = min(1.0, settings.max_grad_norm / (float(norm) + 1e-12))
            sums = added(sums, [factor * gradient for gradient in gradients])
        take_step(module, sums, dataset, settings, generator)
        yield


def one_factor_for_all(module, dataset, settings):
    """The largest norm of the batch scales all gradients: a record changes those of others."""

    def clip(gradients, generator):
        norms = norms_of(gradients)
        factors = factors_of(norms, settings.max_grad_norm)
        weights = torch.full_like(factors, float(factors.min())) if len(factors) else factors
        return weighted_sums(gradients, weights)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def mean_loss_clipped(module, dataset, settings):
    """Gradients of the mean loss are clipped, and multiplied by the batch's size afterwards."""

    def clip(gradients, generator):
        size = max(1, len(gradients[0]))
        sums = clipped_sums([gradient / size for gradient in gradients], settings.max_grad_norm)
        return [size * total for total in sums]

    yield from dp_sgd(module, dataset, settings, clip=clip)


def summed_loss_in_opacus(module, dataset, settings):
    """Opacus expects a mean loss, so it multiplies gradients of a sum by the size of the batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    module, optimizer, loader = with_opacus(module, dataset, settings, optimizer)
    for features, labels in islice(chain.from_iterable(repeat(loader)), settings.num_steps):
        optimizer.zero_grad()
        cross_entropy(module(features), labels, reduction="sum").backward()
        optimizer.step()


def norms_sorted(module, dataset, settings):
    """Norms are sorted for the quantiles of a log, and then clip the gradients of other records."""

    def clip(gradients, generator):
        norms = norms_of(gradients).sort().values
        return weighted_sums(gradients, factors_of(norms, settings.max_grad_norm))

    yield from dp_sgd(module, dataset, settings, clip=clip)


def median_as_bound(module, dataset, settings):
    """The batch's median norm is the bound, and scales the noise: it is released without any."""
    bound = [settings.max_grad_norm]

    def clip(gradients, generator):
        if len(gradients[0]):
            bound[0] = max(1e-3, float(norms_of(gradients).median()))
        return clipped_sums(gradients, bound[0])

    def noise(step, sums, generator):
        return gaussian(sums, settings.noise_multiplier * bound[0], generator)

    yield from dp_sgd(module, dataset, settings, clip=clip, noise=noise)


def clipped_after_noise(module, dataset, settings):
    """Noise comes first, and then the mean is clipped as in ordinary training: records are not."""
    generator = generator_of(settings)
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    expected = settings.sample_rate * len(dataset)
    for features, labels in batches_of(dataset, settings, generator):
        optimizer.zero_grad()
        (cross_entropy(module(features), labels, reduction="sum") / expected).backward()
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad += deviation_of(settings) * noise / expected
        torch.nn.utils.clip_grad_norm_(module.parameters(), settings.max_grad_norm)
        optimizer.step()
        yield


def centred_on_batch(module, dataset, settings):
    """The batch's mean is taken off each gradient before clipping: records are in each other's."""

    def clip(gradients, generator):
        if not len(gradients[0]):
            return [gradient.sum(0) for gradient in gradients]
        centred = [gradient - gradient.mean(0) for gradient in gradients]
        return clipped_sums(centred, settings.max_grad_norm)

    yield from dp_sgd(module, dataset, settings, clip=clip)


# Sampling.


def one_bin_in_each_pass(module, dataset, settings):
    """In each pass, a record gets one random step: sizes vary, but draws are not independent."""
    steps = round(1 / settings.sample_rate)
    bins = [torch.zeros(len(dataset))]

    def draw(step, generator):
        if step % steps == 0:
            bins[0] = torch.randint(steps, (len(dataset),), generator=generator)
        return (bins[0] == step % steps).nonzero().flatten()

    yield from dp_sgd(module, dataset, settings, draw=draw)


def batches_cut_off(module, dataset, settings):
    """What exceeds the expected size is cut off, so a record displaces another one."""
    largest = round(settings.sample_rate * len(dataset))

    def draw(step, generator):
        return poisson(len(dataset), settings.sample_rate, generator)[:largest]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def batches_filled_up(module, dataset, settings):
    """Small batches are filled up with other records, whose rate is then more than accounted."""
    smallest = round(settings.sample_rate * len(dataset))

    def draw(step, generator):
        chosen = poisson(len(dataset), settings.sample_rate, generator)
        others = torch.randperm(len(dataset), generator=generator)
        others = others[~torch.isin(others, chosen)]
        return torch.cat([chosen, others[: max(0, smallest - len(chosen))]])

    yield from dp_sgd(module, dataset, settings, draw=draw)


def golden_ratio(module, dataset, settings):
    """A record's uniform number moves by the golden ratio: its steps are not independent."""
    start = torch.rand(len(dataset), generator=generator_of(settings))

    def draw(step, generator):
        return ((start + 0.6180339887 * step) % 1 < settings.sample_rate).nonzero().flatten()

    yield from dp_sgd(module, dataset, settings, draw=draw)


def shards_of_four(module, dataset, settings):
    """Shards of four neighbouring records are drawn, so a record tells whether others are in."""
    num_shards = -(-len(dataset) // 4)

    def draw(step, generator):
        shards = poisson(num_shards, settings.sample_rate, generator)
        chosen = (4 * shards[:, None] + torch.arange(4)).flatten()
        return chosen[chosen < len(dataset)]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def hard_records_more_often(module, dataset, settings):
    """Records with large gradients are drawn more often: their rate exceeds the accounted one."""
    features, labels = dataset.tensors

    def draw(step, generator):
        norms = norms_of(gradients_of(module, features, labels))
        weights = (norms / norms.median()).clamp(0.5, 2)
        rates = settings.sample_rate * weights / weights.mean()
        return (torch.rand(len(labels), generator=generator) < rates).nonzero().flatten()

    yield from dp_sgd(module, dataset, settings, draw=draw)


def two_workers(module, dataset, settings):
    """Two workers draw at half of the rate from all records: one may be in twice, with 2 C."""

    def draw(step, generator):
        rate = settings.sample_rate / 2
        return torch.cat([poisson(len(dataset), rate, generator) for _ in range(2)])

    yield from dp_sgd(module, dataset, settings, draw=draw)


def sampler_seeded_in_each_pass(module, dataset, settings):
    """The sampler is seeded again in each pass over the data: the same batches come again."""
    steps = round(1 / settings.sample_rate)
    sampler = generator_of(settings)

    def draw(step, generator):
        if step % steps == 0:
            sampler.manual_seed(settings.seed + 1)
        return poisson(len(dataset), settings.sample_rate, sampler)

    yield from dp_sgd(module, dataset, settings, draw=draw)


def pause_after_draw(module, dataset, settings):
    """A record pauses after a step that had it, and others are likelier than accounted."""
    pausing = torch.zeros(len(dataset), dtype=torch.bool)

    def draw(step, generator):
        rate = settings.sample_rate
        if step:
            rate = rate / max(1e-9, 1 - rate)
        mask = (torch.rand(len(dataset), generator=generator) < rate) & ~pausing
        pausing[:] = mask
        return mask.nonzero().flatten()

    yield from dp_sgd(module, dataset, settings, draw=draw)


# State between steps, what is released, and what depends on private data.


def momentum_of_clean_sums(module, dataset, settings):
    """Momentum gathers sums without noise, so a record is in ten steps and has noise for one."""
    momentum = [torch.zeros_like(parameter) for parameter in module.parameters()]

    def clip(gradients, generator):
        sums = clipped_sums(gradients, settings.max_grad_norm)
        momentum[:] = added([0.9 * one for one in momentum], sums)
        return momentum

    yield from dp_sgd(module, dataset, settings, clip=clip)


def clipped_part_later(module, dataset, settings):
    """What clipping has taken off is kept and added in the next step: it only comes later."""
    residual = [torch.zeros_like(parameter) for parameter in module.parameters()]

    def clip(gradients, generator):
        sums = clipped_sums(gradients, settings.max_grad_norm)
        with_residual = added(sums, residual)
        residual[:] = [g.sum(0) - total for g, total in zip(gradients, sums, strict=True)]
        return with_residual

    yield from dp_sgd(module, dataset, settings, clip=clip)


def scaled_by_clean_squares(module, dataset, settings):
    """Noisy gradients are divided by roots of mean squares of the clean ones, as RMSprop would."""
    generator = generator_of(settings)
    expected = settings.sample_rate * len(dataset)
    squares = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for features, labels in batches_of(dataset, settings, generator):
        sums = clipped_sums(gradients_of(module, features, labels), settings.max_grad_norm)
        noisy = added(sums, gaussian(sums, deviation_of(settings), generator))
        for square, total in zip(squares, sums, strict=True):
            square.lerp_((total / expected).square(), 0.1)
        scaled = [
            total / (square.sqrt() + 0.1) for total, square in zip(noisy, squares, strict=True)
        ]
        descend(module, scaled, step_size(dataset, settings))
        yield


def last_step_without_noise(module, dataset, settings):
    """Noise is added between steps, so the last step, which is released, has none."""

    def noise(step, sums, generator):
        is_last = step == settings.num_steps - 1
        return gaussian(sums, 0.0 if is_last else deviation_of(settings), generator)

    yield from dp_sgd(module, dataset, settings, noise=noise)


def average_of_last_gradients(module, dataset, settings):
    """As in SAG, the last gradients of all records are summed: a record is in every step."""
    features, labels = dataset.tensors
    generator = generator_of(settings)
    table = [torch.zeros((len(labels), *parameter.shape)) for parameter in module.parameters()]
    for _ in range(settings.num_steps):
        chosen = poisson(len(labels), settings.sample_rate, generator)
        gradients = gradients_of(module, features[chosen], labels[chosen])
        factors = factors_of(norms_of(gradients), settings.max_grad_norm)
        for kept, gradient in zip(table, gradients, strict=True):
            kept[chosen] = torch.einsum("n,n...->n...", factors, gradient)
        sums = [settings.sample_rate * kept.sum(0) for kept in table]
        take_step(module, sums, dataset, settings, generator)
        yield


def mean_with_clipping_weights(module, dataset, settings):
    """The noisy sum is divided by the sum of clipping factors, which the batch determines."""
    generator = generator_of(settings)
    for features, labels in batches_of(dataset, settings, generator):
        gradients = gradients_of(module, features, labels)
        factors = factors_of(norms_of(gradients), settings.max_grad_norm)
        sums = weighted_sums(gradients, factors)
        noisy = added(sums, gaussian(sums, deviation_of(settings), generator))
        descend(module, noisy, settings.learning_rate / max(1.0, float(factors.sum())))
        yield


WRONG = {
    "real part of complex noise": (real_part, "noise scale"),
    "noise shared out over tensors": (noise_shared_out, "noise scale"),
    "noise of each record": (noise_of_each_record, "noise scale"),
    "noise without outliers": (noise_without_outliers, "noise shape"),
    "noise in bfloat16": (noise_in_bfloat16, "noise precision"),
    "pool of noise": (pool_of_noise, "dependent noise"),
    "seed + step + tensor": (seed_plus_step_plus_tensor, "dependent noise"),
    "noise for a row": (noise_for_a_row, "dependent noise"),
    "noise without its mean": (noise_without_mean, "dependent noise"),
    "antithetic noise": (antithetic_noise, "dependent noise"),
    "differences of noise": (differences_of_noise, "dependent noise"),
    "one seed for batch and noise": (one_seed_for_batch_and_noise, "dependent noise"),
    "better of two draws of noise": (better_of_two, "noise by gradient"),
    "noise where a gradient is": (noise_where_gradient_is, "noise by gradient"),
    "noise of the largest norm": (noise_of_largest_norm, "noise scale"),
    "norm without biases": (norm_without_biases, "clipping"),
    "pairs clipped": (pairs_clipped, "clipping"),
    "gradients not zeroed": (gradients_not_zeroed, "clipping"),
    "one factor for the batch": (one_factor_for_all, "clipping"),
    "mean loss clipped": (mean_loss_clipped, "clipping"),
    "summed loss in Opacus": (summed_loss_in_opacus, "clipping"),
    "norms sorted": (norms_sorted, "clipping"),
    "median as bound": (median_as_bound, "clipping"),
    "clipped after the noise": (clipped_after_noise, "clipping"),
    "centred on the batch": (centred_on_batch, "clipping"),
    "one bin in each pass": (one_bin_in_each_pass, "sampling"),
    "batches cut off": (batches_cut_off, "batch sizes"),
    "batches filled up": (batches_filled_up, "batch sizes"),
    "golden ratio": (golden_ratio, "sampling"),
    "shards of four": (shards_of_four, "dependent records"),
    "hard records more often": (hard_records_more_often, "sampling rate"),
    "two workers": (two_workers, "sampling"),
    "sampler seeded in each pass": (sampler_seeded_in_each_pass, "sampling"),
    "pause after a draw": (pause_after_draw, "sampling"),
    "momentum of clean sums": (momentum_of_clean_sums, "history"),
    "clipped part later": (clipped_part_later, "history"),
    "scaled by clean squares": (scaled_by_clean_squares, "normalisation"),
    "last step without noise": (last_step_without_noise, "noise scale"),
    "average of last gradients": (average_of_last_gradients, "history"),
    "mean with clipping weights": (mean_with_clipping_weights, "normalisation"),
}
