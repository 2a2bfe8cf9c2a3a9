"""What jobs cost, by what their probes found."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dpcanary.costs.jobs import Jobs
from dpcanary.costs.measuring import Probe, Timing
from dpcanary.costs.starting import Start

# What Snakemake itself takes of the processor: seconds once and for every job, and the share of a
# core while it waits. Measured with jobs that do nothing.
_WORKFLOW_START, _WORKFLOW_JOB, _WORKFLOW_SHARE = 5.0, 0.05, 0.1
# Jobs of an audit wait for one of each of these.
_BEFORE_AUDITS = ("prepare_dataset", "train_reference")


@dataclass(frozen=True)
class Costs:
    """Some jobs, and what their probes found.

    Attributes:
        jobs: of an experiment, or of a part of it.
        timings: of every probe.
    """

    jobs: Sequence[Jobs]
    timings: Mapping[Probe, Timing]

    def of(self, jobs: Sequence[Jobs]) -> "Costs":
        """The same for some of the jobs."""
        return replace(self, jobs=jobs)

    def seconds_of(self, jobs: Jobs) -> float:
        """Seconds that some jobs take one after the other."""
        return sum(
            seconds * units
            for probe, amounts in jobs.parts
            for seconds, units in zip(self.timings[probe].seconds, amounts, strict=True)
        )

    @property
    def seconds(self) -> float:
        """Seconds of all jobs, one after the other."""
        return sum(map(self.seconds_of, self.jobs))

    @property
    def gpu_seconds(self) -> float:
        """Seconds of the jobs that hold the GPU."""
        return sum(self.seconds_of(jobs) for jobs in self.jobs if jobs.holds_gpu)

    @property
    def core_seconds(self) -> float:
        """Seconds of the jobs that hold a core alone."""
        return sum(self.seconds_of(jobs) for jobs in self.jobs if not jobs.holds_gpu)

    @property
    def start_seconds(self) -> float:
        """Seconds of starting programs, where that is told apart."""
        return sum(
            self.timings[probe].seconds[0] * amounts[0]
            for jobs in self.jobs
            for probe, amounts in jobs.parts
            if isinstance(probe, Start)
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of all files on disk."""
        return sum(jobs.num_bytes for jobs in self.jobs)

    @property
    def training_memory(self) -> int:
        """Bytes that the largest training job has in use; 0 where there is none."""
        needed = [
            sum(self.timings[probe].memory for probe, _ in jobs.parts)
            for jobs in self.jobs
            if jobs.models
        ]
        return max(needed, default=0)

    def wall_seconds(self, num_cores: int) -> float:
        """Seconds until all is done, where nothing else runs.

        Args:
            num_cores: jobs at once; of those that hold the GPU, one at once.
        """
        before = self.of([jobs for jobs in self.jobs if not _is_last(jobs)])
        workflow = _WORKFLOW_JOB * sum(jobs.count for jobs in self.jobs)
        spread = (before.seconds + workflow) / (num_cores - _WORKFLOW_SHARE)
        # A summary waits for all audits, and a figure for a summary.
        last: dict[str, float] = defaultdict(float)
        for jobs in self.jobs:
            if _is_last(jobs):
                kind = jobs.rule.split("_")[0]
                last[kind] = max(last[kind], self.seconds_of(jobs))
        end = sum(last.values())
        return _WORKFLOW_START + max(spread, self.gpu_seconds, before.longest_chain()) + end

    def longest_chain(self) -> float:
        """Seconds of the audit that takes longest where no job ever waits for a core."""
        shared: dict[str, float] = defaultdict(float)
        own: dict[str, float] = defaultdict(float)
        for jobs in self.jobs:
            each = self.seconds_of(jobs) / jobs.count
            if jobs.audit:
                own[jobs.audit] += each
            elif jobs.rule in _BEFORE_AUDITS:
                shared[jobs.rule] = max(shared[jobs.rule], each)
        return sum(shared.values()) + max(own.values(), default=0.0)


def probes_of(jobs: Iterable[Jobs]) -> list[Probe]:
    """All probes that some jobs need, each once."""
    return list(dict.fromkeys(probe for each in jobs for probe, _ in each.parts))


def _is_last(jobs: Jobs) -> bool:
    return jobs.rule == "summarise" or jobs.rule.startswith("figure_")
