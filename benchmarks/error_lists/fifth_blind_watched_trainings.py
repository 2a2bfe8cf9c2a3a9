"""Trainings with Opacus for `dpcanary.watch`, by one who had read only the documentation.

Each entry of WRONG and RIGHT is a function without arguments, which trains on synthetic records
inside the `watch` block and returns its result, and the kind of its error or custom.
"""

import copy
import io
import itertools

import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise, StepNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

NUM_RECORDS = 2000
BATCH_SIZE = 100
SAMPLE_RATE = BATCH_SIZE / NUM_RECORDS
NUM_FEATURES = 30
NUM_CLASSES = 4
NUM_WORDS = 500
EPOCHS = 8  # of 20 steps
SETTINGS = {"noise_multiplier": 1.2, "max_grad_norm": 1.0}
DELTA = 1e-5


def records(seed=3, num_records=NUM_RECORDS):
    """Draws vectors around the centre of their class."""
    generator = torch.Generator().manual_seed(seed)
    centres = 0.5 * torch.randn(NUM_CLASSES, NUM_FEATURES, generator=generator)
    labels = torch.randint(NUM_CLASSES, (num_records,), generator=generator)
    values = centres[labels] + torch.randn(num_records, NUM_FEATURES, generator=generator)
    return TensorDataset(values, labels)


def network():
    """Makes a small perceptron."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.Tanh(), nn.Linear(64, NUM_CLASSES))


class _Training:
    """What `make_private` returns for a network and an optimiser, and the usual loop."""

    def __init__(self, net=None, parameters=None, optimizer=None, data=None, **options):
        self.net = net or network()
        self.data = data or records()
        self.engine = PrivacyEngine(accountant="rdp")
        self.model, self.optimizer, *criterion, self.loader = self.engine.make_private(
            module=self.net,
            optimizer=optimizer or torch.optim.SGD(parameters or self.net.parameters(), lr=0.5),
            data_loader=DataLoader(self.data, batch_size=BATCH_SIZE),
            **(SETTINGS | options),
        )
        self.criterion = criterion[0] if criterion else nn.CrossEntropyLoss()

    def step(self, values, labels):
        self.optimizer.zero_grad()
        self.criterion(self.model(values), labels).backward()
        self.optimizer.step()

    def epoch(self, batches=None):
        for values, labels in batches or self.loader:
            self.step(values, labels)


def with_optimizer(kind, **options):
    """Replaces the optimiser of Opacus by a subclass, which the same accountant counts."""
    training = _Training(**options)
    training.optimizer = kind(
        training.optimizer.original_optimizer, expected_batch_size=BATCH_SIZE, **SETTINGS
    )
    training.optimizer.attach_step_hook(
        training.engine.accountant.get_optimizer_hook_fn(sample_rate=SAMPLE_RATE)
    )
    return training


def run(training, after_epoch=lambda: None, batches=lambda: None, epochs=EPOCHS, **options):
    """Trains under watch on the batches of the loader or others, and may act after each epoch."""
    with watch(training.optimizer, **options) as watched:
        for _ in range(epochs):
            training.epoch(batches())
            after_epoch()
    return watched.result(delta=DELTA)


# --------------------------------------------------------------------------------------- wrong


def original_loader_kept():
    """The loop goes over the loader that was given to make_private, not over the returned one."""
    training = _Training()
    shuffled = DataLoader(training.data, batch_size=BATCH_SIZE, shuffle=True)
    return run(training, batches=lambda: shuffled)


def batches_cut_to_fit():
    """Batches above the expected size are cut to it, so that memory suffices."""
    training = _Training()

    def batches():
        for values, labels in training.loader:
            yield values[:BATCH_SIZE], labels[:BATCH_SIZE]

    return run(training, batches=batches, epochs=10)


def batches_cycled():
    """The endless loader is itertools.cycle, which repeats the batches of the first pass."""
    training = _Training()
    endless = itertools.cycle(training.loader)
    return run(training, batches=lambda: itertools.islice(endless, 20))


def augmented_copies_as_records():
    """Three augmented copies of each record are clipped on their own, so one record moves 3 C."""
    training = _Training()

    def batches():
        for values, labels in training.loader:
            copies = values.repeat(3, 1)
            yield copies + 0.1 * torch.randn_like(copies), labels.repeat(3)

    return run(training, batches=batches)


def two_samples_in_each_step():
    """Two Poisson samples are summed by signal_skip_step, and accounted as one."""
    training = _Training()

    def batches():
        for index, batch in enumerate(training.loader):
            training.optimizer.signal_skip_step(index % 2 == 0)
            yield batch

    return run(training, batches=batches, epochs=2 * EPOCHS)


def hook_of_accountant_replaced():
    """A callback attaches a step hook for logging, which takes the place of the accountant's."""
    training = _Training()
    norms = []

    def as_the_epoch_begins():
        training.optimizer.attach_step_hook(
            lambda optimizer: norms.append(optimizer.params[0].grad.norm().item())
        )

    return run(training, batches=as_the_epoch_begins)


def first_noise_accounted_throughout():
    """A hook of one's own tells the accountant the first noise multiplier, which then falls."""
    training = _Training()
    told = {"noise_multiplier": SETTINGS["noise_multiplier"], "sample_rate": SAMPLE_RATE}
    accountant = training.engine.accountant
    training.optimizer.attach_step_hook(lambda _: accountant.step(**told))
    schedule = StepNoise(training.optimizer, step_size=2, gamma=0.8)
    return run(training, schedule.step, accountant=accountant, sample_rate=SAMPLE_RATE)


def accountant_rolled_back():
    """Epochs without progress are undone from a checkpoint, which restores the accountant, too."""
    training = _Training()
    values, labels = training.data.tensors
    kept = []

    @torch.no_grad()
    def undo_unless_better():
        loss = training.criterion(training.net(values), labels)
        if not kept or loss < 0.97 * kept[0]:
            parts = training.model, training.engine.accountant
            kept[:] = [loss, *(copy.deepcopy(part.state_dict()) for part in parts)]
        else:
            training.model.load_state_dict(kept[1])
            training.engine.accountant.load_state_dict(copy.deepcopy(kept[2]))

    return run(training, undo_unless_better)


def second_optimizer_with_its_own_engine():
    """Body and head have private optimisers of two engines, of which each counts its own steps."""
    training = _Training(net := network(), net[0].parameters())
    _, second, _ = PrivacyEngine(accountant="rdp").make_private(
        module=training.model,
        optimizer=torch.optim.SGD(net[2].parameters(), lr=0.5),
        data_loader=DataLoader(training.data, batch_size=BATCH_SIZE),
        **SETTINGS,
    )

    def batches():
        for batch in training.loader:
            second.zero_grad()
            yield batch
            second.step()

    return run(training, batches=batches)


def clip_schedule_with_ghost_clipping():
    """The schedule lowers the bound of the optimiser, so of noise; the model clips to the first."""
    training = _Training(grad_sample_mode="ghost")
    schedule = ExponentialGradClip(training.optimizer, gamma=0.8)
    return run(training, schedule.step)


class _EachTensorClipped(DPOptimizer):
    def clip_and_accumulate(self):
        for p in self.params:
            norms = p.grad_sample.flatten(1).norm(dim=1)
            factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
            p.summed_grad = torch.einsum("n,n...->...", factors, p.grad_sample)


def each_tensor_clipped_to_the_whole_bound():
    """Each tensor is clipped to C, and the noise is that of one clipped gradient of norm C."""
    return run(with_optimizer(_EachTensorClipped), num_records=NUM_RECORDS)


def noise_seeded_in_each_epoch():
    """The generator of noise is seeded when an epoch begins, so each has the noise of the first."""
    generator = torch.Generator().manual_seed(42)
    return run(_Training(noise_generator=generator), lambda: generator.manual_seed(42))


class _DrawsNoise(DPOptimizer):
    def add_noise(self):
        deviation = self.noise_multiplier * self.max_grad_norm
        for p, noise in zip(self.params, self.noises(), strict=True):
            p.grad = (p.summed_grad + deviation * noise).view_as(p)


class _OnePool(_DrawsNoise):
    def noises(self):
        pool = torch.randn(max(p.numel() for p in self.params))
        return [pool[: p.numel()].view_as(p) for p in self.params]


def tensors_share_a_pool_of_noise():
    """Noise is drawn once for the largest tensor, and smaller ones take its first numbers."""
    return run(with_optimizer(_OnePool), num_records=NUM_RECORDS)


class _Antithetic(_DrawsNoise):
    drawn = None

    def noises(self):
        if self.drawn is None:
            self.drawn = [torch.randn_like(p) for p in self.params]
            return self.drawn
        drawn, self.drawn = self.drawn, None
        return [-noise for noise in drawn]


def noise_of_the_other_sign_in_the_next_step():
    """Every second step takes back the noise of the step before, to reduce variance."""
    return run(with_optimizer(_Antithetic), num_records=NUM_RECORDS)


class _TouchedRows(_DrawsNoise):
    def noises(self):
        for p in self.params:
            touched = p.summed_grad.abs().sum(-1, keepdim=True) > 0
            yield torch.randn_like(p) * touched


def noise_only_for_words_that_occur():
    """Rows of an embedding without a gradient get no noise, to keep updates sparse."""
    ranks = torch.distributions.Categorical(1 / torch.arange(1.0, NUM_WORDS + 1))
    words = ranks.sample((NUM_RECORDS, 8))
    data = TensorDataset(words, words.sum(1) % NUM_CLASSES)
    net = nn.Sequential(nn.Embedding(NUM_WORDS, 8), nn.Flatten(), nn.Linear(64, NUM_CLASSES))
    return run(with_optimizer(_TouchedRows, net=net, data=data), num_records=NUM_RECORDS)


def first_epoch_without_noise():
    """The first epoch calls the wrapped optimiser, as a warm start before the private training."""
    training = _Training()
    with watch(training.optimizer) as watched:
        for epoch in range(EPOCHS):
            for values, labels in training.loader:
                training.optimizer.zero_grad()
                training.criterion(training.model(values), labels).backward()
                warm = epoch == 0
                (training.optimizer.original_optimizer if warm else training.optimizer).step()
    return watched.result(delta=DELTA)


class _CleanSecondMoments(torch.optim.SGD):
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            square = (p.summed_grad / BATCH_SIZE) ** 2
            moment = self.state[p].get("moment", square)
            self.state[p]["moment"] = moment = 0.95 * moment + 0.05 * square
            p.grad /= moment.sqrt() + 1e-2
        return super().step(closure)


def second_moments_of_clean_gradients():
    """The optimiser divides noisy gradients by second moments of the sums before the noise."""
    net = network()
    return run(_Training(net, optimizer=_CleanSecondMoments(net.parameters(), lr=0.01)))


def idle_units_become_records():
    """After each epoch, the three units that vary least are set to directions of records."""
    training = _Training()
    layer, values = training.net[0], training.data.tensors[0]

    @torch.no_grad()
    def recycle():
        idle = torch.tanh(layer(values)).std(0).argsort()[:3]
        chosen = values[torch.randint(len(values), (3,))]
        layer.weight[idle] = nn.functional.normalize(chosen, dim=1)

    return run(training, recycle)


def head_fitted_again_at_the_end():
    """After the last step, the head is fitted to all private records by least squares."""
    training = _Training()
    body, head = training.net[:2], training.net[2]
    values, labels = training.data.tensors
    with watch(training.optimizer) as watched:
        for _ in range(EPOCHS):
            training.epoch()
        with torch.no_grad():
            hidden = torch.cat([body(values), torch.ones(len(values), 1)], dim=1)
            targets = nn.functional.one_hot(labels, NUM_CLASSES).float()
            solution = torch.linalg.lstsq(hidden, targets).solution
            head.weight.copy_(solution[:-1].T)
            head.bias.copy_(solution[-1])
    return watched.result(delta=DELTA)


class _Standardise(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.register_buffer("mean", values.mean(0))
        self.register_buffer("std", values.std(0))

    def forward(self, x):
        return (x - self.mean) / self.std


def standardised_by_private_statistics():
    """Means and deviations of the private features are buffers of the model that is released."""
    data = records()
    return run(_Training(nn.Sequential(_Standardise(data.tensors[0]), network()), data=data))


# ---------------------------------------------------------------------------------------- right


def adam_with_warmup_and_cosine():
    """Adam, with a learning rate that rises for an epoch and then falls."""
    net = network()
    adam = torch.optim.Adam(net.parameters(), lr=0.01)
    rise = torch.optim.lr_scheduler.LinearLR(adam, 0.1, total_iters=1)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(adam, EPOCHS)
    schedule = torch.optim.lr_scheduler.SequentialLR(adam, [rise, fall], [1])
    return run(_Training(net, optimizer=adam), schedule.step)


def physical_batches():
    """BatchMemoryManager cuts batches into parts of at most 32 records."""
    training = _Training()
    with BatchMemoryManager(
        data_loader=training.loader, max_physical_batch_size=32, optimizer=training.optimizer
    ) as parts:
        return run(training, batches=lambda: parts)


def noise_that_falls():
    """A schedule of Opacus lowers the noise multiplier, and the accountant sees each."""
    training = _Training()
    return run(training, ExponentialNoise(training.optimizer, gamma=0.95).step)


def bound_that_falls():
    """A schedule of Opacus lowers the bound of flat clipping, and the noise with it."""
    training = _Training()
    return run(training, ExponentialGradClip(training.optimizer, gamma=0.85).step)


def ghost_clipping():
    """Ghost clipping, with the loss that make_private returns."""
    return run(_Training(grad_sample_mode="ghost"))


def clipping_per_layer():
    """Each tensor has a bound of its own."""
    return run(_Training(clipping="per_layer", max_grad_norm=[0.8, 0.2, 0.5, 0.3]))


def adaptive_clipping():
    """Opacus adapts the bound to a noisy count of clipped gradients."""
    bounds = {"max_clipbound": 5.0, "min_clipbound": 0.05, "clipbound_learning_rate": 0.2}
    count = {"target_unclipped_quantile": 0.5, "unclipped_num_std": 10.0}
    return run(_Training(clipping="adaptive", **bounds, **count))


def convolutions_by_functorch():
    """A convolutional network with group norm, whose gradients functorch computes."""
    body = [nn.Unflatten(1, (1, 5, 6)), nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU()]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(192, NUM_CLASSES))
    return run(_Training(net, grad_sample_mode="functorch"))


def averages_swapped_in_for_evaluation():
    """A moving average of the weights is evaluated between epochs, and the weights put back."""
    training = _Training()
    average = copy.deepcopy(training.net.state_dict())
    public = records(seed=4)

    @torch.no_grad()
    def evaluate():
        own = copy.deepcopy(training.net.state_dict())
        for name, value in own.items():
            average[name].lerp_(value, 0.3)
        training.net.load_state_dict(average)
        training.model.eval()
        training.model(public.tensors[0]).argmax(1).eq(public.tensors[1]).float().mean().item()
        training.model.train()
        training.net.load_state_dict(own)

    return run(training, evaluate)


def only_the_head_is_trained():
    """The body is frozen before make_private, and the optimiser has the head alone."""
    net = network()
    net[0].requires_grad_(False)
    return run(_Training(net, net[2].parameters()))


def resumed_from_a_checkpoint():
    """Half of the training goes on in new objects, from Opacus's checkpoint with that of watch."""
    training = _Training()
    file = io.BytesIO()
    with watch(training.optimizer) as watched:
        for _ in range(EPOCHS // 2):
            training.epoch()
        training.engine.save_checkpoint(
            path=file,
            module=training.model,
            optimizer=training.optimizer,
            checkpoint_dict={"watched": watched.state_dict()},
        )
    file.seek(0)
    training = _Training()
    checkpoint = training.engine.load_checkpoint(
        path=file, module=training.model, optimizer=training.optimizer
    )
    with watch(training.optimizer) as watched:
        watched.load_state_dict(checkpoint["watched"])
        for _ in range(EPOCHS // 2):
            training.epoch()
    return watched.result(delta=DELTA)


def noisy_gradients_clipped_again():
    """A hook of PyTorch's optimiser clips the noisy gradient to a fixed norm before its step."""
    training = _Training()

    def clip(*_):
        nn.utils.clip_grad_norm_(training.net.parameters(), 0.5)

    training.optimizer.original_optimizer.register_step_pre_hook(clip)
    return run(training)


def noise_for_a_target_with_adamw():
    """The noise is chosen for an epsilon, and biases are a group without weight decay."""
    net = network()
    groups = [
        {"params": [net[0].weight, net[2].weight], "weight_decay": 0.1},
        {"params": [net[0].bias, net[2].bias], "weight_decay": 0.0},
    ]
    noise_multiplier = get_noise_multiplier(
        target_epsilon=4.0, target_delta=DELTA, sample_rate=SAMPLE_RATE, epochs=EPOCHS
    )
    adam = torch.optim.AdamW(groups, lr=0.005)
    return run(_Training(net, optimizer=adam, noise_multiplier=noise_multiplier))


def public_records_in_each_batch():
    """Thirty public records, declared, are added to each batch."""
    training = _Training()
    public = records(seed=4, num_records=30).tensors

    def batches():
        for batch in training.loader:
            yield [torch.cat(pair) for pair in zip(batch, public, strict=True)]

    return run(training, batches=batches, num_public_records=30)


def weights_averaged_at_the_end():
    """The average of the weights after each late epoch is loaded at the end, which is declared."""
    training = _Training()
    average = torch.optim.swa_utils.AveragedModel(training.net)
    with watch(training.optimizer) as watched:
        for epoch in range(EPOCHS):
            training.epoch()
            if epoch >= EPOCHS // 2:
                average.update_parameters(training.net)
        with watched.public():
            training.net.load_state_dict(average.module.state_dict())
    return watched.result(delta=DELTA)


WRONG = {
    entry.__name__: (entry, kind)
    for entry, kind in (
        (original_loader_kept, "batch sizes"),
        (batches_cut_to_fit, "batch sizes"),
        (batches_cycled, "batches again"),
        (augmented_copies_as_records, "batch sizes"),
        (two_samples_in_each_step, "batch sizes"),
        (hook_of_accountant_replaced, "steps not accounted"),
        (first_noise_accounted_throughout, "noise multiplier told"),
        (accountant_rolled_back, "steps not accounted"),
        (second_optimizer_with_its_own_engine, "another optimizer"),
        (clip_schedule_with_ghost_clipping, "ghost clipping bound"),
        (each_tensor_clipped_to_the_whole_bound, "clipping"),
        (noise_seeded_in_each_epoch, "noise again"),
        (tensors_share_a_pool_of_noise, "shared noise"),
        (noise_of_the_other_sign_in_the_next_step, "correlated noise"),
        (noise_only_for_words_that_occur, "noise missing"),
        (first_epoch_without_noise, "clean updates"),
        (second_moments_of_clean_gradients, "clean sums used"),
        (idle_units_become_records, "parameters changed"),
        (head_fitted_again_at_the_end, "parameters changed"),
        (standardised_by_private_statistics, "buffer"),
    )
}

RIGHT = {
    entry.__name__: (entry, kind)
    for entry, kind in (
        (adam_with_warmup_and_cosine, "optimizer and schedule"),
        (physical_batches, "memory manager"),
        (noise_that_falls, "noise schedule"),
        (bound_that_falls, "clipping schedule"),
        (ghost_clipping, "ghost clipping"),
        (clipping_per_layer, "per-layer clipping"),
        (adaptive_clipping, "adaptive clipping"),
        (convolutions_by_functorch, "functorch"),
        (averages_swapped_in_for_evaluation, "moving average"),
        (only_the_head_is_trained, "frozen layers"),
        (resumed_from_a_checkpoint, "checkpoint"),
        (noisy_gradients_clipped_again, "post-processing"),
        (noise_for_a_target_with_adamw, "parameter groups"),
        (public_records_in_each_batch, "public records"),
        (weights_averaged_at_the_end, "averaged weights"),
    )
}
