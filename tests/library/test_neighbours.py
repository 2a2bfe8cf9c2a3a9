"""The check of a whole training: each finding by a wrong training, whose right sibling passes."""

import json
import random
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from typer.testing import CliRunner

from benchmarks.neighbours import failing
from dpcanary.checking.neighbours import released_values
from dpcanary.checking.neighbours.neighbour_datasets import Data
from dpcanary.checking.neighbours.neighbours_check import NeighboursCheck, check_neighbours
from dpcanary.checking.neighbours.records_seen import Reader, loaders_noted
from dpcanary.checking.neighbours.replacements import Replacement
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.own_training import record_sums

COUNT, WIDTH, LIMIT, RATE = 90, 4, 0.6, 0.15
Part = Callable[..., Any]


def records() -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(3).standard_normal((COUNT, WIDTH))
    return features, (features[:, 0] > 0.2).astype(np.int64)


@dataclass(kw_only=True)
class Loop:
    """Logistic regression with NumPy; the arguments put an error into it."""

    prepare: Part = lambda features, labels: features
    start: Part = lambda features, labels: np.zeros(WIDTH)
    limit: Part = lambda step, gradients: LIMIT
    noise: Part = lambda total: 1.3
    rate: Part = lambda step, errors: 0.2
    goes_on: Part = lambda step, errors: step < 14
    is_left_out: Part = lambda errors: False
    draws: Part = lambda rng, errors: None
    factor: Part = lambda norms: np.minimum(1, LIMIT / (norms + 1e-12))
    afterwards: Part = lambda weights, rows: weights
    returns: Part = lambda weights, features: weights
    knows_records: bool = True
    count: int = 0

    def __call__(self, dataset: Any) -> Any:
        self.count += 1
        features, labels = dataset
        prepared = self.prepare(features, labels)
        weights, rng = self.start(features, labels), np.random.default_rng(11)
        step, errors = 0, np.zeros(1)
        while self.goes_on(step, errors):
            batch = np.flatnonzero(rng.random(len(labels)) < RATE)
            rows = np.asarray(prepared[batch])
            errors = 1 / (1 + np.exp(-rows @ weights)) - np.asarray(labels[batch])
            if self.is_left_out(errors):
                step += 1
                continue
            gradients = rows * errors[:, None]
            total = (gradients * self.factor(np.linalg.norm(gradients, axis=1))[:, None]).sum(0)
            self.draws(np.random, errors)
            limit = self.limit(step, gradients)
            noisy = total + self.noise(total) * limit * rng.standard_normal(WIDTH)
            rate = self.rate(step, errors)
            noisy = record_sums(
                *(total, noisy),
                max_grad_norm=limit,
                sample_rate=RATE,
                parameters={"weights": weights},
                records=batch if self.knows_records else None,
                learning_rate=rate,
            )
            weights = self.afterwards(weights - rate * noisy / 9, rows)
            step += 1
        return self.returns(weights, np.asarray(features))


def said(result: NeighboursCheck) -> str:
    return " ".join(str(result).split())


def measured(result: NeighboursCheck, name: str = "two runs on the same records") -> str:
    [finding] = [finding for finding in result.findings if finding.name == name]
    return finding.measured


def of_first_batch(value: float) -> Replacement:
    first = int(np.flatnonzero(np.random.default_rng(11).random(COUNT) < RATE)[0])
    return Replacement(first, (np.full(WIDTH, value), 0))


# The property that fails, the part of the loop, and what it is in a wrong and in a right one.
ERRORS: dict[str, tuple[str, str, Part, Part]] = {
    "features": ("sums without the record", "prepare",
        lambda x, y: x / np.asarray(x).std(axis=0), lambda x, y: x / 1.7),
    "labels": ("sums without the record", "prepare",
        lambda x, y: x * np.asarray(y).mean(), lambda x, y: x * 0.4),
    "start": ("parameters", "start",
        lambda x, y: np.asarray(x).mean(axis=0), lambda x, y: np.full(WIDTH, 0.1)),
    "after a step": ("parameters", "afterwards",
        lambda weights, rows: weights + 0.01 * rows.sum(axis=0),
        lambda weights, rows: np.clip(weights, -1, 1)),
    "C": ("settings", "limit",
        lambda step, gradients: float(np.linalg.norm(gradients)) + 0.1,
        lambda step, gradients: LIMIT * (1 + step / 20)),
    "learning rate": ("settings", "rate",
        lambda _, errors: 0.3 / (1 + np.abs(errors).sum()), lambda step, _: 0.3 / (1 + step)),
    "noise": ("noise", "noise",
        lambda total: 0.5 + float(np.linalg.norm(total)), lambda total: 0.5),
    "clipping at 1.1 C": ("sums with the record", "factor",
        lambda norms: 1.1 * LIMIT / (norms + 1e-12), lambda norms: 0.9 * LIMIT / (norms + 1e-12)),
    "number of steps": ("number of steps", "goes_on",
        lambda step, errors: step < 14 and np.abs(errors).max(initial=0) < 0.7,
        lambda step, errors: step < 9),
    "a step left out": ("batches", "is_left_out",
        lambda errors: np.abs(errors).max(initial=0) > 0.7, lambda errors: len(errors) > 18),
    "random numbers": ("random numbers", "draws",
        lambda rng, errors: rng.rand() if np.abs(errors).max() > 0.7 else None,
        lambda rng, errors: rng.rand(len(errors))),
    "released": ("what is released", "returns",
        lambda weights, x: (weights, x.max()), lambda weights, x: (weights, x.shape)),
}  # fmt: skip


def loops(name: str) -> tuple[Loop, Loop]:
    """The wrong and the right loop of an error."""
    _, part, in_wrong, in_right = ERRORS[name]
    return Loop(**{part: in_wrong}), Loop(**{part: in_right})


# What the command runs.
train, wrong = Loop(), loops("features")[0]


def nothing(dataset: Any) -> None:
    """A training without sums."""


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_named_and_its_right_sibling_passes(name):
    expected, (with_error, right) = ERRORS[name][0], loops(name)
    result = check_neighbours(with_error, records(), seed=4)
    assert not result.passes
    assert failing(result)[0] == expected, str(result)
    assert f"Look first at: {expected} (step " in said(result)
    result = check_neighbours(right, records(), seed=4)
    assert result.passes, str(result)
    assert 0.5 < result.largest <= 2.01


def test_one_replacement_is_one_more_training_and_the_first_step_tensor_and_size_are_named():
    loop = Loop(afterwards=lambda weights, rows: weights + (len(rows) and 0.1 * rows[0]))
    result = check_neighbours(loop, records(), replacements=[of_first_batch(5.0)])
    place = "step 2: ['weights'] differs (its norm is another by "
    assert place in measured(result, "parameters")
    assert loop.count == 3


@pytest.mark.parametrize("knows_records", [True, False])
def test_steps_with_the_record_are_known_from_the_loop_or_from_rows_of_the_arrays(knows_records):
    loop = Loop(knows_records=knows_records)
    result = check_neighbours(loop, records())
    assert result.passes
    assert result.batches_known
    rng, in_batch = np.random.default_rng(11), np.empty((14, COUNT), bool)
    for step in range(14):
        in_batch[step] = rng.random(COUNT) < RATE
        rng.standard_normal(WIDTH)
    replaced = [int(label.split()[1]) for label in result.replacements]
    assert [*result.steps_with_record] == in_batch[:, replaced].sum(axis=0).tolist()
    # Two replacements are of a record that is in no batch. Two trainings replace none.
    assert (np.count_nonzero(result.steps_with_record), len(replaced), loop.count) == (5, 7, 9)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_where_batches_are_not_seen_the_share_of_steps_is_compared_with_the_rate(is_wrong):
    def unseen(dataset):
        features, labels = (np.array(own.tolist()) for own in dataset)  # of which nothing is noted
        scaled = features / features.std(axis=0) if is_wrong else features
        return Loop(knows_records=False)((scaled, labels))

    result = check_neighbours(unseen, records())
    assert not result.batches_known
    assert any("share" in words or "number of steps" in words for words in result.not_seen)
    assert failing(result) == (["sums without the record"] if is_wrong else [])
    assert ("of 14 steps, at sample rate 0.15" in said(result)) == is_wrong


def test_first_steps_alone_are_compared_if_so_many_are_asked_for():
    result = check_neighbours(loops("released")[0], records(), num_steps=3)
    assert (result.passes, result.num_steps, result.is_whole) == (True, 3, False)
    assert {"what is released", "number of steps"} <= {*result.not_judged}
    result = check_neighbours(loops("learning rate")[0], records(), num_steps=9)
    assert failing(result)[0] == "settings"


def fail(*_: object) -> None:
    raise ValueError("out of range")


def swallow_once() -> None:
    with suppress(BaseException):
        time.sleep(30)
    time.sleep(30)


def test_a_failure_and_a_hang_because_of_the_record_are_findings():
    signal.setitimer(signal.ITIMER_REAL, 1000)
    loud = Replacement(7, (np.full(WIDTH, 10.0), 1), "a loud one")
    for error, words in (
        (fail, "fails (ValueError: out of range)"),
        (partial(sys.exit, 0), "fails (SystemExit: 0)"),
        (partial(time.sleep, 30), "does not end"),
        (swallow_once, "does not end"),
    ):
        loop = Loop(prepare=lambda x, _, error=error: error() if np.abs(x).max() > 9 else x)
        result = check_neighbours(loop, records(), replacements=[loud], time_limit=0.5)
        assert failing(result) == ["runs to its end"]
        assert f"the training {words}" in said(result)
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 900  # the caller's timer goes on


def test_missing_values_are_a_finding_and_are_tried_where_the_data_have_some():
    missing = of_first_batch(np.nan)
    assert failing(check_neighbours(Loop(), records(), replacements=[missing]))[0] == "finite sums"
    repairing = Loop(prepare=lambda features, labels: np.nan_to_num(np.asarray(features)))
    assert check_neighbours(repairing, records(), replacements=[missing]).passes
    features, labels = records()
    features[::9, 1] = np.nan
    for data, is_tried in ((records(), False), ((features, labels), True)):
        tried = check_neighbours(repairing, data).replacements
        assert any("missing values" in label for label in tried) == is_tried


@pytest.mark.parametrize("decides", [False, True])
def test_a_value_that_decides_is_found_and_one_that_is_printed_is_not(decides):
    def afterwards(weights, rows):
        size = torch.from_numpy(rows @ weights).abs().sum().item()
        print(size)
        return 0.5 * weights if decides and size > 1000 else weights  # which no record reaches

    result = check_neighbours(Loop(afterwards=afterwards), records())
    assert failing(result)[:1] == (["parameters"] if decides else []), str(result)
    place = f"{Path(__file__).name}, line"
    if decides:
        assert f"the values read in {place}" in said(result)
    else:
        assert any(place in words for words in result.not_seen)


def jitter(size: float, **parts: Part) -> Loop:
    """A loop whose sums differ in each training."""
    numbers = count()
    factor = lambda norms: LIMIT / (norms + 1e-12) * (1 + size * next(numbers))  # noqa: E731
    return Loop(factor=factor, **parts)


def test_what_the_random_numbers_do_not_determine_is_named_and_hides_no_larger_error():
    result = check_neighbours(jitter(1e-9), records())
    assert result.passes
    assert "sums differ by up to" in measured(result)
    result = check_neighbours(jitter(1e-9, prepare=wrong.prepare), records())
    assert failing(result)[0] == "sums without the record"


def test_unseeded_generators_are_repeated():
    def unseeded(dataset):
        rng = np.random.default_rng()  # from the entropy of the operating system
        random.seed()
        drawn = random.SystemRandom().random(), random.Random().random(), random.random()
        return Loop(start=lambda features, labels: rng.standard_normal(WIDTH))(dataset), drawn

    state = random.getstate(), torch.get_rng_state()
    result = check_neighbours(unseeded, records())
    assert result.passes
    assert measured(result) == "equal to the bit"
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert np.random.default_rng().random() != np.random.default_rng().random()


def with_changes(*rows: int) -> tuple[np.ndarray, np.ndarray]:
    features, labels = records()
    features[[*rows]] = 0.5
    return features, labels


def test_a_neighbour_of_ones_own():
    result = check_neighbours(wrong, records(), neighbour=with_changes(12))
    assert result.replacements == ("record 12 replaced by that of the neighbour",)
    assert not result.passes


def test_what_cannot_be_compared_is_refused(tmp_path):
    def once(dataset):
        (tmp_path / "out").mkdir()
        return train(dataset)

    features, labels = records()
    shorter, uneven = (features[1:], labels[1:]), (features, labels[1:])
    for loop, data, settings, message in (
        (train, records(), {"neighbour": with_changes(12, 13)}, "one record, .* in 2: 12, 13"),
        (train, records(), {"neighbour": shorter}, "a record is replaced, not added or removed"),
        (train, records(), {"replacements": [Replacement(90, None)]}, "there is no record 90"),
        (train, uneven, {}, "as many rows: their lengths are"),
        (train, {"x": ["a"] * COUNT, "y": labels}, {}, "'x' is a list with a row for each"),
        (fail, records(), {}, r"fails on the dataset \(ValueError: out of range\)"),
        (lambda dataset: sys.exit(0), records(), {}, r"fails on the dataset \(SystemExit: 0\)"),
        (
            train,
            records(),
            {"time_limit": 0},
            "time_limit is 0; it must be a finite number above 0",
        ),
        *(
            (Loop(limit=lambda *_, limit=limit: limit), records(), {}, "max_grad_norm is")
            for limit in (0.0, np.nan, np.inf)
        ),
        (once, records(), {}, "fails when it is run a second time on the same records"),
        (partial(check_neighbours, train), records(), {}, "cannot check another one"),
    ):
        with pytest.raises(InputError, match=message):
            check_neighbours(loop, data, **settings)


def test_a_check_that_compares_nothing_does_not_pass():
    for loop, words in (
        (nothing, "no noisy sum was seen"),
        (lambda dataset: train(records()), "no replacement changed the sum of a step"),
        (jitter(0.01), "two runs on the same records differ too much"),
    ):
        result = check_neighbours(loop, records())
        assert (result.compares_nothing, result.passes) == (True, False)
        assert f"Nothing was compared: {words}" in said(result)


def test_what_is_not_returned_or_not_determined_is_not_compared():
    numbers = count(9)

    def longer(dataset):
        steps = next(numbers)
        return Loop(goes_on=lambda step, errors: step < steps)(dataset)

    for loop, names in (
        (Loop(returns=lambda weights, features: None), ("what is released",)),
        (longer, ("number of steps", "what is released")),
    ):
        result = check_neighbours(loop, records())
        assert result.passes, str(result)
        assert {*names} <= {*result.not_judged}


def test_outside_of_a_check_sums_pass_as_they_are():
    noisy = np.ones(3)
    assert record_sums(np.zeros(3), noisy, max_grad_norm=1.0) is noisy


def test_sums_wait_in_the_folder_and_are_removed(tmp_path):
    seen: list[int] = []

    def counted(dataset):
        weights = Loop()(dataset)
        seen.append(len([*tmp_path.rglob("*.bin")]))
        return weights

    check_neighbours(counted, records(), folder=tmp_path)
    assert {*seen} == {28}  # sums and noisy sums of 14 steps
    assert not [*tmp_path.iterdir()]


def files_with(value: float) -> str:
    """In the current folder."""
    Path("out/sub").mkdir(parents=True, exist_ok=True)
    np.savez("out/sub/a.npz", value=value)
    torch.save({"one": torch.ones(1)}, "out/model.pt")
    Path("out/card.json").write_text(json.dumps({"rows": COUNT}))
    return "out"


def model_with(value: float) -> dict[str, Any]:
    layer = nn.Module()
    layer.register_buffer("kept", torch.tensor([value, 0.0]), persistent=False)
    return {"a": [layer, None, "text"], "b": (3, np.ones(2))}


@pytest.mark.parametrize(("made_with", "place"), [
    (files_with, "sub/a.npz.value differs by "), (model_with, "a.0.kept differs by "),
    (lambda value: (0, pd.DataFrame({"metric": ["sum"], "value": [value]})), "1.1.value differs"),
    (lambda value: (0, 2**60 + round(value)), "1 differs by 1 "),
    (lambda value: (0, pd.Series(["a", f"{value:.3f}"]), object()), "1 differs"),
])  # fmt: skip
def test_all_parts_of_what_is_released_are_compared(made_with, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    leaking = Loop(returns=lambda weights, features: made_with(float(features.sum())))
    result = check_neighbours(leaking, records())
    assert failing(result) == ["what is released"]
    assert f": {place}" in said(result)
    assert check_neighbours(Loop(returns=lambda *_: made_with(1.0)), records()).passes


def test_text_that_happens_to_name_a_folder_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(released_values, "_SECONDS", -1e6)  # nothing counts as written by a run
    (tmp_path / "data").mkdir()
    lines = count()

    def returns(weights, features):
        (tmp_path / "data/log").write_text(f"{next(lines)}")  # which differs in each run
        return weights, SimpleNamespace(name="", folder="data"), "", "data"

    result = check_neighbours(Loop(returns=returns), records())
    assert result.passes, str(result)
    assert measured(result) == "equal to the bit"
    naming = Loop(returns=lambda weights, features: (weights, f"run {next(lines)}"))
    not_seen = check_neighbours(naming, records()).not_seen
    assert any("that are text" in words and words.endswith(": 1") for words in not_seen)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_rounding_explains_nothing_where_the_records_are_the_same(is_wrong):
    def half(dataset):
        features, labels = (own.bfloat16() for own in dataset)
        if is_wrong:
            features = features / features.float().std(dim=0).bfloat16()
        generator = torch.Generator().manual_seed(5)
        for _ in range(12):
            batch = torch.rand(len(labels), generator=generator) < RATE
            rows = features[batch] * (labels[batch][:, None] - 0.5)
            factors = (LIMIT / (rows.float().norm(dim=1) + 1e-12)).clamp(max=1)
            total = (rows.float() * factors[:, None]).sum(dim=0).bfloat16() + 40 * LIMIT
            drawn = torch.randn(WIDTH, generator=generator)
            record_sums(total, (total + drawn).bfloat16(), max_grad_norm=LIMIT)
        return torch.zeros(1)

    result = check_neighbours(half, tuple(map(torch.from_numpy, records())))
    assert ("sums without the record" in failing(result)) == is_wrong, str(result)
    assert is_wrong or (result.passes and "noise" in result.not_judged), str(result)


def test_noise_that_is_no_number_is_not_the_same_noise():
    def nan_noise(dataset):
        scale = np.nan if (np.asarray(dataset[0]) == 5).any() else 0.5
        return Loop(noise=lambda total: scale)(dataset)

    result = check_neighbours(nan_noise, records(), replacements=[of_first_batch(5.0)])
    assert failing(result) == ["noise"]


class Patients(Dataset):
    """Records by number, and the same as attributes."""

    def __init__(self, x: np.ndarray, y: np.ndarray, scale: float = 1.0) -> None:
        self.x, self.y, self.scale = x, y, scale
        self.order = [*range(len(x))]
        if scale == 1:
            self.file = (number for number in range(3))  # of which there is no copy

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        return self.x[index] * self.scale, self.y[index]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_attributes_of_a_dataset_of_ones_own_have_the_replaced_record(scale):
    def by_rows(dataset, *, is_wrong: bool, in_place: bool = False):
        deviation = dataset.x.std(axis=0)
        rows = [dataset[number] for number in range(len(dataset))]
        if in_place:
            dataset.x -= 1
        features, labels = (np.array(own) for own in zip(*rows, strict=True))
        return Loop()((features / deviation if is_wrong else features, labels))

    data = Patients(*records(), scale)
    before = data.x.copy()
    assert check_neighbours(partial(by_rows, is_wrong=False, in_place=True), data).passes
    assert (data.x == before).all()
    result = check_neighbours(partial(by_rows, is_wrong=True), data)
    if scale == 1:
        assert failing(result)[0] == "sums without the record"
    else:  # a row is not what the dataset gives
        assert any(words.endswith("no record was replaced: x") for words in result.not_seen)
    result = check_neighbours(lambda dataset: Loop()(dataset[:]), data)
    assert result.passes, str(result)
    assert any("was replaced: x" in words for words in result.not_seen) == (scale != 1)
    assert result.largest > 0.5 or scale != 1


@pytest.mark.parametrize(("kind", "change"), [
    (tuple, torch.Tensor.requires_grad_), (tuple, torch.Tensor.bfloat16),
    (list, torch.Tensor.bfloat16), (lambda arrays: Patients(*arrays), torch.Tensor.bfloat16),
])  # fmt: skip
def test_records_may_have_gradients_or_numbers_that_numpy_has_not(kind, change):
    def train(data):
        if kind is not tuple:
            data = map(torch.stack, zip(*(data[number] for number in range(COUNT)), strict=True))
        return Loop()(tuple(own.detach().double().numpy() for own in data))

    arrays = tuple(map(torch.from_numpy, records()))
    arrays = change(arrays[0]), arrays[1]
    result = check_neighbours(train, [*zip(*arrays, strict=True)] if kind is list else kind(arrays))
    assert result.passes, str(result)
    assert result.largest > 0.5


# jax, which another test of this process may have loaded, warns where loaders fork their workers.
@pytest.mark.filterwarnings(r"ignore:os\.fork")
@pytest.mark.parametrize(("kind", "num_workers"), [
    ("tensors", 2), ("items", 0), ("items", 2), ("list", 0), ("subset", 2),
])  # fmt: skip
def test_batches_of_loaders_are_noted_as_they_are_given(kind, num_workers):
    """With workers too, which fetch batches before they are used."""
    items = Patients(np.arange(30.0)[:, None], np.arange(30) % 2)
    tensors = TensorDataset(torch.arange(30.0)[:, None], torch.arange(30) % 2)
    original = {"items": items, "list": [items[index] for index in range(30)]}.get(kind, tensors)
    reader = Reader(30)
    dataset = Data(original).copied(reader, 5, (np.array([77.0]), 1))
    private = dataset
    if kind == "subset":
        dataset = Subset(dataset, [*range(29, -1, -1)])
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=num_workers)
    with loaders_noted(reader, lambda own: own is private):
        for values, _ in loader:
            [batch] = reader.take_batches()
            assert batch.loaded
            expected = [5.0 if value == 77 else value for value in values[:, 0].tolist()]
            assert batch.records.tolist() == expected
            assert len(batch.values) == len(values)
        with torch.no_grad():
            next(iter(loader))
        assert reader.take_batches() == []
    assert original[5][0] == 5  # the original is unchanged


def test_rows_of_tensors_and_arrays_are_noted():
    reader = Reader(10)
    values, numbers = Data((torch.arange(20.0).reshape(10, 2), np.arange(10))).copied(reader)
    for select, expected in (
        (lambda: values[[3, 1]], [3, 1]),
        (lambda: values[2:5, 0], [2, 3, 4]),
        (lambda: values.double()[values[:, 0] > 13], [7, 8, 9]),
        (lambda: (values / 2).index_select(0, torch.tensor([4])), [4]),
        (lambda: numbers[np.array([6, 6])], [6, 6]),
        (lambda: (numbers + 1)[-1], [9]),
    ):
        reader.take_batches()
        plain = select()
        assert type(plain) in (torch.Tensor, np.ndarray, np.int64)
        assert reader.take_batches()[-1].records.tolist() == expected
    # What is most of the records is followed, in its own order.
    order = torch.tensor([9, 8, 7, 6, 5, 4])
    values[order][2:3]
    assert reader.take_batches()[-1].records.tolist() == [7]
    assert type(values.mean(dim=0)) is torch.Tensor
    assert type(values @ torch.ones(2)) is torch.Tensor


def test_batches_of_any_kind_are_noted_without_copies_that_are_larger():
    reader = Reader(8)
    several = [np.array(["a", None] * 4, dtype=object), torch.eye(8).to_sparse(), np.ones((8, 0))]
    if hasattr(torch, "float8_e4m3fn"):
        several.append(torch.ones(8).to(torch.float8_e4m3fn))
    reader.note(np.arange(8), several)
    values = np.zeros((8, 1_000_000), np.float32)
    values[3, 5] = 1
    tracemalloc.start()
    reader.note(np.arange(8), [values])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1_000_000
    sums = reader.take_batches()[1].values
    assert [*np.flatnonzero(sums != sums[0])] == [3]


def test_the_command_its_exit_codes_json_and_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    features = ["--features", f"{__name__}:records"]

    def run(name: str, *options: str) -> Any:
        arguments = ["check", "--neighbours", f"{__name__}:{name}", *options]
        return CliRunner().invoke(app, arguments)

    done = run("train", *features, "--report", "page.html")
    assert (done.exit_code, "sums with the record" in done.stdout) == (0, True)
    page = Path("page.html").read_text()
    assert "Neighbours: the training passes" in page
    assert "sums without the record" in page
    done = run("wrong", *features, "--json", "--report", "page.html")
    result = json.loads(done.stdout)
    assert (done.exit_code, result["passes"], result["num_steps"]) == (3, False, 14)
    assert result["cause"].startswith("Look first at: sums without the record")
    assert '<span class="fails">fails</span>' in Path("page.html").read_text()
    assert run("nothing", *features).exit_code == 4
    done = run("train", *features, "--first-steps", "2", "--json")
    assert json.loads(done.stdout)["num_steps"] == 2
    loop = ["check", "--first-steps", "2", f"{__name__}:train"]
    assert CliRunner().invoke(app, loop).exit_code == 2
    assert run("train").exit_code == 2


def test_the_fixture_fails_with_the_whole_result(assert_neighbours):
    with_error, right = loops("C")
    assert_neighbours(right, records(), seed=9)
    with pytest.raises(AssertionError, match=r"settings +step 1: max_grad_norm is "):
        assert_neighbours(with_error, records(), seed=9)
    with pytest.raises(AssertionError, match="no noisy sum was seen"):
        assert_neighbours(nothing, records())
