"""The check of a whole training: twice with the same noisy sums, on records that differ in one."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpcanary.checking.findings import CheckResult, Finding
from dpcanary.checking.neighbours.differences import (
    Difference,
    RunComparison,
    Tolerance,
    compare,
    control,
)
from dpcanary.checking.neighbours.neighbour_datasets import Data
from dpcanary.checking.neighbours.neighbour_findings import (
    MOST_APART,
    PROPERTIES,
    UNCHANGED,
    findings_of,
)
from dpcanary.checking.neighbours.records_seen import Reader
from dpcanary.checking.neighbours.replacements import Replacement, chosen
from dpcanary.checking.neighbours.session import ENOUGH, Run, Session
from dpcanary.checking.neighbours.tape import Tape
from dpcanary.checking.neighbours.timed_runs import Group, Train, run_once
from dpcanary.checking.neighbours.values_read import MOVES, Reads, spans_of
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.program_messages import progress
from dpcanary.errors import InputError

# A run may take so many times as long as the first one, and so many seconds more.
_TIMES_AS_LONG, _SECONDS_MORE = 10.0, 30.0
# What may follow from a value that is read, such as a loss.
_DECIDED = {"settings", "parameters", "batches", "random numbers", "steps", "released"}
_WRONG = ", so the training depends on a record by more than its noisy sums."


@dataclass(frozen=True)
class NeighboursCheck(CheckResult):
    """The result of `check_neighbours`. `print` shows it as text.

    Attributes:
        findings: one for each property.
        num_steps: of the first run.
        replacements: what was replaced, in words.
        largest: the largest difference of a clipped sum in units of C; 2 are accounted.
        steps_with_record: steps in which the sum differed, for each replacement.
        batches_known: whether the check could see which records are in which batch.
        is_whole: whether the training was run to its end.
        seconds: of all runs.
        not_seen: errors that pass all the same, in words.
        cause: what to look at first; empty if all properties hold.
    """

    num_steps: int
    replacements: tuple[str, ...]
    largest: float
    steps_with_record: tuple[int, ...]
    batches_known: bool
    is_whole: bool
    seconds: float
    not_seen: tuple[str, ...]
    cause: str

    @property
    def compares_nothing(self) -> bool:
        """Whether no sum could be compared. Then the training does not pass."""
        sums = [finding for finding in self.findings if finding.name == PROPERTIES["with"].name]
        has_failed = any(not finding.holds for finding in self.findings)
        is_empty = not self.num_steps or not self.replacements
        return not has_failed and (is_empty or not all(finding.judged for finding in sums))

    @property
    def ranked(self) -> tuple[Finding, ...]:
        """The findings, first those that do not hold: causes before what follows from them."""
        return (
            *(finding for finding in self.findings if not finding.holds),
            *(finding for finding in self.findings if finding.holds),
        )

    def __str__(self) -> str:
        first, *replaced = self._scope
        return self.text(
            right=self._right,
            wrong=f"{_WRONG}\n{self.cause}",
            nothing=self._why_nothing(),
            scope="\n".join([f"{first}.", *(f"- {line}" for line in replaced)]),
            not_seen=self.not_seen,
        )

    @property
    def _right(self) -> str:
        if self.not_judged:
            names = ", ".join(self.not_judged)
            return f"Nothing speaks against what could be compared. Not compared: {names}."
        return (
            "Nothing was found by which the training depends on the replaced records but through"
            " its noisy sums: with the same noisy sums, all that was compared is equal."
        )

    @property
    def _scope(self) -> list[str]:
        whole = "" if self.is_whole else " (the first ones of the training)"
        return [
            f"{self.num_steps} steps{whole}, {self.seconds:.0f} seconds in all",
            *(
                f"{label}: the sum differs in {count} of {self.num_steps} steps"
                for label, count in zip(self.replacements, self.steps_with_record, strict=True)
            ),
        ]

    def _why_nothing(self) -> str:
        if not self.num_steps:
            return (
                "Nothing was compared: no noisy sum was seen. Make the optimiser of Opacus inside"
                " of the function, or pass the sums of each step through record_sums."
            )
        if any(finding.note == UNCHANGED for finding in self.findings):
            return (
                "Nothing was compared: no replacement changed the sum of a step, so the replaced"
                " records do not reach the training."
            )
        return (
            "Nothing was compared: two runs on the same records differ too much. Seed what draws"
            " the batches inside of the function, or let it draw from the generators of PyTorch,"
            " NumPy or Python."
        )

    def report(self, path: Path | str | None = None) -> Path:
        """Writes the result as one HTML page that works offline, and gives its path.

        By default `neighbours.html` in the current folder.

        Raises:
            InputError: if the file cannot be written.
        """
        from dpcanary.checking.check_report import write_check_page

        target = Path("neighbours.html" if path is None else path)
        if self.passes:
            verdict, summary = "passes", self._right
        elif self.compares_nothing:
            verdict, summary = "could not be compared", self._why_nothing()
        else:
            verdict, summary = "does not pass", self.cause
        write_check_page(
            target,
            title=f"Neighbours: the training {verdict}",
            summary=[
                "The training was run on records that differ in one, with the same random numbers"
                " and the same noisy sums.",
                summary,
            ],
            findings=self.ranked,
            scope=self._scope,
            not_seen=self.not_seen,
        )
        return target


def check_neighbours(
    train: Train,
    dataset: Any,
    *,
    replacements: Iterable[Replacement] | None = None,
    neighbour: Any = None,
    num_steps: int | None = None,
    sample_rate: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
) -> NeighboursCheck:
    """Checks that a whole training depends on a record through its noisy sums alone.

    The training is run on the dataset, and every noisy sum is kept. It is run once more on the same
    records, which shows whether it is deterministic; and then with a record replaced, with the same
    random numbers and the kept noisy sums in place of its own. What differs then, but for the
    clipped sums of the batches that have the record, is a leak that no accountant counts.

    Args:
        train: your whole training, from raw records to what is released. `train(dataset)` gets a
            copy of the dataset, and returns the model, anything with a `state_dict`, a dict, list
            or tuple of arrays and numbers, or the path of the file or folder that it wrote. It
            makes its model and its optimizer itself. Optimizers of Opacus are found; other loops
            call `record_sums`, or wrap what adds the noise in `recorded`.
        dataset: what a `DataLoader` takes, such as a `TensorDataset`; or a tuple or dict of arrays
            with a row for each record.
        replacements: what is replaced; each costs a training. By default a handful at three places:
            a record ten times as loud, with another label, all zeros, another record, a copy of its
            neighbour, and with missing values if other records have some. If nothing is found then,
            and the code reads values such as a loss that depend on the record, there are three more
            trainings in which these are moved further.
        neighbour: a dataset of your own in place of these, which differs in one record.
        num_steps: the training is ended after so many steps; then what is released is not compared.
        sample_rate: of the batches, if neither the optimizer nor `record_sums` is told it. It is
            used where the check cannot see which records a batch has.
        time_limit: seconds after which a run counts as hanging; by default, ten times what the
            first one takes and half a minute. It holds in the main thread.
        seed: of the generators of Python, NumPy and PyTorch in every run.
        folder: where the sums wait, two numbers of each parameter and step; by default, the
            system's folder for temporary files.

    Raises:
        InputError: if the training fails on the dataset, or an argument is out of range.
    """
    seed = checked_count("seed", seed, least=0)
    if num_steps is not None:
        num_steps = checked_count("num_steps", num_steps, least=1)
    if sample_rate is not None:
        checked_real("sample_rate", sample_rate, most=1.0, most_included=True)
    if time_limit is not None:
        checked_real("time_limit", time_limit)
    data = Data(dataset)
    planned = None if replacements is None else [*replacements]
    if neighbour is not None:
        planned = _of_neighbour(data, Data(neighbour))
    for replacement in planned or []:
        if not 0 <= replacement.index < data.count:
            raise InputError(
                f"there is no record {replacement.index}: the dataset has {data.count}"
            )
    with TemporaryDirectory(prefix="dpcanary-", dir=folder) as temporary:
        runs = _Runs(train, data, Tape(Path(temporary)), seed=seed, num_steps=num_steps)
        return runs.result(planned, sample_rate=sample_rate, time_limit=time_limit)


def assert_neighbours(train: Train, dataset: Any, **settings: Any) -> None:
    """Fails a test if a training depends on a record by more than its noisy sums.

    Args:
        train: as in `check_neighbours`.
        dataset: as in `check_neighbours`.
        settings: its other arguments.

    Raises:
        AssertionError: with the whole result, if a property does not hold.
    """
    __tracebackhide__ = True
    result = check_neighbours(train, dataset, **settings)
    result.raise_if_wrong("the training depends on a record by more than its noisy sums")


def _of_neighbour(data: Data, other: Data) -> list[Replacement]:
    differing = data.where_it_differs(other)
    if len(differing) != 1:
        raise InputError(
            f"the neighbour must differ in one record, and differs in {len(differing)}"
            + (f": {', '.join(map(str, differing[:5]))}" if differing else "")
        )
    [index] = differing
    return [Replacement(index, other.record(index), "that of the neighbour")]


class _Runs:
    """All runs of a check."""

    def __init__(
        self, train: Train, data: Data, tape: Tape, *, seed: int, num_steps: int | None
    ) -> None:
        self._train, self._data, self._tape = train, data, tape
        self._seed, self._num_steps = seed, num_steps
        self._group = Group()
        self._seconds = 0.0
        self._tolerance = Tolerance()

    def result(
        self,
        planned: list[Replacement] | None,
        *,
        sample_rate: float | None,
        time_limit: float | None,
    ) -> NeighboursCheck:
        """Runs the training as often as it takes."""
        with progress(None, "step") as bar:
            first = self._run(None, None, time_limit, bar.update)
            if first.error is not None:
                error = first.error
                raise InputError(
                    f"the training fails on the dataset ({type(error).__name__}: {error})"
                ) from error
            if first.ended not in ("", ENOUGH):
                raise InputError("the training on the dataset takes longer than the time limit")
            replaced = planned
            if replaced is None:
                batches = [step.batches for step in first.steps]
                replaced = chosen(self._data, batches, seed=self._seed)
            if not first.steps:
                replaced = []
            bar.reset(total=(2 + len(replaced)) * len(first.steps))
            bar.update(len(first.steps))
            limit = time_limit
            if limit is None:
                limit = _TIMES_AS_LONG * first.seconds + _SECONDS_MORE
            if first.steps:
                again = self._run(first, None, limit, bar.update)
                if again.error is not None:
                    error = again.error
                    raise InputError(
                        "the training fails when it is run a second time on the same records"
                        f" ({type(error).__name__}: {error}), so nothing can be compared: let each"
                        " run make and write again what it needs"
                    ) from error
                self._tolerance = control(first, again)
            tolerance = self._tolerance
            pairs: list[tuple[str, RunComparison]] = []
            reads = []
            for replacement in replaced:
                run = self._run(first, replacement, limit, bar.update)
                reads.append(run.reads)
                comparison = compare(
                    first, run, replacement.index, tolerance, sample_rate=sample_rate
                )
                pairs.append((replacement.label, comparison))
            spans = spans_of(first.reads, reads)
            # Several processes might not agree on whether to run it.
            is_tried = planned is None and bool(spans) and not self._group.is_several
            if is_tried and not any(own.differences for _, own in pairs):
                bar.total = (2 + len(replaced) + len(MOVES)) * len(first.steps)
                pairs += self._with_moved_values(first, replaced[0], spans, limit, bar.update)
        return self._judged(first, tolerance, pairs, spans)

    def _with_moved_values(
        self,
        first: Run,
        replaced: Replacement,
        spans: Mapping[str, float],
        limit: float,
        on_step: Callable[[], object],
    ) -> Iterator[tuple[str, RunComparison]]:
        """Runs in which the values that depend on the record are moved further.

        Sums are not looked at: a loop that clips by such a value clips wrongly then.
        """
        spans_in_words = "; ".join(sorted(spans)[:3])
        for name, factor in MOVES.items():
            run = self._run(first, replaced, limit, on_step, Reads(spans, factor))
            comparison = compare(first, run, replaced.index, self._tolerance, sample_rate=None)
            comparison.largest = 0.0
            comparison.differences = [
                difference
                for difference in comparison.differences
                if difference.kind in _DECIDED and not run.error
            ]
            yield f"{replaced.label}, and the values read in {spans_in_words} {name}", comparison

    def _run(
        self,
        first: Run | None,
        replaced: Replacement | None,
        limit: float | None,
        on_step: Callable[[], object],
        reads: Reads | None = None,
    ) -> Run:
        reader = Reader(self._data.count)
        place, record = (None, None) if replaced is None else (replaced.index, replaced.record)
        session = Session(
            self._tape,
            reader,
            first=first,
            reads=reads,
            num_steps=self._num_steps,
            on_step=on_step,
            add_up=self._group.add_up if self._group.is_several else None,
            all_batches=self._group.all_batches if self._group.is_several else None,
        )
        dataset = self._data.copied(reader, place, record)
        run = run_once(self._train, dataset, session, seed=self._seed, seconds=limit)
        self._seconds += run.seconds
        return run

    def _judged(
        self,
        first: Run,
        tolerance: Tolerance,
        pairs: Sequence[tuple[str, RunComparison]],
        spans: Mapping[str, float],
    ) -> NeighboursCheck:
        labels, compared = tuple(label for label, _ in pairs), [run for _, run in pairs]
        differences = [
            (difference, label)
            for label, run in pairs
            for difference in run.differences
            if _can_be_judged(difference, tolerance)
        ]
        is_whole = first.ended != ENOUGH
        is_known = bool(compared) and all(run.is_known for run in compared)
        largest = max((run.largest for run in compared), default=0.0)
        findings = findings_of(
            differences,
            tolerance,
            is_whole=is_whole,
            has_counts=bool(first.counts),
            has_released=any(run.compares_released for run in compared),
            has_sums=any(run.num_compared for run in compared),
            changes_sums=any(run.with_record for run in compared)
            or (is_known and not any(run.num_having for run in compared)),
            largest=largest,
            of_noise=max((run.of_noise for run in compared), default=0.0),
        )
        order = _causes_first(differences)
        kinds = [*dict.fromkeys(PROPERTIES[difference.kind].name for difference, _ in order)]
        findings.sort(
            key=lambda finding: kinds.index(finding.name) if finding.name in kinds else len(kinds)
        )
        return NeighboursCheck(
            findings=tuple(findings),
            num_steps=len(first.steps),
            replacements=labels,
            largest=largest,
            steps_with_record=tuple(run.with_record for run in compared),
            batches_known=is_known,
            is_whole=is_whole,
            seconds=self._seconds,
            not_seen=(
                *_not_seen(first, tolerance, spans, is_known=is_known, is_whole=is_whole),
                *_read_otherwise(self._data.read_otherwise),
            ),
            cause=_cause(order),
        )


def _read_otherwise(names: set[str]) -> Iterator[str]:
    if names:
        yield (
            "what the training reads of the dataset other than records by number, where no record"
            f" was replaced: {', '.join(sorted(names)[:5])}"
        )


def _can_be_judged(difference: Difference, tolerance: Tolerance) -> bool:
    if difference.kind in tolerance.kinds:
        return False
    if difference.kind in ("without", "with"):
        return tolerance.sums <= MOST_APART
    return difference.kind != "noise" or tolerance.noise <= MOST_APART


def _causes_first(differences: Sequence[tuple[Difference, str]]) -> list[tuple[Difference, str]]:
    """In the order in which they happen; what reaches other records explains sums beyond 2 C."""
    reaching = [difference.step for difference, _ in differences if difference.kind == "without"]
    least = min(reaching, default=0)

    def rank(pair: tuple[Difference, str]) -> tuple[int, float]:
        difference = pair[0]
        if difference.kind == "with" and least:
            return max(difference.step, least), difference.order + 0.5
        return difference.step, difference.order

    return sorted(differences, key=rank)


def _cause(order: list[tuple[Difference, str]]) -> str:
    if not order:
        return ""
    first, _ = order[0]
    text = f"Look first at: {PROPERTIES[first.kind].name} (step {first.step}: {first.text})."
    if first.hint:
        text += f" {first.hint[0].upper()}{first.hint[1:]}."
    others = [*dict.fromkeys(PROPERTIES[difference.kind].name for difference, _ in order[1:])]
    others = [name for name in others if name != PROPERTIES[first.kind].name]
    if others:
        text += f" From it may follow: {', '.join(others)}."
    return text


def _not_seen(
    first: Run, tolerance: Tolerance, spans: Mapping[str, float], *, is_known: bool, is_whole: bool
) -> Iterable[str]:
    yield "a branch that none of these replacements triggers, and records other than these"
    yield (
        "what is printed, logged or written, and not returned; attributes of a module that are not"
        " in its state_dict (`torch.save` of a whole module writes them); what is outside of the"
        " function"
    )
    if spans:
        yield (
            "what is done with the values that the training reads and that depend on the record,"
            f" beyond what was tried: {'; '.join(sorted(spans)[:5])}"
        )
    yield "noise, sampling and accounting, which `dpcanary check` and `watch` measure"
    if not is_known and first.steps:
        yield (
            "sums of steps without the record: the records in the batches could not be seen, so"
            " only the number of steps in which the sum differs is compared with the sample rate"
        )
    if not is_whole:
        yield "all after the first steps, and what is released"
    if first.not_compared:
        names = ", ".join(first.not_compared[:5])
        yield f"parts of what is returned that are neither arrays nor numbers: {names}"
    apart = [name for name, size in tolerance.values.items() if size == inf]
    if apart:
        yield (
            "parts of what is returned that are text, or of another shape, in each run on the same"
            f" records: {', '.join(apart[:5])}"
        )
    if first.steps and not any(step.parameters for step in first.steps):
        yield "the parameters at each step, which the loop does not tell; what is released has them"
