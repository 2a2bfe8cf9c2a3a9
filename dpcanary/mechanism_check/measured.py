"""What was measured of one property, and the tests that compare it with what is accounted."""

from dataclasses import dataclass
from typing import NamedTuple

# So many places are named in which a property fails.
_MOST_NAMED = 3


class Tested(NamedTuple):
    """One test of a property.

    Attributes:
        place: what it looked at, and the value found there; empty if it looked at everything.
        p_value: if the property holds, it is at most p with probability at most p; 0 or 1 for what
            is not random.
    """

    place: str
    p_value: float


@dataclass(frozen=True)
class Measured:
    """One property as it was measured.

    Attributes:
        text: what was measured, in words.
        tests: of the property; it holds if all of them pass.
    """

    text: str
    tests: tuple[Tested, ...]

    @property
    def p_value(self) -> float:
        """Of all tests together (Bonferroni)."""
        return float(min(1.0, len(self.tests) * min(test.p_value for test in self.tests)))

    def text_with_places(self, level: float) -> str:
        """The text, and the places in which the property fails, unless every test fails."""
        failing = [test for test in self.tests if len(self.tests) * test.p_value <= level]
        worst_first = sorted(failing, key=lambda test: test.p_value)
        places = [test.place for test in worst_first if test.place]
        if not places or len(failing) == len(self.tests):
            return self.text
        more = len(places) - _MOST_NAMED
        rest = [f"{more} more"] if more > 0 else []
        return f"{self.text}: {', '.join(places[:_MOST_NAMED] + rest)}"
