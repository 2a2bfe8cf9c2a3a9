"""Estimates what an experiment will cost, from short probes on this machine."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.program_messages import run
from dpcanary.costs.cost_report import notes_of, probed_costs, text_of, timed_on
from dpcanary.costs.jobs import JobList
from dpcanary.experiment.experiment_config import read_experiment


def main(argv: Sequence[str]) -> None:
    """Lists the jobs, probes them, and prints tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiment", type=Path, required=True, help="the resolved config")
    parser.add_argument("--data-folder", type=Path, help="where local copies are looked up")
    parser.add_argument("--cores", type=int, default=1, help="jobs at once")
    args = parser.parse_args(argv)
    experiment = read_experiment(args.experiment)
    device = timed_on(experiment.settings.device)
    listed = JobList(experiment, folder=args.data_folder, device=device)
    costs = probed_costs(listed.table, num_workers=min(args.cores, os.cpu_count() or 1))
    print(text_of(costs, num_cores=args.cores, notes=notes_of(listed)))


if __name__ == "__main__":
    run(main)
