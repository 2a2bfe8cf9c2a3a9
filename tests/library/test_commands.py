"""The command line: what it prints, its JSON, its errors, and how fast it starts."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from accounts import bounds_of, noise_for
from typer.testing import CliRunner

from dpcanary import estimate_epsilon, runs_needed
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adjacency import Adjacency
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.gdp import gdp_epsilon
from dpcanary.scoring.score_file import AuditScores, write_scores
from dpcanary.scoring.world_scores import WorldScores

DOCS = Path(__file__).parents[2] / "docs"
TRAINING = ["--sample-rate", "0.25", "--num-steps", "500", "--delta", "1e-5"]
NOISE = ["--noise-multiplier", "5.574"]


def printed(*arguments: str) -> str:
    """What the command prints; errors of the library are raised."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def as_json(*arguments: str):
    return json.loads(printed(*arguments, "--json"))


def refused(*arguments: str) -> str:
    """What the command says of a wrong command line, without line breaks and frames."""
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 2
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.output).split())


def scores_of(mu: float, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1.0, count), rng.normal(0.0, 1.0, count)


def table_of(mu: float = 2.0, count: int = 500) -> pd.DataFrame:
    world0, world1 = scores_of(mu, count)
    return pd.DataFrame(
        {"score": np.concatenate([world0, world1]), "world": np.repeat([0, 1], count)}
    )


# Documents


def documented() -> list[tuple[str, str]]:
    """The commands in console blocks of the documents, with their output."""
    found = []
    # Those of the tutorial build on one another: tests/workflow/test_documented_commands.py.
    pages = [path for path in DOCS.glob("*.md") if path.name != "tutorial.md"]
    for path in [*pages, DOCS.parent / "README.md"]:
        for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, output = part.split("\n", 1)
                found.append((command, output))
    return found


@pytest.mark.parametrize(("command", "output"), documented())
def test_documented_commands_print_what_the_documents_say(command, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table_of().to_csv("scores.csv", index=False)
    name, *arguments = shlex.split(command)
    assert name == "dpcanary"
    assert printed(*arguments) == output


def test_there_are_documented_commands():
    assert len(documented()) >= 4


# Accounting


@pytest.mark.parametrize(
    "training",
    [
        TRAINING,
        ["--batch-size", "50", "--num-records", "200", "--epochs", "125", "--delta", "1e-5"],
        ["--sample-rate", "0.25", "--epochs", "124.9", "--delta", "1e-5"],
    ],
)
def test_account_is_the_accountant(training):
    found = as_json("account", *training, *NOISE)
    known = {"sample_rate": 0.25, "noise_multiplier": 5.574, "num_steps": 500, "delta": 1e-5}
    assert known.items() <= found.items()
    for name, method in (("add_remove", "pld"), ("substitute", "pld")):
        bounds = bounds_of(**known, adjacency=name, method=method)
        assert found["epsilon"][name] == pytest.approx(bounds.upper, rel=1e-9)
    group = bounds_of(**known, adjacency="substitute", method="group_privacy")
    assert found["epsilon"]["group_privacy"] == pytest.approx(group.upper, rel=1e-9)


def test_scores_that_are_low_in_world_0_keep_their_slots():
    scores = WorldScores(np.array([1.0, 2.0]), np.array([3.0]), num_slots=8)
    assert scores.swapped.num_slots == 8
    np.testing.assert_array_equal(scores.swapped.world0, [-1.0, -2.0])
    np.testing.assert_array_equal(scores.swapped.world1, [-3.0])


def test_calibrated_noise_reaches_the_epsilon_that_was_named():
    for adjacency in ("add_remove", "substitute"):
        found = as_json("calibrate", "--epsilon", "8", "--adjacency", adjacency, *TRAINING)
        known = {"sample_rate": 0.25, "num_steps": 500, "delta": 1e-5, "adjacency": adjacency}
        assert found["noise_multiplier"] == pytest.approx(noise_for(epsilon=8, **known))
        assert found["epsilon"][adjacency] == pytest.approx(8, rel=1e-3)
        assert found["epsilon"][adjacency] <= 8


def test_printed_noise_and_epsilons_are_rounded_to_the_safe_side():
    text = printed("calibrate", "--epsilon", "8", "--adjacency", "zero_out", *TRAINING)
    noise = float(re.search(r"Noise multiplier ([\d.]+) for", text).group(1))
    assert "under zero-out adjacency" in " ".join(text.split())
    known = {"sample_rate": 0.25, "num_steps": 500, "delta": 1e-5, "adjacency": "zero_out"}
    assert bounds_of(**known, noise_multiplier=noise).upper <= 8
    for epsilon in ("0.7", "3", "5", "11"):  # the nearest number is below for half of them
        asked = ["calibrate", "--epsilon", epsilon, "--adjacency", "substitute", *TRAINING]
        noise = float(re.search(r"Noise multiplier ([\d.]+) for", printed(*asked)).group(1))
        assert 0 <= noise - as_json(*asked)["noise_multiplier"] < 1e-4
    exact = as_json("account", *TRAINING, *NOISE)["epsilon"]
    shown = re.findall(
        r"^\S.*?\s{3,}([\d.]+) ", printed("account", *TRAINING, *NOISE), re.MULTILINE
    )
    for value, told in zip(exact.values(), shown, strict=True):
        assert value <= float(told) < value + 0.01


SHUFFLED = ["--sampling", "shuffled", "--delta", "1e-6"]
OF_RECORDS = ["--batch-size", "300", "--num-records", "1000"]


@pytest.mark.parametrize(
    ("training", "batches", "steps", "passes", "rate"),
    [
        ([*OF_RECORDS, "--epochs", "7"], 4, 28, 7, 0.3),
        ([*OF_RECORDS, "--epochs", "2.3"], 4, 10, 3, 0.3),
        ([*OF_RECORDS, "--epochs", "7", "--drop-last"], 3, 21, 7, 0.3),
        ([*OF_RECORDS, "--num-steps", "13", "--drop-last"], 3, 13, 5, 0.3),
        (["--sample-rate", "0.3", "--num-steps", "13"], 3, 13, 5, 0.3),
        (["--sample-rate", "0.1", "--epochs", "2"], 10, 20, 2, 0.1),
    ],
)
def test_shuffled_batches_are_accounted_by_passes(training, batches, steps, passes, rate):
    found = as_json("account", *training, *SHUFFLED, *NOISE)
    known = {"batches_per_pass": batches, "num_steps": steps, "num_passes": passes}
    assert known.items() <= found.items()
    assert (found["sampling"], found["sample_rate"]) == ("shuffled", rate)
    for name, distance in (("zero_out", 1), ("substitute", 2), ("add_remove", 5**0.5)):
        guaranteed = gdp_epsilon(mu=distance * passes**0.5 / 5.574, delta=1e-6)
        assert found["epsilon"][name] == pytest.approx(guaranteed, rel=1e-9)
        told = {"adjacency": name, "sample_rate": rate, "num_steps": steps, "delta": 1e-6}
        claimed = bounds_of(**told, noise_multiplier=5.574).upper
        assert found["epsilon_claimed_by_poisson"][name] == pytest.approx(claimed, rel=1e-9)
    text = " ".join(printed("account", *training, *SHUFFLED, *NOISE).split())
    assert f"{batches} batches in a pass, {steps} steps in {passes} passes" in text
    assert "They are no guarantee of this training" in text


@pytest.mark.parametrize("adjacency", ["zero_out", "substitute", "add_remove"])
def test_shuffled_batches_are_calibrated(adjacency):
    training = [*OF_RECORDS, "--epochs", "6", *SHUFFLED]
    asked = ["calibrate", "--epsilon", "3", "--adjacency", adjacency, *training]
    found = as_json(*asked)
    assert 3 * (1 - 1e-3) < found["epsilon"][adjacency] <= 3
    noise = float(re.search(r"Noise multiplier ([\d.]+) guar", printed(*asked)).group(1))
    again = as_json("account", *training, "--noise-multiplier", str(noise))
    assert again["epsilon"][adjacency] <= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sampling", "fixed", *OF_RECORDS, "--epochs", "1"], "is not one of 'poisson', 'shuff"),
        (["--drop-last", *OF_RECORDS, "--epochs", "1"], "--drop-last is for --sampling shuffled"),
        (
            [*SHUFFLED, "--sample-rate", ".1", "--epochs", "1", "--drop-last"],
            "--drop-last needs --batch-size and --num-records",
        ),
        (
            [*SHUFFLED, "--batch-size", "2.5", "--num-records", "10", "--epochs", "1"],
            "--batch-size 2.5 must be a whole number with --sampling shuffled",
        ),
        ([*SHUFFLED, *OF_RECORDS], "give either --num-steps or --epochs"),
    ],
)
def test_shuffled_trainings_that_are_not_clear_are_refused(arguments, message):
    assert message in refused("account", *NOISE, "--delta", "1e-5", *arguments)


def test_calibrate_does_not_guess_the_adjacency():
    assert "Missing option '--adjacency'" in refused("calibrate", "--epsilon", "8", *TRAINING)


def test_a_statement_rounds_up_and_warns_of_a_large_delta():
    below_half = 0  # epsilons that the nearest number of two digits is below
    for num_steps in (500, 430, 370, 310):
        training = ["--batch-size", "50", "--num-records", "200", *NOISE]
        training += ["--num-steps", str(num_steps), "--delta", "1e-5"]
        text = " ".join(printed("statement", *training, "--unit", "one X").split())
        epsilons = as_json("account", *training)["epsilon"]
        for name in ("add_remove", "substitute"):
            [told] = [
                float(one)
                for one in re.findall(r"\(([\d.]+), 1e-05\)", text)
                if abs(float(one) - epsilons[name]) < 0.0101
            ]
            assert told >= epsilons[name]
            below_half += round(epsilons[name], 2) < epsilons[name]
    assert below_half >= 2
    assert "One record is one X." in text
    assert "on 200 records" in text
    assert "Warning" not in text
    assert "Poisson" in text
    large = printed("statement", *training[:-1], "1e-2")
    assert "Warning: delta 0.01 is not below 1 / 200" in " ".join(large.split())
    assert "at most 1e-3" in " ".join(large.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-steps", "3"], "give --sample-rate, or --batch-size and --num-records"),
        (
            ["--sample-rate", ".1", "--batch-size", "3", "--epochs", "1"],
            "or --batch-size, not both",
        ),
        (["--sample-rate", "0", "--epochs", "1"], "--sample-rate 0 must be above 0 and at most 1"),
        (["--sample-rate", ".1", "--epochs", "nan"], "--epochs nan must be a finite number above"),
        (["--batch-size", "3", "--epochs", "1"], "give --sample-rate, or --batch-size and"),
        (["--sample-rate", ".1"], "give either --num-steps or --epochs"),
        (["--sample-rate", ".1", "--epochs", "1", "--num-steps", "3"], "give either --num-steps"),
        (["--batch-size", "9", "--num-records", "5", "--epochs", "1"], "--batch-size 9 must be"),
    ],
)
def test_trainings_that_are_not_clear_are_refused(arguments, message):
    assert message in refused("account", *NOISE, "--delta", "1e-5", *arguments)


# Estimates


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "npz", "worlds.npz", "labels.csv"])
def test_estimates_from_every_kind_of_file(kind, tmp_path):
    path, options = tmp_path / f"scores.{kind}", []
    table, (world0, world1) = table_of(), scores_of(2.0, 500)
    if kind == "npz":
        np.savez(path, score=table["score"], world=table["world"])
    elif kind == "worlds.npz":
        np.savez(path, world0_scores=world0, world1_scores=world1)
    elif kind == "parquet":
        table.to_parquet(path)
    elif kind == "labels.csv":
        named = pd.DataFrame(
            {"loss": -table["score"], "split": np.where(table["world"] == 0, "member", "other")}
        )
        named.sample(frac=1.0, random_state=0).to_csv(path, index=False)
        options = ["--score-column", "loss", "--world-column", "split", "--world0", "member"]
        options.append("--lower-is-world0")
    else:
        table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    found = as_json("estimate", str(path), "--delta", "1e-5", *options)
    direct = estimate_epsilon(world0_scores=world0, world1_scores=world1, delta=1e-5)
    [bound] = found["bounds"]
    assert bound["epsilon_lower"] == pytest.approx(direct.epsilon_lower)
    assert bound["assumption"].startswith(f"{direct.assumption}; the scores are independent")
    assert (found["num_world0"], found["num_world1"]) == (500, 500)
    assert found["hint"] == ""


def test_estimates_from_the_score_file_of_an_audit(tmp_path):
    """The last step of the first repeat, with all slots."""
    path, rng = tmp_path / "audit.npz", np.random.default_rng(0)
    world = rng.integers(0, 2, (2, 40, 3)).astype(np.uint8)
    scores = rng.normal(size=(2, 40, 3, 2)) + 3.0 * (1 - world[..., None]) * np.array([0.0, 1.0])
    header = {
        "audit": "a", "canary": "c", "score": "s", "sample_rate": 1.0, "noise_multiplier": 1.0,
        "batch_size": None, "seconds": 1.0,
    }  # fmt: skip
    accuracy = np.ones((2, 40), np.float32)
    write_scores(path, AuditScores(header, np.array([5, 10]), scores, world, accuracy))
    found = as_json("estimate", str(path), "--delta", "1e-5", "--rule", "simultaneous")
    last, of_world = scores[0, :, :, 1], world[0]
    own = estimate_epsilon(
        world0_scores=last[of_world == 0],
        world1_scores=last[of_world == 1],
        delta=1e-5,
        threshold_rule="simultaneous",
    )
    [bound] = found["bounds"]
    assert bound["epsilon_lower"] == pytest.approx(own.epsilon_lower)
    assert bound["epsilon_lower"] > 0
    assert "or of slots that do not influence each other" in bound["assumption"]
    # Three scores of each training: what is proven of independent scores needs their independence.
    assert bound["proof"] == "proven if slots are independent"
    several = ["--rule", "combined", "--rule", "mahloujifar"]
    found = as_json("estimate", str(path), "--delta", "1e-5", *several)["bounds"]
    assert [one["proof"] for one in found] == ["simulated if slots are independent", "proven"]
    assert all(one["is_valid"] for one in found)


def test_all_rules_are_those_of_the_library(tmp_path):
    path = tmp_path / "scores.csv"
    table_of().to_csv(path, index=False)
    world0, world1 = scores_of(2.0, 500)
    bounds = as_json("estimate", str(path), "--delta", "1e-5", "--all")["bounds"]
    assert len(bounds) == 17
    for bound in bounds:
        known = {key: bound[key] for key in ("delta", "significance", "threshold_rule")}
        own = estimate_epsilon(
            world0_scores=world0, world1_scores=world1, conversion=bound["conversion"], **known
        )
        assert bound["epsilon_lower"] == pytest.approx(own.epsilon_lower)
        assert bound["is_valid"] == (bound["threshold_rule"] != "in_sample")
    text = " ".join(printed("estimate", str(path), "--delta", "1e-5", "--all").split())
    assert "NOT a valid bound" in text
    assert "Each bound holds alone: choose one before you see them." in text


def test_scores_of_one_training_need_no_independence(tmp_path):
    path = tmp_path / "scores.csv"
    table_of().to_csv(path, index=False)
    [bound] = as_json("estimate", str(path), "--delta", "1e-5", "--one-run")["bounds"]
    assert bound["threshold_rule"] == "mahloujifar"
    assert "slots may depend on one another in any way" in bound["assumption"]
    assert "independent" not in bound["assumption"]
    every = as_json("estimate", str(path), "--delta", "1e-5", "--all")["bounds"]
    dependent = [one for one in every if "the scores are independent" not in one["assumption"]]
    assert {one["threshold_rule"] for one in dependent} == {"steinke", "mahloujifar"}


def test_truth_values_name_worlds(tmp_path):
    path, table = tmp_path / "scores.parquet", table_of()
    table.assign(world=table["world"] == 0).to_parquet(path)
    of_true = as_json("estimate", str(path), "--delta", "1e-5", "--world0", "True")
    table.to_csv(tmp_path / "plain.csv", index=False)
    plain = as_json("estimate", str(tmp_path / "plain.csv"), "--delta", "1e-5")
    assert of_true["bounds"][0]["epsilon_lower"] == plain["bounds"][0]["epsilon_lower"] > 0


def test_hints_where_the_bound_is_0(tmp_path):
    path = tmp_path / "scores.csv"

    def hint(table: pd.DataFrame) -> str:
        table.to_csv(path, index=False)
        found = as_json("estimate", str(path), "--delta", "1e-5")
        assert found["bounds"][0]["epsilon_lower"] == 0
        return found["hint"]

    table = table_of()
    assert "add --lower-is-world0" in hint(table.assign(score=-table["score"]))
    assert "make more runs" in hint(table_of(9.0, 2))
    assert "do not show that the worlds differ" in hint(table_of(0.0, 100))


def test_plots_of_scores(tmp_path):
    path = tmp_path / "scores.csv"
    table_of().to_csv(path, index=False)
    for name, start in (("plot.png", b"\x89PNG"), ("plot.pdf", b"%PDF")):
        printed("estimate", str(path), "--delta", "1e-5", "--plot", str(tmp_path / name))
        assert (tmp_path / name).read_bytes().startswith(start)
    with pytest.raises(InputError, match=r"figures are \.png or \.pdf files"):
        printed("estimate", str(path), "--delta", "1e-5", "--plot", str(tmp_path / "plot.gif"))
    assert not (tmp_path / "plot.gif").exists()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ({"scores": [1.0], "world": [0]}, [], "has no 'score'; did you mean 'scores'"),
        ({"score": [1.0], "label": [0]}, [], "has no 'world'; known: score, label"),
        (
            {"score": [1.5, None, "n/a!"], "world": [0, 1, 0]},
            [],
            "score holds 'n/a!' in row 3, which is no number",
        ),
        ({"score": [1.0, None], "world": [0, 1]}, [], "score is missing or NaN in row 2"),
        ({"score": [1, 2], "world": ["in", "out"]}, [], "world holds in, out, not 0 and 1"),
        (
            {"score": [1, 2], "world": ["in", "out"]},
            ["--world0", "inn"],
            "world is never 'inn'; did you mean 'in'",
        ),
        ({"score": [1, 2, 3], "world": ["a", "b", "c"]}, ["--world0", "a"], "must hold two worlds"),
        ({"score": [1, 2], "world": [0, 0]}, [], "must hold two worlds, not 0"),
    ],
)
def test_files_of_scores_that_are_wrong_are_refused(table, options, message, tmp_path):
    path = tmp_path / "scores.csv"
    pd.DataFrame(table).to_csv(path, index=False)
    with pytest.raises(InputError, match=re.escape(message)):
        printed("estimate", str(path), "--delta", "1e-5", *options)


def test_files_that_are_no_scores_are_refused(tmp_path):
    for name, message in (("a.txt", "not from '.txt'"), ("a.csv", "does not exist")):
        with pytest.raises(InputError, match=message):
            printed("estimate", str(tmp_path / name), "--delta", "1e-5")
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    (tmp_path / "c.csv").write_text("score,world\n")
    (tmp_path / "d.csv").write_bytes("scoré,world\n1,0\n".encode("latin-1"))
    for name, message in (
        ("b.parquet", "cannot be read as a table"),
        ("c.csv", "has no rows"),
        ("d.csv", "is not in UTF-8, from byte 4 on"),
        (".", "is a folder: name a file"),
    ):
        with pytest.raises(InputError, match=message):
            printed("estimate", str(tmp_path / name), "--delta", "1e-5")


def test_the_folder_of_a_new_study_is_quoted(tmp_path):
    folder = tmp_path / "my study"
    assert f"cd '{folder}' && dpcanary run config.yaml" in printed("init", str(folder))


# Plans


def test_a_plan_is_the_power_of_the_library():
    training = ["--sample-rate", "1", "--num-steps", "500", "--noise-multiplier", "22.37"]
    found = as_json("plan", *training, "--delta", "1e-5", "--num-runs", "1000")
    mechanism = Mechanism(
        adjacency=Adjacency.SUBSTITUTE, sample_rate=1.0, noise_multiplier=22.37, num_steps=500
    )
    exceed = found["epsilon"]["add_remove"]
    assert found["exceed"] == exceed
    assert found["runs_needed"]["0.8"] == runs_needed(
        mechanism=mechanism, exceed=exceed, delta=1e-5
    )
    assert 8.9 < found["expected_bound"]["1000"]["mean"] < 9.4


def test_a_plan_follows_its_significance():
    training = ["--sample-rate", "1", "--num-steps", "500", "--noise-multiplier", "22.37"]
    options = ["--delta", "1e-5", "--exceed", "5", "--significance", "0.01"]
    mechanism = Mechanism(
        adjacency=Adjacency.SUBSTITUTE, sample_rate=1.0, noise_multiplier=22.37, num_steps=500
    )
    needed = as_json("plan", *training, *options)["runs_needed"]
    for power in (0.5, 0.95):
        known = {"mechanism": mechanism, "exceed": 5.0, "delta": 1e-5, "power": power}
        assert needed[str(power)] == runs_needed(**known, significance=0.01)
        assert needed[str(power)] > runs_needed(**known, significance=0.05)


def test_a_plan_without_anything_to_exceed_is_refused():
    training = ["--sample-rate", "1", "--num-steps", "1", "--noise-multiplier", "1e6"]
    with pytest.raises(InputError, match="there is nothing to exceed: lower delta, or give"):
        printed("plan", *training, "--delta", "0.1")
    text = printed("account", *training, "--delta", "0.1")
    assert "nan" not in text
    assert "quote the substitute epsilon." in " ".join(text.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--exceed", "30"], r"--exceed 30 is not below [\d.]+, the accounted epsilon"),
        (["--num-runs", "3"], "num_runs is 3; it must be a whole number of at least 4"),
        (["--significance", "2"], "significance is 2"),
        (["--seconds-per-run", "-3"], "seconds_per_run is -3"),
    ],
)
def test_plan_refuses_before_it_simulates(monkeypatch, options, message):
    def simulated(**arguments):
        raise AssertionError("simulated")

    monkeypatch.setattr("dpcanary.estimation.power.runs_needed", simulated)
    monkeypatch.setattr("dpcanary.estimation.power.expected_bound", simulated)
    with pytest.raises(InputError, match=message):
        printed("plan", *TRAINING, *NOISE, *options)


def test_estimate_says_what_it_cannot_take(tmp_path):
    table = table_of(count=50)
    path = tmp_path / "scores.csv"
    table.to_csv(path, index=False)
    said = refused("estimate", str(path), "--delta", "1e-5", "--rule", "fixed")
    assert "call dpcanary.estimate_epsilon(..., threshold=...)" in said
    table.assign(world=["in" if world == 0 else "out" for world in table["world"]]).to_csv(
        path, index=False
    )
    with pytest.raises(InputError, match=r"holds in, out, not 0 and 1; .* \(option --world0\)"):
        printed("estimate", str(path), "--delta", "1e-5")


# As a program


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dpcanary.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_loads_nothing_heavy():
    """So it prints at once."""
    code = (
        "import sys; from dpcanary.cli import app; app(['--help'], standalone_mode=False);"
        "heavy = {'scipy', 'torch', 'pandas', 'matplotlib'} & {*sys.modules};"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("account", "calibrate", "statement", "estimate", "plan"):
        assert name in done.stdout


def test_accounting_does_not_load_what_trains():
    code = (
        "import sys; from dpcanary.cli import app;"
        f"app({['account', *TRAINING, *NOISE]!r}, standalone_mode=False);"
        "sys.exit(', '.join(sorted({'torch', 'matplotlib', 'pandas'} & {*sys.modules})) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_errors_are_one_line_and_an_exit_status():
    done = run("account", *TRAINING, "--noise-multiplier", "-1")
    assert done.returncode == 1
    assert done.stderr == "error: noise_multiplier is -1.0; it must be a finite number above 0\n"
    assert run("acount").returncode == 2
    assert run("--version").stdout.startswith("dpcanary 0.")


@pytest.mark.parametrize(
    "command",
    [
        ["account", "--noise-multiplier", "1.1"],
        ["statement", "--noise-multiplier", "1.1"],
        ["calibrate", "--epsilon", "2", "--adjacency", "add_remove"],
    ],
)
@pytest.mark.parametrize(("delta", "warned"), [("0.1", True), ("2e-5", True), ("1e-6", False)])
def test_a_delta_of_at_least_one_over_the_records_gets_a_warning(command, delta, warned):
    """With it, publishing whole records is private."""
    training = ["--batch-size", "600", "--num-records", "60000", "--num-steps", "100"]
    done = CliRunner().invoke(app, [*command, *training, "--delta", delta], catch_exceptions=False)
    assert ("at least 1 / 60,000 records: a mechanism that publishes" in done.stderr) == warned
    assert "warning" not in done.stdout


@pytest.mark.parametrize(("delta", "warned"), [("0.0625", True), ("0.0624", False)])
def test_a_delta_of_exactly_one_over_the_records_is_too_large(delta, warned):
    training = ["--batch-size", "4", "--num-records", "16", "--num-steps", "9"]
    command = ["account", "--noise-multiplier", "2.5", *training, "--delta", delta]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert (f"delta {delta} is at least 1 / 16 records" in done.stderr) == warned
