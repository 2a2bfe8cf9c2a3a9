"""Trainings that the adversary simulates on D: the reference model and a noiseless DP-SGD."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
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
from dpcanary.training.gradients.gradient_path import Batch
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.optimizers import optimizer_of
from dpcanary.training.options import Initialisation, Loss, Precision, Sampling
from dpcanary.training.purposes import Purpose
from dpcanary.training.reference import Reference
from dpcanary.training.slots import table_of


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

    Args:
        module: the architecture.
        records: the private records.
        dpsgd: optimiser, loss, learning rate and number of steps.
        initialisation: where runs start.
        device: where to compute.
        on_progress: called with the number of steps just done.

    Raises:
        InputError: if the training diverges.
    """
    unclipped = replace(dpsgd, max_grad_norm=inf)
    simulation = _Simulation(module, records, unclipped, initialisation, device)
    count, num_steps = len(records), dpsgd.record_steps[-1]
    rows = torch.arange(count, device=device)
    labels = torch.from_numpy(records.labels).to(device)
    total = torch.zeros(count, dtype=torch.float64, device=device)
    for step in range(num_steps):
        simulation.advance(step, rows, divisor=count)
        total += _confidence(simulation.logits(rows), labels, dpsgd.loss)
        on_progress(1)
    found = Reference(simulation.parameters(), (total / num_steps).cpu().numpy())
    _check_finite(
        "reference model, which is trained without clipping,", dpsgd, *vars(found).values()
    )
    return found


def accumulated_updates(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    seed: int,
    device: torch.device,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> NDArray[np.float64]:
    """How far each parameter moves in a simulated DP-SGD training without noise.

    The arguments are those of `train_reference`, and the audit's seed: batches are drawn from a
    stream that only the simulation uses.

    Returns:
        Shape (parameters,), in the module's order: the sum over steps of absolute updates (Pradhan
        et al., Algorithm 2).

    Raises:
        InputError: if the training diverges.
    """
    simulation = _Simulation(module, records, dpsgd, initialisation, device)
    stream = generator(seed=seed, purpose=Purpose.SIMULATION)
    count, divisor = len(records), dpsgd.expected_batch_size(len(records))
    before = simulation.parameters()
    moved = np.zeros(len(before))
    for step in range(dpsgd.record_steps[-1]):
        if dpsgd.sampling is Sampling.FIXED:
            chosen = stream.permutation(count)[: dpsgd.batch_size]
        else:
            chosen = np.flatnonzero(stream.random(count) < dpsgd.sample_rate)
        simulation.advance(step, torch.from_numpy(chosen).to(device), divisor=divisor)
        after = simulation.parameters()
        moved += np.abs(after - before)
        before = after
        on_progress(1)
    _check_finite("simulated training without noise", dpsgd, moved)
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
        table, self._dpsgd = table_of(records, [], device), dpsgd
        float32 = Precision.FLOAT32
        self._path = path_of(module, table, dpsgd=dpsgd, precision=float32, basis=None)
        if initialisation is Initialisation.PER_RUN:
            initialisation = Initialisation.FIXED
        start = initial_parameters(module, initialisation, seed=0, runs=[0])
        self._buffer = self._path.encode(start.to(device)).contiguous()
        self._sums = torch.empty_like(self._buffer)
        self._optimizer = optimizer_of(dpsgd, self._buffer, self._sums)

    def advance(self, step: int, rows: Tensor, *, divisor: float) -> None:
        """One step on some rows of the table, without noise."""
        batch = Batch(rows, torch.ones(1, len(rows), device=rows.device))
        self._path.clipped_sums(self._buffer, batch, self._dpsgd.max_grad_norm, self._sums)
        self._sums /= divisor
        self._optimizer.param_groups[0]["lr"] = self._dpsgd.learning_rate_at(step)
        self._optimizer.step()

    def logits(self, rows: Tensor) -> Tensor:
        """Shape (n, outputs)."""
        return self._path.logits(self._buffer, self._path.table.features[rows])[0]

    def parameters(self) -> NDArray[np.float32]:
        """In the module's order, shape (parameters,)."""
        return self._path.decode(self._buffer)[0].cpu().numpy().copy()


def _check_finite(training: str, dpsgd: DPSGD, *found: NDArray[np.floating]) -> None:
    if not all(np.isfinite(values).all() for values in found):
        rate = dpsgd.learning_rate_at(0)
        raise InputError(f"the {training} diverged: lower learning_rate ({rate:g})")


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
