"""From a summary of audits to the bounds that a figure shows."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.lines import Line2D

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import Entry
from dpcanary.vocabulary import Canary, Conversion, Score, ThresholdRule

AUDITED, IN_SAMPLE = "audited", "audited_in_sample"
POINT = ["sample_rate", "noise_multiplier", "step"]
COLUMNS = [
    *POINT, "series", "canary", "score", "threshold_rule", "conversion", "epsilon", "error_bar",
    "num_repeats", "num_runs",
]  # fmt: skip
# The rules whose bounds hold at their stated significance, the preferred first.
_VALID_RULES = [rule for rule in ThresholdRule if rule.is_valid]


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


def shown_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of one conversion (GDP if there) and of one valid rule, and the in-sample ones.

    Raises:
        InputError: if there is no row, if delta or significance differ, or if two audits would
            fall on the same points.
    """
    if summary.empty:
        raise InputError("the summary has no row to show")
    for column in ("delta", "significance"):
        if summary[column].nunique() > 1:
            raise InputError(f"the audits differ in {column}: show them in different figures")
    present = set(summary["conversion"])
    conversion = Conversion.GDP if Conversion.GDP in present else sorted(present)[0]
    rules = [rule for rule in _VALID_RULES if rule in set(summary["threshold_rule"])][:1]
    rows = summary[
        (summary["conversion"] == conversion)
        & summary["threshold_rule"].isin([*rules, ThresholdRule.IN_SAMPLE])
    ]
    _check_one_audit_per_point(rows)
    return rows


def _check_one_audit_per_point(rows: pd.DataFrame) -> None:
    for _, group in rows.groupby(["sample_rate", "noise_multiplier", "canary", "score"]):
        audits = group["audit"].unique()
        if len(audits) > 1:
            raise InputError(
                f"audits {audits[0]} and {audits[1]} have the same canary, score, sample rate and"
                " noise, by which this figure tells audits apart: show them in different figures"
            )


def bounds_table(rows: pd.DataFrame) -> pd.DataFrame:
    """The plotted numbers: one row per point of a series.

    Args:
        rows: as `shown_rows` gives them.

    Returns:
        Columns `COLUMNS`. `epsilon` of audited series is the mean over repeats, `error_bar` two
        standard errors of it (NaN for one repeat).
    """
    accounted = [_accounted_table(rows, series) for series in style.ACCOUNTED]
    table = pd.concat([_audited_table(rows), *accounted], ignore_index=True)
    return table.reindex(columns=COLUMNS)


def _audited_table(rows: pd.DataFrame) -> pd.DataFrame:
    keys = [*POINT, "canary", "score", "threshold_rule", "conversion"]
    groups = rows.groupby(keys, sort=True)
    table = groups.agg(
        epsilon=("epsilon_lower", "mean"),
        error_bar=("epsilon_lower", "sem"),
        num_repeats=("repeat", "nunique"),
        num_runs=("num_runs", "max"),
    ).reset_index()
    table["error_bar"] *= 2
    valid = table["threshold_rule"] != ThresholdRule.IN_SAMPLE
    table["series"] = valid.map({True: AUDITED, False: IN_SAMPLE})
    return table


def _accounted_table(rows: pd.DataFrame, series: str) -> pd.DataFrame:
    groups = rows.groupby(POINT, sort=True)[f"epsilon_upper_{series}"]
    spread = (groups.max() - groups.min()) > 1e-6 * groups.max()
    if spread.any():
        q, sigma, step = spread[spread].index[0]
        raise InputError(
            f"audits at q = {q:g}, sigma = {sigma:g}, step {step} differ in their accounted"
            " epsilon: show audits with other num_steps in different figures"
        )
    table = groups.max().rename("epsilon").reset_index()
    return table.assign(series=f"accounted_{series}")


def series_of(table: pd.DataFrame, series: str) -> list[tuple[Canary, Score, pd.DataFrame]]:
    """An audited series by canary and score, in the vocabulary's order."""
    order, scores = list(Canary), list(Score)
    groups = [
        (Canary(str(canary)), Score(str(score)), group)
        for (canary, score), group in table[table["series"] == series].groupby(["canary", "score"])
    ]
    return sorted(groups, key=lambda item: (order.index(item[0]), scores.index(item[1])))


def legend_of(table: pd.DataFrame) -> list[list[Entry]]:
    """The legend's groups: audited canaries, accounted curves, the bound that is not valid."""
    both = table.assign(series=AUDITED).dropna(subset=["canary"])
    audited = [
        Entry(
            style.canary_name(canary, score), Line2D([], [], **style.canary_options(canary, score))
        )
        for canary, score, _ in series_of(both, AUDITED)
    ]
    accounted = [
        Entry(line.name, Line2D([], [], **line.options)) for line in style.ACCOUNTED.values()
    ]
    faint = Line2D([], [], color="#555555", linestyle=":", linewidth=1.1)
    in_sample = [Entry("same canary, best threshold in sample (not a valid bound)", faint)]
    return [
        [Entry("audited ε (lower bound):"), *audited],
        [Entry("accounted ε (upper bound):"), *accounted],
        in_sample if (table["series"] == IN_SAMPLE).any() else [],
    ]


def note_of(rows: pd.DataFrame, table: pd.DataFrame) -> str:
    """What the lower bounds assume, in one sentence."""
    rules = [rule for rule in rows["threshold_rule"].unique() if rule != ThresholdRule.IN_SAMPLE]
    rule = f"{rules[0]} rule" if rules else "in_sample rule alone (not valid)"
    conversion = rows["conversion"].iloc[0]
    name = "GDP" if conversion == Conversion.GDP else conversion
    level = 100 * (1 - rows["significance"].iloc[0])
    repeats = _range(table["num_repeats"])
    mean = f"; mean ± 2 standard errors of {repeats} repeats" if repeats != "1" else ""
    return (
        f"Lower bounds: {rule}, {name} conversion, {level:g} % confidence for each point,"
        f" R = {_range(rows['num_runs'])} models{mean}"
    )


def _range(values: "pd.Series[int]") -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
