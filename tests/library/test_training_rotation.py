"""Linear heads trained in the span of their records: when, and in which basis.

That their noise is that of the mechanism, also outside of the span, test_training_steps.py tests.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_training_ensemble import SETTINGS, TARGET, N, some_records, train
from torch import nn

from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.data.observations import Observation
from dpcanary.training.gradients.linear import spanning_basis
from dpcanary.training.training_settings import Initialisation, Optimizer

NUM_FEATURES, NUM_CLASSES = 48, 3
HEAD = nn.Linear(NUM_FEATURES, NUM_CLASSES)
HIDDEN = nn.Sequential(nn.Linear(NUM_FEATURES, 4), nn.Tanh(), nn.Linear(4, NUM_CLASSES))
RECORDS = some_records(NUM_FEATURES)[0]


def canaries_of(num_features: int) -> dict[str, list[Canary]]:
    """Canaries by kind. Two of "inputs" are alike, and two of "weights" share a feature."""
    weights = NUM_CLASSES * num_features
    features = np.linspace(-1.0, 1.0, num_features, dtype=np.float32)
    crafted = InputCanary(features, 1, TARGET)
    coordinates = [(7, TARGET), (num_features + 7, 0), (num_features + 8, 17), (weights + 1, 9)]
    return {
        "input": [crafted],
        "weight": [GradientCanary(num_features + 7, TARGET)],
        "bias": [GradientCanary(weights + 2, TARGET)],
        "inputs": [crafted, InputCanary(features**2, 2, 17), replace(crafted, target=9)],
        "weights": [GradientCanary(coordinate, record) for coordinate, record in coordinates],
    }


CANARIES = canaries_of(NUM_FEATURES)


def is_used(**changed: Any) -> bool:
    """Whether the basis changes bits: it draws other noise."""
    records = changed.get("records", RECORDS)
    options = {"module": nn.Linear(records.features.shape[1], NUM_CLASSES), "records": records}
    options |= {"test_records": None, "canary": CANARIES["input"]}
    plain, rotated = (
        train(range(4), rotate=rotate, **options | changed) for rotate in (False, True)
    )
    return not np.array_equal(plain.observations, rotated.observations)


def direction(touched: int) -> DirectionCanary:
    """Touches some classes; what is observed is the length of all parameters' change."""
    gradient = np.zeros(NUM_CLASSES * (NUM_FEATURES + 1), np.float32)
    gradient[: touched * NUM_FEATURES] = 0.05
    return DirectionCanary(gradient, TARGET)


@pytest.mark.parametrize(("changed", "used"), [
    *(({"canary": canary}, True) for canary in CANARIES.values()),
    ({"dpsgd": replace(SETTINGS, optimizer=Optimizer.MOMENTUM)}, True),
    ({"dpsgd": replace(SETTINGS, optimizer=Optimizer.ADAM)}, False),
    ({"initialisation": Initialisation.FIXED, "module": HEAD}, False),
    ({"initialisation": Initialisation.PER_RUN, "module": HEAD}, False),
    *(({"canary": direction(touched)}, False) for touched in (0, 1, NUM_CLASSES)),
    ({"module": HIDDEN}, False),
    ({"module": nn.Sequential(nn.Linear(NUM_FEATURES, NUM_CLASSES))}, False),
    ({"canary": CANARIES["weight"], "observe": Observation.CHANGE_AND_LENGTH}, False),
    # It must save a column. The vectors that it spans are records, and canaries or touched
    # features; the columns are features and the bias.
    *(({"canary": canaries_of(width)[kind], "records": some_records(width)[0]}, vectors <= width)
      for kind, vectors in (("input", N + 1), ("inputs", N + 3), ("weight", N + 1),
                            ("weights", N + 3)) for width in (vectors - 1, vectors)),
])  # fmt: skip
def test_the_basis_is_used_for_descent_from_zero_on_few_records(changed, used):
    assert is_used(**changed) == used


@settings(max_examples=30)
@given(
    count=st.integers(1, 14), width=st.integers(1, 20), rank=st.integers(1, 14), seed=st.integers(0)
)
def test_the_basis_is_orthonormal_and_spans_the_records(count, width, rank, seed):
    """Without directions that come from rounding; there is none if it would save no column."""
    rank = min(rank, count, width)
    rng = np.random.default_rng(seed)
    # Orthonormal factors keep the rank clear of rounding.
    factors = [np.linalg.qr(rng.normal(size=(size, rank)))[0] for size in (count, width)]
    vectors = torch.from_numpy(factors[0] @ factors[1].T).float()
    # Where records are long sums of the first ones that nearly cancel, rounding adds directions.
    records = vectors.double().numpy()
    parts = np.linalg.lstsq(records[:rank].T, records.T)[0].T * np.linalg.norm(
        records[:rank], axis=1
    )
    assume((np.abs(parts).sum(axis=1) < 5 * np.linalg.norm(records, axis=1)).all())
    basis = spanning_basis(vectors)
    if count >= width:
        assert basis is None
        return
    assert basis is not None
    assert basis.shape == (width, rank)
    torch.testing.assert_close(basis.T @ basis, torch.eye(rank), rtol=0, atol=1e-6)
    torch.testing.assert_close(vectors @ basis @ basis.T, vectors, rtol=0, atol=1e-5)


def test_repeated_records_add_no_direction_that_rounding_chooses() -> None:
    vectors = torch.randn(10, 40, generator=torch.Generator().manual_seed(0))
    vectors[7] = vectors[2]
    moved = vectors.clone()
    moved[7] += 1e-7
    basis, again = spanning_basis(vectors), spanning_basis(moved)
    assert basis is not None
    assert basis.shape == (40, 9)
    torch.testing.assert_close(again, basis, rtol=0, atol=1e-5)
