"""Every config of the paper: a dry run as it is, and the whole of it in miniature."""

import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from miniatures import miniature, write_encoders
from running import SNAKEFILE, SNAKEMAKE, printed_by
from sampling import exhaustive

ROOT = Path(__file__).parents[2]
PAPER = sorted((ROOT / "config/pradhan").glob("*.yaml"))
CEBERE = sorted((ROOT / "config/cebere").glob("*.yaml"))
BOGLIONI = sorted((ROOT / "config/boglioni").glob("*.yaml"))
PUBLISHED = sorted((ROOT / "config/published").glob("*.yaml"))
# Those differ from the papers' in numbers.
REPLICATION = sorted((ROOT / "config/replication").glob("*.yaml"))
ORIGINAL = [*PAPER, *CEBERE, *BOGLIONI, *PUBLISHED]
# In CI, a miniature of each of these is run, and the others are planned.
_IN_CI = (
    *("pradhan/cifar10", "pradhan/sst2", "pradhan/worst_case", "cebere/landscape"),
    *("published/annamalai-digits", "published/shuffling"),
)


def name(config: Path) -> str:
    return f"{config.parent.name}/{config.stem}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny data in the official formats, and tiny encoders."""
    folder = tmp_path_factory.mktemp("files")
    write_encoders(folder)
    return folder


def snakemake(folder: Path, config: Path, *options: str) -> str:
    """Runs Snakemake in a folder of the user's and returns what it printed."""
    command = [*SNAKEMAKE, "--cores", "2", "--snakefile", SNAKEFILE, "--configfile", str(config)]
    data = str(folder)
    return printed_by([*command, *options], folder, DPCANARY_DATA=data, HF_HUB_OFFLINE="1")


def touch_files_of(config: Path, folder: Path) -> None:
    """Makes the local files of a config, empty: a dry run only looks for them."""
    for dataset in yaml.safe_load(config.read_text()).get("datasets", {}).values():
        own = [dataset["source"]] if dataset["source"].endswith(".npz") else []
        for file in [*dataset.get("files", []), *own]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()


@pytest.mark.parametrize(
    "config",
    [
        *(exhaustive(config) if name(config) in _IN_CI else config for config in ORIGINAL),
        *map(exhaustive, REPLICATION),
    ],
    ids=name,
)
def test_dry_run(config, tmp_path):
    touch_files_of(config, tmp_path)
    printed = snakemake(tmp_path, config, "--dry-run", "--quiet", "rules")
    assert "summarise" in printed
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "config",
    [
        config if name(config) in _IN_CI else exhaustive(config)
        for config in [*PAPER, *CEBERE, *PUBLISHED]
    ],
    ids=name,
)
def test_miniature(config, files, tmp_path):
    content = miniature(yaml.safe_load(config.read_text()), files)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    snakemake(tmp_path, tmp_path / "tiny.yaml")
    results = tmp_path / "results" / content["experiment"]
    for figure in content["figures"]:
        for suffix in ("pdf", "png"):
            assert (results / f"figures/{figure}.{suffix}").stat().st_size > 200
        assert len(pd.read_csv(results / f"figures/{figure}.tsv", sep="\t"))
    summary = pd.read_csv(results / "summary.tsv", sep="\t")
    assert set(summary["sweep"]) == set(content["audits"])
    rules = content.get("threshold_rules", ["combined", "in_sample"])
    assert set(summary["threshold_rule"]) == set(rules)


def test_miniatures_are_of_configs_that_there_are():
    assert {*_IN_CI} <= {name(config) for config in ORIGINAL}


def test_the_paper_s_figures_are_all_there():
    named = {name for path in PAPER for name in yaml.safe_load(path.read_text())["figures"]}
    assert named == {"figure2", "figure3", "figure4", "figure5"} | {
        f"figureA{index}" for index in range(1, 7)
    }


@pytest.mark.long
def test_published_audits_run_by_name(tmp_path):
    """In any folder; as in a miniature of the config, which is run above."""
    for config in PUBLISHED:
        touch_files_of(config, tmp_path)
        command = [sys.executable, "-m", "dpcanary", "run", f"published/{config.stem}"]
        printed = printed_by([*command, "--target", "list_audits"], tmp_path, DPCANARY_DATA="")
        assert "noise_multiplier" in printed
