"""The canaries of a run have one type, and reading their file returns what was written."""

import numpy as np
import pytest

from dpcanary.core.files import read_arrays, write_arrays
from dpcanary.data.canaries import (
    CanarySet,
    DirectionCanary,
    GradientCanary,
    InputCanary,
    read_canaries,
    write_canaries,
)
from dpcanary.errors import InputError

DRAWS = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
IMAGES = np.random.default_rng(1).normal(size=(3, 3, 4, 5)).astype(np.float32)
NUMBERS, DOUBLES = np.arange(3), [0.1, 0.2, 0.3]
INPUTS = [InputCanary(DRAWS[k], k + 1, 40 - k) for k in range(3)]
DIRECTIONS = [DirectionCanary(DRAWS[k], 9 * k) for k in range(3)]
CANARIES = {
    "inputs": INPUTS,
    "images": [InputCanary(IMAGES[k], 2 * k, k) for k in range(3)],
    "one feature": [InputCanary(DRAWS[k, :1], 0, k) for k in range(3)],
    "coordinates": [GradientCanary(10**9 + k, 5 - k) for k in range(3)],
    "drifting": [GradientCanary(k, k, (0.1 * k, -2.5)) for k in range(3)],
    "directions": DIRECTIONS,
}
TARGET_LABELS = (4, 0, 4)


@pytest.mark.parametrize("canaries", CANARIES.values(), ids=CANARIES)
@pytest.mark.parametrize("num_slots", [1, 3])
def test_canaries_return_from_their_file(canaries, num_slots, tmp_path):
    path = tmp_path / "canaries.npz"
    written = CanarySet(tuple(canaries[:num_slots]), TARGET_LABELS[:num_slots])
    write_canaries(path, written)
    header, arrays = read_arrays(path)
    assert header == {"num_slots": num_slots}
    assert {len(array) for array in arrays.values()} == {num_slots}
    read = read_canaries(path)
    assert read.target_labels == written.target_labels
    for canary, other in zip(read.canaries, written.canaries, strict=True):
        assert type(canary) is type(other)
        np.testing.assert_equal(vars(canary), vars(other))
        for own, value in zip(vars(canary).values(), vars(other).values(), strict=True):
            assert type(own) is type(value)
            assert np.asarray(own).dtype == np.asarray(value).dtype


@pytest.mark.parametrize(
    "canary", [InputCanary(DOUBLES, 1, np.int64(3)), DirectionCanary(np.array(DOUBLES), 3)]
)
def test_files_hold_single_precision_and_plain_integers(canary, tmp_path):
    """Whatever the numbers in memory are."""
    write_canaries(tmp_path / "canaries.npz", CanarySet((canary,), (np.int32(2),)))
    canaries = read_canaries(tmp_path / "canaries.npz")
    array, *numbers = vars(canaries.canaries[0]).values()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.float32(DOUBLES))
    assert {type(number) for number in (*numbers, *canaries.target_labels)} == {int}


def test_only_input_canaries_have_labels():
    assert CanarySet(tuple(INPUTS), TARGET_LABELS).labels == (1, 2, 3)
    for canaries in (CANARIES["coordinates"], [*INPUTS[:2], DIRECTIONS[0]]):
        with pytest.raises(InputError, match=r"have no labels: this needs input canaries"):
            _ = CanarySet(tuple(canaries), TARGET_LABELS).labels


@pytest.mark.parametrize(("canaries", "labels", "message"), [
    ((), (), "must be of one type; these are none$"),
    ((*INPUTS[:2], DIRECTIONS[0]), (0, 0, 0), "are DirectionCanary and InputCanary$"),
    ((INPUTS[0], CANARIES["one feature"][0]), (0, 0), "must all have the same shape"),
    (INPUTS[:2], (3,), "2 canaries, but labels of 1"),
    (INPUTS[:2], (3, 3, 3), "2 canaries, but labels of 3"),
])  # fmt: skip
def test_what_is_no_set_of_canaries_is_not_written(canaries, labels, message, tmp_path):
    with pytest.raises(InputError, match=message):
        write_canaries(tmp_path / "canaries.npz", CanarySet(tuple(canaries), labels))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arrays", [
    {}, {"coordinate": NUMBERS, "target": NUMBERS}, {"parameters": DRAWS, "mean_confidence": DRAWS},
    {"coordinate": NUMBERS, "gradient": DRAWS, "target": NUMBERS, "target_label": NUMBERS},
])  # fmt: skip
def test_other_files_hold_no_canaries(arrays, tmp_path):
    path = tmp_path / "other.npz"
    write_arrays(path, header={"num_slots": 3}, arrays=arrays)
    with pytest.raises(InputError, match=r"other.npz holds no canaries; delete it and run again"):
        read_canaries(path)
