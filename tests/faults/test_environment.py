"""What a machine may do to a run: each is named, and what is there stays as it was."""

import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import study
from kills import after_kills, differences
from running import DPCANARY, PATIENCE, ROOT, SNAKEFILE, environment, looked, started, wait_for
from sampling import exhaustive, some_of
from study import make, results, run

from dpcanary.audits.workflow_run import run_config
from dpcanary.errors import InputError
from dpcanary.experiment.results_lock import GOES_ON, locked


def expected() -> dict[str, bytes]:
    return results(study.undisturbed())


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system over a folder; needs root."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.parametrize("seed", some_of(range(9), 9))
def test_a_killed_run_ends_as_another_and_retrains_only_what_was_lost(tmp_path, seed):
    """Nine studies with one to four kills each; one in CI, since a kill leaves least behind."""
    seconds = float((study.undisturbed() / "seconds.txt").read_text())
    _, made_again = after_kills(tmp_path, seed=seed, longest=seconds)
    assert differences(tmp_path, expected()) == []
    # Two jobs run at once: what they had just finished may not have been on record.
    assert made_again <= 2


@pytest.mark.long
def test_plain_snakemake_does_not_run_beside_another_run_but_plans(tmp_path):
    folder = Path(shutil.copytree(study.undisturbed(), tmp_path / "own", symlinks=True))
    options = ["--cores", "1", "--configfile", "study.yaml", "--snakefile", SNAKEFILE]
    (folder / "results/study/summary.tsv").unlink()
    with locked(folder / "results/study"):
        assert "another run" in looked(folder, *options, fails=True)
        assert not (folder / "results/study/summary.tsv").exists()
        assert "summarise" in looked(folder, *options, "--dry-run")


@pytest.mark.exhaustive
def test_a_full_disk_is_named_and_with_space_the_same_command_finishes(tmp_path):
    with mounted(tmp_path / "small", "size=2m"):
        folder = make(tmp_path / "small/study")
        free = shutil.disk_usage(folder).free
        (folder / "filler").write_bytes(bytes(free - 100_000))
        assert "No space left" in run(folder, fails=True)
        (folder / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=200m", str(folder.parent)], check=True)
        run(folder)
        assert differences(folder, expected()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    with mounted(tmp_path / "read", "size=9m"):
        folder = make(tmp_path / "read/study")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "read")], check=True)
        with pytest.raises(InputError, match=r"results.*Read-only file system"):
            run_config(folder / "study.yaml", folder=folder)


@pytest.mark.parametrize("place", ["results", "results/study", "results/study/.lock"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, place):
    folder = make(tmp_path)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).symlink_to("nowhere/at/all")
    with pytest.raises(InputError, match=place):
        run_config(folder / "study.yaml", folder=folder)
    assert not (folder / "nowhere").exists()


@pytest.mark.long
@pytest.mark.parametrize("kilobytes", [300_000, exhaustive(270_000), 240_000])
def test_little_memory_is_named(tmp_path, kilobytes):
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1024 * kilobytes, 1024 * kilobytes))

    command = [*DPCANARY, "account", "--sample-rate", "0.01", "--noise-multiplier", "0.6"]
    command += ["--num-steps", "20000", "--delta", "1e-9"]
    options = {"capture_output": True, "text": True, "timeout": PATIENCE, "preexec_fn": limit}
    variables = environment(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    done = subprocess.run(command, cwd=tmp_path, env=variables, **options)
    assert (done.returncode, done.stderr[:20]) == (1, "error: out of memory")


def interrupted(folder: Path, number: int, *, after: Path, **variables: str) -> str:
    with started(study.RUN, folder, **variables) as running:
        wait_for(after.exists, running)
        running.send_signal(number)
        running.wait(PATIENCE)
    assert running.returncode == 130
    return (folder / "printed").read_text()


@pytest.mark.long
@pytest.mark.parametrize(("number", "until", "goes_on"), [
    (signal.SIGTERM, "results/study/logs/train_shard", False),
    exhaustive((signal.SIGINT, "results/study/.lock", True)),
    exhaustive((signal.SIGTERM, ".snakemake", True)),
    exhaustive((signal.SIGINT, "results/study/estimates", True)),
])  # fmt: skip
def test_a_run_that_is_asked_to_end_ends_without_a_traceback(tmp_path, number, until, goes_on):
    """And leaves no temporary file. That it goes on is seen in CI after kills, which leave less."""
    folder, temporary = make(tmp_path / "study"), tmp_path / "temporary"
    temporary.mkdir()
    printed = interrupted(folder, number, after=folder / until, TMPDIR=str(temporary))
    assert not re.search("Traceback|RuleException", printed)
    if goes_on:
        run(folder)
        assert results(folder) == expected()
    # PyTorch's own is one for all runs.
    for place in (temporary, study.undisturbed() / "temporary"):
        assert not [path for path in place.iterdir() if "torchinductor" not in path.name]


@pytest.mark.exhaustive
def test_a_clock_that_was_set_back_changes_nothing(tmp_path):
    folder = Path(shutil.copytree(study.undisturbed(), tmp_path / "own", symlinks=True))
    past = time.time() - 10 * 365 * 86_400
    for path in sorted((folder / "results/study/shards").rglob("*.npz"))[:5]:
        os.utime(path, (past, past))
    run(folder)
    assert differences(folder, expected()) == []


@pytest.mark.exhaustive
def test_a_run_that_is_stopped_goes_on(tmp_path):
    folder = make(tmp_path)
    with started(study.RUN, folder) as running:
        for number in (signal.SIGSTOP, signal.SIGCONT) * 3:
            time.sleep(0.7)
            for process in psutil.process_iter(["cwd"]):
                if process.info["cwd"] == str(folder.resolve()):
                    with suppress(ProcessLookupError):
                        os.kill(process.pid, number)
        running.wait(PATIENCE)
    assert running.returncode == 0, (folder / "printed").read_text()
    assert differences(folder, expected()) == []


@pytest.mark.long
@pytest.mark.parametrize("package", ["snakemake_storage_plugin_slow", exhaustive("configargparse")])
def test_a_run_that_is_asked_to_end_before_its_jobs_says_no_more(tmp_path, package):
    """Than how to go on: while Snakemake is imported, or looks for its plugins."""
    folder, packages = make(tmp_path / "study"), tmp_path / "packages"
    (packages / package).mkdir(parents=True)
    module = packages / package / "__init__.py"
    loads = f"pathlib.Path({str(packages / 'loads')!r}).touch()"
    module.write_text(f"import pathlib, time\n{loads}\ntime.sleep(3600)\n")
    variables = {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"}
    # It does not wait for the hour of the import.
    assert (
        interrupted(folder, signal.SIGINT, after=packages / "loads", **variables)
        == f"\n{GOES_ON}\n"
    )
