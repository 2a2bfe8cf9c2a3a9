"""What one step of an optimizer of Opacus does to gradients, tried and measured."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import nan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpcanary.watching.outside import norms_of

# Clipping may leave a little more than C, and more in half precision, where it depends on the
# digits of the norm: so many roundings.
CLIPPING_TOLERANCE, _ROUNDINGS = 1e-3, 2.0
# It is tried on gradients of up to so many times C: on more of them in half precision, unless the
# model is large.
_LONG, _TRIALS, _TRIALS_IN_HALF, _MOST_NUMBERS = 10.0, 2, 32, 20_000_000
# Factors and norms of noisy gradients that are clipped once more agree up to this.
_CLIPPED = 1e-3


class NormLeft(NamedTuple):
    """The largest norm that clipping has left, and the largest that rounding explains, over C."""

    norm: float
    most: float


def norm_after_clipping(
    optimizer: Any, parameters: Sequence[Any], dtypes: Sequence[torch.dtype]
) -> NormLeft | None:
    """Has an optimizer clip gradients that are too long, and sets its state back.

    Args:
        optimizer: of Opacus.
        parameters: its own.
        dtypes: of the gradients of single records in the training, which autocast may halve; those
            of the parameters if empty.

    Returns:
        None if the optimizer does not clip gradients, as with ghost clipping.
    """
    if hasattr(optimizer, "accumulate") or not hasattr(optimizer, "clip_and_accumulate"):
        return None
    norm, left = float(optimizer.max_grad_norm), 0.0
    dtypes = dtypes or [parameter.dtype for parameter in parameters]
    rounding = max(torch.finfo(dtype).eps for dtype in dtypes)
    total = sum(p.numel() for p in parameters)
    in_half = max(_TRIALS, min(_TRIALS_IN_HALF, _MOST_NUMBERS // total))
    count = in_half if rounding > CLIPPING_TOLERANCE / 2 else _TRIALS
    with _set_aside(optimizer, parameters):
        for factor in np.geomspace(_LONG, 1.2, count):
            size = float(factor) * norm / total**0.5
            for parameter, dtype in zip(parameters, dtypes, strict=True):
                gradient = torch.full_like(parameter.detach(), size, dtype=dtype)
                parameter.grad_sample = gradient.unsqueeze(0)
                parameter.summed_grad = None
            optimizer.clip_and_accumulate()  # as the training does, whoever has replaced it
            squares = [float(p.summed_grad.square().sum()) for p in parameters]
            left = max(left, sum(squares) ** 0.5 / norm)
    return NormLeft(left, 1 + max(CLIPPING_TOLERANCE, _ROUNDINGS * rounding))


@contextmanager
def _set_aside(optimizer: Any, parameters: Sequence[Any]) -> Iterator[None]:
    """While inside, gradients and counters may be changed; afterwards they are as before."""
    gradients = [(p.grad_sample, p.summed_grad) for p in parameters]
    counters = {
        name: getattr(optimizer, name)
        for name in ("sample_size", "unclipped_num")
        if hasattr(optimizer, name)
    }
    try:
        yield
    finally:
        for parameter, (grad_sample, summed_grad) in zip(parameters, gradients, strict=True):
            parameter.grad_sample, parameter.summed_grad = grad_sample, summed_grad
        for name, value in counters.items():
            setattr(optimizer, name, value)


def noise_beside_counts(noise: float, of_counts: float) -> float:
    """The noise multiplier of gradients where that of both, and the noise of counts, are known.

    NaN if the noise of the counts alone gives less than the multiplier of both. From Andrew et al.
    (2021), Theorem 1: sigma^-2 = z^-2 + (2 sigma_b)^-2.
    """
    rest = noise**-2 - (2 * of_counts) ** -2
    return float(rest**-0.5) if rest > 0 else nan


class ClippedAfterNoise:
    """By what noisy gradients were clipped once more after the noise, to a fixed norm.

    All tensors have the same factor then, and clipped ones have the same norm in all steps. So a
    factor that depends on anything but the noisy gradients is found at its second use.
    """

    def __init__(self) -> None:
        """Starts before the first step."""
        self._noisy_norms: Tensor | None = None
        self._norm: float | None = None  # to which they were clipped

    def saw_noise(self, gradients: Sequence[Tensor]) -> None:
        """Notes the norms just after the noise."""
        self._noisy_norms = norms_of(gradients)

    def factor(self, gradients: Sequence[Tensor], scale: float) -> float:
        """The factor by which gradients are shorter than just after the noise, over `scale`."""
        if self._noisy_norms is None:
            return 1.0
        before, now = self._noisy_norms, norms_of(gradients)
        is_clipped = before > 0
        factors = scale * now[is_clipped] / before[is_clipped]
        factor = float(factors.mean()) if len(factors) else 1.0
        # Gradients that were set to zero are not clipped: their noise is missing.
        is_shorter = 0 < factor < 1 - _CLIPPED
        if not is_shorter or bool((factors / factor - 1).abs().max() > _CLIPPED):
            return 1.0
        norm = float(now.norm())
        if self._norm is None:
            self._norm = norm
        return factor if abs(norm / self._norm - 1) < _CLIPPED else 1.0
