"""Functions of a job's wildcards. Snakemake calls them thousands of times."""

import inspect
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

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
    given = [shlex.quote(str(value)) for value in values if value is not None]
    return " ".join([f"--{name}", *given]) if given else ""
