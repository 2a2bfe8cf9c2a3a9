"""An audit's shards, checked and scored one by one: memory holds the scores and a single shard."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.canaries import read_canaries
from dpcanary.errors import InputError
from dpcanary.observations import Shard, hashes_of, read_shard
from dpcanary.plugins import function_named
from dpcanary.scoring.score_file import AuditScores
from dpcanary.scoring.scores import ScoringContext
from dpcanary.scoring.stage import ScoringStage

# Header entries in which the shards of one audit may differ.
_MAY_DIFFER = {"device", "seconds", "software"}


def pool_scores(
    paths: Sequence[Path],
    stage: ScoringStage,
    *,
    canaries: Path | None,
    names: Mapping[str, str],
) -> AuditScores:
    """Scores an audit's shards, whatever runs each of them holds.

    Args:
        paths: shard files, one at least.
        stage: the runs that the audit has, and how they are scored.
        canaries: the audit's canary file, where it has one.
        names: of the audit, its canary and its score; kept in the header of the scores.

    Raises:
        InputError: if the shards are not those of the audit (see `checked_shards`), or the score
            function does not exist or returns another shape.
    """
    score = function_named(stage.score_function)
    placed = None if canaries is None else read_canaries(canaries)
    shape = (stage.num_repeats, stage.num_runs, stage.num_slots)
    scores = np.empty((*shape, len(stage.record_steps)))
    world, accuracy = np.empty(shape, np.uint8), np.empty(shape[:2], np.float32)
    noise_multiplier, seconds = 0.0, 0.0
    for shard in checked_shards(paths, stage, canaries=canaries):
        noise_multiplier = shard.header["noise_multiplier"]
        context = ScoringContext(stage.sample_rate, noise_multiplier, stage.record_steps, placed)
        found = np.asarray(score(shard.observation.astype(np.float64), context))
        if found.shape != (len(shard.run), len(shard.step), stage.num_slots):
            raise InputError(
                f"{stage.score_function} returned shape {found.shape} for"
                f" {len(shard.run)} runs, {len(shard.step)} steps and {stage.num_slots} slots"
            )
        place = np.divmod(shard.run, stage.num_runs)  # repeat, and run in it
        scores[place] = found.transpose(0, 2, 1)
        world[place], accuracy[place] = shard.world, shard.test_accuracy
        seconds += shard.header["seconds"]
    header = {
        **names,
        "sample_rate": stage.sample_rate,
        "noise_multiplier": noise_multiplier,
        "seconds": seconds,
    }
    return AuditScores(header, np.array(stage.record_steps), scores, world, accuracy)


def checked_shards(
    paths: Sequence[Path], stage: ScoringStage, *, canaries: Path | None
) -> Iterator[Shard]:
    """Reads the shards of one audit one by one, in any order, and checks each.

    Args:
        paths: shard files, one at least.
        stage: the runs that the audit has, and what they were told.
        canaries: the audit's canary file, where it has one.

    Raises:
        InputError: if a shard's runs were told something else or had other canaries, if shards
            come from different inputs, if runs are missing or repeated or not the audit's, or if
            an observation is not a number; names the file and the run.
    """
    canary_hash = {} if canaries is None else hashes_of({"canaries": canaries})
    seen = np.zeros(stage.num_repeats * stage.num_runs, dtype=np.bool_)
    first: Mapping[str, Any] | None = None
    for path in paths:
        shard = read_shard(path)
        first = first or shard.header
        _check_origin(path, shard.header, settings=stage.told, canaries=canary_hash)
        _check_same_origin(path, shard.header, paths[0], first)
        if not np.array_equal(shard.step, stage.record_steps):
            raise InputError(f"{path} recorded different steps; delete it and run again")
        if shard.world.shape[1] != stage.num_slots:
            raise InputError(
                f"{path} has {shard.world.shape[1]} slots, its audit {stage.num_slots}; delete it"
                " and run again"
            )
        _check_numbers(path, shard)
        _check_runs(path, shard.run, seen)
        yield shard
    if not seen.all():
        missing = f"run {int(np.argmin(seen))} is missing ({int((~seen).sum())} such runs)"
        raise InputError(f"{paths[0].parent}: {missing}")


def _check_origin(
    path: Path,
    header: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    canaries: Mapping[str, str],
) -> None:
    """A shard must be of the audit that it is taken for, not just of one with the others."""
    had = {role: digest for role, digest in header["inputs"].items() if role == "canaries"}
    checks = {"settings": header["settings"] == settings, "canaries": had == canaries}
    for what, matches in checks.items():
        if not matches:
            raise InputError(
                f"{path} was made with other {what}: it is of another audit, or out of date;"
                " delete such shards and run again"
            )


def _check_same_origin(
    path: Path, header: Mapping[str, Any], first_path: Path, first: Mapping[str, Any]
) -> None:
    for key in sorted(first.keys() | header.keys()):
        if key not in _MAY_DIFFER and first.get(key) != header.get(key):
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
    """Marks the shard's runs as seen. A run that should not be there is an error."""
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
