"""A block of runs, trained in lockstep from start to end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dpcanary.canaries import AnyCanary, DirectionCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.randomness import Purpose
from dpcanary.training.batches import batches_of
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.noise import Noise
from dpcanary.training.optimizers import optimizer_of
from dpcanary.training.paths.path import Path, Table
from dpcanary.training.paths.rotation import accumulated_noise
from dpcanary.training.placement import Placement
from dpcanary.vocabulary import Initialisation, Optimizer


@dataclass(frozen=True)
class Plan:
    """What the runs of an ensemble share.

    Attributes:
        module: the architecture.
        records: private and test records.
        canary: what is inserted.
        dpsgd: the mechanism.
        table: the records as rows.
        placement: where the canary stands.
        path: computes gradients.
        evaluator: computes logits of whole models: the path itself, but for a rotated one.
        basis: in which the path trains, if it does.
        initialisation: how runs start.
        seed: the audit's seed.
        device: where to compute.
    """

    module: nn.Module
    records: Records
    canary: AnyCanary
    dpsgd: DPSGD
    table: Table
    placement: Placement
    path: Path
    evaluator: Path
    basis: Tensor | None
    initialisation: Initialisation
    seed: int
    device: torch.device


class Block:
    """Some runs of a plan.

    Attributes:
        step: steps done.
    """

    def __init__(self, plan: Plan, runs: Sequence[int]) -> None:
        self._plan, self._runs = plan, runs
        path, dpsgd = plan.path, plan.dpsgd
        indices = np.asarray(runs, np.int64)
        self._parameters = _started(plan, runs)
        self._sums = torch.empty_like(self._parameters)
        self._optimizer = optimizer_of(dpsgd, self._parameters, self._sums)
        self._noise = Noise(seed=plan.seed)
        self._indices = torch.from_numpy(indices).to(plan.device)
        self._batches = batches_of(
            table=path.table,
            placement=plan.placement,
            dpsgd=dpsgd,
            seed=plan.seed,
            runs=self._indices,
            shared=dpsgd.sample_rate >= path.shared_above,
        )
        self._batch_size = dpsgd.expected_batch_size(len(plan.records.labels))
        self._canary = _Inserted(plan, indices, self._parameters)
        self.step = 0

    def train(self, on_step: Callable[[], object]) -> NDArray[np.float32]:
        """Trains to the end.

        Args:
            on_step: called after each step.

        Returns:
            Observations, shape (runs, steps, ...).

        Raises:
            InputError: if a run diverges.
        """
        seen = []
        for record_step in self._plan.dpsgd.record_steps:
            while self.step < record_step:
                self.advance()
                on_step()
            if self.diverged() is not None:
                raise InputError(_divergence(self._plan, self._runs[self.diverged() or 0]))
            seen.append(self._canary.observed(self._parameters).cpu().numpy())
        return np.stack(seen, axis=1)

    def advance(self) -> None:
        """One step of every run."""
        dpsgd, size = self._plan.dpsgd, self._batch_size
        batch, inserted = self._batches.at(self.step)
        self._plan.path.clipped_sums(self._parameters, batch, dpsgd.max_grad_norm, self._sums)
        self._canary.add_gradient(self._sums, inserted)
        self._noise.add(
            self._sums,
            factor=1.0 / size,
            scale=dpsgd.noise_multiplier * dpsgd.max_grad_norm / size,
            runs=self._indices,
            step=self.step,
        )
        self._optimizer.param_groups[0]["lr"] = dpsgd.learning_rate_at(self.step)
        self._optimizer.step()
        self.step += 1

    def diverged(self) -> int | None:
        """Place in the block of a run whose parameters are not finite, if there is one."""
        # The extremes pass NaN and infinity on, and need no copy of the parameters.
        least, most = self._parameters.aminmax(dim=1)
        finite = (least.isfinite() & most.isfinite()).cpu()
        return None if bool(finite.all()) else int(finite.int().argmin())

    def parameters(self, some: slice) -> Tensor:
        """Some of the models as they are, in the module's order, shape (runs, parameters)."""
        plan = self._plan
        trained = plan.path.decode(self._parameters[some])
        if plan.basis is None:
            return trained
        drawn = trained.new_zeros(len(trained), plan.evaluator.num_parameters)
        self._noise.add(
            drawn,
            factor=0.0,
            scale=self._missing_noise(),
            runs=self._indices[some],
            step=self.step,
            purpose=Purpose.OUT_OF_SPAN,
        )
        noise = plan.evaluator.decode(drawn)
        inside = plan.path.decode(plan.path.encode(noise))
        return trained + noise - inside

    def _missing_noise(self) -> float:
        """Standard deviation of a coordinate outside of the span, by now."""
        dpsgd = self._plan.dpsgd
        scale = dpsgd.noise_multiplier * dpsgd.max_grad_norm / self._batch_size
        rates = [scale * dpsgd.learning_rate_at(step) for step in range(self.step)]
        momentum = dpsgd.momentum if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
        return accumulated_noise(rates, momentum=momentum)


def _started(plan: Plan, runs: Sequence[int]) -> Tensor:
    """The buffer of some runs before the first step."""
    if plan.initialisation is Initialisation.ZEROS:
        return torch.zeros(len(runs), plan.path.num_parameters, device=plan.device)
    start = initial_parameters(plan.module, plan.initialisation, seed=plan.seed, runs=[*runs])
    return plan.path.encode(start.to(plan.device)).contiguous()


class _Inserted:
    """The canary of a block: what it adds to gradients, and what is observed of it."""

    def __init__(self, plan: Plan, indices: NDArray[np.int64], parameters: Tensor) -> None:
        self._plan = plan
        self._pair = torch.tensor([plan.records.target, plan.table.canary], device=plan.device)
        self._signs = plan.placement.signs_of(indices).to(plan.device)
        if plan.placement.gradient is None:
            return
        gradient = plan.path.encode(plan.placement.gradient.to(plan.device).unsqueeze(0))[0]
        touched = gradient.nonzero()
        first, last = (int(touched.min()), int(touched.max()) + 1) if len(touched) else (0, 1)
        self._span = slice(first, last)
        self._gradient = gradient[self._span]
        length = torch.linalg.vector_norm(self._gradient).clamp_min(1e-30)
        self._direction = self._gradient / length
        self._start = parameters.clone() if isinstance(plan.canary, DirectionCanary) else None
        self._before = parameters[:, self._span] @ self._direction

    def add_gradient(self, sums: Tensor, inserted: Tensor) -> None:
        """Adds a gradient canary to the sums of the runs where it comes in."""
        if self._plan.placement.gradient is not None:
            sums[:, self._span].addr_(self._signs * inserted, self._gradient)

    def observed(self, parameters: Tensor) -> Tensor:
        """What the adversary sees of the models.

        Returns:
            Of an input canary, logits of the target and the canary, shape (runs, 2, outputs). Of
            a coordinate, its change, shape (runs,). Of a direction, the change along it and the
            length of the whole change, shape (runs, 2).
        """
        plan = self._plan
        if isinstance(plan.canary, InputCanary):
            return plan.path.logits(parameters, plan.path.table.features[self._pair])
        change: Tensor = parameters[:, self._span] @ self._direction - self._before
        if self._start is None:
            return change
        whole = plan.path.decode(parameters - self._start)  # without what pads the buffer
        return torch.stack([change, torch.linalg.vector_norm(whole, dim=1)], dim=1)


def _divergence(plan: Plan, run: int) -> str:
    """Which step broke a run: it is trained again, alone, and looked at after every step."""
    block, last = Block(plan, [run]), plan.dpsgd.record_steps[-1]
    while block.diverged() is None and block.step < last:
        block.advance()
    rate = plan.dpsgd.learning_rate_at(block.step - 1)
    return (
        f"run {run} diverged at step {block.step}: its parameters are not finite; lower"
        f" learning_rate ({rate:g})"
    )
