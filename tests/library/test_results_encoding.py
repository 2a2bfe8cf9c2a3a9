"""The numbers in the text on the encoding loss are those of its table and of the exact law."""

import numpy as np
import pytest
from published import Page, number, table_of
from scipy.optimize import brentq
from scipy.stats import binom, norm

SAYS = Page("hidden_state.md").says
DELTA, RATE, STEPS = 1e-5, 0.05, 100
NAMES = {"add_remove": "add/remove", "substitute": "substitute"}


def exact_of_sum(sigma: float, second: int) -> float:
    """Epsilon of the sum of all noisy gradients, by integration of its densities."""
    sums, spacing = np.linspace(-250, 250, 100_001, retstep=True)
    counts = np.arange(STEPS + 1)
    weights = binom.pmf(counts, STEPS, RATE)
    world0, world1 = (
        sum(
            weight * norm.pdf(sums, sign * count, sigma * np.sqrt(STEPS))
            for weight, count in zip(weights, counts, strict=True)
        )
        for sign in (1, second)
    )

    def excess(epsilon: float) -> float:
        pairs = ((world0, world1), (world1, world0))
        parts = [np.maximum(one - np.exp(epsilon) * other, 0).sum() for one, other in pairs]
        return max(parts) * spacing - DELTA

    return float(brentq(excess, 0, 20))


@pytest.mark.parametrize(("adjacency", "second"), [("add_remove", 0), ("substitute", -1)])
@pytest.mark.parametrize("sigma", [0.8, 1.0, 1.5])
def test_the_table(adjacency: str, second: int, sigma: float) -> None:
    rows = table_of("hidden-state").query("adjacency == @adjacency and noise_multiplier == @sigma")
    attacks = rows.set_index("score")["epsilon"]
    accounted = rows.set_index("series")["epsilon"][f"accounted_{adjacency}"]
    values = [accounted, attacks["decoded"], attacks["transcript"], exact_of_sum(sigma, second)]
    noise = number(sigma, 1).removesuffix(".0")
    SAYS(" | ".join([f"| {NAMES[adjacency]}", noise, *(number(one, 3) for one in values)]))
    assert attacks["decoded"] < accounted
    if sigma <= 1:
        assert attacks["decoded"] > values[-1]
