"""Arguments of `train_ensemble`: each has its effect, or an error says what to give instead."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from opacus import GradSampleModule
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary import training as dc
from dpcanary.errors import InputError

N, NUM_CLASSES, TARGET = 20, 3, 4
FEATURES = np.random.default_rng(0).standard_normal((N, 5), np.float32)
LABELS = np.arange(N) % NUM_CLASSES
RECORDS = dc.Records(FEATURES, LABELS)
IMAGES = dc.Records(np.random.default_rng(1).standard_normal((N, 2, 6, 6), np.float32), LABELS)


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make()


LINEAR = seeded(lambda: nn.Linear(5, NUM_CLASSES))


def dpsgd(**changes: Any) -> dc.DPSGD:
    settings = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "learning_rate": 0.1,
        "record_steps": (1, 3),
        "sample_rate": 0.5,
    }
    return dc.DPSGD(**(settings | changes))


def train(**changes: Any) -> dc.EnsembleResult:
    arguments = {
        "module": LINEAR,
        "records": RECORDS,
        "canary": dc.GradientCanary(coordinate=7, target=TARGET),
        "dpsgd": dpsgd(),
        "runs": 8,
        "seed": 0,
        "keep_parameters": True,
    }
    return dc.train_ensemble(**(arguments | changes))


def assert_same(one: dc.EnsembleResult, two: dc.EnsembleResult) -> None:
    for name in ("runs", "worlds", "observations", "parameters"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def flat(module: nn.Module) -> NDArray[np.float32]:
    return parameters_to_vector(module.parameters()).detach().numpy()


# --- options by name ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adm"}, r"^unknown optimizer 'adm': did you mean 'adam'\?$"),
        ({"optimizer": torch.optim.SGD}, r"^unknown optimizer .*: known: sgd, momentum, adam$"),
        (
            {"adjacency": "replace"},
            r"^unknown adjacency 'replace': known: add_remove, zero_out, substitute$",
        ),
        (
            {"loss": nn.MSELoss()},
            r"^unknown loss MSELoss\(\): known: cross_entropy, binary_cross_entropy$",
        ),
        ({"sampling": "possion"}, r"^unknown sampling 'possion': did you mean 'poisson'\?$"),
        ({"max_grad_norm": 0}, r"^max_grad_norm is 0; it must be a finite number above 0$"),
        ({"max_grad_norm": float("nan")}, r"^max_grad_norm is nan; .* finite number above 0$"),
        ({"learning_rate": -0.1}, r"^learning_rate is -0.1; it must be a finite number above 0$"),
        ({"learning_rate": "0.1"}, r"^learning_rate is '0.1'; it must be a finite number above 0$"),
        (
            {"batch_size": 10},
            r"no batch_size .*: batches have no fixed size; give sample_rate = batch size /"
            r" number of records, or sampling='fixed'$",
        ),
        ({"record_steps": (3, 1)}, r"^record_steps must ascend from 1; they are \(3, 1\)$"),
        ({"record_steps": (2, 2)}, "record_steps must ascend from 1"),
        ({"record_steps": ()}, "record_steps must ascend from 1"),
        ({"record_steps": (0, 1)}, r"^record_steps is 0; .* whole number of at least 1$"),
        ({"record_steps": (1.5,)}, r"^record_steps is 1.5; .* whole number of at least 1$"),
        ({"sample_rate": 0.0}, r"^sample_rate is 0.0; .* above 0 and at most 1$"),
        ({"sample_rate": 1.5}, r"^sample_rate is 1.5; .* above 0 and at most 1$"),
        ({"noise_multiplier": -1.0}, r"^noise_multiplier is -1.0; .* of at least 0$"),
        ({"noise_multiplier": float("nan")}, r"^noise_multiplier is nan; .* finite number"),
        ({"momentum": 1.0}, r"^momentum is 1.0; .* of at least 0 and below 1$"),
        ({"momentum": -0.1}, r"^momentum is -0.1; .* of at least 0 and below 1$"),
    ],
)
def test_a_mechanism_s_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dpsgd(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initialisation": "fixd"}, r"^unknown initialisation 'fixd': did you mean 'fixed'\?$"),
        ({"observe": "logit"}, r"^unknown observation 'logit': did you mean 'logits'\?$"),
        ({"worlds": "coin"}, r"^unknown world assignment 'coin': did you mean 'coins'\?$"),
        ({"device": "gpu"}, r"^unknown device 'gpu': give cpu, cuda or auto$"),
        ({"device": "mps"}, r"^device 'mps' is not supported: give cpu, cuda or auto$"),
        ({"seed": -1}, r"^seed is -1; .* whole number of at least 0$"),
        ({"seed": 0.5}, r"^seed is 0.5; .* whole number of at least 0$"),
        ({"seed": "0"}, r"^seed is '0'; .* whole number of at least 0$"),
        ({"runs": [0, 1, 5, 2, 5]}, r"^run 5 is given twice: it would be the same model again$"),
        ({"runs": range(0, 8, 2)}, r"^all runs are in world 0, .* in world 1; give runs of both$"),
        ({"runs": [3, 1]}, r"^all runs are in world 1, .* odd ones in world 1; give runs of both$"),
        ({"runs": 0}, r"^runs must be indices from 0 to 4294967294, and at least one$"),
        ({"runs": [-1, 0]}, r"^runs must be indices from 0 .*, and at least one$"),
        ({"runs": [0, 2**32 - 1]}, r"^runs must be indices from 0 .*, and at least one$"),
        ({"canary": dc.GradientCanary(7, -1)}, "^canary: target is -1; it must be a whole number"),
        ({"canary": dc.GradientCanary(7, N)}, "^canary: target is 20, and there are 20 records$"),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(**changes)


# --- the start ---------------------------------------------------------------------------------


def starts(**changes: Any) -> NDArray[np.float32]:
    """Parameters of runs that never move."""
    found = train(dpsgd=dpsgd(learning_rate=lambda step: 0.0), **changes).parameters
    assert found is not None
    return found


@pytest.mark.parametrize("given", [{}, {"initialisation": "fixed"}])
def test_runs_start_from_the_module_s_own_parameters_by_default(given: dict[str, str]) -> None:
    for module in (LINEAR, *(seeded(WRAPPED[name]) for name in ("perceptron", "layer norm"))):
        assert (starts(module=module, **given) == flat(module)).all()


def test_runs_start_from_zeros_by_name() -> None:
    assert not starts(initialisation="zeros").any()


def test_every_run_draws_its_own_start_by_name() -> None:
    found = starts(initialisation="per_run")
    everyone = np.vstack([found, flat(LINEAR)])
    for column in everyone.T:
        assert len(np.unique(column)) == 9
    assert (np.abs(found) < 5**-0.5).all()  # as PyTorch draws a linear layer


# --- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_schedule_s_rates_are_checked(rate: float) -> None:
    scheduled = dpsgd(learning_rate=lambda step: rate if step == 2 else 0.1)
    message = rf"^learning_rate\(2\) is {rate}; it must be a finite number of at least 0$"
    with pytest.raises(InputError, match=message):
        train(dpsgd=scheduled)
    assert len(train(dpsgd=dpsgd(learning_rate=scheduled.learning_rate, record_steps=(2,))).runs)


# --- runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [8, np.int64(8), list(range(8)), np.arange(8)])
def test_runs_are_a_number_or_indices(runs: Any) -> None:
    found = train(runs=runs)
    assert found.runs.tolist() == list(range(8))
    assert found.worlds.tolist() == [[0], [1]] * 4
    assert_same(found, train(runs=range(8)))


# --- records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        dc.Records(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)),
        dc.Records(FEATURES.tolist(), LABELS.tolist()),
        dc.Records(FEATURES.astype(np.float64), LABELS.astype(np.uint8)),
    ],
    ids=["tensors", "lists", "other types"],
)
@pytest.mark.parametrize("rate", [0.5, 1.0])
@pytest.mark.parametrize("model", ["linear", "perceptron", "layer norm"])
def test_records_of_other_types_are_trained_on_alike(
    records: dc.Records, model: str, rate: float
) -> None:
    told = {"module": seeded(WRAPPED[model]), "dpsgd": dpsgd(sample_rate=rate)}
    found = train(records=records, test_records=records, **told)
    expected = train(test_records=RECORDS, **told)
    assert_same(found, expected)
    assert np.array_equal(found.test_accuracy, expected.test_accuracy)


def test_labels_are_counted_from_0() -> None:
    """With an additional output, no other check would notice."""
    counted = dc.Records(FEATURES, LABELS + 1)
    message = r"^no record has label 0; labels are counted from 0: subtract 1$"
    with pytest.raises(InputError, match=message):
        train(module=nn.Linear(5, NUM_CLASSES + 1), records=counted)
    # A class may have no private record if the test records show that it exists.
    train(module=nn.Linear(5, NUM_CLASSES + 1), records=counted, test_records=RECORDS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("role", ["records", "test_records"])
def test_features_are_finite(role: str, value: float) -> None:
    features = FEATURES.copy()
    features[13, 2] = value
    message = r"^records: a feature is NaN or infinite; repair or drop such records$"
    with pytest.raises(InputError, match=message):
        train(**{role: dc.Records(features, LABELS)})


@pytest.mark.parametrize("records", [RECORDS[:0], dc.Records([], [])])
def test_there_are_records(records: dc.Records) -> None:
    with pytest.raises(InputError, match=r"^there are no records$"):
        train(records=records)


# --- modules -----------------------------------------------------------------------------------


def test_outputs_fit_the_labels() -> None:
    one_output, few = nn.Linear(5, 1), dc.Records(FEATURES, LABELS % 2)
    binary = dpsgd(loss="binary_cross_entropy")
    with pytest.raises(InputError, match="one output needs loss binary_cross_entropy"):
        train(module=one_output, records=few, canary=dc.GradientCanary(0, TARGET))
    with pytest.raises(InputError, match="one output needs loss binary_cross_entropy"):
        train(module=one_output, dpsgd=binary, canary=dc.GradientCanary(0, TARGET))
    with pytest.raises(InputError, match="has 2 outputs, the records and canaries 3 classes"):
        train(module=nn.Linear(5, 2))
    found = train(module=one_output, records=few, dpsgd=binary, canary=dc.GradientCanary(0, TARGET))
    assert np.isfinite(found.observations).all()


WITHOUT_PARAMETERS = {
    "layer norm": lambda: nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8, elementwise_affine=False), nn.Tanh(), nn.Linear(8, 3)
    ),
    "rms norm": lambda: nn.Sequential(
        nn.Linear(5, 8), nn.RMSNorm(8, elementwise_affine=False), nn.Linear(8, 3)
    ),
    "group norm of images": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, affine=False), nn.Flatten(), nn.Linear(64, 3)
    ),
}
# Whose gradients are computed from what they normalise, with an `eps` that counts.
WITH_PARAMETERS = {
    "layer norm": lambda: nn.Sequential(
        nn.Linear(5, 8), nn.LayerNorm(8, eps=0.3), nn.Tanh(), nn.Linear(8, 3)
    ),
    "rms norm": lambda: nn.Sequential(nn.Linear(5, 8), nn.RMSNorm(8, eps=0.3), nn.Linear(8, 3)),
    "group norm of images": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, eps=0.3), nn.Flatten(), nn.Linear(64, 3)
    ),
}


def first_step(
    module: nn.Module, records: dc.Records, coordinate: int, clip: float
) -> NDArray[np.float64]:
    """All parameters of world 0 after a step on all records without noise, record by record."""
    theta = parameters_to_vector(module.parameters()).detach()
    total = torch.zeros_like(theta)
    total[coordinate] = clip
    for index in range(N):
        features = torch.from_numpy(records.features[index : index + 1])
        label = torch.from_numpy(records.labels[index : index + 1])
        loss = nn.functional.cross_entropy(module(features), label)
        found = parameters_to_vector(torch.autograd.grad(loss, list(module.parameters())))
        if index != TARGET:
            total += found * (clip / found.norm()).clamp(max=1.0)
    return (theta - 0.1 * total / N).numpy()


@pytest.mark.parametrize(
    "make",
    [
        *(
            pytest.param(make, id=f"{name}, no parameters")
            for name, make in WITHOUT_PARAMETERS.items()
        ),
        *(pytest.param(make, id=name) for name, make in WITH_PARAMETERS.items()),
    ],
)
@pytest.mark.parametrize("clip", [1.0, 0.2])
def test_norm_layers_are_trained_through(make: Callable[[], nn.Module], clip: float) -> None:
    module = seeded(make)
    records = IMAGES if isinstance(module[0], nn.Conv2d) else RECORDS
    noiseless = dpsgd(noise_multiplier=0.0, sample_rate=1.0, record_steps=(1,), max_grad_norm=clip)
    found = train(module=module, records=records, dpsgd=noiseless).parameters
    assert found is not None
    expected = first_step(module, records, 7, clip)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-6)
    # The step is much longer than any rounding error.
    assert np.abs(found[0] - flat(module)).max() > 1e-3


WRAPPED = {
    "linear": lambda: nn.Linear(5, NUM_CLASSES),
    "perceptron": lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, NUM_CLASSES)),
    "layer norm": lambda: nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ),
}


def opacus_gradients(module: GradSampleModule, records: dc.Records) -> list[torch.Tensor]:
    """Opacus's gradients of single records."""
    module.zero_grad()
    outputs = module(torch.from_numpy(records.features))
    nn.functional.cross_entropy(outputs, torch.from_numpy(records.labels)).backward()
    return [parameter.grad_sample.clone() for parameter in module.parameters()]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("initialisation", ["fixed", "per_run"])
@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
def test_opacus_modules_are_unwrapped(make: Callable[[], nn.Module], initialisation: str) -> None:
    """Also modules that Opacus has used, and that remain in use afterwards."""
    plain, wrapped = seeded(make), GradSampleModule(seeded(make))
    records = IMAGES if next(plain.parameters()).dim() == 4 else RECORDS
    known = {"records": records, "initialisation": initialisation}
    expected = train(module=plain, **known)
    assert_same(train(module=wrapped, **known), expected)
    before = opacus_gradients(wrapped, records)
    assert_same(train(module=wrapped, **known), expected)
    for one, two in zip(before, opacus_gradients(wrapped, records), strict=True):
        assert len(one) == N
        assert torch.equal(one, two)
    wrapped(torch.from_numpy(records.features))  # without asking for a gradient
    assert_same(train(module=wrapped, **known), expected)
