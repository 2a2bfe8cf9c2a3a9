"""The check of a whole training: each finding by a wrong training, whose right sibling passes."""

import json
import random
import signal
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset
from typer.testing import CliRunner

from dpcanary.checking.neighbours.neighbour_datasets import Data
from dpcanary.checking.neighbours.neighbours_check import (
    NeighboursCheck,
    assert_neighbours,
    check_neighbours,
)
from dpcanary.checking.neighbours.records_seen import (
    NotingArray,
    NotingTensor,
    Reader,
    loaders_noted,
)
from dpcanary.checking.neighbours.replacements import Replacement
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.own_training import record_sums

COUNT, WIDTH, LIMIT, RATE = 90, 4, 0.6, 0.15


def records(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((COUNT, WIDTH))
    return features, (features[:, 0] > 0.2).astype(np.int64)


class Loop:
    """Logistic regression with NumPy; the arguments put an error into it."""

    def __init__(
        self,
        *,
        prepare: Callable[..., Any] = lambda features, labels: features,
        start: Callable[..., Any] = lambda features, labels: np.zeros(WIDTH),
        limit: Callable[..., float] = lambda step, gradients: LIMIT,
        noise: Callable[..., float] = lambda total: 1.3,
        rate: Callable[..., float] = lambda step, errors: 0.2,
        goes_on: Callable[..., bool] = lambda step, errors: step < 14,
        is_left_out: Callable[..., bool] = lambda errors: False,
        draws: Callable[..., object] = lambda rng, errors: None,
        factor: Callable[..., Any] = lambda norms: np.minimum(1, LIMIT / (norms + 1e-12)),
        afterwards: Callable[..., Any] = lambda weights, rows: weights,
        returns: Callable[..., Any] = lambda weights, features: weights,
        knows_records: bool = True,
    ) -> None:
        self.prepare, self.start, self.limit, self.noise = prepare, start, limit, noise
        self.rate, self.goes_on, self.is_left_out, self.draws = rate, goes_on, is_left_out, draws
        self.factor, self.afterwards, self.returns = factor, afterwards, returns
        self.knows_records = knows_records
        self.count = 0

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
                total,
                noisy,
                max_grad_norm=limit,
                sample_rate=RATE,
                parameters={"weights": weights},
                records=batch if self.knows_records else None,
                learning_rate=rate,
            )
            weights = self.afterwards(weights - rate * noisy / 9, rows)
            step += 1
        return self.returns(weights, np.asarray(features))


def failing(result: NeighboursCheck) -> list[str]:
    return [finding.name for finding in result.ranked if not finding.holds]


def spread(errors: Any) -> float:
    return float(np.abs(errors).sum()) if len(errors) else 0.0


ERRORS: dict[str, tuple[str, Loop, Loop]] = {
    "features": (
        "sums without the record",
        Loop(prepare=lambda features, labels: features / np.asarray(features).std(axis=0)),
        Loop(prepare=lambda features, labels: features / 1.7),
    ),
    "labels": (
        "sums without the record",
        Loop(prepare=lambda features, labels: features * np.asarray(labels).mean()),
        Loop(prepare=lambda features, labels: features * 0.4),
    ),
    "start": (
        "parameters",
        Loop(start=lambda features, labels: np.asarray(features).mean(axis=0)),
        Loop(start=lambda features, labels: np.full(WIDTH, 0.1)),
    ),
    "after a step": (
        "parameters",
        Loop(afterwards=lambda weights, rows: weights + 0.01 * rows.sum(axis=0)),
        Loop(afterwards=lambda weights, rows: np.clip(weights, -1, 1)),
    ),
    "C": (
        "settings",
        Loop(limit=lambda step, gradients: float(np.linalg.norm(gradients)) + 0.1),
        Loop(limit=lambda step, gradients: LIMIT * (1 + step / 20)),
    ),
    "learning rate": (
        "settings",
        Loop(rate=lambda step, errors: 0.3 / (1 + spread(errors))),
        Loop(rate=lambda step, errors: 0.3 / (1 + step)),
    ),
    "noise": (
        "noise",
        Loop(noise=lambda total: 0.5 + float(np.linalg.norm(total))),
        Loop(noise=lambda total: 0.5),
    ),
    "clipping": (
        "sums with the record",
        Loop(factor=np.ones_like),
        Loop(factor=lambda norms: LIMIT / (norms + 1e-12)),
    ),
    "clipping at 1.1 C": (
        "sums with the record",
        Loop(factor=lambda norms: 1.1 * LIMIT / (norms + 1e-12)),
        Loop(factor=lambda norms: 0.9 * LIMIT / (norms + 1e-12)),
    ),
    "number of steps": (
        "number of steps",
        Loop(goes_on=lambda step, errors: step < 14 and np.abs(errors).max(initial=0) < 0.7),
        Loop(goes_on=lambda step, errors: step < 9),
    ),
    "a step left out": (
        "batches",
        Loop(is_left_out=lambda errors: np.abs(errors).max(initial=0) > 0.7),
        Loop(is_left_out=lambda errors: len(errors) > 18),
    ),
    "random numbers": (
        "random numbers",
        Loop(draws=lambda rng, errors: rng.rand() if np.abs(errors).max() > 0.7 else None),
        Loop(draws=lambda rng, errors: rng.rand(len(errors))),
    ),
    "released": (
        "what is released",
        Loop(returns=lambda weights, features: (weights, features.max())),
        Loop(returns=lambda weights, features: (weights, features.shape)),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_is_named_and_its_right_sibling_passes(name):
    expected, wrong, right = ERRORS[name]
    result = check_neighbours(wrong, records(), seed=4)
    assert not result.passes
    assert failing(result)[0] == expected, str(result)
    assert f"Look first at: {expected} (step " in str(result).replace("\n", " ")
    result = check_neighbours(right, records(), seed=4)
    assert result.passes, str(result)
    assert 0.5 < result.largest <= 2.01


def test_the_first_step_tensor_and_size_are_named():
    wrong = Loop(afterwards=lambda weights, rows: weights + (len(rows) and 0.1 * rows[0]))
    result = check_neighbours(wrong, records(), replacements=[_of_first_batch(wrong)])
    [finding] = [one for one in result.ranked if one.name == "parameters"]
    assert "step 2: ['weights'] differs (its norm is another by " in finding.measured


def _of_first_batch(loop: Loop) -> Replacement:
    first = int(np.flatnonzero(np.random.default_rng(11).random(COUNT) < RATE)[0])
    return Replacement(first, (np.full(WIDTH, 5.0), 0))


@pytest.mark.parametrize("knows_records", [True, False])
def test_steps_with_the_record_are_known_from_the_loop_or_from_rows_of_the_arrays(knows_records):
    loop = Loop(knows_records=knows_records)
    result = check_neighbours(loop, records())
    assert result.passes
    assert result.batches_known
    expected = np.random.default_rng(11)
    batches = []
    for _ in range(14):
        batches.append(np.flatnonzero(expected.random(COUNT) < RATE))
        expected.standard_normal(WIDTH)
    for label, count in zip(result.replacements, result.steps_with_record, strict=True):
        record = int(label.split()[1])
        assert count == sum(record in batch for batch in batches)
    # Two replacements are of a record that is in no batch.
    assert sum(map(bool, result.steps_with_record)) == 5
    assert len(result.steps_with_record) == 7


@pytest.mark.parametrize("is_wrong", [False, True])
def test_where_batches_are_not_seen_the_share_of_steps_is_compared_with_the_rate(is_wrong):
    def train(dataset):
        features, labels = (np.array(own.tolist()) for own in dataset)  # of which nothing is noted
        scaled = features / features.std(axis=0) if is_wrong else features
        return Loop(knows_records=False)((scaled, labels))

    result = check_neighbours(train, records())
    assert not result.batches_known
    assert any("share" in words or "number of steps" in words for words in result.not_seen)
    assert failing(result) == (["sums without the record"] if is_wrong else [])
    if is_wrong:
        assert "of 14 steps, at sample rate 0.15" in " ".join(str(result).split())


def test_the_cost_is_a_training_for_each_replacement_and_two():
    loop = Loop()
    result = check_neighbours(loop, records())
    assert loop.count == 2 + len(result.replacements)
    assert 7 <= loop.count <= 9
    loop = Loop()
    check_neighbours(loop, records(), replacements=[_of_first_batch(loop)])
    assert loop.count == 3


def test_first_steps_alone_are_compared_if_so_many_are_asked_for():
    wrong = ERRORS["released"][1]
    result = check_neighbours(wrong, records(), num_steps=3)
    assert result.passes
    assert result.num_steps == 3
    assert not result.is_whole
    assert {"what is released", "number of steps"} <= {*result.not_judged}
    wrong = ERRORS["learning rate"][1]
    assert failing(check_neighbours(wrong, records(), num_steps=9))[0] == "settings"


def test_a_failure_a_hang_and_nan_because_of_the_record_are_findings():
    def ends(error: Callable[[], object]) -> Loop:
        def prepare(features, labels):
            if np.abs(features).max() > 9:
                error()
            return features

        return Loop(prepare=prepare)

    loud = Replacement(7, (np.full(WIDTH, 10.0), 1), "a loud one")

    def fail() -> None:
        raise ValueError("out of range")

    def swallow_once() -> None:
        with suppress(BaseException):
            time.sleep(30)
        time.sleep(30)

    result = check_neighbours(ends(fail), records(), replacements=[loud])
    assert failing(result) == ["runs to its end"]
    assert "the training fails (ValueError: out of range)" in " ".join(str(result).split())
    result = check_neighbours(
        ends(lambda: time.sleep(30)), records(), replacements=[loud], time_limit=1.0
    )
    assert failing(result) == ["runs to its end"]
    assert "the training does not end" in " ".join(str(result).split())
    signal.setitimer(signal.ITIMER_REAL, 1000)
    result = check_neighbours(ends(swallow_once), records(), replacements=[loud], time_limit=0.3)
    assert "the training does not end" in " ".join(str(result).split())
    assert signal.setitimer(signal.ITIMER_REAL, 0)[0] > 900  # the caller's timer goes on
    missing = Replacement(
        int(_of_first_batch(Loop()).index), (np.full(WIDTH, np.nan), 1), "missing values"
    )
    result = check_neighbours(Loop(), records(), replacements=[missing])
    assert failing(result)[0] == "finite sums"
    repaired = Loop(prepare=lambda features, labels: np.nan_to_num(np.asarray(features)))
    assert check_neighbours(repaired, records(), replacements=[missing]).passes
    with pytest.raises(InputError, match=r"fails on the dataset \(ValueError: out of range\)"):
        check_neighbours(lambda dataset: fail(), records())


def test_missing_values_are_tried_where_the_data_have_some():
    features, labels = records()
    features[::9, 1] = np.nan
    loop = Loop(prepare=lambda features, labels: np.nan_to_num(np.asarray(features)))
    labels_of = check_neighbours(loop, (features, labels)).replacements
    assert any("missing values" in label for label in labels_of)
    assert not any("missing" in label for label in check_neighbours(Loop(), records()).replacements)


def test_a_value_that_decides_is_found_and_one_that_is_printed_is_not():
    def train(dataset, *, decides: bool):
        features, labels = (own.double() for own in dataset)
        generator, weights = torch.Generator().manual_seed(5), torch.zeros(WIDTH).double()
        rate, log = 0.1, []
        for step in range(12):
            batch = torch.rand(len(labels), generator=generator) < RATE
            rows, targets = features[batch], labels[batch]
            errors = torch.sigmoid(rows @ weights) - targets
            gradients = rows * errors[:, None]
            factors = (LIMIT / (gradients.norm(dim=1) + 1e-12)).clamp(max=1)
            total = (gradients * factors[:, None]).sum(dim=0)
            noisy = total + torch.randn(WIDTH, generator=generator, dtype=torch.float64)
            log.append(errors.square().mean().item())
            if decides and step > 2 and log[-1] > 4 * log[0]:  # which these records do not reach
                rate = 0.05
            noisy = record_sums(total, noisy, max_grad_norm=LIMIT, parameters=weights)
            weights = weights - rate * noisy / 9
        print(log[-1])
        return weights

    features, labels = records()
    dataset = torch.from_numpy(features), torch.from_numpy(labels)
    result = check_neighbours(partial(train, decides=False), dataset)
    assert result.passes, str(result)
    assert any("test_neighbours.py, line" in words for words in result.not_seen)
    result = check_neighbours(partial(train, decides=True), dataset)
    assert failing(result)[0] == "parameters", str(result)
    assert "the values read in test_neighbours.py, line" in " ".join(str(result).split())


def test_what_the_random_numbers_do_not_determine_is_named_and_gives_the_tolerance():
    counter = iter(range(1000))

    def jitter(size: float) -> Loop:
        return Loop(factor=lambda norms: LIMIT / (norms + 1e-12) * (1 + size * next(counter)))

    result = check_neighbours(jitter(1e-9), records())
    assert result.passes
    [control] = [one for one in result.findings if one.name == "two runs on the same records"]
    assert "sums differ by up to" in control.measured
    assert "not" in control.note
    result = check_neighbours(jitter(0.01), records())
    assert result.compares_nothing
    assert not result.passes
    assert "Nothing was compared: two runs on the same records differ too much" in str(
        result
    ).replace("\n", " ")
    # It hides no error that is larger.
    noisy = jitter(1e-9)
    noisy.prepare = ERRORS["features"][1].prepare
    assert failing(check_neighbours(noisy, records()))[0] == "sums without the record"


def test_unseeded_generators_are_repeated():
    def train(dataset):
        rng = np.random.default_rng()  # from the entropy of the operating system
        loop = Loop(draws=lambda *_: None)
        loop.start = lambda features, labels: rng.standard_normal(WIDTH)
        random.seed()
        drawn = random.SystemRandom().random(), random.Random().random(), random.random()
        return loop(dataset), drawn

    state = random.getstate(), torch.get_rng_state()
    result = check_neighbours(train, records())
    assert result.passes
    [control] = [one for one in result.findings if one.name == "two runs on the same records"]
    assert control.measured == "equal to the bit"
    assert random.getstate() == state[0]
    assert torch.equal(torch.get_rng_state(), state[1])
    assert np.random.default_rng().random() != np.random.default_rng().random()


def test_a_neighbour_of_ones_own():
    features, labels = records()
    other = features.copy()
    other[12] = 0.5
    result = check_neighbours(ERRORS["features"][1], (features, labels), neighbour=(other, labels))
    assert result.replacements == ("record 12 replaced by that of the neighbour",)
    assert not result.passes
    other[13] = 0.5
    with pytest.raises(InputError, match="must differ in one record, and differs in 2: 12, 13"):
        check_neighbours(Loop(), (features, labels), neighbour=(other, labels))
    with pytest.raises(InputError, match="a record is replaced, not added or removed"):
        check_neighbours(Loop(), (features, labels), neighbour=(other[1:], labels[1:]))
    with pytest.raises(InputError, match="there is no record 90"):
        check_neighbours(Loop(), (features, labels), replacements=[Replacement(90, None)])
    with pytest.raises(InputError, match="as many rows: their lengths are"):
        check_neighbours(Loop(), (features, labels[1:]))


def test_a_training_without_sums_is_not_compared():
    result = check_neighbours(lambda dataset: None, records())
    assert result.compares_nothing
    assert not result.passes
    assert "no noisy sum was seen" in " ".join(str(result).split())
    with pytest.raises(AssertionError, match="no noisy sum was seen"):
        assert_neighbours(lambda dataset: None, records())


def test_a_training_that_fails_when_it_is_run_again_is_refused(tmp_path):
    def train(dataset):
        (tmp_path / "out").mkdir()
        return ERRORS["features"][1](dataset)

    with pytest.raises(InputError, match="fails when it is run a second time on the same records"):
        check_neighbours(train, records())


def test_what_is_not_returned_is_not_compared():
    result = check_neighbours(Loop(returns=lambda weights, features: None), records())
    assert "what is released" in result.not_judged
    assert "the function returned nothing that could be compared" in str(result).replace("\n", " ")


def test_a_number_of_steps_that_is_not_determined_is_no_finding():
    numbers = iter([9, *range(10, 1000)])

    def train(dataset):
        count = next(numbers)
        return Loop(goes_on=lambda step, errors: step < count)(dataset)

    result = check_neighbours(train, records())
    assert result.passes, str(result)
    assert {"number of steps", "what is released"} <= {*result.not_judged}


def test_outside_of_a_check_sums_pass_as_they_are():
    noisy = np.ones(3)
    assert record_sums(np.zeros(3), noisy, max_grad_norm=1.0) is noisy
    with pytest.raises(InputError, match="cannot check another one"):
        check_neighbours(lambda dataset: check_neighbours(Loop(), records()), records())


def test_sums_wait_in_the_folder_and_are_removed(tmp_path):
    seen: list[int] = []

    def train(dataset):
        weights = Loop()(dataset)
        seen.append(len([*tmp_path.rglob("*.bin")]))
        return weights

    check_neighbours(train, records(), folder=tmp_path)
    assert {*seen} == {28}  # sums and noisy sums of 14 steps
    assert not [*tmp_path.iterdir()]


def test_files_and_models_and_trees_are_compared(tmp_path):
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(2), persistent=False)

    def files(weights, features, *, leaks: bool):
        value = float(features.sum()) if leaks else 1.0
        (tmp_path / "sub").mkdir(exist_ok=True)
        np.savez(tmp_path / "sub/a.npz", weights=weights, value=value)
        torch.save({"weights": torch.from_numpy(weights)}, tmp_path / "model.pt")
        (tmp_path / "card.json").write_text(json.dumps({"rows": len(features)}))
        return str(tmp_path)

    def model(weights, features, *, leaks: bool):
        layer = Layer()
        layer.kept[0] = float(features.sum()) if leaks else 0.5
        return {"a": [layer, None, "text"], "b": (3, weights)}

    for returns, name in ((files, "sub/a.npz.value"), (model, "a.0.kept")):
        result = check_neighbours(Loop(returns=partial(returns, leaks=True)), records())
        assert failing(result) == ["what is released"]
        assert f": {name} differs by " in " ".join(str(result).split())
        assert check_neighbours(Loop(returns=partial(returns, leaks=False)), records()).passes


def test_tables_with_text_are_compared():
    pandas = pytest.importorskip("pandas")

    def table(weights, features, *, leaks: bool, by_name: bool = False):
        value = float(features.max()) if leaks else 1.0
        if by_name:
            return weights, pandas.Series(["a", f"{value:.3f}"]), object()
        return weights, pandas.DataFrame({"metric": ["most"], "value": [value]})

    for by_name, name in ((False, "1.1.value"), (True, "1")):
        returns = partial(table, by_name=by_name)
        result = check_neighbours(Loop(returns=partial(returns, leaks=True)), records())
        assert failing(result) == ["what is released"]
        assert f": {name} differs" in " ".join(str(result).split())
        assert check_neighbours(Loop(returns=partial(returns, leaks=False)), records()).passes


def test_text_that_happens_to_name_a_folder_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    lines = iter(range(1000))

    class Settings:
        def __init__(self) -> None:
            self.name, self.folder = "", "data"

    def returns(weights, features):
        (tmp_path / "log").write_text(f"{next(lines)}")  # which differs in each run
        return weights, Settings(), "", "data"

    result = check_neighbours(Loop(returns=returns), records())
    assert result.passes, str(result)
    named = check_neighbours(
        Loop(returns=lambda weights, features: (weights, f"run {next(lines)}")), records()
    )
    assert any("that are text" in words and words.endswith(": 1") for words in named.not_seen)
    [control] = [one for one in result.findings if one.name == "two runs on the same records"]
    assert control.measured == "equal to the bit"


def test_rounding_explains_nothing_where_the_records_are_the_same():
    def train(dataset, *, is_wrong: bool):
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

    features, labels = records()
    dataset = torch.from_numpy(features), torch.from_numpy(labels)
    result = check_neighbours(partial(train, is_wrong=False), dataset)
    assert result.passes, str(result)
    assert "noise" in result.not_judged
    result = check_neighbours(partial(train, is_wrong=True), dataset)
    assert "sums without the record" in failing(result), str(result)


def test_noise_that_is_no_number_is_not_the_same_noise():
    def train(dataset):
        scale = np.nan if (np.asarray(dataset[0]) == 5).any() else 0.5
        return Loop(noise=lambda total: scale)(dataset)

    result = check_neighbours(train, records(), replacements=[_of_first_batch(Loop())])
    assert failing(result) == ["noise"]


def test_replacements_that_do_not_reach_the_training_are_no_pass():
    own = records()
    result = check_neighbours(lambda dataset: Loop()(own), records())
    assert result.compares_nothing
    assert "no replacement changed the sum of a step" in str(result).replace("\n", " ")
    texts = ["a", "b", "c"] * 30
    with pytest.raises(InputError, match="'text' is a list with a row for each record"):
        check_neighbours(lambda dataset: None, {"text": texts, "label": own[1]})


class Patients(Dataset):
    def __init__(self, scale: float = 1.0) -> None:
        self.x, self.y = records()
        self.scale = scale
        self.order = [*range(COUNT)]
        if scale == 1:
            self.file = (number for number in range(3))  # of which there is no copy

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: Any) -> Any:
        return self.x[index] * self.scale, self.y[index]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_attributes_of_a_dataset_of_ones_own_have_the_replaced_record(scale):
    def train(dataset, *, is_wrong: bool, in_place: bool = False):
        deviation = dataset.x.std(axis=0)
        rows = [dataset[number] for number in range(len(dataset))]
        if in_place:
            dataset.x -= 1
        features, labels = (np.array(own) for own in zip(*rows, strict=True))
        return Loop()((features / deviation if is_wrong else features, labels))

    data = Patients(scale)
    before = data.x.copy()
    assert check_neighbours(partial(train, is_wrong=False, in_place=True), data).passes
    assert (data.x == before).all()
    result = check_neighbours(partial(train, is_wrong=True), data)
    if scale == 1:
        assert failing(result)[0] == "sums without the record"
    else:  # a row is not what the dataset gives
        assert any(words.endswith("no record was replaced: x") for words in result.not_seen)
    result = check_neighbours(lambda dataset: Loop()(dataset[:]), data)
    assert result.passes, str(result)
    assert any("was replaced: x" in words for words in result.not_seen) == (scale != 1)
    assert result.largest > 0.5 or scale != 1


class OfItems(Dataset):
    def __init__(self, count: int) -> None:
        self.values = [float(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([self.values[index]]), index % 2


# jax, which another test of this process may have loaded, warns where loaders fork their workers.
@pytest.mark.filterwarnings(r"ignore:os\.fork")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["tensors", "items", "list", "subset"])
def test_batches_of_loaders_are_noted_as_they_are_given(num_workers, kind):
    """With workers too, which fetch batches before they are used."""
    items = OfItems(30)
    tensors = TensorDataset(torch.arange(30.0)[:, None], torch.arange(30) % 2)
    given = {"items": items, "list": [items[one] for one in range(30)]}.get(kind, tensors)
    reader = Reader(30)
    dataset = Data(given).copied(reader, 5, (torch.tensor([77.0]), 1))
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
    assert given[5][0] == 5  # the original is unchanged


def test_rows_of_tensors_and_arrays_are_noted():
    reader = Reader(10)
    values, numbers = Data((torch.arange(20.0).reshape(10, 2), np.arange(10))).copied(reader)
    assert type(values) is NotingTensor
    assert type(numbers) is NotingArray
    for taken, expected in (
        (lambda: values[[3, 1]], [3, 1]),
        (lambda: values[2:5, 0], [2, 3, 4]),
        (lambda: values.double()[values[:, 0] > 13], [7, 8, 9]),
        (lambda: (values / 2).index_select(0, torch.tensor([4])), [4]),
        (lambda: numbers[np.array([6, 6])], [6, 6]),
        (lambda: (numbers + 1)[-1], [9]),
    ):
        reader.take_batches()
        plain = taken()
        assert type(plain) not in (NotingTensor, NotingArray)
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


TRAINING = """
import numpy as np
from dpcanary.own_training import record_sums

def records():
    rng = np.random.default_rng(0)
    return rng.standard_normal((40, 2)), np.arange(40) % 2

def train(dataset, scale=False):
    features, labels = dataset
    rng, weights = np.random.default_rng(1), np.zeros(2)
    if scale:
        features = features / features.max()
    for _ in range(6):
        batch = np.flatnonzero(rng.random(40) < 0.3)
        rows = np.asarray(features[batch])
        total = (rows / (1 + np.linalg.norm(rows, axis=1))[:, None]).sum(axis=0)
        noisy = total + rng.standard_normal(2)
        weights = weights - record_sums(total, noisy, max_grad_norm=1.0, parameters=weights)
    return weights

def wrong(dataset):
    return train(dataset, scale=True)

def nothing(dataset):
    return None
"""


def test_the_command_its_exit_codes_json_and_page(tmp_path, monkeypatch):
    (tmp_path / "own_neighbours.py").write_text(TRAINING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    features = ["--features", "own_neighbours:records"]

    def run(name: str, *options: str) -> Any:
        arguments = ["check", "--neighbours", f"own_neighbours:{name}", *features, *options]
        return CliRunner().invoke(app, arguments)

    done = run("train", "--report", "page.html")
    assert done.exit_code == 0
    assert "sums with the record" in done.stdout
    page = Path("page.html").read_text()
    assert "Neighbours: the training passes" in page
    assert "sums without the record" in page
    done = run("wrong", "--json", "--report", "page.html")
    assert done.exit_code == 3
    result = json.loads(done.stdout)
    assert not result["passes"]
    assert result["num_steps"] == 6
    assert result["cause"].startswith("Look first at: sums without the record")
    assert '<span class="fails">fails</span>' in Path("page.html").read_text()
    assert run("nothing").exit_code == 4
    done = run("train", "--first-steps", "2", "--json")
    assert json.loads(done.stdout)["num_steps"] == 2
    done = CliRunner().invoke(app, ["check", "--first-steps", "2", "own_neighbours:train"])
    assert done.exit_code == 2
    assert CliRunner().invoke(app, ["check", "--neighbours", "own_neighbours:train"]).exit_code == 2


def test_the_fixture_fails_with_the_whole_result(assert_neighbours):
    assert_neighbours(ERRORS["C"][2], records(), seed=9)
    with pytest.raises(AssertionError, match=r"settings +step 1: max_grad_norm is "):
        assert_neighbours(ERRORS["C"][1], records(), seed=9)
