"""Which `python` jobs find; and those that are forks of a server end as others do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from running import PATIENCE, environment, wait_for

from dpcanary.workflow import job_python
from dpcanary.workflow.job_python import JobServer
from dpcanary.workflow.job_server import IDLE

PYTHON = sys.executable
LONG = "time.sleep(3600)"  # more than tests wait

# Says whether it is a fork, then does what its arguments say.
PROGRAM = """\
import os, signal, sys, time
import imported

def main():
    print(os.getppid(), os.getcwd(), *sys.argv[1:], flush=True)
    print("to stderr", file=sys.stderr)
    exec(sys.argv[1])

if __name__ == "__main__":
    main()
"""


class Running:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: list[subprocess.Popen] = []
        self.serve()

    def serve(self, before: str = "") -> None:
        path = f"{Path(PYTHON).parent}:$PATH"
        self.server = JobServer(f"export PATH={path} PYTHONPATH={self.folder}; {before}")
        self.server.start()

    def end(self) -> None:
        for process in (*self.jobs, self.server.process):
            with process:
                process.kill()

    def start(self, code: str, program: str = "program.py", **options) -> subprocess.Popen:
        """A shell that execs a job: its process is that of whoever asks."""
        asks = self.server.shell.format().replace("{ command", "{ exec")
        variables = {"PYTHONPATH": f"{self.folder}", **options.pop("env", {})}
        job = subprocess.Popen(
            ["bash", "-c", f'{asks} python {program} "$0"', code],
            cwd=self.folder, env=environment(**variables), text=True, **options,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.jobs.append(job)
        return job

    def run(self, code: str, **options) -> tuple[int, str, str]:
        """Exit status, stdout without its first line, and stderr."""
        job = self.start(code, **options)
        out, err = job.communicate()
        return job.returncode, out.partition("\n")[2], err.removeprefix("to stderr\n")

    def is_fork(self, **options) -> bool:
        out, _ = self.start("0", **options).communicate()
        return out.split()[0] == str(self.server.process.pid)


@pytest.fixture
def running(tmp_path):
    if not hasattr(os, "pidfd_open"):
        pytest.skip("of Linux")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "imported.py").write_text(
        "open(__file__ + '.imports', 'a').write('1')\nROWS = []\n"
    )
    server = Running(tmp_path)
    yield server
    server.end()


def test_a_job_is_a_fork_with_its_folder_arguments_and_streams(running):
    job = running.start("print(input())")
    out, err = job.communicate("from stdin")
    parent = str(running.server.process.pid)
    assert out.split() == [parent, str(running.folder), "print(input())", "from", "stdin"]
    assert (job.returncode, err) == (0, "to stderr\n")


def test_a_job_ends_as_it_would_alone(running):
    killed = "error: killed, probably because memory ran out: lower --cores, or runs per shard\n"
    for code, status, err in [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('error: wrong')", 1, "error: wrong\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, killed),
    ]:
        own_status, _, message = running.run(code)
        assert (own_status, bool(message)) == (status, bool(err))
        assert message.endswith(err)


def test_what_a_program_imports_is_imported_once_and_not_shared(running):
    """What a job imports later, the next one has, too, if its package is there already.

    Other packages may not be made for a fork.
    """
    code = "imported.ROWS.append(1); print(len(imported.ROWS))"
    assert [running.run(code)[1] for _ in range(3)] == ["1\n"] * 3
    assert (running.folder / "imported.py.imports").read_text() == "1"
    for package in ("imported_pkg", "other_pkg"):
        (running.folder / package).mkdir()
        (running.folder / package / "__init__.py").touch()
        (running.folder / package / "part.py").touch()
    later = running.folder / "later.py"
    later.write_text(PROGRAM.replace("import imported", "import imported_pkg"))
    modules = ("imported_pkg.part", "other_pkg", "other_pkg.part")
    look = f"print(*(int(name in sys.modules) for name in {modules}))"
    jobs = (look, f"import imported_pkg.part, other_pkg.part; {look}", look)
    printed = [running.run(code, program="later.py")[1] for code in jobs]
    assert printed == ["0 0 0\n", "1 1 1\n", "1 0 0\n"]


def test_many_jobs_at_once(running):
    wait = (
        "import glob; open(f'begun{number}', 'w')\n"
        "while len(glob.glob('begun*')) < 20: time.sleep(0.01)\nsys.exit(number)"
    )
    jobs = [running.start(f"number = {number}; {wait}") for number in range(20)]
    assert [job.wait(PATIENCE) for job in jobs] == [*range(20)]


def test_another_environment_or_a_program_that_cannot_be_imported_gets_a_python_of_its_own(running):
    assert running.is_fork()
    assert not running.is_fork(env={"OMP_NUM_THREADS": "7"})
    assert not running.is_fork(env={"PYTHONPATH": "elsewhere"})
    assert running.is_fork()
    (running.folder / "broken.py").write_text("import nowhere\n")
    status, _, err = running.run("0", program="broken.py")
    assert (status, err.splitlines()[-1]) == (1, "ModuleNotFoundError: No module named 'nowhere'")
    assert running.is_fork()


def started(running, code: str) -> tuple[subprocess.Popen, int]:
    """A job, and the number of its process."""
    job = running.start(f"print(os.getpid(), flush=True); {code}", start_new_session=True)
    job.stdout.readline()
    return job, int(job.stdout.readline())


def has_ended(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_job_ends_with_the_signal_that_its_shell_gets_and_with_its_shell(running):
    other, _ = started(running, "input(); sys.exit(5)")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
        job, process = started(running, LONG)
        job.send_signal(number)
        assert job.wait(PATIENCE) == -number
        wait_for(lambda process=process: has_ended(process))
    other.communicate("end\n", timeout=PATIENCE)
    assert other.returncode == 5
    assert running.is_fork()


def test_an_interruption_of_all_ends_the_job_and_not_the_server(running):
    # Python looks for signals between short sleeps; one just before a long sleep would wait for it.
    job, process = started(running, "[time.sleep(0.01) for _ in range(360_000)]")
    os.kill(running.server.process.pid, signal.SIGINT)
    os.kill(process, signal.SIGINT)
    job.send_signal(signal.SIGINT)
    assert job.wait(PATIENCE) == -signal.SIGINT
    assert "KeyboardInterrupt" in job.stderr.read()
    assert running.is_fork()


def test_an_interruption_while_the_server_imports_ends_who_asks_and_starts_no_job(running):
    """The job would be the only one that has not heard of it."""
    waits = "import os, time\nwhile not os.path.exists(__file__ + '.go'): time.sleep(0.01)\n"
    with (running.folder / "imported.py").open("a") as imported:
        imported.write(waits)
    job = running.start(LONG, start_new_session=True)
    wait_for((running.folder / "imported.py.imports").exists, job)
    os.kill(running.server.process.pid, signal.SIGINT)
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait(PATIENCE) == -signal.SIGINT  # while the server is busy
    (running.folder / "imported.py.go").touch()
    assert running.is_fork()
    server = psutil.Process(running.server.process.pid)
    wait_for(lambda: all(has_ended(child.pid) for child in server.children()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_between_a_fork_and_its_handlers_is_not_lost(running, number):
    early = (
        "import os\ndup2 = os.dup2\ndef early(*arguments):\n"
        f"    os.kill(os.getpid(), {int(number)})\n    dup2(*arguments)\nos.dup2 = early\n"
    )
    (running.folder / "imported.py").write_text(early)
    job = running.start(LONG)
    assert job.wait(PATIENCE) == -number
    assert running.server.process.poll() is None


def test_a_server_that_is_killed_ends_its_jobs_and_stops_no_later_one(running):
    job, process = started(running, LONG)
    running.server.process.kill()
    assert job.wait(PATIENCE) == -signal.SIGKILL
    wait_for(lambda: has_ended(process))
    assert running.run("sys.exit(4)")[0] == 4
    assert not running.is_fork()


def test_the_server_ends_with_the_workflow_and_jobs_wait_for_a_new_one(running):
    job, _ = started(running, LONG)
    running.server.process.stdin.close()
    assert running.server.process.wait(PATIENCE) == 0
    assert job.wait(PATIENCE) != 0
    running.end()
    running.serve("sleep 1; ")
    assert running.is_fork()


@pytest.fixture
def impatient(monkeypatch, request):
    monkeypatch.setenv(IDLE, str(1 / 60))
    return request.getfixturevalue("running")


def test_a_job_that_hangs_is_ended_and_says_so(impatient):
    locks = "import threading; threading.Lock().acquire(); threading.Event().wait()"
    for job, process in [started(impatient, code) for code in (LONG, locks)]:
        assert job.wait(PATIENCE) == -signal.SIGALRM
        wait_for(lambda process=process: has_ended(process))
        assert f"{IDLE} sets how long" in job.stderr.read()


@pytest.mark.long
def test_a_job_that_computes_reads_or_is_stopped_is_left_alone(impatient):
    computing = "end = time.time() + 3; exec('while time.time() < end: pass'); sys.exit(1)"
    computes, _ = started(impatient, computing)
    writing = "open(imported.__file__ + '.x', 'w').write('x' * 99999)"
    moves, _ = started(impatient, f"[({writing}, time.sleep(0.1)) for _ in range(30)]; sys.exit(2)")
    stopped, process = started(impatient, "os.kill(os.getpid(), signal.SIGSTOP); sys.exit(3)")
    assert [computes.wait(PATIENCE), moves.wait(PATIENCE)] == [1, 2]
    os.kill(process, signal.SIGCONT)
    assert stopped.wait(PATIENCE) == 3


def interpreter(folder: Path, *, knows: tuple[str, ...]) -> Path:
    for name in knows:
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "__init__.py").touch()
    path = folder / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/packages" exec {PYTHON} -S "$@"\n')
    path.chmod(0o755)
    return path


MOST = ("tqdm", "pandas", "numpy")  # such as the base of Anaconda
ALL = ("tqdm", "torch")


def test_jobs_find_a_python_that_has_what_they_need(tmp_path, monkeypatch):
    monkeypatch.setattr(job_python, "_NEEDED", ALL)
    pairs = [(ALL, (), True), (ALL, MOST, True), (MOST, ALL, False), ((), ALL, False)]
    # With all in both, the command that is called says which one is meant.
    pairs += [(ALL, ALL, True), (MOST, MOST, True)]
    for number, (own, other, is_own_taken) in enumerate(pairs):
        mine = interpreter(tmp_path / f"own environment {number}", knows=own)
        on_path = interpreter(tmp_path / f"other {number}", knows=other)
        monkeypatch.setattr(sys, "executable", str(mine))
        monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
        expected = f"export PATH='{mine.parent}':$PATH; " if is_own_taken else ""
        assert job_python.path_of_python() == expected, (own, other)
    monkeypatch.setenv("PATH", "/nowhere")
    assert job_python.path_of_python() == f"export PATH='{mine.parent}':$PATH; "
    monkeypatch.setenv("PATH", f"{mine.parent}:/usr/bin")
    assert job_python.path_of_python() == ""
