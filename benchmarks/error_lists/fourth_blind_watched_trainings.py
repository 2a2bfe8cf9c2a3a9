"""Trainings with `dpcanary.watch`, by somebody who had read only its documentation.

`WRONG` and `RIGHT` map a name to a function without arguments and what is wrong, or special, in a
word or two. A function builds a training with Opacus, runs it while it is watched, and returns the
result of `watch`. Records are the same each time; all else follows the seed that torch has.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.accountants import RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialGradClip, ExponentialNoise, StepGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

RECORDS, FEATURES, HIDDEN, CLASSES = 1_000, 40, 64, 4
BATCH, EPOCHS, NOISE, DELTA = 100, 15, 1.5, 1e-5


def records(count: int = RECORDS, seed: int = 1) -> TensorDataset:
    """Vectors of four overlapping classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(0)) / 4
    return TensorDataset(torch.randn(count, FEATURES, generator=generator) + means[labels], labels)


def perceptron() -> nn.Sequential:
    """A network of 2,884 parameters."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))


def sgd(parameters: Iterable[Any]) -> torch.optim.Optimizer:
    """The optimizer of most trainings here."""
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5)


@dataclass
class Made:
    """What a loop needs."""

    engine: PrivacyEngine | None
    model: nn.Module
    optimizer: Any
    criterion: Any
    loader: Iterable[Any]


def private(
    model: nn.Module | None = None,
    make_optimizer: Callable[..., torch.optim.Optimizer] = sgd,
    data: TensorDataset | None = None,
    batch_size: int = BATCH,
    **options: Any,
) -> Made:
    """What Opacus makes private."""
    model, engine = model or perceptron(), PrivacyEngine()
    options = {"noise_multiplier": NOISE, "max_grad_norm": 1.0} | options
    model, optimizer, *criterion, loader = engine.make_private(
        module=model,
        optimizer=make_optimizer(p for p in model.parameters() if p.requires_grad),
        data_loader=DataLoader(data or records(), batch_size=batch_size),
        **options,
    )
    return Made(engine, model, optimizer, (criterion or [nn.CrossEntropyLoss()])[0], loader)


def assembled(
    model: nn.Module | None = None,
    data: TensorDataset | None = None,
    max_grad_norm: float = 1.0,
    **methods: Any,
) -> Made:
    """The same without an engine, with an optimizer that has methods of its own."""
    wrapped = GradSampleModule(model or perceptron())
    optimizer = type("OwnOptimizer", (DPOptimizer,), methods)(
        sgd(wrapped.parameters()),
        noise_multiplier=NOISE,
        max_grad_norm=max_grad_norm,
        expected_batch_size=BATCH,
    )
    accountant = RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=BATCH / RECORDS))
    loader = DPDataLoader.from_data_loader(DataLoader(data or records(), batch_size=BATCH))
    return Made(None, wrapped, optimizer, nn.CrossEntropyLoss(), loader)


def train(
    made: Made,
    epochs: int = EPOCHS,
    loader: Iterable[Any] | None = None,
    step: Callable[[Tensor], Any] | None = None,
    after_epoch: Callable[[], Any] = int,
) -> None:
    """Trains as most loops do; `step` may be called in place of the optimizer's, with the batch."""
    for _ in range(epochs):
        made.model.train()
        for inputs, labels in made.loader if loader is None else loader:
            made.optimizer.zero_grad()
            made.criterion(made.model(inputs), labels).backward()
            made.optimizer.step() if step is None else step(inputs)
        after_epoch()


def watched_training(made: Made, **options: Any) -> Any:
    """Watches the plain loop."""
    with watch(made.optimizer, num_records=RECORDS) as watched:
        train(made, **options)
    return watched.result(delta=DELTA)


def public_loss(made: Made) -> float:
    """The loss on public records, in evaluation mode."""
    inputs, labels = records(400, seed=2).tensors
    made.model.eval()
    with torch.no_grad():
        return float(functional.cross_entropy(made.model(inputs), labels))


def resumed(with_accountant: bool) -> Any:
    """A training that is interrupted after six epochs, and goes on from a checkpoint."""
    with TemporaryDirectory() as folder:
        journal, checkpoint = Path(folder) / "watched.npz", Path(folder) / "checkpoint.pt"
        made = private()
        with watch(made.optimizer, journal=journal):
            train(made, epochs=6)
        state = {"module": made.model, "optimizer": made.optimizer}
        made.engine.save_checkpoint(path=checkpoint, **state)
        made = private()
        engine = made.engine if with_accountant else PrivacyEngine()
        state = {"module": made.model, "optimizer": made.optimizer}
        engine.load_checkpoint(path=checkpoint, **state)
        with watch(made.optimizer, journal=journal) as watched:
            train(made, epochs=EPOCHS - 6)
        return watched.result(delta=DELTA)


def resumed_without_accountant() -> Any:
    """Loads the checkpoint by another engine than the hook's, which counts later epochs alone."""
    return resumed(with_accountant=False)


def hook_of_the_accountant_replaced() -> Any:
    """Attaches a hook that logs norms, which replaces the accountant's: no more step is counted."""
    made, norms = private(), []
    with watch(made.optimizer) as watched:
        train(made, epochs=1)
        made.optimizer.attach_step_hook(
            lambda optimizer: norms.append(sum(p.grad.norm() ** 2 for p in optimizer.params))
        )
        train(made, epochs=EPOCHS - 1)
    return watched.result(delta=DELTA)


def larger_batches_later() -> Any:
    """Doubles the sample rate instead of lowering the learning rate; the hook tells the first."""
    made = private()
    larger = DPDataLoader(records(), sample_rate=2 * BATCH / RECORDS)
    with watch(made.optimizer) as watched:
        train(made, epochs=5)
        train(made, epochs=15, loader=larger)
    return watched.result(delta=DELTA)


def loader_of_before() -> Any:
    """Iterates over the shuffled loader that was given to the engine, not over the returned."""
    loader = DataLoader(records(), batch_size=BATCH, shuffle=True)
    return watched_training(private(), loader=loader)


def batches_kept_in_memory() -> Any:
    """Draws the batches of one epoch and uses them again in all others, to save time."""
    made = private()
    return watched_training(made, loader=list(made.loader))


def seeded_in_each_epoch() -> Any:
    """Sets torch's seed after each epoch, so the next one's noise is that of the last epoch."""
    return watched_training(private(), after_epoch=lambda: torch.manual_seed(1234))


def noise_without_c() -> Any:
    """Adds noise of the noise multiplier alone, where C is 3: a third of what is accounted."""

    def add_noise(self: DPOptimizer) -> None:
        for p in self.params:
            p.grad = p.summed_grad + self.noise_multiplier * torch.randn_like(p.summed_grad)

    return watched_training(assembled(add_noise=add_noise, max_grad_norm=3.0))


def one_seed_for_all_tensors() -> Any:
    """Seeds by the step within the loop over tensors, so all begin with the same noise."""

    def add_noise(self: DPOptimizer) -> None:
        self.steps += 1
        scale = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            generator = torch.Generator().manual_seed(self.steps)
            p.grad = p.summed_grad + scale * torch.randn(p.shape, generator=generator)

    return watched_training(assembled(add_noise=add_noise, steps=0))


def noise_that_cancels() -> Any:
    """Adds noise that cancels in sums of steps, but accounts it as independent."""

    def add_noise(self: DPOptimizer) -> None:
        scale = self.noise_multiplier * self.max_grad_norm / (1 + 0.6**2) ** 0.5
        for p in self.params:
            drawn = scale * torch.randn_like(p.summed_grad)
            p.grad = p.summed_grad + drawn - 0.6 * getattr(p, "last_noise", 0)
            p.last_noise = drawn

    return watched_training(assembled(add_noise=add_noise))


def better_of_two_draws() -> Any:
    """Chooses of two draws of noise the one that points more along the clean gradients."""

    def add_noise(self: DPOptimizer) -> None:
        scale = self.noise_multiplier * self.max_grad_norm
        draws = [[scale * torch.randn_like(p.summed_grad) for p in self.params] for _ in range(2)]
        along = [
            sum(float((p.summed_grad * n).sum()) for p, n in zip(self.params, noise, strict=True))
            for noise in draws
        ]
        for p, noise in zip(self.params, draws[along[1] > along[0]], strict=True):
            p.grad = p.summed_grad + noise

    return watched_training(assembled(add_noise=add_noise))


def noise_for_words_of_the_batch() -> Any:
    """Leaves words that are in no sentence of the batch without noise, which shows them."""

    def add_noise(self: DPOptimizer) -> None:
        DPOptimizer.add_noise(self)
        for p in self.params:
            if p.shape[0] == 300:
                p.grad[self._get_flat_grad_sample(p).abs().sum(dim=(0, 2)) == 0] = 0

    generator = torch.Generator().manual_seed(3)
    words = (300 * torch.rand(RECORDS, 5, generator=generator) ** 3).long()
    data = TensorDataset(words, words[:, 0] % CLASSES)
    model = nn.Sequential(nn.Embedding(300, 12), nn.Flatten(), nn.Linear(60, CLASSES))
    return watched_training(assembled(model, data, add_noise=add_noise))


def momentum_before_the_noise() -> Any:
    """Adds clean sums of earlier steps before the noise, so a record counts in many steps."""

    def clip_and_accumulate(self: DPOptimizer) -> None:
        DPOptimizer.clip_and_accumulate(self)
        for p in self.params:
            p.history = p.summed_grad + 0.9 * getattr(p, "history", 0)
            p.summed_grad = p.history.clone()

    return watched_training(assembled(clip_and_accumulate=clip_and_accumulate))


def each_tensor_to_c() -> Any:
    """Clips each of four tensors to C, so a gradient may have norm 2 C; the noise is for C."""

    def clip_and_accumulate(self: DPOptimizer) -> None:
        for p in self.params:
            gradients = self._get_flat_grad_sample(p)
            factors = self.max_grad_norm / gradients.flatten(1).norm(dim=1).clamp(min=1e-6)
            p.summed_grad = torch.einsum("i,i...", factors.clamp(max=1), gradients)

    return watched_training(assembled(clip_and_accumulate=clip_and_accumulate))


def schedule_beside_ghost_clipping() -> Any:
    """Lowers C in the optimizer, and so the noise; ghost clipping in the model keeps its own."""
    made = private(grad_sample_mode="ghost")
    schedule = ExponentialGradClip(made.optimizer, gamma=0.85)
    return watched_training(made, after_epoch=schedule.step)


def divided_by_the_batch() -> Any:
    """Corrects the expected batch size in each step to the size of the batch that was drawn."""
    made = private()

    def step(inputs: Tensor) -> None:
        made.optimizer.expected_batch_size = max(1, len(inputs))
        made.optimizer.step()

    return watched_training(made, step=step)


def penalty_without_noise() -> Any:
    """Adds the gradient of a penalty of the batch's outputs after the noise."""
    made = private()

    def step(inputs: Tensor) -> None:
        if made.optimizer.pre_step():
            made.model.disable_hooks()
            penalty = 0.05 * made.model(inputs).square().mean()
            gradients = torch.autograd.grad(penalty, made.optimizer.params)
            made.model.enable_hooks()
            for p, gradient in zip(made.optimizer.params, gradients, strict=True):
                p.grad += gradient
            made.optimizer.original_optimizer.step()

    return watched_training(made, step=step)


def projected_on_clean_directions() -> Any:
    """Projects noisy gradients onto singular vectors of the clean sum, which it so reveals."""

    def add_noise(self: DPOptimizer) -> None:
        DPOptimizer.add_noise(self)
        for p in self.params:
            if p.ndim == 2:
                basis = torch.linalg.svd(p.summed_grad, full_matrices=False).U[:, :3]
                p.grad = basis @ (basis.T @ p.grad)

    return watched_training(assembled(add_noise=add_noise))


def bias_set_after_training() -> Any:
    """Calibrates the last bias on private records at the end, without noise."""
    made = private()
    with watch(made.optimizer) as watched:
        train(made)
        inputs, labels = records().tensors
        made.model.eval()
        with torch.no_grad():
            predicted = made.model(inputs).softmax(dim=1).mean(dim=0)
            observed = functional.one_hot(labels, CLASSES).float().mean(dim=0)
            made.model._module[-1].bias += (observed / predicted).log()
    return watched.result(delta=DELTA)


class _Standardise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("variance", torch.ones(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and len(inputs) > 1:
            self.mean += 0.05 * (inputs.mean(dim=0) - self.mean)
            self.variance += 0.05 * (inputs.var(dim=0) - self.variance)
        return (inputs - self.mean) / self.variance.sqrt()


def running_standardisation() -> Any:
    """Learns means and variances of features in the forward pass, released without noise."""
    return watched_training(private(nn.Sequential(_Standardise(), perceptron())))


def prototypes_in_the_model() -> Any:
    """Stores the mean hidden vector of each class in a buffer after each epoch, without noise."""
    model = perceptron()
    model.register_buffer("prototypes", torch.zeros(CLASSES, HIDDEN))
    made = private(model)
    inputs, labels = records().tensors

    @torch.no_grad()
    def store() -> None:
        hidden = model[1](model[0](inputs))
        for label in range(CLASSES):
            model.prototypes[label] = hidden[labels == label].mean(dim=0)

    return watched_training(made, after_epoch=store)


def adam_on_one_cycle() -> Any:
    """Uses AdamW with a one-cycle schedule, and evaluates after each epoch."""
    made = private(make_optimizer=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.01))
    steps = EPOCHS * len(made.loader)
    with watch(made.optimizer) as watched:
        cycle = torch.optim.lr_scheduler.OneCycleLR(made.optimizer, 0.02, total_steps=steps)
        evaluate = partial(public_loss, made)
        train(made, step=lambda _: (made.optimizer.step(), cycle.step()), after_epoch=evaluate)
    return watched.result(delta=DELTA)


def physical_batches(made: Made) -> Any:
    """Splits batches for the memory."""
    splitting = {"max_physical_batch_size": 32, "optimizer": made.optimizer}
    manager = BatchMemoryManager(data_loader=made.loader, **splitting)
    with watch(made.optimizer) as watched, manager as loader:
        train(made, loader=loader)
    return watched.result(delta=DELTA)


def memory_manager() -> Any:
    """Trains with physical batches of 32."""
    return physical_batches(private())


def memory_manager_with_ghost_clipping() -> Any:
    """Trains with physical batches of 32 and ghost clipping."""
    return physical_batches(private(grad_sample_mode="ghost"))


def schedules_of_noise_and_c() -> Any:
    """Lowers the noise multiplier and C by Opacus's schedules, which the accountant is told."""
    made = private()
    noise = ExponentialNoise(made.optimizer, gamma=0.98)
    norm = StepGradClip(made.optimizer, step_size=5, gamma=0.8)
    return watched_training(made, after_epoch=lambda: (noise.step(), norm.step()))


def bounds_of_layers() -> Any:
    """Clips each tensor to a bound of its own, with noise for all of them."""
    return watched_training(private(clipping="per_layer", max_grad_norm=[0.8, 0.2, 0.6, 0.3]))


class _Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(FEATURES))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.factor * inputs


def functorch_with_own_layer() -> Any:
    """Has a layer of its own, and takes gradients of single records by functorch."""
    model = nn.Sequential(_Gain(), perceptron())
    return watched_training(private(model, grad_sample_mode="functorch"))


def averages_for_evaluation() -> Any:
    """Evaluates an exponential average of weights after each epoch, and puts the weights back."""
    made = private()
    parameters = list(made.model.parameters())
    averages = [p.detach().clone() for p in parameters]

    def step(_: Tensor) -> None:
        made.optimizer.step()
        for average, p in zip(averages, parameters, strict=True):
            average.lerp_(p.detach(), 0.05)

    @torch.no_grad()
    def evaluate() -> None:
        kept = [p.detach().clone() for p in parameters]
        for values in (averages, kept):
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)
            public_loss(made)

    return watched_training(made, step=step, after_epoch=evaluate)


def averages_at_the_end() -> Any:
    """Releases the mean of the weights after each of the last epochs, and declares it."""
    made = private()
    kept: list[Tensor] = []
    weights = nn.utils.parameters_to_vector
    with watch(made.optimizer) as watched:
        train(made, after_epoch=lambda: kept.append(weights(made.model.parameters()).detach()))
        with watched.public(), torch.no_grad():
            mean = torch.stack(kept[-6:]).mean(dim=0)
            nn.utils.vector_to_parameters(mean, made.model.parameters())
    return watched.result(delta=DELTA)


class _Adapted(nn.Module):
    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, 8, bias=False)
        self.up = nn.Linear(8, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + self.up(self.down(inputs))


def adapters_after_public_training() -> Any:
    """Trains on public records without noise first, then adapters and head privately."""
    model = perceptron()
    loader = DataLoader(records(400, seed=2), batch_size=50, shuffle=True)
    optimizer = sgd(model.parameters())
    train(Made(None, model, optimizer, nn.CrossEntropyLoss(), loader), epochs=2)
    return watched_training(private(nn.Sequential(_Adapted(model[0]), *model[1:])))


def resumed_with_accountant() -> Any:
    """Goes on from Opacus's checkpoint of model, optimizer and accountant, and the journal."""
    return resumed(with_accountant=True)


def stopped_by_public_loss() -> Any:
    """Takes the noise from a target epsilon, and stops when the loss on public records rises."""
    aim = {"target_epsilon": 5.0, "target_delta": DELTA, "sample_rate": BATCH / RECORDS}
    noise_multiplier = get_noise_multiplier(epochs=EPOCHS, **aim)
    made, best = private(noise_multiplier=noise_multiplier), float("inf")
    with watch(made.optimizer) as watched:
        for epoch in range(EPOCHS):
            train(made, epochs=1)
            loss = public_loss(made)
            if epoch > 8 and loss > best:
                break
            best = min(best, loss)
    return watched.result(delta=DELTA)


def few_records_and_sums() -> Any:
    """Has empty batches, sums of losses, and groups of parameters with rates of their own."""
    model = perceptron()
    groups = [
        {"params": model[0].parameters(), "lr": 0.01, "weight_decay": 1e-3},
        {"params": model[2].parameters(), "lr": 0.005},
    ]
    options = {"data": records(200), "batch_size": 2, "loss_reduction": "sum"}
    made = private(model, make_optimizer=lambda _: torch.optim.SGD(groups), **options)
    made.criterion = nn.CrossEntropyLoss(reduction="sum")
    with watch(made.optimizer) as watched:
        train(made, epochs=2)
    return watched.result(delta=DELTA)


def noisy_gradients_clipped_again() -> Any:
    """Clips the noisy gradient to a fixed norm between the two halves of Opacus's step."""
    made = private()

    def step(_: Tensor) -> None:
        if made.optimizer.pre_step():
            nn.utils.clip_grad_norm_(made.model.parameters(), 0.5)
            made.optimizer.original_optimizer.step()

    return watched_training(made, step=step)


def adaptive_clipping() -> Any:
    """Adapts C to a noisy share of clipped gradients by Opacus's optimizer."""
    aim = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2}
    bounds = {"max_clipbound": 10.0, "min_clipbound": 0.05, "unclipped_num_std": 10.0}
    return watched_training(private(clipping="adaptive", **aim, **bounds))


def several_views_of_a_record() -> Any:
    """Averages losses of four noisy views of a record before its gradient, with dropout."""
    model = perceptron()
    model.insert(1, nn.Dropout(0.2))
    made = private(model)
    with watch(made.optimizer) as watched:
        for _ in range(EPOCHS):
            for inputs, labels in made.loader:
                views = inputs[:, None] + 0.2 * torch.randn(len(inputs), 4, FEATURES)
                made.optimizer.zero_grad()
                scores = made.model(views).transpose(1, 2)
                functional.cross_entropy(scores, labels[:, None].expand(-1, 4)).backward()
                made.optimizer.step()
    return watched.result(delta=DELTA)


WRONG = {
    "resumed without accountant": (resumed_without_accountant, "steps not accounted"),
    "hook of the accountant replaced": (hook_of_the_accountant_replaced, "steps not accounted"),
    "larger batches later": (larger_batches_later, "sample rate"),
    "loader of before": (loader_of_before, "not Poisson"),
    "batches kept in memory": (batches_kept_in_memory, "batches again"),
    "seeded in each epoch": (seeded_in_each_epoch, "noise again"),
    "noise without C": (noise_without_c, "noise scale"),
    "one seed for all tensors": (one_seed_for_all_tensors, "noise shared"),
    "noise that cancels": (noise_that_cancels, "noise correlated"),
    "better of two draws": (better_of_two_draws, "noise chosen"),
    "noise for words of the batch": (noise_for_words_of_the_batch, "noise missing"),
    "momentum before the noise": (momentum_before_the_noise, "sums before noise"),
    "each tensor to C": (each_tensor_to_c, "clipping"),
    "schedule beside ghost clipping": (schedule_beside_ghost_clipping, "clipping"),
    "divided by the batch": (divided_by_the_batch, "normalisation"),
    "penalty without noise": (penalty_without_noise, "clean gradient"),
    "projected on clean directions": (projected_on_clean_directions, "clean directions"),
    "bias set after training": (bias_set_after_training, "parameters change"),
    "running standardisation": (running_standardisation, "buffer"),
    "prototypes in the model": (prototypes_in_the_model, "buffer"),
}

RIGHT = {
    "adam on one cycle": (adam_on_one_cycle, "optimizer"),
    "memory manager": (memory_manager, "physical batches"),
    "memory manager with ghost clipping": (memory_manager_with_ghost_clipping, "ghost clipping"),
    "schedules of noise and C": (schedules_of_noise_and_c, "schedules"),
    "bounds of layers": (bounds_of_layers, "per layer"),
    "functorch with own layer": (functorch_with_own_layer, "functorch"),
    "averages for evaluation": (averages_for_evaluation, "swapped weights"),
    "averages at the end": (averages_at_the_end, "declared"),
    "adapters after public training": (adapters_after_public_training, "frozen"),
    "resumed with accountant": (resumed_with_accountant, "checkpoint"),
    "stopped by public loss": (stopped_by_public_loss, "early stopping"),
    "few records and sums": (few_records_and_sums, "empty batches"),
    "noisy gradients clipped again": (noisy_gradients_clipped_again, "post-processing"),
    "adaptive clipping": (adaptive_clipping, "adaptive"),
    "several views of a record": (several_views_of_a_record, "augmentation"),
}
