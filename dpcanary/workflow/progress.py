"""How far a run of the workflow is, and how long it will take."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

# The rules whose jobs may take long; what the others take is known.
LONG_RULES = frozenset(
    {
        "download_file", "download_encoder", "extract_features", "pretrain", "train_reference",
        "optimise_canaries", "craft_canaries", "train_shard",
    }
)  # fmt: skip
_SHORT_SECONDS = 2.0


@dataclass
class WorkflowProgress:
    """Counts jobs and times them. All times are in seconds of one clock.

    A job that has not run is expected to take as long as the mean of its rule. If none of its rule
    has ended, it is expected to take as long as the mean of those that train or craft, if it does
    so too, and otherwise a few seconds.

    Attributes:
        total: jobs of this run.
        finished: jobs that ended well.
        failed: jobs that did not.
        current: what the job that started last does.
    """

    total: int = 0
    finished: int = 0
    failed: int = 0
    current: str = ""
    _start: float | None = None
    _remaining: Counter[str] = field(default_factory=Counter)
    _running: dict[object, tuple[str, str, float]] = field(default_factory=dict)
    _seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _ended: Counter[str] = field(default_factory=Counter)

    def plan(self, jobs: Mapping[str, int], now: float) -> None:
        """Takes the number of jobs of each rule."""
        self._remaining = Counter(jobs)
        self.total, self._start = sum(jobs.values()), now

    def start(self, job: object, rule: str, what: str, now: float) -> None:
        """Takes the start of a job."""
        self._running[job] = (rule, what, now)
        self.current = what

    def finish(self, job: object, now: float) -> None:
        """Takes the end of a job."""
        self._end(job, now)
        self.finished += 1

    def fail(self, job: object, now: float) -> None:
        """Takes the failure of a job."""
        self._end(job, now)
        self.failed += 1

    def elapsed(self, now: float) -> float:
        """Seconds since the jobs were planned."""
        return 0.0 if self._start is None else now - self._start

    def seconds_left(self, now: float) -> float | None:
        """Expected seconds until all jobs have run.

        None as long as nothing is known: no job has ended, or none of those that take long.
        """
        elapsed = self.elapsed(now)
        waits = any(count and rule in LONG_RULES for rule, count in self._remaining.items())
        if elapsed <= 0 or not self._ended or (waits and not LONG_RULES & self._ended.keys()):
            return None
        work = sum(count * self._expected(rule) for rule, count in self._remaining.items())
        ages = [(rule, now - begun) for rule, _, begun in self._running.values()]
        # What running jobs have done counts, but at most what they are expected to take.
        work -= sum(min(age, self._expected(rule)) for rule, age in ages)
        at_once = (sum(self._seconds.values()) + sum(age for _, age in ages)) / elapsed
        return max(work, 0.0) / max(at_once, 1.0)

    def _expected(self, rule: str) -> float:
        if self._ended[rule]:
            return self._seconds[rule] / self._ended[rule]
        if rule not in LONG_RULES:
            return _SHORT_SECONDS
        like = [other for other in self._ended if other in LONG_RULES]
        ended = sum(self._ended[other] for other in like)
        return sum(self._seconds[other] for other in like) / ended if ended else 0.0

    def _end(self, job: object, now: float) -> None:
        rule, what, begun = self._running.pop(job, ("", "", now))
        self._remaining[rule] = max(0, self._remaining[rule] - 1)
        self._seconds[rule] += now - begun
        self._ended[rule] += 1
        if self.current == what and self._running:
            self.current = [*self._running.values()][-1][1]


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
