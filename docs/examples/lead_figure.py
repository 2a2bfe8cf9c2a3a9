"""Draws the figure at the top of the README from the results of `make demo`."""

from math import ceil, floor
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.figures import style

ROOT = Path(__file__).parents[2]
CANARIES = {
    "gradient": "attacker crafts the gradient",
    "crafted_input": "attacker crafts the features",
    "natural": "another real record",
    "mislabeled": "another label",
}


def draw(summary: pd.DataFrame) -> Figure:
    """Shown and accounted epsilon along training with full batches."""
    rows = summary[
        (summary["sweep"] == "steps")
        & (summary["sample_rate"] == 1)
        & (summary["threshold_rule"] == "combined")
    ]
    figure = Figure(figsize=(8.6, 4.6), layout="constrained")
    axes = figure.subplots()
    accounted = rows.drop_duplicates("step")
    for kind, text, dashes in (
        ("substitute", "accounted: what a record says\n(substitute)", "-"),
        (
            "add_remove",
            "accounted: whether a record is there\n(add/remove), as libraries report",
            "--",
        ),
    ):
        values = accounted[f"epsilon_upper_{kind}"]
        axes.plot(accounted["step"], values, color="black", linestyle=dashes, linewidth=2)
        end = (accounted["step"].iloc[-1] + 6, values.iloc[-1])
        axes.annotate(
            f"{ceil(10 * values.iloc[-1]) / 10}  {text}", end, va="center", annotation_clip=False
        )
    shifts = {"gradient": 0.0, "crafted_input": -0.45, "natural": 0.25, "mislabeled": -0.35}
    for canary, text in CANARIES.items():
        own = rows[rows["canary"] == canary]
        colour = style.canary_colour(canary)
        axes.plot(
            own["step"], own["epsilon_lower"], "o-", color=colour, markersize=3.5, linewidth=1
        )
        end = own["epsilon_lower"].iloc[-1]
        axes.annotate(
            f"{floor(10 * end) / 10}  shown: {text}",
            (own["step"].iloc[-1] + 6, end + shifts[canary]),
            va="center",
            color=colour,
            annotation_clip=False,
        )
    axes.set(xlim=(0, 500), ylim=(0, 10.6), xlabel="training step")
    axes.set_ylabel("epsilon at delta = 1e-5")
    axes.set_title(
        "1,000 models for each attack; 95 % confidence for each point, under the Gaussian"
        " assumption",
        loc="left",
        fontsize=9.5,
    )
    return figure


if __name__ == "__main__":
    with style.applied():
        found = draw(pd.read_csv(ROOT / "results/demo/summary.tsv", sep="\t"))
        found.savefig(ROOT / "docs/images/lead.png", dpi=150)
