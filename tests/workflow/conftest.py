"""What tests of whole processes need of the one that starts them, and the experiment they share."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Project, shared


@pytest.fixture(autouse=True)
def _signals_are_heeded() -> Iterator[None]:
    """Processes heed signals also where the tests run in a shell's background, or by `nohup`."""
    heeded = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in heeded.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def finished() -> Project:
    """The finished experiment, which no test may alter."""
    return Project(shared("finished", lambda folder: Project.new(folder).run()))


@pytest.fixture
def copy(finished: Project, tmp_path: Path) -> Project:
    return finished.copy(tmp_path / "copy")
