"""The workflow on a real SLURM: a local run's results, whatever is killed, late or left behind.

`make test-cluster` starts a SLURM of one node for it; without DPCANARY_SLURM it is skipped.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from running import PATIENCE, SNAKEMAKE, TINY, Project, content_of, started, wait_for

HAS_NONE = "DPCANARY_SLURM" not in os.environ
needs_slurm = pytest.mark.skipif(HAS_NONE, reason="needs a SLURM: make test-cluster")
pytestmark = [pytest.mark.long, needs_slurm]
# Two shards of each kind; enough runs for a job to be caught while it trains.
STEPS = {
    "canary": ["gradient", "worst_case"], "num_steps": 20, "record_every": 10, "num_runs": 8000,
    "runs_per_shard": 4000,
}  # fmt: skip
CONFIG = {
    **TINY,
    "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "audits": {"steps": {**TINY["audits"]["steps"], **STEPS}},
    "figures": {},
}
SHARDS = ("00000", "00001")
TRAINED = tuple(f"results/tiny/shards/steps-gradient/{shard}.npz" for shard in SHARDS)
DRAWN = tuple(f"results/tiny/shards/steps-worst_case/{shard}.npz" for shard in SHARDS)
# This test has no conda: no rule has modules, so the jobs use the `python` of this environment.
SLURM = (
    "--profile", "profiles/slurm", "--software-deployment-method", "env-modules",
    "--slurm-init-seconds-before-status-checks", "2",
)  # fmt: skip
STARTED: list["subprocess.Popen[str]"] = []


class Job(NamedTuple):
    id: str
    run: str  # of Snakemake's that submitted it
    comment: str  # rule and wildcards; of an array job, the first task's
    state: str
    time_limit: str
    memory: str


class Experiment(Project):
    @property
    def printed(self) -> str:
        return (self.folder / "printed").read_text()

    def another(self, folder: Path, *, lacks: Sequence[str] = ()) -> "Experiment":
        """A copy, with the compiled loops, which take seconds to make, and without some outputs."""
        copy = Experiment(self.copy(folder).folder)
        for output in lacks:
            (folder / output).unlink()
        return copy

    def start(self, *options: str) -> "subprocess.Popen[str]":
        command = [*SNAKEMAKE, *options, "--configfile", "experiment.yaml"]
        STARTED.append(started(command, self.folder))
        return STARTED[-1]

    def finish(self, running: "subprocess.Popen[str]") -> None:
        assert running.wait(timeout=PATIENCE) == 0, self.printed

    def complete(self, *options: str) -> None:
        self.finish(self.start(*options))

    def slurm_run(self) -> str:
        """The name that SLURM's jobs of the last run have, or nothing yet."""
        return "".join(re.findall(r"SLURM run ID: (\S+)", self.printed)[:1])

    def jobs(self, rule: str, shard: str = "") -> list[Job]:
        """The last run's jobs of a rule, finished or not, oldest first."""
        columns = "%i|%j|%k|%T|%l|%m"
        lines = output_of(
            "squeue", "--noheader", "--array", "--states=all", "--sort=i", "-o", columns
        )
        every = [Job(*line.split("|")) for line in lines]
        mine = [job for job in every if job.run == self.slurm_run() and f"_{rule}_" in job.comment]
        return [job for job in mine if job.comment.endswith(shard)]

    def modified(self, *outputs: str) -> dict[str, int]:
        paths = {output: self.folder / output for output in outputs}
        return {name: path.stat().st_mtime_ns for name, path in paths.items() if path.exists()}


def output_of(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def stop(step: str) -> bool:
    """Whether a step has stopped; it is listed, and takes signals, before it has a process."""
    sent = subprocess.run(("scancel", "--signal=STOP", step), capture_output=True)
    listed = subprocess.run(("scontrol", "listpids", step), capture_output=True, text=True)
    if sent.returncode or listed.returncode:
        return False
    processes = ",".join(line.split()[0] for line in listed.stdout.splitlines()[1:])
    states = subprocess.run(("ps", "-o", "stat=", "-p", processes), capture_output=True, text=True)
    return any(state.startswith("T") for state in states.stdout.split())


def is_training(experiment: Experiment, shard: str) -> bool:
    log = experiment.folder / f"results/tiny/logs/train_shard/steps-gradient/{shard}.log"
    return log.exists() and log.stat().st_size > 0


def assert_same_results(first: Experiment, second: Experiment, *outputs: str) -> None:
    for output in outputs:
        assert content_of(first.folder / output) == content_of(second.folder / output), output


@pytest.fixture(scope="module", autouse=True)
def nothing_goes_on() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Experiment:
    experiment = Experiment(Project.new(tmp_path_factory.mktemp("local"), CONFIG).folder)
    experiment.complete("--cores", "2")
    return experiment


@pytest.fixture(scope="module")
def late(local, tmp_path_factory) -> tuple[Experiment, "subprocess.Popen[str]"]:
    """The whole experiment, in the background, with a job that is stopped and ends too late."""
    experiment = local.another(tmp_path_factory.mktemp("late") / "project")
    for old in ("results", ".snakemake"):
        shutil.rmtree(experiment.folder / old)
    running = experiment.start(*SLURM, "--set-resources", "draw_shard:runtime=attempt")  # minutes
    wait_for(lambda: experiment.jobs("draw_shard", "00001"), running)
    step = f"{experiment.jobs('draw_shard', '00001')[0].id}.0"
    wait_for(lambda: stop(step), running)
    return experiment, running


@pytest.mark.usefixtures("late")
def test_a_cancelled_job_is_done_again_with_the_same_randomness(local, tmp_path):
    other = local.another(tmp_path / "project", lacks=[TRAINED[1]])
    (other.folder / "results/tiny/logs/train_shard/steps-gradient/00001.log").unlink()
    running = other.start(*SLURM, TRAINED[1])
    wait_for(lambda: is_training(other, "00001"), running)
    output_of("scancel", other.jobs("train_shard")[0].id)
    other.finish(running)
    # With the rule's own time limit and memory, which grow with the attempt.
    first, second = other.jobs("train_shard")
    assert first[-3:] == ("CANCELLED", "2:00:00", "4000M")
    assert second[-3:] == ("COMPLETED", "4:00:00", "8000M")
    assert_same_results(local, other, TRAINED[1])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("late")
def test_shards_are_array_jobs_whose_tasks_fail_alone(local, tmp_path):
    other = local.another(tmp_path / "project", lacks=TRAINED)
    shutil.rmtree(other.folder / "results/tiny/logs/train_shard")
    # With a card each, which profiles/default lends to one job at a time, but not on a cluster.
    cards = ("--set-resources", "train_shard:gpu=1")
    running = other.start(*cards, *SLURM, "--profile", "profiles/slurm-arrays", *TRAINED)
    wait_for(lambda: any(is_training(other, shard) for shard in SHARDS), running)
    output_of("scancel", other.jobs("train_shard")[1].id)
    other.finish(running)
    first, second, again = other.jobs("train_shard")
    array = first.id.partition("_")[0]
    assert (first.id, second.id) == (f"{array}_1", f"{array}_2")
    assert re.search(
        "TresPerJob=gres.gpu:1", "\n".join(output_of("scontrol", "show", "job", array))
    )
    assert [job.state for job in (first, second, again)] == ["COMPLETED", "CANCELLED", "COMPLETED"]
    assert_same_results(local, other, *TRAINED)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("late")
def test_after_a_killed_snakemake_finished_shards_are_not_done_again(local, tmp_path):
    other = local.another(tmp_path / "project", lacks=TRAINED)
    running = other.start(*SLURM, "--jobs", "1", *TRAINED)
    half = ["COMPLETED", "RUNNING"]
    wait_for(lambda: [job.state for job in other.jobs("train_shard")] == half, running)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    output_of("scancel", "--name", other.slurm_run())
    wait_for(lambda: {job.state for job in other.jobs("train_shard")} <= {"COMPLETED", "CANCELLED"})
    kept = other.modified(*TRAINED)
    assert len(kept) == 1
    other.complete("--unlock", *SLURM)
    other.complete(*SLURM, *TRAINED)
    assert len(other.jobs("train_shard")) == 1
    assert other.modified(*kept) == kept
    assert_same_results(local, other, *TRAINED)


def test_a_job_over_its_time_limit_is_done_again_with_a_longer_one(late):
    experiment, running = late
    experiment.finish(running)
    first, second = experiment.jobs("draw_shard", "00001")
    assert (first.state, first.time_limit) == ("TIMEOUT", "1:00")
    assert (second.state, second.time_limit) == ("COMPLETED", "2:00")


def test_results_are_those_of_a_local_run(local, late):
    experiment, running = late
    experiment.finish(running)
    paths = [path for path in local.results.rglob("[!.]*") if path.is_file()]
    results = {str(path.relative_to(local.folder)) for path in paths if "logs" not in path.parts}
    assert {*TRAINED, *DRAWN, "results/tiny/summary.tsv"} <= results
    assert_same_results(local, experiment, *results)
