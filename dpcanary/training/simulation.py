"""Trainings that the adversary simulates on D: the reference model and a noiseless DP-SGD."""

from collections.abc import Callable
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.errors import InputError
from dpcanary.randomness import generator
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.gradient_path import Batch, GradientPath
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.optimizers import optimizer_of
from dpcanary.training.options import Initialisation, Loss, Precision, Sampling
from dpcanary.training.purposes import Purpose
from dpcanary.training.reference import Reference
from dpcanary.training.slots import table_of

Progress = Callable[[int], object]


def train_reference(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    device: torch.device,
    on_progress: Progress = lambda steps: None,
) -> Reference:
    """Trains a model without privacy, and picks the target record.

    Full-batch descent on the mean loss, with the optimiser of the audit, neither clipped nor
    noisy. The target is the record with the lowest confidence averaged over training (Pradhan et
    al., Section 3.2); full batches and the average over the models *after* each step are our
    reading. Where runs draw initial parameters of their own, the reference starts from the
    module's: it shares none with them.

    Args:
        module: the architecture.
        records: the private records.
        dpsgd: optimiser, loss, learning rate and number of steps.
        initialisation: where runs start.
        device: where to compute.
        on_progress: told the number of steps just done.
    """
    simulation = _Simulation(module, records, dpsgd, initialisation, device)
    count = len(records)
    rows = torch.arange(count, device=device)
    everyone = Batch(rows, torch.ones(1, count, device=device))
    labels = torch.from_numpy(records.labels).to(device)
    total = torch.zeros(count, dtype=torch.float64, device=device)
    for step in range(dpsgd.record_steps[-1]):
        simulation.advance(step, everyone, divisor=count, max_grad_norm=float("inf"))
        total += _confidence(simulation.logits(rows), labels, dpsgd.loss)
        on_progress(1)
    confidence = (total / dpsgd.record_steps[-1]).cpu().numpy()
    parameters = simulation.parameters()
    if not np.isfinite(confidence).all() or not np.isfinite(parameters).all():
        raise InputError(
            "the reference model, which is trained without clipping, diverged: lower learning_rate"
            f" ({dpsgd.learning_rate_at(0):g})"
        )
    return Reference(parameters, confidence)


def accumulated_updates(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    seed: int,
    device: torch.device,
    on_progress: Progress = lambda steps: None,
) -> NDArray[np.float64]:
    """How far each parameter moves in a simulated DP-SGD training without noise.

    Args:
        module: the architecture.
        records: the private records.
        dpsgd: the mechanism.
        initialisation: where runs start; for runs that draw their own, the module's parameters.
        seed: the audit's seed; the simulation has a stream of its own.
        device: where to compute.
        on_progress: told the number of steps just done.

    Returns:
        Shape (parameters,), in the module's order: the sum over steps of absolute updates (Pradhan
        et al., Algorithm 2).
    """
    simulation = _Simulation(module, records, dpsgd, initialisation, device)
    stream = generator(seed=seed, purpose=Purpose.SIMULATION)
    count, fixed = len(records), dpsgd.sampling is Sampling.FIXED
    moved = np.zeros(len(simulation.parameters()))
    before = simulation.parameters()
    for step in range(dpsgd.record_steps[-1]):
        if fixed:
            chosen = stream.permutation(count)[: dpsgd.batch_size]
        else:
            chosen = np.flatnonzero(stream.random(count) < dpsgd.sample_rate)
        rows = torch.from_numpy(chosen).to(device)
        batch = Batch(rows, torch.ones(1, len(rows), device=device))
        divisor = dpsgd.expected_batch_size(count)
        simulation.advance(step, batch, divisor=divisor, max_grad_norm=dpsgd.max_grad_norm)
        after = simulation.parameters()
        moved += np.abs(after - before)
        before = after
        on_progress(1)
    if not np.isfinite(moved).all():
        raise InputError(
            "the simulated training without noise diverged: lower learning_rate"
            f" ({dpsgd.learning_rate_at(0):g})"
        )
    return moved


class _Simulation:
    """One model that is trained on the private records alone."""

    def __init__(
        self,
        module: nn.Module,
        records: Records,
        dpsgd: DPSGD,
        initialisation: Initialisation,
        device: torch.device,
    ) -> None:
        table = table_of(records, [], device)
        self._path: GradientPath = path_of(
            module, table, dpsgd=dpsgd, precision=Precision.FLOAT32, basis=None
        )
        own = initialisation is Initialisation.PER_RUN
        known = Initialisation.FIXED if own else initialisation
        start = initial_parameters(module, known, seed=0, runs=[0])
        self._buffer = self._path.encode(start.to(device)).contiguous()
        self._sums = torch.empty_like(self._buffer)
        self._optimizer = optimizer_of(dpsgd, self._buffer, self._sums)
        self._dpsgd = dpsgd

    def advance(self, step: int, batch: Batch, *, divisor: float, max_grad_norm: float) -> None:
        """One step on a batch, without noise."""
        self._path.clipped_sums(self._buffer, batch, max_grad_norm, self._sums)
        self._sums /= divisor
        self._optimizer.param_groups[0]["lr"] = self._dpsgd.learning_rate_at(step)
        self._optimizer.step()

    def logits(self, rows: Tensor) -> Tensor:
        """Logits of some rows of the table, shape (n, outputs)."""
        return self._path.logits(self._buffer, self._path.table.features[rows])[0]

    def parameters(self) -> NDArray[np.float32]:
        """The model, in the module's order, shape (parameters,)."""
        return self._path.decode(self._buffer)[0].cpu().numpy().copy()


def _confidence(logits: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    """Probability of the true label, shape (n,)."""
    match loss:
        case Loss.CROSS_ENTROPY:
            probabilities = torch.softmax(logits, dim=1)
        case Loss.BINARY_CROSS_ENTROPY:
            if logits.shape[1] == 1:
                return torch.sigmoid(logits[:, 0] * (2.0 * labels - 1.0))
            probabilities = torch.sigmoid(logits)
        case never:
            assert_never(never)
    return probabilities.gather(1, labels.unsqueeze(1))[:, 0]
