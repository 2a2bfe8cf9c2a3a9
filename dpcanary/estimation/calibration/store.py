"""Finds the null table of a bound: in this package, in memory, on disk, or by computing it once."""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from dpcanary.errors import InputError
from dpcanary.estimation.calibration.cache import cached_arrays
from dpcanary.estimation.calibration.null_table import NullTable, components_of
from dpcanary.estimation.calibration.packaged import packaged_table
from dpcanary.estimation.families import GDP, Family
from dpcanary.estimation.options import LEAST_CALIBRATED_SIGNIFICANCE

Sizes = tuple[int, int]


def calibrated_bound(
    *,
    family: Family,
    looks: tuple[Sizes, ...],
    look: int,
    significance: float,
    rule: str,
    statistics: NDArray[np.float32],
) -> float:
    """The lower bound on theta that a rule's statistic gives at a look.

    Args:
        family: of trade-off curves.
        looks: numbers of scores of world 0 and world 1 at each look.
        look: the index of this one.
        significance: of all looks together, at least 0.001.
        rule: one of the calibrated rules.
        statistics: shape (3,), of `observed_statistics`.

    Raises:
        InputError: if the significance is too small to be simulated.
    """
    table = null_table(family=family, looks=looks, significance=significance)
    bound = table.bound(rule=rule, look=look, statistics=statistics)
    if bound <= table.trusted_to:
        return bound
    own = own_table(family=family, looks=looks, significance=significance)
    return own.bound(rule=rule, look=look, statistics=statistics)


@lru_cache(maxsize=256)
def null_table(*, family: Family, looks: tuple[Sizes, ...], significance: float) -> NullTable:
    """The critical values for some numbers of scores, from the package if it has them.

    Raises:
        InputError: if the significance is too small to be simulated.
    """
    if significance < LEAST_CALIBRATED_SIGNIFICANCE:
        raise InputError(
            f"significance is {significance:g}; rules with a simulated null distribution need at"
            f" least {LEAST_CALIBRATED_SIGNIFICANCE:g}: use threshold_rule 'simultaneous'"
        )
    if family is GDP and len(looks) == 1:
        found = packaged_table(sizes=looks[0], significance=significance)
        if found is not None:
            return found
    return own_table(family=family, looks=looks, significance=significance)


@lru_cache(maxsize=256)
def own_table(*, family: Family, looks: tuple[Sizes, ...], significance: float) -> NullTable:
    """The critical values for exactly these numbers of scores, computed once."""
    arrays = cached_arrays(
        "null",
        about=f"{family.name}; looks {looks}; significance {significance!r}",
        compute=lambda: _computed(family, looks, significance),
    )
    components = components_of(family)
    return NullTable(
        thetas=arrays["thetas"],
        components=components,
        critical={rule: arrays[rule] for rule in components},
        scales=arrays["scales"],
        sparse_from=arrays["sparse_from"],
    )


def _computed(
    family: Family, looks: tuple[Sizes, ...], significance: float
) -> dict[str, NDArray[Any]]:
    # Compiles, which takes a while to import; most bounds need no new table.
    from dpcanary.estimation.calibration.compute import compute_null_table, default_num_samples

    num_samples = default_num_samples(looks, significance)
    sizes = ", ".join(f"{n0:,} + {n1:,}" for n0, n1 in looks)
    # Nothing is shown of what takes less than a few seconds.
    with tqdm(
        total=num_samples,
        desc=f"null distribution for {sizes} scores, once",
        delay=3,
        mininterval=1,
    ) as bar:
        table = compute_null_table(
            family=family,
            looks=looks,
            significance=significance,
            num_samples=num_samples,
            on_progress=bar.update,
        )
    others: dict[str, NDArray[Any]] = {
        "thetas": table.thetas,
        "scales": table.scales,
        "sparse_from": table.sparse_from,
    }
    return {**table.critical, **others}
