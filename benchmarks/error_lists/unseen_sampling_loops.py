"""Ten wrong loops, of batches and steps, by somebody who did not know the check or its list.

They are as they were written, but for their form; `found_by` was added after they were run.
"""

import math

import torch
import torch.nn.functional as F

from benchmarks.error_lists.own_loops import (
    ALONE,
    CLIPPING,
    NEW,
    NORMALISATION,
    POISSON,
    RATE,
    STEPS,
    TOGETHER,
    Loop,
)


class Run:
    """What every loop shares: the data, two seeded generators, per-record gradients, the noisy update."""

    def __init__(self, module, dataset, settings):
        self.module, self.s = module, settings
        self.x, self.y = dataset.tensors
        self.n = len(self.x)
        self.q = settings.sample_rate
        self.expected = self.q * self.n
        self.params = [p for p in module.parameters() if p.requires_grad]
        self.draw = torch.Generator().manual_seed(settings.seed)
        self.noise = torch.Generator().manual_seed(settings.seed + 7_919_000_003)
        module.train()

    def poisson(self, rate=None, n=None):
        """Indices of a fresh Poisson sample; rate may be one number or one per record."""
        rate = self.q if rate is None else rate
        return torch.nonzero(torch.rand(n or self.n, generator=self.draw) < rate).flatten()

    def clipped(self, index, loss=None):
        """Clipped flat gradients, one row per record of index, and the records' losses (one forward)."""
        if len(index) == 0:
            self.module(self.x[:1])
            return torch.zeros(0, sum(p.numel() for p in self.params)), torch.zeros(0)
        logits, y = self.module(self.x[index]), self.y[index]
        losses = F.cross_entropy(logits, y, reduction="none") if loss is None else loss(logits, y)
        rows = []
        for one in losses:
            grads = torch.autograd.grad(one, self.params, retain_graph=True, allow_unused=True)
            flat = torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for g, p in zip(grads, self.params, strict=False)
                ]
            )
            rows.append(flat * (self.s.max_grad_norm / (flat.norm() + 1e-12)).clamp(max=1.0))
        return torch.stack(rows), losses.detach()

    @torch.no_grad()
    def update(self, total):
        """Parameters -= lr * (total + noise) / (expected batch size)."""
        std = self.s.noise_multiplier * self.s.max_grad_norm
        noisy = total + std * torch.randn(total.shape, generator=self.noise, dtype=total.dtype)
        noisy, at = noisy / self.expected, 0
        for p in self.params:
            p -= self.s.learning_rate * noisy[at : at + p.numel()].view_as(p)
            at += p.numel()


# ---------------------------------------------------------------- how batches are drawn


def sampler_reseeded_each_epoch(module, dataset, settings):
    """The sampler's __iter__ seeds its generator again, so every epoch replays the same batches."""
    r = Run(module, dataset, settings)
    epoch = max(1, min(round(1 / r.q), settings.num_steps // 2))
    for step in range(settings.num_steps):
        if step % epoch == 0:
            r.draw.manual_seed(settings.seed)
        grads, _ = r.clipped(r.poisson())
        r.update(grads.sum(0))


def workers_share_seed(module, dataset, settings):
    """Two workers sample their strided shards with the same seed: records 2k and 2k+1 share each coin."""
    r = Run(module, dataset, settings)
    workers = [torch.Generator().manual_seed(settings.seed) for _ in range(2)]  # forgot the rank
    shards = [torch.arange(r.n)[rank::2] for rank in range(2)]
    for _ in range(settings.num_steps):
        drawn = []
        for shard, generator in zip(shards, workers, strict=False):
            coins = torch.rand(len(shards[0]), generator=generator)[: len(shard)]
            drawn.append(shard[coins < r.q])
        grads, _ = r.clipped(torch.cat(drawn))
        r.update(grads.sum(0))


def overflow_to_next_batch(module, dataset, settings):
    """Batches are capped for memory; records over the cap wait in a buffer and join the next batch."""
    r = Run(module, dataset, settings)
    cap = math.ceil(1.2 * r.expected)
    waiting = torch.zeros(0, dtype=torch.long)
    for _ in range(settings.num_steps):
        queue = torch.cat([waiting, r.poisson()])
        batch, waiting = queue[:cap], queue[cap:]
        grads, _ = r.clipped(batch)
        r.update(grads.sum(0))


def loss_prioritised_rate(module, dataset, settings):
    """Inclusion rates follow each record's cached last loss (their mean stays sample_rate)."""
    r = Run(module, dataset, settings)
    priority = torch.ones(r.n)
    for _ in range(settings.num_steps):
        index = r.poisson((r.q * priority / priority.mean()).clamp(max=1.0))
        grads, losses = r.clipped(index)
        priority[index] = losses.float() ** 2 + 1e-3
        r.update(grads.sum(0))


def batch_size_ramp(module, dataset, settings):
    """The rate ramps from 0.5q to 1.5q over training, and only its mean q is accounted."""
    r = Run(module, dataset, settings)
    for step in range(settings.num_steps):
        ramp = 0.5 + step / max(1, settings.num_steps - 1)
        grads, _ = r.clipped(r.poisson(min(1.0, r.q * ramp)))
        r.update(grads.sum(0))


def padded_to_ranks(module, dataset, settings):
    """The index list is padded to a multiple of 24 (8 ranks x 3) by repeating the first records."""
    r = Run(module, dataset, settings)
    padded = torch.arange(math.ceil(r.n / 24) * 24) % r.n
    for _ in range(settings.num_steps):
        grads, _ = r.clipped(padded[r.poisson(n=len(padded))])
        r.update(grads.sum(0))


# ---------------------------------------------------------------- updates, accumulation, division


def skips_loss_spikes(module, dataset, settings):
    """A step whose batch loss is over 1.05 x its running mean is skipped: no update, no noise."""
    r, running = Run(module, dataset, settings), None
    for _ in range(settings.num_steps):
        grads, losses = r.clipped(r.poisson())
        if len(losses):
            loss = losses.mean().item()
            spike = running is not None and loss > 1.05 * running
            running = loss if running is None else 0.7 * running + 0.3 * loss
            if spike:
                continue
        r.update(grads.sum(0))


def ragged_microbatch_mean(module, dataset, settings):
    """Accumulates micro-batch means times the nominal size 4: a short last micro-batch counts up to 4x."""
    r, micro = Run(module, dataset, settings), 4
    for _ in range(settings.num_steps):
        grads, _ = r.clipped(r.poisson())
        total = torch.zeros(grads.shape[1])
        for part in grads.split(micro) if len(grads) else ():
            total = total + part.mean(0) * micro
        r.update(total)


def divides_by_running_batch_size(module, dataset, settings):
    """The sum is divided by a running mean of realised batch sizes, the noise by the expected size."""
    r = Run(module, dataset, settings)
    running = r.expected
    for _ in range(settings.num_steps):
        grads, _ = r.clipped(r.poisson())
        running = max(1.0, 0.5 * running + 0.5 * len(grads))
        r.update(grads.sum(0) * (r.expected / running))


# ---------------------------------------------------------------- what is done before the gradients


def mixes_labels_in_batch(module, dataset, settings):
    """Mixup of the losses: 0.6 x own label + 0.4 x the label of the next record in the batch."""
    r = Run(module, dataset, settings)

    def mixed(logits, y):
        own = F.cross_entropy(logits, y, reduction="none")
        return 0.6 * own + 0.4 * F.cross_entropy(logits, y.roll(1), reduction="none")

    for _ in range(settings.num_steps):
        grads, _ = r.clipped(r.poisson(), mixed)
        r.update(grads.sum(0))


WRONG = (
    Loop("a sampler seeded again in each epoch", sampler_reseeded_each_epoch, (NEW,)),
    Loop("two workers with one seed", workers_share_seed, (TOGETHER, POISSON)),
    Loop("what is too many goes to the next batch", overflow_to_next_batch, (POISSON,)),
    Loop("sample rates by the last loss", loss_prioritised_rate, (RATE,)),
    Loop("a sample rate that rises from .5 q to 1.5 q", batch_size_ramp, (RATE,)),
    Loop("first records twice in the list", padded_to_ranks, (RATE, ALONE)),
    Loop("steps of a large loss skipped", skips_loss_spikes, (STEPS,)),
    Loop("means of microbatches, the last one short", ragged_microbatch_mean, (CLIPPING, ALONE)),
    Loop("divided by a running mean of sizes", divides_by_running_batch_size, (NORMALISATION,)),
    Loop("labels of two records mixed", mixes_labels_in_batch, (ALONE,)),
)
