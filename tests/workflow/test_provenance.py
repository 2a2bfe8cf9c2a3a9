"""Files that are valid but of another audit, or of other settings, never become a number."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import pytest
import yaml
from running import DPCANARY, ROOT, TINY, Project, printed_by, program, shared, values_of

from dpcanary.core.provenance import Job, listed, origin_of, origins_in
from dpcanary.core.sealed_tables import write_sealed_object, write_sealed_table
from dpcanary.errors import InputError
from dpcanary.experiment.results_table import read_results
from dpcanary.reports.experiment_report import report_of_experiment

# What the config has two of, so that they can be exchanged.
BOTH = {
    "data", "noise", "pretrained", "reference", "canaries", "shards", "scores", "estimates",
    "accounting", "profiles", "ceilings", "ratios",
}  # fmt: skip
KINDS = BOTH | {"estimates_by_runs", "summaries"}
ROLES = BOTH | {"other", "summary", "experiment", "features"}
MADE_OTHERWISE = r"was not made with the config that is in|\.json was made with other settings"


@pytest.fixture(scope="module")
def jobs(finished: Project) -> list[list[str]]:
    def write(folder: Path) -> None:
        words = finished.copy(folder / "copy").plan("--forceall").commands
        (folder / "jobs.json").write_text(json.dumps(words))

    return json.loads((shared("jobs", write) / "jobs.json").read_text())


@pytest.fixture
def here(copy: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(copy.folder)
    return copy.results


@contextmanager
def altered(path: Path, content: bytes) -> Iterator[None]:
    own = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(own)


def files_of(words: list[str], role: str, job: Job) -> list[Path]:
    """The files that a job reads in a role; of a folder, those that its origins name."""
    paths = [Path(word) for word in values_of(role, words)]
    if role == "shards":
        return sorted(paths[0].glob("*.npz"))
    if paths[0].is_dir():
        names = [origin.partition(":")[0].rpartition("/")[2] for origin in job.inputs[role]]
        return [paths[0] / f"{name}.tsv" for name in names]
    return paths


@pytest.mark.long
def test_every_input_of_every_job_is_compared(here, jobs):
    """Each kind of file that a program reads is exchanged for another one, one at a time."""
    here, tried, programs = here.relative_to(here.parents[1]), set(), {}
    for words in jobs:
        job = Job.model_validate_json(values_of("job", words)[0])
        name, roles = Path(words[0]).stem, {role for role in job.inputs if job.inputs[role]}
        assert roles == {role for role in ROLES if f"--{role}" in words}
        options = [option for option in ("output", "tsv") if f"--{option}" in words]
        outputs = [Path(file) for option in options for file in values_of(option, words)]
        before = [output.read_bytes() for output in outputs]
        # There is one experiment: see below.
        for role in roles - {"experiment"}:
            file = files_of(words, role, job)[-1]
            kind = file.relative_to(here).parts[0]
            if (name, role, kind) in tried:
                continue
            alike = sorted((here / kind).rglob(f"*{file.suffix}"))
            others = [other for other in alike if origins_in(other) != origins_in(file)]
            assert others, f"{name}: the config has only one {kind}"
            main = programs.setdefault(name, program(ROOT / words[0])).main
            with (
                altered(file, others[0].read_bytes()),
                pytest.raises(InputError, match=re.escape(file.name)) as error,
            ):
                main(words[1:])
            assert re.search("is .*, not|other settings, or from other inputs", str(error.value))
            tried.add((name, role, kind))
        assert [output.read_bytes() for output in outputs] == before
    assert {kind for _, _, kind in tried} == KINDS
    of_training = {(role, role) for role in ("data", "noise", "canaries", "pretrained")}
    assert of_training <= {tuple(rest) for name, *rest in tried if name == "train_shard"}
    # The noise is that of the noisy simulation.
    assert {("craft_canaries", "noise", "noise"), ("pretrain", "other", "data")} <= tried


def test_results_are_not_read_or_summarised_beside_another_config(here, jobs):
    config = here / "experiment.json"
    [words] = [words for words in jobs if "results/tiny/summary.tsv" in words]

    def summarise(_: Path) -> None:
        program(ROOT / "scripts/summarise.py").main(words[1:])

    readers = (read_results, report_of_experiment)
    digits = ("settings", "datasets", "digits")
    for reads, (*keys, last), value in (
        (readers, ("settings", "delta"), 0.01),
        (readers, ("settings", "significance"), 0.001),
        (readers, ("audits", "steps-gradient", "num_steps"), 7778),
        (readers, (*digits, "num_records"), 61),
        ([summarise], (*digits, "source"), "cifar10"),
    ):
        changed = json.loads(config.read_text())
        reduce(dict.__getitem__, keys, changed)[last] = value
        with altered(config, json.dumps(changed).encode()):
            for read in reads:
                with pytest.raises(InputError, match=MADE_OTHERWISE):
                    read(here)
    assert len(read_results(here)) == 9
    assert len(report_of_experiment(here).pictures) == 1 + len(TINY["figures"])
    steps = here / "figures/epsilon_by_step.png"
    with altered(steps, (here / "figures/epsilon_by_noise.png").read_bytes()):
        report = report_of_experiment(here)
    assert len(report.pictures) == len(TINY["figures"])
    assert any("Figure epsilon_by_step is left out" in note for note in report.notes)


@pytest.mark.long
def test_results_that_were_copied_are_not_those_of_another_config(finished, tmp_path):
    """Snakemake's records are elsewhere, so that it sees nothing to do."""
    shutil.copytree(finished.folder / "results", tmp_path / "results")
    for name in ("own.npz", "own_nets.py"):
        shutil.copy2(finished.folder / name, tmp_path)
    command = [*DPCANARY, "run", "chain.yaml", "--cores", "2"]
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump({**TINY, "delta": 0.01}))
    said = printed_by(command, tmp_path, fails=True)
    assert "was not made with the config that is in" in said, said
    assert "add/remove" not in said
    # The right config finds its results again, whatever stands in the folder.
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(TINY))
    assert "\nsteps-" in printed_by(command, tmp_path)
    graph = printed_by([*command, "--dag"], tmp_path)
    assert "digraph" in graph
    assert "add/remove" not in graph


def test_an_origin_depends_on_name_settings_and_inputs():
    arguments = {"name": "scores/a", "settings": "{}", "inputs": {"shards": ["shards/a:1"]}}
    of_inputs = [{"inputs": {"shards": ["shards/a:2"]}}, {"inputs": {"other": ["shards/a:1"]}}]
    changes = ({}, {"name": "scores/b"}, {"settings": "{1}"}, *of_inputs)
    digests = {origin_of(**{**arguments, **change}).partition(":")[2] for change in changes}
    assert len(digests) == 5


def test_files_without_an_origin_are_refused(tmp_path):
    path = tmp_path / "noise.json"
    write_sealed_object(path, {"noise_multiplier": 1.0})
    job = Job(origin="shards/a:0", inputs={"noise": ("noise/a:1",)})
    table = tmp_path / "a.tsv"
    write_sealed_table(table, "step\torigin\n1\tnoise/a:1\n2\tnoise/b:1\n")
    for file, message in (
        (path, "does not say what it was made from"),
        (table, "holds 2 products where 1 are needed"),
        (None, "no file holds 0 products"),
    ):
        with pytest.raises(InputError, match=message):
            job.check("noise", file)


def test_many_inputs_fit_a_command_line_and_are_compared(tmp_path):
    """Linux allows 128 KiB for an argument."""
    origins = tuple(f"estimates/an-audit-with-a-long-name-{i}:0123456789abcdef" for i in range(201))
    job = Job(origin="summary:0", inputs={"estimates": listed(origins)})
    assert len(job.to_json()) < 1000
    assert listed(origins) != listed((*origins[1:], origins[0]))
    assert listed(origins[:200]) == origins[:200]
    paths = [tmp_path / f"{index}.json" for index in range(201)]
    for path, origin in zip(paths, origins, strict=True):
        write_sealed_object(path, {"origin": origin})
    job.check("estimates", paths)
    write_sealed_object(paths[7], {"origin": origins[8]})
    with pytest.raises(InputError, match=r"one of 201 products, from .*0\.json on, is of"):
        job.check("estimates", paths)
