"""The files and settings of tables and figures, for the rules that make them."""

from collections.abc import Callable, Sequence

from dpcanary.settings.experiment import Experiment
from dpcanary.workflow.parameters import Wildcards


class FigureRules:
    """What the rules of tables and figures ask.

    Attributes:
        tables: for each table of bounds, the sweeps that it shows.
    """

    def __init__(self, experiment: Experiment, results: str) -> None:
        """Takes an experiment, and the folder of its results."""
        self._experiment, self._results = experiment, results
        figures = experiment.settings.figures
        self.tables: dict[str, Sequence[str]] = {"summary": [*experiment.sweeps]}
        # A figure waits for its own audits alone.
        for name, figure in figures.items():
            if figure.sweeps:
                self.tables[f"summaries/{name}"] = figure.sweeps

    def of_kinds(self, *kinds: str) -> list[str]:
        """The figures of some kinds."""
        figures = self._experiment.settings.figures
        return [name for name, figure in figures.items() if figure.kind in kinds]

    def setting(self, key: str) -> Callable[[Wildcards], object]:
        """What the config says of the job's figure under a key."""
        figures = self._experiment.settings.figures
        return lambda wildcards: getattr(figures[wildcards.figure], key)

    def files(self, pattern: str) -> Callable[[Wildcards], list[str]]:
        """The files of all audits that the job's figure shows.

        Args:
            pattern: with `{audit}`, below the results.
        """
        figures = self._experiment.settings.figures
        return lambda wildcards: self._files(pattern, figures[wildcards.figure].sweeps)

    def files_of_table(self, pattern: str) -> Callable[[Wildcards], list[str]]:
        """The files of all audits that the job's table shows.

        Args:
            pattern: with `{audit}`, below the results.
        """
        return lambda wildcards: self._files(pattern, self.tables[wildcards.table])

    def estimates(self, wildcards: Wildcards) -> str:
        """The folder of the estimates that the job's table shows, below the results."""
        figure = wildcards.table.rpartition("/")[2]
        by_runs = wildcards.table != "summary" and figure in self.of_kinds("epsilon_by_runs")
        return f"estimates_by_runs/{figure}" if by_runs else "estimates"

    def estimates_of_table(self, wildcards: Wildcards) -> list[str]:
        """The files of estimates that the job's table shows."""
        pattern = f"{self.estimates(wildcards)}/{{audit}}.tsv"
        return self._files(pattern, self.tables[wildcards.table])

    def _files(self, pattern: str, sweeps: Sequence[str]) -> list[str]:
        return [
            f"{self._results}/{pattern.format(audit=audit)}"
            for sweep in sweeps
            for audit in self._experiment.sweeps[sweep]
        ]
