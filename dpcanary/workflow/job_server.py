"""Jobs that do not wait for Python: each is a fork of one process that has imported its program.

Most jobs of an audit compute for less time than Python takes to start and to import. So each run of
the workflow has a server. In the shell of a job, `python program.py ...` asks it. The server
imports what the program imports, once for all jobs, and forks; the fork runs the program in the
job's folder, with its streams. Signals and the exit status pass through, and a job that is killed
takes nothing along. Where there is no server, as on the nodes of a cluster, or where the
environment is not that of the jobs before, `python` is a Python of its own.

Both sides run this file by its path. It is the first thing that every job runs, so it imports only
what takes no time.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

# Variables that every shell sets itself.
_OF_SHELL = ("_", "SHLVL", "PWD", "OLDPWD")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A job that neither computes nor reads or writes for so long is ended; at 0, none is.
IDLE = "DPCANARY_IDLE_MINUTES"
_IDLE_MINUTES = 15.0
# Less than this share of the time is idle, such as a thread that wakes up to look around.
_IDLE_SHARE = 0.001
_IDLE_BYTES = 4096

_REASONS: dict[int, str] = {
    signal.SIGKILL: "killed, probably because memory ran out: lower --cores, or runs per shard",
    signal.SIGALRM: "it neither computed nor read or wrote anything for a long time, so it was"
    f" ended ({IDLE} sets how long); run again",
}

# What a pipe holds, so that a job that ends never waits.
_MOST_BYTES = 60_000


def ask(name: str, arguments: list[str]) -> NoReturn:
    """Does what `python ARGUMENTS` does, by the server of this name."""
    job = 0
    # Until there is a job, a signal ends this process at once; the server then kills the job that
    # it may have started meanwhile.
    handled = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    server = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        # In the kernel's own namespace, which leaves no file behind. Others may look into it.
        server.connect(f"\0{name}")
        if _is_own(server):
            request = _packed(arguments)
            socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(request)
            job = _number(server) or 0
    if not job:  # no server, or it refuses what it cannot run as a Python of its own would
        os.execvp("python", ["python", *arguments])
    # From here on, Ctrl-C reaches the job by itself, and `kill` is passed on: this waits for what
    # the job does.
    for number in handled:
        signal.signal(
            number,
            signal.SIG_IGN if number == signal.SIGINT else lambda number, _: os.kill(job, number),
        )
    # A signal that comes just before a wait would not end it; its number in this socket does.
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    while server not in select.select([server, woken], [], [])[0]:
        woken.recv(64)
    status = _number(server)
    if status is None:  # the server was killed: end alike
        _kill(job)
        status = int(signal.SIGKILL)
    if os.WIFSIGNALED(status):
        ending = os.WTERMSIG(status)
        if ending in _REASONS:  # into the job's log
            os.write(2, f"error: {_REASONS[ending]}\n".encode())
        _end_by(ending)
    os._exit(os.waitstatus_to_exitcode(status))


def _end_by(number: int) -> None:
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _is_own(connection: socket.socket) -> bool:
    """Whether the process on the other side is of the same user."""
    size = 3 * 4  # process, user and group
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()


def _packed(arguments: list[str]) -> bytes:
    """A request: the folder, the number of arguments, the arguments, and the environment."""
    parts = [os.getcwd(), str(len(arguments)), *arguments, *_environment()]  # noqa: PTH109
    return os.fsencode("\0".join(parts))


def _environment() -> list[str]:
    return sorted(f"{key}={os.environ[key]}" for key in os.environ if key not in _OF_SHELL)


def _of_python(environment: list[str]) -> list[str]:
    """What Python reads when it starts, which a fork has behind it."""
    return [pair for pair in environment if pair.startswith("PYTHON")]


def _number(connection: socket.socket) -> int | None:
    """The next number of four bytes; None if the other side has closed."""
    received = _received(connection, 4)
    return int.from_bytes(received, "big") if len(received) == 4 else None


def _received(connection: socket.socket, size: int) -> bytes:
    """As many bytes, or fewer if the other side has closed."""
    received = b""
    try:
        while len(received) < size and (part := connection.recv(size - len(received))):
            received += part
    except ConnectionError:
        return b""
    return received


def _kill(job: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(job, signal.SIGKILL)


class IdleWatch:
    """Ends jobs that wait for something that never comes.

    A job that was stopped, as by Ctrl-Z, is left alone, and so is one that computes for ever: how
    long an honest job takes is not known.

    Attributes:
        jobs: the processes to look at, and since when each has been idle, with its use until then.
        interval: between two looks, in seconds.
    """

    def __init__(self, seconds: float) -> None:
        """Takes how long a job may be idle."""
        self._most = seconds
        self.interval = min(30.0, seconds / 4)
        self.jobs: dict[int, tuple[float, float, int] | None] = {}
        self._next = 0.0

    def end_idle(self) -> None:
        """Looks at all jobs, if the last look was long enough ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.interval
        for job, idle in self.jobs.items():
            with suppress(OSError, ValueError):  # it has just ended
                used, moved, is_stopped = _use_of(job)
                since, seconds, count = idle or (now, used, moved)
                if (
                    is_stopped
                    or used - seconds > max(0.05, _IDLE_SHARE * (now - since))
                    or moved - count > _IDLE_BYTES
                ):
                    since, seconds, count = now, used, moved
                self.jobs[job] = since, seconds, count
                if now - since > self._most:
                    os.kill(job, signal.SIGALRM)


def _use_of(job: int) -> tuple[float, int, bool]:
    """Seconds that a process has computed, bytes that it has moved, and whether it is stopped."""
    with open(f"/proc/{job}/stat") as file:  # noqa: PTH123
        fields = file.read().rpartition(")")[2].split()
    with open(f"/proc/{job}/io") as file:  # noqa: PTH123
        moved = sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    ticks = sum(map(int, fields[11:15]))  # of it, and of processes that it has waited for
    return ticks / os.sysconf("SC_CLK_TCK"), moved, fields[0] in "Tt"


class Server:
    """Starts jobs for whoever asks, until its standard input is closed.

    The workflow holds the other end of that: however it ends, the server ends, too.
    """

    def __init__(self, listener: int) -> None:
        """Takes the descriptor of a socket that listens."""
        import selectors

        self._events = selectors.DefaultSelector()
        self._listener = socket.socket(fileno=listener)
        self._environment: list[str] = []  # of the first job
        # For each program, the modules that its jobs have imported since they were forked.
        self._later: dict[str, list[str]] = {}
        self._is_over = False
        self._watch = IdleWatch(60 * float(os.environ.get(IDLE, _IDLE_MINUTES)) or float("inf"))
        # A job gets back the handlers that Python has started with.
        self._handlers = {
            number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)
        }

    def run(self) -> None:
        """Serves."""
        for number in self._handlers:
            signal.signal(number, signal.SIG_IGN)
        self._on(sys.stdin, lambda: setattr(self, "_is_over", True))
        self._on(self._listener, self._answer)
        while not self._is_over:
            for key, _ in self._events.select(self._watch.interval):
                if self._events.get_map().get(key.fd) is key:  # still there
                    key.data()
            self._watch.end_idle()

    def _on(self, source: Any, do: Callable[[], None]) -> None:
        self._events.register(source, 1, do)  # 1: there is something to read

    def _answer(self) -> None:
        connection, _ = self._listener.accept()
        if not _is_own(connection):
            connection.close()
            return
        size, streams, _, _ = socket.recv_fds(connection, 4, 3)
        request = _received(connection, int.from_bytes(size, "big"))
        if len(streams) == 3 and request:
            folder, count, *rest = os.fsdecode(request).split("\0")
            arguments, environment = rest[: int(count)], rest[int(count) :]
            program = os.path.join(folder, arguments[0])  # noqa: PTH118
            if self._is_ready_for(program, environment):
                self._start(program, (folder, arguments, streams), connection)
            else:
                connection.close()
        for stream in streams:
            os.close(stream)

    def _is_ready_for(self, program: str, environment: list[str]) -> bool:
        """Whether a fork is what a Python of its own would be; imports what it needs."""
        if not self._environment and _of_python(environment) == _of_python(_environment()):
            self._environment = environment
        if environment != self._environment or not program.endswith(".py"):
            return False
        if program not in self._later:
            import runpy

            # Libraries read it while they are imported.
            pairs = (pair.partition("=") for pair in environment)
            os.environ.update({key: value for key, _, value in pairs})
            try:
                runpy.run_path(program, run_name="dpcanary job")
            except BaseException:  # the job will say so itself
                return False
        import gc
        import importlib

        for name in self._later.get(program, ()):
            with suppress(Exception):  # it may need what only its importer does
                importlib.import_module(name)
        self._later[program] = []
        gc.freeze()  # the forks share what they do not look through
        return True

    def _start(
        self, program: str, request: tuple[str, list[str], list[int]], connection: socket.socket
    ) -> None:
        modules, of_job = os.pipe()
        # A job would lose what comes before it has its own handlers: the server ignores it.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handlers)
        job = os.fork()
        if not job:
            os.close(modules)
            connection.close()
            self._be(*request, of_job)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handlers)
        os.close(of_job)
        self._watch.jobs[job] = None
        self._on(connection, lambda: self._give_up(job, connection))
        ended = os.pidfd_open(job)
        self._on(ended, lambda: self._end(job, ended, connection))
        self._on(modules, lambda: self._learn(program, modules))
        _send(connection, job)

    def _learn(self, program: str, modules: int) -> None:
        """Notes what a job has imported, so that the next one of its program need not.

        Only of packages that are there already: what others do when they are imported, such as
        the user's own, may not be for a process that forks.
        """
        names = os.read(modules, _MOST_BYTES).decode().split()
        self._later[program] += [name for name in names if name.partition(".")[0] in sys.modules]
        self._events.unregister(modules)
        os.close(modules)

    def _give_up(self, job: int, connection: socket.socket) -> None:
        """Whoever asked was killed: what it says from now on is the end of its connection."""
        self._events.unregister(connection)
        _kill(job)

    def _end(self, job: int, ended: int, connection: socket.socket) -> None:
        _, status = os.waitpid(job, 0)
        del self._watch.jobs[job]
        self._events.unregister(ended)
        os.close(ended)
        if connection.fileno() in self._events.get_map():
            self._events.unregister(connection)
        _send(connection, status)
        connection.close()

    def _be(
        self, folder: str, arguments: list[str], streams: list[int], names_pipe: int
    ) -> NoReturn:
        """Becomes the job, and tells at its end what it has imported."""
        import runpy

        status, modules_before = 1, {*sys.modules}
        try:
            for place, stream in enumerate(streams):
                os.dup2(stream, place)
            for key in [*self._events.get_map().values()]:
                if key.fileobj is not sys.stdin:
                    os.close(key.fd)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._handlers)
            os.chdir(folder)
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
            status = 0
        except SystemExit as ending:
            status = _exit_status(ending.code)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
            if isinstance(error, KeyboardInterrupt):
                _end_by(signal.SIGINT)
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
                names = " ".join(name for name in sys.modules if name not in modules_before)
                os.write(names_pipe, names.encode()[:_MOST_BYTES])
            finally:
                os._exit(status)


def _send(connection: socket.socket, number: int) -> None:
    with suppress(ConnectionError):  # whoever asked was killed
        connection.sendall(number.to_bytes(4, "big"))


def _exit_status(code: object) -> int:
    """As Python's own: a text is printed, and is a failure."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        Server(int(sys.argv[2])).run()
    else:
        ask(sys.argv[1], sys.argv[2:])
