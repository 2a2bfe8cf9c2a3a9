"""Which `python` the jobs find."""

import sys
from pathlib import Path

from dpcanary.workflow import job_python as python

OWN_PYTHON = sys.executable


def interpreter(folder: Path, *, knows: tuple[str, ...]) -> Path:
    for name in knows:
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "__init__.py").touch()
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/packages" exec {OWN_PYTHON} -S "$@"\n')
    path.chmod(0o755)
    return path


MOST = ("tqdm", "pandas", "numpy")  # such as the base of Anaconda
ALL = ("tqdm", "torch")


def test_jobs_find_a_python_that_has_what_they_need(tmp_path, monkeypatch):
    monkeypatch.setattr(python, "_NEEDED", ("tqdm", "torch"))
    pairs = [(ALL, (), True), (ALL, MOST, True), (MOST, ALL, False), ((), ALL, False)]
    # With all in both, the command that is called says which one is meant.
    pairs += [(ALL, ALL, True), (MOST, MOST, True)]
    for number, (own, other, is_own_taken) in enumerate(pairs):
        mine = interpreter(tmp_path / f"own environment {number}", knows=own)
        on_path = interpreter(tmp_path / f"other {number}", knows=other)
        monkeypatch.setattr(sys, "executable", str(mine))
        monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
        expected = f"export PATH='{mine.parent}':$PATH; " if is_own_taken else ""
        assert python.path_of_python() == expected, (own, other)
    monkeypatch.setenv("PATH", "/nowhere")
    assert python.path_of_python() == f"export PATH='{mine.parent}':$PATH; "
    monkeypatch.setenv("PATH", f"{mine.parent}:/usr/bin")
    assert python.path_of_python() == ""
