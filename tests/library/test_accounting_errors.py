"""What the accountants refuse, and what their messages say."""

import re
import subprocess
import sys
from inspect import signature
from types import SimpleNamespace

import pytest
from accounts import bounds_of, noise_for, setting, uppers_of

from dpcanary import account_epsilon, calibrate_noise
from dpcanary.accounting import account_epsilon_curve, privacy_profile
from dpcanary.accounting import epsilon as epsilon_module
from dpcanary.accounting.epsilon import with_fallback
from dpcanary.accounting.mechanism import AccountingMethod, EpsilonBounds, Mechanism
from dpcanary.accounting.noise import NoiseStage, noise_of
from dpcanary.accounting.overview import upper_bounds
from dpcanary.accounting.settings import AccountingStage
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError, InputError
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Settings

CONFIG_KEYS = {*Audit.model_fields, *Settings.model_fields}
# Arguments of the library's functions that a config does not have: method, steps, epsilon.
LIBRARY_ONLY = {
    name
    for function in (account_epsilon, account_epsilon_curve, calibrate_noise)
    for name in {*signature(function).parameters} - {"mechanism"}
} - CONFIG_KEYS


@pytest.mark.parametrize("method", ["pld", "prv"])
def test_lack_of_memory_is_no_property_of_the_mechanism(method, monkeypatch) -> None:
    """A machine with more memory would give a number, so no other accountant may be taken."""

    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 9.00 GiB")

    asked = {"pld": "from_gaussian_mechanism", "prv": "PRVAccountant"}[method]
    monkeypatch.setattr(f"dpcanary.accounting.{method}.{asked}", full)
    with pytest.raises(MemoryError, match=r"9\.00 GiB"):
        bounds_of(**setting(method=method))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_rate", 0.0),
        ("sample_rate", 1.01),
        ("sample_rate", float("nan")),
        ("sample_rate", True),
        ("noise_multiplier", 0.0),
        ("noise_multiplier", -1.0),
        ("noise_multiplier", float("inf")),
        ("noise_multiplier", "4"),
        ("noise_multiplier", 10**400),  # beyond floats
        ("num_steps", 0),
        ("num_steps", 1.5),
        ("num_steps", True),
        ("delta", 0.0),
        ("delta", 1.0),
        ("delta", float("nan")),
        ("delta", None),
        ("adjacency", "replace"),
        ("method", "rdp"),
    ],
)
def test_bad_arguments_are_named(name: str, value: object) -> None:
    with pytest.raises(InputError, match=name) as caught:
        bounds_of(**setting(**{name: value}))
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan"), True, "1", 1e5, 1e300])
def test_bad_target_is_named(epsilon: object) -> None:
    given = setting()
    del given["noise_multiplier"]
    with pytest.raises(InputError, match=r"epsilon is .*finite number above 0"):
        noise_for(**given, epsilon=epsilon)


@pytest.mark.parametrize("steps", [[], [0], [2, 1.5]])
def test_bad_steps_are_named(steps: list) -> None:
    given = setting()
    del given["num_steps"]
    with pytest.raises(InputError, match="steps"):
        uppers_of(**given, steps=steps)


def test_near_misses_are_suggested() -> None:
    with pytest.raises(InputError, match="did you mean 'closed_form'"):
        bounds_of(**setting(method="closedform"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": "closed_form"}, "sample_rate=1 only"),
        ({"method": "group_privacy", "adjacency": "add_remove"}, "substitute epsilon only"),
        ({"method": "group_privacy", "adjacency": "zero_out"}, "substitute epsilon only"),
        ({"method": "group_privacy", "noise_multiplier": 1.0}, "rounding errors are too large"),
        ({"method": "pld", "delta": 1e-14}, "rounding errors are too large"),
        ({"method": "pld", "noise_multiplier": 0.2}, "underflows"),
        ({"method": "pld", "num_steps": 10**8}, "too wide a grid"),
        ({"method": "pld", "noise_multiplier": 1e-200}, "dp-accounting failed"),
        ({"method": "prv", "noise_multiplier": 0.005}, "too small for its quadrature"),
        ({"method": "prv", "num_steps": 10**6}, "epsilon would be known to"),
    ],
)
def test_refusals_name_the_inputs_and_the_way_out(changes: dict, reason: str) -> None:
    given = setting(**changes)
    with pytest.raises(AccountingError, match=reason) as caught:
        bounds_of(**given)
    message = str(caught.value)
    for name in ("adjacency", "sample_rate", "noise_multiplier", "num_steps", "delta", "method"):
        assert f"{name}=" in message
    assert message.rpartition("; ")[2].startswith(("use method=", "raise "))


@pytest.mark.parametrize(
    "bounds",
    [
        EpsilonBounds(0.0, 1.0, float("inf")),
        EpsilonBounds(0.0, float("nan"), 1.0),
        EpsilonBounds(1.0, 0.5, 2.0),
        EpsilonBounds(-1.0, 0.5, 2.0),
    ],
)
def test_numbers_that_cannot_be_are_refused(monkeypatch, bounds: EpsilonBounds) -> None:
    monkeypatch.setattr(epsilon_module, "_closed_form", lambda question, steps, lower: [bounds])
    with pytest.raises(AccountingError, match="came out as"):
        bounds_of(**setting(method="closed_form"))
    given = setting(method="closed_form", steps=[1])
    del given["num_steps"]
    with pytest.raises(AccountingError, match=r"came out as .*; raise noise_multiplier"):
        uppers_of(**given)


@pytest.mark.parametrize(
    "failure", [RuntimeError("Cannot compute epsilon"), ValueError("floating"), AssertionError()]
)
def test_failures_inside_prv_accountant_are_refusals(monkeypatch, failure: Exception) -> None:
    from dpcanary.accounting import prv

    def fail(**settings: object) -> SimpleNamespace:
        raise failure

    monkeypatch.setattr(prv, "PRVAccountant", fail)
    with pytest.raises(AccountingError, match=r"prv-accountant failed .*use method='pld'"):
        bounds_of(**setting(method="prv"))


def test_libraries_load_only_when_used() -> None:
    code = (
        "import sys; from dpcanary import Mechanism, account_epsilon;"
        "mechanism = Mechanism('substitute', sample_rate=1.0, noise_multiplier=4.0, num_steps=1);"
        "account_epsilon(mechanism, delta=1e-5, method='closed_form');"
        "print([name for name in ('dp_accounting', 'prv_accountant') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_target_that_any_noise_meets_is_refused_in_time() -> None:
    """Sampling is so rare that delta covers the leak at any noise."""
    with pytest.raises(AccountingError, match=r"sample_rate=0\.01, .*: no noise multiplier"):
        noise_for(adjacency="substitute", epsilon=1.0, delta=0.5, sample_rate=0.01, num_steps=1)


def test_group_privacy_refuses_in_its_own_name() -> None:
    with pytest.raises(AccountingError) as refusal:
        bounds_of(
            **setting(adjacency="substitute", method="group_privacy", sample_rate=0.25, delta=1e-12)
        )
    assert str(refusal.value).startswith("method='group_privacy' cannot account adjacency='subst")
    assert str(refusal.value).endswith("'pld' or 'prv', which account the substitution itself")


def _bounds_of_a_config(**changes: object) -> object:
    settings = {"sample_rate": 0.25, "record_steps": (500,), "canary_period": None, "delta": 1e-5}
    sigma = changes.pop("noise_multiplier", 5.0)
    return upper_bounds(AccountingStage(**settings | changes), noise_multiplier=sigma)


def _noise_of_a_config(**changes: object) -> object:
    settings = {
        "adjacency": Adjacency.SUBSTITUTE,
        "sample_rate": 0.25,
        "accounted_steps": 500,
        "noise_multiplier": None,
        "target_epsilon": 1.0,
        "target_delta": 1e-5,
    }
    return noise_of(NoiseStage(**settings | changes))


# Requests of a config that both accountants refuse.
BOTH_REFUSE = {
    "little noise": lambda: _bounds_of_a_config(noise_multiplier=0.2),
    "no noise": lambda: _bounds_of_a_config(noise_multiplier=1e-200),
    "small delta": lambda: _bounds_of_a_config(delta=1e-17),
    "many steps": lambda: _bounds_of_a_config(delta=1e-14, record_steps=(10**6,)),
    "calibration": lambda: _noise_of_a_config(target_delta=1e-17),
}


@pytest.mark.parametrize("case", BOTH_REFUSE)
def test_where_both_refuse_the_error_speaks_of_what_a_config_has(case: str) -> None:
    with pytest.raises(AccountingError, match="; and by method 'prv': ") as caught:
        BOTH_REFUSE[case]()
    text = str(caught.value)
    way_out = {*re.findall(r"\w+", text.rpartition("; ")[2])}
    assert way_out & {"noise_multiplier", "target_epsilon", "delta"}
    assert not way_out & LIBRARY_ONLY
    named = {*re.findall(r"\b(\w+)=", text)}
    assert {"sample_rate", "noise_multiplier", "num_steps", "delta"} <= named <= CONFIG_KEYS


def test_the_second_method_is_asked_only_where_the_first_refuses(capsys) -> None:
    def account(method: AccountingMethod, *, refusing: set[str]) -> str:
        if method.value in refusing:
            raise AccountingError.about("x=1", reason=f"{method} is unfit", instead="use nothing")
        return f"by {method}"

    def found(*refusing: str) -> tuple[str, AccountingMethod]:
        return with_fallback(
            lambda method: account(method, refusing={*refusing}), instead="change x"
        )

    assert found("prv") == ("by pld", AccountingMethod.PLD)
    assert capsys.readouterr().err == ""
    assert found("pld") == ("by prv", AccountingMethod.PRV)
    assert "trying prv instead: x=1: pld is unfit" in capsys.readouterr().err
    both = "x=1: pld is unfit; and by method 'prv': prv is unfit; change x"
    with pytest.raises(AccountingError, match=f"^{both}$"):
        found("pld", "prv")


@pytest.mark.parametrize("epsilon", [-1.0, float("nan"), float("inf")])
def test_a_profile_is_asked_at_epsilons_alone(epsilon: float) -> None:
    mechanism = {"sample_rate": 0.5, "noise_multiplier": 1.0, "num_steps": 2}
    with pytest.raises(InputError, match=r"^epsilons is .*; it must be"):
        privacy_profile(Mechanism("substitute", **mechanism), epsilons=[1.0, epsilon])
