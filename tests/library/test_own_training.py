"""Audits of a user's own training loop: randomness, resuming, bounds, and real Opacus."""

import json
import math
import random
import re
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import Mechanism, assess_claim, audit_training, estimate_epsilon
from dpcanary.accounting import gdp_epsilon
from dpcanary.errors import InputError
from dpcanary.estimation import assess_claim_anytime, estimate_epsilon_at_looks
from dpcanary.own_training import loss_difference
from dpcanary.own_training.one_run import Journal

EXAMPLES = Path(__file__).parents[2] / "docs/examples"
DELTA = 1e-5
MU = 2.0


def gaussian(seed: int, world: int) -> float:
    """A training whose trade-off curve is known. It draws from PyTorch's generator, as Opacus."""
    assert seed >= 0
    return float(torch.randn(())) + MU * (world == 0)


def from_numpy(seed: int, world: int) -> float:
    return float(np.random.default_rng(seed).normal()) + MU * (world == 0)


def audit(train, folder: Path, *, num_runs: int = 40, **options):
    return audit_training(
        train,
        **{"num_runs": num_runs, "delta": DELTA, "folder": folder, "num_workers": 1} | options,
    )


def scaled(seed: int, world: int, *, factor: float) -> float:
    return factor * gaussian(seed, world)


def no_signal(seed: int, world: int) -> float:
    return float(torch.randn(()))


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, seed: int, world: int) -> float:
        return self.factor * gaussian(seed, world)


def slow_or_failing(seed: int, world: int) -> float:
    if world == 1:
        raise RuntimeError("at once")
    time.sleep(1.0)
    return gaussian(seed, world)


# Randomness


@pytest.mark.long
@pytest.mark.parametrize("train", [gaussian, from_numpy])
def test_runs_do_not_depend_on_processes_or_order(train, tmp_path):
    one = audit(train, tmp_path / "one", num_runs=12)
    two = audit(train, tmp_path / "two", num_runs=12, num_workers=2)
    audit(train, tmp_path / "three", num_runs=4, looks=[4, 12])
    three = audit(train, tmp_path / "three", num_runs=12, looks=[4, 12])
    for other in (two, three):
        np.testing.assert_array_equal(one.scores.world0, other.scores.world0)
        np.testing.assert_array_equal(one.scores.world1, other.scores.world1)
    assert len({*one.scores.world0, *one.scores.world1}) == 12
    seeded = audit(train, tmp_path / "four", num_runs=12, seed=1)
    assert not {*seeded.scores.world0} & {*one.scores.world0}


def test_all_generators_that_a_training_may_draw_from_are_seeded(tmp_path):
    drawn: list[tuple[float, ...]] = []

    def train(seed: int, world: int) -> float:
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))  # noqa: NPY002
        return drawn[-1][0]

    audit(train, tmp_path / "one", num_runs=6)
    audit(train, tmp_path / "two", num_runs=6)
    assert drawn[:6] == drawn[6:]
    assert len({value for values in drawn for value in values}) == 18


# Bounds


def test_the_bound_is_that_of_the_scores(tmp_path):
    found = audit(gaussian, tmp_path, num_runs=400)
    direct = estimate_epsilon(
        world0_scores=found.scores.world0, world1_scores=found.scores.world1, delta=DELTA
    )
    assert found.estimate == direct
    assert 4 < found.estimate.epsilon_lower < gdp_epsilon(mu=MU, delta=DELTA)
    assert found.accounted is None
    assert found.claim is None
    assert "return (score, privacy_engine) from the training" in str(found)
    [row] = found.summary.to_dict("records")
    assert row["epsilon_lower"] == direct.epsilon_lower
    assert row["num_runs"] == 400
    assert math.isnan(row["epsilon_upper_substitute"])
    found.plot(tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")


def engine_of(*history: tuple[float, float, int]) -> SimpleNamespace:
    return SimpleNamespace(accountant=SimpleNamespace(history=[*history]))


@pytest.mark.parametrize(("claimed", "holds"), [(2.0, True), (1.0, False)])
def test_the_claim_of_the_accountant_is_tested(claimed, holds, tmp_path):
    """Four steps at sample rate 1 have mu = 2 sqrt(4) / sigma under substitution."""

    def train(seed: int, world: int):
        return gaussian(seed, world), engine_of((4 / claimed, 1.0, 4))

    found = audit(train, tmp_path, num_runs=600)
    for epsilon, mu in (
        (found.accounted.substitute, claimed),
        (found.accounted.add_remove, claimed / 2),
    ):
        assert epsilon == pytest.approx(gdp_epsilon(mu=mu, delta=DELTA), rel=1e-4)
    assert (found.claim.p_value < 0.001) != holds
    assert ("leaks more than was accounted" in str(found)) != holds
    [row] = found.summary.to_dict("records")
    assert row["epsilon_upper_substitute"] == found.accounted.substitute
    assert row["p_value"] == found.claim.p_value


@pytest.mark.parametrize(("accounted", "holds"), [(2.0, True), (1.0, False)])
def test_the_claim_is_about_the_audited_adjacency(accounted, holds, tmp_path):
    """Four steps at sample rate 1 have mu = sqrt(4) / sigma under add/remove; the scores have 2."""

    def train(seed: int, world: int):
        return gaussian(seed, world), engine_of((2 / accounted, 1.0, 4))

    found = audit(train, tmp_path, num_runs=600, adjacency="add_remove")
    expected = gdp_epsilon(mu=accounted, delta=DELTA)
    assert found.accounted.add_remove == pytest.approx(expected, rel=1e-4)
    assert (found.claim.p_value < 0.001) != holds


def test_a_training_without_noise_has_no_accounted_epsilon(tmp_path):
    found = audit(lambda seed, world: (gaussian(seed, world), engine_of((0.0, 1.0, 4))), tmp_path)
    assert found.accounted is None
    assert "the training added no noise" in str(found)


# With Opacus

SIGMA, STEPS = 4.0, 8
# The target's gradient is clipped, and another label turns it round; all others are 0.
FEATURES = torch.zeros(20, 1)
FEATURES[0] = 100.0


def opacus(
    seed: int, world: int, *, noise_factor: float = 1.0, batch_size: int = 20, poisson: bool = True
):
    """The worst case of a substitution, trained by Opacus: mu = 2 sqrt(steps) / sigma."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _opacus(seed, world, noise_factor, batch_size, poisson)


def _opacus(seed: int, world: int, noise_factor: float, batch_size: int, poisson: bool):
    labels = torch.zeros(20, dtype=torch.int64)
    labels[0] = world
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        data_loader=DataLoader(TensorDataset(FEATURES, labels), batch_size=batch_size),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        poisson_sampling=poisson,
    )
    add_noise = optimizer.add_noise

    def scaled_noise() -> None:
        """Of another scale than is accounted, if there is a factor."""
        optimizer.noise_multiplier *= noise_factor
        add_noise()
        optimizer.noise_multiplier /= noise_factor

    optimizer.add_noise = scaled_noise
    for _ in range(STEPS):
        for features, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), targets).backward()
            optimizer.step()
    record = FEATURES[0] / 100
    return loss_difference(model, record0=(record, 0), record1=(record, 1)), engine


def buggy(seed: int, world: int):
    return opacus(seed, world, noise_factor=0.6)


@pytest.mark.long
def test_an_audit_of_opacus_is_nearly_tight_and_finds_a_bug(tmp_path):
    mu = 2 * math.sqrt(STEPS) / SIGMA
    right = audit(opacus, tmp_path / "right", num_runs=300, num_workers=2)
    assert right.mechanism == (SIGMA, 1.0, STEPS)
    assert right.accounted.substitute == pytest.approx(gdp_epsilon(mu=mu, delta=DELTA), rel=1e-3)
    assert right.accounted.add_remove == pytest.approx(
        gdp_epsilon(mu=mu / 2, delta=DELTA), rel=1e-3
    )
    bound = right.estimate.epsilon_lower
    assert right.accounted.add_remove < bound < right.accounted.substitute
    assert right.claim.p_value > 0.01
    wrong = audit(buggy, tmp_path / "wrong", num_runs=300, num_workers=2)
    assert wrong.accounted == right.accounted
    assert wrong.claim.p_value < 0.001


def test_the_report_says_what_the_audit_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = audit(gaussian, tmp_path, num_runs=200)
    assert found.report() == Path("own_training.html")
    assert "own_training: The user&#39;s" in Path("own_training.html").read_text()
    page = tmp_path / "my_loop.html"
    assert found.report(page) == page
    text = page.read_text()
    assert "my_loop: The user&#39;s own training loop" in text
    assert f"≥ {np.floor(100 * found.estimate.epsilon_lower) / 100:.2f}" in text
    assert "accounted: not known" in text
    assert text.count("data:image/png;base64,") == 1


def test_loss_difference():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    features, labels = torch.randn(2, 3), torch.tensor([2, 3])
    logits = model.eval()(features)
    one, two = nn.functional.cross_entropy(logits, labels, reduction="none").tolist()
    model.train()
    records = {"record0": (features[0], 2), "record1": (features[1], 3)}
    assert loss_difference(model, **records) == pytest.approx(two - one, abs=1e-6)
    assert loss_difference(model, record0=(features[0], 2)) == pytest.approx(-one, abs=1e-6)
    assert model.training


# Resuming


def test_finished_runs_are_not_trained_again(tmp_path):
    trained: list[int] = []

    def train(seed: int, world: int) -> float:
        if len(trained) == 7:
            raise KeyboardInterrupt
        trained.append(world)
        return gaussian(seed, world)

    with pytest.raises(KeyboardInterrupt):
        audit(train, tmp_path, num_runs=10)
    journal = tmp_path / "runs.jsonl"
    with journal.open("a") as file:
        file.write('{"run": 7, "sco')  # killed while writing
    trained.clear()
    audit(train, tmp_path, num_runs=10)
    assert len(trained) == 3
    audit(train, tmp_path, num_runs=10)
    assert len(trained) == 3
    entries = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    assert [entry["run"] for entry in entries if "run" in entry] == [*range(10)]
    assert [entry["look"] for entry in entries if "look" in entry] == [10]


@pytest.mark.long
def test_runs_that_finish_after_a_failure_are_kept(tmp_path):
    with pytest.raises(InputError, match=r"run 1 \(world 1\) failed: RuntimeError: at once"):
        audit(slow_or_failing, tmp_path, num_runs=40, num_workers=2)
    entries = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()[1:]]
    assert 0 in {entry["run"] for entry in entries}
    assert len(entries) < 39  # those that had not begun were not trained


def test_a_journal_whose_beginning_was_not_written_is_a_new_one(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"seed": 0, "trai')
    assert audit(gaussian, tmp_path, num_runs=4).scores.world0.size == 2


def test_a_score_that_is_changed_in_the_journal_is_noticed(tmp_path):
    audit(gaussian, tmp_path, num_runs=4)
    journal = tmp_path / "runs.jsonl"
    text = journal.read_text()
    [score] = re.findall(r'"run": 2,.*?"score": (-?[\d.]+)', text)
    changed = text.replace(score, score.replace(".", "1.", 1))
    assert changed != text
    journal.write_text(changed)
    with pytest.raises(
        InputError, match=r"runs\.jsonl was damaged or changed since it was written"
    ):
        audit(gaussian, tmp_path, num_runs=4)


def test_two_audits_do_not_write_one_journal(tmp_path):
    journal = Journal(tmp_path / "runs.jsonl", train=gaussian, seed=0)
    with pytest.raises(InputError, match="another audit writes to"):
        audit(gaussian, tmp_path, num_runs=4)
    journal.close()
    audit(gaussian, tmp_path, num_runs=4)


# Looks


def test_looks_that_were_not_planned_are_no_valid_bounds(tmp_path):
    first = audit(gaussian, tmp_path, num_runs=100)
    assert first.estimate.is_valid
    assert audit(gaussian, tmp_path, num_runs=100).estimate == first.estimate  # the same again
    more = audit(gaussian, tmp_path, num_runs=200)
    assert not more.estimate.is_valid
    assert "NOT a valid bound (the audit was looked at before, with 100 runs)" in str(more)
    assert "NOT VALID: epsilon >=" in str(more)
    assert "proven" not in str(more)
    more.report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "This audit proves nothing" in text
    assert "NOT a valid lower bound" in text
    assert "Proven by attack" not in text


def test_a_look_at_more_runs_is_remembered(tmp_path):
    """Whoever goes back to fewer runs has chosen between two bounds."""
    audit(gaussian, tmp_path, num_runs=200)
    fewer = audit(gaussian, tmp_path, num_runs=100)
    assert not fewer.estimate.is_valid
    assert "NOT a valid bound (the audit was looked at before, with 200 runs)" in str(fewer)


def test_planned_looks_hold_jointly(tmp_path):
    options = {"looks": [100, 200]}
    one, two = (audit(gaussian, tmp_path, num_runs=count, **options) for count in (100, 200))
    assert one.estimate.is_valid
    assert two.estimate.is_valid
    assert two.estimate.num_looks == 2
    sizes = [(50, 50), (100, 100)]
    known = {"world0_scores": two.scores.world0, "world1_scores": two.scores.world1}
    jointly = estimate_epsilon_at_looks(looks=sizes, delta=DELTA, **known)
    assert [one.estimate, two.estimate] == jointly


def test_a_claim_is_tested_at_each_look(tmp_path):
    """Two tests at .05 would call a right training wrong in nearly a tenth of all audits."""

    def train(seed: int, world: int):
        return gaussian(seed, world), engine_of((2.0, 1.0, 4))

    options = {"adjacency": "add_remove", "looks": [100, 200]}
    for count in (100, 200):
        found = audit(train, tmp_path, num_runs=count, **options)
    mechanism = Mechanism("add_remove", sample_rate=1.0, noise_multiplier=2.0, num_steps=4)
    alone = assess_claim(
        world0_scores=found.scores.world0, world1_scores=found.scores.world1, mechanism=mechanism
    )
    assert found.claim.p_value == pytest.approx(2 * alone.p_value)
    assert 0 < alone.p_value < 0.5


# Stopping at any number of runs


def proves_one(bound) -> bool:
    assert bound.threshold_rule == "anytime"
    return bound.epsilon_lower > 1


def interrupted(seed: int, world: int, *, at: list[int]) -> float:
    at[0] -= 1
    if at[0] < 0:
        raise KeyboardInterrupt
    return gaussian(seed, world)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_an_audit_stops_when_its_bound_is_good_enough(num_workers, tmp_path):
    options = {"threshold_rule": "anytime", "num_runs": 400, "num_workers": num_workers}
    found = audit(gaussian, tmp_path, stop_when=proves_one, **options)
    num_runs = len(found.scores.world0) + len(found.scores.world1)
    # While one process starts, another may finish hundreds of these runs, which take no time.
    assert 20 < num_runs <= (250 if num_workers == 1 else 400)
    assert found.estimate.is_valid
    assert found.estimate.epsilon_lower > 1
    assert "rule anytime" in str(found)
    known = {"world0_scores": found.scores.world0, "world1_scores": found.scores.world1}
    assert repr(found.estimate) == repr(
        estimate_epsilon(**known, delta=DELTA, threshold_rule="anytime")
    )
    # No pair earlier was enough, unless several runs ended at once; the same call trains nothing.
    shorter = {name: scores[:-1] for name, scores in known.items()}
    before = estimate_epsilon(**shorter, delta=DELTA, threshold_rule="anytime")
    assert num_workers > 1 or before.epsilon_lower <= 1
    again = audit(gaussian, tmp_path, stop_when=proves_one, **options)
    assert len(again.scores.world0) >= num_runs // 2
    # Whoever goes on has a valid bound as well, by this rule alone.
    more = audit(gaussian, tmp_path, num_runs=500, threshold_rule="anytime")
    assert len(more.scores.world0) + len(more.scores.world1) == 500
    assert more.estimate.is_valid
    assert more.estimate.epsilon_lower >= found.estimate.epsilon_lower
    assert not audit(gaussian, tmp_path, num_runs=256).estimate.is_valid


def test_an_interrupted_audit_has_a_result_if_its_rule_allows_it(tmp_path):
    options = {"num_runs": 100, "threshold_rule": "anytime"}
    found = audit(partial(interrupted, at=[61]), tmp_path / "one", **options)
    assert len(found.scores.world0) == len(found.scores.world1) == 30
    assert found.estimate.is_valid
    for name, rule, at in (("two", "anytime", 3), ("three", "combined", 61)):
        with pytest.raises(KeyboardInterrupt):
            audit(partial(interrupted, at=[at]), tmp_path / name, num_runs=100, threshold_rule=rule)


def test_an_audit_that_might_have_stopped_at_any_pair_counts_as_looked_at(tmp_path):
    """Though it went on to its end: its bound after four runs was there to be seen."""
    assert audit(gaussian, tmp_path, num_runs=100, threshold_rule="anytime").estimate.is_valid
    same = audit(gaussian, tmp_path, num_runs=100)
    assert not same.estimate.is_valid
    assert "looked at before, with 4 runs" in str(same)


def test_the_claim_of_an_audit_that_may_stop_may_be_looked_at_as_often(tmp_path):
    def train(seed: int, world: int):
        return gaussian(seed, world), engine_of((4.0, 1.0, 4))

    found = audit(
        train, tmp_path, num_runs=200, adjacency="add_remove", threshold_rule="anytime"
    )  # fmt: skip
    mechanism = Mechanism("add_remove", sample_rate=1.0, noise_multiplier=4.0, num_steps=4)
    test = assess_claim_anytime(
        world0_scores=found.scores.world0, world1_scores=found.scores.world1, mechanism=mechanism
    )
    assert found.claim.p_value == test.p_value < 0.05  # mu is 2, and .5 was accounted


def test_runs_of_other_trainings_do_not_mix(tmp_path):
    audit(gaussian, tmp_path, num_runs=4)
    audit(partial(scaled, factor=1.0), tmp_path / "partial", num_runs=4)
    audit(Scaled(1.0), tmp_path / "object", num_runs=4)
    for folder, options in (
        (tmp_path, {"train": from_numpy}),
        (tmp_path, {"train": gaussian, "seed": 1}),
        (tmp_path / "partial", {"train": partial(scaled, factor=2.0)}),
        (tmp_path / "object", {"train": Scaled(2.0)}),
    ):
        with pytest.raises(InputError, match="holds runs of another seed, or of another version"):
            audit(folder=folder, num_runs=4, **options)
    audit(Scaled(1.0), tmp_path / "object", num_runs=4)
    without_source: dict[str, Any] = {}
    exec("def train(seed, world): return 0.0", without_source)
    with pytest.raises(InputError, match="has no source that can be read"):
        audit(without_source["train"], tmp_path / "none", num_runs=4)
    (tmp_path / "runs.jsonl").write_text("nothing\n")
    with pytest.raises(InputError, match="is no journal of runs"):
        audit(gaussian, tmp_path, num_runs=4)


# Errors


def test_trainings_that_cannot_be_audited_are_refused(tmp_path):
    def seeded(seed: int, world: int) -> float:
        torch.manual_seed(0)
        return gaussian(seed, world)

    def failing(seed: int, world: int) -> float:
        if world == 1:
            raise RuntimeError("no such file")
        return 0.0

    def changing(seed: int, world: int):
        return gaussian(seed, world), engine_of((1.0 + world, 1.0, 4))

    cases = {
        "seeded": (seeded, "all 20 runs of world 0 have the score .*seeds its generators"),
        "three": (lambda seed, world: (1.0, 2.0, 3.0), "the training returned .* it must return a"),
        "failing": (failing, r"run 1 \(world 1\) failed: RuntimeError: no such file"),
        "changing": (changing, "the trainings were not accounted alike"),
        "text": (lambda seed, world: "high", "the training returned 'high'; it must return a"),
        "nan": (lambda seed, world: math.nan, "run 0: the score is NaN"),
    }
    for name, (train, message) in cases.items():
        with pytest.raises(InputError, match=message):
            audit(train, tmp_path / name)
    with pytest.raises(InputError, match="other processes cannot import the training"):
        audit(lambda seed, world: 0.0, tmp_path / "lambda", num_workers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_runs": 5}, "num_runs is 5; it must be even"),
        ({"adjacency": "add-remove"}, "add-remove"),
        ({"conversion": "exact"}, "exact"),
        ({"conversion": "subsampled_gaussian"}, "needs a Mechanism"),
        ({"significance": 2.0}, "significance"),
        ({"delta": 0.0}, "delta"),
        ({"threshold_rule": "best"}, "best"),
        ({"threshold_rule": "fixed"}, "threshold"),
        ({"threshold_rule": "mahloujifar"}, "guesses fair coins, and the worlds of these runs"),
        ({"looks": [10, 20]}, "num_runs 40 must be one of the looks"),
        ({"stop_when": bool}, "stop_when goes with threshold_rule 'anytime', not with 'combined'"),
        ({"threshold_rule": "anytime", "looks": [40]}, "it needs no planned ones"),
        ({"looks": [40, 21]}, "even numbers of runs that rise"),
    ],
)
def test_wrong_arguments_are_found_before_anything_is_trained(options, message, tmp_path):
    def train(seed: int, world: int) -> float:
        raise AssertionError("trained")

    with pytest.raises(ValueError, match=message):
        audit(train, tmp_path, **options)
    assert not (tmp_path / "runs.jsonl").exists()


def test_an_invalid_rule_proves_nothing(tmp_path):
    found = str(audit(gaussian, tmp_path, threshold_rule="in_sample"))
    assert "NOT VALID: epsilon >=" in found
    assert "confidence" not in found


def test_perfect_scores_of_one_world_are_no_error(tmp_path):
    def train(seed: int, world: int) -> float:
        return 10.0 if world == 0 else gaussian(seed, world)

    assert audit(train, tmp_path).estimate.epsilon_lower > 1


# The documented example


@pytest.mark.long
def test_the_example(tmp_path):
    program = str(EXAMPLES / "audit_training.py")
    done = subprocess.run(
        [sys.executable, program, "8"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "4 models of world 0 and 4 of world 1" in done.stdout
    assert "accounted: epsilon <= 7.45 under substitute adjacency, 3.51 under add/remove" in (
        done.stdout
    )
    assert (tmp_path / "opacus_audit/scores.png").exists()


SHUFFLED = r"batches are no Poisson samples .*: the accounted epsilons do not\s+hold"


@pytest.mark.parametrize(("poisson", "batch_size"), [(False, 5), (True, 5), (False, 20)])
def test_a_loop_without_poisson_sampling_gets_a_warning(tmp_path, poisson, batch_size):
    """In the result, its text and its report; full batches are what is accounted in any case."""
    train = partial(opacus, poisson=poisson, batch_size=batch_size)
    wrong = not poisson and batch_size < 20
    told = pytest.warns(UserWarning, match=SHUFFLED) if wrong else warnings.catch_warnings()
    with told:
        found = audit(train, tmp_path, num_runs=8)
    assert found.poisson_sampling is poisson
    assert bool(re.search(SHUFFLED, str(found))) is wrong
    found.report(tmp_path / "report.html")
    assert bool(re.search(SHUFFLED, (tmp_path / "report.html").read_text())) is wrong


# Noise that changes


def scheduled(seed: int, world: int, *, noises: tuple[float, ...] = (5.0, 4.0)):
    """A training whose noise falls, as Opacus accounts it: two steps with each noise."""
    mu = 2 * math.sqrt(sum(2 / noise**2 for noise in noises))
    history = [(noise, 1.0, 2) for noise in noises]
    engine = SimpleNamespace(accountant=SimpleNamespace(history=history))
    return float(torch.randn(())) + mu * (world == 0), engine


def test_a_schedule_of_noise_is_audited_and_composed(tmp_path):
    """Full batches: mu of the whole is the root of the sum of squares of the steps' mu."""
    found = audit(scheduled, tmp_path, num_runs=200)
    mu = math.sqrt(2 * (2 / 5.0) ** 2 + 2 * (2 / 4.0) ** 2)
    accounted = found.accounted
    assert accounted.substitute == pytest.approx(gdp_epsilon(mu=mu, delta=DELTA), rel=1e-2)
    assert accounted.add_remove == pytest.approx(gdp_epsilon(mu=mu / 2, delta=DELTA), rel=1e-2)
    assert [(one.noise_multiplier, one.num_steps) for one in found.phases] == [(5.0, 2), (4.0, 2)]
    assert found.mechanism is None
    assert found.claim is None
    text = " ".join(str(found).split())
    assert "2 phases, which are composed" in text
    assert "under substitute adjacency" in text
    assert "accounted: not known" not in text
    assert "2 phases" in found.report(tmp_path / "page.html").read_text()
    assert np.isnan(found.summary["p_value"][0])
    again = audit(scheduled, tmp_path, num_runs=200)  # from the journal
    assert again.phases == found.phases


def test_runs_with_other_schedules_are_not_one_audit(tmp_path):
    def differs(seed: int, world: int):
        return scheduled(seed, world, noises=(5.0, 4.0) if world else (5.0, 3.0))

    with pytest.raises(InputError, match="changed in some in another way than in others"):
        audit(differs, tmp_path)


# Nothing is proven


def test_an_audit_that_proves_nothing_says_what_to_do(tmp_path):
    found = audit(partial(scaled, factor=-1.0), tmp_path / "reversed", num_runs=200)
    assert found.estimate.epsilon_lower == 0
    assert "return the score with the other sign" in found.hint
    assert f"hint: {found.hint}" in str(found)
    assert "return the score with the other sign" in found.report(tmp_path / "a.html").read_text()
    weak = audit(no_signal, tmp_path / "weak", num_runs=200)
    assert "loss_difference" in weak.hint
    assert "dpcanary plan" in weak.hint
    few = audit(gaussian, tmp_path / "few", num_runs=4)
    assert few.hint == "So few scores prove nothing, whatever they are: make more runs."
    assert audit(gaussian, tmp_path / "right", num_runs=200).hint == ""
