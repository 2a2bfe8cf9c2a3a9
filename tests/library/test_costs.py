"""Costs: shapes, sizes and counts against the real thing, probes against direct timings."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from dpcanary.canaries import GradientCanary
from dpcanary.config import parse_experiment
from dpcanary.costs import measuring, training
from dpcanary.costs.analysis import Drawing, Estimating
from dpcanary.costs.crafting import Crafting
from dpcanary.costs.jobs import SHARED, Jobs, Plan, all_jobs, probes_of
from dpcanary.costs.measuring import Seconds, measured, seconds_per_unit
from dpcanary.costs.programs import Accounting, Start, run_python
from dpcanary.costs.report import costs_of, notes_of, text_of, wall_seconds
from dpcanary.costs.shapes import Shape, shape_of, shapes_of
from dpcanary.costs.training import Training, random_features, random_records
from dpcanary.datasets.sources import load_source
from dpcanary.datasets.splitting import split_dataset
from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon
from dpcanary.files import write_arrays
from dpcanary.observations import make_shard, write_shard
from dpcanary.settings import Dataset, Experiment
from dpcanary.splits import SplitDataset, write_split
from dpcanary.stages import TrainingStage
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.vocabulary import ThresholdRule

ROOT = Path(__file__).parents[2]
DIGITS = Shape(num_records=100, num_auxiliary=848, num_test=849, features=(64,), num_classes=10)
AUDIT = {
    "canary": "gradient",
    "dataset": "d",
    "sample_rate": 0.5,
    "noise_multiplier": 2.0,
    "num_steps": 20,
    "num_runs": 40,
    "num_repeats": 3,
    "record_every": 10,
    "runs_per_shard": 50,
}


def experiment(figures: dict[str, Any] | None = None, **sweeps: dict[str, Any]) -> Experiment:
    return parse_experiment(
        {
            "experiment": "costs",
            "delta": 1e-5,
            "datasets": {"d": {"source": "digits", "num_records": 100}},
            "audits": {name: {**AUDIT, **changes} for name, changes in sweeps.items()},
            "figures": figures or {},
        }
    )


def plan(of: Experiment, shape: Shape = DIGITS, device: str = "cpu") -> Plan:
    shapes = dict.fromkeys(of.settings.datasets, shape)
    return Plan(of, shapes, scripts=ROOT / "scripts", device=device)


def probes(of: Experiment, kind: type, **options: Any) -> list[Any]:
    return [p for p in probes_of(all_jobs(plan(of, **options))) if isinstance(p, kind)]


@pytest.fixture
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (measuring, training):
        monkeypatch.setattr(module, "BUDGET", 0.02)


# Shapes


def parts_of(split: SplitDataset) -> Shape:
    return Shape(
        num_records=len(split.labels),
        num_auxiliary=len(split.auxiliary_labels),
        num_test=len(split.test_labels),
        features=split.features.shape[1:],
        num_classes=split.num_classes,
    )


def own_arrays(path: Path, *, test: int = 0) -> Path:
    rng = np.random.default_rng(0)
    arrays = {"features": rng.random((60, 3, 4, 4)), "labels": np.arange(60) % 3}
    if test:
        arrays |= {"test_features": rng.random((test, 3, 4, 4)), "test_labels": np.arange(test) % 3}
    np.savez(path, **arrays)
    return path


def own_table(path: Path) -> Path:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((60, 5)), columns=list("abcde")).assign(label=np.arange(60) % 3)
    table.set_index(pd.Index(range(7, 67), name="number")).to_parquet(path)
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "digits"},
        {"source": "digits", "max_records": 900, "num_auxiliary": 200},
        {"source": "digits", "num_auxiliary": 200, "num_test": 50},
        {"source": "purchase100_synthetic", "max_records": 2000, "balanced": False},
        {"source": "arrays.npz"},
        {"source": "arrays-with-test.npz", "num_test": 10},
        {"source": "table.parquet", "max_records": 50},
    ],
)
def test_shapes_are_those_of_the_real_split(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own_arrays(tmp_path / "arrays.npz")
    own_arrays(tmp_path / "arrays-with-test.npz", test=30)
    own_table(tmp_path / "table.parquet")
    dataset = Dataset(**{"num_records": 30, "balanced": False, **changes})
    source = load_source(dataset.source, max_records=dataset.max_records, num_test=dataset.num_test)
    split = split_dataset(
        source,
        num_records=30,
        seed=0,
        balanced=False,
        num_auxiliary=dataset.num_auxiliary,
        num_test=dataset.num_test,
    )
    found = shape_of(dataset, prepared=tmp_path / "none.npz", folder=None)
    assert found == parts_of(split)


def test_a_prepared_dataset_is_believed_unless_the_config_has_changed(tmp_path):
    features, labels = random_features(replace(DIGITS, features=(7,)), 50)
    half = features[:20], labels[:20], features[:10], labels[:10]
    write_split(tmp_path / "d.npz", SplitDataset(features, labels, *half), settings={})
    found = shape_of(
        Dataset(source="digits", num_records=50), prepared=tmp_path / "d.npz", folder=None
    )
    assert found == Shape(50, 20, 10, (7,), 10)
    other = Dataset(source="digits", num_records=60)
    assert shape_of(other, prepared=tmp_path / "d.npz", folder=None).features == (64,)


def test_encoders_are_known_by_config_or_name_or_assumed(tmp_path):
    for name, config in {"vit": {"hidden_size": 192}, "resnet": {"hidden_sizes": [8, 16]}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))

    def encoded(encoder: str, source: str = "cifar10") -> Shape:
        dataset = Dataset(source=source, encoder=encoder, num_records=500)
        return shape_of(dataset, prepared=tmp_path / "none", folder=tmp_path)

    assert encoded("vit").features == (192,)
    assert encoded("resnet").features == (16,)
    whole = encoded("google/vit-base-patch16-224-in21k")
    assert whole == Shape(500, 49_500, 10_000, (768,), 10)
    assert whole.num_source == 60_000
    texts = encoded("sentence-transformers/all-MiniLM-L6-v2", source="sst2")
    assert (texts.features, texts.num_classes, texts.assumption) == ((384,), 2, "")
    assert "some/unknown is assumed to give 768" in encoded("some/unknown").assumption


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Dataset(source="none.npz", num_records=5), "does not exist"),
        (Dataset(source="damaged.npz", num_records=5), "not a whole .npz"),
        (Dataset(source="bare.npz", num_records=5), "no array labels"),
        (Dataset(source="damaged.parquet", num_records=5), "no whole .parquet"),
        (Dataset(source="sst2", num_records=5), "needs an encoder"),
    ],
)
def test_wrong_files_are_named(dataset, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("damaged.npz", "damaged.parquet"):
        (tmp_path / name).write_bytes(b"nothing")
    np.savez(tmp_path / "bare.npz", features=np.zeros((2, 2)))
    with pytest.raises(InputError, match=message):
        shape_of(dataset, prepared=tmp_path / "none", folder=None)


# Sizes


def bytes_of(rule: str, of: Experiment, shape: Shape = DIGITS) -> int:
    return sum(each.num_bytes for each in all_jobs(plan(of, shape)) if each.rule == rule)


@pytest.mark.parametrize(
    ("canary", "score", "seen"),
    [
        ("gradient", "coordinate", np.zeros((5000, 2), np.float32)),
        ("natural", "logit_difference", np.zeros((5000, 2, 2, 10), np.float32)),
        ("worst_case", "final_sum", np.zeros((5000, 2))),
        ("worst_case", "transcript", np.zeros((5000, 2))),
    ],
)
def test_sizes_of_shards_are_those_of_real_files(canary, score, seen, tmp_path):
    sweep = {"canary": canary, "score": score, "num_repeats": 1, "num_runs": 5000}
    of = experiment(a={**sweep, "runs_per_shard": 5000})
    stage, data = of.stage(TrainingStage, audit="a"), Path(__file__)
    made = make_shard(
        stage,
        runs=range(5000),
        observation=seen,
        test_accuracy=np.zeros(5000, np.float32),
        noise_multiplier=2.0,
        inputs={"data": data, "canary": data} if stage.canary.is_trained else {},
        device="cpu",
        seconds=1.0,
    )
    write_shard(tmp_path / "s.npz", made)
    rule = "train_shard" if stage.canary.is_trained else "draw_worst_case_shard"
    size = (tmp_path / "s.npz").stat().st_size
    assert size < bytes_of(rule, of) < size + 15_000


def test_sizes_of_datasets_and_scores_are_those_of_real_files(tmp_path):
    features, labels = random_features(DIGITS, 5000)
    split = SplitDataset(features, labels, *2 * (features[:500], labels[:500]))
    write_split(tmp_path / "d.npz", split, settings={"a": 1})
    size = (tmp_path / "d.npz").stat().st_size
    of = experiment(a={"num_runs": 2000, "num_repeats": 5})
    assert bytes_of("prepare_dataset", of, parts_of(split)) == pytest.approx(size, rel=0.02)
    scores = {"a": np.zeros((5, 1000, 2)), "b": np.zeros((5, 1000, 2)), "t": np.zeros(10_000, "f")}
    write_arrays(tmp_path / "s.npz", header={}, arrays=scores)
    size = (tmp_path / "s.npz").stat().st_size
    assert size < bytes_of("score_runs", of) < size + 15_000


# Counts


def test_jobs_count_models_and_start_the_programs_that_there_are():
    """How many jobs every rule has is tested against Snakemake, with the program."""
    of = experiment(
        trained={"canary": ["gradient", "natural"]},
        drawn={"canary": "worst_case", "target_epsilon": 1.0, "noise_multiplier": None},
        figures={"f": {"kind": "epsilon_by_runs", "sweeps": ["trained"], "num_runs": [4, 40]}},
    )
    jobs = all_jobs(plan(of))
    trained = [each for each in jobs if each.models]
    assert [(each.rule, each.sweep, each.count) for each in trained] == [
        ("train_shard", "trained", 3)  # 120 runs of an audit, 50 a shard
    ] * 2
    assert {(each.models, each.model_steps) for each in trained} == {(120, 120 * 20)}
    assert {each.sweep for each in jobs} == {"trained", "drawn", SHARED}
    starts = [probe.program for probe in probes_of(jobs) if isinstance(probe, Start)]
    assert len(starts) == 8
    assert all(program.exists() for program in starts)


def test_work_of_jobs_is_proportional_to_runs_steps_and_candidates():
    def amounts(rule: str, **changes: Any) -> list[tuple[float, ...]]:
        jobs = all_jobs(plan(experiment(a={"canary": "gradient", **changes})))
        return [units for each in jobs if each.rule == rule for _, units in each.parts]

    assert amounts("train_shard") == [(3,), (3, 120, 2400)]
    assert amounts("train_shard", num_runs=80) == [(5,), (5, 240, 4800)]
    assert amounts("train_shard", num_steps=40) == [(3,), (3, 120, 4800)]
    assert amounts("craft_canary") == [(1,), (1, 20)]
    assert amounts("craft_canary", canary="crafted_input", crafting_steps=70) == [(1,), (1, 70)]
    assert amounts("craft_canary", canary="mislabeled") == [(1,), (1, 9)]
    assert amounts("craft_canary", canary="natural") == [(1,), (1, 848)]
    assert amounts("account") == [(0, 25 + 2)]
    assert amounts("estimate") == [(1,), (1, 3 * 2 - 1)]
    # Of 2,100 runs in shards of 1,050, the second begins in the second stream of 1,024.
    drawn = {"canary": "worst_case", "num_runs": 700, "runs_per_shard": 1050}
    assert amounts("draw_worst_case_shard", **drawn) == [(2,), (4, 0)]
    assert amounts("score_runs", **drawn) == [(1,), (0, 2100 / 1024)]


# Probes


def test_audits_that_take_the_same_time_share_a_probe():
    same = {
        "seed": [1, 2],
        "max_grad_norm": [1.0, 2.0],
        "learning_rate": [0.1, 0.2],
        "learning_rate_schedule": ["constant", "cosine"],
        "num_steps": [20, 40],
        "canary": ["gradient", "natural"],
    }
    for key, values in same.items():
        assert len(probes(experiment(a={key: values}), Training)) == 1, key
    other = {"sample_rate": [0.5, 1.0], "optimizer": ["sgd", "adam"], "precision": None}
    other["precision"] = ["float32", "bfloat16"]
    for key, values in other.items():
        assert len(probes(experiment(a={key: values}), Training)) == 2, key


def test_the_papers_full_config_needs_few_probes():
    text = (ROOT / "config/pradhan/cifar10.yaml").read_text()
    of = parse_experiment(yaml.safe_load(text))
    assert len(of.audits) == 124
    shape = shape_of(of.settings.datasets["cifar10"], prepared=Path("none"), folder=None)
    assert len(probes(of, Training, shape=shape)) == 3  # sample rates
    assert len(probes(of, Crafting, shape=shape)) == 3 + 1 + 1 + 1
    assert len(probes_of(all_jobs(plan(of, shape)))) < 60


@pytest.mark.parametrize(
    ("once", "each", "loading"),
    [(0.05, 0.002, 0.1), (0.0, 1e-6, 0.3), (0.3, 0.001, 0.05), (0.5, 0.01, 5.0), (0.0, 2.0, 0.0)],
)
def test_seconds_per_unit_against_a_made_up_clock(once, each, loading):
    now, calls = 0.0, 0

    def task(units: int) -> None:
        nonlocal now, calls
        calls += 1
        now += once + each * units + (loading if calls == 1 else 0.0)

    found = seconds_per_unit(task, now=lambda: now)
    assert found == pytest.approx((once, each), rel=1e-3, abs=1e-9)
    assert now < 10 * (once + each + measuring.BUDGET)
    assert calls < 15


@pytest.mark.usefixtures("_hurry")
def test_training_is_timed_to_within_a_factor():
    of = experiment(a={"sample_rate": 0.5, "num_runs": 64, "runs_per_shard": 64, "num_repeats": 1})
    [probe] = probes(of, Training)
    timing = probe.measure()
    stage, runs, steps = of.stage(TrainingStage, audit="a"), 64, 200
    features, labels = random_features(DIGITS, DIGITS.num_test)
    start = time.process_time()
    train_ensemble(
        module=module_of(stage, shape=(64,), num_classes=10),
        records=replace(random_records(DIGITS), test_features=features, test_labels=labels),
        canary=GradientCanary(3),
        dpsgd=mechanism_of(stage, record_steps=(steps,), noise_multiplier=2.0),
        runs=range(runs),
        seed=0,
        device=torch.device("cpu"),
    )
    true = time.process_time() - start
    told = float(np.dot(timing, (1, runs, runs * steps)))
    assert true / 3 < told < 3 * true


@pytest.mark.usefixtures("_hurry")
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "mlp", "hidden_sizes": [8], "optimizer": "adam"},
        {"sampling": "fixed", "sample_rate": 1.0, "batch_size": 16, "canary_period": 2},
        {"model": "convnet"},
    ],
)
def test_every_kind_of_training_and_crafting_is_timed(changes):
    images = {"num_records": 80, "num_auxiliary": 4, "num_test": 4, "features": (3, 32, 32)}
    shape = replace(DIGITS, **images) if changes.get("model") == "convnet" else DIGITS
    canaries = ["gradient", "crafted_input", "natural"]
    if "sampling" in changes:
        canaries = ["gradient"]
    of = experiment(a={"canary": canaries, "num_steps": 20, "num_runs": 4, **changes})
    found = [*probes(of, Training, shape=shape), *probes(of, Crafting, shape=shape)]
    assert len(found) == 2 + len(canaries)
    assert all(probe.measure()[-1] > 0 for probe in found)


@pytest.mark.usefixtures("_hurry")
def test_worst_cases_are_timed_in_proportion():
    def found(score: str, record_every: int) -> Seconds:
        of = experiment(a={"canary": "worst_case", "score": score, "record_every": record_every})
        return probes(of, Drawing)[0].measure()

    few, many = found("final_sum", 20), found("final_sum", 1)
    assert many[0] > 2 * few[0] > 0
    assert many[1] > 2 * few[1] > 0
    assert found("transcript", 20)[0] > few[0]
    assert found("transcript", 20)[1] == 0


def test_estimates_are_timed_first_and_later():
    [probe] = probes(experiment(a={"num_runs": 4000}), Estimating)
    assert probe.num_scores == 2000
    assert probe.stage.threshold_rules == (ThresholdRule.SIMULTANEOUS,)
    first, later = probe.measure()
    assert first > later > 0
    rng = np.random.default_rng(1)
    worlds = rng.normal(2.0, 1.0, 2000), rng.normal(0.0, 1.0, 2000)
    start = time.process_time()
    for _ in range(20):
        estimate_epsilon(world0_scores=worlds[0], world1_scores=worlds[1], delta=1e-5)
    true = (time.process_time() - start) / 20
    assert true / 3 < later < 3 * true


def test_programs_are_timed_in_processes_of_their_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nwhile time.process_time() < 1: pass\n"
        "if __name__ == '__main__':\n    raise SystemExit('no such luck')\n"
    )
    assert 1 <= Start(program).measure()[0] < 2
    with pytest.raises(InputError, match=r"cannot run .*program.py: no such luck"):
        run_python(str(program))


def test_noise_and_bounds_are_timed_by_their_programs():
    audits = {"short": {"record_every": 20}, "long": {"num_steps": 200}}
    of = experiment(
        **{
            name: {"target_epsilon": 1.0, "noise_multiplier": None, **changes}
            for name, changes in audits.items()
        }
    )
    [probe] = probes(of, Accounting)
    assert probe.stage.record_steps[-1] == 200
    fixing, step = probe.measure()
    assert 0.1 < fixing < 20
    assert 0.1 < step * (25 + 20) < 20


@dataclass(frozen=True)
class Fake:
    """A probe of known times."""

    seconds: tuple[float, ...]
    device: str = "cpu"

    def measure(self) -> Seconds:
        return self.seconds


def test_equal_probes_are_measured_once():
    done: list[int] = []
    probes = [Fake((1.0,)), Fake((2.0, 3.0)), Fake((1.0,))]
    found = measured(probes, num_workers=2, on_progress=done.append)
    assert found == {probe: probe.seconds for probe in probes}
    assert done == [1, 1]


# Totals


def jobs_of(rule: str, seconds: float, *, count: int = 1, **more: Any) -> Jobs:
    device = more.pop("device", "cpu")
    parts = ((Fake((seconds, 0.0), device), (count, 7)),)
    return Jobs(rule, count, parts, num_bytes=1_000_000, **more)


def costs(*jobs: Jobs) -> pd.DataFrame:
    return costs_of(jobs, {probe: probe.measure() for probe in probes_of(jobs)})


def test_wall_time_follows_cores_until_a_chain_or_the_gpu_is_slower():
    ends = jobs_of("figure_trade_off", 9.0), jobs_of("figure_x", 3.0)
    others = jobs_of("train_reference", 50.0), *ends
    on_host = costs(jobs_of("train_shard", 100.0, count=40), *others)
    assert wall_seconds(on_host, 2) == pytest.approx(4062 / 1.9, rel=0.01)
    assert wall_seconds(on_host, 1000) == pytest.approx(100 + 50 + 9, rel=0.05)
    held = costs(jobs_of("train_shard", 100.0, count=40, device="cuda"), *others)
    assert wall_seconds(held, 1000) == pytest.approx(4000, rel=0.01)


def test_tables_name_units_and_add_up():
    known: dict[str, Any] = {"count": 40, "models": 40, "model_steps": 12_345}
    known |= {"sweep": "mine", "audit": "a"}
    train, summary = jobs_of("train_shard", 3600.0, **known), jobs_of("summarise", 36.0)
    text = text_of(costs(train, summary), num_cores=2, notes=["A note."])
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert lines["mine"][1:] == ["1", "40", "40", "40", "12,345", "40", "1", "MB"]
    assert lines["total"][1:] == ["1", "41", "40", "40", "12,345", "40", "2", "MB"]
    assert lines["train_shard"][1:] == lines["mine"][1:]
    assert lines["summarise"][1:] == ["-", "1", "-", "-", "-", "0.01", "1", "MB"]
    assert "core-hours" in text
    assert "GPU-hours" not in text
    assert "40 core-hours and 2 MB of disk: about 21 h with 2 cores" in text
    assert text.endswith("A note.")
    on_gpu = costs(jobs_of("train_shard", 3600.0, device="cuda", **known), summary)
    assert "In all 40 GPU-hours and 0.01 core-hours" in text_of(on_gpu, num_cores=2, notes=[])


def test_a_gpu_is_held_by_the_jobs_whose_rules_ask_for_it():
    jobs = all_jobs(plan(experiment(a={}), device="cuda"))
    held = {each.rule for each in jobs if each.holds_gpu}
    assert held == {"train_reference", "craft_canary", "train_shard"}
    rules = "\n".join(
        (ROOT / "rules" / name).read_text() for name in ("canaries.smk", "training.smk")
    )
    assert rules.count("gpu=gpus_of(") == len(held)


def test_notes_say_what_is_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = (ROOT / "config/pradhan/cifar10.yaml").read_text()
    of = parse_experiment(yaml.safe_load(text))
    notes = "\n".join(notes_of(of, shapes_of(of, data=Path("none"), folder=None)))
    assert "device is auto, but PyTorch finds no GPU" in notes
    assert "encoding 60,000 records by google/vit-base-patch16-224-in21k" in notes
    own = experiment(a={})
    notes = "\n".join(notes_of(own, shapes_of(own, data=Path("none"), folder=None)))
    assert "GPU" not in notes
    assert "encoding" not in notes
