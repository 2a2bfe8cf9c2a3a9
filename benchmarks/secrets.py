"""What ranks of secrets show against the number of secrets, candidates, copies and epsilon.

    python -m benchmarks.secrets

Writes docs/results/secrets.tsv and secrets.png. Nothing is trained: ranks are drawn from the
Gaussian mechanism whose k values are orthogonal, as if the attack saw one sum of gradients to which
each value adds in a direction of its own. The true value's coordinate has mean mu / sqrt(2), the
others 0, so that two values have distance mu. With c copies it is c mu. An attack on a last model
is weaker.
"""

import argparse
from math import sqrt
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from dpcanary.core.files import write_text
from dpcanary.core.gdp import gdp_mu
from dpcanary.estimation.ranks.rank_bound import estimate_epsilon_from_ranks

RESULTS = Path(__file__).parents[1] / "docs/results"
DELTA, EPSILONS = 1e-6, (1.0, 2.0, 4.0, 8.0, 16.0)
DEFAULT = {"num_secrets": 100, "num_candidates": 1_000, "copies": 1}
SWEEPS = {
    "num_secrets": (1, 3, 10, 30, 100, 300, 1_000),
    "num_candidates": (2, 10, 100, 1_000, 10_000, 100_000),
    "copies": (1, 2, 4, 8, 16),
}
WORDS = {
    "num_secrets": "secrets in one training",
    "num_candidates": "candidates of a secret",
    "copies": "copies of a secret",
}


def drawn_ranks(
    mu: float, num_secrets: int, num_candidates: int, stream: np.random.Generator
) -> NDArray[np.int64]:
    """Ranks under the mechanism with orthogonal values at distance mu."""
    true = stream.normal(mu / sqrt(2), 1.0, num_secrets)
    return np.asarray(1 + stream.binomial(num_candidates - 1, ndtr(-true)), np.int64)


def rows(repeats: int, seed: int = 0) -> pd.DataFrame:
    """A row for each cell: the mean bound, and its standard error."""
    table = []
    for name, values in SWEEPS.items():
        for value in values:
            cell = {**DEFAULT, name: value}
            for number, epsilon in enumerate(EPSILONS):
                mu = gdp_mu(epsilon=epsilon, delta=DELTA) * cell["copies"]
                key = (seed, *cell.values(), number)
                stream = np.random.default_rng(key)
                bounds = [
                    estimate_epsilon_from_ranks(
                        ranks=drawn_ranks(mu, cell["num_secrets"], cell["num_candidates"], stream),
                        num_candidates=cell["num_candidates"],
                        delta=DELTA,
                    ).epsilon_lower
                    for _ in range(repeats)
                ]
                table.append(
                    {
                        "sweep": name, **cell, "accounted": epsilon, "shown": np.mean(bounds),
                        "standard_error": np.std(bounds) / sqrt(max(1, repeats - 1)),
                    }
                )  # fmt: skip
    return pd.DataFrame(table)


def draw(table: pd.DataFrame, path: Path) -> None:
    """One panel for each sweep, one line for each accounted epsilon of one record."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(9.6, 3.2), sharey=True, layout="constrained")
    for panel, (name, values) in zip(panels, SWEEPS.items(), strict=True):
        for number, epsilon in enumerate(EPSILONS):
            line = table[(table["sweep"] == name) & (table["accounted"] == epsilon)]
            panel.errorbar(
                line[name], line["shown"], line["standard_error"], marker="o", markersize=3,
                color=f"C{number}", label=f"{epsilon:g}",
            )  # fmt: skip
        panel.set(xscale="log", xlabel=WORDS[name], xlim=(min(values) / 1.3, max(values) * 1.3))
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="epsilon shown (95 %)", ylim=(0, None))
    panels[0].legend(title="accounted for one record", fontsize=7, title_fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> None:
    """Draws ranks, and writes the table and the figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secrets", description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="trainings of each cell")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    table = rows(options.repeats)
    text = table.to_csv(sep="\t", index=False, float_format="%.6g")
    write_text(options.output / "secrets.tsv", text)
    draw(table, options.output / "secrets.png")


if __name__ == "__main__":
    main()
