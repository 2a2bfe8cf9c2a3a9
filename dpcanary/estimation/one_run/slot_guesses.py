"""The slots of a run: guesses of their worlds, and a check of whether they are independent."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import fdtrc

from dpcanary.core.argument_checks import checked_count
from dpcanary.errors import InputError
from dpcanary.estimation.error_rates import checked_worlds

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Guesses:
    """A round of guesses: the worlds of some slots are guessed, those of the others are not.

    Attributes:
        num_slots: slots, or pairs, whose worlds were fair coins.
        num_guesses: how many of them are guessed; fixed before the scores were seen.
        num_correct: right guesses.

    Raises:
        InputError: if there are more guesses than slots, or more right guesses than guesses.
    """

    num_slots: int
    num_guesses: int
    num_correct: int

    def __post_init__(self) -> None:
        checked_count("num_slots", self.num_slots)
        checked_count("num_guesses", self.num_guesses)
        checked_count("num_correct", self.num_correct, least=0)
        if self.num_guesses > self.num_slots:
            raise InputError(
                f"num_guesses is {self.num_guesses}; there are {self.num_slots} slots or pairs to"
                " guess"
            )
        if self.num_correct > self.num_guesses:
            raise InputError(
                f"num_correct is {self.num_correct}, of {self.num_guesses} guesses alone"
            )


def guess_pairs(world0_scores: ArrayLike, world1_scores: ArrayLike, *, num_guesses: int) -> Guesses:
    """Guesses which record of each pair is in, for the pairs whose scores differ most.

    From Boglioni et al., Algorithm 3. A tie is a wrong guess. Both arrays of scores are in the same
    order of pairs: of the records that are in, and of those that are out.
    """
    ins, outs = checked_worlds(world0_scores, world1_scores)
    if len(ins) != len(outs):
        raise InputError(
            f"there are {len(ins)} world0_scores and {len(outs)} world1_scores; num_guesses is for"
            " pairs. For slots without pairs, give positive_guesses and negative_guesses"
        )
    with np.errstate(invalid="ignore"):  # equal infinities are a tie
        differences = np.nan_to_num(ins - outs, posinf=np.inf, neginf=-np.inf)
    Guesses(len(ins), num_guesses, 0)
    # A stable order by size alone: which pairs are chosen must not depend on who is right.
    chosen = np.argsort(-np.abs(differences), kind="stable")[:num_guesses]
    return Guesses(len(ins), num_guesses, int((differences[chosen] > 0).sum()))


def guess_slots(
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    *,
    positive_guesses: int,
    negative_guesses: int,
) -> Guesses:
    """Guesses that the slots with the highest scores are in, and those with the lowest are out.

    From Boglioni et al., Algorithm 2. Among equal scores, wrong guesses are made first.
    """
    ins, outs = checked_worlds(world0_scores, world1_scores)
    positive = checked_count("positive_guesses", positive_guesses, least=0)
    negative = checked_count("negative_guesses", negative_guesses, least=0)
    guesses = Guesses(len(ins) + len(outs), positive + negative, 0)
    correct = _among_highest(ins, outs, positive) + _among_highest(-outs, -ins, negative)
    return Guesses(guesses.num_slots, guesses.num_guesses, correct)


def _among_highest(right: Scores, wrong: Scores, number: int) -> int:
    """How many of the highest scores are right; ties are counted as wrong as far as possible."""
    scores = np.concatenate([wrong, right])
    order = np.argsort(-scores, kind="stable")[:number]
    return int((order >= len(wrong)).sum())


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SlotDependence:
    """What the slots of the same run share, beyond what the slots of different runs share.

    Attributes:
        correlation: between the scores of two slots of a run, after the means of worlds and slots
            are subtracted.
        correlation_of_sizes: between the distances of these scores from 0. It shows runs whose
            scores are all clear, or all blurred.
        p_value: of the larger of both, under independence, by F tests of the variance between runs
            (exact for Gaussian scores), with Bonferroni's correction.
    """

    correlation: float
    correlation_of_sizes: float
    p_value: float


def slot_dependence(*, scores: ArrayLike, worlds: ArrayLike) -> SlotDependence:
    """Compares what slots of the same run and of different runs have in common.

    Args:
        scores: shape (R, K), of the slots of at least two runs.
        worlds: shape (R, K), 0 or 1.

    Raises:
        InputError: if there is one run or one slot, the shapes differ, a score is not finite, or a
            world is neither 0 nor 1.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> worlds = rng.integers(0, 2, (10, 200))
        >>> apart = rng.normal(1.0 - worlds)
        >>> together = apart + rng.normal(size=(10, 1))
        >>> for scores in (apart, together):
        ...     print(slot_dependence(scores=scores, worlds=worlds).p_value < 0.01)
        False
        True
    """
    try:
        values, sides = np.asarray(scores, np.float64), np.asarray(worlds, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"scores and worlds must be arrays of numbers: {error}") from None
    if values.ndim != 2 or values.shape != sides.shape or min(values.shape) < 2:
        raise InputError(
            f"scores and worlds have shapes {values.shape} and {sides.shape}; they must be (runs,"
            " slots), with two of each at least"
        )
    if not np.isfinite(values).all():
        run, slot = np.argwhere(~np.isfinite(values))[0].tolist()
        raise InputError(
            f"scores[{run}, {slot}] is {values[run, slot]}; without finite scores of all slots,"
            " their dependence cannot be tested: leave out the run, or give another score"
        )
    strange = sides[(sides != 0) & (sides != 1)]
    if strange.size:
        raise InputError(f"worlds holds {strange[0]:g}; give 0 or 1 for each slot of each run")
    rest = values.copy()
    for world in (0, 1):
        chosen = sides == world
        rest[chosen] -= values[chosen].mean() if chosen.any() else 0.0
    rest -= rest.mean(axis=0)
    of_scores, of_sizes = _between_runs(rest), _between_runs(np.abs(rest))
    return SlotDependence(
        correlation=of_scores[0],
        correlation_of_sizes=of_sizes[0],
        p_value=min(1.0, 2 * min(of_scores[1], of_sizes[1])),
    )


def _between_runs(values: Floats) -> tuple[float, float]:
    """The correlation within runs (Shrout and Fleiss, 1979, two-way), and its F test's p-value."""
    runs, slots = values.shape
    centred = values - values.mean(axis=0)
    means = centred.mean(axis=1, keepdims=True)
    between = slots * float((means**2).sum()) / (runs - 1)
    within = float(((centred - means) ** 2).sum()) / ((runs - 1) * (slots - 1))
    if within == 0:
        return (0.0, 1.0) if between == 0 else (1.0, 0.0)
    correlation = (between - within) / (between + (slots - 1) * within)
    p_value = fdtrc(runs - 1, (runs - 1) * (slots - 1), between / within)
    return correlation, float(p_value)
