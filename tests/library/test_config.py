"""Configs: expansion, resolution, and errors that name the audit and the key."""

import copy
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dpcanary.accounting.noise import NoiseStage
from dpcanary.accounting.settings import AccountingStage
from dpcanary.adversaries.adversary import Score
from dpcanary.adversaries.catalogue import BUILT_IN
from dpcanary.adversaries.settings import CraftingStage, DrawingStage, MetagradientSettings
from dpcanary.errors import InputError
from dpcanary.estimation.settings import EstimationStage
from dpcanary.observations import Observation
from dpcanary.scoring.settings import ScoringStage
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Dataset, Experiment, Settings, read_experiment
from dpcanary.settings.figure import Figure
from dpcanary.settings.parsing import parse_experiment, read_config
from dpcanary.settings.schema import key_tables
from dpcanary.training.settings import (
    PretrainingSettings,
    ReferenceStage,
    TrainingStage,
    WorldAssignment,
)

ROOT = Path(__file__).parents[2]
GOOD = {
    "experiment": "test",
    "delta": 1e-5,
    "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "audits": {
        "steps": {
            "canary": ["gradient", "natural"],
            "sample_rate": [1.0, 0.25],
            "dataset": "digits",
            "noise_multiplier": 2.0,
            "num_steps": 100,
            "num_runs": 10,
        }
    },
}


def changed(path: str, value: object) -> dict:
    config = copy.deepcopy(GOOD)
    *folders, key = path.split("/")
    place = config
    for folder in folders:
        place = place.setdefault(folder, {})
    if value is None:
        place.pop(key)
    else:
        place[key] = value
    return config


def with_sweep(**changes: object) -> dict:
    """The config with keys of its sweep changed; None drops one."""
    config = copy.deepcopy(GOOD)
    sweep = config["audits"]["steps"] | changes
    config["audits"]["steps"] = {key: value for key, value in sweep.items() if value is not None}
    return config


def single(**changes: object) -> Experiment:
    """An experiment of one audit, named `steps`."""
    return parse_experiment(with_sweep(**{"canary": "gradient", "sample_rate": 0.5, **changes}))


def test_lists_sweep_and_name_the_audits():
    experiment = parse_experiment(GOOD)
    assert experiment.sweeps == {
        "steps": (
            "steps-gradient-q1",
            "steps-gradient-q0.25",
            "steps-natural-q1",
            "steps-natural-q0.25",
        )
    }
    assert experiment.audits["steps-natural-q0.25"].sample_rate == 0.25
    assert experiment.audits["steps-natural-q0.25"].score == "logit_difference"


def test_close_and_large_values_keep_all_their_digits():
    config = changed("audits/steps/noise_multiplier", [20.0000001, 20.0000002, 168.076])
    config["audits"]["steps"] |= {"canary": "natural", "sample_rate": 1.0}
    config["audits"]["steps"] |= {"num_steps": [1_000_000, 500], "learning_rate": [1e-05]}
    names = parse_experiment(config).sweeps["steps"]
    assert len(names) == 6
    assert "steps-sigma20.0000001-T1000000-lr0.00001" in names
    assert "steps-sigma168.076-T500-lr0.00001" in names


def test_audits_have_seeds_of_their_own_that_others_do_not_move():
    one, more = parse_experiment(GOOD), parse_experiment(changed("audits/steps/sample_rate", [1.0]))
    seeds = {audit.seed for audit in one.audits.values()}
    assert len(seeds) == 4
    assert one.audits["steps-gradient-q1"].seed == more.audits["steps-gradient-q1"].seed
    for seed in (0, 3):
        fixed = parse_experiment(changed("audits/steps/seed", seed))
        assert {audit.seed for audit in fixed.audits.values()} == {seed}


def test_another_seed_of_the_experiment_moves_those_of_all_audits():
    """Else a replication would have the very runs of the first experiment."""
    seeds = {
        audit.seed
        for seed in (0, 1, 7)
        for audit in parse_experiment(changed("seed", seed)).audits.values()
    }
    assert len(seeds) == 3 * 4


def test_shards_are_indices_and_more_runs_only_add():
    small = parse_experiment(changed("audits/steps/runs_per_shard", 5)).audits["steps-gradient-q1"]
    config = changed("audits/steps/runs_per_shard", 5)
    config["audits"]["steps"]["num_runs"] = 16
    large = parse_experiment(config).audits["steps-gradient-q1"]
    assert small.shards == ["00000", "00001"]
    assert large.shards == ["00000", "00001", "00002", "00003"]
    assert [small.runs_of(shard) for shard in small.shards] == [range(0, 5), range(5, 10)]
    assert large.runs_of("00003") == range(15, 16)


def test_each_stage_is_told_only_what_it_uses():
    experiment = parse_experiment(GOOD)
    other = parse_experiment(changed("significance", 0.01))
    audit = "steps-gradient-q1"
    for stage in (TrainingStage, NoiseStage, CraftingStage):
        assert experiment.stage(stage, audit=audit) == other.stage(stage, audit=audit)
    assert experiment.stage(EstimationStage, audit=audit) != other.stage(
        EstimationStage, audit=audit
    )


def test_delta_moves_the_noise_only_where_it_is_calibrated():
    audit = "steps-gradient-q1"
    one, two = parse_experiment(GOOD), parse_experiment(changed("delta", 1e-6))
    assert one.stage(NoiseStage, audit=audit) == two.stage(NoiseStage, audit=audit)
    config = changed("audits/steps/noise_multiplier", None)
    config["audits"]["steps"]["target_epsilon"] = 4.0
    one, two = parse_experiment(config), parse_experiment({**config, "delta": 1e-6})
    assert one.stage(NoiseStage, audit=audit) != two.stage(NoiseStage, audit=audit)


def test_stages_survive_the_command_line():
    experiment = parse_experiment(GOOD)
    for stage in (TrainingStage, CraftingStage, NoiseStage, EstimationStage, ScoringStage):
        told = experiment.stage(stage, audit="steps-gradient-q1")
        assert stage.model_validate_json(told.to_json()) == told
    drawn = single(canary="worst_case", dataset=None)
    for stage in (DrawingStage, ScoringStage):
        told = drawn.stage(stage, audit="steps")
        assert stage.model_validate_json(told.to_json()) == told


FIXED = {"sampling": "fixed", "batch_size": 20, "canary_period": 2, "sample_rate": None}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_slots": 3},
        {"canary": "worst_case", "dataset": None, "score": "transcript"},
        {"model": "mlp", "hidden_sizes": [4, 3], "optimizer": "momentum"},
        FIXED,
    ],
)
def test_experiments_survive_their_file(changes, tmp_path):
    experiment, path = single(**changes), tmp_path / "experiment.json"
    path.write_text(experiment.to_json())
    assert read_experiment(path) == experiment


def test_what_is_no_experiment_is_named(tmp_path):
    path = tmp_path / "experiment.json"
    path.write_text(single().to_json().replace('"runs_of_audit"', '"others"'))
    with pytest.raises(InputError, match=f"{path} is not a resolved config; delete it"):
        read_experiment(path)
    with pytest.raises(InputError, match=r"none\.json does not exist: it is the config of the"):
        read_experiment(tmp_path / "none.json")


def test_training_is_not_told_canary_or_score():
    """So audits whose runs are observed alike have the same settings of training."""
    assert not {"canary", "score", "function"} & TrainingStage.model_fields.keys()
    canaries = ["crafted_input", "mislabeled", "natural", "gradient"]
    experiment = parse_experiment(with_sweep(canary=canaries, sample_rate=1.0, seed=3))
    told = [experiment.stage(TrainingStage, audit=f"steps-{canary}") for canary in canaries]
    assert told[0] == told[1] == told[2]
    assert told[0].observe is Observation.LOGITS
    assert told[3] == told[0].model_copy(update={"observe": Observation.CHANGE})
    for canary in canaries:
        crafting = experiment.stage(CraftingStage, audit=f"steps-{canary}")
        assert crafting.function == BUILT_IN[canary].function


def test_scoring_knows_the_settings_of_the_runs():
    trained, drawn = single(), single(canary="worst_case", dataset=None)
    for experiment, stage in ((trained, TrainingStage), (drawn, DrawingStage)):
        told = experiment.stage(ScoringStage, audit="steps").runs_settings
        assert told == json.loads(experiment.stage(stage, audit="steps").to_json())


def test_settings_that_are_not_used_have_their_defaults():
    """So jobs that do not use a key do not depend on it."""
    plain = single().stage(CraftingStage, audit="steps")
    other = single(canary=["gradient", "crafted_input"], crafting_steps=7, seed=3)
    of_gradient, of_input = (
        other.stage(CraftingStage, audit=f"steps-{name}") for name in ("gradient", "crafted_input")
    )
    assert (of_gradient.crafting_steps, of_input.crafting_steps) == (5000, 7)
    assert plain.crafting_steps == 5000
    assert (plain.batch_size, plain.canary_period, plain.is_private) == (None, None, True)
    used = single(
        canary="crafted_input",
        model="mlp",
        hidden_sizes=[4],
        optimizer="momentum",
        crafting_steps=7,
    ).stage(CraftingStage, audit="steps")
    assert (used.activation, used.hidden_sizes, used.momentum) == ("tanh", (4,), 0.9)
    assert (used.crafting_steps, used.crafting_step_size) == (7, 0.01)


@pytest.mark.parametrize(
    ("key", "values", "user"),
    [
        ("crafting_steps", [5, 6], {"canary": "crafted_input"}),
        ("momentum", [0.5, 0.6], {"optimizer": "momentum"}),
        ("activation", ["tanh", "relu"], {"model": "mlp", "hidden_sizes": [4]}),
    ],
)
def test_settings_that_are_not_used_change_no_stage(key, values, user):
    """Sweeps share keys. A change of a key reruns only the jobs that use it."""

    def told(audit: str) -> list[list[str]]:
        found = []
        for value in values:
            config = with_sweep(canary="gradient", sample_rate=0.5, **{key: value})
            config["audits"]["user"] = {**config["audits"]["steps"], **user}
            stages = (ReferenceStage, CraftingStage, TrainingStage, ScoringStage)
            experiment = parse_experiment(config)
            found.append([experiment.stage(stage, audit=audit).to_json() for stage in stages])
        return found

    assert told("steps")[0] == told("steps")[1]
    assert told("user")[0] != told("user")[1]


def test_processes_do_not_depend_on_settings_of_training():
    one = single(canary="worst_case", dataset=None, seed=3)
    config = with_sweep(canary=["worst_case", "gradient"], sample_rate=0.5, seed=3, model="mlp")
    config["audits"]["steps"] |= {"hidden_sizes": [3], "optimizer": "adam", "learning_rate": 0.5}
    both = parse_experiment(config)
    drawn = both.stage(DrawingStage, audit="steps-worst_case")
    assert drawn == one.stage(DrawingStage, audit="steps")
    assert both.audits["steps-worst_case"].dataset is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("experimnt", "x", "unknown key 'experimnt'; did you mean 'experiment'"),
        ("audits/steps/lerning_rate", 0.1, "unknown key 'lerning_rate'; did you mean 'learning_r"),
        ("experiment", None, "experiment: is missing"),
        ("experiment", "../up", "experiment: String should match pattern"),
        ("delta", 0.0, "delta: Input should be greater than 0"),
        ("delta", 1.0, "delta: Input should be less than 1"),
        ("delta", "1e-5", "YAML reads 1e-5 as text: write 1.0e-5"),
        ("significance", "0.05", "in quotes, it is a text: write 0.05"),
        ("seed", "20", "in quotes, it is a text: write 20"),
        ("significance", 1e-9, "significance: Input should be greater than or equal to"),
        ("significance", 0.51, "significance: Input should be less than or equal to 0.5"),
        ("significance", 1.5, "significance: Input should be less than or equal to 0.5"),
        ("threshold_rules", ["simultanous"], "threshold_rules: .* did you mean 'simultaneous'"),
        ("threshold_rules", ["xyz"], "known: combined, calibrated, rank_sum, simultaneous, split"),
        ("threshold_rules", [], "threshold_rules: .* at least 1"),
        ("conversions", ["drect"], "conversions.*: unknown name, did you mean 'direct'"),
        ("independent", "slot", "independent: unknown name, did you mean 'slots'"),
        ("threshold_rules", ["fixed"], "needs a threshold"),
        ("device", "gpu", "device: unknown name, known: cpu, cuda, auto"),
        ("audits", {}, "audits: give at least one sweep"),
        ("audits/steps", [], "audits.steps: must hold an audit's settings"),
        ("audits/steps/canary", "gradeint", "audit steps.*: canary: .*did you mean 'gradient'"),
        ("audits/steps/canary", "xyz", "canary: unknown name, known: worst_case, gradient, "),
        ("audits/steps/sample_rate", 0.0, "sample_rate: Input should be greater than 0"),
        ("audits/steps/sample_rate", [0.5, 1.5], "audit steps-.*-q1.5: sample_rate: .* or equal"),
        ("audits/steps/noise_multiplier", -1, "noise_multiplier: Input should be greater than or"),
        ("audits/steps/noise_multiplier", 0, "noise_multiplier 0 trains without privacy, and can"),
        ("audits/steps/noise_multiplier", float("nan"), "noise_multiplier"),
        ("audits/steps/noise_multiplier", None, "give either noise_multiplier or target_epsilon"),
        ("audits/steps/target_epsilon", 1.0, "give either noise_multiplier or target_epsilon"),
        ("audits/steps/num_runs", 11, "num_runs is 11; it must be even, .* and at least 4"),
        ("audits/steps/num_runs", 2, "num_runs is 2; it must be even, .* and at least 4"),
        ("audits/steps/num_runs", 0, "num_runs: Input should be greater than or equal to 1"),
        ("audits/steps/num_runs", 10.5, "num_runs"),
        ("audits/steps/num_runs", True, "num_runs: Input should be a valid integer"),
        ("audits/steps/num_steps", "many", "num_steps: Input should be a valid integer"),
        ("audits/steps/record_every", 30, "record_every 30 does not divide num_steps"),
        ("audits/steps/dataset", "digit", "dataset: no 'digit'; did you mean 'digits'"),
        ("audits/steps/dataset", None, "needs a dataset"),
        ("audits/steps/score", "final_sum", "gradient has no score 'final_sum'; known: coord"),
        ("audits/steps/score", "cordinate", "has no score 'cordinate'; did you mean 'coordinate'"),
        ("audits/steps/sample_rate", None, "sampling poisson needs sample_rate"),
        ("audits/steps/sample_rate", 1e-7, "is below 1e-6; rounded"),
        ("audits/steps/model", "lineer", "did you mean 'linear'"),
        ("audits/steps/model", "mlp", "model mlp needs hidden_sizes"),
        ("audits/steps/optimizer", "adma", "did you mean 'adam'"),
        ("audits/steps/momentum", 1.0, "momentum: Input should be less than 1"),
        ("audits/steps/batch_size", 5, "batch_size is for sampling fixed; .* give sample_rate"),
        ("audits/steps/sampling", "fixed", "sampling fixed needs batch_size and canary_period"),
        ("audits/steps/canary_period", 4, "canary_period is for sampling fixed"),
        ("audits/steps/worlds", "coin", "worlds: unknown name, did you mean 'coins'"),
        ("audits/steps/num_slots", 0, "num_slots: Input should be greater than or equal to 1"),
        (
            "audits/bad name",
            GOOD["audits"]["steps"],
            "audits: 'bad name' is not a name; use letters",
        ),
        ("audits/steps/noise_multiplier", [], "audits.steps: noise_multiplier: is an empty list"),
        ("audits/steps/noise_multiplier", [2.0, 2], "'steps-.*-sigma2' is made twice"),
        ("threshold_rules", ["split", "split"], "threshold_rules: must not repeat a name"),
        ("significance", 1e-4, "significance: threshold rule combined needs at least 0.001"),
        ("audits/steps/looks", [9, 20], "looks must be even numbers of runs that rise"),
        ("audits/steps/looks", [20, 10], "looks must be even numbers of runs that rise"),
        ("audits/steps/looks", [4, 8], "num_runs .* must be one of the looks"),
        ("datasets/digits/num_record", 1, "did you mean 'num_records'"),
        ("figures/one", {"kind": "trade_of", "sweeps": ["steps"]}, "did you mean 'trade_off'"),
        ("figures/one", {"kind": "trade_off", "sweeps": ["step"]}, "did you mean 'steps'"),
    ],
)
def test_mistakes_are_named(path, value, message):
    with pytest.raises(InputError, match=message):
        parse_experiment(changed(path, value))


def test_what_is_just_in_range_is_fine():
    assert parse_experiment(changed("significance", 0.5)).settings.significance == 0.5
    assert single(num_runs=4).audits["steps"].total_runs == 4


def test_looks_are_a_list_and_no_sweep():
    config = changed("audits/steps/looks", [4, 8, 16])
    config["audits"]["steps"]["num_runs"] = 8
    experiment = parse_experiment(config)
    for audit in experiment.audits:
        assert experiment.stage(EstimationStage, audit=audit).looks == (4, 8, 16)
    config["threshold_rules"] = ["combined", "split"]
    with pytest.raises(
        InputError, match=r"looks: threshold rule split .* may then have combined, calibr"
    ):
        parse_experiment(config)
    config["audits"]["steps"]["looks"] = [[4, 8], [8, 16]]  # a sweep over two lists
    config["threshold_rules"] = ["rank_sum"]
    assert len(parse_experiment(config).audits) == 2 * len(experiment.audits)


@pytest.mark.parametrize(("delta", "num_steps"), [(0.2, 50), (1e-12, 50), (1.2e-11, 25_000)])
def test_a_delta_that_exact_curves_lack_is_named(delta, num_steps):
    config = changed("conversions", ["subsampled_gaussian"])
    config["audits"]["steps"] |= {"sample_rate": 0.5, "num_steps": num_steps, "record_every": 25}
    parse_experiment(config)
    with pytest.raises(InputError, match=r"delta: .* it must be from"):
        parse_experiment(config | {"delta": delta})


UNUSED = "audits.steps: {}: its canary, model and optimizer do not use this key; drop it"


@pytest.mark.parametrize(
    ("key", "value", "changes"),
    [
        ("crafting_steps", 50, {}),
        ("crafting_step_size", 0.1, {"canary": ["mislabeled", "natural"]}),
        ("hidden_sizes", [4], {}),
        ("activation", "relu", {"model": ["linear", "convnet"]}),
        ("momentum", 0.5, {}),
        ("momentum", [0.5, 0.6], {"optimizer": ["sgd", "adam"]}),
        ("model", "linear", {"canary": "worst_case", "dataset": None}),
        ("learning_rate", 0.1, {"canary": "worst_case", "dataset": None}),
        ("optimizer", "momentum", {"canary": "worst_case", "dataset": None}),
        ("runs_at_once", 5, {"canary": "worst_case", "dataset": None}),
        ("dataset", "digits", {"canary": "worst_case"}),
        ("activation", "relu", {"canary": "worst_case", "dataset": None}),
    ],
)
def test_keys_that_nothing_uses_are_named(key, value, changes):
    with pytest.raises(InputError, match=re.escape(UNUSED.format(key))):
        parse_experiment(with_sweep(**changes, **{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "changes"),
    [
        ("crafting_steps", 50, {"canary": ["gradient", "crafted_input"]}),
        ("hidden_sizes", [4], {"model": ["linear", "mlp"]}),
        ("momentum", 0.5, {"optimizer": ["sgd", "momentum"]}),
        ("dataset", "digits", {"canary": ["worst_case", "gradient"]}),
    ],
)
def test_keys_that_one_audit_of_a_sweep_uses_are_fine(key, value, changes):
    assert parse_experiment(with_sweep(**changes, **{key: value})).audits


SHARED = """
experiment: test
delta: 1.0e-5
datasets: {{digits: {{source: digits, num_records: 100}}}}
audits:
  crafted: &crafted
    canary: crafted_input
    sample_rate: 0.5
    dataset: digits
    noise_multiplier: 2.0
    num_steps: 100
    num_runs: 10
    crafting_steps: 50
  gradient:
    <<: *crafted
    canary: gradient
    {more}
"""


def test_keys_shared_by_an_anchor_with_a_sweep_that_uses_them_are_fine():
    shared = yaml.safe_load(SHARED.format(more=""))
    assert [*parse_experiment(shared).audits] == ["crafted", "gradient"]
    own = yaml.safe_load(SHARED.format(more="crafting_steps: 60"))
    with pytest.raises(InputError, match=r"audits\.gradient: crafting_steps: its canary, model"):
        parse_experiment(own)
    del shared["audits"]["crafted"]
    with pytest.raises(InputError, match=r"audits\.gradient: crafting_steps: its canary, model"):
        parse_experiment(shared)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worlds": "coins"}, "worlds coins needs num_slots above 1"),
        ({"worlds": "halves"}, "worlds halves needs num_slots above 1"),
        ({"num_slots": 2, "worlds": "alternate"}, "worlds alternate is for num_slots 1"),
        ({"num_slots": 3, "worlds": "halves"}, "worlds halves needs an even num_slots"),
        ({"num_slots": 101}, "num_slots: 101 is more than the 100 private records"),
        (
            {"num_slots": 2, "canary": "worst_case", "dataset": None},
            "canary worst_case has only one slot",
        ),
        (
            {"num_slots": [1, 2], "num_runs": 5},
            "audit steps-K1: num_runs is 5; it must be even",
        ),
    ],
)
def test_slots_that_make_no_sense(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        single(**changes)


SHUFFLED = {
    "canary": "worst_case", "dataset": None, "sampling": "shuffled", "batches_per_pass": 5,
    "sample_rate": None, "num_steps": 20, "record_every": 10, "score": "transcript",
}  # fmt: skip


def shuffled(**changes):
    audit = {
        key: value
        for key, value in {**with_sweep()["audits"]["steps"], **SHUFFLED, **changes}.items()
        if value is not None
    }
    return {**GOOD, "audits": {"steps": audit}}


def test_shuffled_batches_reach_their_stages():
    experiment = parse_experiment(shuffled(other_records="zero"))
    told = experiment.stage(DrawingStage, audit="steps")
    assert (told.batches_per_pass, told.other_records) == (5, "zero")
    assert experiment.audits["steps"].accounted_steps == 4
    assert experiment.stage(AccountingStage, audit="steps").insertions == (2, 4)
    noise = experiment.stage(NoiseStage, audit="steps")
    assert (noise.batches_per_pass, noise.accounted_steps) == (5, 4)
    by_default = parse_experiment(shuffled()).stage(DrawingStage, audit="steps")
    assert by_default.other_records == "opposite"
    assert parse_experiment(experiment.model_dump(mode="json")) == experiment
    others = single(canary="worst_case", dataset=None).stage(DrawingStage, audit="steps")
    assert (others.batches_per_pass, others.other_records) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches_per_pass": None}, "sampling shuffled needs batches_per_pass"),
        ({"sample_rate": 0.2}, "sampling shuffled has no sample_rate"),
        ({"batch_size": 3}, "sampling shuffled has no batch_size"),
        ({"record_every": 4}, "batches_per_pass 5 must divide the steps between estimates"),
        (
            {"canary": "gradient", "dataset": "digits", "score": None},
            "canary gradient is not for shuffled",
        ),
        ({"sampling": "poisson", "sample_rate": 0.2}, "batches_per_pass is for sampling shuffled"),
        (
            {"sampling": None, "sample_rate": 0.2, "batches_per_pass": None,
             "other_records": "zero"},
            "other_records: its canary, model and optimizer do not use",
        ),
    ],
)  # fmt: skip
def test_shuffled_batches_that_make_no_sense(changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(shuffled(**changes))


def test_shuffled_batches_have_no_exact_curves():
    config = shuffled() | {"conversions": ["subsampled_gaussian"]}
    with pytest.raises(InputError, match="subsampled_gaussian has no curves of shuffled batches"):
        parse_experiment(config)


def test_slots_choose_their_worlds():
    assert single().audits["steps"].worlds is WorldAssignment.ALTERNATE
    assert single(num_slots=3).audits["steps"].worlds is WorldAssignment.COINS
    assert single(num_slots=2, worlds="halves").audits["steps"].worlds is WorldAssignment.HALVES
    swept = single(num_slots=[1, 2]).audits
    assert [*swept] == ["steps-K1", "steps-K2"]
    told = single(num_slots=2).stage(TrainingStage, audit="steps")
    assert told.worlds is WorldAssignment.COINS


@pytest.mark.parametrize(
    ("changes", "delta", "message"),
    [
        # Of two steps at q = 1/2, the canary is in one with probability 3/4.
        ({"num_steps": 2}, 0.75, "delta 0.75 alone covers the leak, whatever the noise: the"),
        ({"num_steps": 2}, 0.8, "in a batch with probability 0.75; lower delta"),
        ({"sample_rate": 1e-6, "num_steps": 5}, 1e-5, "with probability 5e-06; lower delta"),
        (
            {"target_epsilon": 501.0},
            1e-5,
            "501 is more than accountants can compute; give at most 500",
        ),
    ],
)
def test_targets_that_no_noise_can_reach(changes, delta, message):
    told = {"canary": "gradient", "noise_multiplier": None, "target_epsilon": 1.0}
    config = with_sweep(**{**told, "sample_rate": 0.5, **changes}) | {"delta": delta}
    with pytest.raises(InputError, match=f"audit steps: target_epsilon: .*{re.escape(message)}"):
        parse_experiment(config)
    # Noise that is given needs no target.
    config["audits"]["steps"] |= {"noise_multiplier": 1.0}
    del config["audits"]["steps"]["target_epsilon"]
    assert parse_experiment(config).audits


def test_targets_that_can_be_reached():
    told = {"canary": "gradient", "noise_multiplier": None, "num_steps": 2, "sample_rate": 0.5}
    within = with_sweep(**told, target_epsilon=1.0) | {"delta": 0.7499}
    assert parse_experiment(within).audits
    assert parse_experiment(with_sweep(**told, target_epsilon=500.0)).audits
    known = with_sweep(**told | FIXED, target_epsilon=1.0) | {"delta": 0.99}
    assert parse_experiment(known).audits  # the canary is in a batch for certain


def two_scores(monkeypatch: pytest.MonkeyPatch, observes: str) -> None:
    """Gives the gradient canary a second score, as a plugin's adversary may have."""
    own = BUILT_IN["gradient"]
    other = Score("other", "dpcanary.scoring.scores:as_observed", observes)
    monkeypatch.setitem(BUILT_IN, "gradient", replace(own, scores=(*own.scores, other)))


def test_audits_that_differ_in_score_alone_share_runs(monkeypatch):
    two_scores(monkeypatch, Observation.CHANGE)
    scores = {"canary": "gradient", "score": ["coordinate", "other"]}
    config = with_sweep(**scores, noise_multiplier=[2.0, 3.0], sample_rate=0.5)
    config["audits"]["again"] = copy.deepcopy(config["audits"]["steps"])
    experiment = parse_experiment(config)
    for sweep in ("steps", "again"):  # audits of two sweeps are independent
        for noise in ("sigma2", "sigma3"):
            one, two = f"{sweep}-{noise}-coordinate", f"{sweep}-{noise}-other"
            assert (
                experiment.runs_of_audit[one] == experiment.runs_of_audit[two] == f"{sweep}-{noise}"
            )
            for stage in (TrainingStage, CraftingStage, NoiseStage):
                told = [experiment.stage(stage, audit=audit) for audit in (one, two)]
                assert told[0] == told[1]
            scoring = [experiment.stage(ScoringStage, audit=audit) for audit in (one, two)]
            assert scoring[0].runs_settings == scoring[1].runs_settings
            assert scoring[0].score_function != scoring[1].score_function
    assert {audit.seed for audit in experiment.audits.values()} == {
        experiment.audits[name].seed for name in experiment.first_audits.values()
    }
    assert len({audit.seed for audit in experiment.audits.values()}) == 4


def test_another_score_keeps_the_runs_that_were_there(monkeypatch):
    """Their names and their seeds are those of the config with one score."""
    two_scores(monkeypatch, Observation.CHANGE)
    before = single(sample_rate=[0.5, 1.0])
    after = single(sample_rate=[0.5, 1.0], score=["coordinate", "other"])
    assert {*after.runs_of_audit.values()} == {*before.audits}
    for runs, audit in after.first_audits.items():
        for stage in (TrainingStage, CraftingStage, NoiseStage):
            assert after.stage(stage, audit=audit) == before.stage(stage, audit=runs)


def test_names_of_runs_are_not_those_of_other_audits(monkeypatch):
    two_scores(monkeypatch, Observation.CHANGE)
    scores = {"canary": "gradient", "score": ["coordinate", "other"]}
    config = with_sweep(**scores, noise_multiplier=[2.0, 3.0], sample_rate=0.5)
    one = {**config["audits"]["steps"], "noise_multiplier": 2.0, "score": "other"}
    config["audits"]["steps-sigma2"] = one
    with pytest.raises(InputError, match="'steps-sigma2' is made twice"):
        parse_experiment(config)


def test_audits_that_observe_something_else_make_runs_of_their_own(monkeypatch):
    drawn = single(canary="worst_case", dataset=None, score=["final_sum", "transcript"])
    two_scores(monkeypatch, Observation.CHANGE_AND_LENGTH)
    trained = single(score=["coordinate", "other"])
    updates = single(canary="gradient", score="transcript")
    others = parse_experiment(GOOD)  # these differ in more than their scores
    assert drawn.runs_of_audit == {
        "steps-final_sum": "steps",
        "steps-transcript": "steps-log_likelihood_ratio",
    }
    assert updates.runs_of_audit == {"steps": "steps-noisy_gradients"}
    for experiment in (drawn, trained, others):
        assert len({*experiment.runs_of_audit.values()}) == len(experiment.audits)
        seeds = {audit.seed for audit in experiment.audits.values()}
        assert len(seeds) == len(experiment.audits) > 1


def test_models_are_named_by_their_layers_and_lists_of_lists_sweep():
    config = changed("audits/steps/canary", "gradient")
    config["audits"]["steps"] |= {"sample_rate": 1.0, "model": "mlp", "hidden_sizes": [8, 4]}
    experiment = parse_experiment(config)
    assert [*experiment.audits] == ["steps"]
    assert experiment.audits["steps"].hidden_sizes == (8, 4)
    assert experiment.audits["steps"].initialisation == "per_run"
    config["audits"]["steps"]["hidden_sizes"] = [[8, 4], [16]]
    config["audits"]["steps"]["optimizer"] = ["sgd", "adam"]
    assert [*parse_experiment(config).audits] == [
        "steps-hidden_sizes8x4-sgd",
        "steps-hidden_sizes8x4-adam",
        "steps-hidden_sizes16-sgd",
        "steps-hidden_sizes16-adam",
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "convnet", "initialisation": "zeros"},
            "zeros is a saddle point of every model except linear",
        ),
        ({"sampling": "fixed", "batch_size": 5, "canary_period": 2}, "has no sample_rate"),
    ],
)
def test_settings_that_do_not_go_together(changes, message):
    config = changed("audits/steps/sample_rate", 0.5)
    config["audits"]["steps"] |= changes
    with pytest.raises(InputError, match=message):
        parse_experiment(config)


def test_only_insertions_of_fixed_batches_are_accounted():
    config = changed("audits/steps/sample_rate", None)
    config["audits"]["steps"] |= {
        "canary": "gradient",
        "adjacency": "add_remove",
        "sampling": "fixed",
        "batch_size": 20,
        "canary_period": 5,
        "record_every": 50,
    }
    experiment = parse_experiment(config)
    noise = experiment.stage(NoiseStage, audit="steps")
    accounting = experiment.stage(AccountingStage, audit="steps")
    assert (noise.sample_rate, noise.accounted_steps) == (1.0, 20)
    assert accounting.record_steps == (50, 100)
    assert accounting.insertions == (10, 20)
    assert experiment.stage(TrainingStage, audit="steps").num_steps == 100
    config["audits"]["steps"]["batch_size"] = 101
    with pytest.raises(InputError, match="batch_size: 101 is more than the 100 records"):
        parse_experiment(config)
    config["audits"]["steps"] |= {"batch_size": 20, "record_every": 4}
    with pytest.raises(InputError, match="canary_period must divide the steps between estimates"):
        parse_experiment(config)


def test_substituted_targets_are_in_no_fixed_batch():
    slots = FIXED | {"num_slots": 3}
    assert single(**slots | {"batch_size": 97}).audits
    with pytest.raises(InputError, match="batch_size: 98 is more than the 97 records that batch"):
        single(**slots | {"batch_size": 98})


def test_two_sweeps_that_make_the_same_name_are_refused():
    config = changed("audits/steps-gradient-q1", {**GOOD["audits"]["steps"], "canary": "natural"})
    config["audits"]["steps-gradient-q1"]["sample_rate"] = 1.0
    with pytest.raises(InputError, match="is made twice"):
        parse_experiment(config)


SHIPPED = sorted({*(ROOT / "config").rglob("*.yaml")} - {ROOT / "config/datasets.yaml"})


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_configs_are_valid(path):
    assert parse_experiment(yaml.safe_load(path.read_text())).audits


def schema() -> dict:
    return json.loads((ROOT / "config/schema.json").read_text())


def test_the_schema_and_the_tables_of_keys_are_current():
    for options, path in (([], "config/schema.json"), (["--tables"], "docs/keys.md")):
        command = [sys.executable, "-m", "dpcanary.settings.schema", *options]
        printed = subprocess.check_output(command, text=True)
        assert printed == (ROOT / path).read_text(), "run: make schema"


def test_every_key_stands_in_the_tables():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) \| (.+) \|$", key_tables(), re.MULTILINE)
    models = (Settings, Audit, Dataset, Figure, PretrainingSettings, MetagradientSettings)
    keys = [key for model in models for key in model.model_fields]
    assert sorted(row[0] for row in rows) == sorted([*keys, "audits"])
    assert ("num_slots", "integer >= 1", "`1`") in [row[:3] for row in rows]
    assert ("num_steps", "integer >= 1", "required") in [row[:3] for row in rows]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_editors_schema_admits_shipped_configs(path):
    import jsonschema

    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


def test_the_editors_schema_knows_keys_and_names():
    import jsonschema

    config = with_sweep(canary="gradient", sample_rate=0.5)
    jsonschema.validate(config, schema())
    jsonschema.validate(with_sweep(canary="of_a_plugin"), schema())
    for wrong in ({"lerning_rate": 1}, {"optimizer": "adma"}, {"canary": 1}, {"num_slots": 0}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(with_sweep(**{"canary": "gradient", **wrong}), schema())
    offered = json.dumps(schema()["$defs"]["Sweep"]["properties"]["canary"])
    assert all(f'"{name}"' in offered for name in BUILT_IN)


def test_the_demo_is_the_one_that_the_readme_describes():
    experiment = parse_experiment(yaml.safe_load((ROOT / "config/demo.yaml").read_text()))
    assert len(experiment.sweeps["steps"]) == 10
    assert sum(len(experiment.sweeps[name]) for name in experiment.sweeps if "grid" in name) == 17


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"source": "cifar"},
            "not the path of a file (.npz, .parquet, .csv, .tsv); did you mean 'cifar10'",
        ),
        ({"files": ["a.npz"]}, "source digits is not read from other files"),
        ({"encoder_revision": "abc"}, "encoder_revision needs an encoder"),
    ],
)
def test_datasets_that_make_no_sense(changes, message):
    dataset = {"source": "digits", "num_records": 100, **changes}
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(changed("datasets/digits", dataset))


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"kind": "epsilon_by_step"}, "a figure of kind epsilon_by_step needs sweeps"),
        ({"kind": "epsilon_by_runs", "sweeps": ["steps"]}, "epsilon_by_runs needs num_runs"),
        (
            {"kind": "epsilon_by_runs", "sweeps": ["steps"], "num_runs": [4, 20]},
            "figures.f.num_runs: 20 is more than the 10 runs of audit steps-gradient-q1",
        ),
        (
            {"kind": "epsilon_by_runs", "sweeps": ["steps"], "num_runs": [4, 5]},
            "figures.f.num_runs: 5 must be even, for two worlds, and at least 4",
        ),
        (
            {"kind": "epsilon_by_runs", "sweeps": ["steps"], "num_runs": [2, 4]},
            "figures.f.num_runs: 2 must be even, for two worlds, and at least 4",
        ),
        (
            {"kind": "epsilon_by_setting", "sweeps": ["steps"]},
            "epsilon_by_setting needs setting",
        ),
        (
            {"kind": "trade_off", "sweeps": ["steps"], "setting": "num_steps"},
            "trade_off has no setting",
        ),
        ({"kind": "adjacency_ratio", "sweeps": ["steps"]}, "adjacency_ratio has no sweeps"),
        (
            {"kind": "trade_off", "sweeps": ["steps"], "in_sample": True},
            "a figure of kind trade_off has no in_sample",
        ),
        (
            {"kind": "epsilon_by_step", "sweeps": ["steps"], "in_sample": True},
            "figures.f.in_sample: threshold_rules has no in_sample to draw",
        ),
        ({"kind": "test_accuracy", "sweeps": ["worst"]}, "trains no models"),
        (
            {"kind": "gradient_norm", "sweeps": ["steps"]},
            "figures.f: no audit of its sweeps has score gradient_norm",
        ),
        (
            {"kind": "score_histograms", "sweeps": ["steps"], "panels": ["model"]},
            "a figure of kind score_histograms has no panels",
        ),
        (
            {"kind": "trade_off", "sweeps": ["steps"], "lines": ["model"]},
            "a figure of kind trade_off has no lines",
        ),
        (
            {"kind": "privacy_profile", "sweeps": ["steps"], "proven": True},
            "a figure of kind privacy_profile has no proven",
        ),
        (
            {"kind": "epsilon_by_step", "sweeps": ["steps"], "panels": ["momentum"]},
            "panels.0: unknown name, known: dataset, model, pretraining,",
        ),
        (
            {"kind": "epsilon_by_noise", "sweeps": ["steps"], "panels": ["noise_multiplier"]},
            "noise_multiplier is shown twice, by axis, panels or lines; keep one",
        ),
        (
            {
                "kind": "epsilon_by_step",
                "sweeps": ["steps"],
                "panels": ["model"],
                "lines": ["model"],
            },
            "model is shown twice, by axis, panels or lines; keep one",
        ),
    ],
)
def test_figures_that_make_no_sense(figure, message):
    config = changed("figures", {"f": figure})
    config["audits"]["worst"] = {**GOOD["audits"]["steps"], "canary": "worst_case"}
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(config)


def test_figures_of_bounds_may_show_in_sample():
    figure = {"kind": "epsilon_by_step", "sweeps": ["steps"]}
    config = changed("figures", {"without": figure, "with": {**figure, "in_sample": True}})
    config["threshold_rules"] = ["simultaneous", "in_sample"]
    config["allow_not_valid"] = True
    figures = parse_experiment(config).settings.figures
    assert (figures["without"].in_sample, figures["with"].in_sample) == (False, True)


@pytest.mark.parametrize(
    "figure", [{"kind": "privacy_profile"}, {"kind": "trade_off", "proven": True}]
)
def test_gaussian_curves_need_the_conversion_that_gives_them(figure):
    config = changed("figures", {"f": {**figure, "sweeps": ["steps"]}})
    config["conversions"] = ["direct"]
    with pytest.raises(InputError, match="conversions has no gdp, which gives the audited curve"):
        parse_experiment(config)


def test_figures_of_models_trained_take_the_numbers_that_fit():
    config = changed("threshold_rules", ["combined", "mahloujifar"])
    one = config["audits"]["steps"]
    config["audits"] = {
        "one": one | {"num_runs": 100},
        "many": one | {"num_slots": 8, "worlds": "coins", "num_runs": 10},
    }
    figure = {"kind": "models_trained", "sweeps": ["one", "many"], "num_runs": [1, 3, 10, 100]}
    config["figures"] = {"f": figure}
    audits = parse_experiment(config).audits
    fitting = {name.split("-")[0]: audit.fitting([1, 3, 10, 100]) for name, audit in audits.items()}
    assert fitting == {"one": [10, 100], "many": [1, 3, 10]}
    config["figures"]["f"]["num_runs"] = [3]
    message = "figures.f.num_runs: none fits audit one"
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worlds": "halves"}, "worlds: threshold rule mahloujifar counts right guesses of fair"),
        ({"num_slots": 1, "worlds": None}, "num_slots is 1, and threshold rule mahloujifar guess"),
    ],
)
def test_rules_of_guesses_need_coins(changes, message):
    config = changed("threshold_rules", ["mahloujifar"])
    config["audits"]["steps"] |= {"num_slots": 8, "worlds": "coins"} | changes
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(config)


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["steinke"], "steinke"),
        (["mahloujifar", "combined"], "mahloujifar"),
        (["combined", "steinke"], "steinke"),
    ],
)
def test_rules_of_guesses_need_coins_whatever_other_rules_there_are(rules, named):
    config = changed("threshold_rules", rules)
    config["audits"]["steps"] |= {"num_slots": 8, "worlds": "coins"}
    assert parse_experiment(config).audits
    config["audits"]["steps"]["worlds"] = "halves"
    with pytest.raises(InputError, match=f"threshold rule {named} counts .* coins, not halves"):
        parse_experiment(config)
    config["threshold_rules"] = ["combined"]
    assert parse_experiment(config).audits


def test_a_single_run_needs_guesses_or_independent_slots():
    config = changed("threshold_rules", ["mahloujifar", "combined"])
    config["audits"]["steps"] |= {"num_slots": 8, "worlds": "coins", "num_runs": 1}
    message = "num_runs is 1, and threshold rule combined compares the runs of a slot"
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(config)
    for change in ({"independent": "slots"}, {"threshold_rules": ["mahloujifar"]}):
        audits = parse_experiment(config | change).audits.values()
        assert {audit.total_runs for audit in audits} == {1}


def test_figures_of_several_slots_take_any_number_of_runs():
    config = with_sweep(num_slots=2)
    config["figures"] = {
        "f": {"kind": "epsilon_by_runs", "sweeps": ["steps"], "num_runs": [1, 5, 10]}
    }
    assert parse_experiment(config).settings.figures["f"].num_runs == (1, 5, 10)


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: key 'a' is already in line 1; keep one"),
        ("x:\n  - b: 1\n    c: 1\n    b: 2\n", "line 4: key 'b' is already in line 2"),
        ("x: {b: 1,\n  b: 2}\n", "line 2: key 'b' is already in line 1"),
        ("x: {b: 1, b: 2}\n", "line 1: key 'b' is already in line 1"),
        (
            "a: &a {b: 1}\nc:\n  <<: *a\n  d: 1\n  d: 2\n",
            "line 5: key 'd' is already in line 4; keep one",
        ),
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column 2: expected ',' or ']', but got ':'"),
        ("a:\n\tb: 1\n", "line 2, column 1: found character '\\t'"),
        ("a: b: c\n", "line 1, column 5: mapping values are not allowed here"),
        ("a: 1\nb: *c\n", "line 2, column 4: found undefined alias 'c'"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        ("a: 1\nb: !foo 2\n", "line 2, column 4: could not determine a constructor"),
        ("a: 1\n? [b]\n: 1\n", "line 2, column 3: found unhashable key"),
        ("a: \x01\n", "cannot be read as YAML: unacceptable character"),
        ("", "must hold settings by key"),
        ("- a\n", "must hold settings by key"),
    ],
)
def test_config_files_that_are_wrong_name_the_line(text, message, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_config_files_that_are_not_there_or_no_text(tmp_path):
    with pytest.raises(InputError, match=r"mine\.yaml does not exist"):
        read_config(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match=r"mine\.yaml cannot be read as YAML: .*utf-8"):
        read_config(tmp_path / "mine.yaml")


def test_keys_that_override_merged_ones_are_not_there_twice(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SHARED.format(more="noise_multiplier: 3.0"))
    config = read_config(path)
    assert config == yaml.safe_load(path.read_text())
    noises = {
        name: audit.noise_multiplier for name, audit in parse_experiment(config).audits.items()
    }
    assert noises == {"crafted": 2.0, "gradient": 3.0}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_configs_are_read_as_by_yaml(path):
    assert read_config(path) == yaml.safe_load(path.read_text())


def checked(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Runs the program that checks configs."""
    command = [sys.executable, "-m", "dpcanary.settings.parsing", *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_config_files_are_checked_by_a_program(tmp_path):
    good, twice, wrong = (tmp_path / f"{name}.yaml" for name in ("good", "twice", "wrong"))
    good.write_text(yaml.safe_dump(GOOD))
    twice.write_text(f"seed: 1\n{good.read_text()}seed: 2\n")
    wrong.write_text(good.read_text().replace("num_steps", "num_stesp"))
    done = checked(good, ROOT / "config/demo.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{good}: 4 audits",
        f"{ROOT / 'config/demo.yaml'}: 29 audits",
    ]
    for path, message in (
        (twice, "key 'seed' is already in line 1; keep one"),
        (wrong, "unknown key 'num_stesp'; did you mean 'num_steps'?"),
        (tmp_path / "none.yaml", "does not exist"),
    ):
        done = checked(good, path)
        assert done.returncode == 1
        assert done.stdout == f"{good}: 4 audits\n"
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
        assert "Traceback" not in done.stderr


LANDSCAPE = {
    "canary": "loss_landscape",
    "dataset": None,
    "adjacency": "add_remove",
    "sampling": "fixed",
    "batch_size": 4,
    "sample_rate": None,
}


def test_a_crafted_landscape_has_its_defaults_and_others_have_none():
    experiment = parse_experiment(with_sweep(**LANDSCAPE, score=["position", "likelihood_ratio"]))
    assert set(experiment.runs_of_audit.values()) == {"steps"}  # both scores share their runs
    [audit, other] = experiment.audits.values()
    assert (audit.landscape, audit.landscape_threshold) == ("diverging", 0.5)
    assert (audit.accounted_steps, other.score) == (1, "likelihood_ratio")
    substitute = parse_experiment(with_sweep(**LANDSCAPE | {"adjacency": "substitute"}))
    assert substitute.audits["steps"].landscape_threshold == 0.0
    assert single().audits["steps"].landscape is None


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
def test_a_threshold_of_a_landscape_that_is_given_stays(adjacency):
    """Also 0, which is not the default under add/remove."""
    for threshold in (0, -1.5, 0.5):
        changes = {"adjacency": adjacency, "landscape_threshold": threshold}
        experiment = parse_experiment(with_sweep(**LANDSCAPE | changes))
        assert experiment.audits["steps"].landscape_threshold == threshold


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"canary": "worst_case", "dataset": None}, True),
        ({"optimizer": "momentum"}, False),
        ({"optimizer": "adam"}, False),
        ({"learning_rate_schedule": "linear"}, False),
    ],
)
def test_steps_are_equal_for_plain_gradient_descent(changes, expected):
    experiment = single(**changes)
    assert experiment.stage(AccountingStage, audit="steps").has_equal_steps is expected


def test_a_crafted_landscape_is_accounted_for_its_first_step():
    experiment = parse_experiment(with_sweep(**LANDSCAPE, record_every=50))
    accounting = experiment.stage(AccountingStage, audit="steps")
    assert accounting.insertions == (1, 1)
    drawing = experiment.stage(DrawingStage, audit="steps")
    assert accounting.exact_settings == json.loads(drawing.to_json())
    assert drawing.batch_size == 4
    assert experiment.stage(NoiseStage, audit="steps").accounted_steps == 1
    assert experiment.stage(EstimationStage, audit="steps").in_first_step
    others = single().stage(AccountingStage, audit="steps")
    assert (others.exact, others.exact_settings, others.in_first_step) == (None, None, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": None, "batch_size": None, "sample_rate": 0.5}, "needs sampling fixed and ba"),
        ({"batch_size": None}, "canary loss_landscape needs sampling fixed and batch_size"),
        ({"batch_size": [4, 0]}, "audit steps-B0: batch_size: Input should be greater than"),
        ({"canary_period": 1}, "canary_period: canary loss_landscape enters the first step alone"),
        ({"sample_rate": 1.0}, "sample_rate: canary loss_landscape enters the first step alone"),
        ({"dataset": "digits"}, "audits.steps: dataset: its canary, .* do not use this key"),
        ({"learning_rate": 0.1}, "audits.steps: learning_rate: its canary, .* do not use this key"),
        ({"adjacency": "zero_out"}, "audits adjacency add_remove and substitute, not zero_out"),
        ({"landscape": "divergin"}, "landscape: unknown name, did you mean 'diverging'"),
        ({"landscape_threshold": float("inf")}, "landscape_threshold: Input should be a finite"),
        ({"landscape_threshold": "high"}, "landscape_threshold: Input should be a valid number"),
        ({"num_slots": 2}, "canary loss_landscape has only one slot"),
        ({"score": "coordinate"}, "loss_landscape has no score 'coordinate'; known: position, li"),
    ],
)
def test_mistakes_of_a_crafted_landscape_are_named(changes, message):
    with pytest.raises(InputError, match=f"config: (audit steps.*: )?.*{message}"):
        parse_experiment(with_sweep(**LANDSCAPE | changes))


@pytest.mark.parametrize("key", ["landscape", "landscape_threshold"])
def test_other_canaries_have_no_landscape(key):
    value = "diverging" if key == "landscape" else 0.5
    with pytest.raises(InputError, match=re.escape(UNUSED.format(key))):
        parse_experiment(with_sweep(**{key: value}))


def test_aliases_that_stand_for_too_much_are_refused_at_once(tmp_path):
    """Nine lines of nine aliases each would be more than 10^8 values."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for level in range(1, 9):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    path = tmp_path / "config.yaml"
    path.write_text("\n".join(lines))
    start = time.monotonic()
    with pytest.raises(InputError, match="line 7: stands for more than 1000000 values"):
        read_config(path)
    assert time.monotonic() - start < 1


def test_a_node_that_holds_itself_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a: &a\n  b: *a\n")
    with pytest.raises(InputError, match="holds itself"):
        read_config(path)


def test_a_rule_that_is_not_valid_needs_a_word():
    config = {**copy.deepcopy(GOOD), "threshold_rules": ["combined", "in_sample"]}
    with pytest.raises(InputError, match=r"bounds by in_sample are not valid.*allow_not_valid"):
        parse_experiment(config)
    allowed = parse_experiment({**config, "allow_not_valid": True})
    assert allowed.settings.threshold_rules == ("combined", "in_sample")
