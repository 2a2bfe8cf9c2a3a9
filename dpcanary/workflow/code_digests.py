"""Which code the result of a program depends on."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dpcanary.core.files import sha256_of_file, sha256_of_text
from dpcanary.core.installation import LIBRARY
from dpcanary.core.plugins import registered
from dpcanary.core.public_names import module_of
from dpcanary.errors import InputError, suggestion

_PACKAGE = "dpcanary"
# Modules that load what other packages register, with the groups of entry points.
_LOADERS = {
    "dpcanary/adversaries/catalogue.py": "dpcanary.adversaries",
    "dpcanary/estimation/rule_catalogue.py": "dpcanary.threshold_rules",
    "dpcanary/experiment/figure_catalogue.py": "dpcanary.figure_kinds",
}

# The condition of imports that are for type checkers alone.
_TYPES_ONLY = r"(\w+\.)?TYPE_CHECKING"
# Top-level packages, and the folders that contain them.
Packages = Mapping[str, Path]


def imports_of(program: Path, root: Path) -> list[str]:
    """The program and all modules of the library that it imports, directly or not.

    Imports are found without running anything: also inside functions, but not under
    `if TYPE_CHECKING`. For a public name imported from `dpcanary`, the module that defines it
    counts. Paths are relative to `root`, the folder that contains the package, and sorted after
    the program.
    """
    modules = _closure([program], {_PACKAGE: root}) - {program}
    return [str(path.relative_to(root)) for path in [program, *sorted(modules)]]


def digest_of_code(program: Path, root: Path, *, functions: Sequence[str] = ()) -> str:
    """A hash of all code that a program's result depends on, except for the program itself.

    `root` is the folder that contains the library; the program may be elsewhere.
    As a parameter of a rule, it makes jobs run again after their code has changed. It depends on
    the names and contents of these files only. They include `functions` that the program gets by
    name, as `package.module:name`, with what these import of their own package.
    """
    imported = _closure([program], {_PACKAGE: root}) - {program}
    files = {str(path.relative_to(root)): path for path in imported}
    plugins = [
        point.value
        for module, group in _LOADERS.items()
        if module in files
        for point in registered(group).values()
    ]
    for reference in [*functions, *plugins]:
        files |= _code_of_function(reference, root)
    lines = [f"{name} {sha256_of_file(path)}\n" for name, path in sorted(files.items())]
    return sha256_of_text("".join(lines))


def check_functions(references: Sequence[str]) -> None:
    """Looks for the code of functions, without running it.

    Raises:
        InputError: names the function that is not there, or a mistake in what its module imports.
    """
    for reference in references:
        _code_of_function(reference, LIBRARY)


def _code_of_function(reference: str, root: Path) -> dict[str, Path]:
    """The module of a function, and what it imports of its package and of the library.

    Of a module outside installed packages, all that it imports of its folder counts. Keys are the
    paths relative to the folder of their package.
    """
    module = reference.partition(":")[0]
    top = module.partition(".")[0]
    packages: Packages = {_PACKAGE: root}
    if top != _PACKAGE:
        packages = _Beside(_folder_of(top), top, {_PACKAGE: root})
    start = list(_module_files(module, packages))
    if not start:
        raise InputError(f"there is no module {module!r}, which {reference!r} names")
    _check_is_defined(reference, start[-1])
    return {
        str(path.relative_to(folder)): path
        for path in _closure(start, packages) | {*start}
        for folder in {root, *([] if top == _PACKAGE else [_folder_of(top)])}
        if path.is_relative_to(folder)
    }


def _folder_of(package: str) -> Path:
    """The folder that contains a top-level package or module."""
    spec = find_spec(package) if package else None
    if spec is None:
        raise InputError(f"there is no package {package!r} here; install it")
    folders = [*(spec.submodule_search_locations or [str(spec.origin)])]
    return Path(folders[0]).parent


class _Beside(dict[str, Path]):
    """The folders of packages; with those beside a module of the user's own, looked up by name."""

    def __init__(self, folder: Path, top: str, packages: Packages) -> None:
        super().__init__({**packages, top: folder})
        self._folder = folder
        self._is_own = "site-packages" not in folder.parts

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        place = self._folder / str(name)
        return self._is_own and (place.is_dir() or place.with_suffix(".py").is_file())

    def __missing__(self, name: str) -> Path:
        return self._folder


def _closure(start: Sequence[Path], packages: Packages) -> set[Path]:
    """All files of the packages that some files import, directly or not."""
    files: set[Path] = set()
    seen_names: set[str] = set()
    pending = [*start]
    while pending:
        path = pending.pop()
        try:
            names = _imported_names(path.read_text(encoding="utf-8"), _package_of(path, packages))
        except SyntaxError as error:
            raise InputError(f"{path}, line {error.lineno}: {error.msg}") from None
        for name in {*names} - seen_names:
            new = {*_module_files(name, packages)} - files
            files |= new
            pending.extend(new)
        seen_names |= {*names}
    return files


def _module_files(name: str, packages: Packages) -> Iterator[Path]:
    """The files that importing a name runs. `a.b.name` may be a module or a name in `a.b`."""
    top, *parts = name.split(".")
    if top not in packages:
        return
    if top == _PACKAGE:
        yield from _library_files(packages[top] / top, parts, packages)
        return
    for length in range(len(parts) + 1):
        stem = packages[top].joinpath(top, *parts[:length])
        yield from filter(Path.is_file, (stem.with_suffix(".py"), stem / "__init__.py"))


def _library_files(folder: Path, parts: Sequence[str], packages: Packages) -> Iterator[Path]:
    """The file of a module of the library, or of the module that defines a public name.

    The library's `__init__` files run at every import, too, but they only hold public names.
    """
    while parts and (folder / parts[0] / "__init__.py").is_file():
        folder, parts = folder / parts[0], parts[1:]
    modules = module_of(folder / "__init__.py")
    # Whoever imports a package as a whole may use any of its names.
    for public in parts[:1] or modules:
        if public in modules:
            yield from _module_files(f"{modules[public]}.{public}", packages)
        elif (folder / f"{public}.py").is_file():
            yield folder / f"{public}.py"


def _package_of(path: Path, packages: Packages) -> str:
    """The package that a file is in, as `a.b`; empty for a module of its own, or a program."""
    for folder in dict.fromkeys(packages.values()):
        if path.is_relative_to(folder):
            return ".".join(path.relative_to(folder).parts[:-1])
    return ""


def _check_is_defined(reference: str, path: Path) -> None:
    """Refuses a name that a module neither defines nor imports."""
    module, _, name = reference.partition(":")
    functions, others = _defined_in(path.read_text(encoding="utf-8"))
    if {name.partition(".")[0], "*", "__getattr__"}.isdisjoint(functions | others):
        public = sorted(other for other in functions or others if not other.startswith("_"))
        raise InputError(
            f"module {module} has no function {name!r}, which {reference!r} names;"
            f" {suggestion(name, public)}"
        )


@cache
def _defined_in(code: str) -> tuple[frozenset[str], frozenset[str]]:
    """The functions of a module, and its other names; `*` where they cannot all be known."""
    functions: set[str] = set()
    others: set[str] = set()
    pending: list[ast.AST] = [ast.parse(code)]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    functions.add(name)
                case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    others.add(name)
                case ast.alias(name=name, asname=asname):
                    others.add((asname or name).partition(".")[0])
                case _:
                    pending.append(node)
    return frozenset(functions), frozenset(others)


@cache  # most modules serve several programs
def _imported_names(code: str, package: str) -> tuple[str, ...]:
    return tuple(_imported_by(ast.parse(code), package))


def _imported_by(tree: ast.AST, package: str) -> Iterator[str]:
    """Every `a.b.name` that the code of a package may import; a name may be a module or not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and re.fullmatch(_TYPES_ONLY, ast.unparse(node.test)):
            yield from _imported_by(ast.Module(node.orelse, []), package)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            parts = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*parts, alias.name]) for alias in node.names)
        else:
            yield from _imported_by(node, package)
