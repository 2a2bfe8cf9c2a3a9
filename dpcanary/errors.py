"""The errors that a user can mend; every message says what is wrong, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """A setting, file or array is not what it must be."""


class AccountingError(ArithmeticError):
    """An accountant cannot give a trustworthy number for these inputs.

    Attributes:
        subject: what was to be accounted, with the inputs.
        reason: why it cannot be.
    """

    subject: str = ""
    reason: str = ""

    @classmethod
    def about(
        cls, subject: str, *, reason: str, instead: str, method: str = ""
    ) -> "AccountingError":
        """The error that names what was to be accounted, why it cannot be, and what to do.

        Args:
            subject: what was to be accounted, with the inputs.
            reason: why it cannot be.
            instead: what to do.
            method: the accountant, if it is one among several.
        """
        by = f"method={method!r} cannot account " if method else ""
        error = cls(f"{by}{subject}: {reason}; {instead}")
        error.subject, error.reason = subject, reason
        return error


def suggestion(name: str, known: Iterable[str]) -> str:
    """Ends an error about an unknown name: the nearest known one, or all of them.

    Example:
        >>> suggestion("gradeint", ["gradient", "natural"])
        "did you mean 'gradient'?"
        >>> suggestion("xyz", ["gradient", "natural"])
        'known: gradient, natural'
    """
    names = list(known)
    close = get_close_matches(name, names, n=1, cutoff=0.7)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
