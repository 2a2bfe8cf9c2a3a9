"""Programs that are run: most jobs of a small experiment do little else than import."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dpcanary.costs.measuring import Seconds
from dpcanary.errors import InputError
from dpcanary.stages import AccountingStage, NoiseStage

# Accounting takes as long as so many of its steps before the first of them: importing, and both
# adjacencies' loss distributions of one step. Measured: 14 to 50, least at low sample rates.
STEPS_OF_START = 25


@dataclass(frozen=True)
class Start:
    """One start of a program up to where its work begins. Unit: a start.

    Attributes:
        program: path of the program.
        trains: whether it trains a model, for which PyTorch and Numba load much when first used.
        device: where it computes.
    """

    program: Path
    trains: bool = False
    device: str = "cpu"

    def measure(self) -> Seconds:
        """See `Probe`."""
        code = f"import runpy; runpy.run_path({str(self.program)!r}, run_name='imported')"
        if self.trains:
            code += "; from dpcanary.costs.training import train_little as little"
            code += f"; little({self.device!r})"
            run_python("-c", code)  # what is compiled then is kept for all who come later
        start = time.perf_counter()
        seconds = run_python("-c", code)
        # A GPU is held while the process waits for it.
        return (time.perf_counter() - start if self.device == "cuda" else seconds,)


@dataclass(frozen=True)
class Accounting:
    """The noise of an audit and its upper bounds. Units: the noise, a recorded step.

    An audit takes as long as its recorded steps and `STEPS_OF_START`.

    Attributes:
        scripts: folder of the programs.
        noise: what fixes the noise.
        stage: what is accounted.
    """

    scripts: Path
    noise: NoiseStage
    stage: AccountingStage
    device: ClassVar[str] = "cpu"

    def measure(self) -> Seconds:
        """See `Probe`."""
        with tempfile.TemporaryDirectory() as name:
            noise, bounds, profile = (f"{name}/{part}" for part in ("noise", "bounds", "profile"))
            told = ["--settings", self.noise.to_json(), "--output", noise]
            fixing = run_python(f"{self.scripts}/calibrate_noise.py", *told)
            told = ["--settings", self.stage.to_json(), "--output", bounds]
            told += ["--noise", noise, "--profile", profile]
            accounting = run_python(f"{self.scripts}/account.py", *told)
        return fixing, accounting / (STEPS_OF_START + len(self.stage.record_steps))


def run_python(*arguments: str) -> float:
    """Runs Python to its end, with one thread for every library, as jobs have.

    Args:
        arguments: its own.

    Returns:
        Processor time in seconds.

    Raises:
        InputError: if it failed; with the last line that it said.
    """
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command, known = [sys.executable, *arguments], {**os.environ, **threads}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=known)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"cannot run {' '.join(arguments[:2])}: {last}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
