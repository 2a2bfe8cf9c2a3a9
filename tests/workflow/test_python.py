"""Which `python` the jobs find."""

import sys
from pathlib import Path

import pytest

from dpcanary.workflow import python


def interpreter(folder: Path, *, knows: tuple[str, ...]) -> Path:
    for name in knows:
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "__init__.py").touch()
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/packages" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


NOTHING: tuple[str, ...] = ()
MOST = ("tqdm", "pandas", "numpy")  # such as the base of Anaconda
ALL = ("tqdm", "torch")


@pytest.mark.parametrize(
    ("own", "other", "is_own_taken"),
    [
        (ALL, NOTHING, True),
        (ALL, MOST, True),
        (ALL, ALL, True),  # the command that is called says which one is meant
        (MOST, ALL, False),
        (NOTHING, ALL, False),
        (MOST, MOST, True),
    ],
)
def test_jobs_find_a_python_that_has_what_they_need(
    tmp_path, monkeypatch, own, other, is_own_taken
):
    mine = interpreter(tmp_path / "own environment", knows=own)
    on_path = interpreter(tmp_path / "other", knows=other)
    monkeypatch.setattr(sys, "executable", str(mine))
    monkeypatch.setattr(python, "_NEEDED", ("tqdm", "torch"))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    command = python.path_of_python()
    assert bool(command) == is_own_taken
    if is_own_taken:
        assert command == f"export PATH='{mine.parent}':$PATH; "


def test_no_python_or_the_same_one(tmp_path, monkeypatch):
    mine = interpreter(tmp_path, knows=NOTHING)
    monkeypatch.setattr(sys, "executable", str(mine))
    monkeypatch.setenv("PATH", "/nowhere")
    assert python.path_of_python() == f"export PATH={mine.parent}:$PATH; "
    monkeypatch.setenv("PATH", f"{mine.parent}:/usr/bin")
    assert python.path_of_python() == ""
