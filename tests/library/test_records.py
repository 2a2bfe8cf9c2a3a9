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
        (tuple(map(tuple, FEATURES)), tuple(LABELS)),
        ([np.array(row) for row in FEATURES], np.array(LABELS, np.uint8)),
        (np.array(FEATURES), np.array(LABELS)),
        (torch.tensor(FEATURES), torch.tensor(LABELS, dtype=torch.int32)),
        (torch.tensor(FEATURES), LABELS),
    ],
    ids=["lists", "tuples", "list of arrays", "arrays", "tensors", "both"],
)
def test_arrays_lists_and_tensors_become_arrays(features, labels):
    records = Records(features, labels)
    assert type(records.features) is type(records.labels) is np.ndarray
    assert records.labels.dtype == np.int64
    np.testing.assert_array_equal(records.features, FEATURES)
    np.testing.assert_array_equal(records.labels, LABELS)
    assert (len(records), records.num_classes) == (3, 3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_features_keep_their_type(dtype):
    for features in (np.ones((2, 3), dtype), torch.ones(2, 3, dtype=getattr(torch, dtype))):
        assert Records(features, [0, 1]).features.dtype == dtype


def test_arrays_are_not_copied():
    features, labels = np.ones((2, 3), np.float32), np.array([0, 1])
    records = Records(features, labels)
    assert records.features is features
    assert records.labels is labels


@pytest.mark.parametrize("features", [["one text", "another"], np.array(["one text", "another"])])
def test_texts_are_features(features):
    records = Records(features, [1, 0])
    assert records.features.tolist() == ["one text", "another"]
    assert records[1:].features.tolist() == ["another"]


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 3, 4, 4)])
def test_features_of_any_shape(shape):
    features = np.arange(np.prod(shape)).reshape(shape)
    records = Records(features, [0, 1, 2, 3, 4])
    for index in (slice(1, 4), np.array([4, 0]), np.array([True, False, False, True, False])):
        part = records[index]
        assert isinstance(part, Records)
        np.testing.assert_array_equal(part.features, features[index])
        np.testing.assert_array_equal(part.labels, np.arange(5)[index])
        assert len(part) == len(part.labels)


@pytest.mark.parametrize("labels", [[], np.empty(0), torch.empty(0)])
def test_there_may_be_no_records(labels):
    records = Records(np.empty((0, 4), np.float32), labels)
    assert records.labels.dtype == np.int64
    assert (len(records), records.num_classes) == (0, 0)


def test_classes_are_counted_by_the_largest_label():
    assert Records(FEATURES, [0, 6, 0]).num_classes == 7
    assert Records(FEATURES, [0, 0, 0]).num_classes == 1


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        ([0, 1], r"\(2,\)"),
        ([[0], [1], [2]], r"\(3, 1\)"),
        (1, r"\(\)"),
    ],
)
def test_every_record_needs_a_label(labels, shape):
    message = (
        r"records: features of shape \(3, 2\) need labels of shape \(3,\), one per record; theirs"
        rf" is {shape}"
    )
    with pytest.raises(InputError, match=message):
        Records(FEATURES, labels)


@pytest.mark.parametrize("features", [1.5, torch.tensor(1.5), "text"])
def test_a_single_number_is_no_record(features):
    with pytest.raises(InputError, match=r"records: features of shape \(\) need labels"):
        Records(features, [0])


@pytest.mark.parametrize(
    "labels",
    [
        [0.0, 1.0, 2.0],
        [float("nan"), 0.0, 1.0],
        np.array([0, -1, 2], np.int8),
        torch.tensor([0.0, 1.0, 2.0]),
    ],
)
def test_labels_are_integers_from_0(labels):
    with pytest.raises(InputError, match="records: labels must be integers from 0"):
        Records(FEATURES, labels)


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
    header, _ = read_arrays(tmp_path / "new" / "data.npz")
    assert header == {"settings": settings}


def test_the_arrays_of_a_split_have_their_roles_names(tmp_path):
    write_split(tmp_path / "data.npz", split(), settings={})
    _, arrays = read_arrays(tmp_path / "data.npz")
    expected = {
        f"{prefix}{name}": getattr(getattr(split(), role), name)
        for role, prefix in PREFIXES.items()
        for name in ("features", "labels")
    }
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)


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


@pytest.mark.parametrize("name", ["features", "test_labels"])
def test_files_without_an_array_are_refused(tmp_path, name):
    path = changed_file(tmp_path, **{name: None})
    with pytest.raises(InputError, match=r"changed\.npz holds no split dataset; delete it and run"):
        read_split(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.arange(3)}, "one per record"),
        ({"test_labels": np.array([0, -1, 0])}, "integers from 0"),
        ({"auxiliary_labels": np.zeros(2)}, "integers from 0"),
        ({"features": np.zeros((4, 3), np.complex64)}, "must be numbers"),
    ],
)
def test_files_with_wrong_arrays_are_refused_by_name(tmp_path, changes, message):
    path = changed_file(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_split(path)
    assert str(path) in str(caught.value)


def test_foreign_files_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"none\.npz does not exist"):
        read_split(tmp_path / "none.npz")
    np.savez(tmp_path / "foreign.npz", features=np.ones((2, 2)), labels=np.arange(2))
    with pytest.raises(InputError, match="was not written by dpcanary"):
        read_split(tmp_path / "foreign.npz")
