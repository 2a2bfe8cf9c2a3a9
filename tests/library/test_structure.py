"""The library's shape: what imports what, and what a program's result depends on."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

from dpcanary.workflow import digest_of_imports, imports_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpcanary"


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
        if unit != "__init__":
            graph.setdefault(unit, set()).update(imported_units(path) - {unit})
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError on a cycle


def test_the_library_knows_nothing_of_snakemake():
    for path in PACKAGE.rglob("*.py"):
        assert "import snakemake" not in path.read_text()
        assert "from snakemake" not in path.read_text()


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import dpcanary, sys; print([m for m in ('torch', 'scipy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_there():
    import dpcanary

    for name in dpcanary.__all__:
        assert getattr(dpcanary, name) is not None
    assert set(dpcanary.__all__) <= set(dir(dpcanary))


def test_training_depends_on_nothing_that_comes_after_it():
    modules = imports_of(ROOT / "scripts/train_shard.py", ROOT)
    assert modules[0] == "scripts/train_shard.py"
    assert "dpcanary/training/ensemble.py" in modules
    assert "dpcanary/canaries/__init__.py" in modules
    for later in ("estimation", "figures", "accounting", "settings", "config.py", "__init__.py"):
        assert not any(path.startswith(f"dpcanary/{later}") for path in modules)


def test_imports_are_found_as_python_finds_them(tmp_path):
    """Against the truth: what is loaded when the program is imported."""
    for name in ("train_shard", "estimate", "figure_trade_off"):
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
    assert imports_of(tmp_path / "program.py", tmp_path) == [
        "program.py",
        "dpcanary/__init__.py",
        "dpcanary/a.py",
    ]


def test_a_digest_follows_what_a_program_imports(tmp_path):
    package = tmp_path / "dpcanary"
    package.mkdir()
    program = tmp_path / "program.py"
    contents = {package / "a.py": "", package / "b.py": "", program: "from dpcanary.a import x\n"}
    for path, text in contents.items():
        path.write_text(text)
    digest = digest_of_imports(program, tmp_path)
    changes = {}
    for path, text in contents.items():
        path.write_text(text + "# changed\n")
        changes[path.name] = digest_of_imports(program, tmp_path) != digest
        path.write_text(text)
    assert changes == {"a.py": True, "b.py": False, "program.py": False}
    assert digest_of_imports(program, tmp_path) == digest
