"""Ensembles: division into blocks and threads, divergence, the rest of the process, and memory."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from one_record_at_a_time import MODELS, Training
from torch import Tensor, nn

from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records
from dpcanary.training import runs as runs_module
from dpcanary.training.block import Block
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.gradient_path import Batch
from dpcanary.training.gradients.linear import LinearPath
from dpcanary.training.plan import Plan
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.settings import Initialisation, Optimizer, Sampling

N, NUM_FEATURES, NUM_STEPS, SEED, TARGET = 24, 6, 9, 11, 4
SETTINGS = DPSGD(
    noise_multiplier=0.7,
    max_grad_norm=1.3,
    learning_rate=0.8,
    record_steps=(1, 4, NUM_STEPS),
    sample_rate=0.3,
)
LINEAR = nn.Linear(NUM_FEATURES, 3)
PERCEPTRON = nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.Tanh(), nn.Linear(5, 3))


def some_records(num_features: int = NUM_FEATURES) -> tuple[Records, Records]:
    """Private and test records of three classes that a linear head can mostly separate."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, N + 40)
    features = rng.normal(size=(3, num_features))[labels]
    features = (features + rng.normal(size=features.shape)).astype(np.float32)
    return Records(features[:N], labels[:N]), Records(features[N:], labels[N:])


RECORDS, TEST_RECORDS = some_records()
CRAFTED = np.linspace(-2.0, 2.0, NUM_FEATURES, dtype=np.float32)
CANARIES: dict[str, Canary] = {
    "input": InputCanary(CRAFTED, int(RECORDS.labels[TARGET] + 1) % 3, TARGET),
    "coordinate": GradientCanary(coordinate=9, target=TARGET),
    "direction": DirectionCanary(np.full(21, 0.25, np.float32), target=TARGET),
}
SLOTS = [  # their targets are in no order
    replace(CANARIES["input"], target=target, features=factor * CRAFTED)
    for target, factor in ((9, 1.0), (2, -1.0), (17, 0.5))
]


def train(runs: Any, **changes: Any) -> EnsembleResult:
    arguments = {
        "module": LINEAR,
        "records": RECORDS,
        "test_records": TEST_RECORDS,
        "canary": CANARIES["input"],
        "dpsgd": SETTINGS,
        "seed": SEED,
        "initialisation": Initialisation.ZEROS,
        "keep_parameters": True,
    }
    return train_ensemble(runs=runs, **(arguments | changes))


def assert_same_bits(
    result: EnsembleResult, whole: EnsembleResult, order: Any = slice(None)
) -> None:
    for name in ("runs", "worlds", "observations", "test_accuracy", "parameters"):
        assert getattr(result, name).tobytes() == getattr(whole, name)[order].tobytes()


def assert_close(result: EnsembleResult, whole: EnsembleResult, order: Sequence[int]) -> None:
    """Equal up to rounding, relative to the largest number."""
    assert np.array_equal(result.runs, whole.runs[order])
    assert np.array_equal(result.worlds, whole.worlds[order])
    for name in ("observations", "parameters"):
        expected = getattr(whole, name)
        atol = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(getattr(result, name), expected[order], rtol=0, atol=atol)
    # Rounding may change the prediction for a record on a decision boundary, hardly for two.
    difference = np.abs(result.test_accuracy - whole.test_accuracy[order])
    assert difference.max() <= 1.01 / len(TEST_RECORDS)
    assert np.mean(difference > 0) < 0.02


# --- blocks and threads ------------------------------------------------------------------------


LISTS = replace(SETTINGS, max_grad_norm=0.4)
FIXED = replace(LISTS, sample_rate=1.0, sampling=Sampling.FIXED, batch_size=7, canary_period=2)
WAYS = {
    "linear": {"canary": SLOTS},
    "Adam": {
        "module": PERCEPTRON,
        "initialisation": Initialisation.FIXED,
        "dpsgd": replace(FIXED, optimizer=Optimizer.ADAM, learning_rate=0.05),
    },
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_way
def test_another_division_into_blocks_changes_rounding_alone(way: dict) -> None:
    """The same blocks give the same bits."""
    everyone = list(range(80))
    whole = train(everyone, **way)
    assert len(whole.observations) == len(whole.test_accuracy) == 80
    for runs_at_once in (1, 7):
        assert_close(train(everyone, runs_at_once=runs_at_once, **way), whole, everyone)
    assert_close(train(everyone[50:], **way), whole, everyone[50:])
    backwards = everyone[::-1]
    in_threads = train(backwards, runs_at_once=9, num_threads=3, **way)
    assert_close(in_threads, whole, backwards)
    assert_same_bits(in_threads, train(np.array(backwards), runs_at_once=9, **way))
    # Neighbours differ, so the comparisons above are meaningful.
    spread = np.abs(np.diff(whole.observations[:, -1], axis=0))
    assert np.median(spread) > 0.005 * np.abs(whole.observations).max()


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize(
    ("name", "dpsgd"),
    [
        ("tanh", FIXED),
        ("relu", LISTS),
        ("one of everything", replace(LISTS, sample_rate=0.9)),  # weights
        ("uneven", FIXED),
    ],
)
def test_compiled_passes_give_a_run_the_same_bits_in_any_block_thread_and_order(
    name: str, dpsgd: DPSGD
) -> None:
    features = MODELS[name].features(40).numpy()
    everyone = Records(features, np.arange(40) % 3)
    way = {
        "module": MODELS[name].module(3),
        "records": everyone[:N],
        "test_records": everyone[N:],
        "canary": InputCanary(-features[TARGET], 1, TARGET),
        "dpsgd": dpsgd,
        "initialisation": Initialisation.PER_RUN,
    }
    whole = train(range(12), **way)
    assert len(np.unique(whole.parameters, axis=0)) == 12
    assert_same_bits(train(range(12), runs_at_once=5, num_threads=2, **way), whole)
    assert_same_bits(train(range(11, -1, -1), runs_at_once=3, **way), whole, slice(None, None, -1))
    assert_same_bits(train([7, 10], runs_at_once=1, **way), whole, [7, 10])


def test_every_run_index_has_draws_of_its_own() -> None:
    runs = [0, 1, 2**31, 2**31 + 1, 2**32 - 3, 2**32 - 2]
    result = train(runs).observations[:, -1].reshape(len(runs), -1)
    assert len(np.unique(result, axis=0)) == len(runs)


def test_parameters_are_kept_only_if_asked_for() -> None:
    without = train(range(3), keep_parameters=False, test_records=None)
    assert without.parameters is None
    assert np.isnan(without.test_accuracy).all()  # without test records
    assert without.observations.tobytes() == train(range(3)).observations.tobytes()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_progress_counts_model_steps(num_threads: int) -> None:
    done: list[int] = []
    train(range(10), runs_at_once=4, num_threads=num_threads, on_progress=done.append)
    assert sum(done) == 10 * NUM_STEPS
    assert sorted(set(done)) == [2, 4]


# --- divergence --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CANARIES)
def test_divergence_names_the_first_run_and_its_step(kind: str) -> None:
    """Without noise, a run diverges at its first batch that is not empty."""
    dpsgd = replace(
        SETTINGS,
        noise_multiplier=0.0,
        max_grad_norm=1e3,
        learning_rate=3e38,
        sample_rate=0.02,
        record_steps=(1, 4, 9, 40),
    )
    records, runs = replace(RECORDS, features=50.0 * RECORDS.features), range(20, 60)
    known = {"records": records, "dpsgd": dpsgd, "seed": SEED}
    training = Training(module=LINEAR, canaries=[CANARIES[kind]], **known)
    first = {
        run: next((step + 1 for step in range(40) if training.batch(run, step)), 41) for run in runs
    }
    assert len({*first.values()}) > 3
    for these in (runs, [run for run in runs if first[run] > 1]):
        seen_at = next(t for t in dpsgd.record_steps if any(first[run] <= t for run in these))
        culprit = next(run for run in these if first[run] <= seen_at)
        message = rf"^run {culprit} diverged at step {first[culprit]}: its parameters are not"
        with pytest.raises(InputError, match=message + r" finite; lower learning_rate \(3e\+38\)"):
            train(these, canary=CANARIES[kind], **known)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [("linear 6", "adam"), ("linear 33", "momentum"), ("tanh", "sgd"), ("relu", "momentum")],
)
def test_divergence_names_the_rate_of_the_step_that_broke_it(name: str, optimizer: str) -> None:
    """Steps 1 to 4 are harmless. The rate of step 5 exceeds the range of float32."""
    features = MODELS[name].features(N).numpy()
    records, canary = Records(features, RECORDS.labels), InputCanary(-features[TARGET], 1, TARGET)
    schedule = {"learning_rate": lambda step: 1e39 if step >= 4 else 0.1}
    dpsgd = replace(SETTINGS, optimizer=optimizer, **schedule)
    known = {"records": records, "test_records": None, "module": MODELS[name].module(3)}
    with pytest.raises(InputError, match=r"^run 8 diverged at step 5: .* learning_rate \(1e\+39\)"):
        train([8, 9], canary=canary, dpsgd=dpsgd, **known)


@pytest.mark.parametrize(
    ("rate", "test_records"), [(0.3, None), (1.0, TEST_RECORDS[:0])], ids=["none", "empty"]
)
def test_records_without_a_gradient_and_no_test_records(rate, test_records):
    """At a margin of 1e4 the softmax residual is exactly 0, so the gradient has norm 0."""
    records = replace(RECORDS, features=1e4 * RECORDS.features)
    dpsgd = replace(SETTINGS, noise_multiplier=0.0, sample_rate=rate, record_steps=(30,))
    result = train(range(4), records=records, dpsgd=dpsgd, test_records=test_records)
    assert np.isfinite(result.observations).all()
    assert np.isnan(result.test_accuracy).all()


# --- the rest of the process -------------------------------------------------------------------


@every_way
def test_global_random_states_and_threads_are_left_alone_and_do_not_matter(way: dict) -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    kind, key, *rest = np.random.get_state()  # noqa: NPY002
    first = train(range(12), runs_at_once=5, num_threads=3, **way)
    kind_after, key_after, *rest_after = np.random.get_state()  # noqa: NPY002
    assert torch.equal(before, torch.get_rng_state())
    assert (kind, rest) == (kind_after, rest_after)
    assert np.array_equal(key, key_after)
    assert torch.get_num_threads() == threads
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    seen: set[int] = set()
    try:
        torch.set_num_threads(2)
        second = train(
            range(12),
            runs_at_once=5,
            num_threads=2,
            on_progress=lambda done: seen.add(torch.get_num_threads()),
            **way,
        )
        assert torch.get_num_threads() == 2
        with pytest.raises(InputError, match="coordinate is 1000000, and there are 21 parameters"):
            train([0, 1], canary=GradientCanary(10**6, TARGET))
        diverging = replace(SETTINGS, learning_rate=1e39)
        with pytest.raises(InputError, match=r"^run 0 diverged"):
            train([0, 1], module=PERCEPTRON, dpsgd=diverging, canary=CANARIES["coordinate"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert_same_bits(first, second)
    assert seen == {1}  # each worker uses one thread


def test_initial_parameters_are_drawn_by_one_thread_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They use PyTorch's one generator, also when a run that diverged is trained again."""
    drawing, most, lock = 0, 0, threading.Lock()
    draw = nn.Linear.reset_parameters

    def slowly(layer: nn.Linear) -> None:
        nonlocal drawing, most
        with lock:
            drawing += 1
            most = max(most, drawing)
        time.sleep(0.02)
        with lock:
            drawing -= 1
        draw(layer)

    monkeypatch.setattr(nn.Linear, "reset_parameters", slowly)
    dpsgd = replace(SETTINGS, learning_rate=1e39)
    per_run = {"module": PERCEPTRON, "initialisation": Initialisation.PER_RUN, "dpsgd": dpsgd}
    with pytest.raises(InputError, match=r"diverged at step 1:"):
        train(range(8), runs_at_once=1, num_threads=2, **per_run)
    assert most == 1


# --- memory ------------------------------------------------------------------------------------

FAILURE = MemoryError()


def fail_above(
    monkeypatch: pytest.MonkeyPatch, most: int, failure: Exception, *, after: int = 0
) -> None:
    """Makes gradient sums of more than `most` runs fail, after a number of steps."""
    sums, done = LinearPath.clipped_sums, {}

    def scarce(
        self: LinearPath, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        key = (threading.get_ident(), parameters.data_ptr(), len(parameters))
        done[key] = done.get(key, 0) + 1
        if len(parameters) > most and done[key] > after:
            raise failure
        sums(self, parameters, batch, max_grad_norm, out)

    monkeypatch.setattr(LinearPath, "clipped_sums", scarce)


@pytest.mark.parametrize(
    ("most", "num_threads", "failure"),
    [
        (3, 1, torch.OutOfMemoryError("CUDA out of memory")),
        (1, 3, FAILURE),
        (3, 3, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")),
        (1, 1, RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    ],
)
def test_runs_that_do_not_fit_are_halved(
    *,
    most: int,
    num_threads: int,
    failure: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = range(5, 24)
    expected = train(runs, canary=CANARIES["coordinate"])
    fail_above(monkeypatch, most, failure, after=2)
    done: list[int] = []
    with caplog.at_level(logging.WARNING, "dpcanary"):
        result = train(
            runs,
            canary=CANARIES["coordinate"],
            runs_at_once=12,
            num_threads=num_threads,
            on_progress=done.append,
        )
    assert_close(result, expected, range(len(runs)))
    # Each block subtracts its failed steps, so the sum never falls below 0.
    assert sum(done) == len(runs) * NUM_STEPS
    assert min(done) < 0
    assert (np.cumsum(done) >= 0).all()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "out of memory with 12 runs at once: trying 6" in warnings
    assert "out of memory with 6 runs at once: trying 3" in warnings
    assert ("out of memory with 3 runs at once: trying 1" in warnings) == (most == 1)


def test_models_that_fit_only_in_part_are_halved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory runs out before the first step, or after the last."""
    expected = train(range(8))

    class Scarce(Block):
        def __init__(self, plan: Plan, runs: Sequence[int]) -> None:
            if len(runs) > 4:
                raise FAILURE
            super().__init__(plan, runs)

    monkeypatch.setattr(runs_module, "Block", Scarce)
    accuracy_of, done = runs_module.accuracy_of, []

    def scarce(path: object, parameters: Tensor, records: Records) -> object:
        if len(parameters) > 2:
            raise FAILURE
        return accuracy_of(path, parameters, records)

    monkeypatch.setattr(runs_module, "accuracy_of", scarce)
    result = train(range(8), runs_at_once=8, on_progress=done.append)
    assert_close(result, expected, range(8))
    assert sum(done) == 8 * NUM_STEPS
    assert done.count(-4 * NUM_STEPS) == 2


def test_one_run_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_above(monkeypatch, 0, FAILURE)
    done: list[int] = []
    with pytest.raises(InputError, match=r"^one run alone does not fit in the memory of cpu: use"):
        train(range(5), on_progress=done.append)
    assert sum(done) == 0


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_above(monkeypatch, 3, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(range(5))


def test_blocks_fit_are_fast_and_share_the_work() -> None:
    def fitting(**changed: int | None) -> int:
        usual = {"bytes_per_run": 100, "free": 10_000, "num_workers": 1, "num_runs": 1_000}
        return runs_module.runs_that_fit(**{**usual, "together": None, **changed})

    assert fitting() == 50  # half of the free memory
    assert fitting(num_workers=4) == 12  # each worker has a quarter of that
    assert fitting(together=16) == 16
    assert fitting(num_runs=7) == 7
    assert fitting(num_runs=7, num_workers=2) == 4  # rounded up: two blocks instead of three
    assert fitting(bytes_per_run=10**6) == 1
    assert fitting(free=0) == fitting(free=-(10**9)) == 1
    assert fitting(num_runs=0) == 1


def test_blocks_are_as_large_as_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run needs sums and parameters; Adam and observed lengths need two more tensors each."""
    sizes: list[int] = []

    class Counted(Block):
        def __init__(self, plan: Plan, runs: Sequence[int]) -> None:
            sizes.append(len(runs))
            super().__init__(plan, runs)

    monkeypatch.setattr(runs_module, "Block", Counted)
    adam = replace(SETTINGS, optimizer=Optimizer.ADAM)
    cases = ((SETTINGS, "input", 2), (adam, "input", 4), (SETTINGS, "direction", 4))
    for dpsgd, kind, tensors in cases:
        least, sizes[:] = 4 * 48 * tensors, []  # a tensor has 48 numbers, padded
        monkeypatch.setattr(runs_module, "free_bytes", lambda device, least=least: 2 * 10 * least)
        train(range(20), dpsgd=dpsgd, canary=CANARIES[kind])
        assert 4 <= max(sizes) <= 10
        assert sum(sizes) == 20


@pytest.mark.parametrize(
    ("limit", "used", "cached", "expected"),
    [
        ("max", 5, 0, 1_000),
        ("700", 300, 0, 400),
        ("700", 600, 500, 600),  # inactive pages of files count as free
        ("200", 300, 0, 0),
        ("5000", 300, 0, 1_000),
    ],
)
@pytest.mark.parametrize("limited", ["slurm/job_7/step_0", "slurm/job_7", ""])
def test_free_memory_is_within_the_limits_of_all_control_groups(
    limited: str,
    limit: str,
    used: int,
    cached: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Free:
        available = 1_000

    membership = tmp_path / "membership"
    monkeypatch.setattr(psutil, "virtual_memory", Free)
    monkeypatch.setattr(runs_module, "_CGROUP", tmp_path)
    monkeypatch.setattr(runs_module, "_MEMBERSHIP", membership)
    assert runs_module.free_bytes(torch.device("cpu")) == 1_000  # without control groups
    membership.write_text("4:memory:/old\n0::/slurm/job_7/step_0\n")
    assert runs_module.free_bytes(torch.device("cpu")) == 1_000  # no group counts memory
    folder = tmp_path / limited
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 3\ninactive_file {cached}\n")
    assert runs_module.free_bytes(torch.device("cpu")) == expected
