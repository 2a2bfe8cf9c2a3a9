"""Batches: which records are in them, how often, and what stands in the targets' places."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.randomness import generator, philox_key
from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.batches import Batches, KnownBatches, batches_of
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import Batch
from dpcanary.training.kernels.philox import sample_mask
from dpcanary.training.slots import slots_of, table_of
from dpcanary.training.training_settings import Purpose, Sampling

CPU = torch.device("cpu")
N, NUM_PARAMETERS, SEED = 23, 9, 11
TARGETS = (4, N - 1, 9)  # of the first slot, the second and the third; one is the last record
NUM_ROWS = N + len(TARGETS) + 1  # records, input canaries and the null record, at most
POISSON = DPSGD(
    noise_multiplier=1.0, max_grad_norm=2.5, learning_rate=1.0, record_steps=(1,), sample_rate=0.3
)
FIXED = replace(POISSON, sample_rate=1.0, sampling=Sampling.FIXED, batch_size=5, canary_period=3)
RECORDS = Records(np.arange(2.0 * N, dtype=np.float32).reshape(N, 2), np.arange(N) % 3)
CANARIES: dict[str, list[Canary]] = {
    "input": [InputCanary(np.full(2, -1.0 - k, np.float32), 2, t) for k, t in enumerate(TARGETS)],
    "coordinate": [GradientCanary(3 + 2 * k, t) for k, t in enumerate(TARGETS)],
    "direction": [
        DirectionCanary(np.full(NUM_PARAMETERS, 0.1 + 0.1 * k, np.float32), t)
        for k, t in enumerate(TARGETS)
    ],
}
lists_of_runs = st.lists(st.integers(0, 2**32 - 2), min_size=2, max_size=6, unique=True)
seeds = st.integers(0, 2**40)


def slots_for(canaries: Sequence[Canary], dpsgd: DPSGD) -> Any:
    return slots_of(canaries, records=RECORDS, dpsgd=dpsgd, num_parameters=NUM_PARAMETERS)


def worlds_for(runs: Sequence[int], num_slots: int) -> NDArray[np.int64]:
    """The bits of the run's index, so that all combinations occur; a single slot alternates."""
    return np.array(runs)[:, None] >> np.arange(num_slots) & 1


def batches_for(
    runs: Sequence[int], *, kind: str, dpsgd: DPSGD, num_slots: int = 1, shared: bool = True,
    seed: int = SEED,
) -> Batches:  # fmt: skip
    canaries = CANARIES[kind][:num_slots]
    return batches_of(dpsgd, shared=shared)(
        table=table_of(RECORDS, canaries, CPU), slots=slots_for(canaries, dpsgd),
        worlds=worlds_for(runs, num_slots), dpsgd=dpsgd, seed=seed,
        runs=torch.tensor(runs, dtype=torch.int64),
    )  # fmt: skip


def members(batch: Batch) -> NDArray[np.float64]:
    """How often each row of the table is in each run's batch, shape (runs, NUM_ROWS)."""
    rows = batch.rows.expand(batch.weights.shape).numpy()
    counts = np.zeros((len(rows), NUM_ROWS))
    for run in range(len(rows)):
        np.add.at(counts[run], rows[run], batch.weights[run].numpy())
    return counts


@pytest.mark.parametrize("kind", CANARIES)
@pytest.mark.parametrize("adjacency", list(Adjacency))
@settings(max_examples=30)
@given(
    num_slots=st.integers(1, 3), rate=st.sampled_from([0.05, 0.3, 0.9, 1.0]), runs=lists_of_runs,
    step=st.integers(0, 2**32 - 1), seed=seeds,
)  # fmt: skip
def test_poisson_batches_hold_the_sampled_records_that_the_world_trains_on(
    kind, adjacency, num_slots, rate, runs, step, seed
):
    """As weights, as lists, and as lists made for a GPU; a function of seed, run and step."""
    options = {"dpsgd": replace(POISSON, sample_rate=rate, adjacency=adjacency), "seed": seed}
    options |= {"kind": kind, "num_slots": num_slots}
    mask, threshold = np.empty((len(runs), N), np.float32), np.uint64(round(rate * 2**32))
    # Words, and thus samples, are those of a plain generator by another test.
    sample_mask(mask, threshold, philox_key(seed=seed), step, np.array(runs), 2)
    targets, worlds = list(TARGETS[:num_slots]), worlds_for(runs, num_slots)
    others = mask.copy()
    others[:, targets] = 0.0
    expected = np.pad(others, [(0, 0), (0, NUM_ROWS - N)])
    if kind == "input":
        substitute, canary_rows = adjacency is Adjacency.SUBSTITUTE, slice(N, N + num_slots)
        expected[:, canary_rows] = mask[:, targets] * (worlds == (1 if substitute else 0))
        expected[:, targets] = mask[:, targets] * (worlds == 0) * substitute
    by_list = batches_for(runs, **options, shared=False)
    rows_on_device, inserted_on_device = by_list._on_device(step)
    null = by_list.table.null
    assert null == N + (num_slots if kind == "input" else 0)
    listed, inserted_in_list = by_list.at(step)
    for batch, inserted in (
        batches_for(runs, **options, shared=True).at(step),
        (listed, inserted_in_list),
        (Batch(rows_on_device, (rows_on_device != null).float()), inserted_on_device),
    ):
        assert np.array_equal(members(batch), expected)
        assert np.array_equal(inserted.numpy(), mask[:, targets])
        assert inserted.dtype == batch.weights.dtype == torch.float32
    is_null = listed.rows.numpy() == null
    assert (np.diff(is_null.astype(int), axis=1) >= 0).all()  # a kernel stops at the first of them
    assert np.array_equal(listed.weights.numpy() == 0, is_null)


def test_a_sample_beyond_its_room_is_an_error_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    source = batches_for(range(40), kind="input", dpsgd=POISSON, shared=False)
    monkeypatch.setattr(source, "_capacity", 2)
    with pytest.raises(RuntimeError, match=r"exceeds the room for 2 records$"):
        source.at(0)


@settings(max_examples=40)
@given(
    records=st.lists(st.integers(0, 99), min_size=1, max_size=30, unique=True),
    batch_size=st.integers(1, 8),
    seed=seeds,
    purpose=st.sampled_from([Purpose.FIXED_BATCHES, Purpose.PRETRAINING_BATCHES]),
    order=st.randoms(use_true_random=False),
)
def test_known_batches_cut_the_order_of_their_epoch(records, batch_size, seed, purpose, order):
    """In whatever order steps are asked for; what is left at the end of an epoch is not used."""
    assume(batch_size <= len(records))
    batches = KnownBatches(np.array(records), batch_size=batch_size, seed=seed, purpose=purpose)
    per_epoch = len(records) // batch_size
    steps = [*range(3 * per_epoch)]
    order.shuffle(steps)
    for step in steps:
        epoch, piece = divmod(step, per_epoch)
        expected = generator(seed=seed, purpose=purpose, index=epoch).permutation(records)
        assert np.array_equal(batches.at(step), expected[batch_size * piece :][:batch_size])


def test_a_fixed_batch_holds_all_other_records_at_most() -> None:
    add_remove = replace(FIXED, adjacency=Adjacency.ADD_REMOVE)
    for dpsgd, count in ((FIXED, N - 1), (add_remove, N)):
        whole = batches_for([1, 2], kind="input", dpsgd=replace(dpsgd, batch_size=count))
        assert members(whole.at(0)[0]).sum() == 2 * count
        # Where no record comes in, one row of weights is expanded to all runs.
        strides = [whole.at(step)[0].weights.stride(0) for step in range(3)]
        assert [stride == 0 for stride in strides] == [True, True, False]
        with pytest.raises(InputError, match=rf"^batch_size {count + 1} is more than the {count} "):
            batches_for([1], kind="input", dpsgd=replace(dpsgd, batch_size=count + 1))


C = POISSON.max_grad_norm


def direction(*values: float) -> DirectionCanary:
    return DirectionCanary(np.resize([*values, *np.zeros(9)], 9).astype(np.float32), TARGETS[0])


@pytest.mark.parametrize(("canary", "message"), [
    (direction(C, C),
     r"^gradient canary: its gradient has length 3\.53553, more than max_grad_norm 2\.5;"
     r" clipped gradients are never as long: scale it down$"),
    (direction(0.01 * C, C), r"length 2\.50012"),  # longer by 5e-5 of its length
    *((DirectionCanary(gradient, 4), "must be 9 finite numbers, one per parameter")
      for gradient in (np.full(8, 0.1), np.full((3, 3), 0.1), np.full(9, np.nan))),
    (GradientCanary(9, 4), "^canary: coordinate is 9, and there are 9 parameters of the model"),
    (GradientCanary(-1, 4), "^canary: coordinate is -1; it must be"),
    (GradientCanary(7, -1), "^canary: target is -1; it must be a whole number"),
    (GradientCanary(7, N), "^canary: target is 23, and there are 23 records$"),
    # A single feature would be broadcast to all of them.
    (InputCanary(np.ones(1), 1, 4),
     r"^input canary: its features have shape \(1,\), those of records \(2,\)$"),
    (InputCanary(np.full(2, np.nan), 1, 4), "input canary: a feature is NaN or infinite"),
    (InputCanary(np.array([0, 2e19], np.float32), 1, 4), "the square of their length overflows$"),
    (InputCanary(np.ones(2), -1, 4), "^canary: label is -1; it must"),
    (InputCanary(np.array([1, None]), 1, 4), r"^input canary: .* must be numbers, not object$"),
    (InputCanary(torch.ones(2, requires_grad=True), 1, 4), "features cannot be made an array: "),
])  # fmt: skip
def test_canaries_that_do_not_fit_are_refused(canary: Canary, message: str) -> None:
    """Also if they are the second of two."""
    [fits] = [of_kind[0] for of_kind in CANARIES.values() if type(of_kind[0]) is type(canary)]
    for canaries in ([canary], [replace(fits, target=17), canary]):
        with pytest.raises(InputError, match=message):
            slots_for(canaries, POISSON)


@pytest.mark.parametrize(("kind", "features", "fits"), [
    (np.int64, [0.0, -2.0], True), (np.int64, [0.5, 1.0], False), (np.uint8, [255, 0], True),
    (np.uint8, [255, -1], False), (np.uint8, [256.0, 0.0], False), (np.float32, [0.5, -1.0], True),
])  # fmt: skip
def test_features_that_the_type_of_records_cannot_hold_are_refused(kind, features, fits):
    records = replace(RECORDS, features=RECORDS.features.astype(kind))
    options = {"records": records, "dpsgd": POISSON, "num_parameters": NUM_PARAMETERS}
    canary = InputCanary(np.array(features), 1, 4)
    if not fits:
        with pytest.raises(InputError, match=f"a feature is no {np.dtype(kind)}, which those of"):
            slots_of([canary], **options)
    else:
        slots_of([canary], **options)
        assert table_of(records, [canary], CPU).features[N].tolist() == features


def test_labels_that_are_no_numbers_are_refused() -> None:
    numbers = replace(RECORDS, labels=RECORDS.labels.astype(np.float32))
    for label in ("a", None, np.nan, 10**400):
        with pytest.raises(InputError, match=r"^input canary: its label is .*, no finite number$"):
            slots_of(
                [InputCanary(np.ones(2), label, 4)],
                records=numbers,
                dpsgd=POISSON,
                num_parameters=NUM_PARAMETERS,
            )


def test_a_canary_may_be_as_long_as_a_clipped_gradient_or_have_no_length() -> None:
    """And two slots differ in their coordinates and targets."""
    for values in ((0.6 * C, 0.8 * C), (0.0,)):
        assert len(slots_for([direction(*values)], POISSON)) == 1
    with pytest.raises(InputError, match="two canaries have the same coordinate"):
        slots_for([GradientCanary(2, 0), GradientCanary(2, 1)], POISSON)
    with pytest.raises(InputError, match="two canaries have the same target"):
        slots_for([GradientCanary(2, 1), GradientCanary(3, 1)], POISSON)
