"""The progress of a run: what is counted, and the time that is said to be left."""

import heapq
from pathlib import Path

import pytest

from dpcanary.workflow.progress import (
    LONG_RULES,
    WorkflowProgress,
    fraction_done,
    in_words,
    make_display,
    told,
)

RULES = Path(__file__).parents[2] / "rules"


def simulated(jobs: list[tuple[str, float]], cores: int) -> list[tuple[float, float | None]]:
    """Runs jobs in this order on some cores; at each end, the time that is left, and as told."""
    progress, counts = WorkflowProgress(), {}
    for rule, _ in jobs:
        counts[rule] = counts.get(rule, 0) + 1
    progress.plan(counts, 0.0)
    running: list[tuple[float, int]] = []
    ends, told_left, pending = [], [], [*enumerate(jobs)]
    now = 0.0
    while pending or running:
        while pending and len(running) < cores:
            number, (rule, seconds) = pending.pop(0)
            progress.start(number, rule, f"job {number}", now)
            heapq.heappush(running, (now + seconds, number))
        now, number = heapq.heappop(running)
        progress.finish(number, now)
        ends.append(now)
        told_left.append(progress.seconds_left(now))
    assert progress.finished == progress.total == len(jobs)
    return [(ends[-1] - end, left) for end, left in zip(ends, told_left, strict=True)]


@pytest.mark.parametrize("cores", [1, 4])
def test_the_time_left_is_right_if_jobs_of_a_rule_take_the_same_time(cores):
    jobs = [("train_shard", 60.0)] * 24 + [("score_runs", 2.0)] * 24
    for left, told_left in simulated(jobs, cores):
        assert told_left == pytest.approx(left, abs=0.1 * left + 4)


def test_the_time_left_follows_each_rule():
    jobs = [("train_shard", 60.0), ("score_runs", 2.0)] * 20
    for left, told_left in simulated(jobs, 1)[2:]:
        assert told_left == pytest.approx(left, abs=1e-6)


def test_every_long_rule_is_one_of_the_workflow():
    rules = "\n".join(path.read_text() for path in RULES.glob("*.smk"))
    assert all(f"rule {name}:" in rules for name in LONG_RULES)


def test_short_jobs_alone_say_nothing_of_trainings():
    progress = WorkflowProgress()
    progress.plan({"account": 1, "train_shard": 3}, 0.0)
    progress.start(1, "account", "Accounting", 0.0)
    progress.finish(1, 1.0)
    assert progress.seconds_left(1.0) is None


def test_nothing_is_said_before_a_job_has_ended():
    progress = WorkflowProgress()
    progress.plan({"train_shard": 3}, 100.0)
    progress.start(1, "train_shard", "Training", 100.0)
    assert progress.seconds_left(130.0) is None
    assert told(progress, 130.0) == "30 s"
    progress.fail(1, 160.0)
    assert told(progress, 160.0) == "1 min 0 s, about 2 min 0 s left, 1 failed"


def test_nothing_is_said_of_short_jobs_before_one_has_ended():
    progress = WorkflowProgress()
    progress.plan({"account": 70}, 0.0)
    progress.start(1, "account", "Accounting", 0.0)
    assert progress.seconds_left(0.3) is None
    progress.finish(1, 0.5)
    assert progress.seconds_left(0.5) == pytest.approx(69 * 0.5)


def test_other_long_jobs_say_nothing_of_trainings():
    """Reference models take seconds, and a shard of trainings may take minutes."""
    progress = WorkflowProgress()
    progress.plan({"train_reference": 1, "craft_canaries": 1, "train_shard": 4}, 0.0)
    for job, rule in enumerate(("train_reference", "craft_canaries")):
        progress.start(job, rule, rule, 3.0 * job)
        progress.finish(job, 3.0 * job + 3)
    progress.start(2, "train_shard", "Training", 6.0)
    assert progress.seconds_left(33.0) is None


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


def test_a_job_that_is_tried_again_counts_again():
    progress = WorkflowProgress()
    progress.plan({"train_shard": 1, "account": 1}, 0.0)
    progress.start(1, "train_shard", "Training", 0.0)
    progress.fail(1, 10.0)
    progress.start(1, "train_shard", "Training", 10.0)
    assert progress.seconds_left(12.0) == pytest.approx(8.0 + 2.0)
    progress.finish(1, 20.0)
    assert progress.seconds_left(20.0) == pytest.approx(2.0)


def test_what_is_shown_is_what_still_runs():
    progress = WorkflowProgress()
    progress.plan({"train_shard": 2}, 0.0)
    progress.start(1, "train_shard", "first", 0.0)
    progress.start(2, "train_shard", "second", 1.0)
    progress.finish(2, 5.0)
    assert progress.current == "first"


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


def test_the_bar_names_jobs_and_times(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    progress, display = WorkflowProgress(), make_display(interactive=True)
    progress.plan({"train_shard": 2}, 0.0)
    progress.start(1, "train_shard", "Training [bold]", 0.0)
    display.show(progress, 0.0)
    display.close()
    shown = capsys.readouterr().err
    assert "0/2 jobs" in shown
    assert "Training [bold]" in shown


def test_durations():
    assert in_words(3599.6) == "1 h 0 min"
