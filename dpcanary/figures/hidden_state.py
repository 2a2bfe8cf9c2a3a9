"""Audited and exact epsilon of the final model, where its exact law is known."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpcanary.errors import InputError
from dpcanary.estimation.settings import Conversion
from dpcanary.figures import style
from dpcanary.figures.layout import make_frame
from dpcanary.printing import confidence_in_words

_PLACE = ("noise_multiplier", "batch_size")
_EXACT = {"exact": "epsilon_hidden_state", "exact_gdp": "epsilon_hidden_state_gdp"}
_LINES: dict[str, dict[str, Any]] = {
    "exact": {"linestyle": ":", "linewidth": 1.6, "label": "exact, final model only"},
    "exact_gdp": {"linestyle": "-", "linewidth": 0.9, "label": "exact μ, converted as if Gaussian"},
}
_MARKERS: dict[str, dict[str, Any]] = {
    Conversion.GDP: {"label": "GDP conversion (assumes a Gaussian curve)"},
    Conversion.DIRECT: {"markerfacecolor": "white", "label": "direct conversion (no assumption)"},
}
AXES = {"step": "training step", "landscape_threshold": "threshold h of the landscape / C"}
_MOST_MARKERS = 7


@style.applied()
def draw_hidden_state(
    summary: pd.DataFrame, *, axis: str, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each noise multiplier, with a colour for each batch size.

    Args:
        summary: of audits of one adversary whose exact law is known.
        axis: a key of `AXES`. Along `landscape_threshold`, the step is the last one.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers (`hidden_state_table`).

    Raises:
        InputError: if an audit has no exact law, or if two audits share a point.
    """
    table = hidden_state_table(summary, axis=axis)
    settings = [*table.groupby("noise_multiplier")]
    sizes = sorted(table["batch_size"].dropna().unique())
    colours = {size: style.rank_options(rank, len(sizes)) for rank, size in enumerate(sizes)}
    adjacency = str(summary["adjacency"].iloc[0])
    accounted = style.ACCOUNTED[adjacency] | {"label": "all models seen, accounted"}
    grey: dict[str, Any] = {"color": "#4D4D4D"}
    markers = [
        Line2D([], [], marker="o", linestyle="none", **grey, **_MARKERS[str(conversion)])
        for conversion in dict.fromkeys(table["conversion"].dropna())
    ]
    figure, [panels] = make_frame(
        num_panels=len(settings),
        panel_size=(3.4, 2.7),
        legend=[
            [
                "batch size B:",
                *(Line2D([], [], **colours[size], label=f"{size:g}") for size in sizes),
            ],
            ["audited ε (lower bound):", *markers],
            [
                "ε:",
                Line2D([], [], **accounted),
                *(Line2D([], [], **grey, **options) for options in _LINES.values()),
            ],
        ],
        notes=[note, _note(summary)],
        labels=(AXES[axis], f"ε at δ = {style.number(summary['delta'].iloc[0])}"),
    )
    for axes, (noise, points) in zip(panels, settings, strict=True):
        axes.set_title(f"σ = {noise:g}")  # noqa: RUF001
        _draw_panel(axes, points, axis, colours, accounted)
    return figure, table


def hidden_state_table(summary: pd.DataFrame, *, axis: str) -> pd.DataFrame:
    """The plotted numbers: one row per point of a series.

    Columns noise_multiplier, batch_size, the one on the axis, `series` (audited, exact, exact_gdp
    or accounted), conversion, threshold_rule, `epsilon` (the mean over repeats), `error_bar` (two
    standard errors) and num_repeats.
    """
    rows = checked_rows(summary, axis=axis)
    place = [*_PLACE, axis]
    audited = rows.groupby([*place, "conversion", "threshold_rule"], sort=False)["epsilon_lower"]
    parts = [
        audited.agg(epsilon="mean", error_bar="sem", num_repeats="count")
        .reset_index()
        .assign(series="audited", error_bar=lambda table: 2 * table["error_bar"])
    ]
    points = rows.drop_duplicates(place)
    accounted = f"epsilon_upper_{rows['adjacency'].iloc[0]}"
    for series, column in {**_EXACT, "accounted": accounted}.items():
        parts.append(points[place].assign(series=series, epsilon=points[column]))
    columns = [*place, "series", "conversion", "threshold_rule", "epsilon", "error_bar"]
    table = pd.concat(parts)[[*columns, "num_repeats"]]
    order = [*_PLACE, "series", axis]
    return pd.DataFrame(table.sort_values(order, kind="stable", ignore_index=True))


def checked_rows(summary: pd.DataFrame, *, axis: str) -> pd.DataFrame:
    """The rows that a figure shows: of the first valid rule, and of the last step unless shown.

    Raises:
        InputError: if an audit has no exact law, or if two audits share a point.
    """
    unknown = summary[summary["epsilon_hidden_state"].isna()]
    if len(unknown):
        raise InputError(
            f"audit {unknown['audit'].iloc[0]}: the exact law of canary"
            f" {unknown['canary'].iloc[0]} is not known, so this figure cannot show it"
        )
    valid = summary[summary["is_valid"]]
    if valid.empty:
        raise InputError("the summary has no bound of a valid rule")
    rows = valid[valid["threshold_rule"] == valid["threshold_rule"].iloc[0]]
    if axis != "step":
        rows = rows[rows["step"] == rows.groupby("audit")["step"].transform("max")]
    for _, group in rows.groupby([*_PLACE, axis]):
        audits = group["audit"].unique()
        if len(audits) > 1 or group["num_runs"].nunique() > 1:
            raise InputError(
                f"audits {audits[0]} and {audits[-1]} share a point of this figure, which shows"
                f" noise, batch size and {axis} alone: show them in different figures"
            )
    return pd.DataFrame(rows)


def _draw_panel(
    axes: Axes,
    points: pd.DataFrame,
    axis: str,
    colours: dict[float, dict[str, Any]],
    accounted: dict[str, Any],
) -> None:
    level = points[points["series"] == "accounted"].drop_duplicates(axis).sort_values(axis)
    axes.plot(level[axis], level["epsilon"], **accounted)
    for size, of_size in points.groupby("batch_size"):
        look = colours[float(str(size))]
        for series, options in _LINES.items():
            curve = of_size[of_size["series"] == series]
            axes.plot(curve[axis], curve["epsilon"], **{"color": look["color"]}, **options)
        for conversion, curve in of_size[of_size["series"] == "audited"].groupby("conversion"):
            shown = _thinned(curve)
            hollow = {"markerfacecolor": _MARKERS[str(conversion)].get("markerfacecolor")}
            axes.errorbar(
                shown[axis],
                shown["epsilon"],
                yerr=shown["error_bar"],
                linestyle="none",
                elinewidth=0.8,
                **look | {key: value for key, value in hollow.items() if value},
            )
    axes.set_ylim(bottom=0.0)


def _thinned(curve: pd.DataFrame) -> pd.DataFrame:
    """So few points that markers do not cover each other, with the first and the last."""
    every = max(1, (len(curve) - 1) // (_MOST_MARKERS - 1))
    return curve.iloc[::every]


def _note(summary: pd.DataFrame) -> str:
    runs, repeats = summary["num_runs"].max(), summary["repeat"].nunique()
    level = confidence_in_words(summary["significance"].iloc[0])
    return (
        f"Lower bounds: {summary['threshold_rule'].iloc[0]} rule, {level} confidence for each"
        f" point alone, R = {runs:,} runs; mean ± 2 standard errors of {repeats} repeats."
        " Where the solid and the dotted line differ, the trade-off curve is not Gaussian, and"
        " the GDP conversion may state more than the exact ε"
    )


def ratios_table(summary: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Each column at the last step over its value at the first one, by noise and batch size."""
    rows = checked_rows(summary, axis="step")
    means = rows.groupby([*_PLACE, "step"])[list(columns)].mean().reset_index("step")
    ends = [means[means["step"] == edge] for edge in (rows["step"].min(), rows["step"].max())]
    return pd.DataFrame(ends[1][list(columns)] / ends[0][list(columns)])
