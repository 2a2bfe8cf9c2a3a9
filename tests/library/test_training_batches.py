"""Batches: which records are in them, how often, and what stands in the targets' places."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest
from test_training_draws import assert_uncorrelated
from torch import nn

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records
from dpcanary.training import slots
from dpcanary.training.batches import Batches, batches_of
from dpcanary.training.block import InsertedGradients
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.gradient_path import Batch
from dpcanary.training.settings import Sampling
from dpcanary.training.slots import Slots, slots_of, table_of

CPU = torch.device("cpu")
N, NUM_PARAMETERS, SEED = 23, 9, 11
TARGETS = (4, 17, 9)  # of the first slot, the second and the third
TARGET, CANARY_ROW = TARGETS[0], N
NUM_ROWS = N + len(TARGETS) + 1  # records, input canaries and the null record, at most
POISSON = DPSGD(
    noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, record_steps=(1,), sample_rate=0.3
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
every_canary = pytest.mark.parametrize("kind", CANARIES)
every_adjacency = pytest.mark.parametrize("adjacency", list(Adjacency))
every_number = pytest.mark.parametrize("num_slots", [1, 2, 3])


def slots_for(kind: str, dpsgd: DPSGD, num_slots: int = 1) -> Slots:
    return slots_of(
        CANARIES[kind][:num_slots], records=RECORDS, dpsgd=dpsgd, num_parameters=NUM_PARAMETERS
    )


def worlds_for(runs: Sequence[int], num_slots: int = 1) -> NDArray[np.int64]:
    """The bits of the run's index, so that all combinations occur; one slot alternates."""
    return np.array(runs)[:, None] >> np.arange(num_slots) & 1


def batches_for(
    runs: Sequence[int],
    *,
    kind: str,
    dpsgd: DPSGD,
    num_slots: int = 1,
    shared: bool = True,
    seed: int = SEED,
) -> Batches:
    return batches_of(dpsgd, shared=shared)(
        table=table_of(RECORDS, CANARIES[kind][:num_slots], CPU),
        slots=slots_for(kind, dpsgd, num_slots),
        worlds=worlds_for(runs, num_slots),
        dpsgd=dpsgd,
        seed=seed,
        runs=torch.tensor(runs, dtype=torch.int64),
    )


def null_row(kind: str, num_slots: int) -> int:
    """The last row of the table, behind the rows of input canaries if there are any."""
    return N + (num_slots if kind == "input" else 0)


def members(batch: Batch) -> NDArray[np.float64]:
    """How often each row of the table is in each run's batch, shape (runs, NUM_ROWS)."""
    rows = batch.rows.expand(batch.weights.shape).numpy()
    counts = np.zeros((len(rows), NUM_ROWS))
    for run in range(len(rows)):
        np.add.at(counts[run], rows[run], batch.weights[run].numpy())
    return counts


def sampled(
    runs: Sequence[int], steps: Sequence[int], *, rate: float = 0.3, shared: bool = True
) -> NDArray[np.float64]:
    """Which records are sampled, shape (runs, steps, N).

    Under `substitute`, world 0 trains on the target itself, so its batches are the sample. A batch
    of world 1 holds the canary in the target's place.
    """
    source = batches_for(
        runs, kind="input", dpsgd=replace(POISSON, sample_rate=rate), shared=shared
    )
    found = np.stack([members(source.at(step)[0]) for step in steps], axis=1)
    found[:, :, TARGET] += found[:, :, CANARY_ROW]
    return found[:, :, :N]


# --- the law of Poisson samples ----------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True], ids=["rows", "weights"])
@pytest.mark.parametrize("rate", [0.0625, 0.3, 0.95])
def test_every_record_is_sampled_at_the_rate(rate: float, shared: bool) -> None:
    drawn = sampled(range(64), range(300), rate=rate, shared=shared)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    trials = 64 * 300
    for record in range(N):
        count = int(drawn[:, :, record].sum())
        assert binomtest(count, trials, rate).pvalue > 1e-3 / N
    # Since records are independent, batch sizes have the mean and variance of a binomial law.
    sizes = drawn.sum(axis=2).ravel()
    variance = N * rate * (1 - rate)
    assert abs(sizes.mean() - N * rate) < 4.5 * np.sqrt(variance / trials)
    kurtosis = 3.0 + (1.0 - 6.0 * rate * (1 - rate)) / variance
    assert abs(sizes.var() - variance) < 4.5 * variance * np.sqrt((kurtosis - 1.0) / trials)


def test_records_runs_and_steps_are_independent() -> None:
    drawn = sampled(range(400), range(30))
    assert_uncorrelated(drawn.reshape(-1, N).T)  # records
    assert_uncorrelated(drawn.transpose(1, 0, 2).reshape(30, -1))  # steps
    far_apart = [*range(40), 10**6, 2**31, 2**32 - 1]
    assert_uncorrelated(sampled(far_apart, range(300)).reshape(len(far_apart), -1))


def test_a_batch_is_a_function_of_seed_run_and_step() -> None:
    """It does not depend on the order of steps or on the other runs."""
    whole = sampled(range(10), range(6))
    assert np.array_equal(sampled(range(10), [5, 0, 3]), whole[:, [5, 0, 3]])
    assert np.array_equal(sampled([7, 2], range(6)), whole[[7, 2]])
    assert (whole[1:] != whole[:-1]).any(axis=(1, 2)).all()


# --- the two worlds ----------------------------------------------------------------------------


def expected_members(
    worlds: NDArray[np.int64], ordinary: NDArray[np.float64], kind: str, adjacency: Adjacency
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each run should train on, given its sample, and which slots take part."""
    expected = np.pad(ordinary, [(0, 0), (0, NUM_ROWS - N)])
    targets = list(TARGETS[: worlds.shape[1]])
    canary_rows = slice(N, N + len(targets))
    inserted = ordinary[:, targets]
    expected[:, targets] = 0.0
    if kind == "input" and adjacency is Adjacency.SUBSTITUTE:
        expected[:, targets] = inserted * (worlds == 0)
        expected[:, canary_rows] = inserted * (worlds == 1)
    elif kind == "input":
        expected[:, canary_rows] = inserted * (worlds == 0)
    return expected, inserted


@every_canary
@every_adjacency
@every_number
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9, 1.0])
def test_lists_and_weights_hold_the_records_that_the_world_trains_on(
    kind: str, adjacency: Adjacency, num_slots: int, rate: float
) -> None:
    dpsgd = replace(POISSON, sample_rate=rate, adjacency=adjacency)
    runs, known = range(3, 43), {"kind": kind, "dpsgd": dpsgd, "num_slots": num_slots}
    by_list = batches_for(runs, **known, shared=False)
    by_weight = batches_for(runs, **known, shared=True)
    places = []
    for step in range(12):
        ordinary = sampled(runs, [step], rate=rate)[:, 0]
        worlds = worlds_for(runs, num_slots)
        expected, inserted = expected_members(worlds, ordinary, kind, adjacency)
        for source in (by_list, by_weight):
            batch, found = source.at(step)
            assert np.array_equal(members(batch), expected)
            assert np.array_equal(found.numpy(), inserted)
            assert found.dtype == batch.weights.dtype == torch.float32
        places.append(inserted)
    shares = np.mean(places, axis=(0, 1))
    assert ((shares > 0) & (shares <= 1)).all()


@every_canary
@every_number
def test_null_rows_are_at_the_end_of_a_list(kind: str, num_slots: int) -> None:
    """The kernel stops at the first null row."""
    dpsgd = replace(POISSON, adjacency=Adjacency.ADD_REMOVE)
    source = batches_for(range(50), kind=kind, dpsgd=dpsgd, num_slots=num_slots, shared=False)
    shorter = 0
    for step in range(10):
        batch, _ = source.at(step)
        null = batch.rows.numpy() == null_row(kind, num_slots)
        assert (np.diff(null.astype(int), axis=1) >= 0).all()
        assert np.array_equal(batch.weights.numpy() == 0, null)
        shorter += int(null.any(axis=1).sum())
    assert shorter > 0


@every_canary
@every_adjacency
@every_number
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_lists_made_for_a_gpu_hold_the_same_records(
    kind: str, adjacency: Adjacency, num_slots: int, rate: float
) -> None:
    dpsgd, null = replace(POISSON, sample_rate=rate, adjacency=adjacency), null_row(kind, num_slots)
    source = batches_for(range(40), kind=kind, dpsgd=dpsgd, num_slots=num_slots, shared=False)
    for step in range(10):
        rows, inserted = source._on_device(step)
        on_host, inserted_on_host = source.at(step)
        on_device = Batch(rows, (rows != null).float())
        assert np.array_equal(members(on_device), members(on_host))
        assert torch.equal(inserted, inserted_on_host)


def test_a_sample_beyond_its_room_is_an_error_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    source = batches_for(range(40), kind="input", dpsgd=POISSON, shared=False)
    monkeypatch.setattr(source, "_capacity", 2)
    with pytest.raises(RuntimeError, match=r"exceeds the room for 2 records$"):
        source.at(0)


# --- fixed batches -----------------------------------------------------------------------------


@every_canary
@every_adjacency
@every_number
def test_each_epoch_of_fixed_batches_is_a_partition(
    kind: str, adjacency: Adjacency, num_slots: int
) -> None:
    """Of all records, except the targets under `substitute`; a remainder is left out."""
    dpsgd = replace(FIXED, adjacency=adjacency)
    substitute, targets = adjacency is Adjacency.SUBSTITUTE, list(TARGETS[:num_slots])
    others = np.array([i for i in range(N) if not (substitute and i in targets)])
    per_epoch = len(others) // 5
    runs = range(3, 13)
    worlds = worlds_for(runs, num_slots)
    source = batches_for(runs, kind=kind, dpsgd=dpsgd, num_slots=num_slots)
    orders = []
    for epoch in range(6):
        pieces = []
        for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            batch, inserted = source.at(step)
            found = members(batch)
            assert inserted.shape == (len(runs), num_slots)
            assert (inserted == float((step + 1) % 3 == 0)).all()
            place = inserted.numpy()
            for_targets = place * (worlds == 0) if substitute and kind == "input" else 0 * place
            for_canaries = 0 * place
            if kind == "input":
                for_canaries = place * (worlds == (1 if substitute else 0))
            assert np.array_equal(found[:, N : N + num_slots], for_canaries)
            if substitute:
                assert np.array_equal(found[:, targets], for_targets)
            assert (found[:, N + num_slots :] == 0).all()
            assert (found[:, others] == found[0, others]).all()  # the same for all runs
            pieces.append(np.flatnonzero(found[0, others]))
            assert len(pieces[-1]) == 5
        everyone = np.concatenate(pieces)
        assert len(np.unique(everyone)) == len(everyone) == 5 * per_epoch
        orders.append(everyone.tolist())
    assert len({tuple(order) for order in orders}) == len(orders)  # epochs differ


def test_fixed_batches_are_a_function_of_seed_and_step() -> None:
    whole = batches_for(range(4), kind="input", dpsgd=FIXED)
    expected = [members(whole.at(step)[0]) for step in range(20)]
    other_order = batches_for([2, 3], kind="input", dpsgd=FIXED)
    for step in (17, 3, 11, 4, 0, 19):
        assert np.array_equal(members(other_order.at(step)[0]), expected[step][2:])
    reseeded = batches_for(range(4), kind="input", dpsgd=FIXED, seed=SEED + 1)
    assert not np.array_equal(members(reseeded.at(0)[0]), expected[0])


@every_canary
def test_runs_share_the_weights_of_fixed_batches_where_no_canary_record_comes_in(kind: str) -> None:
    """One row is expanded to all runs, and takes neither memory nor time."""
    source = batches_for(range(4), kind=kind, dpsgd=FIXED, num_slots=2)
    for step in range(6):
        batch, inserted = source.at(step)
        comes_in = step % 3 == 2
        assert torch.equal(inserted, torch.full((4, 2), float(comes_in)))
        with_records = comes_in and kind == "input"
        assert batch.weights.shape == (4, 5 + 4 * with_records)
        assert (batch.weights.stride(0) == 0) != with_records


def test_over_many_epochs_a_fixed_batch_holds_each_record_equally_often() -> None:
    """The first batch of each epoch is a random choice of 5 of the 22 other records."""
    source = batches_for([0], kind="coordinate", dpsgd=FIXED)
    count = np.sum([members(source.at(4 * epoch)[0])[0] for epoch in range(2_000)], axis=0)
    assert count[TARGET] == 0
    for record in [i for i in range(N) if i != TARGET]:
        assert binomtest(int(count[record]), 2_000, 5 / 22).pvalue > 1e-3 / N


def test_a_fixed_batch_holds_all_other_records_at_most() -> None:
    whole = replace(FIXED, batch_size=N - 1)
    assert members(batches_for([0], kind="coordinate", dpsgd=whole).at(0)[0]).sum() == N - 1
    with pytest.raises(InputError, match=r"^batch_size 23 is more than the 22 records$"):
        batches_for([0], kind="input", dpsgd=replace(FIXED, batch_size=N))
    leaves_none_out = replace(FIXED, batch_size=N, adjacency=Adjacency.ADD_REMOVE)
    assert members(batches_for([1], kind="input", dpsgd=leaves_none_out).at(0)[0]).sum() == N
    with pytest.raises(InputError, match=r"^batch_size 24 is more than the 23 records$"):
        batches_for([0], kind="input", dpsgd=replace(leaves_none_out, batch_size=N + 1))


@every_canary
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_fixed_batches_keep_the_targets_where_canaries_replace_no_record(
    kind: str, adjacency: Adjacency
) -> None:
    """A canary is an additional record, in world 0 alone; every epoch has all others."""
    dpsgd = replace(FIXED, adjacency=adjacency, batch_size=N, canary_period=2)
    source = batches_for(range(4), kind=kind, dpsgd=dpsgd, num_slots=2)
    for step in range(4):
        assert (members(source.at(step)[0])[:, :N] == 1).all()


@pytest.mark.parametrize("name", ["batch_size", "canary_period"])
def test_only_fixed_sampling_has_a_batch_size_and_a_period(name: str) -> None:
    message = r"^sampling poisson has no batch_size or canary_period: .* sample_rate = batch size /"
    with pytest.raises(InputError, match=message):
        replace(POISSON, sample_rate=1.0, **{name: 5})
    with pytest.raises(InputError, match=r"^sampling fixed needs batch_size and canary_period$"):
        replace(FIXED, **{name: None})
    with pytest.raises(InputError, match=f"^{name} is 0; it must be a whole number of at"):
        replace(FIXED, **{name: 0})
    with pytest.raises(InputError, match="no sample_rate"):
        replace(FIXED, sample_rate=0.5)


# --- canaries that do not fit ------------------------------------------------------------------


def placed(canary: Canary) -> None:
    train_ensemble(
        module=nn.Linear(2, 3),
        records=RECORDS,
        canary=canary,
        dpsgd=POISSON,
        runs=range(2),
        seed=SEED,
        device=CPU,
    )


def test_a_canary_s_gradient_is_no_longer_than_a_clipped_one() -> None:
    gradient = np.zeros(NUM_PARAMETERS, np.float32)
    gradient[[3, 7]] = POISSON.max_grad_norm
    message = (
        r"^gradient canary: its gradient has length 1\.41421, more than max_grad_norm 1;"
        r" clipped gradients are never as long: scale it down$"
    )
    with pytest.raises(InputError, match=message):
        placed(DirectionCanary(gradient, TARGET))
    gradient[3] = 0.01  # longer by 5e-5 of its length
    with pytest.raises(InputError, match=r"length 1\.00005"):
        placed(DirectionCanary(gradient, TARGET))
    # A gradient may be as long as a clipped one, up to rounding, or have length 0.
    length = np.linalg.norm(gradient.astype(np.float64))
    placed(DirectionCanary((gradient / length).astype(np.float32), TARGET))
    placed(DirectionCanary(np.zeros(NUM_PARAMETERS, np.float32), TARGET))


@pytest.mark.parametrize(
    ("canary", "message"),
    [
        (DirectionCanary(np.full(8, 0.1), TARGET), "must be 9 finite numbers, one per parameter"),
        (DirectionCanary(np.full((3, 3), 0.1), TARGET), "must be 9 finite numbers"),
        (DirectionCanary(np.full(9, np.nan), TARGET), "must be 9 finite numbers"),
        (GradientCanary(9, TARGET), "^canary: coordinate is 9, and there are 9 parameters"),
        (GradientCanary(-1, TARGET), "^canary: coordinate is -1; it must be"),
        # A single feature would be broadcast to all of them.
        (
            InputCanary(np.ones(1), 1, TARGET),
            r"^input canary: its features have shape \(1,\), those of records \(2,\)$",
        ),
        (InputCanary(np.full(2, np.nan), 1, TARGET), "input canary: a feature is NaN or infinite"),
        (InputCanary(np.ones(2), -1, TARGET), "^canary: label is -1; it must"),
        (InputCanary(np.ones(2), 3, TARGET), "has 3 outputs, .* 4 classes"),
    ],
)
def test_canaries_that_do_not_fit_are_refused(canary: Canary, message: str) -> None:
    with pytest.raises(InputError, match=message):
        placed(canary)


@pytest.mark.parametrize(
    ("coordinates", "message"),
    [
        ((2, 9), "coordinate is 9, and there are 9 parameters"),
        ((11, 2), "coordinate is 11, and there are 9 parameters"),
        ((2, 2), "two canaries have the same coordinate"),
    ],
)
def test_of_several_canaries_the_wrong_one_is_named(coordinates, message):
    canaries = [GradientCanary(one, target) for target, one in enumerate(coordinates)]
    with pytest.raises(InputError, match=message):
        slots._indices(canaries, "coordinate", 9, "parameters")


@every_adjacency
def test_gradient_canaries_are_plus_c_in_world_0(adjacency: Adjacency) -> None:
    """In world 1 they are -C under `substitute`, and 0 under other adjacencies."""
    dpsgd = replace(POISSON, adjacency=adjacency, max_grad_norm=2.5)
    slots, worlds = slots_for("coordinate", dpsgd, 2), np.array([[0, 1], [1, 1], [1, 0], [0, 0]])
    table = table_of(RECORDS, slots.canaries, CPU)
    told = {"dpsgd": dpsgd, "basis": None}
    path = path_of(nn.Linear(2, 3), table, **told)
    signs = slots.signs_in(worlds)
    sums = torch.zeros(4, path.num_parameters)
    InsertedGradients(slots, path, max_grad_norm=2.5, signs=signs).add(
        sums, torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    )
    other = -1.0 if adjacency is Adjacency.SUBSTITUTE else 0.0
    expected = torch.zeros(4, NUM_PARAMETERS)
    expected[:, 3] = 2.5 * torch.tensor([1.0, other, other, 1.0])
    # The last run's sample lacks the second target.
    expected[:, 5] = 2.5 * torch.tensor([other, other, 1.0, 0.0])
    assert torch.equal(path.decode(sums), expected)
    assert (slots.rows_in(worlds) == -1).all()
