"""What DP-SGD guarantees if each pass over the data cuts a random order of the records in batches.

No amplification by this sampling is known that can be computed. What holds is the following. In
each pass, a record is in one batch at most. Given the batches of both worlds, the passes are then a
Gaussian mechanism, and mixing over batches, whose law the worlds share, adds nothing: hockey-stick
divergences are jointly convex.
"""

from dataclasses import dataclass, field, replace
from math import ceil, floor, nan, sqrt

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count
from dpcanary.errors import InputError

# How far the sums of a pass move, in units of the clipping norm C, as the root of a sum of squares.
# With batches of one size, a record that is added moves another one: it takes a place in some
# batch (2 C), and the record that had this place fills the last batch (C).
_MOVES = {Adjacency.ZERO_OUT: 1.0, Adjacency.SUBSTITUTE: 2.0, Adjacency.ADD_REMOVE: sqrt(5.0)}


@dataclass(frozen=True)
class ShuffledMechanism:
    """DP-SGD on shuffled records: each pass has a random order, which is cut into batches.

    Noise is added to each batch's sum of clipped gradients, and a constant divides it. Orders of
    different passes may depend on each other, but not on what the records say.

    Attributes:
        adjacency: the neighbouring relation, or its name. Under `add_remove`, the number of batches
            of a pass must be the same in both worlds: the number of steps tells them apart else.
        batches_per_pass: at least 1. `batches_of_pass` counts them.
        num_steps: in all passes together, at least 1; the last pass may end early.
        noise_multiplier: standard deviation of the noise over the clipping norm (never over the
            sensitivity), above 0. NaN, the default, where it is asked for and not given.

    Raises:
        InputError: if one is out of its range.
    """

    adjacency: Adjacency
    batches_per_pass: int = field(kw_only=True)
    num_steps: int = field(kw_only=True)
    noise_multiplier: float = field(default=nan, kw_only=True)

    def __post_init__(self) -> None:
        batches = checked_count("batches_per_pass", self.batches_per_pass)
        object.__setattr__(self, "batches_per_pass", batches)
        checked = self.as_poisson()
        for name in ("adjacency", "num_steps", "noise_multiplier"):
            object.__setattr__(self, name, getattr(checked, name))

    @property
    def num_passes(self) -> int:
        """Passes that are begun: a record takes part in so many steps at most."""
        return ceil(self.num_steps / self.batches_per_pass)

    @property
    def guaranteed(self) -> Mechanism:
        """The Gaussian mechanism that is at least as easy to attack: one step for each pass.

        Its noise multiplier is in units of how far a pass can move under its adjacency, where that
        differs from the adjacency's own sensitivity.
        """
        noise = self.noise_multiplier * self.adjacency.sensitivity / _MOVES[self.adjacency]
        return Mechanism(
            self.adjacency, sample_rate=1.0, num_steps=self.num_passes, noise_multiplier=noise
        )

    def as_poisson(self, sample_rate: float | None = None) -> Mechanism:
        """What is accounted if the batches are taken for Poisson samples, which they are not.

        The sample rate is that which the accountant is told; by default one over the batches of a
        pass.
        """
        rate = 1 / self.batches_per_pass if sample_rate is None else sample_rate
        return Mechanism(
            self.adjacency,
            sample_rate=rate,
            num_steps=self.num_steps,
            noise_multiplier=self.noise_multiplier,
        )

    def with_noise(self, noise_multiplier: float) -> "ShuffledMechanism":
        """This mechanism with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)

    def under(self, adjacency: Adjacency | str) -> "ShuffledMechanism":
        """This mechanism under another neighbouring relation."""
        return replace(self, adjacency=Adjacency(adjacency))


def batches_of_pass(*, num_records: int, batch_size: int, drop_last: bool = False) -> int:
    """Batches of a pass over the records, the last one smaller where the size does not divide them.

    Args:
        num_records: at least 1.
        batch_size: from 1 to the number of records.
        drop_last: whether the smaller batch is left out, as PyTorch's `DataLoader` calls it.

    Raises:
        InputError: an argument is out of its range.

    Example:
        >>> batches_of_pass(num_records=1000, batch_size=300)
        4
        >>> batches_of_pass(num_records=1000, batch_size=300, drop_last=True)
        3
    """
    records = checked_count("num_records", num_records)
    size = checked_count("batch_size", batch_size)
    if size > records:
        raise InputError(f"batch_size is {size}, which is more than the {records} records")
    return records // size if drop_last else -(-records // size)


def least_batches_of_pass(sample_rate: float) -> int:
    """Batches of a pass where the sample rate alone is known, as batch size over records.

    A last batch that is smaller may be left out: then a pass has fewer batches than 1 / rate, and
    as many steps need more passes.
    """
    return max(1, floor(1 / sample_rate + 1e-9))
