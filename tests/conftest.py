"""Which tests are long, and that they come first: parallel processes then end together."""

import os
import shutil
import tempfile

import pytest

# Files of tests that take more than ten seconds each, such as whole experiments and environments
# that are built anew: `make test-long`, not `make test`. Long tests of other files have the mark
# themselves.
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
