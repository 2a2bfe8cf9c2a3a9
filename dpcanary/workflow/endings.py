"""What a user reads at the end of a run: the results, or why jobs failed."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from dpcanary.errors import InputError

# In seconds of the epoch: jobs of this run write their logs later.
_STARTED = time.time()
_MOST = 5


def print_success(results: Path, targets: Iterable[str]) -> None:
    """Prints the table of results, if these were asked for.

    Args:
        results: the folder of the experiment.
        targets: what Snakemake was asked for; empty for everything.
    """
    if {*targets} - {"all"} or not (results / "summary.tsv").exists():
        return
    from dpcanary.results_table import print_results  # planning a run does not need it

    print()
    try:
        print_results(results)
    except InputError as error:
        print(f"no table of results: {error}")
    print(f"\nFigures: {results / 'figures'}/   All numbers: {results / 'summary.tsv'}")


def print_failure(logs: Path) -> None:
    """Prints the reasons of failed jobs again, on stderr, and how to go on.

    Args:
        logs: the folder of the jobs' logs.
    """
    reasons = failures(logs, since=_STARTED)
    if reasons:
        _say("\nWhat went wrong:")
        for reason in reasons[:_MOST]:
            _say(f"  {reason}")
        if len(reasons) > _MOST:
            _say(f"  ... and {len(reasons) - _MOST} more jobs")
    _say("\nThe same command goes on from here: what is finished is kept.")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def failures(logs: Path, *, since: float) -> list[str]:
    """For each log with an error, written after `since`: its name, and the last error."""
    found = []
    for path in sorted(logs.rglob("*.log")):
        if path.stat().st_mtime < since:
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if errors:
            name = path.relative_to(logs).with_suffix("")
            found.append(f"{name}: {errors[-1].removeprefix('error: ')}")
    return found
