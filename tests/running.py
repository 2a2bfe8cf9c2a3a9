"""What tests of the workflow share: commands, plans, and an experiment that is finished once.

Tests work in copies of it. They are of bytes: jobs truncate logs, which hard links would share.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import yaml
from filelock import FileLock
from forks import printed_by_fork

from dpcanary.core.files import read_arrays

ROOT = Path(__file__).resolve().parents[1]
SNAKEFILE = str(ROOT / "Snakefile")
SNAKEMAKE = [sys.executable, "-m", "snakemake"]
DPCANARY = [sys.executable, "-P", "-m", "dpcanary"]  # as the command: not the folder first
# Seconds that a busy machine may need for what takes no time.
PATIENCE = 600.0
PROGRAMS = Path(sys.executable).parent
COPIED = ("Snakefile", "rules", "scripts", "dpcanary", "profiles", "envs", "report", "config")
TINY: dict[str, Any] = yaml.safe_load((ROOT / "tests/workflow/tiny.yaml").read_text())
MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2))
"""


def environment(programs: Path = PROGRAMS, **variables: str) -> dict[str, str]:
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **variables}


def printed_by(
    command: list[str], folder: Path, *, fails: bool = False, programs: Path = PROGRAMS, **of: str
) -> str:
    """Runs a command in a folder, with these variables, and returns all that it printed."""
    options = {"cwd": folder, "env": environment(programs, **of), "text": True, "check": False}
    done = subprocess.run(command, capture_output=True, **options)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def started(command: Sequence[str], folder: Path, **variables: str) -> "subprocess.Popen[str]":
    """Starts a command, which prints to the file `printed`, in a session that signals may reach."""
    options = {"cwd": folder, "env": environment(**variables), "start_new_session": True}
    options |= {"stderr": subprocess.STDOUT, "text": True}
    with (folder / "printed").open("w") as printed:
        return subprocess.Popen(command, stdout=printed, **options)


def looked(folder: Path, *options: str, fails: bool = False, **variables: str) -> str:
    """What Snakemake prints that runs no job; in a fork, which saves the seconds of imports."""
    status, printed = printed_by_fork("snakemake", options, folder, environment(**variables))
    assert (status != 0) == fails, printed
    return printed


@dataclass(frozen=True)
class Plan:
    """How many jobs a run would do by rule, and their commands without `python` and their logs."""

    jobs: dict[str, int]
    commands: list[list[str]]

    @classmethod
    def of(cls, folder: Path, *options: str, **variables: str) -> "Plan":
        printed = looked(folder, *options, "--dry-run", "--printshellcmds", **variables)
        stats = re.search(r"^Job stats:\n.*\n-.*\n((?:\w+ +\d+\n)*)", printed, re.MULTILINE)
        counts = re.findall(r"(\w+) +(\d+)", stats[1] if stats else "")
        jobs = {rule: int(count) for rule, count in counts if rule not in ("total", "all")}
        commands = re.findall(r"^Shell command: python (\S+\.py .*?) 2?> ", printed, re.MULTILINE)
        return cls(jobs, [*map(shlex.split, commands)])

    def outputs(self, program: str, option: str = "output") -> set[str]:
        calls = [words for words in self.commands if Path(words[0]).stem == program]
        assert calls or program not in self.jobs
        return {path.split("/", 2)[2] for words in calls for path in values_of(option, words)}


def values_of(option: str, words: Sequence[str]) -> list[str]:
    after = words[words.index(f"--{option}") + 1 :]
    return [*takewhile(lambda word: not word.startswith("--"), after)]


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results = folder / "results" / "tiny"

    @classmethod
    def new(cls, folder: Path, config: Mapping[str, Any] = TINY) -> "Project":
        folder.mkdir(exist_ok=True)
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, folder / name)
        features = np.random.default_rng(0).normal(size=(80, 5))
        np.savez(folder / "own.npz", features=features, labels=np.arange(80) % 2)
        (folder / "own_nets.py").write_text(MODEL)
        project = cls(folder)
        project.write(config)
        return project

    def write(self, config: Mapping[str, Any]) -> None:
        (self.folder / "experiment.yaml").write_text(yaml.safe_dump(dict(config)))

    def options(self, *options: str) -> list[str]:
        return ["--cores", "2", *options, "--configfile", "experiment.yaml"]

    def run(self, *options: str, fails: bool = False, **variables: str) -> str:
        command = [*SNAKEMAKE, *self.options(*options)]
        return printed_by(command, self.folder, fails=fails, **variables)

    def looked(self, *options: str, fails: bool = False) -> str:
        return looked(self.folder, *self.options(*options), fails=fails)

    def plan(self, *options: str) -> Plan:
        return Plan.of(self.folder, *self.options(*options))

    def pretend(self) -> "Project":
        """Marks everything as made: the files are empty, which is enough for plans."""
        for line in self.looked("--summary").splitlines():
            path = self.folder / line.partition("\t")[0]
            if "\tmissing\t" in line:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
        self.looked("--touch", "--forceall", "--quiet", "all")
        assert self.plan() == Plan({}, [])
        return self

    def copy(self, folder: Path) -> "Project":
        shutil.copytree(self.folder, folder, symlinks=True, dirs_exist_ok=True)
        return Project(folder)


def shared(name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first test that needs it makes, or fails to make, for the whole session."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(os.environ["DPCANARY_CACHE"]) / f"shared-{session}" / name
    folder.parent.mkdir(exist_ok=True)
    unfinished = folder.with_suffix(".unfinished")
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            assert not unfinished.exists(), f"{name} has failed before"
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def install(source: Path, target: Path) -> None:
    """Installs a package into a folder; pip builds beside what it installs, so in a copy."""
    names = (".git", ".venv", "build", "results", "resources", ".snakemake")
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*names), dirs_exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--target"]
        printed_by([*pip, str(target), copy], target.parent)


def wait_for(condition: Callable[[], object], process: "subprocess.Popen | None" = None) -> None:
    """Returns once a condition holds; an error if the process that would meet it has ended."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process is None or process.poll() is None, "the process has ended"
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)


def content_of(path: Path) -> bytes:
    if path.suffix == ".npz":
        header, arrays = read_arrays(path)
        header.pop("seconds", None)
        words = repr(sorted(header.items())).encode()
        return words + b"".join(arrays[name].tobytes() for name in sorted(arrays))
    if path.suffix == ".tsv":
        table = pd.read_csv(path, sep="\t", comment="#")
        if "seconds" in table:  # the checksum is of the seconds, too
            return table.drop(columns=["seconds", "checksum"], errors="ignore").to_csv().encode()
    return path.read_bytes()


def program(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**run_path(str(path)))


def call(name: str, **options: object) -> None:
    """Calls a job's program with options; a list gives an option several values."""
    argv: list[str] = []
    for key, value in options.items():
        values = value if isinstance(value, list) else [value]
        argv += [f"--{key.replace('_', '-')}", *map(str, values)]
    program(ROOT / f"scripts/{name}.py").main(argv)


def with_audit(config: Mapping[str, Any], sweep: str, **changes: object) -> dict[str, Any]:
    audits = {**config["audits"], sweep: {**config["audits"][sweep], **changes}}
    return {**config, "audits": audits}
