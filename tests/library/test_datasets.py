"""Splits are disjoint and read nothing private; a user's own files are checked, and named."""

import numpy as np
import pandas as pd
import pytest

from dpcanary.datasets.source import Source
from dpcanary.datasets.sources import SOURCES, load_source
from dpcanary.datasets.splitting import split_dataset
from dpcanary.errors import InputError
from dpcanary.settings.dataset import KNOWN_SOURCES
from dpcanary.splits import SplitDataset, read_split, write_split


@pytest.fixture
def source(tmp_path):
    def write(**arrays) -> Source:
        path = tmp_path / "mine.npz"
        rng = np.random.default_rng(0)
        good = {
            "features": rng.normal(3.0, 5.0, (120, 4)),
            "labels": np.tile(np.arange(3), 40),
        }
        np.savez(path, **{**good, **arrays})
        return load_source(str(path))

    return write


def test_digits_are_cut_as_the_demo_says():
    split = split_dataset(load_source("digits"), num_records=500, seed=0)
    assert split.features.shape == (500, 64)
    assert np.bincount(split.labels).tolist() == [50] * 10
    assert len(split.auxiliary_labels) + len(split.test_labels) == 1797 - 500
    assert split.num_classes == 10


def test_roles_are_disjoint_and_cover_the_source(source):
    split = split_dataset(source(), num_records=60, seed=0)
    mean_and_scale = np.polyfit(split.features[:, 0], source().records[:60, 0], 1)
    assert mean_and_scale.shape == (2,)
    parts = [split.features, split.auxiliary_features, split.test_features]
    assert len(np.unique(np.vstack(parts), axis=0)) == 120


def test_standardised_by_auxiliary_records_alone(source):
    split = split_dataset(source(), num_records=60, seed=0)
    np.testing.assert_allclose(split.auxiliary_features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(split.auxiliary_features.std(axis=0), 1, atol=1e-6)
    # Another private record changes nothing about the others.
    features, labels = source().records, source().labels
    private = split_dataset(source(), num_records=60, seed=0).features
    moved = features.copy()
    target = np.flatnonzero(np.isclose(_standard(features, split), private[0]).all(axis=1))[0]
    moved[target] += 100
    other = split_dataset(source(features=moved, labels=labels), num_records=60, seed=0)
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


def test_images_are_standardised_by_channel(source):
    images = np.random.default_rng(0).integers(0, 256, (120, 3, 5, 4), dtype=np.uint8)
    images[:, 1] //= 10
    split = split_dataset(source(features=images), num_records=60, seed=0)
    assert split.features.shape == (60, 3, 5, 4)
    assert split.features.dtype == np.float32
    channels = split.auxiliary_features.astype(float)
    np.testing.assert_allclose(channels.mean(axis=(0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(channels.std(axis=(0, 2, 3)), 1, atol=1e-6)


def test_a_constant_feature_stays_finite(source):
    features = np.random.default_rng(0).normal(size=(120, 4))
    features[:, 2] = 7.0
    split = split_dataset(source(features=features), num_records=60, seed=0)
    np.testing.assert_array_equal(split.features[:, 2], 0)


def test_blocks_do_not_show(source, monkeypatch):
    """Against one block, which numpy's own mean and standard deviation confirm."""
    whole = split_dataset(source(), num_records=60, seed=0)
    monkeypatch.setattr("dpcanary.datasets.source._BLOCK_NUMBERS", 28)
    cut = split_dataset(source(), num_records=60, seed=0)
    for name, array in vars(whole).items():
        np.testing.assert_allclose(getattr(cut, name), array, rtol=1e-6)


def test_the_seed_decides(source):
    one, two, three = (
        split_dataset(source(), num_records=60, seed=seed).features for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, three)


def test_it_comes_back_from_its_file(source, tmp_path):
    split = split_dataset(source(), num_records=60, seed=0)
    write_split(tmp_path / "split.npz", split, settings={})
    again = read_split(tmp_path / "split.npz")
    for name, array in vars(split).items():
        np.testing.assert_array_equal(getattr(again, name), array)


def test_counts_may_be_given(source):
    split = split_dataset(
        source(), num_records=50, balanced=False, num_auxiliary=40, num_test=20, seed=0
    )
    assert [len(split.labels), len(split.auxiliary_labels), len(split.test_labels)] == [50, 40, 20]
    assert len(set(np.bincount(split.labels))) > 1
    rest = split_dataset(source(), num_records=50, balanced=False, num_auxiliary=40, seed=0)
    assert len(rest.test_labels) == 30
    np.testing.assert_array_equal(rest.test_features[:20], split.test_features)


def test_a_sources_own_test_part_is_the_test_part(source):
    known = source()
    whole = source(test_features=known.records[:9], test_labels=known.labels[:9])
    split = split_dataset(whole, num_records=60, num_test=5, seed=0)
    assert [len(split.auxiliary_labels), len(split.test_labels)] == [60, 5]
    np.testing.assert_array_equal(split.test_labels, known.labels[:5])
    # The same records in both parts, scaled alike.
    others = np.vstack([split.features, split.auxiliary_features])
    assert all((others == record).all(axis=1).any() for record in split.test_features)
    fewer = split_dataset(whole, num_records=60, num_auxiliary=7, seed=0)
    assert [len(fewer.auxiliary_labels), len(fewer.test_labels)] == [7, 9]
    private = split_dataset(known, num_records=60, seed=0).labels
    np.testing.assert_array_equal(fewer.labels, private)


def test_a_class_without_private_records_is_counted():
    labels = np.zeros(4, int)
    features = np.zeros((4, 2), np.float32)
    assert SplitDataset(features, labels, features, labels, features, labels + 6).num_classes == 7
    assert SplitDataset(features, labels, features, labels + 6, features, labels).num_classes == 7


def test_texts_need_an_encoder():
    texts = Source("reviews", np.array(["good", "bad"]), np.array([1, 0]))
    assert texts.kind == "texts"
    with pytest.raises(InputError, match=r"reviews: its records are texts: .* needs an encoder"):
        split_dataset(texts, num_records=2, seed=0)


def test_the_first_records_are_kept(source):
    whole = source(test_features=np.ones((9, 4)), test_labels=np.arange(9) % 3)
    cut = load_source(whole.name, max_records=7, num_test=2)
    np.testing.assert_array_equal(cut.records, whole.records[:7])
    np.testing.assert_array_equal(cut.labels, whole.labels[:7])
    assert cut.test_labels.tolist() == [0, 1]
    assert len(load_source("digits", max_records=10_000).labels) == 1797


WITH_NAN = np.ones((120, 4))
WITH_NAN[17, 2] = np.nan


@pytest.mark.parametrize(
    ("arrays", "num_records", "message"),
    [
        ({"features": WITH_NAN}, 60, "record 17 has a feature that is NaN or infinite"),
        ({"features": WITH_NAN * np.inf}, 60, "NaN or infinite .120 such records"),
        ({"features": np.ones(120)}, 60, "records x features"),
        ({"features": np.array(["a"] * 120)}, 60, "features must be real numbers, not <U1"),
        ({"features": np.ones((120, 4), complex)}, 60, "must be real numbers, not complex"),
        ({"features": np.ones((0, 4)), "labels": np.zeros(0, int)}, 1, "there are no records"),
        ({"labels": np.zeros(7, int)}, 60, "one per record"),
        ({"labels": np.linspace(0, 1, 120)}, 60, "labels must be integers"),
        ({"labels": np.tile([-1, 0, 1], 40)}, 60, "labels must be integers from 0"),
        ({"labels": np.tile([0, 1, 3], 40)}, 60, "class 2 has 0 records"),
        ({"labels": np.repeat([0, 1, 2], [10, 50, 60])}, 60, "class 0 has 10 records, .* needs 20"),
        ({"test_features": np.ones((9, 4))}, 60, "has no array test_labels"),
        (
            {"test_features": np.ones((9, 5)), "test_labels": np.zeros(9, int)},
            60,
            r"test record has shape \(5,\), the others \(4,\)",
        ),
        (
            {"test_features": WITH_NAN, "test_labels": np.zeros(120, int)},
            60,
            "test part: record 17 has a feature that is NaN",
        ),
        (
            {"test_features": np.ones((9, 4)), "test_labels": np.zeros(9, int)},
            120,
            "120 of its 120 records leave none",
        ),
        ({}, 61, "61 is no multiple of its 3 classes; .* balanced: false"),
        ({}, 600, "class . has 40 records, num_records 600 needs 200"),
        ({}, 120, "leave none to test"),
    ],
)
def test_bad_sources_are_named(source, arrays, num_records, message):
    with pytest.raises(InputError, match=message):
        split_dataset(source(**arrays), num_records=num_records, seed=0)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"num_records": 121, "balanced": False}, "num_records 121 is more than its 120 records"),
        ({"num_records": 60, "num_auxiliary": 61}, "num_auxiliary 61 .* 60 records are left"),
        ({"num_records": 60, "num_auxiliary": 60}, "num_test by default .* 0 records are left"),
        ({"num_records": 60, "num_test": 31}, "num_test 31 .* 30 records are left"),
    ],
)
def test_counts_that_do_not_fit_are_named(source, counts, message):
    with pytest.raises(InputError, match=message):
        split_dataset(source(), **counts, seed=0)


def test_the_sources_are_those_of_the_settings():
    assert set(SOURCES) == set(KNOWN_SOURCES)


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(InputError, match="unknown dataset source 'digit'; did you mean 'digits'"):
        load_source("digit")
    with pytest.raises(InputError, match="does not exist"):
        load_source(str(tmp_path / "none.npz"))
    with pytest.raises(InputError, match="does not exist"):
        load_source(str(tmp_path / "none.parquet"))
    np.savez(tmp_path / "half.npz", features=np.ones((4, 2)))
    with pytest.raises(InputError, match="has no array labels"):
        load_source(str(tmp_path / "half.npz"))
    with pytest.raises(InputError, match="source cifar10 is read from files, and none is given"):
        load_source("cifar10")
    with pytest.raises(InputError, match="source digits is read from no files; 1 are given"):
        load_source("digits", files=[tmp_path / "half.npz"])
    with pytest.raises(InputError, match="read from 1 files; 2 are given"):
        load_source("purchase100", files=[tmp_path / "one", tmp_path / "two"])


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 90, 30),
            "label": np.tile([0, 1, 2], 10),
            "income": rng.normal(size=30),
            "owner": rng.integers(0, 2, 30).astype(bool),
        }
    )


def test_a_table_is_read(table, tmp_path):
    path = tmp_path / "mine.parquet"
    table.to_parquet(path)
    read = load_source(str(path), max_records=20)
    np.testing.assert_array_equal(
        read.records, table[["age", "income", "owner"]].astype(float)[:20]
    )
    np.testing.assert_array_equal(read.labels, table.label[:20])
    np.testing.assert_array_equal(load_source(str(path), files=[path]).labels, table.label)
    split_dataset(read, num_records=6, seed=0)


def test_a_tables_index_is_no_feature(table, tmp_path, caplog):
    table[table.age > 20].to_parquet(tmp_path / "mine.parquet")
    assert load_source(str(tmp_path / "mine.parquet")).records.shape[1] == 3
    assert "its index is no feature and left out: __index_level_0__" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "must have one column 'label'"),
        ({"town": "Leeds"}, "column 'town' is not numeric but .*string"),
        ({"income": np.where(np.arange(30) == 4, np.inf, 1.0)}, "record 4 .* in column 'income'"),
        ({"label": np.where(np.arange(30) == 4, np.nan, 1.0)}, "column 'label' is double"),
        ({"label": -1}, "labels must be integers from 0"),
        ({"age": pd.array([*range(29), None], "Int64")}, "record 29 has no value in column 'age'"),
    ],
)
def test_bad_tables_are_named(table, tmp_path, change, message):
    path = tmp_path / "mine.parquet"
    for name, values in change.items():
        table[name] = values
    table.drop(columns=[name for name in change if change[name] is None]).to_parquet(path)
    with pytest.raises(InputError, match=message):
        load_source(str(path))


def test_a_damaged_table_is_named(table, tmp_path):
    path = tmp_path / "mine.parquet"
    table.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"mine.parquet is no whole .parquet file"):
        load_source(str(path))
    table[["label"]].to_parquet(path)
    with pytest.raises(InputError, match="one column 'label', and others"):
        load_source(str(path))
