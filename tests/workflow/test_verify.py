"""`dpcanary verify`: results are made again from their shards, and what differs is found."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from running import DPCANARY, ROOT, TINY, Project, printed_by, shared
from sampling import exhaustive, some_of

from dpcanary.audits import verification as verifying
from dpcanary.audits.verification import Verification, Verified, verify_results
from dpcanary.core.sealed_tables import read_sealed_object, write_sealed_object
from dpcanary.core.tsv_tables import write_table
from dpcanary.estimation.null_distributions.null_tables import cached_arrays
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.reports.experiment_report import report_of_experiment

RUN = [*DPCANARY, "run", "experiment.yaml", "--cores", "2"]
# It trains nothing, so what is verified more than once is verified in seconds.
DRAWN = {
    "experiment": "tiny", "delta": 1e-5,
    "audits": {
        "drawn": {
            "canary": "worst_case", "target_epsilon": [4.0, 6.0, 8.0, 10.0], "num_steps": 4,
            "num_runs": 40, "sample_rate": 0.5, "runs_per_shard": 40,
        },
    },
    "figures": {"noise": {"kind": "epsilon_by_noise", "sweeps": ["drawn"]}},
}  # fmt: skip
FIRST, SECOND, THIRD, FOURTH = (f"drawn-eps{epsilon}" for epsilon in (4, 6, 8, 10))


def by_status(found: Verification, status: str) -> set[str]:
    return {one.file for one in found.files if one.status == status}


def derived(results: Path) -> list[Path]:
    kept = (*verifying.OBSERVED, "logs", ".lock", "planned.json", "verified.json")
    files = (path for path in sorted(results.rglob("*")) if path.is_file())
    return [path for path in files if path.relative_to(results).parts[0] not in kept]


def alter(path: Path, rng: np.random.Generator) -> None:
    """A number of an array, a digit of a text, or a bit of a figure; the file stays whole."""
    if path.suffix == ".npz":
        arrays = dict(np.load(path))
        names = [name for name in arrays if name != "header" and arrays[name].size]
        changed = arrays[names[rng.integers(len(names))]]
        place = tuple(rng.integers(size) for size in changed.shape)
        is_flag = changed.dtype.kind == "b"
        changed[place] = not changed[place] if is_flag else np.nan_to_num(changed[place]) + 1
        np.savez(path, **arrays)
    elif path.suffix in (".tsv", ".json"):
        text = path.read_text()
        start = text.index("\n") + 1 if path.suffix == ".tsv" else 0
        numbers = re.finditer(r"(?<![\w.-])\d+(\.\d+)?(e-?\d+)?(?=[\t,}\n])", text)
        place = rng.choice([number.start() for number in numbers if number.start() >= start])
        digit = str((int(text[place]) + rng.integers(1, 10)) % 10)
        path.write_text(text[:place] + digit + text[place + 1 :])
    else:
        content = bytearray(path.read_bytes())
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)


def scale_floats(path: Path) -> None:
    arrays = dict(np.load(path))
    floats = [name for name in arrays if name != "header" and arrays[name].dtype.kind == "f"]
    np.savez(path, **arrays | {name: arrays[name] * 1.5 + 1 for name in floats})


@pytest.fixture(params=["drawn", exhaustive("finished")])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    if request.param == "drawn":
        experiment, names = request.getfixturevalue("close"), [SECOND, THIRD, FIRST]
    else:
        experiment = request.getfixturevalue("finished")
        names = ["other_rate", "module", "noisy"]
    return experiment.copy(tmp_path / "copy").results, names


@pytest.mark.long
@pytest.mark.parametrize("seed", some_of([0, 1, 2], 3))
def test_every_file_that_is_altered_is_found(parts: tuple[Path, list[str]], seed: int) -> None:
    """The forged shard is found twice: by scores that nobody has altered, and by a replay."""
    (results, names), rng = parts, np.random.default_rng(seed)
    forged, exchanged, own = names
    altered = set()
    for path in derived(results):
        if path.stem not in names and path.name != "experiment.json":
            alter(path, rng)
            altered.add(str(path.relative_to(results)))
    assert {Path(name).parts[0] for name in altered} >= {
        *("noise", "scores", "estimates", "accounting", "figures", "summary.tsv")
    }
    scale_floats(results / f"shards/{forged}/00000.npz")
    (results / f"accounting/{exchanged}.tsv").unlink()
    shutil.copy(results / f"scores/{own}.npz", results / f"scores/{exchanged}.npz")
    shutil.copy(results / f"noise/{own}.json", results / "noise/older.json")

    found = verify_results(results, replay=100, cores=2)
    figures = {name for name in altered if name.startswith("figures/")}
    assert by_status(found, "missing") == {f"accounting/{exchanged}.tsv"}
    assert by_status(found, "not of this config") == {"noise/older.json"}
    # Figures do not say what they were drawn from, and something is stale.
    assert by_status(found, "stale") == {f"scores/{exchanged}.npz", *figures}
    by_scores = {f"scores/{forged}.npz", f"estimates/{forged}.tsv"}
    by_replay = {f"shards/{forged}/00000.npz"}
    assert by_status(found, "changed") == altered - figures | by_scores | by_replay, str(found)
    same = {f"{folder}/{own}.{end}" for folder, end in (("scores", "npz"), ("estimates", "tsv"))}
    replayed = {name for name in found.replayed if name not in by_replay}
    kept = {"experiment.json", f"noise/{exchanged}.json"}
    assert by_status(found, "same") >= same | replayed | kept
    assert len(found.replayed) == found.num_observed
    assert found.exit_status == 3
    assert json.loads((results / "verified.json").read_text())["exit_status"] == 3


def test_a_report_has_the_accuracy_of_the_last_step_and_is_not_verified(finished: Project) -> None:
    report = report_of_experiment(finished.results)
    assert dict(report.provenance)["verified"].startswith("not as they are")
    summary = pd.read_csv(finished.results / "summary.tsv", sep="\t")
    accuracy = summary.drop_duplicates(["audit", "step"]).set_index(["audit", "step"])
    accuracy = accuracy["test_accuracy"].unstack()
    shown = re.search(r"Test accuracy ([\d.]+%)", report.headline.measured)
    assert shown is not None
    # Models are tested after their last step alone, and the audit of the headline has two.
    of_two_steps = summary.groupby("audit")["step"].nunique() == 2
    assert shown[1] in {f"{value:.1%}" for value in accuracy.loc[of_two_steps, 4].dropna()}
    assert accuracy[2].isna().all()


@pytest.fixture(scope="module")
def close() -> Project:
    """A finished experiment of which one noise is what another accountant would calibrate."""

    def write(folder: Path) -> None:
        (folder / "experiment.yaml").write_text(yaml.safe_dump(DRAWN))
        noise = folder / f"results/tiny/noise/{FIRST}.json"
        printed_by([*RUN, "--target", str(noise.relative_to(folder))], folder)
        values = read_sealed_object(noise)
        values["noise_multiplier"] *= 1 + 1e-9
        write_sealed_object(noise, values)
        printed_by(RUN, folder)
        assert read_sealed_object(noise) == values  # it is what training had

    return Project(shared("drawn", write))


@pytest.mark.long
def test_noise_that_is_close_is_believed_and_all_after_it_the_same(close, tmp_path) -> None:
    results = close.copy(tmp_path).results
    before = {path: path.read_bytes() for path in derived(results)}
    found = verify_results(results, replay=1, cores=2)
    assert len(found.replayed) == 1
    assert by_status(found, "close") == {f"noise/{FIRST}.json"}
    assert len(by_status(found, "same")) == len(found.files) - 1
    assert found.exit_status == 0
    assert "Every number is what its shards give." in str(found)
    assert {path: path.read_bytes() for path in derived(results)} == before
    assert dict(report_of_experiment(results).provenance)["verified"].endswith("1 trained anew")


@pytest.mark.long
def test_shards_of_another_audit_or_none_are_refused(close: Project, tmp_path: Path) -> None:
    results = close.copy(tmp_path).results
    shutil.copy(results / f"shards/{SECOND}/00000.npz", results / f"shards/{FIRST}/00000.npz")
    (results / f"shards/{THIRD}/00000.npz").unlink()
    command = [*DPCANARY, "verify", str(results), "--json"]
    printed = printed_by(command, results.parent, fails=True)
    found = json.loads(printed[printed.index("{\n") :].rsplit("}\n", 1)[0] + "}")
    assert found["exit_status"] == 6
    unverifiable = {one["file"] for one in found["files"] if one["status"] == "unverifiable"}
    assert {f"scores/{FIRST}.npz", f"scores/{THIRD}.npz", "summary.tsv"} <= unverifiable


@pytest.mark.long
def test_another_config_makes_every_bound_and_figure_stale(close: Project, tmp_path: Path) -> None:
    results = close.copy(tmp_path).results
    resolved = json.loads((results / "experiment.json").read_text())
    resolved["settings"]["significance"] = 0.01
    (results / "experiment.json").write_text(json.dumps(resolved))
    found = verify_results(results, cores=2)
    assert found.exit_status == 5
    bounds = {f"estimates/{audit}.tsv" for audit in (FIRST, SECOND, THIRD, FOURTH)}
    figures = {f"figures/noise.{end}" for end in ("pdf", "png", "tsv")}
    tables = {"summaries/noise.tsv", "summary.tsv"}
    assert by_status(found, "stale") == bounds | figures | tables


def test_critical_values_that_are_kept_here_are_no_evidence(tmp_path, monkeypatch) -> None:
    """Jobs simulate them again, whatever this machine's cache holds."""
    results = tmp_path / "results/study"
    results.mkdir(parents=True)
    (results / "experiment.json").write_text(parse_experiment(TINY).to_json())
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


def test_close_is_close_beside_the_largest_number_and_what_its_precision_gives() -> None:
    for precision, differences, is_close in [
        (np.float64, [1e-5, 1e-5, 0.0, 0.0], True),
        (np.float64, [1e-3, 0.0, 0.0, 0.0], False),
        (np.float32, [1e-3, 0.02, 0.0, 0.0], True),
        (np.float32, [0.0, 0.1, 0.0, 0.0], False),
        (np.float32, [0.0, np.nan, 0.0, 0.0], False),
    ]:
        own = np.array([1e-9, 300.0, -np.inf, np.nan], precision)
        other = own + np.array(differences, precision)
        assert verifying._arrays_are_close(own, other) == is_close, differences


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
def test_a_table_is_close_if_all_that_differs_is(tmp_path, epsilons, status, count) -> None:
    """As on another machine: 1e-7 of a number is too little to matter, 0.1 is not."""
    ours, other = tmp_path / "ours.tsv", tmp_path / "other.tsv"
    for order in ([0, 1], [1, 0]):  # of the audits, which does not matter
        for path, values, rows in ((ours, epsilons, order), (other, [2.5, 8.0], [0, 1])):
            table = pd.DataFrame({"audit": ["a", "b"], "epsilon": values}).iloc[rows]
            write_table(path, table, origin="accounting/a:0123456789abcdef")
        compared = verifying._verified("accounting/a.tsv", ours, other)
        assert compared.status == status
        assert compared.detail.startswith(f"{count} cells differ: epsilon" if count else "")


def test_objects_are_compared_value_by_value(tmp_path):
    own, path, other_path = {"a": 1.0, "b": "x", "c": 3}, tmp_path / "a.json", tmp_path / "b.json"
    path.write_text(json.dumps(own))
    for other, expected in [
        (own, ("", True)),
        (own | {"a": 1.0 + 1e-12}, ("a differ", True)),
        (own | {"a": 1.001}, ("a differ", False)),
        (own | {"a": 1.1, "c": 4}, ("a, c differ", False)),
        (own | {"b": "y"}, ("b differ", False)),
        ({"a": 1.0, "b": "x"}, ("c differ", False)),
    ]:
        other_path.write_text(json.dumps(other))
        assert verifying._objects(path, other_path) == expected


def test_the_exit_status_is_that_of_the_worst_file():
    for statuses, ending in [
        (["same", "close", "not of this config"], 0),
        (["unverifiable", "same"], 6),
        (["unverifiable", "stale"], 5),
        (["stale", "missing"], 4),
        (["missing", "changed", "unverifiable"], 3),
    ]:
        files = tuple(Verified(status, status) for status in statuses)
        verification = Verification(files, ("shards/a/00000.npz",), 5, "", 1.0)
        assert verification.exit_status == ending
        assert ("must not be believed" in str(verification)) == bool(ending)
        assert "Of 5 shards and other trained models, 1 were" in str(verification)


def test_every_rule_is_one_of_both_kinds() -> None:
    text = "\n".join(path.read_text() for path in [ROOT / "Snakefile", *ROOT.glob("rules/*.smk")])
    rules = {*re.findall(r"^rule (\w+):|^use rule \w+ as (\w+) with:", text, re.MULTILINE)}
    names = {first or second for first, second in rules}
    looks = {"list_audits", "estimate_cost", "resolve_planned_config"}
    assert names == {*verifying.DERIVING_RULES, *verifying.TRAINING_RULES, *looks}
