"""Pretraining: the parameters that all runs start from, trained without privacy on public records.

Both worlds start from them, so an audit is as valid as without. What is pretrained on is not
protected, so no private record may be among it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.data.records import Records, Scaling, Split
from dpcanary.errors import InputError
from dpcanary.training.batches import KnownBatches
from dpcanary.training.models import descent, module_of
from dpcanary.training.runs import measure_of
from dpcanary.training.simulated_trainings import Simulation, check_finite
from dpcanary.training.training_settings import Initialisation, PretrainingStage, Purpose


@dataclass(frozen=True)
class Pretrained:
    """Parameters in the module's order, and `runs.measure_of` test records, NaN without."""

    parameters: NDArray[np.float32]
    test_accuracy: float


def write_pretrained(path: Path, pretrained: Pretrained, *, origin: str = "") -> None:
    """Writes the file of a pretrained model; `origin` as in `files.write_arrays`."""
    header = {"test_accuracy": pretrained.test_accuracy}
    arrays = {"parameters": pretrained.parameters}
    write_arrays(path, header=header, arrays=arrays, origin=origin)


def read_pretrained(path: Path) -> NDArray[np.float32]:
    """The parameters of a pretrained model, in the module's order."""
    _, arrays = read_arrays(path)
    if [*arrays] != ["parameters"]:
        raise InputError(f"{path} holds no pretrained model; delete it and run again")
    return np.asarray(arrays["parameters"], np.float32)


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

    Raises:
        InputError: if the features of only one of the two datasets are standardised.
    """
    if other is None:
        return data.auxiliary, 0
    public = other.private
    if public.features.shape[1:] != data.private.features.shape[1:]:
        return public, 0
    if (data.scaling is None) != (other.scaling is None):
        raise InputError(
            "pretraining: either its dataset or the audited one is standardised, but not both, so"
            " records that are in both cannot be recognised: set standardised to the same value"
        )
    features, labels = public.features, public.labels
    if data.scaling and other.scaling:
        features = _rescaled(features, other.scaling, data.scaling)
    if data.label_scaling and other.label_scaling:
        labels = _rescaled(labels, other.label_scaling, data.label_scaling)
    public = Records(features, labels)
    audited = [part.features for part in (data.private, data.test)]
    twice = np.any([_among(features, public.features) for features in audited], axis=0)
    return public[~twice], int(twice.sum())


def _rescaled(values: NDArray[Any], old: Scaling, new: Scaling) -> NDArray[np.float32]:
    factor, shift = old.deviation / new.deviation, (old.mean - new.mean) / new.deviation
    return (values * factor + shift).astype(np.float32)


def _among(audited: NDArray[np.floating], features: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which features are also among the audited ones, shape (n,).

    Equal features have equal projections, so each is compared with the few that project alike.
    """
    is_among = np.zeros(len(features), bool)
    projections = _projected(features)
    order = np.argsort(projections)
    ascending, of_audited = projections[order], _projected(audited)
    first = np.searchsorted(ascending, of_audited - _ROUNDING)
    last = np.searchsorted(ascending, of_audited + _ROUNDING)
    for row in np.flatnonzero(last > first):
        alike = order[first[row] : last[row]]
        apart = np.abs(features[alike] - audited[row]).reshape(len(alike), -1).max(axis=1)
        is_among[alike] |= apart < _ROUNDING
    return is_among


def _projected(features: NDArray[np.floating]) -> NDArray[np.float64]:
    """Features along one direction of unit length, in general position, shape (n,)."""
    flat = features.reshape(len(features), math.prod(features.shape[1:]))
    direction = np.sin(np.arange(1.0, flat.shape[1] + 1.0))
    direction /= np.linalg.norm(direction)
    starts = range(0, len(flat), _ROWS_AT_ONCE)
    parts = [flat[start : start + _ROWS_AT_ONCE] @ direction for start in starts]
    return np.concatenate([np.empty(0), *parts])


def pretrain(
    stage: PretrainingStage,
    *,
    data: Split,
    public: Records,
    device: torch.device,
    on_progress: Callable[[int], object] = lambda steps: None,
) -> Pretrained:
    """Trains a model on public records, without clipping and noise.

    `data` is that of the audit, which has the classes and the test records.

    Raises:
        InputError: if the public records have other features or more classes than the audit's,
            there are too few for a batch, or the training diverges.
    """
    settings, shape = stage.pretraining, data.private.features.shape[1:]
    if public.features.shape[1:] != shape:
        raise InputError(
            f"pretraining: its records have features of shape {public.features.shape[1:]}, and the"
            f" audited ones {shape}"
        )
    if public.has_classes != data.private.has_classes:
        raise InputError(
            "pretraining: labels must be classes both in its records and in the audited ones, or"
            " numbers in both"
        )
    if public.num_classes > data.num_classes:
        raise InputError(
            f"pretraining: its records have labels up to {public.num_classes - 1}, and the audited"
            f" ones up to {data.num_classes - 1}: give it records with the same classes"
        )
    batches = KnownBatches(
        np.arange(len(public)),
        batch_size=settings.batch_size,
        seed=stage.model_seed,
        purpose=Purpose.PRETRAINING_BATCHES,
    )
    mechanism = descent(settings, loss=stage.loss)
    module = module_of(stage, shape=shape, num_classes=data.num_classes)
    size = settings.batch_size
    simulation = Simulation(
        module, public, mechanism, Initialisation.FIXED, device, batch_size=size
    )
    ones = np.ones((1, size), np.float32)
    for _ in simulation.train(
        lambda step: (batches.at(step), ones), settings.num_steps, on_progress
    ):
        pass
    parameters = simulation.decoded(simulation.parameters).astype(np.float32)
    check_finite("pretraining", mechanism, parameters)
    accuracy = float("nan")
    if len(data.test):
        models = torch.from_numpy(parameters).to(device)
        accuracy = float(measure_of(simulation.path, models, data.test, stage.loss)[0])
    return Pretrained(parameters[0], accuracy)
