"""The code that tables of the documentation are about, so that none of them becomes stale unseen.

    python -m benchmarks.digests [--write TABLE ...]

docs/results/digests.json has, for each table that a simulation made, the command that makes it, the
modules that decide its numbers (patterns of paths), and the digest that their code had then. A test
fails when the digest changes: run the command, compare or replace the table, and record the digest
by `--write`. Not all that a module imports counts, as it does for jobs
(`dpcanary.workflow.code_digests.digest_of_code`): a table that takes an hour must not be computed
again for another message of an error. So comments, docstrings and empty lines do not count either.
"""

import argparse
import ast
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpcanary.core.files import read_json, sha256_of_text, write_text

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "docs/results/digests.json"


def digest(patterns: Sequence[str], root: Path = ROOT) -> str:
    """Digest the code of all modules that match one of the patterns.

    Raises:
        ValueError: if a pattern matches nothing.
    """
    paths: set[Path] = set()
    for pattern in patterns:
        matched = [*root.glob(pattern)]
        if not matched:
            raise ValueError(f"there is no module {pattern}")
        paths |= {*matched}
    parts = [
        f"{path.relative_to(root).as_posix()}\n{code_of(path.read_text(encoding='utf-8'))}"
        for path in sorted(paths)
    ]
    return sha256_of_text("".join(parts))[:16]


def code_of(text: str) -> str:
    """The lines of a module without docstrings, lines of comment, and empty lines."""
    is_said = {line for node in ast.walk(ast.parse(text)) for line in _docstring(node)}
    lines = enumerate(text.splitlines(), start=1)
    code = [line.rstrip() for number, line in lines if number not in is_said]
    return "".join(f"{line}\n" for line in code if line and not line.lstrip().startswith("#"))


def _docstring(node: ast.AST) -> Iterator[int]:
    """The numbers of its lines."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if ast.get_docstring(node, clean=False) is not None:
        yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def stale() -> dict[str, str]:
    """The tables whose code has changed since they were made, with their commands."""
    return {
        table: entry["command"]
        for table, entry in read_json(RECORDED).items()
        if digest(entry["modules"]) != entry["digest"]
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Says which tables are stale, or records that some were made by the code as it is."""
    recorded = read_json(RECORDED)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digests", description=__doc__)
    parser.add_argument("--write", nargs="+", choices=[*recorded], metavar="TABLE", default=[])
    for table in parser.parse_args(arguments).write:
        recorded[table]["digest"] = digest(recorded[table]["modules"])
        write_text(RECORDED, json.dumps(recorded, indent=1) + "\n")
    for table, command in stale().items():
        print(f"{table}: the code has changed since; {command}")
    if stale():
        sys.exit(1)


if __name__ == "__main__":
    main()
