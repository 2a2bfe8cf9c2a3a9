"""From a summary of audits to the bounds that a figure shows."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.lines import Line2D

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import Entry
from dpcanary.figures.view import View

AUDITED, IN_SAMPLE = "audited", "audited_in_sample"
POINT = ["sample_rate", "noise_multiplier", "step"]
COLUMNS = [
    *POINT, "series", "canary", "score", "threshold_rule", "conversion", "epsilon", "error_bar",
    "num_repeats", "num_runs",
]  # fmt: skip
# What one point's rows of the summary have in common, beside what is on the axis.
_SERIES = ["canary", "score", "threshold_rule", "conversion", "is_valid"]


def selected_sweeps(summary: pd.DataFrame, sweeps: Sequence[str]) -> pd.DataFrame:
    """The summary's rows of some sweeps.

    Raises:
        InputError: if a sweep has no row; names it.
    """
    missing = [sweep for sweep in sweeps if not (summary["sweep"] == sweep).any()]
    if missing or not sweeps:
        known = ", ".join(map(str, summary["sweep"].unique())) or "none"
        raise InputError(f"the summary has no row of sweeps {', '.join(missing)}; it has: {known}")
    return summary[summary["sweep"].isin(list(sweeps))]


def bounds_table(rows: pd.DataFrame, view: View) -> pd.DataFrame:
    """The plotted numbers: one row per point of a series.

    Args:
        rows: as `view.shown_rows` gives them.
        view: what is on the axis and in the panels.

    Returns:
        Columns `COLUMNS`, and the axis if it is not one of them. `epsilon` of audited series is the
        mean over repeats (each the mean of its slots, where slots have bounds of their own),
        `error_bar` two standard errors of it (NaN for one repeat). Accounted series have no
        `num_runs`: they do not depend on it.
    """
    point = list(dict.fromkeys([*POINT, view.axis]))
    accounted = [_accounted_table(rows, point, series) for series in view.accounted]
    table = pd.concat([_audited_table(rows, point), *accounted], ignore_index=True)
    return table.reindex(columns=list(dict.fromkeys([*point, *COLUMNS])))


def _audited_table(rows: pd.DataFrame, point: Sequence[str]) -> pd.DataFrame:
    # Beside its value as a key, num_runs is a column to be had.
    by_repeat = rows.assign(runs=rows["num_runs"]).groupby([*point, *_SERIES, "repeat"], sort=True)
    repeats = by_repeat.agg(epsilon_lower=("epsilon_lower", "mean"), runs=("runs", "max"))
    table = (
        repeats.reset_index()
        .groupby([*point, *_SERIES], sort=True)
        .agg(
            epsilon=("epsilon_lower", "mean"),
            error_bar=("epsilon_lower", "sem"),
            num_repeats=("repeat", "nunique"),
            runs=("runs", "max"),
        )
        .reset_index()
    )
    table["error_bar"] *= 2
    table["num_runs"] = table.pop("runs")
    table["series"] = table["is_valid"].map({True: AUDITED, False: IN_SAMPLE})
    return table


def _accounted_table(rows: pd.DataFrame, point: Sequence[str], series: str) -> pd.DataFrame:
    keys = [key for key in point if key != "num_runs"]
    groups = rows.groupby(keys, sort=True)[f"epsilon_upper_{series}"]
    spread = (groups.max() - groups.min()) > 1e-6 * groups.max()
    if spread.any():
        where = ", ".join(
            f"{key} {value:g}" for key, value in zip(keys, spread[spread].index[0], strict=True)
        )
        raise InputError(
            f"the audits at {where} differ in their accounted epsilon: show them in different"
            " figures"
        )
    table = groups.max().rename("epsilon").reset_index()
    return table.assign(series=f"accounted_{series}")


def series_of(table: pd.DataFrame, series: str) -> list[tuple[str, str, pd.DataFrame]]:
    """An audited series by canary and score, in the order of the catalogue."""
    groups = [
        (str(canary), str(score), group)
        for (canary, score), group in table[table["series"] == series].groupby(["canary", "score"])
    ]
    return sorted(groups, key=lambda item: style.catalogue_order(item[0], item[1]))


def legend_of(table: pd.DataFrame, view: View) -> list[list[Entry]]:
    """The legend's groups: audited canaries, accounted curves."""
    both = table.assign(series=AUDITED).dropna(subset=["canary"])
    audited = [
        Entry(
            style.canary_name(canary, score), Line2D([], [], **style.canary_options(canary, score))
        )
        for canary, score, _ in series_of(both, AUDITED)
    ]
    lines = [style.ACCOUNTED[series] for series in view.accounted]
    accounted = [Entry(line.name, Line2D([], [], **line.options)) for line in lines]
    return [
        [Entry("audited ε (lower bound):"), *audited],
        [Entry("accounted ε (upper bound):"), *accounted],
    ]
