"""One update of gradient descent, and its transposed derivative."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from dpcanary.checks import checked_real
from dpcanary.errors import InputError


class State(NamedTuple):
    """What one step hands to the next, or the derivative of the objective in it.

    Attributes:
        parameters: shape (P,).
        momentum: the optimiser's buffer, shape (P,).
    """

    parameters: Tensor
    momentum: Tensor


@dataclass(frozen=True)
class Descent:
    """Gradient descent as `torch.optim.SGD` does it, without dampening.

    Attributes:
        learning_rates: one per step.
        momentum: in [0, 1).
        nesterov: whether the momentum looks one step ahead; it needs momentum.
        weight_decay: added to the gradient, as a multiple of the parameters.

    Raises:
        InputError: if a value is out of range, or there is no step.
    """

    learning_rates: tuple[float, ...]
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        rates = tuple(
            checked_real(f"the learning rate of step {step}", rate, zero_included=True)
            for step, rate in enumerate(self.learning_rates, start=1)
        )
        if not rates:
            raise InputError("learning_rates is empty; give one rate per step")
        object.__setattr__(self, "learning_rates", rates)
        checked_real("momentum", self.momentum, most=1.0, zero_included=True)
        checked_real("weight_decay", self.weight_decay, zero_included=True)
        if self.nesterov and not self.momentum:
            raise InputError(
                "nesterov is on without momentum; set momentum above 0, or turn it off"
            )

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return len(self.learning_rates)

    def updated(self, state: State, gradient: Tensor, *, step: int) -> State:
        """The state after a step (0 for the first) with this gradient of the loss."""
        gradient = gradient.add(state.parameters, alpha=self.weight_decay)
        momentum = gradient.add(state.momentum, alpha=self.momentum)
        move = gradient.add(momentum, alpha=self.momentum) if self.nesterov else momentum
        return State(state.parameters.sub(move, alpha=self.learning_rates[step]), momentum)

    def pulled_back(self, adjoint: State, *, step: int) -> tuple[State, Tensor]:
        """The transposed derivative of `updated`, which is linear in the state and the gradient.

        Args:
            adjoint: derivative of the objective in the state after the step.
            step: 0 for the first.

        Returns:
            the derivative in the state before the step, for a fixed gradient of the loss; and the
            derivative in that gradient.
        """
        move = adjoint.parameters.mul(-self.learning_rates[step])
        momentum = adjoint.momentum.add(move, alpha=self.momentum if self.nesterov else 1.0)
        gradient = momentum + move if self.nesterov else momentum
        parameters = adjoint.parameters.add(gradient, alpha=self.weight_decay)
        return State(parameters, momentum.mul(self.momentum)), gradient
