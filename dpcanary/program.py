"""What the workflow's programs share: a user's mistakes end in one line, not in a traceback."""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from dpcanary.errors import AccountingError, InputError


def run(main: Callable[[Sequence[str]], None]) -> None:
    """Runs a program's `main` on the command line's arguments.

    An `InputError` or `AccountingError` is printed and becomes exit status 1.
    """
    try:
        main(sys.argv[1:])
    except (InputError, AccountingError) as error:
        sys.exit(f"error: {error}")


@contextmanager
def progress(total: int, unit: str) -> "Iterator[tqdm[NoReturn]]":
    """A progress bar with the time left, on stderr, at most a line every five seconds.

    What the library logs meanwhile comes above it.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    bar = tqdm(total=total, unit=unit, unit_scale=True, mininterval=5.0, file=sys.stderr)
    with bar, logging_redirect_tqdm(tqdm_class=type(bar)):
        yield bar
