"""What all jobs cost together, as text."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
import torch

from dpcanary.core.printing import table_lines, wrapped
from dpcanary.core.program_messages import progress
from dpcanary.costs.jobs import JobList
from dpcanary.costs.probes import measured

# What Snakemake itself uses: seconds once and for every job, and the share of a core while it
# waits. Measured with jobs that do nothing.
_WORKFLOW_START, _WORKFLOW_JOB, _WORKFLOW_SHARE = 5.0, 0.05, 0.1
# So many jobs of so few seconds spend their time on starting and being planned; and what is good.
_MANY_JOBS, _SHORT_JOB, _GOOD_JOB = 500, 60, 600
_SUMMED = ["jobs", "models", "model-steps", "GPU-hours", "core-hours", "disk"]
_DURATIONS = (("days", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def probed_costs(jobs: pd.DataFrame, *, num_workers: int) -> pd.DataFrame:
    """The table of a `JobList` with `GPU-hours` and `core-hours`, by probes of this machine."""
    probes = {*jobs["probe"].dropna()}
    with progress(len(probes), "probe") as bar:
        seconds = measured(probes, num_workers=num_workers, on_progress=bar.update)
    probed = [
        float(np.dot(seconds[probe], units)) if probe else 0.0
        for probe, units in zip(jobs["probe"], jobs["units"], strict=True)
    ]
    hours = (jobs["seconds"] + probed) / 3600
    on_gpu = np.array([probe is not None and probe.device == "cuda" for probe in jobs["probe"]])
    return jobs.assign(**{"GPU-hours": hours * on_gpu, "core-hours": hours * ~on_gpu})


def wall_seconds(costs: pd.DataFrame, num_cores: int) -> float:
    """Seconds until everything is done, if nothing else runs and only one job has the GPU."""
    seconds = 3600 * (costs["GPU-hours"] + costs["core-hours"])
    workflow = _WORKFLOW_JOB * costs["jobs"].sum()
    spread = (seconds.sum() + workflow) / (num_cores - _WORKFLOW_SHARE)
    # With any number of cores, stages follow one another.
    stage = costs["rule"]
    chain = (seconds / costs["jobs"]).groupby(stage).max().sum()
    return _WORKFLOW_START + max(spread, 3600 * costs["GPU-hours"].sum(), chain)


def text_of(costs: pd.DataFrame, *, num_cores: int, notes: Iterable[str]) -> str:
    """Tables by sweep and by rule, the totals, and the notes, a line each."""
    total = costs.assign(sweep="total")
    rules = _sums(costs, "rule").sort_values(["GPU-hours", "core-hours"], ascending=False)
    tables = [pd.concat([_sums(costs, "sweep"), _sums(total, "sweep")]), rules]
    gpu, core, disk = (float(costs[column].sum()) for column in _SUMMED[-3:])
    if not gpu:  # the names of rules then fit a terminal's line
        tables = [table.drop(columns="GPU-hours") for table in tables]
    hours = f"{f'{_two_digits(gpu)} GPU-hours and ' if gpu else ''}{_two_digits(core)} core-hours"
    said = f"In all {hours} and {_in_units(disk, _SIZES)} of disk: {_duration(costs, num_cores)}."
    lines = [*_small_shards(costs), *notes]
    return "\n".join(["\n\n".join([*map(_shown, tables), wrapped(said)]), *map(wrapped, lines)])


def short_text_of(costs: pd.DataFrame, *, num_cores: int) -> str:
    """Jobs, models and time, in a line."""
    jobs, models = int(costs["jobs"].sum()), int(costs["models"].sum())
    return f"{jobs:,} jobs and {models:,} models: {_duration(costs, num_cores)}."


def _duration(costs: pd.DataFrame, num_cores: int) -> str:
    wall = _in_units(wall_seconds(costs, num_cores), _DURATIONS)
    return f"about {wall} with {num_cores} core{'s' * (num_cores > 1)}, if nothing else runs"


def _small_shards(costs: pd.DataFrame) -> Iterator[str]:
    """Says which sweeps have many jobs of seconds, and what makes them fewer."""
    shards = costs[costs["rule"] == "train_shard"]
    for sweep, rows in shards.groupby("sweep", sort=False):
        jobs, models = int(rows["jobs"].sum()), int(rows["models"].sum())
        seconds = 3600 * float(rows["GPU-hours"].sum() + rows["core-hours"].sum()) / jobs
        if jobs >= _MANY_JOBS and 0 < seconds < _SHORT_JOB:
            larger = _two_digits(models / jobs * _GOOD_JOB / seconds)
            yield (
                f"{sweep}: a job of its {jobs:,} takes about {_in_units(seconds, _DURATIONS)}; with"
                f" `runs_per_shard: {larger.replace(',', '')}`, there are fewer, of ten minutes."
            )


def _sums(costs: pd.DataFrame, key: str) -> pd.DataFrame:
    groups = costs.groupby(key, sort=False)
    return groups[_SUMMED].sum().assign(audits=groups["audits"].nunique())[["audits", *_SUMMED]]


def _shown(table: pd.DataFrame) -> str:
    formats = dict.fromkeys(["audits", *_SUMMED], lambda number: f"{number:,}" if number else "-")
    formats |= {"GPU-hours": _two_digits, "core-hours": _two_digits}
    formats["disk"] = lambda size: _in_units(size, _SIZES)
    rows = [
        (str(name), *(formats[str(column)](value) for column, value in row.items()))
        for name, row in table.to_dict("index").items()
    ]
    return "\n".join(table_lines(("", *table.columns), rows))


def _in_units(amount: float, units: Sequence[tuple[str, float]]) -> str:
    """An amount with two digits, in the largest unit that it reaches, or in the last one."""
    name, size = next((unit for unit in units if amount >= unit[1]), units[-1])
    return f"{_two_digits(amount / size)} {name}"


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):,.10g}"


def timed_on(device: str) -> str:
    """Where models are timed: `cuda` if the config asks for a GPU and there is one, else `cpu`."""
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


def notes_of(listed: JobList) -> Iterator[str]:
    """Lines that say where models are timed and what is not counted."""
    settings = listed.experiment.settings
    if settings.is_released:
        yield f"Nothing is trained: observations are those of the release {settings.archive}."
        yield "Seconds are constants that were measured on one machine."
        return
    if listed.device == "cuda":
        yield "One job at a time has the GPU; with more or other GPUs, times differ."
    elif settings.device != "cpu":
        yield (
            f"device is {settings.device}, but PyTorch finds no GPU here: these are core-hours of"
            " this machine's processor, not GPU-hours."
        )
    missing = ["downloads, and waiting for disks or for other users of the machine"]
    for name, shape in listed.shapes.items():
        encoder = settings.datasets[name].encoder
        if encoder:
            missing.append(f"encoding {shape.num_source:,} records by {encoder}, if not done yet")
            yield f"Dataset {name}: {encoder} is assumed to give {shape.features[0]} features."
    missing.append("the start of Python, 2 to 5 s for each job on the nodes of a cluster")
    yield f"Not counted: {'; '.join(missing)}."
    yield "Only training and crafting are timed; the rest uses constants measured on one machine."
