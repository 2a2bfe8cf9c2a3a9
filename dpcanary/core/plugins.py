"""Functions that settings name, and plugins that packages register by entry points.

A function is named as in Python's entry points, `package.module:function`. A job therefore imports
only the function that its settings name, and depends on no other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from dpcanary.errors import InputError, suggestion

Kind = TypeVar("Kind")

# Each folder has an `entry_points.txt`, as an installed package has. It is read from here because
# jobs import the library from a clone, which is not installed and has no metadata.
_PAPERS = Path(__file__).parents[1] / "papers"


def function_named(reference: str) -> Callable[..., Any]:
    """The function that a reference, `package.module:function`, names.

    Raises:
        InputError: if there is no such function.
    """
    module, _, name = reference.partition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"there is no function {reference!r} ({error}); is its package installed here?"
        ) from None
    except Exception as error:  # whatever another package's code raises
        raise InputError(
            f"module {module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return function


@cache
def registered(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group by name: those of papers, then those of installed packages.

    Raises:
        InputError: if two packages register the same name.
    """
    points: dict[str, EntryPoint] = {}
    papers = [Distribution.at(path).entry_points for path in sorted(_PAPERS.glob("*/"))]
    of_papers = [point for paper in papers for point in paper.select(group=group)]
    installed = sorted(entry_points(group=group), key=lambda point: point.name)
    for point in (*of_papers, *installed):
        other = points.setdefault(point.name, point)
        if other.value != point.value:
            raise InputError(
                f"{point.value} and {other.value} are both registered as {group} {point.name!r};"
                " uninstall one of their packages"
            )
    return points


def load_plugin(group: str, name: str, kind: type[Kind]) -> Kind:
    """The object that a package registered by a name in a group of entry points.

    Raises:
        InputError: if it cannot be loaded, or is not of this kind.
    """
    point = registered(group)[name]
    try:
        plugin = point.load()
    except Exception as error:  # whatever another package's code raises
        raise InputError(f"{group} {name!r}: cannot load {point.value} ({error})") from error
    if not isinstance(plugin, kind):
        raise InputError(
            f"{group} {name!r}: {point.value} must be a {kind.__module__}.{kind.__name__}, not"
            f" {type(plugin).__name__}"
        )
    return plugin


@dataclass(frozen=True)
class Catalogue(Generic[Kind]):
    """Entries by name: those of the library, then those that are registered in a group.

    Attributes:
        noun: what an entry is called in errors.
        group: of entry points.
        kind: the type of an entry. An attribute `name` must be what it is registered as.
        built_in: the library's own entries.
    """

    noun: str
    group: str
    kind: type[Kind]
    built_in: Mapping[str, Kind]

    def names(self) -> list[str]:
        """All names, in the order of figures and tables."""
        return list(dict.fromkeys([*self.built_in, *registered(self.group)]))

    def named(self, name: str) -> Kind:
        """The entry of this name.

        Raises:
            InputError: if there is none, it cannot be used, or a built-in name is registered.
        """
        plugins = registered(self.group)
        if duplicate := min(self.built_in.keys() & plugins.keys(), default=None):
            raise InputError(
                f"{plugins[duplicate].value} is registered as {self.group} {duplicate!r}, which is"
                " taken: choose another name"
            )
        if name in self.built_in:
            return self.built_in[name]
        if name not in plugins:
            raise InputError(f"unknown {self.noun} {name!r}: {suggestion(name, self.names())}")
        entry = load_plugin(self.group, name, self.kind)
        own_name = getattr(entry, "name", name)
        if own_name != name:
            raise InputError(
                f"{self.group} {name!r}: its entry is named {own_name!r}; make them equal"
            )
        return entry

    def entries(self) -> dict[str, Kind]:
        """All entries by name."""
        return {name: self.named(name) for name in self.names()}


def unknown_name(name: str, registered_names: Iterable[str]) -> str:
    """What a message says of a name under which nothing is registered."""
    text = f"unknown name, {suggestion(name, registered_names)}"
    if text.endswith("?"):  # a similar one is known
        return text
    return f"{text}; names of another package are known where that is installed"
