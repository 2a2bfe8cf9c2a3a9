"""A lower bound on epsilon from the scores of one run's slots."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.errors import InputError
from dpcanary.estimation.one_run.bound import OneRunEstimate, epsilon_of_guesses
from dpcanary.estimation.one_run.guesses import Guesses, guess_pairs, guess_slots
from dpcanary.estimation.options import Conversion
from dpcanary.estimation.rules import ThresholdRule
from dpcanary.estimation.significance import checked_significance

Numbers = int | Sequence[int]


def estimate_epsilon_one_run(
    *,
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    delta: float,
    significance: float = 0.05,
    method: ThresholdRule | str = ThresholdRule.MAHLOUJIFAR,
    num_guesses: Numbers | None = None,
    positive_guesses: Numbers | None = None,
    negative_guesses: Numbers | None = None,
    family: Conversion | str | None = None,
    mechanism: Mechanism | None = None,
) -> OneRunEstimate:
    """Bounds epsilon from below by how often the worlds of a run's slots are guessed right.

    There are two games. With `num_guesses`, slots are *pairs* of records of which a fair coin put
    one into the training data: `in_scores[i]` and `out_scores[i]` are the scores of pair i, and the
    pairs whose scores differ most are guessed. This audits the substitution of one record of a pair
    by the other. With `positive_guesses` and `negative_guesses`, each slot has one score and a fair
    coin of its own: the highest scores are guessed to be in, or in world 0, and the lowest to be
    out, or in world 1. This audits the adjacency of these two worlds.

    The numbers of guesses must be fixed before the scores are seen. Several numbers may be given:
    then each has its share of the significance, and the best bound counts. Scores of several runs,
    one after the other, are the scores of more slots.

    Args:
        in_scores: shape (n,), higher means in. Scores of slots, or of records of pairs, that are
            in. In audits of dpcanary, these are the scores of world 0.
        out_scores: the same for slots, or records of pairs, that are out.
        delta: in (0, 1).
        significance: probability with which the bound may exceed the truth, in [2e-9, 0.5].
        method: a rule of guesses; see `ThresholdRule`.
        num_guesses: pairs to guess.
        positive_guesses: slots guessed to be in.
        negative_guesses: slots guessed to be out; as many numbers as positive_guesses.
        family: `gdp` (the default), `direct` or `subsampled_gaussian`, as the conversion of
            `estimate_epsilon`. Method `steinke` has `direct` alone.
        mechanism: only for `subsampled_gaussian`; see `estimate_epsilon`.

    Returns:
        The bound. Guesses that are right half of the time give 0.

    Raises:
        InputError: if an argument is out of range, or a score is NaN; the message names it.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> estimate = estimate_epsilon_one_run(
        ...     in_scores=rng.normal(2.0, 1.0, 500),
        ...     out_scores=rng.normal(0.0, 1.0, 500),
        ...     delta=1e-5,
        ...     positive_guesses=125,
        ...     negative_guesses=125,
        ... )
        >>> 5.0 < estimate.epsilon_lower < 8.0  # the truth is 9.997
        True
    """
    level = checked_significance(significance)
    if num_guesses is not None:
        if positive_guesses is not None or negative_guesses is not None:
            raise InputError(
                "num_guesses is for pairs, positive_guesses and negative_guesses are for slots:"
                " give one or the other"
            )
        rounds = [
            guess_pairs(in_scores, out_scores, num_guesses=number)
            for number in _numbers("num_guesses", num_guesses)
        ]
    else:
        rounds = _rounds_of_slots(in_scores, out_scores, positive_guesses, negative_guesses)
    bounds = [
        epsilon_of_guesses(
            guesses,
            delta=delta,
            significance=level / len(rounds),
            method=method,
            family=family,
            mechanism=mechanism,
        )
        for guesses in rounds
    ]
    best = max(bounds, key=lambda bound: bound.epsilon_lower)
    return replace(best, num_choices=len(rounds), significance=level)


def _rounds_of_slots(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    positive_guesses: Numbers | None,
    negative_guesses: Numbers | None,
) -> list[Guesses]:
    if positive_guesses is None or negative_guesses is None:
        raise InputError("give num_guesses, or both positive_guesses and negative_guesses")
    positive = _numbers("positive_guesses", positive_guesses)
    negative = _numbers("negative_guesses", negative_guesses)
    if len(positive) != len(negative):
        raise InputError(
            f"there are {len(positive)} numbers of positive_guesses and {len(negative)} of"
            " negative_guesses; they belong together"
        )
    return [
        guess_slots(in_scores, out_scores, positive_guesses=one, negative_guesses=other)
        for one, other in zip(positive, negative, strict=True)
    ]


def _numbers(name: str, given: Numbers) -> list[int]:
    numbers: list[int] = np.atleast_1d(given).tolist()
    if not numbers:
        raise InputError(f"{name} is empty; give at least one number")
    return numbers
