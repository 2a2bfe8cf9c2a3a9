"""Every config of the papers: a dry run as it is, and the whole of it in miniature."""

import argparse
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
import pytest
import yaml
from miniatures import miniature, write_encoders
from running import ROOT, SNAKEFILE, SNAKEMAKE, Plan, printed_by, program, shared
from sampling import exhaustive

FOLDERS = ("pradhan", "cebere", "boglioni", "published", "replication")
CONFIGS = {
    f"{config.parent.name}/{config.stem}": config
    for folder in FOLDERS
    for config in sorted((ROOT / "config" / folder).glob("*.yaml"))
}
# What is run in miniature: the configs of the replication differ from the papers' in numbers, and
# those of Boglioni et al. are in test_canary_sets.py.
SMALL = [name for name in CONFIGS if not name.startswith(("replication/", "boglioni/"))]
# Those of thousands of shards take long to plan; of the others, one of each kind of training.
PLANNED_IN_CI = (
    *("boglioni/cifar10", "cebere/pretrained", "pradhan/sst2"),
    *("published/last-iterate", "published/shuffling"),
)

pytestmark = pytest.mark.long


class AcceptedError(Exception):
    """Raised by a program that has read its arguments."""


def touch_files_of(config: Path, folder: Path) -> None:
    """Makes the local files of a config, empty: a dry run only looks for them."""
    for dataset in yaml.safe_load(config.read_text()).get("datasets", {}).values():
        own = [dataset["source"]] if dataset["source"].endswith(".npz") else []
        for file in [*dataset.get("files", []), *own]:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).touch()


@pytest.mark.parametrize(
    "name", [name if name in PLANNED_IN_CI else exhaustive(name) for name in CONFIGS]
)
def test_it_is_planned_and_programs_take_what_rules_give_them(name, tmp_path, monkeypatch):
    touch_files_of(CONFIGS[name], tmp_path)
    options = ["--snakefile", SNAKEFILE, "--configfile", str(CONFIGS[name]), "--cores", "2"]
    plan = Plan.of(tmp_path, *options, DPCANARY_DATA=str(tmp_path))
    assert "summarise" in plan.jobs
    assert not (tmp_path / "results").exists()
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *arguments: Any) -> NoReturn:
        raise AcceptedError(parse(parser, *arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    of_rules = {Path(words[0]).stem: words for words in plan.commands}
    for words in of_rules.values():
        with pytest.raises(AcceptedError):
            program(Path(words[0])).main([*words[1:]])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SMALL)
def test_miniature(name, tmp_path):
    shutil.copytree(shared("encoders", write_encoders), tmp_path, dirs_exist_ok=True)
    content = miniature(yaml.safe_load(CONFIGS[name].read_text()), tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    command = [*SNAKEMAKE, "--cores", "2", "--snakefile", SNAKEFILE, "--configfile", "tiny.yaml"]
    printed_by(command, tmp_path, DPCANARY_DATA=str(tmp_path), HF_HUB_OFFLINE="1")
    results = tmp_path / "results" / content["experiment"]
    for figure in content["figures"]:
        for suffix in ("pdf", "png"):
            assert (results / f"figures/{figure}.{suffix}").stat().st_size > 200
        assert len(pd.read_csv(results / f"figures/{figure}.tsv", sep="\t"))
    summary = pd.read_csv(results / "summary.tsv", sep="\t")
    assert set(summary["sweep"]) == set(content["audits"])
    rules = content.get("threshold_rules", ["combined", "in_sample"])
    assert set(summary["threshold_rule"]) == set(rules)


def test_the_paper_s_figures_are_all_there():
    assert {*PLANNED_IN_CI} <= CONFIGS.keys()
    paths = (ROOT / "config/pradhan").glob("*.yaml")
    names = {name for path in paths for name in yaml.safe_load(path.read_text())["figures"]}
    numbers = (*range(2, 6), *(f"A{index}" for index in range(1, 7)))
    assert names == {f"figure{number}" for number in numbers}
