"""Wrong and right loops, models and trainings, by which the checks are judged: data, not programs.

`WRONG` has what a check must find, and `RIGHT` what it must pass.

| modules | written by | run by |
|---|---|---|
| `own_loops`, `own_*_loops` | the authors of the checks, with the checks | `benchmarks.check` |
| `unseen_loops`, `unseen_*_loops` | people who did not know `check` or its lists | the same |
| `*_blind_wrong_loops`, `*_blind_right_loops` | people who had read the documentation | the same |
| `*_blind_models`, `*_blind_watched_trainings` | the same people | `test_blind_lists.py` |
| `own_whole_trainings` | the authors of the checks | `benchmarks.neighbours` |
| `blind_whole_trainings` | somebody who had read the documentation | the same |

Authors of blind lists had read the documentation alone, in five rounds. Unseen and blind lists were
written before a check was run on any of their entries, and are evidence: but for their form, they
stay as written, so their style differs. `found_by` in unseen lists was added after they were run.
"""

from importlib import import_module
from typing import Any

# The number of each round of blind lists by its name, which is not its number for the first one.
ROUNDS = {"blind": "first"} | {number: number for number in ("second", "third", "fourth", "fifth")}
# The modules of each list, by what the list contains and its name.
LISTS = {
    "loops": {
        "main": (
            *("own_loops", "own_jax_loops", "unseen_loops"),
            *("unseen_clipping_loops", "unseen_noise_loops", "unseen_sampling_loops"),
        ),
        "further": ("own_further_loops",),
        **{
            name: (f"{number}_blind_wrong_loops", f"{number}_blind_right_loops")
            for name, number in ROUNDS.items()
        },
    },
    "models": {name: (f"{number}_blind_models",) for name, number in ROUNDS.items()},
    "watched trainings": {
        name: (f"{number}_blind_watched_trainings",) for name, number in ROUNDS.items()
    },
    "whole trainings": {"own": ("own_whole_trainings",), "blind": ("blind_whole_trainings",)},
}


def entries(content: str, name: str, kind: str) -> dict[str, Any]:
    """The entries of a list by their names, each in the form of its module.

    Args:
        content: a key of `LISTS`.
        name: of the list.
        kind: `WRONG`, `RIGHT`, or `NOT_FOUND`: wrong, and known to pass the check.
    """
    by_name: dict[str, Any] = {}
    for module in LISTS[content][name]:
        of_module = getattr(import_module(f"{__name__}.{module}"), kind, {})
        by_name |= (
            of_module if isinstance(of_module, dict) else {loop.name: loop for loop in of_module}
        )
    return by_name
