"""`dpcanary verify` recomputes results from their shards, and reports what differs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from numpy.typing import NDArray
from running import DPCANARY, ROOT, TINY, Project, printed_by, shared
from sampling import exhaustive, some_of

from dpcanary.audits import verification as verifying
from dpcanary.audits.verification import Verification, Verified, verify_results
from dpcanary.core.files import write_arrays, write_text
from dpcanary.core.sealed_tables import read_sealed_object, write_sealed_object
from dpcanary.core.tsv_tables import write_table
from dpcanary.errors import InputError
from dpcanary.estimation.null_distributions.null_tables import cached_arrays
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.results_lock import locked
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


def by_status(verification: Verification, status: str) -> set[str]:
    return {file.file for file in verification.files if file.status == status}


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
        other = {"b": lambda flag: not flag, "U": lambda text: "?"}.get(changed.dtype.kind)
        changed[place] = other(changed[place]) if other else np.nan_to_num(changed[place]) + 1
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


@pytest.fixture(params=["close", exhaustive("finished")])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[str]]:
    names = ["other_rate", "module", "noisy"]
    if request.param == "close":
        names = [SECOND, THIRD, FIRST]
    return request.getfixturevalue(request.param).copy(tmp_path / "copy").results, names


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
    kinds = {"noise", "scores", "estimates", "accounting", "figures", "summary.tsv"}
    assert {Path(name).parts[0] for name in altered} >= kinds
    scale_floats(results / f"shards/{forged}/00000.npz")
    (results / f"accounting/{exchanged}.tsv").unlink()
    shutil.copy(results / f"scores/{own}.npz", results / f"scores/{exchanged}.npz")
    shutil.copy(results / f"noise/{own}.json", results / "noise/older.json")

    verification = verify_results(results, replay=100, cores=2)
    figures = {name for name in altered if name.startswith("figures/")}
    assert by_status(verification, "missing") == {f"accounting/{exchanged}.tsv"}
    assert by_status(verification, "not of this config") == {"noise/older.json"}
    # Figures do not say what they were drawn from, and something is stale.
    assert by_status(verification, "stale") == {f"scores/{exchanged}.npz", *figures}
    by_scores = {f"scores/{forged}.npz", f"estimates/{forged}.tsv"}
    by_replay = {f"shards/{forged}/00000.npz"}
    assert by_status(verification, "changed") == altered - figures | by_scores | by_replay, str(
        verification
    )
    same = {f"{folder}/{own}.{end}" for folder, end in (("scores", "npz"), ("estimates", "tsv"))}
    replayed = {name for name in verification.replayed if name not in by_replay}
    kept = {"experiment.json", f"noise/{exchanged}.json"}
    assert by_status(verification, "same") >= same | replayed | kept
    assert len(verification.replayed) == verification.num_observed
    assert verification.exit_status == 3
    assert json.loads((results / "verified.json").read_text())["exit_status"] == 3


def test_a_report_has_the_accuracy_of_the_last_step_and_is_not_verified(finished: Project) -> None:
    report = report_of_experiment(finished.results)
    assert dict(report.provenance)["verified"].startswith("not since they last changed")
    summary = pd.read_csv(finished.results / "summary.tsv", sep="\t")
    accuracy = summary.groupby(["audit", "step"])["test_accuracy"].first().unstack()
    [shown] = re.findall(r"Test accuracy ([\d.]+%)", report.headline.measured)
    # Models are tested after their last step alone, and the audit of the headline has two.
    of_two_steps = summary.groupby("audit")["step"].nunique() == 2
    assert shown in {f"{value:.1%}" for value in accuracy.loc[of_two_steps, 4].dropna()}
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
    verification = verify_results(results, replay=1, cores=2)
    assert len(verification.replayed) == 1
    assert by_status(verification, "close") == {f"noise/{FIRST}.json"}
    assert len(by_status(verification, "same")) == len(verification.files) - 1
    assert verification.exit_status == 0
    assert "Every number is what its shards give." in str(verification)
    assert {path: path.read_bytes() for path in derived(results)} == before
    assert dict(report_of_experiment(results).provenance)["verified"].endswith("1 retrained")


@pytest.mark.long
def test_other_shards_are_refused_and_another_config_makes_bounds_stale(close, tmp_path) -> None:
    results = close.copy(tmp_path).results
    config, text = results / "experiment.json", (results / "experiment.json").read_text()
    resolved = json.loads(text)
    resolved["settings"]["significance"] = 0.01
    config.write_text(json.dumps(resolved))
    verification = verify_results(results, cores=2)
    assert verification.exit_status == 5
    bounds = {f"estimates/{audit}.tsv" for audit in (FIRST, SECOND, THIRD, FOURTH)}
    figures = {f"figures/noise.{end}" for end in ("pdf", "png", "tsv")}
    assert by_status(verification, "stale") == bounds | figures | {
        "summaries/noise.tsv",
        "summary.tsv",
    }
    config.write_text(text)
    shutil.copy(results / f"shards/{SECOND}/00000.npz", results / f"shards/{FIRST}/00000.npz")
    (results / f"shards/{THIRD}/00000.npz").unlink()
    command = [*DPCANARY, "verify", str(results), "--json"]
    printed = printed_by(command, results.parent, fails=True)
    verified, _ = json.JSONDecoder().raw_decode(printed, printed.index("{\n"))
    assert verified["exit_status"] == 6
    unverifiable = {file["file"] for file in verified["files"] if file["status"] == "unverifiable"}
    assert {f"scores/{FIRST}.npz", f"scores/{THIRD}.npz", "summary.tsv"} <= unverifiable


@pytest.mark.parametrize("cache", ["kept", "cache", "results/cache"])
def test_critical_values_that_are_kept_here_are_no_evidence(cache, tmp_path, monkeypatch) -> None:
    """Jobs simulate them again, whatever this machine's cache holds."""
    results = tmp_path / "results/study"
    results.mkdir(parents=True)
    (results / "experiment.json").write_text(parse_experiment(TINY).to_json())
    monkeypatch.setenv("DPCANARY_CACHE", str(tmp_path / cache))

    def critical(simulated: float) -> float:
        arrays = cached_arrays("null", about="it", compute=lambda: {"a": np.array([simulated])})
        return float(arrays["a"][0])

    assert critical(0.5) == 0.5
    seen: list[float] = []
    monkeypatch.setattr(verifying, "_make", lambda *_: seen.append(critical(2.0)))
    verify_results(results)
    assert seen == [2.0]
    assert critical(2.0) == 0.5  # what is kept stays as it is


def test_shards_that_the_config_lacks_are_neither_counted_nor_retrained(
    tmp_path, monkeypatch
) -> None:
    """As after fewer runs, another name of an audit, or one without a reference model."""
    (results := tmp_path / "results/study").mkdir(parents=True)
    experiment = parse_experiment(DRAWN)
    (results / "experiment.json").write_text(experiment.to_json())
    own = [f"shards/{audit}/00000.npz" for audit in (FIRST, SECOND)]
    older = {f"shards/{FIRST}/00001.npz", "shards/older/00000.npz", "reference/older.npz"}
    for name in (*own, *older):
        write_text(results / name, name)

    def make(_: Path, copy: Path, rules: object, targets: list[str], cores: object) -> None:
        if rules == verifying.TRAINING_RULES:
            for name in own:
                write_text(copy / name, name)

    monkeypatch.setattr(verifying, "_make", make)
    verification = verify_results(results, replay=9)
    assert (verification.num_observed, verification.replayed) == (2, tuple(own))
    assert by_status(verification, "same") == {*own}
    assert by_status(verification, "not of this config") == {*older, "experiment.json"}


def test_the_summary_that_is_noted_is_the_one_that_was_compared(tmp_path, monkeypatch) -> None:
    """No other run can write one before verified.json is there."""
    (results := tmp_path / "results/study").mkdir(parents=True)
    (results / "experiment.json").write_text(parse_experiment(TINY).to_json())
    monkeypatch.setattr(verifying, "_make", lambda *_: None)

    def note(*_: object) -> None:
        with pytest.raises(InputError, match="another run"), locked(results):
            pass
        write_text(results / "verified.json", "{}")

    monkeypatch.setattr(verifying, "_note", note)
    verify_results(results)
    assert (results / "verified.json").exists()


@pytest.mark.parametrize("folder", ["results/study", "kept/study"])
def test_paths_of_a_config_begin_beside_results_or_else_where_verify_runs(
    folder, tmp_path, monkeypatch
) -> None:
    (results := tmp_path / folder).mkdir(parents=True)
    own = {"source": "mine.csv", "preparation": "results/it/preparation.yaml", "num_records": 20}
    content = {**TINY, "datasets": {**TINY["datasets"], "own": own, "own_again": own}}
    (results / "experiment.json").write_text(parse_experiment(content).to_json())
    here = tmp_path / "here"
    for place in (tmp_path, here):
        write_text(place / "mine.csv", place.name)
    monkeypatch.chdir(here)
    contents: list[str] = []

    def run(config: Path, *, is_kept: bool, **_: object) -> None:
        contents.append((config.parent / "mine.csv").read_text())
        raise InputError("kept" if is_kept else "no job ran")

    monkeypatch.setattr(verifying, "run_config", run)
    base = tmp_path if folder.startswith("results") else here
    error = verify_results(results).error
    assert contents == [base.name]
    assert error.endswith(f"the config's files looked up in {base}: no job ran")


def of_epsilons(*values: float) -> pd.DataFrame:
    return pd.DataFrame({"audit": ["a", "b"], "epsilon": values})


def numbers(first: float = 0.0, second: float = 0.0) -> NDArray[np.float64]:
    return np.array([1e-9 + first, 300.0 + second, -np.inf, np.nan])


KNOWN = {"a": 1.0, "b": "x", "c": 3}
# Two contents of a file; how it is verified, and what is said.
COMPARED: list[tuple[Any, Any, str, str]] = [
    # As on another machine: 1e-7 of a number is too little to matter, 0.1 is not. The order of
    # audits does not matter.
    (of_epsilons(2.5, 8.0), of_epsilons(2.5, 8.0)[::-1], "same", ""),
    (of_epsilons(2.5 + 1e-7, 8.0), of_epsilons(2.5, 8.0)[::-1], "close", "1 cells differ: eps"),
    (of_epsilons(2.5 + 1e-7, 8.5), of_epsilons(2.5, 8.0), "changed", "2 cells differ: epsilon"),
    (of_epsilons(2.6, 8.0 - 1e-7)[::-1], of_epsilons(2.5, 8.0), "changed", "2 cells differ: eps"),
    (KNOWN, dict(reversed(KNOWN.items())), "same", ""),
    (KNOWN, KNOWN | {"a": 1.0 + 1e-12}, "close", "a differ"),
    (KNOWN, KNOWN | {"a": 1.001}, "changed", "a differ"),
    (KNOWN, KNOWN | {"a": 1.1, "c": 4}, "changed", "a, c differ"),
    (KNOWN, KNOWN | {"b": "y"}, "changed", "b differ"),
    (KNOWN, {"a": 1.0, "b": "x"}, "changed", "c differ"),
    # Counts and seeds are not rounded.
    (KNOWN | {"c": 10**6}, KNOWN | {"c": 10**6 + 1}, "changed", "c differ"),
    (KNOWN | {"c": 1e6 + 0.5}, KNOWN | {"c": 10**6 + 1}, "close", "c differ"),
    (of_epsilons(2**48, 8), of_epsilons(2**48 + 9, 8), "changed", "1 cells differ: epsilon"),
    # Close is close beside the largest number, and what the precision gives.
    (numbers(), numbers(1e-5, 1e-5), "close", "numbers differ in x"),
    (numbers(), numbers(1e-3), "changed", "numbers differ in x"),
    (np.float32(numbers()), np.float32(numbers(1e-3, 0.02)), "close", "numbers differ in x"),
    (np.float32(numbers()), np.float32(numbers(0, 0.1)), "changed", "numbers differ in x"),
    (np.float32(numbers()), np.float32(numbers(0, np.nan)), "changed", "numbers differ in x"),
    (np.float32(numbers()), numbers(0, 0.02), "changed", "numbers differ in x"),
    (np.arange(3), np.arange(3, dtype=np.int8), "changed", "numbers differ in x"),
]


@pytest.mark.parametrize("case", range(len(COMPARED)))
def test_a_file_is_close_if_all_that_differs_is(tmp_path, case) -> None:
    *contents, status, detail = COMPARED[case]
    origin, paths = "accounting/a:0123456789abcdef", []
    for place, content in zip(("ours", "other"), contents, strict=True):
        if isinstance(content, dict):
            paths.append(tmp_path / f"{place}.json")
            paths[-1].write_text(json.dumps(content))
        elif isinstance(content, pd.DataFrame):
            paths.append(tmp_path / f"{place}.tsv")
            write_table(paths[-1], content, origin=origin)
        else:
            paths.append(tmp_path / f"{place}.npz")
            write_arrays(paths[-1], header={}, arrays={"x": content}, origin=origin)
    # A resolved config has no origin.
    name = "experiment.json" if paths[0].suffix == ".json" else f"a/a{paths[0].suffix}"
    compared = verifying._verified(name, *paths)
    assert compared.status == status
    assert compared.detail.startswith(detail)


def test_the_exit_status_is_that_of_the_worst_file():
    for statuses, error, ending in [
        (["same", "close", "not of this config"], "", 0),
        (["unverifiable", "same"], "", 6),
        (["same"], "a job failed", 6),
        (["unverifiable", "stale"], "a job failed", 5),
        (["stale", "missing"], "", 4),
        (["missing", "changed", "unverifiable"], "", 3),
    ]:
        files = tuple(Verified(status, status) for status in statuses)
        verification = Verification(files, ("shards/a/00000.npz",), 5, error, 1.0)
        assert verification.exit_status == ending
        assert ("must not be believed" in str(verification)) == bool(ending)
        assert "Of 5 shards and other trained models, 1 were" in str(verification)


def test_every_rule_is_one_of_both_kinds() -> None:
    text = "\n".join(path.read_text() for path in [ROOT / "Snakefile", *ROOT.glob("rules/*.smk")])
    rules = {*re.findall(r"^rule (\w+):|^use rule \w+ as (\w+) with:", text, re.MULTILINE)}
    names = {first or second for first, second in rules}
    looks = {"list_audits", "estimate_cost", "resolve_planned_config"}
    assert names == {*verifying.DERIVING_RULES, *verifying.TRAINING_RULES, *looks}
