"""Epsilons of several records of one person, and of phases, also on the command line."""

import json
from itertools import pairwise
from math import exp

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm
from typer.testing import CliRunner

from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.groups import account_group
from dpcanary.accounting.mechanism import Mechanism, Phase
from dpcanary.accounting.phases import account_phases
from dpcanary.cli import app
from dpcanary.errors import InputError

MECHANISM = Mechanism("substitute", sample_rate=0.05, num_steps=60, noise_multiplier=3.0)
TRAINING = ["--sample-rate", "0.05", "--num-steps", "60", "--noise-multiplier", "3"]


def printed(*arguments: str, is_refused: bool = False) -> str:
    """What a command says with this delta in long lines, also one that refuses its arguments."""
    command = [*arguments, "--delta", "1e-6"]
    result = CliRunner().invoke(app, command, env={"COLUMNS": "200"})
    assert (result.exit_code != 0) is is_refused, result.output
    return f"{result.output} {result.exception}" if is_refused else result.stdout


@pytest.mark.long
@pytest.mark.parametrize(("q", "sigma", "size"), [(0.2, 1.3, 2), (0.6, 3.0, 3)])
def test_one_step_of_a_group_is_that_of_the_integrated_mixture(q, sigma, size):
    """Delta is the integral of the positive part, in either direction; by a fine sum."""
    outputs, width = np.linspace(-12 * sigma, size + 12 * sigma, 400_001, retstep=True)
    numbers = np.arange(size + 1)
    with_group = binom.pmf(numbers, size, q) @ norm.pdf(outputs, numbers[:, None], sigma)
    without = norm.pdf(outputs, 0, sigma)

    def excess(epsilon: float) -> float:
        pairs = ((with_group, without), (without, with_group))
        deltas = [np.maximum(first - exp(epsilon) * second, 0).sum() for first, second in pairs]
        return max(deltas) * width - 1e-4

    mechanism = Mechanism("add_remove", sample_rate=q, num_steps=1, noise_multiplier=sigma)
    group = account_group(mechanism, group_size=size, delta=1e-4)
    expected = brentq(excess, 0.0, 50.0)
    assert expected - 1e-4 <= group.add_remove <= expected * 1.01 + 1e-3
    assert not group.substitute <= 2 * group.add_remove


def test_epsilons_grow_with_the_group_from_those_of_one_record():
    """Full batches are in the example of `account_group`."""
    groups = [account_group(MECHANISM, group_size=size, delta=1e-6) for size in (1, 2, 3)]
    single = account_by_adjacency(MECHANISM, delta=1e-6)
    assert (groups[0].add_remove, groups[0].substitute) == (single.add_remove, single.substitute)
    for smaller, larger in pairwise(groups):
        assert smaller.add_remove < larger.add_remove
        assert smaller.substitute < larger.substitute
    # Group privacy of two records from one: Theorem 4.1 for removing both.
    assert groups[1].add_remove < single.group_privacy
    # A group without a useful epsilon has none.
    mechanism = Mechanism("substitute", sample_rate=0.25, num_steps=500, noise_multiplier=5.574)
    group = account_group(mechanism, group_size=3, delta=1e-5)
    assert 10 < group.add_remove < 40
    assert np.isnan(group.substitute)
    with pytest.raises(InputError, match="noise_multiplier is nan"):
        account_group(MECHANISM.with_noise(float("nan")), group_size=2, delta=1e-6)


def test_account_takes_groups_and_phases():
    of_group = ["account", *TRAINING, "--group-size", "3"]
    group = account_group(MECHANISM, group_size=3, delta=1e-6)
    assert json.loads(printed(*of_group, "--json"))["group"] == pytest.approx(vars(group))
    text = printed(*of_group)
    assert "add/remove, 3 records" in text
    assert "substitute, 3 records" in text

    options = ["account", "--phase", "70,0.02,1.3", "--phase", "30,0.01,0.9"]
    phases = account_phases([Phase(1.3, 0.02, 70), Phase(0.9, 0.01, 30)], delta=1e-6)
    epsilons = json.loads(printed(*options, "--json"))["epsilon"]
    assert epsilons["substitute"] == pytest.approx(phases.substitute)
    assert epsilons["add_remove"] == pytest.approx(phases.add_remove)
    assert "2 phases, 100 steps, delta 1e-06" in printed(*options)
    for more, message in (
        (["--num-steps", "3"], "give --phase or --num-steps, not both"),
        (["--phase", "3,0.1"], "must be steps, sample rate and noise multiplier"),
        (["--phase", "3,0.1,x"], "must be steps, sample rate and noise multiplier"),
        (["--group-size", "2"], "groups are accounted for Poisson sampling in one phase"),
        (["--last-model"], "in one phase"),
        (["--sampling", "shuffled"], "shuffled batches are accounted in one phase"),
    ):
        assert message in printed(*options, *more, is_refused=True)
    without_noise = printed("account", *TRAINING[:4], is_refused=True)
    assert "give --noise-multiplier, or --phase" in without_noise


def test_a_statement_about_several_records_names_their_number():
    options = ["statement", *TRAINING]
    for unit in ("all records of one user", "every image of a person"):
        refusal = printed(*options, "--unit", unit, is_refused=True)
        assert "speaks of several records" in refusal
    text = " ".join(printed(*options, "--unit", "one visit", "--group-size", "2").split())
    group = account_group(MECHANISM, group_size=2, delta=1e-6)
    assert f"is protected by ({np.ceil(100 * group.add_remove) / 100:.2f}, 1e-06)" in text
    assert "a person who has more than 2 records" in text
    assert "more than" not in " ".join(printed(*options, "--unit", "one visit").split())
