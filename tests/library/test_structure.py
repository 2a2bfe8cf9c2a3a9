"""The structure of the library: its imports, and the code that a program's result depends on."""

import ast
import graphlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpcanary.accounting.losses import Purpose as AccountingPurpose
from dpcanary.adversaries.settings import Purpose as AdversaryPurpose
from dpcanary.datasets.source import Purpose as DatasetPurpose
from dpcanary.errors import InputError
from dpcanary.mechanism_check.measurements import Purpose as MechanismCheckPurpose
from dpcanary.own_training.one_run import Purpose as OwnTrainingPurpose
from dpcanary.plugins import registered
from dpcanary.training.settings import Purpose as TrainingPurpose
from dpcanary.training.settings import TrainingStage
from dpcanary.workflow.code import _closure, digest_of_code, imports_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpcanary"
PURPOSES = {
    "accounting": AccountingPurpose,
    "adversaries": AdversaryPurpose,
    "datasets": DatasetPurpose,
    "mechanism_check": MechanismCheckPurpose,
    "own_training": OwnTrainingPurpose,
    "training": TrainingPurpose,
}


def unit_of(module: str) -> str:
    """The module or package right below dpcanary."""
    return module.split(".")[1]


def imported_units(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dpcanary"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {unit_of(name) for name in names}
    return found


def test_imports_point_one_way():
    graph: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        unit = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if path.name != "__init__.py":  # they load nothing by themselves
            graph.setdefault(unit, set()).update(imported_units(path) - {unit})
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError on a cycle
    assert not [unit for unit, imported in graph.items() if "workflow" in imported]


def test_the_library_knows_nothing_of_snakemake():
    for path in PACKAGE.rglob("*.py"):
        assert "import snakemake" not in path.read_text()
        assert "from snakemake" not in path.read_text()


def test_training_is_told_nothing_of_canaries_scores_or_estimates():
    """Neither through imports nor through settings."""
    modules = imports_of(ROOT / "scripts/train_shard.py", ROOT)
    assert modules[0] == "scripts/train_shard.py"
    assert {"dpcanary/training/runs.py", "dpcanary/canaries.py"} <= set(modules)
    later = ("adversaries", "scoring", "estimation", "figures", "accounting", "settings")
    for package in (*later, "__init__.py", "datasets", "encoders", "costs", "workflow"):
        assert not any(path.startswith(f"dpcanary/{package}") for path in modules)
    assert not {"canary", "score", "function"} & TrainingStage.model_fields.keys()


def test_no_module_holds_the_names_of_all_packages():
    """A change of a package's options or settings reruns only the jobs that use them."""
    used = {
        name: imports_of(ROOT / f"scripts/{name}.py", ROOT)
        for name in ("download_file", "extract_features", "prepare_dataset", "draw_shard")
    }
    for name, modules in used.items():
        for other in ("training/settings", "estimation/settings", "settings"):
            if (name, other) != ("draw_shard", "training/settings"):  # scores name the loss
                assert not any(path.startswith(f"dpcanary/{other}") for path in modules), name
    assert "dpcanary/datasets/splitting.py" not in used["extract_features"]


def test_purposes_of_streams_are_distinct():
    """Their numbers are part of the key of every stream, and never change."""
    numbers = {
        f"{package}.{purpose.name}": purpose.value
        for package, purposes in PURPOSES.items()
        for purpose in purposes
    }
    assert sorted(numbers.values()) == list(range(1, 28))
    assert numbers == {
        "datasets.RECORDS": 1,
        "training.BATCHES": 2,
        "training.VIEWS": 20,
        "training.NOISE": 3,
        "training.SIMULATION": 4,
        "training.SIMULATED_NOISE": 17,
        "adversaries.TARGETS": 12,
        "adversaries.DIMENSIONS": 13,
        "adversaries.DIRECTIONS": 14,
        "adversaries.OTHER_LABELS": 16,
        "adversaries.WORST_CASE": 5,
        "training.INITIALISATION": 6,
        "mechanism_check.BATCH_SIZES": 24,
        "mechanism_check.MECHANISM_CHECK": 23,
        "own_training.OWN_TRAINING": 22,
        "training.FIXED_BATCHES": 7,
        "training.PRETRAINING_BATCHES": 21,
        "training.OUT_OF_SPAN": 8,
        "datasets.SYNTHETIC_RECORDS": 9,
        "training.WORLDS": 10,
        "adversaries.PROCESS": 11,
        "adversaries.LOSS_LANDSCAPE": 15,
        "adversaries.METAGRADIENT_SPLITS": 18,
        "adversaries.METAGRADIENT_ORDERS": 19,
        "adversaries.SHUFFLED_CASE": 25,
        "adversaries.ENCODING_LOSS": 27,
        "accounting.EXPONENTIALS": 26,
    }


def test_imports_are_found_as_python_finds_them(tmp_path):
    """Compared with the modules that are loaded when the program is imported."""
    for name in ("train_shard", "estimate", "draw_figure"):
        code = (
            "import sys, runpy; sys.path[:0] = ['.']; "
            f"runpy.run_path('scripts/{name}.py', run_name='imported'); "
            "own = [m.__file__ for n, m in sys.modules.items() if n.startswith('dpcanary.')]; "
            "print(*own, sep='|')"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
        )
        loaded = {
            str(Path(path).resolve().relative_to(ROOT)) for path in done.stdout.strip().split("|")
        }
        for_names = {"dpcanary/namespaces.py", "dpcanary/version.py"}
        loaded = {path for path in loaded - for_names if not path.endswith("__init__.py")}
        assert loaded <= set(imports_of(ROOT / f"scripts/{name}.py", ROOT))


def test_lazy_and_type_checking_imports(tmp_path):
    package = tmp_path / "dpcanary"
    package.mkdir()
    for name in ("__init__", "a", "b", "c"):
        (package / f"{name}.py").write_text("")
    (tmp_path / "program.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "import os\n"
        "if TYPE_CHECKING:\n    from dpcanary import a\n"
        "def later():\n    from dpcanary.b import x\n"
        "import dpcanary.c\n"
    )
    assert imports_of(tmp_path / "program.py", tmp_path) == [
        "program.py",
        "dpcanary/b.py",
        "dpcanary/c.py",
    ]
    (tmp_path / "program.py").write_text("from dpcanary import a, estimate\n")
    assert imports_of(tmp_path / "program.py", tmp_path) == ["program.py", "dpcanary/a.py"]


def test_a_public_name_counts_as_the_module_that_defines_it(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("from dpcanary.accounting import gdp_mu\n")
    closure = _closure([program], {"dpcanary": ROOT})
    assert ROOT / "dpcanary/gdp.py" in closure
    assert not [path for path in closure if "training" in path.parts]
    program.write_text("import dpcanary\n")
    closure = _closure([program], {"dpcanary": ROOT})
    assert {ROOT / "dpcanary/gdp.py", ROOT / "dpcanary/training/ensemble.py"} <= closure


def test_a_digest_follows_what_a_program_imports(tmp_path):
    package = tmp_path / "dpcanary"
    package.mkdir()
    program = tmp_path / "program.py"
    (package / "__init__.py").write_text("")
    contents = {package / "a.py": "", package / "b.py": "", program: "from dpcanary.a import x\n"}
    for path, text in contents.items():
        path.write_text(text)
    digest = digest_of_code(program, tmp_path)
    changes = {}
    for path, text in contents.items():
        path.write_text(text + "# changed\n")
        changes[path.name] = digest_of_code(program, tmp_path) != digest
        path.write_text(text)
    assert changes == {"a.py": True, "b.py": False, "program.py": False}
    assert digest_of_code(program, tmp_path) == digest


def test_a_digest_follows_the_function_that_a_program_is_told():
    program = ROOT / "scripts/craft_canaries.py"
    functions = ("dpcanary.adversaries.gradient:least_updated",)
    assert digest_of_code(program, ROOT) != digest_of_code(program, ROOT, functions=functions)
    with pytest.raises(InputError, match=r"there is no module 'dpcanary\.nowhere'"):
        digest_of_code(program, ROOT, functions=("dpcanary.nowhere:x",))
    with pytest.raises(InputError, match="there is no package 'nowhere'"):
        digest_of_code(program, ROOT, functions=("nowhere.y:x",))


def test_a_digest_is_the_same_in_every_process():
    """The order of a set of texts is another one in each."""
    code = (
        "from pathlib import Path; from dpcanary.workflow.code import digest_of_code;"
        "print(digest_of_code(Path('scripts/summarise.py').absolute(), Path.cwd()))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("group", "program"),
    [("adversaries", "draw_figure"), ("threshold_rules", "estimate")],
)
def test_a_digest_follows_what_other_packages_register(group, program, tmp_path, monkeypatch):
    """As an installed package does, by its entry points."""
    installed = tmp_path / "plugged-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(f"[dpcanary.{group}]\nmine = plugged:MINE\n")
    (tmp_path / "plugged.py").write_text("import plugged_too\nMINE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("dpcanary.workflow.code.registered", registered.__wrapped__)  # not cached

    def digests() -> list[str]:
        names = (program, "prepare_dataset")
        return [digest_of_code(ROOT / f"scripts/{name}.py", ROOT) for name in names]

    before = digests()
    (tmp_path / "plugged.py").write_text("import plugged_too\nMINE = 2\n")
    after = digests()
    assert after[0] != before[0]
    assert after[1] == before[1]  # it loads no plugin


def test_two_packages_that_register_one_name_are_named(tmp_path, monkeypatch):
    for package in ("one", "two"):
        installed = tmp_path / package / f"{package}-1.0.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        points = f"[dpcanary.adversaries]\nmine = {package}:MINE\n"
        (installed / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(tmp_path / package)
    with pytest.raises(InputError, match=r"(one|two):MINE and (one|two):MINE are both registered"):
        registered.__wrapped__("dpcanary.adversaries")


def test_a_package_may_have_no_init_file(tmp_path, monkeypatch):
    (tmp_path / "bare").mkdir()
    module = tmp_path / "bare/one.py"
    module.write_text("import bare.two\n")
    (tmp_path / "bare/two.py").write_text("FIRST = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    program = ROOT / "scripts/craft_canaries.py"
    before = digest_of_code(program, ROOT, functions=["bare.one:function"])
    (tmp_path / "bare/two.py").write_text("SECOND = 2\n")
    assert digest_of_code(program, ROOT, functions=["bare.one:function"]) != before


def test_own_modules_are_followed_however_they_are_imported(tmp_path, monkeypatch):
    """Relatively, absolutely, beside, and in packages without files of their own."""
    files = {
        "mypkg/__init__.py": "",
        "mypkg/nets.py": "from .layers import x\nfrom . import blocks\nimport beside\n"
        "from lab.deep.small import y\nfrom ..outside import z\n",
        "mypkg/layers.py": "from .sub.inner import w\n",
        "mypkg/sub/inner.py": "from ..blocks import v\n",
        "mypkg/blocks.py": "",
        "mypkg/unused.py": "",
        "beside.py": "",
        "layers.py": "",
        "lab/deep/small.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    program = ROOT / "scripts/craft_canaries.py"
    before = digest_of_code(program, ROOT, functions=["mypkg.nets:build"])
    followed = set()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "# changed\n")
        if digest_of_code(program, ROOT, functions=["mypkg.nets:build"]) != before:
            followed.add(name)
        (tmp_path / name).write_text(text)
    assert followed == {*files} - {"mypkg/unused.py", "layers.py"}
