"""The workflow as a module of a user's own Snakefile, from a clone and as an installed package."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from running import DPCANARY, ROOT, SNAKEMAKE, Plan, install, printed_by, shared

pytestmark = pytest.mark.long
RUN = ["--cores", "2", "--configfile", "own.yaml"]
OWN = """
from dpcanary.core.installation import SNAKEFILE

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
OF_SMALL = {
    "canary": ["worst_case", "mislabeled"], "dataset": "digits", "sample_rate": 0.5,
    "noise_multiplier": 1.0, "num_steps": 4, "num_runs": 20,
}  # fmt: skip
CONFIG = {
    "experiment": "small", "delta": 1e-5, "audits": {"small": OF_SMALL},
    "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "figures": {
        "trade_off": {"kind": "trade_off", "sweeps": ["small"]},
        "by_runs": {"kind": "epsilon_by_runs", "sweeps": ["small"], "num_runs": [10, 20]},
    },
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(OWN)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"privacy": CONFIG}))
    return tmp_path


@pytest.fixture(scope="module")
def installed() -> Path:
    return shared("installed", lambda folder: install(ROOT, folder))


@pytest.mark.parametrize("is_built", [False, True])
def test_a_module_has_the_prefix_and_the_programs_of_its_package(own, installed, is_built):
    variables = {"PYTHONPATH": str(installed)} if is_built else {}
    plan = Plan.of(own, *RUN, **variables)
    assert plan.jobs["privacy_summarise"] >= 1
    programs = {Path(words[0]) for words in plan.commands}
    files = installed / "dpcanary/workflow/files" if is_built else ROOT
    assert {path.parent for path in programs} == {files / "scripts"}
    assert all(path.is_file() for path in programs)
    paths = [word for words in plan.commands for word in words if "results/small/" in word]
    assert {path.partition("/results/small/")[0] for path in paths if path[0] != "{"} == {"audits"}


@pytest.mark.exhaustive
def test_a_built_package_runs(own, installed):
    """The user's rules and ours, under the prefix; the user's wildcards are their own."""
    variables = {"PYTHONPATH": str(installed)}
    printed_by([*SNAKEMAKE, *RUN], own, **variables)
    assert "epsilon_lower" in (own / "mine/summary.txt").read_text()
    summary = pd.read_csv(own / "audits/results/small/summary.tsv", sep="\t")
    assert {*summary["canary"]} == {"worst_case", "mislabeled"}
    assert (own / "audits/results/small/figures/trade_off.pdf").exists()
    assert not (own / "results").exists()
    audit = ["audit", "--features", "digits", "--num-records", "100", "--device", "cpu"]
    audit += ["--num-runs", "20", "--num-steps", "4", "--delta", "1e-5", "--noise-multiplier", "1"]
    assert "audit-mislabeled" in printed_by([*DPCANARY, *audit], own, **variables)
    command = [*DPCANARY, "run", "published/annamalai-digits", "--target", "list_audits"]
    assert "pretrained-lr4" in printed_by(command, own, **variables)
    printed_by([*DPCANARY, "report", "results/digits"], own, **variables)
    assert (own / "results/digits/report.html").exists()
