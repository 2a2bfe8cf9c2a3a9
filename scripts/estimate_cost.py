"""Estimates what an experiment will cost, from a short probe on this machine."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dpcanary.costs.jobs import Plan, all_jobs, probes_of
from dpcanary.costs.measuring import measured
from dpcanary.costs.report import costs_of, notes_of, text_of, timed_on
from dpcanary.costs.shapes import shapes_of
from dpcanary.program import progress, run
from dpcanary.settings import Experiment


def main(argv: Sequence[str]) -> None:
    """Lists the jobs, probes them, and prints tables."""
    args = parsed(argv)
    experiment = Experiment.model_validate_json(args.experiment.read_text(encoding="utf-8"))
    shapes = shapes_of(experiment, data=args.results / "data", folder=args.data_folder)
    device = timed_on(experiment.settings.device)
    jobs = all_jobs(Plan(experiment, shapes, scripts=Path(__file__).parent, device=device))
    probes = probes_of(jobs)
    workers = min(args.cores, os.cpu_count() or 1)
    with progress(len(probes), "probe") as bar:
        found = measured(probes, num_workers=workers, on_progress=bar.update)
    notes = [*notes_of(experiment, shapes)]
    print(text_of(costs_of(jobs, found), num_cores=args.cores, notes=notes))


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True, help="the resolved config")
    parser.add_argument("--results", type=Path, required=True, help="where its results go")
    parser.add_argument("--data-folder", type=Path, help="where local copies are looked up")
    parser.add_argument("--cores", type=int, default=1, help="jobs at once")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
