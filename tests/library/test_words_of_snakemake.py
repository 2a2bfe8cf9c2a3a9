"""What the workflow's progress plugin makes of Snakemake's messages."""

import logging
import signal
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from snakemake_logger_plugin_dpcanary import LogHandler

COMMAND = 'RuleException:\nCalledProcessError in file "/x/rules/training.smk", line 64:\nCommand'


@pytest.fixture
def handler():
    before = signal.getsignal(signal.SIGINT)
    raises = logging.raiseExceptions
    # A shell that runs the tests in the background has the signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    made = LogHandler(SimpleNamespace(dryrun=False, show_failed_logs=False), None)
    yield made
    made.close()
    signal.signal(signal.SIGINT, before)
    logging.raiseExceptions = raises


def error(text: str, **values: object) -> logging.LogRecord:
    record = logging.LogRecord("snakemake", logging.ERROR, "", 0, text, (), None)
    vars(record).update({"event": LogEvent.ERROR, **values})
    return record


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "MissingRuleException:\nNo rule to produce nope (if you use input functions make sure"
            " that they don't raise unexpected exceptions).",
            "error: nothing makes nope: --target takes a rule (all, list_audits, estimate_cost) or"
            " a file of the results, as results/<name>/summary.tsv\n",
        ),
        (
            "WorkflowError in file \"/x/rules/common.smk\", line 41:\nthere is no package 'p' here"
            '\n  File "/x/rules/common.smk", line 48, in <module>',
            "error: there is no package 'p' here\n",
        ),
        (
            'MissingInputException in rule prepare_dataset in file "/x/rules/data.smk", line 9:\n'
            "Missing input files for rule prepare_dataset:\n    output: results/e/data.npz\n"
            "    affected files:\n        mine.csv",
            "error: files are missing, from which rule prepare_dataset makes others:\n"
            "        mine.csv\n",
        ),
        (f"{COMMAND} 'python train.py' returned non-zero exit status 1.", ""),
        ("Something else", "Something else\n"),
    ],
)
def test_messages_are_in_our_words(handler, capsys, text, expected):
    handler.emit(error(text))
    assert capsys.readouterr().err == expected


def test_jobs_that_fail_after_an_interruption_need_no_words(handler, capsys, tmp_path):
    """Also if they had no time to write a log."""
    log = tmp_path / "job.log"
    log.touch()
    failed = {"event": LogEvent.JOB_ERROR, "jobid": 3, "log": [str(log)]}
    handler.emit(error("Error in rule train_shard", **failed))
    assert "Error in rule train_shard" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    handler.emit(error("Error in rule train_shard", **failed))
    assert "Error in rule" not in capsys.readouterr().err
