"""Files that are valid but of another audit, or of other settings, never become a number."""

import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from running import SNAKEFILE, SNAKEMAKE, printed_by

from dpcanary.errors import InputError
from dpcanary.provenance import Job, listed, origin_of, origins_in
from dpcanary.reports.of_experiment import report_of_experiment
from dpcanary.results_table import read_results
from dpcanary.sealed import write_sealed_object, write_sealed_table
from dpcanary.settings.experiment import read_experiment

AUDIT = {"num_steps": 4, "num_runs": 8, "sample_rate": 0.5}
TRAINED = {**AUDIT, "dataset": "some", "pretraining": {"num_steps": 3, "batch_size": 4}}
CONFIG = {
    "experiment": "chain",
    "delta": 1e-5,
    "datasets": {
        "some": {"source": "digits", "num_records": 60},
        "others": {"source": "digits", "num_records": 40, "num_auxiliary": 90, "num_test": 20},
    },
    "audits": {
        "one": {**TRAINED, "canary": ["gradient", "mislabeled"], "target_epsilon": 8.0},
        "two": {
            **TRAINED,
            "dataset": "others",
            "pretraining": {**TRAINED["pretraining"], "dataset": "some"},
            "canary": ["simulated_dimension", "gradient"],
            "simulation": "noisy",
            "adjacency": "add_remove",
            "noise_multiplier": 2.0,
        },
        "drawn": {**AUDIT, "canary": "worst_case", "noise_multiplier": [2.0, 3.0], "num_runs": 40},
    },
    "figures": {
        "trade_off": {"kind": "trade_off", "sweeps": ["one"], "proven": True},
        "curves": {"kind": "trade_off", "sweeps": ["drawn"], "proven": True},
        "runs": {"kind": "epsilon_by_runs", "sweeps": ["one"], "num_runs": [4, 8]},
        "steps": {"kind": "epsilon_by_step", "sweeps": ["drawn"]},
        "profile": {"kind": "privacy_profile", "sweeps": ["one"]},
        **{
            name: {
                "kind": "adjacency_ratio",
                "sample_rates": [rate],
                "num_steps": [4],
                "noise_multipliers": [2.0, 3.0],
            }
            for name, rate in (("ratio", 0.5), ("other_ratio", 0.25))
        },
    },
}
# What the config has two of, so that they can be exchanged.
KINDS = {
    "data", "noise", "pretrained", "reference", "canaries", "shards", "scores", "estimates",
    "estimates_by_runs", "accounting", "profiles", "ceilings", "ratios", "summaries",
}  # fmt: skip


def snakemake(*options: str) -> list[str]:
    given = ["--snakefile", SNAKEFILE, "--configfile", "chain.yaml", "--cores", "2"]
    return [*SNAKEMAKE, *given, *options]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment, and the commands of all its jobs."""
    place = tmp_path_factory.mktemp("chain")
    (place / "chain.yaml").write_text(yaml.safe_dump(CONFIG))
    printed_by(snakemake(), place)
    planned = printed_by(snakemake("--dry-run", "--forceall", "--printshellcmds"), place)
    (place / "commands.txt").write_text(planned)
    return place


def jobs_of(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each job's program and arguments."""
    for line in (folder / "commands.txt").read_text().splitlines():
        command = re.search(r"python (\S+/scripts/\w+\.py .*) 2> ", line)
        if command:
            program, *arguments = shlex.split(command[1])
            yield Path(program), arguments


def program(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"job_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths_after(option: str, arguments: list[str], folder: Path) -> list[Path]:
    """The paths that an option is given."""
    words = arguments[arguments.index(f"--{option}") + 1 :]
    return [folder / word for word in takewhile(lambda word: not word.startswith("--"), words)]


def files_of(arguments: list[str], role: str, job: Job, folder: Path) -> list[Path]:
    """The files that a job reads in a role; of a folder, those that its origins name."""
    given = paths_after(role, arguments, folder)
    if role == "shards":
        return sorted(given[0].glob("*.npz"))
    if given[0].is_dir():
        names = [origin.partition(":")[0].rpartition("/")[2] for origin in job.inputs[role]]
        return [given[0] / f"{name}.tsv" for name in names]
    return given


def test_every_input_of_every_job_is_compared(folder, monkeypatch):
    """Each file that a job reads is exchanged for another one of its kind, one at a time."""
    monkeypatch.chdir(folder)
    results, tried = folder / "results/chain", set()
    for path, arguments in jobs_of(folder):
        job = Job.model_validate_json(arguments[arguments.index("--job") + 1])
        options = [option for option in ("output", "tsv") if f"--{option}" in arguments]
        outputs = [file for option in options for file in paths_after(option, arguments, folder)]
        before = [output.read_bytes() for output in outputs]
        for role in (role for role, origins in job.inputs.items() if origins):
            if role == "experiment":
                continue  # there is one: see below
            file = files_of(arguments, role, job, folder)[-1]
            kind = file.relative_to(results).parts[0]
            others = [
                other
                for other in sorted((results / kind).rglob(f"*{file.suffix}"))
                if origins_in(other) != origins_in(file)
            ]
            assert others, f"{path.stem}: the config has only one {kind}"
            own = file.read_bytes()
            shutil.copy(others[0], file)
            try:
                with pytest.raises(InputError, match=re.escape(file.name)) as error:
                    program(path).main(arguments)
            finally:
                file.write_bytes(own)
            assert re.search("is .*, not|other settings, or from other inputs", str(error.value))
            tried.add((path.stem, role, kind))
        assert [output.read_bytes() for output in outputs] == before
    assert {kind for _, _, kind in tried} == KINDS
    assert {("train_shard", role) for role in ("data", "noise", "canaries", "pretrained")} <= {
        (name, role) for name, role, _ in tried
    }
    assert ("craft_canaries", "noise", "noise") in tried  # of the noisy simulation
    assert ("pretrain", "other", "data") in tried


def test_every_job_is_told_what_it_reads(folder):
    """A role that a rule forgets would not be compared."""
    read = {"data", "other", "pretrained", "reference", "noise", "canaries", "shards", "scores"}
    read |= {"estimates", "accounting", "profiles", "ceilings", "ratios", "summary"}
    read |= {"experiment", "features"}
    for path, arguments in jobs_of(folder):
        job = json.loads(arguments[arguments.index("--job") + 1])
        options = {word.removeprefix("--") for word in arguments if word.startswith("--")}
        given = options & read
        if path.stem == "compare_adjacencies":
            assert given == set()
        told = {role for role, origins in job["inputs"].items() if origins}
        assert told == given, path.stem


def test_a_file_of_other_settings_is_refused_under_its_own_name(folder, tmp_path, monkeypatch):
    """The same config with another delta: every name is the same."""
    other = {**CONFIG, "delta": 1e-3, "figures": {}}
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(other))
    printed_by(snakemake("results/chain/accounting/one-gradient.tsv"), tmp_path)
    file = folder / "results/chain/accounting/one-gradient.tsv"
    own = file.read_bytes()
    monkeypatch.chdir(folder)
    [arguments] = [
        arguments
        for path, arguments in jobs_of(folder)
        if path.stem == "summarise" and "results/chain/summary.tsv" in arguments
    ]
    file.write_bytes((tmp_path / "results/chain/accounting/one-gradient.tsv").read_bytes())
    try:
        with pytest.raises(InputError, match=r"one-gradient\.tsv was made with other settings"):
            program(Path(SNAKEFILE).parent / "scripts/summarise.py").main(arguments)
    finally:
        file.write_bytes(own)


def test_results_are_not_read_beside_another_config(folder):
    """Neither by the command nor by the report, whichever setting has changed."""
    results = folder / "results/chain"
    assert len(read_results(results)) == 6
    config = results / "experiment.json"
    own = config.read_text()
    changed = json.loads(own)
    for place, value in (
        (changed["settings"], {"delta": 0.01}),
        (changed["settings"], {"significance": 0.001}),
        (changed["audits"]["one-gradient"], {"num_steps": 7777}),
        (changed["settings"]["datasets"]["some"], {"num_records": 61}),
    ):
        before = {key: place[key] for key in value}
        place.update(value)
        config.write_text(json.dumps(changed))
        try:
            for read in (read_results, report_of_experiment):
                with pytest.raises(InputError, match="was not made with the config that is in"):
                    read(results)
        finally:
            place.update(before)
            config.write_text(own)
    report_of_experiment(results)


def test_a_config_of_other_data_does_not_get_into_the_summary(folder, monkeypatch):
    """Columns of the summary come from the resolved config."""
    monkeypatch.chdir(folder)
    config = folder / "results/chain/experiment.json"
    own = config.read_text()
    changed = json.loads(own)
    changed["settings"]["datasets"]["some"]["source"] = "cifar10"
    [arguments] = [
        arguments
        for path, arguments in jobs_of(folder)
        if path.stem == "summarise" and "results/chain/summary.tsv" in arguments
    ]
    config.write_text(json.dumps(changed))
    try:
        with pytest.raises(InputError, match=r"experiment\.json was made with other settings"):
            program(Path(SNAKEFILE).parent / "scripts/summarise.py").main(arguments)
    finally:
        config.write_text(own)


def test_results_that_were_copied_are_not_those_of_another_config(folder, tmp_path):
    """Snakemake's records are elsewhere, so that it sees nothing to do."""
    shutil.copytree(folder / "results", tmp_path / "results")
    command = [sys.executable, "-P", "-m", "dpcanary", "run", "chain.yaml", "--cores", "2"]
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump({**CONFIG, "delta": 0.01}))
    said = printed_by(command, tmp_path, fails=True)
    assert "other settings, or from other inputs" in said
    assert "add/remove" not in said
    # The right config finds its results again, whatever stands in the folder.
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(CONFIG))
    said = printed_by(command, tmp_path)
    assert "one-gradient" in said
    graph = printed_by([*command, "--dag"], tmp_path)
    assert "digraph" in graph
    assert "add/remove" not in graph


def test_a_figure_of_another_config_is_left_out_of_the_report(folder):
    results, num_figures = folder / "results/chain/figures", len(CONFIG["figures"])
    own = (results / "steps.png").read_bytes()
    assert len(report_of_experiment(folder / "results/chain").pictures) == 1 + len(
        CONFIG["figures"]
    )
    shutil.copy(results / "curves.png", results / "steps.png")
    try:
        found = report_of_experiment(folder / "results/chain")
    finally:
        (results / "steps.png").write_bytes(own)
    assert len(found.pictures) == num_figures
    assert any("Figure steps is left out" in note for note in found.notes)


def test_many_inputs_fit_a_command_line():
    """Linux allows 128 KiB for an argument."""
    origins = tuple(
        f"estimates/an-audit-with-a-long-name-{i}:0123456789abcdef" for i in range(5000)
    )
    job = Job(origin="summary:0", inputs={"estimates": listed(origins)})
    assert len(job.to_json()) < 1000
    assert listed(origins) != listed((*origins[1:], origins[0]))
    assert listed(origins[:3]) == origins[:3]


def test_looking_at_a_cost_leaves_the_results_as_they_are(folder):
    results = folder / "results/chain"
    (folder / "chain.yaml").write_text(yaml.safe_dump({**CONFIG, "delta": 0.01}))
    before = (results / "experiment.json").read_bytes()
    try:
        printed = printed_by(snakemake("list_audits"), folder)
    finally:
        (folder / "chain.yaml").write_text(yaml.safe_dump(CONFIG))
    assert "one-gradient" in printed
    assert (results / "experiment.json").read_bytes() == before
    assert len(read_results(results)) == 6


def test_a_resolved_config_gives_the_same_origins(folder):
    """What a report computes from the file is what the jobs were told."""
    from dpcanary.settings.parsing import parse_experiment
    from dpcanary.settings.products import Products

    read = read_experiment(folder / "results/chain/experiment.json")
    for audit in read.audits:
        own = Products(parse_experiment(CONFIG)).rows(audit)
        assert own.origin == Products(read).rows(audit).origin


def test_an_origin_depends_on_name_settings_and_inputs():
    known = {"name": "scores/a", "settings": "{}", "inputs": {"shards": ["shards/a:1"]}}
    changes = (
        {"name": "scores/b"},
        {"settings": "{1}"},
        {"inputs": {"shards": ["shards/a:2"]}},
        {"inputs": {"other": ["shards/a:1"]}},
    )
    digests = {origin_of(**{**known, **change}).partition(":")[2] for change in ({}, *changes)}
    assert len(digests) == 5


def test_files_without_an_origin_are_refused(tmp_path):
    path = tmp_path / "noise.json"
    write_sealed_object(path, {"noise_multiplier": 1.0})
    job = Job(origin="shards/a:0", inputs={"noise": ("noise/a:1",)})
    with pytest.raises(InputError, match="does not say what it was made from"):
        job.check("noise", path)
    table = tmp_path / "a.tsv"
    write_sealed_table(table, "step\torigin\n1\tnoise/a:1\n2\tnoise/b:1\n")
    with pytest.raises(InputError, match="holds 2 products where 1 are needed"):
        job.check("noise", table)
    with pytest.raises(InputError, match="no file holds 0 products"):
        job.check("noise", None)
    paths = [tmp_path / f"{index}.json" for index in range(300)]
    for index, one in enumerate(paths):
        write_sealed_object(one, {"origin": f"noise/a{index}:1"})
    many = Job(inputs={"noise": listed([f"noise/a{index}:1" for index in range(300)])})
    many.check("noise", paths)
    write_sealed_object(paths[7], {"origin": "noise/a7:2"})
    with pytest.raises(InputError, match=r"noise: one of 300 products, from .*0\.json on, is of"):
        many.check("noise", paths)
