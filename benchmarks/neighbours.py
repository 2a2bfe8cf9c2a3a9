"""Runs `check_neighbours` on whole trainings, and writes a table of what finds which.

`python -m benchmarks.neighbours` prints the table; `--write` puts it into docs/neighbours_score.md.
`--seeds 5` repeats the right ones. The trainings of `benchmarks.blind_neighbour_trainings` are
added, if there are any: its `WRONG` and `RIGHT` map a name to a function of a dataset and the
expected kind in words, and its `records()` gives the dataset.
"""

import argparse
import importlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.neighbour_trainings import RIGHT, WRONG, Training, records
from dpcanary.checking.neighbours.neighbours_check import NeighboursCheck, check_neighbours
from dpcanary.errors import InputError

PAGE = Path(__file__).parents[1] / "docs/neighbours_score.md"
BLIND = "benchmarks.blind_neighbour_trainings"


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


def blind() -> tuple[dict[str, Training], dict[str, Training]]:
    """Trainings, wrong and right, that were written without knowledge of the check."""
    try:
        module = importlib.import_module(BLIND)
    except ModuleNotFoundError:
        return {}, {}

    def of(entries: dict[str, Any]) -> dict[str, Training]:
        return {name: Training(entry[0], (), module.records) for name, entry in entries.items()}

    return of(module.WRONG), of(module.RIGHT)


def wrong_rows(trainings: dict[str, Training]) -> Iterator[tuple[bool, str]]:
    """Whether each is found, and its row."""
    for name, training in trainings.items():
        try:
            names = failing(checked(training))
        except InputError as error:
            yield False, f"| {name} | {error} |"
            continue
        found = is_named(training, names)
        more = f", {len(names) - 1} more" if len(names) > 1 else ""
        shown = f"{names[0]}{more}" if names else "not found"
        yield found, f"| {name} | {shown}{'' if found or not names else ' (not named)'} |"


def right_rows(trainings: dict[str, Training], seeds: int) -> Iterator[tuple[bool, str]]:
    """Whether each passes with all seeds, and its row."""
    for name, training in trainings.items():
        try:
            results = [checked(training, seed=seed) for seed in range(seeds)]
        except InputError as error:
            yield False, f"| {name} | {error} | |"
            continue
        count = sum(result.passes for result in results)
        failed = sorted({one for result in results for one in failing(result)})
        largest = max(result.largest for result in results)
        words = f"{count} of {seeds}" + (f" ({', '.join(failed)})" if failed else "")
        yield count == seeds, f"| {name} | {words} | {largest:.2f} C |"


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="of each right training")
    parser.add_argument("--only", nargs="*", help="names of trainings")
    parser.add_argument("--write", action="store_true", help="the page of the docs")
    args = parser.parse_args()
    blind_wrong, blind_right = blind()
    lines: list[str] = []

    def add(title: str, head: str, rows: Iterator[tuple[bool, str]]) -> None:
        good = total = 0
        table = []
        for is_good, row in rows:
            print(row, flush=True)
            good, total = good + is_good, total + 1
            table.append(row)
        if total:
            columns = head.count("|") - 1
            text = [f"## {title}: {good} of {total}", "", head, "|---" * columns + "|", *table, ""]
            lines.extend(text)

    def some(trainings: dict[str, Training]) -> dict[str, Training]:
        return {n: one for n, one in trainings.items() if not args.only or n in args.only}

    head = "| wrong training | found by |"
    add("Wrong trainings that are found", head, wrong_rows(some(WRONG)))
    add("Blind wrong trainings that are found", head, wrong_rows(some(blind_wrong)))
    head = "| right training | passes with seeds | largest difference of a sum |"
    add("Right trainings that pass", head, right_rows(some(RIGHT), args.seeds))
    add("Blind right trainings that pass", head, right_rows(some(blind_right), args.seeds))
    print("\n".join(line for line in lines if line.startswith("##")))
    if args.write:
        start = PAGE.read_text(encoding="utf-8").split("## ")[0]
        PAGE.write_text(start + "\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
