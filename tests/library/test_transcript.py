"""Score `transcript` of trained gradient canaries: what is seen, and the law by which it scores."""

from typing import Any

import numpy as np
import pytest
from by_hand import Floats
from scipy.stats import norm
from torch import nn

from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.scoring.scores import ensemble_scores
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.runs import EnsembleResult

pytestmark = pytest.mark.usefixtures("compiled_kernels")
COUNT, FEATURES, CLASSES = 40, 6, 3
CLIP, RATE = 0.6, 0.7
EMPTY = 2  # a feature that is 0 in every record, so no record moves the weights behind it
UNMOVED = GradientCanary(EMPTY, 7)
LINEAR, WIDE = nn.Linear(FEATURES, CLASSES), nn.Linear(COUNT + 20, CLASSES)
NETWORK = nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES))
KNOWN = {"sampling": "fixed", "batch_size": 8, "canary_period": 3, "sample_rate": 1.0}


def some_records(num_features: int = FEATURES) -> Records:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(COUNT, num_features)).astype(np.float32)
    features[:, EMPTY] = 0.0
    return Records(features, rng.integers(0, CLASSES, COUNT))


def mechanism(noise: float = 1.3, steps: Any = (2, 3, 9), **changes: Any) -> DPSGD:
    return DPSGD(noise, CLIP, RATE, steps, **{"sample_rate": 0.3, **changes})


def train(
    dpsgd: DPSGD, *, canary: Any = UNMOVED, module: nn.Module = LINEAR, **options: Any
) -> EnsembleResult:
    records = some_records(next(module.parameters()).shape[1])
    start = "zeros" if isinstance(module, nn.Linear) else "fixed"
    defaults = {"observe": "noisy_gradients", "runs": 6, "seed": 4, "initialisation": start}
    return train_ensemble(
        module=module, records=records, canary=canary, dpsgd=dpsgd, **defaults | options
    )


def direction(num_parameters: int) -> DirectionCanary:
    drawn = np.random.default_rng(8).normal(size=num_parameters)
    drawn *= CLIP * (1 - 1e-6) / np.linalg.norm(drawn)
    return DirectionCanary(drawn.astype(np.float32), 7)


def naive(observed: Floats, dpsgd: DPSGD) -> Floats:
    """The sum over the canary's steps of logarithms of ratios of densities."""
    q, sigma = dpsgd.sample_rate, dpsgd.noise_multiplier
    ins, outs = (
        (1 - q) * norm.pdf(observed, 0.0, sigma) + q * norm.pdf(observed, sign, sigma)
        for sign in (1.0, -1.0 if dpsgd.adjacency == "substitute" else 0.0)
    )
    ratios, start = np.zeros(observed.shape[:3]), 0
    for index, end in enumerate(dpsgd.record_steps):
        for step in range(start + 1, end + 1):
            if step % (dpsgd.canary_period or 1) == 0:
                ratios[:, index:] += np.log(ins / outs)[:, index, None, :, step - start - 1]
        start = end
    return ratios


@pytest.mark.parametrize(("module", "canary", "changes"), [
    (LINEAR, [GradientCanary(4, 7), GradientCanary(EMPTY, 9)], {}),
    (LINEAR, direction(FEATURES * CLASSES + CLASSES), {"adjacency": "add_remove"}),
    (WIDE, GradientCanary(1, 7), {"sample_rate": 1.0, "adjacency": "zero_out"}),
    (NETWORK, direction(53), KNOWN),
], ids=["slots", "linear-direction", "rotated", "mlp-direction-known"])  # fmt: skip
def test_noisy_gradients_are_the_steps_of_the_parameters_and_score_by_their_densities(
    module: nn.Module, canary: Canary, changes: dict[str, Any]
) -> None:
    """A step of plain descent is minus the rate times the noisy sum over the batch size."""
    dpsgd = mechanism(**changes)
    result = train(dpsgd, canary=canary, module=module)
    every = mechanism(steps=tuple(range(1, 10)), **changes)
    change = train(every, canary=canary, module=module, observe="change").observations
    size = dpsgd.expected_batch_size(COUNT)
    steps = np.diff(change.astype(float), axis=1, prepend=0.0) * -size / (RATE * CLIP)
    expected = np.zeros((*steps.shape[:1], 3, *steps.shape[2:], 6))
    for index, (first, last) in enumerate(((0, 2), (2, 3), (3, 9))):
        expected[:, index, ..., : last - first] = np.moveaxis(steps[:, first:last], 1, -1)
    np.testing.assert_allclose(result.observations, expected, atol=2e-4)
    ratios = naive(result.observations.astype(float), dpsgd)
    np.testing.assert_allclose(ensemble_scores(result), ratios, rtol=1e-6, atol=1e-6)


def test_the_optimizer_has_no_part_in_them() -> None:
    """Only a weight that no record moves is compared; other gradients differ with the models."""
    plain, *others = (
        train(mechanism(optimizer=name)).observations for name in ("sgd", "momentum", "adam")
    )
    for other in others:
        np.testing.assert_allclose(plain, other, atol=1e-6)
    with pytest.raises(InputError, match="noisy_gradients' is for training with noise"):
        train(mechanism(noise=0.0))
