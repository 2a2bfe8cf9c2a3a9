"""A block of runs, trained in lockstep from start to end."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary
from dpcanary.data.observations import Observation
from dpcanary.errors import InputError
from dpcanary.training.augmentation import Views
from dpcanary.training.batches import batches_of
from dpcanary.training.ensemble_plan import Plan
from dpcanary.training.gradient_path import Batch, GradientPath
from dpcanary.training.gradients.linear import accumulated_noise
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.lockstep import Lockstep
from dpcanary.training.slots import Slots, assigned_worlds
from dpcanary.training.training_settings import Initialisation, Optimizer, Purpose

# A gradient shorter than this has no direction.
_SHORTEST = 1e-30


class InsertedGradients:
    """Gradient canaries in the layout of a path's buffers.

    A canary in one coordinate is one column of the buffer, unless the path spreads a parameter
    over several columns. Any other canary is a row of numbers. The `signs` are the factors on each
    slot's gradient in each run, shape (runs, slots).
    """

    def __init__(
        self, slots: Slots, path: GradientPath, *, max_grad_norm: float, signs: Tensor
    ) -> None:
        self._signs, self._norm, self._columns = signs, max_grad_norm, None
        coordinates = [c.coordinate for c in slots.canaries if isinstance(c, GradientCanary)]
        if coordinates:
            self._columns = path.columns_of(torch.tensor(coordinates, device=signs.device))
        if self._columns is None:
            encoded = torch.cat([self._encoded(canary, path) for canary in slots.canaries])
            touched = encoded.any(dim=0).nonzero()
            first, last = (int(touched.min()), int(touched.max()) + 1) if len(touched) else (0, 1)
            self._span = slice(first, last)
            self._gradients = encoded[:, self._span].contiguous()
            lengths = torch.stack([torch.linalg.vector_norm(row) for row in self._gradients])
            self._directions = self._gradients / lengths.clamp_min(_SHORTEST).unsqueeze(1)

    def add(self, sums: Tensor, inserted: Tensor) -> None:
        """Adds the gradients to sums (runs, columns) where `inserted` (runs, slots) is 1."""
        factors = self._signs * inserted
        if self._columns is not None:
            sums.scatter_add_(1, self._columns.expand(len(sums), -1), factors * self._norm)
        else:
            sums[:, self._span].addmm_(factors, self._gradients)

    def along(self, parameters: Tensor) -> Tensor:
        """The parameters along each slot's gradient, shape (runs, slots)."""
        if self._columns is not None:
            return parameters[:, self._columns]
        return parameters[:, self._span] @ self._directions.T

    def _encoded(self, canary: Canary, path: GradientPath) -> Tensor:
        """The gradient of a canary as a row of a buffer, shape (1, columns)."""
        device = self._signs.device
        if isinstance(canary, DirectionCanary):
            gradient = torch.from_numpy(np.asarray(canary.gradient, np.float32))[None].to(device)
        else:
            assert isinstance(canary, GradientCanary)
            gradient = path.decode(torch.zeros(1, path.num_parameters, device=device))
            gradient[0, canary.coordinate] = self._norm
        return path.encode(gradient)


class Block:
    """Some runs of a plan, with `worlds` of shape (runs, slots) and `step`, the steps done."""

    def __init__(self, plan: Plan, runs: Sequence[int]) -> None:
        self._plan, self._runs, self.step = plan, runs, 0
        path, dpsgd, slots = plan.path, plan.dpsgd, plan.slots
        self._parameters = _start(plan, runs)
        self._batch_size = dpsgd.expected_batch_size(len(plan.records))
        self._indices = torch.tensor(runs, dtype=torch.int64, device=plan.device)
        self._lockstep = Lockstep(
            path,
            self._parameters,
            dpsgd,
            batch_size=self._batch_size,
            seed=plan.seed,
            dropout_runs=np.asarray(runs, np.int64),
            noise_runs=self._indices,
        )
        self.worlds = assigned_worlds(
            plan.worlds,
            runs=np.asarray(runs, np.int64),
            num_slots=len(slots),
            seed=plan.seed,
            num_candidates=plan.num_candidates,
        )
        kind = batches_of(dpsgd, shared=dpsgd.sample_rate >= path.shared_above)
        self._batches = kind(path.table, slots, self.worlds, dpsgd, plan.seed, self._indices)
        self._views = None
        if multiplicity := dpsgd.augmentation_multiplicity:
            self._views = Views(multiplicity, len(path.table.labels), plan.seed, self._indices)
        self._gradients = self._start = None
        if slots.has_gradients:
            signs, norm = slots.signs_in(self.worlds).to(plan.device), dpsgd.max_grad_norm
            self._gradients = InsertedGradients(slots, path, max_grad_norm=norm, signs=signs)
            self._before = self._gradients.along(self._parameters)
        if plan.observe is Observation.CHANGE_AND_LENGTH:
            self._start = self._parameters.clone()
        self._noisy_gradients: list[Tensor] = []  # of the steps since the last recorded one

    def train(self, on_step: Callable[[], object]) -> NDArray[np.float32]:
        """Trains to the end, and returns observations, shape (runs, steps, slots, ...)."""
        seen = []
        for record_step in self._plan.dpsgd.record_steps:
            while self.step < record_step:
                self.advance()
                on_step()
            diverged = self._diverged()
            if diverged is not None:
                raise InputError(_divergence(self._plan, self._runs[diverged]))
            seen.append(self._observed().cpu().numpy())
        return np.stack(seen, axis=1)

    def advance(self) -> None:
        """Trains every run by one step."""
        lockstep = self._lockstep
        batch, inserted = self._batches.at(self.step)
        if self._views is not None:
            batch = replace(batch, views=self._views.at(self.step, batch.rows))
        lockstep.add_up(batch, step=self.step)
        if self._gradients is not None:
            self._gradients.add(lockstep.sums, inserted)
        lockstep.move(step=self.step)
        if self._plan.observe is Observation.NOISY_GRADIENTS:
            assert self._gradients is not None
            unit = self._plan.dpsgd.max_grad_norm * (1.0 / self._batch_size)
            self._noisy_gradients.append(self._gradients.along(lockstep.sums) / unit)
        self.step += 1

    def _observed(self) -> Tensor:
        """What the adversary sees of the models at this step, shape (runs, slots, ...)."""
        match self._plan.observe:
            case Observation.LOGITS:
                return self._logits()
            case Observation.GRADIENT_NORM:
                return self._gradient_norms()
            case Observation.CHANGE:
                return self._change()
            case Observation.VALUE:
                assert self._gradients is not None
                return self._gradients.along(self._parameters)
            case Observation.CHANGE_AND_LENGTH:
                assert self._start is not None
                # Decoded, since a buffer may be padded.
                whole = self._plan.path.decode(self._parameters - self._start)
                length = torch.linalg.vector_norm(whole, dim=1, keepdim=True)
                change = self._change()
                return torch.stack([change, length.expand_as(change)], dim=2)
            case Observation.NOISY_GRADIENTS:
                seen, self._noisy_gradients = self._noisy_gradients, []
                most = max(self._plan.dpsgd.steps_between)
                return torch.nn.functional.pad(torch.stack(seen, dim=2), (0, most - len(seen)))
            case never:
                assert_never(never)

    def _diverged(self) -> int | None:
        """Index in the block of a run whose parameters are not finite, or None."""
        # NaN and infinity show in the extremes, which need no copy of the parameters.
        least, most = self._parameters.aminmax(dim=1)
        finite = (least.isfinite() & most.isfinite()).cpu()
        return None if bool(finite.all()) else int(finite.int().argmin())

    def parameters(self, some: slice) -> Tensor:
        """Some of the models at this step, in the module's order, shape (runs, parameters).

        A path that trains in the span of the records gets the noise outside of the span here.
        """
        plan, dpsgd = self._plan, self._plan.dpsgd
        trained = plan.path.decode(self._parameters[some])
        if plan.path is plan.evaluator:
            return trained
        scale = self._lockstep.noise_scale
        rates = [scale * dpsgd.learning_rate_at(step) for step in range(self.step)]
        momentum = dpsgd.momentum if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
        drawn = trained.new_zeros(len(trained), plan.evaluator.num_parameters)
        self._lockstep.noise.add(
            drawn,
            factor=0.0,
            scale=accumulated_noise(rates, momentum=momentum),
            runs=self._indices[some],
            step=self.step,
            purpose=Purpose.OUT_OF_SPAN,
        )
        noise = plan.evaluator.decode(drawn)
        inside = plan.path.decode(plan.path.encode(noise))
        return trained + noise - inside

    def _change(self) -> Tensor:
        """How far the models moved along each slot's canary, shape (runs, slots)."""
        assert self._gradients is not None
        return self._gradients.along(self._parameters) - self._before

    def _gradient_norms(self) -> Tensor:
        """The norm of the gradient of each slot's canary, shape (runs, slots)."""
        path, ones = self._plan.path, self._parameters.new_ones(len(self._runs), 1)
        norms = []
        for row in range(path.table.num_private, path.table.null):
            batch = Batch(torch.tensor([row], device=ones.device), ones)
            # The next step overwrites these sums.
            path.clipped_sums(self._parameters, batch, math.inf, self._lockstep.sums)
            norms.append(torch.linalg.vector_norm(self._lockstep.sums, dim=1))
        return torch.stack(norms, dim=1)

    def _logits(self) -> Tensor:
        """Logits of each slot's target and canary, shape (runs, slots, 2, outputs).

        The canaries of a slot that may hold several labels have the same features, and logits.
        """
        path, table = self._plan.path, self._plan.path.table
        targets = torch.tensor([canary.target for canary in self._plan.slots.canaries])
        canaries = torch.arange(table.num_private, table.null, table.num_canaries // len(targets))
        pairs = torch.stack([targets, canaries], dim=1)
        rows = pairs.flatten().to(table.features.device)
        logits = path.logits(self._parameters, table.features[rows])
        return logits.view(len(logits), len(targets), 2, -1)


def _start(plan: Plan, runs: Sequence[int]) -> Tensor:
    """The buffer of some runs before the first step."""
    if plan.initialisation is Initialisation.ZEROS:  # a path in a basis holds much less
        return torch.zeros(len(runs), plan.path.num_parameters, device=plan.device)
    weights = plan.initial_weights
    start = initial_parameters(
        plan.module, plan.initialisation, seed=plan.seed, runs=[*runs], weights=weights
    )
    return plan.path.encode(start.to(plan.device)).contiguous()


def _divergence(plan: Plan, run: int) -> str:
    """Names the step at which a run diverged: trains it again, alone, and checks every step."""
    block, last = Block(plan, [run]), plan.dpsgd.record_steps[-1]
    while block._diverged() is None and block.step < last:
        block.advance()
    rate = plan.dpsgd.learning_rate_at(block.step - 1)
    return (
        f"run {run} diverged at step {block.step}: its parameters are not finite; lower"
        f" learning_rate ({rate:g})"
    )
