"""What all jobs cost together, as text for a reader."""

from collections import defaultdict
from collections.abc import Sequence

import pandas as pd

from dpcanary.costs.jobs import SHARED, Jobs
from dpcanary.costs.totals import Costs

_SHARD_RULES = ("train_shard", "draw_worst_case_shard")


def text_of(costs: Costs, *, num_cores: int, notes: Sequence[str]) -> str:
    """Tables by sweep and by rule, and the sums.

    Args:
        costs: of an experiment.
        num_cores: jobs at once.
        notes: what a reader must know, a line each.
    """
    gpu = f"{hours(costs.gpu_seconds)} GPU-hours and " if costs.gpu_seconds else ""
    disk, wall = size_of(costs.num_bytes), duration(costs.wall_seconds(num_cores))
    cores = f"{num_cores} core{'s' if num_cores > 1 else ''}"
    lines = [
        by_sweep(costs).to_string(),
        "",
        by_rule(costs).to_string(),
        "",
        f"In all {gpu}{hours(costs.core_seconds)} core-hours and {disk} of disk: about {wall} with"
        f" {cores}, where nothing else runs.",
        f"Starting programs is {_share(costs.start_seconds, costs)} of it, or more.",
        *notes,
    ]
    return "\n".join(lines)


def by_sweep(costs: Costs) -> pd.DataFrame:
    """One row per sweep, one for what sweeps share, and the total."""
    groups: dict[str, list[Jobs]] = defaultdict(list)
    for jobs in costs.jobs:
        groups[jobs.group].append(jobs)
    groups[SHARED] = groups.pop(SHARED, [])  # last
    rows = {name: _row(costs, costs.of(jobs)) for name, jobs in groups.items()}
    return pd.DataFrame.from_dict({**rows, "total": _row(costs, costs)}, orient="index")


def _row(costs: Costs, part: Costs) -> dict[str, str]:
    shards = [jobs.count for jobs in part.jobs if jobs.rule in _SHARD_RULES]
    memory = "GPU memory" if costs.gpu_seconds else "memory"
    return {
        "audits": _count(len({jobs.audit for jobs in part.jobs} - {""})),
        "jobs": _count(sum(jobs.count for jobs in part.jobs)),
        "shards": _count(sum(shards)),
        "models": _count(sum(jobs.models for jobs in part.jobs)),
        "model-steps": _count(sum(jobs.model_steps for jobs in part.jobs)),
        **_hours(costs, part),
        "disk": size_of(part.num_bytes),
        f"{memory} of a training job": size_of(part.training_memory),
    }


def by_rule(costs: Costs) -> pd.DataFrame:
    """One row per rule, those that take longest first."""
    parts = {
        rule: costs.of([jobs for jobs in costs.jobs if jobs.rule == rule])
        for rule in {jobs.rule: None for jobs in costs.jobs}
    }
    longest = sorted(parts, key=lambda rule: -parts[rule].seconds)
    rows = {
        rule: {
            "jobs": _count(sum(jobs.count for jobs in parts[rule].jobs)),
            **_hours(costs, parts[rule]),
            "share": _share(parts[rule].seconds, costs),
        }
        for rule in longest
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _hours(costs: Costs, part: Costs) -> dict[str, str]:
    """Of a part; GPU-hours only where the whole has some."""
    gpu = {"GPU-hours": hours(part.gpu_seconds)} if costs.gpu_seconds else {}
    return {**gpu, "core-hours": hours(part.core_seconds)}


def _share(seconds: float, costs: Costs) -> str:
    return f"{seconds / max(costs.seconds, 1e-9):.0%}"


def duration(seconds: float) -> str:
    """A time for a reader.

    Example:
        >>> duration(42), duration(250), duration(6000), duration(400_000)
        ('42 s', '4.2 min', '1.7 h', '4.6 days')
    """
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{two_digits(seconds / length)} {unit}"
    return f"{two_digits(seconds)} s"


def hours(seconds: float) -> str:
    """Hours with two digits.

    Example:
        >>> hours(10), hours(500), hours(1_000_000)
        ('0.0028', '0.14', '280')
    """
    return two_digits(seconds / 3600)


def size_of(num_bytes: float) -> str:
    """A size for a reader.

    Example:
        >>> size_of(12_300), size_of(240_500_000), size_of(1_340_000_000)
        ('12 kB', '240 MB', '1.3 GB')
    """
    if num_bytes == 0:
        return "-"
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{two_digits(num_bytes / size)} {unit}"
    return f"{two_digits(num_bytes / 1e3)} kB"


def two_digits(number: float) -> str:
    """A number rounded to two digits, without an exponent.

    Example:
        >>> two_digits(0.0123), two_digits(0.996), two_digits(12_345)
        ('0.012', '1.0', '12,000')
    """
    if number == 0:
        return "0"
    exponent = int(f"{number:.1e}".split("e")[1])
    return f"{round(number, 1 - exponent):,.{max(0, 1 - exponent)}f}"


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"
