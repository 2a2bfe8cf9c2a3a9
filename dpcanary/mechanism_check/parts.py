"""The parts of records in an update: how gradients are divided and clipped. Nothing is random."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.mechanism_check.laws import Array
from dpcanary.mechanism_check.measurements import SMALL, Measured, Measurements, Tested

# Relative deviations. Single precision has 1e-7; small updates, and norms plus 1e-6, have less.
_EXACT = 1e-3


def normalisation(found: Measurements) -> Measured:
    """The parts of records with small gradients, which are not clipped."""
    small = found.norms == SMALL
    return _compared(found, found.drawn & small, np.ones(len(found.drawn)))


def clipping(found: Measurements) -> Measured:
    """The parts of other records, over those of small ones: normalisation does not matter then."""
    small = found.norms == SMALL
    ratios = np.stack([own[:, small] / SMALL for own in found.parts.values()], axis=1)
    divisors = np.array(
        [
            np.median(own[:, drawn]) if drawn.any() else 0.0
            for own, drawn in zip(ratios, found.drawn[:, small], strict=True)
        ]
    )
    comparable = found.drawn & ~small & (divisors > 0)[:, None]
    return _compared(found, comparable, np.where(divisors > 0, divisors, 1.0))


def _compared(found: Measurements, chosen: NDArray[np.bool_], divisors: Array) -> Measured:
    """Parts over what they must be, in all tensors and of all norms.

    Args:
        found: the measurements.
        chosen: the parts that are compared, shape (R, N).
        divisors: of each training, shape (R,).
    """
    if not chosen.any():
        return Measured("no record was in any batch", (Tested("", 0.0),))
    expected = np.minimum(1.0, found.norms) * divisors[:, None]
    ratios = {name: own / expected for name, own in found.parts.items()}
    in_tensors = {name: own[chosen] for name, own in ratios.items()}
    of_all = np.stack([*ratios.values()])
    at_norms = {
        f"{norm:g} C": of_all[:, chosen & (found.norms == norm)]
        for norm in np.unique(found.norms[chosen.any(axis=0)])
    }
    everything = of_all[:, chosen]
    text = (
        f"{_range_of(everything)} times as much{_where('in', in_tensors)}{_where('at', at_norms)}"
    )
    return Measured(text, (Tested("", float(_is_one(everything))),))


def _where(word: str, groups: dict[str, Array]) -> str:
    """The groups whose ratios are wrong, unless all of them are."""
    wrong = [name for name, ratios in groups.items() if not _is_one(ratios)]
    return f", {word} {', '.join(wrong)}" if 0 < len(wrong) < len(groups) else ""


def _is_one(ratios: Array) -> bool:
    return bool(np.abs(ratios - 1).max() < _EXACT)


def _range_of(ratios: Array) -> str:
    low, high = float(ratios.min()), float(ratios.max())
    if high - low < _EXACT * low:
        return f"{(low + high) / 2:.4g}"
    return f"{low:.4g} to {high:.4g}"
