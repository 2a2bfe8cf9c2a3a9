"""Checks what the user asked for and finds the accountant for it."""

from math import isfinite
from typing import assert_never

from dpcanary.accounting.options import AccountingMethod
from dpcanary.accounting.setting import Accountant, EpsilonBounds, Setting
from dpcanary.adjacency import Adjacency
from dpcanary.checks import checked_count, checked_real


def accountant_for(method: AccountingMethod | str) -> Accountant:
    """The accountant of this name. Its libraries are loaded only when it is asked for.

    Raises:
        InputError: if no method has this name.
    """
    match AccountingMethod(method):
        case AccountingMethod.PLD:
            from dpcanary.accounting import pld

            return pld.accountant
        case AccountingMethod.PRV:
            from dpcanary.accounting import prv

            return prv.accountant
        case AccountingMethod.CLOSED_FORM:
            from dpcanary.accounting import closed_form

            return closed_form.accountant
        case AccountingMethod.GROUP_PRIVACY:
            from dpcanary.accounting import group_privacy

            return group_privacy.accountant
        case never:
            assert_never(never)


def checked_setting(
    *,
    adjacency: Adjacency | str,
    sample_rate: float,
    noise_multiplier: float,
    num_steps: int,
    delta: float,
    method: AccountingMethod | str,
) -> Setting:
    """The setting that these arguments describe.

    Raises:
        InputError: an argument is out of its range; the message names it.
    """
    return Setting(
        adjacency=Adjacency(adjacency),
        sample_rate=checked_real("sample_rate", sample_rate, most=1.0, most_included=True),
        noise_multiplier=checked_real("noise_multiplier", noise_multiplier),
        num_steps=checked_count("num_steps", num_steps),
        delta=checked_real("delta", delta, most=1.0),
        method=str(method),
    )


def checked_uppers(accountant: Accountant, setting: Setting, steps: list[int]) -> list[float]:
    """The accountant's upper epsilons, once they are found to be numbers.

    Raises:
        AccountingError: the accountant fails, or gives something else than a finite epsilon.
    """
    uppers = accountant.uppers(setting, steps)
    for upper in uppers:
        if not (isfinite(upper) and upper >= 0):
            reason = f"its epsilon came out as {upper}"
            raise setting.refusal(reason, instead=accountant.instead)
    return uppers


def checked_bounds(accountant: Accountant, setting: Setting) -> EpsilonBounds:
    """The accountant's bounds, once they are found to be finite and in order.

    Raises:
        AccountingError: the accountant fails, or gives anything else.
    """
    bounds = accountant.bounds(setting)
    if not 0 <= bounds.lower <= bounds.estimate <= bounds.upper < float("inf"):
        raise setting.refusal(f"it came out as {bounds}", instead=accountant.instead)
    return bounds
