"""An audit's shards, checked and scored one by one: memory holds the scores and a single shard."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adjacency import world_of
from dpcanary.canaries import read_canary
from dpcanary.errors import InputError
from dpcanary.observations import Shard, hashes_of, read_shard
from dpcanary.scores import scores_of
from dpcanary.stages import ScoringStage, TrainingStage

# Header entries in which the shards of one audit may differ.
_OF_ONE_SHARD = {"device", "seconds", "software"}


@dataclass(frozen=True)
class AuditScores:
    """Scores of all runs of one audit.

    Attributes:
        step: shape (s,), recorded steps, ascending.
        world0_scores: shape (repeats, runs per world, s), in the order of the run indices.
        world1_scores: the same of world 1.
        test_accuracy: shape (repeats, runs), in [0, 1]; NaN where no model is trained.
        noise_multiplier: sigma.
        seconds: how long the shards took, all together.
    """

    step: NDArray[np.int64]
    world0_scores: NDArray[np.float64]
    world1_scores: NDArray[np.float64]
    test_accuracy: NDArray[np.float32]
    noise_multiplier: float
    seconds: float


def pool_scores(paths: Sequence[Path], stage: ScoringStage, *, canary: Path | None) -> AuditScores:
    """Scores an audit's shards, whatever runs each of them holds.

    Args:
        paths: shard files, one at least.
        stage: the runs that the audit has, and what they must have been told.
        canary: the audit's canary file, where it has one.

    Raises:
        InputError: if the shards are not those of the audit; see `checked_shards`.
    """
    placed = None if canary is None else read_canary(canary)
    worlds = [_room_for_a_world(stage) for _ in range(2)]
    accuracy = np.empty((stage.num_repeats, stage.num_runs), np.float32)
    noise_multiplier, seconds = 0.0, 0.0
    num_runs = stage.num_repeats * stage.num_runs
    for shard in checked_shards(paths, stage.training, canary=canary, num_runs=num_runs):
        scores, world = scores_of(shard, stage.training, placed), world_of(shard.run)
        repeat, run = np.divmod(shard.run, stage.num_runs)
        for index, pooled in enumerate(worlds):
            own = world == index
            # The worlds alternate, and every repeat begins with world 0, since num_runs is even.
            pooled[repeat[own], run[own] // 2] = scores[own]
        accuracy[repeat, run] = shard.test_accuracy
        noise_multiplier = shard.header["noise_multiplier"]
        seconds += shard.header["seconds"]
    return AuditScores(
        step=np.array(stage.training.record_steps, dtype=np.int64),
        world0_scores=worlds[0],
        world1_scores=worlds[1],
        test_accuracy=accuracy,
        noise_multiplier=noise_multiplier,
        seconds=seconds,
    )


def _room_for_a_world(stage: ScoringStage) -> NDArray[np.float64]:
    """Uninitialised scores; in memory a run's repeats are neighbours, as in the files on record."""
    runs_first = (stage.num_runs // 2, stage.num_repeats, len(stage.training.record_steps))
    return np.empty(runs_first).transpose(1, 0, 2)


def checked_shards(
    paths: Sequence[Path], stage: TrainingStage, *, canary: Path | None, num_runs: int
) -> Iterator[Shard]:
    """Reads the shards of one audit one by one, in any order, and checks each.

    Args:
        paths: shard files, one at least.
        stage: what the audit's runs are told.
        canary: the audit's canary file, where it has one.
        num_runs: runs that the audit has; each must be there once.

    Raises:
        InputError: if a shard's runs were told something else or had another canary, if shards
            come from different inputs, if runs are missing or repeated or not the audit's, or if
            an observation is not a number; names the file and the run.
    """
    settings = stage.model_dump(mode="json")
    canary_hash = {} if canary is None else hashes_of({"canary": canary})
    steps, seen = np.array(stage.record_steps), np.zeros(num_runs, dtype=np.bool_)
    first: Mapping[str, Any] | None = None
    for path in paths:
        shard = read_shard(path)
        first = first or shard.header
        _check_origin(path, shard.header, settings=settings, canary=canary_hash)
        _check_same_origin(path, shard.header, paths[0], first)
        if not np.array_equal(shard.step, steps):
            raise InputError(f"{path} recorded different steps; delete it and run again")
        _check_numbers(path, shard)
        _check_runs(path, shard.run, seen)
        yield shard
    if not seen.all():
        missing = f"run {int(np.argmin(seen))} is missing ({int((~seen).sum())} such runs)"
        raise InputError(f"{paths[0].parent}: {missing}")


def _check_origin(
    path: Path, header: Mapping[str, Any], *, settings: Mapping[str, Any], canary: Mapping[str, str]
) -> None:
    """A shard must be of the audit that it is taken for, not just of one with the others."""
    had = {role: digest for role, digest in header["inputs"].items() if role == "canary"}
    for what, matches in (("settings", header["settings"] == settings), ("canary", had == canary)):
        if not matches:
            raise InputError(
                f"{path} was made with another {what}: it is of another audit, or out of date;"
                " delete such shards and run again"
            )


def _check_same_origin(
    path: Path, header: Mapping[str, Any], first_path: Path, first: Mapping[str, Any]
) -> None:
    for key in sorted(first.keys() | header.keys()):
        if key not in _OF_ONE_SHARD and first.get(key) != header.get(key):
            raise InputError(
                f"{path} and {first_path} differ in {key!r}: they are not of the same audit;"
                " delete the one that is out of date and run again"
            )


def _check_numbers(path: Path, shard: Shard) -> None:
    bad = np.isnan(shard.observation).any(axis=tuple(range(1, shard.observation.ndim)))
    if bad.any():
        run = shard.run[int(np.argmax(bad))]
        raise InputError(f"{path}: run {run} has a NaN observation; delete the file and run again")


def _check_runs(path: Path, run: NDArray[np.int64], seen: NDArray[np.bool_]) -> None:
    """Marks the shard's runs as seen, or names one that it should not have."""
    ours = (run >= 0) & (run < len(seen))
    if not ours.all():
        raise InputError(f"{path}: run {run[~ours][-1]} is not one of the audit's {len(seen)}")
    runs, counts = np.unique(run, return_counts=True)
    again = (counts > 1) | seen[runs]
    if again.any():
        raise InputError(
            f"{path}: run {runs[int(np.argmax(again))]} is there twice ({int(again.sum())} such"
            " runs): it is in this shard and another, or repeated in this one"
        )
    seen[run] = True
