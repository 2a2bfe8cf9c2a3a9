"""Names say what a variable holds, and texts use the field's words."""

import ast
import re
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from running import ROOT

# Names for a grammatical role, which say nothing of a value.
NAMES = {"one", "found", "told", "wanted", "made", "places", "known", "given", "taken"}
WORDS = re.compile(r"\b(anew|likewise|told apart|made again)\b|\A(The same|Likewise|Of )")
FOLDERS = [
    *("dpcanary", "scripts", "snakemake_logger_plugin_dpcanary"),
    *("release", "tests", "benchmarks", "docs/examples"),
]
# Lists of errors were written by people who knew neither the code nor these rules. The last test
# here breaks them.
EXEMPT = {ROOT / "benchmarks/error_lists", Path(__file__)}
MODULES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
    if EXEMPT.isdisjoint({path, *path.parents})
]


def bound_names(tree: ast.AST) -> set[str]:
    """The variables, arguments, functions and fields that a module defines."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.MatchAs(name=str(name)):
                names.add(name)
    return {name.strip("_") for name in names}


def texts(source: str, tree: ast.Module) -> list[str]:
    """The docstrings and comments of a module."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [
        ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)
    ]
    return docstrings + re.findall(r"(?m)(?:^|\s)#\s(.*)$", source)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_texts(path: Path):
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    assert not bound_names(tree) & NAMES
    assert [text for text in texts(source, tree) if WORDS.search(text)] == []


# Packages and what is beside them in the repository, and suffixes of files, may be named anywhere.
ELSEWHERE = {*packages_distributions(), "benchmarks", "release"}
SUFFIXES = {"html", "json", "tgz"}
LIBRARY = sorted((ROOT / "dpcanary").rglob("*.py"))


def test_what_texts_refer_to_is_there():
    """A text that says `module.name` is about a module of the library, or what its code names."""
    defined: dict[str, set[str]] = {}
    sources = {path: path.read_text(encoding="utf-8") for path in LIBRARY}
    for path, source in sources.items():
        module = path.parent.name if path.stem == "__init__" else path.stem
        defined.setdefault(module, set()).update(re.findall(r"\w+", source))
        for part in (path.with_suffix(""), path.parent):
            defined.setdefault(part.parent.name, set()).add(part.name)
    missing = {
        f"{path.relative_to(ROOT)}: {module}.{name}"
        for path, source in sources.items()
        for module, name in re.findall(r"`([a-z]\w+)\.(\w+)[`(.]", source)
        if name not in defined.get(module, SUFFIXES)
        and module not in ELSEWHERE
        # Attributes of what the same code names.
        and not re.search(rf"^[^`#]*\b{module}\b", source, re.MULTILINE)
    }
    assert missing == set()


RULES = [ROOT / "Snakefile", *sorted((ROOT / "rules").glob("*.smk"))]


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.name)
def test_names_and_texts_of_rules(path: Path):
    """Rules are no Python, so patterns find their names and texts."""
    source = path.read_text(encoding="utf-8")
    names = re.findall(r"(?m)^ *(\w+) = |\bfor (\w+) in\b|^ *def (\w+)|\blambda (\w+)", source)
    assert NAMES.isdisjoint({name for groups in names for name in groups})
    comments = re.findall(r"(?m)(?:^|\s)#\s(.*)$", source)
    docstrings = re.findall(r'(?s)"""(.*?)"""', source)
    assert [text for text in docstrings + comments if WORDS.search(text)] == []


def test_every_kind_of_name_and_text_is_seen():
    source = '''"""The same as before."""
def told(given: int) -> int:  # made anew
    for one in range(3):
        self.found = one
    match one:
        case int() as taken:
            pass
    return [known for known in wanted]
'''
    tree = ast.parse(source)
    assert bound_names(tree) == {"told", "given", "one", "found", "taken", "known"}
    assert sum(bool(WORDS.search(text)) for text in texts(source, tree)) == 2
