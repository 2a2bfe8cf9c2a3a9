"""Pooling: an audit's shards are checked and scored one by one, in bounded memory."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dpcanary.adjacency import world_of
from dpcanary.canaries import InputCanary, PlacedCanary, write_canary
from dpcanary.config import parse_experiment
from dpcanary.errors import InputError
from dpcanary.observations import Shard, hashes_of, read_shard, shard_path, write_shard
from dpcanary.pooling import checked_shards, pool_scores
from dpcanary.scores import logit_difference_score
from dpcanary.stages import ScoringStage

AUDIT = {
    "canary": "worst_case",
    "score": "transcript",
    "sample_rate": 0.5,
    "noise_multiplier": 2.0,
    "num_steps": 10,
    "record_every": 5,
    "num_runs": 8,
}
LOGITS = {**AUDIT, "canary": "mislabeled", "score": "logit_difference", "dataset": "digits"}


def stage_of(audit: dict[str, object]) -> ScoringStage:
    datasets = {"digits": {"source": "digits", "num_records": 60}}
    config = {"experiment": "e", "delta": 1e-5, "datasets": datasets, "audits": {"a": audit}}
    return parse_experiment(config).stage(ScoringStage, audit="a")


STAGE = stage_of(AUDIT)
SETTINGS = STAGE.training.model_dump(mode="json")


def shard(first: int, num_runs: int, **header: object) -> Shard:
    """Runs whose observation at step 5 is their index, and at step 10 ten times that."""
    run = np.arange(first, first + num_runs)
    known = {"settings": SETTINGS, "inputs": {}, "noise_multiplier": 2.0, "seconds": 2.0}
    return Shard(
        header={**known, **header},
        run=run,
        step=np.array([5, 10]),
        observation=run[:, None] * np.array([1.0, 10.0]),
        test_accuracy=(run / 100).astype(np.float32),
    )


def written(folder: Path, *shards: Shard) -> list[Path]:
    paths = [shard_path(folder, index) for index in range(len(shards))]
    for path, one in zip(paths, shards, strict=True):
        write_shard(path, one)
    return paths


def checked(paths: list[Path], *, num_runs: int = 8, canary: Path | None = None) -> list[Shard]:
    return list(checked_shards(paths, STAGE.training, canary=canary, num_runs=num_runs))


@pytest.mark.parametrize("num_repeats", [1, 3])
def test_runs_are_put_in_order_whatever_their_shards(tmp_path, num_repeats):
    stage = stage_of({**AUDIT, "num_runs": 4, "num_repeats": num_repeats})
    total = 4 * num_repeats
    settings = stage.training.model_dump(mode="json")
    last = shard(1, total - 1, settings=settings, device="cuda", software={"torch": "x"})
    reverse = Shard(
        header=last.header,
        run=last.run[::-1],
        step=last.step,
        observation=last.observation[::-1],
        test_accuracy=last.test_accuracy[::-1],
    )
    paths = written(tmp_path, reverse, shard(0, 1, settings=settings))
    pooled = pool_scores(paths, stage, canary=None)
    runs = np.arange(total).reshape(num_repeats, 4)
    np.testing.assert_array_equal(world_of(runs[:, 0::2]), 0)
    np.testing.assert_array_equal(pooled.world0_scores[..., 0], runs[:, 0::2])
    np.testing.assert_array_equal(pooled.world1_scores[..., 1], 10.0 * runs[:, 1::2])
    np.testing.assert_array_equal(pooled.test_accuracy, (runs / 100).astype(np.float32))
    np.testing.assert_array_equal(pooled.step, [5, 10])
    assert (pooled.noise_multiplier, pooled.seconds) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (shard(4, 4, settings={**SETTINGS, "seed": 2}), r"00001\.npz was made with another sett"),
        (shard(4, 4, inputs={"canary": "x"}), r"00001\.npz was made with another canary: it is of"),
        (shard(4, 4, inputs={"data": "y"}), "00001.npz and .*00000.npz differ in 'inputs'"),
        (shard(4, 4, noise_multiplier=3.0), "differ in 'noise_multiplier'"),
        (shard(4, 4, extra=1), "differ in 'extra'"),
        (shard(2, 6), r"00001\.npz: run 2 is there twice \(2 such runs\)"),
        (shard(5, 3), r"run 4 is missing \(1 such runs\)"),
        (shard(4, 3), "run 7 is missing"),
        (shard(4, 5), r"00001\.npz: run 8 is not one of the audit's 8"),
        (shard(-1, 5), r"00001\.npz: run -1 is not one of the audit's 8"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, second, message):
    with pytest.raises(InputError, match=message):
        checked(written(tmp_path, shard(0, 4), second))


def test_whole_shards_of_another_audit_are_refused(tmp_path):
    """They agree with one another, and not with the audit that they are taken for."""
    foreign = {"settings": {**SETTINGS, "seed": 2}}
    with pytest.raises(InputError, match="another settings: it is of another audit, or out of"):
        checked(written(tmp_path, shard(0, 4, **foreign), shard(4, 4, **foreign)))


def test_shards_must_have_the_audits_canary(tmp_path):
    paths = written(tmp_path, shard(0, 8))
    with pytest.raises(InputError, match="made with another canary"):
        checked(paths, canary=paths[0])


def test_a_run_twice_in_one_shard_is_refused(tmp_path):
    odd = Shard(**{**vars(shard(0, 8)), "run": np.array([0, 1, 2, 3, 4, 5, 6, 6])})
    with pytest.raises(InputError, match=r"run 6 is there twice \(1 such runs\)"):
        checked(written(tmp_path, odd))


def test_other_steps_are_refused(tmp_path):
    other = Shard(**{**vars(shard(4, 4)), "step": np.array([5, 11])})
    with pytest.raises(InputError, match=r"00001\.npz recorded different steps"):
        checked(written(tmp_path, shard(0, 4), other))


def test_a_nan_names_the_run(tmp_path):
    broken = shard(0, 8)
    broken.observation[2, 1] = np.nan
    with pytest.raises(InputError, match=r"00000\.npz: run 2 has a NaN"):
        checked(written(tmp_path, broken))


def test_a_truncated_shard_is_refused_with_advice(tmp_path):
    paths = written(tmp_path, shard(0, 4), shard(4, 4))
    paths[1].write_bytes(paths[1].read_bytes()[:-20])
    with pytest.raises(InputError, match=r"00001\.npz is not a whole .*; .* delete it and run"):
        checked(paths)


def logit_shards(folder: Path, stage: ScoringStage, *, runs_per_shard: int) -> list[Path]:
    """Shards with the logits of ten classes, the same in each, beside a canary file."""
    canary = folder / "canary.npz"
    record = InputCanary(features=np.zeros(64, np.float32), label=3)
    write_canary(canary, PlacedCanary(canary=record, target=5, target_label=1))
    settings = stage.training.model_dump(mode="json")
    header = shard(0, 1, settings=settings, inputs=hashes_of({"canary": canary})).header
    step = np.array(stage.training.record_steps)
    shape = (runs_per_shard, len(step), 2, 10)
    logits = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    starts = range(0, stage.num_runs * stage.num_repeats, runs_per_shard)
    runs = [np.arange(start, start + runs_per_shard) for start in starts]
    accuracy = np.full(runs_per_shard, 0.5, np.float32)
    return written(folder, *(Shard(header, run, step, logits, accuracy) for run in runs))


def test_scores_are_those_of_all_runs_at_once(tmp_path):
    stage = stage_of({**LOGITS, "num_runs": 10, "num_repeats": 3})
    paths = logit_shards(tmp_path, stage, runs_per_shard=6)
    pooled = pool_scores(paths, stage, canary=tmp_path / "canary.npz")
    logits = np.concatenate([read_shard(path).observation for path in paths])
    scores = logit_difference_score(logits.astype(np.float64), target_label=1, substitute_label=3)
    by_repeat = scores.reshape(3, 10, 2)
    np.testing.assert_array_equal(pooled.world0_scores, by_repeat[:, 0::2])
    np.testing.assert_array_equal(pooled.world1_scores, by_repeat[:, 1::2])


def test_memory_is_the_scores_and_one_shard(tmp_path, monkeypatch):
    """200,000 runs: their logits, as float64, are twenty times the size of their scores."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody cuts the power
    stage = stage_of({**LOGITS, "num_runs": 200_000})
    paths = logit_shards(tmp_path, stage, runs_per_shard=1_000)
    tracemalloc.start()
    pooled = pool_scores(paths, stage, canary=tmp_path / "canary.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = pooled.world0_scores.nbytes + pooled.world1_scores.nbytes
    assert size == 200_000 * 2 * 8
    # With each run's accuracy and whether it was seen; a shard's part is 1,000 runs' logits.
    assert peak < 2.5 * size
