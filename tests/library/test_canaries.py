"""The canaries of a run have one type, and reading their file returns what was written."""

import zipfile

import numpy as np
import pytest

from dpcanary.canaries import (
    CanarySet,
    DirectionCanary,
    GradientCanary,
    InputCanary,
    canary_type,
    read_canaries,
    write_canaries,
)
from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays

DRAWS = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
IMAGES = np.random.default_rng(1).normal(size=(3, 3, 4, 5)).astype(np.float32)
CANARIES = {
    "inputs": [InputCanary(DRAWS[k], k + 1, 40 - k) for k in range(3)],
    "images": [InputCanary(IMAGES[k], 2 * k, k) for k in range(3)],
    "one feature": [InputCanary(DRAWS[k, :1], 0, k) for k in range(3)],
    "coordinates": [GradientCanary(10**9 + k, 5 - k) for k in range(3)],
    "drifting": [GradientCanary(k, k, (0.1 * k, -2.5)) for k in range(3)],
    "directions": [DirectionCanary(DRAWS[k], 9 * k) for k in range(3)],
}
TARGET_LABELS = (4, 0, 4)
every_type = pytest.mark.parametrize("canaries", CANARIES.values(), ids=CANARIES)


@every_type
@pytest.mark.parametrize("num_slots", [1, 3])
def test_canaries_come_back_from_their_file(canaries, num_slots, tmp_path):
    written = CanarySet(tuple(canaries[:num_slots]), TARGET_LABELS[:num_slots])
    write_canaries(tmp_path / "canaries.npz", written)
    header, arrays = read_arrays(tmp_path / "canaries.npz")
    assert header == {"num_slots": num_slots}
    assert {len(array) for array in arrays.values()} == {num_slots}
    found = read_canaries(tmp_path / "canaries.npz")
    assert found.target_labels == written.target_labels
    assert len(found.canaries) == num_slots
    for one, other in zip(found.canaries, written.canaries, strict=True):
        assert type(one) is type(other)
        for name, value in vars(other).items():
            assert type(getattr(one, name)) is type(value)
            np.testing.assert_array_equal(getattr(one, name), value)
            assert np.asarray(getattr(one, name)).dtype == np.asarray(value).dtype
    assert canary_type(found.canaries) is type(canaries[0])


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.3], np.array([0.1, 0.2, 0.3])])
def test_real_numbers_of_any_kind_are_written_in_single_precision(values, tmp_path):
    for canary in (InputCanary(values, 1, 0), DirectionCanary(values, 0)):
        write_canaries(tmp_path / "canaries.npz", CanarySet((canary,), (0,)))
        [found] = read_canaries(tmp_path / "canaries.npz").canaries
        array = found.features if isinstance(found, InputCanary) else found.gradient
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, np.float32([0.1, 0.2, 0.3]))


def test_numpys_integers_come_back_as_plain_ones(tmp_path):
    written = (GradientCanary(np.int64(3), np.int32(5)),)
    write_canaries(tmp_path / "canaries.npz", CanarySet(written, (np.int64(2),)))
    found = read_canaries(tmp_path / "canaries.npz")
    assert found == CanarySet((GradientCanary(3, 5),), (2,))
    assert type(found.canaries[0].coordinate) is type(found.canaries[0].target) is int
    assert type(found.target_labels[0]) is int


@pytest.mark.parametrize(
    "canaries",
    [CANARIES["coordinates"], [*CANARIES["inputs"][:2], CANARIES["directions"][0]]],
)
def test_gradients_have_no_labels(canaries):
    assert CanarySet(tuple(CANARIES["inputs"]), TARGET_LABELS).labels == (1, 2, 3)
    with pytest.raises(InputError, match=r"have no labels: this needs input canaries"):
        _ = CanarySet(tuple(canaries), TARGET_LABELS).labels


@pytest.mark.parametrize(
    ("canaries", "message"),
    [
        ((), "these are none"),
        (
            (GradientCanary(0, 0), DirectionCanary(DRAWS[0], 1), GradientCanary(1, 2)),
            "these are DirectionCanary and GradientCanary",
        ),
    ],
)
def test_canaries_of_a_run_are_of_one_type(canaries, message, tmp_path):
    with pytest.raises(InputError, match=f"canaries must be of one type; {message}$"):
        canary_type(canaries)
    with pytest.raises(InputError, match=f"canaries must be of one type; {message}$"):
        write_canaries(tmp_path / "canaries.npz", CanarySet(canaries, (0,) * len(canaries)))
    assert list(tmp_path.iterdir()) == []


NUMBERS = np.arange(3)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"target": NUMBERS, "target_label": NUMBERS},
        {"coordinate": NUMBERS, "target": NUMBERS},
        {"gradient": DRAWS, "label": NUMBERS, "target": NUMBERS, "target_label": NUMBERS},
        {"coordinate": NUMBERS, "gradient": DRAWS, "target": NUMBERS, "target_label": NUMBERS},
        {"parameters": DRAWS, "mean_confidence": DRAWS},
    ],
)
def test_other_files_hold_no_canaries(arrays, tmp_path):
    path = tmp_path / "other.npz"
    write_arrays(path, header={"num_slots": 3}, arrays=arrays)
    with pytest.raises(InputError, match=r"other.npz holds no canaries; delete it and run again"):
        read_canaries(path)


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "canaries.npz"
    with pytest.raises(InputError, match=r"canaries.npz does not exist"):
        read_canaries(path)
    write_canaries(path, CanarySet(tuple(CANARIES["inputs"]), TARGET_LABELS))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"canaries.npz is not a whole .npz file of numbers"):
        read_canaries(path)
    with zipfile.ZipFile(path, "w"):
        pass
    with pytest.raises(InputError, match="was not written by dpcanary: it has no header"):
        read_canaries(path)


@pytest.mark.parametrize("labels", [(), (3,), (3, 5, 7)])
def test_each_canary_has_the_label_of_one_target(labels: tuple[int, ...]) -> None:
    canaries = (GradientCanary(0, 1), GradientCanary(2, 3))
    with pytest.raises(InputError, match=f"2 canaries, but labels of {len(labels)} targets"):
        CanarySet(canaries, labels)
