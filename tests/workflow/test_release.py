"""`dpcanary release`: an archive from which results are made without data; and `dpcanary crate`."""

import csv
import hashlib
import io
import json
import re
import shutil
import sys
import zipfile
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from running import DPCANARY, ROOT, SNAKEFILE, TINY, Plan, Project, printed_by, shared
from typer.testing import CliRunner

from dpcanary.audits.release_making import release_results, released_config
from dpcanary.audits.ro_crate import write_crate
from dpcanary.audits.verification import verify_results
from dpcanary.audits.workflow_run import run_config
from dpcanary.cli import app
from dpcanary.core.provenance import CRATE
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.release import MANIFEST, Released, open_release
from dpcanary.reports.experiment_report import report_of_experiment

pytestmark = pytest.mark.long
# What the standard has under its address is given to the validator by hand.
VALIDATES = """
import io, json, sys
from pathlib import Path
import requests, rocrate, urllib3
from requests_cache import CachedSession
from rocrate_validator import services

CACHE = str(Path("cache").resolve())
RUN = {"@context": {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}}
for address, content in {
    "https://w3id.org/ro/crate/1.1/context":
        (Path(rocrate.__file__).parent / "data/ro-crate.jsonld").read_bytes(),
    "https://w3id.org/ro/terms/workflow-run/context": json.dumps(RUN).encode(),
}.items():
    answer = requests.Response()
    answer.status_code, answer._content, answer.url = 200, content, address
    answer.request = requests.Request("GET", address).prepare()
    answer.headers["Content-Type"] = "application/ld+json"
    body = {"status": 200, "preload_content": False, "request_url": address}
    answer.raw = urllib3.HTTPResponse(io.BytesIO(content), answer.headers, **body)
    CachedSession(CACHE, backend="sqlite", expire_after=-1).cache.save_response(answer)
for profile in ("ro-crate-1.1", "process-run-crate-0.5"):
    report = services.validate({
        "rocrate_uri": sys.argv[1], "offline": True, "cache_path": CACHE,
        "profile_identifier": profile, "requirement_severity": "REQUIRED",
    })
    print(profile, *(f"{issue.message} {issue.violatingEntity}" for issue in report.get_issues()))
    report.passed() or sys.exit(1)
"""
# Files derived after training; all other files are data, canaries, models and shards.
DERIVED = ("summary.tsv", "estimates", "accounting", "profiles", "figures", "ceilings", "scores")


@pytest.fixture(scope="session")
def trained(finished: Project) -> Path:
    """The folder of the finished experiment, with a release of each kind, and its crate."""

    def write(folder: Path) -> None:
        results = finished.copy(folder).results
        for holds in Released:
            (folder / holds).mkdir()
            release_results(results, observations=holds, output=folder / holds / "tiny.zip")
        described = ["--license", "CC-BY-4.0", "--author", "Ada Lovelace"]
        for command in (["report"], ["crate", *described]):
            called = CliRunner().invoke(app, [*command, str(results)])
            assert called.exit_code == 0, called.output

    return shared("released", write)


@pytest.fixture
def crate(trained: Path) -> Path:
    return trained / "results/tiny"


@pytest.fixture(params=["shards", pytest.param("scores", marks=pytest.mark.exhaustive)])
def again(request: pytest.FixtureRequest, trained: Path, tmp_path: Path) -> Path:
    """A folder in which everything was recomputed from a release."""

    def write(folder: Path) -> None:
        for name in ("tiny.zip", "tiny.yaml"):
            shutil.copy(trained / request.param / name, folder)
        printed_by([*DPCANARY, "run", "tiny.yaml", "--cores", "2"], folder)

    regenerated = shared(f"from-{request.param}", write)
    return Project(regenerated).copy(tmp_path / "again").folder


def files_of(results: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(results)): path.read_bytes()
        for path in sorted(results.rglob("*"))
        if path.is_file() and path.relative_to(results).parts[0] in DERIVED
    }


def members_of(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as content:
        return {name: content.read(name) for name in content.namelist()}


def damage(
    archive: Path, changes: dict[str, bytes | str | None], *, mends: bool = True, twice: str = "",
    **options: Any,
) -> None:  # fmt: skip
    """Gives members another content, that of another member, or none.

    If `mends`, the manifest has the hashes of what is there. `twice` is a member that comes again.
    """
    own = members_of(archive)
    contents = {name: own[new] if isinstance(new, str) else new for name, new in changes.items()}
    members = {name: content for name, content in {**own, **contents}.items() if content}
    if mends:
        manifest = json.loads(members[MANIFEST])
        files = {entry["name"]: entry for entry in manifest["files"]}
        for name in members.keys() - {MANIFEST}:
            files.setdefault(name, {"name": name, "origin": f"{name}:0"})
            files[name]["sha256"] = hashlib.sha256(members[name]).hexdigest()
        manifest["files"] = [files[name] for name in sorted(files.keys() & members.keys())]
        members[MANIFEST] = json.dumps(manifest).encode()
    with zipfile.ZipFile(archive, "w", **options) as written:
        for name, content in members.items():
            written.writestr(name, content)
        if twice:
            with pytest.warns(UserWarning, match="Duplicate"):
                written.writestr(twice, b"")


def test_everything_after_training_is_the_same_byte_by_byte(trained, again):
    regenerated, own = (files_of(folder / "results/tiny") for folder in (again, trained))
    assert len(regenerated) > 30
    assert regenerated.keys() == own.keys()
    assert [name for name in regenerated if regenerated[name] != own[name]] == []
    unneeded = {"data", "reference", "pretrained"}
    assert not unneeded & {path.name for path in (again / "results/tiny").iterdir()}
    assert not (again / "resources").exists()
    holds = Released.SHARDS if (again / "results/tiny/shards").exists() else Released.SCORES
    release_results(again / "results/tiny", observations=holds, output=again / "again.zip")
    assert (again / "again.zip").read_bytes() == (again / "tiny.zip").read_bytes()
    # Nothing is unpacked again as long as the hash is the same.
    (again / "tiny.zip").touch()
    options = ["--snakefile", SNAKEFILE, "--configfile", "tiny.yaml", "--cores", "2"]
    assert Plan.of(again, *options).jobs == {}
    cost = printed_by([*DPCANARY, "run", "tiny.yaml", "--target", "estimate_cost"], again)
    assert "Nothing is trained: observations are those of the release tiny.zip." in cost


def test_a_regenerated_experiment_says_so_and_is_verified_by_its_archive(again):
    results = again / "results/tiny"
    sha256 = hashlib.sha256((again / "tiny.zip").read_bytes()).hexdigest()
    report = report_of_experiment(results)
    provenance = {"observations": "released: tiny.zip", "SHA-256 of the archive": sha256}
    assert dict(report.provenance).items() >= provenance.items()
    [data] = report.data
    assert data[1].startswith("not read, since observations are released; ")
    assert "own: 20 private records of own.npz" in data[1]
    with pytest.raises(InputError, match=r"tiny\.zip, a release: nothing can be retrained"):
        verify_results(results, replay=1)
    printed = CliRunner().invoke(app, ["results", str(results)]).stdout
    assert sha256 in printed.replace("\n", "")
    altered = results / "scores/known_batches.npz"
    arrays = dict(np.load(altered))
    np.savez(altered, **arrays | {"scores": arrays["scores"] + 1})
    (results / "accounting/noisy.tsv").unlink()
    verification = verify_results(results, cores=2)
    differ = {file.file: file.status for file in verification.files if file.status != "same"}
    assert differ == {"scores/known_batches.npz": "changed", "accounting/noisy.tsv": "missing"}
    assert {"noise/known_batches.json", "summary.tsv"} <= {file.file for file in verification.files}
    assert "What tiny.zip holds was read as it is." in str(verification)


def test_the_same_results_give_the_same_archive(trained, tmp_path):
    for holds in Released:
        output = tmp_path / "other.zip"
        options = ["--observations", holds.value, "--output", str(output), "--json"]
        called = CliRunner().invoke(app, ["release", str(trained / "results/tiny"), *options])
        printed, content = json.loads(called.stdout), output.read_bytes()
        assert content == (trained / holds / "tiny.zip").read_bytes()
        assert printed["sha256"] == hashlib.sha256(content).hexdigest()
        assert printed["bytes"] == len(content)
        assert read_config(tmp_path / "other.yaml")["settings"]["archive"] == "other.zip"
        assert [*members_of(output)] == sorted(members_of(output))


def test_the_config_in_an_archive_runs_it_and_is_the_experiment(trained):
    own = read_experiment(trained / "results/tiny/experiment.json")
    inside = yaml.safe_load(members_of(trained / "scores/tiny.zip")["config.yaml"])

    def with_settings(**changes: str) -> Experiment:
        return own.model_copy(update={"settings": own.settings.model_copy(update=changes)})

    assert parse_experiment(inside) == with_settings(observations="released", archive="tiny.zip")
    text = released_config(with_settings(device="cuda"), archive="tiny.zip", config="tiny.yaml")
    assert parse_experiment(yaml.safe_load(text)).settings.device == "cpu"
    replication = parse_experiment(read_config(ROOT / "config/released/sst2.yaml"))
    assert Products(replication).check_release(ROOT / replication.settings.archive)


SCORES, OTHER, MORE = (f"scores/{name}.npz" for name in ("module", "noisy", "more"))
UNMENDED = {"mends": False}
# By name: `changes` and options of `damage`, and the refusal. What is not a whole archive is in
# faults/test_corruption.py.
DAMAGES: dict[str, tuple[dict[str, bytes | str | None], dict[str, Any], str]] = {
    "lacking a file": ({SCORES: None}, {}, "lacks scores/module.npz"),
    "lacking a listed file": ({SCORES: None}, UNMENDED, "lacks 'scores/module.npz'"),
    "without a manifest": ({MANIFEST: None}, UNMENDED, "has no manifest.json"),
    "with a file more": ({MORE: b"1"}, {}, "has scores/more.npz, which is not of this config"),
    "with an unlisted file": ({MORE: b"1"}, UNMENDED, "which its manifest does not list"),
    "leading outside": ({"../x": b"1"}, {}, r"has '\.\./x', which is no file of a"),
    "leading to the root": ({"/tmp/x": b"1"}, {}, "has '/tmp/x', which is no file"),
    "leading on": ({"scores/a.npz/../../x": b"1"}, {}, "x', which is no file of a"),
    "with a script": ({"noise/module.json.sh": b"1"}, {}, "json.sh', which is no file"),
    "with a file twice": ({}, {"twice": SCORES}, "has a member twice"),
    "compressed": ({}, {"compression": zipfile.ZIP_DEFLATED}, "in another form than dpcanary"),
    "with a foreign manifest": ({MANIFEST: b"{}"}, UNMENDED, "that is wrong"),
    "with an unmended score": ({SCORES: OTHER}, UNMENDED, "with another hash than its manifest"),
    "with exchanged files": ({SCORES: OTHER, OTHER: SCORES}, {}, "of another origin than its man"),
}  # fmt: skip


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "scores", tmp_path / "released"))


@pytest.mark.parametrize("name", DAMAGES)
def test_an_archive_that_is_altered_is_refused_whatever_the_config_says(folder, name, tmp_path):
    changes, options, message = DAMAGES[name]
    experiment = parse_experiment(read_config(folder / "tiny.yaml"))
    with open_release(folder / "tiny.zip") as release:
        origins = [*release.origins.values()]
    damage(folder / "tiny.zip", changes, **options)
    unpacked = tmp_path / "unpacked"
    with (  # noqa: PT012
        pytest.raises(InputError, match=message) as refused,
        open_release(folder / "tiny.zip") as release,
    ):
        release.check(Products(experiment).of_release(Released.SCORES))
        release.unpack(unpacked, members=origins)
    assert "tiny.zip" in str(refused.value)
    assert not unpacked.exists()


@pytest.mark.parametrize(("changed", "value"), [
    ("seed", 7),
    ("audits module num_steps", 5),
    ("datasets own num_records", 30),
    ("datasets own sha256", ["0" * 64]),
    ("audits other", TINY["audits"]["module"]),
    ("", None),  # a score in the archive
])  # fmt: skip
def test_an_archive_of_other_settings_is_refused(folder, changed, value):
    """Before anything runs, or by the job that unpacks; nothing of it is then there.

    By the config as it was written, with the hashes of data that are not there. A changed score is
    known by the hash of the archive alone.
    """
    config = yaml.safe_load(yaml.safe_dump(TINY))
    own = read_config(folder / "tiny.yaml")["settings"]
    config |= {key: own[key] for key in ("observations", "archive", "archive_sha256")}
    config["datasets"]["own"]["sha256"] = own["datasets"]["own"]["sha256"]
    # Without a change, the config is the one that the archive is of.
    assert Products(parse_experiment(config)).check_release(folder / "tiny.zip")
    message = "made with other settings, or from other inputs|lacks noise/other.json"
    if changed:
        *keys, last = changed.split()
        reduce(dict.__getitem__, keys, config)[last] = value
    else:
        damage(folder / "tiny.zip", {SCORES: OTHER})
        message = "has sha256 .*, and the config's archive_sha256 is"
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=message) as refused:
        run_config(folder / "tiny.yaml", folder=folder, prints_results=False)
    assert "tiny.zip" in str(refused.value)
    left = [path.name for path in folder.rglob("*") if path.is_file()]
    assert {*left} <= {"tiny.zip", "tiny.yaml", ".lock"}


def test_unfinished_and_outdated_results_are_not_released(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = Path(shutil.copytree(trained / "results/tiny", tmp_path / "results/tiny"))

    def refused(message: str, **options: Path) -> None:
        with pytest.raises(InputError, match=message):
            release_results(results, **options)

    resolved, scores = results / "experiment.json", results / "scores/module.npz"
    text, content = resolved.read_text(), scores.read_bytes()
    resolved.write_text(text.replace('"delta": 1e-05', '"delta": 0.001'))
    refused("was not made with the config that is in")
    resolved.write_text(text)
    shutil.copy(results / "scores/noisy.npz", scores)
    refused(r"module\.npz is scores/noisy, not scores/module")
    # The header, which says what it is, is whole; an array behind it is not.
    with zipfile.ZipFile(io.BytesIO(content)) as own, zipfile.ZipFile(scores, "w") as damaged:
        for name in own.namelist():
            whole = own.read(name)
            damaged.writestr(name, whole if name == "header.npy" else whole[:-1])
    refused(r"module\.npz")
    scores.write_bytes(content)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    refused("is not the config of a release")
    refused(r"ends with \.zip", output=Path("tiny.tar"))
    (results / "summary.tsv").unlink()
    refused(r"summary\.tsv does not exist", output=Path("made.zip"))
    assert {path.name for path in tmp_path.iterdir()} == {"results", "tiny.yaml"}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("config", "names", "tolerances"), [
    ("released/sst2", ["figureA6"], {"rtol": 1e-9, "atol": 0}),
    ("released/label", ["label"], {"rtol": 1e-9, "atol": 0}),
    # 17 audits with 150,000 runs each: processors round the last digits of a likelihood.
    ("pradhan/worst_case", ["figure2", "figureA5"], {"rtol": 1e-6}),
])  # fmt: skip
def test_the_numbers_of_the_documents_are_made_again(tmp_path, config, names, tolerances):
    """In a folder without data; an archive is looked up in the repository."""
    command = [*DPCANARY, "run", str(ROOT / f"config/{config}.yaml"), "--cores", "2"]
    printed_by(command, tmp_path, DPCANARY_DATA=str(ROOT))
    folder = config.translate(str.maketrans("/_", "--"))
    for name in names:
        paths = (tmp_path / "results" / folder / "figures", ROOT / "docs/results")
        drawn, shown = (pd.read_csv(path / f"{name}.tsv", sep="\t") for path in paths)
        # Digits of accounted epsilons depend on the processor from the seventh on.
        series = shown.get("series", pd.Series("accounted", shown.index))
        accounted = series.str.startswith("accounted")
        for rows, limits in ((accounted, {**tolerances, "rtol": 1e-6}), (~accounted, tolerances)):
            pd.testing.assert_frame_equal(drawn[rows], shown[rows], **limits)


def described(results: Path) -> dict[str, dict[str, Any]]:
    return {part["@id"]: part for part in json.loads((results / CRATE).read_text())["@graph"]}


def ids(value: Any) -> set[str]:
    return {part["@id"] for part in (value if isinstance(value, list) else [value])}


def test_a_crate_describes_every_file_with_its_hash(crate: Path) -> None:
    parts = described(crate)
    files = {name: part for name, part in parts.items() if part["@type"] == "File"}
    paths = {str(path.relative_to(crate)): path for path in crate.rglob("*") if path.is_file()}
    assert {*files} == {name for name in paths.keys() - {CRATE, ".lock"} if name[:5] != "logs/"}
    assert len(files) > 40
    for name, part in files.items():
        content = paths[name].read_bytes()
        assert part["sha256"] == hashlib.sha256(content).hexdigest()
        assert int(part["contentSize"]) == len(content)
    root = parts["./"]
    assert ids(root["license"]) == {"https://spdx.org/licenses/CC-BY-4.0"}
    assert [parts[author]["name"] for author in ids(root["author"])] == ["Ada Lovelace"]
    # As the first page of the report says it; its few models show nothing.
    assert "A bound of 0 says nothing, and is no evidence of safety." in root["description"]


def test_a_crate_says_of_each_file_what_the_workflow_makes_it_from(crate: Path) -> None:
    """Snakemake's own table of inputs is the twin."""
    printed = Project(crate.parents[1]).looked("--detailed-summary")
    lines = printed[printed.index("output_file\t") :].splitlines()
    inputs_of: dict[str, set[str]] = {}
    for row in csv.DictReader(lines, delimiter="\t"):
        if row["input-file(s)"] is not None:  # as in what Snakemake says last
            inputs = re.findall(r"results/tiny/(shards/[^,]*/|[^,]+)", row["input-file(s)"])
            inputs_of[row["output_file"].removeprefix("results/tiny/")] = {*inputs}
    entities, created = described(crate), set[str]()
    for action in (part for part in entities.values() if part["@type"] == "CreateAction"):
        assert ids(action["instrument"]) == {"#dpcanary"}
        for result in ids(action["result"]):
            for part in ids(entities[result]["hasPart"]) if result.endswith("/") else {result}:
                resolved = {"experiment.json"}
                assert ids(action["object"]) - resolved == inputs_of[part] - resolved, part
                created.add(part)
    assert created == {*inputs_of} - {"experiment.json"}


@pytest.mark.exhaustive
def test_a_crate_passes_the_validator(crate: Path, tmp_path: Path) -> None:
    """In an environment of its own: it needs other versions than an accountant. No network."""
    printed_by([sys.executable, "-m", "venv", "venv"], tmp_path)
    needed = ["roc-validator==0.13.0", "rocrate==0.16.0"]
    printed_by(["venv/bin/pip", "install", "--quiet", "--no-compile", *needed], tmp_path)
    (tmp_path / "validates.py").write_text(VALIDATES)
    command = ["venv/bin/python", "validates.py"]
    assert "process-run-crate-0.5" in printed_by([*command, str(crate)], tmp_path)
    other = Path(shutil.copytree(crate, tmp_path / "other"))
    (other / "summary.tsv").unlink()
    assert "summary.tsv" in printed_by([*command, str(other)], tmp_path, fails=True)


def test_a_crate_of_a_release_has_no_file_for_what_was_unpacked(again: Path) -> None:
    path = write_crate(again / "results/tiny", license="https://example.org/terms")
    entities = described(path.parent)
    assert ids(entities["./"]["license"]) == {"https://example.org/terms"}
    assert "author" not in entities["./"]
    for action in (part for part in entities.values() if part["@type"] == "CreateAction"):
        assert ids(action["object"]) | ids(action["result"]) <= {*entities}


def test_what_is_damaged_is_not_described(crate: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(crate, tmp_path / "tiny"))
    (place / CRATE).unlink()
    shutil.copy(place / "scores/module.npz", place / "scores/grid-final_sum.npz")
    with pytest.raises(InputError, match="is scores/module, not scores/grid-final_sum"):
        write_crate(place, license="MIT")
    shutil.copy(crate / "scores/grid-final_sum.npz", place / "scores")
    for name, other, message in (
        ("figures/trade_off.png", "figures/curves.png", r"trade_off\.png is missing, or was not"),
        ("figures/curves.pdf", None, r"curves\.pdf is missing, or was not made with the config"),
        ("summaries/trade_off.tsv", "summary.tsv", r"trade_off\.tsv is missing, or was not made"),
        ("summaries/curves.tsv", None, r"summaries/curves\.tsv does not exist"),
    ):
        (place / name).unlink()
        if other:
            shutil.copy(crate / other, place / name)
        with pytest.raises(InputError, match=message):
            write_crate(place, license="MIT")
        shutil.copy(crate / name, place / name)
    with pytest.raises(InputError, match="license 'none of them'"):
        write_crate(crate, license="none of them")
    assert not (place / CRATE).exists()
