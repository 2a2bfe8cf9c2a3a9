"""What the library's tests share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> Iterator[None]:
    """One thread: on small matrices, a second one that waits for a core costs a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def few_told_apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """More than 300 scores are many: told apart are those of 8 errors, and some ten besides."""
    # Compiles, which takes a while to import.
    from dpcanary.estimation import error_rates
    from dpcanary.estimation.calibration import simulation, statistics, store

    for module in (error_rates, simulation):
        monkeypatch.setattr(module, "MOST_TOLD_APART", 300)
    monkeypatch.setattr(store, "_LARGEST_SIZE", 300)
    monkeypatch.setattr(error_rates, "_AT_ENDS", 8)
    monkeypatch.setattr(error_rates, "_IN_HALF", 10)
    caches = (
        error_rates.counts_told_apart, error_rates.simultaneous_local_level,
        statistics.scan_terms, store.own_table, store.null_table,
    )  # fmt: skip
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()
