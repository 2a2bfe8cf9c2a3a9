"""Datasets: the split is balanced, disjoint and reads nothing private; bad sources are named."""

import numpy as np
import pytest

from dpcanary.datasets import load_source, split_dataset
from dpcanary.errors import InputError
from dpcanary.splits import read_split, write_split


@pytest.fixture
def source(tmp_path):
    def write(**arrays) -> str:
        path = tmp_path / "mine.npz"
        rng = np.random.default_rng(0)
        good = {
            "features": rng.normal(3.0, 5.0, (120, 4)),
            "labels": np.tile(np.arange(3), 40),
        }
        np.savez(path, **{**good, **arrays})
        return str(path)

    return write


def test_digits_are_cut_as_the_demo_says():
    split = split_dataset(source="digits", num_records=500, seed=0)
    assert split.features.shape == (500, 64)
    assert np.bincount(split.labels).tolist() == [50] * 10
    assert len(split.auxiliary_labels) + len(split.test_labels) == 1797 - 500
    assert split.num_classes == 10


def test_roles_are_disjoint_and_cover_the_source(source):
    split = split_dataset(source=source(), num_records=60, seed=0)
    raw, _ = load_source(source())
    mean_and_scale = np.polyfit(split.features[:, 0], raw[:60, 0], 1)
    assert mean_and_scale.shape == (2,)
    parts = [split.features, split.auxiliary_features, split.test_features]
    assert len(np.unique(np.vstack(parts), axis=0)) == 120


def test_standardised_by_auxiliary_records_alone(source):
    split = split_dataset(source=source(), num_records=60, seed=0)
    np.testing.assert_allclose(split.auxiliary_features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(split.auxiliary_features.std(axis=0), 1, atol=1e-6)
    # Another private record changes nothing about the others.
    features, labels = load_source(source())
    private = split_dataset(source=source(), num_records=60, seed=0).features
    moved = features.copy()
    target = np.flatnonzero(np.isclose(_standard(features, split), private[0]).all(axis=1))[0]
    moved[target] += 100
    other = split_dataset(source=source(features=moved, labels=labels), num_records=60, seed=0)
    np.testing.assert_array_equal(other.features[1:], private[1:])


def _standard(features, split):
    """The source in the split's units, solved from the split itself."""
    pairs = np.vstack([split.features, split.auxiliary_features, split.test_features])
    order_raw = np.sort(features, axis=0)
    order_new = np.sort(pairs, axis=0)
    columns = []
    for column in range(features.shape[1]):
        slope, offset = np.polyfit(order_raw[:, column], order_new[:, column], 1)
        columns.append(slope * features[:, column] + offset)
    return np.column_stack(columns)


def test_a_constant_feature_stays_finite(source):
    features = np.random.default_rng(0).normal(size=(120, 4))
    features[:, 2] = 7.0
    split = split_dataset(source=source(features=features), num_records=60, seed=0)
    np.testing.assert_array_equal(split.features[:, 2], 0)


def test_the_seed_decides(source):
    one, two, three = (
        split_dataset(source=source(), num_records=60, seed=seed).features for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, three)


def test_it_comes_back_from_its_file(source, tmp_path):
    split = split_dataset(source=source(), num_records=60, seed=0)
    write_split(tmp_path / "split.npz", split, settings={})
    again = read_split(tmp_path / "split.npz")
    for name, array in vars(split).items():
        np.testing.assert_array_equal(getattr(again, name), array)


WITH_NAN = np.ones((120, 4))
WITH_NAN[17, 2] = np.nan


@pytest.mark.parametrize(
    ("arrays", "num_records", "message"),
    [
        ({"features": WITH_NAN}, 60, "record 17 has a feature that is NaN or infinite"),
        ({"features": WITH_NAN * np.inf}, 60, "NaN or infinite"),
        ({"features": np.ones(120)}, 60, "records x features"),
        ({"labels": np.zeros(7, int)}, 60, "one per record"),
        ({"labels": np.linspace(0, 1, 120)}, 60, "labels must be integers"),
        ({"labels": np.tile([-1, 0, 1], 40)}, 60, "labels must be integers from 0"),
        ({"labels": np.tile([0, 1, 3], 40)}, 60, "class 2 has 0 records"),
        ({"labels": np.repeat([0, 1, 2], [10, 50, 60])}, 60, "class 0 has 10 records, .* needs 20"),
        ({}, 61, "61 is no multiple of its 3 classes"),
        ({}, 600, "class . has 40 records, num_records 600 needs 200"),
        ({}, 120, "leave none to test"),
    ],
)
def test_bad_sources_are_named(source, arrays, num_records, message):
    with pytest.raises(InputError, match=message):
        split_dataset(source=source(**arrays), num_records=num_records, seed=0)


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown dataset source 'digit'"):
        load_source("digit")
    with pytest.raises(InputError, match="does not exist"):
        load_source(str(tmp_path / "none.npz"))
    np.savez(tmp_path / "half.npz", features=np.ones((4, 2)))
    with pytest.raises(InputError, match="has no array labels"):
        load_source(str(tmp_path / "half.npz"))
