"""The library's structure: imports, and the code that a program's result depends on."""

import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest

from dpcanary.core.files import write_text
from dpcanary.core.plugins import registered
from dpcanary.errors import InputError
from dpcanary.training.training_settings import TrainingStage
from dpcanary.workflow.code_digests import _closure, digest_of_code, imports_of

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dpcanary"
PURPOSES = {  # Their numbers are part of the key of every stream, and never change.
    "accounting.privacy_losses": "EXPONENTIALS=26",
    "adversaries.adversary_settings": """WORST_CASE=5 PROCESS=11 TARGETS=12 DIMENSIONS=13
        DIRECTIONS=14 LOSS_LANDSCAPE=15 OTHER_LABELS=16 METAGRADIENT_SPLITS=18
        METAGRADIENT_ORDERS=19 SHUFFLED_CASE=25 ENCODING_LOSS=27 SECRET_VALUES=32
        SECRET_NOISE=33""",
    "data.record_source": "RECORDS=1 SYNTHETIC_RECORDS=9",
    "checking.mechanism.measurements": "MECHANISM_CHECK=23 BATCH_SIZES=24 REPLAYS=31",
    "own_training.one_training": "OWN_TRAINING=22",
    "secrets.secret_laws": "SECRETS=28 CANDIDATES=29 PLACES_OF_SECRETS=30",
    "watching.purposes": "DIRECTIONS=34 WORLDS=35 CANARY_BATCHES=36",
    "training.training_settings": """BATCHES=2 NOISE=3 SIMULATION=4 INITIALISATION=6
        FIXED_BATCHES=7 OUT_OF_SPAN=8 WORLDS=10 SIMULATED_NOISE=17 VIEWS=20 DROPOUT=37
        PRETRAINING_BATCHES=21""",
}


def test_a_file_s_name_says_what_is_in_it_without_its_folder():
    names = [path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_programs_know_the_names_and_settings_of_their_own_packages_alone():
    """A change of others reruns none of their jobs; and training is told nothing of canaries."""
    modules = imports_of(ROOT / "scripts/train_shard.py", ROOT)
    assert modules[0] == "scripts/train_shard.py"
    assert {"dpcanary/training/runs.py", "dpcanary/data/canaries.py"} <= set(modules)
    assert not {"canary", "score", "function"} & TrainingStage.model_fields.keys()
    later = ("adversaries", "scoring", "estimation", "figures", "accounting", "experiment", "costs")
    of_data = {path.stem for path in (PACKAGE / "data").glob("*.py")}
    sources = [f"data/{name}.py" for name in of_data - {"records", "canaries", "observations"}]
    of_settings = ("training/training_settings", "estimation/estimation_settings", "experiment")
    for program, others in {
        "train_shard": (*later, "__init__.py", *sources, "workflow"),
        "download_file": of_settings,
        "extract_features": (*of_settings, "data/splitting"),
        "prepare_dataset": of_settings,
        "draw_shard": of_settings[1:],  # scores name the loss of a training
    }.items():
        for path in imports_of(ROOT / f"scripts/{program}.py", ROOT):
            assert not path.startswith(tuple(f"dpcanary/{other}" for other in others)), program


def test_purposes_of_streams_are_distinct():
    classes = {name: import_module(f"dpcanary.{name}").Purpose for name in PURPOSES}
    numbers = [purpose.value for purposes in classes.values() for purpose in purposes]
    assert len({*numbers}) == len(numbers)
    declaring = {path for path in PACKAGE.rglob("*.py") if "class Purpose(" in path.read_text()}
    assert declaring == {PACKAGE / f"{name.replace('.', '/')}.py" for name in PURPOSES}
    for name, purposes in PURPOSES.items():
        declared = {f"{purpose.name}={purpose.value}" for purpose in classes[name]}
        assert declared == {*purposes.split()}


@pytest.mark.long
def test_imports_are_found_as_python_finds_them():
    names = ["train_shard", "estimate", "draw_figure"]
    code = f"""
import runpy, sys
sys.path[:0] = ["."]
for name in {names}:
    for module in [module for module in sys.modules if module.startswith("dpcanary")]:
        del sys.modules[module]
    runpy.run_path(f"scripts/{{name}}.py", run_name="imported")
    own = [one for name, one in sys.modules.items() if name.startswith("dpcanary.")]
    print(*[module.__file__ for module in own], sep="|")
"""
    lines = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    for name, line in zip(names, lines.splitlines(), strict=True):
        loaded = {str(Path(path).resolve().relative_to(ROOT)) for path in line.split("|")}
        loaded -= {"dpcanary/core/public_names.py", "dpcanary/version.py"}
        loaded = {path for path in loaded if not path.endswith("__init__.py")}
        assert loaded <= {*imports_of(ROOT / f"scripts/{name}.py", ROOT)}


LAZY = """
from typing import TYPE_CHECKING
import os
if TYPE_CHECKING:
    from dpcanary import a
elif os:
    import dpcanary.d
else:
    import dpcanary.e
if not TYPE_CHECKING:
    import dpcanary.f
def later():
    from dpcanary.b import x
import dpcanary.c
"""


def test_lazy_and_type_checking_imports_and_those_of_public_names(tmp_path):
    program = tmp_path / "program.py"
    (tmp_path / "dpcanary").mkdir()
    for name in ("__init__", *"abcdef"):
        (tmp_path / f"dpcanary/{name}.py").touch()
    for text, imported in ((LAZY, "bcdef"), ("from dpcanary import a, estimate\n", "a")):
        program.write_text(text)
        expected = ["program.py", *(f"dpcanary/{name}.py" for name in imported)]
        assert imports_of(program, tmp_path) == expected
    # A public name counts as the module that defines it, and a package as all of its names.
    for text, trains in (
        ("from dpcanary.accounting import gdp_mu", False),
        ("import dpcanary", True),
    ):
        program.write_text(text)
        closure = _closure([program], {"dpcanary": ROOT})
        assert ROOT / "dpcanary/core/gdp.py" in closure
        assert (ROOT / "dpcanary/training/ensemble.py" in closure) == trains


PROGRAM = ROOT / "scripts/craft_canaries.py"


def test_a_digest_follows_the_function_that_a_program_is_told(tmp_path, monkeypatch):
    functions = ("dpcanary.adversaries.gradient:least_updated",)
    assert digest_of_code(PROGRAM, ROOT) != digest_of_code(PROGRAM, ROOT, functions=functions)
    (tmp_path / "my_nets.py").write_text("from my_layers import WIDTH\n")
    (tmp_path / "my_layers.py").write_text("\nWIDTH = (")
    (tmp_path / "my_lazy.py").write_text("def __getattr__(name):\n    return 1\n")
    (tmp_path / "my_star.py").write_text("try:\n    from my_lazy import *\nexcept OSError: x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    for function, message in (
        ("dpcanary.nowhere:x", r"there is no module 'dpcanary\.nowhere'"),
        ("nowhere.y:x", "there is no package 'nowhere'"),
        ("my_nets:WIDTH", r"my_layers\.py, line 2"),
        (
            "my_nets:build",
            "module my_nets has no function 'build', which 'my_nets:build' names; known: WIDTH",
        ),
        ("dpcanary.scoring.scores:cosin", r"names; did you mean 'cosine'\?"),
        ("dpcanary.scoring.scores:loss", "names; known: .* canary_loss, .* logit_difference"),
    ):
        with pytest.raises(InputError, match=message):
            digest_of_code(PROGRAM, ROOT, functions=(function,))
    for function in ("my_lazy:build", "my_star:build", "my_star:x"):
        assert digest_of_code(PROGRAM, ROOT, functions=(function,))


def test_a_digest_is_the_same_in_every_process():
    code = (
        "from pathlib import Path; from dpcanary.workflow.code_digests import digest_of_code;"
        "print(digest_of_code(Path('scripts/summarise.py').absolute(), Path.cwd()))"
    )
    digests = {
        subprocess.check_output(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def installed(folder: Path, name: str, group: str) -> None:
    """A package that registers `mine` by its entry points."""
    information = folder / f"{name}-1.0.dist-info"
    write_text(information / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    write_text(information / "entry_points.txt", f"[dpcanary.{group}]\nmine = {name}:MINE\n")


@pytest.mark.parametrize(("group", "program"), [
    ("adversaries", "draw_figure"), ("threshold_rules", "estimate"),
    ("figure_kinds", "estimate_cost"),
])  # fmt: skip
def test_a_digest_follows_what_other_packages_register(group, program, tmp_path, monkeypatch):
    installed(tmp_path, "plugged", group)
    monkeypatch.syspath_prepend(tmp_path)
    not_cached = registered.__wrapped__
    monkeypatch.setattr("dpcanary.workflow.code_digests.registered", not_cached)
    digests = []
    for content in ("1", "2"):
        (tmp_path / "plugged.py").write_text(f"import plugged_too\nMINE = {content}\n")
        programs = (ROOT / f"scripts/{name}.py" for name in (program, "prepare_dataset"))
        digests.append([digest_of_code(path, ROOT) for path in programs])
    before, after = digests
    assert after[0] != before[0]
    assert after[1] == before[1]  # it loads no plugin


def test_two_packages_that_register_one_name_are_named(tmp_path, monkeypatch):
    for package in ("one", "two"):
        installed(tmp_path / package, package, "adversaries")
        monkeypatch.syspath_prepend(tmp_path / package)
    with pytest.raises(InputError, match=r"(one|two):MINE and (one|two):MINE are both registered"):
        registered.__wrapped__("dpcanary.adversaries")


def test_own_modules_are_followed_however_they_are_imported(tmp_path, monkeypatch):
    """Relatively, absolutely, beside, and in packages without files of their own."""
    unused = ("mypkg/unused.py", "layers.py")
    empty = ("mypkg/__init__.py", "mypkg/blocks.py", "mypkg/values.py", "beside.py", "lab/bare.py")
    files = dict.fromkeys((*empty, *unused), "") | {
        "mypkg/nets.py": "from .layers import x as f\nfrom . import blocks\nimport beside\n"
        "from lab.deep.small import y\nfrom ..outside import z\n",
        "mypkg/layers.py": "from .sub.inner import w\n",
        "mypkg/sub/inner.py": "from ..values import v\n",
        "lab/deep/small.py": "import lab.bare\n",
    }
    for name, text in files.items():
        write_text(tmp_path / name, text)
    monkeypatch.syspath_prepend(tmp_path)
    digest = partial(digest_of_code, PROGRAM, ROOT, functions=["mypkg.nets:f"])
    before = digest()
    for name, text in files.items():
        (tmp_path / name).write_text(text + "# changed\n")
        assert (digest() != before) == (name not in unused), name
        (tmp_path / name).write_text(text)
