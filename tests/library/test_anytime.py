"""Rule `anytime`: its lines, its bets against a twin in plain loops, and what it refuses."""

from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
from scipy.special import ndtr

from dpcanary import InputError, Mechanism, estimate_epsilon
from dpcanary.estimation import AnytimeBound, assess_claim_anytime, estimate_epsilon_at_looks
from dpcanary.estimation.anytime import FIRST_BETS, STAKES, EProcess, Lines, lines_of_curves
from dpcanary.estimation.families import GDP, GRID, Family, direct_family
from dpcanary.estimation.subsampled_family import subsampled_family
from dpcanary.estimation.table import ceiling_of

DELTA = 1e-4
ADD_REMOVE = Mechanism("add_remove", sample_rate=0.1, noise_multiplier=0.9, num_steps=20)


def scores(mu: float, num_pairs: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, num_pairs])
    return rng.normal(mu, 1, num_pairs), rng.normal(0, 1, num_pairs)


def lines_of(family: Family, *thetas: float) -> Lines:
    return lines_of_curves(np.array(thetas), family.curves(np.array(thetas)))


@pytest.mark.parametrize("theta", [0.0, 1.0, 2.7, 6.0])
@pytest.mark.parametrize("name", ["gdp", "direct", "subsampled"])
def test_no_curve_is_above_its_lines_and_they_touch_it(name, theta):
    z, family = np.linspace(-8.5, 8.5, 20_003), GDP  # not the points that are tabulated
    fpr = ndtr(-z)
    tpr = ndtr(theta - z)
    if name == "direct":
        family = direct_family(0.03)
        tpr = np.minimum(1, np.minimum(0.03 + exp(theta) * fpr, 1 - exp(-theta) * (0.97 - fpr)))
    elif name == "subsampled":  # curves that are tabulated, and not symmetric
        family = subsampled_family(ADD_REMOVE)
        assert not family.is_symmetric
        fpr, tpr = ndtr(-GRID), ndtr(-family.curves(np.array([theta]))[0])
    lines = lines_of(family, theta)
    above = lines.tpr[0] + lines.slope[0] * (fpr[:, None] - lines.fpr[0]) - tpr[:, None]
    assert above.min() >= (-1e-6 if name == "subsampled" else 0)
    # Where they matter, they are as low as can be.
    middle = (lines.fpr[0] > 1e-4) & (lines.fpr[0] < 0.99)
    # A vertex of `direct` lies between two points of the grid of curves.
    assert above[:, middle].min(axis=0).max() < (2e-3 if name == "direct" else 4e-5)


def divergence(rate: float, of_curve: float, rest: float) -> float:
    """The Kullback-Leibler divergence of a decision's law from the law that a curve allows."""
    return rate * log(rate / of_curve) + (1 - rate) * log((1 - rate) / rest)


def twin(lines: Lines, world0: list[float], world1: list[float]) -> list[float]:
    """The wealth against one curve after each pair, in plain loops."""
    columns = (column[0].tolist() for column in vars(lines).values() if column.ndim == 2)
    touching = [*zip(*columns, strict=True)]
    stakes, wealth = STAKES.tolist(), [1 / len(STAKES)] * len(STAKES)
    ranks = sorted({int(1.5**power) - 1 for power in range(60)})
    chosen: list[tuple[float, float, float, float, float]] = []
    out, next_bets = [], FIRST_BETS
    for seen, (x, y) in enumerate(zip(world0, world1, strict=True)):
        if seen == next_bets:
            chosen, next_bets = [], max(seen + 1, int(1.08 * seen))
            past0, past1 = sorted(world0[:seen]), sorted(world1[:seen])
            values = sorted({*past0, *past1})
            near = [rank for rank in ranks if rank < seen]
            gaps = {values.index(past0[rank]) for rank in near}
            gaps |= {values.index(past1[-1 - rank]) + 1 for rank in near}
            for gap in sorted(gaps - {0, len(values)}):
                threshold = (values[gap - 1] + values[gap]) / 2
                tpr = (sum(score >= threshold for score in past0) + 0.5) / (seen + 1)
                fpr = (sum(score >= threshold for score in past1) + 0.5) / (seen + 1)
                evidence, a, b, slope = min(
                    (divergence(tpr, a, fnr) + divergence(fpr, b, tnr), a, b, slope)
                    for a, fnr, b, tnr, slope in touching
                )
                if tpr > a + slope * (fpr - b):
                    chosen.append((evidence, threshold, a, b, slope))
            chosen = [bet for bet in chosen if bet[0] >= max(chosen)[0] / 4]
        weights = [1 / max(a, slope * (1 - b)) for _, _, a, b, slope in chosen]
        bets = list(zip(weights, chosen, strict=True))
        most0 = sum(weight * a for weight, (_, _, a, _, _) in bets)
        most1 = sum(weight * slope * (1 - b) for weight, (_, _, _, b, slope) in bets)
        for index, stake in enumerate(stakes if chosen else []):
            won = sum(weight * ((x >= t) - a) for weight, (_, t, a, _, _) in bets)
            lost = sum(weight * s * ((y >= t) - b) for weight, (_, t, _, b, s) in bets)
            share = stake / max(most0, most1)
            wealth[index] *= (1 + share * won) * (1 - share * lost)
        out.append(sum(wealth))
    return out


@pytest.mark.parametrize(
    "family", [lambda: GDP, lambda: direct_family(0.01), lambda: subsampled_family(ADD_REMOVE)]
)
@pytest.mark.parametrize("decimals", [9, 0])
def test_the_wealth_is_that_of_plain_loops(family, decimals):
    lines = lines_of(family(), 0.9)
    world0, world1 = (np.round(world, decimals) for world in scores(1.4, 150))
    # At last the attack is wrong, so that wealth is lost again.
    world0[125:], world1[125:] = world1[125:].copy(), world0[125:].copy()
    expected = twin(lines, world0.tolist(), world1.tolist())
    process = EProcess(lines)
    for k in range(150):
        process.add(world0[k : k + 1], world1[k : k + 1])
        assert process.largest[0] == pytest.approx(max([1, *expected[: k + 1]]), rel=1e-9)
    assert process.largest[0] > 1.5
    # The largest wealth within pairs that come together counts, not that after the last of them.
    together = EProcess(lines)
    together.add(world0, world1)
    assert together.largest[0] == pytest.approx(process.largest[0], rel=1e-9)
    assert max(expected) > 1.2 * expected[-1]


OPTIONS = {"delta": DELTA, "threshold_rule": "anytime"}


def bound_of(world0, world1, **options):
    return estimate_epsilon(world0_scores=world0, world1_scores=world1, **OPTIONS | options)


def test_it_does_not_matter_in_how_many_parts_pairs_come_but_that_they_are_not_sorted():
    world0, world1 = scores(2.0, 200, seed=1)
    whole = bound_of(world0, world1, significance=0.1)
    assert 1.3 < whole.mu_lower < 2.0
    for ends in ([200], range(1, 201), [3, 4, 104, 200]):
        bound = AnytimeBound(delta=DELTA, significance=0.1)
        for start, end in pairwise([0, *ends]):
            bound.add(world0_scores=world0[start:end], world1_scores=world1[start:end])
        assert repr(bound.estimate) == repr(whole)
        assert bound.num_runs == 400
    with pytest.raises(InputError, match="as many of each world"):
        bound.add(world0_scores=[1.0], world1_scores=[0.0, 1.0])
    for order in (np.sort(world1), -np.sort(-world1), np.round(np.sort(world1))):
        with pytest.raises(InputError, match="world1_scores are sorted"):
            bound_of(world0, order)
    with pytest.raises(InputError, match="world0_scores are sorted"):
        bound_of(np.sort(world0), world1)
    with pytest.raises(InputError, match="world1_scores are sorted; rule 'split' needs them in"):
        estimate_epsilon(
            world0_scores=world0, world1_scores=np.sort(world1 > 0), delta=DELTA,
            threshold_rule="split",
        )  # fmt: skip
    bound_of(world0[:60], [0.0] * 59 + [1.0])  # as likely as any other place
    # Scores without a partner do not count.
    assert repr(bound_of([*world0, *scores(9.0, 50)[0]], world1, significance=0.1)) == repr(whole)


def test_the_bound_never_falls_and_looks_change_nothing():
    world0, world1 = scores(1.0, 300, seed=4)
    looks = [(n, n) for n in range(60, 301, 60)]
    options = OPTIONS | {"looks": looks, "conversion": "direct"}
    jointly = estimate_epsilon_at_looks(world0_scores=world0, world1_scores=world1, **options)
    bounds = [bound.epsilon_lower for bound in jointly]
    assert bounds == sorted(bounds)
    assert bounds[-1] > 0.2
    assert {bound.num_looks for bound in jointly} == {5}
    for (n, _), bound in zip(looks, jointly, strict=True):
        alone = bound_of(world0[:n], world1[:n], conversion="direct")
        assert (alone.epsilon_lower, alone.num_looks) == (bound.epsilon_lower, 1)


def test_answers_of_yes_and_no_and_separate_worlds():
    rng = np.random.default_rng(5)
    answers = [(rng.random(400) < share).astype(float) for share in (0.8, 0.2)]
    assert 1.0 < bound_of(*answers).mu_lower < 1.69  # -2 Phi^-1(0.2) = 1.683
    # With no errors in n pairs, rates of p are refuted about when (1 - p)^-2n = 1 / 0.05.
    options = OPTIONS | {"significance": 0.05, "conversion": "gdp"}
    ceiling = ceiling_of(num_world0=500, num_world1=500, **options)
    separate = bound_of(scores(40.0, 500)[0], scores(0.0, 500)[1])
    assert 4.5 < separate.mu_lower < 5.6  # 5.5 for a known threshold and the best stake
    assert ceiling == pytest.approx(separate.epsilon_lower, rel=0.1)


def test_a_claim_is_refuted_when_the_bound_is_above_it_and_a_theta_not_alone():
    world0, world1 = scores(2.0, 200)
    mu_lower = bound_of(world0, world1).mu_lower
    for mu, is_refuted in ((mu_lower - 0.1, True), (mu_lower + 0.1, False), (5.0, False)):
        test = assess_claim_anytime(world0_scores=world0, world1_scores=world1, mechanism=mu)
        assert (test.p_value <= 0.05) is is_refuted
        assert test.num_simulations is None
    assert test.p_value == 1  # of the last one
    # A wealth beyond all floats is a small p-value, not 0.
    world0, world1 = scores(50.0, 3_000)
    test = assess_claim_anytime(world0_scores=world0, world1_scores=world1, mechanism=0.0)
    assert 0 < test.p_value < 1e-300
    assert str(test).startswith("p = 2.3e-308 (the least that can be shown) for the claim")
    # A theta that is refuted alone proves nothing.
    process = EProcess(lines_of(GDP, 0.0, 0.5, 1.0, 1.5), significance=0.05)
    assert process.bound < 0
    for wealth, bound in (([30, 20, 19, 50], 0.5), ([1, 90, 90, 90], -np.inf), ([20] * 4, 1.5)):
        process.largest[:] = wealth
        assert process.bound == bound
