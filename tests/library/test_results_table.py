"""The table of results, and what a user reads at the end of a run."""

import json
import os
import re
from collections.abc import Sequence
from math import floor, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from summaries import row, summary_of
from typer.testing import CliRunner

from dpcanary.audits.audit_results import AuditResults
from dpcanary.cli import app
from dpcanary.core.files import write_text
from dpcanary.core.tsv_tables import write_table
from dpcanary.data.canaries import CanarySet, GradientCanary, InputCanary, write_canaries
from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.record_source import own_files
from dpcanary.data.records import Split, write_split
from dpcanary.data.sources import load_records
from dpcanary.data.splitting import split_records
from dpcanary.errors import InputError
from dpcanary.experiment import results_table as results
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.results_lock import BY_COMMAND
from dpcanary.experiment.summary import last_rows, learnt_in_words
from dpcanary.experiment.unplanned_looks import (
    LOOKS,
    record_looks,
    record_looks_at_targets,
    unplanned_looks_in_words,
)
from dpcanary.workflow.endings import print_failure, print_success


def bound(epsilon: float, **changes: object) -> dict[str, object]:
    base = {"canary": "gradient", "sample_rate": 1.0, "noise_multiplier": 2.0, **changes}
    return row(**base, epsilon_lower=epsilon, assumption="independence; a curve")


@pytest.mark.parametrize(("accuracy", "baseline", "r2", "text", "warns"), [
    (0.8315, None, None, "Test accuracy 83.2%.", False),
    (0.971, 0.96, None, "Test accuracy 97.1% (predicting the most frequent class: 96.0%).", False),
    (0.96, 0.96, None, "class: 96.0%). WARNING: the mod", True),
    (0.7324, 0.73, None, "class: 73.0%). WARNING: the mod", True),
    (0.75, 0.73, None, "Test accuracy 75.0% (predicting the most frequent class: 73.0%).", False),
    (None, None, 0.01, "R^2 on test records 0.01 (predicting the mean: 0). WARN", True),
    (None, None, 0.43, "R^2 on test records 0.43 (predicting the mean: 0).", False),
    (None, None, -0.2, "R^2 on test records -0.20 (predicting the mean: 0). WARN", True),
    (None, None, None, "", False),
])  # fmt: skip
def test_what_models_have_learnt_is_said_beside_a_constant(accuracy, baseline, r2, text, warns):
    measures = {"test_accuracy": accuracy, "baseline_accuracy": baseline, "test_r2": r2}
    said = learnt_in_words({key: value for key, value in measures.items() if value is not None})
    assert text in said
    assert ("hardly better than this constant, or worse" in said) is warns
    assert warns or said == text


def test_what_models_have_learnt_is_the_mean_over_repeats_at_the_last_step():
    rows = [
        ("a", 0, 1, 0.1),
        ("a", 0, 2, 0.5),
        ("a", 1, 1, 0.2),
        ("a", 1, 2, 0.9),
        ("b", 0, 2, 0.3),
    ]
    summary = pd.DataFrame(rows, columns=["audit", "repeat", "step", "test_accuracy"])
    last = last_rows(summary.assign(baseline_accuracy=0.1, test_r2=np.nan))
    assert last["test_accuracy"].to_dict() == pytest.approx({"a": 0.7, "b": 0.3})
    assert last["step"].tolist() == [2, 2]


def test_bounds_are_averaged_and_none_is_picked():
    summary = pd.DataFrame(
        [
            bound(2.0, repeat=0),
            bound(4.0, repeat=1),
            bound(9.0, repeat=0, threshold_rule="in_sample"),  # not valid
            bound(9.0, repeat=0, conversion="direct"),
            bound(9.0, repeat=0, step=100),  # before the last step
            bound(9.0, repeat=0, num_runs=100, num_looks=2),  # before the last look
        ]
    )
    [record] = results.results_table(summary).to_dict("records")
    assert record == {
        "audit": "gradient-1.0-2.0", "canary": "gradient", "adjacency": "substitute", "audits": 1,
        "rule": "simultaneous", "conversion": "gdp", "conversions": 2,
        "assumption": "independence; a curve", "proof": "proven", "shown": 3.0, "bounds": 2,
        "above_accounted": 0, "runs": 1000,
        "add_remove": 4.4, "substitute": 10.0, "delta": 1e-5, "significance": 0.05,
    }  # fmt: skip
    # Seeds and slots of a set-up are one row.
    seeds = [bound(5.0, audit=f"a{seed}", seed=seed, configuration="same") for seed in range(3)]
    slots = [bound(float(slot), audit="b", slot=slot, canary="natural") for slot in range(4)]
    table = results.results_table(pd.DataFrame(seeds + slots))
    assert table[["audit", "shown"]].to_numpy().tolist() == [["a0", 5.0], ["b", 1.5]]
    lines = [" ".join(line.split()) for line in results.results_lines(table, Path("x"))]
    assert [line for line in lines if line.startswith("a0 and 2 more gradient")]
    assert not [line for line in lines if line.startswith("b and")]


def test_a_bound_above_what_is_accounted_is_an_alarm():
    """For the audited adjacency: one of membership is compared with the add/remove epsilon."""
    name = "gradient-1.0-2.0"
    for rows, alarm in (
        ([bound(10.5), bound(9.5, canary="natural")], f"{name}; 1 of 2 bounds"),
        # Also where their mean is below.
        ([bound(10.5, repeat=0), bound(8.0, repeat=1)], f"{name} (1 of 2 bounds); 1 of 2 bounds"),
        ([bound(4.5, adjacency="add_remove")], f"{name}; 1 of 1 bounds"),
        ([bound(4.5, adjacency="zero_out")], f"{name}; 1 of 1 bounds"),
        ([bound(1300.5)], f"{name}; 1 of 1 bounds"),
        # Equal in the table's two digits.
        ([bound(10.0012)], f"{name} (10.0012, accounted: 10.0000); 1 of 1 bounds"),
        ([bound(9.5)], None),
        ([bound(4.3, adjacency="zero_out")], None),
    ):
        table = results.results_table(pd.DataFrame(rows))
        alarms = [*results.above_in_words(table)]
        assert len(alarms) == (alarm is not None)
        for text in alarms:
            said = f"ABOVE WHAT IS ACCOUNTED for the audited adjacency: {alarm}"
            assert text.startswith(said)
            # A line of its own, after what may be stated and before the table.
            lines = "\n".join(results.results_lines(table, Path("x")))
            before, _, after = lines.partition("\nABOVE WHAT")
            assert ("\n\n" in before, "\n\naudit " in after) == (False, True)
        is_of_content = rows[0]["adjacency"] == "substitute"
        assert ("substitute rows" in results.in_words(table)) is is_of_content


def test_a_summary_in_words():
    table = results.results_table(
        pd.DataFrame([bound(5.0), bound(3.0, audit="b", canary="natural")])
    )
    for changes, number, is_mean in (
        ({}, 1, False), ({"bounds": 5}, 1, True), ({"shown": [0.0, 1.0]}, 0, False),
        # The one is printed as 5.00 and the other as 5.01.
        ({"shown": [5.009, 3.0], "add_remove": [5.001, 9.0]}, 0, False),
        ({"shown": [5.0, 3.0], "add_remove": [4.99, nan]}, 1, False),
    ):  # fmt: skip
        text = results.in_words(table.assign(**changes))
        assert "shown: lower bound on epsilon by attack, at the last step" in text
        assert f"{number} of 2 substitute rows show more than the add/remove epsilon" in text
        assert ("is shown, and is no bound" in text) is is_mean
        assert ("is no evidence of safety" in text) is (0.0 in changes.get("shown", []))
    mixed = results.in_words(table.assign(proof=["not valid", "proven"]))
    assert "number of the attack, a lower bound on epsilon only where it is" in mixed


def test_rules_without_a_row_are_named():
    rows = [
        bound(5.0),
        bound(6.0, threshold_rule="in_sample", is_valid=False),
        bound(4.0, audit="b"),
    ]
    left_out = "Left out, as not valid: in_sample; summary.tsv has the numbers."
    for shown, expected in ((rows, [left_out]), ([rows[0], rows[2]], [])):
        summary = pd.DataFrame(shown)
        table = results.results_table(summary)
        assert [*results.left_out_in_words(summary, table)] == expected


def test_what_may_be_stated_comes_first():
    """The first bound may be stated, whatever its size; a mean of several may not."""
    first = bound(5.009, delta=1e-6, significance=0.01)
    largest = bound(9.0, audit="b", canary="natural")
    sentence = (
        "You may state: epsilon of the mechanism of gradient-1.0-2.0 is at least 5.00 under"
        " substitute adjacency at delta 1e-06, with 99 % confidence, if independence, and if a"
        " curve."
    )
    for rows, text in (
        ([first], sentence),
        ([first, largest], f"{sentence} Another single valid bound may be stated"),
        (
            [bound(5.0, repeat=0), bound(6.0, repeat=1)],
            "The numbers are means of several bounds: none",
        ),
        ([bound(0.0)], "Nothing can be stated: the bound is 0"),
        ([bound(9.0, is_valid=False)], "No rule is valid, so nothing may be stated; the numbers"),
        ([bound(10.5)], "Before this is explained, do not state: epsilon of the mechanism of gra"),
    ):
        table = results.results_table(pd.DataFrame(rows))
        assert results.stated(table).startswith(text)
        assert results.results_lines(table, Path("x"))[0].startswith(text[:50])
    for shown, is_said in ((0.0, False), (0.5, True)):
        table = results.results_table(pd.DataFrame([first, bound(shown, audit="b")]))
        assert ("Another single" in results.stated(table)) is is_said


def test_each_rule_has_a_row_by_its_first_conversion():
    """Rules without the Gaussian family have rows, and conversions are not averaged."""
    rows = [
        bound(2.0, threshold_rule="steinke", conversion="direct"),
        bound(3.0),
        bound(4.0, audit="b", conversion="direct"),
        bound(8.0, audit="b", conversion="subsampled_gaussian"),
    ]
    table = results.results_table(pd.DataFrame(rows))
    assert table[["rule", "conversion", "shown"]].to_numpy().tolist() == [
        ["steinke", "direct", 2.0],
        ["simultaneous", "gdp", 3.0],
        ["simultaneous", "subsampled_gaussian", 8.0],
    ]
    for of_audits, is_said in (
        (table, True),
        (results.results_table(pd.DataFrame(rows[:2])), False),
    ):
        assert ("summary.tsv has all" in results.in_words(of_audits)) is is_said


def written(folder: Path) -> Path:
    write_table(folder / "summary.tsv", summary_of().assign(assumption="independence; a curve"))
    return folder


def test_the_command_prints_the_table(tmp_path):
    def printed(*arguments: str) -> str:
        return CliRunner().invoke(app, ["results", *arguments], catch_exceptions=False).output

    table, text = results.read_results(written(tmp_path)), printed(str(tmp_path))
    lines = text.splitlines()
    for record in table.itertuples():
        start = re.compile(rf"{re.escape(record.audit)} .* {record.rule} ")
        [line] = [line for line in lines if start.match(line)]
        assert f" {floor(100 * record.shown) / 100:.2f} " in line
        assert line.endswith("  a,b")
    # The state of the rules' proofs is among the conditions, once.
    proofs = "\nHow the validity of the rules is known: simultaneous (proven)"
    assert f"a: independence\nb: a curve{proofs}" in text
    assert max(map(len, lines)) <= 80
    assert len(json.loads(printed(str(tmp_path), "--json"))["audits"]) == len(table)
    with pytest.raises(InputError, match="has no results"):
        printed(str(tmp_path / "nothing"))


def test_a_summary_that_lacks_an_audit_of_the_config_is_not_believed(tmp_path):
    """Whoever adds an audit to a config must not take the results of the others for all."""
    audit = {"num_runs": 8, "num_steps": 2, "canary": "worst_case", "noise_multiplier": [2.0, 3.0]}
    audits = {"a": {"sample_rate": 0.5, **audit}}
    experiment = parse_experiment({"experiment": "e", "delta": 1e-5, "audits": audits})
    (tmp_path / "experiment.json").write_text(experiment.to_json())
    products = Products(experiment).summary(["a"])
    rows = [bound(1.0, audit=product.name, origin=product.origin) for product in products]
    foreign = bound(1.0, audit="foreign", origin="summary/foreign:0123456789abcdef")
    write_table(tmp_path / "summary.tsv", pd.DataFrame(rows))
    assert len(results.read_results(tmp_path)) == len(products) == 2
    for wrong in (rows[:1], rows[1:], [*rows, foreign]):
        write_table(tmp_path / "summary.tsv", pd.DataFrame(wrong))
        with pytest.raises(InputError, match="was not made with the config that is in"):
            results.read_results(tmp_path)


def test_a_notebook_rounds_to_the_safe_side(tmp_path):
    """What is shown is rounded down, and what is accounted up."""
    row_of = bound(3.009, epsilon_upper_add_remove=4.401, epsilon_upper_substitute=9.121)
    write_table(tmp_path / "summary.tsv", pd.DataFrame([row_of]))
    cells = re.findall(r"<td>([^<]*)</td>", AuditResults(tmp_path)._repr_html_())
    assert cells[:5] == ["gradient", "1000", "3.00", "4.41", "9.13"]


def targets_of(
    folder: Path,
    targets: list[int],
    *,
    donors: Sequence[int] = (),
    adjacency: str = "substitute",
    **dataset: object,
) -> tuple[Split, str, str]:
    """A source's split, and what is said of an audit's targets, and of its other world.

    With donors, the canaries are the targets with the labels of these private records.
    """
    loss = "squared_error" if dataset.get("label_kind") == "numbers" else "cross_entropy"
    of_records = {"substitute": "natural", "add_remove": "random_record"}
    canary = of_records[adjacency] if donors else "gradient"
    audit = {"dataset": "d", "canary": canary, "sample_rate": 0.5, "noise_multiplier": 2.0,
             "num_runs": 8, "num_steps": 2, "loss": loss, "num_slots": len(targets),
             "adjacency": adjacency}  # fmt: skip
    config = {"experiment": "e", "delta": 1e-5, "datasets": {"d": dataset}, "audits": {"a": audit}}
    experiment = parse_experiment(config)
    products, stage = Products(experiment), experiment.dataset_stage(DatasetStage, dataset="d")
    records = load_records(stage, files=own_files(stage.source, None))
    counts = {"num_records": stage.num_records, "balanced": stage.balanced}
    split = split_records(records, **counts, seed=5)
    of_data, [of_canaries] = products.data("d"), products.canaries("a")
    write_split(folder / of_data.path, split, settings={}, origin=of_data.origin)
    canaries = tuple(GradientCanary(index, index) for index in targets)
    if donors:
        private = split.private
        canaries = tuple(
            InputCanary(private.features[index], private.labels[donor].item(), index)
            for index, donor in zip(targets, donors, strict=True)
        )
    labels = tuple(split.private.labels[targets].tolist())
    path = folder / of_canaries.path
    write_canaries(path, CanarySet(canaries, labels), origin=of_canaries.origin)
    said = (results.targets_in_words, results.other_label_in_words)
    return split, *(function(products, folder, "a") for function in said)


def test_a_target_record_of_a_regression_has_the_units_of_its_table(tmp_path):
    rng = np.random.default_rng(5)
    prices = np.where(np.arange(90) % 3, rng.gamma(2.0, 9e4, 90).round(), 0.0)
    source = tmp_path / "homes.csv"
    pd.DataFrame({"size": rng.normal(size=90), "price": prices}).to_csv(source, index=False)
    labels = {"label_column": "price", "label_kind": "numbers", "balanced": False}
    labels |= {"source": str(source), "num_records": 30}
    shown_labels = set()
    for target in range(12):
        split, text, other = targets_of(tmp_path, [target], donors=[target + 1], **labels)
        row, label = re.fullmatch(
            r"row (\d+) of the source, counted from 0 \(label (.*)\)", text
        ).groups()
        assert label == f"{prices[int(row)]:.0f}"
        of_donor = f"{prices[split.private_rows[target + 1]]:.0f}"
        assert other == (f"label {of_donor}" if of_donor != label else "")
        shown_labels |= {label, other}
    assert {"0", "label 0", ""} <= shown_labels
    # A record that is added has no counterpart, a gradient no label, and two targets have two.
    added = targets_of(tmp_path, [0], donors=[1], adjacency="add_remove", **labels)
    assert targets_of(tmp_path, [0], donors=[1], **labels)[2] != added[2] == ""
    assert targets_of(tmp_path, [0], **labels)[2] == ""
    assert targets_of(tmp_path, [0, 1], donors=[1, 2], **labels)[2] == ""


def test_target_records_of_a_folder_of_images_have_the_names_of_their_files(tmp_path):
    for number in range(24):
        path = tmp_path / "photos/train" / ("cats" if number % 2 else "dogs") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((5, 4), 7 * number, np.uint8)).save(path)
    split, text, _ = targets_of(
        tmp_path, [4, 1, 5], source=f"{tmp_path / 'photos'}/", num_records=6, max_records=20
    )
    numbers = split.private.features[:, 0, 0, 0] * split.scaling.deviation + split.scaling.mean
    numbers = (numbers / 7).round().astype(int).ravel()
    listed = ", ".join(
        f"{split.private_rows[target]} (train/{'cats' if numbers[target] % 2 else 'dogs'}/"
        f"{numbers[target]}.png)"
        for target in (4, 1, 5)
    )
    assert text == f"row {listed} of the source, counted from 0"


def test_a_finished_run_ends_with_its_results(tmp_path, capsys):
    def printed(*targets: str, folder: Path = tmp_path) -> str:
        print_success(folder, targets)
        return capsys.readouterr().out

    text = printed(folder=written(tmp_path))
    assert "add/remove" in text
    assert text.endswith(f"\nAll numbers: {tmp_path}/summary.tsv\n")  # a config may have no figures
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/mine.png").touch()
    text = printed()
    assert f"Figures: {tmp_path}/figures/   All numbers: {tmp_path}/summary.tsv" in text
    assert printed("all") == text
    assert printed("list_audits") == printed(folder=tmp_path / "figures") == ""
    write_table(tmp_path / "summary.tsv", pd.DataFrame({"audit": ["old"]}))
    assert "no table of results" in printed()


TRACEBACK = "Traceback (most recent call last):"


def test_a_failed_run_ends_with_the_reasons(tmp_path, capsys, monkeypatch):
    for name, text in (
        (
            "train_shard/mine/00003",
            "0 %\nwarning: slow\nerror: run 7 diverged: lower learning_rate",
        ),
        ("estimate/fine", "100 %"),
        ("draw_figure/own", f'{TRACEBACK}\n  File "f.py", line 1\nValueError: my own mistake'),
        ("draw_figure/stopped", f'{TRACEBACK}\n  File "f.py", line 1\nKeyboardInterrupt'),
        ("estimate/old", "error: of an earlier run"),
    ):
        write_text(tmp_path / f"{name}.log", f"{text}\n")
    os.utime(tmp_path / "estimate/old.log", (1000, 1000))
    print_failure(tmp_path)
    reason = "draw_figure/own: ValueError: my own mistake"
    reason += "\n  train_shard/mine/00003: run 7 diverged: lower learning_rate"
    text = capsys.readouterr().err
    assert text.startswith(f"\nWhat went wrong:\n  {reason}\n\nMend this first. The same command")
    monkeypatch.setenv(BY_COMMAND, "1")  # which says the last line itself
    print_failure(tmp_path / "none", tmp_path)
    assert capsys.readouterr().err == f"\nWhat went wrong:\n  {reason}\n"


def test_runs_that_are_added_after_a_look_make_bounds_not_valid(tmp_path, capsys):
    """Whoever saw 8 runs and then made 12 chose the number by the scores, unless it was planned."""
    said: list[bool] = []  # what gives valid bounds again

    def run(num_runs: int, rule: str = "simultaneous", **changed: Any) -> str:
        audit = {"num_steps": 2, "canary": "worst_case", "noise_multiplier": 2.0, **changed}
        experiment = parse_experiment(
            {"experiment": "e", "delta": 1e-5, "threshold_rules": [rule],
             "audits": {"a": {"sample_rate": 0.5, "num_runs": num_runs, **audit}}}
        )  # fmt: skip
        record_looks(tmp_path, experiment)
        (tmp_path / "experiment.json").write_text(experiment.to_json())
        [product] = Products(experiment).summary(["a"])
        row = bound(1.0, audit="a", origin=product.origin, num_runs=num_runs, threshold_rule=rule)
        write_table(tmp_path / "summary.tsv", pd.DataFrame([row]))
        lines = "\n".join(results.results_lines(results.read_results(tmp_path), tmp_path))
        results.print_results(tmp_path)
        said.append("New models, by another `seed`" in capsys.readouterr().out)
        return lines

    before = "NOT a valid bound (the audit was looked at before, with 8 runs)"
    assert "NOT" not in run(8) + run(8)  # the same number again is no other look
    text = " ".join(run(12).split())
    assert said == [False, False, True]
    assert text.startswith(f"Nothing can be stated: {before}: epsilon may be below 1.00.")
    assert re.search(r"\ba gradient 12 1\.00 .*\(not .*valid\)", text)
    assert "shown: number of the attack, not a valid lower bound, at the last step" in text
    assert "1.00 (not valid)" in AuditResults(tmp_path)._repr_html_()
    assert "substitute rows" not in text  # it is not counted among those that show something
    assert "Bounds that are not valid may exceed the truth more often" in text
    assert before in " ".join(run(12).split())
    assert "with 8, 12 runs" in " ".join(run(16).split())
    assert "NOT" not in run(20, "anytime")  # holds at every number of runs
    # A look that is named after it was made is not planned.
    assert "with 8, 12, 16 runs" in " ".join(run(20, "combined", looks=[8, 12, 16, 20]).split())
    # Another noise makes other runs, which nobody has seen.
    other = {"rule": "combined", "noise_multiplier": 3.0}
    for num_runs in (8, 12, 12):
        assert "NOT" not in run(num_runs, looks=[8, 12], **other)
    assert "with 8, 12 runs" in " ".join(run(24, looks=[8, 12, 24], **other).split())
    # Whoever comes back to runs that were seen has seen them.
    assert "NOT" not in run(10, score="transcript")
    assert "with 8, 12, 16, 20 runs" in " ".join(run(40).split())
    # Neither other recorded steps nor a figure alone, for which there is no summary, hide a look.
    products = Products(read_experiment(tmp_path / "experiment.json"))
    write_text(tmp_path / products.estimates("a").path, "seen")
    (tmp_path / "summary.tsv").unlink()
    assert "with 8, 12, 16, 20, 40 runs" in " ".join(run(80, record_every=1).split())
    # A config of another version does not say what was seen, and is not passed over silently.
    (tmp_path / "experiment.json").write_text('{"settings": {}}')
    record_looks(tmp_path, products.experiment)
    assert "it is not known at which numbers of runs" in capsys.readouterr().err


def test_bounds_of_a_target_and_of_an_audit_that_is_renamed_were_seen(tmp_path):
    def experiment(num_runs: int, sweep: str = "a", **changed: Any) -> Experiment:
        audit = {"num_steps": 2, "canary": "worst_case", "noise_multiplier": 2.0, **changed}
        audits = {sweep: {"sample_rate": 0.5, "num_runs": num_runs, "seed": 3, **audit}}
        return parse_experiment({"experiment": "e", "delta": 1e-5, "audits": audits})

    def seen(now: Experiment) -> str:
        return unplanned_looks_in_words(tmp_path, now, [*now.audits])

    first = experiment(8)
    product = Products(first).estimates("a")
    record_looks_at_targets(tmp_path, first)  # nothing has been made
    write_table(tmp_path / product.path, pd.DataFrame([{"origin": "estimates/a:0"}]))
    record_looks_at_targets(tmp_path, first)  # of other settings
    assert not (tmp_path / LOOKS).exists()
    write_table(tmp_path / product.path, pd.DataFrame([{"origin": product.origin}]))
    record_looks_at_targets(tmp_path, first)
    assert (seen(first), seen(experiment(12, noise_multiplier=3.0))) == ("", "")
    for more in (experiment(12), experiment(12, "other"), experiment(12, score="transcript")):
        assert "looked at before, with 8 runs" in seen(more)
