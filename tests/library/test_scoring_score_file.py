"""Score files: writing and reading them, and selecting scores for estimates."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from dpcanary.errors import InputError
from dpcanary.files import write_arrays
from dpcanary.observations import parity
from dpcanary.scoring.score_file import AuditScores, read_scores, write_scores

ARRAYS = ("step", "scores", "world", "test_accuracy")
NUM_REPEATS, NUM_RUNS = 2, 8
HEADER = {
    "audit": "fig-gradient",
    "canary": "gradient",
    "score": "coordinate",
    "sample_rate": 0.1,
    "noise_multiplier": 2.0,
    "seconds": 3.5,
}


def scores(*, num_slots: int = 1) -> AuditScores:
    """Scores that all differ. With one slot, runs alternate between the worlds."""
    shape = (NUM_REPEATS, NUM_RUNS, num_slots)
    runs = np.broadcast_to(np.arange(NUM_RUNS)[:, None], shape)
    world = parity(runs) if num_slots == 1 else np.random.default_rng(0).integers(0, 2, shape)
    return AuditScores(
        header=dict(HEADER),
        step=np.array([10, 20, 30]),
        scores=np.arange(np.prod(shape) * 3).reshape(*shape, 3) / 7,
        world=world.astype(np.uint8),
        test_accuracy=(np.arange(NUM_REPEATS * NUM_RUNS).reshape(shape[:2]) / 20).astype("float32"),
    )


def written(folder: Path, one: AuditScores) -> Path:
    path = folder / "scores.npz"
    write_scores(path, one)
    return path


def assert_same(one: AuditScores, other: AuditScores) -> None:
    assert one.header == other.header
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype


@pytest.mark.parametrize("num_slots", [1, 3])
def test_what_is_written_comes_back(tmp_path, num_slots):
    expected = scores(num_slots=num_slots)
    back = read_scores(written(tmp_path, expected))
    assert_same(back, expected)
    assert (back.audit, back.num_slots) == ("fig-gradient", num_slots)


def test_accuracies_may_be_missing_and_scores_infinite(tmp_path):
    expected = scores()
    expected.test_accuracy[:] = np.nan
    expected.scores[0, 3], expected.scores[1, 2] = np.inf, -np.inf
    assert_same(read_scores(written(tmp_path, expected)), expected)


@pytest.mark.parametrize(
    ("header", "without", "more"),
    [
        ({}, (), {}),
        (HEADER, ("world",), {}),
        (HEADER, ("step", "scores", "test_accuracy"), {}),
        (HEADER, (), {"world0_scores": np.zeros((2, 4, 3))}),
    ],
    ids=["no audit", "no worlds", "worlds alone", "one array more"],
)
def test_other_files_are_refused(tmp_path, header, without, more):
    arrays = {name: getattr(scores(), name) for name in ARRAYS if name not in without}
    write_arrays(tmp_path / "x.npz", header=header, arrays=arrays | more)
    with pytest.raises(InputError, match=r"x\.npz is no score file; delete it and run again"):
        read_scores(tmp_path / "x.npz")


def test_damaged_and_missing_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_scores(tmp_path / "none.npz")
    path = written(tmp_path, scores())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="delete it and run again"):
        read_scores(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"step": (2,)},
        {"scores": (2, 8, 1, 3)},
        {"scores": (2, 6, 2, 3)},
        {"scores": (2, 8, 3)},
        {"world": (2, 8, 1)},
        {"world": (2, 8)},
        {"test_accuracy": (2, 6)},
        {"test_accuracy": (16,)},
        # Without an axis for the slots, these arrays would fit together.
        {"scores": (2, 8, 3), "world": (2, 8)},
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes):
    arrays = {name: np.zeros(shape) for name, shape in changes.items()}
    path = written(tmp_path, replace(scores(num_slots=2), **arrays))
    with pytest.raises(InputError, match=r"scores\.npz: its arrays do not fit together; delete it"):
        read_scores(path)


def test_a_nan_names_the_run(tmp_path):
    broken = scores(num_slots=2)
    broken.scores[1, 5, 1, 2] = broken.scores[1, 6, 0, 0] = np.nan
    with pytest.raises(
        InputError, match=r"the score of run 5 of repeat 1 is NaN: .* never drop it"
    ):
        read_scores(written(tmp_path, broken))


@pytest.mark.parametrize(
    ("num_slots", "slots"), [(1, slice(None)), (3, slice(None)), (3, slice(1, 2)), (3, slice(1, 9))]
)
def test_scores_of_the_worlds(num_slots, slots):
    """Each slot of each run goes to its own world, compared with a loop."""
    one = scores(num_slots=num_slots)
    for repeat, step in product(range(NUM_REPEATS), range(3)):
        found = one.of_worlds(repeat=repeat, step=step, slots=slots)
        for index in (0, 1):
            expected = [
                one.scores[repeat, run, slot, step]
                for run in range(NUM_RUNS)
                for slot in range(num_slots)[slots]
                if one.world[repeat, run, slot] == index
            ]
            assert expected
            np.testing.assert_array_equal(found[index], expected)


@pytest.mark.parametrize("num_slots", [1, 3])
def test_scores_at_the_last_step(num_slots):
    one = scores(num_slots=num_slots)
    last = one.at_last_step()
    expected = replace(one, step=np.array([30]), scores=one.scores[:, :, :, [2]])
    assert_same(last, expected)
    assert_same(last.at_last_step(), expected)
    assert_same(one, scores(num_slots=num_slots))


@pytest.mark.parametrize(("num_slots", "num_runs"), [(1, 2), (1, 6), (1, 8), (3, 1), (3, 5)])
def test_scores_of_the_first_runs(tmp_path, num_slots, num_runs):
    one = scores(num_slots=num_slots)
    first = one.of_first_runs(num_runs)
    expected = replace(
        one,
        scores=np.stack([one.scores[0, :num_runs], one.scores[1, :num_runs]]),
        world=np.stack([one.world[0, :num_runs], one.world[1, :num_runs]]),
        test_accuracy=np.stack([one.test_accuracy[0, :num_runs], one.test_accuracy[1, :num_runs]]),
    )
    assert_same(first, expected)
    assert_same(one, scores(num_slots=num_slots))
    assert_same(read_scores(written(tmp_path, first)), expected)


@pytest.mark.parametrize(
    ("num_slots", "num_runs", "message"),
    [
        *((1, count, "half of the runs are of each world") for count in (-2, 0, 1, 7, 9)),
        (1, 10, "more than the 8 runs of a repeat of audit fig-gradient: train more runs or ask"),
        (3, 9, "more than the 8 runs"),
        (3, 0, "give at least 1"),
        (3, -1, "give at least 1"),
    ],
)
def test_first_runs_that_cannot_be_taken(num_slots, num_runs, message):
    with pytest.raises(InputError, match=rf"num_runs {num_runs}\b.*{message}"):
        scores(num_slots=num_slots).of_first_runs(num_runs)
