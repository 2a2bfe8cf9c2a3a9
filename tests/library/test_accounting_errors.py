"""What the accountants refuse, and what their messages say."""

import re
import subprocess
import sys
from inspect import signature
from math import inf, nan
from unittest.mock import Mock

import pytest
from accounts import bounds_of, noise_for, setting, upper_of

from dpcanary import account_epsilon, calibrate_noise
from dpcanary.accounting import account_epsilon_curve, privacy_profile
from dpcanary.accounting import epsilon as epsilon_module
from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.audit_noise import NoiseStage, noise_of
from dpcanary.accounting.mechanism import EpsilonBounds, Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import AccountingError, InputError
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings

CONFIG_KEYS = {*Audit.model_fields, *Settings.model_fields}
# Arguments of the library's functions that a config does not have: method, steps, epsilon.
FUNCTIONS = (account_epsilon, account_epsilon_curve, calibrate_noise)
ARGUMENTS = {name for function in FUNCTIONS for name in signature(function).parameters}
LIBRARY_ONLY = ARGUMENTS - {"mechanism"} - CONFIG_KEYS
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
    both, one = [("prv", "pld"), ("loose", "prv")], [("loose", "pld")]
    rare = {"delta": 1e-14, "record_steps": (10**5,)}  # of so many steps, prv is not asked
    for changes, fallbacks in (
        ({"noise_multiplier": 0.05}, both), ({"delta": 1e-17}, both), (rare, one),
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
    assert not way_out & LIBRARY_ONLY
    named = {*re.findall(r"\b(\w+)=", text)}
    assert {"sample_rate", "noise_multiplier", "num_steps", "delta"} <= named <= CONFIG_KEYS
