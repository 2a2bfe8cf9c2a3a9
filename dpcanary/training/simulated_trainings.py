"""Trainings that the adversary simulates on D: the reference model, and DP-SGD itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.core.randomness import generator
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.batches import KnownBatches
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import Batch
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.initialisation import NO_RUN, initial_parameters
from dpcanary.training.lockstep import Lockstep
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.supported import check_parameters
from dpcanary.training.slots import table_of
from dpcanary.training.training_settings import Initialisation, Loss, Purpose, Sampling

# A function of the step that gives the rows of a batch, and weights, shape (models, rows).
_BatchOfStep = Callable[[int], tuple[NDArray[np.int64], NDArray[np.float32]]]


@dataclass(frozen=True)
class Reference:
    """The reference model and its confidence in each record.

    Attributes:
        parameters: shape (parameters,), in the module's order, at the end of training.
        mean_confidence: shape (records,), probability of the true label, averaged over the steps;
            minus the squared error where labels are numbers.
    """

    parameters: NDArray[np.float32]
    mean_confidence: NDArray[np.float64]

    def least_confident(self, count: int) -> NDArray[np.int64]:
        """The records of lowest mean confidence, ascending, shape (count,): the targets.

        Raises:
            InputError: if there are fewer records.
        """
        if count > len(self.mean_confidence):
            raise InputError(
                f"num_slots {count} is more than the {len(self.mean_confidence)} private records"
            )
        return np.argsort(self.mean_confidence, kind="stable")[:count]


def write_reference(path: Path, reference: Reference, *, origin: str = "") -> None:
    """Writes a reference file; `origin` as in `files.write_arrays`."""
    write_arrays(path, header={}, arrays=vars(reference), origin=origin)


def read_reference(path: Path) -> Reference:
    """Reads a reference file.

    Raises:
        InputError: if the file is damaged or holds no reference.
    """
    _, arrays = read_arrays(path)
    try:
        return Reference(**arrays)
    except TypeError:
        raise InputError(f"{path} holds no reference model; delete it and run again") from None


def train_reference(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    device: torch.device,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> Reference:
    """Trains a model without privacy, and measures its confidence in each record.

    Full-batch descent on the mean loss, with the optimiser of the audit, neither clipped nor
    noisy. Targets are the records of lowest confidence averaged over training (Pradhan et al.,
    Section 3.2). Full batches and the average over the models *after* each step are our reading.
    If runs draw initial parameters of their own, the reference starts from the module's, which
    none of them has.

    Raises:
        InputError: if the training diverges.
    """
    unclipped = replace(dpsgd, max_grad_norm=inf)
    count, num_steps = len(records), dpsgd.record_steps[-1]
    simulation = Simulation(module, records, unclipped, initialisation, device, batch_size=count)
    rows, ones = np.arange(count), np.ones((1, count), np.float32)
    everything = torch.from_numpy(rows).to(device)
    labels = torch.from_numpy(records.labels).to(device)
    total = torch.zeros(count, dtype=torch.float64, device=device)
    for _ in simulation.train(lambda step: (rows, ones), num_steps, on_progress):
        total += _confidence(simulation.logits(everything), labels, dpsgd.loss)
    parameters = simulation.decoded(simulation.parameters)[0].astype(np.float32)
    confidence = (total / num_steps).cpu().numpy()
    name = "reference model, which is trained without clipping,"
    check_finite(name, dpsgd, parameters, confidence)
    return Reference(parameters, confidence)


@dataclass(frozen=True)
class Movement:
    """How far each parameter moves in simulated trainings, added up over these.

    Attributes:
        absolute: sum of absolute updates (Pradhan et al., Algorithm 2), shape (parameters,), in the
            module's order.
        squared: sum of squared updates (Cebere et al., Algorithm 3, "PerStep"), shape (runs,).
        final: distance between start and end (there, "FinalModel"), shape (runs,).
    """

    absolute: NDArray[np.float64]
    squared: NDArray[np.float64]
    final: NDArray[np.float64]


def simulated_movement(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    seed: int,
    device: torch.device,
    targets: Sequence[int] = (),
    num_simulations: int = 1,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> Movement:
    """How far each parameter moves in simulated DP-SGD trainings without a canary.

    Known batches are those of the audit, without the `targets`. Poisson samples and noise come
    from streams that only simulations use. If runs draw initial parameters of their own, so do
    several simulations; a single one starts from the module's.

    Raises:
        InputError: if a training diverges, or a batch has more records than there are.
    """
    simulation = Simulation(
        module,
        records,
        dpsgd,
        initialisation,
        device,
        batch_size=dpsgd.expected_batch_size(len(records)),
        seed=seed,
        count=num_simulations,
    )
    if dpsgd.sampling is Sampling.FIXED:
        others = np.delete(np.arange(len(records)), [*targets])
        batches = _known_batches(others, dpsgd, seed, num_simulations)
    else:
        batches = _sampled_batches(len(records), dpsgd, seed, num_simulations)
    start = simulation.parameters.clone()
    before, absolute, squared = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for _ in simulation.train(batches, dpsgd.record_steps[-1], on_progress):
        update = simulation.parameters - before
        absolute += update.abs()
        squared += update.square_()
        before.copy_(simulation.parameters)
    parts = absolute, squared, (before - start).abs()
    sums = [simulation.decoded(part).sum(axis=0) for part in parts]
    check_finite("simulated training", dpsgd, *sums)
    return Movement(*sums)


def _known_batches(records: NDArray[np.int64], dpsgd: DPSGD, seed: int, count: int) -> _BatchOfStep:
    """Known batches of the audit, with weights of 1."""
    assert dpsgd.batch_size is not None
    batches = KnownBatches(records, batch_size=dpsgd.batch_size, seed=seed)
    ones = np.ones((count, dpsgd.batch_size), np.float32)
    return lambda step: (batches.at(step), ones)


def _mean_batches(records: NDArray[np.int64], dpsgd: DPSGD) -> _BatchOfStep:
    weights = np.full((1, len(records)), dpsgd.sample_rate, np.float32)
    return lambda step: (records, weights)


def _sampled_batches(num_records: int, dpsgd: DPSGD, seed: int, count: int) -> _BatchOfStep:
    stream = generator(seed=seed, purpose=Purpose.SIMULATION)

    def sampled(step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        masks = stream.random((count, num_records)) < dpsgd.sample_rate
        rows = np.flatnonzero(masks.any(axis=0))
        return rows, masks[:, rows].astype(np.float32)

    return sampled


class Simulation:
    """Models that are trained without a canary.

    Attributes:
        path: computes their logits and gradients.
        parameters: shape (models, columns), in the layout of the path.
    """

    def __init__(
        self,
        module: nn.Module,
        records: Records,
        dpsgd: DPSGD,
        initialisation: Initialisation,
        device: torch.device,
        *,
        batch_size: float,
        seed: int = 0,
        count: int = 1,
    ) -> None:
        """Takes `count` models, whose sums are divided by the batch size."""
        check_parameters(module)
        self.path = path_of(module, table_of(records, [], device), dpsgd=dpsgd, basis=None)
        if count == 1 and initialisation is Initialisation.PER_RUN:
            initialisation = Initialisation.FIXED
        indices = [NO_RUN - 1 - model for model in range(count)]  # no audit has so many runs
        start = initial_parameters(module, initialisation, seed=seed, runs=indices)
        self.parameters = self.path.encode(start.to(device)).contiguous()
        self._lockstep = Lockstep(
            self.path,
            self.parameters,
            dpsgd,
            batch_size=batch_size,
            seed=seed,
            dropout_runs=np.array(indices),
            noise_runs=torch.arange(count, device=device),
            purpose=Purpose.SIMULATED_NOISE,
        )

    def train(
        self, batches: _BatchOfStep, num_steps: int, on_progress: Callable[[int], object]
    ) -> Iterator[int]:
        """Trains all models, and gives the number of each step after it."""
        device = self.parameters.device
        for step in range(num_steps):
            rows, weights = batches(step)
            batch = Batch(torch.from_numpy(rows).to(device), torch.from_numpy(weights).to(device))
            self._lockstep.add_up(batch, step=step)
            self._lockstep.move(step=step)
            yield step + 1
            on_progress(1)

    def logits(self, rows: Tensor) -> Tensor:
        """Those of the first model, shape (n, outputs)."""
        return self.path.logits(self.parameters, self.path.table.features[rows])[0]

    def decoded(self, parameters: Tensor) -> NDArray[np.float64]:
        """Parameters, or changes of them, in the module's order, shape (models, parameters)."""
        return np.asarray(self.path.decode(parameters).cpu().numpy(), np.float64)


def check_finite(training: str, dpsgd: DPSGD, *arrays: NDArray[np.floating]) -> None:
    """Refuses a simulated training that diverged, so that a number is not finite."""
    if not all(np.isfinite(array).all() for array in arrays):
        rate = dpsgd.learning_rate_at(0)
        raise InputError(f"the {training} diverged: lower learning_rate ({rate:g})")


def _confidence(logits: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Probability of the true label, shape (n,); minus the loss where labels are numbers."""
    match loss:
        case Loss.CROSS_ENTROPY:
            probabilities = torch.softmax(logits, dim=1)
        case Loss.SQUARED_ERROR:
            return -record_losses(logits, labels, loss)
        case Loss.BINARY_CROSS_ENTROPY | Loss.LOGISTIC:
            if logits.shape[1] == 1:
                return torch.sigmoid(logits[:, 0] * (2.0 * labels - 1.0))
            probabilities = torch.sigmoid(logits)
        case never:
            assert_never(never)
    return probabilities.gather(1, labels.unsqueeze(1))[:, 0]


def expected_changes(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    seed: int,
    device: torch.device,
    targets: Sequence[int],
    coordinates: NDArray[np.int64],
    on_progress: Callable[[int], object] = lambda steps: None,
) -> NDArray[np.float64]:
    """How far some parameters move in a training without noise, canaries and their targets.

    Sampled batches are replaced by their mean: every record enters every step, with the sample rate
    as its weight. If runs draw initial parameters of their own, this starts from the module's.

    Returns:
        Changes of the parameters at `coordinates` (indices in the module's order, shape (K,))
        since the start, after each recorded step, shape (steps, K).
    """
    quiet = replace(dpsgd, noise_multiplier=0.0)
    others = np.delete(np.arange(len(records)), [*targets])
    batch_size = dpsgd.expected_batch_size(len(records))
    simulation = Simulation(
        module, records, quiet, initialisation, device, batch_size=batch_size, seed=seed
    )
    if dpsgd.sampling is Sampling.FIXED:
        batches = _known_batches(others, dpsgd, seed, count=1)
    else:
        batches = _mean_batches(others, dpsgd)
    start, changes = simulation.parameters.clone(), []
    for step in simulation.train(batches, dpsgd.record_steps[-1], on_progress):
        if step in dpsgd.record_steps:
            moved = simulation.decoded(simulation.parameters - start)
            changes.append(moved[0, coordinates])
    check_finite("training without noise", dpsgd, *changes)
    return np.array(changes)
