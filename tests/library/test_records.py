"""Records: valid and invalid features and labels, and the file of a split."""

import numpy as np
import pytest
import torch

from dpcanary.errors import InputError
from dpcanary.files import read_arrays
from dpcanary.records import Records, Split, integer_labels, read_split, write_split

FEATURES = [[0.5, -1.0], [2.0, 3.0], [0.0, 1.5]]
LABELS = [2, 0, 1]


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


def test_classes_are_counted_by_the_largest_label():
    for labels, count in (([0, 6, 0], 7), ([0, 0, 0], 1)):
        assert Records(FEATURES, labels).num_classes == count
    for labels in ([], torch.empty(0)):
        records = Records(np.empty((0, 4), np.float32), labels)
        assert records.labels.dtype == np.int64
        assert (len(records), records.num_classes) == (0, 0)


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


EMPTY = Records(np.empty((0, 3), np.float32), [])
IMAGES = Records(np.random.default_rng(1).integers(0, 256, (3, 3, 5, 4)).astype(np.uint8), LABELS)
TEXTS = Records(["a text", "ein längerer Text", ""], LABELS)
NUMBERS = Records(np.array(FEATURES, np.float32), [1, 4, 0])


@pytest.mark.parametrize(
    "parts",
    [
        (NUMBERS, NUMBERS[:2], NUMBERS[1:]),
        (NUMBERS, EMPTY, EMPTY),
        (IMAGES, IMAGES[:0], IMAGES[1:]),
        (TEXTS, TEXTS[1:], TEXTS[:1]),
        (Records(torch.tensor(FEATURES), LABELS), Records(FEATURES, LABELS), Records([], [])),
    ],
    ids=["numbers", "private alone", "images", "texts", "tensors and lists"],
)
def test_splits_come_back(tmp_path, parts):
    split, keys = Split(*parts), {"source": "digits", "num_records": 4}
    write_split(tmp_path / "data.npz", split, settings=keys)
    again = read_split(tmp_path / "data.npz")
    for role in ("private", "auxiliary", "test"):
        ours, theirs = getattr(again, role), getattr(split, role)
        np.testing.assert_array_equal(ours.features, theirs.features)
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        assert (ours.features.dtype, ours.labels.dtype) == (theirs.features.dtype, np.int64)
    header, _ = read_arrays(tmp_path / "data.npz")
    assert header == {"settings": keys}
    assert again.num_classes == max(part.num_classes for part in parts)
