"""The lines below a figure: what its numbers assume, and which data they were measured on."""

from collections.abc import Collection, Iterable
from decimal import ROUND_CEILING, Context

import pandas as pd

from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import threshold_rule_named
from dpcanary.experiment.summary import SHOWN
from dpcanary.figures import style
from dpcanary.figures.panels import known_batches, settings_in_words
from dpcanary.figures.rows import is_trained


def epsilon_label(rows: pd.DataFrame) -> str:
    """The label of an axis of epsilon."""
    return f"ε at δ = {style.number(rows['delta'].iloc[0])}"


def slots_in_words(rows: pd.DataFrame) -> str:
    """What bounds assume of several slots; nothing where there is one slot."""
    several = rows[rows["num_slots"] > 1]
    if several.empty:
        return ""
    pooled = several.loc[several["slot"].isna(), "threshold_rule"].unique()
    independent = not all(threshold_rule_named(rule).guesses for rule in pooled)
    assumed = ", taken as independent" if independent else ""
    return f" with {number_range(rows['num_slots'])} canaries in each{assumed}"


def means_in_words(rows: pd.DataFrame, *, errors: bool = True) -> str:
    """What a point is the mean of, and its `errors` if shown; nothing where there is one repeat.

    Audits of the same configuration are repeats with other canaries.
    """
    of_audits = rows.groupby(["configuration", "audit"])["repeat"].nunique()
    audits = of_audits.groupby("configuration").size()
    mean = "; mean ± 2 standard errors" if errors else "; mean"
    if (audits == 1).all():
        repeats = number_range(of_audits)
        return "" if repeats == "1" else f"{mean} of {repeats} repeats"
    if (of_audits == 1).all():
        return f"{mean} of {number_range(audits)} repeats, each with a canary of its own"
    return f"{mean} over {number_range(audits)} canaries of {number_range(of_audits)} repeats each"


def shared_note(rows: pd.DataFrame, shown: Collection[str], *, needed: bool) -> str:
    """The settings that all audits share and that the figure does not show.

    It is `needed` where panels are other than the default ones, which show the mechanism.
    """
    trained = rows[is_trained(rows)]
    if trained.empty or not (needed or trained["batch_size"].notna().any()):
        return ""
    hidden = [
        key
        for key, one in SHOWN.items()
        if one.common and key not in shown and trained[key].nunique() == 1
    ]
    settings = {str(key): one for key, one in trained.iloc[0].items()} | known_batches(trained)
    words = settings_in_words(hidden, settings)
    return f"All audits: {words}" if words else ""


def conversion_in_words(rows: pd.DataFrame) -> str:
    """The conversion, and for GDP how far the accounted mechanisms are from Gaussian ones."""
    name = rows["conversion"].iloc[0]
    if name != Conversion.GDP:
        return f"{name} conversion"
    distances = rows["gaussian_distance"]
    largest = float(distances.max())
    if not largest > 0:  # 0, or NaN where all are unknown
        return "GDP conversion"
    rounded = float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(largest)))
    known = ", where this is known" if distances.isna().any() else ""
    return (
        "GDP conversion (the accounted curves differ from Gaussian ones by at most"
        f" {style.number(rounded)} in FNR{known})"
    )


def data_note(rows: pd.DataFrame) -> str:
    """What the audits' records are, and how many are private."""
    trained = is_trained(rows)
    data = rows.loc[trained, ["data", "num_records"]].drop_duplicates().to_numpy()
    parts = [f"{name}, N = {int(count):,} private records" for name, count in data]
    for canary in rows.loc[~trained, "canary"].unique():
        parts.append(f"{style.canary_name(str(canary))}: simulated, without records")
    return f"Data: {'; '.join(parts)}"


def number_range(values: Iterable[int]) -> str:
    """The least and the largest of some counts, or the only one."""
    counts = [int(value) for value in values]
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
