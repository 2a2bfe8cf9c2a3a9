"""Programs are started: most jobs of a small experiment do little else than import."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpcanary.costs.measuring import Timing, environment
from dpcanary.errors import InputError


@dataclass(frozen=True)
class Start:
    """One start of a program up to where its work begins. Unit: a start.

    Attributes:
        program: path of the program.
        first_use: what it does first; see `first_use`.
        device: where it computes.
    """

    program: Path
    first_use: str = ""
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        """See `Probe`."""
        return self.device == "cuda"

    def measure(self) -> Timing:
        """See `Probe`."""
        module = "dpcanary.costs.first_use"
        options = [str(self.program), self.first_use, self.device]
        start = time.perf_counter()
        seconds, said = run_process([sys.executable, "-m", module, *options])
        if self.on_gpu:  # it is held while the process waits for it; its memory is another
            return Timing((time.perf_counter() - start,))
        return Timing((seconds,), int(said.split()[-1]))


def run_process(command: Sequence[str], *, may_fail: bool = False) -> tuple[float, str]:
    """Runs a program to its end.

    Args:
        command: the program and its arguments.
        may_fail: whether a failure is none of ours: it took its time all the same.

    Returns:
        Its processor time in seconds, and what it printed.

    Raises:
        InputError: if it failed; with the last line that it said.
    """
    # On stderr it may say much, on stdout little: neither pipe fills up while the other is read.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        error, said = process.stderr.read(), process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and not may_fail:
        last = (error.strip().splitlines() or ["it said nothing"])[-1]
        raise InputError(f"cannot start {' '.join(command[:4])}: {last}")
    return usage.ru_utime + usage.ru_stime, said
