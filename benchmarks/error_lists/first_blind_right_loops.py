"""The right loops of the first blind list: private as accounted, in unusual ways (2026-11-26)."""

import math
import warnings

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.func import functional_call, grad, vmap

from benchmarks.error_lists.first_blind_loop_parts import (
    Run,
    by_name,
    clipped_sum,
    dp_sgd,
    factors_of,
    gaussian,
    ghost_sum,
    loader_of,
    norms_of,
    opacus,
    poisson,
    sgd,
    weighted_sum,
)

# --- Right: gradients, batches and noise in other ways ------------------------------------------


def plain(module, dataset, settings):
    """DP-SGD as it is accounted."""
    yield from dp_sgd(module, dataset, settings)


def functional(module, dataset, settings):
    """Gradients of records by vmap and grad of torch.func."""

    def loss_of(parameters, features, label):
        outputs = functional_call(module, parameters, (features[None],))
        return nn.functional.cross_entropy(outputs, label[None])

    gradients_by_vmap = vmap(grad(loss_of), in_dims=(None, 0, 0))
    run = Run(module, dataset, settings)
    for run.step in range(settings.num_steps):
        chosen = poisson(run)
        sums = [torch.zeros_like(parameter) for parameter in run.parameters]
        if len(chosen):
            parameters = {name: value.detach() for name, value in module.named_parameters()}
            by_name = gradients_by_vmap(parameters, run.features[chosen], run.labels[chosen])
            sums = clipped_sum(run, [by_name[name] for name in parameters])
        with torch.no_grad():
            noise = gaussian(run, sums)
            sgd(run, [total + part for total, part in zip(sums, noise, strict=True)])
        yield


def ghost_by_hand(module, dataset, settings):
    """Norms first, then one backward pass over losses that are weighted by clipping factors."""

    def sum_of(run, gradients):
        return ghost_sum(run, factors_of(norms_of(gradients), run.bound))

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def opacus_functorch_with_adam(module, dataset, settings):
    """Opacus with functorch's gradients and Adam."""
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
    opacus(
        module, dataset, settings, optimizer=optimizer, pad_empty=True, grad_sample_mode="functorch"
    )


def sums_in_double_precision(module, dataset, settings):
    """Clips, sums and draws noise in float64, and rounds the noisy sum to float32."""

    def sum_of(run, gradients):
        return clipped_sum(run, [gradient.double() for gradient in gradients])

    def move(run, noisy):
        sgd(run, [total.float() for total in noisy])

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, move=move)


def opacus_small_physical_batches(module, dataset, settings):
    """Opacus's memory manager, with physical batches of seven records."""
    warnings.simplefilter("ignore")
    module, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=loader_of(dataset, settings),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
    )
    steps = []
    optimizer.attach_step_hook(lambda _: steps.append(len(steps)))
    while True:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=7, optimizer=optimizer
        ) as split_loader:
            for features, labels in split_loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(features), labels).backward()
                optimizer.step()
                if len(steps) == settings.num_steps:
                    return


def opacus_per_layer(module, dataset, settings):
    """Opacus's clipping per layer, with bounds whose squares sum up to that of C."""
    count = len(list(module.parameters()))
    bounds = [settings.max_grad_norm / math.sqrt(count)] * count
    opacus(module, dataset, settings, clipping="per_layer", max_grad_norm=bounds)


def opacus_falling_bound(module, dataset, settings):
    """Opacus's scheduler makes C smaller in each step, and the noise with it."""

    def after_step(optimizer):
        scheduler = ExponentialGradClip(optimizer, gamma=0.97)
        return lambda step: scheduler.step()

    opacus(module, dataset, settings, after_step=after_step)


def bound_per_tensor_and_joint_noise(module, dataset, settings):
    """Each tensor has the bound C, and the noise is that for their joint bound, sqrt(5) C."""

    def sum_of(run, gradients):
        return [clipped_sum(run, [gradient])[0] for gradient in gradients]

    def noise_of(run, sums):
        return [math.sqrt(len(sums)) * noise for noise in gaussian(run, sums)]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, noise_of=noise_of)


def masked_padding(module, dataset, settings):
    """Pads batches to a multiple of 32 with one record, whose weight is zero in the sum."""

    def draw(run):
        chosen = poisson(run)
        run.kept["size"] = len(chosen)
        missing = -len(chosen) % 32 if len(chosen) else 32
        return torch.cat([chosen, torch.zeros(missing, dtype=torch.long)])

    def sum_of(run, gradients):
        mask = (torch.arange(len(run.chosen)) < run.kept["size"]).float()
        return weighted_sum(mask * factors_of(norms_of(gradients), run.bound), gradients)

    yield from dp_sgd(module, dataset, settings, draw=draw, sum_of=sum_of)


def ranks_with_shards(module, dataset, settings):
    """Two ranks with half of the records each; each adds 1 / sqrt(2) of the noise to its sum."""

    def sum_of(run, gradients):
        run.kept["noisy"] = []
        for rank in range(2):
            own = run.chosen % 2 == rank
            sums = clipped_sum(run, [gradient[own] for gradient in gradients])
            pairs = zip(sums, gaussian(run, sums), strict=True)
            run.kept["noisy"].append([total + noise / math.sqrt(2) for total, noise in pairs])
        return [first + second for first, second in zip(*run.kept["noisy"], strict=True)]

    def noise_of(run, sums):
        return [torch.zeros_like(total) for total in sums]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, noise_of=noise_of)


def noise_in_parts(module, dataset, settings):
    """Accumulates over three physical batches, each with 1 / sqrt(3) of the noise, then steps."""

    def noise_of(run, sums):
        parts = [gaussian(run, sums) for _ in range(3)]
        return [sum(values) / math.sqrt(3) for values in zip(*parts, strict=True)]

    def sum_of(run, gradients):
        sums = [torch.zeros_like(parameter) for parameter in run.parameters]
        for part in torch.arange(len(run.chosen)).tensor_split(3):
            clipped = clipped_sum(run, [gradient[part] for gradient in gradients])
            sums = [total + value for total, value in zip(sums, clipped, strict=True)]
        return sums

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, noise_of=noise_of)


def normalised_gradients(module, dataset, settings):
    """Automatic clipping (AUTO-S): every gradient is divided by its norm and a constant."""

    def sum_of(run, gradients):
        return weighted_sum(run.bound / (norms_of(gradients) + 0.01), gradients)

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def nesterov_with_schedule(module, dataset, settings):
    """Noisy means given to Nesterov's momentum with weight decay and a cosine schedule."""
    optimizer = torch.optim.SGD(
        module.parameters(),
        lr=settings.learning_rate,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-3,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * settings.num_steps)

    def move(run, noisy):
        for parameter, total in zip(run.parameters, noisy, strict=True):
            parameter.grad = total / run.expected_size
        optimizer.step()
        schedule.step()

    yield from dp_sgd(module, dataset, settings, move=move)


def average_at_end(module, dataset, settings):
    """Puts the exponential average of all iterates into the module after the last step."""
    averages = [value.detach().clone() for value in module.parameters()]

    def move(run, noisy):
        sgd(run, noisy)
        for average, parameter in zip(averages, run.parameters, strict=True):
            average.lerp_(parameter, 0.2)

    yield from dp_sgd(module, dataset, settings, move=move)
    module.eval()
    with torch.no_grad():
        for average, parameter in zip(averages, module.parameters(), strict=True):
            parameter.copy_(average)


def largest_of_noisy(module, dataset, settings):
    """Moves only those coordinates of each tensor whose noisy sums are the larger half."""

    def move(run, noisy):
        kept = [total * (total.abs() >= total.abs().median()) for total in noisy]
        sgd(run, kept)

    yield from dp_sgd(module, dataset, settings, move=move)


def outliers_dropped(module, dataset, settings):
    """Leaves out records whose own gradient is larger than 20 C, and clips the others.

    Whether a record is left out depends on itself alone, so it still adds at most C.
    """

    def sum_of(run, gradients):
        norms = norms_of(gradients)
        factors = factors_of(norms, run.bound) * (norms <= 20 * run.bound)
        return weighted_sum(factors, gradients)

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of)


def random_coordinates(module, dataset, settings):
    """Trains a random half of all coordinates in each step; a public coin chooses them.

    Gradients are masked before they are clipped, and the mask does not depend on any record.
    """

    def sum_of(run, gradients):
        masks = [(torch.rand_like(value) < 0.5).float() for value in run.parameters]
        run.kept["masks"] = masks
        pairs = zip(gradients, masks, strict=True)
        return clipped_sum(run, [gradient * mask for gradient, mask in pairs])

    def noise_of(run, sums):
        pairs = zip(gaussian(run, sums), run.kept["masks"], strict=True)
        return [noise * mask for noise, mask in pairs]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, noise_of=noise_of)


def sampling_by_gaps(module, dataset, settings):
    """Poisson sampling that draws the geometric gaps between chosen records."""

    def draw(run):
        chosen, place = [], -1
        while True:
            uniform = 1 - torch.rand((), dtype=torch.float64).item()
            place += 1 + int(math.log(uniform) / math.log1p(-run.settings.sample_rate))
            if place >= len(run.labels):
                return torch.tensor(chosen, dtype=torch.long)
            chosen.append(place)

    yield from dp_sgd(module, dataset, settings, draw=draw)


def binomial_size_then_subset(module, dataset, settings):
    """Poisson sampling as a binomial size and a uniform subset of this size."""

    def draw(run):
        count = len(run.labels)
        size = torch.binomial(torch.tensor(float(count)), torch.tensor(run.settings.sample_rate))
        return torch.randperm(count)[: int(size)]

    yield from dp_sgd(module, dataset, settings, draw=draw)


def augmentations_averaged(module, dataset, settings):
    """Averages the gradients of two augmentations (here inactive) of a record, then clips."""

    def draw(run):
        return poisson(run).repeat_interleave(2)

    def sum_of(run, gradients):
        return clipped_sum(run, [(value[0::2] + value[1::2]) / 2 for value in gradients])

    yield from dp_sgd(module, dataset, settings, draw=draw, sum_of=sum_of)


def centred_on_noisy_average(module, dataset, settings):
    """Clips differences to an average of earlier noisy updates, which is added after the noise.

    The average is post-processing, and it is added with the expected batch size as its weight.
    """

    def sum_of(run, gradients):
        centres = run.kept.setdefault("centres", [0 * value for value in run.parameters])
        pairs = zip(gradients, centres, strict=True)
        return clipped_sum(run, [gradient - centre for gradient, centre in pairs])

    def move(run, noisy):
        centres = run.kept["centres"]
        pairs = zip(noisy, centres, strict=True)
        whole = [total + run.expected_size * centre for total, centre in pairs]
        sgd(run, whole)
        run.kept["centres"] = [
            0.9 * centre + 0.1 * total / run.expected_size
            for centre, total in zip(centres, whole, strict=True)
        ]

    yield from dp_sgd(module, dataset, settings, sum_of=sum_of, move=move)


def two_learning_rates(module, dataset, settings):
    """Vectors have half of the learning rate of matrices."""

    def move(run, noisy):
        sgd(run, [total if total.ndim > 1 else total / 2 for total in noisy])

    yield from dp_sgd(module, dataset, settings, move=move)


def pulled_to_start(module, dataset, settings):
    """Weight decay towards the public parameters at the start."""
    starts = [value.detach().clone() for value in module.parameters()]

    def move(run, noisy):
        for parameter, start in zip(run.parameters, starts, strict=True):
            parameter -= run.settings.learning_rate * 0.1 * (parameter - start)
        sgd(run, noisy)

    yield from dp_sgd(module, dataset, settings, move=move)


def mean_of_two_noisy(module, dataset, settings):
    """Moves by the mean of the last two noisy sums."""

    def move(run, noisy):
        past = run.kept.get("noisy", noisy)
        sgd(run, [(now + then) / 2 for now, then in zip(noisy, past, strict=True)])
        run.kept["noisy"] = noisy

    yield from dp_sgd(module, dataset, settings, move=move)


RIGHT = by_name(
    (plain, "by hand"),
    (functional, "torch.func"),
    (ghost_by_hand, "ghost clipping"),
    (opacus_functorch_with_adam, "functorch, Adam"),
    (sums_in_double_precision, "float64"),
    (opacus_small_physical_batches, "physical batches"),
    (opacus_per_layer, "bounds per layer"),
    (opacus_falling_bound, "schedule of C"),
    (bound_per_tensor_and_joint_noise, "bounds per layer"),
    (masked_padding, "padding"),
    (ranks_with_shards, "ranks"),
    (noise_in_parts, "accumulation"),
    (normalised_gradients, "normalised gradients"),
    (nesterov_with_schedule, "optimiser"),
    (average_at_end, "averages"),
    (largest_of_noisy, "top-k after noise"),
    (outliers_dropped, "outliers"),
    (random_coordinates, "public masks"),
    (sampling_by_gaps, "sampler"),
    (binomial_size_then_subset, "sampler"),
    (augmentations_averaged, "augmentation"),
    (centred_on_noisy_average, "centred clipping"),
    (two_learning_rates, "learning rates"),
    (pulled_to_start, "weight decay"),
    (mean_of_two_noisy, "post-processing"),
)
