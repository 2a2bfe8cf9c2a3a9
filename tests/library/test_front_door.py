"""`import dpcanary` loads almost nothing, and lists all public names."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from statistics import median
from time import perf_counter

import pytest

import dpcanary

SOURCE = ast.parse(Path(dpcanary.__file__).read_text(encoding="utf-8"))
HEAVY = ("torch", "scipy", "numpy")


def printed(code: str) -> list[str]:
    """The lines that a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def seconds(code: str) -> float:
    """The time that a fresh Python takes."""
    start = perf_counter()
    printed(code)
    return perf_counter() - start


@pytest.mark.parametrize("use", ["pass", "dir(dpcanary)", "dpcanary.InputError"])
def test_the_import_loads_nothing_heavy(use):
    code = f"import sys, dpcanary; {use}; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert printed(code) == [""]


def test_the_import_loads_no_module_of_the_package():
    code = "import sys, dpcanary; print(*(m for m in sys.modules if m.startswith('dpcanary.')))"
    assert printed(code) == [""]


def test_the_import_is_fast():
    """Below 100 ms more than Python's own start. They alternate, so that load affects both."""
    pairs = [(seconds("pass"), seconds("import dpcanary")) for _ in range(9)]
    empty, imported = (median(times) for times in zip(*pairs, strict=True))
    assert imported - empty < 0.1


def test_names_are_objects_of_their_modules():
    assert {*dpcanary.__all__} == dpcanary.MODULE_OF.keys()
    for name in dpcanary.__all__:
        found = getattr(dpcanary, name)
        assert found is getattr(import_module(dpcanary.MODULE_OF[name]), name)
        assert (found.__module__, found.__qualname__) == (dpcanary.MODULE_OF[name], name)


def test_names_are_sorted_and_there_once():
    assert [*dpcanary.__all__] == sorted({*dpcanary.__all__})


def test_each_module_can_be_had_first():
    """No module needs that another one is loaded before it; import cycles would fail here."""
    code = """
import sys, dpcanary
one_of_each = {module: name for name, module in dpcanary.MODULE_OF.items()}
for name in one_of_each.values():
    for module in [module for module in sys.modules if module.startswith("dpcanary.")]:
        del sys.modules[module]
    print(name, getattr(dpcanary, name).__module__)
"""
    found = dict(map(str.split, printed(code)))
    assert found.items() <= dpcanary.MODULE_OF.items()
    assert {*found.values()} == {*dpcanary.MODULE_OF.values()}


def test_the_docstring_lists_all_names():
    listed = [
        name.strip()
        for line in ast.get_docstring(SOURCE).splitlines()
        if line.startswith("    ")
        for name in line.strip().rstrip(",").split(",")
    ]
    assert sorted(listed) == dpcanary.__all__


def test_type_checkers_see_all_names():
    """The `TYPE_CHECKING` block imports each name as itself, from its own module."""
    (block,) = [
        node
        for node in SOURCE.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    assert all(isinstance(node, ast.ImportFrom) and node.level == 0 for node in block.body)
    imported = [(alias, node.module) for node in block.body for alias in node.names]
    assert sorted(alias.name for alias, _ in imported) == dpcanary.__all__
    for alias, module in imported:
        assert alias.asname == alias.name  # a re-export, to a type checker
        assert module == dpcanary.MODULE_OF[alias.name]


@pytest.mark.parametrize(
    "name", ["nothing", "train_ensembles", "_nothing", "__wrapped__", "Canaries"]
)
def test_unknown_attributes(name):
    with pytest.raises(AttributeError, match=f"module 'dpcanary' has no attribute '{name}'"):
        getattr(dpcanary, name)
    assert not hasattr(dpcanary, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from dpcanary import {name}", {})


def test_dir_shows_all_names():
    shown = dir(dpcanary)
    assert {*dpcanary.__all__} <= {*shown}
    assert {"__all__", "__doc__", "__version__", "MODULE_OF"} <= {*shown}
    code = "import dpcanary; print(*(name for name in dpcanary.__all__ if name in dir(dpcanary)))"
    assert printed(code)[0].split() == dpcanary.__all__  # before the first use of a name


def test_a_star_imports_all_names():
    found: dict[str, object] = {}
    exec("from dpcanary import *", found)
    assert {*found} - {"__builtins__"} == {*dpcanary.__all__}
    for name in dpcanary.__all__:
        assert found[name] is getattr(dpcanary, name)
