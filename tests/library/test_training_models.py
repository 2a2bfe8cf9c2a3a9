"""From a config's names to modules and mechanisms."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dpcanary.errors import InputError
from dpcanary.settings.parsing import parse_experiment
from dpcanary.training.models import mechanism_of, module_of
from dpcanary.training.settings import (
    Initialisation,
    TrainingStage,
)

SHAPE: dict = {"shape": (6,), "num_classes": 3}


def stage(**changes: object) -> TrainingStage:
    audit = {
        "canary": "gradient",
        "sample_rate": 0.5,
        "dataset": "digits",
        "noise_multiplier": 1.0,
        "num_steps": 40,
        "num_runs": 4,
        "learning_rate": 0.2,
        **changes,
    }
    config = {
        "experiment": "test",
        "delta": 1e-5,
        "datasets": {"digits": {"source": "digits", "num_records": 10}},
        "audits": {"one": {key: value for key, value in audit.items() if value is not None}},
    }
    return parse_experiment(config).stage(TrainingStage, audit="one")


def flat(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def test_perceptrons_have_the_layers_that_were_asked_for():
    module = module_of(
        stage(model="mlp", hidden_sizes=[128], activation="relu"), shape=(600,), num_classes=100
    )
    assert [type(layer) for layer in module] == [nn.Linear, nn.ReLU, nn.Linear]
    assert sum(parameter.numel() for parameter in module.parameters()) == 89_828
    deep = module_of(stage(model="mlp", hidden_sizes=[5, 4, 3]), shape=(6,), num_classes=2)
    assert [layer.out_features for layer in deep if isinstance(layer, nn.Linear)] == [5, 4, 3, 2]
    assert isinstance(module_of(stage(), shape=(6,), num_classes=2), nn.Linear)


OWN = """
import torch
from torch import nn


def perceptron():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def no_module():
    return 3


def fails():
    raise KeyError("weights")
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return "own_models"


def test_a_users_own_model_is_made_by_its_function(own):
    told = stage(model=f"{own}:perceptron")
    first = module_of(told, shape=(6,), num_classes=3)
    assert torch.equal(flat(first), flat(module_of(told, shape=(6,), num_classes=3)))
    assert told.initialisation is Initialisation.FIXED
    # Drawn by us, it is the perceptron of the same layers that a config may name.
    drawn = module_of(stage(model=f"{own}:perceptron", initial_weights="kaiming"), **SHAPE)
    known = {"model": "mlp", "hidden_sizes": [8], "initialisation": "fixed"}
    twin = module_of(stage(**known, initial_weights="kaiming"), **SHAPE)
    assert torch.equal(flat(drawn), flat(twin))


@pytest.mark.parametrize(
    ("function", "changes", "message"),
    [
        ("none", {}, "there is no function 'own_models:none'"),
        ("no_module", {}, r"own_models:no_module returns no torch\.nn\.Module"),
        ("fails", {}, "own_models:fails fails: KeyError: 'weights'"),
        ("perceptron", {"shape": (7,)}, r"cannot take records of shape \(7,\)"),
        ("perceptron", {"num_classes": 4}, r"for 4 classes it must be \(2, 4\)"),
    ],
)
def test_what_is_wrong_with_a_users_own_model_is_said(own, function, changes, message):
    with pytest.raises(InputError, match=message):
        module_of(stage(model=f"{own}:{function}"), **(SHAPE | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "convnt"}, "model: unknown name, did you mean 'convnet'"),
        ({"model": "a:b", "hidden_sizes": [3]}, "hidden_sizes: .* do not use this key"),
        ({"model": "a:b", "initialisation": "zeros"}, "saddle point"),
    ],
)
def test_configs_of_own_models_are_checked(changes, message):
    with pytest.raises(InputError, match=message):
        stage(**changes)


def test_features_of_another_shape_than_the_model_takes_are_refused():
    net = module_of(stage(model="convnet"), shape=(3, 32, 32), num_classes=10)
    assert sum(parameter.numel() for parameter in net.parameters()) == 62_006
    resnet = module_of(stage(model="resnet18"), shape=(3, 48, 48), num_classes=7)
    assert resnet(torch.zeros(2, 3, 48, 48)).shape == (2, 7)
    not_images = ((64,), (1, 32, 32), (32, 32, 3), (3, 32))
    perceptron = stage(model="mlp", hidden_sizes=[5])
    for told, shapes, message in (
        (stage(model="convnet"), (*not_images, (3, 64, 64)), r"convnet takes .* \(3, 32, 32\)"),
        (stage(model="resnet18"), not_images, r"resnet18 takes images of shape \(3, height"),
        (stage(), [(3, 32, 32)], "linear takes flat features"),
        (perceptron, [(3, 32, 32)], "mlp takes flat features"),
    ):
        for shape in shapes:
            with pytest.raises(InputError, match=message):
                module_of(told, shape=shape, num_classes=10)


def test_fixed_parameters_follow_from_the_experiments_seed_alone():
    told = stage(model="mlp", hidden_sizes=[8])
    torch.manual_seed(0)
    one = flat(module_of(told, shape=(6,), num_classes=3))
    torch.manual_seed(1)
    assert torch.equal(one, flat(module_of(told, shape=(6,), num_classes=3)))
    other = told.model_copy(update={"model_seed": 5})
    assert not torch.equal(one, flat(module_of(other, shape=(6,), num_classes=3)))
    state = torch.random.get_rng_state()
    module_of(told, shape=(6,), num_classes=3)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("constant", [1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.25]),
        ("cosine", [1.0, (1 + math.cos(math.pi / 4)) / 2, (1 + math.cos(3 * math.pi / 4)) / 2]),
    ],
)
def test_learning_rates_follow_the_schedule(name: str, factors: list[float]):
    mechanism = mechanism_of(
        stage(learning_rate_schedule=name), record_steps=(40,), noise_multiplier=1.0
    )
    found = [mechanism.learning_rate_at(step) for step in (0, 10, 30)]
    np.testing.assert_allclose(found, [0.2 * factor for factor in factors], rtol=1e-12)


def test_the_mechanism_is_what_the_stage_says():
    changes = {
        "sample_rate": None,
        "sampling": "fixed",
        "batch_size": 7,
        "canary_period": 4,
        "adjacency": "add_remove",
        "optimizer": "momentum",
        "momentum": 0.5,
        "loss": "binary_cross_entropy",
        "max_grad_norm": 3.0,
    }
    mechanism = mechanism_of(stage(**changes), record_steps=(20, 40), noise_multiplier=2.5)
    for name in changes.keys() - {"sample_rate"}:
        assert getattr(mechanism, name) == changes[name]
    assert mechanism.expected_batch_size(1000) == 7
    assert (mechanism.noise_multiplier, mechanism.record_steps) == (2.5, (20, 40))
