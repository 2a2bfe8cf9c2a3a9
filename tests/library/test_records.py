"""Records: valid and invalid features and labels. tests/library/test_files.py has their files."""

import numpy as np
import pytest
import torch

from dpcanary.data.record_source import Source
from dpcanary.data.records import Records, Split
from dpcanary.errors import InputError

FEATURES = [[0.5, -1.0], [2.0, 3.0], [0.0, 1.5]]
LABELS = [2, 0, 1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_arrays_lists_and_tensors_become_arrays_and_arrays_are_not_copied(dtype):
    array = np.array(FEATURES).astype(dtype)
    tensors = (torch.from_numpy(array), torch.tensor(LABELS, dtype=torch.int32))
    for features, labels in ((array, np.array(LABELS, np.uint8)), ([*array], LABELS), tensors):
        records = Records(features, labels)
        assert type(records.features) is type(records.labels) is np.ndarray
        assert (records.features.dtype, records.labels.dtype) == (dtype, np.int64)
        np.testing.assert_array_equal(records.features, array)
        np.testing.assert_array_equal(records.labels, LABELS)
        assert (len(records), records.num_classes, records.has_classes) == (3, 3, True)
    assert Records(array, LABELS).features is array


@pytest.mark.parametrize("features", [[*"abcde"], np.arange(240).reshape(5, 3, 4, 4)])
def test_parts_of_records(features):
    records = Records(features, [0, 1, 2, 3, 4])
    for index in (slice(1, 4), np.array([4, 0]), np.array([True, False, False, True, False])):
        part = records[index]
        np.testing.assert_array_equal(part.features, np.array(features)[index])
        np.testing.assert_array_equal(part.labels, np.arange(5)[index])
        assert len(part) == len(part.labels)


def test_classes_are_counted_by_the_largest_label_of_all_parts():
    for labels in ([], torch.empty(0)):
        records = Records(np.empty((0, 2), np.float32), labels)
        assert (len(records), records.num_classes, records.labels.dtype) == (0, 0, np.int64)
    low, high = (Records(np.zeros((4, 2), np.float32), [label, 0, 0, 0]) for label in (0, 6))
    parts = (Split(low, low, high), Split(low, high, low), Split(high, low, low[:0]))
    for whole in (*parts, Source("some", low, high)):
        assert whole.num_classes == 7
    assert Split(low, low, low[:0]).num_classes == 1


NO_ARRAYS = (
    [[1.0, 2.0], [3.0], [4.0]],
    torch.ones(3, 2, requires_grad=True),
    torch.ones(3, 2, dtype=torch.bfloat16),
)


@pytest.mark.parametrize(("features", "labels", "message"), [
    (FEATURES, [0, 1], r"shape \(3, 2\) need labels of shape \(3,\), .*; theirs is \(2,\)"),
    (FEATURES, [[0], [1], [2]], r"one per record; theirs is \(3, 1\)"),
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
    *((values, LABELS, r"features cannot be made an array: \w") for values in NO_ARRAYS),
    (FEATURES, NO_ARRAYS[1], r"labels cannot be made an array: \w"),
])  # fmt: skip
def test_what_is_not_records_is_refused(features, labels, message):
    with pytest.raises(InputError, match=f"records: .*{message}"):
        Records(features, labels)


def test_labels_that_are_fractions_are_numbers_and_no_classes():
    records = Records(FEATURES, torch.tensor([-0.5, 1e6, 2.0], dtype=torch.float64))
    assert (records.labels.dtype, records.has_classes) == (np.float32, False)
    np.testing.assert_array_equal(records.labels, np.float32([-0.5, 1e6, 2.0]))
    assert records[1:].num_classes == 1
