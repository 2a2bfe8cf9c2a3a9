"""What a watched training changes beside the private optimizer: parameters and buffers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpcanary.training.modules.kept_state import kept_state, unchanged_state

# Names in a message, at most.
_MOST_NAMES = 5


class Unchanged:
    """Tensors whose values are to stay as they are, seen by their norms.

    A norm takes one pass and is compared bit by bit. PyTorch's counters of changes take none, but
    do not count those through `.data`.

    Attributes:
        names: of the tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.names, self._tensors = [*tensors], [*tensors.values()]
        self._norms: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of values."""
        return sum(tensor.numel() for tensor in self._tensors)

    @property
    def is_kept(self) -> bool:
        """Whether there are values to compare with."""
        return self._norms is not None

    def keep(self) -> None:
        """Keeps the values as they are now."""
        self._norms = norms_of(self._tensors)

    def forget(self) -> None:
        """Compares with nothing until values are kept again."""
        self._norms = None

    def changed(self) -> list[str]:
        """Names of the tensors that have changed since values were kept."""
        if self._norms is None or not self._tensors:
            return []
        now = norms_of(self._tensors)
        # Parameters of a training that diverged are NaN, which equals nothing.
        same = (now == self._norms) | (now.isnan() & self._norms.isnan())
        if bool(same.all()):
            return []
        return [
            name for name, as_before in zip(self.names, same.tolist(), strict=True) if not as_before
        ]


@torch.no_grad()
def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of each tensor, in double precision on the first one's device."""
    if not tensors:
        return torch.zeros(0)
    parts = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    norms: Sequence[Tensor]
    if all(part.element_size() >= 4 for part in parts):
        norms = torch._foreach_norm([part.detach() for part in parts])
    else:
        # Norms in half precision would hide changes; a wider copy of all would need memory.
        norms = [torch.linalg.vector_norm(part, dtype=torch.float32) for part in parts]
    return torch.stack([norm.to(norms[0].device, torch.float64) for norm in norms])


class KeptStatistics:
    """Looks once whether forward passes leave statistics of records in a module's buffers.

    The inputs of the first two forward passes in training mode are kept until then.

    Attributes:
        not_seen: what could not be found out, in words; empty if there is nothing.
    """

    def __init__(self, wrapped: Any) -> None:
        """Takes Opacus's module; None if it is not known."""
        self._wrapped = wrapped
        self._module: nn.Module | None = None if wrapped is None else wrapped._module
        self._inputs: list[tuple[Any, Any]] = []
        self._before: dict[str, Tensor] = {}
        self._changing: list[str] = []
        self._hook: Any = None
        self.is_paused = False
        self.not_seen = ""
        if wrapped is None:
            self.not_seen = "buffers of the model, whose wrapper is not known"

    def start(self) -> None:
        """Begins to look at forward passes."""
        if self._module is not None and [*self._module.buffers()]:
            self._hook = self._module.register_forward_pre_hook(self._keep, with_kwargs=True)

    def stop(self) -> None:
        """Looks no more."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = None

    def _keep(self, module: nn.Module, args: Any, keys: Any) -> None:
        if self.is_paused or not module.training or _num_records(args, keys) == 0:
            return
        buffers = dict(module.named_buffers())
        if not self._inputs:
            self._before = {name: own.detach().clone() for name, own in buffers.items()}
        else:
            self._changing = [
                name
                for name, own in buffers.items()
                if name not in self._before or not _same(own, self._before[name])
            ]
            self.stop()
        self._inputs.append((args, keys))

    @property
    def is_ready(self) -> bool:
        """Whether two passes were seen, and not yet compared."""
        return len(self._inputs) == 2

    def changed_names(self) -> list[str]:
        """Names of buffers that hold statistics of records; two passes must have been seen."""
        first, second = self._inputs
        changing, before = self._changing, self._before
        self._inputs, self._before = [], {}
        if not changing or self._module is None:
            return []
        module = self._module
        # Other records, and fewer of them: a buffer may count them.
        second = _fewer(second, least=_num_records(*first))
        try:
            with _without_hooks(self._wrapped), unchanged_state(module):
                # Extremes that hold both batches already would change no more.
                _put_back(module, before)
                kept = kept_state(module, _call(module, first), _call(module, second))
        except Exception as error:  # of the user's forward, which may raise anything
            self.not_seen = (
                f"what is in the buffers {listed(changing)}, which forward passes change: a pass"
                f" could not be repeated ({type(error).__name__})"
            )
            return []
        buffers = {name for name, _ in module.named_buffers()}
        return [name for name in kept.of_records if name in buffers]


class ChangedBuffers:
    """Looks for buffers that something else than the module's forward passes changes.

    What a loop writes there is released with the model, and may be a statistic of records. Of
    buffers with one value, nothing is said: those are mostly schedules, such as a temperature.

    Attributes:
        names: of the buffers that have changed between two forward passes.
    """

    def __init__(self, module: nn.Module | None) -> None:
        self._module = module
        self._kept: dict[str, _Buffer] = {}
        self._hooks: list[Any] = []
        self._is_paused = False
        self.names: list[str] = []

    def start(self) -> None:
        """Begins to look at forward passes."""
        if self._module is not None and any(own.numel() > 1 for own in self._module.buffers()):
            self._hooks = [
                self._module.register_forward_pre_hook(self._compare),
                self._module.register_forward_hook(self._keep),
            ]

    def stop(self) -> None:
        """Looks no more."""
        for hook in self._hooks:
            hook.remove()

    def look(self) -> None:
        """Compares now, as no further forward pass may come."""
        if self._module is not None:
            self._compare(self._module)

    def forget(self) -> None:
        """Compares with nothing until the next forward pass has ended."""
        self._kept = {}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Buffers may be changed inside."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before
            self.forget()

    def _keep(self, module: nn.Module, *_: Any) -> None:
        self._kept = {
            name: _buffer(own, self._kept.get(name))
            for name, own in module.named_buffers()
            if own.numel() > 1
        }

    def _compare(self, module: nn.Module, *_: Any) -> None:
        if self._is_paused or self.names:
            return
        for name, own in module.named_buffers():
            before = self._kept.get(name)
            if before is not None and _buffer(own, before).differs_from(before):
                self.names.append(name)


class _Buffer(NamedTuple):
    """A buffer, PyTorch's count of its changes, and its norm."""

    tensor: Tensor
    version: int
    norm: float

    def differs_from(self, before: "_Buffer") -> bool:
        """Whether values differ; on another device or in another precision, norms may."""
        same_kind = (self.tensor.device, self.tensor.dtype) == (
            before.tensor.device,
            before.tensor.dtype,
        )
        return same_kind and self.norm != before.norm and self.norm == self.norm


@torch.no_grad()
def _buffer(tensor: Tensor, before: _Buffer | None) -> _Buffer:
    """What is seen of a buffer; its norm is computed only if it may have changed."""
    version = 0 if tensor.is_inference() else tensor._version
    if before is not None and before.tensor is tensor and before.version == version:
        return before
    return _Buffer(tensor, version, float(tensor.double().norm()))


def listed(names: Sequence[str]) -> str:
    """Some names, in words."""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


@torch.no_grad()
def _put_back(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Gives buffers the values that they had before."""
    for name, own in module.named_buffers():
        if name in values and own.shape == values[name].shape:
            own.copy_(values[name])


def _call(module: nn.Module, inputs: tuple[Any, Any]) -> Callable[[], object]:
    args, keys = inputs
    return lambda: module(*args, **keys)


@contextmanager
def _without_hooks(wrapped: Any) -> Iterator[None]:
    """Opacus's hooks would take the passes for those of the training."""
    had = getattr(wrapped, "hooks_enabled", None)
    if had is not None:
        wrapped.hooks_enabled = False
    try:
        yield
    finally:
        if had is not None:
            wrapped.hooks_enabled = had


def _num_records(args: Any, keys: Any) -> int | None:
    """The first size that all tensors have; None if there is none."""
    sizes = {len(value) for value in [*args, *keys.values()] if _has_rows(value)}
    return sizes.pop() if len(sizes) == 1 else None


def _fewer(inputs: tuple[Any, Any], *, least: int | None) -> tuple[Any, Any]:
    """The inputs, without the last record if there are `least` of them."""
    args, keys = inputs
    count = _num_records(args, keys)
    if count is None or count < 2 or count != least:
        return inputs
    cut = [value[:-1] if _has_rows(value) else value for value in args]
    return cut, {name: value[:-1] if _has_rows(value) else value for name, value in keys.items()}


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _same(first: Tensor, other: Tensor) -> bool:
    return first.shape == other.shape and bool(
        ((first == other) | ((first != first) & (other != other))).all()
    )
