"""The check of a training loop: right ones pass at the stated rate, planted bugs are found."""

import json
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from dpcanary import DPSGD, InputCanary, Records, check_mechanism, train_ensemble
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.mechanism_check.measurements import Measurements
from dpcanary.mechanism_check.properties import batch_sizes

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


def per_record_gradients(module: nn.Module, features, labels) -> dict[str, torch.Tensor]:
    parameters = {name: value.detach() for name, value in module.named_parameters()}

    def loss(own, one, label):
        logits = functional_call(module, own, (one[None],))
        return nn.functional.cross_entropy(logits, label[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features, labels)


@torch.no_grad()
def dpsgd(module, dataset, settings, *, bug: str = "") -> None:
    """DP-SGD as a user might write it, with a planted bug."""
    features, labels = dataset.tensors
    count, norm = len(labels), settings.max_grad_norm
    size = settings.sample_rate * count
    order = torch.randperm(count)
    shared = torch.randn(1) if bug == "one noise for all" else None
    for step in range(settings.num_steps):
        if bug == "same noise in each step":
            state = torch.get_rng_state()
            torch.manual_seed(settings.seed)
        drawn = torch.rand(count) < settings.sample_rate
        if bug == "same noise in each step":
            torch.set_rng_state(state)
            drawn = torch.rand(count) < settings.sample_rate
        rows = torch.nonzero(drawn)[:, 0]
        if bug == "fixed size without replacement":
            rows = torch.randperm(count)[: int(size)]
        if bug == "shuffled":
            rows = order[step * int(size) : (step + 1) * int(size)]
        if bug == "other rate":
            rows = torch.nonzero(torch.rand(count) < 1.2 * settings.sample_rate)[:, 0]
        found = per_record_gradients(module, features[rows], labels[rows])
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        divisor = max(1, len(rows)) if bug == "realised batch" else size
        if bug == "same noise in each step":
            noises = torch.Generator().manual_seed(settings.seed)
        else:
            noises = None
        for name, parameter in module.named_parameters():
            factors = (norm / norms.clamp(min=1e-30)).clamp(max=1.0)
            if bug == "clipped per layer":
                own = found[name].flatten(1).norm(dim=1)
                factors = (norm / own.clamp(min=1e-30)).clamp(max=1.0)
            if bug == "not clipped":
                factors = torch.ones(len(rows))
            if bug == "clipped after averaging":
                total = torch.stack([(g.sum(0) / size).norm() for g in found.values()]).norm()
                factors = torch.ones(len(rows)) * (norm / total.clamp(min=1e-30)).clamp(max=1.0)
            summed = (found[name] * factors[:, None, None]).sum(dim=0)
            noise = torch.randn(parameter.shape, generator=noises)
            if bug == "one noise for all":
                noise = shared.expand(parameter.shape)
            scale = settings.noise_multiplier * norm
            if bug == "learning rate twice":
                scale *= settings.learning_rate
            if bug == "uniform noise":
                noise = (torch.rand(parameter.shape) - 0.5) * 12**0.5
            noise_divisor = max(1, len(rows)) if bug == "noise by realised batch" else divisor
            update = summed / divisor + scale * noise / noise_divisor
            parameter -= settings.learning_rate * update


def opacus(module, dataset, settings, *, poisson: bool = True) -> None:
    warnings.simplefilter("ignore")
    engine = PrivacyEngine()
    size = int(settings.sample_rate * len(dataset))
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=size, shuffle=not poisson),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
        poisson_sampling=poisson,
    )
    done = 0
    while done < settings.num_steps:
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
            done += 1
            if done == settings.num_steps:
                break


def failing(found) -> set[str]:
    return {finding.name for finding in found.findings if not finding.holds}


def test_opacus_is_the_mechanism_that_is_accounted():
    found = check_mechanism(opacus)
    assert found.passes, str(found)
    assert "Nothing speaks against the mechanism that is accounted." in str(found)
    assert [*found.summary["name"]] == [finding.name for finding in found.findings]


def test_opacus_with_shuffled_batches_is_not():
    found = check_mechanism(partial(opacus, poisson=False))
    assert failing(found) >= {"Poisson sampling"}


@pytest.mark.parametrize(
    ("bug", "names"),
    [
        ("realised batch", {"normalisation", "constant noise"}),
        ("noise by realised batch", {"constant noise"}),
        ("clipped after averaging", {"clipping"}),
        ("fixed size without replacement", {"Poisson sampling"}),
        ("learning rate twice", {"noise scale"}),
        ("shuffled", {"Poisson sampling", "new batch in each step"}),
        ("other rate", {"sampling rate"}),
        ("clipped per layer", {"clipping"}),
        ("not clipped", {"clipping"}),
        ("same noise in each step", {"independent steps"}),
        ("one noise for all", {"independent coordinates"}),
        ("uniform noise", {"Gaussian noise"}),
    ],
)
def test_planted_bugs_are_found_by_name(bug, names):
    found = check_mechanism(partial(dpsgd, bug=bug))
    assert failing(found) >= names, str(found)
    text = str(found)
    assert "properties do not hold: the accounted epsilon is not that of this training" in text
    for name in names:
        assert f"FAIL  {name}" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"max_grad_norm": 0.1, "learning_rate": 1.0, "noise_multiplier": 5.0},
        {"max_grad_norm": 3.0, "learning_rate": 0.01, "sample_rate": 0.5},
        {"num_records": 100, "num_trainings": 20, "seed": 3},
        {"num_records": 1000, "num_trainings": 20, "sample_rate": 0.01},
    ],
)
def test_a_right_loop_passes_at_other_settings(changes):
    found = check_mechanism(dpsgd, **changes)
    assert found.passes, str(found)


@pytest.mark.long
def test_right_loops_fail_at_most_at_the_stated_rate():
    """Each random property fails about as often as its part of the significance says, or less."""
    level, num_checks = 0.2, 200
    results = [
        check_mechanism(
            dpsgd, num_records=40, num_trainings=12, sample_rate=0.25, seed=seed, significance=level
        )
        for seed in range(num_checks)
    ]
    rate = np.mean([not found.passes for found in results])
    error = np.sqrt(level * (1 - level) / num_checks)
    assert rate < level + 3 * error
    by_name = {
        finding.name: np.mean(
            [not [one.holds for one in found.findings][index] for found in results]
        )
        for index, finding in enumerate(results[0].findings)
    }
    assert max(by_name.values()) < 0.2, by_name


def test_batch_sizes_at_a_small_rate_are_tested_at_their_level():
    """Where squared deviations of binomial numbers are far from chi-squared."""
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(300):
        parts = (rng.random((20, 400)) < 0.005).astype(float)
        zeros = np.zeros((20, 4))
        found = Measurements(zeros, zeros, parts, parts, np.ones(400))
        p_values.append(batch_sizes(found, 0.005)[1])
    error = 3 * np.sqrt(0.05 * 0.95 / 300)
    assert np.mean(np.array(p_values) <= 0.05) < 0.05 + error


def test_checks_that_cannot_be_made_are_refused():
    def broken(module, dataset, settings):
        raise KeyError("input_ids")

    with pytest.raises(InputError, match=r"failed on a probe \(KeyError: 'input_ids'\); it must"):
        check_mechanism(broken)
    for wrong in ({"sample_rate": 0.004}, {"sample_rate": 0.123}):
        with pytest.raises(InputError, match="it must be a whole number, at least 10"):
            check_mechanism(dpsgd, **wrong)
    with pytest.raises(InputError, match="learning_rate 100 is too large for a probe"):
        check_mechanism(dpsgd, learning_rate=100.0)
    with pytest.raises(InputError, match="num_records is 21; it must be even"):
        check_mechanism(dpsgd, num_records=21)


def test_a_loop_that_does_nothing_fails():
    found = check_mechanism(lambda module, dataset, settings: None)
    assert failing(found) >= {"sampling rate", "noise scale", "normalisation", "clipping"}


def own_trainer(module, dataset, settings) -> None:
    """The trainer of this package. Its canary is the record that it replaces."""
    features, labels = (tensor.numpy() for tensor in dataset.tensors)
    result = train_ensemble(
        module=module,
        records=Records(features, labels),
        canary=InputCanary(features[0], int(labels[0]), 0),
        dpsgd=DPSGD(
            noise_multiplier=settings.noise_multiplier,
            max_grad_norm=settings.max_grad_norm,
            sample_rate=settings.sample_rate,
            learning_rate=settings.learning_rate,
            record_steps=(settings.num_steps,),
        ),
        runs=[0, 1],
        seed=settings.seed,
        keep_parameters=True,
    )
    assert result.parameters is not None
    vector_to_parameters(torch.from_numpy(result.parameters[0]), module.parameters())


def test_the_trainer_of_this_package_is_the_mechanism_that_is_accounted():
    found = check_mechanism(own_trainer)
    assert found.passes, str(found)


def test_the_command(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(name: str, *options: str):
        return CliRunner().invoke(app, ["check", f"checked_training:{name}", *options])

    good = run("train")
    assert good.exit_code == 0, good.output
    assert "Nothing speaks against the mechanism that is accounted." in good.stdout
    bad = run("train_by_hand", "--num-trainings", "20")
    assert bad.exit_code == 3
    assert "FAIL  normalisation" in bad.stdout
    found = json.loads(run("train", "--num-trainings", "20", "--json").stdout)
    assert found["passes"]
    assert len(found["findings"]) == 10
    assert "has no function 'trian'" in str(run("trian").exception)
    assert run("").exit_code == 2
