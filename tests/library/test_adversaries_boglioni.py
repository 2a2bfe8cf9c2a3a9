"""The canary sets of Boglioni et al.: random records, and images optimised by metagradients."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from tqdm import tqdm

from dpcanary.adversaries.catalogue import adversary
from dpcanary.adversaries.crafting import Crafting, craft_canaries
from dpcanary.adversaries.metagradient import descent_of, optimised_canaries
from dpcanary.adversaries.settings import (
    CraftingStage,
    MetagradientSettings,
    MetagradientStage,
    Start,
)
from dpcanary.errors import InputError
from dpcanary.records import Records, Split
from dpcanary.settings import products as shared
from dpcanary.settings.experiment import Experiment
from dpcanary.settings.parsing import parse_experiment

CPU = torch.device("cpu")
SLOTS, COUNT = 4, 12
OPTIONS = {"num_metasteps": 2, "num_steps": 3, "batch_size": 5, "width": 2, "step_size": 0.2}


def images(count: int = COUNT) -> Records:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, 3, 32, 32)).astype(np.float32)
    return Records(np.clip(features, -2, 2), np.arange(count) % 3)


def experiment(*, figures: dict | None = None, **changes: object) -> Experiment:
    audit = {
        "canary": "metagradient",
        "adjacency": "add_remove",
        "dataset": "images",
        "model": "convnet",
        "sample_rate": 1.0,
        "noise_multiplier": 1.0,
        "num_steps": 4,
        "num_runs": 4,
        "num_slots": SLOTS,
        "seed": 3,
        "metagradient": OPTIONS,
        **changes,
    }
    used = {key: value for key, value in audit.items() if value is not None}
    return parse_experiment(
        {
            "experiment": "test",
            "delta": 1e-5,
            "datasets": {"images": {"source": "cifar10", "num_records": COUNT}},
            "audits": {"one": used},
            "figures": figures or {},
        }
    )


def stage(**changes: object) -> MetagradientStage:
    options = MetagradientSettings(**OPTIONS | changes)
    return MetagradientStage(seed=3, num_slots=SLOTS, metagradient=options)


@contextmanager
def silent(total, unit):
    yield tqdm(total=total, disable=True)


def optimised(private: Records | None = None, **changes: object):
    return optimised_canaries(
        stage(**changes), private=private or images(), device=CPU, progress=silent
    )


def crafting(canary: str, **more: object) -> Crafting:
    changes = {"canary": canary} | ({} if canary == "metagradient" else {"metagradient": None})
    own = experiment(**changes).stage(CraftingStage, audit="one")
    private = images()
    return Crafting(own, Split(private, private[:0], private[:0]), None, CPU, **more)


def test_sets_with_the_same_seed_have_the_same_targets_and_other_labels():
    """So that trainings with different sets are pairs."""
    own, mislabeled = (craft_canaries(crafting(name)) for name in ("random_record", "loss"))
    optimised_set = optimised(start=Start.OTHER_LABEL)
    shared_set = craft_canaries(crafting("metagradient", optimised=optimised_set))
    private = images()
    targets = [canary.target for canary in own.canaries]
    assert len({*targets}) == SLOTS
    for canaries in (mislabeled, shared_set):
        assert [canary.target for canary in canaries.canaries] == targets
        assert canaries.target_labels == tuple(private.labels[targets])
    for canary in own.canaries:
        np.testing.assert_array_equal(canary.features, private.features[canary.target])
    assert own.labels == own.target_labels
    assert shared_set.labels == mislabeled.labels
    assert all(np.array(mislabeled.labels) != mislabeled.target_labels)


def test_every_metastep_moves_pixels_by_a_step_or_to_the_limit():
    private = images()
    canaries = optimised(num_metasteps=1)
    least, most = (getattr(private.features, name)(axis=(0, 2, 3)) for name in ("min", "max"))
    for canary, label in zip(canaries.canaries, canaries.target_labels, strict=True):
        moved = np.abs(canary.features - private.features[canary.target])
        whole = np.isclose(moved, 0.2, atol=1e-6)
        at_limit = (least == canary.features.T) | (most == canary.features.T)
        assert (whole | at_limit.T | (moved == 0)).all()
        assert whole.mean() > 0.8
        assert canary.label == label
        assert (least <= canary.features.T).all()
        assert (most >= canary.features.T).all()


def test_the_learning_rate_rises_and_falls():
    rates = descent_of(MetagradientSettings(num_steps=10, learning_rate=2.0)).learning_rates
    expected = [2 / 3, 4 / 3, 2, 2, 12 / 7, 10 / 7, 8 / 7, 6 / 7, 4 / 7, 2 / 7]
    np.testing.assert_allclose(rates, expected)


def test_canaries_need_images_and_the_file_of_optimised_ones():
    flat = Records(np.zeros((COUNT, 64), np.float32), np.arange(COUNT) % 3)
    with pytest.raises(InputError, match=r"images of shape \(3, 32, 32\), not \(64,\)"):
        optimised(flat)
    with pytest.raises(InputError, match="needs the file of optimised canaries"):
        craft_canaries(crafting("metagradient"))


def test_audits_of_other_trainings_share_optimised_canaries():
    """They depend on data, seed, slots and their own settings, and on nothing else."""

    def name(**changes: object) -> str:
        [job] = shared.optimised_canaries(experiment(**changes)).audits
        return job

    assert name() == name(learning_rate=0.5, noise_multiplier=0.0, model="resnet9", width=4)
    others = [
        name(seed=4),
        name(num_slots=6),
        name(metagradient=OPTIONS | {"num_metasteps": 3}),
    ]
    assert len({name(), *others}) == 4
    assert shared.optimised_canaries(experiment(canary="loss", metagradient=None)).audits == {}
    assert adversary("metagradient").uses_optimised


OF_RECORDS = {"canary": ["random_record", "loss"], "metagradient": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_slots": 3}, "num_slots must be even, not 3"),
        (
            {"canary": "random_record", "adjacency": "substitute", "metagradient": None},
            "audits adjacency add_remove and zero_out, not substitute",
        ),
        (
            {"canary": "gradient", "metagradient": None, "augmentation_multiplicity": 2},
            "canary gradient is no image and has no views",
        ),
        ({"canary": "loss"}, r"metagradient: its canary, .* do not use this key"),
        ({"metagradient": {"num_metastep": 3}}, "key 'metagradient.num_metastep'; did you mean"),
        ({"metagradient": {"step_size": 0}}, r"step_size: .* greater than 0 \(got 0\)"),
        ({"metagradient": {"start": "labels"}}, "metagradient.start: unknown name"),
        ({"metagradient": {"width": 3}}, "metagradient.width: .* multiple of 2"),
        ({"metagradient": {"batch_size": 11}}, "batch_size: 11 must be at most the 10 records"),
        ({"metagradient": [OPTIONS, OPTIONS]}, "cannot be a list; write a sweep for each"),
        (OF_RECORDS | {"kind": "canary_sets", "seed": None}, "give them the same seed"),
        (
            OF_RECORDS | {"kind": "canary_sets", "canary": ["loss"], "score": "gradient_norm"},
            "need score loss",
        ),
        (
            OF_RECORDS | {"kind": "privacy_profile", "noise_multiplier": 0.0},
            "trains without privacy, which k",
        ),
        (
            OF_RECORDS | {"kind": "epsilon_by_noise", "noise_multiplier": [0.0, 1.0]},
            "trains without privacy",
        ),
    ],
)
def test_configs_that_contradict_the_canaries_are_refused(changes, message):
    """With a figure of a kind, also what the figure cannot show."""
    assert experiment(augmentation_multiplicity=2).audits["one"].augmentation_multiplicity == 2
    audit = {key: value for key, value in changes.items() if key != "kind"}
    figures = {"f": {"kind": changes["kind"], "sweeps": ["one"]}} if "kind" in changes else {}
    with pytest.raises(InputError, match=message):
        experiment(figures=figures, **audit)
