"""What a loop does to updates after the noise. It is undone if possible: then the tests apply."""

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import numpy as np

from dpcanary.checking.mechanism.measurements import Measurements
from dpcanary.checking.mechanism.probe import TENSORS, Array
from dpcanary.checking.mechanism.probe_trainings import PRESENT, Trainings

# Relative deviations of what is carried over between steps.
_CARRIED = 1e-3
# Norms over C that show in updates.
_SEEN = 1e-3
# The noise went through the same filter as the gradients if less of it remains in the next step.
_SAME_FILTER = 0.1
# Updates have the largest length if they are as close to it; so many of them, at least, if noisy
# gradients or sums are clipped.
_TIED, _SHARE_TIED, _LEAST_TIED = 1e-3, 0.05, 5
# Small values are left out if so many are 0, and none of the others is below so much of the median.
_SHARE_LEFT_OUT, _LEAST_LEFT = 0.05, 0.5
# Values are equally far from 0 up to this, relative to their mean.
_EQUAL = 0.02
# The noise of a step has its C up to this; more exactly, it is tested after that.
_SAME_LIMIT = 0.1
# C of a step: from norms that are clipped for sure, and from those that are not; up to this.
_CLIPPED_FROM, _WHOLE_UP_TO, _LIMITS_FIT = 5.0, 0.12, 0.02

SKIPPED = "some steps are skipped, only where there is noise"
# What hides which properties.
_NOISE = {"noise scale", "constant noise", "Gaussian noise", "empty batches", "independent steps"}
_PARTS = {"normalisation", "clipping", "one record at a time", "history"}
_DRAWS = {
    *("sampling rate", "Poisson sampling", "new batch in each step", "independent records"),
    *("independent coordinates", "noise and gradients", "updates"),
}


def without_postprocessing(measurements: Measurements) -> Measurements:
    """Without what is done with noisy gradients and parameters, as far as it can be undone.

    Tensors that are frozen in some steps, a C that changes with its noise, weight decay, and
    momentum that noise and gradients share. Whatever else follows the noise is looked at by
    `postprocessing_replay`, which takes longer.
    """
    if not measurements.num_updates:
        return measurements
    measurements = replace(measurements, unclear=_unclear(measurements))
    measurements = _with_limits(_with_frozen(measurements))
    if measurements.quiet.optimizer:
        return measurements
    decay = _weight_decay(measurements.quiet)
    if decay:
        measurements = _changed(
            measurements,
            lambda trainings: trainings.moved + decay * trainings.before / trainings.records.step,
        )
    measurements = replace(measurements, weight_decay=decay / measurements.settings.learning_rate)
    carried = carried_over(measurements.quiet)
    if 0 < abs(carried) < 1:
        candidate = _changed(
            measurements, lambda trainings: _without_momentum(trainings.moved, carried)
        )
        if _carries_nothing(candidate) and abs(carried_noise(candidate.noisy)) < _SAME_FILTER:
            return replace(candidate, filter=f"momentum of {carried:.3g}")
    return measurements


def are_tied(lengths: Array) -> bool:
    """Whether many updates have the largest length of all, as if clipped to it."""
    count = int((lengths >= (1 - _TIED) * lengths.max()).sum())
    return count >= max(_LEAST_TIED, _SHARE_TIED * lengths.size)


def _unclear(measurements: Measurements) -> tuple[tuple[str, frozenset[str]], ...]:
    """What noisy gradients show of a further step that cannot be undone."""
    quiet, noisy = measurements.quiet, measurements.noisy
    silent, names = np.abs(noisy.silent), []
    if len(set(noisy.num_updates)) + len(set(quiet.num_updates)) > 2 and (
        (quiet.num_updates == measurements.settings.num_steps).all()
        and (noisy.num_updates <= measurements.settings.num_steps).all()
    ):
        names.append((SKIPPED, {"steps", *_NOISE}))
    first = np.abs(noisy.moved[:, 0]).reshape(len(noisy.moved), -1)
    first = first[:, (first > 0).any(axis=0)]
    if first.size and (first.std(axis=1) < _EQUAL * first.mean(axis=1)).all():
        words = "the first step moves all parameters equally far, as do signs and Adam by hand"
        names.append((words, _NOISE | _PARTS | _DRAWS | {"precision of noise"}))
    elif _leaves_out(silent):
        names.append(
            ("only the largest values of noisy gradients are used", _NOISE | _PARTS | _DRAWS)
        )
    elif are_tied(noisy.lengths):
        hidden = _NOISE | {"noise and gradients"}
        hidden |= _PARTS if are_tied(quiet.lengths) else set()
        names.append(("noisy gradients are clipped to, or given, one length", hidden))
    return tuple((words, frozenset(hidden)) for words, hidden in names)


def _leaves_out(silent: Array) -> bool:
    """Whether, in nearly all steps, many values are 0 and no other is near 0."""
    rows = silent.reshape(-1, silent.shape[2] * silent.shape[3])
    rows = rows[(rows > 0).sum(axis=1) > 4]
    if not len(rows):
        return False
    present = np.where(rows > 0, rows, np.nan)
    is_gap = np.nanmin(present, axis=1) > _LEAST_LEFT * np.nanmedian(present, axis=1)
    return bool(((rows == 0).mean(axis=1) > _SHARE_LEFT_OUT).mean() > 0.9 and is_gap.mean() > 0.9)


def _with_frozen(measurements: Measurements) -> Measurements:
    """As if tensors that do not move at all in a step were trained like the others.

    Their parts become the others' mean, and they get noise of ours of the others' scale: so the
    laws of what is trained are those of all tensors.
    """
    steps = min(measurements.quiet.moved.shape[1], measurements.noisy.moved.shape[1])
    both = [
        trainings.moved[:, :steps] != 0 for trainings in (measurements.quiet, measurements.noisy)
    ]
    moves = both[0].any(axis=(0, 3)) | both[1].any(axis=(0, 3))
    still = np.stack([~moves[:, list(tensor.values)].any(axis=1) for tensor in TENSORS], axis=1)
    if not still.any() or still.all(axis=1).any():
        return measurements
    trained = np.sqrt((~still).sum(axis=1) / len(TENSORS))
    source = np.random.default_rng(0)

    def of_records(trainings: Trainings) -> Array:
        moved: Array = trainings.moved[:, :steps]
        moved = moved * trained[: moved.shape[1], None, None]
        parts = trainings.records.parts(moved)[0]
        count = len(trainings.records.sizes)
        for step in np.flatnonzero(still[: moved.shape[1]].any(axis=1)):
            along = trainings.records.signs * parts[:, step, ~still[step]].mean(axis=1)
            for row in np.flatnonzero(still[step]):
                values = TENSORS[row].values
                shares = (1 / sqrt(2), -1 / sqrt(2)) if len(values) == 2 else (1.0,)
                for value, share in zip(values, shares, strict=True):
                    moved[:, step, value, :count] = share * along
        return moved

    # The scale is taken over all steps: that of a single step is a random number itself.
    seen = measurements.noisy.silent[:, :steps]
    scale = float(np.sqrt((seen[seen != 0] ** 2).mean()))

    def of_noise(trainings: Trainings) -> Array:
        moved = trainings.moved[:, :steps].copy()
        for step in np.flatnonzero(still[: moved.shape[1]].any(axis=1)):
            frozen = [value for row in np.flatnonzero(still[step]) for value in TENSORS[row].values]
            shape = (len(moved), len(frozen), moved.shape[3])
            moved[:, step, frozen] = scale * source.standard_normal(shape)
            if still[step, 3] != still[step, 4]:
                # The gradients of a hidden weight and its bias cancel where both are trained.
                count = len(trainings.records.sizes)
                own = source.standard_normal((len(moved), 2, count))
                moved[:, step, 6:, :count] = scale * own
        return moved

    def changed(trainings: Trainings, change: Callable[[Trainings], Array]) -> Trainings:
        moved = change(trainings)  # small trainings may have fewer updates than the others
        return trainings.with_updates(moved, norm_factors=trained[: moved.shape[1]])

    names = [
        f"{tensor.name} in {own.sum()} of {steps} steps"
        for tensor, own in zip(TENSORS, still.T, strict=True)
        if own.any()
    ]
    return replace(
        measurements,
        quiet=changed(measurements.quiet, of_records),
        noisy=changed(measurements.noisy, of_noise),
        small_quiet=measurements.small_quiet and changed(measurements.small_quiet, of_records),
        small_noisy=measurements.small_noisy and changed(measurements.small_noisy, of_noise),
        dense=measurements.dense
        and changed(measurements.dense, lambda trainings: trainings.moved[:, :steps]),
        frozen=", ".join(names),
    )


def _with_limits(measurements: Measurements) -> Measurements:
    """In units of the C of each step, if it is not that of the settings and the noise has it."""
    seen = _limits(measurements.quiet)
    if seen is None:
        return measurements
    limits, scales = seen
    steps = min(len(limits), measurements.noisy.moved.shape[1])
    noise = np.sqrt((measurements.noisy.silent[:, :steps] ** 2).mean(axis=(0, 2, 3)))
    noise /= measurements.settings.noise_multiplier * scales[:steps] * limits[:steps]
    if np.abs(noise - 1).max() > _SAME_LIMIT:
        return measurements

    def change(trainings: Trainings) -> Trainings:
        own = limits[: trainings.moved.shape[1]]
        before = (
            np.ones(len(own))
            if trainings.norm_factors is None
            else trainings.norm_factors[: len(own)]
        )
        moved = trainings.moved[:, : len(own)] / own[:, None, None]
        return trainings.with_updates(moved, norm_factors=before / own)

    return replace(
        _replaced(measurements, change), limits=(float(limits.min()), float(limits.max()))
    )


def _limits(quiet: Trainings) -> tuple[Array, Array] | None:
    """C of each step over that of the settings, and scales of updates; None if it is that C."""
    norms, parts = quiet.norms, np.sqrt((quiet.parts**2).sum(axis=2))
    limits, scales = [], []
    for step in range(norms.shape[1]):
        drawn, own, left = quiet.drawn[:, step], norms[:, step], parts[:, step]
        whole = drawn & (own > _SEEN) & (own < _WHOLE_UP_TO)
        clipped = drawn & (own > _CLIPPED_FROM)
        if not whole.any() or not clipped.any():
            return None
        scale = float(np.median(left[whole] / own[whole]))
        limit = float(np.median(left[clipped])) / scale
        expected = scale * np.minimum(limit, own[drawn])
        if np.abs(left[drawn] - expected).max() > _LIMITS_FIT * scale * limit:
            return None
        limits.append(limit)
        scales.append(scale)
    limits_of_steps = np.array(limits)
    return (
        (limits_of_steps, np.array(scales))
        if np.abs(limits_of_steps - 1).max() > _CARRIED * 2
        else None
    )


def _changed(measurements: Measurements, updates: Callable[[Trainings], Array]) -> Measurements:
    """With other updates."""
    return _replaced(measurements, lambda trainings: trainings.with_updates(updates(trainings)))


def _replaced(measurements: Measurements, change: Callable[[Trainings], Trainings]) -> Measurements:
    """With other trainings of all kinds."""
    return replace(
        measurements,
        quiet=change(measurements.quiet),
        noisy=change(measurements.noisy),
        small_quiet=measurements.small_quiet and change(measurements.small_quiet),
        small_noisy=measurements.small_noisy and change(measurements.small_noisy),
        dense=measurements.dense and change(measurements.dense),
    )


def _without_momentum(moved: Array, momentum: float) -> Array:
    """The gradients of updates of the shape (R, T, ...) that are velocities."""
    gradients = moved.copy()
    gradients[:, 1:] -= momentum * moved[:, :-1]
    return gradients


def _weight_decay(quiet: Trainings) -> float:
    """The part of itself that every parameter loses in a step, up to what float32 can show."""
    silent = slice(len(quiet.records.sizes), None)
    has_weight = quiet.records.start[:, silent] != 0
    before, moved = quiet.before[..., silent][..., has_weight], quiet.silent[..., has_weight]
    if np.abs(moved).max() < _CARRIED:
        return 0.0
    return float(np.median(-moved * quiet.records.step / before))


def carried_over(quiet: Trainings) -> float:
    """The part of an update that comes again in the next one, where no other gradient is.

    At least one record is not drawn again at once, and what comes again is least for these. If all
    records are in all batches, it is not measured.
    """
    ratios = _carried(quiet, 1)
    if not len(ratios):
        return 0.0
    ratio = float(ratios[np.abs(ratios).argmin()])
    return ratio if abs(ratio) > _CARRIED else 0.0


def _carried(quiet: Trainings, lag: int, *, at_start: bool = False) -> Array:
    """Parts `lag` updates after a record's first draw, over those at that draw.

    With `at_start`, of the records of the first update alone.
    """
    parts = quiet.parts.sum(axis=2)
    drawn = np.abs(parts) > PRESENT
    if parts.shape[1] <= lag or drawn.all():
        return np.zeros(0)
    first = drawn & (np.cumsum(drawn, axis=1) == 1)
    runs, steps, records = np.nonzero(first[:, : 1 if at_start else -lag])
    ratios: Array = parts[runs, steps + lag, records] / parts[runs, steps, records]
    return ratios


def _carries_nothing(measurements: Measurements) -> bool:
    """Whether most records that are not drawn again leave nothing in the next two updates."""
    least = (1 - measurements.settings.sample_rate) / 2
    of_lags = [
        *(_carried(measurements.quiet, lag) for lag in (1, 2)),
        _carried(measurements.quiet, 1, at_start=True),
    ]
    return all((np.abs(ratios) < _CARRIED).mean() > least for ratios in of_lags if len(ratios))


def carried_noise(noisy: Trainings) -> float:
    """The coefficient of an update in the next one, where no record has a gradient."""
    before, after = noisy.silent[:, :-1], noisy.silent[:, 1:]
    squares = float((before**2).sum())
    return float((before * after).sum()) / squares if squares else 0.0
