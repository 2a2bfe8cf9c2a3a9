"""Fixtures for the tests of your own training: pytest has them wherever dpcanary is installed.

Nothing of dpcanary is imported before a test asks for one of them.
"""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def assert_mechanism() -> Callable[..., None]:
    """`dpcanary.own_training.assert_mechanism`: fails if a loop is not what is accounted."""
    from dpcanary.own_training import assert_mechanism

    return assert_mechanism


@pytest.fixture(scope="session")
def assert_model() -> Callable[..., None]:
    """`dpcanary.own_training.assert_model`: fails if gradients of single records are wrong."""
    from dpcanary.own_training import assert_model

    return assert_model


@pytest.fixture(scope="session")
def assert_neighbours() -> Callable[..., None]:
    """`dpcanary.own_training.assert_neighbours`: fails if more than noisy sums differ."""
    from dpcanary.own_training import assert_neighbours

    return assert_neighbours
