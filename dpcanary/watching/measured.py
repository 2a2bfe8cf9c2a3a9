"""What a watched training measured of its noise, its batches and its clipping."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri

from dpcanary.watching.e_processes import StepsSeen

Floats = NDArray[np.float64]


@dataclass
class Measured:
    """Sums over steps, from which shares and intervals follow.

    Attributes:
        num_steps: steps in which the noise of all coordinates was measured.
        squares: of that noise by tensor, in units of the accounted variance; shape (P,).
        sizes: numbers of entries of the tensors, shape (P,).
        along: squares of the noise along the canaries, and their number.
        products: of that noise in successive steps, and their number.
        batches: sizes of the batches, those that were expected, and their number.
        clipped: records whose gradients were clipped, and those that were looked at.
        clipped_to: the largest norm that clipping left of gradients of 1.2 C and 10 C, in the
            precision of the training's, in units of C; NaN if it was not tried.
    """

    num_steps: int = 0
    squares: Floats = field(default_factory=lambda: np.zeros(0))
    sizes: Floats = field(default_factory=lambda: np.zeros(0))
    along: Floats = field(default_factory=lambda: np.zeros(2))
    products: Floats = field(default_factory=lambda: np.zeros(2))
    batches: Floats = field(default_factory=lambda: np.zeros(3))
    clipped: Floats = field(default_factory=lambda: np.zeros(2))
    clipped_to: float = nan
    _last: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, seen: StepsSeen, *, sizes: NDArray[np.int64]) -> None:
        """Adds successive steps; `sizes` are the numbers of entries of the tensors."""
        is_known = np.isfinite(seen.squares).all(axis=1)
        if not len(self.squares):
            self.squares, self.sizes = np.zeros(len(sizes)), sizes.astype(np.float64)
        self.num_steps += int(is_known.sum())
        self.squares += seen.squares[is_known].sum(axis=0)
        self.along += (seen.residuals**2).sum(), seen.residuals.size
        chain = [self._last[None], seen.residuals] if len(self._last) else [seen.residuals]
        rows = np.concatenate(chain)
        self.products += (rows[1:] * rows[:-1]).sum(), rows[1:].size
        self._last = seen.residuals[-1]
        is_known = np.isfinite(seen.batch_sizes)
        expected = seen.sample_rates[is_known] * seen.num_records
        self.batches += seen.batch_sizes[is_known].sum(), expected.sum(), is_known.sum()

    def copy(self) -> "Measured":
        """A copy, which does not change any more."""
        return self.of(self.arrays())

    def noise_scale(self) -> tuple[float, float, float]:
        """The noise's standard deviation over the accounted one, and its 95 % interval.

        It is measured on all coordinates; along the canaries if that was not possible.
        """
        total, count = float(self.squares.sum()), float(self.sizes.sum() * self.num_steps)
        if not count:
            total, count = float(self.along[0]), float(self.along[1])
        if not count:
            return nan, nan, nan
        low, high = (float(chdtri(count, tail)) for tail in (0.025, 0.975))
        return sqrt(total / count), sqrt(total / low), sqrt(total / high)

    @property
    def correlation(self) -> tuple[float, float]:
        """The correlation of noise along canaries in successive steps, and its standard error."""
        total, count = float(self.products[0]), float(self.products[1])
        return (total / count, 1 / sqrt(count)) if count else (nan, nan)

    @property
    def mean_batch_size(self) -> float:
        """NaN if it is not known."""
        total, count = float(self.batches[0]), float(self.batches[2])
        return total / count if count else nan

    @property
    def share_clipped(self) -> float:
        """The share of records whose gradients were clipped; NaN if none was looked at."""
        clipped, seen = float(self.clipped[0]), float(self.clipped[1])
        return clipped / seen if seen else nan

    def arrays(self) -> dict[str, Floats]:
        """Copies of all values, for a file; see `of`."""
        return {f"measured_{name.lstrip('_')}": np.array(own) for name, own in vars(self).items()}

    @classmethod
    def of(cls, arrays: Mapping[str, Floats]) -> "Measured":
        """From what `arrays` gave."""
        measured = cls()
        for name in vars(measured):
            own = np.array(arrays[f"measured_{name.lstrip('_')}"])
            setattr(measured, name, own if own.ndim else own.item())
        return measured
