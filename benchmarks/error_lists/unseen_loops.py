"""Wrong loops for `dpcanary check`, by somebody who did not know the check or its list.

They are as they were written, but for their form; `found_by` was added after they were run.
"""

import torch
from torch.nn.functional import cross_entropy

from benchmarks.error_lists.own_loops import (
    ALONE,
    CLIPPING,
    HISTORY,
    NEW,
    NORMALISATION,
    POISSON,
    SCALE,
    TIMES,
    UPDATES,
    Loop,
)


def poisson(n, settings, state):
    return torch.nonzero(torch.rand(n) < settings.sample_rate).flatten()


def gradient(module, x, y, params):
    return list(torch.autograd.grad(cross_entropy(module(x), y), params))


def total_norm(grads):
    return torch.sqrt(sum((g**2).sum() for g in grads))


def clip(grads, bound):
    scale = min(1.0, bound / (float(total_norm(grads)) + 1e-12))
    return [g * scale for g in grads]


def clipped_sum(module, x, y, params, drawn, settings, state):
    total = [torch.zeros_like(p) for p in params]
    for i in drawn.tolist():
        g = gradient(module, x[i][None], y[i][None], params)
        total = [t + c for t, c in zip(total, clip(g, settings.max_grad_norm), strict=True)]
    return total


def gaussian(params, settings, state):
    std = settings.noise_multiplier * settings.max_grad_norm
    return [torch.randn_like(p) * std for p in params]


def expected_size(n, drawn, settings):
    return settings.sample_rate * n


def base(
    module,
    dataset,
    settings,
    sample=poisson,
    summed=clipped_sum,
    noise=gaussian,
    size=expected_size,
    after=None,
):
    torch.manual_seed(settings.seed)
    x, y = dataset.tensors
    n = len(x)
    params = [p for p in module.parameters() if p.requires_grad]
    state = {}
    for _ in range(settings.num_steps):
        drawn = sample(n, settings, state)
        if len(drawn) == 0:
            module(x[:1])
        total = summed(module, x, y, params, drawn, settings, state)
        noises = noise(params, settings, state)
        divisor = size(n, drawn, settings)
        before = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, t, z in zip(params, total, noises, strict=True):
                p.sub_(settings.learning_rate * (t + z) / divisor)
            if after is not None:
                after(module, x, y, params, before)
    return module


def one_draw_reused(module, dataset, settings):
    def sample(n, s, state):
        if "drawn" not in state:
            state["drawn"] = poisson(n, s, state)
        return state["drawn"]

    return base(module, dataset, settings, sample=sample)


def shuffled_epochs(module, dataset, settings):
    def sample(n, s, state):
        k = max(1, round(s.sample_rate * n))
        if len(state.get("left", ())) == 0:
            state["left"] = torch.randperm(n)
        drawn, state["left"] = state["left"][:k], state["left"][k:]
        return drawn

    return base(module, dataset, settings, sample=sample)


def clip_each_tensor(module, dataset, settings):
    def summed(module, x, y, params, drawn, s, state):
        total = [torch.zeros_like(p) for p in params]
        for i in drawn.tolist():
            g = gradient(module, x[i][None], y[i][None], params)
            total = [t + clip([c], s.max_grad_norm)[0] for t, c in zip(total, g, strict=True)]
        return total

    return base(module, dataset, settings, summed=summed)


def clip_pairs(module, dataset, settings):
    def summed(module, x, y, params, drawn, s, state):
        total = [torch.zeros_like(p) for p in params]
        for k in range(0, len(drawn), 2):
            idx = drawn[k : k + 2]
            g = clip(gradient(module, x[idx], y[idx], params), s.max_grad_norm)
            total = [t + c * len(idx) for t, c in zip(total, g, strict=True)]
        return total

    return base(module, dataset, settings, summed=summed)


def bound_follows_batch(module, dataset, settings):
    def summed(module, x, y, params, drawn, s, state):
        grads = [gradient(module, x[i][None], y[i][None], params) for i in drawn.tolist()]
        bound = s.max_grad_norm
        if grads:
            norms = torch.stack([total_norm(g) for g in grads])
            bound = max(bound, float(norms.median()))
        total = [torch.zeros_like(p) for p in params]
        for g in grads:
            total = [t + c for t, c in zip(total, clip(g, bound), strict=True)]
        return total

    return base(module, dataset, settings, summed=summed)


def noise_reseeded(module, dataset, settings):
    def noise(params, s, state):
        gen = torch.Generator().manual_seed(s.seed)
        std = s.noise_multiplier * s.max_grad_norm
        return [torch.randn(p.shape, generator=gen).to(p) * std for p in params]

    return base(module, dataset, settings, noise=noise)


def biases_without_noise(module, dataset, settings):
    def noise(params, s, state):
        return [z if z.dim() > 1 else torch.zeros_like(z) for z in gaussian(params, s, state)]

    return base(module, dataset, settings, noise=noise)


def divide_by_drawn(module, dataset, settings):
    return base(module, dataset, settings, size=lambda n, drawn, s: max(1, len(drawn)))


def sum_never_cleared(module, dataset, settings):
    def summed(module, x, y, params, drawn, s, state):
        new = clipped_sum(module, x, y, params, drawn, s, state)
        old = state.get("sum", [torch.zeros_like(p) for p in params])
        state["sum"] = [a + b for a, b in zip(old, new, strict=True)]
        return state["sum"]

    return base(module, dataset, settings, summed=summed)


def undo_bad_steps(module, dataset, settings):
    def after(module, x, y, params, before):
        now = [p.clone() for p in params]
        new_loss = float(cross_entropy(module(x), y))
        for p, b in zip(params, before, strict=True):
            p.copy_(b)
        if new_loss <= float(cross_entropy(module(x), y)):
            for p, w in zip(params, now, strict=True):
                p.copy_(w)

    return base(module, dataset, settings, after=after)


WRONG = (
    Loop("one draw for all steps", one_draw_reused, (NEW,)),
    Loop("epochs of shuffled batches", shuffled_epochs, (POISSON,)),
    Loop("each tensor clipped to C", clip_each_tensor, (CLIPPING,)),
    Loop("the mean of a pair clipped", clip_pairs, (CLIPPING, ALONE)),
    Loop("C is at least the batch's median norm", bound_follows_batch, (CLIPPING, ALONE)),
    Loop("a generator of noise seeded in each step", noise_reseeded, (TIMES,)),
    Loop("biases without noise, by their shape", biases_without_noise, (SCALE,)),
    Loop("divided by the records drawn", divide_by_drawn, (NORMALISATION,)),
    Loop("sums that are never cleared", sum_never_cleared, (HISTORY,)),
    Loop("a step kept if the loss of all data falls", undo_bad_steps, (UPDATES,)),
)
