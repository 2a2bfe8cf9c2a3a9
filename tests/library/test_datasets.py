"""Splits are disjoint and are scaled without private records; a user's own files are checked."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcanary.datasets.settings import SourceStage
from dpcanary.datasets.source import Source
from dpcanary.datasets.sources import load_records, load_source
from dpcanary.datasets.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.files import write_arrays
from dpcanary.records import Records, Split

RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(3.0, 5.0, (120, 4)), np.tile(np.arange(3), 40)
SOURCE = Source("some", Records(FEATURES, LABELS))
BYTES = RNG.integers(0, 256, (120, 3, 5, 4), dtype=np.uint8)
BYTES[:, 2] = 7  # a channel that is constant
WITH_NAN = np.ones((120, 4))
WITH_NAN[17, 2] = np.nan


def parts_of(split: Split) -> list[Records]:
    return [split.private, split.auxiliary, split.test]


def source_of(**arrays: Any) -> Source:
    test = arrays.pop("test", None)
    return Source("some", Records(**{"features": FEATURES, "labels": LABELS} | arrays), test)


COUNTS = st.none() | st.integers(1, 30)
SPLITS = st.tuples(st.integers(0, 2**32), st.integers(1, 60), st.booleans(), COUNTS, COUNTS)
WAYS = st.tuples(st.booleans(), st.sampled_from(["numbers", "images", "bytes"]))


@given(SPLITS, WAYS)
@settings(max_examples=60)
def test_splits(counts, way):
    """Disjoint, each record scaled with its label, by the auxiliary records alone (or channels)."""
    (seed, num_records, balanced, num_auxiliary, num_test), (has_test, kind) = counts, way
    num_records = min(num_records * (3 if balanced else 1), 60)
    features = {"numbers": FEATURES, "images": FEATURES.reshape(120, 2, 1, 2), "bytes": BYTES}[kind]
    test = Records(features[:31] + 1, LABELS[:31]) if has_test else None
    counts = {"num_records": num_records, "num_auxiliary": num_auxiliary, "num_test": num_test}
    source = source_of(features=features, test=test)
    split = split_records(source, balanced=balanced, seed=seed, **counts)
    private, auxiliary, tested = parts_of(split)
    others = 120 - num_records
    default = others if has_test else others // 2
    assert (len(private), len(auxiliary)) == (num_records, num_auxiliary or default)
    assert len(tested) == (num_test or (31 if has_test else others - len(auxiliary)))
    if balanced:
        assert {*np.bincount(private.labels)} == {num_records // 3}
    axes = (0,) if kind == "numbers" else (0, 2, 3)
    records = []
    for part in parts_of(split):
        assert part.features.dtype == np.float32
        assert part.features.shape[1:] == features.shape[1:]
        raw = part.features * split.scaling.deviation + split.scaling.mean
        origin = test.features if has_test and part is tested else features
        gaps = np.abs(raw.reshape(len(raw), 1, -1) - origin.reshape(1, len(origin), -1)).max(-1)
        rows = gaps.argmin(axis=1)
        assert gaps.min(axis=1).max() < 1e-4
        np.testing.assert_array_equal(part.labels, LABELS[rows])
        records += [] if has_test and part is tested else rows.tolist()
    assert len({*records}) == len(records)
    np.testing.assert_array_equal(split.private_rows, records[:num_records])
    known = features[records[num_records : num_records + len(auxiliary)]]
    np.testing.assert_allclose(split.scaling.mean, known.mean(axis=axes, keepdims=True))
    deviation = known.std(axis=axes, keepdims=True)
    np.testing.assert_allclose(split.scaling.deviation, np.where(deviation > 0, deviation, 1))


def test_the_seed_decides_the_split_and_counts_and_blocks_do_not(monkeypatch):
    def split(seed: int = 3, **counts: Any) -> Split:
        return split_records(SOURCE, num_records=60, seed=seed, **counts)

    whole, fewer = split(), split(num_auxiliary=30, num_test=20)
    assert not np.array_equal(whole.private.features, split(4).private.features)
    np.testing.assert_array_equal(fewer.test.features, whole.test.features[:20])
    with_test = split_records(source_of(test=SOURCE.training[:9]), num_records=60, seed=3)
    np.testing.assert_array_equal(with_test.private.labels, whole.private.labels)
    monkeypatch.setattr("dpcanary.datasets.source._BLOCK_NUMBERS", 28)
    for part, other in zip(parts_of(split()), parts_of(whole), strict=True):
        np.testing.assert_allclose(part.features, other.features, rtol=1e-6)
        np.testing.assert_array_equal(part.labels, other.labels)


@pytest.mark.parametrize(
    ("arrays", "counts", "message"),
    [
        ({"features": WITH_NAN}, {}, "some: record 17 has a feature that is NaN or infinite"),
        ({"features": WITH_NAN * np.inf}, {}, "NaN or infinite (120 such records)"),
        ({"features": np.ones(120)}, {}, "records x features"),
        ({"features": np.ones((0, 4)), "labels": []}, {}, "there are no records"),
        ({"test": Records(np.ones((9, 5)), [0] * 9)}, {}, "a test record has shape (5,), the othe"),
        ({"test": Records(WITH_NAN, LABELS)}, {}, "test part: record 17 has a feature that is NaN"),
        ({"labels": np.repeat([0, 1, 2], [10, 50, 60])}, {}, "class 0 has 10 records, num_records"),
        ({"labels": np.tile([0, 1, 3], 40)}, {}, "class 2 has 0 records, num_records 60 needs 15"),
        ({}, {"num_records": 61}, "61 is no multiple of its 3 classes; change it, or set balanced"),
        ({}, {"num_records": 600}, "has 40 records, num_records 600 needs 200"),
        ({}, {"num_records": 120}, "are private, which leaves none as auxiliary or test records"),
        ({}, {"num_records": 121, "balanced": False}, "num_records 121 is more than its 120 rec"),
        ({}, {"num_auxiliary": 61}, "num_auxiliary 61 is not possible: 60 records are left"),
        ({}, {"num_auxiliary": 60}, "num_test by default is not possible: 0 records are left"),
        ({}, {"num_test": 31}, "num_test 31 is not possible: 30 records are left"),
    ],
)
def test_records_and_counts_that_do_not_fit_are_named(arrays, counts, message):
    with pytest.raises(InputError) as caught:
        split_records(source_of(**arrays), **{"num_records": 60, "seed": 0} | counts)
    assert message in str(caught.value)


TABLE = pd.DataFrame({"age": RNG.integers(0, 90, 30), "label": np.tile([0, 1, 2], 10)}).assign(
    income=RNG.normal(size=30), owner=RNG.integers(0, 2, 30).astype(bool)
)
ROWS = np.arange(30)
KINDS = (".npz", ".parquet", ".csv", ".tsv")


def written(folder: Path, kind: str, table: pd.DataFrame, **options: Any) -> str:
    path = folder / f"mine{kind}"
    if kind == ".npz":
        features = table.drop(columns="label").to_numpy(float)
        np.savez(path, features=features, labels=table["label"].to_numpy())
    elif kind == ".parquet":
        table.to_parquet(path, **options)
    else:
        table.to_csv(path, sep="," if kind == ".csv" else "\t", index=False)
    return str(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_users_own_file_is_read_and_damage_is_named(kind, tmp_path):
    path = written(tmp_path, kind, TABLE)
    whole = load_source(path)
    features = TABLE[["age", "income", "owner"]].astype(float)
    np.testing.assert_allclose(whole.training.features, features, rtol=1e-12)
    np.testing.assert_array_equal(whole.training.labels, TABLE["label"])
    assert (whole.name, whole.num_classes, whole.test) == (path, 3, None)
    first = load_source("other" + kind, files=[Path(path)], max_records=20)
    np.testing.assert_array_equal(first.training.features, whole.training.features[:20])
    # Classes without a record, or a single one, or one of each record.
    for labels, message in [
        (np.tile([1, 2, 3], 10), "no record has label 0, though labels go up to 3; number the cl"),
        (np.tile([0, 1, 3, 7, 7], 6), "no record has label 2, though labels go up to 7"),
        (np.zeros(30, int), "all records have the same label"),
        (np.arange(30), "every record has a label of its own"),
        (np.linspace(0, 1, 30), "labels must be integers"),
        (np.tile([-1, 0, 1], 10), "labels must be integers from 0"),
    ]:
        with pytest.raises(InputError, match=f"mine{kind}: .*{message}"):
            load_source(written(tmp_path, kind, TABLE.assign(label=labels)))
    assert load_source(written(tmp_path, kind, TABLE.assign(label=np.arange(30) // 2)))
    content = Path(written(tmp_path, kind, TABLE)).read_bytes()
    for damaged in (content[:-20], Path(__file__).read_bytes(), b""):
        Path(path).write_bytes(damaged)
        if kind in (".npz", ".parquet") or damaged != content[:-20]:
            with pytest.raises(InputError, match=f"mine{kind}"):
                load_source(path)
    Path(path).unlink()
    with pytest.raises(InputError, match=f"mine{kind} does not exist"):
        load_source(path)


def test_a_test_part_is_cut_and_features_of_a_known_source_may_lack_a_class(tmp_path):
    test = {"test_features": FEATURES[:9] + 1, "test_labels": LABELS[:9]}
    source = load_source(npz(tmp_path, test), max_records=7, num_test=2)
    assert len(source.training) == 7
    np.testing.assert_array_equal(source.test.features, FEATURES[:2] + 1)
    assert source.test.labels.tolist() == [0, 1]
    # Classes of a known source are numbered without gaps, but the first records may lack some.
    records = Records(RNG.normal(size=(4, 2)), [6, 9, 9, 4])
    write_arrays(tmp_path / "features.npz", header={}, arrays=vars(records))
    stage = SourceStage(source="cifar10", max_records=4, seed=0)
    encoded = load_records(stage, files=[], features=tmp_path / "features.npz")
    np.testing.assert_array_equal(encoded.training.labels, records.labels)


TEST_PART = {"test_features": np.ones((2, 4))}


def npz(folder: Path, arrays: dict[str, Any]) -> str:
    np.savez(folder / "mine.npz", **{"features": FEATURES, "labels": LABELS} | arrays)
    return str(folder / "mine.npz")


def parquet(folder: Path, change: dict[str, Any]) -> str:
    dropped = [name for name, values in change.items() if values is None]
    return written(folder, ".parquet", TABLE.assign(**change).drop(columns=dropped))


def csv(folder: Path, text: str) -> str:
    (folder / "mine.csv").write_bytes(text.encode("latin-1"))
    return str(folder / "mine.csv")


@pytest.mark.parametrize(
    ("write", "content", "message"),
    [
        (npz, {"features": np.array(["a"] * 120)}, "features must be real numbers, not <U1"),
        (npz, {"labels": np.zeros(7, int)}, "need labels of shape (120,), one per record"),
        (npz, TEST_PART, "mine.npz has no array test_labels"),
        (npz, {"test_labels": np.zeros(9, int)}, "mine.npz has no array test_features"),
        (
            npz,
            TEST_PART | {"test_labels": [0, 8]},
            "no record has label 3, though labels go up to 8",
        ),
        (parquet, {"label": None}, "must have one column 'label', and others; its columns are age"),
        (parquet, {"town": "Leeds"}, "column 'town' is not numeric but"),
        (parquet, {"income": np.where(ROWS == 4, np.inf, 1.0)}, "record 4 has no finite value in"),
        (parquet, {"age": pd.array([*range(29), None], "Int64")}, "record 29 has no finite value"),
        (parquet, {"label": np.where(ROWS == 4, np.nan, 1.0)}, "column 'label' is double"),
        (parquet, {"label": ["a", None, "b"] * 10}, "record 1 has no label in column 'label'"),
        (csv, "größe,label\n1.5,0\n2.5,1\n", "mine.csv: its header is no UTF-8; save the table"),
        (csv, "a,label\n1.5,nö\n2.5,ja\n", "the texts in column 'label' are no UTF-8; save the ta"),
        (csv, "a,b,a,label\n1,2,3,0\n4,5,6,1\n", "mine.csv has several columns 'a'; rename or dr"),
    ],
)
def test_own_files_that_are_wrong_are_named(write, content, message, tmp_path):
    with pytest.raises(InputError) as caught:
        load_source(write(tmp_path, content))
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_labels_may_be_texts_in_a_column_of_any_name(kind, tmp_path):
    names = np.array(["setosa", "versicolor", "virginica"])
    table = TABLE.assign(species=names[TABLE["label"]]).drop(columns="label")
    path = written(tmp_path, kind, table)
    source = load_source(path, label_column="species")
    np.testing.assert_array_equal(source.training.labels, TABLE["label"])
    assert source.class_names == tuple(names)
    assert source.training.features.shape == (30, 3)
    with pytest.raises(InputError, match=r"one column 'label', and others; .*label_column"):
        load_source(path)


def test_a_tables_index_is_no_feature_and_identifiers_get_a_warning(tmp_path, caplog):
    path = written(tmp_path, ".parquet", TABLE[TABLE["age"] > 20])
    assert load_source(path).training.features.shape[1] == 3
    counts = np.arange(40) // 2
    table = pd.DataFrame({"id": np.arange(40)[::-1] + 7, "n": counts, "label": counts % 2})
    table = table.assign(a=np.sqrt(np.arange(40)))  # measured numbers may all differ
    assert load_source(written(tmp_path, ".csv", table)).training.features.shape == (40, 3)
    of_index, of_identifiers = caplog.messages
    assert "its index is no feature and is left out: __index_level_0__" in of_index
    assert "mine.csv: column 'id' has another whole number in every record" in of_identifiers


@pytest.mark.parametrize(("kind", "where"), [(".csv", "column 'a'"), (".npz", "array 'features'")])
def test_vast_features(kind, where, tmp_path, caplog):
    def read(value: float) -> None:
        table = pd.DataFrame({"a": [value, 1.5, -2.0, 0.25], "label": np.arange(4) % 2})
        load_source(written(tmp_path, kind, table))

    read(1e18)  # nanoseconds of these decades
    assert caplog.messages == []
    read(-1e30)
    [said] = caplog.messages
    assert f"{where} has values up to 1e+30: if they stand for missing ones" in said
    with pytest.raises(InputError, match=r"values up to 1e\+200, which cannot be standardised"):
        read(1e200)
