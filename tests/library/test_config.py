"""Configs: expansion, resolution, stages, files, and errors that name the audit and the key."""

import copy
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.audit_noise import NoiseStage
from dpcanary.adversaries import adversary_settings as crafted
from dpcanary.adversaries.adversary import Score
from dpcanary.adversaries.adversary_settings import CraftingStage, DrawingStage, MetagradientStage
from dpcanary.adversaries.catalogue import BUILT_IN, adversaries, adversary
from dpcanary.audits.release_making import released_config
from dpcanary.core.setting_fields import ClosedModel, UsedIf, metadata_of
from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.encoder_settings import FeaturesStage
from dpcanary.data.observations import Observation
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import EstimationStage
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.config_schema import config_schema
from dpcanary.experiment.experiment_config import Dataset, Experiment, Settings, read_experiment
from dpcanary.experiment.figure_config import Figure
from dpcanary.figures.planned import check_figures
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training.training_settings import PretrainingSettings, ReferenceStage, TrainingStage
from release import config_keys

ROOT = Path(__file__).parents[2]
SHIPPED = sorted({*(ROOT / "config").rglob("*.yaml")} - {ROOT / "config/datasets.yaml"})
AUDIT = {
    "canary": "gradient", "sample_rate": 0.5, "dataset": "digits", "noise_multiplier": 2.0,
    "num_steps": 100, "num_runs": 10,
}  # fmt: skip
OTHERS = {"source": "purchase100_synthetic", "num_records": 200}
DATASETS = {"digits": {"source": "digits", "num_records": 100}, "others": OTHERS}
GOOD = {"experiment": "test", "delta": 1e-5, "datasets": DATASETS}
# Bounds of single slots are refused with halves, and Gaussian curves for shuffled batches.
POOLED = {**GOOD, "independent": "slots", "conversions": ["direct"]}
FIXED = {"sampling": "fixed", "batch_size": 20, "canary_period": 2, "sample_rate": None}
DRAWN = {"canary": "worst_case", "dataset": None}
SHUFFLED = DRAWN | {
    "sampling": "shuffled", "batches_per_pass": 5, "sample_rate": None, "num_steps": 20,
    "record_every": 10, "score": "transcript",
}  # fmt: skip
LANDSCAPE = {
    "canary": "loss_landscape", "dataset": None, "adjacency": "add_remove", "sampling": "fixed",
    "batch_size": 4, "sample_rate": None,
}  # fmt: skip
SECRETS = {
    "canary": "secret", "dataset": None, "num_candidates": 9, "num_slots": 4, "num_runs": 1,
    "threshold_rules": ["split"],
}  # fmt: skip
OF_NUMBERS = {"source": "mine.csv", "num_records": 100, "label_kind": "numbers"}
NUMBERS = {"datasets": {"digits": OF_NUMBERS}, "loss": "squared_error", "canary": "natural"}
TARGET = {"noise_multiplier": None, "target_epsilon": 1.0}
BASES = {
    "audit": {}, "slots": {"num_slots": 8, "worlds": "coins"}, "shuffled": SHUFFLED,
    "landscape": LANDSCAPE, "fixed": FIXED, "drawn": DRAWN, "target": TARGET, "secrets": SECRETS,
    "numbers": NUMBERS,
}  # fmt: skip


def config(top: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A config of one sweep, `steps`, with keys changed in it or in its audit; None drops one."""
    of_audit = [key for key in changes if key in Audit.model_fields]
    shared = {key: value for key, value in changes.items() if key not in of_audit}
    audit = AUDIT | {key: changes[key] for key in of_audit}
    whole = {**GOOD, "audits": {"steps": without_none(audit)}, **(top or {}), **shared}
    return copy.deepcopy(without_none(whole))


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def parsed(top: Mapping[str, Any] | None = None, **changes: Any) -> Experiment:
    return parse_experiment(config(top, **changes))


def names_of(**changes: Any) -> list[str]:
    return [*parsed(**changes).audits]


def test_a_model_of_the_users_own_may_be_swept():
    assert names_of(model=["my_nets:build", "linear"]) == ["steps-my_nets-build", "steps-linear"]


def test_lists_sweep_and_name_the_audits_with_all_digits():
    experiment = parsed(canary=["gradient", "natural"], sample_rate=[1.0, 0.25])
    names = [f"steps-{canary}-q{q}" for canary in ("gradient", "natural") for q in ("1", "0.25")]
    assert experiment.sweeps == {"steps": tuple(names)}
    last = experiment.audits["steps-natural-q0.25"]
    assert (last.canary, last.sample_rate, last.score) == ("natural", 0.25, "logit_difference")
    noises = [20.0000001, 20.0000002, 168.076]
    names = names_of(noise_multiplier=noises, num_steps=[1_000_000, 500], learning_rate=[1e-05])
    each = [(sigma, steps) for sigma in noises for steps in (1_000_000, 500)]
    assert names == [f"steps-sigma{sigma}-T{steps}-lr0.00001" for sigma, steps in each]
    sizes = names_of(model="mlp", hidden_sizes=[[8, 4], [16]], optimizer=["sgd", "adam"])
    assert sizes == [f"steps-hidden_sizes{s}-{o}" for s in ("8x4", "16") for o in ("sgd", "adam")]
    # A list of numbers is one value of a key that takes a list.
    assert names_of(looks=[4, 8, 10]) == ["steps"]
    assert len(names_of(looks=[[4, 10], [8, 10]])) == 2
    [audit] = parsed(model="mlp", hidden_sizes=[8, 4]).audits.values()
    assert (audit.hidden_sizes, audit.initialisation) == ((8, 4), "per_run")


def test_seeds_follow_the_experiments_seed_and_the_names_of_runs():
    """Else a replication would have the very runs of the first experiment."""
    swept = {"canary": ["gradient", "natural"]}

    def seeds_of(shared: int, **changes: Any) -> dict[str, int | None]:
        audits = parsed({"seed": shared}, **swept | changes).audits
        return {name: audit.seed for name, audit in audits.items()}

    seeds = {seed: seeds_of(seed, sample_rate=[1.0, 0.25]) for seed in (0, 1, 7)}
    assert len({seed for of_audits in seeds.values() for seed in of_audits.values()}) == 3 * 4
    fewer = seeds_of(7, sample_rate=[1.0])
    assert fewer.items() < seeds[7].items()  # others do not move them
    assert {*seeds_of(7, seed=0).values(), *seeds_of(1, seed=3).values()} == {0, 3}


def test_shards_are_indices_and_more_runs_only_add():
    small = parsed(runs_per_shard=5, num_runs=10).audits["steps"]
    large = parsed(runs_per_shard=5, num_runs=8, num_repeats=2).audits["steps"]
    assert (small.total_runs, large.total_runs) == (10, 16)
    assert small.shards == ["00000", "00001"]
    assert large.shards == [*small.shards, "00002", "00003"]
    assert [small.runs_of(shard) for shard in small.shards] == [range(5), range(5, 10)]
    assert large.runs_of("00003") == range(15, 16)


def test_slots_choose_their_worlds_and_the_drift_that_is_foretold():
    pooled = {"independent": "slots"}
    for top, changes, worlds, drift in [
        ({}, {}, "alternate", ()),
        ({}, {"num_slots": 3}, "coins", (50, 100)),
        (pooled, {"num_slots": 2, "worlds": "halves"}, "halves", (50, 100)),
        ({}, {"num_slots": 2, "canary": "natural"}, "coins", ()),
    ]:
        experiment = parsed(top, record_every=50, **changes)
        assert experiment.audits["steps"].worlds == worlds
        assert experiment.stage(TrainingStage, audit="steps").worlds == worlds
        assert experiment.stage(CraftingStage, audit="steps").drift_steps == drift
    assert names_of(num_slots=[1, 2]) == ["steps-K1", "steps-K2"]


def test_where_labels_are_numbers_scores_are_losses():
    for canary, score in (("mislabeled", "loss"), ("gradient", "coordinate"), ("loss", "loss")):
        assert parsed(**NUMBERS | {"canary": canary}).audits["steps"].score == score
    assert parsed(canary="mislabeled", loss="logistic").audits["steps"].score == "logit_difference"


def test_only_insertions_are_accounted():
    """Those of fixed batches, passes over shuffled ones, the first step of a crafted landscape."""
    for changes, rate, accounted, insertions in [
        ({"record_every": 50}, 0.5, 100, (50, 100)),
        (FIXED | {"canary_period": 5, "record_every": 50}, 1.0, 20, (10, 20)),
        (SHUFFLED, 1.0, 4, (2, 4)),
        (LANDSCAPE | {"record_every": 50}, 1.0, 1, (1, 1)),
    ]:
        experiment = parsed({"conversions": ["direct"]}, **changes)
        noise = experiment.stage(NoiseStage, audit="steps")
        accounting = experiment.stage(AccountingStage, audit="steps")
        assert (noise.sample_rate, noise.accounted_steps) == (rate, accounted)
        assert accounting.insertions == insertions
        batches = changes.get("batches_per_pass")
        assert noise.batches_per_pass == accounting.batches_per_pass == batches
    assert parsed(**FIXED).stage(TrainingStage, audit="steps").num_steps == 100


def test_defaults_of_processes_follow_their_sampling_and_adjacency():
    names = ("drawn", "shuffled", "landscape")
    direct = {"conversions": ["direct"]}
    stages = [parsed(direct, **BASES[name]).stage(DrawingStage, audit="steps") for name in names]
    plain, shuffled, landscape = stages
    assert (shuffled.batches_per_pass, shuffled.other_records) == (5, "opposite")
    assert (landscape.landscape, landscape.landscape_threshold) == ("diverging", 0.5)
    assert (landscape.batch_size, landscape.batches_per_pass) == (4, None)
    assert (plain.batches_per_pass, plain.other_records, plain.landscape) == (None, None, None)
    for adjacency, middle in (("add_remove", 0.5), ("substitute", 0.0)):
        for threshold in (None, 0, -1.5, 0.5):  # 0 is not the default under add/remove
            changes = {"adjacency": adjacency, "landscape_threshold": threshold}
            [audit] = parsed(**LANDSCAPE | changes).audits.values()
            assert audit.landscape_threshold == (middle if threshold is None else threshold)
    experiment = parsed(**LANDSCAPE)
    accounting = experiment.stage(AccountingStage, audit="steps")
    assert accounting.exact_settings == json.loads(landscape.to_json())
    assert experiment.stage(EstimationStage, audit="steps").in_first_step
    others = parsed().stage(AccountingStage, audit="steps")
    assert (others.exact, others.exact_settings, others.in_first_step) == (None, None, False)


def test_steps_are_equal_for_plain_gradient_descent():
    other = ({"optimizer": "momentum"}, {"learning_rate_schedule": "linear"})
    for changes in ({}, DRAWN, *other):
        accounting = parsed(**changes).stage(AccountingStage, audit="steps")
        assert accounting.has_equal_steps is (changes not in other), changes


def two_scores(monkeypatch: pytest.MonkeyPatch, observes: str) -> None:
    own = BUILT_IN["gradient"]
    other = Score("other", "dpcanary.scoring.scores:as_observed", observes)
    monkeypatch.setitem(BUILT_IN, "gradient", replace(own, scores=(*own.scores, other)))


def test_audits_that_differ_in_score_alone_share_runs(monkeypatch):
    """Their names and their seeds are those of the config with one score."""
    two_scores(monkeypatch, Observation.CHANGE)
    scores, noises = ["coordinate", "other"], [2.0, 3.0]
    both = config(score=scores, noise_multiplier=noises)
    both["audits"]["again"] = both["audits"]["steps"]
    experiment, before = parse_experiment(both), parsed(noise_multiplier=noises)
    made_by = (TrainingStage, CraftingStage, NoiseStage)
    for runs in before.audits:
        pair = [f"{runs}-{score}" for score in scores]
        assert {experiment.runs_of_audit[name] for name in pair} == {runs}
        for name in pair:
            for stage in made_by:
                assert experiment.stage(stage, audit=name) == before.stage(stage, audit=runs)
        first, other = (experiment.stage(ScoringStage, audit=name) for name in pair)
        assert first.runs_settings == other.runs_settings
        assert first.score_function != other.score_function
    seeds = {experiment.audits[name].seed for name in experiment.first_audits.values()}
    assert len(seeds) == 4  # audits of two sweeps are independent
    # Names of runs are not those of other audits.
    both["audits"]["steps-sigma2"] = both["audits"].pop("again") | {
        "noise_multiplier": 2.0, "score": "other"
    }  # fmt: skip
    assert "'steps-sigma2' is made twice" in refusal(both)[-1]


def test_audits_that_observe_something_else_make_runs_of_their_own(monkeypatch):
    drawn = parsed(**DRAWN, score=["final_sum", "transcript"])
    second = {"steps-transcript": "steps-log_likelihood_ratio"}
    assert drawn.runs_of_audit == {"steps-final_sum": "steps"} | second
    updates = parsed(score="transcript")
    assert updates.runs_of_audit == {"steps": "steps-noisy_gradients"}
    two_scores(monkeypatch, Observation.CHANGE_AND_LENGTH)
    for experiment in (drawn, parsed(score=["coordinate", "other"]), parsed(sample_rate=[1, 0.5])):
        seeds = {audit.seed for audit in experiment.audits.values()}
        assert len({*experiment.runs_of_audit.values()}) == len(seeds) == 2


def audit_of(canary: str, /, **changes: Any) -> dict[str, Any]:
    entry = adversary(canary)
    audit = AUDIT | {"canary": canary, "adjacency": entry.adjacencies[-1].value, "seed": 3}
    if not entry.is_trained:
        del audit["dataset"]
    if entry.in_first_step:
        audit |= {"sampling": "fixed", "batch_size": 6}
        del audit["sample_rate"]
    if entry.optimise:
        audit |= {"num_slots": 2, "metagradient": {"batch_size": 8, "start": "other_label"}}
    return without_none(audit | changes)


# Where keys are used that the audits of the catalogue's canaries do not use.
CONTEXTS = {
    **{name: audit_of(name) for name in adversaries()},
    "perceptron": audit_of("gradient", model="mlp", hidden_sizes=[4, 3], optimizer="momentum"),
    "resnet9": audit_of("natural", model="resnet9", pretraining={"num_steps": 2}),
    "known-batches": audit_of("loss", **FIXED | {"canary_period": 5}),
    "shuffled": audit_of("worst_case", **SHUFFLED),
    "copies": audit_of("secret", sample_rate=1.0, num_candidates=4),
    "of-slots": audit_of("gradient", num_slots=4, initialisation="per_run"),
    "for-a-target": audit_of("gradient", **TARGET),
    "without-privacy": audit_of("natural", noise_multiplier=0),
    "with-looks": audit_of("gradient", looks=[4, 10]),
}
OF_ALL = (NoiseStage, AccountingStage, ScoringStage, EstimationStage)
OF_TRAINED = (ReferenceStage, CraftingStage, MetagradientStage, TrainingStage)
STAGES = (*OF_ALL, *OF_TRAINED, DrawingStage)


def stages_of(experiment: Experiment, audit: str) -> dict[str, str]:
    """The settings of an audit's jobs, as their command lines have them."""
    own = OF_TRAINED if experiment.audits[audit].is_trained else [DrawingStage]
    stages = [experiment.stage(stage, audit=audit) for stage in (*OF_ALL, *own)]
    assert [type(stage).model_validate_json(stage.to_json()) for stage in stages] == stages
    return {type(stage).__name__: stage.to_json() for stage in stages}


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_config_that_is_written_is_the_same(context, tmp_path):
    canary, path = adversary(CONTEXTS[context]["canary"]), tmp_path / "experiment.json"
    for score in canary.scores:
        start = "per_run" if score.observes == Observation.VALUE else None
        changes = {"score": score.name} if context in adversaries() else {}
        changes |= {"initialisation": start} if start else {}
        experiment = parse_experiment({**POOLED, "audits": {"one": CONTEXTS[context] | changes}})
        path.write_text(experiment.to_json())
        assert read_experiment(path) == experiment
        assert parse_experiment(json.loads(experiment.to_json())) == experiment
        assert stages_of(experiment, "one")
        runs = experiment.stage(experiment.runs_stage("one"), audit="one")
        scoring = experiment.stage(ScoringStage, audit="one")
        assert scoring.runs_settings == json.loads(runs.to_json())
        if context in adversaries():
            assert scoring.score_function == score.function
            making = CraftingStage if canary.is_trained else DrawingStage
            assert experiment.stage(making, audit="one").function == canary.function
        named = {"archive": "a.zip", "config": "a.yaml", "sha256": "0" * 64}
        released = parse_experiment(yaml.safe_load(released_config(experiment, **named)))
        assert (released.settings.observations, released.audits) == ("released", experiment.audits)


NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,8}\Z")


@settings(max_examples=8)
@given(names=st.lists(NAMES, min_size=3, max_size=3, unique=True), data=st.data())
def test_renaming_audits_changes_no_setting(names, data):
    contexts = data.draw(st.lists(st.sampled_from([*CONTEXTS]), min_size=3, max_size=3))

    def stages(names: list[str]) -> list[dict[str, str]]:
        audits = {name: CONTEXTS[of] for name, of in zip(names, contexts, strict=True)}
        experiment = parse_experiment({**POOLED, "audits": audits})
        return [stages_of(experiment, name) for name in names]

    assert stages(names) == stages(["a", "b", "c"])


# A value of each key, which is not its default.
OTHER = {
    "canary": "random_dimension", "score": "likelihood_ratio", "dataset": "others", "seed": 4,
    "model": "convnet", "hidden_sizes": [6, 10], "activation": "sigmoid", "width": 66,
    "logit_scale": 0.09, "initial_weights": "xavier", "initialisation": "per_run",
    "pretraining": {"num_steps": 7, "learning_rate": 0.5}, "loss": "binary_cross_entropy",
    "optimizer": "adam", "momentum": 0.7, "learning_rate": 0.007, "max_grad_norm": 0.75,
    "learning_rate_schedule": "cosine", "sample_rate": 0.75, "batch_size": 10,
    "batches_per_pass": 2, "canary_period": 10, "adjacency": "zero_out", "num_steps": 40,
    "augmentation_multiplicity": 4, "noise_multiplier": 0.4, "target_epsilon": 0.4,
    "num_candidates": 4, "num_copies": 3, "other_records": "zero", "landscape": "converging",
    "landscape_threshold": 0.4, "metagradient": {"num_steps": 7, "batch_size": 8},
    "crafting_steps": 5002, "crafting_step_size": 0.007, "simulation": "noisy",
    "ranking": "final_model", "num_simulations": 6, "num_slots": 6, "worlds": "halves",
    "num_runs": 12, "num_repeats": 3, "looks": [6, 10], "record_every": 20,
    "runs_per_shard": 502, "runs_at_once": 4,
}  # fmt: skip
# No stage takes these settings, which choose records, models trained at once, and jobs.
OF_NO_STAGE = {"dataset", "runs_per_shard", "runs_at_once"}


@cache
def stages_in(context: str) -> dict[str, str]:
    return stages_of(parse_experiment({**POOLED, "audits": {"one": CONTEXTS[context]}}), "one")


def stages_with(change: dict[str, Any], **contexts: str) -> dict[str, dict[str, str]]:
    """The settings of the jobs of audits, each in a context; none if they do not take a change."""
    audits = {name: CONTEXTS[context] | change for name, context in contexts.items()}
    try:
        experiment = parse_experiment({**POOLED, "audits": audits})
    except InputError:
        return {}
    return {name: stages_of(experiment, name) for name in audits}


@pytest.mark.parametrize("key", [key for key in Audit.model_fields if key != "sampling"])
def test_a_key_changes_the_jobs_that_use_it_and_no_others(key):
    """Sweeps share keys, and a change of a key reruns only the jobs that use it."""
    change, use = {key: OTHER[key]}, metadata_of(Audit, UsedIf).get(key)
    audits = parse_experiment({**POOLED, "audits": CONTEXTS}).audits
    unused = [name for name in CONTEXTS if use and not use.condition(audits[name])]
    users, changed, run = [], set(), set()
    for name in CONTEXTS:
        if name not in unused and (after := stages_with(change, user=name)):
            users.append(name)
            before = stages_in(name)
            run |= {*before}
            changed |= {stage for stage, text in after["user"].items() if before[stage] != text}
    having = {stage.__name__ for stage in STAGES if key in stage.model_fields}
    assert having & run <= changed
    assert bool(changed) == (key not in OF_NO_STAGE)
    shared = {name: stages_with(change, user=users[-1], other=name) for name in unused}
    sharing = {name: stages["other"] for name, stages in shared.items() if stages}
    assert bool(sharing) == (bool(use) and key != "initial_weights")  # which processes refuse
    for name, stages in sharing.items():
        assert stages == stages_in(name)
        [refused] = refusal({**GOOD, "audits": {"other": CONTEXTS[name] | change}})
        assert f"audits.other: {key}: its canary, model and opt" in refused


@pytest.mark.parametrize(("key", "value", "jobs"), [
    ("experiment", "other", ""),
    ("device", "auto", ""),
    ("data_folder", "/data", ""),
    ("significance", 0.2, "EstimationStage"),
    ("threshold_rules", ["split"], "EstimationStage"),
    ("conversions", ["gdp", "direct"], "EstimationStage"),
    ("independent", "slots", "EstimationStage"),
    ("guessed_share", 0.75, "EstimationStage"),
    ("delta", 1e-6, "AccountingStage EstimationStage"),
    ("seed", 5, "ReferenceStage CraftingStage MetagradientStage ScoringStage TrainingStage"),
])  # fmt: skip
def test_settings_of_the_experiment_change_the_jobs_that_use_them(key, value, jobs):
    """Delta moves the noise where it is calibrated, and an audit's own seed keeps its canaries."""
    for own in ({}, TARGET | {"seed": 3}):
        tops = ({}, {key: value})
        before, after = (stages_of(parsed(top, num_slots=4, **own), "steps") for top in tops)
        changed = {name for name in before if before[name] != after[name]}
        expected = {*jobs.split()} | ({"NoiseStage"} if own and key == "delta" else set())
        assert changed == expected - ({"MetagradientStage"} if own else set())


def test_keys_of_datasets_reach_the_jobs_that_read_them():
    photos = {
        "source": "photos/", "image_size": 32, "num_records": 50, "max_records": 90, "num_test": 7,
        "sha256": ["a" * 64], "num_auxiliary": 9, "encoder": "f", "encoder_revision": "r",
    }  # fmt: skip
    table = {
        "source": "mine.csv", "label_column": "b", "label_kind": "numbers", "balanced": False,
        "standardised": False, "preparation": "p.yaml", "num_records": 40,
    }  # fmt: skip
    assert {*photos, *table, "files"} == {*Dataset.model_fields}
    experiment = parsed(
        {"datasets": {"photos": photos, "table": table}, "seed": 4}, dataset="photos"
    )
    for name, dataset in (("photos", photos), ("table", table)):
        for stage in (DatasetStage, FeaturesStage):
            if stage is DatasetStage or "encoder" in dataset:
                values = json.loads(experiment.dataset_stage(stage, dataset=name).to_json())
                expected = dataset | {"seed": 4}
                assert (
                    values.items()
                    >= {k: expected[k] for k in values.keys() & expected.keys()}.items()
                )


OWNERS: dict[str, tuple[type[ClosedModel], str, str, dict[str, Any]]] = {
    "config": (Settings, "config: ", "", {}),
    "audit": (Audit, "config: audit steps: ", "audits steps", {}),
    "dataset": (Dataset, "config: datasets.digits.", "datasets digits", {}),
    "figure": (Figure, "config: figures.f.", "figures f", {"kind": "secrets"}),
    "pretraining": (
        PretrainingSettings, "config: audit steps: pretraining.", "audits steps pretraining",
        {"num_steps": 3},
    ),
    "metagradient": (
        crafted.MetagradientSettings, "config: audit steps: metagradient.",
        "audits steps metagradient", {},
    ),
}  # fmt: skip


def with_key(owner: str, key: str, value: Any) -> dict[str, Any]:
    _, _, path, needed = OWNERS[owner]
    whole = mapping = config()
    for name in path.split():
        mapping = mapping.setdefault(name, {})
    mapping.update(needed | {key: value})
    return whole


def refusal(changed: dict[str, Any]) -> list[str]:
    try:
        parse_experiment(changed)
    except InputError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize("owner", OWNERS)
def test_declared_keys_are_named_if_they_are_wrong(owner):
    model, where, *_ = OWNERS[owner]
    head, _, nested = where.rpartition(": ")
    for key in model.model_fields:
        [unknown] = [line for line in refusal(with_key(owner, f"{key}x", 1)) if "unknown" in line]
        assert unknown == f"{head}: unknown key '{nested}{key}x'; did you mean '{key}'?"
        wrong = refusal(with_key(owner, key, 1 if key == "options" else {"no": "such"}))
        starts = (f"{where}{key}", f"{head}: unknown key '{nested}{key}.")
        assert any(line.startswith(starts) for line in wrong), wrong


# Refusals: changes of a config and what the error says of them
def cases(**tables: str) -> list[tuple[str, dict[str, Any], str]]:
    """Rows of tables by the config that is changed: keys in YAML, `=>`, part of the message.

    Changes in one row, between ` | `, are refused with this message one by one.
    """
    return [
        (base, yaml.safe_load(change), message.strip())
        for base, table in tables.items()
        for changes, _, message in (row.partition("=>") for row in table.strip().splitlines())
        for change in changes.split(" | ")
    ]


CASES = cases(
    audit="""
{experiment: ~}                        => config: experiment: is missing
{delta: 1e-5}                          => delta: Input should be a valid number; YAML reads 1e-5 as
{significance: "0.05"}                 => in quotes, it is a text: write 0.05
{significance: 0.000999}               => significance: threshold rule combined needs at least 0.001
{threshold_rules: [split, simultanous]} => threshold_rules.1: unknown name, did you mean 'simultane
{threshold_rules: [fixed]}             => threshold rule fixed needs a threshold: use it from the li
{threshold_rules: [split, split]}      => threshold_rules: must not repeat a name
{threshold_rules: [split, in_sample]}  => bounds by in_sample are not valid: drop it, or write `allo
{threshold_rules: [mahloujifar]}       => num_slots is 1, and threshold rule mahloujifar guesses sev
{threshold_rules: [combined, split], looks: [10]}         => looks: threshold rule split has no boun
{conversions: [subsampled_gaussian], delta: 0.0101}       => delta: 0.0101 with conversion subsampl
{conversions: [subsampled_gaussian], delta: 9.0e-12}      => delta: 9e-12 with conversion subsample
{conversions: [subsampled_gaussian], delta: 1.2e-11, num_steps: 25_000} => it must be from 1.3e-11
{observations: released}               => observations: released ones need an archive: give its path
{archive: a.tar}                       => archive: it is read if observations are released: write `o
{audits: {}}                           => config: audits: give at least one sweep, by name
{audits: {steps: []}}                  => config: audits.steps: must hold an audit's settings by key
{audits: {bad name: {}}}               => audits: 'bad name' is not a name; use letters
{canary: xyz}                          => canary: unknown name, known: worst_case, gradient, crafted
{canary: natural, adjacency: zero_out} => canary natural audits adjacency substitute, not zero_out
{sample_rate: [0.5, 1.5]}              => config: audit steps-q1.5: sample_rate: Input should be
{sample_rate: ~}                       => sampling poisson needs sample_rate
{sample_rate: 9.9e-7}                  => sample_rate is below 1e-6; rounded to 32 bits
{noise_multiplier: 0}                  => noise_multiplier 0 trains without privacy, and canary grad
{noise_multiplier: .nan}               => noise_multiplier: Input should be
{noise_multiplier: ~} | {target_epsilon: 1.0} => give either noise_multiplier or target_epsilon
{noise_multiplier: []}                 => config: audits.steps: noise_multiplier: is an empty list
{noise_multiplier: [2.0, 2]}           => config: audits: 'steps-sigma2' is made twice; rename or dr
{pretraining: [{num_steps: 3}]}        => pretraining: cannot be a list; write a sweep for each valu
{num_runs: 11}                         => num_runs is 11; it must be even, for two worlds, and at le
{num_runs: 2}                          => num_runs is 2; it must be even, for two worlds, and at lea
{record_every: 30}                     => record_every 30 does not divide num_steps
{loss: squared_error, canary: random_label} => draws one of several classes, and with loss squar
{loss: squared_error, canary: natural} => loss: squared_error needs labels that are numbers: set
{dataset: digit}                       => config: audit steps: dataset: no 'digit'; did you mean 'di
{dataset: ~}                           => canary gradient needs a dataset
{score: final_sum}                     => gradient has no score 'final_sum'; known: coordinate, valu
{score: value}                         => score value is for runs whose start is not known, and with
{model: mlp}                           => model mlp needs hidden_sizes
{model: resnet9, width: 5}             => model resnet9 needs an even width, not 5
{model: convnet, initialisation: zeros}                   => zeros is a saddle point of every model
{initial_weights: xavier}              => initialisation zeros has none to draw: drop it, or give
{initialisation: zeros, pretraining: {num_steps: 3}}      => initialisation zeros starts from no pre
{pretraining: {num_steps: 3, dataset: digits}}            => digits is the audited dataset, whose re
{pretraining: {num_steps: 3, dataset: digit}}             => pretraining.dataset: no 'digit'; did yo
{model: convnet, augmentation_multiplicity: 2}            => canary gradient is no image and has no
{batch_size: 5}                        => batch_size is for sampling fixed; Poisson batches vary in
{canary_period: 4}                     => canary_period is for sampling fixed
{batches_per_pass: 4}                  => batches_per_pass is for sampling shuffled
{sampling: fixed}                      => sampling fixed needs batch_size and canary_period
{sampling: shuffled}                   => canary gradient is not for shuffled batches: use canary wo
{worlds: coins}                        => worlds coins needs num_slots above 1
{looks: [9, 10]} | {looks: [10, 4]}    => looks must be even numbers of runs that rise
{looks: [4, 8]}                        => num_runs 10 must be one of the looks
{looks: [10], num_slots: 2}            => looks are for audits with one slot
{significance: 0.001} | {num_runs: 4} | {looks: [4, 10, 20], threshold_rules: [rank_sum]}
{threshold_rules: [combined, in_sample], allow_not_valid: true}
{conversions: [subsampled_gaussian], delta: 0.01}
{conversions: [subsampled_gaussian], delta: 1.2e-11}
{conversions: [subsampled_gaussian], delta: 1.0e-12, sample_rate: 1.0}
""",
    slots="""
{worlds: alternate}                    => worlds alternate is for num_slots 1; use coins or halves
{num_slots: 3, worlds: halves}         => worlds halves needs an even num_slots
{num_slots: 101}                       => num_slots: 101 is more than the 100 private records
{canary: worst_case, dataset: ~}       => canary worst_case has only one slot
{canary: metagradient, num_slots: 3}   => num_slots must be even, not 3
{canary: metagradient, metagradient: {batch_size: 97}}    => must be at most the 96 records of its t
{canary: metagradient, num_slots: 100, metagradient: {batch_size: 1}}   => which must be at least on
{worlds: halves, threshold_rules: [combined, steinke]}    => worlds: threshold rule steinke counts r
{num_slots: 4, worlds: halves}         => a slot's two worlds differ in other slots, too, so a bound
{num_slots: 4, worlds: halves, independent: slots}
{num_runs: 1, threshold_rules: [mahloujifar, combined]}   => threshold rule combined compares the ru
{threshold_rules: [steinke], conversions: [subsampled_gaussian], adjacency: zero_out} => where they
{figures: {f: {kind: epsilon_by_runs, sweeps: [steps], num_runs: [1, 5, 10]}}}
{figures: {f: {kind: models_trained, sweeps: [steps], num_runs: [3, 100]}}}
{num_slots: 99, num_runs: 5} | {num_runs: 1, threshold_rules: [mahloujifar]}
{num_runs: 1, threshold_rules: [combined, mahloujifar], independent: slots}
{canary: metagradient, metagradient: {batch_size: 96}}
{threshold_rules: [steinke], conversions: [subsampled_gaussian]}
""",
    fixed="""
{sample_rate: 0.5}                     => sampling fixed has no sample_rate
{batch_size: 100}                      => batch_size: 100 is more than the 99 records that batches a
{batch_size: 101, adjacency: zero_out} => batch_size: 101 is more than the 100 records that batches
{batch_size: 98, num_slots: 3}         => batch_size: 98 is more than the 97 records that batches ar
{record_every: 25}                     => canary_period must divide the steps between estimates
{canary: worst_case, dataset: ~}       => canary worst_case has no batches: sampling must be poisson
{batch_size: 99} | {batch_size: 97, num_slots: 3} | {batch_size: 100, adjacency: zero_out}
""",
    shuffled="""
{batches_per_pass: ~}                  => sampling shuffled needs batches_per_pass
{sample_rate: 0.2}                     => sampling shuffled has no sample_rate
{batch_size: 3}                        => sampling shuffled has no batch_size
{canary_period: 5}                     => sampling shuffled has no canary_period
{record_every: 4}                      => batches_per_pass 5 must divide the steps between estimates
{conversions: [subsampled_gaussian]}   => subsampled_gaussian has no curves of shuffled batches
{conversions: [direct, gdp]}           => conversion gdp has no curves of shuffled batches; give
""",
    landscape="""
{sampling: ~, batch_size: ~, sample_rate: 0.5}            => canary loss_landscape needs sampling fi
{batch_size: ~}                        => canary loss_landscape needs sampling fixed and batch_size
{canary_period: 1}                     => canary_period: canary loss_landscape enters the first step
{sample_rate: 0.5}                     => sample_rate: canary loss_landscape enters the first step a
""",
    secrets="""
{num_copies: 2}                        => num_copies above 1 needs sample_rate 1, where copies are
{worlds: coins}                        => canary secret has several values: drop worlds
{looks: [1]}                           => looks are for audits with two worlds
{canary: gradient, dataset: digits, num_candidates: ~, worlds: candidates} => worlds candidates is f
{rank_rules: [single]}                 => rank rule single is for one secret, and there are 4; add
{rank_rules: [bits, bits]}             => rank_rules: must not repeat a name
{rank_rules: [combined]}               => rank_rules.0: unknown name, known: single, mahloujifar, st
{figures: {f: {kind: epsilon_by_step, sweeps: [steps]}}} => this kind shows slots in two worlds, w
{sample_rate: 1.0, num_copies: 3} | {num_slots: 1, rank_rules: [single]}
{figures: {f: {kind: secrets, sweeps: [steps]}}}
""",
    target="""
{target_epsilon: 500.1}                => target_epsilon: 500.1 is more than accountants can compute
{num_steps: 2, delta: 0.75}            => delta 0.75 alone covers the leak, whatever the noise: the
{sample_rate: 1.0e-6, num_steps: 5}    => in a batch with probability 5e-06; lower delta
{num_steps: 2, delta: 0.7499} | {target_epsilon: 500.0}
{sampling: fixed, batch_size: 20, canary_period: 2, sample_rate: ~, delta: 0.99}
{num_steps: 2, delta: 0.8, target_epsilon: ~, noise_multiplier: 1.0}
""",
    numbers="""
{loss: ~}                               => loss: cross_entropy needs labels that are classes: set l
{score: logit_difference}               => classes, not numbers; use score loss
{canary: metagradient, num_slots: 2}    => optimises cross-entropy
{figures: {f: {kind: test_accuracy, sweeps: [steps]}}}    => audit steps has no test accuracy: its l
""",
    dataset="""
{source: cifar}             => or of a folder, which ends with a slash; did you mean 'cifar10'
{files: [a.npz]}            => source digits is not read from other files
{source: a.npz, files: [b]} => source a.npz is not read from other files
{label_kind: numbers}       => source digits has classes; labels that are numbers (loss squared_er
{source: a.npz, preparation: b} => preparation is for tables, and not for a.npz
{source: a.csv, image_size: 9}  => image_size is for folders of images, and not for a.csv
{encoder_revision: abc}     => encoder_revision needs an encoder
""",
    figure="""
{sweeps: [step]}                       => figures.f.sweeps: no 'step'; did you mean 'steps'
{kind: epsilon_by_runs}                => epsilon_by_runs needs num_runs
{kind: epsilon_by_runs, num_runs: [4, 20]} => figures.f: num_runs: 20 is more than the 10 runs of au
{kind: epsilon_by_runs, num_runs: [4, 5]}  => figures.f: num_runs: 5 must be even, for two worlds, a
{kind: epsilon_by_runs, num_runs: [2, 4]}  => figures.f: num_runs: 2 must be even, for two worlds, a
{kind: adjacency_ratio, sample_rates: [0.5], noise_multipliers: [1.0]}  => has no sweeps
{kind: trade_off, heuristic: true}     => a figure of kind trade_off has no heuristic
{kind: test_accuracy, sweeps: [worst]} => worst has no test accuracy: it trains no models
{kind: gradient_norm}                  => figures.f: no audit of its sweeps has score gradient_norm
{kind: epsilon_by_noise, sweeps: [open]} => audit open trains without privacy, and has no place on
{panels: [momentum]}                   => panels.0: unknown name, known: dataset, model, pretraining
{kind: epsilon_by_noise, panels: [noise_multiplier]} => noise_multiplier is shown twice, by axis, pa
{panels: [model], lines: [model]}      => model is shown twice, by axis, panels or lines; keep one
{kind: models_trained, num_runs: [3, 100]} => figures.f: num_runs: none fits audit steps, which ne
{kind: models_trained, num_runs: [10], sweeps: [steps, worst]} => audits steps and worst differ in c
{kind: canary_sets}                    => compares losses: all audits of its sweeps need score loss
{kind: secrets}                        => this kind shows slots that hold secrets, which audit steps
{kind: privacy_profile, sweeps: [open]}    => audit open trains without privacy, which this figure
""",
)


def test_a_list_of_wrong_items_is_not_also_called_too_short():
    [line] = refusal(config(threshold_rules=["at_zero"]))
    assert line.startswith("config: threshold_rules.0: unknown name, known: ")
    [line] = refusal(config(threshold_rules=[]))
    assert "threshold_rules: Tuple should have at least 1 item" in line


@pytest.mark.parametrize(("base", "changes", "message"), CASES)
def test_mistakes_are_named(base, changes, message):
    """And what is just in range, which has no message, is fine."""
    if base == "dataset":
        changed = config({"datasets": {"digits": DATASETS["digits"] | changes}})
    elif base == "figure":
        figure = {"kind": "epsilon_by_step", "sweeps": ["steps"]} | changes
        changed = config({"figures": {"f": figure}})
        changed["audits"]["worst"] = AUDIT | {"canary": "worst_case"}
        changed["audits"]["open"] = AUDIT | {"canary": "natural", "noise_multiplier": 0}
    else:
        changed = config(**BASES[base] | changes)
    refused = "\n".join(refusal(changed))
    assert message in refused
    assert bool(message) == bool(refused)


def test_figures_need_the_conversion_that_they_show_and_sets_of_canaries_the_same_trainings():
    sets = config(figures={"f": {"kind": "canary_sets", "sweeps": ["steps"]}}, num_slots=4)
    sets["audits"]["steps"] |= {"canary": ["loss", "blank"], "adjacency": "add_remove"}
    assert "figures.f: its audits have seeds of their own; give" in refusal(sets)[-1]
    sets["audits"]["steps"]["seed"] = 3
    kinds = ({"kind": "privacy_profile"}, {"kind": "trade_off", "shown": True})
    shown = "gdp, which gives the audited c"
    with_curves = [(config(figures={"f": {"sweeps": ["steps"], **kind}}), shown) for kind in kinds]
    for changed, missing in [(sets, "gdp, whose bounds it sh"), *with_curves]:
        assert parse_experiment(changed | {"conversions": ["gdp"]}).settings.figures
        [refused] = refusal(changed | {"conversions": ["direct"]})
        assert re.search(rf"figures\.f: .*conversions has no {missing}", refused)
    labels = {"canary": "random_label", "dataset": "digits", "num_candidates": None}
    secrets = SECRETS | labels | {"figures": {"f": {"kind": "secrets", "sweeps": ["steps"]}}}
    assert parse_experiment(config(**secrets)).settings.figures
    assert "steps trains without privacy" in refusal(config(**secrets, noise_multiplier=0))[-1]
    # Bounds of single slots are not that of the curve, which is of all slots together.
    curve = {"figures": {"f": {"sweeps": ["steps"], **kinds[1]}}, "num_slots": 4}
    assert "shown: audit steps has a bound for each slot" in refusal(config(**curve))[-1]
    for pooled in ({"independent": "slots"}, {"threshold_rules": ["mahloujifar"]}):
        assert parse_experiment(config(**curve) | pooled).settings.figures


@pytest.mark.parametrize(("text", "message"), [
    ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is already in line 1; keep one"),
    ("x:\n  - b: 1\n    c: 1\n    b: 2\n", "line 4: key 'b' is already in line 2"),
    ("x: {b: 1,\n  b: 2}\n", "line 2: key 'b' is already in line 1"),
    ("a: &a {b: 1}\nc:\n  <<: *a\n  d: 1\n  d: 2\n", "line 5: key 'd' is already in line 4"),
    ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2: expected ',' or ']', but got ':'"),
    ("a: &a\n  b: *a\n", "line 1: holds itself, by an alias; write what it holds"),
    ("a: \x01\n", "cannot be read as YAML: unacceptable character"),
    ("", "must hold settings by key"),
    (b"\xff\xfe\xff", "cannot be read as YAML: 'utf-8' codec"),
    (None, "does not exist"),
])  # fmt: skip
def test_config_files_that_are_wrong_name_the_line(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_aliases_that_stand_for_too_much_are_refused_at_once(tmp_path, refuses):
    """Nine lines of nine aliases each would be more than 10^8 values."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for level in range(1, 9):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    start = time.process_time()
    refuses("line 7: stands for more than 1000000 values", read_config, tmp_path / "config.yaml")
    assert time.process_time() - start < 1


def test_a_key_may_be_shared_with_a_sweep_that_uses_it():
    """With its value, as by an anchor of YAML."""
    crafted = AUDIT | {"canary": "crafted_input", "crafting_steps": 50}
    gradient = crafted | {"canary": "gradient"}
    assert parse_experiment(GOOD | {"audits": {"crafted": crafted, "gradient": gradient}}).audits
    other = {"crafted": crafted, "gradient": gradient | {"crafting_steps": 60}}
    for audits in (other, {"gradient": gradient}):
        [refused] = refusal(GOOD | {"audits": audits})
        assert "audits.gradient: crafting_steps: its canary, mod" in refused


def test_resolved_configs_that_are_none_are_named(tmp_path, refuses):
    path = tmp_path / "experiment.json"
    figures = {"f": {"kind": "epsilon_by_step", "sweeps": ["steps"]}}
    other = [('"runs_of_audit"', '"others"'), ('{"steps":"steps"}', "{}")]
    other += [('"dataset":"digits"', '"dataset":"digit"'), ('"sweeps":["steps"]', '"sweeps":["s"]')]
    for old, new in other:
        text = parsed({"figures": figures}).to_json()
        assert old in text
        path.write_text(text.replace(old, new))
        refuses(f"{path} is not a resolved config of this", read_experiment, path)
    with pytest.raises(InputError, match=r"none\.json does not exist: it is the config of the"):
        read_experiment(tmp_path / "none.json")


def test_a_resolved_config_is_checked_as_any_other():
    """Whoever has a release may change its rules, and what is not valid must be refused."""
    resolved = json.loads(parsed({"independent": "slots"}, num_slots=4, worlds="halves").to_json())
    assert parse_experiment(resolved).audits
    resolved["settings"]["threshold_rules"] = ["mahloujifar"]
    with pytest.raises(InputError, match="counts right guesses of fair coins; it needs coins"):
        parse_experiment(resolved)
    for owner, key, hint in (
        (resolved["settings"], "settings.deltas", "did you mean 'delta'"),
        (resolved["audits"]["steps"], "audits.steps.deltas", "known: dataset, model, hidden_sizes"),
    ):
        owner["deltas"] = 1
        with pytest.raises(InputError, match=f"unknown key '{key}'; {hint}"):
            parse_experiment(resolved)
        del owner["deltas"]


@cache
def editors_schema() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "config/schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_configs_are_valid_and_admitted_by_the_editors_schema(path):
    content = read_config(path)
    assert content == yaml.safe_load(path.read_text())
    experiment = parse_experiment(content)
    assert experiment.audits
    check_figures(experiment)
    editors_schema().validate(content)


def test_the_editors_schema_knows_keys_and_names():
    schema = config_schema()
    for fine in ({}, {"canary": "of_a_plugin"}, {"sample_rate": [0.5, 1.0]}):
        jsonschema.validate(config(**fine), schema)
    for wrong in ({"optimizer": "adma"}, {"canary": 1}, {"num_slots": 0}, {"num_slots": [1, 0]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(config(**wrong), schema)
    names = json.dumps(schema["$defs"]["Sweep"]["properties"]["canary"])
    assert all(f'"{name}"' in names for name in adversaries())


def test_the_schema_and_the_tables_of_keys_are_current(capsys):
    for options, path in (([], "config/schema.json"), (["--tables"], "docs/keys.md")):
        config_keys.main(options)
        assert capsys.readouterr().out == (ROOT / path).read_text(), "run: make schema"
    rows = re.findall(r"^\| `(\w+)` \|", config_keys.key_tables(), re.MULTILINE)
    keys = [key for model, *_ in OWNERS.values() for key in model.model_fields]
    assert sorted(rows) == sorted([*keys, "audits"])
