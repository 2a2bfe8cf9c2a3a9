"""A training without noise whose every step can be done again, bit for bit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dpcanary.errors import InputError
from dpcanary.metagradients.descent import Descent, State
from dpcanary.metagradients.task import Batch, Task, reproducible_convolutions


@dataclass(frozen=True)
class Training:
    """Everything about a training but the pixels of its canaries.

    Attributes:
        task: what is learned.
        start: parameters before the first step, in the module's order, shape (P,).
        batches: one per step.
        descent: the optimiser.

    Raises:
        InputError: if there is not one batch per learning rate, a batch is empty or names a record
            that does not exist, or `start` has another length than the module's parameters.
    """

    task: Task
    start: Tensor
    batches: tuple[Batch, ...]
    descent: Descent

    def __post_init__(self) -> None:
        like = self.task.features
        object.__setattr__(self, "start", self.start.detach().to(like).clone())
        num_parameters = sum(part.numel() for part in self.task.module.parameters())
        if self.start.shape != (num_parameters,):
            raise InputError(
                f"start has shape {tuple(self.start.shape)}; the module has {num_parameters}"
                " parameters, so it must be one vector of that length"
            )
        if len(self.batches) != self.descent.num_steps:
            raise InputError(
                f"there are {len(self.batches)} batches and {self.descent.num_steps} learning"
                " rates; give one of each per step"
            )
        for step, batch in enumerate(self.batches, start=1):
            self._check(batch, step)

    def _check(self, batch: Batch, step: int) -> None:
        if not len(batch):
            raise InputError(f"the batch of step {step} is empty; give it a record")
        for name, indices, number in (
            ("record", batch.records, len(self.task.labels)),
            ("canary", batch.canaries, len(self.task.canary_labels)),
        ):
            if len(indices) and not 0 <= indices.min() <= indices.max() < number:
                raise InputError(
                    f"the batch of step {step} names {name} {int(indices.min())} to"
                    f" {int(indices.max())}; there are 0 to {number - 1}"
                )

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return self.descent.num_steps

    def first_state(self) -> State:
        """The state before the first step."""
        return State(self.start, torch.zeros_like(self.start))

    def advanced(self, state: State, pixels: Tensor, *, step: int) -> tuple[State, float]:
        """The state after a step (0 for the first), and the batch's loss before it.

        Raises:
            InputError: if the loss is not finite.
        """
        parameters = state.parameters.detach().requires_grad_()
        batch = self.batches[step]
        canaries = pixels[self.task.indices(batch.canaries)]
        loss = self.task.batch_loss(parameters, batch, canaries)
        self._check_finite(loss, step)
        (gradient,) = torch.autograd.grad(loss, parameters)
        return self.descent.updated(state, gradient, step=step), loss.item()

    def _check_finite(self, loss: Tensor, step: int) -> None:
        if not bool(loss.isfinite()):
            raise InputError(
                f"training diverged: the loss at step {step + 1} of {self.num_steps} is"
                f" {loss.item()}; lower the learning rates"
            )

    def check_end(self, state: State) -> None:
        """Checks the parameters after the last step.

        Raises:
            InputError: if one is not finite.
        """
        if not bool(state.parameters.isfinite().all()):
            raise InputError(
                f"training diverged: parameters after step {self.num_steps} of {self.num_steps}"
                " are not finite; lower the learning rates"
            )

    def curvature(
        self, parameters: Tensor, direction: Tensor, pixels: Tensor, *, step: int
    ) -> tuple[Tensor, Tensor | None, float]:
        """Second derivatives of a batch's loss, applied to a direction in the parameters.

        Args:
            parameters: before the step, shape (P,).
            direction: shape (P,).
            pixels: of all canaries, shape (m, ...).
            step: 0 for the first.

        Returns:
            the derivative of <direction, gradient of the loss> in the parameters, shape (P,); in
            the pixels of the batch's canaries, shape (k, ...), or None if it has none; and the
            loss.
        """
        batch = self.batches[step]
        leaves = [parameters.detach().requires_grad_()]
        canaries = pixels[self.task.indices(batch.canaries)]
        if len(canaries):  # else the first layer need not be differentiated in its inputs
            leaves.append(canaries.requires_grad_())
        loss = self.task.batch_loss(leaves[0], batch, canaries)
        (gradient,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
        parts = torch.autograd.grad(gradient, leaves, direction)
        return parts[0], parts[1] if len(canaries) else None, loss.item()


def trained(training: Training, pixels: Tensor) -> Tensor:
    """The parameters after the last step, shape (P,).

    Args:
        training: the training.
        pixels: of all canaries, shape (m, ...).

    Raises:
        InputError: if training diverges; it names the step.
    """
    pixels, state = training.task.pixels(pixels), training.first_state()
    with reproducible_convolutions():
        for step in range(training.num_steps):
            state, _ = training.advanced(state, pixels, step=step)
    training.check_end(state)
    return state.parameters
