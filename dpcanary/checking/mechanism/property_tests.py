"""What measured updates say of each property that the accountant assumes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dpcanary.checking.findings import Finding
from dpcanary.checking.mechanism.measurements import Measurements
from dpcanary.checking.mechanism.update_evidence import Evidence, evidence_of

_PROCESSED = (
    "if this depends on noisy gradients alone, it is post-processing and changes no epsilon. Check"
    " the loop without it"
)
# So many places are named in which a property fails.
_MOST_NAMED = 3


class Test(NamedTuple):
    """A p-value, and the place that was tested with the value found there; empty for all."""

    place: str
    p_value: float


class Measured(NamedTuple):
    """What was measured, in words; the tests of it; and what is unusual and harmless, in words."""

    text: str
    tests: Sequence[Test]
    note: str = ""


@dataclass(frozen=True)
class Property:
    """What the accountant assumes, and how it is measured; if `needs_noise`, where there is any."""

    name: str
    expected: str
    measure: Callable[[Evidence], Measured]
    meaning: str
    is_random: bool = True
    needs_noise: bool = False


@dataclass(frozen=True)
class TestedFinding(Finding):
    """A finding with a p-value.

    Attributes:
        p_value: if the property holds, it is at most p with probability at most p; 0 or 1 for what
            is not random.
    """

    p_value: float = 1.0


def exact(holds: bool, place: str = "") -> Test:
    """The test of what is not random."""
    return Test(place, float(holds))


def findings_of(
    measurements: Measurements, properties: Sequence[Property], *, significance: float
) -> list[TestedFinding]:
    """What the measurements say; a right mechanism fails with this probability, at most."""
    level = level_of_each(significance, properties)
    findings: list[TestedFinding] = []
    evidence = evidence_of(measurements) if measurements.num_updates else None
    for prop in properties:
        if evidence is None:
            measured = Measured("no update", [Test("", 0.0)])
        elif prop.needs_noise and not evidence.noise:
            measured = Measured("no noise", [Test("", 0.0)])
        else:
            measured = prop.measure(evidence)
        # All tests together (Bonferroni).
        tests = measured.tests or [Test("", 1.0)]
        p_value = float(min(1.0, len(tests) * min(test.p_value for test in tests)))
        holds = p_value > level
        text = measured.text if holds else measured.text + _failing_places(tests, level)
        note = measured.note if holds else ""
        hidden_by = [words for words, names in measurements.unclear if prop.name in names]
        # What is done with noisy gradients may only hide a property that does not seem to hold.
        judged = holds or not hidden_by
        if not judged:
            is_first = all(finding.judged for finding in findings)
            text, note = "cannot be judged", ""
            if is_first:
                note = f"{'; '.join(hidden_by)}: {_PROCESSED}"
        findings.append(
            TestedFinding(
                prop.name,
                prop.expected,
                text,
                holds or not judged,
                prop.meaning,
                note,
                judged,
                p_value,
            )
        )
    return findings


def level_of_each(significance: float, properties: Sequence[Property]) -> float:
    """Each random property's equal part of the significance (Bonferroni)."""
    return significance / sum(prop.is_random for prop in properties)


def _failing_places(tests: Sequence[Test], level: float) -> str:
    """The places in which a property fails, worst first, unless every test fails."""
    failing = [test for test in tests if len(tests) * test.p_value <= level]
    worst_first = sorted(failing, key=lambda test: test.p_value)
    named = [test.place for test in worst_first if test.place]
    if not named:
        return ""
    more = len(named) - _MOST_NAMED
    return f": {', '.join(named[:_MOST_NAMED] + ([f'{more} more'] if more > 0 else []))}"
