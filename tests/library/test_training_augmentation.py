"""Views of images: what they are, how they are drawn, and gradients that average over them."""

import math
from functools import partial

import numpy as np
import one_record_at_a_time as plain
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpcanary.core.randomness import philox_key
from dpcanary.data.canaries import GradientCanary
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.augmentation import Views, augmented, check_augmented
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradient_path import Batch
from dpcanary.training.kernels.philox import random_words
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.residual_networks import resnet9, wrn16_4
from dpcanary.training.training_settings import Purpose

RECORDS, VIEWS, SIDE = 5, 3, 12


@settings(max_examples=40)
@given(
    mirrored=st.integers(0, 1), across=st.integers(0, 2**15 - 1), down=st.integers(0, 2**15 - 1),
    unused=st.sampled_from([0, 2**15]),
)  # fmt: skip
def test_views_are_mirrored_crops_of_the_padded_image(mirrored, across, down, unused):
    """A word has a bit for the mirror and two fractions of 15 bits for shifts from 0 to 8."""
    images = np.random.default_rng(0).normal(size=(2, 3, 6, 8)).astype(np.float32)
    word = mirrored << 31 | across << 16 | unused | down
    unmoved = 2**13 << 1 | 2**13 << 17  # the middle of nine shifts
    drawn = torch.tensor([[word, unmoved]] * 2)
    views = augmented(torch.from_numpy(images), drawn).numpy()
    padded = np.pad(images, ((0, 0), (0, 0), (4, 4), (4, 4)), mode="reflect")
    top, left = (int(9 * fraction / 2**15) for fraction in (down, across))
    crop = padded[:, :, top : top + 6, left : left + 8]
    np.testing.assert_array_equal(views[0], crop[..., ::-1] if mirrored else crop)
    np.testing.assert_array_equal(views[1], images)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**40),
    runs=st.lists(st.integers(0, 2**32 - 2), min_size=1, max_size=4, unique=True),
    step=st.integers(0, 2**31),
    rows=st.lists(st.integers(0, 8), min_size=1, max_size=5),
)
def test_views_are_words_of_their_own_purpose_by_seed_run_step_and_row_alone(
    seed, runs, step, rows
):
    words = np.empty((len(runs), 9 * VIEWS), np.uint32)
    random_words(words, philox_key(seed=seed), step, np.array(runs), 20)
    assert [purpose for purpose in Purpose if purpose == 20] == [Purpose.VIEWS]
    expected = words.reshape(-1, 9, VIEWS)[:, rows].astype(np.int64)
    views = Views(VIEWS, 9, seed=seed, runs=torch.tensor(runs))
    assert np.array_equal(views.at(step, torch.tensor(rows)), expected)
    rows_of_runs = torch.tensor([rows] * len(runs))
    assert np.array_equal(views.at(step, rows_of_runs), expected)


NETWORKS = {
    "twice": plain.MODELS["twice"],
    "resnet9": plain.Model(partial(resnet9, width=2), (3, 32, 32)),
    "wrn16_4": plain.Model(wrn16_4, (3, 8, 8)),
}


@pytest.mark.parametrize(("name", "is_clipped"), [
    ("twice", False), ("twice", True), ("resnet9", True),
    pytest.param("wrn16_4", True, marks=pytest.mark.long),
])  # fmt: skip
def test_gradients_are_averaged_over_views_before_they_are_clipped(name, is_clipped):
    """With a norm between those of the records; the sum over views is VIEWS as long."""
    module, table = NETWORKS[name].module(3), plain.table_for(NETWORKS[name], 3, count=RECORDS)
    parameters = plain.parameters_of(module, 2, spread=0.01)
    rows, weights = torch.tensor([4, 0]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    drawn = Views(VIEWS, len(table.features), seed=3, runs=torch.arange(2)).at(0, rows)
    each = []
    for row, of_run in zip(parameters, drawn, strict=True):
        views = augmented(table.features[rows], of_run)
        records = [*zip(views.flatten(0, 1), table.labels[rows].repeat(VIEWS), strict=True)]
        gradients = plain.plain_gradients(module, row, records, plain.CROSS_ENTROPY)
        each.append(gradients.unflatten(0, (VIEWS, len(rows))).mean(dim=0))
    norms = each[0].norm(dim=1)
    clip = float(norms.mean()) if is_clipped else math.inf
    assert not is_clipped or norms.min() < 0.99 * clip < 1.01 * clip < norms.max()
    sums, setup = torch.empty_like(parameters), {"loss": plain.CROSS_ENTROPY, "multiplicity": VIEWS}
    for vectorise in (False, True):
        path = ModulePath(module, table, vectorise_runs=vectorise, **setup)
        assert path.vectorises == vectorise
        path.clipped_sums(parameters, Batch(rows, weights, drawn), clip, sums)
        for run in range(2):
            expected = plain.clipped_sum(each[run], weights[run], clip)
            assert (sums[run] - expected).norm() <= 1e-5 * expected.norm()


def test_an_ensemble_trains_on_views_whatever_the_shards():
    rng = np.random.default_rng(1)
    records = Records(rng.normal(size=(8, 3, SIDE, SIDE)).astype(np.float32), np.arange(8) % 3)
    module = nn.Sequential(nn.Conv2d(3, 4, 5), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(256, 3))
    options = {"module": module, "records": records, "canary": GradientCanary(0, 0), "seed": 0}

    def trained(runs: range, multiplicity: int) -> np.ndarray:
        dpsgd = DPSGD(0.5, 1.0, 0.3, (4,), sample_rate=0.7, augmentation_multiplicity=multiplicity)
        return train_ensemble(**options, dpsgd=dpsgd, runs=runs, keep_parameters=True).parameters

    whole = trained(range(4), 2)
    np.testing.assert_array_equal(whole[2:], trained(range(2, 4), 2))
    assert not np.allclose(whole, trained(range(4), 0))
    options |= {"records": Records(np.zeros((4, 6), np.float32), np.arange(4) % 2)}
    with pytest.raises(InputError, match=r"is for images .*; the\s+records have shape \(6,\)"):
        trained(range(4), 2)
    check_augmented((1, 5, 5))
    with pytest.raises(InputError, match=r"of more than 4 x 4 pixels; .* shape \(1, 5, 4\)"):
        check_augmented((1, 5, 4))
