"""Functions of a job's wildcards, as Snakemake calls them thousands of times."""

import inspect
import shlex
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Value = TypeVar("Value")
# Snakemake's object that has the wildcards of a job as attributes.
Wildcards = Any


def with_known_signature(function: Callable[..., Value]) -> Callable[..., Value]:
    """The function with its signature kept: Snakemake asks for it several times for every job."""
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return function


def by_audit(function: Callable[[str], Value]) -> Callable[[Wildcards], Value]:
    """Makes a function of an audit's name one of the job's wildcards; called once per audit."""
    cached = cache(function)

    def of_wildcards(wildcards: Wildcards) -> Value:
        return cached(wildcards.audit)

    return with_known_signature(of_wildcards)


def option(name: str, *values: object) -> str:
    """An option of a command line with its values; nothing where there is none.

    Example:
        >>> option("files", "a b.csv", "c.csv"), option("files")
        ("--files 'a b.csv' c.csv", '')
    """
    return " ".join([f"--{name}", *(shlex.quote(str(value)) for value in values)] * bool(values))
