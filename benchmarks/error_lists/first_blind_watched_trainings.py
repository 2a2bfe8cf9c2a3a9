"""Trainings with Opacus for `dpcanary.watch`, written from its documentation alone.

Each function takes `watch`, trains a small perceptron inside it, and returns the result. The
trainings in `WRONG` are not as private as the accountant says that is attached, or release
something else of the records; those in `RIGHT` are. The text beside each function says what an
alarm or a refusal would have to name.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as functional
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise, StepGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from benchmarks.error_lists.first_blind_models import Network, annealed, named

NUM_RECORDS = 800
NUM_FEATURES = 24
DELTA = 1e-5
Batch = tuple[Tensor, Tensor]


def records(seed: int = 1) -> TensorDataset:
    """Return Gaussian features, whose four labels follow from a linear rule."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(NUM_RECORDS, NUM_FEATURES, generator=generator)
    rule = torch.randn(NUM_FEATURES, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(features, (features @ rule).argmax(dim=1))


def perceptron() -> nn.Sequential:
    """Return a network of 2,788 parameters in four tensors."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 96), nn.Tanh(), nn.Linear(96, 4))


def gradient_descent(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that most of these trainings have."""
    return torch.optim.SGD(parameters, lr=0.5)


class Training:
    """What `make_private` gives for a network, and a usual loop over it."""

    def __init__(
        self,
        network: nn.Module | None = None,
        make_optimizer: Callable[..., torch.optim.Optimizer] = gradient_descent,
        *,
        batch_size: int = 80,
        generator: torch.Generator | None = None,
        trained: nn.Module | None = None,
        **options: Any,
    ) -> None:
        self.network = network or perceptron()
        self.dataset = records()
        self.engine = PrivacyEngine()
        parameters = [p for p in (trained or self.network).parameters() if p.requires_grad]
        private = self.engine.make_private(
            module=self.network,
            optimizer=make_optimizer(parameters),
            data_loader=DataLoader(self.dataset, batch_size=batch_size, generator=generator),
            **{"noise_multiplier": 1.2, "max_grad_norm": 1.0, **options},
        )
        self.model, self.optimizer, self.loader = private[0], private[1], private[-1]
        self.loss = private[2] if len(private) == 4 else functional.cross_entropy

    def replace_optimizer(self, kind: type[DPOptimizer]) -> None:
        """Use a DPOptimizer of one's own, which tells the accountant as Opacus's does."""
        self.optimizer = kind(
            self.optimizer.original_optimizer,
            noise_multiplier=self.optimizer.noise_multiplier,
            max_grad_norm=self.optimizer.max_grad_norm,
            expected_batch_size=self.optimizer.expected_batch_size,
        )
        hook = self.engine.accountant.get_optimizer_hook_fn(sample_rate=1 / len(self.loader))
        self.optimizer.attach_step_hook(hook)

    def backward(self, batch: Batch) -> None:
        """Compute the gradients of single records."""
        self.optimizer.zero_grad()
        self.loss(self.model(batch[0]), batch[1]).backward()

    def step(self, batch: Batch) -> None:
        """Take one step on one batch."""
        self.backward(batch)
        self.optimizer.step()

    def epochs(
        self,
        step: Callable[[Batch], object] | None = None,
        num_epochs: int = 15,
        before_epoch: Callable[[int], object] | None = None,
        loader: Iterable[Batch] | None = None,
    ) -> None:
        """Train for some epochs of ten steps, with `step` on each batch."""
        for epoch in range(num_epochs):
            if before_epoch:
                before_epoch(epoch)
            for batch in self.loader if loader is None else loader:
                (step or self.step)(batch)

    def run(self, watch: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Train as `epochs` does while it is watched, and return the result."""
        with watch(self.optimizer) as watched:
            self.epochs(*arguments, **options)
        return watched.result(delta=DELTA)


class OwnNoise(DPOptimizer):
    """A private optimizer whose noise comes from a method `noise`."""

    def noise(self, parameter: nn.Parameter) -> Tensor:
        """Return Gaussian noise as it should be."""
        return self.noise_multiplier * self.max_grad_norm * torch.randn(parameter.shape)

    def add_noise(self) -> None:
        """Add the noise to each tensor's sum."""
        for parameter in self.params:
            total = parameter.summed_grad.view_as(parameter)
            parameter.grad = total + self.noise(parameter)


# Wrong: noise.


class NoiseTimesRate(OwnNoise):
    """Scales the noise by the learning rate before the optimizer does so again."""

    def noise(self, parameter: nn.Parameter) -> Tensor:
        """Return noise for a parameter in place of a gradient."""
        return self.param_groups[0]["lr"] * super().noise(parameter)


def noise_times_learning_rate(watch: Callable[..., Any]) -> Any:
    """The noise is multiplied by the learning rate twice, so half of it is missing."""
    training = Training()
    training.replace_optimizer(NoiseTimesRate)
    return training.run(watch)


def generator_reset(watch: Callable[..., Any]) -> Any:
    """For reproducible epochs, the generator of the noise is seeded at each of them."""
    generator = torch.Generator()
    training = Training(noise_generator=generator)
    return training.run(watch, before_epoch=lambda _: generator.manual_seed(7))


class Antithetic(OwnNoise):
    """Uses each noise twice, with both signs, to lower the variance of two steps."""

    def noise(self, parameter: nn.Parameter) -> Tensor:
        """Return fresh noise, or minus that of the step before."""
        last = self.__dict__.setdefault("last", {})
        if parameter in last:
            return -last.pop(parameter)
        last[parameter] = super().noise(parameter)
        return last[parameter]


def antithetic_noise(watch: Callable[..., Any]) -> Any:
    """The sum of two steps has no noise."""
    training = Training()
    training.replace_optimizer(Antithetic)
    return training.run(watch)


class RowNoise(OwnNoise):
    """Draws one number for each row of a weight."""

    def noise(self, parameter: nn.Parameter) -> Tensor:
        """Return noise that is broadcast along all axes but the first."""
        noise = super().noise(parameter)
        return noise if noise.dim() == 1 else noise[:, :1].expand_as(noise)


def noise_of_rows(watch: Callable[..., Any]) -> Any:
    """Noise of the wrong shape is broadcast: differences within a row have none."""
    training = Training()
    training.replace_optimizer(RowNoise)
    return training.run(watch)


# Wrong: batches.


def shuffled_loader(watch: Callable[..., Any]) -> Any:
    """The loop reads the loader that it had before `make_private`: shuffled, of equal batches."""
    training = Training()
    return training.run(watch, loader=DataLoader(training.dataset, batch_size=80, shuffle=True))


def same_batches_each_epoch(watch: Callable[..., Any]) -> Any:
    """The sampler is seeded at each epoch, so a record is in the same batches of all epochs."""
    generator = torch.Generator()
    training = Training(generator=generator)
    return training.run(watch, before_epoch=lambda _: generator.manual_seed(3))


def every_batch_twice(watch: Callable[..., Any]) -> Any:
    """Two steps are taken on each batch, and accounted as steps on independent batches."""
    training = Training()

    def step(batch: Batch) -> None:
        training.step(batch)
        training.step(batch)

    return training.run(watch, step, num_epochs=8)


def small_batches_dropped(watch: Callable[..., Any]) -> Any:
    """Batches of less than nine tenths of the expected size are left out as too noisy."""
    training = Training()
    return training.run(watch, lambda batch: training.step(batch) if len(batch[0]) >= 72 else None)


def augmented_copies(watch: Callable[..., Any]) -> Any:
    """Each record is in the batch with an augmented copy, and both are clipped on their own."""
    training = Training()

    def step(batch: Batch) -> None:
        features, targets = batch
        augmented = features + 0.1 * torch.randn_like(features)
        training.step((torch.cat([features, augmented]), torch.cat([targets, targets])))

    return training.run(watch, step)


class FavouringSampler(Sampler):
    """Poisson samples in which one class has twice the sample rate."""

    def __init__(self, targets: Tensor) -> None:
        self.rates = torch.where(targets == 0, 0.2, 0.1)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of an epoch."""
        for _ in range(10):
            yield (torch.rand(len(self.rates)) < self.rates).nonzero().flatten().tolist()


def favoured_class(watch: Callable[..., Any]) -> Any:
    """One class is drawn twice as often as the sample rate that is accounted."""
    training = Training()
    sampler = FavouringSampler(training.dataset.tensors[1])
    return training.run(watch, loader=DataLoader(training.dataset, batch_sampler=sampler))


def two_batches_one_step(watch: Callable[..., Any]) -> Any:
    """Two Poisson batches are gathered by skipped steps; a record may be in both."""
    training = Training()
    half_steps = iter(range(10_000))

    def step(batch: Batch) -> None:
        training.optimizer.signal_skip_step(next(half_steps) % 2 == 0)
        training.step(batch)

    return training.run(watch, step, num_epochs=30)


# Wrong: clipping, and gradients after the noise.


class ClippedByLayer(DPOptimizer):
    """Clips each tensor's gradient to the whole bound."""

    def clip_and_accumulate(self) -> None:
        """Sum gradients that are clipped tensor by tensor."""
        for parameter, gradients in zip(self.params, self.grad_samples, strict=True):
            norms = gradients.flatten(1).norm(dim=1)
            factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1)
            parameter.summed_grad = torch.einsum("i,i...->...", factors, gradients)


def clipped_by_layer(watch: Callable[..., Any]) -> Any:
    """Four tensors are each clipped to C, so a record's gradient may be 2 C long."""
    training = Training()
    training.replace_optimizer(ClippedByLayer)
    return training.run(watch)


def clean_momentum(watch: Callable[..., Any]) -> Any:
    """A momentum of gradients before the noise is added to the noisy gradients."""
    training = Training()
    momentum = [torch.zeros_like(parameter) for parameter in training.optimizer.params]

    def step(batch: Batch) -> None:
        training.backward(batch)
        for velocity, parameter in zip(momentum, training.optimizer.params, strict=True):
            velocity.mul_(0.9).add_(parameter.grad_sample.mean(dim=0), alpha=0.1)
        if training.optimizer.pre_step():
            for velocity, parameter in zip(momentum, training.optimizer.params, strict=True):
                parameter.grad.add_(velocity)
            training.optimizer.original_optimizer.step()

    return training.run(watch, step)


def scaled_to_clean_norm(watch: Callable[..., Any]) -> Any:
    """Noisy gradients are scaled to the length that the gradient had without noise."""
    training = Training()

    def step(batch: Batch) -> None:
        training.backward(batch)
        norms = [p.grad_sample.mean(dim=0).norm() for p in training.optimizer.params]
        if training.optimizer.pre_step():
            for norm, parameter in zip(norms, training.optimizer.params, strict=True):
                parameter.grad.mul_(norm / parameter.grad.norm())
            training.optimizer.original_optimizer.step()

    return training.run(watch, step)


# Wrong: accounting.


def hook_replaced(watch: Callable[..., Any]) -> Any:
    """A hook that logs norms takes the accountant's place, since Opacus keeps one hook."""
    training = Training()
    norms = []

    def log(optimizer: DPOptimizer) -> None:
        norms.append(optimizer.params[0].grad.norm())

    def before_epoch(epoch: int) -> None:
        if epoch == 3:
            training.optimizer.attach_step_hook(log)

    return training.run(watch, before_epoch=before_epoch)


def history_restarted(watch: Callable[..., Any]) -> Any:
    """The accountant's history is emptied at each epoch, so epsilon is that of the last one."""
    training = Training()
    history = training.engine.accountant.history
    return training.run(watch, before_epoch=lambda _: history.clear())


# Wrong: what is trained beside the private steps.


def head_without_noise(watch: Callable[..., Any]) -> Any:
    """The last layer is trained by an optimizer of its own, without clipping and noise."""
    network = perceptron()
    training = Training(network, trained=network[0])
    head = torch.optim.SGD(network[2].parameters(), lr=0.1)

    def step(batch: Batch) -> None:
        head.zero_grad()
        training.step(batch)
        head.step()
        for parameter in network[2].parameters():
            parameter.grad_sample = None  # Opacus forbids to accumulate them

    return training.run(watch, step)


def bad_steps_taken_back(watch: Callable[..., Any]) -> Any:
    """A step that does not lower the loss of its batch by a twentieth is undone.

    When the list was written, steps were undone that made it larger, and there was none.
    """
    training = Training()

    def loss(batch: Batch) -> float:
        with torch.no_grad():
            return float(functional.cross_entropy(training.network(batch[0]), batch[1]))

    def step(batch: Batch) -> None:
        before, saved = loss(batch), copy.deepcopy(training.model.state_dict())
        training.step(batch)
        if loss(batch) > 0.95 * before:
            training.model.load_state_dict(saved)

    return training.run(watch, step)


def clean_teacher(watch: Callable[..., Any]) -> Any:
    """Every 30 steps, the weights move towards those of a twin that is trained without noise."""
    training = Training()
    twin = perceptron()
    twin.load_state_dict(training.network.state_dict())
    optimizer = gradient_descent(list(twin.parameters()))

    def step(batch: Batch) -> None:
        training.step(batch)
        optimizer.zero_grad()
        functional.cross_entropy(twin(batch[0]), batch[1]).backward()
        optimizer.step()

    def before_epoch(epoch: int) -> None:
        if epoch % 3 == 2:
            with torch.no_grad():
                for ours, clean in zip(
                    training.network.parameters(), twin.parameters(), strict=True
                ):
                    ours.lerp_(clean, 0.1)

    return training.run(watch, step, before_epoch=before_epoch)


def buffer_of_means(watch: Callable[..., Any]) -> Any:
    """After two epochs, the loop puts the records' mean features into a buffer of the model."""
    centred = Network(lambda layer, features: features - layer.mean)
    centred.register_buffer("mean", torch.zeros(NUM_FEATURES))
    training = Training(nn.Sequential(centred, perceptron()))

    def before_epoch(epoch: int) -> None:
        if epoch == 2:
            centred.mean.copy_(training.dataset.tensors[0].mean(dim=0))

    return training.run(watch, before_epoch=before_epoch)


# Right.


def adamw_with_schedule(watch: Callable[..., Any]) -> Any:
    """AdamW with weight decay and a cosine schedule sees noisy gradients only."""
    training = Training(None, lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 15)
    return training.run(watch, before_epoch=lambda epoch: epoch and schedule.step())


def clipped_once_more(watch: Callable[..., Any]) -> Any:
    """Noisy gradients are clipped to a fixed norm before SGD with Nesterov's momentum."""
    training = Training(None, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True))

    def step(batch: Batch) -> None:
        training.backward(batch)
        if training.optimizer.pre_step():
            nn.utils.clip_grad_norm_(training.optimizer.params, 0.5)
            training.optimizer.original_optimizer.step()

    return training.run(watch, step)


def virtual_steps(watch: Callable[..., Any]) -> Any:
    """BatchMemoryManager splits batches, and the noise is added once for each."""
    training = Training()
    with BatchMemoryManager(
        data_loader=training.loader, max_physical_batch_size=32, optimizer=training.optimizer
    ) as loader:
        return training.run(watch, loader=loader)


def noise_schedule(watch: Callable[..., Any]) -> Any:
    """The accountant is told the noise multiplier of each epoch."""
    training = Training()
    schedule = ExponentialNoise(training.optimizer, gamma=0.97)
    return training.run(watch, before_epoch=lambda epoch: epoch and schedule.step())


def clipping_schedule(watch: Callable[..., Any]) -> Any:
    """The bound falls, and the noise with it."""
    training = Training()
    schedule = StepGradClip(training.optimizer, step_size=4, gamma=0.8)
    return training.run(watch, before_epoch=lambda epoch: epoch and schedule.step())


def ghost_clipping(watch: Callable[..., Any]) -> Any:
    """Ghost clipping needs two backward passes, and gives the same sums."""
    return Training(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss()).run(watch)


def per_layer_clipping(watch: Callable[..., Any]) -> Any:
    """Each of four tensors is clipped to half of C."""
    return Training(clipping="per_layer", max_grad_norm=[0.5] * 4).run(watch)


def functorch_gradients(watch: Callable[..., Any]) -> Any:
    """Gradients of single records come from functorch."""
    return Training(grad_sample_mode="functorch").run(watch)


def averaged_weights(watch: Callable[..., Any]) -> Any:
    """An average of the weights is evaluated after each epoch, and the weights are put back."""
    training = Training()
    average = copy.deepcopy(training.network.state_dict())

    def step(batch: Batch) -> None:
        training.step(batch)
        for name, value in training.network.state_dict().items():
            average[name].lerp_(value, 0.05)

    def before_epoch(_: int) -> None:
        weights = copy.deepcopy(training.network.state_dict())
        training.network.load_state_dict(average)
        with torch.no_grad():
            training.network(training.dataset.tensors[0])
        training.network.load_state_dict(weights)

    return training.run(watch, step, before_epoch=before_epoch)


def evaluation_between_epochs(watch: Callable[..., Any]) -> Any:
    """The loss of all records is looked at in evaluation mode, and nothing is made of it."""
    training = Training()

    def before_epoch(_: int) -> None:
        training.model.eval()
        features, targets = training.dataset.tensors
        with torch.no_grad():
            functional.cross_entropy(training.model(features), targets)
        training.model.train()

    return training.run(watch, before_epoch=before_epoch)


def frozen_layer_and_groups(watch: Callable[..., Any]) -> Any:
    """The first layer stays as it is; weights and biases of the others have their own rates."""
    first = nn.Linear(NUM_FEATURES, 96).requires_grad_(False)
    network = nn.Sequential(first, nn.Tanh(), nn.Linear(96, 32), nn.Tanh(), nn.Linear(32, 4))

    def groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        weights, biases = parameters[::2], parameters[1::2]
        return torch.optim.RMSprop([{"params": weights}, {"params": biases, "lr": 0.01}], lr=0.002)

    return Training(network, groups).run(watch)


def checkpoint_and_continue(watch: Callable[..., Any]) -> Any:
    """Model, optimizer, accountant and what was watched go into a checkpoint, and out of it."""
    first, second = (Training(None, lambda p: torch.optim.Adam(p, lr=0.01)) for _ in range(2))
    with watch(first.optimizer) as watched:
        first.epochs(num_epochs=8)
    second.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    second.engine.accountant.load_state_dict(first.engine.accountant.state_dict())
    continued = watch(second.optimizer)
    continued.load_state_dict(watched.state_dict())
    with continued:
        second.epochs(num_epochs=7)
    return continued.result(delta=DELTA)


def public_pretraining(watch: Callable[..., Any]) -> Any:
    """Steps without noise are taken on public records, and declared."""
    training = Training()
    features, targets = records(seed=9).tensors
    plain = gradient_descent(training.optimizer.params)
    with watch(training.optimizer) as watched:
        with watched.public():
            for _ in range(20):
                training.backward((features, targets))
                plain.step()
        training.epochs()
    return watched.result(delta=DELTA)


def empty_batches(watch: Callable[..., Any]) -> Any:
    """With two expected records, a seventh of the batches is empty, and gets its noise as well."""
    training = Training(None, lambda p: torch.optim.SGD(p, lr=0.02), batch_size=2)
    return training.run(watch, num_epochs=1)


def buffer_of_steps(watch: Callable[..., Any]) -> Any:
    """A buffer counts the steps, from which a temperature follows."""
    return Training(nn.Sequential(perceptron(), annealed())).run(watch)


WRONG = {
    **named("noise scale", noise_times_learning_rate),
    **named("noise repeated", generator_reset, antithetic_noise),
    **named("noise shared", noise_of_rows),
    **named("batch sizes", shuffled_loader, same_batches_each_epoch, every_batch_twice),
    **named("batch sizes", small_batches_dropped, augmented_copies, favoured_class),
    **named("batch sizes", two_batches_one_step),
    **named("clipping", clipped_by_layer),
    **named("gradient changed", clean_momentum, scaled_to_clean_norm),
    **named("accounting", hook_replaced, history_restarted),
    **named("parameters", head_without_noise, bad_steps_taken_back, clean_teacher),
    **named("buffer", buffer_of_means),
}

RIGHT = {
    **named("no alarm", adamw_with_schedule, clipped_once_more, virtual_steps, noise_schedule),
    **named("no alarm", clipping_schedule, ghost_clipping, per_layer_clipping),
    **named("no alarm", functorch_gradients, averaged_weights, evaluation_between_epochs),
    **named("no alarm", frozen_layer_and_groups, checkpoint_and_continue, public_pretraining),
    **named("no alarm", empty_batches, buffer_of_steps),
}
