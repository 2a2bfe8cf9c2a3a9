"""What metagradients refuse, and what they say."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpcanary.adversaries.metagradient import drawn_training, optimise_canaries
from dpcanary.errors import InputError
from dpcanary.metagradients.reverse import (
    loss_gap_objective,
    metagradient,
    metasmoothness,
    planned_segments,
)
from dpcanary.metagradients.training import (
    Batch,
    Descent,
    Task,
    Training,
    shuffled_batches,
    trained,
)
from dpcanary.records import Records
from dpcanary.training.residual_networks import resnet9

DATA = Records(np.random.default_rng(0).normal(size=(6, 5)), [0, 1, 2, 0, 1, 2])
LABELS = np.array([0, 1, 2, 1])
PIXELS = np.linspace(-1, 1, 20).reshape(4, 5)
NO = np.array([], np.int64)
BATCH = Batch(np.array([0, 3]), np.array([1]))


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def task(module: nn.Module | None = None) -> Task:
    return Task(module=module or net(), records=DATA, canary_labels=LABELS)


def training(
    *,
    rate: float = 0.1,
    module: nn.Module | None = None,
) -> Training:
    own = task(module)
    start = nn.utils.parameters_to_vector(own.module.parameters())
    return Training(own, start, (BATCH,) * 20, Descent((rate,) * 20, momentum=0.5))


def gradient(
    one: Training,
    *,
    pixels: object = PIXELS,
    objective: Callable[[Tensor, Tensor], Tensor] | None = None,
    memory_budget: int | None = None,
) -> Tensor:
    return metagradient(
        training=one,
        pixels=torch.as_tensor(pixels),
        objective=objective or loss_gap_objective(one.task, np.array([1, 2])),
        memory_budget=memory_budget,
    ).gradient


class Explosive(nn.Module):
    """Its loss grows without bound along training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return (features @ self.weight.T) ** 3


@pytest.mark.parametrize("run", [gradient, lambda one: trained(one, torch.as_tensor(PIXELS))])
def test_divergence_names_the_step(run: Callable[[Training], Tensor]):
    with pytest.raises(
        InputError, match=r"diverged: the loss at step \d+ of 20 is .*lower the lea"
    ):
        run(training(module=Explosive(), rate=1e3))
    last = training(module=Explosive(), rate=1e3)
    one_step = Descent((1e308,))
    with pytest.raises(InputError, match="parameters after step 1 of 1 are not finite"):
        run(Training(last.task, last.start * 1e3, last.batches[:1], one_step))


def test_a_layer_that_draws_random_numbers_is_noticed():
    module = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    with pytest.raises(InputError, match=r"step 20 of 20 had loss .* as dropout does"):
        gradient(training(module=module))
    gradient(training(module=module.eval()))


def test_too_little_memory_is_refused_with_what_is_needed():
    one = training()
    vector = 8 * len(one.start)
    with pytest.raises(InputError, match=r"holds 5 vectors of parameters; .* needs at least 11"):
        gradient(one, memory_budget=5 * vector + 1)
    gradient(one, memory_budget=11 * vector)
    with pytest.raises(InputError, match="memory_budget is 0"):
        gradient(one, memory_budget=0)
    with pytest.raises(InputError, match=r"holds 10 vectors .* at least 11"):
        planned_segments(20, 10)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (PIXELS[:3], r"have shape \(3, 5\); 4 canaries beside records of shape \(5,\) need shape"),
        (PIXELS[:, :4], r"have shape \(4, 4\).* need shape \(4, 5\)"),
        (np.where(PIXELS == 1, np.nan, PIXELS), "not all finite; remove nan"),
    ],
)
def test_pixels(pixels: object, message: str):
    with pytest.raises(InputError, match=message):
        gradient(training(), pixels=pixels)


def test_objectives():
    with pytest.raises(InputError, match=r"shape \(20,\); it must be one number"):
        gradient(training(), objective=lambda parameters, pixels: pixels.flatten())
    with pytest.raises(InputError, match="must be one number that depends on"):
        gradient(training(), objective=lambda parameters, pixels: torch.tensor(1.0))
    with pytest.raises(InputError, match="metagradient is not finite"):
        gradient(training(), objective=lambda parameters, pixels: (0 * pixels).sqrt().sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rates": ()}, "learning_rates is empty"),
        ({"learning_rates": (0.1, -1.0)}, "the learning rate of step 2 is -1.0"),
        ({"learning_rates": (float("nan"),)}, "the learning rate of step 1 is nan"),
        ({"momentum": 1.0}, "momentum is 1.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"nesterov": True}, "nesterov is on without momentum"),
    ],
)
def test_descents(changes: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        Descent(**{"learning_rates": (0.1,), **changes})


def test_trainings():
    one = training()
    with pytest.raises(InputError, match="20 batches and 1 learning rates"):
        Training(one.task, one.start, one.batches, Descent((0.1,)))
    with pytest.raises(InputError, match=r"start has shape \(38,\); the module has 39 parameters"):
        Training(one.task, one.start[1:], one.batches, one.descent)


def test_tasks():
    with pytest.raises(InputError, match=r"has a buffer, 1.running_mean, .* use group norm"):
        task(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double())
    with pytest.raises(InputError, match=r"labels of the records are 0 to 2; .* for 0 to 1"):
        task(nn.Linear(5, 2).double())
    with pytest.raises(InputError, match="labels of the canaries are 0 to 3"):
        Task(module=net(), records=DATA, canary_labels=np.array([0, 3]))
    with pytest.raises(InputError, match="there are 6 records and 0 canaries"):
        Task(module=net(), records=DATA, canary_labels=NO)
    damaged = Records(np.where(DATA.features > 1, np.inf, DATA.features), DATA.labels)
    with pytest.raises(InputError, match="features of the records are not all finite"):
        Task(module=net(), records=damaged, canary_labels=LABELS)


def test_draws():
    own = Task(module=net(), records=DATA, canary_labels=LABELS[:3])
    with pytest.raises(InputError, match="3 canaries cannot be split into halves"):
        drawn_training(own, descent=Descent((0.1,)), batch_size=2, seed=0, index=0)
    with pytest.raises(InputError, match="batch_size 9 is more than the 6 records and 2 inserted"):
        drawn_training(task(), descent=Descent((0.1,)), batch_size=9, seed=0, index=0)
    stream = np.random.default_rng(0)
    with pytest.raises(InputError, match="batch_size is 0"):
        shuffled_batches(num_records=3, inserted=NO, batch_size=0, num_steps=1, stream=stream)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step_size": 0.0}, "step_size is 0.0"),
        ({"num_metasteps": 0}, "num_metasteps is 0"),
        ({"lower": 1.0, "upper": -1.0}, "lower 1.0 is not below upper -1.0"),
        ({"upper": 0.5}, "canary 3 starts outside the limits"),
        ({"lower": np.full((4, 5), -1.0)}, r"lower has shape \(4, 5\), .* record's \(5,\)"),
        ({"upper": np.ones(3)}, r"upper has shape \(3,\), .* record's \(5,\)"),
    ],
)
def test_metagradient_descents(changes: dict[str, object], message: str):
    arguments = {
        "module": net(),
        "records": DATA,
        "canaries": Records(PIXELS, LABELS),
        "descent": Descent((0.1,)),
        "batch_size": 2,
        "step_size": 0.1,
        "lower": -1.0,
        "upper": 1.0,
    }
    with pytest.raises(InputError, match=message):
        optimise_canaries(**{**arguments, **changes})


def test_directions_that_change_nothing():
    one = training()
    with pytest.raises(InputError, match="the direction changes nothing"):
        metasmoothness(
            training=one,
            pixels=torch.as_tensor(PIXELS),
            direction=torch.zeros(4, 5),
            step_size=0.1,
            objective=loss_gap_objective(one.task, np.array([1])),
        )


@pytest.mark.parametrize("width", [0, 3])
def test_widths(width: int):
    with pytest.raises(InputError, match=f"width is {width}; ResNet-9 needs an even one"):
        resnet9(width=width)
