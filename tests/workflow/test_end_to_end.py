"""A finished small experiment, which alone shows that all rules fit; what runs again, what not."""

import json
import os
import re
import shutil

import pandas as pd
import pytest
from running import SNAKEMAKE, TINY, Project, content_of, printed_by, with_audit
from sampling import exhaustive

from dpcanary.core.files import sha256_of_file
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.experiment.results_table import read_results

AUDITS_OF_STEPS = [f"steps-{canary}" for canary in TINY["audits"]["steps"]["canary"]]
RESULTS_TABLE = r"audit +canary +runs +shown +add/remove +substitute +rule"


def test_everything_is_made(finished):
    summary = pd.read_csv(finished.results / "summary.tsv", sep="\t")
    steps = summary[summary.sweep == "steps"]
    assert {*steps.canary} == {*TINY["audits"]["steps"]["canary"]}
    assert len(steps) == len(AUDITS_OF_STEPS) * 2 * 2 * 2  # steps x rules x conversions
    assert len(summary[summary.sweep == "grid"]) == 2 * 2 * 2 * 2  # scores x repeats x ...
    valid = summary[summary.threshold_rule != "in_sample"]
    for adjacency, bounds in valid.groupby("adjacency"):
        assert (bounds.epsilon_lower <= bounds[f"epsilon_upper_{adjacency}"]).all()
    assert (summary.epsilon_upper_add_remove < summary.epsilon_upper_substitute).all()
    for name in TINY["figures"]:
        for suffix in ("pdf", "png", "tsv"):
            assert (finished.results / f"figures/{name}.{suffix}").stat().st_size > 200
    assert "steps-gradient" in (finished.results / "experiment.json").read_text()
    assert not [*finished.results.rglob("*.part")]


@pytest.mark.long
def test_a_second_run_does_nothing_and_snakemakes_report_has_every_figure(copy):
    files = [path for path in copy.results.rglob("[!.]*") if path.is_file()]
    before = {path: sha256_of_file(path) for path in files}
    assert "Nothing to be done" in copy.looked()
    assert {path: sha256_of_file(path) for path in before} == before
    copy.looked("--report", "report.html")
    report = (copy.folder / "report.html").read_text()
    for name, figure in TINY["figures"].items():
        assert f"figures/{name}.png" in report
        assert figure_kind(figure["kind"]).caption[0][:60] in report, figure


def test_another_noise_of_one_audit_reruns_only_its_shards_and_a_touched_program_nothing(copy):
    (copy.folder / "scripts/train_shard.py").touch()
    copy.write(with_audit(TINY, "other_rate", target_epsilon=5.0))
    plan = copy.plan()
    undrawn = {f"figures/{name}.png" for name in ("ratio", "other_ratio")}
    assert not undrawn & plan.outputs("draw_figure", "png")
    assert plan.outputs("train_shard") == {f"shards/other_rate/0000{index}.npz" for index in (0, 1)}
    assert plan.jobs["calibrate_noise"] == plan.jobs["account"] == plan.jobs["estimate"] == 1
    assert not {"draw_shard", "craft_canaries"} & plan.jobs.keys()
    copy.write({**TINY, "significance": 0.2})
    bounds = {"estimate", "estimate_by_runs", "bound_ceiling", "summarise", "draw_figure"}
    assert copy.plan().jobs.keys() - {"resolve_config"} == bounds


def test_a_figure_waits_for_its_own_audits_alone_and_is_told_its_settings(copy):
    figure = {**TINY["figures"]["epsilon_by_noise"], "heuristic": True}
    copy.write({**TINY, "figures": {**TINY["figures"], "epsilon_by_noise": figure}})
    target = "results/tiny/figures/epsilon_by_noise.pdf"
    plan = copy.plan(target, "--forceall")
    # All of a plan is read; what is resolved is written by Snakemake itself.
    assert len(plan.commands) == sum(plan.jobs.values()) - plan.jobs["resolve_config"] > 10
    own = {f"estimates/grid-{score}.tsv" for score in ("final_sum", "transcript")}
    assert plan.outputs("estimate") == own
    assert "train_shard" not in plan.jobs
    [drawing] = [words for words in plan.commands if "--settings" in words and "--png" in words]
    settings = json.loads(drawing[drawing.index("--settings") + 1])
    assert (settings["axis"], settings["heuristic"]) == ("noise_multiplier", True)


@pytest.mark.long
def test_audits_are_listed_and_refusals_arrive_before_anything_is_written(copy, tmp_path):
    resolved = copy.results / "experiment.json"
    before = resolved.read_bytes()
    copy.write({**TINY, "delta": 0.025})
    listed = copy.looked("list_audits")
    assert resolved.read_bytes() == before
    assert "other_rate" in listed
    assert "warning: dataset others: delta 0.025 is at least 1 / 40 records" in listed
    assert not re.search(RESULTS_TABLE, listed)
    project = Project.new(tmp_path / "new")
    for changes, options, message in (
        ({"significanse": 0.1}, (), "unknown key 'significanse'; did you mean 'significance'"),
        (with_audit(TINY, "module", model="nowhere:f"), (), "there is no package 'nowhere' here"),
        ({}, ("--cores", "0"), "--cores 0 runs no job; give at least --cores 1"),
    ):
        project.write({**TINY, **changes})
        assert message in project.looked(*options, fails=True)
    assert not (project.folder / "results").exists()


@pytest.mark.long
@pytest.mark.parametrize(("num_shards", "most_seconds"), [(1_000, 10), exhaustive((10_000, 60))])
def test_thousands_of_shards_are_planned_in_seconds(num_shards, most_seconds, tmp_path):
    """A million models; processor seconds of a dry run."""
    changes = {"num_runs": 1_000_000, "runs_per_shard": 1_000_000 // num_shards}
    audits = {"large": {**TINY["audits"]["steps"], "canary": "gradient", **changes}}
    datasets = {"digits": TINY["datasets"]["digits"]}
    config = {**TINY, "audits": audits, "datasets": datasets, "figures": {}}
    project = Project.new(tmp_path, config)
    before = os.times()
    printed = project.run("--dry-run", "--quiet", "rules")
    seconds = os.times().children_user - before.children_user
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert counts["train_shard"] == str(num_shards)
    assert int(counts["total"]) < num_shards + 20
    assert seconds < most_seconds


@pytest.mark.long
def test_snakemake_alone_remembers_a_look_too(tmp_path):
    drawn = {"canary": "worst_case", "sample_rate": 0.5, "noise_multiplier": 2.0, "num_steps": 4}
    config = {"experiment": "tiny", "delta": 1e-5, "audits": {"a": {**drawn, "num_runs": 40}}}
    project = Project.new(tmp_path, config)
    assert "You may state" in " ".join(project.run().split())
    project.write(with_audit(config, "a", num_runs=60))
    assert "(the audit was looked at before, with 40 runs)" in " ".join(project.run().split())


@pytest.mark.long
def test_a_damaged_shard_is_named_its_audit_alone_stops_and_the_next_run_goes_on(copy):
    shard, scores, figure = (
        copy.results / name
        for name in ("shards/other_rate/00001.npz", "scores/other_rate.npz", "figures/curves.png")
    )
    whole, times = shard.read_bytes(), shard.stat()
    shard.write_bytes(whole[:-30])
    scores.unlink()
    figure.unlink()
    printed = copy.run(fails=True)
    reason = r"score_runs/other_rate: .*shards/other_rate/00001.npz is not a whole .npz file"
    assert re.search(rf"What went wrong:\n  {reason}", printed)
    assert "The same command goes on from here" in printed
    assert not scores.exists()
    assert figure.exists()
    shard.write_bytes(whole)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    figure.unlink()
    printed = copy.run()
    assert re.search(RESULTS_TABLE, printed)
    for audit in read_results(copy.results)["audit"]:
        # A long name goes on in the next line, after an underscore or a hyphen.
        assert re.search(rf"\n{re.split('[_-]', audit)[0]}", printed)


@pytest.mark.long
def test_a_clone_with_a_space_runs_elsewhere_without_an_activated_environment(finished, tmp_path):
    """Jobs find this `python`, although the path has none, or one that knows nothing."""
    home, elsewhere = finished.copy(tmp_path / "my clone").folder, tmp_path / "my work"
    elsewhere.mkdir()
    for name in ("own.npz", "own_nets.py"):
        shutil.copy(home / name, elsewhere)
    target = "results/tiny/estimates/grid-final_sum.tsv"
    command = [*SNAKEMAKE, "--cores", "2", "--snakefile", str(home / "Snakefile"), target]
    command += ["--configfile", str(home / "experiment.yaml")]
    printed_by(command, elsewhere, PATH="/usr/bin:/bin")
    assert content_of(elsewhere / target) == content_of(home / target)
