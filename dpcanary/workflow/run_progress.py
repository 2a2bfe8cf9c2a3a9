"""How far a run of the workflow is, and how long it will take."""

import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

# The rules whose jobs may take long; what the others take is known.
LONG_RULES = frozenset(
    {
        "download_file", "download_encoder", "extract_features", "pretrain", "train_reference",
        "optimise_canaries", "craft_canaries", "train_shard",
    }
)  # fmt: skip
_SHORT_SECONDS = 2.0
# The rule of a job, what it does, and when it began.
_Job = tuple[str, str, float]
_LOG_END = 2000  # bytes, in which the last progress bar is


@dataclass
class WorkflowProgress:
    """Counts jobs and times them. All times are in seconds of one clock.

    A job that has not run is expected to take as long as the mean of its rule. If none of its rule
    has ended, those that run count, if their logs say how far they are. Before that, nothing is
    said of what may take long; other jobs are expected to take a few seconds.

    Attributes:
        total: jobs of this run.
        finished: jobs that ended well.
        failed: jobs that did not.
        current: what the job that started last does.
        done: the part of a running job that is done, in [0, 1], by its name; see `fraction_done`.
    """

    total: int = 0
    finished: int = 0
    failed: int = 0
    current: str = ""
    done: Callable[[object], float] = lambda job: 0.0
    _start: float | None = None
    _remaining: Counter[str] = field(default_factory=Counter)
    _running: dict[object, _Job] = field(default_factory=dict)
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _ended: Counter[str] = field(default_factory=Counter)
    _failed: set[object] = field(default_factory=set)

    def plan(self, jobs: Mapping[str, int], now: float) -> None:
        """Takes the number of jobs of each rule."""
        self._remaining = Counter(jobs)
        self.total, self._start = sum(jobs.values()), now

    def start(self, job: object, rule: str, what: str, now: float) -> None:
        """Takes the start of a job."""
        if job in self._failed:  # it is tried again
            self._failed.remove(job)
            self._remaining[rule] += 1
        self._running[job] = (rule, what, now)
        self.current = what

    def finish(self, job: object, now: float) -> None:
        """Takes the end of a job."""
        self._end(job, now)
        self.finished += 1

    def fail(self, job: object, now: float) -> None:
        """Takes the failure of a job."""
        self._end(job, now)
        self._failed.add(job)
        self.failed += 1

    def interrupt(self, job: object, now: float) -> None:
        """Takes the end of a job that was interrupted, which is no failure."""
        self._end(job, now)

    def elapsed(self, now: float) -> float:
        """Seconds since the jobs were planned."""
        return 0.0 if self._start is None else now - self._start

    def seconds_left(self, now: float) -> float | None:
        """Expected seconds until all jobs have run.

        None as long as it is not known what a job takes that may take long.
        """
        elapsed = self.elapsed(now)
        # Copies: a bar asks in a thread of its own, while jobs start and end.
        running, remaining = {**self._running}, {**self._remaining}
        if elapsed <= 0 or not (self._ended or any(map(self.done, running))):
            return None
        expected = {
            rule: self._expected(rule, running, now) for rule, count in remaining.items() if count
        }
        work = ages = 0.0
        for rule, seconds in expected.items():
            if seconds is None:
                return None
            work += remaining[rule] * seconds
        for job, (rule, _, begun) in running.items():
            age, seconds, done = now - begun, expected.get(rule) or 0.0, self.done(job)
            left = age * (1 - done) / done if done else max(seconds - age, 0.0)
            work += left - seconds
            ages += age
        at_once = (sum(self._seconds.values()) + ages) / elapsed
        return max(work, 0.0) / max(at_once, 1.0)

    def _expected(self, rule: str, running: Mapping[object, _Job], now: float) -> float | None:
        """Seconds of a job of a rule; None if nothing is known."""
        if self._ended[rule]:
            return self._seconds[rule] / self._ended[rule]
        if rule not in LONG_RULES:
            return _SHORT_SECONDS
        seconds = [
            (now - begun) / done
            for job, (of, _, begun) in running.items()
            if of == rule and (done := self.done(job)) > 0
        ]
        return sum(seconds) / len(seconds) if seconds else None

    def _end(self, job: object, now: float) -> None:
        rule, what, begun = self._running.pop(job, ("", "", now))
        self._remaining[rule] = max(0, self._remaining[rule] - 1)
        self._seconds[rule] += now - begun
        self._ended[rule] += 1
        if self.current == what and self._running:
            self.current = [*self._running.values()][-1][1]


def fraction_done(log: Path) -> float:
    """How far a job is, from the last progress bar in its log; 0 if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END))
            shown = re.findall(rb"(\d+)%\|", file.read())
    except OSError:
        return 0.0
    return int(shown[-1]) / 100 if shown else 0.0


def in_words(seconds: float) -> str:
    """A duration.

    Example:
        >>> in_words(42), in_words(150), in_words(8000)
        ('42 s', '2 min 30 s', '2 h 13 min')
    """
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


_SECONDS_BETWEEN_LINES = 15.0
_COUNTS_AND_TIMES = 60  # characters, at the most


def make_display(*, interactive: bool) -> "_Bar | _Lines":
    """A bar, or lines."""
    return _Bar() if interactive else _Lines()


def times_in_words(progress: WorkflowProgress, now: float) -> str:
    """Times in words: how long the run has lasted, and how long it will."""
    left = progress.seconds_left(now)
    ending = f", about {in_words(left)} left" if left else ""
    failed = f", {progress.failed} failed" if progress.failed else ""
    return f"{in_words(progress.elapsed(now))}{ending}{failed}"


class _Times(ProgressColumn):
    """Times, which go on between the messages of the run."""

    progress: WorkflowProgress | None = None

    def render(self, task: Task) -> Text:
        return Text(times_in_words(self.progress, time.time()) if self.progress else "")


def _line(ratio: int | None = None) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", ratio=ratio)


class _Bar:
    """Shows progress as a bar on a terminal; messages appear above it."""

    def __init__(self) -> None:
        console = Console(stderr=True, force_terminal=True)
        self._times = _Times(table_column=_line())
        self._bar = Progress(
            # Counts and times come first: the bar shrinks where there is little space, and what
            # runs gets the rest.
            BarColumn(min(24, max(4, console.width - _COUNTS_AND_TIMES))),
            TextColumn("{task.completed:.0f}/{task.total:.0f} jobs", table_column=_line()),
            self._times,
            TextColumn("{task.description}", markup=False, style="dim", table_column=_line(1)),
            console=console,
            transient=True,
            expand=True,
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
    """Shows progress as lines, one in a while."""

    def __init__(self) -> None:
        self._last = 0.0

    def show(self, progress: WorkflowProgress, now: float) -> None:
        done = progress.finished == progress.total
        if not done and (now - self._last < _SECONDS_BETWEEN_LINES or not progress.current):
            return
        self._last = now
        line = f"{progress.finished} of {progress.total} jobs, {times_in_words(progress, now)}"
        self.message(line if done else f"{line}: {progress.current}")

    def message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        pass
