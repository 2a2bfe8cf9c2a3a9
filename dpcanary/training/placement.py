"""Where the canary stands: what each world trains on in the target's place."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.adjacency import Adjacency, world_of
from dpcanary.canaries import AnyCanary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.paths.path import Table
from dpcanary.vocabulary import Sampling


@dataclass(frozen=True)
class Placement:
    """What the two worlds train on.

    Attributes:
        target: the private record that is not trained on as such, or None if all are.
        rows: of world 0 and world 1, the row of the table that comes in where the canary does, or
            None.
        gradient: what comes in as a gradient, in the module's order of parameters, or None.
        signs: of world 0 and world 1, the factor on that gradient.
    """

    target: int | None
    rows: tuple[int | None, int | None]
    gradient: Tensor | None
    signs: tuple[float, float]

    def rows_of(self, runs: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row that comes in, for each run; -1 for none."""
        rows = np.array([-1 if row is None else row for row in self.rows])
        return np.asarray(rows[world_of(runs)])

    def signs_of(self, runs: NDArray[np.int64]) -> Tensor:
        """The factor on the gradient, for each run."""
        return torch.tensor(self.signs)[torch.from_numpy(world_of(runs))]


def table_of(records: Records, canary: AnyCanary | None, device: torch.device) -> Table:
    """The private records with the canary and a null record behind them.

    The null record is a copy of the first one, which every module can take; its weight is 0.
    """
    private = records.features
    if np.issubdtype(private.dtype, np.floating):
        private = private.astype(np.float32, copy=False)
    extra = np.zeros((2, *private.shape[1:]), private.dtype)
    extra[1] = private[0]
    labels = np.append(records.labels, [0, 0]).astype(np.int64)
    if isinstance(canary, InputCanary):
        shape = np.shape(canary.features)
        if shape != records.features.shape[1:] or not 0 <= canary.label < records.num_classes:
            raise InputError(
                f"input canary: features of shape {shape} and label {canary.label}, where records"
                f" have {records.features.shape[1:]} and labels below {records.num_classes}"
            )
        extra[0], labels[-2] = canary.features, canary.label
    return Table(
        features=torch.from_numpy(np.concatenate([private, extra])).to(device),
        labels=torch.from_numpy(labels).to(device),
    )


def placement_of(
    canary: AnyCanary, *, records: Records, dpsgd: DPSGD, num_parameters: int
) -> Placement:
    """What the canary stands for under the audited adjacency.

    Under `substitute`, world 0 trains on the target and world 1 on the canary; a gradient canary
    is +C (its own length) in world 0 and its negative in world 1. Under `add_remove` and
    `zero_out`, world 0 trains on the canary and world 1 on nothing in its place. With Poisson
    sampling the canary takes the target's place; with fixed batches it is one record more, except
    that under `substitute` the target is taken out of the batches to come in with its substitute's
    period.

    Args:
        canary: what is inserted.
        records: the private records.
        dpsgd: the mechanism.
        num_parameters: of the model.

    Raises:
        InputError: if the canary's gradient is longer than C or does not fit the model.
    """
    if not 0 <= records.target < len(records.labels):
        raise InputError(f"target {records.target} is none of the {len(records.labels)} records")
    substitute = dpsgd.adjacency is Adjacency.SUBSTITUTE
    replaces = substitute or dpsgd.sampling is Sampling.POISSON
    target = records.target if replaces else None
    if isinstance(canary, InputCanary):
        canary_row = len(records.labels)
        rows = (records.target, canary_row) if substitute else (canary_row, None)
        return Placement(target, rows, None, (0.0, 0.0))
    gradient = _gradient_of(canary, num_parameters, dpsgd.max_grad_norm)
    return Placement(target, (None, None), gradient, (1.0, -1.0 if substitute else 0.0))


def _gradient_of(
    canary: GradientCanary | DirectionCanary, num_parameters: int, max_grad_norm: float
) -> Tensor:
    """The canary's gradient in the module's order."""
    if isinstance(canary, GradientCanary):
        if not 0 <= canary.coordinate < num_parameters:
            raise InputError(
                f"gradient canary: coordinate {canary.coordinate} is outside of the model's"
                f" {num_parameters} parameters"
            )
        gradient = torch.zeros(num_parameters)
        gradient[canary.coordinate] = max_grad_norm
        return gradient
    gradient = torch.from_numpy(np.asarray(canary.gradient, np.float32))
    if gradient.shape != (num_parameters,) or not bool(gradient.isfinite().all()):
        raise InputError(
            f"gradient canary: its gradient must be {num_parameters} finite numbers, one per"
            f" parameter; it has shape {tuple(gradient.shape)}"
        )
    length = float(torch.linalg.vector_norm(gradient.double()))
    if length > max_grad_norm * (1 + 1e-6):
        raise InputError(
            f"gradient canary: its gradient has length {length:g}, more than max_grad_norm"
            f" {max_grad_norm:g}; no clipped record has that: scale it down"
        )
    return gradient
