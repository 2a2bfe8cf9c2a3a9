"""Slots: the places of a run where its worlds differ, and what each world trains on there."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count
from dpcanary.core.randomness import philox_key
from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary, InputCanary, canary_type
from dpcanary.data.observations import drawn_values, parity
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import RecordTable
from dpcanary.training.kernels.philox import random_words
from dpcanary.training.training_settings import Purpose, Sampling, WorldAssignment


def assigned_worlds(
    assignment: WorldAssignment,
    *,
    runs: NDArray[np.int64],
    num_slots: int,
    seed: int,
    num_candidates: int | None = None,
) -> NDArray[np.int64]:
    """The world (0 or 1) of each slot, shape (runs, slots), a function of seed, run and slot.

    Where slots hold one of `num_candidates` values, it is the index of the value.
    """
    if num_candidates:
        return drawn_values(
            runs.tolist(),
            seed=seed,
            purpose=Purpose.WORLDS,
            num_slots=num_slots,
            num_candidates=num_candidates,
        )
    if assignment is WorldAssignment.ALTERNATE:
        return parity(runs)[:, None]
    words = np.empty((len(runs), num_slots), np.uint32)
    random_words(words, philox_key(seed=seed), 0, runs, Purpose.WORLDS.value)
    match assignment:
        case WorldAssignment.COINS:
            return (words >> np.uint32(31)).astype(np.int64)
        case WorldAssignment.HALVES:
            ranks = np.argsort(np.argsort(words, axis=1, kind="stable"), axis=1)
            return (ranks >= num_slots // 2).astype(np.int64)
        case WorldAssignment.CANDIDATES:
            raise InputError("worlds candidates needs the number of values that a slot may hold")
        case never:
            assert_never(never)


def check_assignment(assignment: WorldAssignment, num_slots: int) -> None:
    """Refuses several slots that alternate, and an odd number of slots to be halved."""
    if assignment is WorldAssignment.ALTERNATE and num_slots > 1:
        raise InputError(
            f"worlds alternate is for one slot, and there are {num_slots}: all slots of a run would"
            " be in the same world; use coins or halves"
        )
    if assignment is WorldAssignment.HALVES and num_slots % 2:
        raise InputError(f"worlds halves needs an even number of slots; there are {num_slots}")


@dataclass(frozen=True)
class Slots:
    """What the two worlds of each slot train on.

    Attributes:
        canaries: of the K slots, all of one type.
        targets: private records that are trained on in their slots alone, shape (K,); shape (0,)
            if the slots are additional to all private records.
        rows: shape (2, K): for world 0 and world 1, the row of the table that a slot trains on,
            or -1 for none; shape (C, K) for slots that hold one of C values.
        signs: for world 0 and world 1, the factor on a canary's gradient.
    """

    canaries: tuple[Canary, ...]
    targets: NDArray[np.int64]
    rows: NDArray[np.int64]
    signs: tuple[float, float]

    def __len__(self) -> int:
        return len(self.canaries)

    def rows_in(self, worlds: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows that slots train on, for worlds of shape (runs, K); -1 for none."""
        return self.rows[worlds, np.arange(len(self))]

    def signs_in(self, worlds: NDArray[np.int64]) -> Tensor:
        """The factors on gradients, for worlds of shape (runs, K)."""
        return torch.tensor(self.signs)[torch.from_numpy(worlds)]

    @property
    def has_gradients(self) -> bool:
        """Whether the canaries are gradients, and not records."""
        return not isinstance(self.canaries[0], InputCanary)


def slots_of(
    canaries: Sequence[Canary],
    *,
    records: Records,
    dpsgd: DPSGD,
    num_parameters: int,
    num_candidates: int | None = None,
) -> Slots:
    """What each world trains on in every slot, under the audited adjacency.

    Under `substitute`, world 0 trains on the target and world 1 on the canary. A gradient canary
    is +C (its own length) in world 0 and its negative in world 1. Under `add_remove` and
    `zero_out`, world 0 trains on the canary and world 1 on nothing in its place. With Poisson
    sampling the canary takes the target's place. With fixed batches it is an additional record;
    but under `substitute` the targets are removed from the batches, and world 0 trains on them
    with the canary's period. With `num_candidates`, world j trains on the canary with label j in
    place of its target.

    Raises:
        InputError: if a canary does not fit the records or the model, its gradient is longer than
            C, or two slots have the same target.
    """
    kind = canary_type(canaries)
    targets = np.array(_indices(canaries, "target", len(records), "records"))
    if kind is GradientCanary:
        _indices(canaries, "coordinate", num_parameters, "parameters of the model")
    for canary in canaries:
        _check(canary, records, dpsgd.max_grad_norm, num_parameters)
    substitute = dpsgd.adjacency is Adjacency.SUBSTITUTE
    replaces = substitute or dpsgd.sampling is Sampling.POISSON
    rows = np.full((2, len(targets)), -1)
    if num_candidates:
        first = len(records) + num_candidates * np.arange(len(targets))
        rows = first + np.arange(num_candidates)[:, None]
    elif kind is InputCanary:
        inserted = len(records) + np.arange(len(targets))
        rows = np.stack([targets, inserted] if substitute else [inserted, rows[1]])
    return Slots(
        canaries=tuple(canaries),
        targets=targets if replaces else targets[:0],
        rows=rows,
        signs=(1.0, -1.0 if substitute else 0.0),
    )


def table_of(
    records: Records,
    canaries: Sequence[Canary],
    device: torch.device,
    *,
    num_candidates: int | None = None,
) -> RecordTable:
    """The private records, with input canaries and a null record behind them.

    With `num_candidates`, each input canary is there once with each of so many labels. The null
    record is a copy of the first one, which every module can take; its weight is 0.
    """
    private = records.features
    if np.issubdtype(private.dtype, np.floating):
        private = private.astype(np.float32, copy=False)
    inputs = [canary for canary in canaries if isinstance(canary, InputCanary)]
    of_canary = [range(num_candidates) if num_candidates else [canary.label] for canary in inputs]
    rows = [
        np.asarray(canary.features, private.dtype)[None]
        for canary, values in zip(inputs, of_canary, strict=True)
        for _ in values
    ]
    kind = np.int64 if records.has_classes else np.float32
    labels = np.append(records.labels, [*itertools.chain(*of_canary), 0])
    return RecordTable(
        features=torch.from_numpy(np.concatenate([private, *rows, private[:1]])).to(device),
        labels=torch.from_numpy(labels.astype(kind)).to(device),
        num_canaries=len(rows),
    )


def _indices(canaries: Sequence[Canary], name: str, count: int, what: str) -> list[int]:
    """The checked targets or coordinates of canaries."""
    indices = [checked_count(f"canary: {name}", getattr(c, name), least=0) for c in canaries]
    if max(indices) >= count:
        raise InputError(f"canary: {name} is {max(indices)}, and there are {count} {what}")
    if len(set(indices)) < len(indices):
        raise InputError(f"two canaries have the same {name}; give each slot one of its own")
    return indices


def _check(canary: Canary, records: Records, max_grad_norm: float, num_parameters: int) -> None:
    """Refuses features and labels that no record has, and gradients that no clipped record has."""
    if isinstance(canary, InputCanary):
        _check_record(canary, records)
    if isinstance(canary, DirectionCanary):
        gradient = np.asarray(canary.gradient, np.float64)
        if gradient.shape != (num_parameters,) or not np.isfinite(gradient).all():
            raise InputError(
                f"gradient canary: its gradient must be {num_parameters} finite numbers, one per"
                f" parameter; it has shape {gradient.shape}"
            )
        length = np.linalg.norm(gradient)
        if length > max_grad_norm * (1 + 1e-6):
            raise InputError(
                f"gradient canary: its gradient has length {length:g}, more than max_grad_norm"
                f" {max_grad_norm:g}; clipped gradients are never as long: scale it down"
            )


def _check_record(canary: InputCanary, records: Records) -> None:
    if records.has_classes:
        checked_count("canary: label", canary.label, least=0)  # type: ignore[arg-type]
    elif not _is_number(canary.label):
        raise InputError(f"input canary: its label is {canary.label!r}, no finite number")
    try:
        features = np.asarray(canary.features)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"input canary: its features cannot be made an array: {error}") from None
    shape, kind = records.features.shape[1:], records.features.dtype
    if features.shape != shape:
        raise InputError(
            f"input canary: its features have shape {features.shape}, those of records {shape}"
        )
    if features.dtype.kind not in "fiub":
        raise InputError(f"input canary: its features must be numbers, not {features.dtype}")
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.square(features, dtype=np.float32).sum()
    if not np.isfinite(square):  # as the square of its gradient's length would be
        raise InputError(
            "input canary: a feature is NaN or infinite, or too large for single precision, where"
            " the square of their length overflows"
        )
    with np.errstate(invalid="ignore"):
        is_changed = kind.kind in "iu" and not np.array_equal(features.astype(kind), features)
    if is_changed:
        raise InputError(
            f"input canary: a feature is no {kind}, which those of records are: give records whose"
            " features are floating-point numbers, or a canary whose features are such integers"
        )


def _is_number(label: float) -> bool:
    """Whether a label, which may be of any type, is a finite number."""
    try:
        return math.isfinite(label)
    except (TypeError, ValueError, OverflowError):
        return False
