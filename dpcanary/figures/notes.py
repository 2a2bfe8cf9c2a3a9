"""The lines below a figure: what its numbers assume, and what they were measured on."""

import pandas as pd

from dpcanary.estimation.options import Conversion
from dpcanary.figures import style
from dpcanary.figures.view import is_trained


def bounds_note(rows: pd.DataFrame) -> str:
    """What the lower bounds assume, in one sentence.

    Args:
        rows: of the summary, as `view.shown_rows` gives them.
    """
    shown = rows[rows["is_valid"]] if rows["is_valid"].any() else rows
    warning = "" if rows["is_valid"].any() else " alone (not valid)"
    rule = f"{shown['threshold_rule'].iloc[0]} rule{warning}"
    conversion = rows["conversion"].iloc[0]
    name = "GDP" if conversion == Conversion.GDP else conversion
    level = 100 * (1 - rows["significance"].iloc[0])
    runs = "models" if is_trained(rows).any() else "runs"
    return (
        f"Lower bounds: {rule}, {name} conversion, {level:g} % confidence for each point,"
        f" R = {number_range(rows['num_runs'])} {runs}{_mean_of(rows)}"
    )


def _mean_of(rows: pd.DataFrame) -> str:
    repeats = number_range(rows.groupby("audit")["repeat"].nunique())
    return f"; mean ± 2 standard errors of {repeats} repeats" if repeats != "1" else ""


def data_note(rows: pd.DataFrame) -> str:
    """What the audits' records are, and how many are private.

    Args:
        rows: of the summary; those whose models are trained have the same data.
    """
    trained = is_trained(rows)
    parts = []
    if trained.any():
        first = rows[trained].iloc[0]
        parts.append(f"{first['data']}, N = {int(first['num_records']):,} private records")
    drawn = [style.canary_name(str(canary)) for canary in rows.loc[~trained, "canary"].unique()]
    parts += [f"{name}: drawn, without records" for name in drawn]
    return f"Data: {'; '.join(parts)}"


def number_range(values: "pd.Series[int]") -> str:
    """The least and the largest of some counts, or the only one."""
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
