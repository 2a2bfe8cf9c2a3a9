"""A kind of figure: the valid bounds of each audit at its last step, as dots."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.colors import is_color_like
from matplotlib.figure import Figure

from dpcanary.extend import FigureKind


def draw_spread(
    summary: pd.DataFrame, *, note: str = "", colour: str = "black"
) -> tuple[Figure, pd.DataFrame]:
    """Draws a dot for each bound; the numbers have a row for each dot."""
    is_last = summary["step"] == summary.groupby("audit")["step"].transform("max")
    columns = ["audit", "threshold_rule", "repeat", "epsilon_lower"]
    table = summary.loc[is_last & summary["is_valid"], columns]
    figure = Figure(figsize=(6.0, 1.5 + 0.4 * table["audit"].nunique()), layout="constrained")
    axes = figure.subplots()
    axes.plot(table["epsilon_lower"], table["audit"], "o", color=colour, clip_on=False)
    axes.set_xlim(left=0)
    axes.set_xlabel("epsilon: valid lower bounds, each at its own confidence")
    axes.set_title(note, fontsize="small")
    return figure, table


def why_not(audits: Mapping[str, Any], figure: Any, settings: Any) -> str:
    """Why a figure cannot be drawn; an empty text if it can."""
    colour = figure.options.get("colour", "black")
    return "" if is_color_like(colour) else f"options.colour: {colour!r} is no colour of Matplotlib"


SPREAD = FigureKind(
    "spread",
    draw="my_audits.spread:draw_spread",
    options=("colour",),
    check="my_audits.spread:why_not",
    caption=("Each dot is a valid lower bound on epsilon, at the last step of an audit.",),
)
