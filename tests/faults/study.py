"""A small experiment that faults are done to, and how it is run."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

# Two programs that are started by themselves use this module.
sys.path.insert(0, str(Path(__file__).parents[1]))
from running import DPCANARY, content_of, printed_by, shared

RUN = [*DPCANARY, "run", "study.yaml", "--cores", "2"]
CONFIG: dict[str, Any] = {
    "experiment": "study", "delta": 1e-5,
    "datasets": {"own": {"source": "own.csv", "num_records": 30}},
    "audits": {
        "trained": {
            "dataset": "own", "canary": ["gradient", "crafted_input"], "sample_rate": 0.5,
            "noise_multiplier": 2.0, "num_steps": 6, "num_runs": 16, "runs_per_shard": 4,
            "crafting_steps": 5,
        },
        "drawn": {
            "canary": "worst_case", "sample_rate": 0.5, "noise_multiplier": [2.0, 3.0],
            "num_steps": 4, "num_runs": 40, "runs_per_shard": 10,
        },
    },
    "figures": {"trade_off": {"kind": "trade_off", "sweeps": ["trained"]}},
}  # fmt: skip
# Folders whose files must equal those of an undisturbed run, byte for byte.
COMPARED = ("data", "canaries", "shards", "scores", "estimates", "accounting", "figures")


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(CONFIG))
    rows = [f"{i % 7},{(i * i) % 11},{i % 3}" for i in range(90)]
    (folder / "own.csv").write_text("\n".join(["a,b,label", *rows, ""]))
    return folder


def run(folder: Path, *, fails: bool = False, **variables: str) -> str:
    """Runs a study to its end, and returns what it prints, without a traceback."""
    printed = printed_by(RUN, folder, fails=fails, **variables)
    assert "Traceback" not in printed, printed
    return printed


def kill_all(folder: Path) -> None:
    """SIGKILL to everything that works in a folder, as a power cut would."""
    place = str(folder.resolve())
    # The folder is None if a process has ended, or is another user's.
    while alive := [
        process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == place
    ]:
        for process in alive:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(process.pid, signal.SIGKILL)
                os.waitpid(process.pid, os.WNOHANG)


def results(folder: Path) -> dict[str, bytes]:
    """What must not depend on what happened, by name."""
    top = folder / "results/study"
    files = [path for name in COMPARED for path in (top / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(top)): content_of(path) for path in files}


def undisturbed() -> Path:
    """The folder of a finished study, with its seconds, which one test of the session makes.

    What it left in the folder for temporary files is in `temporary`.
    """

    def write(folder: Path) -> None:
        start = time.monotonic()
        (folder / "temporary").mkdir()
        run(make(folder), TMPDIR=str(folder / "temporary"))
        (folder / "seconds.txt").write_text(str(time.monotonic() - start))

    return shared("study", write)
