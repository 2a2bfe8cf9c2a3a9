"""The workflow's programs, chained by hand on a small dataset: files in, files out."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from dpcanary import account_epsilon
from dpcanary.adjacency import Adjacency
from dpcanary.canaries import GradientCanary, InputCanary, read_canary
from dpcanary.config import parse_experiment
from dpcanary.errors import AccountingError, InputError
from dpcanary.files import read_arrays, read_json, write_text
from dpcanary.gdp import gdp_epsilon
from dpcanary.observations import read_shard
from dpcanary.splits import read_split
from dpcanary.stages import (
    AccountingStage,
    CanaryStage,
    DatasetStage,
    EstimationStage,
    NoiseStage,
    ReferenceStage,
    ScoringStage,
    TrainingStage,
)
from dpcanary.training.devices import chosen_device
from dpcanary.training.reference import read_reference

SCRIPTS = Path(__file__).parents[2] / "scripts"
CONFIG = {
    "experiment": "chained",
    "delta": 1e-5,
    "datasets": {"digits": {"source": "digits", "num_records": 60}},
    "audits": {
        "a": {
            "canary": ["gradient", "crafted_input", "mislabeled", "natural"],
            "sample_rate": 1.0,
            "dataset": "digits",
            "target_epsilon": 10.0,
            "num_steps": 10,
            "learning_rate": 0.1,
            "num_runs": 12,
            "num_repeats": 2,
            "record_every": 5,
            "crafting_steps": 30,
        },
        "w": {
            "canary": "worst_case",
            "score": ["final_sum", "transcript"],
            "sample_rate": 0.5,
            "noise_multiplier": 3.0,
            "num_steps": 10,
            "num_runs": 40,
        },
    },
}
EXPERIMENT = parse_experiment(CONFIG)
TRAINED = [name for name in EXPERIMENT.audits if name.startswith("a-")]
DRAWN = [name for name in EXPERIMENT.audits if name.startswith("w-")]


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"program_{name}", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(name: str, **options: object) -> None:
    argv: list[str] = []
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        argv += [f"--{key.replace('_', '-')}", *map(str, values)]
    program(name).main(argv)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All stages of all audits, in two shards each."""
    root = tmp_path_factory.mktemp("chained")
    data, reference = root / "data.npz", root / "reference.npz"
    told = EXPERIMENT.dataset_stage(DatasetStage, dataset="digits").to_json()
    run("prepare_dataset", settings=told, output=data)
    told = EXPERIMENT.stage(ReferenceStage, audit=TRAINED[0]).to_json()
    run("train_reference", settings=told, data=data, output=reference)
    for audit in EXPERIMENT.audits:
        place = root / audit
        noise = place / "noise.json"

        def told_to(stage, audit=audit):
            return EXPERIMENT.stage(stage, audit=audit).to_json()

        run("calibrate_noise", settings=told_to(NoiseStage), output=noise)
        run(
            "account",
            settings=told_to(AccountingStage),
            noise=noise,
            output=root / "accounting" / f"{audit}.tsv",
            profile=place / "profile.tsv",
        )
        shards = [place / "00000.npz", place / "00001.npz"]
        total = EXPERIMENT.audits[audit].total_runs
        canary: dict[str, Path] = {}
        inputs: dict[str, Path] = {}
        if audit in TRAINED:
            canary = {"canary": place / "canary.npz"}
            inputs = {"data": data, **canary}
            run(
                "craft_canary",
                settings=told_to(CanaryStage),
                data=data,
                reference=reference,
                output=canary["canary"],
            )
        for first, num, path in ((0, 7, shards[0]), (7, total - 7, shards[1])):
            run(
                "train_shard" if audit in TRAINED else "draw_worst_case_shard",
                settings=told_to(TrainingStage),
                **inputs,
                noise=noise,
                first_run=first,
                num_runs=num,
                output=path,
            )
        scores = place / "scores.npz"
        run(
            "score_runs",
            audit=audit,
            settings=told_to(ScoringStage),
            **canary,
            shards=place,
            num_shards=2,
            output=scores,
        )
        run(
            "estimate",
            settings=told_to(EstimationStage),
            scores=scores,
            output=root / "estimates" / f"{audit}.tsv",
        )
    write_text(root / "experiment.json", EXPERIMENT.model_dump_json())
    run(
        "summarise",
        experiment=root / "experiment.json",
        estimates=root / "estimates",
        accounting=root / "accounting",
        output=root / "summary.tsv",
    )
    return root


def test_datasets_are_read_from_files_or_encoded_features(tmp_path):
    stage = DatasetStage(
        source="sst2",
        max_records=50,
        num_test=5,
        seed=0,
        num_records=20,
        balanced=False,
        num_auxiliary=25,
    )
    reviews = tmp_path / "train.tsv"
    reviews.write_text("".join(f"film {index}\t{index % 2}\n" for index in range(60)))
    with pytest.raises(InputError, match="needs an encoder"):
        run("prepare_dataset", settings=stage.to_json(), files=[reviews], output=tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()
    rng = np.random.default_rng(0)
    encoded = {"features": rng.normal(size=(50, 3)), "labels": np.arange(50) % 2}
    np.savez(
        tmp_path / "features.npz",
        **encoded,
        test_features=encoded["features"][:5],
        test_labels=encoded["labels"][:5],
    )
    known = {"settings": stage.to_json(), "output": tmp_path / "data.npz"}
    run("prepare_dataset", features=tmp_path / "features.npz", **known)
    split = read_split(tmp_path / "data.npz")
    shapes = [split.features.shape, split.auxiliary_features.shape, split.test_features.shape]
    assert shapes == [(20, 3), (25, 3), (5, 3)]
    assert read_arrays(tmp_path / "data.npz")[0]["settings"]["source"] == "sst2"
    own = stage.model_copy(update={"source": str(tmp_path / "own.npz")})
    np.savez(tmp_path / "own.npz", **encoded)
    known["settings"] = own.to_json()
    run("prepare_dataset", files=[tmp_path / "own.npz"], **known)
    assert len(read_split(tmp_path / "data.npz").test_labels) == 5


def test_noise_is_calibrated_or_as_given(folder):
    sigma = read_json(folder / TRAINED[0] / "noise.json")["noise_multiplier"]
    assert gdp_epsilon(mu=2 * np.sqrt(10) / sigma, delta=1e-5) == pytest.approx(10.0, rel=1e-3)
    assert read_json(folder / DRAWN[0] / "noise.json") == {"noise_multiplier": 3.0}


def test_accounting_is_the_librarys(folder):
    table = pd.read_csv(folder / "accounting" / f"{DRAWN[0]}.tsv", sep="\t")
    for adjacency in ("substitute", "add_remove"):
        bounds = account_epsilon(
            adjacency=adjacency, sample_rate=0.5, noise_multiplier=3.0, num_steps=10, delta=1e-5
        )
        assert table[f"epsilon_upper_{adjacency}"].iloc[-1] == pytest.approx(bounds.upper, rel=1e-6)
    assert (table.epsilon_upper_group_privacy >= table.epsilon_upper_substitute).all()
    profile = pd.read_csv(folder / DRAWN[0] / "profile.tsv", sep="\t")
    for _, part in profile.groupby("adjacency"):
        assert (part.delta.diff().dropna() <= 0).all()
        assert part.delta.iloc[-1] < 1e-8


def test_canaries_are_of_their_kind(folder):
    data, reference = read_split(folder / "data.npz"), read_reference(folder / "reference.npz")
    for audit in TRAINED:
        placed = read_canary(folder / audit / "canary.npz")
        assert placed.target == reference.target
        assert placed.target_label == data.labels[reference.target]
        kind = GradientCanary if "gradient" in audit else InputCanary
        assert isinstance(placed.canary, kind)


def test_shards_say_where_they_come_from(folder):
    shard = read_shard(folder / TRAINED[0] / "00000.npz")
    assert shard.header["settings"] == json.loads(
        EXPERIMENT.stage(TrainingStage, audit=TRAINED[0]).to_json()
    )
    assert set(shard.header["inputs"]) == {"data", "canary"}
    assert shard.header["seconds"] > 0
    assert {"python", "numpy", "torch"} <= shard.header["software"].keys()
    assert shard.step.tolist() == [5, 10]


def test_scores_are_cut_into_repeats_and_worlds(folder):
    header, arrays = read_arrays(folder / TRAINED[0] / "scores.npz")
    assert arrays["world0_scores"].shape == arrays["world1_scores"].shape == (2, 6, 2)
    shards = [read_shard(folder / TRAINED[0] / f"0000{index}.npz") for index in (0, 1)]
    changes = np.concatenate([shard.observation for shard in shards])
    # Run 12 is the first of the second repeat, and of world 0.
    np.testing.assert_allclose(arrays["world0_scores"][1, 0], -changes[12])
    np.testing.assert_allclose(arrays["world1_scores"][1, 5], -changes[23])
    assert header["canary"] == "gradient"


def test_summary_has_a_row_per_audit_repeat_step_and_estimate(folder):
    table = pd.read_csv(folder / "summary.tsv", sep="\t")
    assert len(table) == 4 * 2 * 2 + 2
    assert set(table.audit) == set(EXPERIMENT.audits)
    trained = table[table.audit.isin(TRAINED)]
    assert trained.test_accuracy[trained.step == 10].between(0.05, 1.0).all()
    assert trained.test_accuracy[trained.step == 5].isna().all()
    assert set(trained.sweep) == {"a"}
    assert set(trained.repeat) == {0, 1}
    drawn = table[table.audit.isin(DRAWN)]
    assert drawn.test_accuracy.isna().all()
    assert set(drawn.dataset) == {"crafted"}
    assert (table.epsilon_lower <= table.epsilon_upper_substitute).all()


def test_a_summary_of_some_sweeps_has_their_audits_alone(folder, tmp_path):
    run(
        "summarise",
        experiment=folder / "experiment.json",
        sweeps="w",
        estimates=folder / "estimates",
        accounting=folder / "accounting",
        output=tmp_path / "w.tsv",
    )
    whole = pd.read_csv(folder / "summary.tsv", sep="\t")
    part = pd.read_csv(tmp_path / "w.tsv", sep="\t")
    expected = whole[whole.sweep == "w"].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, expected, check_dtype=False)


def test_estimates_of_another_mechanism_are_refused(folder, tmp_path):
    wrong = tmp_path / "accounting" / f"{TRAINED[0]}.tsv"
    wrong.parent.mkdir()
    table = pd.read_csv(folder / "accounting" / f"{TRAINED[0]}.tsv", sep="\t")
    table.assign(noise_multiplier=99.0).to_csv(wrong, sep="\t", index=False)
    with pytest.raises(InputError, match="differ in steps or noise"):
        run(
            "summarise",
            experiment=folder / "experiment.json",
            estimates=folder / "estimates",
            accounting=wrong.parent,
            output=tmp_path / "summary.tsv",
        )
    assert not (tmp_path / "summary.tsv").exists()


def shards_in(place: Path, *shards: Path) -> Path:
    """A folder of shards, under the names that they have there."""
    place.mkdir()
    for index, shard in enumerate(shards):
        shutil.copy(shard, place / f"{index:05d}.npz")
    return place


def test_missing_shards_leave_no_scores(folder, tmp_path):
    place = shards_in(tmp_path / "shards", folder / TRAINED[0] / "00001.npz")
    with pytest.raises(InputError, match="run 0 is missing"):
        run(
            "score_runs",
            audit=TRAINED[0],
            settings=EXPERIMENT.stage(ScoringStage, audit=TRAINED[0]).to_json(),
            canary=folder / TRAINED[0] / "canary.npz",
            shards=place,
            num_shards=1,
            output=tmp_path / "scores.npz",
        )
    assert list(tmp_path.iterdir()) == [place]


def test_shards_of_two_settings_leave_no_scores(folder, tmp_path):
    mixed = [folder / TRAINED[0] / "00000.npz", folder / TRAINED[1] / "00001.npz"]
    place = shards_in(tmp_path / "shards", *mixed)
    with pytest.raises(InputError, match=r"00001\.npz was made with another settings"):
        run(
            "score_runs",
            audit=TRAINED[0],
            settings=EXPERIMENT.stage(ScoringStage, audit=TRAINED[0]).to_json(),
            canary=folder / TRAINED[0] / "canary.npz",
            shards=place,
            num_shards=2,
            output=tmp_path / "scores.npz",
        )
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("taken_for", [TRAINED[0], TRAINED[1]])
def test_whole_shards_of_another_audit_leave_no_scores(folder, tmp_path, taken_for):
    """They agree with one another, and not with the audit that they are taken for."""
    foreign = TRAINED[3]
    with pytest.raises(InputError, match="made with another settings: it is of another audit"):
        run(
            "score_runs",
            audit=taken_for,
            settings=EXPERIMENT.stage(ScoringStage, audit=taken_for).to_json(),
            canary=folder / taken_for / "canary.npz",
            shards=folder / foreign,
            num_shards=2,
            output=tmp_path / "scores.npz",
        )
    assert list(tmp_path.iterdir()) == []


def test_shards_of_another_canary_leave_no_scores(folder, tmp_path):
    audit = TRAINED[1]
    with pytest.raises(InputError, match="made with another canary"):
        run(
            "score_runs",
            audit=audit,
            settings=EXPERIMENT.stage(ScoringStage, audit=audit).to_json(),
            canary=folder / TRAINED[3] / "canary.npz",
            shards=folder / audit,
            num_shards=2,
            output=tmp_path / "scores.npz",
        )
    assert list(tmp_path.iterdir()) == []


def test_accounting_falls_back_and_says_so(tmp_path, capsys):
    """A setting that the first accountant refuses: rare sampling with little noise."""
    stage = AccountingStage(
        sample_rate=1e-3, record_steps=(10_000,), canary_period=None, delta=1e-5
    )
    write_text(tmp_path / "noise.json", '{"noise_multiplier": 0.7}')
    run(
        "account",
        settings=stage.to_json(),
        noise=tmp_path / "noise.json",
        output=tmp_path / "table.tsv",
        profile=tmp_path / "profile.tsv",
    )
    table = pd.read_csv(tmp_path / "table.tsv", sep="\t")
    assert table.accounting_method.tolist() == ["prv"]
    assert table.epsilon_upper_substitute[0] == pytest.approx(1.588, rel=0.02)
    warnings = capsys.readouterr().err
    assert "warning: trying prv instead: method='pld' cannot account" in warnings
    profile = pd.read_csv(tmp_path / "profile.tsv", sep="\t")
    assert profile.columns.tolist() == ["adjacency", "delta", "epsilon"]
    assert set(profile.adjacency) == {"substitute", "add_remove"}
    own = profile[(profile.adjacency == "substitute") & np.isclose(profile.delta, 1e-5)]
    assert own.epsilon.item() == pytest.approx(table.epsilon_upper_substitute[0], rel=1e-6)


def test_two_refusals_lead_with_the_first(capsys):
    stage = NoiseStage(
        adjacency=Adjacency.SUBSTITUTE,
        sample_rate=0.01,
        num_steps=1,
        noise_multiplier=None,
        target_epsilon=1.0,
        delta=0.5,
    )
    with pytest.raises(AccountingError, match="no noise multiplier between"):
        program("calibrate_noise").noise_multiplier(stage)
    assert "warning: prv refuses too" in capsys.readouterr().err


def test_an_absent_gpu_is_named():
    if torch.cuda.is_available():
        assert chosen_device("cuda").type == "cuda"
    else:
        with pytest.raises(InputError, match="set device to cpu or auto"):
            chosen_device("cuda")
        assert chosen_device("auto").type == "cpu"


def test_audits_are_listed(folder, capsys):
    run("list_audits", experiment=folder / "experiment.json")
    printed = capsys.readouterr().out
    assert "a-gradient" in printed
    assert len(printed.splitlines()) == 1 + len(EXPERIMENT.audits)
