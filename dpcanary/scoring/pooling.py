"""An audit's shards, checked and scored one by one: memory holds the scores and one shard."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.files import sha256_of_file
from dpcanary.core.plugins import function_named
from dpcanary.core.provenance import check_origin
from dpcanary.data.canaries import read_canaries
from dpcanary.data.observations import Shard, read_shard
from dpcanary.errors import InputError
from dpcanary.scoring.score_file import AuditScores
from dpcanary.scoring.scores import ScoringContext, ranks_among
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training.training_settings import Loss, WorldAssignment

# Header entries in which the shards of one audit may differ.
_MAY_DIFFER = {"device", "seconds", "software"}


def pool_scores(
    paths: Sequence[Path],
    stage: ScoringStage,
    *,
    canaries: Path | None,
    names: Mapping[str, str],
    origin: str | None = None,
) -> AuditScores:
    """Scores an audit's shards; a shard may hold any of its runs.

    Args:
        paths: shard files, at least one.
        stage: the audit's runs, and how to score them.
        canaries: the audit's canary file, if it has one.
        names: of the audit, its canary and its score, for the header of the scores.
        origin: that every shard must have; see `provenance`. None if it is not known.

    Raises:
        InputError: if the shards are not those of the audit (see `checked_shards`), or the score
            function does not exist or returns another shape.
    """
    score = function_named(stage.score_function)
    canary_set = None if canaries is None else read_canaries(canaries)
    shape = (stage.num_repeats, stage.num_runs, stage.num_slots)
    scores = np.empty((*shape, len(stage.record_steps)))
    is_of_secrets = stage.runs_settings.get("worlds") == WorldAssignment.CANDIDATES
    world = np.empty(shape, np.uint32 if is_of_secrets else np.uint8)
    accuracy = np.empty(shape[:2], np.float32)
    noise_multiplier, seconds, baseline, num_candidates = 0.0, 0.0, None, None
    loss = Loss(stage.runs_settings.get("loss") or Loss.CROSS_ENTROPY)
    for shard in checked_shards(paths, stage, canaries=canaries, origin=origin):
        noise_multiplier = shard.header["noise_multiplier"]
        num_candidates = shard.header.get("num_candidates")
        context = ScoringContext(
            stage.sample_rate,
            noise_multiplier,
            stage.record_steps,
            canary_set,
            stage.runs_settings,
            adjacency=Adjacency(stage.runs_settings["adjacency"]),
            loss=loss if "loss" in stage.runs_settings else None,
            num_candidates=num_candidates,
        )
        new = np.asarray(score(shard.observation.astype(np.float64), context))
        values = [num_candidates] * is_of_secrets
        if new.shape != (len(shard.run), len(shard.step), stage.num_slots, *values):
            raise InputError(
                f"{stage.score_function} returned shape {new.shape} for"
                f" {len(shard.run)} runs, {len(shard.step)} steps and {stage.num_slots} slots"
                + (f" of {num_candidates} values" if is_of_secrets else "")
            )
        if np.isnan(new).any():
            run = shard.run[int(np.argmax(np.isnan(new).any(axis=tuple(range(1, new.ndim)))))]
            raise InputError(f"{stage.score_function} returned NaN for run {run}")
        if is_of_secrets:
            new = ranks_among(new, shard.world[:, None])  # the same at all steps
        place = np.divmod(shard.run, stage.num_runs)  # repeat, and run in it
        scores[place] = new.transpose(0, 2, 1)
        world[place], accuracy[place] = shard.world, shard.test_accuracy
        seconds += shard.header["seconds"]
        baseline = shard.header.get("baseline")
    header = {
        **names,
        "sample_rate": stage.sample_rate,
        "noise_multiplier": noise_multiplier,
        "batch_size": stage.runs_settings.get("batch_size"),
        "seconds": seconds,
        "measure": "accuracy" if loss.is_of_classes else "r2",
        "baseline": baseline,
    }
    if is_of_secrets:
        header["num_candidates"] = num_candidates
    return AuditScores(header, np.array(stage.record_steps), scores, world, accuracy)


def checked_shards(
    paths: Sequence[Path], stage: ScoringStage, *, canaries: Path | None, origin: str | None = None
) -> Iterator[Shard]:
    """Reads the shards of one audit one by one, and checks each; arguments as in `pool_scores`.

    Raises:
        InputError: if a shard was made with other settings or canaries, if shards come from
            different inputs, if runs are missing, repeated or not the audit's, or if an
            observation is NaN. The error names the file and the run.
    """
    canary_hash = None if canaries is None else sha256_of_file(canaries)
    seen = np.zeros(stage.num_repeats * stage.num_runs, dtype=np.bool_)
    first: Mapping[str, Any] | None = None
    for path in paths:
        shard = read_shard(path)
        first = first or shard.header
        if origin:
            check_origin(path, shard.header.get("origin"), origin)
        # It is not enough that shards agree with one another: they must come from this audit.
        same = shard.header["settings"] == stage.runs_settings
        if not same or shard.header["inputs"].get("canaries") != canary_hash:
            raise InputError(
                f"{path} was made with other {'canaries' if same else 'settings'}: it is of"
                " another audit, or out of date; delete such shards and run again"
            )
        for key in sorted(first.keys() | shard.header.keys()):
            if key not in _MAY_DIFFER and first.get(key) != shard.header.get(key):
                raise InputError(
                    f"{path} and {paths[0]} differ in {key!r}: they are not of the same audit;"
                    " delete the one that is out of date and run again"
                )
        _check_arrays(path, shard, stage, seen)
        seen[shard.run] = True
        yield shard
    if not seen.all():
        run, count = int(np.argmin(seen)), int((~seen).sum())
        raise InputError(f"{paths[0].parent}: run {run} is missing ({count} such runs)")


def _check_arrays(path: Path, shard: Shard, stage: ScoringStage, seen: NDArray[np.bool_]) -> None:
    """Steps and slots are the audit's, no observation is NaN, and all runs are its own and new."""
    if not np.array_equal(shard.step, stage.record_steps):
        raise InputError(f"{path} recorded different steps; delete it and run again")
    num_slots = shard.world.shape[1]
    if num_slots != stage.num_slots:
        raise InputError(
            f"{path} has {num_slots} slots, its audit {stage.num_slots}; delete it and run again"
        )
    bad = np.isnan(shard.observation).any(axis=tuple(range(1, shard.observation.ndim)))
    if bad.any():
        run = shard.run[int(np.argmax(bad))]
        raise InputError(f"{path}: run {run} has a NaN observation; delete the file and run again")
    foreign = shard.run[(shard.run < 0) | (shard.run >= len(seen))]
    if len(foreign):
        raise InputError(f"{path}: run {foreign[-1]} is not one of the audit's {len(seen)}")
    runs, counts = np.unique(shard.run, return_counts=True)
    again = runs[(counts > 1) | seen[runs]]
    if len(again):
        raise InputError(
            f"{path}: run {again[0]} is there twice ({len(again)} such runs): in this shard and"
            " another, or twice in this one"
        )
