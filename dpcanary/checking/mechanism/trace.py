"""What is seen of one training: where the parameters were, and what the optimiser was given."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.func import debug_unwrap
from torch.nn.utils import vector_to_parameters
from torch.optim.optimizer import register_optimizer_step_pre_hook

Flat = NDArray[np.float32]


class NoisyStep(NamedTuple):
    """The noisy sum of a step, flat, and the parameters at which its gradients were taken."""

    values: Flat
    state: Flat


@dataclass
class OptimizerStep:
    """What an optimiser of PyTorch was given in one step.

    Attributes:
        optimizer: its class.
        groups: its parameter groups, with names in place of parameters.
        state: flat parameters before the step.
        gradients: flat gradients.
    """

    optimizer: type
    groups: list[dict[str, Any]]
    state: Flat
    gradients: Flat


@dataclass
class Trace:
    """Flat parameters whenever they were seen changed, and the optimiser's steps.

    Attributes:
        states: the parameters, in order.
        steps: of an optimiser of PyTorch.
        called: parameters with which the module was called in training; others than those of the
            states if gradients are taken elsewhere.
        by_yields: whether the loop says when a step is done. Then its calls do not show steps.
        last_called: parameters of the last call in training.
        sums: noisy sums in the order of the loop, if they were looked for.
        noisy_steps: the same by step; None if they are not one for each parameter.
    """

    states: list[Flat] = field(default_factory=list)
    steps: list[OptimizerStep] = field(default_factory=list)
    called: list[Flat] = field(default_factory=list)
    by_yields: bool = False
    last_called: Flat = field(default_factory=lambda: np.zeros(0, np.float32))
    sums: list[Tensor] = field(default_factory=list)
    noisy_steps: list[NoisyStep] | None = None
    # States that evaluation shows as well; what is evaluated may be an average.
    _with_evaluation: list[Flat] = field(default_factory=list)

    def __deepcopy__(self, memo: object) -> "Trace":
        """A copy of a module is trained in its place: what it shows is the same training's."""
        return self

    def saw(self, parameters: Sequence[Tensor], *, in_training: bool) -> None:
        """Keeps the parameters of a call of the module, unless they are those of many models."""
        if torch.compiler.is_compiling():
            return
        state = _flat(parameters)
        if self.states and state.shape != self.states[0].shape:
            return
        if not self.by_yields:
            append_changed(self._with_evaluation, state)
        if in_training:
            self.last_called = state
            append_changed(self.called, state)
            if not self.by_yields:
                append_changed(self.states, state)

    def keep(self, parameters: Sequence[Tensor]) -> None:
        """Keeps the parameters between steps if they have changed."""
        state = _flat(parameters)
        append_changed(self.states, state)
        append_changed(self._with_evaluation, state)

    def end(self, parameters: Sequence[Tensor]) -> None:
        """Keeps the parameters at the end; a loop that calls no module in training shows others."""
        self.keep(parameters)
        if not self.called and not self.by_yields:
            self.states = self._with_evaluation

    @contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Watches the optimisers of PyTorch that train the module."""

        def before(optimizer: torch.optim.Optimizer, *_: object) -> None:
            names = {id(parameter): name for name, parameter in module.named_parameters()}
            groups = [
                {
                    **group,
                    "params": [
                        names[id(parameter)]
                        for parameter in group["params"]
                        if id(parameter) in names
                    ],
                }
                for group in optimizer.param_groups
            ]
            if any(group["params"] for group in groups):
                parameters = [*module.parameters()]
                gradients = [
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    for parameter in parameters
                ]
                step = OptimizerStep(type(optimizer), groups, _flat(parameters), _flat(gradients))
                self.steps.append(step)

        handle = register_optimizer_step_pre_hook(before)
        try:
            yield
        finally:
            handle.remove()


def append_changed(states: list[Flat], state: Flat) -> None:
    """Appends parameters unless they are the last ones."""
    if not states or not np.array_equal(state, states[-1]):
        states.append(state)


def _flat(tensors: Sequence[Tensor]) -> Flat:
    plain = [
        debug_unwrap(getattr(tensor, "orig_weight", tensor), recurse=True) for tensor in tensors
    ]
    # Inside `grad` or `vmap`, operations would be theirs, whose results have no values.
    with temporarily_clear_interpreter_stack():
        return torch.cat([tensor.detach().reshape(-1).float().cpu() for tensor in plain]).numpy()


def is_plain(step: OptimizerStep) -> bool:
    """Whether parameters move by the learning rate times the gradient."""
    return step.optimizer is torch.optim.SGD and not any(
        group["momentum"] or group["weight_decay"] or group["maximize"] for group in step.groups
    )


def replayed(steps: Sequence[OptimizerStep], shapes: dict[str, torch.Size]) -> list[Flat]:
    """Flat parameters after each step of a fresh optimiser that is given the same gradients.

    Each step starts where the parameters were seen, so what moves them in between does not add up.
    """
    parameters = {name: nn.Parameter(torch.empty(shape)) for name, shape in shapes.items()}
    vector_to_parameters(torch.from_numpy(steps[0].state.copy()), parameters.values())
    sizes = [parameter.numel() for parameter in parameters.values()]
    first = [
        {**group, "params": [parameters[name] for name in group["params"]]}
        for group in steps[0].groups
    ]
    optimizer, states = steps[0].optimizer(first), []
    for step in steps:
        for group, recorded in zip(optimizer.param_groups, step.groups, strict=True):
            group.update({key: value for key, value in recorded.items() if key != "params"})
        vector_to_parameters(torch.from_numpy(step.state.copy()), parameters.values())
        gradients = torch.split(torch.from_numpy(step.gradients.copy()), sizes)
        for parameter, own in zip(parameters.values(), gradients, strict=True):
            parameter.grad = own.view(parameter.shape)
        optimizer.step()
        states.append(_flat([*parameters.values()]))
    return states
