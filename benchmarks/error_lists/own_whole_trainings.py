"""Whole trainings for `dpcanary check --neighbours`: wrong ones and right ones.

Each function takes a dataset and returns what is released. The trainings in `WRONG` depend on a
record by more than their noisy sums; those in `RIGHT` do not.
"""

import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.optimizers import AdaClipDPOptimizer
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from dpcanary.own_training import record_sums, watch

NUM_RECORDS, NUM_FEATURES, BATCH = 160, 6, 16


class Training(NamedTuple):
    """A training, the properties of which one must fail, and the function that gives its data."""

    train: Callable[[Any], Any]
    expected: tuple[str, ...] = ()
    records: Callable[[], Any] | None = None


def records() -> TensorDataset:
    """Gaussian features and a label that follows from them; a third of the labels are 1."""
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(NUM_RECORDS, NUM_FEATURES, generator=generator)
    return TensorDataset(features, (features[:, 0] + features[:, 1] > 0.6).long())


def records_with_gaps() -> TensorDataset:
    """Features of which some are missing."""
    features, labels = records().tensors
    features[::7, 2] = float("nan")
    return TensorDataset(features, labels)


def arrays() -> tuple[Any, Any]:
    """The records as arrays of NumPy."""
    features, labels = records().tensors
    return features.numpy(), labels.numpy()


def perceptron(width: int = NUM_FEATURES) -> nn.Sequential:
    """A small network."""
    return nn.Sequential(nn.Linear(width, 12), nn.Tanh(), nn.Linear(12, 2))


def descent(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that most of these trainings have."""
    return torch.optim.SGD(parameters, lr=0.3)


class Fit:
    """A training with Opacus: what `make_private` returns, and a loop over it."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        network: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = descent,
        loss: Any = functional.cross_entropy,
        loader: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.network = network or perceptron()
        self.engine = PrivacyEngine(accountant="rdp")
        trained = [own for own in self.network.parameters() if own.requires_grad]
        if options.get("grad_sample_mode") == "ghost":
            options["criterion"] = nn.CrossEntropyLoss()
        private = self.engine.make_private(
            module=self.network,
            optimizer=optimizer(trained),
            data_loader=DataLoader(dataset, **{"batch_size": BATCH, **(loader or {})}),
            **{"noise_multiplier": 0.9, "max_grad_norm": 0.8, **options},
        )
        self.model, self.optimizer, self.loader = private[0], private[1], private[-1]
        self.loss = private[2] if len(private) == 4 else loss

    def step(self, features: Tensor, labels: Tensor) -> float:
        """One step; the loss of the batch, which is private."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model(features), labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def run(self, epochs: int = 2, step: Callable[[Tensor, Tensor], object] | None = None) -> Any:
        """The network, after some epochs."""
        for _ in range(epochs):
            for features, labels in self.loader:
                (step or self.step)(features, labels)
        return self.network


def with_features(change: Callable[[Tensor, Tensor], Tensor], dataset: TensorDataset) -> Any:
    """A training on features that are computed from all records."""
    features, labels = dataset.tensors
    changed = change(features, labels)
    return Fit(TensorDataset(changed, labels), network=perceptron(changed.shape[1])).run()


def standardised(features: Tensor, labels: Tensor) -> Tensor:
    """Scaled by the mean and the standard deviation of the private records."""
    return (features - features.mean(dim=0)) / features.std(dim=0)


def min_max(features: Tensor, labels: Tensor) -> Tensor:
    """Scaled by the smallest and the largest private values."""
    low, high = features.min(dim=0).values, features.max(dim=0).values
    return (features - low) / (high - low)


def principal(features: Tensor, labels: Tensor) -> Tensor:
    """Projected on the directions of the largest variance of the private records."""
    return features @ torch.linalg.svd(features - features.mean(dim=0))[2][:3].T


def ranked(features: Tensor, labels: Tensor) -> Tensor:
    """Replaced by ranks among the private records."""
    return features.argsort(dim=0).argsort(dim=0).float() / len(features)


def encoded_by_target(features: Tensor, labels: Tensor) -> Tensor:
    """With a feature that is the mean label of the records of the same bin."""
    bins = features[:, 0].clamp(-2, 2).round().long() + 2
    means = torch.stack([labels[bins == one].float().mean().nan_to_num() for one in range(5)])
    return torch.cat([features, means[bins][:, None]], dim=1)


def filled_by_mean(features: Tensor, labels: Tensor) -> Tensor:
    """With the mean of the other private records in place of missing values."""
    return torch.where(features.isnan(), features.nanmean(dim=0), features)


def bias_from_labels(dataset: TensorDataset) -> Any:
    """The bias of the last layer begins with the frequencies of the classes."""
    network = perceptron()
    share = dataset.tensors[1].bincount(minlength=2) / len(dataset)
    network[2].bias.data.copy_(share.log())
    return Fit(dataset, network=network).run()


def begun_without_noise(dataset: TensorDataset) -> Any:
    """Two steps on the private records without noise come first, as a warm-up."""
    network = perceptron()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        functional.cross_entropy(network(dataset.tensors[0]), dataset.tensors[1]).backward()
        optimizer.step()
    return Fit(dataset, network=network).run()


def class_weights(dataset: TensorDataset) -> Any:
    """The loss weighs the classes by their frequency."""
    labels = dataset.tensors[1]
    weights = len(labels) / (2 * labels.bincount(minlength=2)).float()
    return Fit(dataset, loss=lambda out, own: (weights[own] * losses(out, own)).mean()).run()


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of each record."""
    return functional.cross_entropy(outputs, labels, reduction="none")


def rate_by_loss(dataset: TensorDataset) -> Any:
    """The learning rate falls if the loss of an epoch does not."""
    fit = Fit(dataset)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        fit.optimizer.original_optimizer, factor=0.5, patience=0
    )
    for _ in range(4):
        scheduler.step(sum(fit.step(*batch) for batch in fit.loader))
    return fit.network


def rate_by_each_loss(dataset: TensorDataset) -> Any:
    """The learning rate is divided by the loss of the step before."""
    fit = Fit(dataset)

    def step(features: Tensor, labels: Tensor) -> None:
        loss = fit.step(features, labels)
        fit.optimizer.param_groups[0]["lr"] = 0.2 / (1 + loss)

    return fit.run(step=step)


def stopped_by_loss(dataset: TensorDataset) -> Any:
    """The training ends when the loss of all private records is low enough, or grows."""
    fit = Fit(dataset)
    before = float("inf")
    for _ in range(6):
        fit.run(epochs=1)
        with torch.no_grad():
            loss = float(losses(fit.network(dataset.tensors[0]), dataset.tensors[1]).mean())
        if loss > before - 0.002:
            break
        before = loss
    return fit.network


def steps_left_out(dataset: TensorDataset) -> Any:
    """Batches with a large loss are left out."""
    fit = Fit(dataset)

    def step(features: Tensor, labels: Tensor) -> None:
        fit.optimizer.zero_grad()
        with torch.no_grad():
            loss = losses(fit.model(features), labels)
        if len(loss) and loss.max() < 1.6:
            fit.step(features, labels)

    return fit.run(epochs=4, step=step)


def bound_from_first_batch(dataset: TensorDataset) -> Any:
    """C is the median norm of the gradients of the first batch."""
    fit = Fit(dataset)
    is_first = True

    def step(features: Tensor, labels: Tensor) -> None:
        nonlocal is_first
        fit.optimizer.zero_grad()
        fit.loss(fit.model(features), labels).backward()
        if is_first and len(labels):
            norms = torch.stack([own.flatten(1).norm(dim=1) for own in fit.optimizer.grad_samples])
            fit.optimizer.max_grad_norm = float(norms.norm(dim=0).mean())
            is_first = False
        fit.optimizer.step()

    return fit.run(step=step)


def noise_by_labels(dataset: TensorDataset) -> Any:
    """There is less noise if many records are positive."""
    share = float(dataset.tensors[1].float().mean())
    return Fit(dataset, noise_multiplier=1.2 - share).run()


class RunningMean(nn.Module):
    """Keeps a running average of its inputs, and does not use it in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(NUM_FEATURES))

    def forward(self, features: Tensor) -> Tensor:
        """The features as they are."""
        if self.training and len(features):
            self.mean = 0.9 * self.mean + 0.1 * features.detach().mean(dim=0)
        return features


def running_statistics(dataset: TensorDataset) -> Any:
    """A layer keeps an average of its inputs, which is released."""
    return Fit(dataset, network=nn.Sequential(RunningMean(), *perceptron())).run()


def clean_update(dataset: TensorDataset) -> Any:
    """After each step, the bias is moved by the mean residual of the batch."""
    fit = Fit(dataset)

    def step(features: Tensor, labels: Tensor) -> None:
        fit.step(features, labels)
        if len(labels):
            with torch.no_grad():
                fit.network[2].bias[1] += 0.01 * (labels.float().mean() - 0.5)

    return fit.run(step=step)


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, values: Tensor) -> Tensor:
        """The values, centred."""
        return values - values.mean(dim=0) if len(values) else values


def centred_batches(dataset: TensorDataset) -> Any:
    """A layer of the network subtracts the mean of the batch."""
    network = nn.Sequential(nn.Linear(NUM_FEATURES, 12), Centred(), nn.Linear(12, 2))
    return Fit(dataset, network=network).run()


def divided_by_positives(dataset: TensorDataset) -> Any:
    """The loss is divided by the number of positive records in the data."""
    count = int(dataset.tensors[1].sum())
    return Fit(dataset, loss=lambda out, own: 40 * losses(out, own).mean() / count).run()


def rate_by_positives(dataset: TensorDataset) -> Any:
    """The learning rate is divided by the number of positive records."""
    rate = 20 / int(dataset.tensors[1].sum())
    return Fit(dataset, optimizer=lambda own: torch.optim.SGD(own, lr=rate)).run()


def threshold_released(dataset: TensorDataset) -> Any:
    """The threshold of the classifier is the median score of the private records."""
    network = Fit(dataset).run()
    with torch.no_grad():
        scores = network(dataset.tensors[0])[:, 1]
    return {"model": network, "threshold": float(scores.median())}


def log_released(dataset: TensorDataset) -> Any:
    """The loss of each step is released with the model."""
    fit, log = Fit(dataset), []
    fit.run(step=lambda *batch: log.append(fit.step(*batch)))
    return fit.network, log


def outliers_removed(dataset: TensorDataset) -> Any:
    """Records beyond four standard deviations are left out."""
    features, labels = dataset.tensors
    kept = (features.abs() < 4).all(dim=1)
    return Fit(TensorDataset(features[kept], labels[kept])).run()


def duplicates_removed(dataset: TensorDataset) -> Any:
    """Records that come twice are left out."""
    features, labels = dataset.tensors
    kept = torch.as_tensor(np.unique(features.numpy(), axis=0, return_index=True)[1]).sort().values
    return Fit(TensorDataset(features[kept], labels[kept])).run()


def weighted_sampling(dataset: TensorDataset) -> Any:
    """Records of the smaller class are drawn more often."""
    labels = dataset.tensors[1]
    weights = (1 / labels.bincount(minlength=2).float())[labels]
    sampler = WeightedRandomSampler(weights.tolist(), len(labels))
    return Fit(dataset, loader={"sampler": sampler}, poisson_sampling=False).run()


def vocabulary(dataset: TensorDataset) -> Any:
    """Categories are numbered in the order in which the private records have them."""
    features, labels = dataset.tensors
    values = [round(float(value), 1) for value in features[:, 0]]
    numbers = {value: place for place, value in enumerate(dict.fromkeys(values))}
    codes = torch.tensor([[numbers[value] % 7] for value in values]) / 7
    changed = torch.cat([features, codes], dim=1)
    return Fit(TensorDataset(changed, labels), network=perceptron(NUM_FEATURES + 1)).run()


def best_epoch(dataset: TensorDataset) -> Any:
    """The parameters of the epoch with the lowest private loss are released."""
    fit, best, lowest = Fit(dataset), None, float("inf")
    for _ in range(4):
        fit.run(epochs=1)
        with torch.no_grad():
            worst = float(losses(fit.network(dataset.tensors[0]), dataset.tensors[1]).max())
        if worst < lowest:
            lowest = worst
            best = {name: own.clone() for name, own in fit.network.state_dict().items()}
    return best


def noise_until_it_fits(dataset: TensorDataset) -> Any:
    """Noise is drawn again if it opposes the sum."""
    fit = Fit(dataset)
    inner = type(fit.optimizer).add_noise
    kind = type("Choosing", (type(fit.optimizer),), {})

    def add_noise(own: Any) -> None:
        for _ in range(3):
            for parameter in own.params:
                parameter.summed_grad = parameter.summed_grad.clone()
            inner(own)
            first = own.params[0]
            if ((first.grad - first.summed_grad) * first.summed_grad).sum() > 0:
                break

    kind.add_noise = add_noise
    fit.optimizer = kind(
        fit.optimizer.original_optimizer,
        noise_multiplier=0.9,
        max_grad_norm=0.8,
        expected_batch_size=BATCH,
    )
    return fit.run()


def each_record_twice(dataset: TensorDataset) -> Any:
    """A record and its mirror image are clipped one by one, as if they were two records."""
    fit = Fit(dataset)

    def step(features: Tensor, labels: Tensor) -> None:
        fit.step(torch.cat([features, features]), torch.cat([labels, labels]))

    return fit.run(step=step)


def fails_on_a_value(dataset: TensorDataset) -> Any:
    """An assertion ends the training if a value is large."""
    fit = Fit(dataset)

    def step(features: Tensor, labels: Tensor) -> None:
        if len(features) and features.abs().max() > 6:
            raise ValueError("a value is out of range")
        fit.step(features, labels)

    return fit.run(step=step)


def missing_values(dataset: TensorDataset) -> Any:
    """Missing values are filled by 0 where some of a record are missing, and not if all are."""
    features, labels = dataset.tensors
    whole = features.isnan().all(dim=1, keepdim=True)
    return Fit(TensorDataset(torch.where(whole, features, features.nan_to_num()), labels)).run()


def statistics_in_a_file(dataset: TensorDataset) -> Any:
    """A file beside the model holds the means of the features."""
    folder = Path(mkdtemp())
    network = Fit(dataset).run()
    torch.save(network.state_dict(), folder / "model.pt")
    means = dataset.tensors[0].mean(dim=0).tolist()
    (folder / "features.json").write_text(json.dumps(means))
    return folder


def arrays_unclipped(dataset: tuple[Any, Any]) -> Any:
    """A loop with NumPy whose gradients are not clipped."""
    return numpy_loop(dataset, limit=float("inf"))


def arrays_scaled(dataset: tuple[Any, Any]) -> Any:
    """A loop with NumPy whose features are divided by the largest one."""
    features, labels = dataset
    return numpy_loop((features / np.abs(features).max(), labels))


def numpy_loop(dataset: tuple[Any, Any], *, limit: float = 0.7, seed: int = 3) -> Any:
    """Logistic regression with NumPy, Poisson batches and noise of its own."""
    features, labels = dataset
    rng = np.random.default_rng(seed)
    weights = np.zeros(features.shape[1], np.float32)
    for _ in range(25):
        batch = np.flatnonzero(rng.random(len(labels)) < 0.1)
        rows = np.asarray(features[batch])
        errors = 1 / (1 + np.exp(-rows @ weights)) - labels[batch]
        gradients = rows * errors[:, None]
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        total = (gradients * np.minimum(1, limit / (norms + 1e-9))).sum(axis=0)
        noisy = total + 0.7 * rng.standard_normal(len(weights))
        noisy = record_sums(
            total, noisy, max_grad_norm=0.7, noise_multiplier=1.0, parameters=weights
        )
        weights = weights - 0.3 * noisy / 16
    return weights


def jax_loop(dataset: tuple[Any, Any], *, scale_by_records: bool = False) -> Any:
    """Logistic regression with jax_privacy and optax."""
    import warnings

    import jax
    import jax.numpy as jnp
    import optax
    from jax_privacy import clipping, noise_addition

    from dpcanary.own_training import recorded

    warnings.simplefilter("ignore")  # jax_privacy 2.0 calls what optax 0.2.8 will remove
    features, labels = map(np.asarray, dataset)
    if scale_by_records:
        features = features / features.std(axis=0)

    def loss(parameters: Any, rows: Any, targets: Any) -> Any:
        scores = rows @ parameters["weights"] + parameters["bias"]
        return optax.sigmoid_binary_cross_entropy(scores, targets).mean()

    sums = clipping.clipped_grad(loss, l2_clip_norm=0.7, batch_argnums=(1, 2))
    privatizer = recorded(
        noise_addition.gaussian_privatizer(stddev=0.7, prng_key=jax.random.key(4)),
        max_grad_norm=0.7,
        noise_multiplier=1.0,
        sample_rate=0.1,
    )
    optimizer = optax.adam(0.05)
    parameters = {"weights": jnp.zeros(features.shape[1]), "bias": jnp.zeros(())}
    noise_state, state = privatizer.init(parameters), optimizer.init(parameters)

    @jax.jit
    def step(parameters: Any, states: Any, rows: Any, targets: Any, pads: Any) -> Any:
        total = sums(parameters, rows, targets, is_padding_example=pads)
        noisy, noise_state = privatizer.update(total, states[0], parameters)
        mean = jax.tree.map(lambda own: own / 16, noisy)
        updates, state = optimizer.update(mean, states[1])
        return optax.apply_updates(parameters, updates), (noise_state, state)

    rng, states = np.random.default_rng(2), (noise_state, state)
    for _ in range(20):
        batch = np.append(np.flatnonzero(rng.random(len(labels)) < 0.1), -1)[:40]
        padded = np.pad(batch, (0, 40 - len(batch)), constant_values=-1)
        rows, targets = features[padded], labels[padded].astype(np.float32)
        parameters, states = step(parameters, states, rows, targets, padded == -1)
    return jax.tree.map(np.asarray, parameters)


# ---------------------------------------------------------------------------------- right ones


def mode(dataset: TensorDataset, **options: Any) -> Any:
    """A training with Opacus in some mode."""
    return Fit(dataset, **options).run()


def adaptive_clipping(dataset: TensorDataset) -> Any:
    """A bound that follows a quantile of the norms, by noisy counts."""
    fit = Fit(dataset, network=perceptron())
    fit.optimizer = AdaClipDPOptimizer(
        fit.optimizer.original_optimizer,
        noise_multiplier=0.9,
        max_grad_norm=0.8,
        expected_batch_size=BATCH,
        target_unclipped_quantile=0.5,
        clipbound_learning_rate=0.2,
        max_clipbound=4.0,
        min_clipbound=0.1,
        unclipped_num_std=2.0,
    )
    return fit.run()


class LossOfEach(nn.Module):
    """The loss of each record, whatever its reduction says."""

    reduction = "mean"

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The losses, one for each record."""
        return losses(outputs, labels)


def adaptive_ghost_clipping(
    dataset: TensorDataset, *, criterion: Callable[[], nn.Module] = LossOfEach
) -> Any:
    """Ghost clipping whose bound follows the norms.

    Opacus 1.6.0 weighs the mean of the losses in place of each, if the criterion gives the mean.
    """
    from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
        PrivacyEngineAdaptiveClipping,
    )

    network = perceptron()
    model, optimizer, loss, loader = PrivacyEngineAdaptiveClipping().make_private(
        module=network,
        optimizer=descent(network.parameters()),
        criterion=criterion(),
        data_loader=DataLoader(dataset, batch_size=40),
        noise_multiplier=0.9,
        max_grad_norm=0.8,
        grad_sample_mode="ghost",
        target_unclipped_quantile=0.5,
        min_clipbound=0.1,
        max_clipbound=5.0,
        clipbound_learning_rate=0.2,
    )
    for _ in range(4):
        for features, labels in loader:
            optimizer.zero_grad()
            loss(model(features), labels).backward()
            optimizer.step()
    return network


def in_parts(dataset: TensorDataset) -> Any:
    """Batches are taken apart, to fit into memory."""
    fit = Fit(dataset)
    for _ in range(2):
        with BatchMemoryManager(
            data_loader=fit.loader, max_physical_batch_size=5, optimizer=fit.optimizer
        ) as loader:
            for features, labels in loader:
                fit.step(features, labels)
    return fit.network


def accumulated(dataset: TensorDataset) -> Any:
    """Gradients of two batches are added up before each step."""
    fit = Fit(dataset, loader={"batch_size": 10, "shuffle": True}, poisson_sampling=False)
    for _ in range(2):
        for number, (features, labels) in enumerate(fit.loader):
            fit.loss(fit.model(features), labels).backward()
            if number % 2:
                fit.optimizer.step()
                fit.optimizer.zero_grad()
    return fit.network


def schedules(dataset: TensorDataset) -> Any:
    """The learning rate and the noise follow schedules; momentum."""
    fit = Fit(dataset, optimizer=lambda own: torch.optim.SGD(own, lr=0.2, momentum=0.9))
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(fit.optimizer.original_optimizer, 20)
    noise = ExponentialNoise(fit.optimizer, gamma=0.98)

    def step(features: Tensor, labels: Tensor) -> None:
        fit.step(features, labels)
        rate.step()
        noise.step()

    return fit.run(step=step)


def averaged(dataset: TensorDataset) -> Any:
    """An exponential average of the parameters is released; dropout."""
    fit = Fit(dataset, network=nn.Sequential(nn.Dropout(0.2), *perceptron()))
    average = torch.optim.swa_utils.AveragedModel(
        fit.network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )

    def step(features: Tensor, labels: Tensor) -> None:
        fit.step(features, labels)
        average.update_parameters(fit.network)

    fit.run(step=step)
    return average.module


def public_standardisation(dataset: TensorDataset) -> Any:
    """Features are scaled by constants, and each record to length one."""
    features, labels = dataset.tensors
    scaled = functional.normalize((features - 0.1) / 1.3, dim=1)
    return Fit(TensorDataset(scaled, labels)).run()


def stopped_by_public_loss(dataset: TensorDataset) -> Any:
    """Public records decide when it ends, and the private loss is only printed."""
    fit, public = Fit(dataset), records().tensors
    for _ in range(5):
        fit.run(epochs=1)
        with torch.no_grad():
            private = [losses(fit.model(own), labels).sum() for own, labels in fit.loader]
            print(f"{float(sum(private)):.3f}", file=io.StringIO())
            if losses(fit.network(public[0]), public[1]).mean() < 0.5:
                break
    return fit.network


class Augmented(Dataset[Any]):
    """Records with random shifts of their own."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        features, label = self.dataset[index]
        return features + 0.1 * torch.randn(NUM_FEATURES), label


def augmented(dataset: TensorDataset) -> Any:
    """Each record is shifted at random, in workers."""
    return Fit(Augmented(dataset), loader={"num_workers": 2}).run()


def sliced(dataset: TensorDataset) -> Any:
    """A loop with PyTorch that takes rows of tensors, in double precision."""
    features, labels = (own.double() for own in dataset.tensors)
    generator = torch.Generator().manual_seed(8)
    weights = torch.zeros(NUM_FEATURES, dtype=torch.float64)
    velocity = torch.zeros_like(weights)
    for _ in range(25):
        batch = torch.rand(len(labels), generator=generator) < 0.1
        rows, targets = features[batch], labels[batch]
        gradients = rows * (torch.sigmoid(rows @ weights) - targets)[:, None]
        factors = (0.7 / (gradients.norm(dim=1) + 1e-9)).clamp(max=1)
        total = (gradients * factors[:, None]).sum(dim=0)
        noisy = total + 0.7 * torch.randn(NUM_FEATURES, generator=generator).double()
        noisy = record_sums(total, noisy, max_grad_norm=0.7, parameters=weights)
        velocity = 0.8 * velocity + noisy / 16
        weights = weights - 0.2 * velocity
    return {"weights": weights}


def shuffled_list(dataset: list[Any]) -> Any:
    """Records in a list, in a random order, of which the first ones are trained on."""
    order = torch.randperm(len(dataset)).tolist()
    return Fit(Subset(dataset, order[:128])).run()


def list_of_records() -> list[Any]:
    """Records as a list of pairs."""
    return [(features, int(label)) for features, label in zip(*records().tensors, strict=True)]


class Words(nn.Module):
    """A transformer whose attention has adapters of low rank; the rest is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)
        self.out = nn.Linear(8, 2)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of the classes."""
        values = self.embedding(words)
        queries = self.query(values) + self.up(self.down(values))
        attention = (queries @ self.key(values).transpose(1, 2) / 8**0.5).softmax(dim=-1)
        scores: Tensor = self.out(self.norm(values + attention @ self.value(values)).mean(dim=1))
        return scores


def sentences() -> TensorDataset:
    """Sequences of words and labels."""
    generator = torch.Generator().manual_seed(6)
    words = torch.randint(20, (NUM_RECORDS, 7), generator=generator)
    return TensorDataset(words, (words[:, 0] > 9).long())


def low_rank_adapters(dataset: TensorDataset) -> Any:
    """A transformer with adapters, trained with AdamW."""
    return Fit(
        dataset, network=Words(), optimizer=lambda own: torch.optim.AdamW(own, lr=0.02)
    ).run()


def not_deterministic(dataset: TensorDataset) -> Any:
    """Gradients have rounding errors that are never the same, as on graphics cards."""
    fit = Fit(dataset)
    jitter = torch.Generator()
    jitter.manual_seed(time.perf_counter_ns())

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        errors = 1e-6 * torch.randn(len(labels), generator=jitter)
        return (losses(outputs, labels) * (1 + errors)).mean()

    fit.loss = loss
    return fit.run()


def watched(dataset: TensorDataset) -> Any:
    """The training is watched."""
    fit = Fit(dataset, network=nn.Sequential(nn.Linear(NUM_FEATURES, 400), *[nn.Linear(400, 2)]))
    with watch(fit.optimizer, num_canaries=20):
        fit.run()
    return fit.network


def saved_in_a_folder(dataset: TensorDataset) -> Any:
    """The parameters are saved, and the settings beside them."""
    folder = Path(mkdtemp())
    fit = Fit(dataset)
    torch.save(fit.run().state_dict(), folder / "model.pt")
    epsilon = fit.engine.get_epsilon(1e-5)
    settings = {"sizes": dict(Counter(map(str, (BATCH,)))), "epsilon": epsilon}
    (folder / "settings.json").write_text(json.dumps(settings))
    return folder


_WITHOUT = ("sums without the record",)
_WITH = ("sums with the record",)
_RELEASED = ("what is released",)

WRONG: dict[str, Training] = {
    **{
        words: Training(partial(with_features, change), _WITHOUT)
        for words, change in {
            "standardised by private records": standardised,
            "scaled by smallest and largest values": min_max,
            "projected on principal components": principal,
            "ranks among private records": ranked,
            "encoded by mean labels": encoded_by_target,
        }.items()
    },
    "missing values filled by means": Training(
        partial(with_features, filled_by_mean), _WITHOUT, records_with_gaps
    ),
    "bias from class frequencies": Training(bias_from_labels, ("parameters",)),
    "begun without noise": Training(begun_without_noise, ("parameters",)),
    "class weights": Training(class_weights, _WITHOUT),
    "learning rate by the loss of an epoch": Training(rate_by_loss, ("settings",)),
    "learning rate by the loss of a step": Training(rate_by_each_loss, ("settings",)),
    "ended by the private loss": Training(stopped_by_loss, ("number of steps",)),
    "steps left out": Training(steps_left_out, ("batches", "number of steps")),
    "C from the first batch": Training(bound_from_first_batch, ("settings",)),
    "noise by the labels": Training(noise_by_labels, ("settings",)),
    "running statistics": Training(running_statistics, _RELEASED),
    "a clean update of the bias": Training(clean_update, ("parameters",)),
    "centred by the batch": Training(centred_batches, _WITH),
    "loss divided by positives": Training(divided_by_positives, _WITHOUT),
    "learning rate divided by positives": Training(rate_by_positives, ("settings",)),
    "threshold by private scores": Training(threshold_released, _RELEASED),
    "losses released": Training(log_released, _RELEASED),
    "outliers removed": Training(outliers_removed, ("batches", "number of steps", "settings")),
    "duplicates removed": Training(duplicates_removed, ("batches", "settings")),
    "weighted sampling": Training(weighted_sampling, ("batches",)),
    "numbers of categories": Training(vocabulary, _WITHOUT),
    "best epoch by private loss": Training(best_epoch, _RELEASED),
    "noise drawn until it fits": Training(noise_until_it_fits, ("random numbers",)),
    "each record twice": Training(each_record_twice, _WITH),
    "fails on a value": Training(fails_on_a_value, ("runs to its end",)),
    "missing values in sums": Training(missing_values, ("finite sums",), records_with_gaps),
    "statistics in a file": Training(statistics_in_a_file, _RELEASED),
    "adaptive ghost clipping of a mean loss": Training(
        partial(adaptive_ghost_clipping, criterion=nn.CrossEntropyLoss), _WITH
    ),
    "NumPy without clipping": Training(arrays_unclipped, _WITH, arrays),
    "NumPy, scaled by the largest value": Training(arrays_scaled, _WITHOUT, arrays),
    "jax, scaled by private records": Training(
        partial(jax_loop, scale_by_records=True), _WITHOUT, arrays
    ),
}

RIGHT: dict[str, Training] = {
    "hooks": Training(mode),
    "functorch": Training(partial(mode, grad_sample_mode="functorch")),
    "expanded weights": Training(partial(mode, grad_sample_mode="ew")),
    "ghost clipping": Training(partial(mode, grad_sample_mode="ghost")),
    "clipping per layer": Training(
        partial(mode, clipping="per_layer", max_grad_norm=[0.3, 0.3, 0.4, 0.4])
    ),
    "adaptive clipping": Training(adaptive_clipping),
    "adaptive ghost clipping": Training(adaptive_ghost_clipping),
    "sum of losses, Adam": Training(
        partial(
            mode,
            loss_reduction="sum",
            loss=partial(functional.cross_entropy, reduction="sum"),
            optimizer=partial(torch.optim.Adam, lr=0.02),
        )
    ),
    "shuffled batches": Training(partial(mode, poisson_sampling=False, loader={"shuffle": True})),
    "in parts": Training(in_parts),
    "accumulated": Training(accumulated),
    "schedules and momentum": Training(schedules),
    "averaged parameters, dropout": Training(averaged),
    "constants and records scaled alone": Training(public_standardisation),
    "ended by a public loss": Training(stopped_by_public_loss),
    "augmented in workers": Training(augmented),
    "rows of tensors": Training(sliced),
    "a list in random order": Training(shuffled_list, (), list_of_records),
    "transformer with adapters": Training(low_rank_adapters, (), sentences),
    "not deterministic": Training(not_deterministic),
    "watched": Training(watched),
    "saved in a folder": Training(saved_in_a_folder),
    "NumPy": Training(numpy_loop, (), arrays),
    "jax_privacy": Training(jax_loop, (), arrays),
}
