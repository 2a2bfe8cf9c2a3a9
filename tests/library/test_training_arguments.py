"""Arguments of `train_ensemble`: each has its effect, or an error says what to give instead."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from test_training_ensemble import CANARIES, LINEAR, RECORDS, SETTINGS, N, train
from torch import nn

from dpcanary.canaries import GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.settings import Initialisation, InitialWeights

FEATURES, LABELS = RECORDS.features, RECORDS.labels
IMAGES = Records(np.random.default_rng(1).standard_normal((N, 2, 6, 6), np.float32), LABELS)
FIXED = {"sample_rate": 1.0, "sampling": "fixed", "batch_size": 5, "canary_period": 3}


def assert_same(result: EnsembleResult, expected: EnsembleResult) -> None:
    for name in ("runs", "worlds", "observations", "parameters", "test_accuracy"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adm"}, r"^unknown optimizer 'adm': did you mean 'adam'\?$"),
        ({"optimizer": torch.optim.SGD}, r"^unknown optimizer .*: known: sgd, momentum, adam$"),
        ({"adjacency": "replace"}, r"'replace': known: add_remove, zero_out, substitute$"),
        ({"loss": nn.MSELoss()}, r"MSELoss\(\): known: cross_entropy, binary_cross_entropy$"),
        ({"sampling": "possion"}, r"^unknown sampling 'possion': did you mean 'poisson'\?$"),
        ({"max_grad_norm": 0}, r"^max_grad_norm is 0; it must be a finite number above 0$"),
        ({"max_grad_norm": float("nan")}, r"^max_grad_norm is nan; .* finite number above 0$"),
        ({"learning_rate": -0.1}, r"^learning_rate is -0.1; it must be a finite number above 0$"),
        ({"learning_rate": "0.1"}, r"^learning_rate is '0.1'; it must be a finite number above 0$"),
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
        (
            {"batch_size": 10},
            r"^sampling poisson has no batch_size or canary_period: batches have no fixed size;"
            r" give sample_rate = batch size / number of records, or sampling='fixed'$",
        ),
        ({"canary_period": 2}, r"^sampling poisson has no batch_size or canary_period"),
        (FIXED | {"batch_size": None}, r"^sampling fixed needs batch_size and canary_period$"),
        (FIXED | {"canary_period": None}, r"^sampling fixed needs batch_size and canary_period$"),
        (FIXED | {"batch_size": 0}, "^batch_size is 0; it must be a whole number of at"),
        (FIXED | {"canary_period": 0}, "^canary_period is 0; it must be a whole number of at"),
        (FIXED | {"sample_rate": 0.5}, "^sampling fixed has no sample_rate; leave it at 1$"),
    ],
)
def test_a_mechanism_s_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SETTINGS, **changes)


def with_feature(value: float) -> Records:
    features = FEATURES.copy()
    features[13, 2] = value
    return Records(features, LABELS)


COUNTED_FROM_1 = Records(FEATURES, LABELS + 1)
NOT_FINITE = r"^records: a feature is NaN or infinite; repair or drop such records$"
ONE_OUTPUT = "^a model of one output needs loss binary_cross_entropy and two classes$"
BAD_RATE = r"^learning_rate\(2\) is %s; it must be a finite number of at least 0$"
BINARY = replace(SETTINGS, loss="binary_cross_entropy")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initialisation": "fixd"}, r"^unknown initialisation 'fixd': did you mean 'fixed'\?$"),
        ({"initial_weights": "xavir"}, r"^unknown initial weights 'xavir': did you mean 'xavier'"),
        ({"observe": "logit"}, r"^unknown observation 'logit': did you mean 'logits'\?$"),
        ({"observe": "change"}, r"^observe='change' is not for a InputCanary$"),
        ({"worlds": "coin"}, r"^unknown world assignment 'coin': did you mean 'coins'\?$"),
        ({"worlds": "halves"}, r"^worlds halves needs an even number of slots; there are 1$"),
        ({"device": "gpu"}, r"^unknown device 'gpu': give cpu, cuda or auto$"),
        ({"device": "mps"}, r"^device 'mps' is not supported: give cpu, cuda or auto$"),
        ({"seed": -1}, r"^seed is -1; .* whole number of at least 0$"),
        ({"seed": 0.5}, r"^seed is 0.5; .* whole number of at least 0$"),
        ({"seed": "0"}, r"^seed is '0'; .* whole number of at least 0$"),
        ({"num_threads": 0}, r"^num_threads is 0; .* whole number of at least 1$"),
        ({"runs_at_once": 0}, r"^runs_at_once is 0; .* whole number of at least 1$"),
        ({"runs": [0, 1, 5, 2, 5]}, r"^run 5 is given twice: it would be the same model again$"),
        ({"runs": range(0, 8, 2)}, r"^all runs are in world 0, .* in world 1; give runs of both$"),
        ({"runs": [3, 1]}, r"^all runs are in world 1, .* odd ones in world 1; give runs of both$"),
        ({"runs": 0}, r"^runs must be indices from 0 to 4294967294, and at least one$"),
        ({"runs": [-1, 0]}, r"^runs must be indices from 0 .*, and at least one$"),
        ({"runs": [0, 2**32 - 1]}, r"^runs must be indices from 0 .*, and at least one$"),
        ({"runs": 1.5}, r"^runs must be a number of runs, or their indices; not 1\.5$"),
        ({"module": nn.Linear}, r"^module must be a Module, not type "),
        ({"records": FEATURES}, r"^records must be a Records, not ndarray "),
        ({"dpsgd": 1.0}, r"^dpsgd must be a DPSGD, not float 1\.0$"),
        ({"canary": 3}, r"^canary must be a \w+, not int 3$"),
        ({"canary": [CANARIES["input"], CANARIES["coordinate"]]}, "must be of one type; these are"),
        ({"canary": GradientCanary(7, N)}, "^canary: target is 24, and there are 24 records$"),
        # With an additional output, no other check would notice.
        (
            {"module": nn.Linear(6, 4), "records": COUNTED_FROM_1, "test_records": None},
            r"^no record has label 0; labels are counted from 0: subtract 1$",
        ),
        ({"records": with_feature(np.nan)}, NOT_FINITE),
        ({"test_records": with_feature(np.inf)}, NOT_FINITE),
        ({"test_records": IMAGES}, r"^test_records: features of shape \(2, 6, 6\), .* have \(6,\)"),
        ({"records": Records(np.array(["a", "b"]), [0, 1])}, "features are texts; encode them"),
        ({"records": RECORDS[:0]}, r"^there are no records$"),
        ({"records": Records([], [])}, r"^there are no records$"),
        ({"module": nn.Linear(7, 3)}, r"^the model takes 7 features, the records have 6$"),
        ({"module": nn.Linear(6, 1), "records": Records(FEATURES, LABELS % 2)}, ONE_OUTPUT),
        ({"module": nn.Linear(6, 1), "dpsgd": BINARY}, ONE_OUTPUT),
        ({"module": nn.Linear(6, 2)}, "has 2 outputs, the records and canaries 3 classes"),
        ({"canary": InputCanary(FEATURES[0], 3, 4)}, "has 3 outputs, the .* canaries 4 classes"),
        *(
            (
                {"dpsgd": replace(SETTINGS, learning_rate=[0.1, 0.0, rate].__getitem__)},
                BAD_RATE % rate,
            )
            for rate in (-0.1, float("nan"), float("inf"))
        ),
    ],
)
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(**({"runs": 8} | changes))


# --- effects -----------------------------------------------------------------------------------


def test_defaults_are_the_documented_ones() -> None:
    given = {"module": LINEAR, "records": RECORDS, "dpsgd": SETTINGS, "seed": 5}
    for canary, observe in (("coordinate", "change"), ("direction", "change_and_length")):
        known = given | {"canary": CANARIES[canary], "runs": 6}
        result = train_ensemble(**known)
        options = {"initialisation": "fixed", "worlds": "alternate", "observe": observe}
        assert_same(result, train_ensemble(**known, **options, device="cpu", rotate=True))
        assert result.parameters is None
        assert np.isnan(result.test_accuracy).all()
    one_step = replace(SETTINGS, record_steps=6)
    assert one_step == replace(SETTINGS, record_steps=(6,))


@pytest.mark.parametrize("weights", InitialWeights)
def test_runs_draw_their_own_start_by_seed_index_and_name(weights: InitialWeights) -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    still, runs = replace(SETTINGS, learning_rate=lambda step: 0.0), [3, 8]
    options = {"initialisation": "per_run", "initial_weights": weights}
    result = train(runs, module=module, dpsgd=still, seed=5, **options)
    expected = initial_parameters(
        module, Initialisation.PER_RUN, seed=5, runs=runs, weights=weights
    )
    np.testing.assert_allclose(result.parameters, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "runs", [np.int64(8), [*range(8)], np.arange(8), (run for run in range(8))]
)
def test_runs_are_a_number_or_indices(runs: Any) -> None:
    result = train(runs)
    assert result.runs.tolist() == [*range(8)]
    assert result.worlds.tolist() == [[0], [1]] * 4
    assert_same(result, train(8))


def test_a_class_may_have_test_records_alone_and_two_classes_one_output() -> None:
    known = {"records": COUNTED_FROM_1, "test_records": RECORDS, "module": nn.Linear(6, 4)}
    assert np.isfinite(train(2, **known).observations).all()
    few = Records(FEATURES, LABELS % 2)
    known = {"records": few, "test_records": few, "module": nn.Linear(6, 1), "dpsgd": BINARY}
    assert np.isfinite(train(2, canary=InputCanary(FEATURES[0], 1, 4), **known).observations).all()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 3),
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    ),
}


def seeded(model: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MODELS[model]()


@pytest.mark.parametrize(
    ("records", "model", "rate"),
    [
        (Records(torch.from_numpy(FEATURES), torch.from_numpy(LABELS)), "linear", 0.5),
        (Records(FEATURES.tolist(), LABELS.tolist()), "layer norm", 1.0),
        (Records(FEATURES.astype(np.float64), LABELS.astype(np.uint8)), "perceptron", 0.5),
    ],
    ids=["tensors", "lists", "other types"],
)
def test_records_of_other_types_are_trained_on_alike(records, model, rate):
    known = {"module": seeded(model), "dpsgd": replace(SETTINGS, sample_rate=rate)}
    result = train(4, records=records, test_records=records, initialisation="fixed", **known)
    expected = train(4, records=RECORDS, test_records=RECORDS, initialisation="fixed", **known)
    assert_same(result, expected)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize(
    ("model", "initialisation"),
    [("linear", "fixed"), ("layer norm", "per_run"), ("convolution", "fixed")],
)
def test_opacus_modules_are_unwrapped(model: str, initialisation: str) -> None:
    """Also modules that Opacus has used, and that remain in use afterwards."""
    plain, wrapped = seeded(model), GradSampleModule(seeded(model))
    records = IMAGES if model == "convolution" else RECORDS
    known = {"records": records, "test_records": None, "initialisation": initialisation}
    known |= {"canary": CANARIES["coordinate"]}
    features, labels = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    expected = train(4, module=plain, **known)
    assert_same(train(4, module=wrapped, **known), expected)
    gradients = []
    for _ in range(2):
        wrapped.zero_grad()
        nn.functional.cross_entropy(wrapped(features), labels).backward()
        gradients.append([parameter.grad_sample.clone() for parameter in wrapped.parameters()])
        assert_same(train(4, module=wrapped, **known), expected)
    for before, after in zip(*gradients, strict=True):
        assert len(before) == N
        assert torch.equal(before, after)
    wrapped(features)  # without asking for a gradient
    assert_same(train(4, module=wrapped, **known), expected)
