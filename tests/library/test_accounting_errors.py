"""What accountants refuse and say, and which answers at every setting."""

import re
import subprocess
import sys
from math import inf, nan
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from accounts import bounds_of, noise_for, renyi_epsilon, setting, tails_of_step, upper_of
from sampling import exhaustive
from scipy.stats import norm

from dpcanary.accounting import Adjacency, account_epsilon, account_epsilon_curve, privacy_profile
from dpcanary.accounting import epsilon as epsilon_module
from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.audit_noise import NoiseStage, noise_of
from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.epsilon import all_methods
from dpcanary.accounting.loose import renyi_divergences
from dpcanary.accounting.mechanism import EpsilonBounds, Mechanism, Phase
from dpcanary.accounting.noise_calibration import calibrate_with_fallback
from dpcanary.accounting.phases import account_phases
from dpcanary.accounting.total_variation import total_variation_bound
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.errors import AccountingError, InputError
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings

CONFIG_KEYS = {*Audit.model_fields, *Settings.model_fields}
BAD = {
    "sample_rate": [0.0, 1.01, nan, True],
    "noise_multiplier": [0.0, -1.0, inf, "4", 10**400],  # the last one is beyond floats
    "num_steps": [0, 1.5, True],
    "delta": [0.0, 1.0, nan, None],
    "adjacency": ["replace"],
    "method": ["rdp", "closedform"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_bad_arguments_are_named(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name) as caught:
        bounds_of(**setting(**{name: value}))
    assert repr(value) in str(caught.value)
    assert (value == "closedform") is ("did you mean 'closed_form'" in str(caught.value))


def test_bad_targets_steps_and_points_of_a_profile_are_named() -> None:
    for epsilon in (0.0, -1.0, inf, nan, True, "1", 1e5, 1e300):
        with pytest.raises(InputError, match=r"epsilon is .*finite number above 0"):
            noise_for(**setting(), epsilon=epsilon)
    # Sampling is so rare that delta covers the leak at any noise.
    with pytest.raises(AccountingError, match=r"sample_rate=0\.01, .*: no noise multiplier"):
        noise_for(adjacency="substitute", epsilon=1.0, delta=0.5, sample_rate=0.01, num_steps=1)
    mechanism = Mechanism("substitute", sample_rate=0.5, noise_multiplier=1.0, num_steps=2)
    for steps in ([], [0], [2, 1.5]):
        with pytest.raises(InputError, match="steps"):
            account_epsilon_curve(mechanism, steps=steps, delta=1e-5)
    for epsilon in (-1.0, nan, inf):
        with pytest.raises(InputError, match=r"^epsilons is .*; it must be"):
            privacy_profile(mechanism, epsilons=[1.0, epsilon])


@pytest.mark.parametrize(("changes", "reason"), [
    ({"method": "closed_form"}, "sample_rate=1 only"),
    ({"method": "group_privacy", "adjacency": "add_remove"}, "substitute epsilon only"),
    ({"method": "group_privacy", "adjacency": "zero_out"}, "substitute epsilon only"),
    ({"method": "group_privacy", "delta": 1e-12},
     "^method='group_privacy' cannot account adjacency='subst.*rounding errors are too large"
     ".*'pld' or 'prv', which account the substitution itself$"),
    ({"method": "pld", "delta": 1e-14}, "rounding errors are too large"),
    ({"method": "pld", "noise_multiplier": 0.2}, "underflows"),
    ({"method": "pld", "num_steps": 10**8}, "too wide a grid"),
    ({"method": "pld", "noise_multiplier": 1e-200}, "dp-accounting failed"),
    ({"method": "prv", "noise_multiplier": 0.005}, "too small for its quadrature"),
    ({"method": "prv", "num_steps": 10**6}, "epsilon would be known to"),
])  # fmt: skip
def test_refusals_name_the_inputs_and_the_way_out(changes: dict, reason: str) -> None:
    with pytest.raises(AccountingError, match=reason) as caught:
        bounds_of(**setting(**changes))
    message = str(caught.value)
    for name in ("adjacency", "sample_rate", "noise_multiplier", "num_steps", "delta", "method"):
        assert f"{name}=" in message
    assert message.rpartition("; ")[2].startswith(("use method=", "raise "))


def test_numbers_that_cannot_be_are_refused(monkeypatch) -> None:
    for impossible in ((0.0, 1.0, inf), (0.0, nan, 1.0), (1.0, 0.5, 2.0), (-1.0, 0.5, 2.0)):
        answers = [EpsilonBounds(*impossible)]
        monkeypatch.setattr(epsilon_module, "_closed_form", lambda *_, answers=answers: answers)
        for account in (bounds_of, upper_of):
            with pytest.raises(AccountingError, match=r"came out as .*; raise noise_multiplier"):
                account(**setting(method="closed_form"))


def test_failures_inside_prv_accountant_are_refusals_but_lack_of_memory_is_none(monkeypatch):
    """A machine with more memory would give a number, so no other accountant may be taken."""
    refusal, full = (AccountingError, r"prv-accountant failed .*use method='pld'"), MemoryError("9")
    for method, asked, failure, raised, message in (
        ("prv", "PRVAccountant", RuntimeError("Cannot compute"), *refusal),
        ("prv", "PRVAccountant", ValueError("floating"), *refusal),
        ("prv", "PRVAccountant", AssertionError(), *refusal),
        ("prv", "PRVAccountant", full, MemoryError, "9"),
        ("pld", "from_gaussian_mechanism", full, MemoryError, "9"),
    ):
        monkeypatch.setattr(f"dpcanary.accounting.{method}.{asked}", Mock(side_effect=failure))
        with pytest.raises(raised, match=message):
            bounds_of(**setting(method=method))


def test_neither_closed_forms_nor_the_default_rule_load_what_takes_long() -> None:
    code = (
        "import sys; from dpcanary import Mechanism, account_epsilon, estimate_epsilon;"
        "mechanism = Mechanism('substitute', sample_rate=1.0, noise_multiplier=4.0, num_steps=1);"
        "account_epsilon(mechanism, delta=1e-5, method='closed_form'); scores = [*range(1000)];"
        "estimate_epsilon(world0_scores=scores, world1_scores=scores, delta=1e-5);"
        "slow = {'dp_accounting', 'prv_accountant', 'scipy.stats', 'numba', 'pandas', 'torch'};"
        "sys.exit(', '.join(slow & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def _bounds_of_a_config(*, noise_multiplier: float = 5.0, **changes: object) -> object:
    settings = {"sample_rate": 0.25, "record_steps": (500,), "canary_period": None, "delta": 1e-5}
    return upper_bounds(AccountingStage(**settings | changes), noise_multiplier=noise_multiplier)


def test_a_config_that_exact_accountants_refuse_gets_loose_bounds_or_a_message(capsys) -> None:
    both, only_loose = [("prv", "pld"), ("loose", "prv")], [("loose", "pld")]
    rare = {"delta": 1e-14, "record_steps": (10**5,)}  # of so many steps, prv is not asked
    for changes, fallbacks in (
        ({"noise_multiplier": 0.05}, both), ({"delta": 1e-17}, both), (rare, only_loose),
    ):  # fmt: skip
        table = _bounds_of_a_config(**changes)
        assert table["accounting_method"].tolist() == ["loose"]
        assert 0 < table["epsilon_upper_add_remove"][0] < table["epsilon_upper_substitute"][0] < inf
        warned = capsys.readouterr().err
        assert re.findall(r"trying (\w+) instead: method='(\w+)'", warned) == fallbacks
    stage = {"adjacency": Adjacency.SUBSTITUTE, "sample_rate": 0.25, "accounted_steps": 500}
    targets = {"noise_multiplier": None, "target_epsilon": 1.0, "target_delta": 1e-17}
    noise = noise_of(NoiseStage(**stage, **targets))
    [epsilon] = _bounds_of_a_config(noise_multiplier=noise, delta=1e-17)["epsilon_upper_substitute"]
    assert epsilon == pytest.approx(1.0, rel=1e-3)
    # Where all refuse, the error speaks of what a config has.
    message = r"by method 'prv': .*; and by method 'loose': "
    with pytest.raises(AccountingError, match=message) as caught:
        _bounds_of_a_config(noise_multiplier=1e-200)
    text = str(caught.value)
    way_out = {*re.findall(r"\w+", text.rpartition("; ")[2])}
    assert way_out & {"noise_multiplier", "target_epsilon", "delta"}
    assert not way_out & {"method", "steps", "epsilon"}  # which functions of the library take
    named = {*re.findall(r"\b(\w+)=", text)}
    assert {"sample_rate", "noise_multiplier", "num_steps", "delta"} <= named <= CONFIG_KEYS


# Settings of the grid that all runs try, and the accountant that answers.
METHODS = {
    0: "pld", 1: "loose", 2: "loose", 3: "pld", 5: "closed_form", 6: "pld", 7: "pld",
    85: "closed_form",  # delta near round-off
    127: "loose",  # steep divergences
    387: "prv",  # coarse losses
    391: "pld",  # many rounded losses
}  # fmt: skip
SLOW = {7, 387, 391}


def grid() -> list[tuple[Mechanism, float]]:
    """Mechanisms and deltas over all magnitudes; every fifth one without sampling."""
    rng = np.random.default_rng(7)
    settings = []
    for index in range(500):
        rate = 1.0 if index % 5 == 0 else float(10 ** rng.uniform(-7, 0))
        num_steps, noise = int(10 ** rng.uniform(0, 6)), float(10 ** rng.uniform(-1, 2))
        adjacency = "substitute" if index % 2 else "add_remove"
        step = {"sample_rate": rate, "noise_multiplier": noise}
        mechanism = Mechanism(adjacency, num_steps=num_steps, **step)
        settings.append((mechanism, float(10 ** rng.uniform(-15, -1))))
    return settings


GRID = grid()


def lower_bound_of_one_step(mechanism: Mechanism, delta: float) -> float:
    """An epsilon that one step exceeds: that at which outputs above a threshold have more delta."""
    sigma = mechanism.noise_multiplier
    outputs = np.linspace(-2, 2, 41) + sigma * np.linspace(-8, 40, 41)
    step = {"sample_rate": mechanism.sample_rate, "noise_multiplier": sigma}
    (world0, world1), _ = tails_of_step(mechanism.adjacency, outputs, **step)
    is_valid = (world0 > delta) & (world1 > 0)
    return np.log((world0[is_valid] - delta) / world1[is_valid]).max(initial=0.0)


def marked(index: int) -> Any:
    if index not in METHODS:
        return exhaustive(index)
    return pytest.param(index, marks=[pytest.mark.long] * (index in SLOW))


@pytest.mark.parametrize("index", [*map(marked, range(len(GRID)))])
def test_every_setting_of_the_grid_is_accounted(index):
    """Under both adjacencies, and within what is known independently."""
    mechanism, delta = GRID[index]
    epsilons = account_by_adjacency(mechanism, delta=delta)
    assert METHODS.get(index, epsilons.method) == epsilons.method
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.num_steps
    for adjacency in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE):
        epsilon = getattr(epsilons, adjacency)
        assert 0 <= epsilon < np.inf
        # Full batches are the Gaussian mechanism; sampling can only help.
        unsampled = gdp_epsilon(mu=adjacency.sensitivity * steps**0.5 / sigma, delta=delta)
        if q == 1:
            assert epsilon == pytest.approx(unsampled, rel=2e-4, abs=1e-9)
        elif epsilons.method != "loose":
            assert epsilon <= unsampled * (1 + 1e-3) + 1e-6
        # One step alone: the largest delta of the Gaussian, of which sampling takes the share q.
        assert epsilon >= lower_bound_of_one_step(mechanism.under(adjacency), delta) * (1 - 1e-9)
    if q < 1:
        assert epsilons.add_remove <= renyi_epsilon([mechanism], delta=delta) * 1.005 + 1e-9


@pytest.mark.parametrize(("q", "sigma"), [(0.03, 0.7), (0.4, 2.0), (1.0, 3.0)])
@pytest.mark.parametrize(("adjacency", "centre"), [("zero_out", 0.0), ("substitute", -1.0)])
def test_divergences_are_those_of_quadrature(adjacency, centre, q, sigma):
    """By a fine sum of the integrand, whose tails are negligible at both ends."""
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=3, noise_multiplier=sigma)
    for order in (1.01, 1.7, 4.0, 23.0):
        outputs = np.linspace(-2 * order - 9 * sigma, 2 * order + 9 * sigma, 200_001)
        with np.errstate(divide="ignore"):
            absent, *logs = (
                np.log(share) + norm.logpdf(outputs, mean, sigma)
                for share, mean in ((1 - q, 0.0), (q, 1.0), (q, centre))
            )
        first, second = (np.logaddexp(absent, present) for present in logs)
        integrals = [
            np.trapezoid(np.exp(order * own + (1 - order) * other), outputs)
            for own, other in ((first, second), (second, first))
        ]
        [divergence] = renyi_divergences(mechanism, np.array([order]))
        assert divergence == pytest.approx(np.log(max(integrals)) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "most"), [
    (0.1, 2.0, 200, 1e-5, 1.11), (0.5, 5.0, 50, 1e-8, 1.1), (1e-3, 0.8, 3000, 1e-6, 1.02),
])  # fmt: skip
def test_the_loose_bound_is_above_the_exact_one_and_near(adjacency, q, sigma, steps, delta, most):
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=steps, noise_multiplier=sigma)
    exact = account_epsilon(mechanism, delta=delta)
    loose = account_epsilon(mechanism, delta=delta, method="loose")
    assert exact.lower <= exact.upper <= loose.upper * (1 + 1e-9)
    assert loose.upper <= most * exact.upper
    assert loose.lower == 0.0


def test_an_epsilon_is_zero_where_delta_covers_the_total_variation():
    mechanism = Mechanism("substitute", sample_rate=1e-4, num_steps=1, noise_multiplier=2.0)
    total_variation = 1e-4 * (2 * norm.cdf(1 / 2.0) - 1)
    phases = [Phase(17.2, 5.5e-6, 500_000), Phase(17.0, 5.4e-6, 70_000)]
    for epsilons, is_zero in (
        (account_by_adjacency(mechanism, delta=1.001 * total_variation), True),
        (account_by_adjacency(mechanism, delta=0.999 * total_variation), False),
        (account_phases(phases, delta=8.7e-4), True),
        (account_phases(phases, delta=8.7e-5), False),
    ):
        assert (epsilons.substitute == 0) is is_zero
        assert epsilons.add_remove == 0 or not is_zero
    # For many steps this is only a bound, but it is below the grid's rounding.
    many = Mechanism("substitute", sample_rate=1.9e-7, num_steps=64_563, noise_multiplier=75.9)
    assert account_by_adjacency(many, delta=9e-4).substitute == 0


@pytest.mark.parametrize(("adjacency", "q", "sigma", "steps", "most"), [
    ("add_remove", 1e-3, 0.8, 3_000, 1.28),  # by the chi-squared divergence
    ("substitute", 1e-3, 0.8, 3_000, 1.28),
    ("add_remove", 1e-4, 0.15, 10, 1.01),  # by the sum over steps
    ("substitute", 1e-4, 0.15, 10, 1.01),
    ("add_remove", 1.0, 30.0, 40, 1.01),  # by the Gaussian mechanism
    ("substitute", 0.9, 30.0, 40, 1.2),
])  # fmt: skip
def test_the_total_variation_is_bounded_from_above(adjacency, q, sigma, steps, most):
    """By the delta at epsilon 0, which the losses round up."""
    mechanism = Mechanism(adjacency, sample_rate=q, num_steps=steps, noise_multiplier=sigma)
    [delta] = privacy_profile(mechanism, epsilons=[0.0])
    bound = total_variation_bound([mechanism])
    assert delta * (1 - 1e-9) <= bound <= most * delta
    # The phases of one mechanism are this mechanism; little noise bounds nothing.
    parts = [mechanism.after(steps - 7), mechanism.after(7)]
    assert total_variation_bound(parts) == pytest.approx(bound, rel=1e-9)
    assert total_variation_bound([mechanism.with_noise(1e-3).after(10**6)]) >= 1 - 1e-9


def test_rare_records_in_many_steps_are_accounted_within_a_third_of_a_fine_grid():
    """One phase of a million records in batches of one; the fine grid is dp-accounting's own."""
    mechanism = Mechanism("add_remove", sample_rate=1e-5, num_steps=100_000, noise_multiplier=1.0)
    epsilon = account_by_adjacency(mechanism, delta=1e-7).add_remove
    assert 0.0164 <= epsilon <= 0.0164 * 4 / 3


def test_phases_whose_delta_is_near_round_off_are_accounted_by_divergences():
    phases = [Phase(2.0, 0.05, 3_000), Phase(3.0, 0.1, 2_000)]
    loose = account_phases(phases, delta=1e-14)
    assert loose.method == "loose"
    assert loose.add_remove == pytest.approx(renyi_epsilon(phases, delta=1e-14), rel=1e-3)
    # Between two trainings with the rarer batches and the larger noise, and the other way round.
    options = {"adjacency": "substitute", "num_steps": 5_000, "delta": 1e-14, "method": "loose"}
    least = upper_of(sample_rate=0.05, noise_multiplier=3.0, **options)
    assert least < loose.substitute < upper_of(sample_rate=0.1, noise_multiplier=2.0, **options)


def test_full_batches_are_calibrated_by_the_closed_form_and_slow_accountants_are_asked_seldom():
    mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=300)
    noise, method = calibrate_with_fallback(mechanism, epsilon=3.0, delta=1e-15, instead="stop")
    assert method == "closed_form"
    assert gdp_epsilon(mu=2 * 300**0.5 / noise, delta=1e-15) == pytest.approx(3.0, rel=1e-4)
    few = Mechanism("substitute", sample_rate=0.1, num_steps=20_000, noise_multiplier=1.0)
    assert [method.value for method in all_methods(few)] == ["pld", "prv", "loose"]
    assert "prv" not in all_methods(few.after(20_001))
