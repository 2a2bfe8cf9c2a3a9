"""The check of a training loop: right ones pass at the stated rate, planted bugs are found."""

import json
import re
import sys
import warnings
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from scipy.stats import binom
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from dpcanary import Records, check_mechanism
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.mechanism_check.check import smallest_errors
from dpcanary.mechanism_check.findings import findings_of, level_of_each
from dpcanary.mechanism_check.laws import spread_p_value
from dpcanary.mechanism_check.measurements import Measurements, Plan, Probe, Settings, norms_of
from dpcanary.training import DPSGD, InputCanary, train_ensemble

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
# Far from the defaults in everything, with enough values for errors of 10 % in one parameter.
OTHER = {
    "max_grad_norm": 0.5,
    "learning_rate": 0.2,
    "sample_rate": 0.25,
    "noise_multiplier": 3.0,
    "num_records": 120,
    "num_trainings": 40,
    "seed": 1,
}


def per_record_gradients(module: nn.Module, features, labels) -> dict[str, Tensor]:
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    if not len(labels):  # PyTorch's gradient of embeddings fails under vmap
        return {name: value[None][:0] for name, value in parameters.items()}

    def loss(own, one, label):
        logits = functional_call(module, own, (one[None],))
        return nn.functional.cross_entropy(logits, label[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features, labels)


def drawn_rows(order: Tensor, step: int, settings, bug: str) -> Tensor:
    """The records of a batch."""
    rates = torch.full((len(order),), settings.sample_rate)
    size = round(settings.sample_rate * len(order))
    if bug == "fixed size without replacement":
        return torch.randperm(len(order))[:size]
    if bug == "shuffled":
        return order[step * size : (step + 1) * size]
    if bug == "other rate":
        rates *= 1.2
    if bug == "rates differ between records":
        rates *= torch.where(torch.arange(len(order)) % 3 == 0, 1.6, 0.7)
    if bug == "one record in every batch":
        rates[3] = 1.0
    return torch.nonzero(torch.rand(len(order)) < rates)[:, 0]


def clipped(found: dict[str, Tensor], limit: float, size: float, bug: str) -> dict[str, Tensor]:
    """Gradients times their factors, by parameter; shape (records, ...)."""
    norms = {name: gradients.flatten(1).norm(dim=1) for name, gradients in found.items()}
    left_out = {"norm without the bias": "bias", "norm without the embedding": "embedding"}.get(bug)
    counted = [own for name, own in norms.items() if left_out is None or left_out not in name]
    norm = torch.stack(counted).norm(dim=0)
    if bug == "clipped after averaging":
        means = [gradients.sum(dim=0).norm() / size for gradients in found.values()]
        norm = torch.stack(means).norm().expand(norm.shape)
    factors = (limit / norm.clamp(min=1e-30)).clamp(max=1.0)
    if bug == "clipped above 2 C alone":
        factors[norm <= 2.001 * limit] = 1.0
    if bug == "not clipped above 50 C":
        factors[norm > 50 * limit] = 1.0
    if bug == "clipped to C / (norm + .1 C)":
        factors = (limit / (norm + 0.1 * limit)).clamp(max=1.0)
    if bug == "always scaled to C":
        factors = limit / norm.clamp(min=1e-30)
    if bug == "not clipped":
        factors = torch.ones_like(norm)
    result = {}
    for name, gradients in found.items():
        own_factors = factors
        if bug == "clipped per parameter":
            own_factors = (limit / norms[name].clamp(min=1e-30)).clamp(max=1.0)
        if bug.endswith(("not clipped", "not clipped, without noise")) and bug.split()[0] in name:
            own_factors = torch.ones_like(norm)
        result[name] = gradients * own_factors.view(-1, *[1] * (gradients.dim() - 1))
    return result


def drawn_noise(module: nn.Module, settings, bug: str) -> dict[str, Tensor]:
    """Standard normal noise by parameter, if there is no bug."""
    source = torch.Generator()
    source.manual_seed(settings.seed if bug == "same noise in each step" else int(source.seed()))
    noise = {}
    for name, parameter in module.named_parameters():
        if bug == "one seed for every parameter":
            source.manual_seed(settings.seed)
        noise[name] = torch.randn(parameter.shape, generator=source)
    everything = torch.cat([own.flatten() for own in noise.values()])
    for name, own in noise.items():
        if bug == "uniform noise" or (bug == "uniform noise of the bias" and "bias" in name):
            noise[name] = (torch.rand(own.shape) - 0.5) * 12**0.5
        if bug == "one noise for all":
            noise[name] = everything[:1].expand(own.shape)
        if bug == "noise cut at 2.5 deviations":
            noise[name] = own.clamp(min=-2.5, max=2.5)
        if bug == "noise without its mean":
            noise[name] = own - everything.mean()
        if bug == "noise without the mean of each parameter":
            noise[name] = own - own.mean()
        if bug == "noise without the mean of each row" and own.dim() == 2 and own.shape[1] > 1:
            noise[name] = own - own.mean(dim=1, keepdim=True)
        if bug == "noise of one length":
            noise[name] = own * len(everything) ** 0.5 / everything.norm()
        if bug.startswith("noise of the") and "10 %" in bug and bug.split()[3] in name:
            noise[name] = own * (0.9 if "less" in bug else 1.1)
        if bug == "noise in few rows of the embedding" and "embedding" in name:
            noise[name][:-5] = 0.0
        if bug.endswith("without noise") and bug.split()[0] in name:
            noise[name] = torch.zeros(own.shape)
    if bug == "second layer gets the noise of the first":
        noise["second.weight"] = noise["first.weight"]
    if bug == "second layer gets minus the noise of the first":
        noise["second.weight"] = -noise["first.weight"]
    return noise


@torch.no_grad()
def dpsgd(module, dataset, settings, *, bug: str = "") -> None:
    """DP-SGD as a user might write it, with a planted bug."""
    features, labels = dataset.tensors
    size, order = settings.sample_rate * len(labels), torch.randperm(len(labels))
    for step in range(settings.num_steps):
        rows = drawn_rows(order, step, settings, bug)
        found = per_record_gradients(module, features[rows], labels[rows])
        parts = clipped(found, settings.max_grad_norm, size, bug)
        noise = drawn_noise(module, settings, bug)
        scale = settings.noise_multiplier * settings.max_grad_norm
        if bug == "learning rate twice":
            scale *= settings.learning_rate
        divisor = max(1, len(rows)) if bug == "realised batch" else size
        noise_divisor = max(1, len(rows)) if bug == "noise by realised batch" else divisor
        for name, parameter in module.named_parameters():
            update = parts[name].sum(dim=0) / divisor + scale * noise[name] / noise_divisor
            parameter -= settings.learning_rate * update


def opacus(module, dataset, settings, *, poisson: bool = True, mode: str = "hooks") -> None:
    warnings.simplefilter("ignore")
    size, criterion = int(settings.sample_rate * len(dataset)), nn.CrossEntropyLoss()
    module, optimizer, *wrapped, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        criterion=criterion,
        data_loader=DataLoader(dataset, batch_size=size, shuffle=not poisson),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
        poisson_sampling=poisson,
        grad_sample_mode=mode,
    )
    [criterion] = wrapped or [criterion]  # wrapped for ghost clipping alone
    done = 0
    while done < settings.num_steps:
        for features, labels in loader:
            optimizer.zero_grad()
            criterion(module(features), labels).backward()
            optimizer.step()
            done += 1
            if done == settings.num_steps:
                break


def failing(found) -> set[str]:
    return {finding.name for finding in found.findings if not finding.holds}


@pytest.mark.parametrize("changes", [{}, OTHER], ids=["defaults", "other settings"])
def test_opacus_is_the_mechanism_that_is_accounted(changes):
    found = check_mechanism(opacus, **changes)
    assert found.passes, str(found)
    assert "Nothing speaks against the mechanism that is accounted." in str(found)
    assert "Not seen by this check:\n- errors of your own model and data" in str(found)
    assert [*found.summary["name"]] == [finding.name for finding in found.findings]


@pytest.mark.parametrize("mode", ["functorch", "ew", "ghost"])
def test_so_are_its_other_ways_to_clip(mode):
    found = check_mechanism(partial(opacus, mode=mode), num_trainings=12)
    assert found.passes, str(found)


def test_opacus_with_shuffled_batches_is_not():
    found = check_mechanism(partial(opacus, poisson=False))
    assert failing(found) >= {"Poisson sampling"}


# Bugs, and the properties that must fail, with what their measurement must name.
BUGS = [
    ("realised batch", {"normalisation": "", "constant noise": ""}),
    ("noise by realised batch", {"constant noise": ""}),
    ("fixed size without replacement", {"Poisson sampling": ""}),
    ("shuffled", {"Poisson sampling": "", "new batch in each step": ""}),
    ("other rate", {"sampling rate": ""}),
    ("rates differ between records", {"sampling rate": "each record in"}),
    ("one record in every batch", {"sampling rate": "record 3 in"}),
    ("clipped after averaging", {"clipping": ""}),
    ("clipped per parameter", {"clipping": ""}),
    ("clipped above 2 C alone", {"clipping": "at 1.1 C, 1.5 C, 2 C"}),
    ("clipped to C / (norm + .1 C)", {"clipping": ""}),
    ("not clipped above 50 C", {"clipping": "at 100 C"}),
    ("not clipped", {"clipping": ""}),
    ("always scaled to C", {"normalisation": ""}),
    ("norm without the bias", {"clipping": ""}),
    ("norm without the embedding", {"clipping": ""}),
    ("bias not clipped", {"clipping": "in hidden.bias"}),
    ("embedding not clipped", {"clipping": "in embedding.weight"}),
    ("bias without noise", {"noise scale": "hidden.bias 0"}),
    ("embedding without noise", {"noise scale": "embedding.weight 0"}),
    ("bias not clipped, without noise", {"clipping": "hidden.bias", "noise scale": "hidden.bias"}),
    ("noise in few rows of the embedding", {"noise scale": "embedding.weight 0."}),
    ("noise of the bias 10 % less", {"noise scale": "hidden.bias 0."}),
    ("noise of the embedding 10 % more", {"noise scale": "embedding.weight 1."}),
    ("noise of the first 10 % less", {"noise scale": "first.weight 0."}),
    ("learning rate twice", {"noise scale": ""}),
    ("noise of one length", {"constant noise": ""}),
    ("uniform noise", {"Gaussian noise": ""}),
    ("uniform noise of the bias", {"Gaussian noise": "hidden.bias"}),
    ("noise cut at 2.5 deviations", {"Gaussian noise": ""}),
    ("same noise in each step", {"independent steps": ""}),
    ("one noise for all", {"independent coordinates": ""}),
    ("one seed for every parameter", {"independent coordinates": ""}),
    ("noise without its mean", {"independent coordinates": ""}),
    (
        "noise without the mean of each parameter",
        {"independent coordinates": "0.00 in sums over coordinates"},
    ),
    (
        "noise without the mean of each row",
        {"independent coordinates": "first.weight 0.00 in sums of rows"},
    ),
    (
        "second layer gets the noise of the first",
        {"independent coordinates": "first.weight and second.weight correlated by 1"},
    ),
    (
        "second layer gets minus the noise of the first",
        {"independent coordinates": "first.weight and second.weight correlated by -1"},
    ),
]


@pytest.mark.parametrize("changes", [{}, OTHER], ids=["defaults", "other settings"])
@pytest.mark.parametrize(("bug", "expected"), BUGS)
def test_planted_bugs_are_found_by_name(bug, expected, changes):
    found = check_mechanism(partial(dpsgd, bug=bug), **changes)
    measured = {one.name: one.measured for one in found.findings if not one.holds}
    assert measured.keys() >= expected.keys(), str(found)
    text = str(found)
    assert "do not hold: the accounted epsilon is not that of this training" in text
    for name, place in expected.items():
        assert f"FAIL  {name}" in text
        assert place in measured[name]


@pytest.mark.parametrize(
    "changes",
    [
        OTHER,
        {"max_grad_norm": 0.1, "learning_rate": 1.0, "noise_multiplier": 5.0},
        {"max_grad_norm": 3.0, "learning_rate": 0.01, "sample_rate": 0.5},
        {"num_records": 100, "num_trainings": 20, "seed": 3},
        {"num_records": 1000, "num_trainings": 20, "sample_rate": 0.01},
        {"num_records": 20, "num_trainings": 10, "sample_rate": 0.5, "learning_rate": 0.5},
        {"sample_rate": 0.95, "num_trainings": 12},
        {"learning_rate": 1.0},
        {"learning_rate": 4.0, "sample_rate": 0.8, "num_records": 100},
    ],
)
def test_a_right_loop_passes_at_other_settings(changes):
    found = check_mechanism(dpsgd, **changes)
    assert found.passes, str(found)


def right_measurements(rng, num_records: int, num_trainings: int, rate: float) -> Measurements:
    """What is measured of a right mechanism."""
    probe = {name: values.shape for name, values in Probe(num_records).moved().items()}

    def drawn_noise(steps: int) -> dict:
        return {
            name: steps**0.5 * rng.standard_normal((num_trainings, *shape))
            for name, shape in probe.items()
        }

    def drawn_parts(steps: int) -> dict:
        drawn = rng.binomial(steps, rate, (num_trainings, num_records))
        return dict.fromkeys(probe, drawn * np.minimum(1.0, norms_of(num_records)))

    noise, parts = [drawn_noise(1), drawn_noise(2)], [drawn_parts(1), drawn_parts(2)]
    return Measurements(rate, norms_of(num_records), *noise, *parts)


def too_many(failures, level: float) -> bool:
    """Whether failures are significantly more frequent than the level."""
    failures = np.asarray(failures)
    return binom(failures.size, level).sf(failures.sum() - 1) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("sizes", [(20, 10, 0.5), (40, 12, 0.25)])
def test_every_property_keeps_its_level(sizes):
    """Of small measurements, whose laws are far from normal."""
    rng = np.random.default_rng(0)
    checks = [findings_of(right_measurements(rng, *sizes), significance=0.5) for _ in range(2000)]
    p_values = {
        finding.name: np.array([found[index].p_value for found in checks])
        for index, finding in enumerate(checks[0])
    }
    for name in ("normalisation", "clipping"):
        assert (p_values.pop(name) == 1.0).all()
    for name, level in product(p_values, (0.2, 0.05, 0.01, 0.001)):
        assert not too_many(p_values[name] <= level, level), name
    least = np.min([*p_values.values()], axis=0)
    for significance in (0.5, 0.2, 0.05, 0.01):
        assert not too_many(least <= level_of_each(significance), significance)
    # The comparison sees p-values that are a third too small.
    assert too_many(p_values["noise scale"] / 1.5 <= 0.2, 0.2)


@pytest.mark.long
def test_right_loops_fail_at_most_at_the_stated_rate():
    level, num_checks = 0.2, 400
    results = [
        check_mechanism(
            dpsgd, num_records=40, num_trainings=12, sample_rate=0.25, seed=seed, significance=level
        )
        for seed in range(num_checks)
    ]
    assert not too_many([not found.passes for found in results], level)
    for index, finding in enumerate(results[0].findings):
        failed = [not found.findings[index].holds for found in results]
        assert not too_many(failed, level_of_each(level)), finding.name


def test_the_law_of_a_spread_is_exact():
    """Compared with all outcomes of three binomial numbers of five trials."""
    trials, rate = 5, 0.3  # the mean is 1.5, and the centre 2
    outcomes = np.array([*product(range(trials + 1), repeat=3)])
    probabilities = binom(trials, rate).pmf(outcomes).prod(axis=1)
    squares = ((outcomes - 2) ** 2).sum(axis=1)
    for own, counts in zip(squares, outcomes, strict=True):
        below, above = probabilities[squares <= own].sum(), probabilities[squares >= own].sum()
        expected = min(1.0, 2 * min(below, above))
        assert spread_p_value(counts, trials, rate) == pytest.approx(expected, rel=1e-9)


def test_a_spread_far_from_its_law_has_next_to_no_probability():
    assert spread_p_value(np.zeros(50, dtype=int), 1000, 0.5) < 1e-9
    assert spread_p_value(np.full(50, 500), 1000, 0.5) < 1e-9
    assert spread_p_value(np.full(50, 1000), 1000, 1.0) == 1.0
    assert spread_p_value(np.array([999, *[1000] * 49]), 1000, 1.0) < 1e-12


def test_p_values_do_not_depend_on_the_scale_of_noise():
    """So that a wrong scale is found as such, and not as something else."""
    found = right_measurements(np.random.default_rng(0), 40, 12, 0.25)
    other = replace(
        found,
        noise={name: 0.1 * own for name, own in found.noise.items()},
        noise_of_two={name: 0.1 * own for name, own in found.noise_of_two.items()},
    )
    before, after = (findings_of(one, significance=0.001) for one in (found, other))
    for one, two in zip(before, after, strict=True):
        if one.name == "noise scale":
            assert two.p_value < 1e-9
        else:
            assert two.p_value == pytest.approx(one.p_value, rel=1e-6), one.name


def test_noise_that_cancels_between_trainings_is_found():
    found = right_measurements(np.random.default_rng(0), 40, 12, 0.25)
    cancelling = {name: np.concatenate([own[:6], -own[:6]]) for name, own in found.noise.items()}
    repeated = {name: np.concatenate([own[:6], own[:6]]) for name, own in found.noise.items()}
    for noise in (cancelling, repeated):
        findings = findings_of(replace(found, noise=noise), significance=0.001)
        assert {one.name for one in findings if not one.holds} >= {"independent coordinates"}


def test_the_smallest_errors_are_those_that_are_just_found():
    """Twice the error of the text is found, half of it is not."""
    sizes, level = (200, 50, 0.1), level_of_each(0.001)
    settings = Settings(0.1, 1.0, 1.0, 0.1, num_steps=1, seed=0)
    small = smallest_errors(Plan(settings, 200, 50, seed=0), level)

    def share_found(name: str, change) -> float:
        rng, found = np.random.default_rng(1), []
        for _ in range(10):
            findings = findings_of(change(rng), significance=0.001)
            found.append(not next(one for one in findings if one.name == name).holds)
        return np.mean(found)

    def scaled(error: float, rng) -> Measurements:
        right = right_measurements(rng, *sizes)
        bias = (1 + error) * right.noise["hidden.bias"]
        return replace(right, noise={**right.noise, "hidden.bias": bias})

    def rated(rates, rng) -> Measurements:
        right = right_measurements(rng, *sizes)
        drawn = rng.random(sizes[1::-1]) < rates
        return replace(
            right, parts=dict.fromkeys(right.parts, drawn * np.minimum(1.0, right.norms))
        )

    def cut(limit: float, rng) -> Measurements:
        right = right_measurements(rng, *sizes)
        noise = {name: np.where(np.abs(own) > limit, 0, own) for name, own in right.noise.items()}
        return replace(right, noise=noise)

    signs = np.where(np.arange(200) % 2, 1.0, -1.0)
    for factor, is_found in ((2.0, True), (0.5, False)):
        for name, change in (
            ("noise scale", partial(scaled, factor * small.noise)),
            ("sampling rate", partial(rated, 0.1 * (1 + factor * small.rate))),
            ("sampling rate", partial(rated, 0.1 * (1 + factor * small.differing_rates * signs))),
        ):
            share = share_found(name, change)
            assert share > 0.8 if is_found else share < 0.2, (name, factor)
    assert share_found("Gaussian noise", partial(cut, small.cut_off - 0.25)) > 0.8
    assert share_found("Gaussian noise", partial(cut, small.cut_off + 0.25)) < 0.2


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


@pytest.mark.parametrize("changes", [{}, OTHER], ids=["defaults", "other settings"])
def test_the_trainer_of_this_package_is_the_mechanism_that_is_accounted(changes):
    found = check_mechanism(own_trainer, **changes)
    assert found.passes, str(found)


def masked(text: str) -> list[str]:
    """Lines without numbers, which may differ between versions of PyTorch."""
    return [re.sub(r"\d+([.]\d+)?", "#", line) for line in text.strip().splitlines()]


def test_the_command(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(name: str, *options: str):
        return CliRunner().invoke(app, ["check", f"checked_training:{name}", *options])

    good = run("train")
    assert good.exit_code == 0, good.output
    assert "Nothing speaks against the mechanism that is accounted." in good.stdout
    page = (EXAMPLES.parent / "check.md").read_text()
    [shown] = re.findall(r"\$ dpcanary check checked_training:train\n((?:.*\n)*?)```", page)
    assert masked(good.stdout) == masked(shown)
    assert f"Our tests plant {len(BUGS)} errors" in " ".join(page.split())
    bad = run("train_by_hand", "--num-trainings", "20")
    assert bad.exit_code == 3
    assert "FAIL  normalisation" in bad.stdout
    found = json.loads(run("train", "--num-trainings", "20", "--json").stdout)
    assert found["passes"]
    assert len(found["findings"]) == 10
    assert found["not_seen"][0].startswith("errors of your own model and data")
    assert "has no function 'trian'" in str(run("trian").exception)
    assert run("").exit_code == 2
