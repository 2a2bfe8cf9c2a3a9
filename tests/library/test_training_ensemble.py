"""Ensembles: blocks and threads, divergence, the rest of the process, memory, and arguments."""

import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from by_hand import overlapping_classes
from one_record_at_a_time import MODELS, Training, labels_for
from opacus import GradSampleModule
from torch import nn

from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training import runs as runs_module
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.linear import LinearPath
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.training_settings import Initialisation, Optimizer, Sampling

N, NUM_FEATURES, NUM_STEPS, SEED, TARGET = 24, 6, 9, 11, 4
SETTINGS = DPSGD(
    noise_multiplier=0.7, max_grad_norm=1.3, learning_rate=0.8, record_steps=(1, 4, NUM_STEPS),
    sample_rate=0.3,
)  # fmt: skip
LINEAR = nn.Linear(NUM_FEATURES, 3)
PERCEPTRON = nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.Tanh(), nn.Linear(5, 3))


def some_records(num_features: int = NUM_FEATURES) -> tuple[Records, Records]:
    """Private and test records of three classes that a linear head can mostly separate."""
    records = overlapping_classes(N + 40, num_features, 3)
    return records[:N], records[N:]


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
        "module": LINEAR, "records": RECORDS, "test_records": TEST_RECORDS,
        "canary": CANARIES["input"], "dpsgd": SETTINGS, "seed": SEED,
        "initialisation": Initialisation.ZEROS, "keep_parameters": True,
    }  # fmt: skip
    return train_ensemble(runs=runs, **(arguments | changes))


def assert_same_bits(result: EnsembleResult, whole: EnsembleResult, order=slice(None)) -> None:
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


def assert_same_models(result: EnsembleResult, whole: EnsembleResult, order: Sequence[int]) -> None:
    """Equal bits of models, and logits by PyTorch's sigmoid that are equal up to its rounding.

    Without AVX-512, PyTorch rounds the sigmoid of an array's last numbers differently.
    """
    logits = torch.linspace(-4, 4, 24)
    rounds_alike = torch.equal(torch.sigmoid(logits).flip(0), torch.sigmoid(logits.flip(0)))
    if rounds_alike:
        assert_same_bits(result, whole, order)
        return
    assert_close(result, whole, order)
    for name in ("runs", "worlds", "parameters"):
        assert getattr(result, name).tobytes() == getattr(whole, name)[order].tobytes()


LISTS = replace(SETTINGS, max_grad_norm=0.4)
WEIGHTS = replace(LISTS, sample_rate=0.9)
FIXED = replace(LISTS, sample_rate=1.0, sampling=Sampling.FIXED, batch_size=7, canary_period=2)
ADAM = replace(FIXED, optimizer=Optimizer.ADAM, learning_rate=0.05)
OWN_STARTS = {"module": PERCEPTRON, "initialisation": Initialisation.PER_RUN, "dpsgd": ADAM}


def way_of(name: str, dpsgd: DPSGD) -> dict[str, Any]:
    everyone = Records(MODELS[name].features(40).numpy(), labels_for(3, 40))
    return {
        "module": MODELS[name].module(3), "records": everyone[:N], "test_records": everyone[N:],
        "canary": InputCanary(-everyone.features[TARGET], 1, TARGET), "dpsgd": dpsgd,
        "initialisation": Initialisation.PER_RUN,
    }  # fmt: skip


@pytest.mark.usefixtures("compiled_kernels")
@pytest.mark.parametrize(("way", "count", "assert_alike"), [
    ({"canary": SLOTS}, 80, assert_close),
    (OWN_STARTS, 80, assert_close),
    (way_of("tanh", FIXED), 12, assert_same_bits),
    (way_of("relu", LISTS), 12, assert_same_bits),
    (way_of("one of everything", WEIGHTS), 12, assert_same_models),
    (way_of("uneven", FIXED), 12, assert_same_bits),
    (way_of("norms", FIXED), 12, assert_same_bits),
])  # fmt: skip
def test_another_division_into_blocks_changes_rounding_alone(way, count, assert_alike):
    """And not even that in compiled passes and modules. The same blocks give the same bits."""
    everyone, backwards = list(range(count)), list(range(count))[::-1]
    whole = train(everyone, **way)
    assert len(whole.observations) == len(whole.test_accuracy) == count
    for runs_at_once in (1, 7):
        assert_alike(train(everyone, runs_at_once=runs_at_once, **way), whole, everyone)
    assert_alike(train(everyone[-5:], **way), whole, everyone[-5:])
    in_threads = train(backwards, runs_at_once=9, num_threads=3, **way)
    assert_alike(in_threads, whole, backwards)
    assert_same_bits(in_threads, train(np.array(backwards), runs_at_once=9, **way))
    # Neighbours differ, so the comparisons above are meaningful.
    spread = np.abs(np.diff(whole.observations[:, -1], axis=0))
    assert np.median(spread) > 0.005 * np.abs(whole.observations).max()


@pytest.mark.parametrize(("num_threads", "test_records"), [(1, None), (3, TEST_RECORDS[:0])])
def test_progress_counts_model_steps(num_threads: int, test_records: Records | None) -> None:
    done: list[int] = []
    options = {"num_threads": num_threads, "on_progress": done.append, "runs_at_once": 4}
    result = train(range(10), test_records=test_records, **options)
    assert sum(done) == 10 * NUM_STEPS
    assert {*done} == {2, 4}
    assert np.isnan(result.test_accuracy).all()


@pytest.mark.parametrize("kind", CANARIES)
def test_divergence_names_the_first_run_its_step_and_the_rate_of_that_step(kind):
    """Without noise, a run diverges at its first batch that is not empty."""
    dpsgd = replace(
        SETTINGS, noise_multiplier=0.0, max_grad_norm=1e3, sample_rate=0.02,
        learning_rate=lambda step: (3 - 0.01 * step) * 1e38, record_steps=(1, 4, 9, 40),
    )  # fmt: skip
    records, runs = replace(RECORDS, features=50.0 * RECORDS.features), range(20, 60)
    options = {"records": records, "dpsgd": dpsgd, "seed": SEED}
    training = Training(module=LINEAR, canaries=[CANARIES[kind]], **options)
    first = {
        run: next((step + 1 for step in range(40) if training.batch(run, step)), 41) for run in runs
    }
    assert len({*first.values()}) > 3
    for these in (runs, [run for run in runs if first[run] > 1]):
        seen_at = next(t for t in dpsgd.record_steps if any(first[run] <= t for run in these))
        culprit = next(run for run in these if first[run] <= seen_at)
        rate = dpsgd.learning_rate_at(first[culprit] - 1)
        message = (
            f"run {culprit} diverged at step {first[culprit]}: its parameters are not finite; lower"
            f" learning_rate ({rate:g})"
        )
        with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
            train(these, canary=CANARIES[kind], **options)


def test_global_random_states_and_threads_are_left_alone_and_do_not_matter() -> None:
    seen: set[int] = set()  # numbers of threads that each worker uses
    options = {"on_progress": lambda done: seen.add(torch.get_num_threads()), **OWN_STARTS}
    threads, results = torch.get_num_threads(), []
    try:
        for seed, num_threads in ((4, 3), (5, 2)):
            torch.set_num_threads(2)
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            results.append(train(range(12), runs_at_once=5, num_threads=num_threads, **options))
            with pytest.raises(InputError, match=r"^run 0 diverged"):
                train([0, 1], **OWN_STARTS | {"dpsgd": replace(SETTINGS, learning_rate=1e39)})
            assert torch.get_num_threads() == 2
            drawn = torch.rand(()), np.random.random()  # noqa: NPY002
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            assert drawn == (torch.rand(()), np.random.random())  # noqa: NPY002
    finally:
        torch.set_num_threads(threads)
    assert_same_bits(*results)
    assert seen == {1}


def test_initial_parameters_are_drawn_by_one_thread_at_a_time(monkeypatch):
    """They use PyTorch's one generator, also when a run that diverged is trained again."""
    most, drawing, draw = [], set(), nn.Linear.reset_parameters

    def slowly(layer: nn.Linear) -> None:
        drawing.add(layer)
        most.append(len(drawing))
        time.sleep(0.02)
        drawing.remove(layer)
        draw(layer)

    monkeypatch.setattr(nn.Linear, "reset_parameters", slowly)
    diverging = OWN_STARTS | {"dpsgd": replace(SETTINGS, learning_rate=1e39)}
    with pytest.raises(InputError, match=r"diverged at step 1:"):
        train(range(8), runs_at_once=1, num_threads=2, **diverging)
    assert {*most} == {1}


FAILURE = MemoryError()


def fail_above(
    monkeypatch, owner: object, name: str, most: int, failure: Exception, *, after: int = 0
) -> None:
    """Makes a function, whose second argument is of some runs, fail if these are too many."""
    function, done = getattr(owner, name), Counter()

    def scarce(first: object, of_runs: Any, *others: Any) -> object:
        key = (threading.get_ident(), id(of_runs), len(of_runs))
        done[key] += 1
        if len(of_runs) > most and done[key] > after:
            raise failure
        return function(first, of_runs, *others)

    monkeypatch.setattr(owner, name, scarce)


@pytest.mark.parametrize(("owner", "name", "most", "num_threads", "failure"), [
    (LinearPath, "clipped_sums", 3, 1, torch.OutOfMemoryError("CUDA out of memory")),
    (LinearPath, "clipped_sums", 1, 3, FAILURE),
    (LinearPath, "clipped_sums", 3, 3,
     RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")),
    (runs_module, "Block", 1, 1,
     RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")),
    (runs_module, "measure_of", 3, 1, FAILURE),
])  # fmt: skip
def test_runs_that_do_not_fit_are_halved(
    owner, name, most, num_threads, failure, monkeypatch, caplog
):
    """If memory runs out before the first step, after some, or after the last."""
    runs = range(5, 24)
    expected = train(runs, canary=CANARIES["coordinate"])
    fail_above(monkeypatch, owner, name, most, failure, after=2 * (owner is LinearPath))
    done: list[int] = []
    options = {"runs_at_once": 12, "num_threads": num_threads, "on_progress": done.append}
    with caplog.at_level(logging.WARNING, "dpcanary"):
        result = train(runs, canary=CANARIES["coordinate"], **options)
    assert_close(result, expected, range(len(runs)))
    # Each block subtracts its failed steps, so the sum never falls below 0.
    assert sum(done) == len(runs) * NUM_STEPS
    assert (min(done) < 0) == (name != "Block")
    assert (np.cumsum(done) >= 0).all()
    warnings = {record.message for record in caplog.records if record.levelno == logging.WARNING}
    for count in (12, 6, 3):
        message = f"out of memory with {count} runs at once: trying {count // 2}"
        assert (message in warnings) == (count > most)


def test_one_run_that_does_not_fit_is_an_error_and_others_stay_what_they_are(monkeypatch):
    done: list[int] = []
    with monkeypatch.context() as patch:
        fail_above(patch, LinearPath, "clipped_sums", 0, FAILURE)
        message = r"^one run alone does not fit in the memory of cpu: use"
        with pytest.raises(InputError, match=message):
            train(range(5), on_progress=done.append)
    assert sum(done) == 0
    fail_above(monkeypatch, LinearPath, "clipped_sums", 3, RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(range(5))


@pytest.mark.parametrize(("changed", "most"), [
    ({}, 50),  # half of the free memory
    ({"num_workers": 4}, 12),  # each worker has a quarter of that
    ({"together": 16}, 16),
    ({"num_runs": 7}, 7),
    ({"num_runs": 7, "num_workers": 2}, 4),  # rounded up: two blocks instead of three
    ({"bytes_per_run": 10**6}, 1), ({"num_runs": 0}, 1), ({"free": -(10**9)}, 1),
])  # fmt: skip
def test_blocks_fit_are_fast_and_share_the_work(changed: dict[str, int], most: int) -> None:
    usual = {"bytes_per_run": 100, "free": 10_000, "num_workers": 1, "num_runs": 1_000}
    assert runs_module.runs_that_fit(**{**usual, "together": None, **changed}) == most


@pytest.mark.parametrize(("dpsgd", "kind", "tensors"), [
    (SETTINGS, "input", 2), (ADAM, "input", 4), (SETTINGS, "direction", 4),
])  # fmt: skip
def test_blocks_are_as_large_as_fits(dpsgd, kind, tensors, monkeypatch, caplog):
    """A run needs sums and parameters; Adam and observed lengths need two more tensors each."""
    least = 4 * 48 * tensors  # a tensor has 48 numbers, padded
    monkeypatch.setattr(runs_module, "free_bytes", lambda device: 2 * 10 * least)
    with caplog.at_level(logging.INFO, "dpcanary"):
        train(range(20), dpsgd=dpsgd, canary=CANARIES[kind])
    path, runs_at_once, device = caplog.records[0].args
    assert (path, str(device)) == ("linear", "cpu")
    assert 4 <= runs_at_once <= 10


def test_free_memory_is_within_the_limits_of_all_control_groups(tmp_path, monkeypatch):
    membership, device = tmp_path / "membership", torch.device("cpu")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1_000))
    monkeypatch.setattr(runs_module, "_CGROUP", tmp_path)
    monkeypatch.setattr(runs_module, "_MEMBERSHIP", membership)
    assert runs_module.free_bytes(device) == 1_000  # without control groups
    membership.write_text("4:memory:/old\n0::/slurm/job_7/step_0\n")
    folder = tmp_path / "slurm/job_7/step_0"
    folder.mkdir(parents=True)
    assert runs_module.free_bytes(device) == 1_000  # no group counts memory
    for limited in (folder, *folder.parents[:3]):
        for limit, used, cached, expected in (
            ("max", 5, 0, 1_000), ("700", 300, 0, 400),
            ("700", 600, 500, 600),  # inactive pages of files count as free
            ("200", 300, 0, 0), ("5000", 300, 0, 1_000),
        ):  # fmt: skip
            (limited / "memory.max").write_text(f"{limit}\n")
            (limited / "memory.current").write_text(f"{used}\n")
            (limited / "memory.stat").write_text(f"anon 3\ninactive_file {cached}\n")
            assert runs_module.free_bytes(device) == expected


FEATURES, LABELS = RECORDS.features, RECORDS.labels
IMAGES = Records(np.random.default_rng(1).standard_normal((N, 2, 6, 6), np.float32), LABELS)
NUMBERS = [  # what a setting must be, and values that are refused
    ("max_grad_norm", "a finite number above 0", 0, math.nan),
    ("learning_rate", "a finite number above 0", -0.1, "0.1"),
    ("sample_rate", "a finite number above 0 and at most 1", 0.0, 1.5),
    ("noise_multiplier", "a finite number of at least 0", -1.0, math.nan),
    ("momentum", "a finite number of at least 0 and below 1", 1.0, -0.1),
]
BY_EPOCH = {"sample_rate": 1.0, "sampling": "fixed", "batch_size": 5, "canary_period": 3}


@pytest.mark.parametrize(("changes", "message"), [
    *(({name: "adm"}, f"^unknown {name} 'adm': ")
      for name in ("optimizer", "adjacency", "loss", "sampling")),
    *(({name: value}, f"^{name} is {value!r}; it must be {must_be}$")
      for name, must_be, *values in NUMBERS for value in values),
    *(({"record_steps": steps}, rf"^record_steps is {step}; .* whole number of at least 1$")
      for steps, step in (((0,), 0), ((1.5,), 1.5), (1.5, 1.5))),
    *(({"record_steps": steps}, "^record_steps must ascend from 1; they are ")
      for steps in ((3, 1), (2, 2), ())),
    *(({name: 10}, r"^sampling poisson has no batch_size or canary_period: .* have no fixed size;"
       r" give sample_rate = batch size / number of records, or sampling='fixed'$")
      for name in ("batch_size", "canary_period")),
    *((BY_EPOCH | {name: None}, "^sampling fixed needs batch_size and canary_period$")
      for name in ("batch_size", "canary_period")),
    *((BY_EPOCH | {name: 0}, f"^{name} is 0; it must be a whole number of at")
      for name in ("batch_size", "canary_period")),
    (BY_EPOCH | {"sample_rate": 0.5}, "^sampling fixed has no sample_rate; leave it at 1$"),
])  # fmt: skip
def test_a_mechanism_s_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(SETTINGS, **changes)


COUNTED_FROM_1 = Records(FEATURES, LABELS + 1)
BROKEN = Records(np.where(np.arange(6) == 2, np.nan, FEATURES), LABELS)
ONE_OUTPUT = "^a model of one output needs two classes and loss logistic, or loss squared_error$"
BINARY = replace(SETTINGS, loss="binary_cross_entropy")


@pytest.mark.parametrize(("changes", "message"), [
    *(({name: "x"}, f"^unknown {name.replace('_', ' ')} 'x': ")
      for name in ("initialisation", "initial_weights", "device")),
    ({"observe": "logit"}, r"^unknown observation 'logit': did you mean 'logits'\?$"),
    ({"observe": "change"}, r"^observe='change' is not for a InputCanary$"),
    ({"worlds": "coin"}, r"^unknown world assignment 'coin': did you mean 'coins'\?$"),
    ({"device": "mps"}, r"^device 'mps' is not supported: give cpu, cuda or auto$"),
    *(({"seed": seed}, f"^seed is {seed!r}; .* whole number of at least 0$")
      for seed in (-1, 0.5, "0")),
    *(({name: 0}, f"^{name} is 0; .* whole number of at least 1$")
      for name in ("num_threads", "runs_at_once")),
    ({"runs": [0, 1, 5, 2, 5]}, r"^run 5 is given twice: it would be the same model again$"),
    *(({"runs": runs}, rf"^all runs are in world {runs[0] % 2}, .* in world 1; give runs of both$")
      for runs in (range(0, 8, 2), [3, 1])),
    *(({"runs": runs}, r"^runs must be indices from 0 to 4294967294, and at least one$")
      for runs in (0, [-1, 0], [0, 2**32 - 1])),
    ({"runs": 1.5}, r"^runs must be a number of runs, or their indices; not 1\.5$"),
    ({"module": nn.Linear}, r"^module must be a Module, not type "),
    ({"records": FEATURES}, r"^records must be a Records, not ndarray "),
    ({"dpsgd": 1.0}, r"^dpsgd must be a DPSGD, not float 1\.0$"),
    ({"canary": 3}, r"^canary must be a \w+, not int 3$"),
    ({"canary": [CANARIES["input"], CANARIES["coordinate"]]}, "must be of one type; these are"),
    # With an additional output, no other check would notice.
    ({"module": nn.Linear(6, 4), "records": COUNTED_FROM_1, "test_records": None},
     r"^no record has label 0; labels are counted from 0: subtract 1$"),
    *(({name: BROKEN}, r"^records: a feature is NaN or infinite; repair or drop such records$")
      for name in ("records", "test_records")),
    ({"test_records": IMAGES}, r"^test_records: features of shape \(2, 6, 6\), .* have \(6,\)"),
    ({"records": Records(np.array(["a", "b"]), [0, 1])}, "features are texts; encode them"),
    ({"records": RECORDS[:0]}, r"^there are no records$"),
    ({"module": nn.Linear(6, 1), "records": Records(FEATURES, LABELS % 2)}, ONE_OUTPUT),
    ({"module": nn.Linear(6, 1), "dpsgd": BINARY}, ONE_OUTPUT),
    ({"module": nn.Linear(6, 2)}, "has 2 outputs, the records and canaries 3 classes"),
    ({"dpsgd": replace(SETTINGS, **BY_EPOCH | {"canary_period": 10})},
     "^canary_period 10 is more than the 9 steps, so no canary is inserted"),
    ({"dpsgd": replace(SETTINGS, max_grad_norm=math.inf)},
     r"^noise_multiplier 0\.7 is .* which is infinite: give a finite max_grad_norm, or noise_"),
    ({"canary": CANARIES["coordinate"],
      "dpsgd": replace(SETTINGS, noise_multiplier=0.0, max_grad_norm=math.inf)},
     "its length is max_grad_norm, which is infinite: give a finite one$"),
    ({"canary": InputCanary(FEATURES[0], 3, 4)}, "has 3 outputs, the .* canaries 4 classes"),
    *(({"dpsgd": replace(SETTINGS, learning_rate=[0.1, 0.0, rate].__getitem__)},
       rf"^learning_rate\(2\) is {rate}; it must be a finite number of at least 0$")
      for rate in (-0.1, math.nan)),
])  # fmt: skip
def test_arguments_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        train(**({"runs": 8} | changes))


@pytest.mark.parametrize(
    ("canary", "observe"), [("coordinate", "change"), ("direction", "change_and_length")]
)
def test_defaults_are_the_documented_ones(canary: str, observe: str) -> None:
    dpsgd = replace(SETTINGS, record_steps=NUM_STEPS)  # the last step alone
    setup = {"module": LINEAR, "records": RECORDS, "canary": CANARIES[canary], "runs": 6, "seed": 5}
    result = train_ensemble(**setup, dpsgd=dpsgd)
    setup |= {"initialisation": "fixed", "worlds": "alternate", "observe": observe}
    spelled_out = train_ensemble(**setup, dpsgd=SETTINGS, device="cpu", rotate=True)
    assert result.observations.tobytes() == spelled_out.observations[:, -1:].tobytes()
    assert result.parameters is None
    assert np.isnan(result.test_accuracy).all()


def test_runs_draw_their_own_start_with_weights_of_this_name() -> None:
    still = replace(SETTINGS, learning_rate=lambda step: 0.0)
    options = {"initialisation": "per_run", "initial_weights": "xavier"}
    weights, biases = np.split(train(range(300), dpsgd=still, **options).parameters, [-3], axis=1)
    assert len(np.unique(weights)) == weights.size
    assert weights.var() == pytest.approx(2 / (NUM_FEATURES + 3), rel=0.05)
    assert not biases.any()


@pytest.mark.parametrize("model", ["linear 6", "tanh"])
def test_runs_are_a_number_or_indices_and_numbers_of_any_type(model: str) -> None:
    options = {"module": MODELS[model].module(3), "initialisation": "fixed"}
    whole = train(4, test_records=RECORDS, **options)
    assert (whole.runs.tolist(), whole.worlds.tolist()) == ([*range(4)], [[0], [1]] * 2)
    other = Records(FEATURES.astype(np.float64), LABELS.astype(np.uint8))
    for runs in (np.int64(4), [*range(4)], np.arange(4), (run for run in range(4))):
        assert_same_bits(train(runs, records=other, test_records=other, **options), whole)


def test_a_class_may_have_test_records_alone_and_two_classes_one_output() -> None:
    four_outputs = {"records": COUNTED_FROM_1, "test_records": RECORDS, "module": nn.Linear(6, 4)}
    few, canary = Records(FEATURES, LABELS % 2), InputCanary(FEATURES[0], 1, 4)
    one_output = {"records": few, "test_records": few, "module": nn.Linear(6, 1), "dpsgd": BINARY}
    for of_kind in (four_outputs, one_output | {"canary": canary}):
        assert np.isfinite(train(2, **of_kind).observations).all()


@pytest.mark.parametrize("module", [LINEAR, PERCEPTRON])
def test_integers_are_trained_and_measured_as_the_numbers_that_they_are(module: nn.Module) -> None:
    integers = replace(RECORDS, features=np.rint(10 * FEATURES).astype(np.int64))
    numbers = replace(integers, features=integers.features.astype(np.float32))
    results = [
        train(2, module=module, records=each, test_records=each, canary=CANARIES["coordinate"])
        for each in (integers, numbers)
    ]
    assert_same_bits(*results)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize(("name", "initialisation"), [
    ("linear 6", "fixed"), ("few positions", "per_run"), ("relu first", "fixed"),
])  # fmt: skip
def test_opacus_modules_are_unwrapped(name: str, initialisation: str) -> None:
    """Also modules that Opacus has used, and that remain in use afterwards."""
    features, labels = MODELS[name].features(N), torch.from_numpy(LABELS)
    options = {"records": Records(features.numpy(), LABELS), "test_records": None}
    options |= {"canary": CANARIES["coordinate"], "initialisation": initialisation}
    wrapped, gradients = GradSampleModule(MODELS[name].module(3)), []
    expected = train(4, module=MODELS[name].module(3), **options)
    for _ in range(2):
        assert_same_bits(train(4, module=wrapped, **options), expected)
        wrapped.zero_grad()
        nn.functional.cross_entropy(wrapped(features), labels).backward()
        gradients.append([parameter.grad_sample.clone() for parameter in wrapped.parameters()])
    for before, after in zip(*gradients, strict=True):
        assert len(before) == N
        assert torch.equal(before, after)
    wrapped(features)  # without asking for a gradient
    for module in (wrapped, wrapped._module):
        assert_same_bits(train(4, module=module, **options), expected)
