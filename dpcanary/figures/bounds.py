"""Audited and accounted epsilon against a step, a number of runs, or a setting of training.

The panels show a valid rule if the summary has one.
"""

from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.printing import rounded_up
from dpcanary.errors import InputError, suggestion
from dpcanary.experiment.summary import AXES, NOT_VALID
from dpcanary.figures import style
from dpcanary.figures.layout import draw_line, log_ticks, make_frame, value_ticks
from dpcanary.figures.notes import (
    audited_heading,
    bounds_note,
    data_note,
    distance_in_words,
    epsilon_label,
    rule_in_words,
    shared_note,
)
from dpcanary.figures.panels import panels_of, settings_in_words
from dpcanary.figures.rows import OF_ESTIMATES, check_audits, over_repeats, shown_rows

# What may be on the axis, and its label.
LABELS = {
    "step": "training step",
    "noise_multiplier": "noise multiplier σ",  # noqa: RUF001
    "num_runs": "number of runs R, of both worlds together",
    **AXES,
}
_AUDITED, _INVALID, _HEURISTIC = "audited", "audited_not_valid", "heuristic"
_POINT = ("sample_rate", "noise_multiplier", "step")
_SERIES = ("canary", "score", "threshold_rule", "conversion")
_NUMBERS = ("epsilon", "error_bar", "num_repeats", "num_runs", "num_looks")
# Half the length of the dash that stands for a curve of one point, relative to its place.
_DASH = 0.06
# Where bounds on the axis hold alone, jointly with others of their curve, or some of both.
_HOLD = {
    "alone": "each point alone",
    "jointly": "all points of a curve jointly",
    "both": "all filled points of a curve jointly and for each hollow point alone",
}
# A line: canary, score, and values of the settings in which variants of the canary differ.
_Line = tuple[str, str, tuple[Any, ...]]
_Looks = dict[_Line, dict[str, Any]]


@style.applied()
def draw_bounds_figure(
    summary: pd.DataFrame,
    *,
    axis: str,
    note: str = "",
    heuristic: bool = False,
    panels: Sequence[str] = (),
    lines: Sequence[str] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each setting, with a line for each canary.

    The noise may change along `num_steps`, because it is calibrated to the same epsilon. Along the
    noise, epsilons span orders of magnitude, so further panels show the bounds as shares of the
    accounted epsilon.

    Args:
        summary: one row per audit, repeat, step and estimate. The step and the number of runs are
            the largest of each audit, unless they are on the axis.
        axis: a key of `LABELS`, the column of the summary on the axis.
        note: what a reader must know; printed below.
        heuristic: whether the epsilon of the last model under linear losses is drawn, which is no
            bound.
        panels: the settings by which panels differ, of `summary.PANELS`; by default the sample rate
            and, where it is not on the axis and does not follow from it, the noise.
        lines: the settings by which lines of one canary differ, of `summary.LINES`.

    Returns:
        The figure, and its numbers, those that are not drawn included: one row per point of a
        series. For its error, see `rows.over_repeats`. Accounted series do not depend on num_runs.
        The bounds of a rule that is not valid are a series of their own, which is drawn if there is
        no other one.

    Raises:
        InputError: if audits differ in what the figure does not show, or there is nothing to show.
    """
    if axis not in LABELS:
        raise InputError(f"unknown axis {axis!r}: {suggestion(axis, LABELS)}")
    by_panel = _panels(axis, panels)
    rows = shown_rows(summary, axis=axis)
    check_rows(rows, axis=axis, panels=panels, lines=lines)
    names = [name for name in style.ACCOUNTED if axis != "num_runs" or name != "group_privacy"]
    accounted = style.accounted_styles(names, rows["adjacency"])
    point = [*dict.fromkeys([*_POINT, *by_panel, axis])]
    table = _bounds_table(rows, point, lines, accounted, heuristic=heuristic)
    finite = {*table.loc[table["epsilon"] < float("inf"), "series"]}
    accounted = {
        name: options for name, options in accounted.items() if f"accounted_{name}" in finite
    }
    is_valid = bool(rows["is_valid"].any())
    drawn = table[table["series"] != (_INVALID if is_valid else _AUDITED)]
    panel_places = panels_of(rows, by_panel)
    audited = [_beside_limits(place.of(drawn), place.of(rows), point) for place in panel_places]
    looks, hold = _looks(drawn, lines), _how_bounds_hold(rows, axis)
    with_shares = axis == "noise_multiplier" and bool(accounted)
    figure, blocks = make_frame(
        titles=[place.title for place in panel_places],
        panel_size=(4.2, 2.3 if with_shares else 3.1),
        legend=[
            [
                audited_heading(note if is_valid else NOT_VALID),
                *(_marked(look, hold, jointly=True) for look in looks.values()),
            ],
            _marker_legend() if hold == "both" else [],
            style.accounted_legend("accounted ε (upper bound)", accounted, rows["adjacency"]),
            ["not a bound:", style.HEURISTIC] if _HEURISTIC in finite else [],
        ],
        notes=[
            note,
            "" if accounted else "No accounted ε is finite",
            "The heuristic is not known here" if heuristic and _HEURISTIC not in finite else "",
            _gaps_note(rows, accounted),
            _cut_note(drawn, axis),
            bounds_note(rows, note, of=_HOLD[hold]),
            _limits_note(pd.concat(audited), rows),
            data_note(rows),
        ],
        caption=[
            _price_note(table),
            distance_in_words(rows),
            shared_note(rows, (*by_panel, axis, *lines), needed=bool(panels)),
        ],
        headings=("", "Audited ε as a share of the accounted ε")[: 1 + with_shares],
        labels=(LABELS[axis], "" if with_shares else epsilon_label(rows)),
        sharey=True,
    )
    for axes, place in zip(blocks[0], panel_places, strict=True):
        of_panel = style.accounted_of_panel(accounted, place.of(rows)["adjacency"])
        of_series = {f"accounted_{name}": options for name, options in of_panel.items()}
        if _HEURISTIC in finite:
            of_series[_HEURISTIC] = style.HEURISTIC
        _draw_accounted(axes, place.of(drawn), axis, of_series)
    for axes, points in zip(blocks[0], audited, strict=True):
        for curve, options in _curves(points, lines, looks, hold):
            draw_line(axes, curve, axis, options)
    if with_shares:
        blocks[0][0].set_ylabel(epsilon_label(rows))
    _scale(blocks[0], drawn, rows[axis])
    for axes, points in zip(*blocks[1:], audited, strict=True) if with_shares else ():
        _draw_shares(axes, points, axis, [*_curves(points, lines, looks, hold)])
    return figure, table


def check_rows(
    rows: pd.DataFrame, *, axis: str, panels: Sequence[str] = (), lines: Sequence[str] = ()
) -> None:
    """Refuses audits that differ in what a figure of bounds does not show."""
    by_panel = _panels(axis, panels)
    shown = by_panel if axis in OF_ESTIMATES else [*by_panel, axis]
    check_audits(rows, shown=shown, lines=lines, of_bounds=True)


def _panels(axis: str, panels: Sequence[str]) -> list[str]:
    """The settings of panels: sample rate by default, and the noise where audits have one axis."""
    return [*panels] or [*_POINT[: 2 if axis in OF_ESTIMATES else 1]]


def _beside_limits(points: pd.DataFrame, rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The audited points of a panel, with the accounted epsilon of their adjacency as `limit`."""
    audited = points[points["series"].isin({_AUDITED, _INVALID})]
    # Where lines do not show it, all audits of a panel have one.
    adjacencies = audited.get("adjacency", pd.Series(rows["adjacency"].iloc[0], audited.index))
    is_substitute = adjacencies == Adjacency.SUBSTITUTE
    limited_by = np.where(is_substitute, "accounted_substitute", "accounted_add_remove")
    on = [*(key for key in keys if key != "num_runs"), "limited_by"]
    limits = points.rename(columns={"series": "limited_by", "epsilon": "limit"})[[*on, "limit"]]
    return audited.assign(limited_by=limited_by).merge(limits, on=on, how="left")


def _draw_shares(
    axes: Axes,
    points: pd.DataFrame,
    axis: str,
    curves: Sequence[tuple[pd.DataFrame, dict[str, Any]]],
) -> None:
    """Bounds over what is accounted, which a logarithmic axis of epsilon hides."""
    for curve, options in curves:
        shares = {name: curve[name] / curve["limit"] for name in ("epsilon", "error_bar")}
        draw_line(axes, curve.assign(**shares), axis, options)
    axes.axhline(1.0, **style.ACCOUNTED["substitute"])
    _scale_along(axes, points[axis])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def _bounds_table(
    rows: pd.DataFrame,
    point: list[str],
    lines: Sequence[str],
    accounted: style.Styles,
    *,
    heuristic: bool,
) -> pd.DataFrame:
    """The plotted numbers: one row per point of a series."""
    columns = [*point, *_SERIES, *lines, "is_valid", "num_runs", "num_looks"]
    audited = over_repeats(rows, [*dict.fromkeys(columns)])
    audited["series"] = audited["is_valid"].map({True: _AUDITED, False: _INVALID})
    columns_of = {f"accounted_{name}": f"epsilon_upper_{name}" for name in accounted}
    if heuristic:
        columns_of[_HEURISTIC] = "epsilon_heuristic"
    curves = [
        _accounted_table(rows, point, column).assign(series=series)
        for series, column in columns_of.items()
    ]
    table = pd.concat([audited, *curves], ignore_index=True)
    columns = [*point, "series", *_SERIES, *lines, *_NUMBERS]
    return table.reindex(columns=[*dict.fromkeys(columns)])


def _accounted_table(rows: pd.DataFrame, point: list[str], column: str) -> pd.DataFrame:
    keys = [key for key in point if key != "num_runs"]
    groups = rows.groupby(keys, dropna=False)[column]
    differ = groups.max() - groups.min() > 1e-6 * groups.max()
    if differ.any():
        values = zip(keys, differ[differ].index[0], strict=True)
        where = ", ".join(
            f"{key} {value:g}" if isinstance(value, float | int) else f"{key} {value}"
            for key, value in values
        )
        raise InputError(
            f"the audits at {where} differ in their accounted epsilon: show them in different"
            " figures"
        )
    return groups.max().rename("epsilon").reset_index()


def _lines(points: pd.DataFrame, settings: Sequence[str]) -> dict[_Line, pd.DataFrame]:
    """The audited points of each line; a setting that is not used is None."""
    keys = ["canary", "score", *settings]
    parts: dict[_Line, pd.DataFrame] = {}
    for key, group in points.dropna(subset="canary").groupby(keys, dropna=False):
        canary, score, *variant = key
        comparable = tuple(
            None if value != value else value for value in variant
        )  # NaN is not itself
        parts[str(canary), str(score), comparable] = group
    return parts


def _looks(points: pd.DataFrame, settings: Sequence[str]) -> _Looks:
    """Keyword arguments of `plot` for each line of a figure, in the order of the legend."""
    lines = sorted(_lines(points, settings), key=_order)
    variants: dict[str, list[tuple[Any, ...]]] = {}
    for canary, _, variant in lines:
        if variant not in variants.setdefault(canary, []):
            variants[canary].append(variant)
    return {
        (canary, score, variant): style.variant_options(
            canary,
            score,
            settings_in_words(settings, dict(zip(settings, variant, strict=True))),
            rank=variants[canary].index(variant),
            number=len(variants[canary]),
        )
        for canary, score, variant in lines
    }


def _order(line: _Line) -> tuple[Any, ...]:
    """By the catalogue, then by the values of the variant; missing ones first."""
    canary, score, variant = line
    ranks = [(value is not None, "" if value is None else value) for value in variant]
    return (*style.catalogue_order(canary, score), *ranks)


def _curves(
    points: pd.DataFrame, settings: Sequence[str], looks: _Looks, hold: str
) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
    """The lines of one panel and rule: the points of each, and keyword arguments of `plot`."""
    parts = _lines(points, settings)
    for line in (line for line in looks if line in parts):
        group = parts[line]
        # Joint bounds are lower: one line through both kinds would have steps.
        kinds = group.groupby(group["num_looks"] > 1) if hold == "both" else [(True, group)]
        for jointly, curve in kinds:
            yield curve, _marked(looks[line], hold, jointly=bool(jointly))


def _how_bounds_hold(rows: pd.DataFrame, axis: str) -> str:
    """A key of `_HOLD`, for the valid rule if there is one.

    Of joint bounds, other axes than num_runs show only one, and that holds by itself too.
    """
    if axis != "num_runs":
        return "alone"
    joint = (rows[rows["is_valid"]] if rows["is_valid"].any() else rows)["num_looks"] > 1
    return "jointly" if joint.all() else "both" if joint.any() else "alone"


def _marked(look: dict[str, Any], hold: str, *, jointly: bool) -> dict[str, Any]:
    """The look of the points of a line that hold jointly, or alone."""
    if hold != "both":
        return look
    # Markers elsewhere say which score it is: here the line does, unless it says the variant.
    dash = "-" if look["markerfacecolor"] == look["color"] else "--"
    face = look["color"] if jointly else "white"
    return {"linestyle": dash, **look, "markerfacecolor": face}


def _marker_legend() -> list[dict[str, Any] | str]:
    grey = {"color": "#4D4D4D", "marker": "o", "linestyle": "none"}
    return [
        "each bound holds:",
        grey | {"label": "jointly with those of its curve"},
        grey | {"markerfacecolor": "white", "label": "alone"},
    ]


def _gaps_note(rows: pd.DataFrame, accounted: style.Styles) -> str:
    """Where a line of group privacy ends, if it is drawn in a part of the figure."""
    is_missing = bool(rows["epsilon_upper_group_privacy"].isna().any())
    if "group_privacy" in accounted and is_missing:
        return "Group privacy has no line where it cannot be accounted"
    return ""


def _limits_note(points: pd.DataFrame, rows: pd.DataFrame) -> str:
    """How points and bars above what is accounted are to be read, if there are any."""
    above = int((points["epsilon"] > points["limit"]).sum())
    if above:
        return (
            f"{above} of {len(points)} points exceed the accounted ε; a valid bound may do so with"
            f" a probability of at most {100 * rows['significance'].iloc[0]:g} %, if its assumption"
            " holds"
        )
    if (points["epsilon"] + points["error_bar"] > points["limit"]).any():
        return "Bars are the error of a mean: where they cross the accounted ε, no mean exceeds it"
    return ""


def _price_note(table: pd.DataFrame) -> str:
    """How far the bounds of the rule that is not valid are from those of the valid one.

    The mean difference is over the points that both rules have; nothing if there is none.
    """
    points = table[table["series"].isin([_AUDITED, _INVALID])]
    of_rule = ("series", "threshold_rule", "epsilon", "error_bar", "num_repeats", "num_looks")
    place = [column for column in points if column not in of_rule]
    # As text, because a missing value would leave the point out.
    as_text = points.astype(dict.fromkeys(place, str))
    means = as_text.pivot_table("epsilon", index=place, columns="series")
    both = means.reindex(columns=[_AUDITED, _INVALID]).dropna()
    if both.empty:
        return ""
    difference = float((both[_INVALID] - both[_AUDITED]).mean())
    size = f"{abs(difference):.2f}"
    direction = "higher" if difference > 0 else "lower"
    rule = rule_in_words(points.loc[points["series"] == _INVALID, "threshold_rule"].iloc[0])
    compared = f"{size} {direction}" if size != "0.00" else "the same to within 0.01"
    return f"{rule[:1].upper()}{rule[1:]}: not valid, and {compared} on average."


def _draw_accounted(axes: Axes, points: pd.DataFrame, axis: str, accounted: style.Styles) -> None:
    for series, options in accounted.items():
        curve = points[points["series"] == series]
        positions, epsilons = curve[axis].tolist(), curve["epsilon"].tolist()
        if pd.isna(positions).all():  # the curve does not depend on the axis
            axes.axhline(epsilons[0], **options)
            continue
        is_finite = np.isfinite([nan, *epsilons, nan])
        is_alone = ~is_finite[:-2] & ~is_finite[2:]
        # A line through one point would be invisible.
        widths = [(1 - _DASH, 1 + _DASH) if alone else (1.0,) for alone in is_alone]
        dashes = [*zip(positions, epsilons, widths, strict=True)]
        axes.plot(
            [position * end for position, _, ends in dashes for end in ends],
            [epsilon for _, epsilon, ends in dashes for _ in ends],
            **options,
        )


def _scale(panels: Sequence[Axes], table: pd.DataFrame, values: "pd.Series[float]") -> None:
    """Gives all panels the same range, so that rules and settings compare."""
    for axes in panels:
        _scale_along(axes, values)
    if _is_logarithmic(table, str(values.name)):
        for axes in panels:
            axes.set_yscale("log")
            log_ticks(axes, axis="y")
        lows, highs = zip(*(axes.get_ylim() for axes in panels), strict=True)
        limits = min(lows), max(highs)
    else:
        of_group, others = _tops(table)
        highest = 1.5 * others if _is_cut(table) else max(of_group, others)
        limits = 0.0, 1.05 * highest or 1.0
    for axes in panels:
        axes.set_ylim(*limits)


def _is_logarithmic(table: pd.DataFrame, axis: str) -> bool:
    """Whether the axis of epsilon is: along the noise, it spans orders of magnitude."""
    return axis == "noise_multiplier" and bool((table["epsilon"] > 0).all())


def _tops(table: pd.DataFrame) -> tuple[float, float]:
    """The largest finite epsilons, error bars included: of group privacy, and of all else."""
    tops = table["epsilon"] + table["error_bar"].fillna(0.0)
    is_of_group = table["series"] == "accounted_group_privacy"
    of_group, others = (
        tops[(tops < float("inf")) & rows].max() for rows in (is_of_group, ~is_of_group)
    )
    return float(np.nan_to_num(of_group)), float(np.nan_to_num(others))


def _is_cut(table: pd.DataFrame) -> bool:
    """Whether group privacy leaves the panels, because it would flatten all other lines."""
    of_group, others = _tops(table)
    return of_group > 1.6 * others > 0


def _cut_note(table: pd.DataFrame, axis: str) -> str:
    """How high group privacy reaches where it leaves the panels."""
    if _is_logarithmic(table, axis) or not _is_cut(table):
        return ""
    return f"Group privacy reaches {rounded_up(_tops(table)[0])}, above the panels"


def _scale_along(axes: Axes, values: "pd.Series[float]") -> None:
    low, high = axes.dataLim.intervalx
    if values.name == "noise_multiplier" and high > 5 * low:  # enough for round numbers
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        log_ticks(axes, axis="x")
    elif values.name == "step" or values.min() <= 0:  # a logarithmic axis has no 0
        axes.set_xlim(left=min(0.0, float(values.min())))
        axes.locator_params(axis="x", integer=values.name == "step")
    else:  # the others have few values, each of which gets a tick
        value_ticks(axes, values)
