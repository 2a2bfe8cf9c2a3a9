"""A third blind list: loops that are not as private as their settings say.

Written from the documentation of `dpcanary check` alone, and never run through it. The right loops
beside these are in `third_blind_right_loops.py`, which takes its helpers from here. Most loops are
`dp_sgd` with one of its parts replaced, so that the mistake is all that stands in a loop.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

# What loops share


@dataclass
class Batch:
    """What one step has drawn: its number, rows, labels, and the gradient of each record."""

    step: int
    rows: torch.Tensor
    labels: torch.Tensor
    gradients: list[torch.Tensor]

    @property
    def norms(self):
        """The norm of the whole gradient of each record."""
        return norms_of(self.gradients)


def gradients_of_records(module, features, labels):
    """The gradient of each record in each parameter, by one batched backward pass."""
    parameters = list(module.parameters())
    losses = nn.functional.cross_entropy(module(features), labels, reduction="none")
    if len(labels) == 0:
        return [parameter.new_zeros(0, *parameter.shape) for parameter in parameters]
    each = torch.eye(len(labels), dtype=losses.dtype)
    return list(torch.autograd.grad(losses, parameters, each, is_grads_batched=True))


def norms_of(gradients):
    """The norm of each record's gradient over all of the tensors given."""
    return torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)


def factors_of(norms, bound):
    """What each record's gradient is multiplied by, so that its norm is at most the bound."""
    return (bound / norms.clamp(min=1e-12)).clamp(max=1)


def weighted_sums(gradients, factors):
    """The sum over records of factor times gradient, in each tensor."""
    return [torch.einsum("b,b...->...", factors, gradient) for gradient in gradients]


def clipped_sums(gradients, bound):
    """The sum of gradients that are clipped as a whole."""
    return weighted_sums(gradients, factors_of(norms_of(gradients), bound))


def normal_noise(sums, deviation):
    """Independent Gaussian noise for each value of each tensor."""
    return [deviation * torch.randn_like(total) for total in sums]


def noise_of(values, settings):
    """The part of `dp_sgd` that adds values of a shape, times the deviation that is right."""
    return lambda batch, sums: [deviation_of(settings) * values(total.shape) for total in sums]


def added(sums, noises):
    """Sums and their noise, tensor by tensor."""
    return [total + noise for total, noise in zip(sums, noises, strict=True)]


def poisson(num_records, settings):
    """The rows of a Poisson sample."""
    return rows_where(torch.rand(num_records) < settings.sample_rate)


def rows_where(chosen):
    """The rows for which a mask is true."""
    return torch.nonzero(chosen).flatten()


@torch.no_grad()
def descend(module, directions, rate):
    """Moves the parameters in place, the last ones if there are fewer directions."""
    parameters = list(module.parameters())[-len(directions) :]
    for parameter, direction in zip(parameters, directions, strict=True):
        parameter.sub_(rate * direction)


def named(loops_by_kind):
    """The loops by their names, each with its kind."""
    pairs = [(loop, kind) for kind, loops in loops_by_kind.items() for loop in loops]
    return {loop.__name__.replace("_", " "): (loop, kind) for loop, kind in pairs}


def deviation_of(settings):
    """The deviation that the noise on a sum must have."""
    return settings.noise_multiplier * settings.max_grad_norm


def expected_size(dataset, settings):
    """The expected size of a batch."""
    return settings.sample_rate * len(dataset)


def dp_sgd(
    module, dataset, settings, *, draw=None, bound=None, clip=None, noise=None, move=None, size=None
):
    """DP-SGD as its settings say, if no part is replaced.

    Args:
        module: Is trained in place.
        dataset: Tensors of features and labels.
        settings: Of the training.
        draw: Gives the rows of a batch, from the step.
        bound: Gives what gradients are clipped to, to which noise is in proportion, from the batch.
        clip: Gives the sums of clipped gradients, of the last tensors at least, from the batch.
        noise: Gives what is added to them, from the batch and the sums.
        move: Moves the parameters, from the batch and the noisy sums.
        size: What sums are divided by, the expected size of a batch if not given.
    """
    features, labels = dataset.tensors
    rate = settings.learning_rate / (size or expected_size(dataset, settings))
    draw = draw or (lambda step: poisson(len(labels), settings))
    sigma = settings.noise_multiplier
    bound = bound or (lambda batch: settings.max_grad_norm)
    clip = clip or (lambda batch: clipped_sums(batch.gradients, bound(batch)))
    noise = noise or (lambda batch, sums: normal_noise(sums, sigma * bound(batch)))
    move = move or (lambda batch, noisy: descend(module, noisy, rate))
    for step in range(settings.num_steps):
        rows = draw(step)
        gradients = gradients_of_records(module, features[rows], labels[rows])
        batch = Batch(step, rows, labels[rows], gradients)
        sums = clip(batch)
        move(batch, added(sums, noise(batch, sums)))
        yield


# Noise


def noise_shared_out_among_tensors(module, dataset, settings):
    """Splits the variance among the tensors as if it were a budget, so each has too little."""

    def noise(batch, sums):
        return normal_noise(sums, deviation_of(settings) / math.sqrt(len(sums)))

    yield from dp_sgd(module, dataset, settings, noise=noise)


def half_noise_by_each_of_two_workers(module, dataset, settings):
    """Two workers add half of the deviation each, but variances add up, not deviations."""

    def noise(batch, sums):
        half = deviation_of(settings) / 2
        return added(normal_noise(sums, half), normal_noise(sums, half))

    yield from dp_sgd(module, dataset, settings, noise=noise)


def laplace_noise(module, dataset, settings):
    """Laplace noise of the right variance is taken, which the Gaussian accountant knows not."""
    law = torch.distributions.Laplace(0.0, 1 / math.sqrt(2))
    yield from dp_sgd(module, dataset, settings, noise=noise_of(law.sample, settings))


def noise_without_outliers(module, dataset, settings):
    """Values beyond three deviations are drawn again, so some outputs rule out a dataset."""

    def values(shape):
        drawn = torch.randn(shape)
        while (far := drawn.abs() > 3).any():
            drawn[far] = torch.randn(int(far.sum()))
        return drawn

    yield from dp_sgd(module, dataset, settings, noise=noise_of(values, settings))


def box_muller_with_one_uniform(module, dataset, settings):
    """Radius and angle of a Box-Muller transform are of the same uniform: no Gaussian."""

    def values(shape):
        uniform = 1 - torch.rand(shape)
        return (-2 * uniform.log()).sqrt() * (2 * math.pi * uniform).cos()

    yield from dp_sgd(module, dataset, settings, noise=noise_of(values, settings))


def noise_in_bfloat16(module, dataset, settings):
    """Noise is drawn in bfloat16, so sums shine through between its few values."""

    def values(shape):
        return torch.randn(shape, dtype=torch.bfloat16).float()

    yield from dp_sgd(module, dataset, settings, noise=noise_of(values, settings))


def noise_from_a_table(module, dataset, settings):
    """A fast sampler looks quantiles up in a table of 256, so noise has 256 values."""
    table = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(256) + 0.5) / 256)

    def values(shape):
        return table[torch.randint(256, shape)]

    yield from dp_sgd(module, dataset, settings, noise=noise_of(values, settings))


def one_row_of_noise_for_all(module, dataset, settings):
    """Noise of the last dimension's size is broadcast, so differences of rows have none."""

    def values(shape):
        return torch.randn(shape[-1:]).expand(shape)

    yield from dp_sgd(module, dataset, settings, noise=noise_of(values, settings))


def noise_of_rank_one(module, dataset, settings):
    """To save random numbers a matrix gets the product of two vectors: almost no directions."""

    def values(shape):
        if len(shape) != 2:
            return torch.randn(shape)
        return torch.outer(torch.randn(shape[0]), torch.randn(shape[1]))

    yield from dp_sgd(module, dataset, settings, noise=noise_of(values, settings))


def pool_of_noise(module, dataset, settings):
    """Seven noises are drawn before training and used in turn, so they cancel between steps."""
    pool = [normal_noise(list(module.parameters()), deviation_of(settings)) for _ in range(7)]

    def noise(batch, sums):
        return pool[batch.step % 7]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def seeds_that_overlap(module, dataset, settings):
    """Step plus tensor is the seed, so the next tensor has in this step what is next here."""

    def values(seed, shape):
        generator = np.random.default_rng([settings.seed, seed])
        return torch.from_numpy(generator.standard_normal(tuple(shape))).float()

    def noise(batch, sums):
        deviation = deviation_of(settings)
        return [deviation * values(batch.step + i, one.shape) for i, one in enumerate(sums)]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_that_drifts(module, dataset, settings):
    """Noise is an autoregressive process of the right variance, so differences cancel it."""
    kept = 0.6
    last = []

    def noise(batch, sums):
        fresh = normal_noise(sums, deviation_of(settings))
        if last:
            pairs = zip(last, fresh, strict=True)
            fresh = [kept * old + math.sqrt(1 - kept**2) * new for old, new in pairs]
        last[:] = fresh
        return fresh

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_as_large_as_the_batch_needs(module, dataset, settings):
    """The mean clipped norm of the batch takes the place of C: a sensitivity of these data."""

    def noise(batch, sums):
        clipped = batch.norms.clamp(max=settings.max_grad_norm)
        typical = float(clipped.mean()) if len(clipped) else settings.max_grad_norm
        return normal_noise(sums, settings.noise_multiplier * typical)

    yield from dp_sgd(module, dataset, settings, noise=noise)


def better_of_two_noises(module, dataset, settings):
    """Draws two noises, and keeps the one that turns the true sum less."""

    def noise(batch, sums):
        def along_sums(noises):
            return sum(float((a * b).sum()) for a, b in zip(noises, sums, strict=True))

        candidates = [normal_noise(sums, deviation_of(settings)) for _ in range(2)]
        return max(candidates, key=along_sums)

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_on_every_record(module, dataset, settings):
    """Each record brings its share of noise, so the noise tells how many records were drawn."""
    share = deviation_of(settings) / math.sqrt(expected_size(dataset, settings))

    def noise(batch, sums):
        return [share * torch.randn(len(batch.rows), *total.shape).sum(dim=0) for total in sums]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def noise_on_touched_rows(module, dataset, settings):
    """A lazy update adds noise only to rows that have a gradient, as sparse embeddings do."""

    def noise(batch, sums):
        noises = normal_noise(sums, deviation_of(settings))
        return [
            one * (total != 0).any(dim=1, keepdim=True) if total.dim() == 2 else one
            for one, total in zip(noises, sums, strict=True)
        ]

    yield from dp_sgd(module, dataset, settings, noise=noise)


def one_seed_for_batch_and_noise(module, dataset, settings):
    """Sampler and noise begin with the same seed in each step, so the noise shows the batch."""
    seeds = torch.Generator().manual_seed(settings.seed)
    generators = {}

    def draw(step):
        seed = int(torch.randint(2**31, (), generator=seeds))
        generators["noise"] = torch.Generator().manual_seed(seed)
        sampler = torch.Generator().manual_seed(seed)
        return rows_where(torch.rand(len(dataset), generator=sampler) < settings.sample_rate)

    def noise(batch, sums):
        return [
            deviation_of(settings) * torch.randn(total.shape, generator=generators["noise"])
            for total in sums
        ]

    yield from dp_sgd(module, dataset, settings, draw=draw, noise=noise)


# Clipping


def every_tensor_to_the_whole_bound(module, dataset, settings):
    """Each tensor is clipped to C, so a record's gradient has a norm of C times sqrt(tensors)."""

    def clip(batch):
        return [clipped_sums([gradient], settings.max_grad_norm)[0] for gradient in batch.gradients]

    yield from dp_sgd(module, dataset, settings, clip=clip)


def norm_without_the_first_tensor(module, dataset, settings):
    """The norm is of all but the first tensor, which was frozen when the code was written."""

    def clip(batch):
        factors = factors_of(norms_of(batch.gradients[1:]), settings.max_grad_norm)
        return weighted_sums(batch.gradients, factors)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def means_of_pairs(module, dataset, settings):
    """Means of two records are clipped, so that one record turns a whole mean around."""

    def pair_means(gradient):
        return torch.stack([pair.mean(dim=0) for pair in gradient.split(2)])

    def clip(batch):
        pairs = [pair_means(one) if len(one) else one for one in batch.gradients]
        return clipped_sums(pairs, settings.max_grad_norm)

    num_pairs = expected_size(dataset, settings) / 2
    yield from dp_sgd(module, dataset, settings, clip=clip, size=num_pairs)


def factors_of_a_tenth_at_least(module, dataset, settings):
    """So that no record is lost, factors are a tenth at least: large gradients exceed C."""

    def clip(batch):
        factors = factors_of(batch.norms, settings.max_grad_norm).clamp(min=0.1)
        return weighted_sums(batch.gradients, factors)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def noise_before_unscaling(module, dataset, settings):
    """Noise for true gradients is added to those of a scaled loss, and unscaled with them."""
    scale = 8.0

    def clip(batch):
        scaled = [scale * gradient for gradient in batch.gradients]
        return weighted_sums(scaled, factors_of(norms_of(scaled) / scale, settings.max_grad_norm))

    size = scale * expected_size(dataset, settings)
    yield from dp_sgd(module, dataset, settings, clip=clip, size=size)


def clipped_parts_come_later(module, dataset, settings):
    """Error feedback: what clipping took away is added to the next sum, bounded by nothing."""
    residual = [torch.zeros_like(parameter) for parameter in module.parameters()]

    def clip(batch):
        clipped = clipped_sums(batch.gradients, settings.max_grad_norm)
        sums = added(clipped, residual)
        pairs = zip(batch.gradients, clipped, strict=True)
        residual[:] = [gradient.sum(dim=0) - one for gradient, one in pairs]
        return sums

    yield from dp_sgd(module, dataset, settings, clip=clip)


def bound_at_the_median(module, dataset, settings):
    """Bound and noise follow the median norm of the batch, which is private and not noisy."""

    def bound(batch):
        return float(batch.norms.median()) if len(batch.rows) else settings.max_grad_norm

    yield from dp_sgd(module, dataset, settings, bound=bound)


def classes_weighed_after_clipping(module, dataset, settings):
    """The weight of the second class, 1.5, is applied to what is clipped already."""

    def clip(batch):
        weights = torch.where(batch.labels == 1, 1.5, 1.0)
        factors = factors_of(batch.norms, settings.max_grad_norm)
        return weighted_sums(batch.gradients, weights * factors)

    yield from dp_sgd(module, dataset, settings, clip=clip)


def bound_grows_without_noise(module, dataset, settings):
    """A schedule raises the bound from step to step, and the noise stays that of the first."""

    def clip(batch):
        return clipped_sums(batch.gradients, settings.max_grad_norm * (1 + batch.step / 8))

    yield from dp_sgd(module, dataset, settings, clip=clip)


# Sampling


def records_dealt_to_bins(module, dataset, settings):
    """In each epoch every record goes to one random batch, so it comes once, not at random."""
    num_bins = max(1, round(1 / settings.sample_rate))
    bins = torch.zeros(len(dataset), dtype=torch.long)

    def draw(step):
        if step % num_bins == 0:
            bins[:] = torch.randint(num_bins, (len(dataset),))
        return rows_where(bins == step % num_bins)

    yield from dp_sgd(module, dataset, settings, draw=draw)


def drawn_with_replacement(module, dataset, settings):
    """A fixed number is drawn with replacement, so a record may be in a batch twice."""
    size = max(1, round(expected_size(dataset, settings)))

    def draw(step):
        return torch.randint(len(dataset), (size,))

    yield from dp_sgd(module, dataset, settings, draw=draw)


def batch_cut_at_a_maximum(module, dataset, settings):
    """So that it fits in memory a batch ends early: one more record pushes another one out."""
    most = math.floor(1.25 * expected_size(dataset, settings) + 0.5)

    def draw(step):
        return poisson(len(dataset), settings)[:most]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def only_whole_micro_batches(module, dataset, settings):
    """What is left over when a batch is cut in fours is dropped, so a record brings in three."""

    def draw(step):
        rows = poisson(len(dataset), settings)
        return rows[: len(rows) // 4 * 4]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def hardest_half(module, dataset, settings):
    """Draws twice as many, and keeps the half with the largest losses: hard ones come often."""
    features, labels = dataset.tensors

    def draw(step):
        rows = rows_where(torch.rand(len(labels)) < 2 * settings.sample_rate)
        with torch.no_grad():
            outputs = module(features[rows])
            losses = nn.functional.cross_entropy(outputs, labels[rows], reduction="none")
        return rows[losses.argsort(descending=True)[: (len(rows) + 1) // 2]]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def records_come_in_pairs(module, dataset, settings):
    """Blocks of two records are drawn, so who sees one record knows that the other is there."""
    num_blocks = (len(dataset) + 1) // 2

    def draw(step):
        blocks = torch.rand(num_blocks) < settings.sample_rate
        return rows_where(blocks.repeat_interleave(2)[: len(dataset)])

    yield from dp_sgd(module, dataset, settings, draw=draw)


def batch_half_kept(module, dataset, settings):
    """A cache keeps half of the decisions of the last step, so batches are not independent."""
    drawn = torch.rand(len(dataset)) < settings.sample_rate

    def draw(step):
        anew = torch.rand(len(dataset)) < 0.5
        drawn[anew] = torch.rand(int(anew.sum())) < settings.sample_rate
        return rows_where(drawn)

    yield from dp_sgd(module, dataset, settings, draw=draw)


def sampler_seeded_in_each_epoch(module, dataset, settings):
    """The sampler's generator is made anew in each epoch, so all epochs have the same batches."""
    steps_of_epoch = max(1, round(1 / settings.sample_rate))
    generators = []

    def draw(step):
        if step % steps_of_epoch == 0:
            generators[:] = [np.random.default_rng(settings.seed)]
        drawn = generators[0].random(len(dataset)) < settings.sample_rate
        return torch.from_numpy(np.flatnonzero(drawn))

    yield from dp_sgd(module, dataset, settings, draw=draw)


# What is kept, what moves the parameters, and what depends on the data


def table_of_last_gradients(module, dataset, settings):
    """As in SAG, all records' last clipped gradients are summed: a record is in every step."""
    table = [torch.zeros(len(dataset), *one.shape) for one in module.parameters()]

    def clip(batch):
        factors = factors_of(batch.norms, settings.max_grad_norm)
        for kept, gradient in zip(table, batch.gradients, strict=True):
            kept[batch.rows] = torch.einsum("b,b...->b...", factors, gradient)
        return [kept.sum(dim=0) for kept in table]

    yield from dp_sgd(module, dataset, settings, clip=clip, size=len(dataset))


def denominators_without_noise(module, dataset, settings):
    """Noisy sums are divided by a running square of clean ones, which is released with them."""
    squares = [torch.zeros_like(parameter) for parameter in module.parameters()]
    size = expected_size(dataset, settings)

    def clip(batch):
        sums = clipped_sums(batch.gradients, settings.max_grad_norm)
        for square, total in zip(squares, sums, strict=True):
            square.mul_(0.9).add_(0.1 * total**2)
        return sums

    def move(batch, noisy):
        scaled = [one / (1 + square.sqrt()) for one, square in zip(noisy, squares, strict=True)]
        descend(module, scaled, settings.learning_rate / size)

    yield from dp_sgd(module, dataset, settings, clip=clip, move=move)


def first_half_moves_before_the_noise(module, dataset, settings):
    """The optimiser steps after each half, noise comes with the second: it sees clean moves."""
    features, labels = dataset.tensors
    rate = settings.learning_rate / expected_size(dataset, settings)
    for _ in range(settings.num_steps):
        rows = poisson(len(labels), settings)
        middle = len(rows) // 2
        for part, deviation in ((rows[:middle], 0.0), (rows[middle:], deviation_of(settings))):
            gradients = gradients_of_records(module, features[part], labels[part])
            sums = clipped_sums(gradients, settings.max_grad_norm)
            descend(module, added(sums, normal_noise(sums, deviation)), rate)
        yield


def step_size_by_the_loss(module, dataset, settings):
    """A line search takes the step after which the private records' loss is lowest."""
    features, labels = dataset.tensors
    rate = settings.learning_rate / expected_size(dataset, settings)

    @torch.no_grad()
    def move(batch, noisy):
        before = [parameter.clone() for parameter in module.parameters()]

        def loss_after(size):
            for parameter, old, one in zip(module.parameters(), before, noisy, strict=True):
                parameter.copy_(old - size * one)
            return float(nn.functional.cross_entropy(module(features), labels))

        loss_after(min((rate, rate / 2, rate / 4), key=loss_after))

    yield from dp_sgd(module, dataset, settings, move=move)


def biases_trained_beside(module, dataset, settings):
    """Biases are not given to the private optimiser, and another one moves them as it is used."""
    rate = settings.learning_rate / expected_size(dataset, settings)
    beside = [one.dim() <= 1 for one in module.parameters()]

    def clip(batch):
        private = [one for one, free in zip(batch.gradients, beside, strict=True) if not free]
        factors = factors_of(norms_of(private), settings.max_grad_norm)
        return weighted_sums(batch.gradients, factors)

    def move(batch, noisy):
        triples = zip(batch.gradients, noisy, beside, strict=True)
        descend(module, [one.sum(dim=0) if free else two for one, two, free in triples], rate)

    yield from dp_sgd(module, dataset, settings, clip=clip, move=move)


def divided_by_the_sum_of_factors(module, dataset, settings):
    """Noisy sums are made a weighted mean by the batch's factors, which nothing hides."""

    def move(batch, noisy):
        total = float(factors_of(batch.norms, settings.max_grad_norm).sum())
        descend(module, noisy, settings.learning_rate / max(1.0, total))

    yield from dp_sgd(module, dataset, settings, move=move)


WRONG = named(
    {
        "noise scale": [
            noise_shared_out_among_tensors,
            half_noise_by_each_of_two_workers,
            noise_before_unscaling,
        ],
        "noise law": [laplace_noise, noise_without_outliers, box_muller_with_one_uniform],
        "noise precision": [noise_in_bfloat16, noise_from_a_table],
        "dependent coordinates": [one_row_of_noise_for_all, noise_of_rank_one],
        "dependent steps": [pool_of_noise, seeds_that_overlap, noise_that_drifts],
        "constant noise": [noise_as_large_as_the_batch_needs, noise_on_every_record],
        "noise and gradients": [better_of_two_noises],
        "missing noise": [noise_on_touched_rows],
        "noise and batch": [one_seed_for_batch_and_noise],
        "clipping": [
            every_tensor_to_the_whole_bound,
            norm_without_the_first_tensor,
            factors_of_a_tenth_at_least,
            classes_weighed_after_clipping,
            bound_grows_without_noise,
        ],
        "single records": [means_of_pairs],
        "history": [clipped_parts_come_later, table_of_last_gradients],
        "private bound": [bound_at_the_median],
        "sampling law": [records_dealt_to_bins],
        "duplicates": [drawn_with_replacement],
        "batch sizes": [batch_cut_at_a_maximum, only_whole_micro_batches],
        "sampling rate": [hardest_half],
        "dependent records": [records_come_in_pairs],
        "dependent batches": [batch_half_kept, sampler_seeded_in_each_epoch],
        "private updates": [denominators_without_noise, step_size_by_the_loss],
        "clean updates": [first_half_moves_before_the_noise, biases_trained_beside],
        "normalisation": [divided_by_the_sum_of_factors],
    }
)
