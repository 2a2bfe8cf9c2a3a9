"""Finds the null table of a bound: in this package, in memory, on disk, or by computing it once."""

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from platformdirs import user_cache_path
from tqdm import tqdm

from dpcanary.core.files import read_arrays, sha256_of_text, write_arrays
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import LEAST_CALIBRATED_SIGNIFICANCE
from dpcanary.estimation.families import GDP, Family, direct_family
from dpcanary.estimation.null_distributions.statistics import (
    FEW_SCORES,
    SHARES,
    SPARSE_SHARE,
    NullTable,
    components_of,
)

Arrays = Mapping[str, NDArray[Any]]

# Part of every file's name. Raised when the content of the files changes.
_FORMAT = 5


def cache_folder() -> Path:
    """Where the files are: `DPCANARY_CACHE`, or the user's folder for caches."""
    return Path(os.environ.get("DPCANARY_CACHE") or user_cache_path("dpcanary"))


def cached_arrays(kind: str, *, about: str, compute: Callable[[], Arrays]) -> Arrays:
    """The arrays of a computation, from its file if there is one.

    Jobs that need the same arrays at the same time wait for the one that computes them.

    Args:
        kind: beginning of the file's name.
        about: all that the result depends on. It is also written into the file.
        compute: makes the arrays, if they are not there.
    """
    path = cache_folder() / f"{kind}-{sha256_of_text(f'{_FORMAT} {about}')[:24]}.npz"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_private(path.parent)
        kept = _read(path, about)
        if kept is not None:
            return kept
        with FileLock(path.with_suffix(".lock")):
            kept = _read(path, about)  # another job may have computed it meanwhile
            if kept is None:
                kept = dict(compute())
                _keep(path, about, kept)
            return kept
    except OSError as error:
        logging.warning("%s is not kept for later: %s; set DPCANARY_CACHE", kind, error)
        return compute()


def _keep(path: Path, about: str, arrays: dict[str, NDArray[Any]]) -> None:
    try:
        write_arrays(path, header={"about": about, "sha256": _digest(arrays)}, arrays=arrays)
    except InputError as error:  # for example, the disk is full: the values are there
        logging.warning("%s; they are not kept for later", error)


def _check_private(folder: Path) -> None:
    """Raises an OSError if others than the user may write to the folder."""
    status = folder.stat()
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(f"others may write to {folder}, or own it")


def _read(path: Path, about: str) -> dict[str, NDArray[Any]] | None:
    """The content of a file; None if it is missing, damaged, or of another computation."""
    try:
        header, arrays = read_arrays(path)
    except InputError:
        return None
    is_right = header.get("about") == about and header.get("sha256") == _digest(arrays)
    return arrays if is_right else None


def _digest(arrays: Arrays) -> str:
    """A hash of the arrays' names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


Sizes = tuple[int, int]

SIGNIFICANCE = 0.05
# Computed by `python -m release.packaged_tables`.
FILE, DIRECT_FILE = "null_tables.npz", "null_tables_direct.npz"
# For conversion `direct` at this delta, tables of exactly these sizes of both worlds.
DIRECT_DELTA = 1e-5
DIRECT_SIZES = (50, 100, 125, 250, 500, 1_000, 2_500, 5_000, 12_500)
# Worlds whose sizes differ by more, or that are smaller and not tabulated, have own tables.
_LARGEST_RATIO, _FEWEST_BETWEEN = 1.2, 160
_LARGEST_SIZE = 262_144
# Between tabulated sizes, bounds up to these shares of the largest theta are those of a table of
# their own. Beyond, few errors are left, statistics take few values, and these do not interpolate.
_TRUSTED_SHARE, _TRUSTED_SHARE_OF_MANY, _MANY_SCORES = 0.65, SPARSE_SHARE, 1_000
TABULATED = (
    *range(4, FEW_SCORES),
    *(round(2 ** (k / 3)) for k in range(18, 37)),
    *(2**k for k in range(13, 19)),
)


def packaged_table(*, sizes: Sizes, significance: float) -> NullTable | None:
    """The table for two worlds of these sizes, or None if it is not in the package.

    Between two tabulated sizes, critical values are interpolated in 1/sqrt(n), in which they are
    nearly linear. (Above `MOST_DISTINCT`, they are lower; just beyond it, those between are too
    large, which is safe.) For sizes that differ a little, n is their harmonic mean. Such a table
    can be trusted up to a part of the largest theta.
    """
    small, large = sorted(sizes)
    if significance != SIGNIFICANCE or large > _LARGEST_SIZE or large > _LARGEST_RATIO * small:
        return None
    if small < _FEWEST_BETWEEN and (small != large or small not in TABULATED):
        return None
    tables = {name: values.astype(np.float64) for name, values in _tables(FILE).items()}
    size = float(small) if small == large else 2 / (1 / small + 1 / large)
    tabulated = tables["sizes"]
    above = int(np.searchsorted(tabulated, size))
    is_there = tabulated[above] == size
    low = above if is_there else above - 1
    ends = tabulated[low : low + 2] ** -0.5
    part = 0.0 if is_there else (ends[0] - size**-0.5) / (ends[0] - ends[1])

    def between(name: str) -> NDArray[np.float64]:
        values = tables[name]
        if is_there:
            return np.asarray(values[low])
        return np.asarray((1 - part) * values[low] + part * values[low + 1])

    end = float(between("ends"))
    share = _TRUSTED_SHARE_OF_MANY if small >= _MANY_SCORES else _TRUSTED_SHARE
    components = components_of(GDP)
    return NullTable(
        thetas=SHARES * end,
        components=components,
        critical={rule: between(rule)[None].astype(np.float32) for rule in components},
        scales=between("scales")[None].astype(np.float32),
        sparse_from=np.array([0.0 if small < FEW_SCORES else SPARSE_SHARE * end]),
        trusted_to=np.inf if is_there and small == large else end * share,
    )


def packaged_direct_table(*, sizes: Sizes, significance: float) -> NullTable | None:
    """The table for conversion `direct` that `own_table` would compute, if the package has it."""
    if significance != SIGNIFICANCE or sizes[0] != sizes[1] or sizes[0] not in DIRECT_SIZES:
        return None
    index = DIRECT_SIZES.index(sizes[0])
    arrays = {name: values[index] for name, values in _tables(DIRECT_FILE).items()}
    return _table_of(arrays, direct_family(DIRECT_DELTA))


@cache
def _tables(name: str) -> dict[str, NDArray[Any]]:
    with as_file(files(__package__) / name) as path:
        _, arrays = read_arrays(path)
    return arrays


def calibrated_bound(
    *,
    family: Family,
    looks: tuple[Sizes, ...],
    look: int,
    significance: float,
    rule: str,
    statistics: NDArray[np.float32],
) -> float:
    """The lower bound on theta that a rule gives at a look from its `observed_statistics`."""
    table = null_table(family=family, looks=looks, significance=significance)
    bound = table.bound(rule=rule, look=look, statistics=statistics)
    if bound <= table.trusted_to:
        return bound
    own = own_table(family=family, looks=looks, significance=significance)
    return own.bound(rule=rule, look=look, statistics=statistics)


@lru_cache(maxsize=256)
def null_table(*, family: Family, looks: tuple[Sizes, ...], significance: float) -> NullTable:
    """The critical values for some numbers of scores, from the package if it has them."""
    if significance < LEAST_CALIBRATED_SIGNIFICANCE:
        raise InputError(
            f"significance is {significance:g}; rules with a simulated null distribution need at"
            f" least {LEAST_CALIBRATED_SIGNIFICANCE:g}: use threshold_rule 'simultaneous'"
        )
    if family is GDP and len(looks) == 1:
        packaged = packaged_table(sizes=looks[0], significance=significance)
        if packaged is not None:
            return packaged
    if family is direct_family(DIRECT_DELTA) and len(looks) == 1:
        packaged = packaged_direct_table(sizes=looks[0], significance=significance)
        if packaged is not None:
            return packaged
    return own_table(family=family, looks=looks, significance=significance)


@lru_cache(maxsize=256)
def own_table(*, family: Family, looks: tuple[Sizes, ...], significance: float) -> NullTable:
    """The critical values for exactly these numbers of scores, computed once."""
    arrays = cached_arrays(
        "null",
        about=f"{family.name}; looks {looks}; significance {significance!r}",
        compute=lambda: computed_arrays(family, looks, significance),
    )
    return _table_of(arrays, family)


def _table_of(arrays: Arrays, family: Family) -> NullTable:
    components = components_of(family)
    return NullTable(
        thetas=arrays["thetas"],
        components=components,
        critical={rule: arrays[rule] for rule in components},
        scales=arrays["scales"],
        sparse_from=arrays["sparse_from"],
    )


def computed_arrays(
    family: Family, looks: tuple[Sizes, ...], significance: float
) -> dict[str, NDArray[Any]]:
    """The arrays of a table that is simulated here, with a progress bar."""
    # Compiles, which takes a while to import; most bounds need no new table.
    from dpcanary.estimation.null_distributions.simulated_nulls import (
        compute_null_table,
        default_num_samples,
    )

    num_samples = default_num_samples(looks, significance)
    n0, n1 = looks[-1]
    more = f" at {len(looks)} looks" if len(looks) > 1 else ""
    # Nothing is shown of what takes less than a few seconds.
    with tqdm(
        total=num_samples,
        desc=f"critical values for {n0:,} + {n1:,} scores{more}, kept for later",
        bar_format="{desc}: {percentage:.0f} %, {remaining} left",
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
    return {
        **table.critical,
        "thetas": table.thetas,
        "scales": table.scales,
        "sparse_from": table.sparse_from,
    }
