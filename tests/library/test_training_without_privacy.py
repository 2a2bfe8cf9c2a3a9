"""Audits of training without privacy: settings and accounting."""

import math

import pytest
import test_training_models as models

from dpcanary.accounting.overview import profile, upper_bounds
from dpcanary.accounting.settings import AccountingStage
from dpcanary.errors import InputError
from dpcanary.training.models import mechanism_of
from dpcanary.training.settings import TrainingStage


def stage(**changes: object) -> TrainingStage:
    audit = {
        "canary": "loss",
        "adjacency": "add_remove",
        "sample_rate": 1.0,
        "noise_multiplier": 0.0,
        "num_steps": 6,
        "record_every": 3,
        "optimizer": "momentum",
        "momentum": 0.8,
        "learning_rate": 0.3,
    }
    return models.stage(**(audit | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"canary": canary, "adjacency": "substitute"}, "one: .*without privacy, and canary")
            for canary in ("gradient", "random_direction")
        ),
        (
            {"canary": "worst_case", "adjacency": "substitute", "dataset": None},
            "without privacy, and canary worst_case is no",
        ),
        ({"max_grad_norm": 2.0}, r"audits\.one: max_grad_norm: .* do not use this key"),
        ({"noise_multiplier": -1.0}, "noise_multiplier: .* greater than or equal to 0"),
    ],
)
def test_settings_that_only_private_training_has_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        stage(**changes)


def test_nothing_is_clipped_and_every_epsilon_is_infinite():
    unclipped = mechanism_of(stage(), record_steps=(6,), noise_multiplier=0.0)
    assert unclipped.max_grad_norm == math.inf
    private = stage(noise_multiplier=1.0, max_grad_norm=0.5)
    assert mechanism_of(private, record_steps=(6,), noise_multiplier=1.0).max_grad_norm == 0.5
    known = AccountingStage(sample_rate=0.5, record_steps=(3, 6), canary_period=None, delta=1e-5)
    table = upper_bounds(known, noise_multiplier=0.0)
    for adjacency in ("substitute", "add_remove", "group_privacy"):
        assert table[f"epsilon_upper_{adjacency}"].tolist() == [math.inf] * 2
    assert table["gaussian_distance"].isna().all()
    assert profile(known, noise_multiplier=0.0)["delta"].tolist() == [1.0, 1.0]
    assert list(upper_bounds(known, noise_multiplier=2.0)) == list(table)
