"""The command line: what it prints, its JSON, its errors, and how fast it starts."""

import json
import re
import shlex
import subprocess
import sys
from math import floor, inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from accounts import bounds_of, noise_for
from scipy.stats import norm
from typer.testing import CliRunner

from dpcanary import estimate_epsilon
from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
from dpcanary.accounting.meaning import meaning_of
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism
from dpcanary.accounting.privacy_statement import privacy_statement
from dpcanary.cli import app, main, with_options
from dpcanary.commands import estimate
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.printing import rounded_down
from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon_from_ranks
from dpcanary.estimation.pilot import runs_after_pilot
from dpcanary.estimation.power import TooManyRunsError
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.scoring.score_file import AuditScores, write_scores
from dpcanary.scoring.world_scores import read_world_scores

ROOT = Path(__file__).parents[2]
TRAINING = ["--sample-rate", "0.25", "--num-steps", "50", "--delta", "1e-5"]
NOISE = ["--noise-multiplier", "1.7"]
SHUFFLED = ["--sampling", "shuffled", "--delta", "1e-6"]
ADD_AND_SUBSTITUTE = ("add_remove", "substitute")
WORLDS = ("world0_scores", "world1_scores")
OF_RECORDS = ["--batch-size", "300", "--num-records", "1000"]


def printed(*arguments: str) -> str:
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


def python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def scores_of(mu: float, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(mu, 1.0, count), rng.normal(0.0, 1.0, count)


def saved(folder: Path, name: str = "scores.csv", content: Any = None, **columns: Any) -> str:
    """Writes text, an array or columns in the form that the name of the file says."""
    path, content = folder / name, columns if content is None else content
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str | bytes):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    elif path.suffix == ".npy":
        np.save(path, content)
    elif path.suffix == ".npz":
        np.savez(path, **content)
    elif path.suffix == ".json":
        path.write_text(json.dumps(content))
    elif path.suffix == ".parquet":
        pd.DataFrame(content).to_parquet(path)
    else:
        separator = "\t" if name.endswith("tsv") else ","
        pd.DataFrame(content).to_csv(path, index=False, sep=separator)
    return str(path)


def written(folder: Path, mu: float = 2.0, count: int = 500, sign: int = 1) -> str:
    scores = sign * np.concatenate(scores_of(mu, count))
    return saved(folder, score=scores, world=np.repeat([0, 1], count))


# Those of the tutorial build on one another: tests/workflow/test_documented_commands.py.
PAGES = [path for path in ROOT.glob("docs/*.md") if path.name != "tutorial.md"]
DOCUMENTED = [
    tuple(part.split("\n", 1))
    for path in [*PAGES, ROOT / "README.md"]
    for block in re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL)
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
]


@pytest.mark.parametrize(("command", "output"), DOCUMENTED)
def test_documented_commands_print_what_the_documents_say(command, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path)
    name, *arguments = shlex.split(command)
    assert (name, len(DOCUMENTED) >= 4) == ("dpcanary", True)
    text = printed(*arguments)
    assert max(map(len, text.splitlines())) <= 80
    assert text == output


def test_account_is_the_accountant():
    parameters = {"sample_rate": 0.25, "noise_multiplier": 1.7, "num_steps": 50, "delta": 1e-5}
    epsilons = {name: bounds_of(**parameters, adjacency=name).upper for name in ADD_AND_SUBSTITUTE}
    of_groups = bounds_of(**parameters, adjacency="substitute", method="group_privacy")
    epsilons["group_privacy"] = of_groups.upper
    of_records = ["--batch-size", "50", "--num-records", "200", "--delta", "1e-5", "--epochs"]
    for training in (TRAINING, [*of_records, "12.5"], [*of_records, "12.4"]):
        content = as_json("account", *training, *NOISE)
        assert parameters.items() <= content.items()
        assert content["epsilon"] == pytest.approx(epsilons, rel=1e-9)
    # That printed epsilons are rounded up is in the documented output, of 9.991 and 4.371.


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute", "zero_out"])
def test_calibrated_noise_reaches_the_epsilon_that_was_named(adjacency):
    """What is printed is rounded to the safe side: the nearest number is below for half of them."""
    parameters = {"sample_rate": 0.25, "num_steps": 50, "delta": 1e-5, "adjacency": adjacency}
    for epsilon in (0.7, 3, 5, 11) if adjacency == "substitute" else (8,):
        asked = ["calibrate", "--epsilon", str(epsilon), "--adjacency", adjacency, *TRAINING]
        calibration, text = as_json(*asked), printed(*asked)
        assert calibration["noise_multiplier"] == pytest.approx(
            noise_for(epsilon=epsilon, **parameters)
        )
        assert epsilon * (1 - 1e-3) < calibration["epsilon"][adjacency] <= epsilon
        noise = float(re.search(r"Noise multiplier ([\d.]+) for", text).group(1))
        assert 0 <= noise - calibration["noise_multiplier"] < 1e-4
        assert bounds_of(**parameters, noise_multiplier=noise).upper <= epsilon
        assert f"under {adjacency.replace('_', '-')}" in " ".join(text.split()).replace("/", "-")
    # The printed noise multiplier is sufficient for shuffled batches, too.
    training = [*OF_RECORDS, "--epochs", "6", *SHUFFLED]
    asked = ["calibrate", "--epsilon", "3", "--adjacency", adjacency, *training]
    assert 3 * (1 - 1e-3) < as_json(*asked)["epsilon"][adjacency] <= 3
    noise = re.search(r"Noise multiplier ([\d.]+) guar", printed(*asked)).group(1)
    assert as_json("account", *training, "--noise-multiplier", noise)["epsilon"][adjacency] <= 3


@pytest.mark.parametrize(("training", "batches", "steps", "passes", "rate"), [
    ([*OF_RECORDS, "--epochs", "2.3"], 4, 10, 3, 0.3),
    ([*OF_RECORDS, "--epochs", "7", "--drop-last"], 3, 21, 7, 0.3),
    ([*OF_RECORDS, "--num-steps", "13", "--drop-last"], 3, 13, 5, 0.3),
    (["--sample-rate", "0.3", "--num-steps", "13"], 3, 13, 5, 0.3),
    (["--sample-rate", "0.1", "--epochs", "2"], 10, 20, 2, 0.1),
])  # fmt: skip
def test_shuffled_batches_are_accounted_by_passes(training, batches, steps, passes, rate):
    asked = ["account", *training, *SHUFFLED, *NOISE]
    account, text = as_json(*asked), " ".join(printed(*asked).split())
    expected = {"batches_per_pass": batches, "num_steps": steps, "num_passes": passes}
    expected |= {"sampling": "shuffled", "sample_rate": rate}
    assert expected.items() <= account.items()
    for name, distance in (("zero_out", 1), ("substitute", 2), ("add_remove", 5**0.5)):
        guaranteed = gdp_epsilon(mu=distance * passes**0.5 / 1.7, delta=1e-6)
        assert account["epsilon"][name] == pytest.approx(guaranteed, rel=1e-9)
        poisson = {"adjacency": name, "sample_rate": rate, "num_steps": steps, "delta": 1e-6}
        claimed = bounds_of(**poisson, noise_multiplier=1.7).upper
        assert account["epsilon_claimed_by_poisson"][name] == pytest.approx(claimed, rel=1e-9)
    assert f"{batches} batches in a pass, {steps} steps in {passes} passes" in text
    assert "They are no guarantee of this training" in text


@pytest.mark.parametrize(("arguments", "message"), [
    row.split(" => ")
    for row in """
--num-steps 3 => give --sample-rate, or --batch-size and --num-records
--sample-rate .1 --batch-size 3 --epochs 1 => or --batch-size, not both
--sample-rate 0 --epochs 1 => --sample-rate 0 must be above 0 and at most 1
--sample-rate .1 --epochs nan => --epochs is nan; it must be a finite number above
--sample-rate .1 => give either --num-steps or --epochs
--sample-rate .1 --epochs 1 --num-steps 3 => give either --num-steps
--batch-size 9 --num-records 5 --epochs 1 => --batch-size 9 must be above 0 and at most
--drop-last --sample-rate .1 --epochs 1 => --drop-last is for --sampling shuffled
--sampling shuffled --sample-rate .1 --epochs 1 --drop-last => --drop-last needs --batch-size and
--sampling shuffled --batch-size 2.5 --num-records 9 --epochs 1 => 2.5 must be a whole number with
--sample-rate 0.25 --num-steps 50 => Missing option '--adjacency'
""".strip().splitlines()
])  # fmt: skip
def test_trainings_that_are_not_clear_are_refused(arguments, message):
    command = ["calibrate", "--epsilon", "8"] if "adjacency" in message else ["account", *NOISE]
    assert message in refused(*command, "--delta", "1e-5", *arguments.split())


def test_a_statement_rounds_up_and_warns_of_a_large_delta():
    below_half = 0  # epsilons that the nearest number of two digits is below
    for num_steps in (50, 43, 37, 31):
        training = ["--batch-size", "50", "--num-records", "200", *NOISE]
        training += ["--num-steps", str(num_steps), "--delta", "1e-5"]
        text = " ".join(printed("statement", *training, "--unit", "one X").split())
        epsilons = as_json("account", *training)["epsilon"]
        shown = [float(number) for number in re.findall(r"\(([\d.]+), 1e-05\)", text)]
        for name in ADD_AND_SUBSTITUTE:
            [rounded] = [value for value in shown if abs(value - epsilons[name]) < 0.0101]
            assert rounded >= epsilons[name]
            below_half += round(epsilons[name], 2) < epsilons[name]
    assert below_half >= 2
    assert all(words in text for words in ("One record is one X.", "on 200 records", "Poisson"))
    assert "Warning" not in text
    large = " ".join(printed("statement", *training[:-1], "1e-2").split())
    assert "Warning: delta 0.01 is not below 1 / 200" in large
    assert "at most 1e-3" in large


def test_a_statement_has_the_epsilons_of_account():
    mechanism = Mechanism("substitute", sample_rate=0.1, num_steps=3, noise_multiplier=2.0)
    for epsilon, shown in ((1.1, "1.10"), (1.1001, "1.11"), (inf, "inf")):
        epsilons = EpsilonsByAdjacency(epsilon, epsilon, nan, 1e-5, AccountingMethod.LOOSE)
        text = " ".join(privacy_statement(epsilons, mechanism))
        assert text.count(f"({shown}, 1e-05)-differentially private") == 2


def test_a_delta_of_at_least_one_over_the_records_gets_a_warning():
    training = ["--batch-size", "512", "--num-records", "2048", "--num-steps", "9"]
    for command in (
        "account --noise-multiplier 2.5",
        "statement --noise-multiplier 2.5",
        "calibrate --epsilon 2 --adjacency add_remove",
        "account --noise-multiplier 2.5 --sampling shuffled",
    ):
        for delta, is_warned in ((2**-11, True), (2**-11 * 0.999, False), (0.1, True)):
            asked = [*command.split(), *training, "--delta", repr(delta)]
            done = CliRunner().invoke(app, asked, catch_exceptions=False)
            assert ("at least 1 / 2,048 records: a mechanism that" in done.stderr) == is_warned
            assert "warning" not in done.stdout


@pytest.mark.usefixtures("quick_tables")
def test_estimates_from_the_score_file_of_an_audit(tmp_path):
    """The last step of the first repeat, with all slots; also of scores that are low in world 0."""
    path, rng = tmp_path / "audit.npz", np.random.default_rng(0)
    world = rng.integers(0, 2, (2, 40, 3)).astype(np.uint8)
    scores = rng.normal(size=(2, 40, 3, 2)) + 3.0 * (1 - world[..., None]) * np.array([0.0, 1.0])
    header = {"audit": "a", "canary": "c", "score": "s", "batch_size": None}
    header |= dict.fromkeys(("sample_rate", "noise_multiplier", "seconds"), 1.0)
    accuracy = np.ones((2, 40), np.float32)
    write_scores(path, AuditScores(header, np.array([5, 10]), scores, world, accuracy))
    last, of_world = scores[0, :, :, 1], world[0]
    ranks = AuditScores(header | {"num_candidates": 2}, np.array([5, 10]), scores, world, accuracy)
    write_scores(tmp_path / "ranks.npz", ranks)
    with pytest.raises(InputError, match=r"ranks of secrets, not scores of two worlds; .* --ranks"):
        read_world_scores(tmp_path / "ranks.npz")
    read = read_world_scores(path)
    for world_scores, sign in ((read, 1), (read.swapped, -1)):
        assert world_scores.num_slots == 3
        np.testing.assert_array_equal(world_scores.world0, sign * last[of_world == 0])
        np.testing.assert_array_equal(world_scores.world1, sign * last[of_world == 1])
    # Three scores of each training: what is proven of independent scores needs their independence.
    several = [f"--rule={rule}" for rule in ("simultaneous", "combined", "mahloujifar")]
    bounds = as_json("estimate", str(path), "--delta", "1e-5", *several)["bounds"]
    proofs = ["proven if slots are independent", "simulated if slots are independent", "proven"]
    assert [bound["proof"] for bound in bounds] == proofs
    assert all(bound["is_valid"] and bound["epsilon_lower"] > 0 for bound in bounds)
    assert "or of slots that do not influence each other" in bounds[0]["assumption"]
    alike = ["all slots have the same distributions" in bound["assumption"] for bound in bounds]
    assert alike == [True, True, False]
    asked = ["plan", "--from", str(path), "--exceed", "1", "--delta", "1e-5"]
    with pytest.raises(InputError, match="3 scores of each run"):
        printed(*asked)


@pytest.mark.usefixtures("quick_tables")
def test_all_leaves_out_curves_that_rules_of_guesses_cannot_use(tmp_path):
    """Those of a training whose worlds differ."""
    asked = ["estimate", written(tmp_path, 4.0, 30), "--delta", "1e-5", "--all"]
    exact = [*asked, "--sample-rate", "0.5", "--num-steps", "20", "--adjacency", "add_remove"]
    bounds = as_json(*exact)["bounds"]
    assert {bound["threshold_rule"] for bound in bounds} == {*RULES} - {"fixed", "anytime", "split"}
    curves = {own["threshold_rule"] for own in bounds if own["conversion"] == "subsampled_gaussian"}
    assert {"combined", "in_sample"} <= curves
    assert not curves & {"mahloujifar", "order_statistic"}
    for adjacency, is_right in ("substitute", True), ("zero_out", False):
        mechanism = Mechanism(Adjacency(adjacency), sample_rate=0.5, num_steps=20)
        assert estimate._has_curves("mahloujifar", mechanism, 1e-5) is is_right
        assert estimate._has_curves("combined", mechanism, 1e-5)


@pytest.mark.usefixtures("quick_tables")
def test_all_rules_are_those_of_the_library(tmp_path):
    path, both = written(tmp_path, 4.0, 30), dict(zip(WORLDS, scores_of(4.0, 30), strict=True))
    asked = ["estimate", path, "--delta", "1e-5", "--significance", "0.1", "--all"]
    bounds = as_json(*asked)["bounds"]
    rules = {bound["threshold_rule"] for bound in bounds}
    assert rules == {*RULES} - {"fixed", "anytime", "split"}
    for bound in bounds:
        method = {key: bound[key] for key in ("conversion", "threshold_rule")}
        own = estimate_epsilon(**both, delta=1e-5, significance=0.1, **method)
        assert bound["epsilon_lower"] == pytest.approx(own.epsilon_lower)
        assert bound["is_valid"] == (bound["threshold_rule"] != "in_sample")
        independent = bound["threshold_rule"] not in ("steinke", "mahloujifar", "order_statistic")
        assert ("the scores are independent" in bound["assumption"]) is independent
        assert "fixed before" in bound["assumption"]
    text = " ".join(printed(*asked).split())
    assert "NOT a valid bound" in text
    assert "You may state one of the valid bounds on epsilon of the mechanism" in text
    assert "at delta 1e-05, with 90 % confidence and its conditions, if you chose it" in text
    assert "if the attack is perfect" in text
    asked = ["estimate", path, "--delta", "1e-5", "--one-run"]
    content = as_json(*asked)
    [bound] = content["bounds"]
    # What assumes independent scores is not said beside it.
    assert (content["largest_by_simultaneous_direct"], content["shown_success"]) == (None, None)
    assert "Without" not in printed(*asked)
    assert bound["threshold_rule"] == "mahloujifar"
    assert "slots may depend on one another in any way" in bound["assumption"]
    assert "independent" not in bound["assumption"]


def test_hints_where_the_bound_is_0(tmp_path):
    for scores, hint in [
        ((2.0, 500, -1), "add --lower-is-world0"),
        ((9.0, 2), "make more runs"),
        ((0.0, 500), "do not show that the worlds differ"),
        ((2.0, 500), ""),
    ]:
        content = as_json("estimate", written(tmp_path, *scores), "--delta", "1e-5")
        assert (content["bounds"][0]["epsilon_lower"] == 0) is bool(hint)
        assert hint in content["hint"] if hint else content["hint"] == ""
    assert 0.5 < content["shown_success"]["advantage"] < 0.683  # the truth is 0.683
    # With the signs changed this bound is 0.007, which would be printed as 0.00.
    content = as_json("estimate", written(tmp_path, 0.04, 500, -1), "--delta", "5e-4")
    assert "do not show that the worlds differ" in content["hint"]


FIRST, SECOND = scores_of(1.7, 90, seed=3)
SECOND = SECOND[:80]
JOINED, IS_FIRST = np.r_[FIRST, SECOND], np.repeat([True, False], [90, 80])


def lira(folder: Path) -> list[str]:
    """A model's folder as tensorflow/privacy writes it; an earlier epoch says nothing."""
    order = np.random.default_rng(0).permutation(170)
    noise = np.random.default_rng(1).normal(size=170)
    scores = np.stack([JOINED + noise, JOINED - noise], 1)[order]
    saved(folder, "experiment-3_16/scores/0000000100.npy", scores)
    saved(folder, "experiment-3_16/scores/0000000050.npy", np.zeros((170, 2)))
    keep = np.r_[IS_FIRST[order], [True, True]]
    return [str(Path(saved(folder, "experiment-3_16/keep.npy", keep)).parent)]


def two_files(folder: Path, first: np.ndarray, second: np.ndarray) -> list[str]:
    return [saved(folder, "first.npy", first), saved(folder, "second.npy", second)]


def of_user(scores: np.ndarray) -> pd.DataFrame:
    """`df_train_user` or `df_test_user` of PrivacyGuard's `AggregateAnalysisInput`, as saved."""
    return pd.DataFrame({"user_id": range(len(scores)), "score": scores, "score_orig": 0.5})


def pair(first: str, second: str) -> dict[str, np.ndarray]:
    return {second: SECOND, first: FIRST}


def rows(world: str, values: np.ndarray) -> pd.DataFrame:
    """A table whose rows are in another order."""
    columns = pd.DataFrame({"score": JOINED, world: values})
    return columns.sample(frac=1.0, random_state=2)


LISTS = {name: values.tolist() for name, values in pair("in", "out").items()}
OBJECTS = pd.DataFrame({"score": JOINED, "member": IS_FIRST}).to_dict("records")
IN_OR_OUT = rows("split", np.where(IS_FIRST, "train", "holdout"))
HELD_OUT = rows("split", np.where(IS_FIRST, "train", "held-out"))
LOSSES = pd.DataFrame({"loss": -JOINED, "split": np.where(IS_FIRST, "member", "other")})
OF_LOSSES = "--score-column=loss --world-column=split --world0=member --lower-is-world0"
OF_TRAIN = "--world-column=split --world0=train"
# As a spreadsheet writes a table where the decimal point is a comma.
COMMAS = {"scores": JOINED, "world": 1.0 - IS_FIRST, "text": "a, b"}
SEMICOLONS = pd.DataFrame(COMMAS).to_csv(sep=";", decimal=",", index=False)
# Files with their content, and options.
OTHER_TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "LiRA": ({}, ""),
    "LiRA's arrays": ({"first.npy": JOINED, "second.npy": IS_FIRST}, ""),
    "floats of truth": ({"first.npy": JOINED, "second.npy": IS_FIRST.astype(np.float32)}, ""),
    "integers of truth first": ({"first.npy": 1 * IS_FIRST, "second.npy": JOINED}, ""),
    "PrivacyGuard": (
        {"df_train_user.csv": of_user(FIRST), "df_test_user.parquet": of_user(SECOND)}, ""
    ),
    "PrivacyGuard's tensors": ({"a.npz": pair("scores_train", "scores_test")}, ""),
    "jax_privacy": ({"a.npz": pair("in_canary_scores", "out_canary_scores")}, ""),
    "non-members": ({"a.npz": pair("members", "non-members")}, ""),
    "others": ({"a.npz": pair("members", "others")}, ""),
    "a column": ({"a.csv": rows("is_member", 1 * IS_FIRST)}, ""),
    "truth values": ({"a.csv": rows("keep", IS_FIRST)}, ""),
    "arrays of both": ({"a.npz": {"scores": JOINED, "keep": IS_FIRST}}, ""),
    "lists": ({"a.json": LISTS}, ""),
    "lists beside others": ({"a.json": {"auc": 0.8, **LISTS, "tool": "x", "by": {"fpr": [0]}}}, ""),
    "labels": ({"a.csv": LOSSES}, OF_LOSSES),
    "holdout": ({"a.csv": IN_OR_OUT}, OF_TRAIN),
    "held out": ({"a.csv": HELD_OUT}, OF_TRAIN),
    "objects": ({"a.json": OBJECTS}, ""),
}  # fmt: skip
# Nothing says that these are members.
OTHER_FILES: dict[str, tuple[dict[str, Any], str]] = {
    "two files": ({"first.npy": FIRST, "second.npy": SECOND}, ""),
    "two arrays": ({"a.npz": pair("high", "low")}, "--world0 high"),
    "two lists": (
        {"a.json": {"n": 9, "high": FIRST.tolist(), "low": SECOND.tolist()}},
        "--world0 high",
    ),
    "two trainings": ({"a.csv": rows("split", np.where(IS_FIRST, "train", "train2"))}, OF_TRAIN),
    "own names": ({"a.npz": pair("world0_scores", "world1_scores")}, ""),
    ".tsv": ({"a.tsv": rows("world", 1 - IS_FIRST)}, ""),
    ".parquet": ({"a.parquet": rows("world", IS_FIRST)}, "--world0 True"),
    "semicolons": ({"a.csv": SEMICOLONS}, ""),
    "tabs": ({"a.tsv": SEMICOLONS.replace(";", "\t")}, ""),
    "columns of .npz": ({"a.npz": rows("world", 1 - IS_FIRST)}, ""),
}


@pytest.mark.parametrize("tool", OTHER_TOOLS | OTHER_FILES)
def test_scores_of_other_tools(tool, tmp_path):
    """The bound is that of the arrays; of members and others, it is about membership."""
    files, options = (OTHER_TOOLS | OTHER_FILES)[tool]
    paths = [saved(tmp_path, name, content) for name, content in files.items()] or lira(tmp_path)
    asked = ["estimate", *paths, *options.split(), "--delta", "1e-6", "--rule", "simultaneous"]
    output = as_json(*asked)
    direct = estimate_epsilon(**pair(*WORLDS), delta=1e-6, threshold_rule="simultaneous")
    [bound] = output["bounds"]
    assert bound["epsilon_lower"] == pytest.approx(direct.epsilon_lower, rel=1e-12)
    assert direct.epsilon_lower > 1
    assert bound["assumption"] == direct.assumption
    assert (output["num_world0"], output["num_world1"]) == (90, 80)
    is_of_members = tool in OTHER_TOOLS
    assert output["adjacency"] == ("add_remove" if is_of_members else None)
    text = " ".join(printed(*asked).split())
    under = (
        "under add/remove adjacency" if is_of_members else "under the adjacency of the two worlds"
    )
    number = floor(100 * direct.epsilon_lower) / 100
    start = f"You may state: epsilon of the mechanism is at least {number:.2f} {under} at delta"
    assert text.startswith(start)
    assert ("--adjacency names it" in text) is not is_of_members
    assert ("a fair coin put each of them in or out, give --one-run" in text) is is_of_members
    assert "give --one-run" not in printed(*asked[:-2], "--one-run")
    named = printed(*asked, "--adjacency", "zero_out")
    assert f"least {number:.2f} under zero-out adjacency" in " ".join(named.split())


@pytest.mark.usefixtures("quick_tables")
def test_a_claimed_epsilon_has_a_p_value(tmp_path):
    """Small where a bound at this significance is above the claim, and only there."""
    path = saved(tmp_path, score=JOINED, world=1 - IS_FIRST)
    for options in ([], ["--conversion", "direct", "--rule", "simultaneous"], ["--one-run"]):
        asked = ["estimate", path, "--delta", "1e-5", *options]
        [bound] = as_json(*asked)["bounds"]
        assert bound["epsilon_lower"] > 0.5
        for claim, refuted in ((bound["epsilon_lower"] / 3, True), (20.0, False)):
            content = as_json(*asked, "--claimed-epsilon", str(claim))
            assert (content["p_value_of_claim"] < 0.05) is refuted
    # Bounds at significances above and below the p-value are on both sides of the claim.
    claim = 0.8 * bound["epsilon_lower"]
    p_value = as_json(*asked, "--claimed-epsilon", str(claim))["p_value_of_claim"]
    for factor, exceeds in ((1.001, True), (0.98, False)):
        at_level = as_json(*asked, "--significance", str(factor * p_value))["bounds"][0]
        assert (at_level["epsilon_lower"] > claim) is exceeds
    text = " ".join(printed(*asked, "--claimed-epsilon", str(claim)).split())
    assert "the scores contradict it" in text
    assert "the least that can be shown" not in text
    far = " ".join(printed(*asked[:4], "--claimed-epsilon", "0.01").split())
    assert "(the least that can be shown): the scores contradict it" in far


def test_what_is_said_beside_a_bound_at_any_number_of_scores_holds_at_any_number_too(tmp_path):
    path = saved(tmp_path, score=np.ravel(scores_of(2.0, 200), "F"), world=[0, 1] * 200)
    for conversion, claim in (("gdp", 7.0), ("direct", 2.0)):
        asked = ["estimate", path, "--delta", "1e-5", "--conversion", conversion]
        content = as_json(*asked, "--rule", "anytime", "--claim", str(claim))
        assert content["shown_success"] is None
        assert content["p_value_is_least"] is False  # nothing is simulated
        assert (content["p_value_of_claim"] < 0.05) is (
            content["bounds"][0]["epsilon_lower"] > claim
        )
    assert "Without any epsilon" not in printed(*asked, "--rule", "anytime")


@pytest.mark.parametrize("rule", ["simultaneous", "mahloujifar"])
def test_a_claim_is_tested_by_the_curves_of_the_bound(rule, tmp_path):
    asked = ["estimate", written(tmp_path, 1.5), "--delta", "1e-5", "--rule", rule]
    asked += ["--conversion", "subsampled_gaussian", "--sample-rate", "0.25", "--num-steps", "7"]
    content = as_json(*asked, "--claim", "1")
    assert content["bounds"][0]["epsilon_lower"] > 1
    assert content["p_value_of_claim"] < 0.01
    assert as_json(*asked, "--claim", "20")["p_value_of_claim"] > 0.05
    assert content["adjacency"] == "substitute"


def test_a_folder_of_lira_is_of_one_training_unless_a_rule_is_asked_for(tmp_path):
    asked = ["estimate", *lira(tmp_path), "--delta", "1e-6"]
    by_default, one_run = (as_json(*asked, *options) for options in ([], ["--one-run"]))
    assert by_default == one_run
    assert by_default["bounds"][0]["threshold_rule"] == "mahloujifar"
    [bound] = as_json(*asked, "--rule", "combined")["bounds"]
    assert bound["threshold_rule"] == "combined"
    # Only rules that allow any dependence are for one training.
    every = as_json(*asked, "--all")
    assert every == as_json(*asked, "--all", "--one-run")
    rules = [bound["threshold_rule"] for bound in every["bounds"]]
    assert rules == ["steinke", "mahloujifar", "mahloujifar"]
    assert "give --one-run" not in printed(*asked, "--all")
    for keep in (np.r_[0.0, np.nan, np.ones(170)], 1 - 2 * (np.arange(172) % 2), np.arange(172)):
        saved(Path(asked[1]), "keep.npy", keep)
        with pytest.raises(InputError, match="must hold a truth value, or 0 or 1, for each record"):
            read_world_scores(Path(asked[1]))


MODELS = np.arange(12).reshape(3, 4)


@pytest.mark.parametrize(("first", "second", "message"), [
    (IS_FIRST, FIRST, "second.npy: 90 scores, and 170 truth values in"),
    (FIRST, IS_FIRST, "shapes are (90,) and (170,); if they are scores, save them"),
    (1.0 * IS_FIRST, IS_FIRST, "which may be scores or truth values; save them as one table"),
    (IS_FIRST, ~IS_FIRST, "which may be scores or truth values; save them as one table"),
    (np.ones(90), FIRST, "first.npy holds only 1.0: as truth values, these name no second world"),
    (MODELS * 1.0, MODELS % 2, "save one row of both, the records of one model"),
])  # fmt: skip
def test_two_files_that_may_be_scores_or_truth_values_are_refused(first, second, message, tmp_path):
    with pytest.raises(InputError, match=re.escape(message)):
        read_world_scores(*map(Path, two_files(tmp_path, first, second)))


@pytest.mark.parametrize("world", ["member", "world", "keep"])
def test_a_source_of_both_worlds_stands_alone(world, tmp_path):
    [folder] = map(Path, lira(tmp_path))
    first = Path(saved(tmp_path, "first.csv", rows(world, IS_FIRST)))
    for paths, message in (
        ((folder, first), "experiment-3_16 is a folder, which is read alone: leave"),
        ((folder, folder), "experiment-3_16 is a folder, which is read alone: leave"),
        ((first, folder), "experiment-3_16 is a folder: name a file of scores in it"),
        ((first, first), f"first.csv holds both worlds, by {world}: give it alone, or join"),
    ):
        with pytest.raises(InputError, match=message):
            read_world_scores(*paths)
    # One that says the same of all its scores is of one world, and so is a column without a name.
    members = Path(saved(tmp_path, "members.csv", rows(world, np.ones(170))))
    others = Path(saved(tmp_path, "others.npy", SECOND))
    assert len(read_world_scores(members, others).world0) == 170
    unnamed = Path(saved(tmp_path, "unnamed.csv", pd.DataFrame(FIRST)))
    assert len(read_world_scores(unnamed, others).world0) == 90


PAIR = np.array([1.5, 0.25])
WHICH = "high scores are expected (as members have)? Say it by world0 (option --world0 beta or"


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.txt", None, "from .npz, .npy, .json, .csv, .tsv, .parquet files, not from '.txt'"),
    ("", None, "the folder of one model of LiRA, which holds keep.npy"),
    ("a.csv", "scored,world\n1.0,0", "has no 'score'; did you mean 'scored'"),
    ("a.csv", "score,label\n1.0,0", "has no 'world'; known: score, label"),
    ("a.csv", "score,world\n1.5,0\n,1\nn/a!,0", "score holds 'n/a!' in row 3, which is no nu"),
    ("a.csv", "score;world\n1.000,5;0\n2,5;1", "score holds '1.000,5' in row 1, which is no nu"),
    ("a.csv", "score\n1,5\n2,5", "rows have more values than its header has names: name the"),
    ("a.tsv", "score\tworld\n2.3\t0\t1\n1.1\t1\t0", "rows have more values than its header has"),
    ("a.csv", "score,world\n1.0,0\n,1", "score is missing or NaN in row 2"),
    ("a.csv", "score,world\n1.5,0\n1,\n2,", "world is missing in row 2 (2 in all): give"),
    ("b.csv", "score,world\n1.5,b\n1,b\n2,", "world is missing in row 3 (1 in all): give"),
    ("a.json", '{"score": [1, 2], "member": [1, null]}', "member is missing in row 2 (1 in all)"),
    ("a.json", '{"beta": [1, null], "alpha": [1, 2]}', WHICH),
    ("a.csv", "score,world\n1,in\n2,out", "world holds in, out, not 0 and 1; say"),
    ("inn.csv", "score,world\n1,in\n2,out", "is never 'inn'; did you mean 'in'"),
    ("b.csv", "score,world\n1,a\n2,b\n3,c", "must hold two worlds, not a, b, c"),
    ("a.csv", "score,world\n", "has no rows"),
    ("a.csv", "1.250000e+00\n0.5", "has no header: its first row has 1.250000e+00, a number"),
    ("a.tsv", "-.5\t0\n0.5\t1", "has no header: its first row has -.5, a number"),
    ("a.csv", "5e-05\n0.3\n0.2", "has no header: its first row has 5e-05, a number"),
    ("a.csv", "1E3,0\n0.5,1", "has no header: its first row has 1E3, a number"),
    ("a.csv", "-inf\n0.5", "has no header: its first row has -inf, a number"),
    ("a.csv", "-2\n1\n3", "has no header: its first row has -2, a number"),
    ("latin.csv", "scoré,world\n1,0\n".encode("latin-1"), "is not in UTF-8, from byte 4 on"),
    ("cut.parquet", b"PAR1 PAR", "cannot be read as a table"),
    ("a.json", '{"member": 3.0}', "must hold an object with lists of scores"),
    ("a.json", '{"auc": 0.8, "high": [1.0]}', "; 'auc' is not a list: remove it"),
    ("a.json", '{"a": {"in": [1], "out": [0]}}', "'a' is an object: take its lists (in, out) ou"),
    ("in.npy", PAIR, "holds in alone: give the file of the other world too, that of world 0 first"),
    ("objects.npy", np.array([{}]), "is not an array of numbers"),
    ("a.npz", {"score": np.ones((2, 2)), "world": [0, 1]}, "shape (2, 2); it must have one sc"),
    ("a.npz", {"score": np.ones(3), "world": [0, 1]}, "3 scores, and 2 worlds"),
    ("a.npz", {"scores": PAIR, "labels": [0, 1]}, "option --world-column"),
    ("b.npz", {"b": PAIR, "labels": [0, 1]}, "labels holds truth values, not scores"),
    ("a.npz", {"mia": PAIR, "membership": [0, 1]}, "has no 'score'; known: mia, membership (opt"),
    ("a.npz", {"scores": MODELS, "keep": MODELS % 2}, "save one row of both, the records of one"),
    ("a.npz", {"beta": PAIR, "alpha": PAIR}, WHICH),
    ("a.npz", {"in": PAIR, "out": PAIR, "in_scores": PAIR}, "in and out, or in_scores and out"),
    ("a.json", '{"train": [1], "test": [2], "holdout": [3]}', "train and test, or train and hold"),
    ("a.npz", {"header": np.frombuffer(b"[1]", np.uint8)}, "it has no header"),
    ("a.npz", {"loss": PAIR, "split": ["a", "b"]}, "has no 'score'; known: loss, split (option --"),
    ("a.csv", "score,world\n1.0,0\n,1\n,0\n,1", "row 2 (3 in all): leave such rows out if"),
])  # fmt: skip
def test_files_that_are_no_scores_are_refused(name, content, message, tmp_path):
    path = tmp_path / name
    if content is not None:
        saved(tmp_path, name, content)
    world0 = {"inn": "inn", "b": "b"}.get(path.stem)
    with pytest.raises(InputError, match=re.escape(message)) as refusal:
        read_world_scores(path, world0=world0)
    assert content is None or str(refusal.value).startswith(str(path))


def test_files_that_a_command_reads_and_writes(tmp_path, refuses):
    asked = ["estimate", str(tmp_path / "a.csv"), "--delta", "1e-5"]
    refuses("does not exist", printed, *asked)
    said = refused(*asked, "--rule", "fixed")
    assert "call dpcanary.estimate_epsilon(..., threshold=...)" in said
    asked[1] = written(tmp_path, count=50)
    printed(*asked, "--plot", str(tmp_path / "plot.pdf"))  # a .png is documented
    assert (tmp_path / "plot.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(InputError, match=r"figures are \.png or \.pdf files"):
        printed(*asked, "--plot", str(tmp_path / "plot.gif"))
    assert not (tmp_path / "plot.gif").exists()
    folder = tmp_path / "my study"
    assert f"cd '{folder}' && dpcanary run config.yaml" in printed("init", str(folder))


PLANNED = ["--sample-rate", "1", "--num-steps", "500", "--noise-multiplier", "22.37"]
TRAINED = {"sample_rate": 1.0, "noise_multiplier": 22.37, "num_steps": 500}


@pytest.fixture
def simulated(monkeypatch):
    asked: list[dict[str, Any]] = []

    def answer(**arguments: Any) -> Any:
        asked.append(arguments)
        bound = SimpleNamespace(mean=9.126, low=8.7, high=9.5)
        return round(1000 * arguments["power"]) if "power" in arguments else bound

    for name in ("runs_needed", "expected_bound"):
        monkeypatch.setattr(f"dpcanary.estimation.power.{name}", answer)
    return asked


@pytest.mark.parametrize("exceed", [None, 5.0])
def test_a_plan_is_the_power_of_the_library(exceed, simulated):
    options = ["--delta", "1e-6", "--significance", "0.01", "--num-runs", "1000"]
    options += ["--exceed", str(exceed)] if exceed else []
    plan = as_json("plan", *PLANNED, *options)
    mechanism = Mechanism("substitute", **TRAINED)
    epsilons = {
        name: bounds_of(adjacency=name, **TRAINED, delta=1e-6).upper for name in ADD_AND_SUBSTITUTE
    }
    assert plan["epsilon"] == pytest.approx(epsilons, rel=1e-9)
    assert plan["exceed"] == (exceed or plan["epsilon"]["add_remove"])
    parameters = {"mechanism": mechanism, "delta": 1e-6, "significance": 0.01}
    powers = [float(power) for power in plan["runs_needed"]]
    assert [*plan["runs_needed"].values()] == [round(1000 * power) for power in powers]
    needed = [parameters | {"exceed": plan["exceed"], "power": power} for power in powers]
    assert simulated == [*needed, parameters | {"num_runs": 1000}]
    assert plan["expected_bound"] == {"1000": {"mean": 9.126, "low": 8.7, "high": 9.5}}
    text = printed("plan", *PLANNED, *options, "--seconds-per-run", "36")
    assert re.search(r"80% +800 +8\.0 hours", text)
    assert re.search(r"1,000 +9\.13 +8\.7\S* and 9\.5", text)


def test_a_pilot_says_how_many_new_runs_are_needed(tmp_path, monkeypatch):
    """Its interval of mu against the standard error of Hanley and McNeil (1982)."""
    asked: list[dict[str, Any]] = []

    def runs_needed(**arguments: Any) -> int:
        asked.append(arguments)
        if len(asked) == 1:  # the weakest: more than are tried
            raise TooManyRunsError
        return round(100 / arguments["mechanism"])

    monkeypatch.setattr("dpcanary.estimation.pilot.runs_needed", runs_needed)
    world0, world1 = scores_of(1.5, 120)
    world1 = world1[:80]
    path = saved(tmp_path, "pilot.npz", world0_scores=-world0, world1_scores=-world1)
    options = ["--from", path, "--exceed", "3.5", "--delta", "1e-6"]
    options += ["--lower-is-world0", "--significance", "0.01"]
    plan = as_json("plan", *options)
    auc = float((world0[:, None] > world1).mean())
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = (auc * (1 - auc) + 119 * (q1 - auc**2) + 79 * (q2 - auc**2)) / (120 * 80)
    low, mu, high = plan["mu"]
    assert mu == pytest.approx(2**0.5 * norm.ppf(auc), rel=1e-9)
    expected = 2**0.5 * norm.ppf([auc - 1.645 * variance**0.5, auc + 1.645 * variance**0.5])
    assert [low, high] == pytest.approx(expected, rel=0.04)
    assert high - low == pytest.approx(np.diff(expected).item(), rel=0.12)
    epsilons = [gdp_epsilon(mu=value, delta=1e-6) for value in plan["mu"]]
    assert plan["epsilon"] == pytest.approx(epsilons)
    assert plan["runs"] == [None, round(100 / mu), round(100 / high)]
    assert plan["num_pilot"] == 200
    parameters = {"exceed": 3.5, "delta": 1e-6, "power": 0.8, "significance": 0.01}
    assert asked == [parameters | {"mechanism": value} for value in plan["mu"]]
    asked.clear()
    options[3] = str(plan["epsilon"][0] - 0.01)  # it can be shown, with more than are tried
    assert " more than 524,288" in printed("plan", *options)
    of_training = ["--num-runs", "400", "--seconds-per-run", "3"]
    message = "--from does not use --num-runs, --seconds-per-run: leave it out"
    assert message in refused("plan", *options, *of_training)
    reversed_signs = "lower than those of world 1. If they are losses or distances, give --lower-is"
    for further, is_said in (([], True), (["--lower-is-world0"], False)):
        plain = [option for option in options if option != "--lower-is-world0"]
        text = " ".join(printed("plan", *plain, *further).split())
        assert (reversed_signs in text) is is_said
    asked = []
    options[3] = "1000"  # which the attack cannot show, and which is not simulated
    assert as_json("plan", *options)["runs"] == [None] * 3
    assert printed("plan", *options).count("none is enough") == 3
    assert not asked
    assert "--from: give --exceed and --delta" in refused("plan", *options[:2])
    assert "--from: give --exceed" in refused("plan", *options[:2], "--delta", "1e-5")
    of_two = two_files(tmp_path, -world0, -world1)
    options[:4] = ["--from", of_two[0], "--from", of_two[1], "--exceed", "3.5"]
    assert as_json("plan", *options)["mu"] == plan["mu"]
    assert "give one file, or one of each world" in refused("plan", *options, "--from", path)
    with pytest.raises(InputError, match="the records of one model, which are no runs"):
        printed("plan", "--from", *lira(tmp_path), *options[4:])
    members = saved(tmp_path, "a.npz", pair("members", "others"))
    text = " ".join(printed("plan", "--from", members, *options[4:]).split())
    assert "a pilot of records of one training says nothing of runs" in text


@pytest.mark.parametrize(("change", "message"), [
    ({"power": 80}, "power is 80"),
    ({"significance": 0.9}, "significance is 0.9"),
    ({"significance": 1e-4}, "at least 0.001"),  # that of rules whose power is simulated
])  # fmt: skip
def test_wrong_arguments_of_a_pilot_are_named(change, message):
    options = dict(zip(WORLDS, scores_of(2.0, 40), strict=True)) | {"exceed": 2.0, "delta": 1e-5}
    with pytest.raises(InputError, match=message):
        runs_after_pilot(**options | change)


def test_a_plan_without_anything_to_exceed_is_refused(simulated, refuses):
    training = ["--sample-rate", "1", "--num-steps", "1", "--noise-multiplier", "1e6"]
    text = " ".join(printed("account", *training, "--delta", "0.1").split())
    assert "nan" not in text
    assert "quote the substitute epsilon." in text
    own = [*TRAINING, *NOISE]
    for asked, message in [
        ([*training, "--delta", "0.1"], "there is nothing to exceed: lower delta, or give"),
        ([*own, "--exceed", "10.3"], r"--exceed 10\.3 is not below [\d.]+, the accounted eps"),
        ([*own, "--num-runs", "3"], "num_runs is 3; it must be a whole number of at least 4"),
    ]:
        refuses(message, printed, "plan", *asked)
    assert simulated == []


def test_a_command_loads_what_it_uses():
    """So help prints at once, and accounting does not load what trains."""
    code = f"""
import sys
from dpcanary.cli import app
app(["--help"], standalone_mode=False)
assert not {{"scipy", "torch", "pandas", "matplotlib"}} & {{*sys.modules}}
app({["account", *TRAINING, *NOISE]}, standalone_mode=False)
assert not {{"torch", "pandas", "matplotlib"}} & {{*sys.modules}}
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert {"account", "calibrate", "statement", "estimate", "plan"} <= {*done.stdout.split()}


def test_errors_are_one_line_and_an_exit_status():
    negative = ["account", *TRAINING, "--noise-multiplier", "-1"]
    refusal = "error: --noise-multiplier is -1.0;"
    for arguments, status, start in (negative, 1, refusal), (["acount"], 2, "Usage"):
        done = python("from dpcanary.cli import main; main()", *arguments)
        assert (done.returncode, done.stdout) == (status, "")
        assert done.stderr.startswith(start)
        assert status == 2 or done.stderr.count("\n") == 1
    assert printed("--version").startswith("dpcanary 0.")


INTERRUPTED = """
import os, signal, sys, time
from dpcanary import cli

@cli.app.command()
def wait(patience: float, seconds: float):
    cli._PATIENCE = patience
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(seconds)
        print("ended")
        os.kill(os.getpid(), signal.SIGINT)

# A shell that runs the tests in the background has the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
cli.main()
"""


@pytest.mark.parametrize(("patience", "seconds", "out"), [(300, 0.2, "ended\n"), (0, 600, "")])
def test_many_interruptions_leave_no_traceback(patience, seconds, out):
    """The command ends by itself, or at once if it is interrupted again much later."""
    done = python(INTERRUPTED, "wait", str(patience), str(seconds))
    assert (done.returncode, done.stdout, done.stderr) == (130, out, "")


COMMANDS = typer.main.get_command(app).commands
COMMANDS = COMMANDS | {
    f"{name} {other}": command
    for name, group in COMMANDS.items()
    for other, command in getattr(group, "commands", {}).items()
}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_80_columns_and_divides_no_example(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    lines = printed(*name.split(), "--help").splitlines()
    assert max(map(len, lines)) <= 80
    examples = (COMMANDS[name].help or "").partition("\b\n")[2] if name else ""
    assert {line.strip() for line in examples.splitlines()} <= {line.strip() for line in lines}


def test_a_message_names_the_option_that_was_typed():
    for text, typed, expected in (
        ("hidden_sizes is 3; it must", ["audit", "--hidden-size", "3"], "--hidden-size is 3; it"),
        ("config: audit a: delta: no", ["audit", "--delta=2"], "config: audit a: --delta: no"),
        # Neither what was not typed, nor within other words and quotations.
        ("sample_rate is 2; it must", ["audit", "--batch-size", "3"], "sample_rate is 2; it must"),
        ("'delta' is new", ["audit", "--delta", "2"], "'delta' is new"),
        ("my.delta is new", ["audit", "--delta", "2"], "my.delta is new"),
        ("target_delta is new", ["audit", "--delta", "2"], "target_delta is new"),
        ("delta is new", ["adit", "--delta", "2"], "delta is new"),
    ):
        assert with_options(text, typed).startswith(expected)


def test_results_are_named_without_their_folder(tmp_path, monkeypatch, refuses):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/study").mkdir(parents=True)
    for name, folder in (
        ("study", "results/study"),
        ("results/study", "results/study"),
        ("x", "x"),
    ):
        refuses(f"^{folder} has no results", printed, "results", name)
    (tmp_path / "study").mkdir()  # such as the images that were audited
    refuses("^results/study has no results", printed, "results", "study")
    (tmp_path / "study/experiment.json").touch()
    refuses("^study has no results", printed, "results", "study")


def test_errors_are_wrapped_on_a_terminal_alone(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["dpcanary", "results", f"{'long/' * 9}name"])
    for is_terminal in (True, False):  # in a log, a message is one line
        stream = SimpleNamespace(isatty=lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(SystemExit) as end:
            main()
        longest = max(map(len, str(end.value).splitlines()))
        assert (longest <= 80) is is_terminal


def test_an_epsilon_of_group_privacy_that_is_missing_is_explained():
    explained = "-: group privacy cannot be accounted at these settings"
    for noise, is_missing in ("5.574", True), ("22.37", False):
        asked = ["--sample-rate", "1", "--num-steps", "200", "--noise-multiplier", noise]
        assert (explained in printed("account", *asked, "--delta", "1e-5")) is is_missing


def test_a_pilot_whose_scores_do_not_overlap_sets_no_upper_limit(tmp_path):
    """At the weaker attack, 5 % of such pilots do not overlap: simulated, with its error."""
    world0, world1 = np.linspace(1, 2, 7), np.linspace(-1, 0, 12)
    pilot = saved(tmp_path, "pilot.npz", world0_scores=world0, world1_scores=world1)
    asked = ["plan", "--from", pilot, "--exceed", "0.5", "--delta", "1e-5"]
    content, text = as_json(*asked), " ".join(printed(*asked).split())
    assert not content["overlaps"]
    low, mu, high = content["mu"]
    assert 0 < low < mu == high
    rng = np.random.default_rng(5)
    least = rng.normal(low, 1, (40_000, 7)).min(axis=1)
    share = np.mean(least > rng.normal(0, 1, (40_000, 12)).max(axis=1))
    assert share == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / 40_000) ** 0.5)
    assert "do not overlap, so it sets no upper limit" in text
    assert "stronger" not in text
    world0[0] = -0.5
    pilot = saved(tmp_path, "other.npz", world0_scores=world0, world1_scores=world1)
    text = " ".join(printed(*asked[:2], pilot, *asked[3:]).split())
    assert "a 90 % bootstrap interval" in text
    assert "stronger (95 % limit)" in text


def test_account_prints_what_epsilons_mean():
    """As `Mechanism.meaning` has it, rounded up."""
    asked = ["account", *TRAINING, *NOISE, "--values", "6"]
    mechanism = Mechanism("substitute", sample_rate=0.25, num_steps=50, noise_multiplier=1.7)
    meaning, content = meaning_of(mechanism, values=[6]), as_json(*asked)["meaning"]
    assert content["guesses"] == {"6": pytest.approx(meaning.guesses[6], rel=1e-9)}
    assert content["substitute"]["advantage"] == pytest.approx(meaning.substitute.advantage)
    assert content["is_exact"] is True
    pattern = r"right guess of 1 of 6 values +([\d.]+) % +([\d.]+) % +16.7 %"
    [row] = re.findall(pattern, printed(*asked))
    [statement] = as_json("statement", *asked[1:]).values()
    [stated] = re.findall(r"one of 6, with a probability of at most ([\d.]+) %", statement)
    assert 0 <= float(stated) - 100 * meaning.guesses[6] <= 0.1
    for text, limits in zip(row, (meaning.add_remove, meaning.substitute), strict=True):
        assert 0 <= float(text) - 100 * limits.guesses[6] <= 0.1
    group = as_json(*asked, "--group-size", "2")["meaning"]
    assert (group["group_size"], group["is_exact"]) == (2, False)
    words = " ".join(printed(*asked, "--group-size", "2").split())
    assert "by bounds on the trade-off curves." in words
    assert group["guesses"]["6"] > content["guesses"]["6"]
    shuffled = [*SHUFFLED, "--batch-size", "5", "--num-records", "20", "--epochs", "2"]
    assert "right guess of 1 of 2 values" in printed("account", *shuffled, *NOISE)
    phases = ["--phase", "20,0.25,1.7", "--phase", "30,0.25,1.8", "--delta", "1e-5"]
    assert as_json("account", *phases)["meaning"]["is_exact"] is True


def test_noise_is_calibrated_to_the_chance_to_guess():
    asked = ["calibrate", *TRAINING, "--max-guess", "0.3", "--values", "10"]
    content = as_json(*asked)
    assert 0.2999 < content["meaning"]["guesses"]["10"] <= 0.3
    text = " ".join(printed(*asked).split())
    assert "with a probability of at most 30 % (10 % without the model)" in text
    for more, words in (
        (["--epsilon", "3"], "in place of --epsilon"),
        (["--sampling", "shuffled"], "for Poisson sampling alone"),
    ):
        assert words in refused(*asked, *more)
    assert "give --values" in refused("calibrate", *TRAINING, "--max-guess", "0.3")
    assert "give --epsilon and --adjacency" in refused("calibrate", *TRAINING)


def test_ranks_of_secrets_from_a_file(tmp_path):
    path = saved(tmp_path, rank=[1, 1, 5, 700], confidence=[4, 3, 2, 1])
    asked = ["estimate", "--ranks", path, "--num-candidates", "10000", "--delta", "1e-6"]
    [bound] = as_json(*asked)["bounds"]
    own = estimate_epsilon_from_ranks(ranks=[1, 1, 5, 700], num_candidates=10_000, delta=1e-6)
    assert bound["epsilon_lower"] == own.epsilon_lower
    assert bound["rule"] == "mahloujifar"
    text = printed(*asked, "--all", "--claim", "2", "--num-guesses", "2")
    assert (text.count("2 of 2"), text.count("2 of 4")) == (3, 2)
    assert re.search(r"The claim that epsilon is at most 2 has the p-value \d", text)
    [of_lists] = as_json(*asked, "--rule", "count", "--list-size", "5")["bounds"]
    assert of_lists["num_correct"] == 3
    path = saved(tmp_path, rank=[1], num_candidates=[10**6])
    single = ["--ranks", path, "--delta", "1e-9"]
    with pytest.raises(InputError, match="1000000 in its column, and 100 by --num-candidates"):
        printed("estimate", *single, "--num-candidates", "100")
    assert re.search(r"single +direct +- +10.87 +proven", printed("estimate", *single))
    of_membership = as_json("estimate", *single, "--adjacency", "add_remove")["bounds"]
    assert of_membership[0]["adjacency"] == "add_remove"


def test_the_exact_curves_of_a_training_need_its_rate_and_steps(tmp_path):
    path = saved(tmp_path, "a.csv", rank=[1, 2, 1, 1, 9, 1], num_candidates=[100] * 6)
    ranks = ["--ranks", path]
    asked = ["estimate", "--delta", "1e-5", "--conversion", "subsampled_gaussian"]
    rate, steps = ["--sample-rate", "0.25"], ["--num-steps", "7"]
    [of_ranks] = as_json(*asked, *ranks, *rate, *steps)["bounds"]
    mechanism = Mechanism("substitute", sample_rate=0.25, num_steps=7)
    own = {"delta": 1e-5, "conversion": "subsampled_gaussian", "mechanism": mechanism}
    estimate = estimate_epsilon_from_ranks(ranks=[1, 2, 1, 1, 9, 1], num_candidates=100, **own)
    assert of_ranks["epsilon_lower"] == estimate.epsilon_lower > 1
    every = as_json("estimate", *ranks, "--delta", "1e-5", "--all", *rate, *steps)["bounds"]
    conversions = [bound["conversion"] for bound in every if bound["rule"] == "bits"]
    assert conversions == ["direct", "gdp", "subsampled_gaussian"]
    both, path = dict(zip(WORLDS, scores_of(2.0, 500), strict=True)), written(tmp_path)
    scores = [path, "--rule", "simultaneous", "--adjacency", "add_remove"]
    [of_scores] = as_json(*asked, *scores, *rate, *steps)["bounds"]
    own["mechanism"] = mechanism.under("add_remove")
    estimate = estimate_epsilon(**both, threshold_rule="simultaneous", **own)
    assert of_scores["epsilon_lower"] == estimate.epsilon_lower > 1
    # The hint of a bound that is 0 is by these curves, too.
    losses = [saved(tmp_path, "losses.npz", **{name: -both[name] for name in WORLDS}), *scores[1:]]
    content = as_json(*asked, *losses, *rate, *steps)
    assert content["bounds"][0]["epsilon_lower"] == 0
    assert f"would be {rounded_down(estimate.epsilon_lower)}. If low" in content["hint"]
    # As `account` takes them.
    passes = ["--batch-size", "50", "--num-records", "200", "--epochs", "1.75"]
    assert as_json(*asked, *scores, *passes)["bounds"] == [of_scores]
    for arguments in (asked, [*asked, *rate]):
        assert "--num-steps" in refused(*arguments, *ranks)
    for arguments in (ranks, scores):  # which other conversions do not use
        assert "are for --conversion" in refused(*asked[:3], *arguments, *rate, *steps)
    # The adjacency of members and others is that of the curves, too.
    joined = np.concatenate([*both.values()])
    of_members = saved(tmp_path, score=joined, member=np.repeat([1, 0], 500))
    [membership] = as_json(*asked, of_members, *scores[1:3], *rate, *steps)["bounds"]
    assert membership["epsilon_lower"] == of_scores["epsilon_lower"]


def test_the_law_of_secrets_is_checked_by_a_command(tmp_path):
    path = saved(tmp_path, rank=[1, 2, 1, 3])
    asked = ["estimate", "--ranks", path, "--num-candidates", "9", "--delta", "1e-6", "--uniform"]
    assert as_json(*asked)["p_low"] < 0.01
    asked[2] = saved(tmp_path, rank=[*range(1, 10)])
    assert "Nothing speaks against uniform ranks" in printed(*asked)


def test_files_of_ranks_are_refused_by_name(tmp_path, refuses):
    delta = ["--delta", "1e-5"]
    assert "give a file of scores, or --ranks" in refused("estimate", *delta)
    for columns, message in (
        ({"place": [1]}, "has no 'rank'"),
        ({"rank": [1]}, "give --num-candidates"),
        ({"rank": [1, 2], "num_candidates": [5, 6]}, "differs between secrets"),
        ({"rank": [1, 2], "num_candidates": [5, "many"]}, "differs between secrets"),
        ({"rank": [1], "num_candidates": [10.5]}, r"num_candidates is 10\.5; it must be a whole"),
        ({"rank": [1], "num_candidates": ["many"]}, "num_candidates is 'many'; it must be a whole"),
        ({"rank": [1], "num_candidates": [np.nan]}, "num_candidates is nan; it must be a whole"),
    ):
        refuses(message, printed, "estimate", "--ranks", saved(tmp_path, **columns), *delta)
