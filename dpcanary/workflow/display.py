"""The progress of a run on stderr: a bar on a terminal, lines elsewhere."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from dpcanary.workflow.progress import WorkflowProgress, in_words

_SECONDS_BETWEEN_LINES = 15.0


class Display(Protocol):
    """What shows progress."""

    def show(self, progress: WorkflowProgress, now: float) -> None:
        """Shows how far the run is."""

    def message(self, text: str) -> None:
        """Prints a message."""

    def close(self) -> None:
        """Ends the display."""


def make_display(*, interactive: bool) -> Display:
    """A bar, or lines."""
    return _Bar() if interactive else _Lines()


def told(progress: WorkflowProgress, now: float) -> str:
    """Times in words: how long the run has lasted, and how long it will."""
    left = progress.seconds_left(now)
    ending = f", about {in_words(left)} left" if left else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{in_words(progress.elapsed(now))}{ending}{failed}"


class _Times(ProgressColumn):
    """Times, which go on between the messages of the run."""

    progress: WorkflowProgress | None = None

    def render(self, task: Task) -> Text:
        return Text(told(self.progress, time.time()) if self.progress else "")


def _line() -> Column:
    return Column(no_wrap=True, overflow="ellipsis")


class _Bar:
    def __init__(self) -> None:
        self._times = _Times(table_column=_line())
        self._bar = Progress(
            BarColumn(24),
            TextColumn("{task.completed:.0f}/{task.total:.0f} jobs", table_column=_line()),
            self._times,
            TextColumn("{task.description}", markup=False, style="dim", table_column=_line()),
            console=Console(stderr=True, force_terminal=True),
            transient=True,
        )

    def show(self, progress: WorkflowProgress, now: float) -> None:
        if self._times.progress is None:
            self._times.progress = progress
            self._bar.start()
            self._bar.add_task("")
        self._bar.update(
            self._bar.task_ids[0],
            completed=progress.finished,
            total=progress.total,
            description=progress.current,
        )

    def message(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


class _Lines:
    def __init__(self) -> None:
        self._last = 0.0

    def show(self, progress: WorkflowProgress, now: float) -> None:
        done = progress.finished == progress.total
        if not done and (now - self._last < _SECONDS_BETWEEN_LINES or not progress.current):
            return
        self._last = now
        line = f"{progress.finished} of {progress.total} jobs, {told(progress, now)}"
        self.message(line if done else f"{line}: {progress.current}")

    def message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass
