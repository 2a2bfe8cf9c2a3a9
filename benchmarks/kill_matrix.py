"""What each test costs, and which planted errors it finds.

    python -m benchmarks.kill_matrix measure [--jobs 2] [PATH ...]
    python -m benchmarks.kill_matrix find [--jobs 2] [NAME ...]
    python -m benchmarks.kill_matrix report [--write]

`measure` runs the unmarked tests once, under coverage.py with one context for each test. `find`
takes, for each error of `planted.json`, the tests of at most five seconds that run the edited
lines, the cheapest first, until they come to `--budget` seconds, and runs all of them with the
error in place. One process collects the tests once and forks for each error. The child exchanges
the code of the edited functions in memory. An edit of anything else (a default value, a constant,
a compiled kernel) is written into a copy of the project, and a new process runs the tests there.
All is kept in `benchmarks/results/kill_matrix/`, so that an interrupted command goes on where it
was. `report` prints what a test costs, what it alone finds, and which tests find nothing that a
cheaper one does not; with `--write` it puts a table into docs/reliability.md. `--list` takes
another list, such as one of errors that were chosen without the tests and have not been tried yet.
"""

import argparse
import contextlib
import dis
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import coverage
import pytest
from tqdm import tqdm

from benchmarks.planted import LIST, ROOT, Planted, copied, read_list
from benchmarks.tables_in_pages import markdown_table, with_table
from dpcanary.core.files import write_text
from dpcanary.core.printing import print_table

KEPT = ROOT / "benchmarks/results/kill_matrix"
PAGE = ROOT / "docs/reliability.md"
MOST_SECONDS = 5.0  # of a test that is a candidate
SAME_SEED = {"CI": "true", "OMP_NUM_THREADS": "1"}  # Hypothesis tries the same examples


class Cost(NamedTuple):
    """What `measure` writes of a test: processor seconds, seconds of waiting, how it ended."""

    test: str
    seconds: float
    waited: float
    outcome: str


class Kills(NamedTuple):
    """What `find` writes of an error.

    Attributes:
        error: its name.
        how: `forked`, or `copied` for an edit that a running process cannot take.
        tried: the candidates that ran.
        killers: those that failed.
    """

    error: str
    how: str
    tried: list[str]
    killers: list[str]


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# --- measure ----------------------------------------------------------------------------------


class Measuring:
    """A plugin of pytest: writes the cost of each test, and gives it a context of coverage.py."""

    def __init__(self, measured: coverage.Coverage, path: Path) -> None:
        self.measured, self.path = measured, path
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes failures in any phase, and what was skipped."""
        if report.failed or (report.skipped and report.when != "teardown"):
            self.failed.add(report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measures one test with its fixtures."""
        self.measured.switch_context(item.nodeid)
        start, clock = processor_seconds(), time.monotonic()
        result = yield
        cost = Cost(
            item.nodeid,
            round(processor_seconds() - start, 3),
            round(time.monotonic() - clock, 3),
            "failed" if item.nodeid in self.failed else "passed",
        )
        self.measured.switch_context("between tests")
        append_line(self.path, cost)
        return result


def append_line(path: Path, row: NamedTuple) -> None:
    """Appends a line of JSON."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row._asdict()) + "\n")


def read_lines(pattern: str) -> list[dict[str, Any]]:
    """All lines of all files of a pattern."""
    return [
        json.loads(line)
        for path in sorted(KEPT.glob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def measure_part(number: int, files: Sequence[str]) -> int:
    """Runs the tests of some files, in this process."""
    measured = coverage.Coverage(
        data_file=KEPT / f"coverage.{number}",
        include=[f"{ROOT}/dpcanary/*"],
        config_file=False,
    )
    measured.start()
    measuring = Measuring(measured, KEPT / f"costs.{number}.jsonl")
    marks = "not long and not exhaustive"
    status = pytest.main(["-q", "-m", marks, "-p", "no:cacheprovider", *files], [measuring])
    measured.stop()
    measured.save()
    return int(status)


def measure(paths: Sequence[str], jobs: int) -> int:
    """Shares the files of tests among processes, and waits for these."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in [*KEPT.glob("costs.*"), *KEPT.glob("coverage.*")]:
        path.unlink()
    files = [
        str(path.relative_to(ROOT))
        for start in (paths or ["tests"])
        for path in (
            [ROOT / start] if (ROOT / start).is_file() else (ROOT / start).rglob("test_*.py")
        )
    ]
    files.sort(key=lambda name: (ROOT / name).stat().st_size)
    if not paths:
        files.insert(0, "dpcanary")  # the examples in docstrings
    parts = [files[first::jobs] for first in range(jobs)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kill_matrix", "part", str(number), *part],
            cwd=ROOT,
            env={**os.environ, **SAME_SEED},
        )
        for number, part in enumerate(parts)
    ]
    return max(process.wait() for process in processes)


# --- find -------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """The tests that passed, with their seconds, and the lines that they ran.

    Attributes:
        seconds: of each test.
        by_line: for each file below the package and line, the tests that ran it.
    """

    seconds: dict[str, float]
    by_line: dict[str, dict[int, list[str]]]


def read_measured() -> Measured:
    """What `measure` has written."""
    costs = [Cost(**row) for row in read_lines("costs.*.jsonl")]
    if not costs:
        sys.exit("error: run `python -m benchmarks.kill_matrix measure` first")
    seconds = {cost.test: cost.seconds for cost in costs if cost.outcome == "passed"}
    by_line: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in KEPT.glob("coverage.*"):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = str(Path(file).relative_to(ROOT / "dpcanary"))
            for line, contexts in data.contexts_by_lineno(file).items():
                by_line[name][line] += [test for test in contexts if test in seconds]
    return Measured(seconds, by_line)


def candidates(error: Planted, measured: Measured, budget: float) -> list[str]:
    """The cheap tests that run the edited lines, up to so many seconds, and those of the list."""
    text = (ROOT / "dpcanary" / error.file).read_text(encoding="utf-8")
    first = text[: text.index(error.before)].count("\n") + 1
    lines = range(first, first + error.before.count("\n") + 1)
    by_line = measured.by_line.get(error.file, {})
    tests = {test for line in lines for test in by_line.get(line, [])}
    if not tests:  # a line of a statement that starts above, or one that runs at import
        tests = {test for running in by_line.values() for test in running}
    chosen: list[str] = []
    total = 0.0
    for test in sorted(tests, key=lambda test: (measured.seconds[test], test)):
        total += measured.seconds[test]
        if measured.seconds[test] > MOST_SECONDS or total > budget:
            break
        chosen.append(test)
    listed = [
        test for test in measured.seconds if any(test.startswith(name) for name in error.tests)
    ]
    return [*dict.fromkeys([*chosen, *listed])]


def own_instructions(code: CodeType) -> list[tuple[str, object]]:
    """The instructions of a code object, without those of the functions inside."""
    return [
        (step.opname, "" if isinstance(step.argval, CodeType) else step.argrepr)
        for step in dis.get_instructions(code)
    ]


def exchanged_functions(
    before: CodeType, after: CodeType
) -> list[tuple[CodeType, CodeType]] | None:
    """Pairs of code of the outermost functions that differ; None if something else differs."""
    pairs: list[tuple[CodeType, CodeType]] = []

    def compare(old: CodeType, new: CodeType) -> bool:
        """Whether all that differs is in functions of this module or class body."""
        inside = [
            [part for part in code.co_consts if isinstance(part, CodeType)] for code in (old, new)
        ]
        if own_instructions(old) != own_instructions(new) or len(inside[0]) != len(inside[1]):
            return False
        for inner_old, inner_new in zip(*inside, strict=True):
            is_function = inner_old.co_flags & 0x2  # CO_NEWLOCALS: class bodies have it not
            if is_function and inner_old != inner_new:
                pairs.append((inner_old, inner_new))
            elif not is_function and not compare(inner_old, inner_new):
                return False
        return True

    return pairs if compare(before, after) else None


def plant_in_memory(error: Planted) -> bool:
    """Exchanges the code of the edited functions; False if this process cannot take the edit."""
    path = ROOT / "dpcanary" / error.file
    text = path.read_text(encoding="utf-8")
    if "numba" in text or text.count(error.before) != 1:
        return False
    edited = text.replace(error.before, error.after)
    pairs = exchanged_functions(
        compile(text, str(path), "exec", dont_inherit=True),
        compile(edited, str(path), "exec", dont_inherit=True),
    )
    if not pairs:
        return False
    name = ".".join(("dpcanary", *Path(error.file).with_suffix("").parts))
    importlib.import_module(name.removesuffix(".__init__"))
    functions = [
        function
        for function in gc.get_objects()
        if type(function) is FunctionType and function.__code__.co_filename == str(path)
    ]
    for old, new in pairs:
        owners = [function for function in functions if function.__code__ == old]
        if not owners:
            return False
        for function in owners:
            function.__code__ = new
    return True


class Failures:
    """A plugin of pytest: the tests that failed in any phase."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a failure once."""
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


class Forking:
    """A plugin of pytest: instead of running the tests, forks a child for each error."""

    def __init__(
        self, errors: Sequence[Planted], tests: Mapping[str, Sequence[str]], path: Path
    ) -> None:
        self.errors, self.tests, self.path = errors, tests, path
        self.left: list[Planted] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Forks, waits, and keeps the errors that a running process cannot take."""
        every = {test for tests in self.tests.values() for test in tests}
        clean = self.failures(session, None, every)
        if clean is None:
            sys.exit("error: the tests end this process without any error planted")
        for error in tqdm(self.errors, unit="error", file=sys.stderr):
            tests = [test for test in self.tests[error.name] if test not in clean]
            failed = self.failures(session, error, tests)
            if failed is None:
                self.left.append(error)
            else:
                append_line(self.path, Kills(error.name, "forked", tests, failed))
        return True

    def failures(
        self, session: pytest.Session, error: Planted | None, tests: Collection[str]
    ) -> list[str] | None:
        """The tests that fail in a child with the error; None if it cannot be planted there."""
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "failed.json"
            child = os.fork()
            if child == 0:
                self._run_child(session, error, set(tests), answer)
            os.waitpid(child, 0)
            return json.loads(answer.read_text()) if answer.is_file() else None

    def _run_child(
        self, session: pytest.Session, error: Planted | None, tests: set[str], answer: Path
    ) -> None:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        with contextlib.suppress(BaseException):
            os.environ["DPCANARY_CACHE"] = tempfile.mkdtemp(dir=answer.parent)
            if error is None or plant_in_memory(error):
                failures = Failures()
                session.config.pluginmanager.register(failures)
                # An error may make a test endless: what has failed until then is the answer.
                signal.signal(signal.SIGALRM, lambda *_: self._answer(failures, answer))
                signal.alarm(120 if error else 0)
                items = [item for item in session.items if item.nodeid in tests]
                for item, following in zip(items, [*items[1:], None], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                self._answer(failures, answer)
        os._exit(0)

    def _answer(self, failures: Failures, answer: Path) -> None:
        answer.with_suffix(".part").write_text(json.dumps(failures.tests))
        answer.with_suffix(".part").rename(answer)
        os._exit(0)


def find_in_copy(error: Planted, tests: Sequence[str], copy: Path) -> list[str]:
    """The tests that fail in a new process on a copy whose file has the error."""
    if not tests:
        return []
    path = copy / "dpcanary" / error.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(error.before, error.after), encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            env={**os.environ, **SAME_SEED, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(text, encoding="utf-8")
    words = [line.split(" ") for line in done.stdout.splitlines()]
    failed = [word[1] for word in words if word[0] in ("FAILED", "ERROR") and len(word) > 1]
    # An error that keeps tests from being collected is found by all of them.
    return [test for test in tests if test in failed] or ([*tests] if failed else [])


def find(names: Sequence[str], path: Path, jobs: int, budget: float) -> int:
    """Runs the candidates of every error of a list that has no line yet."""
    measured = read_measured()
    recorded = {row["error"] for row in read_lines(f"kills-{path.stem}.*.jsonl")}
    errors = [
        error
        for error in read_list(path)
        if error.name not in recorded and (not names or any(name in error.name for name in names))
    ]
    tests = {error.name: candidates(error, measured, budget) for error in errors}
    children = []
    for number in range(jobs):
        child = os.fork()
        if child == 0:
            kept = KEPT / f"kills-{path.stem}.{number}.jsonl"
            find_part(kept, errors[number::jobs], tests)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    return 0


def find_part(path: Path, errors: Sequence[Planted], tests: Mapping[str, Sequence[str]]) -> None:
    """One process's share of the errors: forked where that is possible, the rest in a copy."""
    os.environ.update(SAME_SEED)
    os.chdir(ROOT)
    files = sorted({test.partition("::")[0] for error in errors for test in tests[error.name]})
    forking = Forking(errors, tests, path)
    try:
        pytest.main(["-q", "-p", "no:cacheprovider", *files], [forking])
        with tempfile.TemporaryDirectory(prefix="dpcanary-kills-") as folder:
            copy = copied(Path(folder)) if forking.left else Path()
            for error in tqdm(forking.left, unit="error in a copy", file=sys.stderr):
                failed = find_in_copy(error, tests[error.name], copy)
                append_line(path, Kills(error.name, "copied", [*tests[error.name]], failed))
    except BaseException:
        traceback.print_exc()


# --- report -----------------------------------------------------------------------------------


def file_of(test: str) -> str:
    """The file of a test's name."""
    return test.partition("::")[0]


def redundant(seconds: Mapping[str, float], kills: Iterable[Kills]) -> set[str]:
    """Tests that find errors, but none that a cheaper test does not find as well."""
    cheapest = {
        min(error.killers, key=lambda test: (seconds.get(test, 0.0), test))
        for error in kills
        if error.killers
    }
    finding = {test for error in kills for test in error.killers}
    return finding - cheapest


def report(path: Path, write: bool) -> int:
    """Prints costs, kills, and what finds nothing that a cheaper test does not."""
    costs = [Cost(**row) for row in read_lines("costs.*.jsonl")]
    kills = [Kills(**row) for row in read_lines(f"kills-{path.stem}.*.jsonl")]
    seconds = {cost.test: cost.seconds for cost in costs}
    number_found = Counter(test for error in kills for test in error.killers)
    alone = Counter(error.killers[0] for error in kills if len(error.killers) == 1)
    extra = redundant(seconds, kills)
    print_table(
        ["seconds", "finds", "alone", "test"],
        [
            (f"{cost.seconds:.2f}", str(number_found[cost.test]), str(alone[cost.test]), cost.test)
            for cost in sorted(costs, key=lambda cost: -cost.seconds)[:40]
        ],
    )
    print("\nFind nothing that a cheaper test does not, one second and more:")
    print_table(["seconds", "cases", "finds", "test"], without_finds(seconds, number_found, extra))
    print()
    rows = area_rows(seconds, kills, extra, most=None)
    print_table(_HEADER, rows)
    missed = [error.error for error in kills if not error.killers]
    summary = f"{len(kills) - len(missed)} of {len(kills)} errors are found by a cheap test."
    print(f"\n{summary}")
    for name in missed:
        print(f"  not found: {name}")
    if write:
        page = PAGE.read_text(encoding="utf-8")
        table = markdown_table([_HEADER, *area_rows(seconds, kills, extra, most=9)])
        write_text(PAGE, with_table(page, "table: kill matrix", f"{table}\n\n{summary}"))
    return 0


_HEADER = ["area", "files", "tests", "seconds", "finds", "alone", "redundant"]


def without_finds(
    seconds: Mapping[str, float], number_found: Mapping[str, int], extra: Collection[str]
) -> list[tuple[str, str, str, str]]:
    """Rows of the test functions whose cases find no error that a cheaper test does not find."""
    functions: dict[str, list[str]] = defaultdict(list)
    for test in seconds:
        functions[test.partition("[")[0]].append(test)
    return [
        (f"{total:.1f}", str(len(cases)), str(sum(number_found[case] for case in cases)), function)
        for function, cases in sorted(functions.items())
        if (total := sum(seconds[case] for case in cases)) >= 1
        and all(case in extra or not number_found[case] for case in cases)
    ]


def area_rows(
    seconds: Mapping[str, float],
    kills: Sequence[Kills],
    extra: Collection[str],
    *,
    most: int | None,
) -> list[tuple[str, ...]]:
    """A row for each area, or for those that find most and one for all others together."""
    num_kills = Counter(area for kill in kills for area in {area_of(test) for test in kill.killers})
    names = {area for area, _ in num_kills.most_common(most)} if most else {*map(area_of, seconds)}
    areas: dict[str, list[str]] = defaultdict(list)
    for test in seconds:
        area = area_of(test)
        areas[area if area in names else "all others"].append(test)
    ordered = sorted(areas.items(), key=lambda item: (item[0] == "all others", item[0]))
    return [area_row(area, tests, seconds, kills, extra) for area, tests in ordered]


def area_row(
    area: str,
    tests: Sequence[str],
    seconds: Mapping[str, float],
    kills: Sequence[Kills],
    extra: Collection[str],
) -> tuple[str, ...]:
    """A row of the table: an area's files, tests and seconds, and the errors that it finds."""
    inside = {*tests}
    finding = [[test in inside for test in error.killers] for error in kills]
    return (
        area,
        str(len({file_of(test) for test in tests})),
        str(len(tests)),
        f"{sum(seconds[test] for test in tests):.0f}",
        str(sum(map(any, finding))),
        str(sum(bool(killers) and all(killers) for killers in finding)),
        str(sum(test in extra for test in tests)),
    )


def area_of(test: str) -> str:
    """The part of the tests that a test belongs to: the first word of its file's name."""
    parts = file_of(test).split("/")
    if parts[0] != "tests":
        return "examples in docstrings"
    if parts[1] != "library":
        return parts[1]
    return (
        parts[2].removeprefix("test_").removesuffix(".py").partition("_")[0]
        if len(parts) == 3
        else parts[2]
    )


def main() -> int:
    """Runs one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", choices=["measure", "part", "find", "report"])
    parser.add_argument("names", nargs="*", help="paths of tests, or parts of errors' names")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--list", type=Path, default=LIST, help="another list of errors")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds of tests for an error")
    parser.add_argument("--write", action="store_true", help="the table of the page as well")
    arguments = parser.parse_intermixed_args()
    match arguments.command:
        case "measure":
            return measure(arguments.names, arguments.jobs)
        case "part":
            return measure_part(int(arguments.names[0]), arguments.names[1:])
        case "find":
            return find(arguments.names, arguments.list, arguments.jobs, arguments.budget)
        case _:
            return report(arguments.list, arguments.write)


if __name__ == "__main__":
    sys.exit(main())
