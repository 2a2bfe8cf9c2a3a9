"""What every gradient path offers: clipped gradient sums of many models at once.

The linear and the perceptron path have closed forms for the norm of a record's gradient. The
convolutional path keeps the gradients in the few weights of its convolutions. The module path finds
the norms layer by layer, for any `torch.nn.Module`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RecordTable:
    """Every record that a run may train on, as tensors.

    The rows are the private records, then the input canaries of the slots, then a null record
    that fills up batches.

    Attributes:
        features: shape (N + num_canaries + 1, ...).
        labels: shape (N + num_canaries + 1,), class indices (int64) or numbers (float32).
        num_canaries: input canaries; 0 for gradient canaries.
    """

    features: Tensor
    labels: Tensor
    num_canaries: int

    @property
    def num_private(self) -> int:
        """N, the private records; the row of the first canary."""
        return len(self.labels) - self.num_canaries - 1

    @property
    def null(self) -> int:
        """The row of the null record."""
        return len(self.labels) - 1


@dataclass(frozen=True)
class Batch:
    """The batches of one step, for all runs of a block.

    Attributes:
        rows: int64 rows of the table. Shape (n,) if all runs share the records, or (runs, n) if
            each run has its own; then the null row fills up shorter batches.
        weights: float32, shape (runs, n): 1 where the record is in the run's batch, else 0. Where
            they are the same for all runs, one row may be expanded: do not change them in place.
        views: random words of the views of each record, shape (runs, n, multiplicity), for
            `augmentation.augmented`; None if records are not augmented.
        seeds: of each run's dropout, shape (runs,), on the host; None drops nothing.
    """

    rows: Tensor
    weights: Tensor
    views: Tensor | None = None
    seeds: Tensor | None = None

    def split(self, size: int) -> Iterator["Batch"]:
        """Batches of at most so many records."""
        for start in range(0, self.weights.shape[1], size):
            yield self.part(slice(start, start + size))

    def part(self, chosen: slice | Tensor) -> "Batch":
        """Some of the records."""
        views = None if self.views is None else self.views[:, chosen]
        return Batch(self.rows[..., chosen], self.weights[:, chosen], views, self.seeds)

    def of_run(self, run: int) -> "Batch":
        """The records of one run whose weights are not 0."""
        alone = slice(run, run + 1)
        rows = self.rows if self.rows.dim() == 1 else self.rows[run]
        views = None if self.views is None else self.views[alone]
        seeds = None if self.seeds is None else self.seeds[alone]
        own = Batch(rows, self.weights[alone], views, seeds)
        return own.part(self.weights[run].nonzero().squeeze(1))


class GradientPath(ABC):
    """Gradients of many models of one kind.

    The parameters of a run are one row of a buffer of shape (runs, num_parameters). Unless a path
    overrides `lift`, `encode`, `decode` and `columns_of`, parameters and features keep the module's
    own layout.

    Attributes:
        name: for the log.
        num_parameters: width of the buffers.
        num_outputs: outputs for a record.
        table: the records, in the path's own feature space.
        shared_above: from this sampling rate on, weights on shared records are faster than
            gathering the records of each run.
        runs_together: blocks of more runs are no faster; None if larger blocks always are.
        draws_masks: whether a batch needs seeds of dropout.
    """

    name: str
    num_parameters: int
    num_outputs: int
    table: RecordTable
    shared_above: float
    runs_together: int | None
    draws_masks: bool = False

    def lift(self, features: Tensor) -> Tensor:
        """A dataset's features, shape (n, ...), in the path's own feature space."""
        return features

    def encode(self, parameters: Tensor) -> Tensor:
        """Rows of a buffer from parameters in the module's order, shape (runs, ...)."""
        return parameters

    def decode(self, buffer: Tensor) -> Tensor:
        """Parameters in the module's order from rows of a buffer."""
        return buffer

    def columns_of(self, coordinates: Tensor) -> Tensor | None:
        """Columns of the buffer that hold single parameters.

        Args:
            coordinates: indices in the module's order, shape (n,).

        Returns:
            Shape (n,), or None if a parameter is spread over several columns.
        """
        return coordinates

    @abstractmethod
    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Overwrites `out` with each run's sum of clipped per-record gradients.

        Args:
            parameters: shape (runs, num_parameters).
            batch: the records of each run.
            max_grad_norm: C; infinity does not clip.
            out: shape (runs, num_parameters).
        """

    @abstractmethod
    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Outputs of every run on the same records.

        Args:
            parameters: shape (runs, num_parameters).
            features: shape (n, ...), in the path's own feature space.

        Returns:
            Shape (runs, n, outputs).
        """

    @abstractmethod
    def bytes_per_run(self, batch_size: int) -> int:
        """Memory that each further run takes at this batch size, in bytes."""
