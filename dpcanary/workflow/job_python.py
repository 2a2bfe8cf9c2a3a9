"""Which `python`, and which library, the jobs' commands find."""

import os
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from dpcanary.core.installation import IS_CLONE, LIBRARY
from dpcanary.core.program_messages import OWN_CODE

_JOB_SERVER = str(Path(__file__).parent / "job_server.py")
# Every program imports the first, and training the second. A clone brings the library along.
_NEEDED = ("tqdm" if IS_CLONE else "dpcanary", "torch")


def path_of_python() -> str:
    """A shell command that puts this Python's folder first on the path, if that is needed.

    It is where Snakemake or `dpcanary` is started by its path, without activating its environment:
    `python` is then another one, or none. That one is taken only if it has what jobs need, and this
    one has not, because Snakemake has an environment of its own.
    """
    python = shutil.which("python")
    if python and Path(python).parent == Path(sys.executable).parent:
        return ""
    if python and not _has_needed(sys.executable) and _has_needed(python):
        return ""
    return f"export PATH={shlex.quote(str(Path(sys.executable).parent))}{os.pathsep}$PATH; "


def _has_needed(python: str) -> bool:
    code = f"import importlib.util as u; raise SystemExit(not all(map(u.find_spec, {_NEEDED!r})))"
    return (
        subprocess.run([python, "-P", "-c", code], capture_output=True, check=False).returncode == 0
    )


def paths_of_code(*, own: Path | None) -> str:
    """A shell command by which jobs import this library, unless it is installed beside Python."""
    exports = f"export {OWN_CODE}={shlex.quote(str(own))}; " if own else ""
    if IS_CLONE:
        library = shlex.quote(str(LIBRARY))
        exports += f"export PYTHONPATH={library}${{{{PYTHONPATH:+:$PYTHONPATH}}}}; "
    return exports


class JobServer:
    """The server of a run's jobs, which starts with the first job: see `job_server`.

    Attributes:
        shell: a shell command by which `python` in a job asks the server.
        process: the server, once it has started.
    """

    def __init__(self, setup: str) -> None:
        """Takes the shell commands by which jobs find this Python and this library."""
        self._setup = setup
        self._name = f"dpcanary-{os.getpid()}-{secrets.token_hex(8)}"
        # Braces are doubled for Snakemake.
        call = f"command python -IS {shlex.quote(_JOB_SERVER)} {self._name}"
        self.shell = f'python() {{{{ {call} "$@"; }}}}; '

    def start(self) -> None:
        """Starts it, where forks can be waited for. It ends with this process, however it ends."""
        if not hasattr(os, "pidfd_open"):
            return
        command = f"{self._setup.format()}exec python {shlex.quote(_JOB_SERVER)} --serve"
        # Jobs that come before it listens wait for it.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{self._name}")
            listener.listen(1024)
            self.process = subprocess.Popen(
                ["bash", "-c", f"{command} {listener.fileno()}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
            )
