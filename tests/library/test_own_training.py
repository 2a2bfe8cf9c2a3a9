"""Audits of a user's own training loop: randomness, resuming, bounds, and real Opacus."""

import copy
import json
import math
import random
import re
import sys
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from opacus import PrivacyEngine
from running import ROOT, printed_by
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import Mechanism, assess_claim, audit_training, estimate_epsilon
from dpcanary.accounting import gdp_epsilon
from dpcanary.errors import InputError
from dpcanary.estimation import assess_claim_anytime, estimate_epsilon_at_looks
from dpcanary.own_training import loss_difference
from dpcanary.own_training.one_training import Journal

DELTA = 1e-4
MU = 2.0


def gaussian(seed: int, world: int, *, factor: float = 1.0, mu: float = MU, phases=()) -> Any:
    """A training whose trade-off curve is known. It draws from PyTorch's generator, as Opacus.

    With phases (noise, sample rate, steps), it returns the engine that has accounted them, too.
    """
    assert seed >= 0
    score = factor * (float(torch.randn(())) + mu * (world == 0))
    engine = SimpleNamespace(accountant=SimpleNamespace(history=[*phases]))
    return (score, engine) if phases else score


def accounted(*phases: tuple[float, float, int]):
    return partial(gaussian, phases=phases)


def from_both(seed: int, world: int) -> float:
    return gaussian(seed, world) + float(np.random.default_rng(seed).normal())


@dataclass
class Scaled:
    factor: float

    def __call__(self, seed: int, world: int) -> float:
        return self.factor * gaussian(seed, world)


def with_changed(form, *, value: float):
    """A training to which 5,000 numbers are bound, of which `repr` shows six."""
    data = np.where(np.arange(5_000) == 2_000, value, 0.0)
    return partial(with_data, data=[form(data)])


def with_data(seed: int, world: int, *, data: Any) -> float:
    return gaussian(seed, world)


def interrupted(*, after: int):
    """A training that is interrupted after some runs, and the worlds of those that it trained."""
    trained: list[int] = []

    def train(seed: int, world: int) -> float:
        if len(trained) == after:
            raise KeyboardInterrupt
        trained.append(world)
        return gaussian(seed, world)

    return train, trained


def audit(train, folder: Path, **options):
    """With a rule that simulates nothing, unless another one is given."""
    defaults = {"num_runs": 40, "delta": DELTA, "num_workers": 1, "threshold_rule": "simultaneous"}
    return audit_training(train, folder=folder, **(defaults | options))


def by_world(result) -> dict[str, Any]:
    return {"world0_scores": result.scores.world0, "world1_scores": result.scores.world1}


def words(result) -> str:
    """What is printed, without its line breaks."""
    return " ".join(str(result).split())


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_runs_do_not_depend_on_processes_or_order(num_workers, tmp_path):
    whole = audit(from_both, tmp_path / "whole", num_runs=12)
    audit(from_both, tmp_path / "parts", num_runs=4, num_workers=num_workers)
    parts = audit(from_both, tmp_path / "parts", num_runs=12)
    np.testing.assert_array_equal([*by_world(parts).values()], [*by_world(whole).values()])
    assert len({*whole.scores.world0, *whole.scores.world1}) == 12
    seeded = audit(from_both, tmp_path / "seeded", num_runs=12, seed=1)
    assert not {*seeded.scores.world0} & {*whole.scores.world0}


def test_all_generators_that_a_training_may_draw_from_are_seeded(tmp_path):
    drawn: list[tuple[float, ...]] = []

    def train(seed: int, world: int) -> float:
        of_numpy = float(np.random.rand())  # noqa: NPY002
        drawn.append((random.random(), of_numpy, float(torch.rand(())), seed))
        return drawn[-1][0]

    for name in ("one", "two"):
        audit(train, tmp_path / name, num_runs=6)
    assert drawn[:6] == drawn[6:]
    assert len({value for values in drawn for value in values}) == 24


def test_the_bound_is_that_of_the_scores_in_all_that_is_shown(tmp_path, monkeypatch):
    """With options other than the defaults; nothing is known of the accounting."""
    options = {"threshold_rule": "split", "conversion": "direct", "significance": 0.1}
    result = audit(gaussian, tmp_path, num_runs=200, adjacency="zero_out", **options)
    direct = estimate_epsilon(**by_world(result), delta=DELTA, **options)
    assert result.estimate == direct
    assert 1 < direct.epsilon_lower < gdp_epsilon(mu=MU, delta=DELTA)
    assert result.accounted is result.claim is None
    assert "return (score, privacy_engine) from the training" in words(result)
    assert "100 models of world 0 and 100 of world 1" in words(result)
    [row] = result.summary.to_dict("records")
    expected = {"epsilon_lower": direct.epsilon_lower, "num_runs": 200, "adjacency": "zero_out"}
    assert expected.items() <= row.items()
    assert math.isnan(row["epsilon_upper_substitute"])
    result.plot(tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.chdir(tmp_path)
    assert result.report() == Path("own_training.html")
    text = result.report(tmp_path / "my_loop.html").read_text()
    shown = f"≥ {np.floor(100 * direct.epsilon_lower) / 100:.2f}"
    for part in ("The user&#39;s own training loop", "my_loop", "accounted: not known", shown):
        assert part in text
    assert text.count("data:image/png;base64,") == 1
    settings = {"num_runs": 40, "delta": DELTA, "num_workers": 1}
    defaults = audit_training(gaussian, folder=tmp_path / "defaults", **settings)
    assert defaults.adjacency == "substitute"
    method = {"threshold_rule": "combined", "conversion": "gdp", "significance": 0.05}
    assert defaults.estimate == estimate_epsilon(**by_world(defaults), delta=DELTA, **method)
    assert defaults.scores.world0[0] == result.scores.world0[0]  # seed 0


@pytest.mark.parametrize(("adjacency", "least"), [("substitute", 2.0), ("add_remove", 1.0)])
@pytest.mark.parametrize("holds", [True, False])
def test_the_claim_of_the_accountant_is_tested_for_the_audited_adjacency(
    adjacency, least, holds, tmp_path
):
    """Four steps at sample rate 1 have mu = 4 / sigma, and half of that under add/remove."""
    sigma = least if holds else 2 * least
    result = audit(accounted((sigma, 1.0, 4)), tmp_path, num_runs=300, adjacency=adjacency)
    assert result.mechanism == (sigma, 1.0, 4)
    for name, mu in (("substitute", 4 / sigma), ("add_remove", 2 / sigma)):
        epsilon = getattr(result.accounted, name)
        assert epsilon == pytest.approx(gdp_epsilon(mu=mu, delta=DELTA), rel=1e-4)
    assert (result.claim.p_value < 0.001) != holds
    assert ("the scores contradict what was accounted" in words(result)) != holds
    [row] = result.summary.to_dict("records")
    assert row["epsilon_upper_substitute"] == result.accounted.substitute
    assert row["epsilon_upper_add_remove"] == result.accounted.add_remove
    assert row["p_value"] == result.claim.p_value


def test_a_schedule_of_noise_is_audited_and_composed(tmp_path):
    """Full batches: mu of the whole is the root of the sum of squares of the steps' mu."""
    train = accounted((5.0, 1.0, 2), (4.0, 1.0, 2))
    mu = math.sqrt(2 * (2 / 5.0) ** 2 + 2 * (2 / 4.0) ** 2)
    expected = [gdp_epsilon(mu=factor * mu, delta=DELTA) for factor in (1.0, 0.5)]
    for result in (audit(train, tmp_path), audit(train, tmp_path)):  # at last from the journal
        upper = [result.accounted.substitute, result.accounted.add_remove]
        assert upper == pytest.approx(expected, rel=1e-2)
        phases = [(phase.noise_multiplier, phase.num_steps) for phase in result.phases]
        assert phases == [(5.0, 2), (4.0, 2)]
        assert result.mechanism is result.claim is None
    assert "2 phases, which are composed" in words(result)
    assert "2 phases" in result.report(tmp_path / "page.html").read_text()
    assert np.isnan(result.summary["p_value"][0])


def test_what_is_said_of_results_that_prove_nothing_or_everything(tmp_path):
    noiseless = audit(accounted((0.0, 1.0, 4)), tmp_path / "noiseless")
    assert noiseless.accounted is None
    assert "the training added no noise" in str(noiseless)
    invalid = str(audit(gaussian, tmp_path / "invalid", threshold_rule="in_sample"))
    assert invalid.startswith("Nothing can be stated: NOT a valid bound")
    assert "confidence" not in invalid
    reverse, weak, right = (
        audit(partial(gaussian, factor=factor, mu=mu), tmp_path / f"{factor} {mu}", num_runs=200)
        for factor, mu in ((-1.0, MU), (1.0, 0.0), (1.0, MU))
    )
    assert reverse.estimate.epsilon_lower == 0
    assert "return the score with the other sign" in reverse.hint
    assert f"hint: {reverse.hint}" in words(reverse)
    assert "return the score with the other sign" in reverse.report(tmp_path / "a.html").read_text()
    assert "loss_difference" in weak.hint
    assert right.hint == ""


@pytest.mark.parametrize(("loss", "of_torch", "outputs"), [
    ("cross_entropy", nn.CrossEntropyLoss, 4), ("squared_error", nn.MSELoss, 1),
    ("logistic", nn.BCEWithLogitsLoss, 1),
])  # fmt: skip
def test_loss_difference(loss, of_torch, outputs):
    model = nn.Sequential(nn.Linear(3, outputs), nn.Dropout(0.5))
    features, labels = torch.randn(2, 3), torch.tensor([1, 0] if outputs == 1 else [2, 3])
    logits = model.eval()(features).squeeze(1)
    targets = labels.to(logits.dtype) if outputs == 1 else labels
    loss0, loss1 = of_torch(reduction="none")(logits, targets).tolist()
    model.train()
    records = {f"record{i}": (features[i], int(labels[i])) for i in (0, 1)}
    difference = partial(loss_difference, model, loss=loss)
    assert difference(**records) == pytest.approx(loss1 - loss0, abs=1e-6)
    assert difference(record0=records["record0"]) == pytest.approx(-loss0, abs=1e-6)
    assert model.training
    if loss == "cross_entropy":
        assert loss_difference(model, **records) == difference(**records)
        with pytest.raises(InputError, match=r"squared_error needs a model of one output; .* 4"):
            loss_difference(model, **records, loss="squared_error")


SHUFFLED = r"batches are no Poisson samples .*:\s+the\s+accounted\s+epsilons\s+do\s+not\s+hold"


def opacus(seed: int, world: int, *, batch_size: int, poisson: bool):
    """Three steps or passes of Opacus on 20 records, of which one has another label in world 1."""
    features, labels = torch.eye(20), torch.zeros(20, dtype=torch.int64)
    labels[0] = world
    model = nn.Linear(20, 2)
    loader = DataLoader(TensorDataset(features, labels), batch_size=batch_size)
    options = {"noise_multiplier": 4.0, "max_grad_norm": 1.0, "poisson_sampling": poisson}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine, optimizer = PrivacyEngine(), torch.optim.SGD(model.parameters(), lr=1e-3)
        components = {"module": model, "optimizer": optimizer, "data_loader": loader}
        model, optimizer, loader = engine.make_private(**components, **options)
        for some, targets in 3 * [*loader]:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(some), targets).backward()
            optimizer.step()
    records = {"record0": (features[0], 0), "record1": (features[0], 1)}
    return loss_difference(model, **records), engine


@pytest.mark.parametrize(("poisson", "batch_size"), [(False, 5), (True, 5), (False, 20)])
def test_a_loop_without_poisson_sampling_gets_a_warning(tmp_path, poisson, batch_size):
    """In the result, its text and its report; full batches are what is accounted in any case."""
    train = partial(opacus, poisson=poisson, batch_size=batch_size)
    wrong = not poisson and batch_size < 20
    with pytest.warns(UserWarning, match=SHUFFLED) if wrong else warnings.catch_warnings():
        result = audit(train, tmp_path, num_runs=4)
    assert result.poisson_sampling is poisson
    assert result.mechanism == (4.0, batch_size / 20, 3 * (20 // batch_size))
    page = result.report(tmp_path / "report.html").read_text()
    for text in (str(result), page):
        assert bool(re.search(SHUFFLED, text)) is wrong


@pytest.mark.long
def test_the_example(tmp_path):
    program = ROOT / "docs/examples/audit_training.py"
    printed = printed_by([sys.executable, program, "8"], tmp_path)
    assert "4 models of world 0 and 4 of world 1" in printed
    assert "accounted: epsilon <= 7.45 under substitute adjacency, 3.51 under add/remove" in printed
    assert (tmp_path / "opacus_audit/scores.png").exists()


def test_finished_runs_are_not_trained_again(tmp_path):
    train, trained = interrupted(after=7)
    journal = tmp_path / "runs.jsonl"
    journal.write_text('{"seed": 0, "trai')  # killed while its beginning was written
    with pytest.raises(KeyboardInterrupt):
        audit(train, tmp_path, num_runs=10)
    with journal.open("a") as file:
        file.write('{"run": 7, "sco')  # killed while writing
    trained.clear()
    for _ in range(2):
        audit(train, tmp_path, num_runs=10)
        assert trained == [1, 0, 1]
    entries = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert [entry["run"] for entry in entries if "run" in entry] == [*range(10)]
    assert [entry["look"] for entry in entries if "look" in entry] == [10]


def slow_or_failing(seed: int, world: int) -> float:
    if world == 1:
        raise RuntimeError("at once")
    time.sleep(1.0)
    return gaussian(seed, world)


@pytest.mark.long
def test_runs_that_finish_after_a_failure_are_kept(tmp_path):
    with pytest.raises(InputError, match=r"run \d*[13579] \(world 1\) failed: RuntimeError"):
        audit(slow_or_failing, tmp_path, num_runs=40, num_workers=2)
    entries = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()[1:]]
    assert 0 in {entry["run"] for entry in entries}
    assert len(entries) < 39  # those that had not begun were not trained


def test_a_journal_belongs_to_one_audit_and_is_not_changed(tmp_path):
    path = tmp_path / "runs.jsonl"
    journal = Journal(path, train=gaussian, seed=0)
    with pytest.raises(InputError, match="another audit writes to"):
        audit(gaussian, tmp_path, num_runs=4)
    journal.close()
    audit(gaussian, tmp_path, num_runs=4)
    changed, count = re.subn(r'("run": 2,.*?"score": -?\d+)', r"\g<1>1", path.read_text())
    assert count == 1
    damaged = "was damaged or changed since it was written"
    foreign = [
        (content, "is no journal of runs") for content in (b"nothing\n", b"nothing", b"\xff")
    ]
    for content, message in ((changed.encode(), damaged), *foreign):
        path.write_bytes(content)
        with pytest.raises(InputError, match=message):
            audit(gaussian, tmp_path, num_runs=4)
        assert path.read_bytes() == content


def test_runs_of_other_trainings_do_not_mix(tmp_path):
    first, second = partial(gaussian, factor=1.0), partial(gaussian, factor=2.0)
    without_source: dict[str, Any] = {}
    exec("def train(seed, world): return 0.0", without_source)
    for name, train, others in (
        ("function", gaussian, [{"train": from_both}, {"train": gaussian, "seed": 1}]),
        ("partial", first, [{"train": second}, {"train": gaussian}]),
        ("object", Scaled(1.0), [{"train": Scaled(2.0)}]),
        ("method", Scaled(1.0).__call__, [{"train": Scaled(2.0).__call__}]),
        *(
            (str(form), with_changed(form, value=0.0), [{"train": with_changed(form, value=1e-9)}])
            for form in (np.array, torch.tensor, pd.DataFrame)
        ),
    ):
        for same in (train, copy.deepcopy(train)):
            audit(same, tmp_path / name, num_runs=4)
        for options in others:
            with pytest.raises(InputError, match="holds runs of another seed, or of another vers"):
                audit(folder=tmp_path / name, num_runs=4, **options)
    with pytest.raises(InputError, match="has no source that can be read"):
        audit(without_source["train"], tmp_path / "none", num_runs=4)
    with pytest.raises(InputError, match="other processes cannot import the training"):
        audit(lambda seed, world: 0.0, tmp_path / "not importable", num_workers=2)
    assert not (tmp_path / "not importable/runs.jsonl").exists()


@pytest.mark.parametrize(("earlier", "looks", "now", "looks_now"), [
    ((60, 60), (), 100, ()),
    ((100, 100), (), 60, ()),  # whoever goes back has chosen between two bounds, too
    # A look is named after it was made; critical values of three looks are simulated.
    pytest.param((20, 40), (20, 40), 60, (20, 40, 60), marks=pytest.mark.long),
])  # fmt: skip
def test_looks_that_were_not_planned_are_no_valid_bounds(earlier, looks, now, looks_now, tmp_path):
    train = accounted((2.0, 1.0, 4))
    options = {"train": train, "folder": tmp_path, "threshold_rule": "rank_sum"}
    results = [audit(num_runs=count, looks=looks, **options) for count in earlier]
    assert all(result.estimate.is_valid for result in results)
    assert (results[0].estimate == results[1].estimate) == (earlier[0] == earlier[1])
    last = audit(num_runs=now, looks=looks_now, **options)
    assert not last.estimate.is_valid
    counts = ", ".join(map(str, dict.fromkeys(earlier)))
    refusal = f"NOT a valid bound (the audit was looked at before, with {counts} runs)"
    assert words(last).startswith(f"Nothing can be stated: {refusal}")
    text = last.report(tmp_path / "report.html").read_text()
    assert "Nothing: the audit has no valid lower bound" in text
    assert "≥" not in text
    not_valid = f"NOT a valid test (the audit was looked at before, with {counts} runs)"
    assert f"p = {last.claim.p_value:.2g}: {not_valid}" in words(last)
    assert last.claim.assumption.endswith(not_valid)


@pytest.mark.long
def test_planned_looks_hold_jointly_for_bounds_and_claims(tmp_path):
    """Two tests at 0.05 would call a right training wrong in nearly a tenth of all audits."""
    method, train = {"significance": 0.1, "threshold_rule": "rank_sum"}, accounted((2.0, 1.0, 4))
    options = method | {"looks": [10, 20], "adjacency": "add_remove"}
    results = [audit(train, tmp_path, num_runs=count, **options) for count in (10, 20)]
    method |= {"looks": [(5, 5), (10, 10)], "delta": DELTA}
    jointly = estimate_epsilon_at_looks(**method, **by_world(results[1]))
    assert [result.estimate for result in results] == jointly
    assert [bound.is_valid for bound in jointly] == [True, True]
    assert jointly[1].num_looks == 2
    mechanism = Mechanism("add_remove", sample_rate=1.0, noise_multiplier=2.0, num_steps=4)
    alone = assess_claim(**by_world(results[1]), mechanism=mechanism).p_value
    assert results[1].claim.p_value == pytest.approx(2 * alone)
    assert 0 < alone < 0.5


@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_an_audit_stops_when_its_bound_is_good_enough(num_workers, tmp_path):
    train = accounted((4.0, 1.0, 4))
    settings = {"threshold_rule": "anytime", "adjacency": "add_remove"}
    options = settings | {"num_runs": 400, "num_workers": num_workers}
    options["stop_when"] = lambda bound: bound.epsilon_lower > 1
    result = audit(train, tmp_path, **options)
    num_runs = result.summary["num_runs"].item()
    # While one process starts, another may finish hundreds of these runs, which take no time.
    assert 20 < num_runs <= (250 if num_workers == 1 else 400)
    assert result.estimate.is_valid
    assert result.estimate.epsilon_lower > 1
    assert "rule anytime" in words(result)
    estimated = partial(estimate_epsilon, delta=DELTA, threshold_rule="anytime")
    assert repr(result.estimate) == repr(estimated(**by_world(result)))
    # No pair earlier was enough, unless several runs ended at once; the same call trains nothing.
    shorter = {name: scores[:-1] for name, scores in by_world(result).items()}
    assert num_workers > 1 or estimated(**shorter).epsilon_lower <= 1
    assert audit(train, tmp_path, **options).summary["num_runs"].item() >= num_runs
    # Whoever goes on has a valid bound and test as well, by this rule alone.
    more = audit(train, tmp_path, num_runs=500, **settings)
    assert len(more.scores.world0) + len(more.scores.world1) == 500
    assert more.estimate.is_valid
    assert more.estimate.epsilon_lower >= result.estimate.epsilon_lower
    mechanism = Mechanism("add_remove", sample_rate=1.0, noise_multiplier=4.0, num_steps=4)
    test = assess_claim_anytime(**by_world(more), mechanism=mechanism)
    assert more.claim.p_value == test.p_value < 0.05  # mu is 2, and 0.5 was accounted
    # By another rule it was looked at: its bound after four runs was there to be seen.
    same = audit(train, tmp_path, num_runs=500)
    assert not same.estimate.is_valid
    assert "looked at before, with 4, " in words(same)


def test_an_interrupted_audit_has_a_result_if_its_rule_allows_it(tmp_path):
    options = {"num_runs": 100, "threshold_rule": "anytime"}
    result = audit(interrupted(after=61)[0], tmp_path / "one", **options)
    assert len(result.scores.world0) == len(result.scores.world1) == 30
    assert result.estimate.is_valid
    for name, rule, after in (("two", "anytime", 3), ("three", "simultaneous", 61)):
        with pytest.raises(KeyboardInterrupt):
            audit(interrupted(after=after)[0], tmp_path / name, num_runs=100, threshold_rule=rule)


def test_a_bound_that_was_shown_before_a_failure_was_looked_at(tmp_path):
    def fails(seed: int, world: int) -> float:
        if len(scores) == 6:
            raise RuntimeError("out of memory")
        scores.append(gaussian(seed, world))
        return scores[-1]

    scores: list[float] = []
    with pytest.raises(InputError, match=r"run 6 .* out of memory"):
        audit(fails, tmp_path, threshold_rule="anytime")
    later = audit(fails, tmp_path, num_runs=6)
    assert not later.estimate.is_valid
    assert "looked at before, with 4 runs" in words(later)


def of_worlds(*phases: Any):
    return lambda seed, world: gaussian(seed, world, phases=phases[world])


@pytest.mark.parametrize(("train", "message"), [
    (lambda seed, world: float(world), "all 20 runs of world 0 have the score .*seeds its generat"),
    (lambda seed, world: (1.0, 2.0, 3.0), "the training returned .* it must return a"),
    (lambda seed, world: [0.0][world], r"run 1 \(world 1\) failed: IndexError: list index"),
    (of_worlds([(1.0, 1.0, 4)], [(2.0, 1.0, 4)]), "the trainings were not accounted alike"),
    (of_worlds([(5.0, 1.0, 2), (3.0, 1.0, 2)], [(5.0, 1.0, 2), (4.0, 1.0, 2)]),
     "changed in some in another way than in others"),
    (lambda seed, world: "high", "the training returned 'high'; it must return a"),
    (lambda seed, world: math.nan, "run 0: the score is NaN"),
])  # fmt: skip
def test_trainings_that_cannot_be_audited_are_refused(train, message, tmp_path):
    with pytest.raises(InputError, match=message):
        audit(train, tmp_path)


@pytest.mark.parametrize(("options", "message"), [
    ({"num_runs": 5}, "num_runs is 5; it must be even"),
    ({"num_runs": 2}, "num_runs is 2; .* at least 4"),
    ({"seed": -1}, "seed is -1; .* at least 0"),
    ({"num_workers": 0}, "num_workers is 0; .* at least 1"),
    ({"conversion": "subsampled_gaussian"}, "needs a Mechanism"),
    ({"significance": 2.0}, "significance"),
    ({"threshold_rule": "mahloujifar"}, "guesses fair coins, and the worlds of these runs"),
    ({"looks": [10, 20]}, "num_runs 40 must be one of the looks"),
    ({"stop_when": bool}, "stop_when goes with threshold_rule 'anytime', not with 'simult"),
    ({"threshold_rule": "anytime", "looks": [40]}, "it needs no planned ones"),
    ({"looks": [40, 21]}, "even numbers of runs that rise"),
    ({"looks": [40, 20]}, "even numbers of runs that rise"),
])  # fmt: skip
def test_wrong_arguments_are_found_before_anything_is_trained(options, message, tmp_path):
    def train(seed: int, world: int) -> float:
        raise AssertionError("trained")

    with pytest.raises(ValueError, match=message):
        audit(train, tmp_path, **options)
    assert not (tmp_path / "runs.jsonl").exists()
