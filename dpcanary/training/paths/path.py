"""What every gradient path offers: clipped gradient sums of many models at once.

A path knows one kind of model. The linear and perceptron paths have closed forms for the norm of a
record's gradient; the module path finds them layer by layer for any `torch.nn.Module`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Table:
    """Every record that some run may train on.

    The rows are the private records, then the canary (zeros where there is none), then a null
    record that fills up batches.

    Attributes:
        features: shape (N + 2, ...).
        labels: shape (N + 2,), class indices.
    """

    features: Tensor
    labels: Tensor

    @property
    def canary(self) -> int:
        """Row of the canary."""
        return len(self.labels) - 2

    @property
    def null(self) -> int:
        """Row of the null record."""
        return len(self.labels) - 1


@dataclass(frozen=True)
class Batch:
    """The batches of one step, of all runs of a block.

    Attributes:
        rows: int64 rows of the table, shape (n,) where all runs look at the same records, or
            (runs, n) where each has its own; there, the null row fills up shorter batches.
        weights: float32, shape (runs, n): 1 where the record is in the run's batch, else 0.
    """

    rows: Tensor
    weights: Tensor


class Path(Protocol):
    """Gradients of many models of one kind.

    The parameters of a run are one row of a buffer of shape (runs, num_parameters).

    Attributes:
        name: for the log.
        num_parameters: width of the buffers.
        num_outputs: logits of a record.
        table: the records, in the path's own feature space.
        shared_above: sampling rate from which weights on shared records are faster than gathering
            each run's own.
        runs_together: the most runs of a block that are any faster together, or None.
    """

    name: str
    num_parameters: int
    num_outputs: int
    table: Table
    shared_above: float
    runs_together: int | None

    def lift(self, features: Tensor) -> Tensor:
        """Features as a dataset has them, shape (n, ...), in the path's own feature space."""
        ...

    def encode(self, parameters: Tensor) -> Tensor:
        """Rows of a buffer from parameters in the module's order, shape (runs, ...)."""
        ...

    def decode(self, buffer: Tensor) -> Tensor:
        """Parameters in the module's order from rows of a buffer."""
        ...

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Overwrites `out` with each run's sum of clipped per-record gradients.

        Args:
            parameters: shape (runs, num_parameters).
            batch: the records of each run.
            max_grad_norm: C; inf does not clip.
            out: shape (runs, num_parameters).
        """
        ...

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Outputs of every run on the same records.

        Args:
            parameters: shape (runs, num_parameters).
            features: shape (n, ...), in the path's own feature space.

        Returns:
            Shape (runs, n, outputs).
        """
        ...

    def bytes_per_run(self, batch_size: int) -> int:
        """Memory that one run more takes, at a batch of this many records, in bytes."""
        ...


class ModuleLayout:
    """What a path offers whose buffers hold parameters, and its table features, as they come."""

    def lift(self, features: Tensor) -> Tensor:
        """The features as they are."""
        return features

    def encode(self, parameters: Tensor) -> Tensor:
        """The parameters as they are."""
        return parameters

    def decode(self, buffer: Tensor) -> Tensor:
        """The parameters as they are."""
        return buffer
