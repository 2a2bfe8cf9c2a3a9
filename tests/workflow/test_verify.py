"""`dpcanary verify`: results are made anew from their shards, and what differs is found."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from running import printed_by

from dpcanary.audits import verifying
from dpcanary.audits.verifying import (
    DERIVING_RULES,
    OBSERVED,
    TRAINING_RULES,
    Verification,
    _arrays_are_close,
    _verified,
    verify_results,
)
from dpcanary.errors import InputError
from dpcanary.estimation.calibration.store import cached_arrays
from dpcanary.files import read_arrays
from dpcanary.reports.of_experiment import report_of_experiment
from dpcanary.sealed import read_sealed_object, write_sealed_object
from dpcanary.settings.parsing import parse_experiment
from dpcanary.tables import write_table

ROOT = Path(__file__).parents[2]
AUDIT = {"num_steps": 4, "num_runs": 8, "sample_rate": 0.5, "runs_per_shard": 8}
TRAINED = {**AUDIT, "dataset": "some"}
CONFIG = {
    "experiment": "study",
    "delta": 1e-5,
    "datasets": {"some": {"source": "digits", "num_records": 60}},
    "audits": {
        "trained": {
            **TRAINED,
            "canary": ["gradient", "crafted_input"],
            "target_epsilon": 8.0,
        },
        "added": {
            **TRAINED,
            "record_every": 2,
            "canary": "gradient",
            "adjacency": "add_remove",
            "noise_multiplier": 2.0,
            "pretraining": {"num_steps": 3, "batch_size": 4},
        },
        "drawn": {
            **AUDIT,
            "canary": "worst_case",
            "noise_multiplier": [2.0, 3.0],
            "num_runs": 40,
            "runs_per_shard": 40,
        },
    },
    "figures": {
        "trade_off": {"kind": "trade_off", "sweeps": ["trained"], "proven": True},
        "runs": {"kind": "epsilon_by_runs", "sweeps": ["trained"], "num_runs": [4, 8]},
        "ratio": {
            "kind": "adjacency_ratio",
            "sample_rates": [0.5],
            "num_steps": [4],
            "noise_multipliers": [2.0, 3.0],
        },
    },
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    (folder / "study.yaml").write_text(yaml.safe_dump(CONFIG))
    printed_by([sys.executable, "-m", "dpcanary", "run", "study.yaml", "--cores", "2"], folder)
    return folder


@pytest.fixture
def results(finished: Path, tmp_path: Path) -> Path:
    """A copy of its own for each test."""
    shutil.copytree(finished, tmp_path / "own", symlinks=True)
    return tmp_path / "own/results/study"


def by_status(found: Verification, status: str) -> set[str]:
    return {one.file for one in found.files if one.status == status}


def derived(results: Path) -> list[Path]:
    """The files that are made from shards."""
    kept = (*OBSERVED, "logs", ".lock", "planned.json", "verified.json")
    files = (path for path in sorted(results.rglob("*")) if path.is_file())
    return [path for path in files if path.relative_to(results).parts[0] not in kept]


def with_other_number(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    changed = values.copy()
    place = tuple(rng.integers(size) for size in values.shape)
    if values.dtype.kind == "b":
        changed[place] = not changed[place]
    else:
        changed[place] = np.nan_to_num(changed[place]) + 1
    return changed


def alter_archive(path: Path, rng: np.random.Generator) -> None:
    """One number of one array, in a file that is whole and says the same of itself."""
    with np.load(path) as content:
        arrays = dict(content)
    names = [name for name in arrays if name != "header" and arrays[name].size]
    name = names[rng.integers(len(names))]
    arrays[name] = with_other_number(arrays[name], rng)
    np.savez(path, **arrays)


def alter_text(path: Path, rng: np.random.Generator) -> None:
    """The first digit of a number."""
    text = path.read_text()
    start = text.index("\n") + 1 if path.suffix == ".tsv" else 0
    numbers = re.finditer(r"(?<![\w.-])\d+(\.\d+)?(e-?\d+)?(?=[\t,}\n])", text)
    place = rng.choice([one.start() for one in numbers if one.start() >= start])
    digit = str((int(text[place]) + rng.integers(1, 10)) % 10)
    path.write_text(text[:place] + digit + text[place + 1 :])


def alter_bytes(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path.write_bytes(content)


ALTER: dict[str, Callable[[Path, np.random.Generator], None]] = {
    ".npz": alter_archive, ".tsv": alter_text, ".json": alter_text,
    ".png": alter_bytes, ".pdf": alter_bytes,
}  # fmt: skip


def test_a_finished_experiment_is_verified_and_its_report_says_so(results: Path) -> None:
    assert dict(report_of_experiment(results).provenance)["verified"].startswith("not as they are")
    summary = pd.read_csv(results / "summary.tsv", sep="\t").set_index(["audit", "step"])
    accuracy = summary.loc[("added", 4), "test_accuracy"]  # the audit of the headline
    assert f"Test accuracy {accuracy:.1%}" in report_of_experiment(results).headline.measured
    before = {path: path.read_bytes() for path in derived(results)}
    found = verify_results(results, replay=3, cores=2)
    assert found.exit_status == 0, str(found)
    assert len(found.replayed) == 3
    assert {one.status for one in found.files} == {"same"}
    assert {one.file for one in found.files} >= {str(path.relative_to(results)) for path in before}
    assert {path: path.read_bytes() for path in derived(results)} == before
    verified = dict(report_of_experiment(results).provenance)["verified"]
    assert verified.endswith("3 trained anew")
    alter_text(results / "summary.tsv", np.random.default_rng(0))
    noted = json.loads((results / "verified.json").read_text())
    assert noted["exit_status"] == 0
    with pytest.raises((InputError, AssertionError)):
        assert dict(report_of_experiment(results).provenance)["verified"] == verified


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_file_that_is_altered_is_found(results: Path, seed: int) -> None:
    """All at once: what is made anew does not depend on what is there."""
    rng, altered = np.random.default_rng(seed), set()
    for path in derived(results):
        if path.name == "experiment.json":
            continue  # it is the question: see below
        ALTER[path.suffix](path, rng)
        altered.add(str(path.relative_to(results)))
    found = verify_results(results, cores=2)
    assert found.exit_status == 3
    assert len(altered) >= 40
    assert by_status(found, "changed") == altered, str(found)


def test_shards_that_are_altered_are_found_by_their_scores(results: Path) -> None:
    for audit in ("trained-gradient", "added", "drawn-sigma2"):
        [shard] = sorted((results / "shards" / audit).glob("*.npz"))
        arrays = read_arrays(shard)[1]
        with np.load(shard) as content:
            header = content["header"]
        changed = {
            name: values + 1 if values.dtype.kind == "f" else values
            for name, values in arrays.items()
        }
        np.savez(shard, header=header, **changed)
    found = verify_results(results, cores=2)
    for audit in ("trained-gradient", "added", "drawn-sigma2"):
        assert f"scores/{audit}.npz" in by_status(found, "changed")
    assert "scores/trained-crafted_input.npz" in by_status(found, "same")


def test_a_replay_finds_shards_and_models_that_no_score_can_show(results: Path) -> None:
    """A forger changes a reference model and a shard, and makes all else from them."""
    reference = min((results / "reference").glob("*.npz"))
    shard = results / "shards/trained-gradient/00000.npz"
    for forged in (reference, shard):
        with np.load(forged) as content:
            arrays = dict(content)
        name = next(name for name in arrays if arrays[name].dtype.kind == "f" and arrays[name].size)
        arrays[name] = arrays[name] * 1.5
        np.savez(forged, **arrays)
        # What follows from the file is older now, and made anew.
        printed_by(
            [sys.executable, "-m", "dpcanary", "run", "study.yaml", "--cores", "2"],
            results.parents[1],
        )
    read = verify_results(results, cores=2)
    assert read.exit_status == 0
    assert f"Of {read.num_observed} shards and other trained models, 0 were trained" in str(read)
    found = verify_results(results, replay=100, cores=2)
    assert len(found.replayed) == found.num_observed
    forged_files = {str(path.relative_to(results)) for path in (reference, shard)}
    assert by_status(found, "changed") == forged_files


def test_close_is_close_beside_the_largest_number_and_what_its_precision_gives() -> None:
    values = np.array([1e-9, 300.0, -np.inf, np.nan])
    assert _arrays_are_close(values, values + np.array([1e-5, 1e-5, 0.0, 0.0]))
    assert not _arrays_are_close(values, values + np.array([1e-3, 0.0, 0.0, 0.0]))
    single = values.astype(np.float32)
    assert _arrays_are_close(single, single + np.array([1e-3, 0.02, 0.0, 0.0], np.float32))
    assert not _arrays_are_close(single, single + np.array([0.0, 0.1, 0.0, 0.0], np.float32))
    assert not _arrays_are_close(single[:2], np.array([0.0, np.nan], np.float32))


def test_critical_values_that_are_kept_here_are_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs simulate them anew, whatever this machine's cache holds."""
    results = tmp_path / "results/study"
    results.mkdir(parents=True)
    (results / "experiment.json").write_text(parse_experiment(CONFIG).to_json())
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path / "kept"))

    def critical(simulated: float) -> float:
        found = cached_arrays("null", about="it", compute=lambda: {"a": np.array([simulated])})
        return float(found["a"][0])

    assert critical(0.5) == 0.5
    seen: list[float] = []
    monkeypatch.setattr(verifying, "_make", lambda *_: seen.append(critical(2.0)))
    verify_results(results)
    assert seen == [2.0]
    assert critical(2.0) == 0.5  # what is kept stays as it is


def test_missing_foreign_and_stale_files_are_told_apart(results: Path) -> None:
    (results / "accounting/added.tsv").unlink()
    shutil.copy(results / "scores/drawn-sigma2.npz", results / "scores/drawn-sigma3.npz")
    shutil.copy(results / "noise/added.json", results / "noise/older.json")
    found = verify_results(results, cores=2)
    assert by_status(found, "missing") == {"accounting/added.tsv"}
    assert by_status(found, "stale") == {"scores/drawn-sigma3.npz"}
    assert by_status(found, "not of this config") == {"noise/older.json"}
    assert found.exit_status == 4
    assert "scores/drawn-sigma3.npz: it was made with other settings" in str(found)


@pytest.mark.parametrize(("share", "status", "ending"), [(1e-9, "close", 0), (1e-3, "changed", 3)])
def test_noise_of_another_accountant_is_close_and_all_after_it_the_same(
    tmp_path: Path, share: float, status: str, ending: int
) -> None:
    """As if an accountant of another version or machine had calibrated what training then had."""
    audit = {
        key: value for key, value in CONFIG["audits"]["drawn"].items() if key != "noise_multiplier"
    }
    config = {
        "experiment": "study",
        "delta": 1e-5,
        "audits": {"drawn": {**audit, "target_epsilon": 6.0}},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "dpcanary", "run", "study.yaml", "--cores", "2"]
    results, name = tmp_path / "results/study", "noise/drawn.json"
    printed_by([*command, "--target", f"results/study/{name}"], tmp_path)
    noise = read_sealed_object(results / name)
    noise["noise_multiplier"] *= 1 + share
    write_sealed_object(results / name, noise)
    printed_by(command, tmp_path)
    assert read_sealed_object(results / name) == noise  # it is what training had
    found = verify_results(results, replay=1, cores=2)
    assert len(found.replayed) == 1
    assert by_status(found, status) == {name}
    assert len(by_status(found, "same")) == len(found.files) - 1
    assert found.exit_status == ending


def test_another_config_makes_every_bound_stale(results: Path) -> None:
    path = results / "experiment.json"
    resolved = json.loads(path.read_text())
    resolved["settings"]["significance"] = 0.01
    path.write_text(json.dumps(resolved))
    found = verify_results(results, cores=2)
    assert found.exit_status == 5
    assert "summary.tsv" in by_status(found, "stale")


def test_shards_of_another_audit_or_none_are_refused(results: Path) -> None:
    shutil.copy(results / "shards/added/00000.npz", results / "shards/trained-gradient/00000.npz")
    (results / "shards/drawn-sigma2/00000.npz").unlink()
    printed = printed_by(
        [sys.executable, "-m", "dpcanary", "verify", str(results), "--json"],
        results.parent,
        fails=True,
    )
    found = json.loads(printed[printed.index("{\n") :].rsplit("}\n", 1)[0] + "}")
    assert found["exit_status"] == 6
    unverifiable = {one["file"] for one in found["files"] if one["status"] == "unverifiable"}
    assert {"scores/trained-gradient.npz", "scores/drawn-sigma2.npz", "summary.tsv"} <= unverifiable


@pytest.mark.parametrize(
    ("epsilons", "status", "count"),
    [
        ([2.5, 8.0], "same", 0),
        ([2.5 + 1e-7, 8.0], "close", 1),
        ([2.5 + 1e-7, 8.0 - 1e-7], "close", 2),
        ([2.5 + 1e-7, 8.5], "changed", 2),
        ([2.6, 8.0 - 1e-7], "changed", 2),
    ],
)
def test_a_table_is_close_if_all_that_differs_is(
    tmp_path: Path, epsilons: list[float], status: str, count: int
) -> None:
    """As on another machine: 1e-7 of a number is too little to matter, .1 is not."""
    ours, made = tmp_path / "ours.tsv", tmp_path / "made.tsv"
    for path, values in ((ours, epsilons), (made, [2.5, 8.0])):
        table = pd.DataFrame({"audit": ["a", "b"], "epsilon": values})
        write_table(path, table, origin="accounting/a:0123456789abcdef")
    found = _verified("accounting/a.tsv", ours, made)
    assert found.status == status
    assert found.detail.startswith(f"{count} cells differ: epsilon" if count else "")


def test_every_rule_is_one_of_both_kinds() -> None:
    text = "\n".join(path.read_text() for path in [ROOT / "Snakefile", *ROOT.glob("rules/*.smk")])
    rules = {*re.findall(r"^rule (\w+):|^use rule \w+ as (\w+) with:", text, re.MULTILINE)}
    names = {first or second for first, second in rules}
    looks = {"list_audits", "estimate_cost", "resolve_planned_config"}
    assert names == {*DERIVING_RULES, *TRAINING_RULES, *looks}


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"experiment\.json does not exist"):
        verify_results(tmp_path)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({"a": 1.0, "b": "x", "c": 3}, ("", True)),
        ({"a": 1.0 + 1e-12, "b": "x", "c": 3}, ("a differ", True)),
        ({"a": 1.1, "b": "x", "c": 4}, ("a, c differ", False)),
        ({"a": 1.0, "b": "y", "c": 3}, ("b differ", False)),
        ({"a": 1.0, "b": "x"}, ("c differ", False)),
    ],
)
def test_objects_are_compared_value_by_value(made, expected, tmp_path):
    ours, other = tmp_path / "ours.json", tmp_path / "made.json"
    ours.write_text(json.dumps({"a": 1.0, "b": "x", "c": 3}))
    other.write_text(json.dumps(made))
    assert verifying._objects(ours, other) == expected
