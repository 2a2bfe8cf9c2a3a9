"""The numbers in a figure of bounds, from a summary of audits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from dpcanary.errors import InputError
from dpcanary.figures.panels import Lines
from dpcanary.figures.view import View, over_repeats

AUDITED, IN_SAMPLE = "audited", "audited_in_sample"
_POINT = ("sample_rate", "noise_multiplier", "step")
_SERIES = ("canary", "score", "threshold_rule", "conversion")
_NUMBERS = ("epsilon", "error_bar", "num_repeats", "num_runs", "num_looks")


def bounds_table(rows: pd.DataFrame, view: View) -> pd.DataFrame:
    """The plotted numbers: one row per point of a series.

    Args:
        rows: as `view.shown_rows` gives them.
        view: what the axis and the panels show.

    Returns:
        Columns sample_rate, noise_multiplier, step, those of the panels and of the axis, `series`,
        canary, score, threshold_rule, conversion, those of the lines, `epsilon`, `error_bar`,
        num_repeats, num_runs and num_looks. For the error bar, see `view.over_repeats`.
        Accounted series do not depend on num_runs and have none. The
        bounds of a rule that is not valid are a series of their own.

    Raises:
        InputError: if audits at one point differ in an accounted epsilon.
    """
    point = list(dict.fromkeys([*_POINT, *view.panel, view.axis]))
    accounted = [_accounted_table(rows, point, series) for series in view.accounted]
    audited = _audited_table(rows, [*point, *_SERIES, *view.lines])
    table = pd.concat([audited, *accounted], ignore_index=True)
    columns = dict.fromkeys([*point, "series", *_SERIES, *view.lines, *_NUMBERS])
    return table.reindex(columns=list(columns))


def _audited_table(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    keys = list(dict.fromkeys([*columns, "is_valid", "num_runs", "num_looks"]))
    table = over_repeats(rows, keys)
    return table.assign(series=table["is_valid"].map({True: AUDITED, False: IN_SAMPLE}))


def _accounted_table(rows: pd.DataFrame, point: Sequence[str], series: str) -> pd.DataFrame:
    keys = [key for key in point if key != "num_runs"]
    groups = rows.groupby(keys, dropna=False)[f"epsilon_upper_{series}"]
    differ = groups.max() - groups.min() > 1e-6 * groups.max()
    if differ.any():
        values = zip(keys, differ[differ].index[0], strict=True)
        where = ", ".join(
            f"{key} {value:g}" if isinstance(value, float | int) else f"{key} {value}"
            for key, value in values
        )
        raise InputError(
            f"the audits at {where} differ in their accounted epsilon: show them in different"
            " figures"
        )
    return groups.max().rename("epsilon").reset_index().assign(series=f"accounted_{series}")


@dataclass(frozen=True)
class Looks:
    """How the bounds of a figure hold.

    Attributes:
        jointly: whether there are bounds that hold jointly with others in the figure.
        alone: whether there are bounds that hold alone.
    """

    jointly: bool
    alone: bool

    @classmethod
    def of_figure(cls, rows: pd.DataFrame, axis: str) -> "Looks":
        """Finds what the figure shows; the valid rule counts if there is one.

        Args:
            rows: of the summary, as `view.shown_rows` gives them.
            axis: the column on the axis. Of joint bounds, other axes than num_runs show only one,
                and that holds by itself too.
        """
        if axis != "num_runs":
            return cls(jointly=False, alone=True)
        stated = rows[rows["is_valid"]] if rows["is_valid"].any() else rows
        joint = stated["num_looks"] > 1
        return cls(jointly=bool(joint.any()), alone=not joint.all())

    @property
    def both(self) -> bool:
        """Whether the figure has bounds of both kinds, so that markers tell them apart."""
        return self.jointly and self.alone

    def in_words(self) -> str:
        """What the stated confidence is for."""
        if self.both:
            return "all filled points of a curve jointly and for each hollow point alone"
        return "all points of a curve jointly" if self.jointly else "each point alone"

    def curves(
        self, points: pd.DataFrame, lines: Lines
    ) -> Iterator[tuple[pd.DataFrame, dict[str, Any]]]:
        """The lines of one panel and rule: the points of each, and keyword arguments of `plot`."""
        for series, group in lines.split(points).items():
            # Joint bounds are lower: one line through both kinds would have steps.
            kinds = group.groupby(group["num_looks"] > 1) if self.both else [(True, group)]
            for joint, curve in kinds:
                yield curve, self._options(lines.looks[series], joint=bool(joint))

    def line_legend(self, lines: Lines) -> list[Line2D]:
        """An entry of the legend for each line."""
        return [
            Line2D([], [], **self._options(options, joint=True)) for options in lines.looks.values()
        ]

    def marker_legend(self) -> list[Line2D | str]:
        """What the markers say; nothing if all are alike."""
        if not self.both:
            return []
        grey: dict[str, Any] = {"color": "#4D4D4D", "marker": "o", "linestyle": "none"}
        return [
            "each bound holds:",
            Line2D([], [], **grey, label="jointly with those of its curve"),
            Line2D([], [], **grey, markerfacecolor="white", label="alone"),
        ]

    def _options(self, options: dict[str, Any], *, joint: bool) -> dict[str, Any]:
        if not self.both:
            return options
        # Markers elsewhere say which score it is: here the line does, unless it says the variant.
        dash = "-" if options["markerfacecolor"] == options["color"] else "--"
        return options | {
            "linestyle": options.get("linestyle", dash),
            "markerfacecolor": options["color"] if joint else "white",
        }
