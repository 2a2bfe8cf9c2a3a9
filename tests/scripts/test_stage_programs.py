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

from dpcanary import Mechanism, account_epsilon
from dpcanary.accounting.noise import NoiseStage, noise_of
from dpcanary.accounting.settings import AccountingStage
from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.settings import CraftingStage
from dpcanary.canaries import GradientCanary, InputCanary, read_canaries
from dpcanary.datasets.settings import DatasetStage
from dpcanary.devices import chosen_device
from dpcanary.errors import AccountingError, InputError
from dpcanary.estimation.settings import EstimationStage
from dpcanary.fields import ClosedModel
from dpcanary.files import read_arrays, read_json, write_text
from dpcanary.gdp import gdp_epsilon
from dpcanary.observations import read_shard, shard_path
from dpcanary.records import read_split
from dpcanary.scoring.score_file import read_scores
from dpcanary.scoring.settings import ScoringStage
from dpcanary.sealed import write_sealed_object
from dpcanary.settings.experiment import table_of_audits
from dpcanary.settings.parsing import parse_experiment
from dpcanary.tables import read_table, write_table
from dpcanary.training.settings import ReferenceStage
from dpcanary.training.simulation import read_reference

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
        "k": {
            "canary": ["gradient", "natural"],
            "num_slots": 2,
            "sample_rate": 1.0,
            "dataset": "digits",
            "noise_multiplier": 2.0,
            "num_steps": 10,
            "learning_rate": 0.1,
            "num_runs": 20,
            "record_every": 5,
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
TRAINED, SLOTS, DRAWN = (list(EXPERIMENT.sweeps[sweep]) for sweep in "akw")


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


def told(stage: type[ClosedModel], audit: str) -> str:
    """A stage's settings as the command line has them."""
    return EXPERIMENT.stage(stage, audit=audit).to_json()


def score(
    audit: str, shards: Path, output: Path, *, canaries: Path | None, num_shards: int
) -> None:
    settings = EXPERIMENT.audits[audit]
    run(
        "score_runs",
        names=[audit, settings.canary, settings.score],
        settings=told(ScoringStage, audit),
        **({"canaries": canaries} if canaries else {}),
        shards=shards,
        num_shards=num_shards,
        output=output,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All stages of all audits, in two shards each."""
    root = tmp_path_factory.mktemp("chained")
    data, reference = root / "data.npz", root / "reference.npz"
    dataset = EXPERIMENT.dataset_stage(DatasetStage, dataset="digits").to_json()
    run("prepare_dataset", settings=dataset, output=data)
    run(
        "train_reference",
        settings=told(ReferenceStage, TRAINED[0]),
        data=data,
        output=reference,
    )
    for audit in EXPERIMENT.audits:
        place = root / audit
        noise, canaries = place / "noise.json", None
        run("calibrate_noise", settings=told(NoiseStage, audit), output=noise)
        run(
            "account",
            settings=told(AccountingStage, audit),
            noise=noise,
            output=[root / "accounting" / f"{audit}.tsv", place / "profile.tsv"],
        )
        inputs: dict[str, Path] = {}
        if EXPERIMENT.audits[audit].is_trained:
            canaries = place / "canaries.npz"
            inputs = {"data": data, "canaries": canaries}
            run(
                "craft_canaries",
                settings=told(CraftingStage, audit),
                data=data,
                reference=reference,
                output=canaries,
            )
        total = EXPERIMENT.audits[audit].total_runs
        for index, runs in enumerate((range(7), range(7, total))):
            run(
                "train_shard" if inputs else "draw_shard",
                settings=told(EXPERIMENT.runs_stage(audit), audit),
                **inputs,
                noise=noise,
                runs=[runs.start, runs.stop],
                output=shard_path(place, index),
            )
        scores = place / "scores.npz"
        score(audit, place, scores, canaries=canaries, num_shards=2)
        run(
            "estimate",
            settings=told(EstimationStage, audit),
            scores=scores,
            output=root / "estimates" / f"{audit}.tsv",
        )
    write_text(root / "experiment.json", EXPERIMENT.model_dump_json())
    summarise(root, root / "summary.tsv")
    return root


def summarise(root: Path, output: Path, **options: object) -> None:
    places = {name: root / name for name in ("estimates", "accounting")} | options
    run("summarise", experiment=root / "experiment.json", **places, output=output)


def test_datasets_are_read_from_files_or_encoded_features(tmp_path):
    stage = DatasetStage(
        source="sst2",
        max_records=50,
        label_column="label",
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
    parts = (split.private, split.auxiliary, split.test)
    assert [part.features.shape for part in parts] == [(20, 3), (25, 3), (5, 3)]
    assert read_arrays(tmp_path / "data.npz")[0]["settings"]["source"] == "sst2"
    own = stage.model_copy(update={"source": str(tmp_path / "own.npz")})
    np.savez(tmp_path / "own.npz", **encoded)
    known["settings"] = own.to_json()
    run("prepare_dataset", files=[tmp_path / "own.npz"], **known)
    assert len(read_split(tmp_path / "data.npz").test) == 5


def test_noise_is_calibrated_or_as_given(folder):
    sigma = read_json(folder / TRAINED[0] / "noise.json")["noise_multiplier"]
    assert gdp_epsilon(mu=2 * np.sqrt(10) / sigma, delta=1e-5) == pytest.approx(10.0, rel=1e-3)
    assert read_json(folder / DRAWN[0] / "noise.json")["noise_multiplier"] == 3.0


def test_noise_of_0_is_given():
    keys = {"adjacency": "substitute", "sample_rate": 1.0, "accounted_steps": 3}
    stage = NoiseStage.model_validate_json(
        json.dumps({**keys, "target_delta": None, "noise_multiplier": 0.0})
    )
    assert noise_of(stage) == 0.0


def test_accounting_is_the_librarys(folder):
    table = read_table(folder / "accounting" / f"{DRAWN[0]}.tsv")
    for adjacency in ("substitute", "add_remove"):
        mechanism = Mechanism(adjacency, sample_rate=0.5, noise_multiplier=3.0, num_steps=10)
        bounds = account_epsilon(mechanism, delta=1e-5)
        assert table[f"epsilon_upper_{adjacency}"].iloc[-1] == pytest.approx(bounds.upper, rel=1e-6)
    assert (table.epsilon_upper_group_privacy >= table.epsilon_upper_substitute).all()
    assert table.gaussian_distance.between(1e-5, 0.1).all()
    profile = read_table(folder / DRAWN[0] / "profile.tsv")
    for _, part in profile.groupby("adjacency"):
        assert (part.delta.diff().dropna() <= 0).all()
        assert part.delta.iloc[-1] < 1e-8


def test_canaries_are_of_their_kind(folder):
    private = read_split(folder / "data.npz").private
    reference = read_reference(folder / "reference.npz")
    for audit in TRAINED + SLOTS:
        found = read_canaries(folder / audit / "canaries.npz")
        targets = reference.least_confident(EXPERIMENT.audits[audit].num_slots)
        assert [canary.target for canary in found.canaries] == targets.tolist()
        assert found.target_labels == tuple(private.labels[targets])
        kind = GradientCanary if "gradient" in audit else InputCanary
        assert {type(canary) for canary in found.canaries} == {kind}
        if kind is GradientCanary:
            coordinates = {canary.coordinate for canary in found.canaries}
            assert len(coordinates) == len(targets)


def test_shards_say_where_they_come_from(folder):
    numpy, torch = {"python", "numpy"}, {"python", "numpy", "torch"}
    origins = ((TRAINED[0], {"data", "canaries"}, torch), (DRAWN[0], set(), numpy))
    for audit, inputs, software in origins:
        shard = read_shard(folder / audit / "00000.npz")
        assert shard.header["settings"] == json.loads(told(EXPERIMENT.runs_stage(audit), audit))
        assert set(shard.header["inputs"]) == inputs
        assert shard.header["seconds"] > 0
        assert shard.header["software"].keys() == software
        assert tuple(shard.step) == EXPERIMENT.audits[audit].record_steps


def shards_of(place: Path) -> dict[str, np.ndarray]:
    """The arrays of an audit's two shards, one after the other."""
    shards = [read_shard(shard_path(place, index)) for index in (0, 1)]
    return {
        name: np.concatenate([getattr(shard, name) for shard in shards])
        for name in ("run", "world", "observation", "test_accuracy")
    }


def test_scores_are_cut_into_repeats_and_worlds(folder):
    scores = read_scores(folder / TRAINED[0] / "scores.npz")
    assert scores.scores.shape == (2, 12, 1, 2)
    for repeat, step in ((0, 0), (1, 1)):
        assert [len(part) for part in scores.of_worlds(repeat=repeat, step=step)] == [6, 6]
    changes = shards_of(folder / TRAINED[0])["observation"][:, :, 0]
    # Run 12 is the first of the second repeat, and of world 0.
    for step in (0, 1):
        world0, world1 = scores.of_worlds(repeat=1, step=step)
        np.testing.assert_allclose(world0[0], -changes[12, step])
        np.testing.assert_allclose(world1[5], -changes[23, step])
    assert {key: scores.header[key] for key in ("audit", "canary", "score")} == {
        "audit": TRAINED[0],
        "canary": "gradient",
        "score": "coordinate",
    }


def test_scores_of_slots_are_those_of_their_worlds(folder):
    gradient, natural = SLOTS
    for audit, logits in ((gradient, ()), (natural, (2, 10))):
        arrays = shards_of(folder / audit)
        assert arrays["run"].tolist() == [*range(20)]
        assert arrays["observation"].shape == (20, 2, 2, *logits)  # runs, steps, slots
        scores = read_scores(folder / audit / "scores.npz")
        assert scores.scores.shape == (1, 20, 2, 2)  # repeats, runs, slots, steps
        np.testing.assert_array_equal(scores.world[0], arrays["world"])
        assert {*map(tuple, arrays["world"])} > {(0, 1), (1, 0)}  # coins of each slot's own
        np.testing.assert_array_equal(scores.test_accuracy[0], arrays["test_accuracy"])
    changes = shards_of(folder / gradient)["observation"]
    found = read_scores(folder / gradient / "scores.npz").scores[0]
    np.testing.assert_allclose(found, -changes.transpose(0, 2, 1))


def test_summary_has_a_row_per_audit_repeat_step_and_estimate(folder):
    table = read_table(folder / "summary.tsv")
    assert len(table) == 4 * 2 * 2 + 2 * 2 * 2 + 2
    assert set(table.audit) == set(EXPERIMENT.audits)
    trained = table[table.audit.isin(TRAINED)]
    assert trained.test_accuracy[trained.step == 10].between(0.05, 1.0).all()
    assert trained.test_accuracy[trained.step == 5].isna().all()
    assert set(trained.sweep) == {"a"}
    assert set(trained.repeat) == {0, 1}
    drawn = table[table.audit.isin(DRAWN)]
    assert drawn.test_accuracy.isna().all()
    for column in ("dataset", "data", "model"):
        assert set(drawn[column]) == {"process"}
    assert drawn.num_records.isna().all()
    # A bound is above the truth in 5 % of audits at most; of these draws, one of 26 is.
    above = table.epsilon_lower > table.epsilon_upper_substitute
    assert above.sum() <= 1
    assert table.is_valid.all()


def test_summary_has_a_row_per_slot(folder):
    table = read_table(folder / "summary.tsv")
    slots = table[table.audit.isin(SLOTS)]
    for _, part in slots.groupby(["audit", "step"]):
        assert part.slot.tolist() == [0, 1]
    assert set(slots.num_slots) == {2}
    assert set(slots.num_runs) == {20}
    others = table[~table.audit.isin(SLOTS)]
    assert others.slot.isna().all()
    assert set(others.num_slots) == {1}


def test_a_summary_of_some_sweeps_has_their_audits_alone(folder, tmp_path):
    summarise(folder, tmp_path / "w.tsv", sweeps="w")
    whole = read_table(folder / "summary.tsv")
    part = read_table(tmp_path / "w.tsv")
    expected = whole[whole.sweep == "w"].reset_index(drop=True)
    pd.testing.assert_frame_equal(part, expected, check_dtype=False)


def test_estimates_of_another_mechanism_are_refused(folder, tmp_path):
    wrong = tmp_path / "accounting" / f"{TRAINED[0]}.tsv"
    wrong.parent.mkdir()
    table = read_table(folder / "accounting" / f"{TRAINED[0]}.tsv")
    write_table(wrong, table.assign(noise_multiplier=99.5))
    with pytest.raises(InputError, match="differ in steps or noise"):
        summarise(folder, tmp_path / "summary.tsv", accounting=wrong.parent)
    assert not (tmp_path / "summary.tsv").exists()


def shards_in(place: Path, *shards: Path) -> Path:
    """A folder of shards, under the names that they have there."""
    place.mkdir()
    for index, shard in enumerate(shards):
        shutil.copy(shard, place / f"{index:05d}.npz")
    return place


def refused_scores(
    message: str,
    audit: str,
    shards: Path,
    output: Path,
    *,
    canaries: Path | None = None,
    num_shards: int = 2,
) -> None:
    """Scoring is refused, and the folder of the output stays as it was."""
    before = [*output.parent.iterdir()]
    with pytest.raises(InputError, match=message):
        score(audit, shards, output, canaries=canaries, num_shards=num_shards)
    assert [*output.parent.iterdir()] == before


def test_missing_shards_leave_no_scores(folder, tmp_path):
    audit = TRAINED[0]
    place = shards_in(tmp_path / "shards", folder / audit / "00001.npz")
    refused_scores(
        "run 0 is missing",
        audit,
        place,
        tmp_path / "scores.npz",
        canaries=folder / audit / "canaries.npz",
        num_shards=1,
    )


def test_shards_of_two_settings_leave_no_scores(folder, tmp_path):
    mixed = [folder / TRAINED[0] / "00000.npz", folder / TRAINED[1] / "00001.npz"]
    place = shards_in(tmp_path / "shards", *mixed)
    refused_scores(
        r"00001\.npz was made with other settings",
        TRAINED[0],
        place,
        tmp_path / "scores.npz",
        canaries=folder / TRAINED[0] / "canaries.npz",
    )


@pytest.mark.parametrize("taken_for", [*TRAINED[:2], SLOTS[1], DRAWN[0]])
def test_whole_shards_of_another_audit_leave_no_scores(folder, tmp_path, taken_for):
    """They agree with one another, but not with the audit that they are passed for."""
    canaries = folder / taken_for / "canaries.npz"
    refused_scores(
        "made with other settings: it is of another audit",
        taken_for,
        folder / TRAINED[3],
        tmp_path / "scores.npz",
        canaries=canaries if canaries.exists() else None,
    )


def test_shards_of_another_canary_leave_no_scores(folder, tmp_path):
    audit = TRAINED[1]
    refused_scores(
        "made with other canaries",
        audit,
        folder / audit,
        tmp_path / "scores.npz",
        canaries=folder / TRAINED[3] / "canaries.npz",
    )


@pytest.mark.long
def test_accounting_falls_back_and_says_so(tmp_path, capsys):
    """A setting that the first accountant refuses: rare sampling with little noise."""
    stage = AccountingStage(
        sample_rate=1e-3, record_steps=(10_000,), canary_period=None, delta=1e-5
    )
    write_sealed_object(tmp_path / "noise.json", {"noise_multiplier": 0.7})
    run(
        "account",
        settings=stage.to_json(),
        noise=tmp_path / "noise.json",
        output=[tmp_path / "table.tsv", tmp_path / "profile.tsv"],
    )
    table = read_table(tmp_path / "table.tsv")
    assert table.accounting_method.tolist() == ["prv"]
    assert table.gaussian_distance.isna().all()
    assert table.epsilon_upper_substitute[0] == pytest.approx(1.588, rel=0.02)
    warnings = capsys.readouterr().err
    assert "warning: trying prv instead: method='pld' cannot account" in warnings
    profile = read_table(tmp_path / "profile.tsv")
    assert profile.columns.tolist() == ["adjacency", "delta", "epsilon"]
    assert set(profile.adjacency) == {"substitute", "add_remove"}
    own = profile[(profile.adjacency == "substitute") & np.isclose(profile.delta, 1e-5)]
    assert own.epsilon.item() == pytest.approx(table.epsilon_upper_substitute[0], rel=1e-6)


@pytest.mark.long
def test_two_refusals_lead_with_the_first(tmp_path, capsys):
    stage = NoiseStage(
        adjacency=Adjacency.SUBSTITUTE,
        sample_rate=0.01,
        accounted_steps=1,
        noise_multiplier=None,
        target_epsilon=1.0,
        target_delta=0.5,
    )
    with pytest.raises(AccountingError) as caught:
        run("calibrate_noise", settings=stage.to_json(), output=tmp_path / "noise.json")
    assert not (tmp_path / "noise.json").exists()
    first, second = str(caught.value).split("; and by method 'prv': ")
    assert "no noise multiplier between" in first
    assert "choose another target_epsilon or delta, or give noise_multiplier" in second
    assert "warning: trying prv instead: " in capsys.readouterr().err


def test_an_absent_gpu_is_named():
    if torch.cuda.is_available():
        assert chosen_device("cuda").type == "cuda"
    else:
        with pytest.raises(InputError, match="set device to cpu or auto"):
            chosen_device("cuda")
        assert chosen_device("auto").type == "cpu"


def test_audits_are_listed():
    lines = table_of_audits(EXPERIMENT).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*EXPERIMENT.audits]


def test_the_list_of_audits_counts_the_runs_of_all_repeats():
    [audit, *_] = EXPERIMENT.audits
    three = EXPERIMENT.audits[audit].model_copy(
        update={"num_runs": 40, "num_repeats": 3, "runs_per_shard": 50}
    )
    table = table_of_audits(EXPERIMENT.model_copy(update={"audits": {audit: three}}))
    assert table.split()[-2:] == ["120", "3"]
