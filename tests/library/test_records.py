"""Records: valid and invalid features and labels. tests/library/test_files.py has their files."""

import numpy as np
import pytest
import torch

from dpcanary.data.record_source import Source
from dpcanary.data.records import Records, Split, integer_labels
from dpcanary.errors import InputError

FEATURES = [[0.5, -1.0], [2.0, 3.0], [0.0, 1.5]]
LABELS = [2, 0, 1]


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        ([np.array(row) for row in FEATURES], np.array(LABELS, np.uint8)),
        (torch.tensor(FEATURES), torch.tensor(LABELS, dtype=torch.int32)),
        (torch.tensor(FEATURES), LABELS),
    ],
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
    [["one", "two", "three", "four", "five"], np.arange(5), np.arange(240).reshape(5, 3, 4, 4)],
)
def test_parts_of_records(features):
    records = Records(features, [0, 1, 2, 3, 4])
    for index in (slice(1, 4), np.array([4, 0]), np.array([True, False, False, True, False])):
        part = records[index]
        assert isinstance(part, Records)
        np.testing.assert_array_equal(part.features, np.array(features)[index])
        np.testing.assert_array_equal(part.labels, np.arange(5)[index])
        assert len(part) == len(part.labels)


def test_classes_are_counted_by_the_largest_label_of_all_parts():
    for labels in ([], torch.empty(0)):
        records = Records(np.empty((0, 2), np.float32), labels)
        assert records.labels.dtype == np.int64
        assert (len(records), records.num_classes) == (0, 0)
    low, high = (Records(np.zeros((4, 2), np.float32), [label, 0, 0, 0]) for label in (0, 6))
    assert (low.num_classes, high.num_classes) == (1, 7)
    for split in (Split(low, low, high), Split(low, high, low), Split(high, low, low[:0])):
        assert split.num_classes == 7
    assert Split(low, low, low[:0]).num_classes == 1
    assert Source("some", low, high).num_classes == 7


NO_ARRAYS = (
    [[1.0, 2.0], [3.0], [4.0]],
    torch.ones(3, 2, requires_grad=True),
    torch.ones(3, 2, dtype=torch.bfloat16),
)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (FEATURES, [0, 1], r"shape \(3, 2\) need labels of shape \(3,\), .*; theirs is \(2,\)"),
        (FEATURES, [[0], [1], [2]], r"one per record; theirs is \(3, 1\)"),
        (FEATURES, 1, r"one per record; theirs is \(\)"),
        (1.5, [0], r"features of shape \(\) need labels"),
        (torch.tensor(1.5), [0], r"features of shape \(\) need labels"),
        (FEATURES, [float("nan"), 0.0, 1.0], "labels must be finite numbers"),
        (FEATURES, [1e39, 0.0, 1.0], "labels must be finite numbers"),
        (FEATURES, np.array([0, -1, 2], np.int8), "labels must be integers from 0"),
        ([[1j], [0], [2]], LABELS, "features must be numbers, not complex128"),
        ([[True], [False], [True]], LABELS, "features must be numbers, not bool"),
        ([None, None, None], LABELS, "features must be numbers, not object"),
        ([b"one", b"two", b"six"], LABELS, r"features must be numbers, not \|S3"),
        (np.array(["2020", "2021", "2022"], "M8[Y]"), LABELS, "must be numbers, not datetime64"),
        (FEATURES, ["cat", "dog", "cat"], "labels must be numbers, not <U3"),
        (FEATURES, [None, 0, 1], "labels must be numbers, not object"),
        *((values, LABELS, r"features cannot be made an array: \w") for values in NO_ARRAYS),
        *((FEATURES, values, r"labels cannot be made an array: \w") for values in NO_ARRAYS),
    ],
)
def test_what_is_not_records_is_refused(features, labels, message):
    with pytest.raises(InputError, match=f"records: .*{message}"):
        Records(features, labels)


def test_labels_that_are_fractions_are_numbers_and_no_classes():
    records = Records(FEATURES, torch.tensor([-0.5, 1e6, 2.0], dtype=torch.float64))
    assert records.labels.dtype == np.float32
    np.testing.assert_array_equal(records.labels, np.float32([-0.5, 1e6, 2.0]))
    assert not records.has_classes
    assert records[1:].num_classes == 1
    assert Records(FEATURES, LABELS).has_classes


def test_integer_labels_of_any_shape_say_where_they_are_wrong():
    found = integer_labels("file x.npz", np.array([[0, 3], [1, 2]], np.uint16))
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, [[0, 3], [1, 2]])
    for wrong in (np.array([0, -1]), np.array([0.0, 1.0]), np.array(["0"])):
        with pytest.raises(InputError, match=r"^file x\.npz: labels must be integers from 0$"):
            integer_labels("file x.npz", wrong)
