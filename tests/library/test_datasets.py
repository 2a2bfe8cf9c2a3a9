"""Splits are disjoint and are scaled without private records; a user's own files are checked."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpcanary.datasets.settings import SourceStage
from dpcanary.datasets.source import KNOWN_SOURCES, Source
from dpcanary.datasets.sources import DRAW, READ, load_records, load_source
from dpcanary.datasets.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.files import write_arrays
from dpcanary.records import Records, Split, read_split, write_split

ROLES = ("private", "auxiliary", "test")


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


def parts_of(split: Split) -> list[Records]:
    return [getattr(split, role) for role in ROLES]


def write_own(path, labels) -> None:
    """Writes a user's own file with these labels, as .npz or .parquet."""
    features = np.random.default_rng(0).normal(size=(len(labels), 4))
    if path.suffix == ".npz":
        np.savez(path, features=features, labels=labels)
    else:
        columns = dict(zip("abcd", features.T, strict=True))
        pd.DataFrame({**columns, "label": labels}).to_parquet(path)


def test_digits_are_split_as_in_the_demo():
    split = split_records(load_source("digits"), num_records=500, seed=0)
    assert split.private.features.shape == (500, 64)
    assert np.bincount(split.private.labels).tolist() == [50] * 10
    assert len(split.auxiliary) + len(split.test) == 1797 - 500
    assert split.num_classes == 10


def test_roles_are_disjoint_and_cover_the_source(source):
    split = split_records(source(), num_records=60, seed=0)
    assert [len(part) for part in parts_of(split)] == [60, 30, 30]
    together = np.vstack([part.features for part in parts_of(split)])
    assert len(np.unique(together, axis=0)) == 120
    # They are the scaled records of the source, each with its label.
    scaled = _standard(source().training.features, split)
    labels = np.concatenate([part.labels for part in parts_of(split)])
    for features, label in zip(together, labels, strict=True):
        [record] = np.flatnonzero(np.isclose(scaled, features, atol=1e-4).all(axis=1))
        assert source().training.labels[record] == label


def test_standardised_by_auxiliary_records_alone(source):
    split = split_records(source(), num_records=60, seed=0)
    np.testing.assert_allclose(split.auxiliary.features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(split.auxiliary.features.std(axis=0), 1, atol=1e-6)
    # A change of one private record changes no other record.
    features, labels = source().training.features, source().training.labels
    private = split.private.features
    moved = features.copy()
    target = np.flatnonzero(np.isclose(_standard(features, split), private[0]).all(axis=1))[0]
    moved[target] += 100
    other = split_records(source(features=moved, labels=labels), num_records=60, seed=0)
    np.testing.assert_array_equal(other.private.features[1:], private[1:])
    for role in ("auxiliary", "test"):
        np.testing.assert_array_equal(getattr(other, role).features, getattr(split, role).features)


def _standard(features, split):
    """Features of the source in the split's units, which are estimated from the split."""
    pairs = np.vstack([part.features for part in parts_of(split)])
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
    split = split_records(source(features=images), num_records=60, seed=0)
    assert split.private.features.shape == (60, 3, 5, 4)
    assert split.private.features.dtype == np.float32
    channels = split.auxiliary.features.astype(float)
    np.testing.assert_allclose(channels.mean(axis=(0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(channels.std(axis=(0, 2, 3)), 1, atol=1e-6)


def test_a_constant_feature_stays_finite(source):
    features = np.random.default_rng(0).normal(size=(120, 4))
    features[:, 2] = 7.0
    split = split_records(source(features=features), num_records=60, seed=0)
    np.testing.assert_array_equal(split.private.features[:, 2], 0)


def test_the_block_size_does_not_matter(source, monkeypatch):
    """Against a single block, which is tested against NumPy's mean and standard deviation."""
    whole = split_records(source(), num_records=60, seed=0)
    monkeypatch.setattr("dpcanary.datasets.source._BLOCK_NUMBERS", 28)
    cut = split_records(source(), num_records=60, seed=0)
    for part, other in zip(parts_of(cut), parts_of(whole), strict=True):
        np.testing.assert_allclose(part.features, other.features, rtol=1e-6)
        np.testing.assert_array_equal(part.labels, other.labels)


def test_the_seed_decides_the_split(source):
    split, again, other = (split_records(source(), num_records=60, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(split.private.features, again.private.features)
    assert not np.array_equal(split.private.features, other.private.features)


def test_a_split_comes_back_from_its_file(source, tmp_path):
    split = split_records(source(), num_records=60, seed=0)
    write_split(tmp_path / "split.npz", split, settings={})
    again = read_split(tmp_path / "split.npz")
    for part, other in zip(parts_of(again), parts_of(split), strict=True):
        np.testing.assert_array_equal(part.features, other.features)
        np.testing.assert_array_equal(part.labels, other.labels)
        assert part.features.dtype == np.float32


def test_counts_may_be_given(source):
    split = split_records(
        source(), num_records=50, balanced=False, num_auxiliary=40, num_test=20, seed=0
    )
    assert [len(part) for part in parts_of(split)] == [50, 40, 20]
    assert len(set(np.bincount(split.private.labels))) > 1
    rest = split_records(source(), num_records=50, balanced=False, num_auxiliary=40, seed=0)
    assert len(rest.test) == 30
    np.testing.assert_array_equal(rest.test.features[:20], split.test.features)


def test_a_sources_own_test_part_is_the_test_part(source):
    known = source()
    first = known.training[:9]
    whole = source(test_features=first.features, test_labels=first.labels)
    split = split_records(whole, num_records=60, num_test=5, seed=0)
    assert [len(part) for part in parts_of(split)] == [60, 60, 5]
    np.testing.assert_array_equal(split.test.labels, known.training.labels[:5])
    # The same records in both parts are scaled alike.
    others = np.vstack([split.private.features, split.auxiliary.features])
    assert all((others == record).all(axis=1).any() for record in split.test.features)
    fewer = split_records(whole, num_records=60, num_auxiliary=7, seed=0)
    assert [len(part) for part in parts_of(fewer)] == [60, 7, 9]
    private = split_records(known, num_records=60, seed=0).private
    np.testing.assert_array_equal(fewer.private.labels, private.labels)


def test_a_class_without_private_records_is_counted():
    low, high = (Records(np.zeros((4, 2), np.float32), [label] * 4) for label in (0, 6))
    assert Split(low, low, high).num_classes == 7
    assert Split(low, high, low).num_classes == 7
    assert Split(low, low, low[:0]).num_classes == 1
    assert Source("some", low, high).num_classes == 7


def test_the_first_records_are_kept(source):
    whole = source(test_features=np.ones((9, 4)), test_labels=np.arange(9) % 3)
    cut = load_source(whole.name, max_records=7, num_test=2)
    np.testing.assert_array_equal(cut.training.features, whole.training.features[:7])
    np.testing.assert_array_equal(cut.training.labels, whole.training.labels[:7])
    assert cut.test.labels.tolist() == [0, 1]
    assert cut.test.features.shape == (2, 4)
    assert len(load_source("digits", max_records=10_000).training) == 1797


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
        ({"labels": np.zeros(7, int)}, 60, r"mine.npz: .*need labels of shape .120,., one per rec"),
        ({"labels": np.zeros((120, 1), int)}, 60, "one per record; theirs is .120, 1."),
        ({"labels": np.linspace(0, 1, 120)}, 60, "labels must be integers"),
        ({"labels": np.tile([-1, 0, 1], 40)}, 60, "labels must be integers from 0"),
        ({"labels": np.repeat([0, 1, 2], [10, 50, 60])}, 60, "class 0 has 10 records, .* needs 20"),
        ({"test_features": np.ones((9, 4))}, 60, "mine.npz has no array test_labels"),
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
            "120 of its 120 records are private, which leaves none",
        ),
        ({}, 61, "61 is no multiple of its 3 classes; .* balanced: false"),
        ({}, 600, "class . has 40 records, num_records 600 needs 200"),
        ({}, 120, "leaves none as auxiliary or test records; lower num_records"),
    ],
)
def test_bad_sources_are_named(source, arrays, num_records, message):
    with pytest.raises(InputError, match=message):
        split_records(source(**arrays), num_records=num_records, seed=0)


def test_a_class_without_records_cannot_be_balanced():
    records = Records(np.random.default_rng(0).normal(size=(120, 4)), np.tile([0, 1, 3], 40))
    with pytest.raises(InputError, match=r"class 2 has 0 records, num_records 60 needs 15"):
        split_records(Source("some", records), num_records=60, seed=0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.tile([1, 2, 3], 10), "no record has label 0, though labels go up to 3"),
        (np.tile([0, 1, 3, 7, 7], 6), "no record has label 2, though labels go up to 7"),
    ],
)
@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_a_class_without_records_in_a_users_file_is_refused(tmp_path, labels, message, suffix):
    path = tmp_path / f"mine.{suffix}"
    write_own(path, labels)
    with pytest.raises(InputError, match=f"mine.{suffix}: {message}; number the classes from 0"):
        load_source(str(path))
    write_own(path, np.unique(labels, return_inverse=True)[1])
    assert load_source(str(path)).num_classes == len(np.unique(labels))


def test_a_class_only_in_the_test_part_of_a_users_file_is_refused(source):
    part = {"test_features": np.ones((2, 4)), "test_labels": np.array([0, 8])}
    with pytest.raises(InputError, match="no record has label 3, though labels go up to 8;"):
        source(**part)
    assert source(**part | {"test_labels": np.array([1, 1])}).num_classes == 3


def test_features_of_a_known_source_may_lack_a_class(tmp_path):
    """Its classes are numbered without gaps, but the first records may lack some."""
    stage = SourceStage(
        source="cifar10", label_column="label", max_records=4, num_test=None, seed=0
    )
    records = Records(np.random.default_rng(0).normal(size=(4, 2)), [6, 9, 9, 4])
    write_arrays(tmp_path / "features.npz", header={}, arrays=vars(records))
    encoded = load_records(stage, files=[], features=tmp_path / "features.npz")
    np.testing.assert_array_equal(encoded.training.labels, records.labels)


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
        split_records(source(), **counts, seed=0)


def test_every_known_source_is_loaded():
    assert {*READ, *DRAW} == {*KNOWN_SOURCES}


@pytest.mark.parametrize("name", [name for name, one in KNOWN_SOURCES.items() if one.is_generated])
def test_what_is_known_of_a_source_is_true(name):
    known, found = KNOWN_SOURCES[name], load_source(name)
    assert len(found.training) == known.num_training
    assert (None if found.test is None else len(found.test)) == known.num_test
    assert found.training.features.shape[1:] == known.shape
    assert found.num_classes == known.num_classes
    assert found.synthetic == known.is_drawn


@pytest.mark.parametrize("name", [name for name, one in KNOWN_SOURCES.items() if one.is_drawn])
def test_records_that_are_drawn_follow_the_seed(name):
    first, again, other = (
        load_records(SourceStage(source=name, seed=seed), files=[]).training.features
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("source", "files", "message"),
    [
        ("digit", [], "unknown dataset source 'digit'; did you mean 'digits'"),
        ("none.npz", [], "does not exist"),
        ("none.parquet", [], "does not exist"),
        ("cifar10", [], "source cifar10 is read from files, and none is given"),
        ("digits", ["one"], "source digits is read from no files, not from 1"),
        ("purchase100", ["one", "two"], "purchase100 is read from 1 files, not from 2"),
        ("mine.npz", ["one", "two"], r"mine.npz is read from 1 file; 2 are given"),
    ],
)
def test_other_sources_are_refused(source, files, message):
    with pytest.raises(InputError, match=message):
        load_source(source, files=[Path(file) for file in files])


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
        read.training.features, table[["age", "income", "owner"]].astype(float)[:20]
    )
    np.testing.assert_array_equal(read.training.labels, table.label[:20])
    again = load_source(str(path), files=[path])
    np.testing.assert_array_equal(again.training.labels, table.label)
    split_records(read, num_records=6, seed=0)


def test_a_tables_index_is_no_feature(table, tmp_path, caplog):
    table[table.age > 20].to_parquet(tmp_path / "mine.parquet")
    assert load_source(str(tmp_path / "mine.parquet")).training.features.shape[1] == 3
    assert "its index is no feature and is left out: __index_level_0__" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": None}, "must have one column 'label'"),
        ({"town": "Leeds"}, "column 'town' is not numeric but .*string"),
        (
            {"income": np.where(np.arange(30) == 4, np.inf, 1.0)},
            "record 4 has no finite value in column 'income'",
        ),
        ({"label": np.where(np.arange(30) == 4, np.nan, 1.0)}, "column 'label' is double"),
        ({"label": -1}, "labels must be integers from 0"),
        (
            {"age": pd.array([*range(29), None], "Int64")},
            "record 29 has no finite value in column 'age'",
        ),
    ],
)
def test_bad_tables_are_named(table, tmp_path, change, message):
    path = tmp_path / "mine.parquet"
    for name, values in change.items():
        table[name] = values
    table.drop(columns=[name for name in change if change[name] is None]).to_parquet(path)
    with pytest.raises(InputError, match=message):
        load_source(str(path))


@pytest.mark.parametrize(("suffix", "separator"), [(".csv", ","), (".tsv", "\t")])
def test_text_tables_are_read_as_parquet_is(table, tmp_path, suffix, separator):
    table.to_csv(tmp_path / f"mine{suffix}", sep=separator, index=False)
    table.to_parquet(tmp_path / "mine.parquet", index=False)
    one, other = (load_source(str(tmp_path / f"mine{end}")) for end in (suffix, ".parquet"))
    np.testing.assert_allclose(one.training.features, other.training.features)
    np.testing.assert_array_equal(one.training.labels, other.training.labels)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_labels_may_be_texts_in_a_column_of_any_name(table, tmp_path, suffix):
    names = np.array(["setosa", "versicolor", "virginica"])
    classes = np.arange(len(table)) % 3
    own = table.drop(columns="label").assign(species=names[classes])
    path = tmp_path / f"mine{suffix}"
    own.to_csv(path, index=False) if suffix == ".csv" else own.to_parquet(path)
    source = load_source(str(path), label_column="species")
    np.testing.assert_array_equal(source.training.labels, classes)
    assert source.class_names == tuple(names)
    assert source.training.features.shape == (len(table), table.shape[1] - 1)
    with pytest.raises(InputError, match=r"one column 'label', and others; .*label_column"):
        load_source(str(path))
    own.loc[4, "species"] = None
    own.to_csv(path, index=False) if suffix == ".csv" else own.to_parquet(path)
    with pytest.raises(InputError, match="record 4 has no label in column 'species'"):
        load_source(str(path), label_column="species")


def test_a_damaged_table_is_named(table, tmp_path):
    path = tmp_path / "mine.parquet"
    table.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"mine.parquet is no whole .parquet file"):
        load_source(str(path))
    table[["label"]].to_parquet(path)
    with pytest.raises(InputError, match="one column 'label', and others"):
        load_source(str(path))
