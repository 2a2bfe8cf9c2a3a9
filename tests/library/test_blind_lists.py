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

TRAININGS = blind_trainings.WRONG | blind_trainings.RIGHT
# Of each later list: functions of nothing, and whether they are right.
LATER_TRAININGS = {
    f"{title}: {name}": (entry[0], is_right)
    for title, module in (("second", second_blind_trainings), ("third", third_blind_trainings))
    for entries, is_right in ((module.WRONG, False), (module.RIGHT, True))
    for name, entry in entries.items()
}
LATER_MODELS = {
    f"{title}: {name}": (entry[0], is_right)
    for title, module in (("second", second_blind_models), ("third", third_blind_models))
    for entries, is_right in ((module.WRONG, False), (module.RIGHT, True))
    for name, entry in entries.items()
}
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


@pytest.mark.parametrize("name", blind_models.WRONG | blind_models.RIGHT)
def test_models(name):
    case = (blind_models.WRONG | blind_models.RIGHT)[name][0]()
    result = check_model(case.module, case.records, case.loss)
    assert result.passes == (name in blind_models.RIGHT), str(result)


@pytest.mark.parametrize("name", LATER_MODELS)
def test_models_of_later_lists(name):
    torch.manual_seed(0)
    build, is_right = LATER_MODELS[name]
    (module, loss), records = build()
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


def watched(training):
    """The result of a training whose random numbers are the same in each run of the tests."""
    torch.manual_seed(0)
    return training(partial(watch, seed=1))


@pytest.mark.long
@pytest.mark.parametrize("name", TRAININGS)
def test_watched_trainings(name):
    result = watched(TRAININGS[name][0])
    assert (result.alarm is None) == (name in blind_trainings.RIGHT), str(result)


@pytest.mark.long
@pytest.mark.parametrize("name", some_of(LATER_TRAININGS, 12))
def test_watched_trainings_of_later_lists(name):
    torch.manual_seed(0)
    train, is_right = LATER_TRAININGS[name]
    result = train()
    assert (result.alarm is None) == is_right, str(result)


def test_a_buffer_that_the_loop_writes_raises_the_alarm():
    result = watched(blind_trainings.buffer_of_means)
    assert (result.alarm.step, result.alarm.kind) == (21, "changed_parameters")
    assert "0.mean changed outside of forward passes" in result.alarm.message
