"""How many of the wrong loops `dpcanary check` finds by name, and whether right ones pass.

    python -m benchmarks.check [--other-settings] [--seed N]

Prints two tables; that of docs/check.md is made by `--markdown`.
"""

import argparse
import logging
import warnings

from benchmarks import (
    jax_loops,
    loops,
    unseen_clipping_loops,
    unseen_loops,
    unseen_noise_loops,
    unseen_sampling_loops,
)
from benchmarks.loops import Loop
from dpcanary.own_training import MechanismCheck
from dpcanary.printing import print_table

WRONG = (
    *loops.WRONG,
    *jax_loops.WRONG,
    *unseen_loops.WRONG,
    *unseen_clipping_loops.WRONG,
    *unseen_noise_loops.WRONG,
    *unseen_sampling_loops.WRONG,
)
NOT_FOUND = unseen_clipping_loops.NOT_FOUND
RIGHT = (*loops.RIGHT, *jax_loops.RIGHT)
# Far from the defaults in everything.
OTHER_SETTINGS = {
    "max_grad_norm": 0.5,
    "learning_rate": 0.2,
    "sample_rate": 0.25,
    "noise_multiplier": 3.0,
    "num_records": 120,
}


def found_as(loop: Loop, found: MechanismCheck) -> str:
    """The properties that fail, first those that name the error; empty if none of these does."""
    failing = [one.name for one in found.findings if not one.holds]
    named = [name for name in loop.found_by if name in failing]
    others = len(failing) - len(named)
    return ", ".join([*named, *([f"{others} more"] if others else [])]) if named else ""


def main() -> None:
    """Runs all loops."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other-settings", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    settings = {"seed": arguments.seed, **(OTHER_SETTINGS if arguments.other_settings else {})}
    rows = [
        (loop.name, found_as(loop, loop.check(**settings)) or "not found")
        for loop in (*WRONG, *NOT_FOUND)
    ]
    if arguments.markdown:
        print("\n".join(f"| {name} | {how} |" for name, how in rows))
    else:
        print_table(["wrong loop", "found by"], rows)
    found = sum(how != "not found" for _, how in rows)
    print(f"\n{found} of {len(rows)} are found by name.\n")
    passes = [(loop.name, "passes" if loop.check(**settings).passes else "FAILS") for loop in RIGHT]
    print_table(["right loop", ""], passes)


if __name__ == "__main__":
    main()
