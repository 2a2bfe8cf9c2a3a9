"""Public names of packages, each loaded at its first use.

A package's `__init__` imports its public names under `if TYPE_CHECKING`: this one list serves type
checkers, readers and, through `namespace`, running programs.
"""

import ast
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

Namespace = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def namespace(package: str, init: str) -> Namespace:
    """What a package with public names has as `__getattr__`, `__dir__` and `__all__`.

    Args:
        package: its name.
        init: the path of its `__init__`.
    """
    modules = module_of(Path(init))

    def attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if modules[name] == package:  # `from package import subpackage`
            return import_module(f"{package}.{name}")
        try:
            return getattr(import_module(modules[name]), name)
        except ModuleNotFoundError as error:
            from dpcanary.core.optional_packages import lacking, package_lacked

            if (lacked := package_lacked(error)) is None:
                raise
            text = lacking(lacked, subject=f"{package}.{name}")
            raise ModuleNotFoundError(text, name=error.name) from None

    def shown() -> list[str]:
        return sorted({*vars(import_module(package)), *modules})

    return attribute, shown, [*modules]


@cache
def module_of(init: Path) -> dict[str, str]:
    """The public names of an `__init__`, sorted, each with the module that it is imported from."""
    return dict(sorted(_public_names(init)))


def _public_names(init: Path) -> Iterator[tuple[str, str]]:
    for block in ast.parse(init.read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom):
                    yield from ((alias.name, str(node.module)) for alias in node.names)
