"""Training loops by an author who had read only the documentation of `dpcanary check` (2026-11-26).

A blind test of the check: 40 loops whose accounted epsilon is too small, each with the reason, and
25 loops that are private as accounted, in ways that are unusual or easy to get wrong. The list was
written and committed before any of its loops was checked, and the author had read neither the
check's source nor its other lists. It is not edited afterwards, so that a score on it stays blind.

`WRONG` and `RIGHT` map a name to the loop, the expected kind of fault (for a right loop: what is
unusual), and further arguments of `check_mechanism`. Accounting assumes Poisson sampling at the
sample rate, records clipped to C, and Gaussian noise of the noise multiplier times C, for as many
steps as the settings say, with add/remove adjacency and all iterates released.
"""

import copy
import math
import warnings

import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.func import functional_call, grad

from benchmarks.error_lists.first_blind_loop_parts import (
    Run,
    by_name,
    clean_loss,
    clipped_sum,
    dp_sgd,
    factors_of,
    gaussian,
    ghost_sum,
    gradients_of,
    loader_of,
    norms_of,
    opacus,
    poisson,
    sgd,
    weighted_sum,
)
from benchmarks.error_lists.first_blind_right_loops import RIGHT

__all__ = ["RIGHT", "WRONG"]

# --- Wrong: which records are drawn -------------------------------------------------------------


def opacus_without_poisson(module, dataset, settings):
    """Opacus with poisson_sampling=False on a shuffling loader.

    Every record participates exactly once in each pass: there is no amplification by sampling.
    """
    loader = loader_of(dataset, settings, shuffle=True, drop_last=True)
    opacus(module, dataset, settings, loader=loader, poisson_sampling=False)


def batch_used_twice(module, dataset, settings):
    """Takes two steps with each Poisson sample.

    Participations of consecutive steps are the same event: a record that is drawn has two releases
    with certainty, where the accountant counts independent draws.
    """

    def draw(run):
        if run.step % 2 == 0:
            run.kept["sample"] = poisson(run)
        return run.kept["sample"]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def both_ranks_draw_from_all(module, dataset, settings):
    """Two ranks without a distributed sampler: both draw from the whole dataset, and add sums.

    A record is drawn with probability 1 - (1 - q)^2, and counts twice if both ranks draw it.
    """

    def draw(run):
        return torch.cat([poisson(run), poisson(run)])

    def move(run, noisy):
        sgd(run, [total / 2 for total in noisy])

    yield from dp_sgd(module, dataset, settings, draw=draw, move=move)


def empty_batches_redrawn(module, dataset, settings):
    """Draws again until a batch has a record.

    The law of batches is that of non-empty ones: for small data, rates of records are larger than
    q, and depend on how many records there are.
    """

    def draw(run):
        chosen = poisson(run)
        while len(chosen) == 0:
            chosen = poisson(run)
        return chosen

    yield from dp_sgd(module, dataset, settings, draw=draw)


def padded_by_repetition(module, dataset, settings):
    """Fills small batches to the expected size by repeating records that were drawn.

    A repeated record contributes 2 C or more, and adding a record changes what is repeated.
    """

    def draw(run):
        chosen = poisson(run)
        size = round(run.expected_size)
        if 0 < len(chosen) < size:
            chosen = chosen.repeat(math.ceil(size / len(chosen)))[:size]
        return chosen

    yield from dp_sgd(module, dataset, settings, draw=draw)


def truncated_to_capacity(module, dataset, settings):
    """Keeps a random part of batches that do not fit into 1.25 times the expected size.

    In a full batch, a record that is added displaces another one: the sum changes by up to 2 C.
    That happens in a tenth of the steps and is not in the accounted delta.
    """

    def draw(run):
        chosen = poisson(run)
        capacity = math.ceil(1.25 * run.expected_size)
        return chosen[torch.randperm(len(chosen))[:capacity]]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def positive_label_oversampled(module, dataset, settings):
    """Draws records of label 1 with 1.4 q and those of label 0 with 0.6 q.

    The records of label 1 have a larger sample rate than is accounted.
    """

    def draw(run):
        rates = run.settings.sample_rate * torch.tensor([0.6, 1.4])[run.labels.clamp(max=1)]
        return (torch.rand(len(run.labels)) < rates).nonzero()[:, 0]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def pairs_drawn_together(module, dataset, settings):
    """Draws pairs (two views of a scene, stored in two halves of the data) as a whole.

    A record's partner shows in the sum whether the pair was drawn, which takes the amplification
    away: given the partner, the participation of the record is no longer hidden.
    """

    def draw(run):
        count = len(run.labels)
        half = (count + 1) // 2
        coins = torch.rand(half) < run.settings.sample_rate
        return torch.cat([coins, coins[: count - half]]).nonzero()[:, 0]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def batch_size_schedule(module, dataset, settings):
    """Makes batches half as large again for the second half of the training.

    The second half has the sample rate 1.5 q, where q is accounted for all steps.
    """

    def growth(run):
        return 1.0 if run.step < run.settings.num_steps / 2 else 1.5

    def draw(run):
        rate = growth(run) * run.settings.sample_rate
        return (torch.rand(len(run.labels)) < rate).nonzero()[:, 0]

    def move(run, noisy):
        sgd(run, [total / growth(run) for total in noisy])

    yield from dp_sgd(module, dataset, settings, draw=draw, move=move)


def hardest_half(module, dataset, settings):
    """Online mining of hard examples: only the half of a batch with the largest gradients counts.

    Which records count depends on the others: a record that is added pushes another one out.
    """

    def sum_of(run, gradients):
        norms = norms_of(gradients)
        kept = norms.argsort(descending=True)[: (len(norms) + 1) // 2]
        return clipped_sum(run, [gradient[kept] for gradient in gradients])

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def epochs_rounded_up(module, dataset, settings):
    """Opacus by whole epochs, the number of which is rounded up.

    Takes more steps than are accounted: 30 in place of 24 at the default settings.
    """
    steps_per_epoch = round(1 / settings.sample_rate)
    epochs = math.ceil(settings.num_steps / steps_per_epoch)
    opacus(module, dataset, settings, steps=epochs * steps_per_epoch)


def accumulates_two_draws(module, dataset, settings):
    """Gradient accumulation over two Poisson samples, with one noise and one step accounted.

    A record is in the sum with twice the rate, and with 2 C if both samples have it.
    """

    def sum_of(run, gradients):
        with torch.enable_grad():
            further = gradients_of(run, poisson(run))
        pairs = zip(clipped_sum(run, gradients), clipped_sum(run, further), strict=True)
        return [first + second for first, second in pairs]

    def move(run, noisy):
        sgd(run, [total / 2 for total in noisy])

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, move=move)


# --- Wrong: how gradients are clipped and divided -----------------------------------------------


def microbatch_means(module, dataset, settings):
    """Clips the mean gradient of microbatches of four records, by torch.func.

    One record can turn the mean around (2 C), and shifts all later records to other microbatches.
    """

    def mean_loss(parameters, features, labels):
        outputs = functional_call(module, parameters, (features,))
        return nn.functional.cross_entropy(outputs, labels)

    run = Run(module, dataset, settings)
    names = [name for name, _ in module.named_parameters()]
    for run.step in range(settings.num_steps):
        sums = [torch.zeros_like(parameter) for parameter in run.parameters]
        for part in poisson(run).split(4):
            parameters = {name: value.detach() for name, value in module.named_parameters()}
            means = grad(mean_loss)(parameters, run.features[part], run.labels[part])
            clipped = clipped_sum(run, [means[name][None] for name in names])
            sums = [total + value for total, value in zip(sums, clipped, strict=True)]
        with torch.no_grad():
            noise = gaussian(run, sums)
            sgd(run, [4 * (total + part) for total, part in zip(sums, noise, strict=True)])
        yield


def each_tensor_clipped_to_bound(module, dataset, settings):
    """Clips the gradient in each tensor to C, with noise for a whole norm of C.

    With five tensors, a record's whole gradient has a norm of up to sqrt(5) C.
    """

    def sum_of(run, gradients):
        return [clipped_sum(run, [gradient])[0] for gradient in gradients]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def norm_without_embedding(module, dataset, settings):
    """Computes norms of linear layers alone, and scales all gradients by them.

    What a record adds to the embedding comes on top of C, without a limit of its own.
    """
    embeddings = [layer.weight for layer in module.modules() if isinstance(layer, nn.Embedding)]

    def sum_of(run, gradients):
        pairs = zip(run.parameters, gradients, strict=True)
        linear = [
            gradient
            for parameter, gradient in pairs
            if not any(parameter is weight for weight in embeddings)
        ]
        return weighted_sum(factors_of(norms_of(linear), run.bound), gradients)

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def class_weights_after_clipping(module, dataset, settings):
    """Multiplies clipped gradients by the weights of their classes, 0.5 and 1.5.

    Records of label 1 contribute up to 1.5 C.
    """

    def sum_of(run, gradients):
        weights = torch.tensor([0.5, 1.5])[run.labels[run.chosen].clamp(max=1)]
        factors = factors_of(norms_of(gradients), run.bound)
        return weighted_sum(weights * factors, gradients)

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def augmentations_summed(module, dataset, settings):
    """Two augmentations of each record (here: none of them active), each clipped to C by itself.

    A record contributes the sum of both, up to 2 C, and the noise is that for C.
    """

    def draw(run):
        return poisson(run).repeat_interleave(2)

    def move(run, noisy):
        sgd(run, [total / 2 for total in noisy])

    yield from dp_sgd(module, dataset, settings, draw=draw, move=move)


def losses_mixed_in_batch(module, dataset, settings):
    """Mixes the loss of each record with that of another record of the batch, as mixup does.

    A record is in two of the clipped gradients: without it, both change.
    """

    def sum_of(run, gradients):
        partner = torch.arange(len(run.chosen)).roll(1)
        mixed = [0.7 * gradient + 0.3 * gradient[partner] for gradient in gradients]
        return clipped_sum(run, mixed)

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def opacus_mean_called_sum(module, dataset, settings):
    """Opacus is told loss_reduction="sum", and the loss is a mean.

    What is clipped is a record's gradient over the size of its batch: a record that is added makes
    the parts of all others smaller, by up to C in sum, beside its own C.
    """
    opacus(module, dataset, settings, loss_reduction="sum")


def clipping_ends_at_half(module, dataset, settings):
    """Stops clipping after half of the steps, as norms have settled by then.

    Nothing bounds what a record contributes to the second half.
    """

    def sum_of(run, gradients):
        if run.step < run.settings.num_steps / 2:
            return clipped_sum(run, gradients)
        return [gradient.sum(0) for gradient in gradients]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def clean_quantile(module, dataset, settings):
    """Adaptive clipping, where the share of unclipped records in the batch gets no noise.

    C, and with it the noise's scale, follows from exact counts of private records, which no
    accountant counts: one record more in a batch of 20 moves C, and the scale of the noise of some
    thousand coordinates shows it.
    """

    def sum_of(run, gradients):
        sums = clipped_sum(run, gradients)
        run.kept["norms"] = norms_of(gradients)
        return sums

    def move(run, noisy):
        sgd(run, noisy)
        norms = run.kept["norms"]
        if len(norms):
            share = (norms <= run.bound).float().mean().item()
            run.bound *= math.exp(-0.2 * (share - 0.5))

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, move=move)


def normalised_sum(module, dataset, settings):
    """Scales the sum of clipped gradients to the norm C before the noise.

    One record can turn the scaled sum around: it changes by up to 2 C.
    """

    def sum_of(run, gradients):
        sums = clipped_sum(run, gradients)
        norm = torch.stack([total.norm() for total in sums]).norm()
        return [run.bound * total / norm.clamp(min=1e-30) for total in sums]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def centred_on_batch_mean(module, dataset, settings):
    """Subtracts the batch's mean gradient from every gradient before clipping.

    A large record moves the mean, and with it the clipped parts of all other records.
    """

    def sum_of(run, gradients):
        if not len(run.chosen):
            return clipped_sum(run, gradients)
        return clipped_sum(run, [gradient - gradient.mean(0) for gradient in gradients])

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def ghost_weighted_mean(module, dataset, settings):
    """Ghost clipping by hand, whose second pass takes the weighted mean of losses.

    Gradients are divided by the sum of the batch's clipping factors, and so is the noise: the
    scale of an update depends on how many records were drawn and how large they are.
    """

    def sum_of(run, gradients):
        factors = factors_of(norms_of(gradients), run.bound)
        run.kept["total"] = factors.sum().clamp(min=1.0)
        return ghost_sum(run, factors)

    def move(run, noisy):
        for parameter, total in zip(run.parameters, noisy, strict=True):
            parameter -= run.settings.learning_rate * total / run.kept["total"]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, move=move)


# --- Wrong: the noise ---------------------------------------------------------------------------


def tensors_share_noise(module, dataset, settings):
    """Seeds a generator with the step's secret seed for every tensor again.

    Tensors begin with the same noise: the difference of two tensors' updates has none.
    """

    def noise_of(run, sums):
        seed = torch.randint(2**40, ()).item()
        scale = run.settings.noise_multiplier * run.bound
        return [
            scale * torch.randn(total.shape, generator=torch.Generator().manual_seed(seed))
            for total in sums
        ]

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def noise_without_outliers(module, dataset, settings):
    """Limits noise to 2.5 standard deviations, so that no step is spoilt by an outlier.

    Values beyond the limit prove that the record was in: epsilon is unbounded there.
    """

    def noise_of(run, sums):
        limit = 2.5 * run.settings.noise_multiplier * run.bound
        return [noise.clamp(-limit, limit) for noise in gaussian(run, sums)]

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def noise_in_half_precision(module, dataset, settings):
    """Draws noise in bfloat16 and adds it to sums in float32.

    Noise has a few thousand values, so the fine digits of an update are those of the clean sum.
    """

    def noise_of(run, sums):
        scale = run.settings.noise_multiplier * run.bound
        return [scale * torch.randn(total.shape, dtype=torch.bfloat16).float() for total in sums]

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def noise_on_touched_rows(module, dataset, settings):
    """Adds noise only to those rows of the embedding that have a gradient, to keep it sparse.

    Rows that move show which words, and so which records, were in the batch.
    """
    embeddings = [layer.weight for layer in module.modules() if isinstance(layer, nn.Embedding)]

    def noise_of(run, sums):
        noise = gaussian(run, sums)
        for index, parameter in enumerate(run.parameters):
            if any(parameter is weight for weight in embeddings):
                noise[index] *= (sums[index] != 0).any(1, keepdim=True)
        return noise

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def noise_shared_by_ranks(module, dataset, settings):
    """Each of two ranks adds noise for C over the number of ranks to the sum of its shard.

    Independent halves add up to 1 / sqrt(2) of the noise that is accounted.
    """

    def noise_of(run, sums):
        pairs = zip(gaussian(run, sums), gaussian(run, sums), strict=True)
        return [first / 2 + second / 2 for first, second in pairs]

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def antithetic_noise(module, dataset, settings):
    """Uses the noise of each even step with the other sign in the next step, so that it cancels.

    The sum of the two updates has no noise.
    """

    def noise_of(run, sums):
        if run.step % 2:
            return [-noise for noise in run.kept["noise"]]
        run.kept["noise"] = gaussian(run, sums)
        return run.kept["noise"]

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def noise_scaled_to_batch(module, dataset, settings):
    """Scales noise to the largest clipped norm in the batch in place of C.

    The scale of the noise shows whether a record with a large gradient was in.
    """

    def sum_of(run, gradients):
        norms = norms_of(gradients).clamp(max=run.bound)
        run.kept["largest"] = norms.max().item() if len(norms) else run.bound
        return clipped_sum(run, gradients)

    def noise_of(run, sums):
        return [noise * run.kept["largest"] / run.bound for noise in gaussian(run, sums)]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, noise_of=noise_of)


def opacus_noise_of_each_epoch(module, dataset, settings):
    """Opacus with a noise generator that is seeded again, with a secret seed, in every epoch.

    Step t of all epochs has the same noise: differences of epochs have none.
    """
    seed = torch.randint(2**40, ()).item()
    generator = torch.Generator().manual_seed(seed)
    steps_per_epoch = round(1 / settings.sample_rate)

    def after_step(optimizer):
        def follow(step):
            if step % steps_per_epoch == 0:
                generator.manual_seed(seed)

        return follow

    opacus(module, dataset, settings, noise_generator=generator, after_step=after_step)


def vectors_without_noise(module, dataset, settings):
    """Adds noise to matrices only: vectors, such as biases, are thought to tell little.

    The bias moves by sums of clipped gradients without any noise.
    """

    def noise_of(run, sums):
        pairs = zip(sums, gaussian(run, sums), strict=True)
        return [noise if total.ndim > 1 else 0 * noise for total, noise in pairs]

    yield from dp_sgd(module, dataset, settings, noise_of=noise_of)


def half_noise_per_physical_batch(module, dataset, settings):
    """Steps after each half of a batch, with noise divided by sqrt(2) as there are two halves.

    A record is in one half: the update that contains it has 1 / sqrt(2) of the noise.
    """
    run = Run(module, dataset, settings)
    for run.step in range(settings.num_steps):
        for part in poisson(run).chunk(2) or [torch.arange(0)]:
            gradients = gradients_of(run, part)
            with torch.no_grad():
                sums = clipped_sum(run, gradients)
                pairs = zip(sums, gaussian(run, sums), strict=True)
                sgd(run, [total + noise / math.sqrt(2) for total, noise in pairs])
            yield


# --- Wrong: what else moves the parameters ------------------------------------------------------


def bias_by_second_optimizer(module, dataset, settings):
    """Opacus's optimizer has the matrices; biases are trained by a plain SGD beside it.

    Biases move by gradients that are neither clipped nor noisy.
    """
    warnings.simplefilter("ignore")
    vectors = [value for value in module.parameters() if value.ndim == 1]
    matrices = [value for value in module.parameters() if value.ndim > 1]
    wrapped = GradSampleModule(module)
    beside = torch.optim.SGD(vectors, lr=settings.learning_rate)
    private = DPOptimizer(
        torch.optim.SGD(matrices, lr=settings.learning_rate),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
        expected_batch_size=round(settings.sample_rate * len(dataset)),
    )
    loader = DPDataLoader.from_data_loader(loader_of(dataset, settings))
    step = 0
    while True:
        for features, labels in loader:
            wrapped.zero_grad()
            private.zero_grad()
            nn.functional.cross_entropy(wrapped(features), labels).backward()
            private.step()
            beside.step()
            step += 1
            if step == settings.num_steps:
                return


def momentum_before_noise(module, dataset, settings):
    """Averages clean sums by momentum, and adds the noise of one step to the average.

    A record's gradient comes again in all later steps, each time with fresh noise: a participation
    is released many times, where one is accounted.
    """

    def sum_of(run, gradients):
        sums = clipped_sum(run, gradients)
        past = run.kept.get("velocity", [torch.zeros_like(total) for total in sums])
        pairs = zip(sums, past, strict=True)
        run.kept["velocity"] = [total + 0.5 * value for total, value in pairs]
        return run.kept["velocity"]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def clean_snapshot_gradient(module, dataset, settings):
    """Variance reduction (SVRG): differences to a snapshot are clipped, its full gradient is added.

    The mean of all clipped gradients at the snapshot enters every step: every record participates
    in each step, beside its draws.
    """

    def sum_of(run, gradients):
        if run.step % 8 == 0:
            run.kept["snapshot"] = copy.deepcopy(run.module).eval()
        snapshot = run.kept["snapshot"]
        with torch.enable_grad():
            before = gradients_of(run, run.chosen, snapshot)
            of_all = gradients_of(run, torch.arange(len(run.labels)), snapshot)
        pairs = zip(gradients, before, strict=True)
        sums = clipped_sum(run, [now - then for now, then in pairs])
        anchors = clipped_sum(run, of_all)
        rate = run.settings.sample_rate
        return [total + rate * anchor for total, anchor in zip(sums, anchors, strict=True)]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def undone_if_loss_rises(module, dataset, settings):
    """Takes a step back if it makes the loss of the private records larger.

    Each decision is a function of all records without noise, and is visible in the parameters.
    """

    def move(run, noisy):
        before = clean_loss(run)
        values = [parameter.clone() for parameter in run.parameters]
        sgd(run, noisy)
        if clean_loss(run) > before:
            for parameter, value in zip(run.parameters, values, strict=True):
                parameter.copy_(value)

    yield from dp_sgd(module, dataset, settings, move=move)


def starts_at_class_means(module, dataset, settings):
    """Adds the mean features of every class to the weights of that class before training.

    Class means of private records enter the parameters without noise.
    """
    features, labels = dataset.tensors
    with torch.no_grad():
        weight = next(
            value for value in module.parameters() if value.shape[1:] == features[0].shape
        )
        for label in range(len(weight)):
            if (labels == label).any():
                weight[label] += features[labels == label].mean(0)
    yield from dp_sgd(module, dataset, settings)


def polished_without_noise(module, dataset, settings):
    """Opacus, and a last step with the plain gradient of all records.

    The last step is neither clipped nor noisy.
    """
    opacus(module, dataset, settings).to_standard_module()
    features, labels = dataset.tensors
    parameters = list(module.parameters())
    loss = nn.functional.cross_entropy(module(features), labels)
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter -= settings.learning_rate * gradient


WRONG = by_name(
    (opacus_without_poisson, "not Poisson: shuffled passes"),
    (batch_used_twice, "batches come again"),
    (both_ranks_draw_from_all, "sample rate or duplicate records"),
    (empty_batches_redrawn, "empty batches"),
    (padded_by_repetition, "duplicate records or sizes"),
    (truncated_to_capacity, "not Poisson: sizes"),
    (positive_label_oversampled, "sample rate by label"),
    (pairs_drawn_together, "records not independent"),
    (batch_size_schedule, "sample rate by step"),
    (hardest_half, "records depend on others"),
    (epochs_rounded_up, "number of steps"),
    (accumulates_two_draws, "sample rate or duplicate records"),
    (microbatch_means, "clipping of means"),
    (each_tensor_clipped_to_bound, "clipping"),
    (norm_without_embedding, "clipping"),
    (class_weights_after_clipping, "clipping"),
    (augmentations_summed, "clipping or noise scale"),
    (losses_mixed_in_batch, "records depend on others"),
    (opacus_mean_called_sum, "normalisation or dependence on the batch"),
    (clipping_ends_at_half, "clipping"),
    (clean_quantile, "bound depends on data"),
    (normalised_sum, "normalisation or dependence on the batch"),
    (centred_on_batch_mean, "records depend on others"),
    (ghost_weighted_mean, "normalisation"),
    (tensors_share_noise, "noise of coordinates"),
    (noise_without_outliers, "not Gaussian"),
    (noise_in_half_precision, "precision of noise"),
    (noise_on_touched_rows, "noise scale where no gradient is"),
    (noise_shared_by_ranks, "noise scale"),
    (antithetic_noise, "noise of steps"),
    (noise_scaled_to_batch, "noise not constant"),
    (opacus_noise_of_each_epoch, "noise of steps"),
    (vectors_without_noise, "noise scale"),
    (half_noise_per_physical_batch, "noise scale or number of steps"),
    (bias_by_second_optimizer, "clipping or noise of the bias"),
    (momentum_before_noise, "history"),
    (clean_snapshot_gradient, "clean gradients or history"),
    (undone_if_loss_rises, "updates depend on clean loss"),
    (starts_at_class_means, "updates"),
    (polished_without_noise, "updates or number of steps"),
)
