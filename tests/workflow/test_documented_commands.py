"""Every command in the documents: its options are known, and those of the tutorial are run."""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
import yaml
from running import ROOT, environment, printed_by

from dpcanary.cli import app
from dpcanary.core.installation import config_named

NAMES = ("README.md", "CONTRIBUTING.md", "profiles/README.md", "benchmarks/README.md")
PAGES = [ROOT / name for name in NAMES] + [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")]
OURS = ("dpcanary", "snakemake", "make", "python -m benchmarks", "python -m dpcanary")


def commands() -> list[tuple[str, str]]:
    """Indented lines of the pages that start with a command, and the page."""
    lines = {
        (str(page.relative_to(ROOT)), line.split("  #")[0].strip())
        for page in PAGES
        for line in re.findall(r"^ {4}(\S.*)$", page.read_text(), re.MULTILINE)
    }
    return sorted((page, line) for page, line in lines if line.startswith(OURS))


def check_make(words: Sequence[str]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= {*targets}


def source_of(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()


def check_module(words: Sequence[str]) -> None:
    """Each option is one that the module, or what it takes its options from, declares."""
    text = source_of(words[0])
    text += "".join(map(source_of, re.findall(r"^from (benchmarks\.\w+) import", text, re.M)))
    for option in [word.strip("[]") for word in words if word.strip("[").startswith("--")]:
        assert f'"{option}"' in text, option


def check_command(words: Sequence[str]) -> None:
    """The command reads its arguments; a config that is ours has the target."""
    command = typer.main.get_command(app).commands[words[0]]
    params = command.make_context(words[0], [*words[1:]]).params
    config = str(params.get("config")) if words[0] == "run" else ""
    if config.startswith("config/"):
        content = yaml.safe_load((ROOT / config).read_text())
        figures = f"results/{content['experiment']}/figures"
        targets = {target for target in params["target"] or [] if "/" in target}
        assert targets <= {f"{figures}/{name}.pdf" for name in content["figures"]}
    elif config.startswith("published/"):
        assert config_named(Path(config)).is_file()


CHECKS = {"make": check_make, "dpcanary": check_command, "python": check_module}


def test_commands_are_known_to_the_programs():
    assert len(commands()) > 20
    for page, command in commands():
        words = shlex.split(command.partition(" > ")[0])
        skipped = 2 if words[:2] == ["python", "-m"] else 1
        try:
            CHECKS[words[0]](words[skipped:])
        except Exception as error:
            pytest.fail(f"{page}: {command}: {error!r}")


def masked(text: str) -> list[str]:
    return [re.sub(r"\s+", " ", re.sub(r"\d+[.]\d+", "#", line)) for line in text.splitlines()]


@pytest.mark.exhaustive
def test_the_tutorial_runs(tmp_path):
    page = (ROOT / "docs/tutorial.md").read_text()
    [table] = re.findall(r"```python\n((?:.*\n)*?)```", page)
    printed_by([sys.executable, "-c", table], tmp_path)
    parts = re.findall(r"```console\n\$ (.*)\n((?:.*\n)*?)```", page)
    assert len(parts) == 3
    for command, expected in parts:
        words = [sys.executable, "-m", *shlex.split(command)]
        options = {"cwd": tmp_path, "env": environment(), "text": True}
        assert masked(subprocess.check_output(words, **options)) == masked(expected)
    assert (tmp_path / "results/flowers/report.html").exists()
    # What the page says to do next.
    (tmp_path / "study.yaml").write_text((tmp_path / "results/flowers/audit.yaml").read_text())
    assert "    dpcanary run study.yaml" in page
    printed_by([sys.executable, "-m", "dpcanary", "run", "study.yaml"], tmp_path)
