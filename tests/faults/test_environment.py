"""What a machine may do to a run: each is named, and what is there stays as it was."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import study
from study import RUN, make, results, run, start

from dpcanary.results_lock import locked

SNAKEMAKE = [
    *(study.DPCANARY[0], "-m", "snakemake", "--cores", "1", "--configfile", "study.yaml"),
    *("--snakefile", str(study.ROOT / "Snakefile")),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = make(tmp_path_factory.mktemp("finished"))
    run(folder)
    return folder


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """A file system over a folder; needs root."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", *options, str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_plain_snakemake_does_not_run_beside_another_run(finished, tmp_path):
    folder = study.copy(finished, tmp_path / "own")
    (folder / "results/study/summary.tsv").unlink()
    with locked(folder / "results/study"):
        assert "another run" in run(folder, SNAKEMAKE, fails=True)
        assert not (folder / "results/study/summary.tsv").exists()
        run(folder, [*SNAKEMAKE, "--dry-run"])
    run(folder, SNAKEMAKE)
    assert results(folder) == results(finished)


def test_a_full_disk_is_named_and_with_space_the_same_command_finishes(finished, tmp_path):
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=2m", "tmpfs"):
        folder = make(tmp_path / "small/study")
        free = shutil.disk_usage(folder).free
        (folder / "filler").write_bytes(bytes(free - 100_000))
        said = run(folder, fails=True)
        assert "No space left" in said
        (folder / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=200m", str(folder.parent)], check=True)
        run(folder)
        assert results(folder) == results(finished)
        assert study.leftovers(folder) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with mounted(tmp_path / "read", "-t", "tmpfs", "-o", "size=9m", "tmpfs"):
        make(tmp_path / "read/study")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "read")], check=True)
        said = run(tmp_path / "read/study", fails=True)
        assert "Read-only file system" in said
        assert "results" in said


@pytest.mark.parametrize("place", ["results", "results/study", "results/study/.lock"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, place):
    folder = make(tmp_path)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).symlink_to("nowhere/at/all")
    assert place in run(folder, fails=True)
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("kilobytes", [300_000, 270_000, 240_000])
def test_little_memory_is_named(tmp_path, kilobytes):
    """Whether it is an array or a library that does not fit."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1024 * kilobytes, 1024 * kilobytes))

    command = [*study.DPCANARY, "account", "--sample-rate", "0.01", "--noise-multiplier", "0.6"]
    command += ["--num-steps", "20000", "--delta", "1e-9"]
    environment = study.environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: out of memory")


def test_a_clock_that_was_set_back_changes_nothing(finished, tmp_path):
    folder = study.copy(finished, tmp_path / "own")
    past = time.time() - 10 * 365 * 86_400
    for path in sorted((folder / "results/study/shards").rglob("*.npz"))[:5]:
        os.utime(path, (past, past))
    run(folder)
    assert results(folder) == results(finished)


def test_a_run_that_is_stopped_goes_on(finished, tmp_path):
    folder = make(tmp_path)
    with start(folder) as running:
        for _ in range(3):
            time.sleep(1.0)
            for process in study.processes_in(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGSTOP)
            time.sleep(0.5)
            for process in study.processes_in(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
        said, _ = running.communicate(timeout=240)
    assert running.returncode == 0, said
    assert results(folder) == results(finished)


@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        (signal.SIGTERM, 0.3),
        (signal.SIGINT, 3.0),
        (signal.SIGTERM, 6.0),
        pytest.param(signal.SIGINT, 0.3, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, 3.0, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGINT, 6.0, marks=pytest.mark.exhaustive),
    ],
)
def test_a_run_that_is_asked_to_end_ends_without_a_traceback(finished, tmp_path, number, seconds):
    folder = make(tmp_path)
    with start(folder) as running:
        time.sleep(seconds)
        running.send_signal(number)
        said, _ = running.communicate(timeout=60)
    # Before Python has set its handlers, the signal itself ends it.
    assert "Traceback" not in said or seconds < 1
    run(folder)
    assert results(folder) == results(finished)


@pytest.mark.parametrize("package", ["configargparse", "snakemake_storage_plugin_slow"])
def test_a_run_that_is_asked_to_end_before_its_jobs_says_no_more(tmp_path, package):
    """While Snakemake is imported, and so the first, or looks for its plugins."""
    folder, packages = make(tmp_path / "study"), tmp_path / "packages"
    (packages / package).mkdir(parents=True)
    (packages / package / "__init__.py").write_text(
        f"import pathlib, time\npathlib.Path({str(packages / 'loads')!r}).touch()\ntime.sleep(60)\n"
    )
    with start(folder, PYTHONPATH=f"{packages}{os.pathsep}{study.ROOT}") as running:
        while not (packages / "loads").exists():
            time.sleep(0.1)
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=30)
    assert running.returncode == 130
    assert said == ""


def test_a_job_that_hangs_is_ended_and_named(tmp_path):
    folder = make(tmp_path)
    (folder / "slow_models.py").write_text(
        "import time\nfrom torch import nn\n\n\ndef build():\n"
        "    time.sleep(600)\n    return nn.Linear(2, 3)\n"
    )
    text = (folder / "study.yaml").read_text()
    text = text.replace("    num_runs: 16", "    model: slow_models:build\n    num_runs: 16")
    (folder / "study.yaml").write_text(text)
    with start(folder, DPCANARY_IDLE_MINUTES="0.1") as running:
        said, _ = running.communicate(timeout=240)
    assert running.returncode != 0
    assert "neither computed nor read or wrote anything" in said


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path):
    """Neither by a run that ends nor by one that is interrupted."""
    folder, temporary = make(tmp_path / "study"), tmp_path / "temporary"
    temporary.mkdir()
    for seconds in (2.0, 4.0, 60.0):
        with start(folder, RUN, TMPDIR=str(temporary)) as running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(timeout=seconds)
            running.send_signal(signal.SIGTERM)
            running.communicate(timeout=60)
        # PyTorch's own is one for all runs.
        assert not [one for one in temporary.iterdir() if "torchinductor" not in one.name]
