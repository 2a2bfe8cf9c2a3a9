"""Errors that a user can mend. Every message says what is wrong, where, and what to do."""

import errno
from collections.abc import Iterable
from difflib import get_close_matches

from dpcanary.core.optional_packages import lacking, package_lacked

# Errors of writing to an open file do not name the file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_THE_DISK = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, *_FULL),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG),
)

# The loader, or a library that is imported, says so if memory is lacking.
_OF_MEMORY = ("failed to map segment", "cannot allocate memory", "bad_alloc")


class InputError(ValueError):
    """A setting, a file or an array is not valid."""


class AccountingError(ArithmeticError):
    """An accountant cannot give a trustworthy number for these inputs."""

    subject: str = ""
    reason: str = ""

    @classmethod
    def about(
        cls, subject: str, *, reason: str, instead: str, method: str = ""
    ) -> "AccountingError":
        """The error for a `subject`, which cannot be accounted for this `reason`.

        `instead` says what the user can do, and `method` names the accountant if there are several.
        """
        by = f"method={method!r} cannot account " if method else ""
        error = cls(f"{by}{subject}: {reason}; {instead}")
        error.subject, error.reason = subject, reason
        return error


def explained(error: BaseException) -> str | None:
    """What to tell of an error that is no fault of the program; None if it may be one."""
    if isinstance(error, InputError | AccountingError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (package := package_lacked(error)):
        return lacking(package)
    if _lacks_memory(error):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}: free some, or lower --cores; finished files are kept"
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{error.strerror}: free some space, then run again: finished files are kept"
    return None


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words = str(error).lower()
    is_unloaded = isinstance(error, ImportError) and any(word in words for word in _OF_MEMORY)
    return isinstance(error, MemoryError) or is_unloaded


def suggestion(name: str, valid_names: Iterable[str]) -> str:
    """The end of an error about an unknown name: the most similar known name, or all of them.

    Example:
        >>> suggestion("gradeint", ["gradient", "natural"])
        "did you mean 'gradient'?"
        >>> suggestion("xyz", ["gradient", "natural"])
        'known: gradient, natural'
    """
    names = list(valid_names)
    close = get_close_matches(name, names, n=1, cutoff=0.7)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
