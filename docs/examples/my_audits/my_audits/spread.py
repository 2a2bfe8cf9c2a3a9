"""A kind of figure: the valid bounds of each audit at its last step, as dots."""

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.extend import FigureKind


def draw_spread(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a dot for each bound; the numbers have a row for each dot."""
    is_last = summary["step"] == summary.groupby("audit")["step"].transform("max")
    columns = ["audit", "threshold_rule", "repeat", "epsilon_lower"]
    table = summary.loc[is_last & summary["is_valid"], columns]
    figure = Figure(figsize=(6.0, 1.5 + 0.4 * table["audit"].nunique()), layout="constrained")
    axes = figure.subplots()
    axes.plot(table["epsilon_lower"], table["audit"], "o", color="black")
    axes.set_xlim(left=0)
    axes.set_xlabel("epsilon: valid lower bounds, each at its own confidence")
    axes.set_title(note, fontsize="small")
    return figure, table


SPREAD = FigureKind(
    "spread",
    draw="my_audits.spread:draw_spread",
    caption=("Each dot is a valid lower bound on epsilon, at the last step of an audit.",),
)
