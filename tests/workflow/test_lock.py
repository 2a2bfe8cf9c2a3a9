"""The locks: they agree with the pins and the requirements, and pip refuses what is not in them."""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from release.bill_of_materials import canonical, locked

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
SUPPORTED = ("3.11", "3.12", "3.13")
LOCKS = {
    name: ROOT / "locks" / f"{name}.txt"
    for name in ("build", "dpcanary", "train", "tools", "release")
}
NOT_LOCKED = {"torch"}  # docs/install.md
MAKE = shutil.which("make")


def pins(text: str) -> dict[str, str]:
    """The versions that a file of pins, with hashes or without, has for Linux on x86-64."""
    machine = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    machine |= {"platform_machine": "x86_64", "implementation_name": "cpython"}
    machine |= {"platform_python_implementation": "CPython"}
    found = {}
    for line in re.findall(r"^[A-Za-z].*", text, re.MULTILINE):
        pin = Requirement(line.removesuffix("\\").strip())
        environments = [
            machine | {"python_version": one, "python_full_version": f"{one}.2"}
            for one in SUPPORTED
        ]
        if pin.marker is None or any(map(pin.marker.evaluate, environments)):
            found[canonical(pin.name)] = str(pin.specifier)
    return found


def disagreements(constraints: str, *locks: str) -> dict[str, set[str | None]]:
    """Packages whose version is not the same everywhere, PyTorch aside."""
    constrained = pins(constraints)
    together = {name: version for lock in locks for name, version in pins(lock).items()}
    return {
        name: {constrained.get(name), together.get(name)}
        for name in (constrained.keys() | together.keys()) - NOT_LOCKED
        if constrained.get(name) != together.get(name)
    }


def test_pins_are_those_of_the_locks():
    locks = [LOCKS[name].read_text() for name in ("build", "dpcanary", "train", "tools")]
    assert len(pins(locks[-1])) > 150
    assert disagreements((ROOT / "constraints.txt").read_text(), *locks) == {}


@pytest.mark.parametrize(
    ("constraints", "found"),
    [
        ("a-b==1\nc==2", {}),
        ("torch==2\na-b==1\nc==2", {}),
        ("a-b==1", {"c": {None, "==2"}}),
        ("a_b==1\nc==3", {"c": {"==2", "==3"}}),
        ("a-b==1\nc==2\nd==4", {"d": {"==4", None}}),
    ],
)
def test_disagreements_are_seen(constraints, found):
    lock = """# made by make
a-b==1 \\
    --hash=sha256:00
c==2 ; python_full_version < '3.12' \\
    --hash=sha256:01
colorama==0.4 ; sys_platform == 'win32' \\
    --hash=sha256:02
"""
    assert disagreements(constraints, lock) == found


def test_every_locked_package_has_hashes_and_each_lock_is_a_part_of_the_next():
    for path in LOCKS.values():
        hashes = locked(path)
        assert len(hashes) == len(re.findall("^[^ #]", path.read_text(), re.MULTILINE)) > 5
        for digests in hashes.values():
            assert digests
            assert all(len(digest) == 64 for digest in digests)
    light, train, tools = (locked(LOCKS[name]).items() for name in ("dpcanary", "train", "tools"))
    assert light < train < tools


def test_locks_have_what_is_declared():
    groups = PYPROJECT["dependency-groups"]
    for lock, declared in {
        "build": groups["build"] + PYPROJECT["build-system"]["requires"],
        "dpcanary": PYPROJECT["project"]["dependencies"],
        "train": EXTRAS["figures"] + EXTRAS["train"],
        "tools": [requirement for extra in EXTRAS.values() for requirement in extra],
        "release": groups["release"],
    }.items():
        versions = {name: version for name, version in locked(LOCKS[lock])}
        for requirement in map(Requirement, declared):
            if requirement.name not in NOT_LOCKED | {PYPROJECT["project"]["name"]}:
                assert versions[canonical(requirement.name)] in requirement.specifier


def installs(target: str, *variables: str) -> list[list[str]]:
    """How `make` calls pip for a target in a new environment."""
    plan = subprocess.run(
        [str(MAKE), "--dry-run", *variables, target],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [*map(shlex.split, re.findall(r"^\S+/pip (install .*)$", plan, re.MULTILINE))]


def wheel(folder: Path) -> Path:
    """The smallest package."""
    path, told = folder / "tiny-1-py3-none-any.whl", "Root-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
        for name, text in {
            "METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n",
            "WHEEL": f"Wheel-Version: 1.0\n{told}",
            "RECORD": "",
        }.items():
            archive.writestr(f"tiny-1.dist-info/{name}", text)
    return path


@pytest.fixture(scope="module")
def commands() -> dict[str, list[str]]:
    """By lock, how `make` installs from it; and that only PyTorch is installed by its version."""
    if MAKE is None:
        pytest.skip("needs make")
    of_tools = installs("none/.ready-tools", "VENV=none")
    of_release = installs("none/.ready", "RELEASE=none")
    others = [words for words in of_tools + of_release if "--require-hashes" not in words]
    assert [words[-1] for words in others] == [".", "torch"]
    assert {"--no-deps", "--no-build-isolation"} <= {*others[0]}
    hashed = [words for words in of_tools + of_release if "--require-hashes" in words]
    return {Path(words[-1]).stem: words[:-1] for words in hashed}


def test_all_locks_are_installed_in_one_way(commands):
    assert commands.keys() == LOCKS.keys()
    assert len({tuple(words) for words in commands.values()}) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("entry", "refusal"),
    [
        # Files of other machines have hashes, too.
        ("tiny==1 --hash=sha256:{wrong} --hash=sha256:{right}", None),
        ("tiny==1 --hash=sha256:{wrong}", "DO NOT MATCH THE HASHES"),
        ("tiny==1", "Hashes are required"),
    ],
)
def test_pip_refuses_what_is_not_in_the_lock(tmp_path, commands, entry, refusal):
    right = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    lock = tmp_path / "lock.txt"
    lock.write_text(entry.format(right=right, wrong="0" * 64) + "\n")
    there = ["--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "packages")]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *commands["tools"], str(lock), *there],
        capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull},
    )  # fmt: skip
    assert (tmp_path / "packages/tiny.py").exists() == (refusal is None), done.stderr
    assert (done.returncode == 0) == (refusal is None)
    assert (refusal or "") in done.stderr
