"""Configs: expansion, resolution, and an error for every mistake that names audit and key."""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from dpcanary import stages
from dpcanary.config import config_schema, parse_experiment
from dpcanary.errors import InputError

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
    fixed = parse_experiment(changed("audits/steps/seed", 3))
    assert {audit.seed for audit in fixed.audits.values()} == {3}


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
    for stage in (stages.TrainingStage, stages.NoiseStage, stages.CanaryStage):
        assert experiment.stage(stage, audit=audit) == other.stage(stage, audit=audit)
    assert experiment.stage(stages.EstimationStage, audit=audit) != other.stage(
        stages.EstimationStage, audit=audit
    )


def test_delta_moves_the_noise_only_where_it_is_calibrated():
    audit = "steps-gradient-q1"
    one, two = parse_experiment(GOOD), parse_experiment(changed("delta", 1e-6))
    assert one.stage(stages.NoiseStage, audit=audit) == two.stage(stages.NoiseStage, audit=audit)
    config = changed("audits/steps/noise_multiplier", None)
    config["audits"]["steps"]["target_epsilon"] = 4.0
    one, two = parse_experiment(config), parse_experiment({**config, "delta": 1e-6})
    assert one.stage(stages.NoiseStage, audit=audit) != two.stage(stages.NoiseStage, audit=audit)


def test_stages_survive_the_command_line():
    experiment = parse_experiment(GOOD)
    for stage in (stages.TrainingStage, stages.EstimationStage, stages.ScoringStage):
        told = experiment.stage(stage, audit="steps-gradient-q1")
        assert stage.model_validate_json(told.to_json()) == told


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
        ("significance", 1e-9, "significance: Input should be greater than or equal to"),
        ("significance", 1.5, "significance: .* less than 1"),
        ("threshold_rules", ["simultanous"], "did you mean 'simultaneous'"),
        ("threshold_rules", ["fixed"], "needs a threshold"),
        ("device", "gpu", "device: unknown name, known: cpu, cuda, auto"),
        ("audits", {}, "audits: give at least one sweep"),
        ("audits/steps", [], "audits.steps: must hold an audit's settings"),
        ("audits/steps/canary", "gradeint", "audit steps.*: canary: .*did you mean 'gradient'"),
        ("audits/steps/sample_rate", 0.0, "sample_rate: Input should be greater than 0"),
        ("audits/steps/sample_rate", [0.5, 1.5], "audit steps-.*-q1.5: sample_rate: .* or equal"),
        ("audits/steps/noise_multiplier", 0, "noise_multiplier: Input should be greater than 0"),
        ("audits/steps/noise_multiplier", float("nan"), "noise_multiplier"),
        ("audits/steps/noise_multiplier", None, "give either noise_multiplier or target_epsilon"),
        ("audits/steps/target_epsilon", 1.0, "give either noise_multiplier or target_epsilon"),
        ("audits/steps/num_runs", 11, "num_runs: Input should be a multiple of 2"),
        ("audits/steps/num_runs", 10.5, "num_runs"),
        ("audits/steps/num_runs", True, "num_runs: Input should be a valid integer"),
        ("audits/steps/num_steps", "many", "num_steps: Input should be a valid integer"),
        ("audits/steps/record_every", 30, "record_every 30 does not divide num_steps"),
        ("audits/steps/dataset", "digit", "dataset: no 'digit'; did you mean 'digits'"),
        ("audits/steps/dataset", None, "needs a dataset"),
        ("audits/steps/score", "transcript", "has the scores"),
        ("audits/steps/sample_rate", None, "sampling poisson needs sample_rate"),
        ("audits/steps/sample_rate", 1e-7, "below 1e-6 is too coarse"),
        ("audits/steps/model", "lineer", "did you mean 'linear'"),
        ("audits/steps/model", "mlp", "model mlp, and it alone, needs hidden_sizes"),
        ("audits/steps/hidden_sizes", [4], "model mlp, and it alone, needs hidden_sizes"),
        ("audits/steps/optimizer", "adma", "did you mean 'adam'"),
        ("audits/steps/momentum", 1.0, "momentum: Input should be less than 1"),
        ("audits/steps/batch_size", 5, "sampling fixed, and it alone, needs batch_size"),
        ("audits/steps/sampling", "fixed", "sampling fixed, and it alone, needs batch_size"),
        ("audits/steps/canary_period", 3, "sampling fixed, and it alone, needs batch_size"),
        ("audits/steps/adjacency", "add_remove", "audits adjacency substitute alone"),
        ("audits/bad name", GOOD["audits"]["steps"], "audits: 'bad name' is no name; use letters"),
        ("audits/steps/noise_multiplier", [], "audits.steps: noise_multiplier: is an empty list"),
        ("audits/steps/noise_multiplier", [2.0, 2], "'steps-.*-sigma2' is made twice"),
        ("threshold_rules", ["split", "split"], "must not repeat a name"),
        ("datasets/digits/num_record", 1, "did you mean 'num_records'"),
        ("figures/one", {"kind": "trade_of", "sweeps": ["steps"]}, "did you mean 'trade_off'"),
        ("figures/one", {"kind": "trade_off", "sweeps": ["step"]}, "did you mean 'steps'"),
    ],
)
def test_mistakes_are_named(path, value, message):
    with pytest.raises(InputError, match=message):
        parse_experiment(changed(path, value))


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
        ({"model": "convnet", "precision": "bfloat16"}, "bfloat16 is for models linear and mlp"),
        ({"model": "convnet", "initialisation": "zeros"}, "zeros is a saddle"),
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
    noise = experiment.stage(stages.NoiseStage, audit="steps")
    accounting = experiment.stage(stages.AccountingStage, audit="steps")
    assert (noise.sample_rate, noise.num_steps) == (1.0, 20)
    assert accounting.record_steps == (50, 100)
    assert accounting.insertions == (10, 20)
    assert experiment.stage(stages.TrainingStage, audit="steps").num_steps == 100
    config["audits"]["steps"]["batch_size"] = 101
    with pytest.raises(InputError, match="batch_size: 101 is more than the 100 records"):
        parse_experiment(config)
    config["audits"]["steps"] |= {"batch_size": 20, "record_every": 4}
    with pytest.raises(InputError, match="canary_period must divide the steps between estimates"):
        parse_experiment(config)


def test_two_sweeps_that_make_the_same_name_are_refused():
    config = changed("audits/steps-gradient-q1", {**GOOD["audits"]["steps"], "canary": "natural"})
    config["audits"]["steps-gradient-q1"]["sample_rate"] = 1.0
    with pytest.raises(InputError, match="is made twice"):
        parse_experiment(config)


SHIPPED = [ROOT / "config/demo.yaml", *sorted(ROOT.glob("config/*/*.yaml"))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_configs_are_valid(path):
    assert parse_experiment(yaml.safe_load(path.read_text())).audits


def test_the_editors_schema_is_current_and_admits_the_demo():
    import jsonschema

    schema = json.loads((ROOT / "config/schema.json").read_text())
    assert schema == config_schema(), "run: python -m dpcanary.config > config/schema.json"
    demo = yaml.safe_load((ROOT / "config/demo.yaml").read_text())
    jsonschema.validate(demo, schema)
    demo["audits"]["steps"]["lerning_rate"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(demo, schema)


def test_the_demo_is_the_one_that_the_readme_describes():
    experiment = parse_experiment(yaml.safe_load((ROOT / "config/demo.yaml").read_text()))
    assert len(experiment.sweeps["steps"]) == 10
    assert sum(len(experiment.sweeps[name]) for name in experiment.sweeps if "grid" in name) == 17


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "cifar"}, "no path of an .npz or .parquet file; did you mean 'cifar10'"),
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
            {"kind": "epsilon_by_setting", "sweeps": ["steps"]},
            "epsilon_by_setting needs setting",
        ),
        (
            {"kind": "trade_off", "sweeps": ["steps"], "setting": "num_steps"},
            "trade_off has no setting",
        ),
        ({"kind": "adjacency_ratio", "sweeps": ["steps"]}, "adjacency_ratio has no sweeps"),
        ({"kind": "test_accuracy", "sweeps": ["worst"]}, "trains no models"),
    ],
)
def test_figures_that_make_no_sense(figure, message):
    config = changed("figures", {"f": figure})
    config["audits"]["worst"] = {**GOOD["audits"]["steps"], "canary": "worst_case"}
    with pytest.raises(InputError, match=re.escape(message)):
        parse_experiment(config)
