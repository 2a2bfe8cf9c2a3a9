"""The lines below a figure: what its numbers assume, and which data they were measured on."""

from collections.abc import Collection, Iterable
from decimal import ROUND_CEILING, Context

import pandas as pd

from dpcanary.estimation.rules import ThresholdRule, threshold_rule_named
from dpcanary.estimation.settings import Conversion
from dpcanary.figures import style
from dpcanary.figures.bounds import AUDITED, IN_SAMPLE, Looks
from dpcanary.figures.panels import known_batches
from dpcanary.figures.view import is_trained
from dpcanary.figures.wording import settings_in_words
from dpcanary.printing import confidence_in_words

# What makes a point of one rule the same as a point of another rule.
_NOT_OF_THE_POINT = (
    "series", "threshold_rule", "epsilon", "error_bar", "num_repeats", "num_looks",
)  # fmt: skip

# Settings that are named below a figure where they are not shown in it.
_SHARED = (
    "model", "sample_rate", "noise_multiplier", "canary_period", "max_grad_norm", "learning_rate",
)  # fmt: skip


def bounds_note(rows: pd.DataFrame, looks: Looks) -> str:
    """What the lower bounds assume, in one sentence.

    Args:
        rows: of the summary, as `view.shown_rows` gives them.
        looks: which bounds of the figure hold jointly.
    """
    valid = rows["is_valid"]
    rule = (rows[valid] if valid.any() else rows)["threshold_rule"].iloc[0]
    warning = "" if valid.any() else " (not valid)"
    level = confidence_in_words(rows["significance"].iloc[0])
    runs = "models" if is_trained(rows).any() else "runs"
    return (
        f"Lower bounds: {rule} rule{warning}, {_conversion(rows)}, {level} confidence for"
        f" {looks.in_words()}, R = {number_range(rows['num_runs'])} {runs}{slots_in_words(rows)}"
        f"{means_in_words(rows)}"
    )


def slots_in_words(rows: pd.DataFrame) -> str:
    """What bounds assume of several slots; nothing where there is one slot.

    Args:
        rows: of the summary.
    """
    several = rows[rows["num_slots"] > 1]
    if several.empty:
        return ""
    pooled = several.loc[several["slot"].isna(), "threshold_rule"].unique()
    independent = not all(threshold_rule_named(rule).guesses for rule in pooled)
    assumed = ", taken as independent" if independent else ""
    return f" with {number_range(rows['num_slots'])} canaries in each{assumed}"


def means_in_words(rows: pd.DataFrame, *, errors: bool = True) -> str:
    """What a point is the mean of; nothing where there is one repeat only.

    Args:
        rows: of the summary. Audits of the same configuration are repeats with other canaries.
        errors: whether standard errors are shown.
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

    Args:
        rows: of the summary.
        shown: the settings on axis, panels and lines.
        needed: whether panels are other than the default ones, which show the mechanism.
    """
    trained = rows[is_trained(rows)]
    if trained.empty or not (needed or trained["batch_size"].notna().any()):
        return ""
    hidden = [key for key in _SHARED if key not in shown and trained[key].nunique() == 1]
    settings = {str(key): one for key, one in trained.iloc[0].items()} | known_batches(trained)
    words = settings_in_words(hidden, settings)
    return f"All audits: {words}" if words else ""


def _conversion(rows: pd.DataFrame) -> str:
    """The conversion, and for GDP how far the accounted mechanisms are from Gaussian ones."""
    name = rows["conversion"].iloc[0]
    if name != Conversion.GDP:
        return f"{name} conversion"
    distances = rows.get("gaussian_distance", pd.Series(dtype=float))
    largest = float(distances.max())
    if not largest > 0:  # 0, or NaN where all are unknown
        return "GDP conversion"
    rounded = float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(largest)))
    known = ", where this is known" if distances.isna().any() else ""
    return (
        "GDP conversion (the accounted curves differ from Gaussian ones by at most"
        f" {style.number(rounded)} in FNR{known})"
    )


def price_note(table: pd.DataFrame) -> str:
    """How far the bounds of the rule that is not valid are from those of the valid one.

    Args:
        table: the figure's numbers, from `bounds.bounds_table`.

    Returns:
        A sentence on the mean difference over the points that both rules have; nothing if there is
        no such point.
    """
    points = table[table["series"].isin([AUDITED, IN_SAMPLE])]
    place = [column for column in points if column not in _NOT_OF_THE_POINT]
    # As text, because a missing value would leave the point out.
    as_text = points.astype(dict.fromkeys(place, str))
    means = as_text.pivot_table("epsilon", index=place, columns="series")
    both = means.reindex(columns=[AUDITED, IN_SAMPLE]).dropna()
    if both.empty:
        return ""
    difference = float((both[IN_SAMPLE] - both[AUDITED]).mean())
    size = f"{abs(difference):.2f}"
    direction = "higher" if difference > 0 else "lower"
    name = points.loc[points["series"] == IN_SAMPLE, "threshold_rule"].iloc[0]
    rule = (
        f"The rule of most papers ({name})" if name == ThresholdRule.IN_SAMPLE else f"Rule {name}"
    )
    compared = f"{size} {direction}" if size != "0.00" else "the same to within 0.01"
    return f"{rule}, which is not valid, gives bounds that are {compared} on average"


def data_note(rows: pd.DataFrame) -> str:
    """What the audits' records are, and how many are private.

    Args:
        rows: of the summary.
    """
    trained = is_trained(rows)
    parts = []
    if trained.any():
        for data, count in rows.loc[trained, ["data", "num_records"]].drop_duplicates().to_numpy():
            parts.append(f"{data}, N = {int(count):,} private records")
    for canary in rows.loc[~trained, "canary"].unique():
        parts.append(f"{style.canary_name(str(canary))}: simulated, without records")
    return f"Data: {'; '.join(parts)}"


def number_range(values: Iterable[int]) -> str:
    """The least and the largest of some counts, or the only one."""
    counts = [int(value) for value in values]
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
