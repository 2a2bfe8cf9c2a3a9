"""What a figure of bounds shows on its axis and in its panels, and which audits it can show."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.estimation.rules import ThresholdRule, threshold_rule_named
from dpcanary.estimation.settings import Conversion
from dpcanary.figures import style
from dpcanary.figures.wording import LINES, PANELS

# Settings in which audits must agree unless the figure shows them. Those of training do not matter
# for audits that train nothing.
_OF_TRAINING = (
    "sampling", "data", "num_records", "model", "batch_size", "canary_period", "max_grad_norm",
    "learning_rate", "num_slots", "initialisation", "initial_weights", "pretraining",
)  # fmt: skip
_OF_ALL = ("adjacency", "num_steps", "sample_rate")
# Settings of some canaries alone.
_OF_CANARIES = ("simulation", "ranking")
# Settings that may change with others, if a figure shows these.
_FOLLOW = {
    "data": ("dataset",),
    "num_records": ("dataset",),
    "num_steps": ("canary_period",),
    "initialisation": ("model", "pretraining"),
    "noise_multiplier": ("sample_rate", "num_steps", "canary_period", "adjacency"),
}
# One audit has estimates for several values of these.
_OF_ESTIMATES = ("step", "num_runs")
_NAMES = {"sample_rate": "sample rate", "noise_multiplier": "noise"}


@dataclass(frozen=True)
class View:
    """How a figure places audits.

    Attributes:
        axis: the summary's column on the axis.
        name: the label of the axis.
        panel: the columns that tell panels apart.
        accounted: the accounted curves, by their names in `style.ACCOUNTED`.
        lines: the columns that tell lines of one canary and score apart.
    """

    axis: str
    name: str
    panel: tuple[str, ...]
    accounted: tuple[str, ...] = tuple(style.ACCOUNTED)
    lines: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, ...]:
        """The settings of an audit that its panel and its place on the axis show."""
        return self.panel if self.axis in _OF_ESTIMATES else (*self.panel, self.axis)


def shown_rows(summary: pd.DataFrame, view: View) -> pd.DataFrame:
    """The rows of one conversion (GDP if there), of a valid rule and of one that is not.

    The rules are the first valid one, and in_sample or the first other one that is not valid. Of
    every audit, the rows are those of its largest step and of its largest number of runs, except
    for the one of these that is on the axis.

    Raises:
        InputError: if there is no row, or if audits differ in what the figure does not show.
    """
    if summary.empty:
        raise InputError("the summary has no row to show")
    for column in ("delta", "significance"):
        if summary[column].nunique() > 1:
            raise InputError(f"the audits differ in {column}: show them in different figures")
    conversions = {*summary["conversion"]}
    conversion = Conversion.GDP if Conversion.GDP in conversions else min(conversions)
    is_shown = summary["threshold_rule"].isin(_shown_rules(summary))
    rows = summary[(summary["conversion"] == conversion) & is_shown]
    for column in _OF_ESTIMATES:
        if column != view.axis:
            rows = rows[rows[column] == rows.groupby("audit")[column].transform("max")]
    check_audits(rows, shown=view.place, lines=view.lines, others=(PANELS, LINES))
    return rows


def valid_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The rows of the first valid rule and conversion GDP, at each audit's last step and most runs.

    Raises:
        InputError: if there is none.
    """
    is_shown = summary["is_valid"] & summary["threshold_rule"].isin(_shown_rules(summary))
    rows = summary[is_shown & (summary["conversion"] == Conversion.GDP)]
    if rows.empty:
        raise InputError("the summary has no bound of a valid rule by conversion gdp")
    for column in _OF_ESTIMATES:
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


def check_audits(
    rows: pd.DataFrame,
    *,
    shown: Sequence[str],
    lines: Sequence[str] = (),
    others: tuple[Sequence[str], Sequence[str]] = ((), ()),
) -> None:
    """Checks that audits differ in what a figure shows, and in nothing else but the seed.

    Args:
        rows: of the summary.
        shown: the settings that panels and axis show. Some settings that they do not show may
            change with those that they show: a noise with the sample rate or the number of steps,
            for which it is calibrated, and a number of steps with the canary's period.
        lines: the settings that lines of one canary and score show.
        others: settings that panels, and that lines could show, for the message of an error.

    Raises:
        InputError: if two audits differ in a setting that is not shown, or have the same canary,
            score and shown settings, but are not repeats of one configuration; names the two.
    """
    known = [*dict.fromkeys([*shown, *lines])]
    for column in (*_OF_TRAINING, *_OF_ALL, "noise_multiplier"):
        of_column = rows[is_trained(rows)] if column in _OF_TRAINING else rows
        leaders = [key for key in _FOLLOW.get(column, ()) if key in known]
        groups = of_column.groupby(leaders, dropna=False) if leaders else [((), of_column)]
        for _, group in groups if column not in known else ():
            _check_alike(group, column, others)
    for column in (column for column in _OF_CANARIES if column not in known):
        for _, group in rows.dropna(subset=column).groupby("canary"):
            _check_alike(group, column, others)
    for _, group in rows.groupby([*known, "canary", "score"], dropna=False):
        _check_repeats(group.drop_duplicates("audit"), known)


def _check_repeats(audits: pd.DataFrame, shown: Sequence[str]) -> None:
    """Checks that audits are repeats of one configuration, each with a seed of its own."""
    known: list[tuple[str, str, int]] = []
    for audit, configuration, seed in audits[["audit", "configuration", "seed"]].to_numpy():
        for one, its, its_seed in known:
            if configuration != its or seed == its_seed:
                names = (_NAMES.get(name, name) for name in shown)
                *alike, last = ("canary", "score", *names)
                raise InputError(
                    f"audits {one} and {audit} have the same {', '.join(alike)} and {last},"
                    " by which this figure tells audits apart: show them in different figures"
                )
        known.append((audit, configuration, seed))


def _check_alike(
    rows: pd.DataFrame, column: str, others: tuple[Sequence[str], Sequence[str]]
) -> None:
    first = rows.drop_duplicates(column)
    if len(first) > 1:
        audits, values = first["audit"].tolist()[:2], first[column].tolist()[:2]
        its, other = (f"{value:g}" if isinstance(value, float) else value for value in values)
        places = zip(("panels", "lines"), others, strict=True)
        able = " or ".join(place for place, settings in places if column in settings)
        raise InputError(
            f"audits {audits[0]} and {audits[1]} differ in {column} ({its} and {other}), which this"
            f" figure does not show: {f'name it in {able}, or ' if able else ''}show them in"
            " different figures"
        )


def over_repeats(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The mean bound at each point and its error bar: the one definition for figures of bounds.

    Slots that have bounds of their own share the models of a repeat, and the repeats of an audit
    share its canary. Audits that differ in their seed alone have canaries of their own, so they are
    the independent units: with several of them, the error is that over the means of the audits.
    With one audit, it is that over its repeats, for this one canary.

    Args:
        rows: of a summary.
        keys: columns that tell points apart; NaN is a value like any other.

    Returns:
        The keys, `epsilon` (mean over all repeats), `error_bar` (two standard errors; NaN for one
        repeat of one audit) and num_repeats, which counts the repeats of all audits.
    """
    repeats = rows.groupby([*keys, "audit", "repeat"], dropna=False)["epsilon_lower"].mean()
    numbers = repeats.groupby([*keys], dropna=False).agg(["mean", "sem", "size"])
    audits = repeats.groupby([*keys, "audit"], dropna=False).mean()
    over_audits = audits.groupby([*keys], dropna=False).agg(["sem", "size"])
    error = numbers["sem"].where(over_audits["size"] == 1, over_audits["sem"])
    return pd.DataFrame(
        {"epsilon": numbers["mean"], "error_bar": 2 * error, "num_repeats": numbers["size"]}
    ).reset_index()
