"""The null tables of this package: family `gdp`, significance .05, worlds of about equal size.

`python -m dpcanary.estimation.calibration.packaged` makes the file again.
"""

from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from dpcanary.estimation.calibration.null_table import (
    FEW_SCORES,
    SHARES,
    SPARSE_SHARE,
    NullTable,
    components_of,
)
from dpcanary.estimation.families import GDP
from dpcanary.files import read_arrays, write_arrays

Sizes = tuple[int, int]

SIGNIFICANCE = 0.05
_FILE = "null_tables.npz"
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
    nearly linear. For sizes that differ a little, n is their harmonic mean. Such a table can be
    trusted up to a part of the largest theta.
    """
    small, large = sorted(sizes)
    if significance != SIGNIFICANCE or large > _LARGEST_SIZE or large > _LARGEST_RATIO * small:
        return None
    if small < _FEWEST_BETWEEN and (small != large or small not in TABULATED):
        return None
    tables = _tables()
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
    components = components_of(GDP)
    return NullTable(
        thetas=SHARES * end,
        components=components,
        critical={rule: between(rule)[None].astype(np.float32) for rule in components},
        scales=between("scales")[None].astype(np.float32),
        sparse_from=np.array([0.0 if small < FEW_SCORES else SPARSE_SHARE * end]),
        trusted_to=np.inf if is_there and small == large else end * _trusted_share(small),
    )


def _trusted_share(num_scores: int) -> float:
    return _TRUSTED_SHARE_OF_MANY if num_scores >= _MANY_SCORES else _TRUSTED_SHARE


@cache
def _tables() -> dict[str, NDArray[np.float64]]:
    with as_file(files(__package__) / _FILE) as path:
        _, arrays = read_arrays(path)
    return {name: values.astype(np.float64) for name, values in arrays.items()}


def num_samples_for(size: int) -> int:
    """Samples for one tabulated size; the more scores, the less the critical values need."""
    return int(100_000 * min(1.0, (500 / size) ** 0.6))


def make_tables(path: Path) -> None:
    """Computes all tables and writes them."""
    from dpcanary.estimation.calibration.compute import compute_null_table

    tables = []
    for size in tqdm(TABULATED, desc="sizes"):
        tables.append(
            compute_null_table(
                family=GDP,
                looks=[(size, size)],
                significance=SIGNIFICANCE,
                num_samples=num_samples_for(size),
            )
        )
    critical = {
        rule: np.concatenate([table.critical[rule] for table in tables])
        for rule in components_of(GDP)
    }
    arrays = {
        "sizes": np.array(TABULATED),
        "ends": np.array([table.thetas[-1] for table in tables]),
        "scales": np.concatenate([table.scales for table in tables]),
        **critical,
    }
    write_arrays(path, header={"significance": SIGNIFICANCE}, arrays=arrays)


if __name__ == "__main__":
    make_tables(Path(__file__).with_name(_FILE))
