"""Ten wrong loops, of noise and optimisers, by somebody who did not know the check or its list.

They are as they were written, but for their form; `found_by` was added after they were run.
"""

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.error_lists.own_loops import (
    CONSTANT,
    COORDINATES,
    GAUSSIAN,
    HISTORY,
    SCALE,
    STEPS,
    TIMES,
    Loop,
)

GRADIENTS = "noise and gradients"


class Run:
    """Correct pieces of DP-SGD: Poisson batches, per-record clipping of the whole gradient, fresh Gaussian noise."""

    def __init__(self, module, dataset, s):
        self.module, self.s = module, s
        self.x, self.y = dataset.tensors
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.sizes = [p.numel() for p in self.params]
        self.dim = sum(self.sizes)
        self.expected = s.sample_rate * len(dataset)
        self.std = s.noise_multiplier * s.max_grad_norm
        self.draw = torch.Generator().manual_seed(int(s.seed) * 2 + 1_000_003)
        self.gen = torch.Generator().manual_seed(int(s.seed) * 2 + 7_000_004)

    def batch(self):
        return torch.nonzero(
            torch.rand(len(self.x), generator=self.draw) < self.s.sample_rate
        ).flatten()

    def rows(self, idx, params=None):
        """Clipped gradients of the records idx, one flat row each (0 rows for an empty batch)."""
        params = self.params if params is None else params
        if len(idx) == 0:
            self.module(self.x[:1])
            return torch.zeros(0, sum(p.numel() for p in params))
        losses = F.cross_entropy(self.module(self.x[idx]), self.y[idx], reduction="none")
        out = []
        for loss in losses:
            grads = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
            out.append(
                torch.cat(
                    [
                        (torch.zeros_like(p) if g is None else g).flatten()
                        for g, p in zip(grads, params, strict=False)
                    ]
                )
            )
        rows = torch.stack(out)
        norms = rows.norm(dim=1, keepdim=True)
        return rows * (self.s.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)

    def noise(self, n=None):
        return self.std * torch.randn(self.dim if n is None else n, generator=self.gen)

    @torch.no_grad()
    def descend(self, total, params=None):
        params = self.params if params is None else params
        update = total * (self.s.learning_rate / self.expected)
        for p, u in zip(params, update.split([p.numel() for p in params]), strict=False):
            p.sub_(u.view_as(p))

    def loss(self, idx):
        with torch.no_grad():
            return F.cross_entropy(self.module(self.x[idx]), self.y[idx]).item()


def correct(module, dataset, settings):
    """Right DP-SGD, for comparison; not in LOOPS."""
    run = Run(module, dataset, settings)
    for _ in range(settings.num_steps):
        run.descend(run.rows(run.batch()).sum(0) + run.noise())


def idle_workers_skip_noise(module, dataset, settings):
    """Eight workers each add an eighth of the noise variance, but one without local records joins with zeros."""
    run, workers = Run(module, dataset, settings), 8
    for _ in range(settings.num_steps):
        idx = run.batch()
        rows = run.rows(idx)
        total = torch.zeros(run.dim)
        for w in range(workers):
            local = rows[idx % workers == w]
            if len(local) > 0:
                total += local.sum(0) + run.noise() / workers**0.5
        run.descend(total)


def unfrozen_layers_unnoised(module, dataset, settings):
    """Gradual unfreezing: the noise covers the parameters that were trainable when the engine was attached."""
    run = Run(module, dataset, settings)
    head = run.params[len(run.params) // 2 :]
    noised = {id(p) for p in head}
    for step in range(settings.num_steps):
        active = run.params if step >= settings.num_steps // 4 else head
        total = run.rows(run.batch(), active).sum(0)
        parts = [
            run.noise(p.numel()) if id(p) in noised else torch.zeros(p.numel()) for p in active
        ]
        run.descend(total + torch.cat(parts), active)


def generator_reseeded_per_layer(module, dataset, settings):
    """A stateless noise generator is keyed by (seed, step) and not by the parameter, so layers share their noise."""
    run = Run(module, dataset, settings)
    for step in range(settings.num_steps):
        total = run.rows(run.batch()).sum(0)
        parts = [
            np.random.default_rng((int(settings.seed), 77, step)).standard_normal(n)
            for n in run.sizes
        ]
        run.descend(total + run.std * torch.from_numpy(np.concatenate(parts)).float())


def shared_noise_table(module, dataset, settings):
    """Noise is sliced at a random offset from one precomputed table (as in evolution strategies) of 2 x dim values."""
    run = Run(module, dataset, settings)
    table = run.noise(2 * run.dim)
    for _ in range(settings.num_steps):
        start = int(torch.randint(run.dim + 1, (1,), generator=run.gen))
        run.descend(run.rows(run.batch()).sum(0) + table[start : start + run.dim])


def truncated_noise(module, dataset, settings):
    """Noise from trunc_normal_ at two sigma, rescaled so that its standard deviation is exactly the right one."""
    run = Run(module, dataset, settings)
    for _ in range(settings.num_steps):
        noise = torch.empty(run.dim)
        torch.nn.init.trunc_normal_(noise, a=-2.0, b=2.0, generator=run.gen)
        run.descend(run.rows(run.batch()).sum(0) + run.std * noise / 0.87962566)


def error_feedback_eats_noise(module, dataset, settings):
    """An error-feedback buffer around the privatised send treats the noise as compression error and gives 0.7 back."""
    run = Run(module, dataset, settings)
    residual = torch.zeros(run.dim)
    for _ in range(settings.num_steps):
        clean = run.rows(run.batch()).sum(0)
        target = clean + 0.7 * residual
        noise = run.noise()
        sent = target + noise
        residual = sent.neg() + target
        run.descend(sent)


def momentum_before_noise(module, dataset, settings):
    """Momentum 0.5 accumulates the clipped sums without noise; one step's noise is added to the buffer afterwards."""
    run = Run(module, dataset, settings)
    buffer = torch.zeros(run.dim)
    for _ in range(settings.num_steps):
        buffer = 0.5 * buffer + run.rows(run.batch()).sum(0)
        run.descend(buffer + run.noise())


def layer_rates_from_raw_norms(module, dataset, settings):
    """LARS-like layer learning rates (clamped, unit root mean square) from a running mean of the un-noised layer gradient norms."""
    run = Run(module, dataset, settings)
    running = None
    for _ in range(settings.num_steps):
        total = run.rows(run.batch()).sum(0)
        rms = torch.stack([part.pow(2).mean().sqrt() for part in total.split(run.sizes)])
        running = rms if running is None else 0.8 * running + 0.2 * rms
        rates = ((running.mean() + 1e-8) / (running + 1e-8)).sqrt().clamp(0.5, 2.0)
        rates = rates.repeat_interleave(torch.tensor(run.sizes))
        run.descend((total + run.noise()) * rates / rates.pow(2).mean().sqrt())


def best_of_three_draws(module, dataset, settings):
    """A line search with rollback: three noise draws are tried and the step with the lowest batch loss is kept."""
    run = Run(module, dataset, settings)
    for _ in range(settings.num_steps):
        idx = run.batch()
        total = run.rows(idx).sum(0)
        best, best_loss = run.noise(), float("inf")
        saved = [p.detach().clone() for p in run.params]
        for _ in range(3 if len(idx) else 0):
            noise = run.noise()
            run.descend(total + noise)
            loss = run.loss(idx)
            if loss < best_loss:
                best, best_loss = noise, loss
            with torch.no_grad():
                for p, old in zip(run.params, saved, strict=False):
                    p.copy_(old)
        run.descend(total + best)


def noise_orthogonal_to_signal(module, dataset, settings):
    """Denoising that keeps the descent: the noise loses its component along the raw clipped gradient sum."""
    run = Run(module, dataset, settings)
    for _ in range(settings.num_steps):
        total = run.rows(run.batch()).sum(0)
        noise = run.noise()
        unit = total / total.norm().clamp(min=1e-12)
        run.descend(total + noise - (noise @ unit) * unit)


WRONG = (
    Loop("idle workers skip their share of noise", idle_workers_skip_noise, (CONSTANT, SCALE)),
    Loop("layers without noise once they are unfrozen", unfrozen_layers_unnoised, (SCALE,)),
    Loop(
        "one stream of noise for all layers of a step", generator_reseeded_per_layer, (COORDINATES,)
    ),
    Loop("noise from places in one table", shared_noise_table, (TIMES,)),
    Loop("truncated noise of the right deviation", truncated_noise, (GAUSSIAN,)),
    Loop("error feedback takes noise back", error_feedback_eats_noise, (TIMES,)),
    Loop("momentum of clean sums", momentum_before_noise, (HISTORY,)),
    Loop("layers' learning rates from raw norms", layer_rates_from_raw_norms, (SCALE,)),
    Loop("the best of three draws of noise, by loss", best_of_three_draws, (STEPS, GRADIENTS)),
    Loop("no noise along the sum of gradients", noise_orthogonal_to_signal, (SCALE,)),
)
