"""How a run ends: with its results, with why jobs failed, or because its command was killed."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dpcanary.experiment.results_lock import BY_COMMAND, GOES_ON, PATIENCE

# In seconds of the epoch: jobs of this run write their logs later.
_STARTED = time.time()
_MOST = 5
_TRACEBACK = "Traceback (most recent call last):"
_LOOK = 1.0  # seconds between two looks for the command


def end_with_command() -> None:
    """Interrupts this run and its jobs, as Ctrl-C does, once the command that started it has died.

    The run has a session of its own, so `kill -9` of the command, or the end of a notebook's
    kernel, does not reach it. As after Ctrl-C, what is finished is kept. Jobs that do not end in a
    minute are killed; nobody is there to press Ctrl-C again.
    """
    # A job that runs Snakemake inherits the variable, but is in the session of this run.
    if BY_COMMAND not in os.environ or os.getsid(0) != os.getpid():
        return
    command = int(os.environ[BY_COMMAND])

    def watch() -> None:
        # A process whose parent dies gets another one, at once and everywhere.
        while os.getppid() == command:
            time.sleep(_LOOK)
        with suppress(OSError):  # where it was shown may be gone, too
            _say("The command was killed: its jobs end now.")
        os.killpg(0, signal.SIGINT)
        time.sleep(PATIENCE)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def print_success(results: Path, targets: Iterable[str]) -> None:
    """Prints the table of results, if these were asked for, and of Snakemake itself."""
    # Planning a run does not need it.
    from dpcanary.experiment.results_table import asks_for_all, print_ending

    by_command = BY_COMMAND in os.environ
    if asks_for_all(targets) and not by_command and (results / "summary.tsv").exists():
        print_ending(results)


def print_failure(*folders: Path) -> None:
    """Prints the reasons of failed jobs again, from folders of logs, on stderr.

    It says how to go on, too, unless a command started this run. That one says it however the run
    ends: Snakemake does not call this where it is interrupted while it starts a job.
    """
    reasons = [reason for logs in folders for reason in failures(logs, since=_STARTED)]
    if reasons:
        _say("\nWhat went wrong:")
        for reason in reasons[:_MOST]:
            _say(f"  {reason}")
        if len(reasons) > _MOST:
            _say(f"  ... and {len(reasons) - _MOST} more jobs")
    if BY_COMMAND not in os.environ:
        _say(f"\n{'Mend this first. ' if reasons else ''}{GOES_ON}")


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def failures(logs: Path, *, since: float) -> list[str]:
    """For each log with an error, written after `since`: its name, and the last error.

    An error of ours begins with `error: `. One of the user's code ends a traceback.
    """
    reasons = []
    for path in sorted(logs.rglob("*.log")):
        if path.stat().st_mtime < since:
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if not errors and _TRACEBACK in lines and lines[-1] != "KeyboardInterrupt":
            errors = [lines[-1]]
        if errors:
            name = path.relative_to(logs).with_suffix("")
            reasons.append(f"{name}: {errors[-1].removeprefix('error: ')}")
    return reasons
