"""`python -m dpcanary.workflow.start`: Snakemake, with no traceback if it is interrupted.

Snakemake itself takes an interruption in silence only while jobs run, not while it is loaded, reads
the workflow, or plans it, which is seconds. Nor does it while the interpreter ends.
"""

import logging
import runpy
import signal
import sys
import warnings
from typing import TextIO

# What Snakemake prints first, before any of its options or plugins can say that it should not.
_OF_PROFILE = "Using workflow specific profile "


class WithoutProfile:
    """A stream that leaves out the line on the workflow's own profile, which all runs have."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` gets all else."""
        self._stream, self._was_left_out = stream, False

    def write(self, text: str) -> int:
        """Writes a text; `print` gives the end of a line as another one."""
        if text.startswith(_OF_PROFILE) or (self._was_left_out and text == "\n"):
            self._was_left_out = text != "\n"
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.stderr = WithoutProfile(sys.stderr)
    # They speak of the scheduler's tasks that an interruption leaves.
    logging.getLogger("asyncio").disabled = True
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(1)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
