"""One forward pass of a module that remembers what its units were given and what they gave.

A unit is a submodule whose parameters' gradients can be found from its inputs and the gradient of
its outputs. All units together hold every parameter once.
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

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Unit:
    """A submodule and where its parts are.

    Attributes:
        name: dotted, as in the module; empty for the module itself.
        start: first of its parameters in a row of the buffer.
        stop: after the last.
        copies: whether its inputs and outputs are copied, lest later operations change them.
        input_dims: the dimension of the records in each tensor of its input, None where it has
            none; empty before they are known.
        output_dims: the same of its output.
    """

    name: str
    start: int
    stop: int
    copies: bool
    input_dims: Dims = ()
    output_dims: Dims = ()


@dataclass
class Call:
    """One call of a unit.

    Attributes:
        unit: index of the unit.
        inputs: the leaves of its arguments.
        structure: what the leaves are put together to.
        outputs: the tensors of its output that a loss may depend on.
        watched: tensors that the forward pass goes on with, and their versions then; a later
            version means that the tensor was changed in place.
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
        """The call's arguments and keyword arguments, with these tensors for its own."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in self.inputs]
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs


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
        for parameter, view in zip(self._parameters.values(), self._views(row), strict=True):
            parameter.data = view

    def plain(self, row: Tensor, features: Tensor) -> Tensor:
        """Outputs of the module with the parameters of a row, unrecorded."""
        self.load(row)
        outputs: Tensor = self.module(features)
        return outputs

    def plain_with(self, row: Tensor, features: Tensor) -> Tensor:
        """As `plain`, for `torch.func.vmap` over the rows."""
        named = dict(zip(self._parameters, self._views(row), strict=True))
        outputs: Tensor = functional_call(self.module, named, (features,))
        return outputs

    def record(self, features: Tensor) -> tuple[Tensor, list[Call]]:
        """One model: outputs of the loaded module, and its units' calls in order."""
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
            shifts: what to add to each output of each call, in order; first dimension the runs.
            shared: see `features`.

        Returns:
            Outputs of shape (runs, n, outputs), and the calls, whose inputs and outputs all have
            the runs as their first dimension; the outputs are the shifts.
        """
        calls: list[Call] = []

        def one(row: Tensor, records: Tensor, *own: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
            self._calls, self._shifts = calls, list(own)
            outputs = self.plain_with(row, records)
            return outputs, [call.tensors for call in calls]

        try:
            with torch.enable_grad():
                in_dims = (0, None if shared else 0, *[0 for _ in shifts])
                outputs, tensors = vmap(one, in_dims)(parameters, features, *shifts)
        finally:
            self._calls, self._shifts = None, None
        rest = iter(shifts)
        for call, own in zip(calls, tensors, strict=True):
            args, kwargs = call.with_tensors([tensor.detach() for tensor in own])
            call.inputs = tree_flatten((args, kwargs))[0]
            call.outputs = [next(rest) for _ in call.outputs]
        return outputs, calls

    def _views(self, row: Tensor) -> list[Tensor]:
        shapes = [parameter.shape for parameter in self._parameters.values()]
        parts = torch.split(row, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _before(
        self, index: int, _layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Remembers a unit's inputs."""
        if self._calls is None:
            return
        leaves, structure = tree_flatten((args, kwargs))
        call = Call(index, leaves, structure, [], [])
        self._calls.append(call)
        copies = self.units[index].copies
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                call.watched.append((leaf, leaf._version))
                leaves[place] = leaf.detach().clone() if copies else leaf.detach()

    def _after(self, index: int, _layer: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        """Remembers a unit's outputs, and makes them tensors whose gradient can be asked for."""
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
                raise RuntimeError("the module's layers are called otherwise for other records")
            return output + self._shifts.pop(0)
        tapped = output if output.requires_grad else output.requires_grad_()
        call.outputs.append(tapped)
        passed = tapped.clone() if self.units[call.unit].copies else tapped
        call.watched.append((passed, passed._version))
        return passed
