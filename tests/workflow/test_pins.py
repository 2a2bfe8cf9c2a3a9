"""Pins: locks, requirements and documents agree, each has a licence, and pip refuses all else."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from running import ROOT, printed_by

from release import bill_of_materials as bom
from release.bill_of_materials import canonical, locked

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
SUPPORTED = ("3.11", "3.12", "3.13")
DEBIAN = "3.11.2"  # the oldest that is tried: Debian 12 has it
LOCKS = {path.stem: path for path in (ROOT / "locks").glob("*.txt")}
PARTS = [LOCKS[name] for name in ("build", "dpcanary", "tools")]
MAKE = shutil.which("make")
needs_make = pytest.mark.skipif(MAKE is None, reason="needs make")


def pins(text: str) -> dict[str, str]:
    """The versions that a file of pins, with hashes or without, has for Linux on x86-64."""
    machine = {
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
        "platform_machine": "x86_64", "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # fmt: skip
    pythons = [{"python_version": v, "python_full_version": f"{v}.2"} for v in SUPPORTED]
    versions: dict[str, str] = {}
    for line in re.findall(r"^[A-Za-z].*", text, re.MULTILINE):
        pin = Requirement(line.removesuffix("\\").strip())
        if pin.marker is None or any(pin.marker.evaluate(machine | python) for python in pythons):
            versions[canonical(pin.name)] = str(pin.specifier)
    return versions


def test_pins_are_those_of_the_locks_and_these_have_hashes_and_what_is_declared():
    constrained = pins((ROOT / "constraints.txt").read_text())
    of_locks = pins("\n".join(path.read_text() for path in [*PARTS, LOCKS["train"]]))
    assert len(of_locks) > 150
    # An exception for what is not installed any more would go unnoticed.
    assert bom.READ_BY_US.keys() <= {name for name, _ in locked(*PARTS)}
    assert constrained.pop("torch")
    assert constrained == of_locks
    groups = PYPROJECT["dependency-groups"]
    declared = {
        "build": groups["build"] + PYPROJECT["build-system"]["requires"],
        "dpcanary": PROJECT["dependencies"],
        "train": EXTRAS["figures"] + EXTRAS["train"],
        "tools": [requirement for extra in EXTRAS.values() for requirement in extra],
        "release": groups["release"],
    }
    for lock, path in LOCKS.items():
        hashes = locked(path)
        assert len(hashes) == len(re.findall("^[^ #]", path.read_text(), re.MULTILINE)) > 5
        for digests in hashes.values():
            assert {len(digest) for digest in digests} == {64}
        for requirement in map(Requirement, declared[lock]):
            if requirement.name not in ("torch", PROJECT["name"]):  # see docs/install.md
                assert dict(hashes.keys())[canonical(requirement.name)] in requirement.specifier
    light, train, tools = (locked(LOCKS[name]).items() for name in ("dpcanary", "train", "tools"))
    assert light < train < tools


@needs_make
def test_all_locks_are_installed_in_one_way_and_by_their_hashes(tmp_path):
    """Only PyTorch is installed by its version."""
    targets = (["none/.ready-tools", "VENV=none"], ["none/.ready", "RELEASE=none"])
    plans = "".join(printed_by([str(MAKE), "--dry-run", *target], ROOT) for target in targets)
    calls = [*map(shlex.split, re.findall(r"^\S+/pip (install .*)$", plans, re.MULTILINE))]
    others = [words for words in calls if "--require-hashes" not in words]
    assert [words[-1] for words in others] == [".", "torch"]
    assert {"--no-deps", "--no-build-isolation"} <= {*others[0]}
    options = {Path(words[-1]).stem: words[:-1] for words in calls if "--require-hashes" in words}
    assert options.keys() == LOCKS.keys()
    [shared] = {tuple(words) for words in options.values()}
    # With them, pip refuses what has no hash in the lock.
    (tmp_path / "own-1-py3-none-any.whl").touch()
    (tmp_path / "lock.txt").write_text(f"own @ file://{tmp_path}/own-1-py3-none-any.whl\n")
    pip = [sys.executable, "-m", "pip", *shared, "lock.txt", "--dry-run", "--no-index"]
    assert "Hashes are required in --require-hashes mode" in printed_by(pip, tmp_path, fails=True)


def test_pins_are_for_all_supported_versions():
    pinned = pins((ROOT / "constraints.txt").read_text())
    packages = [*distributions()]
    here = [dist for dist in packages if pinned.get(canonical(dist.name)) == f"=={dist.version}"]
    assert len(here) > 100
    for package in here:
        needed = SpecifierSet(package.metadata.get("Requires-Python") or "")
        assert all(version in needed for version in (*SUPPORTED, DEBIAN)), package.name


def test_documents_and_package_agree():
    first, last = (int(version.split(".")[1]) for version in (SUPPORTED[0], SUPPORTED[-1]))
    assert PROJECT["requires-python"] == f">=3.{first},<3.{last + 1}"
    python = "Programming Language :: Python :: "
    stated = [text.removeprefix(python) for text in PROJECT["classifiers"] if python in text]
    assert stated == [*SUPPORTED]
    makefile = (ROOT / "Makefile").read_text()
    assert f"(3, {first}) <= sys.version_info < (3, {last + 1})" in makefile
    words = f"Python {', '.join(SUPPORTED[:-1])} or {SUPPORTED[-1]}"
    for text in (makefile, *map(Path.read_text, [ROOT / "README.md", ROOT / "docs/install.md"])):
        assert words in text


WORKS = f'exec "{sys.executable}" "$@"'
SHIM = "echo 'python3.11: command not found' >&2; exit 127"  # of a version that is not chosen
OTHER_VERSION = "exit 1"


@needs_make
@pytest.mark.parametrize(("programs", "chosen"), [
    ({"python3.11": WORKS, "python3": WORKS}, "python3.11"),
    ({"python3.11": SHIM, "python3": WORKS}, "python3"),
    ({"python3": OTHER_VERSION, "python3.13": WORKS}, "python3.13"),
    ({"python3.11": SHIM, "python3": OTHER_VERSION}, None),
])  # fmt: skip
def test_make_takes_a_python_that_runs_and_is_supported(tmp_path, programs, chosen):
    """For a new environment, with only these programs on the path; or says that it needs one."""
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = tmp_path / "environment"
    command = [str(MAKE), f"VENV={environment}", f"{environment}/.ready"]
    command += ["--dry-run"] if chosen else []
    done = subprocess.run(
        command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert (f"{chosen} -m venv {environment}\n" in done.stdout) == bool(chosen)
    needs = "error: dpcanary needs Python 3.11, 3.12 or 3.13; set PYTHON="
    assert (done.returncode, done.stderr.startswith(needs)) == ((0, False) if chosen else (2, True))
    assert not environment.exists()


MIT = [{"license": {"id": "MIT"}}]


def component(name: str, **others: object) -> dict[str, object]:
    return {"name": name, "version": "1", "purl": f"pkg:pypi/{name}@1", **others}


def test_licence_in_words_and_home_page():
    for licences, words in [
        (MIT, "MIT"),
        ([{"expression": "MIT OR Apache-2.0"}], "MIT OR Apache-2.0"),
        ([{"license": {"name": "License :: OSI Approved :: BSD License"}}], "BSD License"),
        ([*MIT, {"license": {"name": "License :: OSI Approved :: MIT License"}}], "MIT"),
        ([{"license": {"name": "Ours\n\nCopyright"}}], "Ours"),
        ([], ""),
    ]:
        assert bom.licence(component("a", licenses=licences)) == words
    said = "from packaging metadata Project-URL: Source"
    references = [
        {"type": "issue-tracker", "url": "issues"},
        {"type": "other", "url": "source", "comment": said},
        {"type": "other", "url": "other"},
        {"type": "website", "url": "website"},
    ]
    homes = [bom.home(component("a", externalReferences=references[:n])) for n in (0, 3, 4)]
    assert homes == ["", "source", "website"]


def test_a_bill_is_completed_and_what_it_lacks_is_said():
    parts = [component("A_b", licenses=MIT), component("PySocks"), component("torch", licenses=MIT)]
    hashes = {("a-b", "1"): ["00", "01"], ("pysocks", "1"): ["02"]}
    bill = bom.complete({"components": parts}, hashes, {"a-b", "torch"})
    assert [*bom.faults(bill)] == []
    assert [part["scope"] for part in bill["components"]] == ["required", "optional", "required"]
    [files] = bill["components"][0]["externalReferences"]
    assert [entry["content"] for entry in files["hashes"]] == ["00", "01"]
    assert "pysocks\t1\tBSD-3-Clause\toptional\t\n" in bom.table(bill)
    for part, fault in [
        (component("a-b"), "a-b 1: states no licence"),
        (component("a-b", licenses=[{"license": {"name": "UNKNOWN"}}]), "states no licence"),
        (component("other", licenses=MIT), "other 1: is not in the locks"),
        (component("a-b", licenses=MIT) | {"version": "2"}, "a-b 2: is not in the locks"),
    ]:
        [message] = bom.faults(bom.complete({"components": [part]}, hashes, set()))
        assert fault in message


@pytest.mark.exhaustive
@needs_make
def test_what_is_installed_has_licences_and_hashes(tmp_path):
    installed = f"--assume-old={sys.prefix}/.ready-tools"
    variables = [f"RELEASE={tmp_path}/release", f"VENV={sys.prefix}", f"DIST={tmp_path}"]
    printed_by([str(MAKE), installed, *variables, "sbom"], ROOT)
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {(canonical(part["name"]), part["version"]): part for part in bill["components"]}
    rows = [line.split("\t") for line in (tmp_path / "licences.tsv").read_text().splitlines()]
    licences = {(name, version): words for name, version, words, *_ in rows[1:]}
    pinned = locked(*PARTS)
    both = {(canonical(package.name), package.version) for package in distributions()} & {*pinned}
    assert len(both) > 100
    for pin in both:
        assert licences[pin]
        assert parts[pin]["purl"] == f"pkg:pypi/{pin[0]}@{pin[1]}"
        [files] = [part for part in parts[pin]["externalReferences"] if "hashes" in part]
        assert [entry["content"] for entry in files["hashes"]] == pinned[pin]
        assert {entry["alg"] for entry in files["hashes"]} == {"SHA-256"}
