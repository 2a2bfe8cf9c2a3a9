"""Pretraining: against PyTorch's own training, and what it may be trained on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_training_models as models
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary.canaries import InputCanary
from dpcanary.datasets.source import Source
from dpcanary.datasets.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.records import Records, Split, read_split, write_split
from dpcanary.settings.experiment import Experiment
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
SHAPE: dict[str, Any] = {"shape": (6,), "num_classes": 3}


def experiment(pretraining: dict[str, object] | None = None, **changes: object) -> Experiment:
    settings = {"num_steps": 12, "batch_size": 8, "learning_rate": 0.3} | (pretraining or {})
    audit = {"canary": "mislabeled", "model": "mlp", "hidden_sizes": [5], "num_steps": 3}
    return models.experiment(**(audit | {"pretraining": settings} | changes))


def stage_of(**pretraining: object) -> PretrainingStage:
    return experiment(pretraining).stage(PretrainingStage, audit="one")


def some_records(count: int, seed: int) -> Records:
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    centres = np.random.default_rng(99).normal(size=(3, 6))
    return Records((centres[labels] + rng.normal(size=(count, 6))).astype("f4"), labels)


DATA = Split(some_records(30, 0), some_records(40, 1), some_records(500, 2))


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"optimizer": "sgd"}, lambda found: torch.optim.SGD(found, lr=0.3)),
        ({"momentum": 0.8}, lambda found: torch.optim.SGD(found, lr=0.3, momentum=0.8)),
        ({"optimizer": "adam"}, lambda found: torch.optim.Adam(found, lr=0.3)),
    ],
)
def test_pretraining_is_what_pytorch_does(options: dict[str, object], optimizer: Callable) -> None:
    stage, seen = stage_of(**options), []
    found = pretrain(stage, data=DATA, public=DATA.auxiliary, device=CPU, on_progress=seen.append)
    assert seen == [1] * 12
    module = module_of(stage, **SHAPE)
    descent = optimizer(module.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, T_max=12)
    purpose = Purpose.PRETRAINING_BATCHES
    batches = KnownBatches(np.arange(40), batch_size=8, seed=stage.model_seed, purpose=purpose)
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
    untested = replace(DATA, test=DATA.test[:0])
    none = pretrain(stage, data=untested, public=DATA.auxiliary, device=CPU)
    assert np.isnan(none.test_accuracy)


def test_runs_start_from_the_pretrained_model_and_its_file(tmp_path: Path) -> None:
    """A training that hardly moves has its accuracy."""
    stage = experiment(learning_rate=1e-12, num_steps=1).stage(TrainingStage, audit="one")
    pretrained = pretrain(stage_of(), data=DATA, public=DATA.auxiliary, device=CPU)
    path, canary = tmp_path / "model.npz", InputCanary(DATA.private.features[0], 1, 0)
    write_pretrained(path, pretrained)
    shard = train_shard(
        stage,
        data=DATA,
        canaries=[canary],
        noise_multiplier=1.0,
        runs=range(4),
        inputs={},
        device=CPU,
        pretrained=read_pretrained(path),
    )
    np.testing.assert_allclose(shard.test_accuracy, pretrained.test_accuracy, atol=1e-6)
    write_pretrained(path, Pretrained(np.arange(5, dtype=np.float32), 0.5))
    np.testing.assert_array_equal(read_pretrained(path), np.arange(5))
    write_split(path, DATA, settings={})
    with pytest.raises(InputError, match="holds no pretrained model"):
        read_pretrained(path)


# --- public records ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6,), (3, 4, 4)])
def test_records_of_the_audit_are_left_out_of_another_dataset(shape, tmp_path: Path) -> None:
    """Also where the two datasets are scaled by different auxiliary records."""
    pixels = np.random.default_rng(3).integers(0, 256, (900, *shape)).astype(np.float32)
    labels = np.arange(900) % 3
    whole, half = (
        Source("own", training=Records(pixels[:n], labels[:n]), test=None) for n in (900, 500)
    )
    data = split_records(half, num_records=150, num_auxiliary=200, seed=0)
    other = split_records(whole, num_records=600, num_auxiliary=100, seed=1)
    written, scaling = tmp_path / "other.npz", data.scaling
    write_split(written, other, settings={})
    public, left_out = public_records(data, read_split(written))
    assert scaling is not None

    def raw(records: Records) -> list[tuple[int, ...]]:
        back = records.features * scaling.deviation + scaling.mean
        return [tuple(row) for row in np.rint(back).astype(int).reshape(len(back), -1).tolist()]

    audited = {*raw(data.private), *raw(data.test)}
    assert len(audited) == 300
    assert 100 < left_out < 300
    assert len(public) == 600 - left_out == len({*raw(public)})
    assert not {*raw(public)} & audited
    # Nothing else was left out, and labels belong to their features.
    known = {tuple(row): label for row, label in zip(pixels.reshape(900, -1), labels, strict=True)}
    for row, label in zip(raw(public), public.labels, strict=True):
        assert known[row] == label


def test_only_copies_of_audited_records_are_left_out() -> None:
    assert public_records(DATA) == (DATA.auxiliary, 0)
    private = DATA.private
    moved = Records(private.features + np.float32(0.01), private.labels)
    assert public_records(DATA, replace(DATA, private=moved))[1] == 0
    assert public_records(DATA, replace(DATA, private=private[:7]))[1] == 7
    narrow = Records(private.features[:, :4], private.labels)
    assert public_records(DATA, replace(DATA, private=narrow)) == (narrow, 0)


@pytest.mark.parametrize(
    ("public", "message"),
    [
        (Records(np.zeros((20, 4), np.float32), np.arange(20) % 3), r"features of shape \(4,\)"),
        (Records(np.zeros((20, 6), np.float32), np.arange(20) % 5), "labels up to 4"),
        (DATA.auxiliary[:7], "batch_size 8 is more than the 7 records"),
        (
            replace(DATA.auxiliary, features=DATA.auxiliary.features * np.float32(1e18)),
            "the pretraining diverged: lower learning_rate",
        ),
    ],
)
def test_public_records_that_do_not_fit_are_refused(public: Records, message: str) -> None:
    linear = experiment({"learning_rate": 1e30}, model="linear", hidden_sizes=None)
    stage = linear.stage(PretrainingStage, audit="one")
    with pytest.raises(InputError, match=message):
        pretrain(stage, data=DATA, public=public, device=CPU)


# --- configs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initialisation": "per_run"}, "initialisation per_run starts from no pretrained"),
        ({"initialisation": "zeros", "model": "linear"}, "initialisation zeros starts from no"),
        ({"pretraining": {"dataset": "digits"}}, "pretraining.dataset digits is the audited data"),
        ({"pretraining": {"dataset": "othr"}}, "pretraining.dataset: no 'othr'; did you mean"),
        ({"canary": "worst_case", "dataset": None}, "do not use this key"),
    ],
)
def test_configs_that_make_no_sense_are_refused(changes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        experiment(**changes)


def test_audits_of_one_model_share_its_pretraining() -> None:
    """It depends on the model and its own settings, not on the audited training."""

    def name(pretraining: dict[str, object] | None = None, **changes: object) -> str:
        [job] = pretrained_models(experiment(pretraining, **changes)).audits
        return job

    alike = name(learning_rate=0.5, num_steps=9, canary="gradient", noise_multiplier=2.0)
    assert name() == alike
    others = [name(hidden_sizes=[6]), name({"num_steps": 3}), name({"dataset": "other"})]
    assert len({name(), *others}) == 4
    # Reference models start from it too.
    own, other = (
        [*reference_models(experiment(settings)).audits] for settings in ({}, {"momentum": 0.1})
    )
    assert own != other
