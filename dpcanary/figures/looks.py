"""Which bounds of a figure hold jointly with those at other numbers of runs, and how it shows this.

Only figures by number of runs show bounds of one audit at several numbers of runs. There, markers
are filled for joint bounds and hollow for bounds that hold alone, if the figure has both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.lines import Line2D

from dpcanary.figures.lines import Lines


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
