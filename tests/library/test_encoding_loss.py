"""The crafted loss whose last model leaks all steps, against the literal DP-SGD loop."""

import numpy as np
import pytest
import torch

from dpcanary.core.adjacency import Adjacency
from dpcanary.papers.published.encoding_loss import EncodingLoss

C, LEARNING_RATE, SIGMA, STEPS = 2.5, 0.3, 0.8, 8
SECOND_SIGN = {Adjacency.ADD_REMOVE: 0, Adjacency.ZERO_OUT: 0, Adjacency.SUBSTITUTE: -1}
adjacencies = pytest.mark.parametrize("adjacency", Adjacency)


def step_ratio(gradient: torch.Tensor, q: float, second: int) -> torch.Tensor:
    """The log of p0 / p1 of one noisy gradient in units of C, from the densities themselves."""
    noise = torch.distributions.Normal(0.0, SIGMA)

    def density(sign: int) -> torch.Tensor:
        return (1 - q) * noise.log_prob(gradient).exp() + q * noise.log_prob(gradient - sign).exp()

    return torch.log(density(1) / density(second))


def record_loss(model: torch.Tensor, others: int, q: float, second: int) -> torch.Tensor:
    """The loss of a record that is not the canary, of a model of shape (2,), as documented."""
    x, y = model / (LEARNING_RATE * C)
    width, resolution, expected = 16 * SIGMA, 2.0**-10, others * q
    goal = width * (torch.round(y / width) + torch.round(step_ratio(-x, q, second) / resolution))
    return (x**2 + (y - goal) ** 2) * C**2 * LEARNING_RATE / (2 * expected)


gradient_of = torch.func.grad(record_loss)


def clipped(gradients: torch.Tensor) -> torch.Tensor:
    norms = gradients.norm(dim=-1, keepdim=True)
    return gradients * torch.clamp(C / norms, max=1.0)


def dp_sgd(loss: EncodingLoss, run: int) -> tuple[np.ndarray, float]:
    """The literal loop: the last model in units of C, and the ratio of all noisy gradients."""
    q, second = loss.sample_rate, SECOND_SIGN[loss.adjacency]
    sign, generator = (1, second)[run % 2], np.random.default_rng(run)
    model, ratio = torch.tensor(loss.start * LEARNING_RATE * C), 0.0
    for _ in range(STEPS):
        gradient = gradient_of(model, loss.num_others, q, second)  # of each of these records
        batch = torch.from_numpy(generator.random(loss.num_others) < q)
        total = clipped(gradient.expand(loss.num_others, 2))[batch].sum(dim=0)
        canary = torch.zeros(2, dtype=torch.float64)
        if generator.random() < q:
            canary = clipped(torch.tensor([sign * 10 * C, 0.0], dtype=torch.float64))
            canary = canary.nan_to_num()  # a gradient of 0 has no direction
        noise = torch.from_numpy(generator.standard_normal(2)) * SIGMA * C
        ratio += float(step_ratio((canary + noise)[0] / C, q, second))
        model = model - LEARNING_RATE * (total + canary + noise)
    return model.numpy() / (LEARNING_RATE * C), ratio


@adjacencies
@pytest.mark.parametrize("q", [1.0, 0.4])
def test_the_last_model_of_the_literal_loop_has_the_ratio_of_all_steps(adjacency, q):
    loss = EncodingLoss(q, SIGMA, adjacency, expected_batch=2e5)
    runs = [dp_sgd(loss, run) for run in range(8)]
    models, ratios = (np.array(part) for part in zip(*runs, strict=True))
    # Exact but for rounding at q = 1, where batches are certain.
    error = STEPS * loss.resolution / 2 + (0.0 if q == 1.0 else 0.03)
    np.testing.assert_allclose(loss.decoded(models), ratios, atol=error, rtol=0)
    in_float32 = models.astype(np.float32)
    np.testing.assert_allclose(loss.decoded(in_float32), ratios, atol=error + 1e-4, rtol=0)
    # The same loop with a loss that is linear would leave a sum, which is not enough at q < 1.
    assert np.ptp(ratios) > 1


@adjacencies
def test_gradients_of_other_records_are_those_of_the_loss_and_clipped(adjacency):
    loss = EncodingLoss(0.4, SIGMA, adjacency, expected_batch=2e4)
    models = np.random.default_rng(0).normal(size=(400, 2)) * [4 * SIGMA, 1000]
    inputs = torch.from_numpy(models) * LEARNING_RATE * C
    of_models = torch.func.vmap(gradient_of, in_dims=(0, None, None, None))
    literal = of_models(inputs, loss.num_others, 0.4, SECOND_SIGN[adjacency])
    expected = clipped(literal).numpy() / C
    np.testing.assert_allclose(loss.other_gradients(models), expected, rtol=1e-9, atol=1e-12)
    longer = literal.norm(dim=-1).numpy() > C
    assert 0.02 < longer.mean() < 0.98  # some are clipped
