"""Snakemake's logger plugin `--logger dpcanary`: one line of progress for the whole workflow.

Snakemake finds it by the name of this package. On a terminal it shows a bar; elsewhere, and where
the environment variable CI is set, it prints a line from time to time.
"""

import logging
import os
import re
import signal
import sys
import threading
import time
from logging import WARNING, LogRecord
from pathlib import Path
from types import FrameType

from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from dpcanary.core.program_messages import INTERRUPTED
from dpcanary.workflow.run_progress import WorkflowProgress, fraction_done, make_display

_MOMENT = 0.3  # seconds
# What Snakemake tells of its own affairs.
_SILENT = {
    LogEvent.DEBUG_DAG, LogEvent.GROUP_INFO, LogEvent.RESOURCES_INFO, LogEvent.RULEGRAPH,
    LogEvent.SHELLCMD, LogEvent.WORKFLOW_STARTED, LogEvent.PROGRESS,
}  # fmt: skip
# Not counted: the sum of all rules, and the rule that only asks for all results.
_NO_WORK = ("total", "all")
# Said of every failed run, whose reasons are printed besides, and of every failed job, of which
# its own message says more.
_FAILED = ("At least one job did not complete successfully", "RuleException:\nCalledProcessError ")


_TARGETS = (
    "--target takes a rule (all, list_audits, estimate_cost) or a file of the results, as"
    " results/<name>/summary.tsv or results/<name>/figures/<figure>.png"
)
# What Snakemake says of mistakes, and what they are.
_IN_OUR_WORDS = (
    (
        r"MissingRuleException:\nNo rule to produce (\S+) .*",
        rf"error: nothing makes \1: {_TARGETS}",
    ),
    (
        r"WorkflowError:\nTarget rules may not contain wildcards\. .*",
        f"error: a rule that makes a file of each audit or figure is no target: {_TARGETS}",
    ),
    (r'WorkflowError in file ".*", line \d+:\n(.*?)(\n  File ".*)?', r"error: \1"),
    (
        r"MissingInputException in rule (\S+) in file .*?affected files:\n(.*)",
        r"error: files are missing, from which rule \1 makes others:\n\2",
    ),
)


def _in_our_words(text: str) -> str:
    for said, ours in _IN_OUR_WORDS:
        if match := re.fullmatch(said, text.strip(), re.DOTALL):
            return match.expand(ours)
    return text


def _was_interrupted(log: str) -> bool:
    try:
        # The latter if it was still importing.
        ends = (INTERRUPTED, "KeyboardInterrupt")
        text = Path(log).read_text(encoding="utf-8", errors="replace")
        return text.rstrip().endswith(ends)
    except OSError:
        return False


class LogHandler(LogHandlerBase):
    """Shows the progress of a run, and the messages that matter."""

    writes_to_stream = True
    writes_to_file = False
    has_filter = True
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        # On a full disk, Snakemake cannot write its own log file: the error is said once, and not
        # with a traceback for every line of the log.
        logging.raiseExceptions = False
        self._progress = WorkflowProgress(done=self._done)
        self._jobs_without_work: set[object] = set()
        self._silent_in_plans = {*_SILENT, LogEvent.JOB_INFO}
        self._logs: dict[object, Path] = {}
        self._progress_of_jobs: dict[object, tuple[float, float]] = {}
        self._interrupted = threading.Event()
        if threading.current_thread() is threading.main_thread():
            self._note_interruptions()
        interactive = sys.stderr.isatty() and not os.environ.get("CI")
        self._display = make_display(interactive=interactive)

    def _note_interruptions(self) -> None:
        """Jobs that fail after Ctrl-C need no words, also if they had no time to write a log."""
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # it is ignored
            return

        def note(number: int, frame: FrameType | None) -> None:
            self._interrupted.set()
            handler(number, frame)

        signal.signal(signal.SIGINT, note)

    def emit(self, record: LogRecord) -> None:
        """Takes one of Snakemake's messages."""
        try:
            self._take(record)
        except Exception:
            self.handleError(record)

    def _take(self, record: LogRecord) -> None:
        event = getattr(record, "event", None)
        if self.common_settings.dryrun:
            # Snakemake lists every job between two equal tables of how many there are.
            silent = () if self.common_settings.printshellcmds else self._silent_in_plans
            if event not in silent:
                self._display.message(self.format(record))
            if event == LogEvent.RUN_INFO:
                self._silent_in_plans.add(event)
            return
        if event in _SILENT:
            return
        values, now = vars(record), record.created
        match event:
            case LogEvent.RUN_INFO:
                stats = values["stats"].items()
                counts = {rule: count for rule, count in stats if rule not in _NO_WORK}
                self._progress.plan(counts, now)
            case LogEvent.JOB_INFO if values["rule_name"] in _NO_WORK:
                self._jobs_without_work.add(values["jobid"])
                return
            case LogEvent.JOB_FINISHED if values["job_id"] in self._jobs_without_work:
                return
            case LogEvent.JOB_INFO:
                what = values["rule_msg"] or values["rule_name"]
                if values["log"]:
                    self._logs[values["jobid"]] = Path(values["log"][0])
                self._progress.start(values["jobid"], values["rule_name"], what, now)
            case LogEvent.JOB_FINISHED:
                self._progress.finish(values["job_id"], now)
            case LogEvent.JOB_ERROR:
                # The signal that ended the job may reach this process a moment later.
                if any(map(_was_interrupted, values["log"])) or self._interrupted.wait(_MOMENT):
                    self._progress.interrupt(values["jobid"], now)
                else:
                    self._progress.fail(values["jobid"], now)
                    self._display.message(self.format(record))
            case LogEvent.JOB_STARTED:
                return
            case _:
                text = _in_our_words(self.format(record))
                if (
                    not any(said in text for said in _FAILED)
                    and text.strip()
                    and (record.levelno >= WARNING or event == LogEvent.ERROR)
                ):
                    self._display.message(text)
                return
        self._display.show(self._progress, now)

    def _done(self, job: object) -> float:
        """How far a job is; its log is read at most once in a second."""
        read, done = self._progress_of_jobs.get(job, (0.0, 0.0))
        if job in self._logs and time.time() - read > 1:
            done = fraction_done(self._logs[job])
            self._progress_of_jobs[job] = time.time(), done
        return done

    def close(self) -> None:
        """Ends the display."""
        self._display.close()
        super().close()
