"""The heuristic for the last model: the exact epsilon of DP-SGD with linear losses."""

import json
from math import exp, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from typer.testing import CliRunner

from dpcanary.accounting import Adjacency, Mechanism, gdp_epsilon, heuristic_epsilon
from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.last_iterate import LEAST_DELTA
from dpcanary.cli import app
from dpcanary.errors import InputError


def training(adjacency: str, rate: float, steps: int, noise: float) -> Mechanism:
    return Mechanism(adjacency, sample_rate=rate, num_steps=steps, noise_multiplier=noise)


@given(
    adjacency=st.sampled_from(Adjacency), steps=st.integers(1, 400), mu=st.floats(0.05, 6.0),
    delta=st.sampled_from([1e-7, 0.03]),
)  # fmt: skip
@settings(max_examples=40)
def test_full_batches_have_the_closed_form(adjacency, steps, mu, delta):
    """The last model is then a Gaussian mechanism, whose epsilon is known."""
    sensitivity = 2 if adjacency == "substitute" else 1
    noise = sensitivity * sqrt(steps) / mu
    epsilon = heuristic_epsilon(training(adjacency, 1.0, steps, noise), delta=delta)
    assert epsilon == pytest.approx(gdp_epsilon(mu=mu, delta=delta), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("adjacency", Adjacency)
@pytest.mark.parametrize(("uses", "steps", "rate", "noise", "delta"), [
    (6, 6, 0.25, 1.1, 1e-3), (3, 6, 1.0, 1.1, 1e-3), (60, 60, 0.02, 0.6, 1e-6),
])  # fmt: skip
def test_delta_is_the_integral_of_the_densities(adjacency, uses, steps, rate, noise, delta):
    """A Riemann sum, both ways, of a record that is used in some steps or in all of them."""
    grid, deviation = np.linspace(-40, 40, 80_001), noise * sqrt(steps)
    counts = np.arange(uses + 1)
    masses = binom.pmf(counts, uses, rate)
    with_record = masses @ norm.pdf(grid, counts[:, None], deviation)
    without = norm.pdf(grid, 0, deviation)
    if adjacency == "substitute":
        without = with_record[::-1]
    mechanism = training(adjacency, rate, steps, noise)
    epsilon = heuristic_epsilon(mechanism, delta=delta, num_insertions=uses)
    pairs = ((with_record, without), (without, with_record))
    deltas = [np.maximum(p - exp(epsilon) * q, 0).sum() * (grid[1] - grid[0]) for p, q in pairs]
    assert max(deltas) == pytest.approx(delta, rel=1e-6)


def test_of_many_steps_the_number_of_batches_is_as_good_as_gaussian():
    rate, steps, noise = 0.01, 100_000, 4.0
    deviation = sqrt(steps * noise**2 + steps * rate * (1 - rate))
    truth = gdp_epsilon(mu=2 * rate * steps / deviation, delta=1e-5)
    epsilon = heuristic_epsilon(training("substitute", rate, steps, noise), delta=1e-5)
    assert epsilon == pytest.approx(truth, rel=1e-3)
    assert heuristic_epsilon(training("add_remove", 1e-6, 2, 5.0), delta=0.1) == 0


def test_no_other_pair_of_gradients_reveals_more_than_opposite_ones():
    """Delta by a Riemann sum over the plane, both ways."""
    axis, deviation = np.linspace(-22, 22, 881), 1.1 * sqrt(4)
    masses = binom.pmf(range(5), 4, 0.2)

    def world(*gradient: float) -> np.ndarray:
        along, across = (norm.pdf(axis, np.arange(5)[:, None] * g, deviation) for g in gradient)
        return np.einsum("n,nx,ny->xy", masses, along, across) * (axis[1] - axis[0]) ** 2

    epsilon, first = heuristic_epsilon(training("substitute", 0.2, 4, 1.1), delta=1e-3), world(1, 0)

    def delta(second: np.ndarray) -> float:
        pairs = ((first, second), (second, first))
        return max(np.maximum(p - exp(epsilon) * q, 0).sum() for p, q in pairs)

    assert delta(world(-1, 0)) == pytest.approx(1e-3, rel=1e-3)
    for other in ((-0.9, 0.0), (-0.6, 0.8), (0.0, 1.0), (0.5, 0.0)):
        assert delta(world(*other)) < 0.9e-3


@pytest.mark.parametrize(("noise", "changes", "words"), [
    (1.0, {"delta": 1e-13}, "at least 1e-12"),
    (1.0, {"delta": 1.0}, "delta"),
    (1.0, {"num_insertions": 0}, "num_insertions"),
    (1.0, {"num_insertions": 11}, "num_insertions is 11, and there are 10 steps"),
    (nan, {}, "noise_multiplier is nan"),
])  # fmt: skip
def test_what_is_refused(noise, changes, words):
    with pytest.raises(InputError, match=words):
        heuristic_epsilon(training("substitute", 0.5, 10, noise), **{"delta": 1e-5, **changes})


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_column_is_of_the_audited_adjacency_and_of_each_step(adjacency):
    """The record may be in each third batch, which has been drawn beforehand."""
    options = {"sample_rate": 1.0, "record_steps": (3, 12), "canary_period": 3, "delta": 1e-4}
    stage = AccountingStage(adjacency=adjacency, **options)
    sensitivity = 2 if adjacency == "substitute" else 1
    truth = [gdp_epsilon(mu=sensitivity * n / (2 * sqrt(3 * n)), delta=1e-4) for n in (1, 4)]
    epsilons = upper_bounds(stage, noise_multiplier=2.0)["epsilon_heuristic"]
    assert epsilons.tolist() == pytest.approx(truth)


@pytest.mark.parametrize(("changes", "noise"), [
    ({"batches_per_pass": 2}, 2.0), ({"delta": LEAST_DELTA / 2}, 2.0),
    ({"has_equal_steps": False}, 2.0), ({"in_first_step": True}, 2.0), ({}, 0.0),
])  # fmt: skip
def test_the_column_is_empty_where_it_is_not_known(changes, noise):
    options = {"sample_rate": 1.0, "record_steps": (4,), "canary_period": None, "delta": 1e-4}
    bounds = upper_bounds(AccountingStage(**options | changes), noise_multiplier=noise)
    assert bounds["epsilon_heuristic"].isna().all()


def printed(*arguments: str) -> str:
    command = "account --sample-rate 0.02 --num-steps 40 --noise-multiplier 0.6 --delta 1e-5"
    done = CliRunner().invoke(app, [*command.split(), *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_the_command_prints_it_where_it_is_asked_for():
    add_remove, substitute = (
        heuristic_epsilon(training(adjacency, 0.02, 40, 0.6), delta=1e-5)
        for adjacency in ("add_remove", "substitute")
    )
    text = " ".join(printed("--last-model").split())
    assert "A heuristic, which is no bound" in text
    assert f"would be {add_remove:.2f} (add/remove) and {substitute:.2f} (substitute)" in text
    heuristic = json.loads(printed("--last-model", "--json"))["heuristic_of_last_model"]
    assert heuristic == pytest.approx({"add_remove": add_remove, "substitute": substitute})
    assert "heuristic" not in printed() + printed("--json")
    with pytest.raises(InputError, match="--last-model: the heuristic is for Poisson sampling"):
        printed("--last-model", "--sampling", "shuffled")
