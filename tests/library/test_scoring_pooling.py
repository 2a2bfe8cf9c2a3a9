"""An audit's shards are checked and scored one by one, in bounded memory."""

import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpcanary.data.canaries import CanarySet, InputCanary, read_canaries, write_canaries
from dpcanary.data.observations import Shard, hashes_of, parity, read_shard, shard_path, write_shard
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.scoring.pooling import checked_shards, pool_scores
from dpcanary.scoring.score_file import AuditScores
from dpcanary.scoring.scores import ScoringContext, logit_difference
from dpcanary.scoring.scoring_settings import ScoringStage

AUDIT = {
    "canary": "worst_case", "score": "transcript", "sample_rate": 0.5, "noise_multiplier": 2.0,
    "num_steps": 10, "record_every": 5, "num_runs": 8,
}  # fmt: skip
LABELS = (3, 0, 1)  # of the canaries of three slots
LOGITS = {**AUDIT, "canary": "mislabeled", "score": "logit_difference", "dataset": "digits"}
LOGITS |= {"num_slots": len(LABELS)}
NAMES = {"audit": "a", "canary": "worst_case", "score": "transcript"}


def stage_of(audit: dict[str, object]) -> ScoringStage:
    datasets = {"digits": {"source": "digits", "num_records": 60}}
    config = {"experiment": "e", "delta": 1e-5, "datasets": datasets, "audits": {"a": audit}}
    return parse_experiment(config).stage(ScoringStage, audit="a")


STAGE = stage_of(AUDIT)
SETTINGS = STAGE.runs_settings


def shard(first: int, num_runs: int, **header: object) -> Shard:
    """Runs with their index as observation at step 5, and ten times their index at step 10."""
    run = np.arange(first, first + num_runs)
    known = {"settings": SETTINGS, "inputs": {}, "noise_multiplier": 2.0, "seconds": 2.0}
    return Shard(
        header={**known, **header}, run=run, world=parity(run)[:, None].astype(np.uint8),
        step=np.array([5, 10]), observation=(run[:, None] * np.array([1.0, 10.0]))[:, :, None],
        test_accuracy=(run / 100).astype(np.float32),
    )  # fmt: skip


def written(folder: Path, *shards: Shard) -> list[Path]:
    paths = [shard_path(folder, index) for index in range(len(shards))]
    for path, content in zip(paths, shards, strict=True):
        write_shard(path, content)
    return paths


def pooled_of(paths: list[Path], stage: ScoringStage = STAGE, canaries=None) -> AuditScores:
    return pool_scores(paths, stage, canaries=canaries, names=NAMES)


@pytest.mark.parametrize("num_repeats", [1, 3])
def test_runs_are_put_in_order_whatever_their_shards(tmp_path, num_repeats):
    stage = stage_of({**AUDIT, "num_runs": 4, "num_repeats": num_repeats})
    total = 4 * num_repeats
    known = {"settings": stage.runs_settings, "baseline": 0.3}
    last = shard(1, total - 1, device="cuda", software={"torch": "x"}, **known)
    by_run = ("run", "world", "observation", "test_accuracy")
    last = replace(last, **{name: getattr(last, name)[::-1] for name in by_run})
    pooled = pooled_of(written(tmp_path, last, shard(0, 1, **known)), stage)
    runs = np.arange(total).reshape(num_repeats, 4)
    np.testing.assert_array_equal(pooled.world[..., 0], runs % 2)
    np.testing.assert_array_equal(pooled.scores[:, :, 0], runs[..., None] * [1.0, 10.0])
    np.testing.assert_array_equal(pooled.test_accuracy, (runs / 100).astype(np.float32))
    np.testing.assert_array_equal(pooled.step, [5, 10])
    expected = {"sample_rate": 0.5, "noise_multiplier": 2.0, "batch_size": None, "seconds": 4.0}
    expected |= {"measure": "accuracy", "baseline": 0.3}
    assert pooled.header == NAMES | expected


OTHER, ZEROS = {"settings": {**SETTINGS, "seed": 2}}, np.zeros((4, 2, 3))
NAN = np.where(np.arange(8) == 5, np.nan, 0).reshape(4, 2, 1)
SECONDS = [
    (shard(4, 4, **OTHER), r"00001\.npz was made with other settings"),
    (shard(4, 4, inputs={"canaries": "x"}), r"00001\.npz was made with other canaries: it is"),
    (shard(4, 4, inputs={"data": "y"}), "00001.npz and .*00000.npz differ in 'inputs'"),
    (shard(4, 4, noise_multiplier=3.0), "differ in 'noise_multiplier'"),
    (shard(4, 4, extra=1), "differ in 'extra'"),
    (shard(2, 6), r"00001\.npz: run 2 is there twice \(2 such runs\)"),
    (shard(5, 3), r"run 4 is missing \(1 such runs\)"),
    (shard(4, 3), "run 7 is missing"),
    (shard(4, 5), r"00001\.npz: run 8 is not one of the audit's 8"),
    (shard(-1, 5), r"00001\.npz: run -1 is not one of the audit's 8"),
]
SECONDS += [(replace(shard(4, 4), **arrays), message) for arrays, message in (
    ({"run": np.array([4, 5, 6, 6])}, r"run 6 is there twice \(1 such runs\)"),
    ({"step": np.array([5, 11])}, r"00001\.npz recorded different steps"),
    ({"step": np.array([5]), "observation": ZEROS[:, :1, :1]}, "recorded different steps"),
    ({"world": ZEROS[:, 0].astype(np.uint8), "observation": ZEROS}, "has 3 slots, its audit 1; d"),
    ({"observation": NAN}, r"00001\.npz: run 6 has a NaN"),
)]  # fmt: skip


@pytest.mark.parametrize(("second", "message"), SECONDS)
def test_shards_that_do_not_belong_together_are_refused(tmp_path, second, message):
    with pytest.raises(InputError, match=message):
        [*checked_shards(written(tmp_path, shard(0, 4), second), STAGE, canaries=None)]


def test_shards_must_have_the_audits_settings_and_canaries(tmp_path):
    """It is not enough that they agree with one another."""
    with pytest.raises(InputError, match="other settings: it is of another audit, or out of"):
        pooled_of(written(tmp_path, shard(0, 4, **OTHER), shard(4, 4, **OTHER)))
    paths = written(tmp_path, shard(0, 8))
    with pytest.raises(InputError, match="made with other canaries"):
        [*checked_shards(paths, STAGE, canaries=paths[0])]


def test_scores_are_told_of_the_audit_and_are_numbers_of_a_shape(tmp_path, monkeypatch):
    contexts, paths = [], written(tmp_path, shard(0, 4), shard(4, 4))
    name = "dpcanary.scoring.scores.as_observed"

    def remembered(observed: np.ndarray, context: ScoringContext) -> np.ndarray:
        contexts.append(context)
        assert observed.dtype == np.float64
        return -observed

    monkeypatch.setattr(name, remembered)
    pooled = pooled_of(paths)
    context = ScoringContext(0.5, 2.0, (5, 10), canaries=None, runs_settings=STAGE.runs_settings)
    assert contexts == [context, context]
    np.testing.assert_array_equal(pooled.scores[0, :, 0, 0], -np.arange(8))
    monkeypatch.setattr(name, lambda observed, _: observed[..., 0])
    with pytest.raises(InputError, match=r"as_observed returned shape \(4, 2\) for 4 runs, 2 st"):
        pooled_of(paths)
    monkeypatch.setattr(name, lambda observed, _: np.where(observed == 60, np.nan, observed))
    with pytest.raises(InputError, match="as_observed returned NaN for run 6"):
        pooled_of(paths)


def logit_shards(folder: Path, stage: ScoringStage, *, runs_per_shard: int) -> list[Path]:
    """A canary file, and shards with the logits of ten classes, the same in each shard."""
    features, path = np.zeros(64, np.float32), folder / "canaries.npz"
    canaries = (InputCanary(features, label, 5 + slot) for slot, label in enumerate(LABELS))
    write_canaries(path, CanarySet(tuple(canaries), target_labels=(1,) * len(LABELS)))
    header = shard(0, 1, settings=stage.runs_settings, inputs=hashes_of({"canaries": path})).header
    step = np.array(stage.record_steps)
    rng, shape = np.random.default_rng(0), (runs_per_shard, len(LABELS))
    logits = rng.normal(size=(runs_per_shard, len(step), len(LABELS), 2, 10)).astype(np.float32)
    accuracy, shards = np.full(runs_per_shard, 0.5, np.float32), []
    for start in range(0, stage.num_runs * stage.num_repeats, runs_per_shard):
        run, world = start + np.arange(runs_per_shard), rng.integers(0, 2, shape, np.uint8)
        shards.append(Shard(header, run, world, step, logits, accuracy))
    return written(folder, *shards)


def test_scores_are_those_of_all_runs_at_once(tmp_path):
    stage = stage_of({**LOGITS, "num_runs": 10, "num_repeats": 3})
    paths = logit_shards(tmp_path, stage, runs_per_shard=6)
    pooled = pooled_of(paths, stage, tmp_path / "canaries.npz")
    shards = [read_shard(path) for path in paths]
    logits = np.concatenate([part.observation for part in shards]).astype(np.float64)
    context = ScoringContext(0.5, 2.0, stage.record_steps, read_canaries(tmp_path / "canaries.npz"))
    scores = logit_difference(logits, context)  # (runs, steps, slots)
    expected = scores.reshape(3, 10, 2, len(LABELS)).transpose(0, 1, 3, 2)
    world = np.concatenate([part.world for part in shards]).reshape(3, 10, len(LABELS))
    np.testing.assert_array_equal(pooled.scores, expected)
    np.testing.assert_array_equal(pooled.world, world)


def test_memory_is_the_scores_and_one_shard(tmp_path, monkeypatch):
    """For 20,000 runs, whose logits as float64 are twenty times as large as their scores."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # saves time
    stage = stage_of({**LOGITS, "num_runs": 20_000})
    paths = logit_shards(tmp_path, stage, runs_per_shard=100)
    tracemalloc.start()
    pooled = pooled_of(paths, stage, canaries=tmp_path / "canaries.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = pooled.scores.nbytes
    assert size == 20_000 * 2 * len(LABELS) * 8
    # The scores, each run's accuracy and world, whether it was seen, and 100 runs' logits.
    assert peak < 2.5 * size
