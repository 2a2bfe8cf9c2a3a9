"""DP-SGD for many models at once, each with its own batches and noise."""

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import index
from types import UnionType

import numpy as np
import torch
from torch import nn

from dpcanary.core.argument_checks import checked_count
from dpcanary.core.devices import chosen_device
from dpcanary.data.canaries import Canary
from dpcanary.data.observations import Observation, parity
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble_plan import Plan, default_observation
from dpcanary.training.initialisation import NO_RUN
from dpcanary.training.runs import EnsembleResult, Progress, no_progress, train_runs
from dpcanary.training.training_settings import (
    Initialisation,
    InitialWeights,
    Loss,
    WorldAssignment,
)


def train_ensemble(
    *,
    module: nn.Module,
    records: Records,
    canary: Canary | Sequence[Canary],
    dpsgd: DPSGD,
    runs: int | Iterable[int],
    seed: int,
    test_records: Records | None = None,
    observe: Observation | str | None = None,
    worlds: WorldAssignment | str | None = None,
    initialisation: Initialisation | str = Initialisation.FIXED,
    initial_weights: InitialWeights | str = InitialWeights.PYTORCH,
    device: torch.device | str = "cpu",
    num_threads: int = 1,
    runs_at_once: int | None = None,
    keep_parameters: bool = False,
    rotate: bool = True,
    on_progress: Progress = no_progress,
) -> EnsembleResult:
    """Trains one model per run, on one or the other of two neighbouring datasets.

    What a run draws depends on the seed and its index alone, not on the other runs, the number of
    threads or the device.

    Args:
        module: the architecture, of any kind without batch statistics, also as Opacus wraps it.
            Linear heads, perceptrons and small convolutional networks have fast paths of their own.
        records: the private records.
        canary: what is inserted; a list gives each run one slot per canary. See `slots.slots_of`.
        dpsgd: settings of the mechanism.
        runs: how many runs, or their indices, which fix each run's world and randomness. With
            one slot, even indices are in world 0 and odd ones in world 1.
        seed: the audit's seed.
        test_records: the records that models are measured on; by default they are not measured.
        observe: what is kept of a run; by default the observation for the canary's type.
        worlds: how the worlds of slots are assigned; by default `alternate` with one slot and
            `coins` with several.
        initialisation: where runs start; by default from the module's own parameters.
        initial_weights: how parameters are drawn with initialisation `per_run`.
        device: where to compute.
        num_threads: threads of the host; each trains runs of its own.
        runs_at_once: runs in memory at once, per thread; by default as many as are fastest
            together and fit in half of the free memory.
        keep_parameters: whether to return the models.
        rotate: whether linear heads may be trained in the span of their records, which changes no
            distribution; see `gradients.linear`.
        on_progress: called with the number of model-steps just done, or with a negative number
            of steps that must be repeated because memory ran out.

    Raises:
        InputError: if an argument is out of its range, the module cannot be trained, a canary
            does not fit, a run diverges (names the run and the step), or one run alone does not
            fit in memory.
    """
    canaries = list(canary) if isinstance(canary, Sequence) else [canary]
    _check_type("module", nn.Module, module)
    _check_type("records", Records, records)
    _check_type("dpsgd", DPSGD, dpsgd)
    _check_type("canary", Canary, *canaries)
    indices = _run_indices(runs)
    _check_records(records, test_records, dpsgd.loss)
    if worlds is None:
        worlds = WorldAssignment.by_default(len(canaries))
    worlds = WorldAssignment(worlds)
    if worlds is WorldAssignment.ALTERNATE and np.ptp(parity(np.array(indices))) == 0:
        raise InputError(
            f"all runs are in world {indices[0] % 2}, so worlds cannot be compared: even indices"
            " are in world 0, odd ones in world 1; give runs of both"
        )
    plan = Plan(
        module=module,
        records=records,
        test_records=test_records,
        canaries=canaries,
        dpsgd=dpsgd,
        seed=checked_count("seed", seed, least=0),
        observe=default_observation(canaries) if observe is None else Observation(observe),
        worlds=worlds,
        initialisation=Initialisation(initialisation),
        initial_weights=InitialWeights(initial_weights),
        device=chosen_device(device),
        rotate=rotate,
    )
    return train_runs(
        plan,
        indices,
        num_threads=checked_count("num_threads", num_threads),
        runs_at_once=None if runs_at_once is None else checked_count("runs_at_once", runs_at_once),
        keep_parameters=keep_parameters,
        on_progress=on_progress,
    )


def _run_indices(runs: int | Iterable[int]) -> list[int]:
    try:
        indices = [*map(index, runs if isinstance(runs, Iterable) else range(index(runs)))]
    except TypeError:
        raise InputError(f"runs must be a number of runs, or their indices; not {runs!r}") from None
    if not indices or min(indices) < 0 or max(indices) >= NO_RUN:
        raise InputError(f"runs must be indices from 0 to {NO_RUN - 1}, and at least one")
    if len(set(indices)) < len(indices):
        twice, _ = Counter(indices).most_common(1)[0]
        raise InputError(f"run {twice} is given twice: it would be the same model again")
    return indices


def _check_type(name: str, kind: type | UnionType, *values: object) -> None:
    for value in values:
        if not isinstance(value, kind):
            expected = getattr(kind, "__name__", "canary")
            raise InputError(
                f"{name} must be a {expected}, not {type(value).__name__} {value!r:.60}"
            )


def _check_records(records: Records, test_records: Records | None, loss: Loss) -> None:
    if not len(records):
        raise InputError("there are no records")
    parts = [records] if test_records is None else [records, test_records]
    if loss.is_of_classes and all(part.labels.min(initial=1) > 0 for part in parts):
        raise InputError("no record has label 0; labels are counted from 0: subtract 1")
    for part in parts:
        kind, shape = part.features.dtype.kind, part.features.shape[1:]
        if kind == "U":
            raise InputError("records: features are texts; encode them first")
        if kind == "f" and not np.isfinite(part.features).all():
            raise InputError("records: a feature is NaN or infinite; repair or drop such records")
        if shape != (expected := records.features.shape[1:]):
            raise InputError(
                f"test_records: features of shape {shape}, and records have {expected}"
            )
