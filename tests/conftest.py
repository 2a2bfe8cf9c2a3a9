"""Files that take minutes come first: parallel processes then end at about the same time."""

import pytest

LONGEST = [
    "test_environments_built.py",
    "test_paper_configs.py",
    "test_slurm.py",
    "test_end_to_end.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the tests of the longest files to the front."""
    order = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))
