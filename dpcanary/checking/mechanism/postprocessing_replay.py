"""Whether parameters depend on records through noisy sums alone: trainings with given sums."""

from dataclasses import replace

import numpy as np

from dpcanary.checking.mechanism.measurements import Plan, Purpose
from dpcanary.checking.mechanism.probe import ProbeRecords
from dpcanary.checking.mechanism.probe_runs import (
    QUIET,
    Settings,
    Train,
    one_thread,
    records_of,
    trained,
    with_sums,
)
from dpcanary.checking.mechanism.probe_trainings import moved_without_noise
from dpcanary.checking.mechanism.trace import Flat, Trace
from dpcanary.core.randomness import generator

# Pairs of trainings of each kind.
_NUM_PAIRS = 3


def repeats_itself(train: Train, plan: Plan) -> bool:
    """Whether trainings on the same records, with the same seed and sums, are the same.

    If they are not, as with generators that the loop does not seed, other parameters of trainings
    on other records say nothing about these.
    """
    return depends_on_sums_alone(train, plan, same_seed=True, same_records=True)


def depends_on_sums_alone(
    train: Train, plan: Plan, *, same_seed: bool = False, same_records: bool = False
) -> bool:
    """Whether trainings on other records that get the same noisy sums have the same parameters.

    They get the noisy sums of a first training in place of their own. Each gradient must be taken
    at parameters that the first training had as well. If the parameters never move, others are
    trained, of which nothing is known: then the answer is no.

    Args:
        train: the loop.
        plan: settings and numbers of records.
        same_seed: whether batches and noise are those of the first training too. If they are not,
            what depends on the size of a batch differs, and so do random steps after the noise.
        same_records: whether the records are those of the first training too; see `repeats_itself`.
    """
    draws = generator(seed=plan.seed, purpose=Purpose.REPLAYS, index=0)
    kinds = [(plan.settings, plan.num_records)]
    kinds += [(replace(plan.settings, noise_multiplier=QUIET), plan.num_records)]
    if plan.num_small:
        kinds += [(plan.settings, plan.num_small)]
    moves = False
    with one_thread():
        for settings, count in kinds:
            records = records_of(settings, count)
            for _ in range(_NUM_PAIRS):
                seed, other = (int(draws.integers(2**31)) for _ in range(2))
                with with_sums(train, records) as run:
                    first = trained(run, replace(settings, seed=seed))
                moves |= len(first.states) > 1
                settings = replace(settings, seed=seed if same_seed else other)
                others = records if same_records else _others(records)
                if not _is_same(train, others, settings, first):
                    return False
    return moves


def _is_same(train: Train, records: ProbeRecords, settings: Settings, first: Trace) -> bool:
    """Whether a training on these records ends as the first one, whose noisy sums it gets."""
    with with_sums(train, records, first.sums) as run:
        second = trained(run, settings)
    if len(first.sums) != len(second.sums) or not (first.noisy_steps and second.noisy_steps):
        return False
    at = {_key(state) for state in (*first.states, *first.called)}
    elsewhere = [step.state for step in second.noisy_steps if _key(step.state) not in at]
    # The gradient of a record may be taken where this record alone leads: clipping limits it.
    numbers = moved_without_noise(elsewhere, first.states, records)
    return all(number in (0, 1) for number in numbers) and _ends_equal(first, second)


def _key(state: Flat) -> bytes:
    """Equal for equal parameters: adding 0 makes -0.0 to 0.0."""
    return (state + 0.0).tobytes()


def _others(records: ProbeRecords) -> ProbeRecords:
    """Records of other sizes and labels, with the same start of the parameters."""
    return replace(records, sizes=0.7 * np.roll(records.sizes, 1), labels=1 - records.labels)


def _ends_equal(first: Trace, second: Trace) -> bool:
    """Whether parameters are the same to the bit: after each step, if the loop says when."""
    if not (first.by_yields and second.by_yields):
        return np.array_equal(first.states[-1], second.states[-1])
    return len(first.states) == len(second.states) and all(
        np.array_equal(own, other) for own, other in zip(first.states, second.states, strict=True)
    )
