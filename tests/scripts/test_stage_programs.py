"""The workflow's programs, chained by hand on a small dataset: files in, files out."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from running import call as run

from dpcanary import Mechanism, account_epsilon
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.audit_noise import NoiseStage, noise_of
from dpcanary.adversaries.adversary_settings import CraftingStage
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.files import read_arrays, read_json, write_text
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.sealed_tables import write_sealed_object
from dpcanary.core.setting_fields import ClosedModel
from dpcanary.core.tsv_tables import read_table, write_table
from dpcanary.data.canaries import read_canaries
from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.observations import read_shard, shard_path
from dpcanary.data.records import read_split
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import EstimationStage
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import table_of_audits
from dpcanary.scoring.score_file import read_scores
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training.simulated_trainings import read_reference
from dpcanary.training.training_settings import ReferenceStage

SHARED = {"dataset": "digits", "sample_rate": 1.0, "num_steps": 10, "record_every": 5}
CONFIG = {
    "experiment": "chained", "delta": 1e-5,
    "datasets": {"digits": {"source": "digits", "num_records": 60}},
    "audits": {
        "a": SHARED | {
            "canary": ["gradient", "crafted_input", "mislabeled", "natural"],
            "target_epsilon": 10.0, "learning_rate": 0.1, "num_runs": 12, "num_repeats": 2,
            "crafting_steps": 30,
        },
        "k": SHARED | {
            "canary": ["gradient", "natural"], "num_slots": 2, "noise_multiplier": 2.0,
            "learning_rate": 0.1, "num_runs": 20,
        },
        "w": {
            "canary": "worst_case", "score": ["final_sum", "transcript"], "sample_rate": 0.5,
            "noise_multiplier": 3.0, "num_steps": 10, "num_runs": 40,
        },
    },
}  # fmt: skip
EXPERIMENT = parse_experiment(CONFIG)
TRAINED, SLOTS, DRAWN = (list(EXPERIMENT.sweeps[sweep]) for sweep in "akw")


def settings_of(stage: type[ClosedModel], audit: str) -> str:
    return EXPERIMENT.stage(stage, audit=audit).to_json()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All stages of all audits, in two shards each."""
    root = tmp_path_factory.mktemp("chained")
    data, reference = root / "data.npz", root / "reference.npz"
    dataset = EXPERIMENT.dataset_stage(DatasetStage, dataset="digits").to_json()
    run("prepare_dataset", settings=dataset, output=data)
    of_first = settings_of(ReferenceStage, TRAINED[0])
    run("train_reference", settings=of_first, data=data, output=reference)
    for audit, settings in EXPERIMENT.audits.items():
        place = root / audit
        noise, canaries, scores = (place / name for name in ("noise.json", "c.npz", "scores.npz"))
        tables = [root / "accounting" / f"{audit}.tsv", place / "profile.tsv"]
        run("calibrate_noise", settings=settings_of(NoiseStage, audit), output=noise)
        run("account", settings=settings_of(AccountingStage, audit), noise=noise, output=tables)
        inputs: dict[str, Path] = {}
        if settings.is_trained:
            crafting = {"settings": settings_of(CraftingStage, audit), "output": canaries}
            run("craft_canaries", data=data, reference=reference, **crafting)
            inputs = {"data": data, "canaries": canaries}
        of_runs = settings_of(EXPERIMENT.runs_stage(audit), audit)
        for index, (first, last) in enumerate(((0, 7), (7, settings.total_runs))):
            options = {"settings": of_runs, "noise": noise, "runs": [first, last], **inputs}
            run(
                "train_shard" if inputs else "draw_shard",
                output=shard_path(place, index),
                **options,
            )
        options = {"names": [audit, settings.canary, settings.score], "shards": place}
        options |= {"canaries": canaries} if inputs else {}
        of_scores = settings_of(ScoringStage, audit)
        run("score_runs", settings=of_scores, num_shards=2, output=scores, **options)
        output = root / "estimates" / f"{audit}.tsv"
        run("estimate", settings=settings_of(EstimationStage, audit), scores=scores, output=output)
    write_text(root / "experiment.json", EXPERIMENT.model_dump_json())
    summarise(root, root / "summary.tsv")
    return root


def summarise(root: Path, output: Path, **options: object) -> None:
    paths = {name: root / name for name in ("estimates", "accounting")} | options
    run("summarise", experiment=root / "experiment.json", **paths, output=output)


def test_datasets_are_read_from_files_or_encoded_features(tmp_path):
    counts = {"num_records": 20, "num_auxiliary": 25, "num_test": 5, "balanced": False}
    output, own, encoded = (tmp_path / name for name in ("data.npz", "own.npz", "encoded.npz"))
    features, labels = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 2
    np.savez(own, features=features, labels=labels)
    test = {"test_features": features[:5], "test_labels": labels[:5]}
    np.savez(encoded, features=features, labels=labels, **test)
    for source, inputs in (("sst2", {"features": encoded}), (str(own), {"files": [own]})):
        stage = DatasetStage(source=source, max_records=50, seed=0, **counts)
        run("prepare_dataset", settings=stage.to_json(), output=output, **inputs)
        split = read_split(output)
        parts = (split.private, split.auxiliary, split.test)
        assert [part.features.shape for part in parts] == [(20, 3), (25, 3), (5, 3)]
        assert read_arrays(output)[0]["settings"]["source"] == source


def test_noise_is_calibrated_or_as_given(folder):
    sigma = read_json(folder / TRAINED[0] / "noise.json")["noise_multiplier"]
    assert gdp_epsilon(mu=2 * np.sqrt(10) / sigma, delta=1e-5) == pytest.approx(10.0, rel=1e-3)
    assert read_json(folder / DRAWN[0] / "noise.json")["noise_multiplier"] == 3.0
    keys = {"adjacency": Adjacency.SUBSTITUTE, "sample_rate": 1.0, "accounted_steps": 3}
    assert noise_of(NoiseStage(**keys, target_delta=None, noise_multiplier=0.0)) == 0.0


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


def test_canaries_are_of_the_least_confident_records_and_shards_say_where_they_come_from(folder):
    private = read_split(folder / "data.npz").private
    reference = read_reference(folder / "reference.npz")
    for audit in TRAINED + SLOTS:
        crafted = read_canaries(folder / audit / "c.npz")
        targets = reference.least_confident(EXPERIMENT.audits[audit].num_slots)
        assert [canary.target for canary in crafted.canaries] == targets.tolist()
        assert crafted.target_labels == tuple(private.labels[targets])
    for audit, inputs, software in (
        (TRAINED[0], {"data", "canaries"}, {"python", "numpy", "torch"}),
        (DRAWN[0], set(), {"python", "numpy"}),
    ):
        header = read_shard(folder / audit / "00000.npz").header
        assert header["settings"] == json.loads(settings_of(EXPERIMENT.runs_stage(audit), audit))
        assert ({*header["inputs"]}, {*header["software"]}) == (inputs, software)
        assert header["seconds"] > 0


@pytest.mark.parametrize("audit", [TRAINED[0], SLOTS[0], SLOTS[1]])
def test_scores_are_those_of_the_shards(audit, folder):
    """Runs 12 to 23 are the second repeat, and each slot of each run has its own coin."""
    settings = EXPERIMENT.audits[audit]
    shards = [read_shard(shard_path(folder / audit, index)) for index in (0, 1)]
    scores = read_scores(folder / audit / "scores.npz")
    repeats, runs, slots = settings.num_repeats, settings.num_runs, settings.num_slots
    assert scores.scores.shape == (repeats, runs, slots, 2)
    worlds = np.concatenate([shard.world for shard in shards]).reshape(repeats, runs, slots)
    np.testing.assert_array_equal(scores.world, worlds)
    if slots > 1:
        assert {*map(tuple, worlds[0])} > {(0, 1), (1, 0)}
    observed = np.concatenate([shard.observation for shard in shards])
    if settings.canary == "gradient":
        changes = observed.transpose(0, 2, 1)
        np.testing.assert_allclose(scores.scores, -changes.reshape(scores.scores.shape))
    else:
        assert observed.shape == (runs, 2, slots, 2, 10)
    header = {"audit": audit, "canary": settings.canary, "score": settings.score}
    assert header.items() <= scores.header.items()


def test_summary_has_a_row_per_audit_repeat_slot_step_and_estimate(folder, tmp_path):
    table = read_table(folder / "summary.tsv")
    assert len(table) == 4 * 2 * 2 + 2 * 2 * 2 + 2
    assert set(table.audit) == set(EXPERIMENT.audits)
    # A bound is above the truth in 5 % of audits at most; of these draws, one of 26 is.
    assert (table.epsilon_lower > table.epsilon_upper_substitute).sum() <= 1
    assert table.is_valid.all()
    trained, slots, drawn = (table[table.audit.isin(names)] for names in (TRAINED, SLOTS, DRAWN))
    assert trained.test_accuracy[trained.step == 10].between(0.05, 1.0).all()
    assert trained.test_accuracy[trained.step == 5].isna().all()
    assert (set(trained.sweep), set(trained.repeat)) == ({"a"}, {0, 1})
    assert {*drawn[["dataset", "data", "model"]].to_numpy().ravel()} == {"process"}
    assert drawn[["test_accuracy", "num_records"]].isna().all(axis=None)
    assert slots.slot.tolist() == [0, 1] * 4
    assert {*zip(slots.num_slots, slots.num_runs, strict=True)} == {(2, 20)}
    others = table.drop(slots.index)
    assert others.slot.isna().all()
    assert set(others.num_slots) == {1}
    summarise(folder, tmp_path / "w.tsv", sweeps="w")  # has their audits alone
    expected = drawn.reset_index(drop=True)
    pd.testing.assert_frame_equal(read_table(tmp_path / "w.tsv"), expected, check_dtype=False)


def test_estimates_of_another_mechanism_are_refused(folder, tmp_path):
    wrong = tmp_path / "accounting" / f"{TRAINED[0]}.tsv"
    wrong.parent.mkdir()
    table = read_table(folder / "accounting" / f"{TRAINED[0]}.tsv")
    write_table(wrong, table.assign(noise_multiplier=99.5))
    with pytest.raises(InputError, match="differ in steps or noise"):
        summarise(folder, tmp_path / "summary.tsv", accounting=wrong.parent)
    assert not (tmp_path / "summary.tsv").exists()


@pytest.mark.long
def test_accounting_falls_back_and_says_so(tmp_path, capsys):
    """A setting that the first accountant refuses: rare sampling with little noise."""
    keys = {"sample_rate": 1e-3, "record_steps": (10_000,), "canary_period": None, "delta": 1e-5}
    noise, *outputs = (tmp_path / name for name in ("noise.json", "table.tsv", "profile.tsv"))
    write_sealed_object(noise, {"noise_multiplier": 0.7})
    run("account", settings=AccountingStage(**keys).to_json(), noise=noise, output=outputs)
    table, profile = map(read_table, outputs)
    assert table.accounting_method.tolist() == ["prv"]
    assert table.gaussian_distance.isna().all()
    assert table.epsilon_upper_substitute[0] == pytest.approx(1.588, rel=0.02)
    assert "trying prv instead: method='pld' cannot account" in capsys.readouterr().err
    assert profile.columns.tolist() == ["adjacency", "delta", "epsilon"]
    assert set(profile.adjacency) == {"substitute", "add_remove"}
    own = profile[(profile.adjacency == "substitute") & np.isclose(profile.delta, 1e-5)]
    assert own.epsilon.item() == pytest.approx(table.epsilon_upper_substitute[0], rel=1e-6)


def test_the_list_of_audits_counts_the_runs_of_all_repeats():
    text = table_of_audits(EXPERIMENT)
    assert max(map(len, text.splitlines())) <= 80
    common, table = text.split("\n\n")
    assert common == "All have num_steps 10."
    header, *lines = table.splitlines()
    assert len([line for line in lines if not line.startswith(" ")]) >= len(EXPERIMENT.audits)
    # What a list varies has a column, whether or not it is a main setting; a derived seed has none.
    assert {*header.split()} >= {"canary", "score", "runs"}
    assert "seed" not in text
    assert "final_sum" in text
    # A canary that all names hold needs no column; names, which are copied, are not divided.
    varied = {
        "canary": ["crafted_input", "natural"], "sample_rate": [0.25, 0.5],
        "noise_multiplier": [5.574, 8.0], "max_grad_norm": [1.0, 2.0], "learning_rate": 0.1,
    }  # fmt: skip
    swept = parse_experiment(CONFIG | {"audits": {"mine": SHARED | varied | {"num_runs": 12}}})
    text = table_of_audits(swept)
    assert max(map(len, text.splitlines())) <= 80
    [header] = [line for line in text.splitlines() if line.startswith("audit ")]
    assert "canary" not in header
    names = [line.split()[0] for line in text.splitlines() if line.startswith("mine")]
    assert names == [*swept.audits]
    assert max(map(len, names)) == len("mine-crafted_input-q0.25-sigma5.574-C1")
    # What distinguishes sweeps has a column, too.
    alike = {"canary": "worst_case", "noise_multiplier": 2.0, "num_steps": 3, "num_runs": 12}
    audits = {
        adjacency: alike | {"sample_rate": 0.5, "adjacency": adjacency}
        for adjacency in ("substitute", "add_remove")
    }
    text = table_of_audits(parse_experiment(CONFIG | {"audits": audits}))
    [header] = [line for line in text.splitlines() if line.startswith("audit ")]
    assert "adjacency" in header.split()
    counts = {"num_runs": 40, "num_repeats": 3, "runs_per_shard": 50}
    audits = {"a": EXPERIMENT.audits[TRAINED[0]].model_copy(update=counts)}
    alone = EXPERIMENT.model_copy(update={"audits": audits, "sweeps": {"a": ("a",)}})
    assert table_of_audits(alone).split()[-2:] == ["120", "3"]
