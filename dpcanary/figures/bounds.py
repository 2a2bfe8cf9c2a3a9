"""The numbers in a figure of bounds, from a summary of audits."""

from collections.abc import Sequence

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.view import View

AUDITED, IN_SAMPLE = "audited", "audited_in_sample"
_POINT = ("sample_rate", "noise_multiplier", "step")
_SERIES = ("canary", "score", "threshold_rule", "conversion")
_NUMBERS = ("epsilon", "error_bar", "num_repeats", "num_runs", "num_looks")


def selected_sweeps(summary: pd.DataFrame, sweeps: Sequence[str]) -> pd.DataFrame:
    """The summary's rows of some sweeps.

    Raises:
        InputError: if a sweep has no row; names it.
    """
    missing = [sweep for sweep in sweeps if not (summary["sweep"] == sweep).any()]
    if missing or not sweeps:
        known = ", ".join(map(str, summary["sweep"].unique())) or "none"
        raise InputError(f"the summary has no row of sweeps {', '.join(missing)}; it has: {known}")
    return summary[summary["sweep"].isin(sweeps)]


def bounds_table(rows: pd.DataFrame, view: View) -> pd.DataFrame:
    """The plotted numbers: one row per point of a series.

    Args:
        rows: as `view.shown_rows` gives them.
        view: what the axis and the panels show.

    Returns:
        Columns sample_rate, noise_multiplier, step, the one on the axis, `series`, canary, score,
        threshold_rule, conversion, `epsilon`, `error_bar`, num_repeats, num_runs and num_looks. In
        audited series, `epsilon` is the mean over repeats (each the mean of its slots, where slots
        have bounds of their own) and `error_bar` two standard errors of it (NaN for one repeat).
        Accounted series do not depend on num_runs and have none. The bounds of a rule that is not
        valid are a series of their own.

    Raises:
        InputError: if audits at one point differ in an accounted epsilon.
    """
    point = list(dict.fromkeys([*_POINT, view.axis]))
    accounted = [_accounted_table(rows, point, series) for series in view.accounted]
    table = pd.concat([_audited_table(rows, point), *accounted], ignore_index=True)
    columns = dict.fromkeys([*point, "series", *_SERIES, *_NUMBERS])
    return table.reindex(columns=list(columns))


def _audited_table(rows: pd.DataFrame, point: Sequence[str]) -> pd.DataFrame:
    keys = list(dict.fromkeys([*point, *_SERIES, "is_valid", "num_runs", "num_looks"]))
    repeats = rows.groupby([*keys, "repeat"])["epsilon_lower"].mean().reset_index()
    table = (
        repeats.groupby(keys)
        .agg(
            epsilon=("epsilon_lower", "mean"),
            error_bar=("epsilon_lower", "sem"),
            num_repeats=("repeat", "nunique"),
        )
        .reset_index()
    )
    table["error_bar"] *= 2
    return table.assign(series=table["is_valid"].map({True: AUDITED, False: IN_SAMPLE}))


def _accounted_table(rows: pd.DataFrame, point: Sequence[str], series: str) -> pd.DataFrame:
    keys = [key for key in point if key != "num_runs"]
    groups = rows.groupby(keys)[f"epsilon_upper_{series}"]
    differ = groups.max() - groups.min() > 1e-6 * groups.max()
    if differ.any():
        values = zip(keys, differ[differ].index[0], strict=True)
        where = ", ".join(f"{key} {value:g}" for key, value in values)
        raise InputError(
            f"the audits at {where} differ in their accounted epsilon: show them in different"
            " figures"
        )
    return groups.max().rename("epsilon").reset_index().assign(series=f"accounted_{series}")


def by_canary(points: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    """The audited points by canary and score, in the order of the catalogue."""
    groups = {
        (str(canary), str(score)): group
        for (canary, score), group in points.groupby(["canary", "score"])
    }
    return dict(sorted(groups.items(), key=lambda item: style.catalogue_order(*item[0])))
