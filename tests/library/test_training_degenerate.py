"""Numbers on the edge: trainings that diverge, null gradients, records that are repeated."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.input import mislabeled
from dpcanary.adversaries.settings import CraftingStage
from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients.linear import spanning_basis
from dpcanary.training.settings import Initialisation, Loss, ModelKind
from dpcanary.training.simulation import Reference, simulated_movement, train_reference

CPU = torch.device("cpu")


def test_a_reference_that_diverges() -> None:
    features = 1e3 * np.random.default_rng(0).standard_normal((20, 5), np.float32)
    known = {
        "module": nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3)),
        "records": Records(features, np.arange(20) % 3),
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
    keys = {"model_seed": 0, "initial_weights": None, "num_slots": 1, "loss": Loss.CROSS_ENTROPY}
    [found] = mislabeled(
        Crafting(
            CraftingStage.model_construct(model=ModelKind.LINEAR, **keys),
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
    moved = vectors.clone()
    moved[7] += 1e-7
    basis, again = spanning_basis(vectors), spanning_basis(moved)
    assert basis is not None
    assert basis.shape == (40, 9)
    torch.testing.assert_close(again, basis, rtol=0, atol=1e-5)
