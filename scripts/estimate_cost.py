"""Estimates what an experiment will cost, from a short probe on this machine."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dpcanary.costs.jobs import Plan
from dpcanary.costs.report import notes_of, probed_costs, text_of, timed_on
from dpcanary.costs.shapes import shapes_of
from dpcanary.program import run
from dpcanary.settings.experiment import read_experiment


def main(argv: Sequence[str]) -> None:
    """Lists the jobs, probes them, and prints tables."""
    args = parsed(argv)
    experiment = read_experiment(args.experiment)
    shapes = shapes_of(experiment, data=args.results / "data", folder=args.data_folder)
    device = timed_on(experiment.settings.device)
    plan = Plan(experiment, shapes, scripts=Path(__file__).parent, device=device)
    costs = probed_costs(plan, num_workers=min(args.cores, os.cpu_count() or 1))
    print(text_of(costs, num_cores=args.cores, notes=[*notes_of(experiment, shapes)]))


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
