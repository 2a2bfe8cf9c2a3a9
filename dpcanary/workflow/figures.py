"""The files and settings of tables and figures, for the rules that make them."""

from collections.abc import Callable, Sequence

from dpcanary.settings.experiment import Experiment
from dpcanary.workflow.parameters import Wildcards


class FigureRules:
    """Files and settings of tables and figures, mostly as functions of a job's wildcards.

    Attributes:
        tables: for each table of bounds, the sweeps that it shows.
    """

    def __init__(self, experiment: Experiment, results: str) -> None:
        """Takes an experiment, and the folder of its results."""
        self._experiment, self._results = experiment, results
        self._figures = experiment.settings.figures
        # Each figure has a table of its own, so that it waits for its own audits alone.
        self.tables: dict[str, Sequence[str]] = {"summary": [*experiment.sweeps]} | {
            f"summaries/{name}": figure.sweeps
            for name, figure in self._figures.items()
            if figure.sweeps
        }

    def of_kinds(self, *kinds: str) -> list[str]:
        """The figures of some kinds."""
        return [name for name, figure in self._figures.items() if figure.kind in kinds]

    def setting(self, key: str) -> Callable[[Wildcards], object]:
        """A setting of the job's figure."""
        return lambda wildcards: getattr(self._figures[wildcards.figure], key)

    def files(self, pattern: str) -> Callable[[Wildcards], list[str]]:
        """The files of the audits in the job's figure; `pattern` contains `{audit}`."""
        return lambda wildcards: self._files(pattern, self._figures[wildcards.figure].sweeps)

    def files_of_table(self, pattern: str) -> Callable[[Wildcards], list[str]]:
        """The files of the audits in the job's table; `pattern` contains `{audit}`."""
        return lambda wildcards: self._files(pattern, self.tables[wildcards.table])

    def estimates(self, wildcards: Wildcards) -> str:
        """The folder of the estimates in the job's table, below the results."""
        figure = wildcards.table.rpartition("/")[2]
        by_runs = wildcards.table != "summary" and figure in self.of_kinds("epsilon_by_runs")
        return f"estimates_by_runs/{figure}" if by_runs else "estimates"

    def estimates_of_table(self, wildcards: Wildcards) -> list[str]:
        """The files of the estimates in the job's table."""
        pattern = f"{self.estimates(wildcards)}/{{audit}}.tsv"
        return self._files(pattern, self.tables[wildcards.table])

    def _files(self, pattern: str, sweeps: Sequence[str]) -> list[str]:
        return [
            f"{self._results}/{pattern.format(audit=audit)}"
            for sweep in sweeps
            for audit in self._experiment.sweeps[sweep]
        ]
