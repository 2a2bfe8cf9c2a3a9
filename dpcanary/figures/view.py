"""What a figure of bounds shows on its axis and in its panels, and which audits it can show."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.estimation.options import Conversion, ThresholdRule
from dpcanary.figures import style

# Settings in which audits must agree unless the figure shows them. Those of training do not matter
# for audits that train nothing.
_OF_TRAINING = ("data", "num_records", "model", "max_grad_norm", "learning_rate", "num_slots")
_OF_ALL = ("adjacency", "num_steps")
_FIX_THE_NOISE = ("sample_rate", "num_steps")
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
    """

    axis: str
    name: str
    panel: tuple[str, ...]
    accounted: tuple[str, ...] = tuple(style.ACCOUNTED)

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
    check_audits(rows, shown=view.place)
    return rows


def _shown_rules(summary: pd.DataFrame) -> list[str]:
    """The first valid rule, and in_sample or the first other one that is not valid."""
    rules = summary.drop_duplicates("threshold_rule")
    valid = rules.loc[rules["is_valid"], "threshold_rule"].tolist()
    others = rules.loc[~rules["is_valid"], "threshold_rule"].tolist()
    others.sort(key=lambda rule: rule != ThresholdRule.IN_SAMPLE)  # keeps the order of the rest
    return [*valid[:1], *others[:1]]


def is_trained(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Whether the audits of some rows train models; the others have no number of records."""
    return rows["num_records"].notna()


def check_audits(rows: pd.DataFrame, *, shown: Sequence[str]) -> None:
    """Checks that audits differ in what a figure shows, and in nothing else.

    Args:
        rows: of the summary.
        shown: the settings that panels and axis show. A noise that they do not show may change
            only with a sample rate or num_steps that they show, because it is calibrated for these.

    Raises:
        InputError: if two audits differ in a setting that is not shown, or have the same canary,
            score and shown settings; names the two.
    """
    for column in (*_OF_TRAINING, *_OF_ALL):
        if column not in shown:
            _check_alike(rows[is_trained(rows)] if column in _OF_TRAINING else rows, column)
    if "noise_multiplier" not in shown:
        for _, group in rows.groupby([name for name in shown if name in _FIX_THE_NOISE]):
            _check_alike(group, "noise_multiplier")
    for _, group in rows.groupby([*shown, "canary", "score"]):
        audits = group["audit"].unique()
        if len(audits) > 1:
            *alike, last = ("canary", "score", *(_NAMES.get(name, name) for name in shown))
            raise InputError(
                f"audits {audits[0]} and {audits[1]} have the same {', '.join(alike)} and {last},"
                " by which this figure tells audits apart: show them in different figures"
            )


def _check_alike(rows: pd.DataFrame, column: str) -> None:
    first = rows.drop_duplicates(column)
    if len(first) > 1:
        (one, other), values = first["audit"].tolist()[:2], first[column].tolist()[:2]
        its, others = (f"{value:g}" if isinstance(value, float) else value for value in values)
        raise InputError(
            f"audits {one} and {other} differ in {column} ({its} and {others}), which this figure"
            " does not show: show them in different figures"
        )
