"""The check of neighbours on trainings with Opacus: every mode, and the list of the benchmarks."""

import re
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from running import ROOT, printed_by
from torch.utils.data import TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from benchmarks.error_lists.own_whole_trainings import RIGHT, WRONG, Fit, Training, records
from benchmarks.neighbours import checked, failing, is_named
from dpcanary import check_mechanism, watch
from dpcanary.checking.neighbours.neighbour_datasets import Data
from dpcanary.checking.neighbours.neighbours_check import NeighboursCheck, check_neighbours
from dpcanary.checking.neighbours.records_seen import Reader
from dpcanary.checking.neighbours.replacements import Replacement
from dpcanary.checking.neighbours.session import Session
from dpcanary.checking.neighbours.tape import Tape
from dpcanary.checking.neighbours.timed_runs import run_once

# Opacus warns of its random numbers, and PyTorch of hooks.
pytestmark = pytest.mark.filterwarnings("ignore")

MODES = (
    *("hooks", "functorch", "expanded weights", "ghost clipping", "clipping per layer"),
    *("adaptive clipping", "adaptive ghost clipping", "in parts", "accumulated"),
)


def briefly_checked(training: Training, folder: Path, *, num_steps: int = 4) -> NeighboursCheck:
    """With the record of a first batch replaced by a loud one, and few steps."""
    dataset: Any = (training.records or records)()
    data = Data(dataset)
    session = Session(Tape(folder), reader := Reader(data.count), num_steps=1)
    run = run_once(training.train, data.copied(reader), session, seed=1, seconds=None)
    first = int(run.steps[0].batches[0].records[0])
    features, label = dataset[first]
    loud = Replacement(first, (features * 0 + 9, 1 - int(label)), "a loud record")
    return check_neighbours(
        training.train, dataset, replacements=[loud], num_steps=num_steps, seed=1
    )


@pytest.mark.parametrize("name", MODES)
def test_modes_of_opacus_pass_and_leave_it_as_it_was(name, tmp_path):
    def patched():
        return DPOptimizer.__init__, _BaseDataLoaderIter.__next__, torch.Tensor.item

    before = patched()
    result = briefly_checked(RIGHT[name], tmp_path)
    assert patched() == before
    assert result.passes, str(result)
    assert (result.num_steps, result.batches_known) == (4, True)
    assert 0.2 < result.largest <= 2.01
    assert 1 <= result.steps_with_record[0] < 4


def test_a_record_in_two_batches_of_one_step_moves_its_sum_too_far(tmp_path):
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

    result = briefly_checked(Training(train), tmp_path, num_steps=6)
    assert failing(result) == ["sums with the record"]
    assert 2.1 < result.largest <= 4.01
    assert "the record is 2 times in the step" in result.ranked[0].meaning


@pytest.mark.parametrize(("name", "expected", "words"), [
    ("centred by the batch", "sums with the record", ""),
    ("standardised by private records", "sums without the record",
        "other records in the batches of step 1 have other values"),
    ("begun without noise", "parameters", ""),
    ("a clean update of the bias", "parameters", ""),
    ("bias from class frequencies", "parameters", "step 1: 2.bias differs"),
    ("learning rate by the loss of a step", "settings", ""),
    ("noise by the labels", "settings", ""),
])  # fmt: skip
def test_wrong_trainings_with_opacus_are_named(name, expected, words, tmp_path):
    result = briefly_checked(WRONG[name], tmp_path)
    assert failing(result)[0] == expected, str(result)
    assert words in result.cause


@pytest.mark.long
def test_the_story_of_the_page_passes_the_other_checks():
    """The page's training: `check` and `watch` find its loop right, neighbours its features."""
    story = runpy.run_path(str(ROOT / "docs/examples/neighbours.py"))
    assert check_mechanism(story["fit"]).passes
    dataset, settings = story["records"](), SimpleNamespace(**vars(story["SETTINGS"]))
    settings.num_steps = 100  # enough for the tests of `watch`
    amounts, labels = dataset.tensors
    scaled = TensorDataset((amounts - amounts.mean(dim=0)) / amounts.std(dim=0), labels)
    watched = story["fit"](
        torch.nn.Linear(5, 2), scaled, settings, partial(watch, num_canaries=10)
    ).result(delta=1e-5)
    assert watched.alarm is None
    leaking = check_neighbours(story["train"], dataset)
    assert failing(leaking)[0] == "sums without the record", str(leaking)
    assert check_neighbours(partial(story["train"], private=True), dataset).passes


@pytest.mark.long
def test_adaptive_ghost_clipping_of_a_mean_loss_does_not_clip():
    result = checked(WRONG["adaptive ghost clipping of a mean loss"])
    assert failing(result) == ["sums with the record"]
    assert result.largest > 2.1


@pytest.mark.long
def test_jax_privacy():
    assert checked(RIGHT["jax_privacy"]).passes
    wrong = WRONG["jax, scaled by private records"]
    assert failing(checked(wrong))[0] == "sums without the record"


PROCESSES = """
import warnings
import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from dpcanary import check_neighbours
from dpcanary.own_training import Replacement

warnings.simplefilter("ignore")
dist.init_process_group("gloo")
generator = torch.Generator().manual_seed(0)
features = torch.randn(60, 5, generator=generator)
dataset = TensorDataset(features, (features[:, 0] > 0).long())
loud = [Replacement(index, (torch.full((5,), 8.0), 1)) for index in (3, 20)]

for scales in (False, True):
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

    result = check_neighbours(train, dataset, replacements=loud)
    names = [finding.name for finding in result.ranked if not finding.holds]
    outcome = names[:1], result.passes, 0 < result.largest < 2.01, result.batches_known
    print(f"{scales}: {outcome}\\n", end="", flush=True)
"""


@pytest.mark.long
def test_two_processes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROCESSES)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
    printed = printed_by([*command, program], tmp_path)
    assert printed.count("False: ([], True, True, True)\n") == 2
    wrong = r"True: \(\['sums without the record'\], False, (True|False), True\)\n"
    assert len(re.findall(wrong, printed)) == 2


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
