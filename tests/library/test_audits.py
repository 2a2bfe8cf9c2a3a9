"""Audits of own data: what is read, the config that is written, and results in a notebook."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Timer
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow.csv as pcsv
import pytest
import yaml
from PIL import Image
from typer.testing import CliRunner

import dpcanary
from dpcanary import estimate_epsilon
from dpcanary.audits.own_audit import (
    _batches_and_steps,
    _default_canaries,
    config_of,
    name_of,
    run_audit,
    write_config,
)
from dpcanary.audits.own_audit_data import audited_data, read_source, source_of_arrays, write_source
from dpcanary.audits.workflow_run import _only_looks, _status, run_config
from dpcanary.cli import app, with_options
from dpcanary.core.argument_checks import checked_name
from dpcanary.costs.jobs import JobList
from dpcanary.data.sources import load_source
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.results_lock import GOES_ON, STARTS_AGAIN, locked
from dpcanary.training.training_settings import TrainingStage

DIGITS = audited_data(read_source("digits"), source="digits")
SHARED = {"delta": 1e-5}
KEYS = {
    "canary": ["gradient", "natural"], "sample_rate": 0.5, "num_steps": 60,
    "noise_multiplier": 5.0, "num_runs": 40,
}  # fmt: skip


@pytest.mark.parametrize(("counts", "num_records", "expected"), [
    ((31, 31), None, (30, True)), ((5, 55), None, (30, False)), ((30, 30), 10, (10, True)),
    ((30, 30), 11, (11, False)), ((23, 39), None, (30, True)), ((22, 40), None, (31, False)),
    ((5, 55), 6, (6, True)), ((5, 55), 8, (8, False)),
])  # fmt: skip
def test_half_of_the_records_are_private(tmp_path, counts, num_records, expected):
    """Balanced where two of three records of the rarest class, or fewer, become private."""
    source, features = str(tmp_path / "Own data.csv"), np.random.default_rng(0).normal(size=(62, 3))
    labels = np.repeat(["x", "y"], counts)
    table = pd.DataFrame(features[: len(labels)], columns=["a", "b", "c"]).assign(kind=labels)
    table.to_csv(source, index=False)
    dataset = read_source(source, label_column="kind")
    data = audited_data(dataset, source=source, label_column="kind", num_records=num_records)
    assert (data.num_records, data.balanced) == expected
    assert f"{sum(counts)} records x 3 features, 2 classes (x, y)" in data.described
    config = config_of(data, name=name_of(source), shared=SHARED, keys=KEYS)
    assert config["experiment"] == "own-data"
    assert config["datasets"]["data"]["label_column"] == "kind"
    rest = sum(counts) - expected[0]
    assert f"the other {rest} serve the adversary and the test." in data.described
    with_test = audited_data(replace(dataset, test=dataset.training), source=source)
    assert "serve the adversary, and its test part the test." in with_test.described


@pytest.mark.parametrize(("source", "name"), [
    ("a/Own data (1).csv", "own-data-1"), ("_data.csv", "data"), ("-_x_.csv.gz", "x_"),
    ("__.csv", "audit"),
])  # fmt: skip
def test_a_name_that_a_file_gives_is_one_that_a_config_takes(source, name):
    assert name_of(source) == name
    assert config_of(DIGITS, name=name, shared=SHARED, keys=KEYS)["experiment"] == name


def config_with(**keys: object) -> dict:
    return config_of(DIGITS, name="mine", shared=SHARED, keys=KEYS | keys)


def test_a_written_config_is_one_that_can_be_read(tmp_path):
    config = config_with()
    write_config(tmp_path / "new/audit.yaml", config, by="a test")
    read = read_config(tmp_path / "new/audit.yaml")
    assert not write_config(tmp_path / "new/audit.yaml", config, by="another")
    assert write_config(tmp_path / "new/audit.yaml", {**config, "seed": 3}, by="a test")
    assert read == yaml.safe_load(yaml.safe_dump(config))
    experiment = parse_experiment(read)
    assert [*experiment.audits] == ["audit-gradient", "audit-natural"]
    assert experiment.audits["audit-gradient"].record_steps == tuple(range(6, 61, 6))
    assert [*experiment.settings.figures] == ["epsilon_by_step", "score_histograms", "trade_off"]


def test_numbers_of_numpy_are_written_as_those_of_python():
    """As `for noise in np.linspace(...)` gives them."""
    digits = read_source("digits")
    data = audited_data(digits, source="digits", num_records=np.int64(100))
    keys = {
        "canary": np.array(["gradient", "natural"]), "sample_rate": np.float32(0.5),
        "num_steps": np.int64(60), "noise_multiplier": [np.float64(5.0)], "num_runs": np.int32(40),
    }  # fmt: skip
    config = config_of(data, name="mine", shared={"delta": np.float64(1e-5)}, keys=keys)
    own = audited_data(digits, source="digits", num_records=100)
    own_keys = KEYS | {"noise_multiplier": [5.0]}
    assert yaml.safe_dump(config) == yaml.safe_dump(
        config_of(own, name="mine", shared=SHARED, keys=own_keys)
    )


@pytest.mark.parametrize("num_runs", [1, 40])
def test_many_canaries_in_a_model_get_a_rule_that_needs_no_independence(num_runs):
    config = config_with(canary="gradient", num_slots=20, num_runs=num_runs)
    assert config.get("threshold_rules") == ["mahloujifar"]


def test_sources_and_numbers_that_cannot_be_audited_here_are_named():
    with pytest.raises(InputError, match="source cifar10 is downloaded"):
        read_source("cifar10")
    digits = read_source("digits")
    for count in (0, -3, 1796, 5000):
        with pytest.raises(InputError, match=f"num_records is {count}; of the 1797 records"):
            audited_data(digits, source="digits", num_records=count)
    for count in (1, 1795):
        assert audited_data(digits, source="digits", num_records=count).num_records == count


def test_arrays_are_written_once(tmp_path):
    features, labels = np.arange(12.0).reshape(6, 2), np.array([0, 1, 0, 1, 0, 1])
    path, before, changed = tmp_path / "arrays.npz", 0, (features + 1, labels)
    integers = (features.astype(np.int64) + 1, labels[::-1])
    every = [
        (features, labels),
        (features, labels),
        changed,
        (features + 1, labels[::-1]),
        integers,
    ]
    for arrays, is_new in zip(every, (True, False, True, True, True), strict=True):
        content = path.read_bytes() if path.exists() else None
        assert write_source(path, source_of_arrays(*arrays)) == (content if is_new else None)
        assert (path.stat().st_mtime_ns != before) == is_new
        before = path.stat().st_mtime_ns
        written = load_source(str(path)).training
        np.testing.assert_array_equal(written.features, arrays[0])
        np.testing.assert_array_equal(written.labels, arrays[1])
        assert written.features.dtype == arrays[0].dtype
    classes = source_of_arrays(features, labels / 1.0).training.labels
    assert (classes.dtype, classes.tolist()) == (np.int64, labels.tolist())
    with pytest.raises(InputError, match="all records have the same label"):
        source_of_arrays(features, [1] * 6)


def test_a_preparation_of_another_run_is_not_replaced(tmp_path):
    path = tmp_path / "results/mine/preparation.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("theirs")
    with pytest.raises(InputError, match=r"preparation\.yaml was written meanwhile; run again"):
        run_audit(config_with(), root=tmp_path, by="a test", preparation="mine", targets=["any"])
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("result", [None, "summary.tsv", "shards/audit-gradient/00000.npz"])
def test_another_config_is_noted_where_it_replaces_results(tmp_path, monkeypatch, capsys, result):
    run = Mock(side_effect=lambda path, *, before_jobs, **options: before_jobs(None))
    monkeypatch.setattr("dpcanary.audits.own_audit.run_snakemake", run)
    run_audit(config_with(), root=tmp_path, by="a test")
    if result is not None:
        path = tmp_path / "results/mine" / result
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    run_audit({**config_with(), "seed": 3}, root=tmp_path, by="a test")
    noted = "note: mine had another config" in capsys.readouterr().err
    assert noted is (result is not None)
    # One that is refused replaces nothing.
    written = (tmp_path / "results/mine/audit.yaml").read_text()
    run.side_effect = InputError("refused before its jobs")
    with pytest.raises(InputError, match="refused before its jobs"):
        run_audit({**config_with(), "seed": 4}, root=tmp_path, by="a test")
    assert (tmp_path / "results/mine/audit.yaml").read_text() == written
    assert "seed: 3" in written
    assert capsys.readouterr().err == ""


def test_other_arrays_are_noted_and_a_call_that_is_refused_leaves_the_earlier_ones(
    tmp_path, monkeypatch, capsys
):
    run = Mock(side_effect=lambda path, *, before_jobs, **options: before_jobs(None))
    monkeypatch.setattr("dpcanary.audits.own_audit.run_snakemake", run)
    labels, written = [0, 1] * 6, tmp_path / "results/audit/arrays.npz"

    def audit(value: float) -> None:
        features = np.full((12, 2), value)
        dpcanary.audit(
            features, labels, delta=1e-5, num_steps=3, target_epsilon=9.0, folder=tmp_path
        )

    monkeypatch.setattr("dpcanary.audits.own_audit.AuditResults", Mock())
    for value, is_noted in ((1.0, False), (1.0, False), (2.0, True)):
        audit(value)
        assert ("had another config or other arrays" in capsys.readouterr().err) == is_noted
        (tmp_path / "results/audit/summary.tsv").touch()
    run.side_effect = InputError("refused before its jobs")
    files = {path: path.read_bytes() for path in written.parent.iterdir()}
    for options in ({}, {"arrays": source_of_arrays(np.ones((12, 2)), labels)}):
        with pytest.raises(InputError, match="refused before its jobs"):
            run_audit(
                {**config_with(), "experiment": "audit"},
                root=tmp_path,
                by="a test",
                preparation="new",
                **options,
            )
        assert {path: path.read_bytes() for path in written.parent.iterdir()} == files


@pytest.mark.parametrize(("mode", "way"), [
    ("RGB", "takes flat features; give --model convnet --image-size 32"),
    ("L", "takes flat features; they are grey: give a model of your own"),
])  # fmt: skip
def test_a_folder_of_images_is_told_all_its_options_at_once(begun, mode, way):
    """Before their sizes, which differ; with these options, the audit begins."""
    for number in range(12):
        path = Path(f"photos/{number % 2}/{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, (40 + number, 50)).save(path)
    command = ["audit", "--features", "photos", "--delta", "1e-5", "--num-steps", "5"]
    for typed in (command, [*command, "--model", "mlp"]):
        refusal = str(CliRunner().invoke(app, typed).exception)
        assert way in with_options(refusal, typed)
    if mode == "RGB":
        assert "Ahead: " in audited(*way.split()[-4:], features="photos")


def test_canaries_are_by_default_those_that_audit_the_adjacency():
    assert _default_canaries(None) == ["gradient", "mislabeled"]
    assert _default_canaries("add_remove") == ["gradient"]


def test_mistakes_in_a_call_are_named(tmp_path, monkeypatch):
    arrays = (np.zeros((9, 2)), [0, 1, 2] * 3)
    for data, keys, message in [
        (arrays[:1], {}, "give features and labels as arrays, or the path"),
        (arrays, {"name": "../out"}, r"name '\.\./out' must match"),
        (["digits"], {"nose_multiplier": 1.0}, "unknown key 'nose_multiplier'; did you mean"),
        (["digits"], {"epochs": 3}, "give either num_steps or epochs"),
        (
            ["digits"],
            {"num_steps": None, "epochs": 3, "sample_rate": 0},
            "sample_rate is 0; it mus",
        ),
        (["digits"], {"num_steps": None, "epochs": 1e308}, r"epochs is 1e\+308; it must be"),
        (arrays, {"label_column": "y"}, "label_column is for the path of a table, not for arr"),
        (arrays, {"prepare": True}, "prepare is for the path of a table, not for arrays"),
        ((arrays[0], [[1], [1, 2]]), {}, "records: labels cannot be made an array"),
        (["digits"], {"sample_rate": 0.1, "batch_size": 9}, "give sample_rate or batch_size, not"),
        (["digits"], {"batch_size": 891}, "batch_size is 891; it must be .* at most 890"),
    ]:
        with pytest.raises(InputError, match=message):
            dpcanary.audit(*data, **{"delta": 1e-5, "num_steps": 3, "folder": tmp_path} | keys)
    monkeypatch.chdir(tmp_path)
    command = ["audit", "--features", "digits", "--delta", "1e-5", "--num-steps", "5"]
    with pytest.raises(InputError, match="--model none:at_all: there is no function"):
        CliRunner().invoke(app, [*command, "--model", "none:at_all"], catch_exceptions=False)
    assert not [*tmp_path.iterdir()]


def test_two_runs_of_an_experiment_do_not_mix(tmp_path):
    path, lock = tmp_path / "results/mine/audit.yaml", tmp_path / "results/mine/.lock"
    write_config(path, config_with(), by="a test")
    with locked(tmp_path / "results/mine"):
        with pytest.raises(InputError, match=rf"another run \(process {os.getpid()}\) works on"):
            run_config(path, folder=tmp_path)
        # If the command was killed, the message names the process that it started.
        with subprocess.Popen(["sleep", "0"]) as dead:
            pass
        lock.write_text(f"{dead.pid} {os.getppid()}")
        with pytest.raises(InputError, match=rf"another run \(process {os.getppid()}\) works on"):
            run_config(path, folder=tmp_path)
    # A lock that is a link is not followed.
    precious = tmp_path / "precious.txt"
    precious.write_text("a year of work")
    lock.unlink(missing_ok=True)
    lock.symlink_to(precious)
    message = r"\.lock cannot be made: .*it is a link; remove it"
    with pytest.raises(InputError, match=message), locked(lock.parent):
        pass
    assert precious.read_text() == "a year of work"


def test_a_run_that_writes_nothing_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "results/refused"):
        1 / 0  # noqa: B018
    assert not [*tmp_path.iterdir()]
    with locked(tmp_path / "begun") as (folder, _):
        (folder / "audit.yaml").write_text("experiment: begun")
    assert (tmp_path / "begun/audit.yaml").exists()
    (tmp_path / "mine").mkdir()  # a folder that was there stays
    with locked(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").exists()


def test_a_lock_that_another_run_removes_is_not_taken(tmp_path, monkeypatch):
    """As if the other run ended between the opening of the lock and the lock."""
    results = tmp_path / "mine"

    def removes(*_):
        (results / ".lock").unlink()
        results.rmdir()

    monkeypatch.setattr(fcntl, "flock", removes)
    with pytest.raises(InputError, match="another run"), locked(results):
        pass


def test_a_reader_that_has_ended_is_no_error():
    code = "from dpcanary.core.printing import print_unless_closed as p; p('x' * 9); p('y' * 99999)"
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_options_that_only_look_print_no_results():
    assert all(map(_only_looks, ("--dry-run", "-n", "-nq", "--dag", "--report=x", "--summary")))
    assert not any(map(_only_looks, ("--cores", "-k", "--quiet", "-p")))


def test_a_new_study_can_be_run_and_nothing_is_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = CliRunner()
    assert run.invoke(app, ["init", "study"], catch_exceptions=False).exit_code == 0
    experiment = parse_experiment(read_config(tmp_path / "study/config.yaml"))
    assert [*experiment.audits] == ["training-gradient", "training-mislabeled"]
    written = {path.name for path in (tmp_path / "study").iterdir()}
    assert written == {"config.yaml", "config.schema.json", "README.md", ".gitignore"}
    with pytest.raises(InputError, match=r"already has config\.yaml"):
        run.invoke(app, ["init", "study"], catch_exceptions=False)


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Configs of audits that would run in an empty folder; a model takes 5 s, all else nothing."""
    configs: list[dict] = []

    def seconds(probes, *, num_workers, on_progress):
        trains = {probe: isinstance(probe.stage, TrainingStage) for probe in probes}
        return {probe: (0.0, 5.0, 0.0) if trains[probe] else (0.0, 0.0) for probe in probes}

    def run_audit(config, *, before_jobs, **options):
        configs.append(config)
        before_jobs(parse_experiment(config))
        return tmp_path

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpcanary.costs.cost_report.measured", seconds)
    monkeypatch.setattr("dpcanary.audits.own_audit.run_audit", run_audit)
    return configs


def audited(
    *options: str, steps: tuple[str, ...] = ("--num-steps", "20"), features: str = "digits"
) -> str:
    command = ["audit", "--features", features, "--target-epsilon", "10", "--delta", "1e-5"]
    done = CliRunner().invoke(app, [*command, *steps, *options])
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


@pytest.mark.parametrize(("options", "num_parsed"), [((), 2), (("--prepare",), 1)])
def test_a_table_is_read_and_warned_of_once(begun, options, num_parsed, monkeypatch, caplog):
    """Twice where the types of its columns are not those of its texts."""
    Path("t.csv").write_text("income;label\n" + "1,234;0\n999;1\n" * 20)
    parsed = Mock(wraps=pcsv.read_csv)
    monkeypatch.setattr(pcsv, "read_csv", parsed)
    assert "Ahead: " in audited(*options, features="t.csv")
    [message] = caplog.messages
    assert "column 'income': commas are read as decimal points" in message
    assert parsed.call_count == num_parsed


def test_what_an_audit_takes_is_said_before_it_starts(begun):
    """2,000 models of 5 s on two cores: 83 minutes, and some seconds for all else."""
    said = audited("--cores", "2")
    [config] = begun
    ahead = r"Ahead: (\d+) jobs and 2,000 models: about ([\d.]+) h with 2 cores, if nothing else"
    jobs, hours = re.search(ahead, said).groups()
    listed = JobList(parse_experiment(config), folder=None, device="cpu").table
    assert int(jobs) == listed["jobs"].sum()
    assert float(hours) == pytest.approx(2000 * 5 / 2 / 3600, rel=0.12)
    assert "--quick trains 100 models" in said
    assert config["experiment"] == "digits"
    # One that has trained models goes on without a word.
    shard = Path("results/digits/shards/audit-gradient/00000.npz")
    shard.parent.mkdir(parents=True)
    shard.touch()
    assert "Ahead" not in audited()
    assert len(begun) == 2


@pytest.mark.parametrize(("canary", "why"), [
    ("worst_case", "trains no model on your records"),
    ("secret", "trains no model on your records"),
    ("random_label", "has no two worlds, and is estimated by ranks"),
])  # fmt: skip
def test_canaries_that_need_a_config_are_refused_by_name(canary, why, refuses):
    for canaries in (canary, ["gradient", canary]):
        refuses(f"canary {canary} {why}: write a config for it", config_with, canary=canaries)


def test_a_regression_is_sent_to_canaries_that_there_are(refuses):
    words = (
        r"random_label draws one of several classes, .*: audit them by canary mislabeled or loss"
    )
    refuses(words, config_with, canary="random_label", loss="squared_error")
    for canary in ("mislabeled", "loss"):
        assert config_with(canary=canary)["audits"]["audit"]["canary"] == canary


@pytest.mark.usefixtures("quick_tables")
def test_a_quick_audit_says_what_it_can_prove_at_most(begun):
    said = audited("--quick", "--cores", "2", "--significance", "0.1")
    [config] = begun
    [(name, audit)] = parse_experiment(config).audits.items()
    assert (name, config["experiment"]) == ("audit", "digits-quick")
    assert (audit.canary, audit.num_runs, len(audit.shards)) == ("gradient", 100, 2)
    minutes = re.search(r"100 models: about ([\d.]+) min", said)[1]
    assert float(minutes) == pytest.approx(100 * 5 / 2 / 60, abs=1.0)
    # As `dpcanary estimate` of scores that never err.
    options = {"delta": 1e-5, "significance": 0.1, "threshold_rule": "combined"}
    bound = estimate_epsilon(world0_scores=np.ones(50), world1_scores=np.zeros(50), **options)
    shown = r"show an epsilon of ([\d.]+) at delta 1e-05.*rule combined, .* gdp, significance 0\.1"
    assert float(re.search(shown, said)[1]) == pytest.approx(bound.epsilon_lower, abs=0.01)
    assert "--quick" not in said
    # It takes other canaries, and no other number.
    audited("--quick", "--canary", "natural", "--name", "mine")
    assert begun[1]["audits"]["audit"]["canary"] == "natural"
    assert begun[1]["experiment"] == "mine"
    assert "give --num-runs or --quick, not both" in audited("--quick", "--num-runs", "1000")
    assert len(begun) == 2


def test_batches_and_epochs_are_of_the_private_records(begun):
    """As in `dpcanary account`: 7 passes over 800 records in Poisson samples of 60 on average."""
    said = audited("--num-records", "800", "--batch-size", "60", steps=("--epochs", "7"))
    batches = "Batches of 60 on average of the 800 private records: sample rate 0.075, 94 steps."
    assert batches in said
    assert "on all 1,797 records has other epsilons: to audit that one, give --sample-rate" in said
    assert "give --sample-rate 0.033389 --num-steps 210 in place of --batch-size and" in said
    assert "private records:" not in audited("--sample-rate", "0.5", steps=("--epochs", "7"))
    audits = [config["audits"]["audit"] for config in begun]
    # 93.3 steps, of which a part counts.
    assert [(audit["sample_rate"], audit["num_steps"]) for audit in audits] == [
        (0.075, 94),
        (0.5, 14),
    ]
    for options, steps, message in (
        (["--batch-size", "60", "--sample-rate", "1.0"], ("--epochs", "7"), "or --batch-size, not"),
        (["--epochs", "7"], ("--num-steps", "3"), "give either --num-steps or --epochs"),
        (
            ["--sample-rate", "0"],
            ("--epochs", "7"),
            "--sample-rate 0 must be above 0 and at most 1",
        ),
        ([], (), "give either --num-steps or --epochs"),
        (["--num-records", "50", "--batch-size", "60"], ("--epochs", "7"), "at most --num-records"),
    ):
        assert message in audited(*options, steps=steps)
    assert len(begun) == 2
    for keys, epochs, batch_size, expected in (
        ({}, 7, 60, {"sample_rate": 0.075, "num_steps": 94}),
        ({"sample_rate": 0.5}, 7, None, {"sample_rate": 0.5, "num_steps": 14}),
        ({"sampling": "fixed"}, 7, 60, {"batch_size": 60, "num_steps": 94}),
        ({"sampling": "fixed"}, None, [5, 10], {"batch_size": [5, 10], "num_steps": 3}),
        ({"sampling": "poisson", "sample_rate": None}, None, np.int64(60),
         {"sample_rate": 0.075, "num_steps": 3}),
        ({"sample_rate": [0.1, 0.2]}, None, None, {"sample_rate": 1.0, "num_steps": 3}),
    ):  # fmt: skip
        counts = {"num_records": 800, "epochs": epochs, "batch_size": batch_size}
        own = _batches_and_steps(keys, num_steps=None if epochs else 3, **counts)
        assert (own, {*map(type, own.values())} & {np.int64, np.float64}) == (expected, set())


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".a", "a b", "a\n", "\na", "ä"])
def test_what_is_no_part_of_a_files_name_is_no_name(name):
    assert checked_name("adversary", "a-1.b_C") == "a-1.b_C"
    with pytest.raises(InputError, match="is not a name; use letters"):
        checked_name("adversary", name)


def test_a_run_that_fails_says_how_to_go_on_if_its_folder_is_kept(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr("dpcanary.audits.workflow_run._status", lambda *_, **__: 1)
    write_config(path := tmp_path / "mine.yaml", config_with(), by="a test")
    for is_kept, ending in ((True, rf" Mend the cause first\. {GOES_ON}"), (False, "")):
        options = {"folder": tmp_path, "targets": ["any"], "is_kept": is_kept}
        refuses(
            f"mine.yaml has not been finished; see above.{ending}$", run_config, path, **options
        )


@pytest.mark.parametrize(("is_kept", "said"), [(True, GOES_ON), (False, STARTS_AGAIN)])
def test_an_interrupted_command_says_how_to_go_on_where_its_workflow_says_nothing(
    tmp_path, capsys, is_kept, said
):
    """Snakemake ends without a word where it is interrupted while it starts a job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    mute = "import os, signal, time\ntry:\n    os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"
    mute = f"{mute}\nexcept KeyboardInterrupt:\n    raise SystemExit(1)"
    options = {"prints_results": True, "is_kept": is_kept}
    try:
        with locked(tmp_path / "mine") as (_, lock), pytest.raises(KeyboardInterrupt):
            _status([sys.executable, "-c", mute], tmp_path, lock=lock, **options)
        assert capsys.readouterr().err == f"\n{said}\n"
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "times", "patience"), [
    (signal.SIGINT, (2.0, 2.4), 60.0), (signal.SIGINT, (2.0,), 0.4),
    pytest.param(signal.SIGTERM, (2.0, 2.4), 60.0, marks=pytest.mark.long),
])  # fmt: skip
def test_a_second_interruption_or_a_long_wait_kills_the_workflow_and_raises_nothing_more(
    tmp_path, capsys, monkeypatch, number, times, patience
):
    monkeypatch.setattr("dpcanary.audits.workflow_run.PATIENCE", patience)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    timers = [Timer(after, os.kill, (os.getpid(), number)) for after in times]
    start = time.monotonic()
    try:
        with locked(tmp_path / "mine") as (_, lock):
            for timer in timers:
                timer.start()
            with pytest.raises(KeyboardInterrupt):
                _status([sys.executable, "-c", deaf], tmp_path, lock=lock, prints_results=True)
        assert 2.4 <= time.monotonic() - start < 30
        assert "The same command goes on from here" in capsys.readouterr().err
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
