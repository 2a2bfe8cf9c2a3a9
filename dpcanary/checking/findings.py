"""What a check finds, property by property, and how it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpcanary.core.printing import wrapped

_INDENT = " " * 6
_NOT_SEEN = "Not seen by this check:"


@dataclass(frozen=True)
class Finding:
    """One property, as it was measured.

    Attributes:
        name: of the property.
        expected: what DP-SGD or its accountant assumes, in words.
        measured: what was measured, in words; and where, if the property does not hold there.
        holds: whether nothing speaks against it; also if it cannot be measured.
        meaning: what it would mean if it does not hold.
        note: what is worth knowing though it holds; mostly empty.
        judged: whether it could be measured; if not, `measured` and the note say why.
    """

    name: str
    expected: str
    measured: str
    holds: bool
    meaning: str
    note: str = ""
    judged: bool = True

    def lines(self, width: int) -> list[str]:
        """As text, the names of all findings being as wide."""
        mark = ("note" if self.note else "ok  ") if self.judged else "----"
        mark = mark if self.holds else "FAIL"
        lines = [wrapped(self.measured, start=f"{mark}  {self.name:<{width}}  ")]
        if not self.holds:
            lines += [
                wrapped(self.expected, start=f"{_INDENT}expected: "),
                wrapped(self.meaning, start=f"{_INDENT}meaning:  "),
            ]
        if self.note:
            lines.append(wrapped(self.note, start=_INDENT))
        return lines


@dataclass(frozen=True)
class CheckResult:
    """The findings of a check.

    Attributes:
        findings: one for each property.
    """

    findings: Sequence[Finding]

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against any property that could be measured, and some could."""
        return all(finding.holds for finding in self.findings) and not self.compares_nothing

    @property
    def not_judged(self) -> tuple[str, ...]:
        """Names of the properties that could not be measured."""
        return tuple(finding.name for finding in self.findings if not finding.judged)

    @property
    def compares_nothing(self) -> bool:
        """Whether what the check is for could not be measured at all. Then it does not pass."""
        return all(not finding.judged for finding in self.findings)

    @property
    def ranked(self) -> Sequence[Finding]:
        """The findings in the order in which they are shown."""
        return self.findings

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each property."""
        return pd.DataFrame([vars(finding) for finding in self.findings])

    def text(
        self, *, right: str, wrong: str, nothing: str, scope: str, not_seen: Sequence[str]
    ) -> str:
        """All findings, and below them a verdict and what it rests on.

        Args:
            right: what is said if every property holds.
            wrong: what is said after the number of properties that do not hold.
            nothing: what is said if nothing speaks against the properties, because what the check
                is for could not be measured.
            scope: what was measured; lines that begin with a hyphen are a list.
            not_seen: errors that pass all the same.
        """
        width = max(len(finding.name) for finding in self.findings)
        lines = [line for finding in self.ranked for line in finding.lines(width)]
        failed = sum(not finding.holds for finding in self.findings)
        verdict = nothing if self.compares_nothing else right
        if failed:
            verdict = f"{failed} of {len(self.findings)} properties do not hold{wrong}"
        listed = [wrapped(error, start="- ") for error in not_seen]
        return "\n".join([*lines, "", _lines(verdict), _lines(scope), "", _NOT_SEEN, *listed])

    def raise_if_wrong(self, what: str) -> None:
        """Raises an AssertionError with the whole result, if a property does not hold."""
        __tracebackhide__ = True  # pytest then shows the test, and not this function
        if not self.passes:
            raise AssertionError(f"{what}\n\n{self}")


def _lines(text: str) -> str:
    """Lines of text, each wrapped; those of a list are indented."""
    lines = [(line.removeprefix("- "), "- " * line.startswith("- ")) for line in text.split("\n")]
    return "\n".join(wrapped(line, start=start) for line, start in lines)
