"""In what a run differs from the first one, where both are to be equal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from scipy.stats import binom

from dpcanary.checking.neighbours.records_seen import Batch, other_rows
from dpcanary.checking.neighbours.released_values import Value
from dpcanary.checking.neighbours.session import MORE_STEPS, OTHER_SHAPES, TIME, Run, Step

# Rounding errors of a sum, in units of the precision of its numbers.
_ROUNDINGS = 16.0
# Rounding errors of equal inputs, as arrays may lie elsewhere in memory; and the precision of sums
# of numbers in half precision.
_ROUNDINGS_OF_EQUALS, _OF_ARITHMETIC = 4.0, 2.0**-23
# Clipping may leave a little more than C, and more in half precision.
_OVER = 1e-3
# Differences of the control run are exceeded by those of other pairs of runs, up to so many times.
_TIMES_CONTROL = 10.0
# Without knowledge of the batches: a right training has so many steps with the record with this
# probability, at most.
_LEVEL = 1e-6
# Batches are known if they were seen in so many of the steps.
_KNOWN = 0.9


@dataclass(frozen=True)
class Difference:
    """A difference that the noisy sums do not explain.

    Attributes:
        kind: a key of `neighbour_findings.PROPERTIES`.
        step: from 1; one more than there are for what is seen at the end.
        where: the tensor or setting.
        text: what differs and by how much, in words.
        hint: what caused it, where more is known; else empty.
        order: of what happens in a step.
    """

    kind: str
    step: int
    where: str
    text: str
    hint: str = ""
    order: int = 0


@dataclass
class Tolerance:
    """What differs between two runs on the same records.

    Attributes:
        sums: the largest difference of a sum in units of C.
        noise: the largest difference of a value of the noise in units of C.
        kinds: of the differences, such as "batches".
        values: the largest difference of each value that was released.
        names: of settings, generators and tensors that differ.
    """

    sums: float = 0.0
    noise: float = 0.0
    kinds: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    @property
    def is_exact(self) -> bool:
        """Whether both runs were equal in all that is compared."""
        return not (self.sums or self.noise or self.kinds or any(self.values.values()))


@dataclass
class RunComparison:
    """What a run on other records shows.

    Attributes:
        differences: the first one of each kind.
        largest: the largest difference of a sum in units of C, in steps with the record.
        with_record: steps whose sum differs.
        is_known: whether the records in the batches were known.
        num_compared: steps whose sums were compared, as the parameters were equal.
        compares_released: whether what is released was compared.
        of_noise: the largest difference of a value of the noise that rounding may explain, in units
            of C.
        num_having: steps whose batch is known to have it.
    """

    differences: list[Difference] = field(default_factory=list)
    largest: float = 0.0
    with_record: int = 0
    is_known: bool = False
    num_compared: int = 0
    compares_released: bool = False
    of_noise: float = 0.0
    num_having: int = 0


def control(first: Run, again: Run) -> Tolerance:
    """What differs between two runs on the same records."""
    tolerance = Tolerance()
    for step, other in zip(first.steps, again.steps, strict=False):
        if other.compared is not None:
            tolerance.sums = max(tolerance.sums, other.compared.total / step.limit)
            tolerance.noise = max(tolerance.noise, other.compared.of_noise / step.limit)
        if not _same_batches(step, other):
            tolerance.kinds.add("batches")
        for kind, names in _changed_names(step, other):
            tolerance.kinds.add(kind)
            tolerance.names.update(names)
    if len(first.steps) != len(again.steps) or again.ended == MORE_STEPS:
        tolerance.kinds.add("steps")
    if first.released is not None and again.released is None:
        tolerance.kinds.add("released")
    if again.error is not None or again.ended in (TIME, OTHER_SHAPES):
        tolerance.kinds.add("end")
    if first.random != again.random:
        tolerance.kinds.add("random numbers")
        tolerance.names.update(_changed(first.random, again.random))
    if first.released is not None and again.released is not None:
        for name, value in first.released.items():
            same = again.released.get(name)
            tolerance.values[name] = inf if same is None else value.difference(same)
    return tolerance


def _changed_names(step: Step, other: Step) -> Iterator[tuple[str, list[str]]]:
    for kind, before, now in (
        ("settings", step.settings, other.settings),
        ("parameters", step.parameters, other.parameters),
        ("random numbers", step.random, other.random),
    ):
        names = _changed(before, now)
        if names:
            yield kind, names


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [
        *(name for name, value in before.items() if now.get(name, before) != value),
        *(name for name in now if name not in before),
    ]


def compare(
    first: Run, other: Run, record: int, tolerance: Tolerance, *, sample_rate: float | None
) -> RunComparison:
    """Compares a run in which a record was replaced with the first run."""
    comparison = RunComparison(is_known=_is_known(first))
    seen: set[str] = set()

    def add(difference: Difference | None) -> None:
        if difference is not None and difference.kind not in seen:
            seen.add(difference.kind)
            comparison.differences.append(difference)

    differing: list[int] = []
    without: list[Difference] = []
    moved_rows = ""
    equal = True
    for number, (step, now) in enumerate(zip(first.steps, other.steps, strict=False), start=1):
        for difference in _before_sum(number, step, now, tolerance):
            add(difference)
        equal = equal and ("parameters" not in seen or "parameters" in tolerance.kinds)
        rows = other_rows(step.batches, now.batches, record)
        if not moved_rows and rows is not None and rows[0]:
            moved_rows = (
                f"{rows[0]} of {rows[1]} other records in the batches of step {number} have other"
                " values than before: they are computed from all records"
            )
        if not equal or now.compared is None or "batches" in seen:
            continue
        comparison.num_compared += 1
        for difference in _of_sum(number, step, now, record, tolerance, comparison):
            if difference.kind == "without":
                without.append(difference)
            else:
                add(difference)
        if now.compared.total > _error_of_equals(step, now, tolerance):
            differing.append(number)
    comparison.with_record = len(differing)
    leak = _without(first, record, differing, without, comparison, sample_rate, moved_rows)
    add(leak)
    for difference in _at_end(first, other, tolerance, comparison):
        add(difference)
    comparison.differences.sort(key=lambda difference: (difference.step, difference.order))
    return comparison


def _before_sum(number: int, step: Step, now: Step, tolerance: Tolerance) -> Iterator[Difference]:
    """What is to be equal when the sum of a step is known."""
    for name in _changed(step.settings, now.settings):
        if name not in tolerance.names:
            before, value = step.settings.get(name), now.settings.get(name)
            text = f"{name} is {_shown(value)} in place of {_shown(before)}"
            yield Difference("settings", number, name, text, order=2)
    for name in _changed(step.parameters, now.parameters):
        if "parameters" in tolerance.kinds:
            break
        before, norm = step.norms.get(name, 0.0), now.norms.get(name, 0.0)
        size = abs(norm - before) / before if before else abs(norm - before)
        by = f"its norm is another by {size:.2g}" if size else "its norm is the same"
        yield Difference("parameters", number, name, f"{name} differs ({by})", order=0)
    # Before the first step, what is read without a loader prepares the data.
    is_drawn = number > 1 or all(batch.loaded for batch in step.batches)
    if is_drawn and "batches" not in tolerance.kinds and not _same_batches(step, now):
        yield Difference("batches", number, "", _batches_in_words(step, now), order=1)
    for name in _changed(step.random, now.random):
        if "random numbers" not in tolerance.kinds:
            text = f"the generator of {name} has drawn other numbers, or more of them"
            yield Difference("random numbers", number, name, text, order=3)


def _same_batches(step: Step, now: Step) -> bool:
    return len(step.batches) == len(now.batches) and _starts_with(step.batches, now.batches)


def _batches_in_words(step: Step, now: Step) -> str:
    before, after = step.batches, now.batches
    if len(after) > len(before) and _starts_with(after, before):
        return "a batch was drawn, and no step was made with it: it was skipped"
    if len(before) > len(after) and _starts_with(before, after):
        return "a batch is used that was skipped before"
    return "other records were drawn"


def _starts_with(longer: Sequence[Batch], shorter: Sequence[Batch]) -> bool:
    return all(
        len(a.records) == len(b.records) and (a.records == b.records).all()
        for a, b in zip(longer, shorter, strict=False)
    )


def _error(step: Step, now: Step, tolerance: Tolerance) -> float:
    """What rounding explains of a difference between two sums."""
    rounding = _ROUNDINGS * max(step.rounding, now.rounding) * (step.limit + step.scale)
    return rounding + _TIMES_CONTROL * tolerance.sums * step.limit


def _error_of_equals(step: Step, now: Step, tolerance: Tolerance) -> float:
    """What it explains where the records are the same."""
    precision = min(max(step.rounding, now.rounding), _OF_ARITHMETIC)
    rounding = _ROUNDINGS_OF_EQUALS * precision * (step.limit + step.scale)
    return rounding + _TIMES_CONTROL * tolerance.sums * step.limit


def _of_sum(
    number: int, step: Step, now: Step, record: int, tolerance: Tolerance, comparison: RunComparison
) -> Iterator[Difference]:
    """What a step's sum and its noise show."""
    compared = now.compared
    if compared is None:
        return
    size, where = compared.total / step.limit, compared.largest
    if not compared.is_finite:
        text = f"the sum has values that are NaN or infinite, in {where}"
        yield Difference("finite", number, where, text, order=4)
        return
    error = _error(step, now, tolerance)
    held = [batch.has(record) for batch in step.batches]
    comparison.num_having += bool(sum(held))
    differs = compared.total > _error_of_equals(step, now, tolerance)
    if differs:
        comparison.largest = max(comparison.largest, size)
    if compared.total > 2 * step.limit * (1 + _OVER + 4 * step.rounding) + error:
        often = sum(held)
        hint = f"the record is {often} times in the step" if often > 1 else ""
        text = f"the sum differs by {size:.4g} C, most in {where}"
        yield Difference("with", number, where, text, hint, order=4)
    if comparison.is_known and not sum(held) and differs:
        text = f"the sum of a step without the record differs by {size:.3g} C, most in {where}"
        yield Difference("without", number, where, text, order=4)
    # The noise is the difference of two numbers, which rounding has changed.
    largest_noise = compared.of_noise / step.limit
    allowed = _ROUNDINGS * step.rounding * (step.scale / step.limit + 10 * _noise_of(step))
    comparison.of_noise = max(comparison.of_noise, allowed)
    if largest_noise > max(1e-4, allowed) + _TIMES_CONTROL * tolerance.noise:
        text = f"a value of the noise differs by {largest_noise:.3g} C"
        yield Difference("noise", number, "", text, order=5)


def _noise_of(step: Step) -> float:
    for name in ("noise multiplier", "noise_multiplier"):
        value = step.settings.get(name)
        if isinstance(value, float):
            return max(1.0, value)
    return 10.0


def _is_known(first: Run) -> bool:
    """Whether the records in the batches of the steps were seen."""
    with_batches = sum(bool(step.batches) for step in first.steps)
    return bool(first.steps) and with_batches >= _KNOWN * len(first.steps)


def _without(
    first: Run,
    record: int,
    differing: Sequence[int],
    without: Sequence[Difference],
    comparison: RunComparison,
    sample_rate: float | None,
    moved_rows: str,
) -> Difference | None:
    """Whether sums differ in more steps than those that have the record."""
    if comparison.is_known and without:
        if not _fetched_earlier(first, record, differing):
            difference = without[0]
            return Difference(
                "without", difference.step, difference.where, difference.text, moved_rows, order=4
            )
        comparison.is_known = False
    if comparison.is_known or not differing:
        return None
    rate = sample_rate if sample_rate is not None else _told_rate(first)
    if rate is None or not rate < 1:
        return None
    count, total = len(differing), comparison.num_compared
    if binom.sf(count - 1, total, rate) < _LEVEL:
        text = f"sums differ in {count} of {total} steps, at sample rate {rate:.3g}"
        return Difference("without", differing[0], "", text, moved_rows, order=4)
    return None


def _fetched_earlier(first: Run, record: int, differing: Sequence[int]) -> bool:
    """Whether each differing step can have a batch of its own with the record, fetched before."""
    steps = {*differing}
    fetched = used = 0
    for number, step in enumerate(first.steps, start=1):
        fetched += sum(1 for batch in step.batches if batch.has(record))
        used += number in steps
        if used > fetched:
            return False
    return True


def _told_rate(first: Run) -> float | None:
    for name in ("sample rate", "sample_rate"):
        rates = [step.settings.get(name) for step in first.steps]
        known_rates = [rate for rate in rates if isinstance(rate, float)]
        if known_rates:
            return max(known_rates)
    return None


def _at_end(
    first: Run, other: Run, tolerance: Tolerance, comparison: RunComparison
) -> Iterator[Difference]:
    """What is known when both runs have ended."""
    last = len(first.steps) + 1
    num_made = len(other.steps)
    if other.error is not None:
        text = f"the training fails ({type(other.error).__name__}: {other.error})"
        yield Difference("end", num_made + 1, "", text, order=6)
        return
    if other.ended == TIME:
        text = f"the training does not end; {num_made} steps were made"
        yield Difference("end", num_made + 1, "", text, order=6)
        return
    if other.ended == OTHER_SHAPES:
        yield Difference("end", num_made + 1, "", "the sums have other shapes", order=6)
        return
    if other.ended == MORE_STEPS:
        text = f"more than the {len(first.steps)} steps of the first run are made"
        yield Difference("steps", last, "", text, order=6)
        return
    if "steps" not in tolerance.kinds and num_made != len(first.steps):
        text = f"{num_made} steps are made, and {len(first.steps)} in the first run"
        yield Difference("steps", num_made + 1, "", text, order=6)
        return
    for count, now in zip(first.counts, other.counts, strict=False):
        if abs(count.raw - now.raw) > 1:
            text = f"the count of {count.name} differs by {abs(count.raw - now.raw):g}"
            yield Difference("counts", count.step, count.name, text, order=4)
    for name in _changed(first.settings, other.settings):
        if name not in tolerance.names and "settings" not in tolerance.kinds:
            before, value = first.settings.get(name), other.settings.get(name)
            text = f"{name} is {_shown(value)} in place of {_shown(before)}"
            yield Difference("settings", last, name, text, order=7)
    if "random numbers" not in tolerance.kinds and first.random != other.random:
        names = ", ".join(_changed(first.random, other.random))
        text = f"the generator of {names} has drawn other numbers after the last step"
        yield Difference("random numbers", last, names, text, order=7)
    if first.released is not None and other.released is not None:
        comparison.compares_released = any(
            value.text != "None" and tolerance.values.get(name, 0.0) < inf
            for name, value in first.released.items()
        )
        yield from _of_released(last, first.released, other.released, tolerance)


def _of_released(
    last: int, before: Mapping[str, Value], now: Mapping[str, Value], tolerance: Tolerance
) -> Iterator[Difference]:
    apart: list[tuple[str, float]] = []
    for name, value in before.items():
        other = now.get(name)
        size = inf if other is None else value.difference(other)
        if size > _TIMES_CONTROL * tolerance.values.get(name, 0.0):
            apart.append((name, size))
    apart += [(name, inf) for name in now if name not in before]
    if not apart:
        return
    name, size = apart[0]
    of = before.get(name)
    relative = f" ({size / of.size:.2g} of its largest value)" if of is not None and of.size else ""
    by = "" if size == inf else f" by {size:.3g}{relative}"
    more = f", and {len(apart) - 1} more" if len(apart) > 1 else ""
    yield Difference("released", last, name, f"{name} differs{by}{more}", order=8)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = "unknown" if value is None else str(value)
    return text if len(text) < 60 else f"{text[:57]}..."
