"""From a config's names to modules, mechanisms and the models that trainings start from."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from by_hand import CPU, overlapping_classes
from one_record_at_a_time import perceptron
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary.accounting.accounted_overview import profile, upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.data.canaries import InputCanary
from dpcanary.data.record_source import Source
from dpcanary.data.records import Records, Scaling, Split, read_split, write_split
from dpcanary.data.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.products import Products
from dpcanary.training.batches import KnownBatches
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.initialisation import NO_RUN, redraw
from dpcanary.training.models import convnet, mechanism_of, module_of, resnet18
from dpcanary.training.pretraining import PretrainingStage, pretrain, public_records
from dpcanary.training.residual_networks import resnet9, wrn16_4
from dpcanary.training.shard import train_shard
from dpcanary.training.simulated_trainings import simulated_movement, train_reference
from dpcanary.training.training_settings import Initialisation, ModelKind, Purpose, TrainingStage

SHAPE: dict[str, Any] = {"shape": (6,), "num_classes": 3}


def experiment(**changes: object) -> Experiment:
    audit = {
        "canary": "gradient", "sample_rate": 0.5, "dataset": "digits", "noise_multiplier": 1.0,
        "num_steps": 40, "num_runs": 4, "learning_rate": 0.2, **changes,
    }  # fmt: skip
    audits = {"one": {key: value for key, value in audit.items() if value is not None}}
    datasets = {name: {"source": "digits", "num_records": 20} for name in ("digits", "other")}
    config = {"experiment": "test", "delta": 1e-5, "datasets": datasets, "audits": audits}
    return parse_experiment(config)


def stage(**changes: object) -> TrainingStage:
    return experiment(**changes).stage(TrainingStage, audit="one")


def flat(module: nn.Module) -> torch.Tensor:
    return parameters_to_vector(module.parameters()).detach()


# Settings of each kind, the shape that it takes, and the module that it stands for.
KINDS = {
    ModelKind.LINEAR: ({}, (6,), partial(nn.Linear, 6)),
    ModelKind.MLP: (
        {"hidden_sizes": [5, 4], "activation": "sigmoid"}, (6,),
        perceptron(6, 5, nn.Sigmoid, 4, nn.Sigmoid),
    ),
    ModelKind.CONVNET: ({}, (3, 32, 32), convnet),
    ModelKind.RESNET18: ({}, (3, 16, 24), resnet18),
    ModelKind.RESNET9: (
        {"width": 4, "logit_scale": 0.5}, (3, 32, 32), partial(resnet9, width=4, logit_scale=0.5),
    ),
    ModelKind.WRN16_4: ({}, (3, 16, 16), wrn16_4),
}  # fmt: skip


@pytest.mark.parametrize("kind", ModelKind)
def test_every_kind_is_made_as_its_settings_say_with_parameters_of_the_seed(kind: ModelKind):
    changes, shape, make = KINDS[kind]
    settings = stage(model=kind.value, **changes).model_copy(update={"model_seed": 5})
    expected = make(7)
    module = module_of(settings, shape=shape, num_classes=7)
    redraw(expected, seed=settings.model_seed, run=NO_RUN)
    assert torch.equal(flat(module), flat(expected))
    images = torch.randn(2, *shape)
    assert torch.equal(module(images), expected(images))

    others = [(64,), (1, 32, 32), (32, 32, 3), (3, 32)] if len(shape) == 3 else [(3, 32, 32)]
    for other in [*others, (3, 64, 64)] if shape == (3, 32, 32) else others:
        message = rf"{kind} takes (flat features|.* \(3, (height|32, 32))"
        message += ".*: these are grey: give a model of your own" * (other[0] == 1)
        with pytest.raises(InputError, match=message):
            module_of(settings, shape=other, num_classes=10)


@pytest.mark.parametrize(("activation", "layer"), [("tanh", nn.Tanh), ("relu", nn.ReLU)])
def test_activations(activation: str, layer: type[nn.Module]):
    module = module_of(stage(model="mlp", hidden_sizes=[9], activation=activation), **SHAPE)
    assert [type(part) for part in module] == [nn.Linear, layer, nn.Linear]


def test_pretrained_parameters_take_the_place_of_drawn_ones():
    settings = stage(model="mlp", hidden_sizes=[8])
    state, first = torch.random.get_rng_state(), flat(module_of(settings, **SHAPE))
    assert torch.equal(state, torch.random.get_rng_state())
    parameters = np.linspace(-1, 1, len(first), dtype=np.float32)
    assert np.array_equal(flat(module_of(settings, **SHAPE, pretrained=parameters)), parameters)
    message = f"there are 7 pretrained parameters, and the module has {len(first)}"
    with pytest.raises(InputError, match=message):
        module_of(settings, **SHAPE, pretrained=parameters[:7])


# Functions that a config may name.
own_perceptron = partial(perceptron(6, 8, nn.Tanh), 3)
lazy = partial(nn.LazyLinear, 3)
no_module, fails = Mock(return_value=3), Mock(side_effect=KeyError("weights"))


@pytest.mark.parametrize("name", ["own_perceptron", "lazy"])
def test_a_users_own_model_is_the_same_in_all_jobs(name):
    """Also if a layer draws its parameters when it first sees a record."""
    settings = stage(model=f"{__name__}:{name}")
    own, state = flat(module_of(settings, **SHAPE)), torch.random.get_rng_state()
    torch.rand(5)
    assert torch.equal(own, flat(module_of(settings, **SHAPE)))
    torch.random.set_rng_state(state)


def test_a_users_own_model_is_made_by_its_function():
    settings = stage(model=f"{__name__}:own_perceptron")
    assert settings.initialisation is Initialisation.FIXED
    own = flat(module_of(settings, **SHAPE))
    assert torch.equal(own, flat(module_of(settings, **SHAPE)))
    other = settings.model_copy(update={"model_seed": settings.model_seed + 1})
    assert not torch.equal(own, flat(module_of(other, **SHAPE)))
    # Drawn by us, it is the perceptron of the same layers that a config may name.
    drawn = stage(model=f"{__name__}:own_perceptron", initial_weights="kaiming")
    options = {"model": "mlp", "hidden_sizes": [8], "initialisation": "fixed"}
    twin, plain = stage(**options, initial_weights="kaiming"), stage(**options)
    drawn, twin, plain = (flat(module_of(of, **SHAPE)) for of in (drawn, twin, plain))
    assert torch.equal(drawn, twin)
    assert not torch.equal(drawn, plain)


@pytest.mark.parametrize(("function", "changes", "message"), [
    ("none", {}, f"there is no function '{__name__}:none'"),
    ("no_module", {}, rf"{__name__}:no_module returns no torch\.nn\.Module"),
    ("fails", {}, f"{__name__}:fails fails: KeyError: 'weights'"),
    ("own_perceptron", {"shape": (7,)}, r"cannot take records of shape \(7,\)"),
    ("own_perceptron", {"num_classes": 4}, r"loss cross_entropy it must be \(2, 4\)"),
])  # fmt: skip
def test_what_is_wrong_with_a_users_own_model_is_said(function, changes, message):
    with pytest.raises(InputError, match=message):
        module_of(stage(model=f"{__name__}:{function}"), **(SHAPE | changes))


def test_learning_rates_follow_the_schedule():
    shares = np.array([0, 10, 30]) / 40
    factors = {"constant": shares * 0 + 1, "linear": 1 - shares}
    for name, of_steps in {**factors, "cosine": (1 + np.cos(np.pi * shares)) / 2}.items():
        settings = stage(learning_rate_schedule=name)
        mechanism = mechanism_of(settings, record_steps=(30,), noise_multiplier=1.0)
        rates = [mechanism.learning_rate_at(step) for step in (0, 10, 30)]
        np.testing.assert_allclose(rates, 0.2 * of_steps, rtol=1e-12)


@pytest.mark.parametrize("changes", [
    {"sampling": "fixed", "sample_rate": None, "batch_size": 7, "canary_period": 4},
    {"canary": "loss", "model": "convnet", "augmentation_multiplicity": 3},
])  # fmt: skip
def test_the_mechanism_is_what_the_stage_says(changes):
    changes = {"sample_rate": 0.3} | changes
    changes |= {
        "adjacency": "add_remove", "optimizer": "momentum", "momentum": 0.5,
        "loss": "binary_cross_entropy", "max_grad_norm": 3.0,
    }  # fmt: skip
    mechanism = mechanism_of(stage(**changes), record_steps=(20, 40), noise_multiplier=2.5)
    for name in changes.keys() - {"model", "canary"}:
        assert getattr(mechanism, name) == (changes[name] or 1.0)
    expected = changes.get("batch_size", 301 * 0.3)  # not rounded
    assert mechanism.expected_batch_size(301) == pytest.approx(expected)
    assert (mechanism.noise_multiplier, mechanism.record_steps) == (2.5, (20, 40))


NO_PRIVACY = {"canary": "loss", "adjacency": "add_remove", "noise_multiplier": 0.0}


def test_nothing_is_clipped_and_every_epsilon_is_infinite():
    options = {"record_steps": (6,), "noise_multiplier": 0.0}
    assert mechanism_of(stage(**NO_PRIVACY), **options).max_grad_norm == math.inf
    sampled = {"sample_rate": 0.5, "record_steps": (3, 6), "canary_period": None}
    accounting = AccountingStage(**sampled, delta=1e-5)
    table = upper_bounds(accounting, noise_multiplier=0.0)
    for adjacency in ("substitute", "add_remove", "group_privacy"):
        assert table[f"epsilon_upper_{adjacency}"].tolist() == [math.inf] * 2
    assert table["gaussian_distance"].isna().all()
    assert profile(accounting, noise_multiplier=0.0)["delta"].tolist() == [1.0, 1.0]
    assert list(upper_bounds(accounting, noise_multiplier=2.0)) == list(table)


PRETRAINING = {"num_steps": 12, "batch_size": 8, "learning_rate": 0.3}
PRETRAINED = {
    "canary": "mislabeled", "model": "mlp", "hidden_sizes": [5], "num_steps": 3,
    "pretraining": PRETRAINING,
}  # fmt: skip


@pytest.mark.parametrize(("base", "changes", "message"), [
    ({}, {"model": "a:b", "hidden_sizes": [3]}, "hidden_sizes: .* do not use this key"),
    (NO_PRIVACY, {"max_grad_norm": 2.0}, r"audits\.one: max_grad_norm: .* do not use this key"),
    (PRETRAINED, {"canary": "worst_case", "dataset": None}, "do not use this key"),
])  # fmt: skip
def test_keys_that_a_model_or_canary_does_not_use_are_refused(base, changes, message):
    with pytest.raises(InputError, match=message):
        stage(**base | changes)


def pretrained_experiment(pretraining: dict[str, object], **changes: object) -> Experiment:
    return experiment(**PRETRAINED | {"pretraining": PRETRAINING | pretraining} | changes)


def stage_of(*, model: dict[str, object] | None = None, **pretraining: object) -> PretrainingStage:
    return pretrained_experiment(pretraining, **model or {}).stage(PretrainingStage, audit="one")


RECORDS = overlapping_classes(570, 6, 3)
DATA = Split(RECORDS[:30], RECORDS[30:70], RECORDS[70:])


@pytest.mark.parametrize(("options", "optimizer"), [
    ({"optimizer": "sgd"}, partial(torch.optim.SGD, lr=0.3)),
    ({"momentum": 0.8}, partial(torch.optim.SGD, lr=0.3, momentum=0.8)),
    ({"optimizer": "adam"}, partial(torch.optim.Adam, lr=0.3)),
])  # fmt: skip
def test_pretraining_is_what_pytorch_does(options, optimizer):
    stage, seen = stage_of(**options), []
    trained = pretrain(stage, data=DATA, public=DATA.auxiliary, device=CPU, on_progress=seen.append)
    assert seen == [1] * 12
    module = module_of(stage, **SHAPE)
    descent = optimizer(module.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, T_max=12)
    purpose = Purpose.PRETRAINING_BATCHES
    batches = KnownBatches(np.arange(40), batch_size=8, seed=stage.model_seed, purpose=purpose)
    for step in range(12):
        part = DATA.auxiliary[batches.at(step)]
        descent.zero_grad()
        logits = module(torch.from_numpy(part.features))
        nn.functional.cross_entropy(logits, torch.from_numpy(part.labels)).backward()
        descent.step()
        schedule.step()
    np.testing.assert_allclose(trained.parameters, flat(module), rtol=2e-4, atol=2e-5)
    right = module(torch.from_numpy(DATA.test.features)).argmax(dim=1).numpy() == DATA.test.labels
    assert trained.test_accuracy == pytest.approx(right.mean(), abs=1e-6)
    assert trained.test_accuracy > 0.5  # chance is 1/3
    untested = replace(DATA, test=DATA.test[:0])
    assert np.isnan(pretrain(stage, data=untested, public=DATA.auxiliary, device=CPU).test_accuracy)


def test_runs_start_from_the_pretrained_model() -> None:
    """A training that hardly moves has its accuracy."""
    still = stage(**PRETRAINED | {"learning_rate": 1e-12, "num_steps": 1})
    pretrained = pretrain(stage_of(), data=DATA, public=DATA.auxiliary, device=CPU)
    canary = InputCanary(DATA.private.features[0], 1, 0)
    options = {"data": DATA, "canaries": [canary], "noise_multiplier": 1.0, "device": CPU}
    options["pretrained"] = pretrained.parameters
    shard = train_shard(still, runs=range(4), inputs={}, **options)
    np.testing.assert_allclose(shard.test_accuracy, pretrained.test_accuracy, atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (3, 4, 4)])
def test_records_of_the_audit_are_left_out_of_another_dataset(shape, tmp_path: Path) -> None:
    """Also where the two datasets are scaled by different auxiliary records."""
    pixels = np.random.default_rng(3).integers(0, 256, (900, *shape)).astype(np.float32)
    labels = np.arange(900) % 3
    whole, half = (
        Source("own", training=Records(pixels[:n], labels[:n]), test=None) for n in (900, 500)
    )
    data = split_records(half, num_records=150, num_auxiliary=200, seed=0)
    other = split_records(whole, num_records=600, num_auxiliary=100, seed=1)
    written, scaling = tmp_path / "other.npz", data.scaling
    write_split(written, other, settings={})
    public, left_out = public_records(data, read_split(written))
    assert scaling is not None

    def raw(records: Records) -> list[tuple[int, ...]]:
        back = records.features * scaling.deviation + scaling.mean
        return [tuple(row) for row in np.rint(back).astype(int).reshape(len(back), -1).tolist()]

    audited = {*raw(data.private), *raw(data.test)}
    assert len(audited) == 300
    assert 100 < left_out < 300
    assert len(public) == 600 - left_out == len({*raw(public)})
    assert not {*raw(public)} & audited
    # Nothing else was left out, and labels belong to their features.
    label_of = {
        tuple(row): label for row, label in zip(pixels.reshape(900, -1), labels, strict=True)
    }
    for row, label in zip(raw(public), public.labels, strict=True):
        assert label_of[row] == label


def test_only_copies_of_audited_records_are_left_out() -> None:
    assert public_records(DATA) == (DATA.auxiliary, 0)
    private = DATA.private
    moved = Records(private.features + np.float32(0.01), private.labels)
    assert public_records(DATA, replace(DATA, private=moved))[1] == 0
    assert public_records(DATA, replace(DATA, private=private[:7]))[1] == 7
    assert public_records(replace(DATA, test=DATA.test[:0]), DATA)[1] == 30
    assert public_records(DATA, replace(DATA, private=private[:0]))[1] == 0
    narrow = Records(private.features[:, :4], private.labels)
    assert public_records(DATA, replace(DATA, private=narrow)) == (narrow, 0)


def test_records_in_another_scaling_are_refused_where_none_would_be_recognised() -> None:
    scaled = replace(DATA, scaling=Scaling(np.zeros((1, 6)), np.ones((1, 6))))
    for data, other in ((scaled, DATA), (DATA, scaled)):
        with pytest.raises(InputError, match=r"but not both, .* set standardised to the same"):
            public_records(data, other)


@pytest.mark.parametrize(("public", "message"), [
    (Records(np.zeros((20, 4), np.float32), np.arange(20) % 3), r"features of shape \(4,\)"),
    (Records(np.zeros((20, 6), np.float32), np.arange(20) % 5), "labels up to 4"),
    (DATA.auxiliary[:7], "batch_size 8 is more than the 7 records"),
    (replace(DATA.auxiliary, features=DATA.auxiliary.features * np.float32(1e18)),
     "the pretraining diverged: lower learning_rate"),
])  # fmt: skip
def test_public_records_that_do_not_fit_are_refused(public: Records, message: str) -> None:
    stage = stage_of(model={"model": "linear", "hidden_sizes": None}, learning_rate=1e30)
    with pytest.raises(InputError, match=message):
        pretrain(stage, data=DATA, public=public, device=CPU)


def test_audits_of_one_model_share_its_pretraining() -> None:
    """It depends on the model and its own settings; reference models depend on it too."""

    def names(pretraining: dict[str, object] = PRETRAINING, **changes: object) -> list[str]:
        products = Products(pretrained_experiment(pretraining, **changes))
        [pretrained] = products.pretrained_models.audits
        [reference] = products.reference_models.audits
        return [pretrained, reference]

    alike = names(learning_rate=0.5, num_steps=9, canary="gradient", noise_multiplier=2.0)
    assert names()[0] == alike[0]
    others = [names(hidden_sizes=[6]), names({"num_steps": 3}), names({"dataset": "other"})]
    for kind in (0, 1):
        assert len({pair[kind] for pair in (names(), *others)}) == 4


def test_a_reference_that_diverges() -> None:
    features = 1e3 * np.random.default_rng(0).standard_normal((20, 5), np.float32)
    options = {"module": perceptron(5, 32, nn.ReLU)(3), "initialisation": Initialisation.FIXED}
    options |= {"records": Records(features, np.arange(20) % 3), "device": CPU}
    descent = DPSGD(0.0, float("inf"), 1e30, (20,))
    with pytest.raises(InputError, match=r"without clipping, diverged: lower learning_rate \(1e"):
        train_reference(**options, dpsgd=descent)
    with pytest.raises(InputError, match=r"simulated training diverged: lower learning_rate \(1e"):
        simulated_movement(**options, dpsgd=replace(descent, max_grad_norm=1e30), seed=0)


@pytest.mark.parametrize(("module", "message"), [
    (nn.Linear(6, 3).double(), r"'weight' is torch\.float64; convert it to float32$"),
    (nn.Linear(6, 3).requires_grad_(False), "'weight' is frozen"),
])  # fmt: skip
def test_simulated_trainings_refuse_the_parameters_that_audits_refuse(module, message):
    options = {"initialisation": Initialisation.FIXED, "dpsgd": DPSGD(0.0, math.inf, 0.1, 2)}
    with pytest.raises(InputError, match=message):
        train_reference(module=module, records=RECORDS, device=CPU, **options)
