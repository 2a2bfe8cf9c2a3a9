"""The workflow as a module of a user's own Snakefile, from a clone and as an installed package."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from running import SNAKEMAKE, environment, printed_by

ROOT = Path(__file__).parents[2]
OWN = """
from dpcanary.installation import SNAKEFILE

module privacy:
    snakefile: str(SNAKEFILE)
    config: config["privacy"]
    prefix: "audits"

use rule * from privacy as privacy_*

rule all:
    default_target: True
    input: "mine/summary.txt", rules.privacy_all.input

rule own:
    input: "audits/results/small/summary.tsv"
    output: "mine/{file}.txt"
    shell: "head -1 {input} > {output}"
"""
CONFIG = """
privacy:
  experiment: small
  delta: 1.0e-5
  datasets: {digits: {source: digits, num_records: 100}}
  audits:
    small:
      canary: [worst_case, mislabeled]
      dataset: digits
      sample_rate: 0.5
      noise_multiplier: 1.0
      num_steps: 4
      num_runs: 20
  figures:
    trade_off: {kind: trade_off, sweeps: [small]}
    by_runs: {kind: epsilon_by_runs, sweeps: [small], num_runs: [10, 20]}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(OWN)
    (tmp_path / "own.yaml").write_text(CONFIG)
    return tmp_path


def assert_works(folder: Path, **variables: str) -> None:
    """The user's rules and ours run, under the prefix, and the user's wildcards are their own."""
    printed_by([*SNAKEMAKE, "--cores", "2", "--configfile", "own.yaml"], folder, **variables)
    header = (folder / "mine/summary.txt").read_text()
    assert "epsilon_lower" in header
    summary = pd.read_csv(folder / "audits/results/small/summary.tsv", sep="\t")
    assert {*summary["canary"]} == {"worst_case", "mislabeled"}
    assert (folder / "audits/results/small/figures/trade_off.pdf").exists()
    assert not (folder / "results").exists()


def test_the_workflow_is_a_module_of_a_users_own(own):
    assert_works(own)


@pytest.mark.long
def test_a_built_package_has_the_workflow(own, tmp_path):
    """`dpcanary audit` and a module workflow from an installed wheel, away from any clone."""
    wheels, installed = tmp_path / "wheels", tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "results", "resources", ".snakemake")
    shutil.copytree(ROOT, source, ignore=ignored)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, source], check=True)
    shutil.rmtree(source)
    [wheel] = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", installed, wheel], check=True)
    # Found before the clone that these tests run in.
    variables = {"PYTHONPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-c", "import dpcanary.installation as l; print(l.SNAKEFILE)"],
        env=environment(**variables), cwd=own, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(installed / "dpcanary/workflow/files/Snakefile")
    assert_works(own, **variables)
    printed = printed_by(
        [
            *(sys.executable, "-m", "dpcanary", "audit", "--features", "digits"),
            *("--num-records", "100", "--num-runs", "20", "--num-steps", "4", "--delta", "1e-5"),
            *("--noise-multiplier", "1", "--device", "cpu"),
        ],
        own,
        **variables,
    )
    assert "audit-mislabeled" in printed
    command = [sys.executable, "-m", "dpcanary", "run", "published/annamalai-digits"]
    listed = printed_by([*command, "--target", "list_audits"], own, **variables)
    assert "pretrained-lr4" in listed
    printed_by([sys.executable, "-m", "dpcanary", "report", "results/digits"], own, **variables)
    assert (own / "results/digits/report.html").exists()
