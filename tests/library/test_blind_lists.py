"""What was written from the documentation alone gets the right verdict, but for known limits."""

from functools import partial

import pytest
import torch
from sampling import some_of

from benchmarks import (
    blind_models,
    blind_trainings,
    second_blind_models,
    second_blind_trainings,
    third_blind_models,
    third_blind_trainings,
)
from benchmarks.check import LISTS
from dpcanary import watch
from dpcanary.own_training import check_model

# Opacus warns of its random numbers, and PyTorch of its hooks.
pytestmark = pytest.mark.filterwarnings("ignore")


def cases(first, second, third) -> dict[str, tuple]:
    """Of the modules of three lists: what builds or trains, and whether it is right."""
    return {
        f"{title}: {name}": (entry[0], is_right)
        for title, module in (("blind", first), ("second", second), ("third", third))
        for entries, is_right in ((module.WRONG, False), (module.RIGHT, True))
        for name, entry in entries.items()
    }


MODELS = cases(blind_models, second_blind_models, third_blind_models)
TRAININGS = cases(blind_trainings, second_blind_trainings, third_blind_trainings)
# Its infinite gradients are masked.
RIGHT_BY_MISTAKE = {"second: infinite_root"}
# Private, and called wrong: docs/check.md says so.
CALLED_WRONG = {
    *("outliers_dropped", "random_coordinates", "centred_on_noisy_average"),
    *("budgets with their noise", "bound that adapts privately"),
}
# A leak, and not found: gradients at parameters that half of a batch has moved without noise.
MISSED = {"first half moves before the noise"}
LOOPS = [
    (loop, is_right)
    for title in ("blind", "second", "third")
    for loops, is_right in zip(LISTS[title], (False, True), strict=True)
    for loop in loops
]
QUICK = {"gradients at clean parameters", "kept in a ball"}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    torch.manual_seed(0)
    build, is_right = MODELS[name]
    case = build()
    if name.startswith("blind"):
        module, records, loss = case.module, case.records, case.loss
    else:
        (module, loss), records = case
    result = check_model(module, records, loss)
    assert result.passes == (is_right or name in RIGHT_BY_MISTAKE), str(result)


@pytest.mark.long
@pytest.mark.parametrize(
    ("loop", "is_right"),
    some_of(sorted(LOOPS, key=lambda case: case[0].name not in QUICK), 18),
    ids=lambda value: getattr(value, "name", value),
)
def test_loops(loop, is_right):
    result = loop.check()
    expected = (is_right and loop.name not in CALLED_WRONG) or loop.name in MISSED
    assert result.passes == expected, str(result)


IN_ALL_RUNS = [name for name in TRAININGS if name.startswith("blind")]
LATER = some_of([name for name in TRAININGS if name not in IN_ALL_RUNS], 12)


@pytest.mark.long
@pytest.mark.parametrize("name", [*IN_ALL_RUNS, *LATER])
def test_watched_trainings(name):
    torch.manual_seed(0)
    train, is_right = TRAININGS[name]
    result = train(partial(watch, seed=1)) if name in IN_ALL_RUNS else train()
    assert (result.alarm is None) == is_right, str(result)


def test_a_buffer_that_the_loop_writes_raises_the_alarm():
    torch.manual_seed(0)
    result = blind_trainings.buffer_of_means(partial(watch, seed=1))
    assert (result.alarm.step, result.alarm.kind) == (21, "changed_parameters")
    assert "0.mean changed outside of forward passes" in result.alarm.message
