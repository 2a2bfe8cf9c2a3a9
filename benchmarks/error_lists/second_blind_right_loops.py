"""Twenty-five right training loops, written from the documentation of `dpcanary check` alone.

Each is as private as its settings say: the parameters depend on a record through noisy sums of
clipped gradients over Poisson samples alone. None was run through the check by whoever wrote it.
`RIGHT` has them all, with what each does in its own way.
"""

import math

import numpy as np
import torch
from torch.func import functional_call, jacrev
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.error_lists.second_blind_wrong_loops import Run, added, norms, scaled

# Gradients of single records


def record_by_record(module, dataset, settings):
    """Each record's gradient is a vector that autograd gives, with noise of NumPy: plain DP-SGD."""
    random = np.random.default_rng(settings.seed)
    parameters = list(module.parameters())
    expected = settings.sample_rate * len(dataset)
    module.train()
    for _ in range(settings.num_steps):
        total = torch.zeros_like(parameters_to_vector(parameters))
        drawn = np.flatnonzero(random.random(len(dataset)) < settings.sample_rate)
        features, labels = dataset[drawn]
        losses = cross_entropy(module(features), labels, reduction="none")
        for loss in losses:
            one = parameters_to_vector(torch.autograd.grad(loss, parameters, retain_graph=True))
            total += one / max(1.0, float(one.norm()) / settings.max_grad_norm)
        scale = settings.noise_multiplier * settings.max_grad_norm
        total += torch.from_numpy(random.normal(0, scale, len(total))).to(total.dtype)
        now = parameters_to_vector(parameters).detach()
        vector_to_parameters(now - settings.learning_rate * total / expected, parameters)
        yield


def everyone_with_a_mask(module, dataset, settings):
    """All gradients are taken, and a Poisson mask makes those not drawn zero: the same sums."""
    run = Run(module, dataset, settings)
    everyone = torch.arange(run.size)

    def sums_of(mask):
        clipped = run.clipped(run.gradients(everyone))
        return [torch.einsum("n,n...->...", mask, g) for g in clipped]

    yield from run.steps(draw=lambda: (run.uniform(run.size) < run.rate).float(), sums_of=sums_of)


def micro_batches(module, dataset, settings):
    """Clipped sums of parts of a batch add up in `.grad`, and get noise once, after the last."""
    run = Run(module, dataset, settings)
    module.train()
    for _ in range(settings.num_steps):
        for p in run.parameters:
            p.grad = torch.zeros_like(p)
        for part in run.poisson().split(16):
            for p, s in zip(run.parameters, run.clipped_sums(part), strict=True):
                p.grad += s
        for p, z in zip(run.parameters, run.noise(), strict=True):
            p.grad += z
        run.update([p.grad for p in run.parameters])
        yield


def weighted_loss(module, dataset, settings):
    """As ghost clipping does, a second pass takes the gradient of losses times clip factors."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        if not len(places):
            return [torch.zeros_like(p) for p in run.parameters]
        factors = (run.norm / norms(run.gradients(places)).clamp(min=1e-12)).clamp(max=1)
        outputs = module(run.features[places])
        losses = cross_entropy(outputs, run.labels[places], reduction="none")
        return torch.autograd.grad((factors * losses).sum(), run.parameters)

    yield from run.steps(sums_of=sums_of)


def rows_of_a_jacobian(module, dataset, settings):
    """Gradients are rows of the Jacobian of the batch's losses, which are single records' own."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        if not len(places):
            return [torch.zeros_like(p) for p in run.parameters]

        def losses(parameters):
            outputs = functional_call(module, parameters, (run.features[places],))
            return cross_entropy(outputs, run.labels[places], reduction="none")

        rows = jacrev(losses)({name: p.detach() for name, p in run.named.items()})
        return [g.sum(0) for g in run.clipped([rows[name] for name in run.named])]

    yield from run.steps(sums_of=sums_of)


# Clipping


def equal_budgets_of_tensors(module, dataset, settings):
    """Each tensor is clipped to C over the root of their number, so the whole is at most C."""
    run = Run(module, dataset, settings)
    bound = run.norm / len(run.parameters) ** 0.5

    def sums_of(places):
        return [run.clipped([g], bound)[0].sum(0) for g in run.gradients(places)]

    yield from run.steps(sums_of=sums_of)


def budgets_with_their_noise(module, dataset, settings):
    """Tensors have bounds of their own and noise in proportion: scaled, it is one Gaussian."""
    run = Run(module, dataset, settings)
    count = len(run.parameters)
    bounds = [run.norm * (1 + place) / count for place in range(count)]

    def sums_of(places):
        found = run.gradients(places)
        pairs = zip(found, bounds, strict=True)
        return [run.clipped([g], bound)[0].sum(0) for g, bound in pairs]

    def noise():
        scales = [settings.noise_multiplier * bound * count**0.5 for bound in bounds]
        return [s * run.normal(p.shape) for s, p in zip(scales, run.parameters, strict=True)]

    yield from run.steps(sums_of=sums_of, noise=noise)


def smooth_clipping(module, dataset, settings):
    """Gradients are divided by 1 + norm / C, a function of their own norm that stays below C."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        found = run.gradients(places)
        return [g.sum(0) for g in scaled(found, 1 / (1 + norms(found) / run.norm))]

    yield from run.steps(sums_of=sums_of)


def bound_that_adapts_privately(module, dataset, settings):
    """C follows a noisy count of small gradients, and the sum's noise is raised to pay for it."""
    run = Run(module, dataset, settings)
    # Andrew et al., 2021: sums and counts together have the noise multiplier of the settings.
    for_counts = max(run.expected / 2, 2 * settings.noise_multiplier)
    for_sums = (settings.noise_multiplier**-2 - (2 * for_counts) ** -2) ** -0.5
    bound, below = run.norm, 0.0

    def sums_of(places):
        nonlocal below
        found = run.gradients(places)
        below = float((norms(found) <= bound).float().sub(0.5).sum())
        return [g.sum(0) for g in run.clipped(found, bound)]

    def noise():
        return [for_sums * bound * run.normal(p.shape) for p in run.parameters]

    def update(noisy):
        nonlocal bound
        run.update(noisy)
        share = (below + for_counts * float(run.normal(1))) / run.expected
        bound *= math.exp(-0.2 * min(max(share, -0.5), 0.5))

    yield from run.steps(sums_of=sums_of, noise=noise, update=update)


# Sampling


def masks_up_front(module, dataset, settings):
    """The Poisson masks of all steps are one draw at the start: independent all the same."""
    run = Run(module, dataset, settings)
    rates = torch.full((settings.num_steps, run.size), float(run.rate))
    masks = torch.bernoulli(rates, generator=run.generator).bool()
    yield from run.steps(draw=lambda: masks[run.step].nonzero().flatten())


def gaps_between_the_drawn(module, dataset, settings):
    """Gaps between drawn places are geometric, which is Poisson sampling without n coins."""
    run = Run(module, dataset, settings)
    random = np.random.default_rng(settings.seed)

    def draw():
        places = np.cumsum(random.geometric(run.rate, size=run.size)) - 1
        return torch.from_numpy(places[places < run.size])

    yield from run.steps(draw=draw)


def size_first_then_records(module, dataset, settings):
    """A binomial size, and as many records without repeats, have the law of a Poisson sample."""
    run = Run(module, dataset, settings)
    random = np.random.default_rng(settings.seed)

    def draw():
        size = random.binomial(run.size, run.rate)
        return torch.randperm(run.size, generator=run.generator)[:size]

    yield from run.steps(draw=draw)


# Noise


def noise_up_front(module, dataset, settings):
    """The noise of all steps and tensors is one matrix, of which each entry is used once."""
    run = Run(module, dataset, settings)
    sizes = [p.numel() for p in run.parameters]
    drawn = run.deviation * run.normal((settings.num_steps, sum(sizes)))

    def noise():
        parts = drawn[run.step].split(sizes)
        return [z.view(p.shape) for z, p in zip(parts, run.parameters, strict=True)]

    yield from run.steps(noise=noise)


def noise_of_box_and_muller(module, dataset, settings):
    """Gaussian noise is made of uniform numbers in double precision, as Box and Muller do."""
    run = Run(module, dataset, settings)

    def noise():
        found = []
        for p in run.parameters:
            uniform = torch.rand((2, *p.shape), dtype=torch.float64, generator=run.generator)
            radius = (-2 * torch.log1p(-uniform[0])).sqrt()
            drawn = radius * torch.cos(2 * math.pi * uniform[1])
            found.append((run.deviation * drawn).to(p.dtype))
        return found

    yield from run.steps(noise=noise)


def noise_in_another_basis(module, dataset, settings):
    """Sums are turned by an orthogonal matrix, get noise, and are turned back: still isotropic."""
    run = Run(module, dataset, settings)
    turns = {}
    for p in run.parameters:
        if len(p) not in turns:
            square = torch.randn(len(p), len(p), generator=run.generator, dtype=torch.float64)
            turns[len(p)] = torch.linalg.qr(square)[0].to(p.dtype)
    module.train()
    for _ in range(settings.num_steps):
        noisy = []
        for s, z in zip(run.clipped_sums(run.poisson()), run.noise(), strict=True):
            turn = turns[len(s)]
            noisy.append(turn.T @ (turn @ s + z))
        run.update(noisy)
        yield


def double_precision(module, dataset, settings):
    """Clipping, sums, noise and update are in float64, and parameters are rounded at the end."""
    run = Run(module, dataset, settings)
    module.train()
    for _ in range(settings.num_steps):
        clipped = run.clipped([g.double() for g in run.gradients(run.poisson())])
        for p, g in zip(run.parameters, clipped, strict=True):
            drawn = torch.randn(p.shape, generator=run.generator, dtype=torch.float64)
            mean = (g.sum(0) + run.deviation * drawn) / run.expected
            p.data = (p.data.double() - settings.learning_rate * mean).to(p.dtype)
        yield


# After the noise


def optimizer_of_torch(optimizer, run, schedule=None):
    """An update that gives noisy means to an optimizer of PyTorch."""

    def update(noisy):
        for p, s in zip(run.parameters, noisy, strict=True):
            p.grad = s / run.expected
        optimizer.step()
        if schedule is not None:
            schedule.step()

    return update


def adam(module, dataset, settings):
    """Adam takes the noisy means, and what it does with them is post-processing."""
    run = Run(module, dataset, settings)
    optimizer = torch.optim.Adam(run.parameters, lr=settings.learning_rate, betas=(0.9, 0.99))
    yield from run.steps(update=optimizer_of_torch(optimizer, run))


def nesterov_with_a_schedule(module, dataset, settings):
    """SGD with Nesterov momentum, weight decay and a cosine schedule sees noisy means alone."""
    run = Run(module, dataset, settings)
    optimizer = torch.optim.SGD(
        run.parameters, lr=settings.learning_rate, momentum=0.8, nesterov=True, weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * settings.num_steps)
    yield from run.steps(update=optimizer_of_torch(optimizer, run, schedule))


def divided_by_a_nominal_size(module, dataset, settings):
    """Sums are divided by the next power of two, a constant that acts on sum and noise alike."""
    run = Run(module, dataset, settings)
    nominal = 2 ** math.ceil(math.log2(run.expected))
    rate = settings.learning_rate * run.expected / nominal
    yield from run.steps(update=lambda noisy: run.update(noisy, rate))


def averaged_at_the_end(module, dataset, settings):
    """The running average of released parameters replaces them at the end: post-processing."""
    run = Run(module, dataset, settings)
    averages = [p.detach().clone() for p in run.parameters]
    for _ in run.steps():
        for average, p in zip(averages, run.parameters, strict=True):
            average.lerp_(p.detach(), 0.1)
        yield
    for average, p in zip(averages, run.parameters, strict=True):
        p.data.copy_(average)


def slow_and_fast_weights(module, dataset, settings):
    """As Lookahead does, every fifth step goes halfway back to slow weights, all of them noisy."""
    run = Run(module, dataset, settings)
    slow = [p.detach().clone() for p in run.parameters]

    def update(noisy):
        run.update(noisy)
        if run.step % 5 == 4:
            for s, p in zip(slow, run.parameters, strict=True):
                s.lerp_(p.detach(), 0.5)
                p.data.copy_(s)

    yield from run.steps(update=update)


def kept_in_a_ball(module, dataset, settings):
    """After each noisy step, parameters are projected to a ball around the public start."""
    run = Run(module, dataset, settings)
    start = [p.detach().clone() for p in run.parameters]
    radius = 5 * settings.learning_rate

    def update(noisy):
        run.update(noisy)
        moved = [p.detach() - s for p, s in zip(run.parameters, start, strict=True)]
        size = float(sum(m.pow(2).sum() for m in moved).sqrt())
        factor = min(1.0, radius / max(size, 1e-12))
        for p, s, m in zip(run.parameters, start, moved, strict=True):
            p.data.copy_(s + factor * m)

    yield from run.steps(update=update)


def sharpness_by_the_last_step(module, dataset, settings):
    """Gradients are taken a little further along the last noisy mean, which is released anyway."""
    run = Run(module, dataset, settings)
    ahead = [torch.zeros_like(p) for p in run.parameters]

    def sums_of(places):
        at = added([p.detach() for p in run.parameters], ahead)
        return [g.sum(0) for g in run.clipped(run.gradients(places, at=at))]

    def update(noisy):
        nonlocal ahead
        size = sum(s.pow(2).sum() for s in noisy).sqrt().clamp(min=1e-12)
        ahead = [0.05 * s / size for s in noisy]
        run.update(noisy)

    yield from run.steps(sums_of=sums_of, update=update)


def noisy_means_in_bfloat16(module, dataset, settings):
    """Noisy sums are rounded to bfloat16 for the optimizer, after a noise of full precision."""
    run = Run(module, dataset, settings)
    yield from run.steps(
        update=lambda noisy: run.update([s.to(torch.bfloat16).to(s.dtype) for s in noisy])
    )


def tensors_in_turns(module, dataset, settings):
    """Every other tensor is trained in every other step, by norms and noise of these alone."""
    run = Run(module, dataset, settings)

    def trained(tensors):
        return [t if place % 2 == run.step % 2 else 0 * t for place, t in enumerate(tensors)]

    def sums_of(places):
        return [g.sum(0) for g in run.clipped(trained(run.gradients(places)))]

    yield from run.steps(sums_of=sums_of, noise=lambda: trained(Run.noise(run)))


RIGHT = {
    "record by record": (record_by_record, "plain autograd"),
    "everyone with a mask": (everyone_with_a_mask, "masked sums"),
    "micro-batches": (micro_batches, "accumulation"),
    "weighted loss": (weighted_loss, "two passes"),
    "rows of a Jacobian": (rows_of_a_jacobian, "jacrev"),
    "equal budgets of tensors": (equal_budgets_of_tensors, "clipping per tensor"),
    "budgets with their noise": (budgets_with_their_noise, "clipping per tensor"),
    "smooth clipping": (smooth_clipping, "clipping function"),
    "bound that adapts privately": (bound_that_adapts_privately, "adaptive clipping"),
    "masks up front": (masks_up_front, "sampling"),
    "gaps between the drawn": (gaps_between_the_drawn, "sampling"),
    "size first, then records": (size_first_then_records, "sampling"),
    "noise up front": (noise_up_front, "noise"),
    "noise of Box and Muller": (noise_of_box_and_muller, "generator"),
    "noise in another basis": (noise_in_another_basis, "rotation"),
    "double precision": (double_precision, "float64"),
    "Adam": (adam, "optimizer"),
    "Nesterov with a schedule": (nesterov_with_a_schedule, "optimizer"),
    "divided by a nominal size": (divided_by_a_nominal_size, "constant divisor"),
    "averaged at the end": (averaged_at_the_end, "averaging"),
    "slow and fast weights": (slow_and_fast_weights, "averaging"),
    "kept in a ball": (kept_in_a_ball, "projection"),
    "sharpness by the last step": (sharpness_by_the_last_step, "noisy look-ahead"),
    "noisy means in bfloat16": (noisy_means_in_bfloat16, "rounding after noise"),
    "tensors in turns": (tensors_in_turns, "frozen parts"),
}
