"""The results of an experiment, for a script or a notebook."""

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dpcanary.core.optional_packages import require
from dpcanary.core.printing import rounded_up
from dpcanary.experiment.results_table import (
    above_in_words,
    in_words,
    read_with_products,
    results_lines,
    results_table,
    shown_in_words,
    substitute_in_words,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpcanary.experiment.products import Products

_SHOWN = {
    "canary": "canary",
    "runs": "runs",
    "shown": "shown: epsilon is at least",
    "add_remove": "add/remove epsilon",
    "substitute": "substitute epsilon",
    "rule": "rule",
    "assumption": "if this holds",
    "proof": "proof",
}


@dataclass(frozen=True, repr=False)
class AuditResults:
    """What the audits of an experiment have shown. `print` shows it as text.

    Attributes:
        folder: of the results: tables, figures, and the files of every stage.

    Raises:
        InputError: if there are no results in the folder, or old ones.
    """

    folder: Path

    def __post_init__(self) -> None:
        # Read now: another audit of that name may replace the files later.
        _ = self._read, self.summary

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per set-up: what is shown after the last step, beside what is accounted.

        Columns: see `results_table.results_table`.
        """
        return results_table(self.bounds)

    @cached_property
    def bounds(self) -> pd.DataFrame:
        """Every bound: one row per audit, repeat, step and estimate, as in `summary.tsv`."""
        return self._read[0]

    @property
    def figures(self) -> dict[str, Path]:
        """The figures of the config, as PNG files by name, but for those of another config."""
        _, products = self._read
        paths = sorted((self.folder / "figures").glob("*.png"))
        return {path.stem: path for path in paths if products is None or products.has_figure(path)}

    @cached_property
    def _read(self) -> "tuple[pd.DataFrame, Products | None]":
        return read_with_products(self.folder)

    def plot(self, path: Path | str | None = None) -> "Figure":
        """A bar for what each set-up shows, beside the accounted epsilons; also into a file."""
        require("matplotlib")
        from dpcanary.figures.overview_figure import draw_overview, shown

        return shown(draw_overview(self.summary), path)

    def report(self, path: Path | str | None = None, *, author: str = "") -> Path:
        """Writes the report, one HTML page that works offline; by default into the folder."""
        from dpcanary.reports.experiment_report import report_of_experiment
        from dpcanary.reports.report_page import write_report

        target = self.folder / "report.html" if path is None else Path(path)
        write_report(target, report_of_experiment(self.folder), author=author)
        return target

    def __repr__(self) -> str:
        return "\n".join(results_lines(self.summary, self.folder))

    def _repr_html_(self) -> str:
        table = self.summary.assign(
            shown=[*map(shown_in_words, self.summary.to_dict("records"))],
            add_remove=self.summary["add_remove"].map(rounded_up),
            substitute=[*map(substitute_in_words, self.summary.to_dict("records"))],
        )
        shown = table[[*_SHOWN]].rename(columns=_SHOWN).to_html(index=False, border=0)
        texts = [*above_in_words(self.summary), in_words(self.summary)]
        return f"{shown}{''.join(f'<p>{html.escape(text)}</p>' for text in texts)}"
