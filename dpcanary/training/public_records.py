"""The records that a model is pretrained on, without those that an audit needs for itself."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.records import Records, Scaling, Split

# By how much the features of equal records may differ, in units of a standardised feature: their
# datasets scale them differently, in single precision.
_ROUNDING = 1e-3
_ROWS_AT_ONCE = 4096


def public_records(data: Split, other: Split | None = None) -> tuple[Records, int]:
    """What a model is pretrained on, and how many records were left out of it.

    Args:
        data: of the audit. Without another dataset its auxiliary records are taken: none of these
            is private.
        other: another dataset. Its private records are taken, which are public here, in the scaling
            of `data`. Those that are also among the private or test records of `data` are left out:
            a record that is pretrained on is not protected, and one that is tested on says nothing
            about accuracy. Records of other shapes are taken as they are.
    """
    if other is None:
        return data.auxiliary, 0
    public = other.private
    if public.features.shape[1:] != data.private.features.shape[1:]:
        return public, 0
    if data.scaling and other.scaling:
        public = Records(_rescaled(public, other.scaling, data.scaling), public.labels)
    known = [part.features for part in (data.private, data.test)]
    twice = np.any([_among(part, public.features) for part in known], axis=0)
    return public[~twice], int(twice.sum())


def _rescaled(records: Records, old: Scaling, new: Scaling) -> NDArray[np.float32]:
    factor, shift = old.deviation / new.deviation, (old.mean - new.mean) / new.deviation
    return (records.features * factor + shift).astype(np.float32)


def _among(known: NDArray[np.floating], features: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which features are also among the known ones, shape (n,).

    Equal features have equal projections, so each is compared with the few that project alike.
    """
    found = np.zeros(len(features), bool)
    projections = _projected(features)
    order = np.argsort(projections)
    ascending, wanted = projections[order], _projected(known)
    first = np.searchsorted(ascending, wanted - _ROUNDING)
    last = np.searchsorted(ascending, wanted + _ROUNDING)
    for row in np.flatnonzero(last > first):
        alike = order[first[row] : last[row]]
        apart = np.abs(features[alike] - known[row]).reshape(len(alike), -1).max(axis=1)
        found[alike] |= apart < _ROUNDING
    return found


def _projected(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Features along one direction of unit length, in general position, shape (n,)."""
    flat = features.reshape(len(features), -1)
    direction = np.sin(np.arange(1.0, flat.shape[1] + 1.0))
    direction /= np.linalg.norm(direction)
    starts = range(0, len(flat), _ROWS_AT_ONCE)
    parts = [flat[start : start + _ROWS_AT_ONCE] @ direction for start in starts]
    return np.concatenate([np.empty(0), *parts])
