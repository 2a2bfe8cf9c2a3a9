"""Noisy sums as a loop in PyTorch computes them, and replays that show what depends on them alone.

What follows the noise is post-processing if the parameters are a function of the noisy sums. So a
training is repeated on other records, with other random numbers, and with the noisy sums of the
first training in place of its own: if its parameters are the same to the bit, no record enters them
in another way. Then the properties of the mechanism are those of the noisy sums, however they are
used.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpcanary.checking.mechanism.trace import Flat, NoisyStep

# Functions of PyTorch that draw real random numbers, those of addition, and those after which a
# tensor is what it was not before; without underscores at the ends.
_DRAWS = {"normal", "randn", "randn_like", "rand", "rand_like", "uniform", "exponential"}
_ADDITIONS = {"add", "radd", "iadd", "sub", "rsub", "isub", "subtract"}
_OVERWRITES = {"copy", "zero", "fill"}


class SeenSum(NamedTuple):
    """A tensor that is the first to have noise in it.

    Attributes:
        values: a copy.
        state: flat parameters with which the module was last called in training before it.
    """

    values: Tensor
    state: Flat


class SumsMode(TorchFunctionMode):
    """Notes tensors of the shape of a parameter, or of all together, to which noise is added.

    Args:
        shapes: of the parameters.
        state: gives flat parameters with which the module was last called in training.
        sums: noisy ones that take the place of the loop's own, in order; empty: none.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], state: Callable[[], Flat], sums: Sequence[Tensor] = ()
    ) -> None:
        super().__init__()
        self._shapes = {*shapes, torch.Size([sum(prod(shape) for shape in shapes)])}
        self._state = state
        self._replacing = sums
        # By identity. It holds the tensors, so that no other gets the identity of one.
        self._noise: dict[int, Tensor] = {}
        self.seen: list[SeenSum] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Runs a function, and follows noise through it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.__name__.strip("_")
        if name.startswith("foreach_"):
            self._follow_lists(name.removeprefix("foreach_"), args, result)
        else:
            self._follow(name, [*_tensors(args), *_tensors(kwargs.values())], result)
        return result

    def _follow_lists(self, name: str, args: Sequence[Any], result: Any) -> None:
        """An operation on each tensor of a list."""
        results = args[0] if result is None else result
        for index, own in enumerate(results):
            operands = [each[index] if isinstance(each, (list, tuple)) else each for each in args]
            self._follow(name, [*_tensors(operands)], own)

    def _follow(self, name: str, operands: Sequence[Tensor], result: Any) -> None:
        """Notes whether the result is noise, and whether it is a noisy sum."""
        are_noise = [id(operand) in self._noise for operand in operands]
        if name not in _DRAWS and not any(are_noise):
            return
        if name in _DRAWS:
            # `normal` with a tensor of means draws a noisy sum; in place, it is noise alone.
            has_means = name == "normal" and bool(operands) and result is not operands[0]
            is_sum = has_means and bool(operands[0].any())
            is_noise = not is_sum
        elif name in _OVERWRITES:
            is_sum, is_noise = False, len(operands) > 1 and are_noise[1]
        else:
            is_sum = name in _ADDITIONS and {*are_noise} == {False, True}
            is_noise = any(are_noise) and not is_sum
        for output in _tensors([result]):
            if is_sum:
                self._take(output)
            if is_noise and output.is_floating_point():
                self._noise[id(output)] = output
            else:
                self._noise.pop(id(output), None)

    def _take(self, noisy_sum: Tensor) -> None:
        """Keeps a noisy sum of the shape of parameters, and exchanges it for the given one."""
        if noisy_sum.shape not in self._shapes:
            return
        index = len(self.seen)
        if index < len(self._replacing) and self._replacing[index].shape == noisy_sum.shape:
            noisy_sum.copy_(self._replacing[index])
        self.seen.append(SeenSum(noisy_sum.detach().clone(), self._state()))


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def steps_of(seen: Sequence[SeenSum], shapes: Sequence[torch.Size]) -> list[NoisyStep] | None:
    """Noisy sums by step, flat in the order of the parameters; None if they are not one for each.

    Parameters of one shape keep their order.
    """
    total = sum(prod(shape) for shape in shapes)
    if seen and all(own.values.shape == (total,) for own in seen):
        return [NoisyStep(_numbers(own.values), own.state) for own in seen]
    if not seen or len(seen) % len(shapes):
        return None
    steps = []
    for start in range(0, len(seen), len(shapes)):
        left = [*seen[start : start + len(shapes)]]
        parts = []
        for shape in shapes:
            index = next((i for i, own in enumerate(left) if own.values.shape == shape), None)
            if index is None:
                return None
            parts.append(_numbers(left.pop(index).values))
        steps.append(NoisyStep(np.concatenate(parts), seen[start].state))
    return steps


def _numbers(values: Tensor) -> Flat:
    return values.reshape(-1).float().cpu().numpy()
