"""What all tests share: their order, a cache, Hypothesis's settings, a limit on a test's time."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# `make test-long`, which CI runs, names profile `ci`, of which the examples are the same in every
# run. Elsewhere new ones are tried, and Hypothesis keeps those that fail in .hypothesis/ and tries
# them first.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("elsewhere", deadline=None, print_blob=True)
settings.load_profile("elsewhere")

gc.disable()  # until all tests are collected: what they import stays


def pytest_collection_finish() -> None:
    """From now on, garbage is sought among the objects of tests, not in modules."""
    gc.enable()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the long tests to the front: parallel processes then end together."""
    items.sort(key=lambda item: not is_long(item))


def is_long(item: pytest.Item) -> bool:
    """Whether a test belongs to one of the longer sets."""
    return any(item.get_closest_marker(name) for name in ("long", "exhaustive"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the limit that `make test` sets; the longer sets have none, for slow machines."""
    what = "processor time that an unmarked test may take, its child processes included; unlike"
    what += " the wall clock, it grows little on a busy machine"
    parser.addoption("--most-seconds", type=float, default=float("inf"), help=what)


def pytest_configure(config: pytest.Config) -> None:
    """All processes of a session share a new folder for what is computed once.

    And none ignores Ctrl-C, as a shell has it for what runs in the background: tests send it to
    commands that they start, which would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "DPCANARY_CACHE" not in os.environ:
        folder = os.environ["DPCANARY_CACHE"] = tempfile.mkdtemp(prefix="dpcanary-cache-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_unconfigure() -> None:
    """A worker that has reported all ends at once, before what its libraries do at an exit."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        atexit.register(end_at_once, os.getpid())


def end_at_once(worker: int) -> None:
    """Ends a worker that has reported all: to free what its libraries hold takes seconds."""
    if os.getpid() == worker:  # and not a process that it forked
        os._exit(0)


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[object]:
    """Fails an unmarked test that takes too long: it is to be mended, or marked."""
    start = processor_seconds()
    result = yield
    seconds = processor_seconds() - start
    limit = item.config.getoption("most_seconds")
    if seconds > limit and not is_long(item):
        pytest.fail(
            f"took {seconds:.1f} s of processor time, and {limit:g} s is the limit of an unmarked "
            "test: make it smaller, or mark it `long`",
            pytrace=False,
        )
    return result
