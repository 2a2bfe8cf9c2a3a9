"""Every command in the documents: those of the tutorial are run, the others planned."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from running import environment

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "profiles/README.md",
    ROOT / "benchmarks/README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/results").glob("*.md"),
]
OURS = ("dpcanary", "snakemake", "make", "python -m benchmarks", "python -m dpcanary")
# Files that a reader makes first, and folders of results.
OF_READERS = ("mine.yaml", "config.yaml", "study.yaml", "my_copy.yaml", "results/", "~/")
# Needs a cluster, of which tests/cluster is the test.
CLUSTER = ("--profile profiles/slurm",)


def commands() -> list[tuple[str, str]]:
    """Indented lines of the pages that start with a command, and the page."""
    found = []
    for page in PAGES:
        for line in re.findall(r"^ {4}(\S.*)$", page.read_text(), re.MULTILINE):
            command = line.split("  #")[0].strip()
            if command.startswith(OURS):
                found.append((str(page.relative_to(ROOT)), command))
    return sorted({*found})


def test_there_are_commands():
    assert len(commands()) > 20


@pytest.mark.long
@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_are_known_to_the_programs(page, command):
    """Nothing is trained: workflows are planned, options are read, targets of make exist."""
    words = shlex.split(command)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text()
        for target in [word for word in words[1:] if "=" not in word]:
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        return
    if words[:2] == ["python", "-m"]:
        words = [sys.executable, "-m", words[2], "--help"]
    elif words[0] == "dpcanary" and words[1] != "run":
        known = subprocess.run(
            [sys.executable, "-m", "dpcanary", words[1], "--help"],
            env={**os.environ, "COLUMNS": "200"}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for option in (word for word in words[2:] if word.startswith("--")):
            assert option in known
        return
    elif any(name in command for name in OF_READERS) or any(name in command for name in CLUSTER):
        pytest.skip("a reader's own files, or a cluster")
    else:
        start = [sys.executable, "-m", words[0]]
        words = [*start, *words[1:], *["--dry-run", "--quiet", "all"]]
    data = {"DPCANARY_DATA": ""}
    done = subprocess.run(
        words, cwd=ROOT, env=environment(**data), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def masked(text: str) -> list[str]:
    """Lines without numbers, which may differ a little between machines."""
    return [re.sub(r"\s+", " ", re.sub(r"\d+[.]\d+", "#", line)) for line in text.splitlines()]


@pytest.mark.long
def test_the_tutorial_runs(tmp_path):
    page = (ROOT / "docs/tutorial.md").read_text()
    [table] = re.findall(r"```python\n((?:.*\n)*?)```", page)
    subprocess.run([sys.executable, "-c", table], cwd=tmp_path, check=True)
    parts = re.findall(r"```console\n\$ (.*)\n((?:.*\n)*?)```", page)
    assert len(parts) >= 4
    for command, expected in parts:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)], cwd=tmp_path, env=environment(),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert masked(done.stdout) == masked(expected)
    assert (tmp_path / "results/flowers/report.html").exists()
    # What the page says to do next.
    (tmp_path / "study.yaml").write_text((tmp_path / "results/flowers/audit.yaml").read_text())
    assert "    dpcanary run study.yaml" in page
    subprocess.run(
        [sys.executable, "-m", "dpcanary", "run", "study.yaml"], cwd=tmp_path, env=environment(),
        capture_output=True, check=True,
    )  # fmt: skip
