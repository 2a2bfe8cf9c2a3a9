"""What all jobs cost together, as text for a reader."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from dpcanary.costs.jobs import Jobs, Plan, all_jobs, probes_of
from dpcanary.costs.measuring import Probe, Seconds, measured
from dpcanary.costs.shapes import Shape
from dpcanary.program import progress
from dpcanary.settings import Experiment

# What Snakemake itself takes of the processor: seconds once and for every job, and the share of a
# core while it waits. Measured with jobs that do nothing.
_WORKFLOW_START, _WORKFLOW_JOB, _WORKFLOW_SHARE = 5.0, 0.05, 0.1
_SHARD_RULES = ("train_shard", "draw_worst_case_shard")
_SUMMED = ["jobs", "shards", "models", "model-steps", "GPU-hours", "core-hours", "disk"]
_DURATIONS = (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def costs_of(jobs: Iterable[Jobs], found: Mapping[Probe, Seconds]) -> pd.DataFrame:
    """What jobs cost, one row for each `Jobs`.

    Args:
        jobs: of an experiment.
        found: what every probe of theirs found.

    Returns:
        Columns `sweep`, `rule`, `audits` (a name), `jobs`, `shards`, `models`, `model-steps`,
        `GPU-hours`, `core-hours`, `disk` (bytes).
    """
    return pd.DataFrame([_row(each, found) for each in jobs])


def probed_costs(plan: Plan, *, num_workers: int) -> pd.DataFrame:
    """What an experiment costs, by probes of this machine; shows their progress.

    Args:
        plan: the experiment.
        num_workers: probes at once.

    Returns:
        See `costs_of`.
    """
    jobs = all_jobs(plan)
    probes = probes_of(jobs)
    with progress(len(probes), "probe") as bar:
        found = measured(probes, num_workers=num_workers, on_progress=bar.update)
    return costs_of(jobs, found)


def _row(jobs: Jobs, found: Mapping[Probe, Seconds]) -> dict[str, object]:
    hours = sum(float(np.dot(found[probe], units)) for probe, units in jobs.parts) / 3600
    return {
        "sweep": jobs.sweep,
        "rule": jobs.rule,
        "audits": jobs.audit or None,
        "jobs": jobs.count,
        "shards": jobs.count if jobs.rule in _SHARD_RULES else 0,
        "models": jobs.models,
        "model-steps": jobs.model_steps,
        "GPU-hours": hours if jobs.holds_gpu else 0.0,
        "core-hours": 0.0 if jobs.holds_gpu else hours,
        "disk": jobs.num_bytes,
    }


def wall_seconds(costs: pd.DataFrame, num_cores: int) -> float:
    """Seconds until all is done, where nothing else runs.

    Args:
        costs: of all jobs.
        num_cores: jobs at once; of those that hold the GPU, one at once.
    """
    seconds = 3600 * (costs["GPU-hours"] + costs["core-hours"])
    workflow = _WORKFLOW_JOB * costs["jobs"].sum()
    spread = (seconds.sum() + workflow) / (num_cores - _WORKFLOW_SHARE)
    # However many cores there are, the rules follow one another; all figures are of one stage.
    stage = costs["rule"].str.replace("figure_.*", "figure", regex=True)
    chain = (seconds / costs["jobs"]).groupby(stage).max().sum()
    return _WORKFLOW_START + max(spread, 3600 * costs["GPU-hours"].sum(), chain)


def text_of(costs: pd.DataFrame, *, num_cores: int, notes: Sequence[str]) -> str:
    """Tables by sweep and by rule, and the sums.

    Args:
        costs: of an experiment.
        num_cores: jobs at once.
        notes: what a reader must know, a line each.
    """
    sweeps, total = _sums(costs, "sweep"), _sums(costs.assign(sweep="total"), "sweep")
    rules = _sums(costs, "rule").sort_values(["GPU-hours", "core-hours"], ascending=False)
    gpu, core, disk = (float(costs[column].sum()) for column in _SUMMED[-3:])
    hours = f"{f'{two_digits(gpu)} GPU-hours and ' if gpu else ''}{two_digits(core)} core-hours"
    wall = in_units(wall_seconds(costs, num_cores), _DURATIONS)
    cores = f"{num_cores} core{'s' if num_cores > 1 else ''}"
    said = (
        f"In all {hours} and {_size(disk)} of disk: about {wall} with {cores}, where"
        " nothing else runs."
    )
    tables = (_shown(table, with_gpu=gpu > 0) for table in (pd.concat([sweeps, total]), rules))
    return "\n".join(["\n\n".join([*tables, said]), *notes])


def _sums(costs: pd.DataFrame, key: str) -> pd.DataFrame:
    groups = costs.groupby(key, sort=False)
    return groups[_SUMMED].sum().assign(audits=groups["audits"].nunique())[["audits", *_SUMMED]]


def _shown(table: pd.DataFrame, *, with_gpu: bool) -> str:
    formats: dict[str, Callable[..., str]] = dict.fromkeys(["audits", *_SUMMED], _count)
    formats |= {"GPU-hours": two_digits, "core-hours": two_digits, "disk": _size}
    shown = table if with_gpu else table.drop(columns="GPU-hours")
    return shown.rename_axis(None).to_string(formatters=formats)


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


def _size(num_bytes: float) -> str:
    return in_units(num_bytes, _SIZES)


def in_units(amount: float, units: Sequence[tuple[str, float]]) -> str:
    """An amount with two digits in the largest unit of which it has one, or in the last.

    Example:
        >>> in_units(5400, [("h", 3600), ("min", 60)]), in_units(9, [("h", 3600), ("min", 60)])
        ('1.5 h', '0.15 min')
    """
    name, size = next((unit for unit in units if amount >= unit[1]), units[-1])
    return f"{two_digits(amount / size)} {name}"


def two_digits(number: float) -> str:
    """A number rounded to two digits.

    Example:
        >>> two_digits(0.01234), two_digits(12_345), two_digits(0)
        ('0.012', '12,000', '0')
    """
    return f"{float(f'{number:.2g}'):,.10g}"


def timed_on(device: str) -> str:
    """Where models are timed: `cuda` where the config wants a GPU and there is one, else `cpu`.

    Args:
        device: the config's.
    """
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def notes_of(experiment: Experiment, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """Lines for a reader: where models are timed, what is guessed, and what is not counted.

    Args:
        experiment: the config, expanded.
        shapes: of the datasets that it uses, by name.
    """
    device = experiment.settings.device
    if timed_on(device) == "cuda":
        yield "One job at a time has the GPU; with more GPUs or other ones, times differ."
    elif device != "cpu":
        yield (
            f"device is {device}, but PyTorch finds no GPU here: these are core-hours of this"
            " machine's processor, not GPU-hours."
        )
    missing = ["downloads, and waiting for disks and for other users of the machine"]
    for name, shape in shapes.items():
        dataset = experiment.settings.datasets[name]
        if shape.assumption:
            yield f"Dataset {name}: {shape.assumption}."
        if dataset.encoder and shape.num_source:
            missing.append(
                f"encoding {shape.num_source:,} records by {dataset.encoder}, if not done yet"
            )
    yield f"Not counted: {'; '.join(missing)}."
