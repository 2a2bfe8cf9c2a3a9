"""Slots: the places of a run where its worlds differ, and what each world trains on there."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary, canary_type
from dpcanary.checks import checked_count
from dpcanary.errors import InputError
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients.gradient_path import RecordTable
from dpcanary.training.options import Sampling


@dataclass(frozen=True)
class Slots:
    """What the two worlds of each slot train on.

    Attributes:
        canaries: of the K slots, all of one type.
        targets: private records that are not trained on as such, shape (K,), or (0,) if all are.
        rows: shape (2, K): for world 0 and world 1, the row of the table that comes in where the
            canary does, or -1 for none.
        signs: for world 0 and world 1, the factor on a canary's gradient.
    """

    canaries: tuple[Canary, ...]
    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    signs: tuple[float, float]

    def __len__(self) -> int:
        return len(self.canaries)

    def rows_in(self, worlds: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows that come in, for worlds of shape (runs, K); -1 for none."""
        return self.rows[worlds, np.arange(len(self))]

    def signs_in(self, worlds: NDArray[np.int64]) -> Tensor:
        """The factors on gradients, for worlds of shape (runs, K)."""
        return torch.tensor(self.signs)[torch.from_numpy(worlds)]

    @property
    def has_gradients(self) -> bool:
        """Whether gradients come in, and not records."""
        return not isinstance(self.canaries[0], InputCanary)


def slots_of(
    canaries: Sequence[Canary], *, records: Records, dpsgd: DPSGD, num_parameters: int
) -> Slots:
    """What canaries stand for under the audited adjacency.

    Under `substitute`, world 0 trains on the target and world 1 on the canary; a gradient canary
    is +C (its own length) in world 0 and its negative in world 1. Under `add_remove` and
    `zero_out`, world 0 trains on the canary and world 1 on nothing in its place. With Poisson
    sampling the canary takes the target's place. With fixed batches it is one record more, except
    that under `substitute` the targets are taken out of the batches and come in with the canary's
    period.

    Args:
        canaries: what is inserted, one for each slot.
        records: the private records.
        dpsgd: the mechanism.
        num_parameters: of the model.

    Raises:
        InputError: if a canary does not fit the records or the model, its gradient is longer than
            C, or two slots have the same target.
    """
    kind = canary_type(canaries)
    targets = np.array([_index("target", canary.target) for canary in canaries])
    _check_targets(targets, len(records))
    _check_coordinates(canaries)
    for canary in canaries:
        _check_canary(canary, records, dpsgd.max_grad_norm, num_parameters)
    substitute = dpsgd.adjacency is Adjacency.SUBSTITUTE
    replaces = substitute or dpsgd.sampling is Sampling.POISSON
    rows = np.full((2, len(targets)), -1)
    if kind is InputCanary:
        inserted = len(records) + np.arange(len(targets))
        rows = np.stack([targets, inserted] if substitute else [inserted, rows[1]])
    return Slots(
        canaries=tuple(canaries),
        targets=targets if replaces else targets[:0],
        rows=rows,
        signs=(1.0, -1.0 if substitute else 0.0),
    )


def table_of(records: Records, canaries: Sequence[Canary], device: torch.device) -> RecordTable:
    """The private records, with input canaries and a null record behind them.

    The null record is a copy of the first one, which every module can take; its weight is 0.

    Args:
        records: the private records.
        canaries: of the slots; only input canaries have rows.
        device: where the table is kept.
    """
    private = records.features
    if np.issubdtype(private.dtype, np.floating):
        private = private.astype(np.float32, copy=False)
    inputs = [canary for canary in canaries if isinstance(canary, InputCanary)]
    extra = np.zeros((len(inputs) + 1, *private.shape[1:]), private.dtype)
    for row, canary in enumerate(inputs):
        extra[row] = canary.features
    extra[-1] = private[0]
    labels = np.append(records.labels, [*(canary.label for canary in inputs), 0])
    return RecordTable(
        features=torch.from_numpy(np.concatenate([private, extra])).to(device),
        labels=torch.from_numpy(labels.astype(np.int64)).to(device),
        num_canaries=len(inputs),
    )


def _check_targets(targets: NDArray[np.int64], num_records: int) -> None:
    for target in targets:
        if not 0 <= target < num_records:
            raise InputError(f"target {target} is none of the {num_records} records")
    if len(np.unique(targets)) < len(targets):
        raise InputError("two canaries have the same target: each slot needs its own")


def _check_coordinates(canaries: Sequence[Canary]) -> None:
    coordinates = [canary.coordinate for canary in canaries if isinstance(canary, GradientCanary)]
    if len(set(coordinates)) < len(coordinates):
        raise InputError("two canaries have the same coordinate; give each slot one of its own")


def _index(name: str, value: int) -> int:
    return checked_count(f"canary: {name}", value, least=0)


def _check_canary(
    canary: Canary, records: Records, max_grad_norm: float, num_parameters: int
) -> None:
    match canary:
        case InputCanary():
            _check_input(canary, records)
        case GradientCanary():
            if _index("coordinate", canary.coordinate) >= num_parameters:
                raise InputError(
                    f"gradient canary: coordinate {canary.coordinate} is outside of the model's"
                    f" {num_parameters} parameters"
                )
        case DirectionCanary():
            _check_gradient(np.asarray(canary.gradient), max_grad_norm, num_parameters)


def _check_input(canary: InputCanary, records: Records) -> None:
    shape = np.shape(canary.features)
    _index("label", canary.label)
    if shape != records.features.shape[1:]:
        raise InputError(
            f"input canary: its features have shape {shape}, those of records"
            f" {records.features.shape[1:]}"
        )
    if not np.isfinite(canary.features).all():
        raise InputError("input canary: a feature is NaN or infinite")


def _check_gradient(
    gradient: NDArray[np.float32], max_grad_norm: float, num_parameters: int
) -> None:
    if gradient.shape != (num_parameters,) or not np.isfinite(gradient).all():
        raise InputError(
            f"gradient canary: its gradient must be {num_parameters} finite numbers, one per"
            f" parameter; it has shape {gradient.shape}"
        )
    length = float(np.linalg.norm(gradient.astype(np.float64)))
    if length > max_grad_norm * (1 + 1e-6):
        raise InputError(
            f"gradient canary: its gradient has length {length:g}, more than max_grad_norm"
            f" {max_grad_norm:g}; no clipped record has that: scale it down"
        )
