"""Pretraining: against PyTorch's own training, and what it may be trained on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.canaries import InputCanary
from dpcanary.datasets.source import Source
from dpcanary.datasets.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.records import Records, Split, read_split, write_split
from dpcanary.settings.experiment import Experiment
from dpcanary.settings.parsing import parse_experiment
from dpcanary.settings.products import pretrained_models, reference_models
from dpcanary.training.batches import KnownBatches
from dpcanary.training.models import module_of
from dpcanary.training.pretraining import (
    Pretrained,
    pretrain,
    public_records,
    read_pretrained,
    write_pretrained,
)
from dpcanary.training.settings import PretrainingStage, Purpose, TrainingStage
from dpcanary.training.shard import train_shard

CPU = torch.device("cpu")
CLASSES, FEATURES = 3, 6
PRETRAINING = {"num_steps": 12, "batch_size": 8, "learning_rate": 0.3}


def experiment(pretraining: dict[str, object] | None = None, **changes: object) -> Experiment:
    audit = {
        "canary": "mislabeled",
        "dataset": "own",
        "model": "mlp",
        "hidden_sizes": [5],
        "sample_rate": 0.5,
        "noise_multiplier": 1.0,
        "num_steps": 3,
        "num_runs": 4,
        "pretraining": PRETRAINING | (pretraining or {}),
        **changes,
    }
    return parse_experiment(
        {
            "experiment": "test",
            "delta": 1e-5,
            "datasets": {
                name: {"source": f"{name}.npz", "num_records": 30} for name in ("own", "other")
            },
            "audits": {"one": {key: value for key, value in audit.items() if value is not None}},
        }
    )


def stage_of(**pretraining: object) -> PretrainingStage:
    return experiment(pretraining).stage(PretrainingStage, audit="one")


def some_records(count: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % CLASSES
    centres = np.random.default_rng(99).normal(size=(CLASSES, FEATURES))
    return Records((centres[labels] + rng.normal(size=(count, FEATURES))).astype("f4"), labels)


DATA = Split(some_records(30, 0), some_records(40, 1), some_records(500, 2))


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"optimizer": "sgd"}, lambda found: torch.optim.SGD(found, lr=0.3)),
        ({"momentum": 0.8}, lambda found: torch.optim.SGD(found, lr=0.3, momentum=0.8)),
        ({"optimizer": "adam"}, lambda found: torch.optim.Adam(found, lr=0.3)),
    ],
)
def test_pretraining_is_what_pytorch_does(options, optimizer):
    stage = stage_of(**options)
    seen: list[int] = []
    found = pretrain(stage, data=DATA, public=DATA.auxiliary, device=CPU, on_progress=seen.append)
    assert seen == [1] * 12

    module = module_of(stage, shape=(FEATURES,), num_classes=CLASSES)
    descent = optimizer(module.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, T_max=12)
    batches = KnownBatches(
        np.arange(40), batch_size=8, seed=stage.model_seed, purpose=Purpose.PRETRAINING_BATCHES
    )
    for step in range(12):
        part = DATA.auxiliary[batches.at(step)]
        descent.zero_grad()
        logits = module(torch.from_numpy(part.features))
        nn.functional.cross_entropy(logits, torch.from_numpy(part.labels)).backward()
        descent.step()
        schedule.step()
    own = parameters_to_vector(module.parameters()).detach()
    np.testing.assert_allclose(found.parameters, own, rtol=2e-4, atol=2e-5)
    right = module(torch.from_numpy(DATA.test.features)).argmax(dim=1).numpy() == DATA.test.labels
    assert found.test_accuracy == pytest.approx(right.mean(), abs=1e-6)
    assert found.test_accuracy > 0.5  # chance is 1/3


def test_runs_start_from_the_pretrained_model():
    """A training that hardly moves has its accuracy and its logits."""
    audit = {"learning_rate": 1e-12, "num_steps": 1}
    stage = experiment(**audit).stage(TrainingStage, audit="one")
    pretrained = pretrain(stage_of(), data=DATA, public=DATA.auxiliary, device=CPU)
    canary = InputCanary(DATA.private.features[0], 1, 0)
    shard = train_shard(
        stage,
        data=DATA,
        canaries=[canary],
        noise_multiplier=1.0,
        runs=range(4),
        inputs={},
        device=CPU,
        pretrained=pretrained.parameters,
    )
    np.testing.assert_allclose(shard.test_accuracy, pretrained.test_accuracy, atol=1e-6)
    module = module_of(stage, shape=(FEATURES,), num_classes=CLASSES)
    vector_to_parameters(torch.from_numpy(pretrained.parameters), module.parameters())
    logits = module(torch.from_numpy(canary.features)[None]).detach().numpy()
    np.testing.assert_allclose(shard.observation[:, 0, 0, 0], np.tile(logits, (4, 1)), atol=1e-5)


def test_parameters_of_another_model_are_refused():
    with pytest.raises(
        InputError, match="there are 7 pretrained parameters, and the module has 53"
    ):
        module_of(
            stage_of(), shape=(FEATURES,), num_classes=CLASSES, pretrained=np.zeros(7, np.float32)
        )


def test_the_file_of_a_pretrained_model(tmp_path: Path):
    path = tmp_path / "model.npz"
    write_pretrained(path, Pretrained(np.arange(5, dtype=np.float32), 0.5))
    np.testing.assert_array_equal(read_pretrained(path), np.arange(5))
    write_split(path, DATA, settings={})
    with pytest.raises(InputError, match="holds no pretrained model"):
        read_pretrained(path)


# Public records


def test_auxiliary_records_are_taken_by_default():
    assert public_records(DATA) == (DATA.auxiliary, 0)


@pytest.mark.parametrize("shape", [(FEATURES,), (3, 4, 4)])
def test_records_of_the_audit_are_left_out_of_another_dataset(shape, tmp_path):
    """Also where the two datasets are scaled by different auxiliary records."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (900, *shape)).astype(np.float32)
    labels = np.arange(900) % CLASSES
    whole, half = ({"training": Records(pixels[:n], labels[:n])} for n in (900, 500))
    data = split_records(
        Source("own", **half, test=None), num_records=150, num_auxiliary=200, seed=0
    )
    other = split_records(
        Source("other", **whole, test=None), num_records=600, num_auxiliary=100, seed=1
    )
    written = tmp_path / "other.npz"
    write_split(written, other, settings={})
    public, left_out = public_records(data, read_split(written))

    scaling = data.scaling
    assert scaling is not None

    def raw(records: Records) -> set[tuple[int, ...]]:
        back = records.features * scaling.deviation + scaling.mean
        return {tuple(row) for row in np.rint(back).astype(int).reshape(len(back), -1).tolist()}

    own = raw(data.private) | raw(data.test)
    assert len(own) == 300
    assert 100 < left_out < 300
    assert len(public) == 600 - left_out
    assert not raw(public) & own
    # Nothing else was left out, and labels belong to their features.
    known = {tuple(row): label for row, label in zip(pixels.reshape(900, -1), labels, strict=True)}
    assert len(raw(public)) == len(public)
    for row, label in zip(public.features, public.labels, strict=True):
        [one] = raw(Records(row[None], [0]))
        assert known[one] == label


def test_records_that_differ_a_little_are_no_copies():
    private = DATA.private
    moved = Records(private.features + np.float32(0.01), private.labels)
    near = replace(DATA, private=moved)
    assert public_records(DATA, near)[1] == 0
    assert public_records(DATA, replace(DATA, private=private[:7]))[1] == 7


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (Records(np.zeros((20, 4), np.float32), np.arange(20) % 3), r"features of shape \(4,\)"),
        (Records(np.zeros((20, FEATURES), np.float32), np.arange(20) % 5), "labels up to 4"),
        (DATA.auxiliary[:7], "batch_size 8 is more than the 7 records"),
    ],
)
def test_public_records_that_do_not_fit_are_refused(public, message):
    with pytest.raises(InputError, match=message):
        pretrain(stage_of(), data=DATA, public=public, device=CPU)


def test_a_training_that_diverges_is_refused():
    linear = experiment({"learning_rate": 1e30}, model="linear", hidden_sizes=None)
    stage = linear.stage(PretrainingStage, audit="one")
    large = Records(DATA.auxiliary.features * np.float32(1e18), DATA.auxiliary.labels)
    with pytest.raises(InputError, match="the pretraining diverged: lower learning_rate"):
        pretrain(stage, data=DATA, public=large, device=CPU)


# Configs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initialisation": "per_run"}, "initialisation per_run starts from no pretrained"),
        ({"initialisation": "zeros", "model": "linear"}, "initialisation zeros starts from no"),
        ({"pretraining": {"dataset": "own"}}, "pretraining.dataset own is the audited dataset"),
        ({"pretraining": {"dataset": "othr"}}, "pretraining.dataset: no 'othr'; did you mean"),
        (
            {"pretraining": {"num_step": 3}},
            "unknown key 'pretraining.num_step'; did you mean 'num_steps'",
        ),
        ({"score": "value", "canary": "gradient"}, "score"),
        ({"canary": "worst_case", "dataset": None}, "do not use this key"),
    ],
)
def test_configs_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        experiment(**changes)


def test_audits_of_one_model_share_its_pretraining():
    """It depends on the model and its own settings, not on the audited training."""

    def name(**changes: object) -> str:
        [job] = pretrained_models(experiment(**changes)).audits
        return job

    alike = name(learning_rate=0.5, num_steps=9, canary="gradient", noise_multiplier=2.0)
    assert name() == alike
    others = [name(hidden_sizes=[6]), name(pretraining={"num_steps": 3})]
    assert len({name(), *others}) == 3
    # Reference models start from it too.
    references = [
        [*reference_models(experiment(one)).audits] for one in ({}, {"learning_rate": 0.1})
    ]
    assert references[0] != references[1]
