"""Papers register what is theirs as other packages do; the library does not know them."""

import shutil
import subprocess
import sys
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from dpcanary.adversaries.catalogue import BUILT_IN, adversaries
from dpcanary.experiment.figure_catalogue import FIGURE_KINDS, figure_kinds

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpcanary"
PAPERS = {
    folder.parent.name: Distribution.at(folder.parent).entry_points
    for folder in sorted(PACKAGE.glob("papers/*/entry_points.txt"))
}


def test_what_is_registered_is_what_the_folders_declare():
    """In the order of their declarations, after what is built in."""
    for group, built_in, entries in (
        ("adversaries", BUILT_IN, adversaries()),
        ("figure_kinds", FIGURE_KINDS, figure_kinds()),
    ):
        of_papers = {
            point.name: point
            for points in PAPERS.values()
            for point in points.select(group=f"dpcanary.{group}")
        }
        assert [*entries] == [*built_in, *of_papers]
        assert all(of_papers[name].load() is entries[name] for name in of_papers)
        assert not of_papers.keys() & built_in.keys()
    for paper, points in PAPERS.items():
        assert points
        assert all(point.module.startswith(f"dpcanary.papers.{paper}.") for point in points)
    # A folder without the file would be a paper that nothing finds.
    assert {path.parent.name for path in PACKAGE.glob("papers/*/__init__.py")} == {*PAPERS}


def test_nothing_outside_names_a_paper_s_module():
    library = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "papers" not in path.parents]
    programs = [*(ROOT / "scripts").iterdir(), *(ROOT / "rules").iterdir(), ROOT / "Snakefile"]
    sources = [path for path in (*library, *programs) if path.is_file()]
    assert [path.name for path in sources if "dpcanary.papers" in path.read_text()] == []
    assert len(sources) > 250


# Run in a folder with a copy of the library that lacks its papers.
WITHOUT_PAPERS = """
import json, pkgutil
from importlib import import_module
from pathlib import Path

import dpcanary

assert Path(dpcanary.__file__).parents[1] == Path.cwd()
# Needs Triton, as the settings of pytest say.
skipped = {"dpcanary.training.kernels.philox_cuda", "dpcanary.__main__"}
modules = {module.name for module in pkgutil.walk_packages(dpcanary.__path__, "dpcanary.")}
assert len(modules) > 200
for name in modules - skipped:
    import_module(name)

from dpcanary.adversaries.catalogue import BUILT_IN, adversaries
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.config_schema import config_schema
from dpcanary.experiment.figure_catalogue import FIGURE_KINDS, figure_kinds
from dpcanary.figures import style

labels = {name: entry.label for name, entry in BUILT_IN.items()}
assert {name: style.canary_name(name) for name in adversaries()} == labels
assert [*figure_kinds()] == [*FIGURE_KINDS]
offered = json.dumps(config_schema())
assert '"gradient"' in offered
assert '"metagradient"]' not in offered and "canary_sets" not in offered
for path, message in {
    "demo": "", "boglioni/cifar10": "unknown name", "cebere/landscape": "unknown name",
    "pradhan/worst_case": "figures.figureA5.kind: unknown name",
}.items():
    try:
        assert parse_experiment(read_config(Path(f"config/{path}.yaml"))).audits and not message
    except InputError as error:
        assert message and message in str(error), path
"""


@pytest.mark.long
def test_without_the_papers_everything_else_imports_and_works(tmp_path):
    ignored = shutil.ignore_patterns("papers", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "dpcanary", ignore=ignored)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_PAPERS]
    subprocess.run(command, check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
