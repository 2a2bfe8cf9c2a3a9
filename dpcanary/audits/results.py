"""The results of an experiment, for a script or a notebook."""

import html
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dpcanary.results_table import in_words, read_results, results_lines
from dpcanary.tables import read_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = {
    "canary": "canary",
    "runs": "runs",
    "proven": "proven: epsilon is at least",
    "add_remove": "add/remove epsilon",
    "substitute": "substitute epsilon",
    "rule": "rule",
    "assumption": "if this holds",
}


@dataclass(frozen=True, repr=False)
class AuditResults:
    """What the audits of an experiment have proven. `print` shows it as text.

    Attributes:
        folder: of the results: tables, figures, and the files of every stage.
    """

    folder: Path

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per set-up: what is proven after the last step, beside what is accounted.

        Columns: see `results_table.results_table`.
        """
        return read_results(self.folder)

    @cached_property
    def bounds(self) -> pd.DataFrame:
        """Every bound: one row per audit, repeat, step and estimate, as in `summary.tsv`."""
        return read_table(self.folder / "summary.tsv")

    @property
    def figures(self) -> dict[str, Path]:
        """The figures of the config, as PNG files by name."""
        return {path.stem: path for path in sorted((self.folder / "figures").glob("*.png"))}

    def plot(self, path: Path | str | None = None) -> "Figure":
        """A bar for what each set-up proves, beside the accounted epsilons; also into a file."""
        from dpcanary.figures.notebooks import show_figures_in_notebooks
        from dpcanary.figures.overview import draw_overview
        from dpcanary.figures.scores_of_worlds import save

        figure = draw_overview(self.summary)
        show_figures_in_notebooks()
        if path is not None:
            save(figure, Path(path))
        return figure

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the report, one HTML page that works offline; by default into the folder."""
        from dpcanary.reports.of_experiment import report_of_experiment
        from dpcanary.reports.page import write_report

        target = self.folder / "report.html" if path is None else Path(path)
        write_report(target, report_of_experiment(self.folder))
        return target

    def __repr__(self) -> str:
        return "\n".join(results_lines(self.summary, self.folder))

    def _repr_html_(self) -> str:
        table = self.summary[[*_SHOWN]].rename(columns=_SHOWN)
        shown = table.to_html(index=False, float_format="{:.2f}".format, border=0)
        return f"{shown}<p>{html.escape(in_words(self.summary))}</p>"
