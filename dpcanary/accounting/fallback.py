"""One accountant, and another one for what the first refuses."""

import sys
from collections.abc import Callable
from typing import TypeVar

from dpcanary.accounting.setting import AccountingMethod
from dpcanary.errors import AccountingError

Result = TypeVar("Result")


def with_fallback(
    account: Callable[[AccountingMethod], Result], *, instead: str
) -> tuple[Result, AccountingMethod]:
    """The result by method `pld`, or by `prv` if `pld` refuses; and the method that gave it.

    Args:
        account: gives the result by a method.
        instead: what the user of a config can do if both refuse.

    Raises:
        AccountingError: if both refuse; says why, and what to do.
    """
    try:
        return account(AccountingMethod.PLD), AccountingMethod.PLD
    except AccountingError as first:
        print(f"warning: trying prv instead: {first}", file=sys.stderr)
        try:
            return account(AccountingMethod.PRV), AccountingMethod.PRV
        except AccountingError as second:
            reason = f"{first.reason or first}; and by method 'prv': {second.reason or second}"
            subject = first.subject or "this mechanism cannot be accounted"
            raise AccountingError.about(subject, reason=reason, instead=instead) from second
