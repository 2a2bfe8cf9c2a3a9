"""Settings and records that cannot be trained, or only without a meaning, are refused by name."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.input import mislabeled
from dpcanary.adversaries.settings import CraftingStage
from dpcanary.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.rotation import spanning_basis
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.settings import Initialisation, Loss, ModelKind
from dpcanary.training.simulation import Reference, simulated_movement, train_reference

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.standard_normal((20, 5), np.float32), np.arange(20) % 3
RECORDS = Records(FEATURES, LABELS)
SETTINGS = DPSGD(1.0, 1.0, 0.1, (3,), sample_rate=0.5)


def train(
    module: nn.Module, records: Records = RECORDS, dpsgd: DPSGD = SETTINGS, target: int = 4
) -> EnsembleResult:
    return train_ensemble(
        module=module,
        records=records,
        test_records=records,
        canary=GradientCanary(0, target),
        dpsgd=dpsgd,
        runs=range(4),
        seed=0,
    )


@pytest.mark.parametrize(
    ("target", "message"),
    [(-1, "; it must be a whole number"), (20, ", and there are 20 records$")],
)
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_a_target_outside_of_the_records(target: int, message: str, rate: float) -> None:
    with pytest.raises(InputError, match=f"^canary: target is {target}{message}"):
        train(nn.Linear(5, 3), dpsgd=replace(SETTINGS, sample_rate=rate), target=target)


def test_outputs_that_do_not_fit_the_labels() -> None:
    with pytest.raises(InputError, match="one output needs loss binary_cross_entropy"):
        train(nn.Linear(5, 1), replace(RECORDS, labels=LABELS % 2))
    binary = replace(SETTINGS, loss=Loss.BINARY_CROSS_ENTROPY)
    with pytest.raises(InputError, match="one output needs loss binary_cross_entropy"):
        train(nn.Linear(5, 1), dpsgd=binary)
    with pytest.raises(
        InputError, match="the model has 2 outputs, the records and canaries 3 classes"
    ):
        train(nn.Linear(5, 2))
    few = replace(RECORDS, labels=LABELS % 2)
    assert np.isfinite(train(nn.Linear(5, 1), few, binary).observations).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"record_steps": (3, 1)}, r"^record_steps must ascend from 1; they are \(3, 1\)$"),
        ({"record_steps": (2, 2)}, "record_steps must ascend from 1"),
        ({"record_steps": ()}, "record_steps must ascend from 1"),
        ({"record_steps": (0, 1)}, r"^record_steps is 0; .* whole number of at least 1$"),
        ({"record_steps": (1.5,)}, r"^record_steps is 1.5; .* whole number of at least 1$"),
        ({"sample_rate": 0.0}, r"^sample_rate is 0.0; .* above 0 and at most 1$"),
        ({"sample_rate": 1.5}, r"^sample_rate is 1.5; .* above 0 and at most 1$"),
        ({"noise_multiplier": -1.0}, r"^noise_multiplier is -1.0; .* of at least 0$"),
        ({"noise_multiplier": float("nan")}, r"^noise_multiplier is nan; .* finite number"),
        ({"max_grad_norm": 0.0}, r"^max_grad_norm is 0.0; .* finite number above 0$"),
        ({"max_grad_norm": float("nan")}, r"^max_grad_norm is nan; .* finite number above 0$"),
        ({"momentum": 1.0}, r"^momentum is 1.0; .* of at least 0 and below 1$"),
        ({"momentum": -0.1}, r"^momentum is -0.1; .* of at least 0 and below 1$"),
    ],
)
def test_settings_out_of_their_range(changes: dict[str, object], message: str) -> None:
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
    doubled = replace(RECORDS, features=FEATURES.astype(np.float64))
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
    with pytest.raises(InputError, match=r"simulated training diverged: lower learning_rate \(1e"):
        simulated_movement(**known, dpsgd=replace(descent, max_grad_norm=1e30), seed=0)


def test_a_null_target_gradient_still_gets_another_label() -> None:
    """All cosines are then 0, and the first one would be the target's own label."""
    parameters = np.array([0.0, 0.0, 0.0, 500.0, 0.0, 0.0], np.float32)  # certain of class 0
    private, other = Records(np.zeros((1, 1), np.float32), [0]), Records(np.ones((1, 1)), [2])
    [found] = mislabeled(
        Crafting(
            CraftingStage.model_construct(
                model=ModelKind.LINEAR,
                model_seed=0,
                initial_weights=None,
                num_slots=1,
                loss=Loss.CROSS_ENTROPY,
            ),
            Split(private, auxiliary=other, test=other),
            Reference(parameters, mean_confidence=np.zeros(1)),
            CPU,
        )
    )
    assert found.target == 0
    assert found.label in (1, 2)


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
