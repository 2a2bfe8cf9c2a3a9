"""The files and settings of audits, for the rules that make runs, scores and estimates."""

import inspect
import shlex
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dpcanary.experiment.products import Product, Products

Value = TypeVar("Value")
# Snakemake's object that has the wildcards of a job as attributes.
Wildcards = Any


def with_known_signature(function: Callable[..., Value]) -> Callable[..., Value]:
    """Stores the function's signature: Snakemake asks for it several times for every job."""
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return function


def option(name: str, *values: object) -> str:
    """A command-line option with its values; nothing if there is no value, or only None.

    Example:
        >>> option("files", "a b.csv", "c.csv"), option("files", None)
        ("--files 'a b.csv' c.csv", '')
    """
    texts = [shlex.quote(str(value)) for value in values if value is not None]
    return " ".join([f"--{name}", *texts]) if texts else ""


def options_of(job: Callable[[Wildcards], str], **others: object) -> Callable[[Wildcards], str]:
    """The options of a job's program that say what it makes, and with what settings.

    They are a function of the wildcards alone: a change of one reruns the job. What depends on a
    job's inputs is not compared.
    """

    def of_job(wildcards: Wildcards) -> str:
        options = {
            name: value(wildcards) if callable(value) else value for name, value in others.items()
        }
        return _options({"job": job(wildcards), **options})

    return with_known_signature(of_job)


def files_in(*folders: str) -> Callable[[Wildcards, Any], str]:
    """The options of a job's program that name its input files, each by its role.

    Of the roles in `folders` only the folder is given: so many paths are longer than a command.
    """

    def of_job(wildcards: Wildcards, input: Any) -> str:  # Snakemake's name
        roles = {
            role: [paths] if isinstance(paths, str) else [*paths] for role, paths in input.items()
        }
        del roles["program"]
        return _options(
            {
                role: Path(paths[0]).parent if role in folders else paths
                for role, paths in roles.items()
            }
        )

    return with_known_signature(of_job)


def _options(values: Mapping[str, object]) -> str:
    options = (
        option(name.replace("_", "-"), *(value if isinstance(value, list | tuple) else [value]))
        for name, value in values.items()
    )
    return " ".join(filter(None, options))


class AuditRules:
    """Files and settings of audits. Most methods take or return functions of a job's wildcards.

    A job that makes runs (noise, canaries, shards) has the wildcard `runs`, their name; one that
    audits share has the wildcard `reference`, `optimised` or `pretrained`. Its audit is the first
    one that uses them. Other jobs have the wildcard `audit`.

    Attributes:
        trained: names of runs that train models.
        drawn: names of runs that are drawn from a process.
    """

    def __init__(self, results: str, products: Products) -> None:
        """Takes the folder of an experiment's results, and its products."""
        experiment = products.experiment
        self._experiment, self._results = experiment, results
        self._audits, self._first = experiment.audits, experiment.first_audits
        first = self._first.items()
        self.trained = [runs for runs, audit in first if self._audits[audit].is_trained]
        self.drawn = [runs for runs, audit in first if not self._audits[audit].is_trained]
        self._products = products
        self._jobs = {
            "runs": self._first,
            "reference": products.reference_models.audits,
            "optimised": products.optimised_canaries.audits,
            "pretrained": products.pretrained_models.audits,
        }

    def by_audit(self, function: Callable[[str], Value]) -> Callable[[Wildcards], Value]:
        """Makes a function of an audit's name one of the job's wildcards; called once per audit."""
        cached = cache(function)

        def of_wildcards(wildcards: Wildcards) -> Value:
            return cached(self._audit_of(wildcards))

        return with_known_signature(of_wildcards)

    def settings(self, kind: str) -> Callable[[Wildcards], str]:
        """The settings of a job that makes this kind of product."""
        return self.by_audit(lambda audit: self._product(kind, audit).settings)

    def runs(self, wildcards: Wildcards) -> list[int]:
        """The index of the first run of the job's shard, and the one after its last."""
        runs = self._audits[self._first[wildcards.runs]].runs_of(wildcards.shard)
        return [runs.start, runs.stop]

    def shards(self, wildcards: Wildcards) -> list[str]:
        """The shard files of the job's audit."""
        folder = f"{self._results}/shards/{self._experiment.runs_of_audit[wildcards.audit]}"
        return [f"{folder}/{shard}.npz" for shard in self._audits[wildcards.audit].shards]

    def input(self, kind: str, role: str) -> Callable[[Wildcards], list[str]]:
        """The files of a role that a job reads which makes this kind of product; none if none."""
        return self.by_audit(
            lambda audit: [
                f"{self._results}/{product.path}"
                for product in self._product(kind, audit).inputs[role]
            ]
        )

    def options(self, kind: str, **others: Any) -> Callable[[Wildcards], str]:
        """The options of a job that makes this kind of product."""
        return options_of(self.job(kind), settings=self.settings(kind), **others)

    def job(self, kind: str) -> Callable[[Wildcards], str]:
        """What a job makes, and what its inputs must be, for its program."""
        return self.by_audit(lambda audit: self._product(kind, audit).job.to_json())

    def labels(self, wildcards: Wildcards) -> list[str | None]:
        """The names of the job's audit, its canary and its score."""
        audit = self._audits[wildcards.audit]
        return [wildcards.audit, audit.canary, audit.score]

    def _product(self, kind: str, audit: str) -> Product:
        products: Product | list[Product] = getattr(self._products, kind)(audit)
        return products if isinstance(products, Product) else products[0]

    def _audit_of(self, wildcards: Wildcards) -> str:
        """An audit that a job is for."""
        for wildcard, audits in self._jobs.items():
            if name := getattr(wildcards, wildcard, None):
                return audits[name]
        return str(wildcards.audit)
