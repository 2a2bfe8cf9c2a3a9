"""The whole workflow on a small experiment: what it makes, and what it does again and what not."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from running import SNAKEMAKE, environment, printed_by

from dpcanary.figures.catalogue import figure_kind
from dpcanary.files import read_arrays, sha256_of_file
from dpcanary.results_table import read_results

ROOT = Path(__file__).parents[2]
TINY = yaml.safe_load((ROOT / "tests/workflow/tiny.yaml").read_text())
COPIED = ("Snakefile", "rules", "scripts", "dpcanary", "profiles", "envs", "report", "config")


class Project:
    """A copy of the project with a config, as a user would have it."""

    def __init__(self, folder: Path, config: Mapping[str, Any] = TINY) -> None:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, folder / name)
        self.folder = folder
        self.results = folder / "results" / "tiny"
        self.write(config)

    def write(self, config: Mapping[str, Any]) -> None:
        (self.folder / "experiment.yaml").write_text(yaml.safe_dump(dict(config)))

    def command(self, *options: str) -> list[str]:
        return [*SNAKEMAKE, "--cores", "2", *options, "--configfile", "experiment.yaml"]

    def run(self, *options: str, fails: bool = False) -> str:
        """Runs Snakemake and returns what it printed."""
        return printed_by(self.command(*options), self.folder, fails=fails)

    def planned(self) -> dict[str, int]:
        """Jobs that a run would do, by rule."""
        jobs: dict[str, int] = {}
        for line in self.run("--dry-run", "--quiet", "rules").splitlines():
            words = line.split()
            if len(words) == 2 and words[1].isdigit() and words[0] not in ("total", "all"):
                jobs[words[0]] = int(words[1])
        return jobs

    def planned_outputs(self, rule: str) -> set[str]:
        """Outputs that a run would make by one program, relative to the results."""
        printed = self.run("--dry-run", "--printshellcmds")
        commands = re.findall(rf"scripts/{rule}\.py .*--output results/tiny/(\S+)", printed)
        return set(commands)

    def planned_figures(self) -> set[str]:
        """Figures that a run would draw."""
        printed = self.run("--dry-run", "--printshellcmds")
        return set(
            re.findall(r"scripts/draw_figure\.py .*--png results/tiny/figures/(\S+)\.png", printed)
        )

    def content(self, pattern: str) -> dict[str, str]:
        """Hashes of result files."""
        return {
            str(path.relative_to(self.results)): sha256_of_file(path)
            for path in sorted(self.results.glob(pattern))
            if path.is_file()
        }


def with_audit(config: Mapping[str, Any], sweep: str, **changes: object) -> dict[str, Any]:
    audits = {**config["audits"], sweep: {**config["audits"][sweep], **changes}}
    return {**config, "audits": audits}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A finished experiment. Tests that change it put it back."""
    made = Project(tmp_path_factory.mktemp("project"))
    made.run()
    return made


@pytest.fixture
def config(project: Project):
    """Lets a test write another config; puts the first one back."""
    yield project.write
    project.write(TINY)


def test_everything_is_made(project):
    summary = pd.read_csv(project.results / "summary.tsv", sep="\t")
    steps = summary[summary.sweep == "steps"]
    assert set(steps.canary) == {
        "worst_case",
        "gradient",
        "crafted_input",
        "mislabeled",
        "natural",
    }
    assert len(steps) == 5 * 2 * 3 * 2  # audits x steps x rules x conversions
    assert len(summary[summary.sweep == "grid"]) == 2 * 2 * 3 * 2  # audits x repeats x ...
    valid = summary[summary.threshold_rule != "in_sample"]
    assert (valid.epsilon_lower <= valid.epsilon_upper_substitute).all()
    assert (summary.epsilon_upper_add_remove < summary.epsilon_upper_substitute).all()
    for name in TINY["figures"]:
        for suffix in ("pdf", "png", "tsv"):
            assert (project.results / f"figures/{name}.{suffix}").stat().st_size > 200
    assert "steps-gradient" in (project.results / "experiment.json").read_text()
    assert not list(project.results.rglob("*.part"))


def test_the_report_holds_every_figure_and_its_caption(project):
    project.run("--report", "report.html")
    report = (project.folder / "report.html").read_text()
    for name in TINY["figures"]:
        assert f"figures/{name}.png" in report
    for figure in TINY["figures"].values():
        assert figure_kind(figure["kind"]).caption[0][:60] in report, figure


def test_a_second_run_does_nothing_in_seconds(project):
    before = project.content("**/*")
    start = time.monotonic()
    assert "Nothing to be done" in project.run()
    assert time.monotonic() - start < 15
    assert project.content("**/*") == before


def test_a_touched_program_reruns_nothing(project):
    (project.folder / "scripts/train_shard.py").touch()
    assert project.planned() == {}


def test_changing_one_audits_noise_reruns_only_its_shards(project, config):
    config(with_audit(TINY, "full_batch", target_epsilon=5.0))
    outputs = project.planned_outputs("train_shard")
    assert outputs == {f"shards/full_batch/0000{index}.npz" for index in (0, 1)}
    planned = project.planned()
    assert planned["calibrate_noise"] == planned["account"] == planned["estimate"] == 1
    assert "draw_shard" not in planned
    assert "craft_canaries" not in planned


def test_changing_the_significance_reruns_only_estimates(project, config):
    config({**TINY, "significance": 0.1})
    assert set(project.planned()) <= {
        "estimate",
        "resolve_config",
        "summarise",
        "draw_figure",
    }
    assert project.planned()["estimate"] == 13  # all audits


def test_more_runs_add_only_new_shards(project, config):
    config(with_audit(TINY, "full_batch", num_runs=60))
    assert project.planned_outputs("train_shard") == {"shards/full_batch/00002.npz"}
    assert set(project.planned()) >= {"train_shard", "score_runs", "estimate", "summarise"}
    assert project.planned()["score_runs"] == 1


@pytest.mark.long
def test_the_same_runs_in_other_shards_score_the_same(project, tmp_path):
    other = Project(tmp_path, with_audit(TINY, "full_batch", runs_per_shard=7))
    other.run("results/tiny/scores/full_batch.npz", "--until", "score_runs")
    _, one = read_arrays(project.results / "scores/full_batch.npz")
    _, two = read_arrays(other.results / "scores/full_batch.npz")
    np.testing.assert_array_equal(two["world"], one["world"])
    np.testing.assert_allclose(two["scores"], one["scores"], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_killed_run_retrains_only_what_was_lost(tmp_path):
    """SIGKILL to Snakemake and all its jobs, as a power cut would, then the same command."""
    full_batch = {**TINY["audits"]["full_batch"]}
    del full_batch["crafting_steps"]  # of other sweeps, which are not here
    slower = {
        **full_batch,
        "canary": ["gradient", "natural"],
        "num_steps": 2000,
        "record_every": 1000,
        "num_runs": 80,
    }
    other = Project(tmp_path, {**TINY, "audits": {"slower": slower}, "figures": {}})
    running = subprocess.Popen(
        other.command(),
        cwd=other.folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    shards = other.results / "shards"
    try:
        wait_until(
            lambda: len(list(shards.glob("slower-*/*.npz"))) >= 4 or running.poll() is not None
        )
        assert running.poll() is None, "Snakemake ended"
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    kept = other.content("shards/**/*.npz")
    times = {name: (other.results / name).stat().st_mtime_ns for name in kept}
    other.run("--unlock")
    other.run()
    retrained = [name for name in kept if (other.results / name).stat().st_mtime_ns != times[name]]
    # Two jobs ran at once: what they had just finished may not yet have been on record.
    assert len(retrained) <= 2
    assert len(kept) >= 4
    assert (other.results / "summary.tsv").is_file()
    assert not list(other.results.rglob("*.part"))


def wait_until(condition, seconds: float = 400.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def test_a_run_ends_with_its_results(project):
    (project.results / "figures/epsilon_by_noise.png").unlink()
    header = r"audit +canary +runs +proven +add/remove +substitute +rule"
    printed = project.run()
    assert re.search(header, printed)
    for audit in read_results(project.results)["audit"]:
        assert f"\n{audit} " in printed
    assert not re.search(header, project.run("list_audits"))


def test_snakemake_needs_no_activated_environment(project):
    """Jobs find this `python`, although the path has none, or one that knows nothing."""
    target = "results/tiny/noise/full_batch.json"
    (project.folder / target).unlink()
    command = project.command(target)
    path = {**os.environ, "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, cwd=project.folder, env=path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project.folder / target).exists()


def test_no_cores_are_refused(project):
    command = [*SNAKEMAKE, "--cores", "0", "--configfile", "experiment.yaml"]
    printed = printed_by(command, project.folder, fails=True)
    assert "--cores 0 runs no job; give at least --cores 1" in printed


def test_a_damaged_shard_is_named_and_its_audit_alone_stops(project):
    shard = project.results / "shards/full_batch/00001.npz"
    scores = project.results / "scores/full_batch.npz"
    whole, times = shard.read_bytes(), shard.stat()
    shard.write_bytes(whole[:-30])
    scores.unlink()
    printed = project.run("results/tiny/scores/full_batch.npz", fails=True)
    reason = r"score_runs/full_batch: .*shards/full_batch/00001.npz is not a whole .npz file"
    assert re.search(rf"What went wrong:\n  {reason}", printed)
    assert "The same command goes on from here" in printed
    assert not scores.exists()
    shard.write_bytes(whole)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    project.run("results/tiny/scores/full_batch.npz")
    assert scores.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"significanse": 0.1}, "unknown key 'significanse'; did you mean 'significance'"),
        ({"delta": 2.0}, "config: delta: Input should be less than 1"),
        (
            with_audit(TINY, "steps", canary="gradeint"),
            "config: audit steps: canary: unknown name, did you mean 'gradient'?",
        ),
    ],
)
def test_a_bad_config_stops_before_anything_is_written(tmp_path, changes, message):
    project = Project(tmp_path, {**TINY, **changes})
    assert message in project.run(fails=True)
    assert not (tmp_path / "results").exists()


def test_bad_data_is_named_and_leaves_no_dataset(tmp_path):
    features = np.random.default_rng(0).normal(size=(200, 3))
    features[11, 0] = np.nan
    np.savez(tmp_path / "mine.npz", features=features, labels=np.arange(200) % 4)
    datasets = {"digits": {"source": "mine.npz", "num_records": 40}}
    project = Project(tmp_path, {**TINY, "datasets": datasets})
    printed = project.run("results/tiny/data/digits.npz", fails=True)
    assert "mine.npz: record 11 has a feature that is NaN" in printed
    assert not list((tmp_path / "results").rglob("*.npz"))


def test_a_figure_waits_for_its_own_audits_alone(tmp_path):
    project = Project(tmp_path)
    printed = project.run(
        "results/tiny/figures/epsilon_by_noise.pdf", "--dry-run", "--quiet", "rules"
    )
    counts = dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)
    assert counts["estimate"] == str(len(TINY["audits"]["grid"]["score"]))
    assert "train_shard" not in counts


def test_the_program_is_told_of_figures_with_in_sample(tmp_path):
    figure = {**TINY["figures"]["epsilon_by_noise"], "in_sample": True}
    project = Project(
        tmp_path, {**TINY, "figures": {**TINY["figures"], "epsilon_by_noise": figure}}
    )
    printed = project.run("--dry-run", "--printshellcmds")
    told = re.findall(r"draw_figure\.py .*bounds_figure.* --settings '(\{[^']*\})'", printed)
    settings = {one["axis"]: one["in_sample"] for one in map(json.loads, told)}
    assert settings == {"noise_multiplier": True, "step": False}


def test_audits_are_listed(project):
    assert "full_batch" in project.run("list_audits")


def test_a_config_without_audits_is_not_the_demo(tmp_path):
    project = Project(tmp_path, {"experiment": "mine", "delta": 1e-5})
    assert "config: audits: give at least one sweep" in project.run(fails=True)


def test_folders_with_spaces(tmp_path):
    home, elsewhere = tmp_path / "my clone", tmp_path / "my work"
    home.mkdir()
    elsewhere.mkdir()
    project = Project(home)
    target = "results/tiny/noise/grid.json"
    config = ["--configfile", str(home / "experiment.yaml")]
    command = [*SNAKEMAKE, "--cores", "1", target, "--snakefile"]
    printed_by([*command, str(project.folder / "Snakefile"), *config], elsewhere)
    assert (elsewhere / target).exists()


def test_it_runs_from_another_folder(project, tmp_path):
    """A user's own folder, with the project's Snakefile elsewhere."""
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TINY))
    target = "results/tiny/estimates/grid-final_sum.tsv"
    command = [*SNAKEMAKE, "--cores", "1", "--snakefile", str(project.folder / "Snakefile")]
    printed_by([*command, target, "--configfile", "mine.yaml"], tmp_path)
    here, there = (
        pd.read_csv(path, sep="\t").drop(columns=["seconds", "checksum"])
        for path in (tmp_path / target, project.folder / target)
    )
    pd.testing.assert_frame_equal(here, there, check_exact=True)
