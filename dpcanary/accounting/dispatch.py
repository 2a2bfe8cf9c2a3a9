"""Checks arguments, finds the accountant that they ask for, and checks its answer."""

from typing import assert_never

from dpcanary.accounting.setting import Accountant, AccountingMethod, EpsilonBounds, Setting
from dpcanary.adjacency import Adjacency
from dpcanary.checks import checked_count, checked_real


def accountant_for(method: AccountingMethod | str) -> Accountant:
    """The accountant of this name. Its libraries are imported only when it is asked for.

    Raises:
        InputError: if no method has this name.
    """
    match AccountingMethod(method):
        case AccountingMethod.PLD:
            from dpcanary.accounting.pld import accountant
        case AccountingMethod.PRV:
            from dpcanary.accounting.prv import accountant
        case AccountingMethod.CLOSED_FORM:
            from dpcanary.accounting.closed_form import accountant
        case AccountingMethod.GROUP_PRIVACY:
            from dpcanary.accounting.group_privacy import accountant
        case never:
            assert_never(never)
    return accountant


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
        method=AccountingMethod(method).value,
    )


def checked_uppers(setting: Setting, steps: list[int]) -> list[float]:
    """The upper epsilons after these numbers of steps, by the setting's accountant.

    Raises:
        AccountingError: the accountant fails, or an epsilon is not a finite number of at least 0.
    """
    accountant = accountant_for(setting.method)
    uppers = accountant.uppers(setting, steps)
    for upper in uppers:
        if not 0 <= upper < float("inf"):
            raise setting.refusal(f"its epsilon came out as {upper}", instead=accountant.instead)
    return uppers


def checked_bounds(setting: Setting) -> EpsilonBounds:
    """The bounds by the setting's accountant.

    Raises:
        AccountingError: the accountant fails, or its bounds are not finite and in order.
    """
    accountant = accountant_for(setting.method)
    bounds = accountant.bounds(setting)
    if not 0 <= bounds.lower <= bounds.estimate <= bounds.upper < float("inf"):
        raise setting.refusal(f"it came out as {bounds}", instead=accountant.instead)
    return bounds
