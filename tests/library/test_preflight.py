"""What jobs would refuse is refused before any of them runs."""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from typer.testing import CliRunner

from dpcanary.audits.preflight import check_before, check_experiment, needs_check
from dpcanary.audits.workflow_run import run_config
from dpcanary.cli import app
from dpcanary.core.devices import chosen_device, reproducible_convolutions
from dpcanary.core.files import write_text
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.figures.planned import check_figures

DIGITS = {"source": "digits", "num_records": 100}


def config(dataset=DIGITS, device="cpu", **changes):
    audit = {
        "dataset": "data", "canary": "gradient", "sample_rate": 1.0, "noise_multiplier": 2.0,
        "num_steps": 5, "num_runs": 8,
    }  # fmt: skip
    shared = {"experiment": "e", "delta": 1e-5, "device": device}
    return shared | {"datasets": {"data": dataset}, "audits": {"one": audit | changes}}


def refusal_of(check: Callable[..., None], values: dict[str, Any], **options: bool) -> str:
    """What a check says of a config; nothing if it passes."""
    try:
        check(parse_experiment(values), **options)
    except InputError as error:
        return str(error)
    return ""


def refused(dataset=DIGITS, **changes) -> str:
    return refusal_of(check_experiment, config(dataset, **changes), device_is_here=True)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 10), nn.AlphaDropout(0.2))


def two_outputs() -> nn.Module:
    return nn.Linear(64, 2)


def number_of_tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(30, 4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(20, 1))


@pytest.mark.parametrize(("changes", "message"), [
    ({"num_records": 1790}, "datasets.data: digits: class 8 has 174 records, num_records 1790"),
    ({"num_test": 5000}, "num_test 5000 is not possible: 849 records are left"),
    ({"num_auxiliary": 1700}, "num_auxiliary 1700 is not possible: 1697 records"),
    ({"source": "cifar10", "num_records": 60_000}, "class 0 has 5000 records, num_records"),
    ({"source": "cifar10", "num_records": 50_000, "num_auxiliary": 10, "balanced": False},
     "50000 of its 50000 records are private"),
    ({"source": "purchase100_synthetic", "max_records": 400, "num_records": 500}, "needs 5"),
])  # fmt: skip
def test_counts_that_do_not_fit(changes, message):
    assert message in refused({**DIGITS, **changes})


@pytest.mark.parametrize(("source", "keys", "model"), [
    ("digits", {}, "linear"),
    ("cifar10", {}, "convnet"),
    ("purchase100_synthetic", {"max_records": 400}, "linear"),
    ("sst2", {"encoder": "sentence-transformers/all-MiniLM-L6-v2"}, "linear"),
    ("cifar10", {"encoder": "google/vit-base-patch16-224-in21k"}, "linear"),
])  # fmt: skip
def test_counts_that_fit(source, keys, model):
    checked = config({"source": source, "num_records": 100, **keys}, model=model)
    check_experiment(parse_experiment(checked), device_is_here=False)


@pytest.mark.parametrize(("dataset", "model", "message"), [
    (DIGITS, "convnet", "audits: one: model convnet takes images of shape (3, 32, 32)"),
    ({"source": "cifar10", "num_records": 100}, "linear", "takes flat features"),
    (DIGITS, "test_preflight:dropping", "layer '1' (AlphaDropout) drops units at random"),
    (DIGITS, "test_preflight:number_of_tokens", "cannot take records of shape (64,)"),
    (DIGITS, "test_preflight:two_outputs", "loss cross_entropy it must be (2, 10)"),
])  # fmt: skip
def test_models_that_cannot_be_trained(dataset, model, message):
    assert message in refused(dataset, model=model)


STEPS = {"num_steps": [5, 6]}
TARGETS = {"noise_multiplier": None, "target_epsilon": [1.0, 2.0]}
SEEDS = {"noise_multiplier": [2.0, 3.0]}
CLIPS = {**SEEDS, "max_grad_norm": [1.0, 2.0]}
NORMS = {**STEPS, "canary": "loss", "score": "gradient_norm"}
LABELS = {"canary": "random_label", "score": None, "num_slots": 3}
TWO: dict[str, object] = {}


@pytest.mark.parametrize(("figure", "changes", "message"), [
    ({"kind": "epsilon_by_noise"}, STEPS, "differ in num_steps (5 and 6), which this figure does"),
    ({"kind": "epsilon_by_step"}, TARGETS, None),
    ({"kind": "epsilon_by_step"}, CLIPS,
     "differ in max_grad_norm (1 and 2), which this figure does not show: name it in panels or"),
    ({"kind": "epsilon_by_step", "lines": ["max_grad_norm"]}, CLIPS, None),
    ({"kind": "epsilon_by_setting", "setting": "num_steps"}, STEPS, None),
    ({"kind": "epsilon_by_setting", "setting": "learning_rate"}, STEPS, "differ in num_steps"),
    ({"kind": "score_histograms"}, STEPS, "have the same canary, score, sample rate and noise"),
    ({"kind": "score_histograms"}, SEEDS, None),
    ({"kind": "trade_off"}, STEPS, "have the same canary, score, sample rate and noise"),
    ({"kind": "trade_off", "panels": ["learning_rate"]}, SEEDS, "same canary, score and learning"),
    ({"kind": "trade_off"}, TWO, "differ in their accounted profile: show audits with other num_"),
    ({"kind": "trade_off"}, SEEDS, None),
    ({"kind": "test_accuracy"}, {**SEEDS, "num_steps": [5, 6]}, "differ in num_steps"),
    ({"kind": "test_accuracy"}, {**SEEDS, "noise_multiplier": 2.0}, None),
    ({"kind": "gradient_norm"}, {**NORMS, "num_slots": [1, 3]}, "differ in nothing that this"),
    ({"kind": "gradient_norm"}, {**NORMS, "score": ["loss", "gradient_norm"]}, None),
    ({"kind": "privacy_profile", "panels": ["noise_multiplier"]}, STEPS, None),
    ({"kind": "secrets"}, {**LABELS, "num_slots": [2, 3], **SEEDS}, None),
    ({"kind": "secrets"}, {**LABELS, "learning_rate": [0.1, 0.2]}, "num_copies and noise, by whi"),
    ({"kind": "secrets"}, {**LABELS, **STEPS}, "differ in num_steps: show them in different fig"),
])  # fmt: skip
def test_a_figure_that_cannot_show_its_audits_together(figure, changes, message):
    values = config(**({"canary": "mislabeled", "score": "loss"} | changes))
    values["figures"] = {"shown": {"sweeps": ["one"]} | figure}
    if changes is TWO:
        other = {"num_steps": 6, "canary": "crafted_input"}
        values["audits"]["two"] = values["audits"]["one"] | other
        values["figures"]["shown"]["sweeps"].append("two")
    said = refusal_of(check_figures, values)
    starts = ("figures.shown: audit", "figures.shown: the audits")
    assert (said.startswith(starts) and message in said) if message else not said


def test_ids_of_tokens_and_numbers_as_labels_fit_if_the_config_says_so(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", features=rng.integers(0, 30, (40, 5)), labels=rng.random(40))
    ids = {"source": str(tmp_path / "x.npz"), "num_records": 10, "balanced": False}
    ids |= {"label_kind": "numbers", "standardised": False}
    own = {"model": "test_preflight:number_of_tokens", "loss": "squared_error"}
    check_experiment(parse_experiment(config(ids, **own)), device_is_here=False)
    ids |= {"standardised": True}
    assert "keep them as they are: standardised: false" in refused(ids, **own)


def test_a_model_is_looked_at_on_each_of_its_datasets():
    both = config(model="linear")
    both["datasets"]["images"] = {"source": "cifar10", "num_records": 100}
    both["audits"]["two"] = {**both["audits"]["one"], "dataset": "images"}
    said = refusal_of(check_experiment, both, device_is_here=True)
    assert re.search(r"audits: two: .*takes flat features", said)


def test_a_dataset_of_one_class_and_a_device_that_is_not_here(tmp_path, monkeypatch):
    path = tmp_path / "one.npz"
    np.savez(path, features=np.zeros((10, 3)), labels=np.zeros(10, dtype=int))
    assert "all records have the same label" in refused({"source": str(path), "num_records": 4})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refusal = refused(device="cuda")
    assert "PyTorch finds no GPU" in refusal
    assert "set device to cpu or auto" in refusal
    # The nodes of a cluster may have one.
    check_experiment(parse_experiment(config(device="cuda")), device_is_here=False)
    assert chosen_device("auto").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert chosen_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(InputError, match="device is cuda:7, and PyTorch finds 1 GPUs"):
        chosen_device("cuda:7")


@pytest.mark.long
def test_a_process_of_its_own_tells_the_error(tmp_path):
    path = tmp_path / "config.yaml"
    write_text(path, yaml.safe_dump(config({**DIGITS, "num_test": 5000})))
    with pytest.raises(InputError, match=r"^datasets\.data: digits: num_test 5000 is not possible"):
        check_before(path, folder=tmp_path, device_is_here=True)


def test_a_look_that_takes_too_long_says_so(tmp_path, monkeypatch, capsys):
    path = tmp_path / "config.yaml"
    write_text(path, yaml.safe_dump(config({**DIGITS, "num_test": 5000})))
    monkeypatch.setattr("dpcanary.audits.preflight._MOST_SECONDS", 0.01)
    check_before(path, folder=tmp_path, device_is_here=True)
    assert "could not be seen in 0.01 seconds; the jobs\nwill say" in capsys.readouterr().err


def test_what_was_begun_is_not_looked_at_again(tmp_path):
    experiment = parse_experiment(config())
    assert needs_check(experiment, tmp_path)
    write_text(tmp_path / "experiment.json", experiment.to_json())
    assert needs_check(experiment, tmp_path)
    (tmp_path / "shards/one").mkdir(parents=True)
    (tmp_path / "shards/one/00000.npz").touch()
    assert not needs_check(experiment, tmp_path)
    assert needs_check(parse_experiment(config(num_steps=7)), tmp_path)
    (tmp_path / "experiment.json").unlink()
    assert needs_check(experiment, tmp_path)


def test_a_run_that_is_refused_leaves_the_results_as_they_are(tmp_path, monkeypatch, refuses):
    path, resolved = tmp_path / "config.yaml", tmp_path / "results/e/experiment.json"
    write_text(path, yaml.safe_dump(config(num_steps=7)))
    write_text(resolved, parse_experiment(config()).to_json())
    refusing = Mock(side_effect=InputError("no"))
    monkeypatch.setattr("dpcanary.audits.workflow_run.check_before", refusing)
    refuses("no", run_config, path, folder=tmp_path)
    assert resolved.exists()
    assert not resolved.with_name("looks.json").exists()


@pytest.mark.long
def test_the_command_says_so_before_it_times_or_starts_anything(tmp_path, monkeypatch, refuses):
    (tmp_path / "normalised_models.py").write_text(
        "from torch import nn\n\n\ndef build():\n"
        "    return nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))\n"
    )
    monkeypatch.chdir(tmp_path)
    never = Mock(side_effect=AssertionError("something was started"))
    monkeypatch.setattr("dpcanary.costs.cost_report.measured", never)
    monkeypatch.setattr("dpcanary.audits.workflow_run._status", never)
    monkeypatch.setattr("dpcanary.audits.preflight._MOST_SECONDS", 600)  # on a busy machine, too
    command = "audit --features digits --target-epsilon 10 --delta 1e-5 --num-steps 20 --cost"
    command += " --model normalised_models:build"
    refuses("BatchNorm1d", CliRunner().invoke, app, command.split(), catch_exceptions=False)


def test_convolutions_are_those_of_cudnn_without_rounding_and_settings_come_back():
    values_of = attrgetter("enabled", "deterministic", "benchmark", "allow_tf32")
    before = values_of(torch.backends.cudnn)
    with reproducible_convolutions():
        assert values_of(torch.backends.cudnn) == (True, True, False, False)
    assert values_of(torch.backends.cudnn) == before
