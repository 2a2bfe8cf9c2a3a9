"""Long lists of which most runs of the tests take a part."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_of(cases: Iterable[Any], every: int) -> list[Any]:
    """All cases, but those between each so many are for the exhaustive tests alone.

    Args:
        cases: values of one parameter, or tuples with a value for each of several.
        every: 1 of so many cases is in all runs, from the first on.
    """
    return [case if place % every == 0 else exhaustive(case) for place, case in enumerate(cases)]


def exhaustive(case: Any) -> Any:
    """A case for the exhaustive tests alone."""
    values = case if type(case) is tuple else (case,)
    return pytest.param(*values, marks=pytest.mark.exhaustive)
