"""What the workflow's programs share: a user's mistakes end in one line, not in a traceback."""

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from tqdm import tqdm

from dpcanary.errors import AccountingError, InputError


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a program's `main` on the command line's arguments.

    An `InputError` or `AccountingError` is printed and becomes exit status 1.
    """
    try:
        main(sys.argv[1:])
    except (InputError, AccountingError) as error:
        sys.exit(f"error: {error}")


def progress(total: int, unit: str) -> "tqdm[NoReturn]":
    """A progress bar with the time left, on stderr, at most a line every five seconds."""
    return tqdm(total=total, unit=unit, unit_scale=True, mininterval=5.0, file=sys.stderr)
