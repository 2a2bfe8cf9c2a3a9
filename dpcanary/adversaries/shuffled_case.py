"""The worst case of shuffled batches, drawn without a model.

In each pass, the records are in a random order that is cut into B batches of one size. The target
record is in one of them, each as likely as another. All records have gradients along one direction,
in units of C: the target +1, and the others 0, or -1 as in Chua et al. (2024) and Annamalai et al.
(2024). What is known of the others is subtracted from each batch's sum: what they would add if all
places were theirs. A pass is then B numbers with noise of sigma, one of which the target moves.

With others of -1, the target moves its batch by 2, as it takes the place of one of them. Under
`substitute`, it is -1 in world 1, which moves nothing. Under `zero_out`, world 1 has an empty
record of 0 in its place, which moves a batch by 1. Under `add_remove`, world 1 lacks the target, so
the last batch has a record less, which moves it by 1: with batches of one size, it is known which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adversaries.adversary_settings import OtherRecords, Purpose
from dpcanary.adversaries.drawing import RUNS_PER_STREAM, Drawing
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.log_sums import log_sums

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Move:
    """How a world moves the sum of one batch in each pass.

    Attributes:
        size: in units of C.
        in_last: whether it is the last batch of the pass; else any batch is as likely as another.
    """

    size: float
    in_last: bool = False


# World 0 and world 1.
_MOVES = {
    (Adjacency.SUBSTITUTE, OtherRecords.ZERO): (Move(1.0), Move(-1.0)),
    (Adjacency.SUBSTITUTE, OtherRecords.OPPOSITE): (Move(2.0), Move(0.0)),
    (Adjacency.ZERO_OUT, OtherRecords.ZERO): (Move(1.0), Move(0.0)),
    (Adjacency.ZERO_OUT, OtherRecords.OPPOSITE): (Move(2.0), Move(1.0)),
    (Adjacency.ADD_REMOVE, OtherRecords.ZERO): (Move(1.0), Move(0.0)),
    (Adjacency.ADD_REMOVE, OtherRecords.OPPOSITE): (Move(2.0), Move(1.0, in_last=True)),
}


def moves_of(adjacency: Adjacency, others: OtherRecords) -> tuple[Move, Move]:
    """How world 0 and world 1 move a batch of each pass."""
    return _MOVES[adjacency, others]


def pass_ratios(batches: Array, moves: tuple[Move, Move], *, noise_multiplier: float) -> Array:
    """Log-likelihood ratios of world 0 to world 1 of what is seen of passes.

    Of m in an unknown batch, the density of the noisy sums y over that of the noise alone is the
    mean of exp((m y_j - m^2 / 2) / sigma^2) over the batches j.

    Args:
        batches: noisy sums, from which is subtracted what is known, shape (..., batches).
        moves: of world 0 and of world 1.
        noise_multiplier: sigma.

    Returns:
        Shape (...). Passes are independent: the ratio of several is the sum of theirs.
    """
    world0, world1 = (_log_density(batches, move, noise_multiplier) for move in moves)
    return np.asarray(world0 - world1)


def _log_density(batches: Array, move: Move, noise_multiplier: float) -> Array:
    """Over the density of the noise alone."""
    if move.size == 0:
        return np.zeros(batches.shape[:-1])
    seen = batches[..., -1:] if move.in_last else batches
    terms = (move.size * seen - move.size**2 / 2) / noise_multiplier**2
    return log_sums(terms) - log(seen.shape[-1])


def draw_passes(
    stream: np.random.Generator,
    worlds: NDArray[np.int64],
    moves: tuple[Move, Move],
    *,
    batches_per_pass: int,
    noise_multiplier: float,
) -> Array:
    """Draws one pass of each run, shape (runs, batches_per_pass); `worlds` has shape (runs,)."""
    runs = np.arange(len(worlds))
    batches = stream.standard_normal((len(worlds), batches_per_pass)) * noise_multiplier
    batch_of_canary = stream.integers(batches_per_pass, size=len(worlds))
    last = np.array([move.in_last for move in moves])[worlds]
    batch_of_canary[last] = batches_per_pass - 1
    batches[runs, batch_of_canary] += np.array([move.size for move in moves])[worlds]
    return batches


def draw_ratios(drawing: Drawing) -> Array:
    """Log-likelihood ratios of all noisy sums up to each recorded step, shape (runs, steps)."""
    moves, batches, sigma = _process_of(drawing)
    passes = np.array(drawing.stage.record_steps) // batches
    parts = []
    for stream, rows, worlds in drawing.streams(Purpose.SHUFFLED_CASE):
        of_stream = np.zeros(RUNS_PER_STREAM, dtype=np.int64)
        of_stream[rows] = worlds
        ratios = np.empty((len(worlds), passes[-1]))
        for index in range(passes[-1]):
            seen = draw_passes(
                stream, of_stream, moves, batches_per_pass=batches, noise_multiplier=sigma
            )
            ratios[:, index] = pass_ratios(seen[rows], moves, noise_multiplier=sigma)
        parts.append(np.cumsum(ratios, axis=1)[:, passes - 1])
    return np.concatenate(parts)


def draw_sums(drawing: Drawing) -> Array:
    """Sums of all noisy sums up to each recorded step, shape (runs, steps).

    Every pass moves the sum by the same, wherever the target is.
    """
    moves, batches, sigma = _process_of(drawing)
    gaps = np.diff(drawing.stage.record_steps, prepend=0)
    sizes = np.array([move.size for move in moves])
    parts = []
    for stream, rows, worlds in drawing.streams(Purpose.SHUFFLED_CASE):
        noise = stream.standard_normal((RUNS_PER_STREAM, len(gaps))) * (sigma * np.sqrt(gaps))
        moved = sizes[worlds][:, None] * (gaps // batches)
        parts.append(np.cumsum(moved + noise[rows], axis=1))
    return np.concatenate(parts)


def sum_ratios(
    sums: Array, settings: Mapping[str, Any], *, noise_multiplier: float, num_steps: int
) -> Array:
    """Log-likelihood ratios of sums of all steps: those of two Gaussians, any shape.

    The settings are those of the draws: `adjacency`, `other_records` and `batches_per_pass`.
    """
    moves = moves_of(Adjacency(settings["adjacency"]), OtherRecords(settings["other_records"]))
    means = [move.size * (num_steps // settings["batches_per_pass"]) for move in moves]
    variance = num_steps * noise_multiplier**2
    return np.asarray((means[0] - means[1]) * (sums - (means[0] + means[1]) / 2) / variance)


def _process_of(drawing: Drawing) -> tuple[tuple[Move, Move], int, float]:
    stage = drawing.stage
    assert stage.batches_per_pass is not None
    assert stage.other_records is not None
    moves = moves_of(stage.adjacency, stage.other_records)
    return moves, stage.batches_per_pass, drawing.noise_multiplier
