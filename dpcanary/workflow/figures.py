"""The files and settings of tables and figures, for the rules that make them."""

from collections.abc import Callable, Sequence
from typing import Any

from dpcanary.settings.experiment import Experiment
from dpcanary.settings.figure import BY_RUNS_KINDS
from dpcanary.settings.products import Product, Products
from dpcanary.workflow.parameters import Wildcards, option


class FigureRules:
    """Files and settings of tables and figures, mostly as functions of a job's wildcards.

    Attributes:
        tables: for each table of bounds, the sweeps that it shows.
    """

    def __init__(self, experiment: Experiment, results: str, products: Products) -> None:
        """Takes an experiment, the folder of its results, and its products."""
        self._experiment, self._results, self._products = experiment, results, products
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

    def options(
        self, *inputs: str, settings: Sequence[str] = ()
    ) -> Callable[[Wildcards, Any], str]:
        """The options of a figure's program: its job, some inputs, and some settings.

        A setting that is true is an option without a value, one that is false or empty is none.
        """

        def of_job(wildcards: Wildcards, input: Any) -> str:  # Snakemake's name
            figure = self._figures[wildcards.figure]
            known = {key: getattr(figure, key) for key in settings}
            values = {name: _listed(input[name]) for name in inputs} | {
                key: _listed(value) for key, value in known.items() if not isinstance(value, bool)
            }
            flags = [f"--{_dashed(key)}" for key, value in known.items() if value is True]
            given = [option(_dashed(name), *of_name) for name, of_name in values.items()]
            made = {name: self._products.of_figure(wildcards.figure, name) for name in inputs}
            job = Product(f"figures/{wildcards.figure}", figure.to_json(), made).job
            return " ".join(filter(None, [option("job", job.to_json()), *given, *flags]))

        return of_job

    def numbers_of_runs(self, wildcards: Wildcards) -> list[int]:
        """The numbers of first runs of a figure at which the job's audit has estimates."""
        return self._products.numbers_of_runs(wildcards.figure, wildcards.audit)

    def job_by_runs(self, wildcards: Wildcards) -> str:
        """What a job of estimates by runs makes, and from what."""
        made = self._products.estimates_by_runs(wildcards.figure, wildcards.audit)
        return made.job.to_json()

    def job_of_ceilings(self, wildcards: Wildcards) -> str:
        """What a job of ceilings makes, and from what."""
        return self._products.ceilings(wildcards.figure).job.to_json()

    def job_of_ratios(self, wildcards: Wildcards) -> str:
        """What a job that compares adjacencies makes."""
        return self._products.ratios(wildcards.figure).job.to_json()

    def job_of_table(self, wildcards: Wildcards) -> str:
        """What a job of a table of bounds makes, and from what."""
        name, figure = wildcards.table, wildcards.table.rpartition("/")[2]
        rows = self._products.summary(
            self.tables[name], figure=None if name == "summary" else figure
        )
        roles = ("estimates", "accounting")
        made = {role: [one for row in rows for one in row.inputs[role]] for role in roles}
        return Product(name, "", made).job.to_json()

    def files(self, pattern: str) -> Callable[[Wildcards], list[str]]:
        """The files of the audits in the job's figure; `pattern` contains `{audit}`."""
        return lambda wildcards: self._files_of(pattern, self._products.audits_of(wildcards.figure))

    @property
    def proven(self) -> list[str]:
        """The figures that show what bounds prove."""
        return [name for name, figure in self._figures.items() if figure.proven]

    def ceilings(self, wildcards: Wildcards) -> list[str]:
        """The file of the most that can be proven, if the job's figure shows it."""
        name = wildcards.figure
        return [f"{self._results}/ceilings/{name}.tsv"] if name in self.proven else []

    def files_of_table(self, pattern: str) -> Callable[[Wildcards], list[str]]:
        """The files of the audits in the job's table; `pattern` contains `{audit}`."""
        return lambda wildcards: self._files(pattern, self.tables[wildcards.table])

    def estimates(self, wildcards: Wildcards) -> str:
        """The folder of the estimates in the job's table, below the results."""
        figure = wildcards.table.rpartition("/")[2]
        by_runs = wildcards.table != "summary" and figure in self.of_kinds(*BY_RUNS_KINDS)
        return f"estimates_by_runs/{figure}" if by_runs else "estimates"

    def estimates_of_table(self, wildcards: Wildcards) -> list[str]:
        """The files of the estimates in the job's table."""
        pattern = f"{self.estimates(wildcards)}/{{audit}}.tsv"
        return self._files(pattern, self.tables[wildcards.table])

    def _files(self, pattern: str, sweeps: Sequence[str]) -> list[str]:
        audits = [audit for sweep in sweeps for audit in self._experiment.sweeps[sweep]]
        return self._files_of(pattern, audits)

    def _files_of(self, pattern: str, audits: Sequence[str]) -> list[str]:
        return [f"{self._results}/{pattern.format(audit=audit)}" for audit in audits]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _listed(value: Any) -> list[object]:
    """One file or setting, or several, as a list."""
    return [value] if value is None or isinstance(value, str) else [*value]
