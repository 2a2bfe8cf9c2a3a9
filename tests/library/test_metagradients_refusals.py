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
DAMAGED = Records(np.where(DATA.features > 1, np.inf, DATA.features), DATA.labels)
LABELS = np.array([0, 1, 2, 1])
PIXELS = np.linspace(-1, 1, 20).reshape(4, 5)
NO = np.array([], np.int64)
BATCH = Batch(np.array([0, 3]), np.array([1]))
NUM_BYTES = 8 * 39  # of the parameters of `net`


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def task(
    module: nn.Module | None = None, *, records: Records = DATA, labels: np.ndarray = LABELS
) -> Task:
    return Task(module=module or net(), records=records, canary_labels=labels)


def training(
    module: nn.Module | None = None, *, rate: float = 0.1, last: Batch = BATCH
) -> Training:
    own = task(module)
    start = nn.utils.parameters_to_vector(own.module.parameters())
    return Training(own, start, (BATCH,) * 19 + (last,), Descent((rate,) * 20, momentum=0.5))


def gradient(
    one: Training | None = None,
    *,
    pixels: np.ndarray = PIXELS,
    objective: Callable[[Tensor, Tensor], Tensor] | None = None,
    memory_budget: int | None = None,
) -> Tensor:
    one = one or training()
    return metagradient(
        training=one,
        pixels=torch.as_tensor(pixels),
        objective=objective or loss_gap_objective(one.task, np.array([1, 2])),
        memory_budget=memory_budget,
    ).gradient


def draw(labels: np.ndarray, batch_size: int) -> object:
    own = task(labels=labels)
    return drawn_training(own, descent=Descent((0.1,)), batch_size=batch_size, seed=0, index=0)


def optimised(**changes: object) -> object:
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
    return optimise_canaries(**{**arguments, **changes})


def smoothness_along_nothing() -> object:
    one = training()
    return metasmoothness(
        training=one,
        pixels=torch.as_tensor(PIXELS),
        direction=torch.zeros(4, 5),
        step_size=0.1,
        objective=loss_gap_objective(one.task, np.array([1])),
    )


class Explosive(nn.Module):
    """Its loss grows without bound along training."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 5, dtype=torch.float64))

    def forward(self, features: Tensor) -> Tensor:
        return (features @ self.weight.T) ** 3


@pytest.mark.parametrize("run", [gradient, lambda one: trained(one, torch.as_tensor(PIXELS))])
def test_divergence_names_the_step(run: Callable[[Training], Tensor]):
    one = training(Explosive(), rate=1e3)
    with pytest.raises(
        InputError, match=r"diverged: the loss at step \d+ of 20 is .*lower the lea"
    ):
        run(one)
    with pytest.raises(InputError, match="parameters after step 1 of 1 are not finite"):
        run(Training(one.task, one.start * 1e3, one.batches[:1], Descent((1e308,))))


def test_a_layer_that_draws_random_numbers_is_noticed():
    module = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    with pytest.raises(InputError, match=r"step 20 of 20 had loss .* as dropout does"):
        gradient(training(module))
    gradient(training(module.eval()))


def test_the_memory_that_is_asked_for_is_enough():
    with pytest.raises(InputError, match=r"holds 5 vectors of parameters; .* needs at least 11"):
        gradient(memory_budget=5 * NUM_BYTES + 1)
    gradient(memory_budget=11 * NUM_BYTES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient(memory_budget=0), "memory_budget is 0"),
        (lambda: planned_segments(20, 10), r"holds 10 vectors .* at least 11"),
        (
            lambda: gradient(pixels=PIXELS[:3]),
            r"have shape \(3, 5\); 4 canaries beside records of shape \(5,\) need shape",
        ),
        (lambda: gradient(pixels=PIXELS[:, :4]), r"have shape \(4, 4\).* need shape \(4, 5\)"),
        (lambda: gradient(pixels=PIXELS * np.nan), "not all finite; remove nan"),
        (lambda: gradient(objective=lambda p, z: z.flatten()), r"shape \(20,\); it must be one"),
        (lambda: gradient(objective=lambda p, z: torch.tensor(1.0)), "one number that depends on"),
        (lambda: gradient(objective=lambda p, z: (0 * z).sqrt().sum()), "gradient is not finite"),
        (lambda: Descent(()), "learning_rates is empty"),
        (lambda: Descent((0.1, -1.0)), "the learning rate of step 2 is -1.0"),
        (lambda: Descent((float("nan"),)), "the learning rate of step 1 is nan"),
        (lambda: Descent((0.1,), momentum=1.0), "momentum is 1.0"),
        (lambda: Descent((0.1,), weight_decay=-1.0), "weight_decay is -1.0"),
        (lambda: Descent((0.1,), nesterov=True), "nesterov is on without momentum"),
        (
            lambda: Training(task(), torch.zeros(39), (BATCH,) * 20, Descent((0.1,))),
            "20 batches and 1 learning rates",
        ),
        (
            lambda: Training(task(), torch.zeros(38), (BATCH,), Descent((0.1,))),
            r"start has shape \(38,\); the module has 39 parameters",
        ),
        (lambda: training(last=Batch(NO, NO)), "the batch of step 20 is empty"),
        (
            lambda: training(last=Batch(np.array([6]), NO)),
            "step 20 names record 6 to 6; there are 0 to 5",
        ),
        (
            lambda: training(last=Batch(NO, np.array([-1, 4]))),
            "step 20 names canary -1 to 4; there are 0 to 3",
        ),
        (
            lambda: task(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()),
            r"has a buffer, 1.running_mean, .* use group norm",
        ),
        (
            lambda: task(nn.Linear(5, 2).double()),
            r"labels of the records are 0 to 2; .* for 0 to 1",
        ),
        (lambda: task(labels=np.array([0, 3])), "labels of the canaries are 0 to 3"),
        (lambda: task(labels=NO), "there are 6 records and 0 canaries"),
        (lambda: task(records=DAMAGED), "features of the records are not all finite"),
        (lambda: draw(LABELS[:3], 2), "3 canaries cannot be split into halves"),
        (lambda: draw(LABELS, 9), "batch_size 9 is more than the 6 records and 2 inserted"),
        (
            lambda: shuffled_batches(
                num_records=3,
                inserted=NO,
                batch_size=0,
                num_steps=1,
                stream=np.random.default_rng(0),
            ),
            "batch_size is 0",
        ),
        (lambda: optimised(step_size=0.0), "step_size is 0.0"),
        (lambda: optimised(num_metasteps=0), "num_metasteps is 0"),
        (lambda: optimised(lower=1.0, upper=-1.0), "lower 1.0 is not below upper -1.0"),
        (lambda: optimised(upper=0.5), "canary 3 starts outside the limits"),
        (
            lambda: optimised(lower=np.full((4, 5), -1.0)),
            r"lower has shape \(4, 5\), .* record's \(5,\)",
        ),
        (lambda: optimised(upper=np.ones(3)), r"upper has shape \(3,\), .* record's \(5,\)"),
        (smoothness_along_nothing, "the direction changes nothing"),
        (lambda: resnet9(width=0), "width is 0; ResNet-9 needs an even one"),
        (lambda: resnet9(width=3), "width is 3; ResNet-9 needs an even one"),
    ],
)
def test_what_is_refused(call: Callable[[], object], message: str):
    with pytest.raises(InputError, match=message):
        call()
