"""The bill of materials: every pin that is installed, with its licence and the locks' hashes."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from release.bill_of_materials import (
    READ_BY_US,
    canonical,
    complete,
    faults,
    home,
    licence,
    locked,
    table,
)

ROOT = Path(__file__).parents[2]
LOCKS = [ROOT / "locks" / f"{name}.txt" for name in ("build", "dpcanary", "tools")]
MAKE = shutil.which("make")
MIT = [{"license": {"id": "MIT"}}]


def component(name: str, **others: object) -> dict[str, object]:
    return {"name": name, "version": "1", "purl": f"pkg:pypi/{name}@1", **others}


@pytest.mark.parametrize(
    ("licences", "words"),
    [
        (MIT, "MIT"),
        ([{"expression": "MIT OR Apache-2.0"}], "MIT OR Apache-2.0"),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], "BSD License"),
        ([*MIT, {"license": {"name": "License :: OSI Approved :: MIT License"}}], "MIT"),
        ([{"license": {"name": "Ours\n\nCopyright"}}], "Ours"),
        ([], ""),
    ],
)
def test_licence_in_words(licences, words):
    assert licence(component("a", licenses=licences)) == words


def test_home_page():
    references = [
        {"type": "issue-tracker", "url": "issues"},
        {
            "type": "other",
            "url": "source",
            "comment": "from packaging metadata Project-URL: Source",
        },
        {"type": "other", "url": "other"},
    ]
    assert home(component("a", externalReferences=references)) == "source"
    references.append({"type": "website", "url": "website"})
    assert home(component("a", externalReferences=references)) == "website"
    assert home(component("a")) == ""


def test_a_bill_is_completed():
    parts = [component("A_b", licenses=MIT), component("PySocks"), component("torch", licenses=MIT)]
    bill = {"components": parts}
    hashes = {("a-b", "1"): ["00", "01"], ("pysocks", "1"): ["02"]}
    complete(bill, hashes, {"a-b", "torch"})
    assert [*faults(bill)] == []
    assert [one["scope"] for one in bill["components"]] == ["required", "optional", "required"]
    [files] = bill["components"][0]["externalReferences"]
    assert [one["content"] for one in files["hashes"]] == ["00", "01"]
    assert "pysocks\t1\tBSD-3-Clause\toptional\t\n" in table(bill)


@pytest.mark.parametrize(
    ("one", "fault"),
    [
        (component("pytest"), "pytest 1: states no licence"),
        (component("pytest", licenses=[{"license": {"name": "UNKNOWN"}}]), "states no licence"),
        (component("other", licenses=MIT), "other 1: is not in the locks"),
        (component("pytest", licenses=MIT) | {"version": "2"}, "pytest 2: is not in the locks"),
    ],
)
def test_what_a_bill_lacks_is_said(one, fault):
    bill = complete({"components": [one]}, {("pytest", "1"): ["00"]}, set())
    [found] = faults(bill)
    assert fault in found


def test_licences_that_we_read_are_of_pins():
    """An exception for what is not installed any more would go unnoticed."""
    assert READ_BY_US.keys() <= {name for name, _ in locked(*LOCKS)}


@pytest.mark.exhaustive
@pytest.mark.skipif(MAKE is None, reason="needs make")
def test_what_is_installed_has_licences_and_hashes(tmp_path):
    """The command itself validates the bill, and says what it lacks."""
    release, environment = f"RELEASE={tmp_path}/release", f"VENV={sys.prefix}"
    installed = f"--assume-old={sys.prefix}/.ready-tools"
    command = [str(MAKE), installed, release, environment, f"DIST={tmp_path}", "sbom"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {(canonical(one["name"]), one["version"]): one for one in bill["components"]}
    rows = [line.split("\t") for line in (tmp_path / "licences.tsv").read_text().splitlines()]
    licences = {(name, version): words for name, version, words, *_ in rows[1:]}
    pinned = locked(*LOCKS)
    found = {(canonical(one.name), one.version) for one in distributions()} & pinned.keys()
    assert len(found) > 100
    for pin in found:
        assert licences[pin]
        assert parts[pin]["purl"] == f"pkg:pypi/{pin[0]}@{pin[1]}"
        [files] = [one for one in parts[pin]["externalReferences"] if "hashes" in one]
        assert [one["content"] for one in files["hashes"]] == pinned[pin]
        assert {one["alg"] for one in files["hashes"]} == {"SHA-256"}
