"""One accountant, and another one where the first refuses."""

import sys
from collections.abc import Callable
from typing import TypeVar

from dpcanary.accounting.options import AccountingMethod
from dpcanary.errors import AccountingError

Result = TypeVar("Result")


def with_fallback(
    account: Callable[[AccountingMethod], Result], *, instead: str
) -> tuple[Result, AccountingMethod]:
    """What the first method gives, or else the second; and which one it was.

    Args:
        account: takes `pld` or `prv`.
        instead: what a config can do where both refuse.

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
            by_second = f"and by method 'prv': {second.reason or second}"
            raise AccountingError.about(
                first.subject or "this mechanism cannot be accounted",
                reason=f"{first.reason or first}; {by_second}",
                instead=instead,
            ) from second
