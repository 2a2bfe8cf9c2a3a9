"""`import dpcanary` loads almost nothing; its names and namespaces are those that `help` shows."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from signal import SIGINT, default_int_handler, signal
from statistics import median

import pytest

import dpcanary
from dpcanary.core.public_names import module_of

HEAVY = ("torch", "scipy", "numpy")
SPACES = ("accounting", "estimation", "training", "own_training", "secrets", "extend")
MODULES = ("dpcanary", *(f"dpcanary.{space}" for space in SPACES))
NAMES = [(module, name) for module in MODULES for name in import_module(module).__all__]


def printed(code: str) -> str:
    """What a fresh Python prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_import_loads_only_where_names_are():
    code = "import sys, dpcanary; print(*(m for m in sys.modules if m.startswith('dpcanary.')))"
    assert printed(code) == "dpcanary.core dpcanary.core.public_names dpcanary.version"
    loaded = f"; print(*(name for name in {HEAVY} if name in sys.modules))"
    assert printed(f"import sys, dpcanary; dir(dpcanary); dpcanary.InputError{loaded}") == ""
    # Namespaces need no import of their own.
    assert "torch" not in printed(f"import sys, dpcanary; dpcanary.accounting.gdp_mu{loaded}")


def test_the_import_is_fast():
    """Below 100 ms more than Python's own start, in processor time; they alternate."""

    def seconds(code: str) -> float:
        before = os.times()
        printed(code)
        return sum(os.times()[2:4]) - sum(before[2:4])  # of child processes

    pairs = [(seconds("pass"), seconds("import dpcanary")) for _ in range(9)]
    empty, imported = (median(times) for times in zip(*pairs, strict=True))
    assert imported - empty < 0.1


@pytest.mark.parametrize(("space", "name"), [pair for pair in NAMES if pair[1] not in SPACES])
def test_names_are_objects_of_their_modules(space, name):
    module = import_module(space)
    value = getattr(module, name)
    assert value.__module__.startswith("dpcanary.")
    assert value.__qualname__ == name
    assert value is getattr(import_module(value.__module__), name)
    assert value.__doc__
    assert name in dir(module)


def test_the_first_screen_is_short_and_listed_and_a_star_imports_it():
    """At most 21 names at the top, all of which the docstring sorts by task."""
    listed = re.findall(r"\b\w+(?=,|$)", re.sub(r"^\S.*$", "", dpcanary.__doc__, flags=re.M), re.M)
    assert sorted(listed) == sorted(dpcanary.__all__)
    assert len({*dpcanary.__all__} - {*SPACES}) <= 21
    names: dict[str, object] = {}
    exec("from dpcanary import *", names)
    assert {*names} - {"__builtins__"} == {*dpcanary.__all__}


def test_type_checkers_see_the_names_that_running_programs_have():
    """Each is imported as itself, which makes it a re-export to a type checker."""
    for space in MODULES:
        module = import_module(space)
        source = Path(module.__file__).read_text()
        block = source.partition("if TYPE_CHECKING:")[2].partition("\n\n")[0]
        names = re.findall(r"(\w+) as \1\b", block)
        assert sorted(names) == sorted(module.__all__) == [*module_of(Path(module.__file__))]


@pytest.mark.parametrize("space", ["dpcanary", "dpcanary.training"])
def test_unknown_attributes(space):
    for name in ("nothing", "train_ensembles", "_nothing", "__wrapped__"):
        with pytest.raises(AttributeError, match=f"module '{space}' has no attribute '{name}'"):
            getattr(import_module(space), name)
        with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
            exec(f"from {space} import {name}", {})


def test_an_interruption_while_the_command_loads_prints_nothing(tmp_path):
    (tmp_path / "typer.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    )
    path = f"{tmp_path}{os.pathsep}{Path(dpcanary.__file__).parents[1]}"
    command = [sys.executable, "-m", "dpcanary", "account"]
    options = {"env": {**os.environ, "PYTHONPATH": path}, "capture_output": True}
    # Shells let jobs in the background ignore the signal, which programs that they start inherit.
    handler = signal(SIGINT, default_int_handler)
    done = subprocess.run(command, **options)
    signal(SIGINT, handler)
    assert (done.returncode, done.stdout, done.stderr) == (-SIGINT, b"", b"")
