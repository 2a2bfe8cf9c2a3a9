"""What is supported: the documents agree, the pins fit it, and `make` finds a Python of it."""

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
SUPPORTED = ("3.11", "3.12", "3.13")
DEBIAN = "3.11.2"  # the oldest that is tried: Debian 12 has it
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKE = shutil.which("make")


def refusing(requirement: str | None) -> list[str]:
    """The supported versions that a package refuses."""
    accepted = SpecifierSet(requirement or "")
    return [version for version in (*SUPPORTED, DEBIAN) if version not in accepted]


def installed_pins() -> dict[str, str | None]:
    """What each pinned package that is installed in its pinned version says about Python."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        pin = Requirement(line)
        try:
            metadata = distribution(pin.name)
        except PackageNotFoundError:
            continue
        if metadata.version in pin.specifier:
            found[f"{pin.name} {metadata.version}"] = metadata.metadata.get("Requires-Python")
    return found


def test_pins_are_for_all_supported_versions():
    pins = installed_pins()
    assert len(pins) > 100
    refused = {name: refusing(requirement) for name, requirement in pins.items()}
    assert {name: versions for name, versions in refused.items() if versions} == {}


@pytest.mark.parametrize(
    ("requirement", "refused"),
    [
        (None, []),
        (">=3.10", []),
        (">=3.11.5", ["3.11", DEBIAN]),  # soupsieve 4.1.2
        (">=3.12", ["3.11", DEBIAN]),
        (">=3.8,<3.13", ["3.13"]),
    ],
)
def test_refusals_are_seen(requirement, refused):
    assert refusing(requirement) == refused


def test_documents_and_package_agree():
    first, last = (int(version.split(".")[1]) for version in (SUPPORTED[0], SUPPORTED[-1]))
    assert PROJECT["requires-python"] == f">=3.{first},<3.{last + 1}"
    python = "Programming Language :: Python :: "
    stated = [one.removeprefix(python) for one in PROJECT["classifiers"] if python in one]
    assert stated == [*SUPPORTED]
    makefile = (ROOT / "Makefile").read_text()
    assert f"(3, {first}) <= sys.version_info < (3, {last + 1})" in makefile
    words = f"Python {', '.join(SUPPORTED[:-1])} or {SUPPORTED[-1]}"
    for text in (makefile, *map(Path.read_text, [ROOT / "README.md", ROOT / "docs/install.md"])):
        assert words in text


def made(folder: Path, *options: str, **programs: str) -> subprocess.CompletedProcess[str]:
    """What `make` does for a new environment where only these programs are on the path."""
    for name, text in programs.items():
        program = folder / name.replace("_", ".")
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    environment = folder / "environment"
    command = [str(MAKE), *options, f"VENV={environment}", f"{environment}/.ready"]
    variables = {"PATH": str(folder)}
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


WORKS = f'exec "{sys.executable}" "$@"'
SHIM = "echo 'python3.11: command not found' >&2; exit 127"  # of a version that is not chosen
OTHER_VERSION = "exit 1"


@pytest.mark.skipif(MAKE is None, reason="needs make")
@pytest.mark.parametrize(
    ("programs", "chosen"),
    [
        ({"python3_11": WORKS, "python3": WORKS}, "python3.11"),
        ({"python3_11": SHIM, "python3": WORKS}, "python3"),
        ({"python3": OTHER_VERSION, "python3_13": WORKS}, "python3.13"),
        ({}, None),
        ({"python3_11": SHIM, "python3": OTHER_VERSION}, None),
    ],
)
def test_make_takes_a_python_that_runs_and_is_supported(tmp_path, programs, chosen):
    """And says so if there is none."""
    if chosen:
        planned = made(tmp_path, "--dry-run", **programs)
        assert f"{chosen} -m venv {tmp_path}/environment\n" in planned.stdout
        return
    done = made(tmp_path, **programs)
    assert done.returncode == 2
    needs = "error: dpcanary needs Python 3.11, 3.12 or 3.13; set PYTHON="
    assert done.stderr.startswith(needs)
    assert not (tmp_path / "environment").exists()
