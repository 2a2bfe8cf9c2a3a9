"""Environments: versions agree everywhere, and each role's environment has what it imports.

Each is built from PyPI, which has conda's versions, and runs the experiment's jobs of its role.
"""

import ast
import re
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import yaml
from miniatures import cifar10, write_encoders
from running import ROOT, SNAKEFILE, SNAKEMAKE, TINY, Project, printed_by
from test_canary_sets import CONFIG as OF_SETS
from test_pins import pins

from dpcanary.accounting.audit_noise import CALIBRATION
from dpcanary.adversaries.catalogue import adversaries
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.experiment.figure_catalogue import figure_kinds
from dpcanary.workflow.code_digests import imports_of

PYPI_NAME = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
DISTRIBUTION = {
    "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml",
    "triton": "torch",  # comes with it
}  # fmt: skip
# Functions that a program finds by their names, beside what it imports.
ENTRIES = adversaries().values()
OF_RULES = [rule.choose for rule in RULES.values() if isinstance(rule.choose, str)]
FUNCTIONS = {
    "calibrate_noise": [CALIBRATION],
    "craft_canaries": [entry.function for entry in ENTRIES if entry.is_trained],
    "optimise_canaries": [entry.optimise for entry in ENTRIES if entry.optimise is not None],
    "draw_shard": [entry.function for entry in ENTRIES if not entry.is_trained],
    "score_runs": [score.function for entry in ENTRIES for score in entry.scores],
    **dict.fromkeys(("estimate", "estimate_by_runs", "bound_ceiling"), OF_RULES),
    "draw_figure": [kind.draw for kind in figure_kinds().values()],
}


def listed(environment: str) -> dict[str, str]:
    versions: dict[str, str] = {}
    for item in yaml.safe_load((ROOT / "envs" / f"{environment}.yaml").read_text())["dependencies"]:
        for requirement in item["pip"] if isinstance(item, dict) else [item]:
            name, _, version = re.sub("==", "=", requirement).partition("=")
            versions[PYPI_NAME.get(name, name)] = version
    return versions


def rules() -> dict[str, str]:
    """The text of every rule; a rule that is made from another one has that one's text too."""
    text = "\n".join(path.read_text() for path in sorted((ROOT / "rules").glob("*.smk")))
    parts = re.split(r"^(?:use )?rule (?:(\w+) as )?(\w+)(?: with)?:\n", text, flags=re.MULTILINE)
    texts: dict[str, str] = {}
    for base, name, own in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        texts[name] = own + texts.get(base, "")
    # The others write what Snakemake itself knows, in Snakemake's own process.
    return {rule: text for rule, text in texts.items() if "program=" in text}


def environment_of(text: str) -> str:
    return re.findall(r"envs/(\w+)\.yaml", text)[0]


def test_versions_are_the_tested_ones():
    pinned = pins((ROOT / "constraints.txt").read_text())
    environments = {path.stem for path in (ROOT / "envs").glob("*.yaml")}
    assert {*TURNS, "costs", "snakemake"} == environments
    for environment in environments:
        for name, version in listed(environment).items():
            if name not in ("python", "pip"):
                assert pinned[name] == f"=={version}", environment


@pytest.mark.parametrize("rule", sorted(rules()))
def test_a_rule_names_what_it_needs_and_its_environment_has_what_its_program_imports(rule):
    text = rules()[rule]
    for directive in ("log:", "conda:", "mem_mb=", "message:", "program=program("):
        assert directive in text
    assert "COMMAND" in text or "python {input.program:q} " in text
    environment = environment_of(text)
    missing = third_party(rule) - listed(environment).keys()
    assert not missing, f"envs/{environment}.yaml lacks {missing}"


def third_party(rule: str) -> set[str]:
    packages = set()
    modules = [name.split(":")[0].replace(".", "/") for name in FUNCTIONS.get(rule, [])]
    [program] = re.findall(r'program\("(\w+)"\)', rules()[rule])
    programs = [ROOT / "scripts" / f"{program}.py", *(ROOT / f"{module}.py" for module in modules)]
    for path in {path for program in programs for path in imports_of(program, ROOT)}:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            packages |= {name.split(".")[0] for name in names}
    packages -= {*sys.stdlib_module_names, "dpcanary"}
    return {DISTRIBUTION.get(name, name.replace("_", "-")) for name in packages}


# The last rules of each role: what has run before a role's turn is there already, so each turn runs
# the role's own rules alone.
TURNS = {
    "encoding": ["extract_features"], "data": ["prepare_dataset"],
    "accounting": ["account", "compare_adjacencies"], "training": ["train_shard"],
    "estimation": ["summarise", "estimate_by_runs", "bound_ceiling"], "figures": ["all"],
}  # fmt: skip
# Downloads have tests of their own, against a server. This experiment trains, so it has no release.
# Figures log by their names, and are looked for.
NOT_RUN = {"download_file", "download_encoder", "unpack_release", "draw_figure"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the small experiment, and sweeps of images with and without encoder."""
    project = Project.new(tmp_path_factory.mktemp("roles"))
    write_encoders(project.folder)
    pixels = {"source": "cifar10", "files": [str(cifar10(project.folder))], "num_records": 40}
    canaries = {"dataset": "images", "canary": ["gradient", "natural"]}
    config = deepcopy(TINY)
    config["datasets"]["images"] = {**pixels, "encoder": str(project.folder / "vit")}
    config["datasets"]["pixels"] = {**pixels, "num_test": 10}
    config["audits"]["head"] = {**TINY["audits"]["steps"], **canaries}
    config["audits"]["sets"] = {**OF_SETS["audits"]["tuned"], "dataset": "pixels"}
    config["figures"]["accuracy"] = {"kind": "test_accuracy", "sweeps": ["head"]}
    config["figures"]["sets"] = {"kind": "canary_sets", "sweeps": ["sets"]}
    rules = [*TINY["threshold_rules"], "mahloujifar"]
    project.write({**config, "threshold_rules": rules, "independent": "slots"})
    return project.folder


def snakemake(folder: Path, environment: str, *options: str, is_whole: bool = False) -> str:
    """Runs Snakemake with the programs of an environment that has the packages of its file.

    If `is_whole`, Snakemake itself is that of the environment, too.
    """
    place = folder / f"env-{environment}"
    printed_by([sys.executable, "-m", "venv", str(place)], folder)
    versions = listed(environment).items()
    packages = [f"{name}=={version}" for name, version in versions if name not in ("python", "pip")]
    # Few of their modules are ever imported, so none is compiled in advance.
    install = [str(place / "bin/pip"), "install", "--quiet", "--no-compile"]
    printed_by([*install, *packages], folder)
    command = [str(place / "bin/python"), "-m", "snakemake"] if is_whole else SNAKEMAKE
    command = [*command, "--cores", "2", "--snakefile", SNAKEFILE, *options]
    command += ["--configfile", "experiment.yaml"]
    return printed_by(command, folder, programs=place / "bin", HF_HUB_OFFLINE="1")


@pytest.mark.exhaustive
def test_each_role_runs_in_its_own_environment(folder):
    for environment, last in TURNS.items():
        snakemake(folder, environment, "--until", *last)
        own = {rule for rule, text in rules().items() if environment_of(text) == environment}
        for rule in own - NOT_RUN:
            assert list(folder.glob(f"*/**/logs/{rule}*")), f"{rule} has not run"
    assert (folder / "results/tiny/summary.tsv").exists()
    for figure in yaml.safe_load((folder / "experiment.yaml").read_text())["figures"]:
        assert (folder / f"results/tiny/figures/{figure}.png").exists()
    assert "core-hours" in snakemake(folder, "costs", "estimate_cost")
    snakemake(folder, "snakemake", "--dry-run", is_whole=True)
