"""Records: valid and invalid features and labels, and the file of a split."""

from pathlib import Path

import numpy as np
import pytest
import torch

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays
from dpcanary.records import Records, Split, integer_labels, read_split, write_split

FEATURES = [[0.5, -1.0], [2.0, 3.0], [0.0, 1.5]]
LABELS = [2, 0, 1]
# Prefixes of the names of each role's arrays in the file of a split.
PREFIXES = {"private": "", "auxiliary": "auxiliary_", "test": "test_"}


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (FEATURES, LABELS),
        ([np.array(row) for row in FEATURES], np.array(LABELS, np.uint8)),
        (torch.tensor(FEATURES), torch.tensor(LABELS, dtype=torch.int32)),
        (torch.tensor(FEATURES), LABELS),
    ],
    ids=["lists", "arrays", "tensors", "both"],
)
def test_arrays_lists_and_tensors_become_arrays(features, labels):
    records = Records(features, labels)
    assert type(records.features) is type(records.labels) is np.ndarray
    assert records.labels.dtype == np.int64
    np.testing.assert_array_equal(records.features, FEATURES)
    np.testing.assert_array_equal(records.labels, LABELS)
    assert (len(records), records.num_classes) == (3, 3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_features_keep_their_type_and_are_not_copied(dtype):
    features = np.ones((2, 3), dtype)
    assert Records(features, [0, 1]).features is features
    assert Records(torch.from_numpy(features), [0, 1]).features.dtype == dtype


@pytest.mark.parametrize(
    "features",
    [
        ["one", "two", "three", "four", "five"],
        np.arange(5),
        np.arange(240).reshape(5, 3, 4, 4),
    ],
)
def test_parts_of_records(features):
    records = Records(features, [0, 1, 2, 3, 4])
    for index in (slice(1, 4), np.array([4, 0]), np.array([True, False, False, True, False])):
        part = records[index]
        assert isinstance(part, Records)
        np.testing.assert_array_equal(part.features, np.array(features)[index])
        np.testing.assert_array_equal(part.labels, np.arange(5)[index])
        assert len(part) == len(part.labels)


@pytest.mark.parametrize("labels", [[], torch.empty(0)])
def test_there_may_be_no_records(labels):
    records = Records(np.empty((0, 4), np.float32), labels)
    assert records.labels.dtype == np.int64
    assert (len(records), records.num_classes) == (0, 0)


def test_classes_are_counted_by_the_largest_label():
    assert Records(FEATURES, [0, 6, 0]).num_classes == 7
    assert Records(FEATURES, [0, 0, 0]).num_classes == 1


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (FEATURES, [0, 1], r"shape \(3, 2\) need labels of shape \(3,\), .*; theirs is \(2,\)"),
        (FEATURES, [[0], [1], [2]], r"one per record; theirs is \(3, 1\)"),
        (FEATURES, 1, r"one per record; theirs is \(\)"),
        (1.5, [0], r"features of shape \(\) need labels"),
        (torch.tensor(1.5), [0], r"features of shape \(\) need labels"),
        (FEATURES, [float("nan"), 0.0, 1.0], "labels must be integers from 0"),
        (FEATURES, np.array([0, -1, 2], np.int8), "labels must be integers from 0"),
        (FEATURES, torch.tensor([0.0, 1.0, 2.0]), "labels must be integers from 0"),
    ],
)
def test_every_record_needs_a_label_from_0(features, labels, message):
    with pytest.raises(InputError, match=f"records: .*{message}"):
        Records(features, labels)


@pytest.mark.parametrize(
    ("name", "features", "labels", "dtype"),
    [
        ("features", [[1j], [0], [2]], LABELS, "complex128"),
        ("features", [[True], [False], [True]], LABELS, "bool"),
        ("features", [None, None, None], LABELS, "object"),
        ("features", [b"one", b"two", b"six"], LABELS, r"\|S3"),
        ("features", np.array(["2020", "2021", "2022"], "M8[Y]"), LABELS, "datetime64"),
        ("labels", FEATURES, ["cat", "dog", "cat"], "<U3"),
        ("labels", FEATURES, [None, 0, 1], "object"),
    ],
)
def test_features_and_labels_of_wrong_types_are_refused(name, features, labels, dtype):
    with pytest.raises(InputError, match=f"records: {name} must be numbers, not {dtype}"):
        Records(features, labels)


@pytest.mark.parametrize(
    "values",
    [
        [[1.0, 2.0], [3.0], [4.0]],
        torch.ones(3, 2, requires_grad=True),
        torch.ones(3, 2, dtype=torch.bfloat16),
    ],
    ids=["ragged", "requires a gradient", "bfloat16"],
)
def test_values_that_cannot_become_an_array_are_refused(values):
    with pytest.raises(InputError, match=r"records: features cannot be made an array: \w"):
        Records(values, LABELS)
    with pytest.raises(InputError, match=r"records: labels cannot be made an array: \w"):
        Records(FEATURES, values)


def test_integer_labels_of_any_shape_say_where_they_are_wrong():
    found = integer_labels("file x.npz", np.array([[0, 3], [1, 2]], np.uint16))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [[0, 3], [1, 2]])
    for wrong in (np.array([0, -1]), np.array([0.0, 1.0]), np.array(["0"])):
        with pytest.raises(InputError, match=r"^file x\.npz: labels must be integers from 0$"):
            integer_labels("file x.npz", wrong)


def split() -> Split:
    """Records of three roles, with different labels in each."""
    rng = np.random.default_rng(0)
    return Split(
        private=Records(rng.normal(size=(4, 3)).astype(np.float32), [0, 1, 0, 1]),
        auxiliary=Records(rng.normal(size=(2, 3)).astype(np.float32), [2, 0]),
        test=Records(rng.normal(size=(3, 3)).astype(np.float32), [1, 4, 0]),
    )


EMPTY = Records(np.empty((0, 3), np.float32), [])
IMAGES = Records(np.random.default_rng(1).integers(0, 256, (3, 3, 5, 4)).astype(np.uint8), LABELS)
TEXTS = Records(["a text", "ein längerer Text", ""], LABELS)


def assert_same(one: Split, other: Split) -> None:
    for role in PREFIXES:
        ours, theirs = getattr(one, role), getattr(other, role)
        np.testing.assert_array_equal(ours.features, theirs.features)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        assert ours.features.dtype == theirs.features.dtype
        assert ours.labels.dtype == theirs.labels.dtype == np.int64


@pytest.mark.parametrize(
    "one",
    [
        split(),
        Split(private=split().private, auxiliary=EMPTY, test=EMPTY),
        Split(private=IMAGES, auxiliary=IMAGES[:0], test=IMAGES[1:]),
        Split(private=TEXTS, auxiliary=TEXTS[1:], test=TEXTS[:1]),
        Split(
            private=Records(torch.tensor(FEATURES), torch.tensor(LABELS)),
            auxiliary=Records(FEATURES, LABELS),
            test=Records([], []),
        ),
    ],
    ids=["numbers", "private alone", "images", "texts", "tensors and lists"],
)
def test_splits_come_back(tmp_path, one):
    settings = {"source": "digits", "num_records": 4}
    write_split(tmp_path / "new" / "data.npz", one, settings=settings)
    assert_same(read_split(tmp_path / "new" / "data.npz"), one)
    header, arrays = read_arrays(tmp_path / "new" / "data.npz")
    assert header == {"settings": settings}
    names = ("features", "labels")
    assert arrays.keys() == {f"{prefix}{name}" for prefix in PREFIXES.values() for name in names}


def test_classes_of_a_split_are_those_of_all_its_records():
    assert split().num_classes == 5
    private = split().private
    assert Split(private=EMPTY, auxiliary=EMPTY, test=private).num_classes == 2
    assert Split(private=EMPTY, auxiliary=EMPTY, test=EMPTY).num_classes == 0


def changed_file(folder: Path, **changes: np.ndarray | None) -> Path:
    """Writes a split with some arrays changed, and without those that are None."""
    write_split(folder / "data.npz", split(), settings={})
    _, arrays = read_arrays(folder / "data.npz")
    kept = {name: array for name, array in {**arrays, **changes}.items() if array is not None}
    write_arrays(folder / "changed.npz", header={"settings": {}}, arrays=kept)
    return folder / "changed.npz"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": None}, "holds no split dataset; delete it and run"),
        ({"test_labels": None}, "holds no split dataset; delete it and run"),
        ({"labels": np.arange(3)}, "one per record"),
        ({"test_labels": np.array([0, -1, 0])}, "integers from 0"),
        ({"auxiliary_labels": np.zeros(2)}, "integers from 0"),
        ({"features": np.zeros((4, 3), np.complex64)}, "must be numbers"),
    ],
)
def test_files_with_wrong_arrays_are_refused_by_name(tmp_path, changes, message):
    path = changed_file(tmp_path, **changes)
    with pytest.raises(InputError, match=f"{path}.*{message}"):
        read_split(path)


def test_foreign_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        read_split(tmp_path / "none.npz")
    np.savez(tmp_path / "foreign.npz", features=np.ones((2, 2)), labels=np.arange(2))
    with pytest.raises(InputError, match="was not written by dpcanary"):
        read_split(tmp_path / "foreign.npz")
