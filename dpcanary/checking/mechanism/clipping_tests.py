"""What an update holds of each record, and what moves the parameters. Nothing is random here."""

from math import sqrt

import numpy as np

from dpcanary.checking.mechanism.measurements import PRESENT_IN_DENSE
from dpcanary.checking.mechanism.probe import TENSORS, Array
from dpcanary.checking.mechanism.property_tests import Measured, Property, exact
from dpcanary.checking.mechanism.undone_postprocessing import are_tied, carried_noise, carried_over
from dpcanary.checking.mechanism.update_evidence import (
    EXACT,
    Evidence,
    batches_differ,
    clipped_norms,
    fresh,
)

# Relative, of the largest clipped norm, and of equal records' parts, in lower precision.
_LOW_PRECISION = 1e-2
# The most that moves where nothing should, over the move by a gradient of norm C.
_NOTHING = 0.01
UPDATES = "updates"
DEPENDS_ON_MORE = (
    "parameters depend on records beside the noisy sums: trainings on other records that were given"
    " the same noisy sums, batches and random numbers ended elsewhere"
)
CALLED_ELSEWHERE = (
    "the module is also called at parameters that do not follow from the noisy ones: if private"
    " gradients are taken there, they leak, and this check does not see it"
)
DUPLICATES = "as if records were in their batch more than once"
# Norms over C that no clipping but that to one norm changes.
_SMALL = 0.12
# Normalising clipping C n / (n + g) is recognised if all norms fit it so well.
_FITS = 0.02
# Clipping that differs by less from that to C is not called another one.
_SHOWN = 5e-3


def _steps(evidence: Evidence) -> Measured:
    """The number of updates that were seen."""
    expected = evidence.measurements.settings.num_steps
    counts = np.concatenate(
        [
            training.num_updates
            for training in (evidence.measurements.quiet, evidence.measurements.noisy)
        ]
    )
    low, high = counts.min(), counts.max()
    shown = f"{low}" if low == high else f"{low} to {high}"
    return Measured(f"{shown} updates of {expected}", [exact(low == high == expected)])


def _updates(evidence: Evidence) -> Measured:
    """What moves where no gradient is, or beside an optimiser of PyTorch."""
    measurements, notes = evidence.measurements, []
    quiet = measurements.quiet
    # In the hidden layer, weight and bias may differ because only one of them is clipped.
    blocks = (quiet.silent, quiet.across[..., :3, :])
    elsewhere = max((float(np.abs(values).max()) for values in blocks if values.size), default=0.0)
    tests = [exact(elsewhere < _NOTHING, f"{elsewhere:.3g} C where no record has a gradient")]
    text = "nothing moves but by gradients and noise"
    # Almost without noise, what follows from noisy gradients also follows from clean ones.
    stray = measurements.noisy.stray
    place = f"gradients are taken {stray:.2g} steps from parameters that follow from the noisy ones"
    num_records = measurements.noisy.num_without_noise
    if num_records > 1:  # what one record does to a copy of the model may be clipped later
        place = f"gradients are taken where those of {num_records} records led without noise"
        tests.append(exact(holds=False, place=place))
    elif measurements.noisy.by_yields and stray >= _NOTHING:
        notes.append(CALLED_ELSEWHERE)
    else:
        tests.append(exact(stray < _NOTHING, place))
    if measurements.noisy.is_averaged:
        notes.append(
            "parameters are set to averages of those of several steps: post-processing, epsilon is"
            " not changed; what an average hides is not looked at"
        )
    if measurements.frozen:
        notes.append(
            f"not trained: {measurements.frozen}. What is trained is clipped and gets noise"
        )
    if quiet.optimizer:
        error = float(max(quiet.replay_error, measurements.noisy.replay_error))
        place = f"parameters are {error:.2g} steps from where its gradients lead"
        tests.append(exact(error < _NOTHING, place))
        text = f"parameters are moved by {quiet.optimizer}"
        notes.append(
            f"{quiet.optimizer} is given noisy gradients alone, which are what is checked here:"
            " what it does with them is post-processing, and epsilon is not changed"
        )
    if measurements.by_sums:
        text = "parameters depend on records through noisy sums alone"
        notes.append(
            "the tests are those of the noisy sums. What follows these is post-processing, epsilon"
            " is not changed: trainings on other records that were given the same noisy sums ended"
            " at the same parameters"
        )
    if measurements.filter:
        notes.append(
            f"{measurements.filter} after the noise: post-processing, epsilon is not changed; it"
            " was undone for the other tests"
        )
    if measurements.weight_decay:
        notes.append(
            f"weight decay of {measurements.weight_decay:.3g}: post-processing, epsilon is not"
            " changed; it was undone for the other tests"
        )
    return Measured(text, tests, "; ".join(notes))


def _history(evidence: Evidence) -> Measured:
    """What comes again in the next step, without the record being drawn again."""
    carried = carried_over(evidence.measurements.quiet)
    noise = carried_noise(evidence.measurements.noisy) if evidence.noise else 0.0
    place = f"the noise {noise:.2g}: gradients are carried over without noise of their own"
    return Measured(f"{carried:.3g} of a gradient comes again", [exact(not carried, place)])


def _normalisation(evidence: Evidence) -> Measured:
    """The scales of batches, in each step over their median."""
    of_batches, radius = evidence.of_batches, _radius(evidence)
    if not np.isfinite(of_batches).any():
        return Measured("no record was in any batch", [exact(holds=False)])
    if radius:
        # Where sums are longer, the scale is the radius over their length.
        is_long = evidence.measurements.quiet.lengths > (1 - EXACT) * radius
        of_batches = np.where(is_long & np.isfinite(of_batches), evidence.scales, of_batches)
    usual = np.array(
        [np.nanmedian(own) if np.isfinite(own).any() else np.nan for own in of_batches.T]
    )
    ratios = of_batches / usual
    low, high = np.nanmin(ratios), np.nanmax(ratios)
    limit = max(EXACT, evidence.deviation)
    by_size = ratios * evidence.drawn.sum(axis=2)
    spread = np.nanmax(by_size) / np.nanmin(by_size)
    cause = ""
    if spread < 1.5 * (1 + limit) and high / low > spread:
        cause = "as if divided by the size of the batch that was drawn"
    if _is_of_one_length(evidence):
        cause = "every sum is scaled to one length: one record can turn it around"
    text = f"{_range(usual)} times as much, in each batch {low:.4g} to {high:.4g} of it"
    note = ""
    if radius:
        note = (
            f"sums longer than {radius:.3g} C are projected onto a ball, which brings no two sums"
            " further apart: the sensitivity is that accounted"
        )
    holds = bool(max(high - 1, 1 - low) <= limit)
    least, most = evidence.measurements.limits
    if most > least * (1 + EXACT):
        note = (
            f"C is {least:.3g} to {most:.3g} times that of the settings in different steps, and the"
            " noise with it: as private, if the step alone decides"
        )
    elif abs(most - 1) > EXACT:
        note = f"C is {most:.4g} times that of the settings, and the noise with it: as private"
    if np.abs(evidence.scales - 1).max() > EXACT:
        note = (
            f"updates are {_range(evidence.scales)} times the learning rate times the mean"
            " gradient, and noise is compared with that: a divisor or a schedule that depends on"
            " the step alone is post-processing"
        )
    return Measured(text, [exact(holds, cause)], note)


def _radius(evidence: Evidence) -> float:
    """The length that sums of clipped gradients are shortened to, before the noise; 0 if none.

    A projection leaves shorter sums as they are. Where no sum is shorter, nothing shows that it
    does: a sum that is scaled up to the length is turned around by one record.
    """
    measured, lengths = evidence.measurements, evidence.measurements.quiet.lengths
    if evidence.deviation > EXACT or not are_tied(lengths) or are_tied(measured.noisy.lengths):
        return 0.0
    return 0.0 if _is_of_one_length(evidence) else float(lengths.max())


def _is_of_one_length(evidence: Evidence) -> bool:
    """Whether all updates almost without noise that have a gradient are equally long."""
    lengths = evidence.measurements.quiet.lengths
    if not are_tied(lengths):
        return False
    trainings = [
        training
        for training in (evidence.measurements.quiet, evidence.measurements.small_quiet)
        if training
    ]
    least = min(
        training.lengths[training.drawn.any(axis=2)].min(initial=np.inf) for training in trainings
    )
    return bool(least >= (1 - EXACT) * lengths.max())


def _range(scales: Array) -> str:
    """Where scales lie; one number if they are the same."""
    low, high = np.nanmin(scales), np.nanmax(scales)
    return f"{low:.4g}" if high - low < EXACT * low else f"{low:.4g} to {high:.4g}"


def _clipping(evidence: Evidence) -> Measured:
    """The largest norm that a record's part has, and which norms it has at others."""
    quiet, norms = evidence.measurements.quiet, clipped_norms(evidence)
    if not np.isfinite(norms).any():
        return Measured("no record was in any batch", [exact(holds=False)])
    limit = 1 + (_LOW_PRECISION if evidence.deviation > EXACT else EXACT)
    largest = float(np.nanmax(norms))
    tests = [exact(largest <= limit)]
    in_tensors = np.abs(quiet.parts) / evidence.of_batches[..., None, None] * sqrt(len(TENSORS))
    drawn = evidence.drawn
    if largest > limit:
        over = [
            tensor.name
            for row, tensor in enumerate(TENSORS)
            if float(in_tensors[:, :, row][drawn].max(initial=0.0)) > limit
        ]
        if 0 < len(over) < len(TENSORS):
            tests.append(exact(False, f"in {', '.join(over)}"))
        too_long = drawn & (norms > limit)
        own = quiet.norms[too_long]
        tests.append(exact(False, f"of gradients from {own.min():.3g} to {own.max():.3g} C"))
        if _are_multiples(norms[too_long] / np.minimum(1.0, own)):
            tests.append(exact(False, DUPLICATES))
    dense = _largest_dense(evidence)
    place = f"{dense:.3g} C of gradients with many values: clipped by value or row, not by norm"
    tests.append(exact(dense <= limit or largest > limit, place))
    note = "" if max(largest, dense) > limit else _other_clipping(evidence, norms, limit - 1)
    return Measured(f"norms up to {max(largest, dense):.4g} C", tests, note)


def _are_multiples(ratios: Array) -> bool:
    """Whether parts are whole multiples, from 2 on, of what they must be, up to lower precision."""
    whole = np.rint(ratios)
    return bool((np.abs(ratios - whole) < _LOW_PRECISION * whole).all() and (whole >= 2).all())


def _largest_dense(evidence: Evidence) -> float:
    """The largest norm over C of what an update has of a record with many components.

    Its unit is that of the smallest gradients, as in the other trainings: loops may divide by a
    constant of their own.
    """
    dense, quiet = evidence.measurements.dense, evidence.measurements.quiet
    if dense is None or not dense.moved.size or batches_differ(evidence):
        return 0.0
    records = dense.records
    count = len(records.sizes)
    own = dense.moved[..., : count * records.width]
    squares = (own**2).reshape(*own.shape[:-1], count, records.width).sum(axis=(2, 4))
    steps = min(squares.shape[1], len(evidence.scales))
    norms = np.sqrt(squares[:, :steps]) / evidence.scales[:steps, None]
    before = dense.norms[:, :steps]
    small = (norms > PRESENT_IN_DENSE) & (before < _SMALL)
    seen = clipped_norms(evidence)
    usual = np.isfinite(seen) & (quiet.norms < _SMALL)
    if not small.any() or not usual.any():
        return 0.0
    order = np.argsort(quiet.norms[usual])
    expected = np.interp(before[small], quiet.norms[usual][order], seen[usual][order])
    return float(norms.max() / np.median(norms[small] / expected))


def _other_clipping(evidence: Evidence, norms: Array, limit: float) -> str:
    """How clipping differs from scaling down to C, in words, if it does."""
    before = evidence.measurements.quiet.norms
    shown = np.isfinite(norms) & (before > 1e-2)
    n, c = before[shown], norms[shown]
    if np.abs(c / np.minimum(1.0, n) - 1).max() <= max(limit, 3 * evidence.deviation, _SHOWN):
        return ""
    private = "no norm is above C, so the sensitivity is that accounted"
    if np.abs(c - 1).max() < _FITS:
        return f"every gradient is scaled to norm C: {private}"
    added = float(np.median(n[n < 0.5] * (1 - c[n < 0.5]) / c[n < 0.5])) if (n < 0.5).any() else 0
    if added > 0 and np.abs(c * (n + added) / n - 1).max() < _FITS:
        return f"normalising clipping, n C / (n + {added:.2g} C) of a norm n (AUTO-S): {private}"
    least, most = c[n > 1].min(initial=1.0), c[n > 1].max(initial=0.0)
    return (
        f"another clipping than to C: gradients above C get norms of {least:.3g} to {most:.3g} C;"
        f" {private}"
    )


def _own_clipping(evidence: Evidence) -> Measured:
    """Parts of records that are equal: at their first draw, before their parameters move."""
    quiet = evidence.measurements.quiet
    signed = quiet.parts.sum(axis=2) / sqrt(len(TENSORS)) / evidence.of_batches[..., None]
    at_start = fresh(quiet)
    limit = _LOW_PRECISION if evidence.deviation > EXACT else 2 * EXACT
    tests, worst = [], 0.0
    for index, norm in enumerate(quiet.records.norms):
        for label in (0, 1):
            same = (quiet.records.classes == index) & (quiet.records.labels == label)
            own = signed[at_start & same]
            if len(own) > 1:
                size = np.abs(own).max()
                spread = float(np.ptp(own) / size) if size else 0.0
                worst = max(worst, spread)
                place = f"{own.min():.3g} to {own.max():.3g} C of gradients of {norm:g} C"
                tests.append(exact(spread <= limit, place))
    return Measured(f"equal records differ by up to {worst:.2g}", tests)


PROPERTIES = (
    Property(
        "steps",
        "one update in each step",
        _steps,
        "the loop makes another number of steps, or trains where they cannot be seen: then write it"
        " as a generator that yields after each step",
        is_random=False,
    ),
    Property(
        UPDATES,
        "parameters are moved by noisy gradients, and by what follows from these, alone",
        _updates,
        "something else than the noisy gradients reaches the parameters",
        is_random=False,
    ),
    Property(
        "history",
        "a record's gradient is in the update of its own step alone",
        _history,
        "gradients come again in later steps without new noise, as in momentum before the noise",
        is_random=False,
    ),
    Property(
        "normalisation",
        "sums are divided by the expected batch size, or another constant",
        _normalisation,
        "gradients are divided by something else, such as the size of the batch that was drawn",
        is_random=False,
    ),
    Property(
        "clipping",
        "the whole gradient of each record is clipped to C, before summing",
        _clipping,
        "the sensitivity is above C: gradients are clipped after averaging, in part, or not",
        is_random=False,
    ),
    Property(
        "one record at a time",
        "what a record adds depends on nothing but itself and the parameters",
        _own_clipping,
        "records are clipped together with others, as in microbatches, or by a threshold that they"
        " choose: the sensitivity is not C",
        is_random=False,
    ),
)
