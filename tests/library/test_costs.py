"""Costs: shapes and sizes against real files, probes against direct timings, jobs against plans."""

import json
import multiprocessing
import time
import timeit
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pandas as pd
import pytest
import torch
from accounts import bounds_of
from hypothesis import given, settings
from hypothesis import strategies as st
from running import TINY, Project, call, values_of
from tqdm import tqdm

from dpcanary import Mechanism, runs_needed
from dpcanary.adversaries.adversary import Score
from dpcanary.adversaries.adversary_settings import CraftingStage, DrawingStage
from dpcanary.adversaries.catalogue import BUILT_IN, adversaries
from dpcanary.adversaries.crafting import Crafting, craft_canaries
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.costs import cost_report as report
from dpcanary.costs import jobs, probes
from dpcanary.costs.cost_report import notes_of, probed_costs, text_of, wall_seconds
from dpcanary.costs.jobs import JobList, shape_of
from dpcanary.costs.probes import Probe, Seconds, Shape, measured, random_records
from dpcanary.costs.run_costs import planned_audits
from dpcanary.data.canaries import GradientCanary, InputCanary
from dpcanary.data.observations import Observation, Shard, write_shard
from dpcanary.data.records import Split, write_split
from dpcanary.data.sources import load_source
from dpcanary.data.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.experiment_config import Dataset, Experiment
from dpcanary.scoring.score_file import AuditScores, write_scores
from dpcanary.training.shard import train_shard
from dpcanary.training.simulated_trainings import Reference
from dpcanary.training.training_settings import TrainingStage

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
DIGITS = Shape(num_records=100, num_auxiliary=848, num_test=849, features=(64,), num_classes=10)
AUDIT = {
    "canary": "gradient", "dataset": "d", "sample_rate": 0.5, "noise_multiplier": 2.0,
    "num_steps": 20, "num_runs": 40, "num_repeats": 3, "record_every": 10, "runs_per_shard": 50,
}  # fmt: skip
DATASETS = {"d": {"source": "digits", "num_records": 100}}


def experiment(*, figures: Any = None, settings: Any = None, **sweeps: Any) -> Experiment:
    """Sweeps by their difference from `AUDIT`; None drops a key."""
    audits = {
        name: {key: value for key, value in (AUDIT | changes).items() if value is not None}
        for name, changes in sweeps.items()
    }
    config = {"experiment": "costs", "delta": 1e-5, "datasets": DATASETS, "audits": audits}
    return parse_experiment(config | {"figures": figures or {}} | (settings or {}))


def table_of(of: Experiment, *, shape: Shape = DIGITS, device: str = "cpu") -> pd.DataFrame:
    with patch.object(jobs, "shape_of", lambda dataset, *, folder, records: shape):
        return JobList(of, folder=None, device=device).table


def rows_of(rule: str, of: Experiment, **options: Any) -> list[dict[str, Any]]:
    return table_of(of, **options).query("rule == @rule").to_dict("records")


def parts_of(split: Split) -> Shape:
    parts = (split.private, split.auxiliary, split.test)
    return Shape(*map(len, parts), split.private.features.shape[1:], split.num_classes)


@pytest.mark.parametrize(("source", "counts"), [
    ("digits", {"max_records": 900, "num_auxiliary": 200}),
    ("digits", {"num_auxiliary": 200, "num_test": 50}),
    ("purchase100_synthetic", {"max_records": 2000}),
    ("arrays.npz", {}), ("with-test.npz", {"num_test": 10}), ("table.parquet", {"max_records": 50}),
])  # fmt: skip
def test_shapes_are_those_of_the_real_split(source, counts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    features, labels = np.random.default_rng(0).random((60, 3, 4, 4)), np.arange(60) % 3
    np.savez("arrays.npz", features=features, labels=labels)
    test = {"test_features": features[:30], "test_labels": labels[:30]}
    np.savez("with-test.npz", features=features, labels=labels, **test)
    table = pd.DataFrame(features[:, 0, 0], columns=[*"abcd"]).assign(label=labels)
    table.set_index(pd.Index(range(7, 67), name="number")).to_parquet("table.parquet")
    dataset = Dataset(source=source, num_records=30, balanced=False, **counts)
    parts = {"num_test": dataset.num_test}
    records = load_source(source, max_records=dataset.max_records, **parts)
    parts["num_auxiliary"] = dataset.num_auxiliary
    split = split_records(records, num_records=30, seed=0, balanced=False, **parts)
    assert shape_of(dataset, folder=None) == parts_of(split)


def test_probes_have_ids_and_numbers_where_the_dataset_has_them(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", features=rng.integers(0, 31, (60, 5)), labels=rng.random(60))
    source = {"source": str(tmp_path / "x.npz"), "num_records": 30, "balanced": False}
    scaled, ids = (
        shape_of(Dataset(**source, label_kind="numbers", standardised=value), folder=None)
        for value in (True, False)
    )
    assert (scaled.num_classes, scaled.num_ids, ids.num_classes, ids.num_ids) == (1, 0, 1, 31)
    records = random_records(ids, 500)
    assert {*records.features.ravel().tolist()} == {*range(31)}
    assert not records.has_classes
    assert records.labels.std() > 0


def test_encoders_are_known_by_config_or_name_or_taken_to_be_usual(tmp_path):
    for name, config in {"vit": {"hidden_size": 192}, "resnet": {"hidden_sizes": [8, 16]}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    sizes = {"vit": 192, "resnet": 16, "google/vit-base-patch16-224-in21k": 768}
    sizes |= {"sentence-transformers/all-MiniLM-L6-v2": 384, "some/unknown": 768}
    for encoder, size in sizes.items():
        dataset = Dataset(source="cifar10", encoder=encoder, num_records=500)
        shape = shape_of(dataset, folder=tmp_path)
        assert (shape, shape.num_source) == (Shape(500, 49_500, 10_000, (size,), 10), 60_000)
    with pytest.raises(InputError, match="needs an encoder"):
        shape_of(Dataset(source="sst2", num_records=5), folder=None)
    with pytest.raises(InputError, match="num_records: 50001 is more than its 50000 training"):
        shape_of(Dataset(source="cifar10", num_records=50_001), folder=None)


def assert_size(path: Path, rule: str, of: Experiment) -> None:
    planned = sum(row["disk"] for row in rows_of(rule, of))
    assert path.stat().st_size < planned < path.stat().st_size + 15_000


def trained_shard(of: Experiment, runs: int) -> Shard:
    stage, slots = of.stage(TrainingStage, audit="a"), range(of.audits["a"].num_slots)
    private, test = random_records(DIGITS, 100), random_records(DIGITS, 5)
    canaries: list[Any] = [GradientCanary(slot, slot) for slot in slots]
    if not stage.observe.is_of_gradients:
        canaries = [InputCanary(private.features[slot], 0, slot) for slot in slots]
    data, inputs = Split(private, private[:0], test), {"data": "0" * 64, "canaries": "0" * 64}
    options = {"noise_multiplier": 2.0, "runs": range(runs), "inputs": inputs, "device": CPU}
    return train_shard(stage, data=data, canaries=canaries, **options)


OBSERVED = {  # by what is observed, the first adversary of the catalogue and its score
    (score.observes, num_slots): (entry, score.name)
    for entry in reversed(adversaries().values())
    for score in entry.scores
    for num_slots in ((1, 4) if entry.is_trained else (1,))
}


@pytest.mark.parametrize(("observed", "num_slots"), OBSERVED)
def test_sizes_of_shards_are_those_of_real_files(observed, num_slots, tmp_path):
    (entry, score), runs = OBSERVED[observed, num_slots], 20_000
    audit = {"canary": entry.name, "score": score, "adjacency": entry.adjacencies[0]}
    audit |= {"num_repeats": 1, "num_runs": runs, "runs_per_shard": runs, "num_slots": num_slots}
    if entry.in_first_step:
        audit |= {"sampling": "fixed", "batch_size": 4, "sample_rate": None}
    audit |= {"initialisation": "per_run"} if entry.is_trained else {"dataset": None}
    of = experiment(a=audit)
    if entry.is_trained:  # a few models that are repeated
        few, repeated = trained_shard(of, 4), ("run", "world", "observation", "test_accuracy")
        arrays = {name: getattr(few, name) for name in repeated}
        sized = {name: np.resize(own, (runs, *own.shape[1:])) for name, own in arrays.items()}
        shard = replace(few, **sized)
    else:
        shard = draw_shard(Drawing(of.stage(DrawingStage, audit="a"), 2.0, range(runs)))
    write_shard(tmp_path / "s.npz", shard)
    assert_size(tmp_path / "s.npz", "train_shard" if entry.is_trained else "draw_shard", of)


def test_sizes_of_datasets_and_scores_are_those_of_real_files(tmp_path):
    split = Split(*(random_records(DIGITS, count) for count in (5000, 500, 500)))
    write_split(tmp_path / "d.npz", split, settings={"a": 1})
    [row] = rows_of("prepare_dataset", experiment(a={}), shape=parts_of(split))
    assert row["disk"] == pytest.approx((tmp_path / "d.npz").stat().st_size, rel=0.02)
    for slots in (1, 4):
        of = experiment(a={"num_runs": 2000, "num_repeats": 5, "num_slots": slots})
        scores, accuracy = np.zeros((5, 2000, slots, 2)), np.zeros((5, 2000), np.float32)
        worlds = scores[..., 0].astype(np.uint8)
        of_steps = AuditScores({}, np.array([10, 20]), scores, worlds, accuracy)
        write_scores(tmp_path / "s.npz", of_steps)
        assert_size(tmp_path / "s.npz", "score_runs", of)


def test_audits_that_share_runs_make_them_once(monkeypatch):
    own = BUILT_IN["gradient"]
    second = Score("second", "dpcanary.scoring.scores:as_observed", Observation.CHANGE)
    monkeypatch.setitem(BUILT_IN, "gradient", replace(own, scores=(*own.scores, second)))
    counts = table_of(experiment(a={"score": ["coordinate", "second"]})).groupby("rule")["jobs"]
    expected = {"calibrate_noise": 1, "train_reference": 1, "craft_canaries": 1, "train_shard": 3}
    expected |= {"account": 2, "score_runs": 2, "estimate": 2}
    assert expected.items() <= counts.sum().to_dict().items()


@pytest.mark.parametrize(("rule", "changes", "units"), [
    ("train_reference", {}, (1, 20)),
    ("train_shard", {"num_runs": 80}, (5, 240, 4800)),
    ("train_shard", {"num_steps": 40}, (3, 120, 4800)),
    ("craft_canaries", {}, (1, 20)),
    ("craft_canaries", {"canary": "crafted_input", "crafting_steps": 70}, (1, 70)),
    ("craft_canaries", {"canary": "mislabeled"}, (1, 10)),
    ("craft_canaries", {"canary": "natural"}, (1, 848)),
])  # fmt: skip
def test_units_of_jobs_are_proportional_to_runs_steps_and_candidates(rule, changes, units):
    [row] = rows_of(rule, experiment(a=changes))
    assert row["units"] == units
    counts = (row["jobs"], row["models"], row["model-steps"])
    assert counts == (units if rule == "train_shard" else (1, 0, 0))


def seconds_of(rule: str, *, figures: Any = None, settings: Any = None, **changes: Any) -> float:
    drawn = {"canary": "worst_case", "dataset": None, "num_repeats": 1, "runs_per_shard": 40}
    of = experiment(a=drawn | changes, figures=figures, settings=settings)
    return sum(row["seconds"] for row in rows_of(rule, of))


def test_seconds_of_other_jobs_are_proportional_to_their_work():
    """Beyond the start of each job: to scores, rules and conversions, and to mechanisms."""
    many = {"num_runs": 10**6, "runs_per_shard": 10**9}
    several = {"threshold_rules": ["simultaneous", "split"], "conversions": ["gdp", "direct"]}
    for rule in ("draw_shard", "estimate"):
        start = seconds_of(rule, **many | {"num_runs": 4, "record_every": 20})
        once = seconds_of(rule, **many) - start
        assert once > 0
        for changes, times in (
            ({"num_runs": 2 * 10**6}, 2),
            ({"record_every": 5}, 2),
            ({"num_repeats": 2}, 2),
            ({"settings": several}, 4 if rule == "estimate" else 1),
        ):
            more = seconds_of(rule, **many | changes) - start
            assert more == pytest.approx(times * once, rel=1e-4), changes
    thrice, once = (seconds_of("draw_shard", num_repeats=count) for count in (3, 1))
    assert thrice == pytest.approx(3 * once)
    target = {"target_epsilon": 1.0, "noise_multiplier": None}
    assert seconds_of("calibrate_noise", **target) > seconds_of("calibrate_noise")

    def compared(rates: list[float], noises: list[float], steps: list[int]) -> float:
        grid = {"sample_rates": rates, "noise_multipliers": noises, "num_steps": steps}
        figures = {"f": {"kind": "adjacency_ratio", **grid}}
        return seconds_of("compare_adjacencies", figures=figures)

    first, both = (compared(rates, [1.0], [10]) for rates in ([0.5], [0.5, 1.0]))
    assert first < both
    assert compared([0.5], [1.0, 2.0], [10, 20]) == pytest.approx(first + 3 * (both - first))


def test_audits_that_take_the_same_time_share_a_probe():
    other = {"sample_rate": [0.5, 1.0], "optimizer": ["sgd", "adam"], "num_slots": [1, 2]}
    same = {"seed": [1, 2], "max_grad_norm": [1.0, 2.0], "learning_rate": [0.1, 0.2]}
    same |= {"learning_rate_schedule": ["constant", "cosine"], "num_steps": [20, 40]}
    for key, values in {**same, **other, "canary": ["gradient", "natural"]}.items():
        timed = {row["probe"] for row in rows_of("train_shard", experiment(a={key: values}))}
        assert len(timed) == (2 if key in other else 1), key
    of = parse_experiment(read_config(ROOT / "config/pradhan/cifar10.yaml"))
    assert len(of.audits) > 100
    assert JobList(of, folder=None, device="cpu").table["probe"].nunique() <= 10


OF_PERIODS = {"sampling": "fixed", "sample_rate": None, "batch_size": 16, "canary_period": 2}


def test_convolutions_are_timed_on_smaller_batches():
    shape = replace(DIGITS, num_records=80, features=(3, 32, 32))
    for batch in ({}, OF_PERIODS | {"batch_size": 40}):
        convolving, linear = (
            rows_of("train_shard", experiment(a=batch | {"model": model}), shape=shape)[0]["probe"]
            for model in ("convnet", "linear")
        )
        assert (convolving.factor, convolving.shape.num_records) == (40 / 32, 64)
        assert convolving.stage.batch_size == (32 if batch else None)
        assert (linear.factor, linear.shape.num_records) == (1, 80)


def one_second(probe: Probe) -> Seconds:
    return (1.0,)


def fake_probe(work: Callable[[Probe], Seconds] = one_second, **options: Any) -> Probe:
    stage = experiment(a={}).stage(TrainingStage, audit="a")
    return replace(Probe(work, stage, DIGITS, factor=1.0, device="cpu"), **options)


TIMES = st.floats(0, 2) | st.sampled_from([0.0, 1e-6, 0.002])


@given(once=TIMES, each=st.floats(1e-6, 2), loading=st.floats(0, 5), factor=st.floats(1, 9))
@settings(max_examples=50)
def test_seconds_per_unit_against_a_made_up_clock(once, each, loading, factor):
    probe, now, calls = fake_probe(factor=factor), 0.0, 0

    def task(units: int) -> None:
        nonlocal now, calls
        calls += 1
        now += once + each * units + (loading if calls == 1 else 0.0)

    with patch.object(Probe, "now", lambda _: now):
        seconds = probe.seconds_per_unit(task)
    assert seconds == pytest.approx((once, factor * each), rel=1e-3, abs=1e-8)
    assert calls < 2 * 15  # each number of units is timed twice


UNITS = (TIMES, st.floats(0, 0.3), st.floats(1e-6, 0.05), st.floats(1, 9), st.integers(0, 4096))


@given(*UNITS)
@settings(max_examples=50)
def test_seconds_of_training_against_a_made_up_clock(job, model, step, factor, num_test):
    """Batches of the job are some times as large as those that are timed, or its test records."""
    shape = replace(DIGITS, num_test=num_test)
    probe = fake_probe(probes._train, factor=factor, runs=50, shape=shape)
    clock = Mock(side_effect=lambda _, runs, steps: job + runs * (model + steps * step))
    with patch.object(probes, "_seconds", clock):
        seconds = probe.measure()
    expected = (job, model * max(1, num_test / 512), step * factor)
    assert seconds == pytest.approx(expected, rel=1e-3, abs=1e-8)


@pytest.mark.parametrize(("device", "asked", "workers"), [
    ("cpu", 3, 3), ("cpu", 99, 8), ("cuda", 3, 1),
])  # fmt: skip
def test_equal_probes_are_measured_once(device, asked, workers, monkeypatch):
    """As many at once as jobs, and one on a GPU; each in a process with one thread."""

    class Pool(ThreadPoolExecutor):
        def __init__(self, count, context, initializer):
            assert (count, context.get_start_method()) == (workers, "spawn")
            with patch.object(torch, "set_num_threads") as threads, patch.object(tqdm, "set_lock"):
                initializer()
            threads.assert_called_once_with(1)
            super().__init__(count)

    monkeypatch.setattr(probes, "ProcessPoolExecutor", Pool)
    done: list[int] = []
    works = (one_second, lambda _: (2.0, 3.0), one_second)
    of = [fake_probe(work, device=device) for work in works]
    seconds = measured(of, num_workers=asked, on_progress=done.append)
    assert seconds == {of[0]: (1.0,), of[1]: (2.0, 3.0)}
    assert done == [1, 1]


def ten_minutes(probe: Probe) -> Seconds:
    time.sleep(600)
    return (600.0,)


@pytest.mark.long
def test_an_interruption_ends_the_processes_that_measure():
    def interrupt(count: int) -> None:
        raise KeyboardInterrupt

    start, probes_of_both = time.monotonic(), [fake_probe(), fake_probe(ten_minutes)]
    with pytest.raises(KeyboardInterrupt):
        measured(probes_of_both, num_workers=2, on_progress=interrupt)
    assert time.monotonic() - start < 300
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("rule", ["train_shard", "craft_canaries"])
def test_work_is_timed_to_within_a_factor(rule):
    audit = {"num_runs": 64, "num_repeats": 1, "runs_per_shard": 64, "num_steps": 200}
    of = experiment(a={**audit, "canary": "crafted_input", "crafting_steps": 200})
    [row] = rows_of(rule, of)
    estimated = float(np.dot(row["probe"].measure(), row["units"]))
    data = Split(*(random_records(DIGITS, count) for count in (100, 848, 848)))
    reference = Reference(np.zeros(650, np.float32), np.arange(100.0))
    crafting = Crafting(of.stage(CraftingStage, audit="a"), data, reference, CPU)
    works = {"train_shard": partial(trained_shard, of, 64)}
    works["craft_canaries"] = partial(craft_canaries, crafting)
    seconds = min(timeit.repeat(works[rule], timer=time.process_time, repeat=2, number=1))
    assert seconds / 3 < estimated < 3 * seconds


@pytest.mark.parametrize(("canaries", "changes"), [
    (["gradient", "crafted_input"], {"model": "mlp", "hidden_sizes": [8], "optimizer": "adam"}),
    (["mislabeled", "natural"], OF_PERIODS),
    (["gradient", "natural"], {"num_slots": 3}),
    pytest.param(["mislabeled"], {"model": "convnet"}, marks=pytest.mark.long),
])  # fmt: skip
def test_every_kind_of_training_and_crafting_is_timed(canaries, changes, monkeypatch):
    monkeypatch.setattr(probes, "BUDGET", 0.05)  # with less, noise could hide the time of a step
    images = {"num_records": 80, "num_auxiliary": 4, "num_test": 4, "features": (3, 32, 32)}
    shape = replace(DIGITS, **images) if changes.get("model") == "convnet" else DIGITS
    of = experiment(a={"canary": canaries, "num_steps": 20, "num_runs": 4, **changes})
    table = table_of(of, shape=shape).dropna(subset="probe")
    each = ["craft_canaries", "train_shard"]
    assert [*table["rule"]] == ["train_reference", *each * len(canaries)]
    times = {probe: probe.measure() for probe in {*table["probe"]}}
    for row in table.to_dict("records"):
        seconds = times[row["probe"]]
        assert min(seconds) >= 0
        assert np.dot(seconds, row["units"]) > 0
        # The probe of mislabeled canaries tries all labels at once: it has no time per label.
        if row["rule"] != "craft_canaries" or "mislabeled" not in (*canaries[:1], row["audits"]):
            assert seconds[-1] > 0, row["rule"]


def row_of(rule: str, seconds: float, *, jobs=1, device="cpu", **more: Any) -> dict[str, Any]:
    """Jobs of a rule that take some seconds each, half of which a probe measures."""
    half = jobs * seconds / 2
    measured_half = {"probe": fake_probe(device=device), "units": (half, 7, 5), "seconds": half}
    counts = {"jobs": jobs, "models": 0, "model-steps": 0, "disk": 1_000_000}
    return {"sweep": "(shared)", "audits": None, "rule": rule} | counts | measured_half | more


def as_if_measured(probes: Any, *, num_workers: int, on_progress: Any) -> dict[Probe, Seconds]:
    """As if the first unit of each probe took a second, and the others no time."""
    on_progress(len(probes))
    units = {probe: 3 if isinstance(probe.stage, TrainingStage) else 2 for probe in probes}
    return {probe: (1.0, *[0.0] * (units[probe] - 1)) for probe in probes}


def costs(*rows: dict[str, Any]) -> pd.DataFrame:
    with patch.object(report, "measured", as_if_measured):
        return probed_costs(pd.DataFrame(rows), num_workers=1)


def test_wall_time_follows_cores_until_a_chain_or_the_gpu_is_slower():
    others = [("train_reference", 50.0), ("draw_figure", 9.0), ("draw_figure", 3.0)]
    on_host, held = (
        costs(row_of("train_shard", 100.0, jobs=40, device=device), *(row_of(*of) for of in others))
        for device in ("cpu", "cuda")
    )
    assert wall_seconds(on_host, 2) == pytest.approx(4062 / 1.9, rel=0.01)
    assert wall_seconds(on_host, 1000) == pytest.approx(5 + 100 + 50 + 9, rel=0.01)
    assert wall_seconds(held, 1000) == pytest.approx(4000, rel=0.01)


def lines_of(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in text.splitlines() if line}


def test_tables_name_units_and_add_up():
    fields = {"jobs": 40, "models": 40, "model-steps": 12_345, "sweep": "mine", "audits": "a"}
    train, summary = row_of("train_shard", 3600.0, **fields), row_of("summarise", 36.0)
    text = text_of(costs(train, summary), num_cores=2, notes=["A note."])
    rows = """audits jobs models model-steps core-hours disk
        mine 1 40 40 12,345 40 1 MB
        total 1 41 40 12,345 40 2 MB
        train_shard 1 40 40 12,345 40 1 MB
        summarise - 1 - - 0.01 1 MB"""
    assert lines_of(rows).items() <= lines_of(text).items()
    assert "In all 40 core-hours and 2 MB of disk: about 21 h with 2 cores" in text
    assert text.endswith("A note.")
    on_gpu = costs(row_of("train_shard", 3600.0, device="cuda", **fields), summary)
    text = text_of(on_gpu, num_cores=2, notes=[])
    assert "In all 40 GPU-hours and 0.01 core-hours" in text
    assert lines_of(text)["total"][5:7] == ["40", "0.01"]
    # Jobs without a probe cost their constants, also in an experiment that trains nothing.
    constant = summary | {"probe": None, "units": None, "seconds": 36.0}
    for rows, hours in (((constant,), [0.01]), ((constant, row_of("a", 72.0)), [0.01, 0.02])):
        assert [*costs(*rows)["core-hours"]] == pytest.approx(hours)
        assert costs(*rows)["GPU-hours"].sum() == 0


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_many_jobs_of_seconds_are_better_few(device):
    advice = "mine: a job of its 600 takes about 20 s; with `runs_per_shard: 7500`, there are fewer"
    for number, seconds, is_told in ((600, 20.0, True), (400, 20.0, False), (600, 90.0, False)):
        fields = {"jobs": number, "models": 250 * number, "sweep": "mine", "audits": "a"}
        row = row_of("train_shard", seconds, device=device, **fields)
        text = text_of(costs(row, row_of("summarise", 36.0)), num_cores=2, notes=[])
        assert (advice in " ".join(text.split())) is ("runs_per_shard" in text) is is_told


def test_a_gpu_is_held_by_the_jobs_whose_rules_ask_for_it(monkeypatch):
    for has_gpu, timed in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert [*map(report.timed_on, ("cpu", "auto", "cuda"))] == ["cpu", timed, timed]
    optimised = {"canary": "metagradient", "num_slots": 2, "metagradient": {"batch_size": 8}}
    pretrained = {"pretraining": {"num_steps": 2, "batch_size": 8}}
    table = table_of(experiment(a={}, b=optimised, c=pretrained), device="cuda")
    held = {*table.dropna(subset="probe")["rule"]}
    assert {probe.device for probe in table["probe"].dropna()} == {"cuda"}
    making = {"pretrain", "train_reference", "optimise_canaries", "craft_canaries", "train_shard"}
    assert held == making
    rules = [(ROOT / f"rules/{name}.smk").read_text() for name in ("canaries", "training")]
    assert "".join(rules).count("**on_device(") == len(held)


def test_notes_say_what_is_missing():
    encoded = parse_experiment(read_config(ROOT / "config/pradhan/cifar10.yaml"))
    encoder = "google/vit-base-patch16-224-in21k"
    on_cpu, on_gpu, plain = (
        "\n".join(notes_of(JobList(of, folder=None, device=device)))
        for of, device in ((encoded, "cpu"), (encoded, "cuda"), (experiment(a={}), "cpu"))
    )
    assert f"encoding 60,000 records by {encoder}" in on_cpu
    assert f"Dataset cifar10: {encoder} is assumed to give 768 features." in on_cpu
    assert ("finds no GPU" in on_cpu, "finds no GPU" in on_gpu) == (True, False)
    assert not {"GPU", "encoding"} & {*plain.split()}


@pytest.mark.long
def test_the_program_prints_the_jobs_that_snakemake_plans(tmp_path, monkeypatch, capsys):
    by_rate = {"kind": "epsilon_by_setting", "setting": "learning_rate", "sweeps": ["module"]}
    figures = {"accuracy": {"kind": "test_accuracy", "sweeps": ["module"]}, "by_rate": by_rate}
    slots = {"canary": ["gradient", "natural"], "num_slots": 3, "runs_per_shard": 15}
    audits = TINY["audits"] | {"slots": TINY["audits"]["other_rate"] | slots}
    config = TINY | {"figures": TINY["figures"] | figures, "audits": audits}
    project, of = Project.new(tmp_path / "project", config), parse_experiment(config)
    monkeypatch.chdir(project.folder)
    listed = JobList(of, folder=None, device="cpu").table
    assert listed.groupby("rule")["jobs"].sum().to_dict() == project.plan().jobs
    [command] = project.plan("estimate_cost").commands
    assert values_of("cores", command) == ["2"]
    monkeypatch.setattr("dpcanary.costs.cost_report.measured", as_if_measured)
    Path("experiment.json").write_text(of.to_json())
    call("estimate_cost", experiment="experiment.json", cores=4)
    printed = capsys.readouterr()
    rows = lines_of(printed.out)
    assert {*of.sweeps, "(shared)", "total"} <= rows.keys()
    models = sum(audit.total_runs for audit in of.audits.values() if audit.is_trained)
    assert (rows["total"][1], rows["total"][3]) == (str(len(of.audits)), f"{models:,}")
    shards = listed[listed["rule"] == "train_shard"][["jobs", "seconds"]].sum()
    assert shards["seconds"] > 0.1 * shards["jobs"]  # what no probe measures; then a set-up each
    hours = f"{(shards['seconds'] + shards['jobs']) / 3600:.2g}"
    assert rows["train_shard"][2:6:3] == [f"{shards['jobs']:.0f}", hours]
    assert all(words in printed.out for words in ("with 4 cores", "Not counted"))
    assert "probe" in printed.err
    with pytest.raises(InputError, match="is not a resolved config of this installation"):
        call("estimate_cost", experiment="experiment.yaml")


@pytest.mark.long
def test_what_is_planned_is_what_the_library_says():
    """At the significance of the config: a bound that may fail more often needs fewer runs."""
    mechanism = {"sample_rate": 0.5, "noise_multiplier": 1.0, "num_steps": 4}
    few = {**mechanism, "num_runs": 20, "num_repeats": 2, "record_every": None}
    of = experiment(
        settings={"significance": 0.3},
        mine={**few, "canary": ["worst_case", "gradient", "mislabeled"]},
        membership={**few, "adjacency": "add_remove"},
    )
    planned = planned_audits(of, power=0.7, num_workers=1)
    assert [plan.audit for plan in planned] == ["mine-gradient", "mine-mislabeled"]
    upper = bounds_of(adjacency="add_remove", delta=1e-5, **mechanism).upper
    asked = {"exceed": upper, "delta": 1e-5, "power": 0.7}
    asked["mechanism"] = Mechanism(adjacency="substitute", **mechanism)
    needed = runs_needed(**asked, significance=0.3)
    assert needed < runs_needed(**asked)
    for plan in planned:
        assert plan.add_remove == pytest.approx(upper)
        assert (plan.runs_needed, plan.planned_runs) == (needed, 40)
        assert 0 < plan.seconds_per_run < 5
