"""Runs `check_neighbours` on whole trainings, and writes a table of what finds which.

`python -m benchmarks.neighbours` prints the rows; `--write` keeps them in
docs/results/check-neighbours.tsv.
`--seeds 5` repeats the right ones. The trainings are the lists `own_whole_trainings` and
`blind_whole_trainings` of `benchmarks.error_lists`.
"""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks import error_lists
from benchmarks.error_lists import blind_whole_trainings
from benchmarks.error_lists.own_whole_trainings import Training, records
from dpcanary.checking.neighbours.neighbours_check import NeighboursCheck, check_neighbours
from dpcanary.core.files import write_text
from dpcanary.errors import InputError

TABLE = Path(__file__).parents[1] / "docs/results/check-neighbours.tsv"


def checked(training: Training, *, seed: int = 0) -> NeighboursCheck:
    """The result of the check of a training."""
    dataset = (training.records or records)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of Opacus and of the trainings
        return check_neighbours(training.train, dataset, seed=seed, time_limit=120.0)


def failing(result: NeighboursCheck) -> list[str]:
    """Names of the properties that do not hold, causes first."""
    return [finding.name for finding in result.ranked if not finding.holds]


def is_named(training: Training, names: list[str]) -> bool:
    """Whether a property fails that names the error; of blind trainings, whether any fails."""
    expected = training.expected
    return bool(names) and (not expected or any(name in expected for name in names))


def listed(origin: str, kind: str) -> dict[str, Training]:
    """The trainings of a list; a blind one says in words what is wrong or unusual."""
    return {
        name: entry
        if isinstance(entry, Training)
        else Training(entry[0], (), blind_whole_trainings.records)
        for name, entry in error_lists.entries("whole trainings", origin, kind.upper()).items()
    }


def wrong_rows(trainings: dict[str, Training]) -> Iterator[tuple[bool, str, str]]:
    """Whether each is found, what finds it, and an empty cell."""
    for training in trainings.values():
        try:
            names = failing(checked(training))
        except InputError as error:
            yield False, str(error), ""
            continue
        is_found = is_named(training, names)
        more = f", {len(names) - 1} more" if len(names) > 1 else ""
        shown = f"{names[0]}{more}" if names else "not found"
        yield is_found, f"{shown}{'' if is_found or not names else ' (not named)'}", ""


def right_rows(trainings: dict[str, Training], seeds: int) -> Iterator[tuple[bool, str, str]]:
    """Whether each passes with all seeds, in words, and the largest difference of a sum in C."""
    for training in trainings.values():
        try:
            results = [checked(training, seed=seed) for seed in range(seeds)]
        except InputError as error:
            yield False, str(error), ""
            continue
        count = sum(result.passes for result in results)
        failed = sorted({name for result in results for name in failing(result)})
        words = f" ({', '.join(failed)})" if failed else ""
        largest = max(result.largest for result in results)
        yield count == seeds, f"passes with {count} of {seeds} seeds{words}", f"{largest:.2f}"


def main() -> None:
    """Prints the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="of each right training")
    parser.add_argument("--only", nargs="*", help="names of trainings")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {TABLE.name}")
    args = parser.parse_args()
    kept: list[tuple[str, ...]] = []
    for origin in error_lists.LISTS["whole trainings"]:
        for kind in ("wrong", "right"):
            trainings = listed(origin, kind)
            names = [name for name in trainings if not args.only or name in args.only]
            chosen = {name: trainings[name] for name in names}
            rows = wrong_rows(chosen) if kind == "wrong" else right_rows(chosen, args.seeds)
            good = 0
            for name, (is_good, *cells) in zip(names, rows, strict=True):
                print(name, *cells, sep="\t", flush=True)
                kept.append((origin, kind, name, *cells))
                good += is_good
            print(f"{origin} {kind} trainings judged rightly: {good} of {len(names)}")
    if args.write:
        columns = ["list", "kind", "training", "result", "largest_difference_in_C"]
        table = pd.DataFrame(kept, columns=columns)
        write_text(TABLE, table.to_csv(sep="\t", index=False))


if __name__ == "__main__":
    main()
