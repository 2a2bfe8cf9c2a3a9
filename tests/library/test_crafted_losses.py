"""Losses that papers craft: their exact laws, draws and scores, and the literal DP-SGD loop."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import cumulative_trapezoid, quad
from scipy.stats import kstest, norm

from dpcanary.accounting.curve import GaussianCurve
from dpcanary.accounting.exact_trade_off import largest_mu
from dpcanary.adversaries.adversary_settings import DrawingStage
from dpcanary.adversaries.drawing import Drawing
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.errors import AccountingError, InputError
from dpcanary.papers.cebere.landscape_law import (
    Array,
    DensityCurve,
    Law,
    curves_of,
    exact_curves,
    exact_law,
    likelihood_ratio,
)
from dpcanary.papers.cebere.loss_landscape import (
    Landscape,
    LandscapeShape,
    Process,
    draw_positions,
    middle,
    process_of,
    two_levels,
)
from dpcanary.papers.published.encoding_loss import EncodingLoss
from dpcanary.scoring.scores import ScoringContext

DELTA = 1e-5
STEPS = (1, 2, 5, 25)
DIVERGING, CONVERGING = LandscapeShape


def settings(adjacency: str = "add_remove", **changes: object) -> dict:
    defaults = {"batch_size": 2, "landscape": "diverging", "adjacency": adjacency}
    return defaults | {"landscape_threshold": middle(Adjacency(adjacency))} | changes


def law_of(sigma: float, **changes: object) -> Law:
    return exact_law(process_of(settings(**changes), noise_multiplier=sigma), STEPS)


@pytest.mark.parametrize(("sigma", "batch_size"), [(1.0, 1), (1.0, 16), (8.0, 2)])
def test_a_constant_gradient_only_adds_noise(sigma, batch_size):
    """Example 1 of the paper: mu = 1 / (sigma sqrt(1 + (t - 1) / B^2))."""
    flat = Landscape(edges=(0.3,), moves=(0.7, 0.7))
    curves = curves_of(exact_law(Process(flat, (1.0, 0.0), sigma, sigma / batch_size), STEPS))
    for step, curve in zip(STEPS, curves, strict=True):
        mu = 1 / (sigma * np.sqrt(1 + (step - 1) / batch_size**2))
        assert curve.epsilon(DELTA) == pytest.approx(gdp_epsilon(mu=mu, delta=DELTA), abs=1e-4)
        assert largest_mu(curve) == pytest.approx(mu, abs=1e-4)
        rates = np.array([1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9])
        np.testing.assert_allclose(curve.fnr(rates), GaussianCurve(mu).fnr(rates), atol=1e-4)


def density_at(y: float, start: float, process: Process) -> float:
    """The density after the second step: by adaptive integration over each cell."""

    def integrand(x: float, move: float) -> float:
        return norm.pdf(x, start, process.first_noise) * norm.pdf(y, x + move, process.step_noise)

    cells = pairwise([start - 40.0, *process.landscape.edges, start + 40.0])
    precision = {"epsabs": 0, "epsrel": 1e-11, "limit": 400}
    return sum(
        quad(integrand, *cell, args=(move,), points=[np.clip(y - move, *cell)], **precision)[0]
        for cell, move in zip(cells, process.landscape.moves, strict=True)
    )


@pytest.mark.parametrize(("landscape", "step_noise"), [
    (two_levels(threshold=0.5, shape=DIVERGING), 0.41),  # its moves end between grid points
    (two_levels(threshold=3.0, shape=CONVERGING), 0.5),
    (Landscape(edges=(-1.0, 0.5, 2.0), moves=(1.0, -1.0, 0.25, -1.0)), 0.5),
])  # fmt: skip
def test_the_second_step_is_that_of_adaptive_integration(landscape, step_noise):
    process = Process(landscape, (1.0, 0.0), 1.0, step_noise)
    law = exact_law(process, (2,))
    for world, start in ((law.world0, 1.0), (law.world1, 0.0)):
        assert world[0].sum() * law.spacing == pytest.approx(1.0, abs=1e-8)
        for index in range(0, len(law.positions), len(law.positions) // 7):
            if world[0, index] > 1e-12:  # far into the tails, to relative precision
                exact = density_at(law.positions[index], start, process)
                assert world[0, index] == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("add_remove", 1.0), ("substitute", 2.0)])
def test_no_step_gives_more_than_the_first(adjacency, sensitivity):
    curves = curves_of(law_of(2.0, adjacency=adjacency, batch_size=4))
    first, *later = (curve.epsilon(DELTA) for curve in curves)
    assert first == pytest.approx(gdp_epsilon(mu=sensitivity / 2.0, delta=DELTA), abs=1e-4)
    assert (np.diff([first, *later]) < 1e-6).all()


def test_pushing_apart_gives_the_paper_s_figures_and_pulling_together_does_not():
    """B = 16 keeps the mu of the first step; B = 1 and sigma = 1 keep 0.92 of it, to the end."""

    def curves(sigma: float, **changes: object) -> list[DensityCurve]:
        return exact_curves(settings(**changes), noise_multiplier=sigma, steps=STEPS)

    mus = [8 * largest_mu(curve) for curve in curves(8.0, batch_size=16)]
    np.testing.assert_allclose(mus, 1.0, atol=1e-3)
    of_batch_1 = curves(1.0, batch_size=1)
    mus = [largest_mu(curve) for curve in of_batch_1]
    np.testing.assert_allclose(mus, [1, 0.946, 0.924, 0.922], atol=1e-3)
    for batch_size, most in ((16, 0.02), (1, 0.002)):
        pulled = curves(1.0, batch_size=batch_size, landscape="converging")
        assert largest_mu(pulled[-1]) < most
    # Where the curve is not Gaussian, the epsilon of the largest mu says too much.
    assert of_batch_1[-1].epsilon(DELTA) == pytest.approx(1.0846, abs=1e-3)
    assert gdp_epsilon(mu=mus[-1], delta=DELTA) == pytest.approx(3.985, abs=1e-3)


def test_epsilon_and_delta_agree():
    curve = curves_of(law_of(1.0))[-1]
    assert curve.delta(curve.epsilon(DELTA)) == pytest.approx(DELTA, rel=1e-6)
    assert curve.epsilon(0.99) == 0.0
    # The curve's tangents: no point lies below the line of (epsilon, delta).
    rates = np.linspace(0.0, 1.0, 1001)
    for epsilon in (0.0, 0.5, 1.5):
        line = 1 - curve.delta(epsilon) - np.exp(epsilon) * rates
        assert (curve.fnr(rates) > line - 1e-6).all()
    far = DensityCurve(np.array([0.0, 0, 0, 1, 1]), np.array([1.0, 1, 0, 0, 0]), 1.0)
    with pytest.raises(AccountingError, match="epsilon is above 512"):
        far.epsilon(DELTA)


@pytest.mark.parametrize(("epsilon", "rate"), [(0.05, 0.6), (0.4, 0.1), (1.1, 0.6)])
def test_delta_is_that_of_the_worse_order_of_the_worlds(rate, epsilon):
    """A Gaussian against its mixture with a shifted one, whose privacy loss has a closed form."""
    x, spacing = np.linspace(-12.0, 13.0, 4001, retstep=True)
    plain, mixed = norm.pdf(x), (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - 1)
    above = 0.5 + np.log((np.exp(epsilon) - 1 + rate) / rate)
    tail, moved = norm.sf(above), norm.sf(above - 1)
    expected = (1 - rate) * tail + rate * moved - np.exp(epsilon) * tail
    for worlds in ((plain, mixed), (mixed, plain)):
        curve = DensityCurve(*worlds, spacing)
        assert curve.delta(epsilon) == pytest.approx(expected, rel=1e-3)
        assert curve.epsilon(expected) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(("edges", "moves", "message"), [
    ((), (0.0,), "they must ascend, and there must be one"),
    ((1.0, 1.0), (0.0, 0.0, 0.0), "they must ascend"),
    ((1.0,), (0.0,), "1 edges need 2 moves"),
    ((1.0,), (0.0, 1.5), "gradients of norm C allow -1 to 1"),
    ((1.0,), (0.0, float("nan")), "gradients of norm C allow -1 to 1"),
    ((0.0, 1.0, 2.51), (0.0,) * 4, "multiples of its smallest gap apart"),
    ((0.0, 1e4), (-1.0, 1.0, 0.0), "grid points: give a larger noise_multiplier"),
])  # fmt: skip
def test_what_is_no_landscape_or_fits_on_no_grid_is_named(edges, moves, message):
    with pytest.raises(InputError, match=message):
        exact_law(Process(Landscape(edges, moves), (1.0, 0.0), 1.0, 0.1), (5,))


def positions_of(count: int, sigma: float, **changes: object) -> Array:
    """Draws of so many runs, shape (runs, steps)."""
    defaults = {"function": "", "observe": "position", "sample_rate": 1.0, "seed": 1}
    stage = {**defaults, "record_steps": STEPS, **settings(**changes)}
    drawing = Drawing(DrawingStage.model_validate(stage, strict=False), sigma, range(count))
    return draw_positions(drawing)


@pytest.mark.parametrize(("sigma", "changes"), [
    (1.0, {"batch_size": 1}),
    (4.0, {"batch_size": 16, "adjacency": "substitute"}),
    (2.0, {"landscape": "converging"}),
    (1.0, {"landscape_threshold": 2.5}),
])  # fmt: skip
def test_draws_and_their_scores_follow_the_exact_law(sigma, changes):
    positions, law = positions_of(10_000, sigma, **changes), law_of(sigma, **changes)
    context = ScoringContext(1.0, sigma, STEPS, None, settings(**changes))
    ratios = likelihood_ratio(positions[:, :, None], context)[:, :, 0]
    for column, densities in enumerate(zip(law.world0, law.world1, strict=True)):
        logs = np.log(np.maximum(densities, 1e-300))
        expected = np.interp(positions[:, column], law.positions, logs[0] - logs[1])
        np.testing.assert_allclose(ratios[:, column], expected, atol=1e-9)
        for world, density in enumerate(densities):
            cdf = cumulative_trapezoid(density, law.positions, initial=0.0)
            drawn = positions[world::2, column]
            test = kstest(drawn, lambda x, cdf=cdf: np.interp(x, law.positions, cdf))
            assert test.pvalue > 1e-4


C, LEARNING_RATE, SIGMA, NUM_STEPS = 2.5, 0.3, 0.8, 8
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
    for _ in range(NUM_STEPS):
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
@pytest.mark.parametrize("q", [pytest.param(1.0, marks=pytest.mark.long), 0.4])
def test_the_last_model_of_the_literal_loop_has_the_ratio_of_all_steps(adjacency, q):
    loss = EncodingLoss(q, SIGMA, adjacency, expected_batch=2e5)
    runs = [dp_sgd(loss, run) for run in range(8)]
    models, ratios = (np.array(part) for part in zip(*runs, strict=True))
    # Exact but for rounding at q = 1, where batches are certain.
    error = NUM_STEPS * loss.resolution / 2 + (0.0 if q == 1.0 else 0.03)
    np.testing.assert_allclose(loss.decoded(models), ratios, atol=error, rtol=0)
    in_float32 = models.astype(np.float32)
    np.testing.assert_allclose(loss.decoded(in_float32), ratios, atol=error + 1e-4, rtol=0)
    # A linear loss in this loop would leave only a sum, which is not enough at q < 1.
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
