"""What tests of whole processes need of the one that starts them."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _signals_are_heeded() -> Iterator[None]:
    """Processes heed signals also where the tests run in a shell's background, or by `nohup`."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
