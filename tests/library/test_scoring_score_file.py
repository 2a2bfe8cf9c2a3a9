"""Score files: writing and reading them, and selecting scores for estimates."""

from dataclasses import replace
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


def test_runs_without_a_model_have_no_accuracy(tmp_path):
    expected = scores()
    expected.test_accuracy[:] = np.nan
    assert_same(read_scores(written(tmp_path, expected)), expected)


def test_infinite_scores_are_scores(tmp_path):
    expected = scores()
    expected.scores[0, 3] = np.inf
    expected.scores[1, 2] = -np.inf
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
        {"step": np.array([10, 20])},
        {"scores": np.zeros((2, 8, 2, 2))},
        {"scores": np.zeros((2, 8, 1, 3))},
        {"scores": np.zeros((2, 6, 2, 3))},
        {"scores": np.zeros((1, 8, 2, 3))},
        {"scores": np.zeros((2, 8, 3))},
        {"world": np.zeros((2, 8, 1), np.uint8)},
        {"world": np.zeros((2, 6, 2), np.uint8)},
        {"world": np.zeros((2, 8), np.uint8)},
        {"test_accuracy": np.zeros((2, 6), np.float32)},
        {"test_accuracy": np.zeros((1, 8), np.float32)},
        {"test_accuracy": np.zeros(16, np.float32)},
        # Without an axis for the slots, these arrays would fit together.
        {"scores": np.zeros((2, 8, 3)), "world": np.zeros((2, 8), np.uint8)},
    ],
    ids=lambda changes: " ".join(f"{name}{array.shape}" for name, array in changes.items()),
)
def test_arrays_that_do_not_fit_are_refused(tmp_path, changes):
    path = written(tmp_path, replace(scores(num_slots=2), **changes))
    with pytest.raises(InputError, match=r"scores\.npz: its arrays do not fit together; delete it"):
        read_scores(path)


def test_a_nan_names_the_run(tmp_path):
    broken = scores(num_slots=2)
    broken.scores[1, 5, 1, 2] = broken.scores[1, 6, 0, 0] = np.nan
    with pytest.raises(
        InputError, match=r"the score of run 5 of repeat 1 is NaN: .* never drop it"
    ):
        read_scores(written(tmp_path, broken))


def test_scores_of_the_worlds_of_single_slots():
    one = scores()
    for repeat in range(NUM_REPEATS):
        for step in range(3):
            world0, world1 = one.of_worlds(repeat=repeat, step=step)
            np.testing.assert_array_equal(world0, one.scores[repeat, 0::2, 0, step])
            np.testing.assert_array_equal(world1, one.scores[repeat, 1::2, 0, step])


@pytest.mark.parametrize(
    ("slots", "chosen"),
    [(None, [0, 1, 2]), (slice(None), [0, 1, 2]), (slice(1, 2), [1]), (slice(1, None), [1, 2])],
)
def test_scores_of_the_worlds_of_several_slots(slots, chosen):
    """Each slot of each run goes to its own world, compared with a loop."""
    one = scores(num_slots=3)
    kept = {} if slots is None else {"slots": slots}
    for repeat in range(NUM_REPEATS):
        for step in range(3):
            found = one.of_worlds(repeat=repeat, step=step, **kept)
            for index in (0, 1):
                expected = [
                    one.scores[repeat, run, slot, step]
                    for run in range(NUM_RUNS)
                    for slot in chosen
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
    for ours, theirs in zip(
        last.of_worlds(repeat=1, step=0), one.of_worlds(repeat=1, step=2), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
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
    if num_slots == 1:
        for repeat in range(NUM_REPEATS):
            worlds = first.of_worlds(repeat=repeat, step=0)
            assert [len(world) for world in worlds] == [num_runs // 2] * 2


@pytest.mark.parametrize("num_runs", [-2, 0, 1, 3, 7, 9])
def test_half_of_the_first_runs_are_of_each_world(num_runs):
    with pytest.raises(InputError, match=rf"num_runs {num_runs}: half of the runs are of each"):
        scores().of_first_runs(num_runs)


@pytest.mark.parametrize(("num_slots", "num_runs"), [(1, 10), (3, 9), (3, 10)])
def test_more_runs_than_there_are(num_slots, num_runs):
    message = (
        rf"num_runs {num_runs} is more than the 8 runs of a repeat of audit fig-gradient:"
        " train more runs or ask for fewer"
    )
    with pytest.raises(InputError, match=message):
        scores(num_slots=num_slots).of_first_runs(num_runs)


@pytest.mark.parametrize("num_runs", [-1, 0])
def test_no_runs_at_all(num_runs):
    with pytest.raises(InputError, match=rf"num_runs {num_runs}\b") as caught:
        scores(num_slots=3).of_first_runs(num_runs)
    assert "is more than" not in str(caught.value)
