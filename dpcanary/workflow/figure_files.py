"""The files and settings of tables and figures, for the rules that make them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from dpcanary.experiment.figure_catalogue import FigureKind, figure_kind
from dpcanary.experiment.products import Product, Products
from dpcanary.experiment.unplanned_looks import unplanned_looks_in_words
from dpcanary.workflow.audit_files import Wildcards


class FigureRules:
    """Files and settings of tables and figures, mostly as functions of a job's wildcards.

    Attributes:
        tables: for each table of bounds, the sweeps that it shows.
        kinds: for each figure, its kind.
    """

    def __init__(self, results: str, products: Products) -> None:
        """Takes the folder of an experiment's results, and its products."""
        self._results, self._products = results, products
        self._figures = products.experiment.settings.figures
        self.kinds = {name: figure_kind(figure.kind) for name, figure in self._figures.items()}
        # Each figure has a table of its own, so that it waits for its own audits alone.
        self.tables: dict[str, Sequence[str]] = {"summary": [*products.experiment.sweeps]} | {
            f"summaries/{name}": figure.sweeps
            for name, figure in self._figures.items()
            if figure.sweeps
        }

    def kind(self, wildcards: Wildcards) -> FigureKind:
        """The kind of the job's figure."""
        return self.kinds[wildcards.figure]

    def inputs(self, wildcards: Wildcards) -> dict[str, list[str]]:
        """The files that the job's figure is drawn from, by what they are."""
        name = wildcards.figure
        audits = self._products.audits_of(name)
        paths = {
            "summary": [f"summaries/{name}.tsv"],
            "ceilings": [f"ceilings/{name}.tsv"] if self._figures[name].shown else [],
            "ratios": [f"ratios/{name}.tsv"],
            "scores": [f"scores/{audit}.npz" for audit in audits],
            "profiles": [f"profiles/{audit}.tsv" for audit in audits],
        }
        roles = self.kind(wildcards).files
        return {role: [f"{self._results}/{path}" for path in paths[role]] for role in roles}

    def settings(self, wildcards: Wildcards) -> str:
        """The settings of the job's figure, as JSON."""
        figure, kind = self._figures[wildcards.figure], self.kind(wildcards)
        notes = [self._unplanned_looks(wildcards.figure), figure.note]
        settings = {"note": ". ".join(note for note in notes if note)} | figure.options
        settings |= {key: getattr(figure, key) for key in kind.drawn_keys}
        if figure.axis:
            settings["axis"] = figure.axis
        return json.dumps(settings)

    def _unplanned_looks(self, name: str) -> str:
        """Which of the bounds that a figure shows do not hold because of a look without a plan."""
        figure, experiment = self._figures[name], self._products.experiment
        kind = self.kinds[name]
        if not (figure.shown if "shown" in kind.keys else kind.has_bounds):
            return ""
        audits = self._products.audits_of(name)
        return unplanned_looks_in_words(Path(self._results), experiment, audits)

    def settings_of(self, kind: str) -> Callable[[Wildcards], str]:
        """The settings of a job of a figure: of its ceilings or its ratios."""
        product_of: Callable[[str], Product] = getattr(self._products, kind)
        return lambda wildcards: product_of(wildcards.figure).settings

    def job(self, kind: str) -> Callable[[Wildcards], str]:
        """What a job of a figure makes: the figure, its ceilings or its ratios; and from what."""
        product_of: Callable[[str], Product] = getattr(self._products, kind)
        return lambda wildcards: product_of(wildcards.figure).job.to_json()

    def numbers_of_runs(self, wildcards: Wildcards) -> list[int]:
        """The numbers of first runs of a figure at which the job's audit has estimates."""
        return self._products.numbers_of_runs(wildcards.figure, wildcards.audit)

    def job_by_runs(self, wildcards: Wildcards) -> str:
        """What a job of estimates by runs makes, and from what."""
        product = self._products.estimates_by_runs(wildcards.figure, wildcards.audit)
        return product.job.to_json()

    def job_of_table(self, wildcards: Wildcards) -> str:
        """What a job of a table of bounds makes, and from what."""
        inputs = {role: self._of_table(wildcards, role) for role in ("estimates", "accounting")}
        config = Product("experiment", self._products.experiment.to_json())
        return Product(wildcards.table, "", {**inputs, "experiment": [config]}).job.to_json()

    def scores_of_ceilings(self, wildcards: Wildcards) -> list[str]:
        """The scores of the audits in the job's figure."""
        return self._paths(self._products.ceilings(wildcards.figure).inputs["scores"])

    def files_of_table(self, role: str) -> Callable[[Wildcards], list[str]]:
        """The estimates, or the accounting, of the audits in the job's table."""
        return lambda wildcards: self._paths(self._of_table(wildcards, role))

    def _of_table(self, wildcards: Wildcards, role: str) -> list[Product]:
        name = wildcards.table
        figure = None if name == "summary" else name.rpartition("/")[2]
        rows = self._products.summary(self.tables[name], figure=figure)
        return [product for row in rows for product in row.inputs[role]]

    def _paths(self, products: Sequence[Product]) -> list[str]:
        return [f"{self._results}/{product.path}" for product in products]
