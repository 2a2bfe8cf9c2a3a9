"""How many of the wrong loops `dpcanary check` finds by name, and whether right ones pass.

    python -m benchmarks.check [--lists LIST ...] [--other-settings] [--seed N] [--write]

Prints two tables for each list: `main`, `further`, and five, `blind`, `second` and so on, that were
written from the documentation alone. `--write` keeps all rows in docs/results/check-loops.tsv.
"""

import argparse
import logging
import sys
import warnings
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from benchmarks import error_lists
from benchmarks.error_lists.own_loops import Loop
from dpcanary.core.files import write_text
from dpcanary.core.printing import print_table
from dpcanary.own_training import MechanismCheck

TABLE = Path(__file__).parents[1] / "docs/results/check-loops.tsv"
# Far from the defaults in everything.
OTHER_SETTINGS = {
    "max_grad_norm": 0.5,
    "learning_rate": 0.2,
    "sample_rate": 0.25,
    "noise_multiplier": 3.0,
    "num_records": 120,
}


def loops(name: str, kind: str) -> tuple[Loop, ...]:
    """The loops of a list; a blind one says in words what is wrong or unusual."""
    return tuple(
        entry if isinstance(entry, Loop) else Loop(title, entry[0])
        for title, entry in error_lists.entries("loops", name, kind).items()
    )


WRONG, NOT_FOUND, RIGHT = (loops("main", kind) for kind in ("WRONG", "NOT_FOUND", "RIGHT"))
# Wrong loops and right ones.
LISTS = {
    name: ((*loops(name, "WRONG"), *loops(name, "NOT_FOUND")), loops(name, "RIGHT"))
    for name in error_lists.LISTS["loops"]
}


def found_as(loop: Loop, check: MechanismCheck) -> str:
    """The properties that fail, first those that name the error; empty if none of these does."""
    failing = [finding.name for finding in check.ranked if not finding.holds]
    named = [name for name in loop.found_by or failing[:1] if name in failing]
    others = len(failing) - len(named)
    return ", ".join([*named, *([f"{others} more"] if others else [])]) if named else ""


def main() -> None:
    """Runs all loops."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lists", nargs="+", choices=LISTS, default=[*LISTS])
    parser.add_argument("--other-settings", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    settings = {"seed": arguments.seed, **(OTHER_SETTINGS if arguments.other_settings else {})}
    kept: list[tuple[str, str, str, str]] = []
    for title in arguments.lists:
        wrong, right = LISTS[title]
        rows = [
            (loop.name, found_as(loop, loop.check(**settings)) or "not found")
            for loop in tqdm(wrong, unit="loop", file=sys.stderr)
        ]
        passes = [
            (loop.name, "passes" if loop.check(**settings).passes else "FAILS")
            for loop in tqdm(right, unit="loop", file=sys.stderr)
        ]
        print_table(["wrong loop", "found by"], rows)
        print_table(["right loop", ""], passes)
        kept += [(title, "wrong", *row) for row in rows]
        kept += [(title, "right", *row) for row in passes]
        num_found = sum(how != "not found" for _, how in rows)
        print(f"\n{title}: {num_found} of {len(rows)} wrong loops are found.\n")
    if arguments.write:
        columns = ["list", "kind", "loop", "result"]
        table = pd.DataFrame(kept, columns=columns)
        write_text(TABLE, table.to_csv(sep="\t", index=False))


if __name__ == "__main__":
    main()
