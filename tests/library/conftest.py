"""What the library's tests share."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> Iterator[None]:
    """One thread: on small matrices, a second one that waits for a core costs a hundredfold."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """Compiles the kernels of gradients, which else counts as time of the first test with them.

    Without a cache of Numba's, compiling takes more than ten seconds.
    """
    from one_record_at_a_time import CROSS_ENTROPY, MODELS, parameters_of, table_for

    from dpcanary.training.dpsgd import DPSGD
    from dpcanary.training.gradient_path import Batch
    from dpcanary.training.gradients.choose import path_of

    dpsgd = DPSGD(1.0, 1.0, 1.0, (1,), loss=CROSS_ENTROPY)
    for name in ("linear 6", "tanh", "uneven"):
        module, table = MODELS[name].module(2), table_for(MODELS[name], 2)
        path = path_of(module, table, dpsgd=dpsgd, basis=None)
        buffer = path.encode(parameters_of(module, 1)).contiguous()
        for rows in (torch.arange(4), torch.arange(4)[None]):
            batch = Batch(rows, torch.ones(1, 4))
            path.clipped_sums(buffer, batch, 1.0, torch.empty_like(buffer))


@pytest.fixture
def few_distinct(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Above 300 scores, only 8 counts at each end and some ten more per half are distinguished."""
    # Compiles, which takes a while to import.
    from dpcanary.estimation import error_rates
    from dpcanary.estimation.null_distributions import null_tables as store
    from dpcanary.estimation.null_distributions import simulated_nulls as simulation
    from dpcanary.estimation.null_distributions import statistics

    for module in (error_rates, simulation):
        monkeypatch.setattr(module, "MOST_DISTINCT", 300)
    monkeypatch.setattr(store, "_LARGEST_SIZE", 300)
    monkeypatch.setattr(error_rates, "_AT_ENDS", 8)
    monkeypatch.setattr(error_rates, "_IN_HALF", 10)
    caches = (
        error_rates.distinct_counts, error_rates.simultaneous_local_level,
        statistics.scan_terms, store.own_table, store.null_table,
    )  # fmt: skip
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.fixture
def quick_tables(monkeypatch: pytest.MonkeyPatch, _session_cache: str) -> Iterator[None]:
    """Critical values from a tenth of the samples, for tests of what is done with a bound."""
    from dpcanary.estimation.null_distributions import null_tables as store
    from dpcanary.estimation.null_distributions import simulated_nulls as simulation

    for name in ("_MOST_SAMPLES", "_FEWEST_SAMPLES"):
        monkeypatch.setattr(simulation, name, 4_000)
    monkeypatch.setenv("DPCANARY_CACHE", f"{_session_cache}/quick")
    for cached in (store.own_table, store.null_table):
        cached.cache_clear()
    yield
    for cached in (store.own_table, store.null_table):
        cached.cache_clear()


@pytest.fixture(scope="session")
def _session_cache() -> str:
    return os.environ["DPCANARY_CACHE"]


@pytest.fixture(scope="session")
def refuses() -> Callable[..., None]:
    """Checks that a call is refused, with a message in which this pattern is found."""
    from dpcanary.errors import InputError

    def check(message: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
        with pytest.raises(InputError, match=message):
            call(*arguments, **options)

    return check
