"""What the Snakefile needs beside the configuration: which files a program's result depends on."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dpcanary.files import sha256_of_file, sha256_of_text

_PACKAGE = "dpcanary"


def imports_of(program: Path, root: Path) -> list[str]:
    """The program and all modules of the library that it imports, directly or not.

    As inputs of a rule they make results follow the code that computes them. Imports are found
    without running anything, inside functions too, but not under `if TYPE_CHECKING`. The package's
    own `__init__` counts only where something is imported from it: it loads modules lazily.

    Args:
        program: path of a Python file.
        root: the folder that holds the package.

    Returns:
        Paths relative to `root`, sorted, the program first.
    """
    found: set[Path] = set()
    pending = [program]
    while pending:
        path = pending.pop()
        for imported in _imported_files(path, root):
            if imported not in found:
                found.add(imported)
                pending.append(imported)
    return [str(path.relative_to(root)) for path in [program, *sorted(found - {program})]]


def digest_of_imports(program: Path, root: Path) -> str:
    """One hash of all modules of the library that the program imports, directly or not.

    It changes with their names and content, and with nothing else.

    Args:
        program: path of a Python file.
        root: the folder that holds the package.
    """
    modules = imports_of(program, root)[1:]
    return sha256_of_text("".join(f"{path} {sha256_of_file(root / path)}\n" for path in modules))


def _imported_files(path: Path, root: Path) -> Iterator[Path]:
    for name in _names_imported_by(path.read_text(encoding="utf-8")):
        parts = name.split(".")
        if parts[0] != _PACKAGE:
            continue
        # Importing a.b.c runs a.b as well; `a.b.name` may be a module or a name in a.b.
        for length in range(2, len(parts) + 1):
            yield from _module_file(root.joinpath(*parts[:length]))
        if len(parts) == 2 and not list(_module_file(root.joinpath(*parts))):
            yield root / _PACKAGE / "__init__.py"


def _module_file(stem: Path) -> Iterator[Path]:
    for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
        if candidate.is_file():
            yield candidate


@cache
def _names_imported_by(code: str) -> tuple[str, ...]:
    """Every name that a module's code may import; most modules serve several programs."""
    return tuple(_imported_names(ast.parse(code)))


def _imported_names(tree: ast.AST) -> Iterator[str]:
    """Every `a.b.name` that the code may import; a name may be a module or not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from _imported_names(node)
