"""Papers register what is theirs as other packages do; the library does not know them."""

import json
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
    sources = [
        *(
            path
            for path in PACKAGE.rglob("*.py")
            if "papers" not in path.relative_to(PACKAGE).parts
        ),
        *(path for name in ("scripts", "rules") for path in (ROOT / name).iterdir()),
        ROOT / "Snakefile",
    ]
    named = [
        path.name for path in sources if path.is_file() and "dpcanary.papers" in path.read_text()
    ]
    assert named == []
    assert len(sources) > 250


WITHOUT_PAPERS = """
import json, pkgutil
from importlib import import_module
from pathlib import Path

import dpcanary

# Needs Triton, as the settings of pytest say.
skipped = "dpcanary.training.kernels.philox_cuda"
modules = pkgutil.walk_packages(dpcanary.__path__, "dpcanary.")
names = [module.name for module in modules if module.name not in (skipped, "dpcanary.__main__")]
for name in names:
    import_module(name)

from dpcanary.adversaries.catalogue import adversaries
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.config_schema import config_schema
from dpcanary.experiment.figure_catalogue import figure_kinds
from dpcanary.figures import style

shown = {}
for path in ("demo", "boglioni/cifar10", "cebere/landscape", "pradhan/worst_case"):
    try:
        shown[path] = len(parse_experiment(read_config(Path(f"config/{path}.yaml"))).audits)
    except InputError as error:
        shown[path] = str(error)
shown["adversaries"] = {name: style.canary_name(name) for name in adversaries()}
shown["figure_kinds"] = [*figure_kinds()]
shown["offered"] = json.dumps(config_schema())
shown["modules"] = len(names)
shown["folder"] = str(Path(dpcanary.__file__).parents[1])
print(json.dumps(shown))
"""


@pytest.mark.long
def test_without_the_papers_everything_else_imports_and_works(tmp_path):
    ignored = shutil.ignore_patterns("papers", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "dpcanary", ignore=ignored)
    shutil.copytree(ROOT / "config", tmp_path / "config")
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_PAPERS]
    printed = subprocess.check_output(
        command, text=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
    shown = json.loads(printed.splitlines()[-1])
    assert shown["folder"] == str(tmp_path)
    assert shown["modules"] > 200
    assert shown["adversaries"] == {name: entry.label for name, entry in BUILT_IN.items()}
    assert shown["figure_kinds"] == [*FIGURE_KINDS]
    assert '"gradient"' in shown["offered"]
    for name in ('"metagradient"]', "canary_sets"):
        assert name not in shown["offered"]
    assert shown["demo"] > 0
    assert "unknown name" in shown["boglioni/cifar10"]
    assert "unknown name" in shown["cebere/landscape"]
    assert "figures.figureA5.kind: unknown name" in shown["pradhan/worst_case"]
