"""A second blind list for `dpcanary.watch`, by one who has read only the documentation.

Each function trains a small model with Opacus, watched, and returns the result.
"""

import copy
import warnings

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from dpcanary import watch

warnings.filterwarnings("ignore", module="opacus")
LOSS = nn.CrossEntropyLoss()


class _Run:
    """A training of 160 steps on 2,000 synthetic records."""

    def __init__(self, model=None, optim=torch.optim.SGD, accountant="prv", **options):
        rows = torch.randn(2_000, 40)
        self.data = TensorDataset(rows, (rows[:, :4]).argmax(1))
        model = model or nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 4))
        parameters = [p for p in model.parameters() if p.requires_grad]
        settings = {"noise_multiplier": 1.5, "max_grad_norm": 1.0, **options}
        rate = 0.2 if optim is torch.optim.SGD else 0.01
        self.engine, self.loss = PrivacyEngine(accountant=accountant), LOSS
        made = self.engine.make_private(
            module=model,
            optimizer=optim(parameters, lr=rate),
            data_loader=DataLoader(self.data, batch_size=100),
            criterion=nn.CrossEntropyLoss(),
            **settings,
        )
        if len(made) == 4:
            self.model, self.optimizer, self.loss, self.loader = made
        else:
            self.model, self.optimizer, self.loader = made

    def backward(self, rows, labels):
        self.optimizer.zero_grad()
        self.loss(self.model(rows), labels).backward()

    def train(self, loader=None, each=None, epoch=None, step=None):
        with watch(self.optimizer) as self.watched:
            for number in range(8):
                if epoch:
                    epoch(number)
                for rows, labels in loader or self.loader:
                    if step:
                        step(rows, labels)
                    else:
                        self.backward(rows, labels)
                        self.optimizer.step()
                    if each:
                        each()
        return self.watched.result(delta=1e-5)


def _noise(run, function):
    def add_noise():
        for p in run.optimizer.params:
            scale = run.optimizer.noise_multiplier * run.optimizer.max_grad_norm
            p.grad = p.summed_grad + function(p, scale * torch.randn_like(p))

    run.optimizer.add_noise = add_noise
    return run


def noise_divided():
    """The noise is scaled by the square root of one half."""
    return _noise(_Run(), lambda p, noise: noise * 0.7).train()


def biases_without_noise():
    """Only matrices get noise."""
    return _noise(_Run(), lambda p, noise: noise if p.dim() > 1 else 0 * noise).train()


def noise_cut():
    """Noise is cut at two units."""
    return _noise(_Run(), lambda p, noise: noise.clamp(-2, 2)).train()


def uniform_noise():
    """Noise is uniform with the right variance."""
    return _noise(_Run(), lambda p, n: (torch.rand_like(n) - 0.5) * 12**0.5 * 1.5).train()


def seed_each_step():
    """The generator is seeded anew in each step, so noise is the same."""
    run = _Run(noise_generator=torch.Generator())
    return run.train(each=lambda: run.optimizer.generator.manual_seed(1))


def seed_each_epoch():
    """Seeds for reproducibility at each epoch repeat the noise of the epoch."""
    run = _Run(noise_generator=torch.Generator())
    return run.train(epoch=lambda number: run.optimizer.generator.manual_seed(3))


def shuffled():
    """The loop uses a shuffled loader."""
    run = _Run()
    return run.train(DataLoader(run.data, batch_size=100, shuffle=True))


def told_no_poisson():
    """Poisson sampling is turned off."""
    return _Run(poisson_sampling=False).train()


def weighted_sampler():
    """Fixed batches of a weighted sampler."""
    run = _Run()
    sampler = WeightedRandomSampler((1.0 + run.data.tensors[1]).tolist(), 2_000)
    return run.train(DataLoader(run.data, batch_size=100, sampler=sampler))


def hook_removed():
    """After half of the epochs steps are not accounted."""
    run = _Run()
    return run.train(epoch=lambda n: run.optimizer.attach_step_hook(None) if n == 4 else None)


def wrong_rate():
    """The accountant is told a fifth of the sample rate."""
    run = _Run()
    run.optimizer.attach_step_hook(run.engine.accountant.get_optimizer_hook_fn(sample_rate=0.01))
    return run.train()


def big_batches_left_out():
    """Batches above 100 are skipped, as for memory."""
    run = _Run()

    def step(rows, labels):
        if len(rows) <= 100:
            run.backward(rows, labels)
            run.optimizer.step()

    return run.train(step=step)


def repeated_records():
    """Each record is twice in its batch, as two augmentations."""
    run = _Run()

    def step(rows, labels):
        run.backward(torch.cat([rows, rows + 0.01]), labels.repeat(2))
        run.optimizer.step()

    return run.train(step=step)


def _bypass(run, rows, labels):
    loss = LOSS(run.model(rows), labels)
    gradients = torch.autograd.grad(loss, list(run.model.parameters()))
    with torch.no_grad():
        for p, gradient in zip(run.model.parameters(), gradients, strict=True):
            p -= 0.1 * gradient


def plain_epoch_start():
    """Each epoch starts with a step without privacy."""
    run = _Run()

    def epoch(_):
        run.model.disable_hooks()
        _bypass(run, *run.data[:100])
        run.model.enable_hooks()

    return run.train(epoch=epoch)


def priors_as_bias():
    """The last bias is set to the frequencies of private labels."""
    run = _Run()

    def epoch(number):
        if number == 2:
            counts = torch.bincount(run.data.tensors[1], minlength=4).float()
            list(run.model.parameters())[-1].data.copy_(counts.log())

    return run.train(epoch=epoch)


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.zeros(40))

    def forward(self, rows):
        if self.training:
            self.centre.lerp_(rows.detach().mean(0), 0.1)
        return rows - self.centre


def running_mean():
    """A module of one's own keeps running means of private features."""
    return _Run(nn.Sequential(_Scaled(), nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 4))).train()


def wide_clipping():
    """Gradients are clipped at 4 C, and noise is for C."""
    run = _Run()
    inner = run.optimizer.clip_and_accumulate

    def clip():
        run.optimizer.max_grad_norm = 4.0
        inner()
        run.optimizer.max_grad_norm = 1.0

    run.optimizer.clip_and_accumulate = clip
    return run.train()


def no_clipping():
    """Gradients are summed unclipped."""
    run = _Run()

    def clip():
        for p in run.optimizer.params:
            p.summed_grad = p.grad_sample.sum(0)

    run.optimizer.clip_and_accumulate = clip
    return run.train()


def steps_taken_back():
    """A step after which the loss of the batch is higher is undone."""
    run = _Run()

    def step(rows, labels):
        before = copy.deepcopy(run.model.state_dict())
        run.backward(rows, labels)
        run.optimizer.step()
        with torch.no_grad():
            if LOSS(run.model(rows), labels) > 1.2:
                run.model.load_state_dict(before)

    return run.train(step=step)


def half_of_records():
    """Of each batch, the half with the highest losses is trained on, so records choose others."""
    run = _Run()

    def step(rows, labels):
        with torch.no_grad():
            each = nn.functional.cross_entropy(run.model(rows), labels, reduction="none")
        hard = each.topk(len(rows) // 2).indices
        run.backward(rows[hard], labels[hard])
        run.optimizer.step()

    return run.train(step=step)


def plain():
    """SGD."""
    return _Run().train()


def adam():
    """Adam."""
    return _Run(optim=torch.optim.Adam).train()


def adamw():
    """AdamW decays weights."""
    return _Run(optim=torch.optim.AdamW).train()


def rdp():
    """The accountant of Rényi."""
    return _Run(accountant="rdp").train()


def larger_norm():
    """Another C."""
    return _Run(max_grad_norm=3.0).train()


def memory_manager():
    """Physical batches of 32."""
    run = _Run()
    with BatchMemoryManager(
        data_loader=run.loader, max_physical_batch_size=32, optimizer=run.optimizer
    ) as loader:
        return run.train(loader)


def learning_rates():
    """A cosine schedule."""
    run = _Run()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, 160)
    return run.train(each=schedule.step)


def noise_schedule():
    """Noise that falls, and is accounted."""
    run = _Run(accountant="rdp")
    schedule = ExponentialNoise(run.optimizer, gamma=0.95)
    return run.train(epoch=lambda number: schedule.step() if number else None)


def ghost():
    """Ghost clipping."""
    return _Run(grad_sample_mode="ghost").train()


def per_layer():
    """Clipping per layer."""
    return _Run(clipping="per_layer", max_grad_norm=[0.5] * 4).train()


def functorch():
    """Gradients by functorch."""
    return _Run(grad_sample_mode="functorch").train()


def averages():
    """An average of parameters is kept in another model."""
    run = _Run()
    mean = [p.detach().clone() for p in run.model.parameters()]

    def each():
        for kept, p in zip(mean, run.model.parameters(), strict=True):
            kept.lerp_(p.detach(), 0.1)

    return run.train(each=each)


def evaluated():
    """The model is evaluated between epochs."""
    run = _Run()

    def epoch(_):
        run.model.eval()
        with torch.no_grad():
            run.model(torch.randn(50, 40))
        run.model.train()

    return run.train(epoch=epoch)


def frozen():
    """The first layer is frozen."""
    model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 4))
    model[0].requires_grad_(False)
    return _Run(model).train()


def declared_rounding():
    """Parameters are clamped between epochs, inside `public`."""
    run = _Run()

    def epoch(_):
        with run.watched.public(), torch.no_grad():
            for p in run.model.parameters():
                p.clamp_(-1, 1)

    return run.train(epoch=epoch)


def _named(kind, *functions):
    return {function.__name__: (function, kind) for function in functions}


WRONG = {
    **_named("noise", noise_divided, biases_without_noise, noise_cut, uniform_noise),
    **_named("noise again", seed_each_step, seed_each_epoch),
    **_named("sampling", shuffled, told_no_poisson, weighted_sampler, big_batches_left_out),
    **_named("batch size", repeated_records, half_of_records),
    **_named("accounting", hook_removed, wrong_rate),
    **_named("parameters", plain_epoch_start, priors_as_bias, steps_taken_back),
    **_named("buffer", running_mean),
    **_named("clipping", wide_clipping, no_clipping),
}
RIGHT = _named(
    "right", plain, adam, adamw, rdp, larger_norm, memory_manager, learning_rates, noise_schedule,
    ghost, per_layer, functorch, averages, evaluated, frozen, declared_rounding,
)  # fmt: skip
