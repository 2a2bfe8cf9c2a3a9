"""From a config's names to modules and mechanisms."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary.accounting.overview import profile, upper_bounds
from dpcanary.accounting.settings import AccountingStage
from dpcanary.errors import InputError
from dpcanary.settings.experiment import Experiment
from dpcanary.settings.parsing import parse_experiment
from dpcanary.training.initialisation import NO_RUN, redraw
from dpcanary.training.models import convnet, mechanism_of, module_of, resnet18
from dpcanary.training.residual_networks import resnet9, wrn16_4
from dpcanary.training.settings import Initialisation, ModelKind, TrainingStage

SHAPE: dict = {"shape": (6,), "num_classes": 3}


def experiment(**changes: object) -> Experiment:
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
    dataset = {"source": "digits", "num_records": 20}
    config = {
        "experiment": "test",
        "delta": 1e-5,
        "datasets": {"digits": dataset, "other": dataset},
        "audits": {"one": {key: value for key, value in audit.items() if value is not None}},
    }
    return parse_experiment(config)


def stage(**changes: object) -> TrainingStage:
    return experiment(**changes).stage(TrainingStage, audit="one")


def flat(module: nn.Module) -> torch.Tensor:
    return parameters_to_vector(module.parameters()).detach()


# Settings of each kind, the shape that it takes, and the module that it stands for.
KINDS = {
    ModelKind.LINEAR: ({}, (6,), lambda: nn.Linear(6, 7)),
    ModelKind.MLP: (
        {"hidden_sizes": [5, 4], "activation": "sigmoid"},
        (6,),
        lambda: nn.Sequential(
            nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 7)
        ),
    ),
    ModelKind.CONVNET: ({}, (3, 32, 32), lambda: convnet(7)),
    ModelKind.RESNET18: ({}, (3, 16, 24), lambda: resnet18(7)),
    ModelKind.RESNET9: (
        {"width": 4, "logit_scale": 0.5},
        (3, 32, 32),
        lambda: resnet9(7, width=4, logit_scale=0.5),
    ),
    ModelKind.WRN16_4: ({}, (3, 16, 16), lambda: wrn16_4(7)),
}


@pytest.mark.parametrize("kind", ModelKind)
def test_every_kind_is_made_as_its_settings_say_with_parameters_of_the_seed(kind: ModelKind):
    changes, shape, make = KINDS[kind]
    settings, expected = stage(model=kind.value, **changes), make()
    module = module_of(settings, shape=shape, num_classes=7)
    redraw(expected, seed=settings.model_seed, run=NO_RUN)
    assert torch.equal(flat(module), flat(expected))
    images = torch.randn(2, *shape)
    assert torch.equal(module(images), expected(images))


def test_published_sizes_and_activations():
    assert flat(convnet(10)).numel() == 62_006
    assert flat(resnet18(10)).numel() == 11_173_962
    for name, activation in (("tanh", nn.Tanh), ("relu", nn.ReLU)):
        module = module_of(stage(model="mlp", hidden_sizes=[128], activation=name), **SHAPE)
        assert [type(layer) for layer in module] == [nn.Linear, activation, nn.Linear]


@pytest.mark.parametrize(
    ("changes", "shapes", "message"),
    [
        ({"model": "convnet"}, [(3, 64, 64)], r"convnet takes .* \(3, 32, 32\)"),
        ({"model": "resnet9"}, [(3, 64, 64)], r"resnet9 takes .* \(3, 32, 32\)"),
        ({"model": "resnet18"}, [], r"resnet18 takes images of shape \(3, height"),
        ({"model": "wrn16_4"}, [], r"wrn16_4 takes images of shape \(3, height"),
        ({}, [(3, 32, 32)], "linear takes flat features"),
        ({"model": "mlp", "hidden_sizes": [5]}, [(3, 32, 32)], "mlp takes flat features"),
    ],
)
def test_features_of_another_shape_than_the_model_takes_are_refused(changes, shapes, message):
    flat_model = changes.get("model", "mlp") == "mlp"
    no_images = [] if flat_model else [(64,), (1, 32, 32), (32, 32, 3), (3, 32)]
    for shape in [*shapes, *no_images]:
        with pytest.raises(InputError, match=message):
            module_of(stage(**changes), shape=shape, num_classes=10)


def test_fixed_parameters_follow_from_the_experiments_seed_alone():
    settings = stage(model="mlp", hidden_sizes=[8])
    torch.manual_seed(0)
    first = flat(module_of(settings, **SHAPE))
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    assert torch.equal(first, flat(module_of(settings, **SHAPE)))
    assert torch.equal(state, torch.random.get_rng_state())
    other = settings.model_copy(update={"model_seed": 5})
    assert not torch.equal(first, flat(module_of(other, **SHAPE)))
    given = np.linspace(-1, 1, len(first), dtype=np.float32)
    assert np.array_equal(flat(module_of(settings, **SHAPE, pretrained=given)), given)
    message = f"there are 7 pretrained parameters, and the module has {len(first)}"
    with pytest.raises(InputError, match=message):
        module_of(settings, **SHAPE, pretrained=given[:7])


# --- models of the user's own ------------------------------------------------------------------

OWN = """
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
    settings = stage(model=f"{own}:perceptron")
    assert settings.initialisation is Initialisation.FIXED
    made = flat(module_of(settings, **SHAPE))
    assert torch.equal(made, flat(module_of(settings, **SHAPE)))
    other = settings.model_copy(update={"model_seed": settings.model_seed + 1})
    assert not torch.equal(made, flat(module_of(other, **SHAPE)))
    # Drawn by us, it is the perceptron of the same layers that a config may name.
    drawn = module_of(stage(model=f"{own}:perceptron", initial_weights="kaiming"), **SHAPE)
    known = {"model": "mlp", "hidden_sizes": [8], "initialisation": "fixed"}
    twin = module_of(stage(**known, initial_weights="kaiming"), **SHAPE)
    assert torch.equal(flat(drawn), flat(twin))
    assert not torch.equal(flat(drawn), flat(module_of(stage(**known), **SHAPE)))


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


# --- mechanisms --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("constant", [1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.25]),
        ("cosine", [1.0, (1 + math.cos(math.pi / 4)) / 2, (1 + math.cos(3 * math.pi / 4)) / 2]),
    ],
)
def test_learning_rates_follow_the_schedule(name: str, factors: list[float]):
    settings = stage(learning_rate_schedule=name)
    mechanism = mechanism_of(settings, record_steps=(30,), noise_multiplier=1.0)
    rates = [mechanism.learning_rate_at(step) for step in (0, 10, 30)]
    np.testing.assert_allclose(rates, [0.2 * factor for factor in factors], rtol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": "fixed", "sample_rate": None, "batch_size": 7, "canary_period": 4},
        {"canary": "loss", "model": "convnet", "augmentation_multiplicity": 3},
    ],
)
def test_the_mechanism_is_what_the_stage_says(changes):
    changes = {"sample_rate": 0.3} | changes
    changes |= {
        "adjacency": "add_remove",
        "optimizer": "momentum",
        "momentum": 0.5,
        "loss": "binary_cross_entropy",
        "max_grad_norm": 3.0,
    }
    mechanism = mechanism_of(stage(**changes), record_steps=(20, 40), noise_multiplier=2.5)
    for name in changes.keys() - {"model", "canary"}:
        assert getattr(mechanism, name) == (changes[name] or 1.0)
    expected = changes.get("batch_size", 301 * 0.3)  # not rounded
    assert mechanism.expected_batch_size(301) == pytest.approx(expected)
    assert (mechanism.noise_multiplier, mechanism.record_steps) == (2.5, (20, 40))


# --- without privacy ---------------------------------------------------------------------------

WITHOUT_PRIVACY = {"canary": "loss", "adjacency": "add_remove", "noise_multiplier": 0.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"canary": "gradient"}, "one: .*without privacy, and canary gradient is no"),
        ({"canary": "random_direction"}, "without privacy, and canary random_direction is no"),
        ({"canary": "worst_case", "dataset": None}, "without privacy, and canary worst_case is no"),
        ({"max_grad_norm": 2.0}, r"audits\.one: max_grad_norm: .* do not use this key"),
        ({"noise_multiplier": -1.0}, "noise_multiplier: .* greater than or equal to 0"),
    ],
)
def test_settings_that_only_private_training_has_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        stage(**(WITHOUT_PRIVACY | changes))


def test_nothing_is_clipped_and_every_epsilon_is_infinite():
    known = {"record_steps": (6,), "noise_multiplier": 0.0}
    assert mechanism_of(stage(**WITHOUT_PRIVACY), **known).max_grad_norm == math.inf
    accounting = AccountingStage(
        sample_rate=0.5, record_steps=(3, 6), canary_period=None, delta=1e-5
    )
    table = upper_bounds(accounting, noise_multiplier=0.0)
    for adjacency in ("substitute", "add_remove", "group_privacy"):
        assert table[f"epsilon_upper_{adjacency}"].tolist() == [math.inf] * 2
    assert table["gaussian_distance"].isna().all()
    assert profile(accounting, noise_multiplier=0.0)["delta"].tolist() == [1.0, 1.0]
    assert list(upper_bounds(accounting, noise_multiplier=2.0)) == list(table)
