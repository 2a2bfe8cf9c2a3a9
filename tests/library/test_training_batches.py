"""Batches: who is in them, how often, and what stands in the target's place."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest, norm
from torch import nn

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import AnyCanary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.training import batches
from dpcanary.training.batches import Batches, batches_of, rows_of_mask
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.paths.path import Batch
from dpcanary.training.placement import placement_of, table_of
from dpcanary.vocabulary import Sampling

CPU = torch.device("cpu")
N, TARGET, NUM_PARAMETERS, SEED = 23, 4, 9, 11
CANARY_ROW, NULL_ROW = N, N + 1
POISSON = DPSGD(
    noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, record_steps=(1,), sample_rate=0.3
)
FIXED = replace(POISSON, sample_rate=1.0, sampling=Sampling.FIXED, batch_size=5, canary_period=3)
RECORDS = Records(
    features=np.arange(2.0 * N, dtype=np.float32).reshape(N, 2),
    labels=np.arange(N) % 3,
    test_features=np.zeros((0, 2), np.float32),
    test_labels=np.zeros(0, np.int64),
    num_classes=3,
    target=TARGET,
)
CANARIES: dict[str, AnyCanary] = {
    "input": InputCanary(np.full(2, -1.0, np.float32), 2),
    "coordinate": GradientCanary(3),
    "direction": DirectionCanary(np.full(NUM_PARAMETERS, 0.1, np.float32)),
}
every_canary = pytest.mark.parametrize("kind", CANARIES)
every_adjacency = pytest.mark.parametrize("adjacency", list(Adjacency))


def batches_for(
    runs: Sequence[int], *, kind: str, dpsgd: DPSGD, shared: bool = True, seed: int = SEED
) -> Batches:
    canary = CANARIES[kind]
    placement = placement_of(canary, records=RECORDS, dpsgd=dpsgd, num_parameters=NUM_PARAMETERS)
    return batches_of(
        table=table_of(RECORDS, canary, CPU),
        placement=placement,
        dpsgd=dpsgd,
        seed=seed,
        runs=torch.tensor(runs, dtype=torch.int64),
        shared=shared,
    )


def members(batch: Batch) -> NDArray[np.float64]:
    """How often each row of the table is in each run's batch, shape (runs, N + 2)."""
    rows = batch.rows.expand(batch.weights.shape).numpy()
    counts = np.zeros((len(rows), N + 2))
    for run in range(len(rows)):
        np.add.at(counts[run], rows[run], batch.weights[run].numpy())
    return counts


def sampled(
    runs: Sequence[int], steps: Sequence[int], *, rate: float = 0.3, shared: bool = True
) -> NDArray[np.float64]:
    """Who is sampled, shape (runs, steps, N).

    Under `substitute` world 0 trains on the target itself, so that its batches are the sample; a
    run of world 1 holds the canary in the target's place.
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
    # Independent records: the batch sizes are binomial, mean and variance.
    sizes = drawn.sum(axis=2).ravel()
    variance = N * rate * (1 - rate)
    assert abs(sizes.mean() - N * rate) < 4.5 * np.sqrt(variance / trials)
    kurtosis = 3.0 + (1.0 - 6.0 * rate * (1 - rate)) / variance
    assert abs(sizes.var() - variance) < 4.5 * variance * np.sqrt((kurtosis - 1.0) / trials)


def assert_uncorrelated(rows: NDArray[np.float64]) -> None:
    """Correlations of independent rows of n values are about N(0, 1/n), pair by pair."""
    pairs = np.corrcoef(rows)[np.triu_indices(len(rows), 1)] * np.sqrt(rows.shape[1])
    assert np.abs(pairs).max() < norm.isf(1e-4 / len(pairs))
    assert abs((pairs**2).mean() - 1.0) < 4.5 * np.sqrt(2.0 / len(pairs))


def test_records_runs_and_steps_are_independent() -> None:
    drawn = sampled(range(400), range(30))
    assert_uncorrelated(drawn.reshape(-1, N).T)  # records
    assert_uncorrelated(drawn.transpose(1, 0, 2).reshape(30, -1))  # steps
    far_apart = [*range(40), 10**6, 2**31, 2**32 - 1]
    assert_uncorrelated(sampled(far_apart, range(300)).reshape(len(far_apart), -1))


def test_seeds_are_independent() -> None:
    drawn = []
    for seed in (0, 1, 2, 2**32):
        source = batches_for(range(0, 400, 2), kind="input", dpsgd=POISSON, seed=seed)
        drawn.append(np.stack([members(source.at(step)[0])[:, :N] for step in range(5)]).ravel())
    assert_uncorrelated(np.stack(drawn))


def test_a_batch_is_a_function_of_seed_run_and_step() -> None:
    """Not of the order of steps, nor of the runs beside it."""
    whole = sampled(range(10), range(6))
    assert np.array_equal(sampled(range(10), [5, 0, 3]), whole[:, [5, 0, 3]])
    assert np.array_equal(sampled([7, 2], range(6)), whole[[7, 2]])
    assert (whole[1:] != whole[:-1]).any(axis=(1, 2)).all()


@pytest.mark.parametrize("shared", [False, True], ids=["rows", "weights"])
def test_everyone_is_in_at_rate_one(shared: bool) -> None:
    assert (sampled(range(6), range(4), rate=1.0, shared=shared) == 1.0).all()


# --- the two worlds ----------------------------------------------------------------------------


def expected_members(
    runs: NDArray[np.int64], ordinary: NDArray[np.float64], kind: str, adjacency: Adjacency
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Who should train where these records were sampled, and where the canary's place is."""
    expected = np.concatenate([ordinary, np.zeros((len(ordinary), 2))], axis=1)
    inserted = ordinary[:, TARGET]
    world = runs % 2
    expected[:, TARGET] = 0.0
    if kind == "input" and adjacency is Adjacency.SUBSTITUTE:
        expected[:, TARGET] = inserted * (world == 0)
        expected[:, CANARY_ROW] = inserted * (world == 1)
    elif kind == "input":
        expected[:, CANARY_ROW] = inserted * (world == 0)
    return expected, inserted


@every_canary
@every_adjacency
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9, 1.0])
def test_lists_and_weights_hold_whom_the_world_should_train_on(
    kind: str, adjacency: Adjacency, rate: float
) -> None:
    dpsgd = replace(POISSON, sample_rate=rate, adjacency=adjacency)
    runs = range(3, 43)
    by_list = batches_for(runs, kind=kind, dpsgd=dpsgd, shared=False)
    by_weight = batches_for(runs, kind=kind, dpsgd=dpsgd, shared=True)
    places = []
    for step in range(12):
        ordinary = sampled(runs, [step], rate=rate)[:, 0]
        expected, inserted = expected_members(np.array(runs), ordinary, kind, adjacency)
        for source in (by_list, by_weight):
            batch, found = source.at(step)
            assert np.array_equal(members(batch), expected)
            assert np.array_equal(found.numpy(), inserted)
            assert found.dtype == batch.weights.dtype == torch.float32
        places.append(inserted)
    assert 0 < np.mean(places) <= 1


@every_canary
def test_rows_are_filled_up_behind_a_run_s_own(kind: str) -> None:
    """The kernel stops at the first null row."""
    dpsgd = replace(POISSON, adjacency=Adjacency.ADD_REMOVE)
    source = batches_for(range(50), kind=kind, dpsgd=dpsgd, shared=False)
    shorter = 0
    for step in range(10):
        batch, _ = source.at(step)
        null = batch.rows.numpy() == NULL_ROW
        assert (np.diff(null.astype(int), axis=1) >= 0).all()
        assert np.array_equal(batch.weights.numpy() == 0, null)
        shorter += int(null.any(axis=1).sum())
    assert shorter > 0


@every_canary
@every_adjacency
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.9])
def test_the_device_s_way_lists_the_same_records(
    kind: str, adjacency: Adjacency, rate: float
) -> None:
    dpsgd = replace(POISSON, sample_rate=rate, adjacency=adjacency)
    canary, runs = CANARIES[kind], np.arange(40)
    placement = placement_of(canary, records=RECORDS, dpsgd=dpsgd, num_parameters=NUM_PARAMETERS)
    source = batches_for(range(40), kind=kind, dpsgd=dpsgd, shared=False)
    for step in range(10):
        mask = torch.from_numpy(sampled(range(40), [step], rate=rate)[:, 0]).float()
        rows, inserted = rows_of_mask(
            mask,
            capacity=N,
            target=-1 if placement.target is None else placement.target,
            replacements=torch.from_numpy(placement.rows_of(runs)),
            null=NULL_ROW,
        )
        on_host, inserted_on_host = source.at(step)
        on_device = Batch(rows, (rows != NULL_ROW).float())
        assert np.array_equal(members(on_device), members(on_host))
        assert torch.equal(inserted, inserted_on_host)


def test_the_device_s_way_knows_no_target_too() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    rows, inserted = rows_of_mask(
        mask, capacity=2, target=-1, replacements=torch.tensor([-1, -1]), null=9
    )
    assert rows.tolist() == [[0, 2], [9, 9]]
    assert inserted.tolist() == [0.0, 0.0]


def test_a_sample_beyond_its_room_is_an_error_and_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_capacity", lambda num_records, rate: 2)
    with pytest.raises(RuntimeError, match="passes 2"):
        batches_for(range(40), kind="input", dpsgd=POISSON, shared=False).at(0)


# --- fixed batches -----------------------------------------------------------------------------


@every_canary
@every_adjacency
def test_each_epoch_of_fixed_batches_is_a_partition(kind: str, adjacency: Adjacency) -> None:
    """Of all records, but under `substitute` of all but the target; a remainder is left out."""
    dpsgd = replace(FIXED, adjacency=adjacency)
    substitute = adjacency is Adjacency.SUBSTITUTE
    others = np.array([i for i in range(N) if not (substitute and i == TARGET)])
    per_epoch = len(others) // 5
    runs = np.arange(3, 13)
    source = batches_for(range(3, 13), kind=kind, dpsgd=dpsgd)
    orders = []
    for epoch in range(6):
        pieces = []
        for step in range(epoch * per_epoch, (epoch + 1) * per_epoch):
            batch, inserted = source.at(step)
            found = members(batch)
            assert (inserted == float((step + 1) % 3 == 0)).all()
            place = inserted.numpy()
            world = runs % 2
            for_target = place * (world == 0) if substitute and kind == "input" else 0 * place
            for_canary = np.zeros(len(runs))
            if kind == "input":
                for_canary = place * (world == (1 if substitute else 0))
            assert np.array_equal(found[:, CANARY_ROW], for_canary)
            if substitute:
                assert np.array_equal(found[:, TARGET], for_target)
            assert (found[:, NULL_ROW] == 0).all()
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


def test_over_many_epochs_a_fixed_batch_holds_each_record_alike() -> None:
    """The first batch of each epoch is any 5 of the 22 others."""
    source = batches_for([0], kind="coordinate", dpsgd=FIXED)
    count = np.sum([members(source.at(4 * epoch)[0])[0] for epoch in range(2_000)], axis=0)
    assert count[TARGET] == 0
    for record in [i for i in range(N) if i != TARGET]:
        assert binomtest(int(count[record]), 2_000, 5 / 22).pvalue > 1e-3 / N


def test_fixed_batches_take_all_others_at_most() -> None:
    whole = replace(FIXED, batch_size=N - 1)
    assert members(batches_for([0], kind="coordinate", dpsgd=whole).at(0)[0]).sum() == N - 1
    with pytest.raises(InputError, match=r"^batch_size 23 is more than the 22 records$"):
        batches_for([0], kind="input", dpsgd=replace(FIXED, batch_size=N))
    leaves_none_out = replace(FIXED, batch_size=N, adjacency=Adjacency.ADD_REMOVE)
    assert members(batches_for([1], kind="input", dpsgd=leaves_none_out).at(0)[0]).sum() == N
    with pytest.raises(InputError, match=r"^batch_size 24 is more than the 23 records$"):
        batches_for([0], kind="input", dpsgd=replace(leaves_none_out, batch_size=N + 1))


def test_fixed_sampling_and_it_alone_has_a_batch_size_and_a_period() -> None:
    for wrong in ({"batch_size": 5}, {"canary_period": 3}, {"sampling": Sampling.FIXED}):
        with pytest.raises(InputError, match=r"^fixed sampling, and it alone, needs"):
            replace(POISSON, sample_rate=1.0, **wrong)
    with pytest.raises(InputError, match="no sample_rate"):
        replace(FIXED, sample_rate=0.5)


def test_sums_are_divided_by_the_expected_batch_size() -> None:
    assert POISSON.expected_batch_size(N) == pytest.approx(0.3 * N)
    assert FIXED.expected_batch_size(N) == 5.0


# --- canaries that do not fit ------------------------------------------------------------------


def placed(canary: AnyCanary) -> None:
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
        r"^gradient canary: its gradient has length 1\.41421, more than max_grad_norm 1; no"
        r" clipped record has that: scale it down$"
    )
    with pytest.raises(InputError, match=message):
        placed(DirectionCanary(gradient))
    gradient[3] = 0.01  # longer by 5e-5 of its length
    with pytest.raises(InputError, match=r"length 1\.00005"):
        placed(DirectionCanary(gradient))
    # As long as a clipped one, but for rounding; or of no length at all.
    length = np.linalg.norm(gradient.astype(np.float64))
    placed(DirectionCanary((gradient / length).astype(np.float32)))
    placed(DirectionCanary(np.zeros(NUM_PARAMETERS, np.float32)))


@pytest.mark.parametrize("gradient", [np.ones(8), np.ones((3, 3)), np.full(9, np.nan)])
def test_a_canary_s_gradient_is_a_finite_number_a_parameter(gradient: NDArray[np.float64]) -> None:
    with pytest.raises(InputError, match=r"must be 9 finite numbers, one per parameter"):
        placed(DirectionCanary((0.1 * gradient).astype(np.float32)))


@pytest.mark.parametrize("coordinate", [9, -1, 10**9])
def test_a_canary_s_coordinate_is_one_of_the_parameters(coordinate: int) -> None:
    message = rf"^gradient canary: coordinate {coordinate} is outside of the model's 9 parameters$"
    with pytest.raises(InputError, match=message):
        placed(GradientCanary(coordinate))


@pytest.mark.parametrize("width", [1, 3])
def test_an_input_canary_of_another_shape_than_the_records_is_refused(width: int) -> None:
    """A single feature would otherwise be taken for all of them."""
    with pytest.raises(InputError):
        placed(InputCanary(np.ones(width, np.float32), 1))


@pytest.mark.parametrize("label", [3, -1])
def test_an_input_canary_of_no_class_is_refused(label: int) -> None:
    with pytest.raises(InputError):
        placed(InputCanary(np.ones(2, np.float32), label))


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_gradient_canary_is_plus_c_in_world_0(adjacency: Adjacency) -> None:
    """And its negative in world 1 under `substitute`, or else nothing."""
    dpsgd = replace(POISSON, adjacency=adjacency, max_grad_norm=2.5)
    placement = placement_of(
        GradientCanary(3), records=RECORDS, dpsgd=dpsgd, num_parameters=NUM_PARAMETERS
    )
    assert placement.gradient is not None
    assert placement.gradient.tolist() == [0.0, 0.0, 0.0, 2.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    other = -1.0 if adjacency is Adjacency.SUBSTITUTE else 0.0
    assert placement.signs_of(np.array([0, 1, 7, 10])).tolist() == [1.0, other, other, 1.0]
    assert (placement.rows_of(np.arange(4)) == -1).all()
