"""Forward and backward passes of a module that record the inputs and gradients of its units.

A unit is a submodule whose parameters' gradients follow from its inputs and the gradient in its
outputs. Each parameter belongs to exactly one unit.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from dpcanary.training.losses import record_losses
from dpcanary.training.training_settings import Loss

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Unit:
    """A submodule, its parameters and its tensors' layout.

    Attributes:
        name: dotted, as in the module; empty for the module itself.
        start: first of its parameters in a row of the buffer.
        stop: after the last.
        copies: whether its inputs and outputs are copied because later operations change them.
        input_dims: the dimension of the records in each input tensor, or None if it has none;
            empty before it is known.
        output_dims: the same of each output tensor, which always has one.
    """

    name: str
    start: int
    stop: int
    copies: bool
    input_dims: Dims = ()
    output_dims: tuple[int, ...] = ()


@dataclass
class Call:
    """One call of a unit.

    Attributes:
        unit: index of the unit.
        inputs: the leaves of its arguments.
        structure: rebuilds the arguments from the leaves.
        outputs: the output tensors on which a loss may depend.
        watched: tensors that the forward pass uses further, and their versions at the call; a
            later version means that the tensor was changed in place.
    """

    unit: int
    inputs: list[Any]
    structure: TreeSpec
    outputs: list[Tensor]
    watched: list[tuple[Tensor, int]]

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the inputs."""
        return [leaf for leaf in self.inputs if isinstance(leaf, Tensor)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments and keyword arguments, with these tensors in place of its own."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.inputs]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs


def views_of(parameters: dict[str, nn.Parameter], row: Tensor) -> dict[str, Tensor]:
    """Views of a row of the buffer, shape (parameters,), that have the parameters' shapes."""
    parts = torch.split(row, [parameter.numel() for parameter in parameters.values()])
    named = zip(parameters.items(), parts, strict=True)
    return {name: part.view(parameter.shape) for (name, parameter), part in named}


class Recorder:
    """A copy of a module with hooks on its units. Each thread needs its own.

    Args:
        module: the model; copied.
        units: which submodules to watch.
    """

    def __init__(self, module: nn.Module, units: Sequence[Unit]) -> None:
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.units = tuple(units)
        self.layers = [self.module.get_submodule(unit.name) for unit in units]
        self._parameters = dict(self.module.named_parameters())
        self._calls: list[Call] | None = None  # None while nothing is recorded
        self._shifts: list[Tensor] | None = None  # None while one model runs
        for index, layer in enumerate(self.layers):
            layer.register_forward_pre_hook(partial(self._before, index), with_kwargs=True)
            layer.register_forward_hook(partial(self._after, index))

    def load(self, row: Tensor) -> None:
        """Makes the module's parameters views of a row of the buffer, shape (parameters,)."""
        for name, view in views_of(self._parameters, row).items():
            self._parameters[name].data = view

    def outputs_of(self, row: Tensor, features: Tensor) -> Tensor:
        """Outputs with the parameters of a row, as a function for `torch.func`."""
        views = views_of(self._parameters, row)
        outputs: Tensor = functional_call(self.module, views, (features,))
        return outputs

    def record(self, features: Tensor) -> tuple[Tensor, list[Call]]:
        """Outputs of the loaded module, and its units' calls in order."""
        calls: list[Call] = []
        self._calls = calls
        try:
            with torch.enable_grad():
                outputs: Tensor = self.module(features)
        finally:
            self._calls = None
        return outputs, calls

    def record_runs(
        self, parameters: Tensor, features: Tensor, shifts: list[Tensor], *, shared: bool
    ) -> tuple[Tensor, list[Call]]:
        """Many models at once.

        Args:
            parameters: shape (runs, parameters).
            features: shape (n, ...) if shared by all runs, else (runs, n, ...).
            shifts: added to each output of each call, in order; their first dimension is the runs.
            shared: see `features`.

        Returns:
            Outputs of shape (runs, n, outputs), and the calls. All inputs and outputs of the calls
            have the runs as first dimension; the shifts stand for the outputs.
        """
        calls: list[Call] = []

        def of_run(row: Tensor, records: Tensor, *own: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
            self._calls, self._shifts = calls, list(own)
            outputs = self.outputs_of(row, records)
            return outputs, [call.tensors for call in calls]

        try:
            with torch.enable_grad():
                in_dims = (0, None if shared else 0, *[0 for _ in shifts])
                outputs, tensors = vmap(of_run, in_dims)(parameters, features, *shifts)
        finally:
            self._calls, self._shifts = None, None
        rest = iter(shifts)
        for call, own in zip(calls, tensors, strict=True):
            call.inputs = tree_flatten(call.with_tensors([tensor.detach() for tensor in own]))[0]
            call.outputs = [next(rest) for _ in call.outputs]
        return outputs, calls

    def _before(
        self, index: int, _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Records a unit's inputs."""
        if self._calls is None:
            return
        leaves, structure = tree_flatten((args, kwargs))
        call = Call(index, leaves, structure, [], [])
        self._calls.append(call)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                call.watched.append((leaf, leaf._version))
                detached = leaf.detach()
                leaves[place] = detached.clone() if self.units[index].copies else detached

    def _after(self, index: int, _layer: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Records a unit's outputs as tensors in which a loss can be differentiated."""
        if self._calls is None:
            return None
        call = next(call for call in reversed(self._calls) if call.unit == index)
        leaves, structure = tree_flatten(output)
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.is_floating_point():
                leaves[place] = self._tapped(call, leaf)
        return tree_unflatten(leaves, structure)

    def _tapped(self, call: Call, output: Tensor) -> Tensor:
        if self._shifts is not None:
            call.outputs.append(output)
            if not self._shifts or self._shifts[0].shape != output.shape:
                raise RuntimeError("the module calls its layers differently for other records")
            return output + self._shifts.pop(0)
        call.outputs.append(output.requires_grad_())
        passed = output.clone() if self.units[call.unit].copies else output
        call.watched.append((passed, passed._version))
        return passed


@dataclass(frozen=True)
class Used:
    """A call of a unit, and the gradients in its outputs.

    Attributes:
        call: the call.
        inputs: its input tensors. Their first dimension is the runs; the second is the records,
            if the tensor has a dimension for them.
        gradients: in its outputs, shape (runs, n, ...).
    """

    call: Call
    inputs: list[Tensor]
    gradients: list[Tensor]


@torch.enable_grad()
def used_by_one(
    recorder: Recorder, features: Tensor, labels: Tensor, loss: Loss, *, num_views: int = 1
) -> list[list[Used]]:
    """The calls of each unit of the loaded model, with the gradients of its records' losses.

    Args:
        recorder: with the model's parameters loaded.
        features: shape (n, ...).
        labels: shape (n,).
        loss: of each record.
        num_views: of a record; its loss is the mean over them. All records come in their first
            view, then all in their second one, and so on. Each view becomes a call of its own.
    """
    outputs, calls = recorder.record(features)
    losses = record_losses(outputs, labels, loss) / num_views
    return _used(recorder, calls, losses, is_single=True, num_views=num_views)


@torch.enable_grad()
def used_by_all(
    recorder: Recorder,
    parameters: Tensor,
    features: Tensor,
    labels: Tensor,
    loss: Loss,
    shapes: Sequence[tuple[int, ...]],
    *,
    num_views: int = 1,
) -> list[list[Used]]:
    """Units and losses of all runs together, with parameters of shape (runs, parameters).

    Features have shape (n, ...) and labels (n,) where the runs share them, else (runs, n, ...) and
    (runs, n). `shapes` are those of the outputs of every call, for these n records and one run.
    """
    runs = len(parameters)
    zero = parameters.new_zeros(())
    shifts = [zero.expand(runs, *shape).requires_grad_() for shape in shapes]
    outputs, calls = recorder.record_runs(parameters, features, shifts, shared=labels.dim() == 1)
    losses = record_losses(outputs, labels.expand(runs, -1), loss) / num_views
    return _used(recorder, calls, losses, is_single=False, num_views=num_views)


def _used(
    recorder: Recorder, calls: Sequence[Call], losses: Tensor, *, is_single: bool, num_views: int
) -> list[list[Used]]:
    """Adds the gradients of the summed losses to the calls of a single model or of all runs."""
    taps = [output for call in calls for output in call.outputs]
    total = losses.sum()
    gradients = iter(torch.autograd.grad(total, taps, allow_unused=True, materialize_grads=True))

    def by_view(x: Tensor, dim: int | None) -> Sequence[Tensor]:
        """The rows of each view, with the runs first and the records second."""
        stacked = x.unsqueeze(0) if is_single else x
        if dim is None:
            return [stacked] * num_views
        return stacked.movedim(dim + 1, 1).chunk(num_views, dim=1)

    used: list[list[Used]] = [[] for _ in recorder.units]
    for call in calls:
        unit = recorder.units[call.unit]
        inputs = [by_view(*pair) for pair in zip(call.tensors, unit.input_dims, strict=True)]
        pulled = [by_view(next(gradients), dim) for dim in unit.output_dims]
        for view in range(num_views):
            used[call.unit].append(Used(call, [x[view] for x in inputs], [g[view] for g in pulled]))
    return used
