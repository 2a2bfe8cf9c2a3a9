"""Wrong ways to clip and sum, for `dpcanary check`, by somebody who did not know the check.

They are as they were written, but for their form; `found_by` was added after they were run.
"""

import torch

from benchmarks.error_lists.own_loops import ALONE, CLIPPING, HISTORY, NORMALISATION, STEPS, Loop
from benchmarks.error_lists.unseen_loops import base, clip, clipped_sum, gaussian, gradient


def norm_of(grads):
    return torch.sqrt(sum(g.pow(2).sum() for g in grads)).item()


def add_to(total, grads, factor=1.0):
    for t, g in zip(total, grads, strict=True):
        t.add_(g * factor)


def zeros(params):
    return [torch.zeros_like(p) for p in params]


def budget_by_module(module, dataset, settings):
    # C is split over modules but spent per tensor: weight and bias each get a module's share.
    def summed(module, x, y, params, drawn, s, state):
        layers = [m for m in module.modules() if [*m.parameters(recurse=False)]]
        share = s.max_grad_norm / max(len(layers), 1) ** 0.5
        total = zeros(params)
        for i in drawn.tolist():
            grads = gradient(module, x[i][None], y[i][None], params)
            add_to(total, [clip([g], share)[0] for g in grads])
        return total

    return base(module, dataset, settings, summed=summed)


def remembered_factor(module, dataset, settings):
    # The clip factor is computed at a record's first visit and reused at every later one.
    def summed(module, x, y, params, drawn, s, state):
        factors, total = state.setdefault("factors", {}), zeros(params)
        for i in drawn.tolist():
            grads = gradient(module, x[i][None], y[i][None], params)
            if i not in factors:
                factors[i] = min(1.0, s.max_grad_norm / (norm_of(grads) + 1e-6))
            add_to(total, grads, factors[i])
        return total

    return base(module, dataset, settings, summed=summed)


def median_threshold(module, dataset, settings):
    # Never above C, but the exact batch median sets the threshold: one record moves all others.
    def summed(module, x, y, params, drawn, s, state):
        every = [gradient(module, x[i][None], y[i][None], params) for i in drawn.tolist()]
        total = zeros(params)
        if every:
            middle = torch.tensor([norm_of(g) for g in every]).median().item()
            for grads in every:
                add_to(total, clip(grads, min(s.max_grad_norm, middle + 1e-6)))
        return total

    return base(module, dataset, settings, summed=summed)


def clip_around_raw_mean(module, dataset, settings):
    # Differences from the last batch's mean are clipped; that raw mean is added back unnoised.
    def summed(module, x, y, params, drawn, s, state):
        centre, total, raw = state.get("centre", zeros(params)), zeros(params), zeros(params)
        for i in drawn.tolist():
            grads = gradient(module, x[i][None], y[i][None], params)
            add_to(raw, grads)
            add_to(
                total, clip([g - c for g, c in zip(grads, centre, strict=True)], s.max_grad_norm)
            )
            add_to(total, centre)
        if len(drawn):
            state["centre"] = [r / len(drawn) for r in raw]
        return total

    return base(module, dataset, settings, summed=summed)


def error_feedback(module, dataset, settings):
    # What clipping cut off is summed and carried, unclipped, into the next step's sum.
    def summed(module, x, y, params, drawn, s, state):
        total, left = state.get("left", zeros(params)), zeros(params)
        for i in drawn.tolist():
            grads = gradient(module, x[i][None], y[i][None], params)
            kept = clip(grads, s.max_grad_norm)
            add_to(total, kept)
            add_to(left, [g - k for g, k in zip(grads, kept, strict=True)])
        state["left"] = left
        return total

    return base(module, dataset, settings, summed=summed)


def four_bit_after_clip(module, dataset, settings):
    # Clipped gradients are quantised afterwards, away from zero, so their norm passes C again.
    def summed(module, x, y, params, drawn, s, state):
        grid, total = s.max_grad_norm / 7, zeros(params)
        for i in drawn.tolist():
            kept = clip(gradient(module, x[i][None], y[i][None], params), s.max_grad_norm)
            add_to(total, [torch.sign(g) * torch.ceil(g.abs() / grid) * grid for g in kept])
        return total

    return base(module, dataset, settings, summed=summed)


def moving_weights(module, dataset, settings):
    # Weights move after every record in the batch: later gradients depend on earlier records.
    def summed(module, x, y, params, drawn, s, state):
        saved, total = [p.data.clone() for p in params], zeros(params)
        rate = s.learning_rate / (s.sample_rate * len(x))
        for i in drawn.tolist():
            kept = clip(gradient(module, x[i][None], y[i][None], params), s.max_grad_norm)
            add_to(total, kept)
            for p, k in zip(params, kept, strict=True):
                p.data.sub_(rate * k)
        for p, before in zip(params, saved, strict=True):
            p.data.copy_(before)
        return total

    return base(module, dataset, settings, summed=summed)


def shards_out_of_order(module, dataset, settings):
    # Norms are gathered from two strided shards, then applied in the unsharded order.
    def summed(module, x, y, params, drawn, s, state):
        every = [gradient(module, x[i][None], y[i][None], params) for i in drawn.tolist()]
        norms = [norm_of(g) for rank in range(2) for g in every[rank::2]]
        total = zeros(params)
        for grads, norm in zip(every, norms, strict=True):
            add_to(total, grads, min(1.0, s.max_grad_norm / (norm + 1e-6)))
        return total

    return base(module, dataset, settings, summed=summed)


def undo_shrinkage(module, dataset, settings):
    # The clipped sum is divided by the batch's exact mean clip factor before the noise.
    def summed(module, x, y, params, drawn, s, state):
        total, factors = zeros(params), []
        for i in drawn.tolist():
            grads = gradient(module, x[i][None], y[i][None], params)
            factors.append(min(1.0, s.max_grad_norm / (norm_of(grads) + 1e-6)))
            add_to(total, grads, factors[-1])
        return [t * (len(factors) / sum(factors)) for t in total] if factors else total

    return base(module, dataset, settings, summed=summed)


def largest_coordinates(module, dataset, settings):
    # The exact sum picks the half of each tensor to send; the rest gets neither signal nor noise.
    def summed(module, x, y, params, drawn, s, state):
        total = clipped_sum(module, x, y, params, drawn, s, state)
        state["mask"] = [(t.abs() >= t.abs().median()).to(t.dtype) for t in total]
        return [t * m for t, m in zip(total, state["mask"], strict=True)]

    def noise(params, s, state):
        return [e * m for e, m in zip(gaussian(params, s, state), state["mask"], strict=True)]

    return base(module, dataset, settings, summed=summed, noise=noise)


WRONG = (
    Loop("C shared out to modules, spent by each tensor", budget_by_module, (CLIPPING,)),
    Loop("a record's factor of its first visit", remembered_factor, (CLIPPING,)),
    Loop("clipped to the batch's median norm, at most C", median_threshold, (ALONE,)),
    Loop("clipped around the last batch's mean", clip_around_raw_mean, (HISTORY,)),
    Loop("what clipping cut off is carried over", error_feedback, (CLIPPING,)),
    Loop("four bits after clipping", four_bit_after_clip, (CLIPPING,)),
    Loop("weights move after every record", moving_weights, (STEPS,)),
    Loop("norms of two shards in another order", shards_out_of_order, (CLIPPING, ALONE)),
    Loop("divided by the mean clipping factor", undo_shrinkage, (NORMALISATION,)),
)
# On the probe, whose gradients are mostly zero, it is right.
NOT_FOUND = (Loop("the larger half of the coordinates alone", largest_coordinates),)
