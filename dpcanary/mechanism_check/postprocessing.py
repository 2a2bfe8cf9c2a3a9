"""What a loop by hand does to updates after the noise. It is undone: then the same tests apply."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dpcanary.mechanism_check.measurements import PRESENT, Measurements, Trainings
from dpcanary.mechanism_check.probe import Array

# Relative deviations of what is carried over between steps.
_CARRIED = 1e-3
# Momentum of the noise differs from that of gradients by less.
_SAME_MOMENTUM = 0.1


def without_postprocessing(found: Measurements) -> Measurements:
    """Without weight decay, and without momentum that noise and gradients share."""
    if found.quiet.optimizer or not found.num_updates:
        return found
    decay = _weight_decay(found.quiet)
    if decay:
        found = _changed(found, lambda one: decay * one.before / one.records.step)
    momentum = carried_over(found.quiet)
    if momentum and abs(carried_noise(found.noisy) - momentum) < _SAME_MOMENTUM:
        found = _changed(found, lambda one: -momentum * _previous(one.moved))
    else:
        momentum = 0.0
    return replace(found, momentum=momentum, weight_decay=decay / found.settings.learning_rate)


def _changed(found: Measurements, further: Callable[[Trainings], Array]) -> Measurements:
    """With something added to all updates."""

    def change(one: Trainings) -> Trainings:
        moved = one.moved + further(one)
        return replace(one, moved=moved, in_all=moved.sum(axis=1))

    return replace(
        found,
        quiet=change(found.quiet),
        noisy=change(found.noisy),
        small_quiet=found.small_quiet and change(found.small_quiet),
        small_noisy=found.small_noisy and change(found.small_noisy),
    )


def _previous(moved: Array) -> Array:
    """The update before each, shape (R, T, 8, columns); 0 before the first."""
    return np.concatenate([np.zeros_like(moved[:, :1]), moved[:, :-1]], axis=1)


def _weight_decay(quiet: Trainings) -> float:
    """The part of itself that every parameter loses in a step, up to what float32 can show."""
    silent = slice(len(quiet.records.sizes), None)
    places = quiet.records.start[:, silent] != 0
    before, moved = quiet.before[..., silent][..., places], quiet.silent[..., places]
    if np.abs(moved).max() < _CARRIED:
        return 0.0
    return float(np.median(-moved * quiet.records.step / before))


def carried_over(quiet: Trainings) -> float:
    """The part of an update that comes again in the next one, where no other gradient is.

    Of records that are drawn for the first time: at least one of them is not drawn again at once,
    and what comes again is least for these. If all records are in all batches, it is not measured.
    """
    parts = quiet.parts.sum(axis=2)
    drawn = np.abs(parts) > PRESENT
    if parts.shape[1] < 2 or drawn.all():
        return 0.0
    first = drawn & (np.cumsum(drawn, axis=1) == 1)
    runs, steps, records = np.nonzero(first[:, :-1])
    if not len(runs):
        return 0.0
    ratios = parts[runs, steps + 1, records] / parts[runs, steps, records]
    ratio = float(ratios[np.abs(ratios).argmin()])
    return ratio if abs(ratio) > _CARRIED else 0.0


def carried_noise(noisy: Trainings) -> float:
    """The coefficient of an update in the next one, where no record has a gradient."""
    before, after = noisy.silent[:, :-1], noisy.silent[:, 1:]
    squares = float((before**2).sum())
    return float((before * after).sum()) / squares if squares else 0.0
