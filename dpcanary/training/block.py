"""A block of runs, trained in lockstep from start to end."""

from collections.abc import Callable, Sequence
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.errors import InputError
from dpcanary.observations import Observation
from dpcanary.training.batches import batches_of
from dpcanary.training.gradients.rotation import accumulated_noise
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.inserted import InsertedGradients
from dpcanary.training.noise import Noise
from dpcanary.training.optimizers import optimizer_of
from dpcanary.training.options import Initialisation, Optimizer
from dpcanary.training.plan import Plan
from dpcanary.training.purposes import Purpose
from dpcanary.training.worlds import assigned_worlds


class Block:
    """Some runs of a plan.

    Attributes:
        step: steps done.
        worlds: of each run and slot, shape (runs, slots).
    """

    def __init__(self, plan: Plan, runs: Sequence[int]) -> None:
        self._plan, self._runs = plan, runs
        path, dpsgd, indices = plan.path, plan.dpsgd, np.asarray(runs, np.int64)
        self._parameters = _started(plan, runs)
        self._sums = torch.empty_like(self._parameters)
        self._optimizer = optimizer_of(dpsgd, self._parameters, self._sums)
        self._noise = Noise(seed=plan.seed)
        self._indices = torch.from_numpy(indices).to(plan.device)
        self.worlds = assigned_worlds(
            plan.worlds, runs=indices, num_slots=len(plan.slots), seed=plan.seed
        )
        self._batches = batches_of(
            table=path.table,
            slots=plan.slots,
            worlds=self.worlds,
            dpsgd=dpsgd,
            seed=plan.seed,
            runs=self._indices,
            shared=dpsgd.sample_rate >= path.shared_above,
        )
        self._batch_size = dpsgd.expected_batch_size(len(plan.records))
        self._gradients = self._inserted_gradients() if plan.slots.has_gradients else None
        if self._gradients is not None:
            self._before = self._gradients.along(self._parameters)
        whole = plan.observe is Observation.CHANGE_AND_LENGTH
        self._start = self._parameters.clone() if whole else None
        self.step = 0

    def train(self, on_step: Callable[[], object]) -> NDArray[np.float32]:
        """Trains to the end.

        Args:
            on_step: called after each step.

        Returns:
            Observations, shape (runs, steps, slots, ...).

        Raises:
            InputError: if a run diverges.
        """
        seen = []
        for record_step in self._plan.dpsgd.record_steps:
            while self.step < record_step:
                self.advance()
                on_step()
            diverged = self.diverged()
            if diverged is not None:
                raise InputError(_divergence(self._plan, self._runs[diverged]))
            seen.append(self.observed().cpu().numpy())
        return np.stack(seen, axis=1)

    def advance(self) -> None:
        """Trains every run by one step."""
        dpsgd, size = self._plan.dpsgd, self._batch_size
        batch, inserted = self._batches.at(self.step)
        self._plan.path.clipped_sums(self._parameters, batch, dpsgd.max_grad_norm, self._sums)
        if self._gradients is not None:
            self._gradients.add(self._sums, inserted)
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

    def observed(self) -> Tensor:
        """What the adversary sees of the models as they are, shape (runs, slots, ...)."""
        match self._plan.observe:
            case Observation.LOGITS:
                return self._logits()
            case Observation.CHANGE:
                return self._change()
            case Observation.CHANGE_AND_LENGTH:
                assert self._start is not None
                # Decoded, since a buffer may be padded.
                whole = self._plan.path.decode(self._parameters - self._start)
                length = torch.linalg.vector_norm(whole, dim=1, keepdim=True)
                change = self._change()
                return torch.stack([change, length.expand_as(change)], dim=2)
            case never:
                assert_never(never)

    def diverged(self) -> int | None:
        """Place in the block of a run whose parameters are not finite, if there is one."""
        # NaN and infinity show in the extremes, which need no copy of the parameters.
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

    def _inserted_gradients(self) -> InsertedGradients:
        plan = self._plan
        signs = plan.slots.signs_in(self.worlds).to(plan.device)
        norm = plan.dpsgd.max_grad_norm
        return InsertedGradients(plan.slots, plan.path, max_grad_norm=norm, signs=signs)

    def _change(self) -> Tensor:
        """How far the models moved along each slot's canary, shape (runs, slots)."""
        assert self._gradients is not None
        return self._gradients.along(self._parameters) - self._before

    def _logits(self) -> Tensor:
        """Logits of each slot's target and canary, shape (runs, slots, 2, outputs)."""
        path, table = self._plan.path, self._plan.path.table
        targets = torch.tensor([canary.target for canary in self._plan.slots.canaries])
        pairs = torch.stack([targets, torch.arange(table.num_private, table.null)], dim=1)
        rows = pairs.flatten().to(table.features.device)
        logits = path.logits(self._parameters, table.features[rows])
        return logits.view(len(logits), len(targets), 2, -1)

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
