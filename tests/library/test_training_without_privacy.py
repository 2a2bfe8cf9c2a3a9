"""Audits of training without privacy: settings, accounting, and the training itself."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpcanary.accounting.overview import profile, upper_bounds
from dpcanary.accounting.settings import AccountingStage
from dpcanary.canaries import InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.settings.experiment import Experiment
from dpcanary.settings.parsing import parse_experiment
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.training.settings import TrainingStage
from dpcanary.training.shard import train_shard


def experiment(**changes: object) -> Experiment:
    audit = {
        "canary": "loss",
        "adjacency": "add_remove",
        "dataset": "digits",
        "sample_rate": 1.0,
        "noise_multiplier": 0.0,
        "num_steps": 6,
        "record_every": 3,
        "num_runs": 4,
        "optimizer": "momentum",
        "learning_rate": 0.3,
        **changes,
    }
    return parse_experiment(
        {
            "experiment": "test",
            "delta": 1e-5,
            "datasets": {"digits": {"source": "digits", "num_records": 20}},
            "audits": {"one": audit},
        }
    )


@pytest.mark.parametrize("canary", ["gradient", "random_direction", "worst_case"])
def test_only_records_can_audit_training_without_privacy(canary):
    changes = {"canary": canary, "adjacency": "substitute"}
    if canary == "worst_case":
        changes |= {"dataset": None}
    with pytest.raises(InputError, match=f"one: .*without privacy, and canary {canary} is no"):
        experiment(**changes)


def test_a_clipping_norm_has_no_use_there():
    with pytest.raises(InputError, match=r"audits\.one: max_grad_norm: .* do not use this key"):
        experiment(max_grad_norm=2.0)
    with pytest.raises(InputError, match=r"noise_multiplier: .* greater than or equal to 0"):
        experiment(noise_multiplier=-1.0)


def test_nothing_is_clipped():
    stage = experiment().stage(TrainingStage, audit="one")
    mechanism = mechanism_of(stage, record_steps=(6,), noise_multiplier=0.0)
    assert mechanism.max_grad_norm == math.inf
    private = experiment(noise_multiplier=1.0, max_grad_norm=0.5)
    assert private.stage(TrainingStage, audit="one").max_grad_norm == 0.5


def test_every_epsilon_is_infinite():
    stage = AccountingStage(sample_rate=0.5, record_steps=(3, 6), canary_period=None, delta=1e-5)
    table = upper_bounds(stage, noise_multiplier=0.0)
    for adjacency in ("substitute", "add_remove", "group_privacy"):
        assert table[f"epsilon_upper_{adjacency}"].tolist() == [math.inf] * 2
    assert table["gaussian_distance"].isna().all()
    points = profile(stage, noise_multiplier=0.0)
    assert points["delta"].tolist() == [1.0, 1.0]
    finite = upper_bounds(stage, noise_multiplier=2.0)
    assert list(finite) == list(table)


def test_models_are_those_of_a_plain_loop_of_pytorch():
    """The records are far apart, so their gradients are long, and clipping would show."""
    rng = np.random.default_rng(0)
    private = Records(10 * rng.normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3)
    canary = InputCanary(10 * rng.normal(size=6).astype(np.float32), 1, target=4)
    stage = experiment(model="mlp", hidden_sizes=[5], initialisation="fixed").stage(
        TrainingStage, audit="one"
    )
    shard = train_shard(
        stage,
        data=Split(private, private[:0], private[:0]),
        canaries=[canary],
        noise_multiplier=0.0,
        runs=range(2),
        inputs={},
        device=torch.device("cpu"),
    )
    others = np.delete(np.arange(20), 4)
    for run, world in enumerate(shard.world[:, 0].tolist()):
        features, labels = private.features[others], private.labels[others]
        if world == 0:
            features = np.concatenate([features, canary.features[None]])
            labels = np.append(labels, canary.label)
        module = module_of(stage, shape=(6,), num_classes=3).double()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
        for step in range(1, 7):
            optimizer.zero_grad()
            outputs = module(torch.from_numpy(features).double())
            loss = nn.functional.cross_entropy(outputs, torch.from_numpy(labels), reduction="sum")
            (loss / 20).backward()
            optimizer.step()
            if step % 3 == 0:
                seen = torch.from_numpy(np.stack([private.features[4], canary.features])).double()
                np.testing.assert_allclose(
                    shard.observation[run, step // 3 - 1, 0],
                    module(seen).detach().numpy(),
                    rtol=2e-4,
                    atol=2e-4,
                )
