"""Computes the tables of critical values that the package has, which takes hours, and writes them.

Printed are the rows of `dpcanary.estimation.error_rates.LOCAL_LEVELS`.
"""

from pathlib import Path

import numpy as np
from tqdm import tqdm

from dpcanary.core.files import write_arrays
from dpcanary.estimation import error_rates
from dpcanary.estimation.families import GDP, direct_family
from dpcanary.estimation.null_distributions import null_tables as tables
from dpcanary.estimation.null_distributions.simulated_nulls import compute_null_table
from dpcanary.estimation.null_distributions.statistics import components_of


def make_tables(path: Path) -> None:
    """Writes the tables for conversion `gdp`."""
    of_sizes = [
        compute_null_table(
            family=GDP,
            looks=[(size, size)],
            significance=tables.SIGNIFICANCE,
            # The more scores, the fewer samples the critical values need. If only some thresholds
            # are distinguished, samples cost little.
            num_samples=10_000
            if size > error_rates.MOST_DISTINCT
            else int(100_000 * min(1.0, (500 / size) ** 0.6)),
        )
        for size in tqdm(tables.TABULATED, desc="sizes")
    ]
    critical = {
        rule: np.concatenate([table.critical[rule] for table in of_sizes])
        for rule in components_of(GDP)
    }
    arrays = {
        "sizes": np.array(tables.TABULATED),
        "ends": np.array([table.thetas[-1] for table in of_sizes]),
        "scales": np.concatenate([table.scales for table in of_sizes]),
        **critical,
    }
    write_arrays(path, header={"significance": tables.SIGNIFICANCE}, arrays=arrays)


def make_direct_tables(path: Path) -> None:
    """Writes the tables for conversion `direct`."""
    family = direct_family(tables.DIRECT_DELTA)
    of_sizes = [
        tables.computed_arrays(family, ((size, size),), tables.SIGNIFICANCE)
        for size in tables.DIRECT_SIZES
    ]
    arrays = {name: np.stack([table[name] for table in of_sizes]) for name in of_sizes[0]}
    header = {"delta": tables.DIRECT_DELTA, "sizes": tables.DIRECT_SIZES}
    write_arrays(path, header=header, arrays=arrays)


def print_local_levels() -> None:
    """Prints the rows of `LOCAL_LEVELS`, rounded down."""
    sizes = [round(1_000 * 1.1**power) for power in range(37)]
    for index, size in enumerate([*sizes, error_rates.MOST_DISTINCT]):
        level = error_rates.compute_local_level(num_scores=size, level=error_rates.LEVEL)
        end = "\n" if index % 4 == 3 else " "
        print(f"({size}, {level * (1 - 5e-5):.4e}),", end=end, flush=True)


if __name__ == "__main__":
    FOLDER = Path(tables.__file__).parent
    make_tables(FOLDER / tables.FILE)
    make_direct_tables(FOLDER / tables.DIRECT_FILE)
    print_local_levels()
