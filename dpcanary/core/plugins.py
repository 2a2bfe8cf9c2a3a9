"""Functions that settings name, and plugins that other packages register.

A function is named as in Python's entry points, `package.module:function`. A job therefore imports
only the function that its settings name, and depends on no other.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from dpcanary.errors import InputError

Kind = TypeVar("Kind")


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
    """The entry points of a group by name, from all installed packages.

    Raises:
        InputError: if two packages register the same name.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
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
