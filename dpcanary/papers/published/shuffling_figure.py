"""What audits of shuffled batches show along noise, beside those of Poisson samples."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.core.adjacency import ADJACENCIES
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.figures import style
from dpcanary.figures.layout import draw_line, log_ticks, make_frame
from dpcanary.figures.notes import audited_heading, bounds_note, epsilon_label
from dpcanary.figures.rows import check_agree, last_rows, of_first_valid_rule, over_repeats
from dpcanary.training.training_settings import Sampling

_NOISE = "noise_multiplier"
# Keyword arguments of `plot` for each series, in the order of the legend.
_AUDITED: dict[str, dict[str, Any]] = {
    "shuffled_opposite": {
        "label": "shuffled, others are −C", "color": "#D55E00", "marker": "s", "zorder": 3,  # noqa: RUF001
    },
    "shuffled_zero": {
        "label": "shuffled, others are 0", "color": "#E69F00", "marker": "v", "zorder": 3,
    },
    "poisson": {"label": "Poisson samples", "color": "#0072B2", "marker": "o", "zorder": 3},
}  # fmt: skip
_ACCOUNTED: dict[str, dict[str, Any]] = {
    "guaranteed": {"label": "guaranteed with shuffling", "color": "black", "linestyle": "-"},
    "claimed": {"label": "accounted for Poisson samples", "color": "black", "linestyle": "--"},
}


@style.applied()
def draw_shuffling(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each adjacency, with lines along the noise multiplier.

    Args:
        summary: of audits of shuffled batches, and of Poisson samples at the same rate, if any,
            with the same numbers of batches and passes.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: one row per point of a `series`, with `epsilon` (the mean over
        repeats), `error_bar` (two standard errors) and `num_repeats`.

    Raises:
        InputError: if audits differ in what the figure does not show, or none is of shuffled
            batches.
    """
    rows = _checked_rows(summary)
    table = _table(rows)
    panels = [adjacency for adjacency in ADJACENCIES if (table["adjacency"] == adjacency).any()]
    shuffled = rows[rows["sampling"] == Sampling.SHUFFLED].iloc[0]
    figure, [drawn] = make_frame(
        titles=[ADJACENCIES[adjacency] for adjacency in panels],
        panel_size=(3.6, 3.1),
        legend=[
            [audited_heading(note), *_present(_AUDITED, table), *_zero(table)],
            ["ε:", *_present(_ACCOUNTED, table)],
        ],
        notes=[note, bounds_note(rows, note), _setting(shuffled)],
        labels=("noise multiplier σ", epsilon_label(rows)),  # noqa: RUF001
        sharey=True,
    )
    for axes, adjacency in zip(drawn, panels, strict=True):
        _draw(axes, table[table["adjacency"] == adjacency])
    return figure, table


def _checked_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first valid rule, by conversion direct if there."""
    conversions = {*summary.loc[summary["is_valid"], "conversion"]}
    is_there = Conversion.DIRECT in conversions
    conversion = Conversion.DIRECT if is_there else min(conversions, default="")
    rows = last_rows(of_first_valid_rule(summary, conversion))
    check_agree(rows, ("delta", "significance", "num_steps"))
    shuffled = rows[rows["sampling"] == Sampling.SHUFFLED]
    if shuffled.empty:
        raise InputError("no audit has shuffled batches, which this figure is of")
    check_agree(shuffled, ("batches_per_pass",))
    others = rows[rows["sampling"] != Sampling.SHUFFLED]
    wrong = others[
        (others["sampling"] != Sampling.POISSON)
        | ((others["sample_rate"] * shuffled["batches_per_pass"].iloc[0] - 1).abs() > 1e-6)
    ]
    if len(wrong):
        raise InputError(
            f"audit {wrong['audit'].iloc[0]} has no Poisson samples at the rate of the shuffled"
            f" batches, 1 / {shuffled['batches_per_pass'].iloc[0]:g}: show it in another figure"
        )
    return pd.DataFrame(rows)


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    is_shuffled = rows["sampling"] == Sampling.SHUFFLED
    series = ("shuffled_" + rows["other_records"].astype(str)).where(is_shuffled, "poisson")
    place = ["adjacency", "series", _NOISE]
    audits = rows.assign(series=series)
    one_each = audits.groupby(place)["configuration"].nunique().reset_index()
    several = one_each.loc[one_each["configuration"] > 1, _NOISE]
    if len(several):
        raise InputError(
            f"audits at {_NOISE} {several.iloc[0]:g} differ in what this figure does not show"
        )
    shuffled = audits[is_shuffled].drop_duplicates(["adjacency", _NOISE])
    is_substitute = shuffled["adjacency"] == "substitute"
    guaranteed = shuffled["epsilon_upper_substitute"].where(
        is_substitute, shuffled["epsilon_upper_add_remove"]
    )
    accounted = [
        shuffled[["adjacency", _NOISE]].assign(series=name, epsilon=epsilons)
        for name, epsilons in (("guaranteed", guaranteed), ("claimed", shuffled["epsilon_poisson"]))
    ]
    table = pd.concat([over_repeats(audits, place), *accounted])
    return table.sort_values(place, ignore_index=True)


def _present(looks: dict[str, dict[str, Any]], table: pd.DataFrame) -> list[dict[str, Any]]:
    return [look for series, look in looks.items() if (table["series"] == series).any()]


def _zero(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The legend's entry of bounds of 0, if there are any."""
    grey = {"color": "#4D4D4D", "marker": "o", "markerfacecolor": "white", "linestyle": "none"}
    return [grey | {"label": "0, at the axis"}] if (table["epsilon"] == 0).any() else []


def _draw(axes: Axes, points: pd.DataFrame) -> None:
    for series, look in {**_ACCOUNTED, **_AUDITED}.items():
        curve = points[points["series"] == series]
        # A logarithmic axis has no 0: the line has a gap there, and a marker stands on the axis.
        shown = curve["epsilon"].where(curve["epsilon"] > 0)
        draw_line(axes, curve.assign(epsilon=shown), _NOISE, look)
        zeros = look | {"markerfacecolor": "white", "linestyle": "none", "clip_on": False}
        for place in curve.loc[curve["epsilon"] == 0, _NOISE]:
            axes.plot([place], [0.0], transform=axes.get_xaxis_transform(), **zeros)
    axes.set_xscale("log")
    axes.set_yscale("log")
    log_ticks(axes, axis="x")
    log_ticks(axes, axis="y")


def _setting(shuffled: "pd.Series[Any]") -> str:
    batches, steps = int(shuffled["batches_per_pass"]), int(shuffled["num_steps"])
    return (
        f"{batches} batches in a pass, {steps // batches} passes; the adversary sees every noisy"
        " sum"
    )
