"""What all tests share: a cache, Hypothesis's settings, and the limit on a test's time."""

import os
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Files whose tests all belong to the longer set; single tests carry the mark themselves.
LONG = [
    "test_environments_built.py",
    "test_paper_configs.py",
    "test_slurm.py",
    "test_kills.py",
    "test_environment.py",
    "test_own_audits.py",
    "test_verify.py",
    "test_release.py",
    "test_reruns.py",
    "test_light_install.py",
    "test_module.py",
    "test_plugins.py",
    "test_provenance.py",
]
FIRST = [*LONG, "test_end_to_end.py"]

# Seconds that an unmarked test may take. Processor time, its child processes included: unlike the
# wall clock, it is the same on a busy machine.
MOST_SECONDS = 10.0

# In CI the examples are the same in every run. Elsewhere new ones are tried, and Hypothesis keeps
# those that fail in .hypothesis/ and tries them first.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("elsewhere", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "elsewhere")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the long tests, and moves the files that take minutes to the front."""
    for item in items:
        if item.path.name in LONG:
            item.add_marker(pytest.mark.long)
    order = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


def pytest_configure(config: pytest.Config) -> None:
    """All processes of a session share a new folder for what is computed once."""
    if "DPCANARY_CACHE" not in os.environ:
        folder = os.environ["DPCANARY_CACHE"] = tempfile.mkdtemp(prefix="dpcanary-cache-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails an unmarked test that takes too long: it belongs to the longer set, or is to be mended."""
    start = processor_seconds()
    yield
    seconds = processor_seconds() - start
    marked = any(item.get_closest_marker(name) for name in ("long", "exhaustive"))
    if seconds > MOST_SECONDS and not marked:
        pytest.fail(
            f"took {seconds:.1f} s of processor time, and {MOST_SECONDS:.0f} s is the limit of an "
            "unmarked test: make it smaller, or mark it `long`",
            pytrace=False,
        )
