"""What a light install lacks: the declared extras, and the errors that name them."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dpcanary.core.errors_in_words import explained
from dpcanary.core.optional_packages import EXTRAS, require
from dpcanary.estimation import Guesses, epsilon_of_guesses
from dpcanary.estimation.one_run import guess_methods as methods

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED = {"scikit-learn": "sklearn", "pyyaml": "yaml", "pillow": "PIL"}
# Declared and imported by nothing here, or imported and declared by what brings it.
NOT_IMPORTED, BROUGHT = {"jax-privacy", "pygments"}, {"llvmlite", "pydantic_core"}
# Packages that the user's own environment has, or that only tests need.
THEIRS = {"opacus", "triton", "pytest", "IPython"}


def imported(requirements: list[str]) -> set[str]:
    names = {Requirement(requirement).name for requirement in requirements} - {"dpcanary"}
    return {IMPORTED.get(name, name.replace("-", "_")) for name in names - NOT_IMPORTED}


def test_every_import_is_of_a_requirement_or_of_an_extra_that_is_declared():
    declared = PROJECT["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        assert {*packages} - BROUGHT == imported(declared[extra]), extra
    assert "dpcanary[figures]" in declared["train"]
    needed = imported(PROJECT["dependencies"])
    allowed = needed.union(THEIRS, BROUGHT, *EXTRAS.values(), sys.stdlib_module_names, {"dpcanary"})
    for path in (ROOT / "dpcanary").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path


# In place of a light install: a Python that does not find the packages of the extras.
LIGHT = f"""
import importlib.machinery, sys
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in {[*sum(EXTRAS.values(), ())]}:
            return None
        return super().find_spec(name, path, target)
sys.meta_path = [Finder if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
"""


def in_light_install(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIGHT + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_needs_an_extra_says_how_to_get_it_and_all_else_works():
    names = ["watch", "audit", "training.train_ensemble"]
    code = f"""
import dpcanary
from dpcanary.reports import experiment_report as of_experiment, own_audit_report as of_own_audit
from dpcanary.experiment import results_table
dpcanary.calibrate_noise, dpcanary.epsilons_of, dpcanary.AuditResults
dpcanary.estimation.expected_bound(mechanism=1.0, num_runs=60, delta=1e-5)
dpcanary.accounting.trade_off_curve
for name in {names}:
    try:
        eval("dpcanary." + name)
    except ModuleNotFoundError as error:
        print(error)
from dpcanary.cli import main
for sys.argv[1:] in (["run", "config/demo.yaml"], ["check", "loop:train"]):
    try:
        main()
    except SystemExit as ending:
        print(ending)
"""
    done = in_light_install(code)
    assert done.returncode == 0, done.stderr
    starts = [*(f"dpcanary.{name}" for name in names), "error: this", "error: this"]
    needs = (
        r" needs the package '\w+', which is not installed here: pip install 'dpcanary\[train\]'"
    )
    for line, start in zip(done.stdout.splitlines(), starts, strict=True):
        assert re.fullmatch(start + needs, line)


def test_the_error_is_explained_of_other_packages_alone():
    assert explained(ModuleNotFoundError(name="dpcanary.nothing")) is None
    assert explained(ModuleNotFoundError("no name")) is None
    text = explained(ModuleNotFoundError(name="matplotlib.figure"))
    assert text.endswith("which is not installed here: pip install 'dpcanary[figures]'")
    with pytest.raises(ModuleNotFoundError, match=r"'not_there'.*pip install not_there"):
        require("numpy", "not_there")


@pytest.mark.parametrize("conversion", ["gdp", "direct"])
def test_one_run_is_estimated_without_numba_to_the_same_number(monkeypatch, conversion):
    def bounds() -> list[float]:
        methods._compiled_recursion.cache_clear()
        level = {"delta": 1e-6, "significance": 0.1, "conversion": conversion}
        guesses = [Guesses(200, 150, 130), Guesses(60, 60, 60), Guesses(1_000, 800, 507)]
        return [epsilon_of_guesses(some, **level).epsilon_lower for some in guesses]

    compiled = bounds()
    monkeypatch.setattr(methods, "is_installed", lambda package: False)
    assert bounds() == compiled
    methods._compiled_recursion.cache_clear()


def test_the_wrapper_for_jax_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.delitem(sys.modules, "dpcanary.watching.optax", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'dpcanary\[jax\]'"):
        importlib.import_module("dpcanary.watching.optax")
