"""Errors that a user can mend. Every message says what is wrong, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


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
