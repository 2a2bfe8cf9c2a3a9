"""Which rows of a summary a figure shows, and which audits it can show together."""

from collections.abc import Sequence

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import ThresholdRule, threshold_rule_named
from dpcanary.experiment.summary import LINES, PANELS, SHOWN

# Audits must agree in these too, unless datasets tell them apart.
_OF_DATA = ("data", "num_records")
# One audit has estimates for several values of these.
OF_ESTIMATES = ("step", "num_runs")
_NAMES = {"sample_rate": "sample rate", "noise_multiplier": "noise"}


def shown_rows(summary: pd.DataFrame, *, axis: str) -> pd.DataFrame:
    """The rows of one conversion (GDP if there), of a valid rule and of one that is not.

    The conversion is one that valid rules have, if there are any. The rules are the first valid one
    that has it, and in_sample or the first other one that is not valid. Of every audit, the rows
    are those of its largest step and of its largest number of runs, except for the one of these
    that is on the axis.
    """
    if summary.empty:
        raise InputError("the summary has no row to show")
    check_agree(summary, ("delta", "significance"))
    is_valid = summary["is_valid"]
    conversions = {*(summary[is_valid] if is_valid.any() else summary)["conversion"]}
    conversion = Conversion.GDP if Conversion.GDP in conversions else min(conversions)
    rows = summary[summary["conversion"] == conversion]
    return last_rows(rows[rows["threshold_rule"].isin(_shown_rules(rows))], axis=axis)


def valid_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The last rows of each audit by conversion GDP and the first valid rule that has it."""
    return last_rows(of_first_valid_rule(summary, Conversion.GDP))


def of_first_valid_rule(summary: pd.DataFrame, conversion: str = "") -> pd.DataFrame:
    """The rows of the first valid rule, of those that have a conversion if it is named."""
    rows = summary[summary["is_valid"]]
    if conversion:
        rows = rows[rows["conversion"] == conversion]
    if rows.empty:
        by = f" by conversion {conversion}" if conversion else ""
        raise InputError(f"the summary has no bound of a valid rule{by}")
    return pd.DataFrame(rows[rows["threshold_rule"] == rows["threshold_rule"].iloc[0]])


def last_rows(rows: pd.DataFrame, *, axis: str = "") -> pd.DataFrame:
    """Those of each audit's last step and most runs, except for the one that is on the axis."""
    for column in OF_ESTIMATES:
        if column != axis:
            rows = rows[rows[column] == rows.groupby("audit")[column].transform("max")]
    return rows


def _shown_rules(summary: pd.DataFrame) -> list[str]:
    """The first valid rule, and in_sample or the first other one that is not valid."""
    rules = summary.drop_duplicates("threshold_rule")
    valid = rules.loc[rules["is_valid"], "threshold_rule"].tolist()
    others = rules.loc[~rules["is_valid"], "threshold_rule"].tolist()
    others.sort(key=lambda rule: rule != ThresholdRule.IN_SAMPLE)  # keeps the order of the rest
    return [*valid[:1], *others[:1]]


def has_shown_conversion(summary: pd.DataFrame) -> "pd.Series[bool]":
    """Conversion gdp, or that of a rule that does not have it."""
    shown = {
        rule: threshold_rule_named(rule).conversion(Conversion.GDP)
        for rule in summary["threshold_rule"].unique()
    }
    return summary["conversion"] == summary["threshold_rule"].map(shown)


def is_trained(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Whether the audits of some rows train models; the others have no number of records."""
    return rows["num_records"].notna()


def check_agree(rows: pd.DataFrame, columns: Sequence[str]) -> None:
    """Checks that all rows have the same values, missing ones included."""
    for column in columns:
        if rows[column].nunique(dropna=False) > 1:
            raise InputError(f"the audits differ in {column}: show them in different figures")


def check_audits(
    rows: pd.DataFrame, *, shown: Sequence[str], lines: Sequence[str] = (), of_bounds: bool = False
) -> None:
    """Checks that audits differ in what a figure shows, and in nothing else but the seed.

    Some settings may change with those that panels and axis show: a noise with the sample rate or
    the number of steps, for which it is calibrated, and a number of steps with the canary's period.

    Args:
        rows: of the summary.
        shown: the settings that panels and axis show.
        lines: the settings that lines of one canary and score show.
        of_bounds: whether panels and lines could show more, which the message of an error says.

    Raises:
        InputError: if they differ in anything else; it names all settings that the figure lacks.
    """
    varied = [*dict.fromkeys([*shown, *lines])]
    trained = rows[is_trained(rows)]
    of_data = [] if "dataset" in varied else _OF_DATA
    differences = {
        key: _difference(trained, key) for key in (*of_data, "num_slots") if key not in varied
    }
    # Settings that follow from others come after these, and are compared where those are equal.
    for key in sorted(SHOWN, key=lambda key: (SHOWN[key].of == "all", len(SHOWN[key].follows))):
        shown_by = of_bounds * [
            place for place, keys in (("panels", PANELS), ("lines", LINES)) if key in keys
        ]
        leaders = [
            leader for leader in SHOWN[key].follows if leader in varied or differences.get(leader)
        ]
        of_key = rows if SHOWN[key].of == "all" else trained
        if SHOWN[key].of == "canary":
            of_key, leaders = rows.dropna(subset=key), ["canary"]
        if key in varied or not SHOWN[key].of:
            continue
        groups = of_key.groupby(leaders, dropna=False) if leaders else [((), of_key)]
        different = (_difference(group, key, shown_by) for _, group in groups)
        differences[key] = next(filter(None, different), "")
    if any(differences.values()):
        raise InputError("\n".join(filter(None, differences.values())))
    keys = [*varied, "canary", "score"]
    audits = rows[[*dict.fromkeys([*keys, "audit", "configuration", "seed"])]]
    for _, group in audits.groupby(keys, dropna=False):
        check_repeats(group.drop_duplicates("audit"), varied)


def check_repeats(audits: pd.DataFrame, shown: Sequence[str]) -> None:
    """Checks that audits are repeats of one configuration, each with a seed of its own.

    Args:
        audits: one row for each.
        shown: the settings by which the figure distinguishes audits, for the message.

    Raises:
        InputError: names two audits that are not.
    """
    earlier: list[tuple[str, str, int]] = []
    for audit, configuration, seed in audits[["audit", "configuration", "seed"]].to_numpy():
        for other, of_other, seed_of_other in earlier:
            if configuration != of_other or seed == seed_of_other:
                raise indistinct_audits(other, audit, shown)
        earlier.append((audit, configuration, seed))


def indistinct_audits(
    audit: str, other: str, shown: Sequence[str], for_panels: Sequence[str] = ()
) -> InputError:
    """The error of two audits with the same canary, score and shown settings.

    Args:
        audit: its name.
        other: that of the other.
        shown: the settings by which the figure distinguishes audits.
        for_panels: settings in which they differ, and which `panels` of the figure may name.
    """
    *alike, last = ("canary", "score", *(_NAMES.get(name, name) for name in shown))
    instead = f"name {' or '.join(for_panels)} in panels, or " if for_panels else ""
    return InputError(
        f"audits {audit} and {other} have the same {', '.join(alike)} and {last},"
        f" by which this figure distinguishes audits: {instead}show them in different figures"
    )


def _difference(rows: pd.DataFrame, column: str, shown_by: Sequence[str] = ()) -> str:
    """Which audits differ in a column, and what to do; empty if none do."""
    first = ~rows[column].duplicated()
    if first.sum() < 2:
        return ""
    audit, other = rows["audit"][first].tolist()[:2]
    value, of_other = (
        f"{value:g}" if isinstance(value, float) else value
        for value in rows[column][first].tolist()[:2]
    )
    instead = f"name it in {' or '.join(shown_by)}, or " if shown_by else ""
    return (
        f"audits {audit} and {other} differ in {column} ({value} and {of_other}), which this"
        f" figure does not show: {instead}show them in different figures"
    )


def over_repeats(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The mean bound at each point and its error bar: the one definition for figures of bounds.

    Slots that have bounds of their own share the models of a repeat, and the repeats of an audit
    share its canary. Audits that differ in their seed alone have trainings of their own, and other
    canaries where these are drawn, so they are the independent units: with several of them, the
    error is that over the means of the audits. With one audit, it is that over its repeats, for
    this one canary.

    Returns the keys, of which NaN is a value like any other, `epsilon` (mean over all repeats),
    `error_bar` (two standard errors; NaN for one repeat of one audit) and num_repeats, which counts
    the repeats of all audits.
    """
    repeats = rows.groupby([*keys, "audit", "repeat"], dropna=False)["epsilon_lower"].mean()
    numbers = repeats.groupby([*keys], dropna=False).agg(["mean", "sem", "size"])
    audits = repeats.groupby([*keys, "audit"], dropna=False).mean()
    over_audits = audits.groupby([*keys], dropna=False).agg(["sem", "size"])
    error = numbers["sem"].where(over_audits["size"] == 1, over_audits["sem"])
    return pd.DataFrame(
        {"epsilon": numbers["mean"], "error_bar": 2 * error, "num_repeats": numbers["size"]}
    ).reset_index()
