"""Errors that are planted in the library, each with the tests that must find it.

    python -m benchmarks.planted [NAME ...] [--jobs 2]

Copies the project, plants one error of `planted.json` at a time, and runs the tests beside it: they
must fail. Prints which errors pass, and ends with status 1 if any does. docs/reliability.md has the
score.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tqdm import tqdm

from benchmarks.tables_in_pages import markdown_table, with_table
from dpcanary.core.printing import print_table

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("planted.json")
# What tests read besides the package.
COPIED = (
    "dpcanary",
    "tests",
    "scripts",
    "benchmarks",
    "config",
    "docs",
    "rules",
    "profiles",
    "report",
    "envs",
    "snakemake_logger_plugin_dpcanary",
)
FILES = (
    "Snakefile",
    "action.yml",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "constraints.txt",
)


class Planted(NamedTuple):
    """An error.

    Attributes:
        name: what is wrong, in a few words.
        file: below the package.
        before: text that the file holds once.
        after: what stands there instead.
        tests: that must find it, as pytest takes them.
        chosen: by whom: `blind` or `without the tests` by somebody who had not seen these, `in a
            review`, or `at random` by a program.
        at_first: whether a test found it before anybody looked at it.
    """

    name: str
    file: str
    before: str
    after: str
    tests: list[str]
    chosen: str
    at_first: bool


def read_list(path: Path = LIST) -> list[Planted]:
    """All errors of a list."""
    return [Planted(**error) for error in json.loads(path.read_text(encoding="utf-8"))]


# What `chosen` says, and the words of a table.
CHOSEN = {
    "blind": "first list, two people",
    "without the tests, second list": "second list, two people",
    "without the tests, third list": "third list, two people",
    "without the tests, fourth list": "fourth list, one error in each file",
    "without the tests, fifth list": "fifth list, three people, one error in each file",
    "without the tests, sixth list": "sixth list, one error in each of 38 files, short tests alone",
    "in a review": "found in a review, before any test saw them",
    "at random": "chosen by a program, not found at first",
}


def page_with_lists(page: str) -> str:
    """The page of reliability, whose table of lists is that of `planted.json`."""
    errors = read_list()
    rows = []
    for chosen, words in CHOSEN.items():
        at_first = [error.at_first for error in errors if error.chosen == chosen]
        if at_first:
            share = f"{sum(at_first) / len(at_first):.0%}"
            rows.append((words, str(len(at_first)), str(sum(at_first)), share))
    rows.append(("all", str(len(errors)), str(sum(error.at_first for error in errors)), ""))
    table = markdown_table([("chosen", "errors", "found at first", "share"), *rows])
    return with_table(page, "table: python -m benchmarks.planted --page", table)


def run_tests(tests: Sequence[str], copy: Path) -> "subprocess.CompletedProcess[str]":
    """Runs tests of a copy until one fails."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def find(error: Planted, copy: Path) -> str:
    """Plants an error in a copy of the project and runs its tests; how they end."""
    path = copy / "dpcanary" / error.file
    text = path.read_text()
    if text.count(error.before) != 1:
        return "NOT PLANTED: the text is not there once"
    path.write_text(text.replace(error.before, error.after))
    try:
        done = run_tests(error.tests, copy)
    finally:
        path.write_text(text)
    if done.returncode == 1:
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return lines[0].split(" ")[1] if lines else "found"
    return "NOT FOUND" if done.returncode == 0 else f"NOT RUN: {done.stdout[-300:]}"


def copied(place: Path) -> Path:
    """A copy of the project."""
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", "results", "_build")
        source = ROOT / name
        shutil.copytree(source, place / name, ignore=None if name == "docs" else ignored)
    for name in FILES:
        shutil.copy(ROOT / name, place)
    return place


def main() -> int:
    """Plants one after the other in each of some copies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; by default all")
    parser.add_argument("--jobs", type=int, default=1, help="copies that are tested at once")
    parser.add_argument(
        "--page", action="store_true", help="only write the table of lists into docs/reliability.md"
    )
    arguments = parser.parse_args()
    if arguments.page:
        page = ROOT / "docs/reliability.md"
        page.write_text(page_with_lists(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    chosen = [
        error
        for error in read_list()
        if not arguments.names or any(name in error.name for name in arguments.names)
    ]
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="dpcanary-planted-") as folder:
        for number in range(arguments.jobs):
            copies.put(copied(Path(folder) / str(number)))
        # A test that fails anyway finds nothing.
        clean = run_tests(
            sorted({test for error in chosen for test in error.tests}), Path(folder) / "0"
        )
        if clean.returncode:
            sys.exit(f"without any planted error, a test fails:\n{clean.stdout[-2_000:]}")

        def row(error: Planted) -> tuple[str, str]:
            copy = copies.get()
            try:
                return error.name, find(error, copy)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            rows = [*tqdm(pool.map(row, chosen), total=len(chosen), unit="error")]
    print_table(["error", "found by"], rows)
    missed = sum(how.startswith("NOT") for _, how in rows)
    print(f"\n{len(rows) - missed} of {len(rows)} are found.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
