"""What cannot be trained, or would be trained without a meaning, is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcanary.canaries import GradientCanary
from dpcanary.canaries.natural import mislabeled
from dpcanary.canaries.record_gradients import RecordGradients
from dpcanary.errors import InputError
from dpcanary.training.ensemble import EnsembleResult, train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.paths.rotation import spanning_basis
from dpcanary.training.simulation import accumulated_updates, train_reference
from dpcanary.vocabulary import Initialisation, Loss

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.standard_normal((20, 5), np.float32), np.arange(20) % 3
RECORDS = Records(FEATURES, LABELS, FEATURES, LABELS, 3, target=4)
SETTINGS = DPSGD(1.0, 1.0, 0.1, (3,), sample_rate=0.5)


def train(module: nn.Module, records: Records = RECORDS, dpsgd: DPSGD = SETTINGS) -> EnsembleResult:
    return train_ensemble(
        module=module,
        records=records,
        canary=GradientCanary(0),
        dpsgd=dpsgd,
        runs=range(4),
        seed=0,
        device=CPU,
        initialisation=Initialisation.FIXED,
    )


@pytest.mark.parametrize("target", [-1, 20])
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_a_target_outside_of_the_records(target: int, rate: float) -> None:
    with pytest.raises(InputError, match=f"target {target} is none of the 20 records"):
        train(nn.Linear(5, 3), replace(RECORDS, target=target), replace(SETTINGS, sample_rate=rate))


def test_outputs_that_do_not_fit_the_labels() -> None:
    with pytest.raises(InputError, match="one output needs loss binary_cross_entropy"):
        train(nn.Linear(5, 1), replace(RECORDS, labels=LABELS % 2))
    binary = replace(SETTINGS, loss=Loss.BINARY_CROSS_ENTROPY)
    with pytest.raises(InputError, match="one output needs loss binary_cross_entropy"):
        train(nn.Linear(5, 1), dpsgd=binary)
    with pytest.raises(InputError, match="the model has 2 outputs, the records 3 classes"):
        train(nn.Linear(5, 2))
    few = replace(RECORDS, labels=LABELS % 2, test_labels=LABELS % 2)
    assert np.isfinite(train(nn.Linear(5, 1), few, binary).observations).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_steps": (3, 1)}, "record_steps must ascend"),
        ({"record_steps": ()}, "record_steps must ascend"),
        ({"record_steps": (0, 1)}, "record_steps must ascend"),
        ({"sample_rate": 0.0}, "sample_rate must lie in"),
        ({"sample_rate": 1.5}, "sample_rate must lie in"),
        ({"noise_multiplier": -1.0}, "must not be negative"),
        ({"max_grad_norm": 0.0}, "must not be negative"),
    ],
)
def test_mechanisms_without_a_meaning(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SETTINGS, **changes)


@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("kind", ["linear", "perceptron", "module"])
def test_features_in_double_precision_are_trained_in_single(kind: str, rate: float) -> None:
    modules = {
        "linear": nn.Linear(5, 3),
        "perceptron": nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
        "module": nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    }
    doubled = replace(
        RECORDS,
        features=FEATURES.astype(np.float64),
        test_features=FEATURES.astype(np.float64),
    )
    dpsgd = replace(SETTINGS, sample_rate=rate)
    one, two = train(modules[kind], RECORDS, dpsgd), train(modules[kind], doubled, dpsgd)
    assert np.array_equal(one.observations, two.observations)
    assert np.array_equal(one.test_accuracy, two.test_accuracy)


def test_a_reference_that_diverges() -> None:
    known = {
        "module": nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3)),
        "records": replace(RECORDS, features=1e3 * FEATURES),
        "initialisation": Initialisation.FIXED,
        "device": CPU,
    }
    descent = DPSGD(0.0, float("inf"), 1e30, (20,))
    with pytest.raises(InputError, match=r"without clipping, diverged: lower learning_rate \(1e"):
        train_reference(**known, dpsgd=descent)
    with pytest.raises(InputError, match=r"without noise diverged: lower learning_rate \(1e"):
        accumulated_updates(**known, dpsgd=replace(descent, max_grad_norm=1e30), seed=0)


def test_a_null_target_gradient_still_gets_another_label() -> None:
    """All cosines are then 0, and the first one would be the target's own label."""
    parameters = np.array([0.0, 0.0, 0.0, 500.0, 0.0, 0.0], np.float32)  # certain of class 0
    found = mislabeled(
        gradients=RecordGradients(nn.Linear(1, 3), parameters, Loss.CROSS_ENTROPY),
        num_classes=3,
        target_features=np.zeros(1, np.float32),
        target_label=0,
    )
    assert found.label != 0


def test_repeated_records_add_no_direction_that_rounding_chooses() -> None:
    vectors = torch.randn(10, 40, generator=torch.Generator().manual_seed(0))
    vectors[7] = vectors[2]
    basis = spanning_basis(vectors)
    assert basis is not None
    assert basis.shape == (40, 9)
    moved = vectors.clone()
    moved[7] += 1e-7
    again = spanning_basis(moved)
    assert again is not None
    torch.testing.assert_close(again, basis, rtol=0, atol=1e-5)
