"""The lines below a figure: what its numbers assume, and which data they were measured on."""

from collections.abc import Iterable

import pandas as pd

from dpcanary.estimation.options import Conversion
from dpcanary.figures import style
from dpcanary.figures.view import is_trained


def bounds_note(rows: pd.DataFrame) -> str:
    """What the lower bounds assume, in one sentence.

    Args:
        rows: of the summary, as `view.shown_rows` gives them.
    """
    valid = rows["is_valid"]
    rule = (rows[valid] if valid.any() else rows)["threshold_rule"].iloc[0]
    warning = "" if valid.any() else " (not valid)"
    conversion = rows["conversion"].iloc[0]
    name = "GDP" if conversion == Conversion.GDP else conversion
    level = 100 * (1 - rows["significance"].iloc[0])
    runs = "models" if is_trained(rows).any() else "runs"
    repeats = number_range(rows.groupby("audit")["repeat"].nunique())
    mean = f"; mean ± 2 standard errors of {repeats} repeats" if repeats != "1" else ""
    return (
        f"Lower bounds: {rule} rule{warning}, {name} conversion, {level:g} % confidence for each"
        f" point, R = {number_range(rows['num_runs'])} {runs}{mean}"
    )


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
    for canary in rows.loc[~trained, "canary"].unique():
        parts.append(f"{style.canary_name(str(canary))}: simulated, without records")
    return f"Data: {'; '.join(parts)}"


def number_range(values: Iterable[int]) -> str:
    """The least and the largest of some counts, or the only one."""
    counts = [int(value) for value in values]
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
