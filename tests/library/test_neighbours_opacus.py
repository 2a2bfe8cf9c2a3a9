"""The check of neighbours on trainings with Opacus: every mode, and the list of the benchmarks."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.neighbour_trainings import RIGHT, WRONG, Fit, Training, records
from benchmarks.neighbours import blind, checked, failing, is_named
from dpcanary.checking.neighbours.neighbours_check import NeighboursCheck, check_neighbours
from dpcanary.checking.neighbours.replacements import Replacement

MODES = (
    *("hooks", "functorch", "expanded weights", "ghost clipping", "clipping per layer"),
    *("adaptive clipping", "adaptive ghost clipping", "in parts", "accumulated"),
)


def briefly_checked(training: Training, *, num_steps: int = 4, seed: int = 1) -> NeighboursCheck:
    """With the record of a first batch replaced by a loud one, and few steps."""
    dataset: Any = (training.records or records)()
    first = _record_of_first_batch(training, dataset, seed)
    features, label = dataset[first]
    loud = (features * 0 + 9, 1 - int(label))
    replacements = [Replacement(first, loud, "a loud record")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check_neighbours(
            training.train, dataset, replacements=replacements, num_steps=num_steps, seed=seed
        )


def _record_of_first_batch(training: Training, dataset: Any, seed: int) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = check_neighbours(training.train, dataset, num_steps=1, seed=seed)
    return int(result.replacements[0].split()[1])


@pytest.mark.parametrize("name", MODES)
def test_modes_of_opacus_pass(name):
    result = briefly_checked(RIGHT[name])
    assert result.passes, str(result)
    assert result.num_steps == 4
    assert 0.2 < result.largest <= 2.01
    assert result.batches_known
    assert 1 <= result.steps_with_record[0] < 4


def test_a_record_in_two_batches_of_one_step_moves_its_sum_too_far():
    """Steps add up the last batch of a pass and the first one of the next pass."""

    def train(dataset):
        loader = {"batch_size": len(dataset) // 2, "shuffle": True}
        fit = Fit(dataset, loader=loader, poisson_sampling=False)
        for _ in range(6):
            for number, (features, labels) in enumerate(fit.loader):
                fit.loss(fit.model(features), labels).backward()
                if number == 0:
                    fit.optimizer.step()
                    fit.optimizer.zero_grad()
        return fit.network

    result = briefly_checked(Training(train), num_steps=6)
    [finding] = [own for own in result.findings if not own.holds]
    assert finding.name == "sums with the record"
    assert 2.1 < result.largest <= 4.01
    assert "the record is 2 times in the step" in finding.meaning


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("centred by the batch", "sums with the record"),
        ("standardised by private records", "sums without the record"),
        ("begun without noise", "parameters"),
        ("a clean update of the bias", "parameters"),
        ("learning rate by the loss of a step", "settings"),
        ("noise by the labels", "settings"),
    ],
)
def test_wrong_trainings_with_opacus_are_named(name, expected):
    result = briefly_checked(WRONG[name])
    assert failing(result)[0] == expected, str(result)


@pytest.mark.long
def test_adaptive_ghost_clipping_of_a_mean_loss_does_not_clip():
    result = checked(WRONG["adaptive ghost clipping of a mean loss"])
    assert failing(result) == ["sums with the record"]
    assert result.largest > 2.1


def test_the_cause_of_other_features_is_named():
    result = briefly_checked(WRONG["standardised by private records"])
    assert "other records in the batches of step 1 have other values" in result.cause


def test_names_of_parameters_are_those_of_the_model():
    result = briefly_checked(WRONG["bias from class frequencies"])
    [finding] = [one for one in result.findings if one.name == "parameters"]
    assert "step 1: 2.bias differs" in finding.measured


def test_opacus_is_left_as_it_was():
    from opacus.optimizers import DPOptimizer
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    before = DPOptimizer.__init__, _BaseDataLoaderIter.__next__, torch.Tensor.item
    briefly_checked(RIGHT["hooks"], num_steps=2)
    assert (DPOptimizer.__init__, _BaseDataLoaderIter.__next__, torch.Tensor.item) == before


@pytest.mark.long
def test_jax_privacy():
    assert checked(RIGHT["jax_privacy"]).passes
    wrong = WRONG["jax, scaled by private records"]
    assert failing(checked(wrong))[0] == "sums without the record"


PROCESSES = """
import sys, warnings
import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from dpcanary import check_neighbours
from dpcanary.own_training import Replacement

warnings.simplefilter("ignore")
rank, path, scales = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "wrong"
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
generator = torch.Generator().manual_seed(0)
features = torch.randn(60, 5, generator=generator)
dataset = TensorDataset(features, (features[:, 0] > 0).long())

def train(dataset):
    features, labels = dataset.tensors
    if scales:
        features = features / features.abs().max()
    model = DPDDP(nn.Linear(5, 2))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.3),
        data_loader=DataLoader(TensorDataset(features, labels), batch_size=12),
        noise_multiplier=1.0, max_grad_norm=0.7,
    )
    for batch, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), targets).backward()
        optimizer.step()
    return model

loud = [Replacement(index, (torch.full((5,), 8.0), 1)) for index in (3, 20)]
result = check_neighbours(train, dataset, replacements=loud)
failing = [one.name for one in result.ranked if not one.holds]
print(result.passes, 0 < result.largest < 2.01, failing[:1], result.batches_known)
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_two_processes(tmp_path, kind):
    program = tmp_path / "program.py"
    program.write_text(PROCESSES)
    started = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(tmp_path / "group"), kind],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for rank in range(2)
    ]
    for process in started:
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        words = output.splitlines()[-1]
        expected = "True True [] True" if kind == "right" else "False "
        assert words.startswith(expected)
        assert kind == "right" or "['sums without the record'] True" in words


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_training_is_named(name):
    names = failing(checked(WRONG[name]))
    assert is_named(WRONG[name], names), names


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", RIGHT)
def test_every_right_training_passes_with_several_seeds(name):
    for seed in range(4):
        result = checked(RIGHT[name], seed=seed)
        assert result.passes, str(result)


@pytest.mark.exhaustive
def test_blind_trainings_can_be_loaded():
    wrong, right = blind()
    assert all(callable(training.train) for training in (*wrong.values(), *right.values()))
