"""Models and trainings that were written from the documentation alone get the right verdict."""

from functools import partial

import pytest
import torch

from benchmarks import blind_models, blind_trainings
from dpcanary import watch
from dpcanary.own_training import check_model

# Opacus warns of its random numbers, and PyTorch of its hooks.
pytestmark = pytest.mark.filterwarnings("ignore")

MODELS = blind_models.WRONG | blind_models.RIGHT
TRAININGS = blind_trainings.WRONG | blind_trainings.RIGHT


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    case = MODELS[name][0]()
    result = check_model(case.module, case.records, case.loss)
    assert result.passes == (name in blind_models.RIGHT), str(result)


def watched(training):
    """The result of a training whose random numbers are the same in each run of the tests."""
    torch.manual_seed(0)
    return training(partial(watch, seed=1))


@pytest.mark.long
@pytest.mark.parametrize("name", TRAININGS)
def test_watched_trainings(name):
    result = watched(TRAININGS[name][0])
    assert (result.alarm is None) == (name in blind_trainings.RIGHT), str(result)


def test_a_buffer_that_the_loop_writes_raises_the_alarm():
    result = watched(blind_trainings.buffer_of_means)
    assert (result.alarm.step, result.alarm.kind) == (21, "changed_parameters")
    assert "0.mean changed outside of forward passes" in result.alarm.message
