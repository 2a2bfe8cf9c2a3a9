"""The progress of a run: what is counted, the time left, and Snakemake's messages in our words."""

import heapq
import io
import logging
import re
import signal
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from dpcanary.core.installation import SNAKEFILE
from dpcanary.workflow import run_progress as shown
from dpcanary.workflow.run_progress import WorkflowProgress, fraction_done, make_display
from dpcanary.workflow.start import WithoutProfile
from snakemake_logger_plugin_dpcanary import _TARGETS, LogHandler

RULES = Path(__file__).parents[2] / "rules"


def simulated(jobs: list[tuple[str, float]], cores: int) -> list[tuple[float, float | None]]:
    """Runs jobs in this order on some cores; at each end, the time left and its estimate."""
    progress = WorkflowProgress()
    progress.plan(Counter(rule for rule, _ in jobs), 0.0)
    running: list[tuple[float, int]] = []
    now, estimates = 0.0, []
    for number, (rule, seconds) in enumerate([*jobs, *[("", 0.0)] * cores]):
        if len(running) == cores or not rule:
            now, ended = heapq.heappop(running)
            progress.finish(ended, now)
            estimates.append((now, progress.seconds_left(now)))
        if rule:
            progress.start(number, rule, f"job {number}", now)
            heapq.heappush(running, (now + seconds, number))
    assert progress.finished == progress.total == len(jobs)
    return [(now - end, left) for end, left in estimates]


def test_the_time_left_is_right_if_jobs_of_a_rule_take_the_same_time():
    rules = "\n".join(path.read_text() for path in RULES.glob("*.smk"))
    assert all(f"rule {name}:" in rules for name in shown.LONG_RULES)
    one_after_the_other = [("train_shard", 60.0)] * 24 + [("score_runs", 2.0)] * 24
    for cores in (1, 4):
        for left, estimate in simulated(one_after_the_other, cores):
            assert estimate == pytest.approx(left, abs=0.1 * left + 4)
    for left, estimate in simulated([("train_shard", 60.0), ("score_runs", 2.0)] * 20, 1)[2:]:
        assert estimate == pytest.approx(left, abs=1e-6)  # each rule has its own time


def after(plan: dict[str, int], events: str) -> WorkflowProgress:
    """Progress after events, such as `0 start 1 account`: the time, what happens, job and rule."""
    progress = WorkflowProgress()
    progress.plan(plan, 0.0)
    for event in events.split("; "):
        now, happens, job, *rule = event.split()
        if happens == "start":
            progress.start(job, rule[0], f"{rule[0]} {job}", float(now))
        else:
            {"finish": progress.finish, "fail": progress.fail}[happens](job, float(now))
    return progress


LONG = "0 start 1 train_reference; 3 finish 1; 3 start 2 train_shard"
AGAIN = "0 start 1 train_shard; 10 fail 1; 10 start 1 train_shard"


@pytest.mark.parametrize(("plan", "events", "now", "left"), [
    # Before a job has ended, nothing is said, be it long or short.
    ({"train_shard": 3}, "0 start 1 train_shard", 30, None),
    ({"account": 70}, "0 start 1 account", 0.3, None),
    ({"account": 70}, "0 start 1 account; 0.5 finish 1", 0.5, 69 * 0.5),
    # Short jobs say nothing of trainings, nor do other long ones.
    ({"account": 1, "train_shard": 3}, "0 start 1 account; 1 finish 1", 1, None),
    ({"train_reference": 1, "train_shard": 4}, LONG, 33, None),
    # A job that is tried again counts again; what has run of it is not left.
    ({"train_shard": 1, "account": 1}, AGAIN, 12, 8 + 2),
    ({"train_shard": 1, "account": 1}, f"{AGAIN}; 20 finish 1", 20, 2),
])  # fmt: skip
def test_the_time_left_follows_the_jobs_of_a_rule(plan, events, now, left):
    assert after(plan, events).seconds_left(now) == (left and pytest.approx(left))


def test_jobs_may_start_and_end_while_the_time_left_is_asked_for():
    """A bar asks in a thread of its own."""
    progress = after({"train_shard": 4, "account": 2}, "0 start 1 train_shard; 0 start 2 account")
    others = iter(range(3, 99))

    def changes(job: object) -> float:
        other = next(others)
        progress.start(other, f"rule{other}", "", 1.0)
        progress.finish(other, 2.0)
        progress.start(-other, "train_shard", "", 2.0)
        return 0.5

    progress.done = changes
    assert progress.seconds_left(10.0) > 0


def test_what_is_said_of_times_and_of_what_still_runs():
    assert shown.times_in_words(after({"train_shard": 3}, "0 start 1 train_shard"), 30) == "30 s"
    failed = after({"train_shard": 3}, "0 start 1 train_shard; 60 fail 1")
    assert shown.times_in_words(failed, 60) == "1 min 0 s, about 2 min 0 s left, 1 failed"
    two = "0 start 1 train_shard; 1 start 2 train_shard; 5 finish 2"
    assert after({"train_shard": 2}, two).current == "train_shard 1"
    assert shown.in_words(3599.6) == "1 h 0 min"


def test_a_running_shard_says_how_long_it_takes_by_its_log(tmp_path):
    """A tenth of the first of four shards after half a minute, on one core: 20 minutes in all."""
    log = tmp_path / "00000.log"
    log.write_text("warning: 99% sure\n  0%|   | 0.00/1.0M [00:00<?]\r")
    progress = WorkflowProgress(done=lambda job: fraction_done(log))
    progress.plan({"train_shard": 4, "score_runs": 2}, 0.0)
    progress.start(1, "train_shard", "Training", 0.0)
    assert progress.seconds_left(30.0) is None
    with log.open("a") as file:
        file.write("  5%|▌  | 50.0k/1.0M [00:15<04:45]\r 10%|█  | 100k/1.0M [00:30<04:30]\r")
    assert progress.seconds_left(30.0) == pytest.approx(270 + 3 * 300 + 2 * 2)
    assert fraction_done(tmp_path / "missing.log") == 0.0
    assert fraction_done(log) == 0.1


def test_without_a_terminal_there_are_few_lines(capsys):
    progress, display = WorkflowProgress(), make_display(interactive=False)
    progress.plan({"train_shard": 100}, 0.0)
    for number in range(100):
        progress.start(number, "train_shard", f"Training {number}", float(number))
        display.show(progress, float(number))
        progress.finish(number, number + 1.0)
        display.show(progress, number + 1.0)
    display.message("a warning")
    display.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 8
    assert lines[1] == "30 of 100 jobs, 30 s, about 1 min 10 s left: Training 29"
    assert lines[-2:] == ["100 of 100 jobs, 1 min 40 s", "a warning"]


@pytest.mark.parametrize("width", [60, 70, 80, 120])
def test_the_bar_fits_the_terminal_and_leaves_nothing_behind(width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(shown.time, "time", lambda: 10_000.0)
    progress, display = WorkflowProgress(), make_display(interactive=True)
    progress.plan({"train_shard": 2_000}, 0.0)
    for number in range(3):
        progress.start(number, "train_shard", f"Training [bold] of {'audit-' * 9}", 0.0)
    progress.fail(1, 5_000.0)
    progress.finish(0, 10_000.0)
    display.show(progress, 10_000.0)
    display.close()
    printed = capsys.readouterr().err
    control = r"\x1b\[[0-9;?]*[A-Za-z]"
    lines = re.split(r"[\r\n]+", re.sub(control, "", printed))
    assert any("1/2000 jobs" in line for line in lines)
    assert max(map(len, lines)) <= width
    assert width < 120 or any("Training [bold]" in line for line in lines)
    # The last thing that happens to the line is that it is erased.
    assert re.sub(control, "", printed.rpartition("\x1b[2K")[2]).strip() == ""


def test_the_line_on_the_workflows_own_profile_is_left_out():
    stream = io.StringIO()
    filtered = WithoutProfile(stream)
    others = "Using profile mine and workflow specific profile x"
    for line in ("before", f"Using workflow specific profile {SNAKEFILE.parent} for", others, ""):
        print(line, file=filtered, flush=True)
    assert stream.getvalue() == f"before\n{others}\n\n"


@pytest.fixture
def handler():
    before, raises = signal.getsignal(signal.SIGINT), logging.raiseExceptions
    # A shell that runs the tests in the background has the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    plugin = LogHandler(SimpleNamespace(dryrun=False, show_failed_logs=False), None)
    yield plugin
    plugin.close()
    signal.signal(signal.SIGINT, before)
    logging.raiseExceptions = raises


def error(text: str, **values: object) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", logging.ERROR, "", 0, text, (), None)
    vars(record).update({"event": LogEvent.ERROR, **values})
    return record


def test_the_rule_that_asks_for_all_results_is_not_a_job_that_is_counted(handler, capsys):
    handler.emit(error("", event=LogEvent.RUN_INFO, stats={"account": 1, "all": 1, "total": 2}))
    for job, rule in enumerate(("account", "all")):
        named = {"jobid": job, "job_id": job, "rule_name": rule, "rule_msg": rule, "log": []}
        for event in (LogEvent.JOB_INFO, LogEvent.JOB_FINISHED):
            handler.emit(error("", **named, event=event))
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["0 of 1 jobs", "1 of 1 jobs"]


@pytest.mark.parametrize("printshellcmds", [False, True])
def test_a_dry_run_is_one_table_or_all_of_snakemakes_words(handler, capsys, printshellcmds):
    vars(handler.common_settings).update(dryrun=True, printshellcmds=printshellcmds)
    events = (LogEvent.RUN_INFO, LogEvent.JOB_INFO, LogEvent.SHELLCMD, LogEvent.RUN_INFO)
    for event in events:
        handler.emit(error(event.name, event=event))
    handler.emit(error("Reasons", event=None))
    expected = [event.name for event in events] if printshellcmds else ["RUN_INFO"]
    assert capsys.readouterr().err.splitlines() == [*expected, "Reasons"]


NO_RULE = """MissingRuleException:
No rule to produce nope (if you use input functions make sure that they don't raise unexpected \
exceptions)."""
WILDCARDS = """WorkflowError:
Target rules may not contain wildcards. Please specify concrete files or a rule without wildcards"""
NO_PACKAGE = """WorkflowError in file "/x/rules/common.smk", line 41:
there is no package 'p' here
  File "/x/rules/common.smk", line 48, in <module>"""
MISSING = """MissingInputException in rule prepare_dataset in file "/x/rules/data.smk", line 9:
Missing input files for rule prepare_dataset:
    affected files:
 mine.csv"""
FAILED = """RuleException:
CalledProcessError in file "/x/rules/training.smk", line 64:"""
IN_OUR_WORDS = {
    NO_RULE: f"error: nothing makes nope: {_TARGETS}\n",
    WILDCARDS: "error: a rule that makes a file of each audit or figure is no target: "
    f"{_TARGETS}\n",
    NO_PACKAGE: "error: there is no package 'p' here\n",
    MISSING: "error: files are missing, from which rule prepare_dataset makes others:\n mine.csv\n",
    FAILED: "",
    "Something else": "Something else\n",
}


def test_messages_are_in_our_words(handler, capsys):
    for text, expected in IN_OUR_WORDS.items():
        handler.emit(error(text))
        assert capsys.readouterr().err == expected


def test_snakemake_still_says_what_is_put_in_our_words():
    """This fails if a later version of Snakemake changes its words."""
    for module, text in (("dag", WILDCARDS), ("exceptions", NO_RULE)):
        source = Path(find_spec(f"snakemake.{module}").origin).read_text()
        assert text.partition("\n")[2][:18] in source


def test_jobs_that_fail_after_an_interruption_need_no_words_and_are_not_counted(
    handler, capsys, tmp_path
):
    failed = {"event": LogEvent.JOB_ERROR, "jobid": 3, "log": [str(tmp_path / "job.log")]}
    handler.emit(error("Error in rule train_shard", **failed))
    assert "Error in rule train_shard" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    handler.emit(error("Error in rule train_shard", **failed | {"jobid": 4}))
    assert "Error in rule" not in capsys.readouterr().err
    assert handler._progress.failed == 1
