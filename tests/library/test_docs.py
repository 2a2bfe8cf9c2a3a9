"""Pages of the documentation: examples run, links lead somewhere, and named files exist."""

import io
import re
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

import pytest

import dpcanary
from dpcanary.accounting import account_by_adjacency
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.printing import rounded_up

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(ROOT / name / "README.md" for name in ("benchmarks", "profiles")),
    ]
)
PAGE = (DOCS / "library.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def session() -> dict:
    """What the examples leave behind."""
    names: dict = {}
    with redirect_stdout(io.StringIO()) as printed:
        for number, block in enumerate(BLOCKS):
            exec(compile(block, f"library.md, example {number}", "exec"), names)
    return {**names, "printed": printed.getvalue()}


@pytest.mark.long
def test_they_account(session):
    assert session["sigma"] == pytest.approx(2.47, abs=0.005)
    assert session["bounds"].upper == pytest.approx(4.88, abs=0.005)
    assert session["curve"][-1] == pytest.approx(10.0, abs=0.005)


def test_they_estimate(session):
    assert session["estimate"].epsilon_lower == pytest.approx(9.2, abs=0.05)
    assert session["one_canary"].epsilon_lower == pytest.approx(8.1, abs=0.5)
    assert session["of_first_slot"].epsilon_lower == pytest.approx(8.2, abs=0.5)
    assert session["pooled"].epsilon_lower == pytest.approx(9.4, abs=0.5)


def test_they_train(session):
    assert session["scores"].shape == (400, 2, 1)
    assert session["result"].test_accuracy.mean() > 0.75
    assert session["last"].shape == session["slots"].worlds.shape == (200, 20)


def test_options_are_given_by_name_and_wrong_names_are_refused(session):
    assert session["adam"].optimizer is session["Optimizer"].ADAM
    assert session["printed"].splitlines()[-1] == "unknown optimizer 'adma': did you mean 'adam'?"


def test_what_pages_import_is_there():
    """Also in examples that cannot run here, such as a Snakefile."""
    imports = [
        (page, *found)
        for page in PAGES
        for found in re.findall(
            r"^from (dpcanary\S*) import ([\w, ]+)$", (ROOT / page).read_text(), re.MULTILINE
        )
    ]
    assert len(imports) > 10
    for page, module, names in imports:
        for name in names.split(", "):
            assert hasattr(import_module(module), name), f"{page}: {module} has no {name}"


def test_they_import_from_the_front_door_alone():
    modules = set(re.findall(r"^from dpcanary\.?([\w.]*)", PAGE, re.MULTILINE))
    assert modules <= {"", *dpcanary.__all__}


def test_the_page_names_what_there_is():
    table = [line for line in PAGE.splitlines() if line.startswith("| ")]
    named = {name for line in table for name in re.findall(r"`([A-Za-z_]\w*)`", line)}
    assert named <= {*dpcanary.__all__, *dpcanary.training.__all__}


def test_the_example_of_a_module_runs(capsys):
    [block] = re.findall(r"```python\n(.*?)```", (DOCS / "training.md").read_text(), re.DOTALL)
    exec(compile(block, "training.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["(20, 2, 1)", "(20, 419)"]


def test_the_example_of_metagradients_runs(capsys):
    page = (DOCS / "metagradients.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict = {}
    exec(compile(block, "metagradients.md", "exec"), names)
    assert capsys.readouterr().out == "loss gap: 0.1 at first, 5 at last\n"
    assert names["gaps"][-1] == pytest.approx(4.7, abs=0.2)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_pages_name_exist(page):
    named = re.findall(
        r"`((?:dpcanary|scripts|rules|docs|tests|config|profiles)/[^\s`]*)`",
        (ROOT / page).read_text(),
    )
    for path in named:
        assert "<" in path or (ROOT / path).exists(), path
    folders = ("dpcanary", "scripts", "tests", "benchmarks", "docs")
    modules = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    for name in re.findall(r"`(\w+\.py)`", (ROOT / page).read_text()):
        assert name in modules, name


EXAMPLE = {"sample_rate": 0.01, "noise_multiplier": 1.0, "num_steps": 1000}
OF_WORDS = {
    "sample rate": "sample_rate",
    "noise multiplier": "noise_multiplier",
    "steps": "num_steps",
}


@pytest.mark.long
def test_the_epsilons_of_the_pitfalls_are_accounted():
    """`1.83 → 2.44 ... [sample rate .013]`: what is in brackets differs from the example."""
    page = (DOCS / "pitfalls.md").read_text()
    of_example = epsilons_of(EXAMPLE)
    rows = re.findall(r"\| (1\.83) → (?:at most )?([\d.]+)[^|\[]*(?:\[([^\]]+)\])? \|", page)
    assert len(rows) >= 7
    for quoted, right, settings in rows:
        assert quoted == rounded_up(of_example["add_remove"])
        if not settings:
            assert right == rounded_up(of_example["substitute"])
            continue
        changed = dict(EXAMPLE)
        for words in settings.split(", "):
            [value] = re.findall(r"[\d.,]*\d", words)
            name = OF_WORDS[words.replace(value, "").strip()]
            changed[name] = type(EXAMPLE[name])(value.replace(",", ""))
        assert right == rounded_up(epsilons_of(changed)["add_remove"]), settings


def epsilons_of(settings: dict) -> dict[str, float]:
    """As `dpcanary account` prints them."""
    found = account_by_adjacency(Mechanism("substitute", **settings), delta=1e-5)
    return {"add_remove": found.add_remove, "substitute": found.substitute}
