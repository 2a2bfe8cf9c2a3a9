"""Runs the workflow on a config, with progress, and goes on where it was stopped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from dpcanary.audits.preflight import RESOLVED, check_before, is_resolved, needs_check
from dpcanary.core.installation import SNAKEFILE
from dpcanary.core.optional_packages import require
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.data_files import DataFiles
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.results_lock import (
    BY_COMMAND,
    GOES_ON,
    PATIENCE,
    STARTS_AGAIN,
    locked,
    write_holder,
)
from dpcanary.experiment.results_table import asks_for_all, print_ending
from dpcanary.experiment.unplanned_looks import record_looks
from dpcanary.figures.planned import check_figures

# A rule that trains a few models, and makes no results.
ESTIMATE_COST = "estimate_cost"
_STDERR = 2  # a file descriptor
# Options with which Snakemake runs no job.
_LOOKS = frozenset(
    {
        "--dry-run", "--dryrun", "--dag", "--rulegraph", "--filegraph", "--d3dag", "--summary",
        "--detailed-summary", "--report", "--lint", "--list-rules", "--list", "--list-target-rules",
        "--touch", "--unlock", "--archive", "--cleanup-metadata", "--print-compilation",
        "--list-changes", "--list-input-changes", "--list-params-changes", "--delete-all-output",
        "--delete-temp-output", "--containerize", "--help", "--version",
    }
)  # fmt: skip
_LOOKS_SHORT = "nDSltv"
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def run_config(
    config: Path,
    *,
    folder: Path | None = None,
    targets: Sequence[str] = (),
    cores: int | None = None,
    options: Sequence[str] = (),
    prints_results: bool = True,
    is_kept: bool = True,
) -> Path:
    """Runs what a config asks for. What is finished is kept, so the same call goes on.

    Only one run of an experiment works at a time; see `results_lock`. Snakemake's own lock, which
    outlasts a killed run, is not used.

    Args:
        config: the file.
        folder: where results go; by default the working directory.
        targets: rules or files; by default all results.
        cores: by default all of this machine.
        options: more options of Snakemake, such as `--profile`.
        prints_results: whether the table at the end goes to stdout, or to stderr as all else does.
        is_kept: whether the folder outlasts a run that is interrupted or fails.

    Returns:
        The folder of the results.

    Raises:
        InputError: if the config is wrong, the experiment is already running, or a job fails. The
            reasons of failed jobs are printed.
        ModuleNotFoundError: if this is a light install; it says how to install the rest.
        KeyboardInterrupt: if it was interrupted.
    """
    root = folder or Path.cwd()
    experiment = parse_experiment(read_config(config))
    with locked(root / "results" / experiment.settings.experiment) as (results, lock):
        run_snakemake(
            config,
            results=results,
            lock=lock,
            folder=root,
            targets=targets,
            cores=cores,
            options=options,
            prints_results=prints_results,
            is_kept=is_kept,
        )
    return results


def run_snakemake(
    config: Path,
    *,
    results: Path,
    lock: int,
    folder: Path,
    targets: Sequence[str] = (),
    cores: int | None = None,
    options: Sequence[str] = (),
    prints_results: bool = True,
    is_kept: bool = True,
    before_jobs: Callable[[Experiment], None] | None = None,
) -> None:
    """Runs a config under a lock that is already held.

    Args:
        config: the file.
        results: the folder of its results.
        lock: the descriptor of the lock.
        folder: where results go.
        targets: see `run_config`.
        cores: see `run_config`.
        options: see `run_config`.
        prints_results: see `run_config`.
        is_kept: see `run_config`.
        before_jobs: called when all was checked that can be before a job.

    Raises:
        InputError: see `run_config`.
    """
    require("torch", "snakemake")
    experiment = parse_experiment(read_config(config))
    check_figures(experiment)
    looks = any(map(_only_looks, options))
    makes_all = asks_for_all(targets) and not looks
    # With other keys on the command line, the file is not the whole config.
    is_whole = not any(map(_adds_keys, options))
    trains = makes_all or ESTIMATE_COST in targets
    if is_whole:
        datasets = experiment.settings.datasets.values()
        is_read = not looks and not experiment.settings.is_released
        if is_read and any(dataset.preparation for dataset in datasets):
            from dpcanary.audits.own_preparation import write_missing_preparations

            write_missing_preparations(experiment.settings, folder)
        files = DataFiles(experiment.settings, folder=folder)
        files.check()
        experiment = files.with_hashes(experiment)
        if files.archive:
            Products(experiment).check_release(files.archive)
    has_profile = any(option.startswith("--profile") for option in options)  # says how many jobs
    if trains and is_whole and not files.archive and needs_check(experiment, results):
        check_before(config, folder=folder, device_is_here=not has_profile)
    if makes_all and is_whole:  # only now: what is refused leaves the results as they are
        record_looks(results, experiment)
        if not is_resolved(experiment, results / RESOLVED):
            # Snakemake may not know that it changed: its records lie elsewhere if results were
            # copied.
            (results / RESOLVED).unlink(missing_ok=True)
    if before_jobs is not None:
        before_jobs(experiment)
    command = [
        *(sys.executable, "-m", "dpcanary.workflow.start"),
        *("--snakefile", str(SNAKEFILE), *targets),
        *("--configfile", str(config.resolve())),
        # The default scheduler starts a solver at each choice: slower, and it may leave files.
        *("--logger", "dpcanary", "--nolock", "--scheduler", "greedy"),
        *([] if has_profile else ["--cores", str(cores or os.cpu_count() or 1)]),
        *options,
    ]
    if _status(command, folder, lock=lock, prints_results=prints_results, is_kept=is_kept):
        goes_on = f" Mend the cause first. {GOES_ON}" if is_kept else ""
        raise InputError(f"{config.name} has not been finished; see above.{goes_on}")
    if makes_all:
        # Not left to Snakemake, which ends without a word where all is done already.
        if is_whole:
            Products(experiment).check_summary(results / "summary.tsv")
        with redirect_stdout(sys.stdout if prints_results else sys.stderr):
            print_ending(results)


def _only_looks(option: str) -> bool:
    """Whether an option makes Snakemake look at a workflow, or at its files, and run nothing."""
    if option.startswith("--"):
        return option.partition("=")[0] in _LOOKS
    return option.startswith("-") and bool({*option[1:]} & {*_LOOKS_SHORT})


def _adds_keys(option: str) -> bool:
    return option == "-C" or option.partition("=")[0] in ("--config", "--configfile")


def _status(
    command: Sequence[str], folder: Path, *, lock: int, prints_results: bool, is_kept: bool = True
) -> int:
    """Runs Snakemake in a session of its own, so that an interruption reaches it only once.

    A second one kills it and its jobs, and so does the end of `PATIENCE`: interrupted at some
    moments, Snakemake waits for ever for a job that it has not started. If this process alone is
    killed, Snakemake ends as by an interruption, see `endings`. It holds the lock, too, so that no
    other run starts beside it meanwhile.
    """
    # The working folder is not searched first: a file there may have the name of Python's own.
    environment = {**os.environ, "PYTHONSAFEPATH": "1", BY_COMMAND: str(os.getpid())}
    streams: dict[str, Any] = {} if prints_results else {"stdout": _STDERR}
    if not _has_descriptor(sys.stderr):  # in a notebook
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with (
        _interruption() as interruption,
        subprocess.Popen(
            command, cwd=folder, env=environment, start_new_session=True, pass_fds=[lock], **streams
        ) as child,
    ):
        interruption.child = child
        write_holder(lock, os.getpid(), child.pid)
        try:
            _forward(child)
            return child.wait()
        except KeyboardInterrupt:
            _signal(child, signal.SIGINT)
            with _killed_after(PATIENCE, child):
                _forward(child)
                child.wait()
            print(f"\n{GOES_ON if is_kept else STARTS_AGAIN}", file=sys.stderr)
            raise


@contextmanager
def _killed_after(seconds: float, child: "subprocess.Popen[str]") -> Iterator[None]:
    """Kills a child and its jobs if what is inside has not ended after some seconds."""
    timer = threading.Timer(seconds, _signal, [child, signal.SIGKILL])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _forward(child: "subprocess.Popen[str]") -> None:
    """Prints what the child prints, where it cannot do so itself."""
    for line in child.stdout or ():
        sys.stderr.write(line)


def _signal(child: "subprocess.Popen[str]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.killpg(child.pid, number)


def _has_descriptor(stream: TextIO) -> bool:
    try:
        stream.fileno()
    except (OSError, AttributeError):
        return False
    return True


class _Interruption:
    """Takes signals: the first one interrupts this process, and each later one kills the child.

    A later one raises nothing: that would leave a traceback where the first one is being handled.

    Attributes:
        child: Snakemake, once it runs.
    """

    def __init__(self) -> None:
        self.child: subprocess.Popen[str] | None = None
        self._before, self._is_first = signal.getsignal(signal.SIGINT), True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._is_first:
            self._is_first = False
            if callable(self._before):  # the command's own counts it, too
                self._before(number, frame)
            raise KeyboardInterrupt
        if self.child:
            _signal(self.child, signal.SIGKILL)


@contextmanager
def _interruption() -> Iterator[_Interruption]:
    """While inside, a closed terminal and `kill` interrupt this process, as Ctrl-C does."""
    interruption = _Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may set handlers
        return
    # Those that are ignored stay so: SIGHUP is by `nohup`. But a shell ignores SIGINT for what it
    # runs in the background, and the child would inherit that.
    handled = [number for number in _ENDINGS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interruption) for number in [*handled, signal.SIGINT]}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
