"""Guesses of the worlds of slots, and how many are right."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcanary.checks import checked_count
from dpcanary.errors import InputError
from dpcanary.estimation.error_rates import checked_scores

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


def guess_pairs(in_scores: ArrayLike, out_scores: ArrayLike, *, num_guesses: int) -> Guesses:
    """Guesses which record of each pair is in, for the pairs whose scores differ most.

    From Boglioni et al., Algorithm 3. A tie is a wrong guess.

    Args:
        in_scores: shape (pairs,); scores of the records that are in.
        out_scores: shape (pairs,); scores of those that are out, in the same order of pairs.
        num_guesses: the pairs to guess.

    Raises:
        InputError: if the pairs do not match, a score is NaN, or there are fewer pairs.
    """
    ins, outs = checked_scores("in_scores", in_scores), checked_scores("out_scores", out_scores)
    if len(ins) != len(outs):
        raise InputError(
            f"there are {len(ins)} in_scores and {len(outs)} out_scores; num_guesses is for pairs."
            " For slots without pairs, give positive_guesses and negative_guesses"
        )
    with np.errstate(invalid="ignore"):  # equal infinities are a tie
        differences = np.nan_to_num(ins - outs, posinf=np.inf, neginf=-np.inf)
    Guesses(len(ins), num_guesses, 0)
    # A stable order by size alone: which pairs are chosen must not depend on who is right.
    chosen = np.argsort(-np.abs(differences), kind="stable")[:num_guesses]
    return Guesses(len(ins), num_guesses, int((differences[chosen] > 0).sum()))


def guess_slots(
    in_scores: ArrayLike, out_scores: ArrayLike, *, positive_guesses: int, negative_guesses: int
) -> Guesses:
    """Guesses that the slots with the highest scores are in, and those with the lowest are out.

    From Boglioni et al., Algorithm 2. Among equal scores, wrong guesses are made first.

    Args:
        in_scores: shape (number of slots that are in,).
        out_scores: shape (number of slots that are out,).
        positive_guesses: slots guessed to be in.
        negative_guesses: slots guessed to be out.

    Raises:
        InputError: if a score is NaN, or there are fewer slots.
    """
    ins, outs = checked_scores("in_scores", in_scores), checked_scores("out_scores", out_scores)
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
