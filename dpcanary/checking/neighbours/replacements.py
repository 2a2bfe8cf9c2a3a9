"""Which records are replaced, and by what, unless the user says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from dpcanary.checking.neighbours.neighbour_datasets import KINDS, Data, changed
from dpcanary.checking.neighbours.records_seen import Batch
from dpcanary.checking.neighbours.tape import array_of

# So many records are looked at for another label, and for missing values.
_LOOKED_AT = 50


@dataclass(frozen=True)
class Replacement:
    """A record in place of another one.

    Attributes:
        index: the number of the record in the dataset.
        record: what is there in its place: what the dataset gives, or a row of each array.
        name: in words.
    """

    index: int
    record: Any
    name: str = "another record of your choice"

    @property
    def label(self) -> str:
        """The replacement, in words."""
        return f"record {self.index} replaced by {self.name}"


def chosen(data: Data, steps: Sequence[Sequence[Batch]], *, seed: int) -> list[Replacement]:
    """A handful of replacements at a few places, which are likely to trigger a branch.

    If the records in the batches are known, the first place is a record of the first batch, on
    which what is done at the first step depends; the second one is of a later batch, with a value
    that few others have, as a category that vanishes with it; and the third one is in no batch, as
    records that are held out.

    Args:
        data: the records.
        steps: the batches of each step of the training on them.
        seed: of the choices.
    """
    rng = np.random.default_rng(seed)
    first, second, third = _positions(data.count, steps, data.rarity())
    some = rng.permutation(data.count)[:_LOOKED_AT]
    others = [data.record(int(index)) for index in some if index not in (first, second, third)]
    has_missing = any(_has_missing(record) for record in others)
    kinds = [kind for kind in KINDS if has_missing or kind != "missing values"]
    replaced = []
    for place, which in ((first, (0, 1, 2)), (second, (3, 4)), (third, (0, 1))):
        if place is None:
            continue
        record = data.record(place)
        for number in which:
            if number < len(kinds):
                new = changed(record, others, kinds[number])
                if new is not None:
                    replaced.append(Replacement(place, new, _words(kinds[number])))
    neighbour = (second + 1) % data.count
    copied = data.record(neighbour)
    if not any(replacement.index == neighbour for replacement in replaced):
        replaced.append(Replacement(second, copied, f"a copy of record {neighbour}"))
    return replaced


def _words(kind: str) -> str:
    return {
        "ten times as loud": "itself, ten times as loud",
        "another label": "itself with another label",
        "missing values": "itself with missing values",
    }.get(kind, kind)


def _positions(
    count: int, steps: Sequence[Sequence[Batch]], rarity: NDArray[np.int64]
) -> tuple[int, int, int | None]:
    """Numbers of two records, and of one that is in no batch, as those that are held out."""
    groups = [
        np.unique(np.concatenate([batch.records for batch in batches]))
        for batches in steps
        if batches
    ]
    groups = [group for group in groups if len(group)]
    fallback = int(count // 4), int(count - 1 - count // 4)
    if not groups:
        return (*fallback, None) if fallback[0] != fallback[1] else (0, count - 1, None)
    # What a training does in the order of its records, early ones decide.
    first = int(groups[0][0])
    later = np.unique(np.concatenate(groups[1:])) if len(groups) > 1 else groups[0]
    without = np.setdiff1d(later, groups[0])
    candidates = without if len(without) else np.setdiff1d(later, [first])
    second = (
        int(candidates[rarity[candidates].argmin()]) if len(candidates) else (first + 1) % count
    )
    left = np.setdiff1d(np.arange(count), np.concatenate(groups))
    return first, second, int(left[-1]) if len(left) else None


def _has_missing(record: Any) -> bool:
    return any(
        np.isnan(array).any()
        for array in map(array_of, tree_leaves(record))
        if array.dtype.kind == "f"
    )
