"""Audits whose exact law is known: their epsilon, how much of it is left, and their landscape."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpcanary.core.adjacency import ADJACENCIES
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.figures import style
from dpcanary.figures.layout import draw_line, make_frame
from dpcanary.figures.notes import audited_heading, bounds_note, epsilon_label
from dpcanary.figures.rows import check_agree, of_first_valid_rule, over_repeats
from dpcanary.papers.cebere.landscape_law import Law, exact_law
from dpcanary.papers.cebere.loss_landscape import Process, process_of

_PLACE = ("noise_multiplier", "batch_size")
_EXACT = {"exact": "epsilon_hidden_state", "exact_gdp": "epsilon_hidden_state_gdp"}
# The exact series that a conversion estimates, and the heading of their panels.
_OF_CONVERSION = {
    Conversion.GDP.value: ("exact_gdp", "GDP conversion: as if the curve were Gaussian"),
    Conversion.DIRECT.value: ("exact", "Direct conversion: no assumption"),
}
_ONLY_DIRECT = (
    "Only direct conversion bounds the ε of the final model where its curve is not Gaussian"
)
_AXES = {"step": "training step", "landscape_threshold": "threshold h of the landscape / C"}
_MOST_MARKERS = 7
# Columns of the summary, and the headings of their panels.
_PANELS = {
    "epsilon_lower": "audited, GDP conversion",
    "epsilon_hidden_state_gdp": "exact μ, as if Gaussian",
    "epsilon_hidden_state": "exact, no assumption",
}
_COLOURS, _DARK = "viridis", 0.6
_STEPS = (1, 2, 5)  # and the last one
_SETTINGS = ("adjacency", "batch_size", "landscape", "landscape_threshold")
# In these the audits must agree, unless they are on the axis.
_ALIKE = ("adjacency", "landscape", "landscape_threshold", "delta", "significance")
_WORLDS = ("world 0, with the gradient", "world 1")
_POINTS, _LEAST_DENSITY = 401, 1e-4


@style.applied()
def draw_hidden_state(
    summary: pd.DataFrame, *, axis: str, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each conversion and noise multiplier, with a colour for each batch size.

    The axis is a key of `_AXES`; along `landscape_threshold`, the step is the last one. The table
    has one row per point of a `series` (audited, exact, exact_gdp or accounted), with `epsilon`
    (the mean over repeats), `error_bar` (two standard errors) and num_repeats.
    """
    table = _hidden_state_table(summary, axis=axis)
    settings = [*table.groupby("noise_multiplier")]
    looks = style.ranked(sorted(table["batch_size"].dropna().unique()), "{:g}".format)
    adjacency = str(summary["adjacency"].iloc[0])
    accounted = style.ACCOUNTED[adjacency] | {"label": "all models seen, accounted"}
    grey: dict[str, Any] = {"color": "#4D4D4D"}
    conversions = [
        conversion for conversion in _OF_CONVERSION if (table["conversion"] == conversion).any()
    ]
    figure, blocks = make_frame(
        titles=[f"σ = {noise:g}" for noise, _ in settings],  # noqa: RUF001
        panel_size=(3.4, 2.4),
        legend=[
            ["batch size B:", *looks.values()],
            [
                audited_heading(note),
                grey | {"marker": "o", "linestyle": "none", "label": "final model"},
                "ε:",
                accounted,
                grey | {"label": "exact, final model"},
            ],
        ],
        notes=[note, bounds_note(summary, note), _ONLY_DIRECT],
        headings=[_OF_CONVERSION[conversion][1] for conversion in conversions],
        labels=(_AXES[axis], epsilon_label(summary)),
    )
    for panels, conversion in zip(blocks, conversions, strict=True):
        for axes, (_, points) in zip(panels, settings, strict=True):
            _draw_epsilons(axes, points, axis, looks, accounted, conversion)
    return figure, table


def _hidden_state_table(summary: pd.DataFrame, *, axis: str) -> pd.DataFrame:
    rows = _checked_rows(summary, axis=axis)
    place = [*_PLACE, axis]
    audited = over_repeats(rows, [*place, "conversion", "threshold_rule"])
    parts = [audited.assign(series="audited")]
    points = rows.drop_duplicates(place)
    accounted = f"epsilon_upper_{rows['adjacency'].iloc[0]}"
    for series, column in {**_EXACT, "accounted": accounted}.items():
        parts.append(points[place].assign(series=series, epsilon=points[column]))
    columns = [*place, "series", "conversion", "threshold_rule", "epsilon", "error_bar"]
    table = pd.concat(parts)[[*columns, "num_repeats"]]
    order = [*_PLACE, "series", axis]
    return pd.DataFrame(table.sort_values(order, kind="stable", ignore_index=True))


def _checked_rows(summary: pd.DataFrame, *, axis: str) -> pd.DataFrame:
    """The rows that a figure shows: of the first valid rule, and of the last step unless shown."""
    unknown = summary[summary["epsilon_hidden_state"].isna()]
    if len(unknown):
        raise InputError(
            f"audit {unknown['audit'].iloc[0]}: the exact law of canary"
            f" {unknown['canary'].iloc[0]} is not known, so this figure cannot show it"
        )
    rows = of_first_valid_rule(summary)
    check_agree(rows, [column for column in _ALIKE if column != axis])
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


def _draw_epsilons(
    axes: Axes,
    points: pd.DataFrame,
    axis: str,
    looks: dict[float, dict[str, Any]],
    accounted: dict[str, Any],
    conversion: str,
) -> None:
    level = points[points["series"] == "accounted"].drop_duplicates(axis).sort_values(axis)
    axes.plot(level[axis], level["epsilon"], **accounted)
    for size, look in looks.items():
        of_size = points[points["batch_size"] == size]
        exact = of_size[of_size["series"] == _OF_CONVERSION[conversion][0]]
        axes.plot(exact[axis], exact["epsilon"], color=look["color"], linewidth=1.1)
        curve = of_size[of_size["conversion"] == conversion]
        # So few points that markers do not cover each other, the first one among them.
        shown = curve.iloc[:: max(1, (len(curve) - 1) // (_MOST_MARKERS - 1))]
        draw_line(axes, shown, axis, look | {"linestyle": "none", "elinewidth": 0.8, "capsize": 0})
    axes.set_ylim(bottom=0.0)


@style.applied()
def draw_amplification(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws heatmaps of epsilon at the last recorded step over epsilon at the first one."""
    rows = summary[summary["conversion"] == Conversion.GDP]
    if rows["step"].nunique() < 2:
        raise InputError("only one step was recorded: there is no ratio to show")
    recorded = rows.groupby("audit")["step"].agg(["min", "max"])
    if len(recorded.drop_duplicates()) > 1:
        raise InputError(
            "the audits differ in their first or last recorded step: show them in different figures"
        )
    means = _checked_rows(rows, axis="step").groupby([*_PLACE, "step"])[[*_PANELS]].mean()
    first, last = rows["step"].min(), rows["step"].max()
    ratios = means.xs(last, level="step") / means.xs(first, level="step")
    figure, [panels] = make_frame(
        titles=[f"ε at step {last} / ε at step {first}\n{heading}" for heading in _PANELS.values()],
        panel_size=(3.3, 3.6),
        legend=[],
        notes=[note, _ratios_note(rows)],
        labels=("batch size B", "noise multiplier σ"),  # noqa: RUF001
    )
    for axes, column in zip(panels, _PANELS, strict=True):
        _draw_ratios(axes, ratios[column].unstack("batch_size"))
    return figure, ratios.reset_index()


def _draw_ratios(axes: Axes, ratios: pd.DataFrame) -> None:
    axes.imshow(ratios, cmap=_COLOURS, vmin=0.0, vmax=1.0, aspect="auto", origin="lower")
    for row, values in enumerate(ratios.to_numpy()):
        for column, value in enumerate(values):
            colour = "white" if value < _DARK else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    axes.set_xticks(range(ratios.shape[1]), [f"{size:g}" for size in ratios.columns])
    axes.set_yticks(range(ratios.shape[0]), [f"{noise:g}" for noise in ratios.index])
    axes.grid(visible=False)


def _ratios_note(rows: pd.DataFrame) -> str:
    return (
        f"Audited: mean bounds of {rows['repeat'].nunique()} repeats of R ="
        f" {rows['num_runs'].max():,} runs; ratios of bounds are no bounds. ε at δ ="
        f" {style.number(rows['delta'].iloc[0])}; 1 means that nothing is lost by hiding the models"
        " of the steps before"
    )


@style.applied()
def draw_loss_landscape(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws the loss of the only audit, and the density of its model after some steps.

    The table has `step` (0 for the loss), `position`, and `loss`, or the densities `world0` and
    `world1`.
    """
    audits = summary["audit"].unique()
    if len(audits) > 1 or summary["landscape"].isna().any():
        raise InputError(f"{len(audits)} audits: this figure shows one, with a crafted landscape")
    first = summary.iloc[0]
    process = process_of(
        {key: first[key] for key in _SETTINGS}, noise_multiplier=float(first["noise_multiplier"])
    )
    steps = sorted({*_STEPS, int(first["num_steps"])} & {*range(1, int(first["num_steps"]) + 1)})
    law = exact_law(process, steps)
    figure, [panels] = make_frame(
        titles=["loss of a batch / (B C²)", *(f"exact density, step {step}" for step in steps)],
        panel_size=(3.3, 2.6),
        legend=[
            [
                {"color": colour, "label": label}
                for colour, label in zip(style.WORLD_COLOURS, _WORLDS, strict=True)
            ]
        ],
        notes=[note, _landscape_note(first)],
        labels=("position θ / C", ""),
    )
    tables = [_draw_loss(panels[0], process)]
    for index, (axes, step) in enumerate(zip(panels[1:], steps, strict=True)):
        tables.append(_draw_densities(axes, law, index, step))
        axes.axvline(process.landscape.edges[0], color="#7A7A7A", linewidth=0.8, linestyle="--")
    return figure, pd.concat(tables, ignore_index=True)


def _draw_loss(axes: Axes, process: Process) -> pd.DataFrame:
    reach = 3 * process.first_noise + 1
    middle = process.landscape.edges[0]
    positions = np.linspace(middle - reach, middle + reach, _POINTS)
    slopes = np.array(process.landscape.moves)[np.searchsorted([middle], positions)]
    losses = -slopes * (positions - middle)  # minus the integral of the moves
    axes.plot(positions, losses, color="black")
    return pd.DataFrame({"step": 0, "position": positions, "loss": losses})


def _draw_densities(axes: Axes, law: Law, index: int, step: int) -> pd.DataFrame:
    both = law.world0[index], law.world1[index]
    highest = max(both[0].max(), both[1].max())
    [seen] = np.nonzero(np.maximum(*both) > _LEAST_DENSITY * highest)
    kept = np.unique(np.linspace(seen[0], seen[-1], _POINTS).astype(int))
    for density, colour in zip(both, style.WORLD_COLOURS, strict=True):
        axes.plot(law.positions[kept], density[kept], color=colour)
    axes.set_ylim(bottom=0.0)
    worlds = {"world0": both[0][kept], "world1": both[1][kept]}
    return pd.DataFrame({"step": step, "position": law.positions[kept], **worlds})


def _landscape_note(first: "pd.Series[Any]") -> str:
    return (
        f"Landscape {first['landscape']}, B = {first['batch_size']:g}, σ ="  # noqa: RUF001
        f" {first['noise_multiplier']:g}, {ADJACENCIES[first['adjacency']]} adjacency; the dashed"
        " line is the threshold"
    )
