"""What a report says: its first page, its methods, and what it must not say."""

import hashlib
import json
import re
import struct
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from summaries import legend, row

from dpcanary import estimate_epsilon
from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
from dpcanary.accounting.mechanism import AccountingMethod
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.printing import confidence_in_words
from dpcanary.core.provenance import KEY, text_of_png, verified_in_words
from dpcanary.core.tsv_tables import write_table
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.unplanned_looks import record_looks
from dpcanary.figures.overview_figure import draw_overview
from dpcanary.reports.experiment_report import _of_real_record, report_of_experiment
from dpcanary.reports.headline import (
    Headline,
    Methods,
    OfRealRecord,
    accounting_sentence,
    bound_sentences,
    cited_source,
)
from dpcanary.reports.methods_of_audits import _settings_in_words
from dpcanary.reports.own_audit_report import report_of_own_audit
from dpcanary.reports.report_page import Report, html_of
from dpcanary.scoring.world_scores import WorldScores
from dpcanary.workflow.figure_files import FigureRules


def headline(**changes: object) -> Headline:
    fields = {
        **{"training": "DP-SGD.", "attack": "1,000 models with the gradient canary"},
        **{"adjacency": "substitute", "delta": 1e-5, "significance": 0.05, "shown": 8.919},
        **{"assumption": "the curve is Gaussian", "substitute": 9.991, "add_remove": 4.371},
    }
    return Headline(**fields | changes)


CRAFTED = {"attack": "1,000 models with a crafted gradient (gradient canary)"}
CRAFTED |= {"difference": "a crafted gradient", "is_real": False}
REAL = OfRealRecord(6.037, "900 models with another real record", "another real record", 2, "a")
SEVERAL = OfRealRecord(12.3, "40 models", "another real record", 1, "a", bounds=3, above=2)
BESIDE = CRAFTED | {"real": REAL}
MEMBERSHIP = {"substitute": nan, "adjacency": "add/remove"}
NO_NOISE = {"substitute": inf, "add_remove": inf}
DIFFERENT = "which is evidence that the two differ"
SURE = "with 95 % confidence"
BEYOND = {"advice": " Do this.", "above": 1}
# What is different, phrases that the answer has, and phrases that it has not.
ANSWERS: list[tuple[dict, str, str]] = [
    ({}, "(add/remove adjacency): epsilon is at most 4.38. Most libraries", "No audit here"),
    ({}, "to be in the data (substitute adjacency): epsilon is at most 10.00.", "real record"),
    ({}, f"Under substitute adjacency, epsilon is at least 8.91 {SURE}", "on average"),
    ({}, f"This is above the add/remove epsilon, {DIFFERENT}.", "on average"),
    # A real record stands beside a crafted attack.
    (CRAFTED, "This is not compared with a real record, which may leak less.", ""),
    (BESIDE, f"epsilon of the mechanism is at least 6.03, {SURE} for this", "No audit h"),
    (BESIDE, "This is the largest of 2 such results: its confidence is lower", ""),
    ({"is_real": True}, "epsilon is at most", "real record"),
    ({"is_real": None}, "epsilon is at most", "real record"),
    (CRAFTED | {"real": SEVERAL}, "2 of 3 bounds exceed what is accounted.", "is shown, by"),
    (CRAFTED | {"real": SEVERAL}, "12.30 on average over 3 bounds; their mean has no confi", ""),
    # A weak attack is no evidence of safety, and the number of an invalid bound is not stated.
    ({"shown": 3.0}, "no evidence that the training protects more", DIFFERENT),
    ({"shown": 0.0}, "Nothing is shown under substitute adjacency. A bound of 0", "least 0"),
    (
        CRAFTED | {"real": replace(REAL, shown=0.0)},
        "real record, nothing is shown. A bo",
        "least 0",
    ),
    ({"is_valid": False}, "Nothing: the audit has no valid lower bound. The curve is Gau", "8.9"),
    # What is refuted is not stated either, and the bound stays.
    ({"refuted": "ALARM: a."}, "Nothing, unless this is explained. ALARM: a.", "10.00"),
    ({"refuted": "ALARM: a."}, f"at least 8.91 {SURE}", "4.38"),
    # A mean of bounds has no confidence of its own.
    ({"bounds": 5}, "the mean of 5 lower bounds on epsilon is", DIFFERENT),
    ({"bounds": 5}, "each bound holds with 95 % confidence, and their mean has none of its", ""),
    # An audit of membership says nothing of content.
    (MEMBERSHIP | {"shown": 3.0}, "is not the epsilon of what the record says", DIFFERENT),
    # Without noise nothing is guaranteed.
    (NO_NOISE, "Nothing: the training adds no noise", "above"),
    (NO_NOISE, "epsilon is at least 8.91", "protects more"),
    ({"substitute": nan, "add_remove": nan}, "no epsilon was accounted. Under sub", "above"),
    # More than is accounted is an alarm.
    *(
        (changes | BEYOND, phrase, absent)
        for changes in ({"shown": 40.1}, MEMBERSHIP | {"shown": 14.3}, {"shown": 9.8, "bounds": 5})
        for phrase, absent in (
            (" what is accounted", DIFFERENT),
            ("Do this.", "should quote"),
            ("exceeds this: it holds only if that is explained", "evidence"),
        )
    ),
]


@pytest.mark.parametrize(("changes", "phrase", "absent"), ANSWERS)
def test_the_answer_of_the_first_page(changes, phrase, absent):
    text = " ".join(headline(**changes).answer)
    assert phrase in text
    assert not absent or absent not in text
    assert headline(**changes).measured == ""
    is_above = "above" in changes or changes.get("real") is SEVERAL
    assert bool(re.search("exceeds? what is accounted", text)) is is_above


def test_cards_of_bounds_say_what_they_rest_on_and_those_of_0_say_nothing():
    for changes, note in (
        ({}, "A lower bound with 95 % confidence, if the conditions below hold."),
        ({"shown": 0.0}, "A bound of 0 says nothing, and is no evidence of safety."),
        ({"bounds": 5}, "Each bound has 95 % confidence, and their mean has none."),
    ):
        [card] = [bar for bar in headline(**changes).bars if bar.kind == "shown"]
        assert card.note == note
    for real, note in (
        (REAL, "if it was chosen beforehand and the conditions below hold."),
        (SEVERAL, "adjacency. Each bound has 95 % confidence, and their mean has none."),
        (replace(REAL, shown=0.0), "adjacency. A bound of 0 says nothing, and is no evidence of s"),
    ):
        [card] = [bar for bar in headline(**CRAFTED, real=real).bars if bar.kind == "real"]
        assert note in card.note


def test_the_first_page_has_all_that_a_privacy_officer_asks_for():
    texts = {"data": "Digits.", "chosen": "Of 2 rows.", "measured": "Test accuracy 83.2%."}
    page = dict(headline(**CRAFTED, **texts, not_examined=["The loop."]).sections)
    names = "Claim, Guaranteed, Shown by attack, Data, Attack, Conditions, Not examined"
    assert ", ".join(page) == names
    assert page["Claim"] == [
        "DP-SGD.",
        "Accounted as (epsilon, delta)-differentially private with (4.38, 1e-05) under add/remove"
        " adjacency and (10.00, 1e-05) under substitute adjacency.",
        "Of 2 rows.",
    ]
    assert page["Data"] == ["Digits.", "Test accuracy 83.2%."]
    assert page["Attack"] == [f"An attack on {CRAFTED['attack']}, under substitute adjacency."]
    assert "The lower bound assumes: the curve is Gaussian." in page["Conditions"]
    assert page["Not examined"][0] == "The loop."
    assert any(text.startswith("People with several records") for text in page["Not examined"])
    # What does not hold is on no line of the page, and has no bar.
    for changes, number in (({"is_valid": False}, "8.9"), ({"refuted": "ALARM."}, "10.00")):
        other = headline(**changes)
        assert number not in str([*other.sections, *other.bars])
    membership = dict(headline(**MEMBERSHIP | {"adjacency": "zero-out"}).sections)
    assert "(4.38, 1e-05) under zero-out adjacency." in membership["Claim"][1]


def test_whose_epsilon_is_bounded_is_said_of_a_valid_bound():
    def conditions(**changes: object) -> str:
        return " ".join(dict(headline(**changes).sections)["Conditions"])

    gaussian, direct = {"conversion": Conversion.GDP}, {"conversion": Conversion.DIRECT}
    assert "bound on" not in conditions()
    assert "It is a bound on the mechanism" in conditions(**gaussian)
    assert "a bound on the mechanism" in conditions(conversion=Conversion.SUBSAMPLED_GAUSSIAN)
    assert "It is a bound on what is released" in conditions(**direct)
    assert conditions(**direct, is_valid=False).endswith("at delta 1e-05.")
    assert "Each single bound is one on the mechanism" in conditions(**gaussian, bounds=2)
    # The bound of a real record has its own conditions, also where the other one is not valid.
    real = OfRealRecord(3.0, "900 models", "another label", 1, "a line")
    both = conditions(**gaussian, real=real)
    assert "The lower bound assumes: the curve is Gaussian. That with a real record assum" in both
    assert both.endswith(
        "Both are bounds on the mechanism, over all data and for an attacker who sees every update."
    )
    alone = conditions(**gaussian, real=real, is_valid=False)
    assert "1e-05. That with a real record assumes: a line. It is a bound on the mech" in alone
    same = replace(real, assumption="the curve is Gaussian")
    assert "Each of the two lower bounds assumes: the curve is Gau" in conditions(real=same)


def bars(**changes: object) -> dict[str, tuple[str, str]]:
    """Labels and values by the kind of bar, in the order of the bars."""
    return {bar.kind: (bar.label, bar.value) for bar in headline(**changes).bars}


def test_bars_rise_have_names_and_are_rounded_to_the_safe_side():
    values = [(kind, value) for kind, (_, value) in bars(shown=8.919).items()]
    assert values == [("add-remove", "≤ 4.38"), ("shown", "≥ 8.91"), ("substitute", "≤ 10.00")]
    assert next(iter(bars(shown=2.0))) == "shown"
    assert [*bars(shown=20.0)][-1] == "shown"
    assert [bar.width for bar in headline(substitute=inf, add_remove=inf).bars] == [100, 100, 100]
    assert {*bars(substitute=nan)} == {"shown", "add-remove"}
    assert "mean of 5 bounds" in bars(bounds=5)["shown"][0]
    assert [*bars(is_valid=False)] == ["add-remove", "substitute"]
    unstated = headline(is_valid=False, shown=40.1, **BEYOND)
    assert "exceeds" not in " ".join(unstated.answer)
    assert [*bars(refuted="ALARM.")] == ["shown"]
    crafted = bars(**CRAFTED, real=REAL)
    assert crafted["shown"][0] == "Shown with a crafted gradient, substitute adjacency"
    assert crafted["real"] == ("Shown with a real record", "≥ 6.03")


def test_small_significances_are_not_rounded_to_certainty():
    said = {0.05: "95 %", 0.025: "97.5 %", 0.001: "99.9 %", 1e-6: "99.9999 %", 4e-7: "99.99996 %"}
    assert {value: confidence_in_words(value) for value in said} == said


def test_what_users_wrote_is_no_markup_and_no_citation():
    methods = Methods()
    methods.add("Data: {abadi} {my_file}<script>.csv.")
    methods.add("Again {abadi}, and {pradhan}.")
    assert methods.paragraphs == ["Data: [1] {my_file}<script>.csv.", "Again [1], and [2]."]
    assert len(methods.references) == 2
    parts = {name: [] for name in ("rows", "notes", "pictures", "data", "provenance")}
    parts |= {"methods": methods.paragraphs, "references": methods.references}
    report = Report("<b>title</b>", headline(), columns=("a",), **parts)
    page = html_of(report, author="A. <i>Lovelace")
    assert "<b>title" not in page
    assert "By A. &lt;i&gt;Lovelace, on 20" in page
    assert [("signature" in text) for text in (html_of(report), page)] == [True, False]
    assert "&lt;script&gt;.csv" in page


def test_every_rule_conversion_and_accountant_that_is_named_has_a_sentence():
    sentences = bound_sentences([*RULES], ["gdp", "direct", "subsampled_gaussian"])
    assert len(sentences) == len(RULES) + 3
    accounting = [accounting_sentence([method]) for method in AccountingMethod]
    assert all(accounting)
    methods = Methods()
    methods.add(*sentences, *accounting)
    assert "{" not in methods.paragraphs[0]
    assert cited_source("Steinke et al., 2023; Boglioni et al.") == "{boglioni}, {steinke}"


def test_only_the_summary_that_was_verified_counts_as_verified(tmp_path):
    assert verified_in_words(tmp_path) == ""
    summary, noted = "audit\tepsilon\na\t1.5\n", {"when": "today", "files": 7, "replayed": ["a"]}
    noted["summary"] = hashlib.sha256(summary.encode()).hexdigest()
    for text, exit_status, words in (
        (summary, 0, "today: 7 files recomputed, 1 retrained"),
        (summary.replace("1.5", "2.5"), 0, ""),
        (summary, 3, ""),
    ):
        (tmp_path / "summary.tsv").write_text(text)
        (tmp_path / "verified.json").write_text(json.dumps(noted | {"exit_status": exit_status}))
        assert verified_in_words(tmp_path) == words


@pytest.mark.parametrize(
    "other",
    [{"noise_multiplier": 3.0}, {"dataset": "two"}, {"num_steps": 5}, {"sample_rate": 0.25}],
)
def test_a_real_record_beside_a_crafted_one_is_of_the_same_training(other):
    datasets = {dataset: {"source": "digits", "num_records": 60} for dataset in ("one", "two")}
    crafted = {"noise_multiplier": 2.0, "sample_rate": 0.5, "num_steps": 4, "num_runs": 8}
    crafted |= {"canary": "gradient", "dataset": "one"}
    here = crafted | {"canary": "natural"}
    audits = {"crafted": crafted, "here": here, "there": here | other}
    config = {"experiment": "e", "delta": 1e-5, "datasets": datasets, "audits": audits}
    table = pd.DataFrame(audits.values()).assign(runs=8, audits=1, bounds=1, above_accounted=0)
    # The other training has the larger bound.
    table = table.assign(audit=[*audits], shown=[6.0, 1.25, 4.5], assumption="a")
    of_audit = partial(
        _of_real_record, parse_experiment(config), table, table.set_index("audit", drop=False)
    )
    real = of_audit("crafted")
    assert (real.shown, real.compared) == (1.25, 1)
    assert of_audit("here") is None


def _own_report(rule: str, adjacency: Adjacency, *around: float) -> tuple[float, Report]:
    """An own audit with the bound of a rule, and accounted epsilons at distances from it."""
    rng = np.random.default_rng(0)
    scores = WorldScores(rng.normal(6.0, 1.0, 200), rng.normal(0.0, 1.0, 200))
    worlds = {"world0_scores": scores.world0, "world1_scores": scores.world1}
    estimate = estimate_epsilon(**worlds, delta=1e-5, threshold_rule=rule)
    bound = estimate.epsilon_lower
    upper = [bound + distance for distance in around]
    accounted = EpsilonsByAdjacency(*upper, 1e-5, AccountingMethod.PLD) if upper else None
    return bound, report_of_own_audit(
        name="mine", scores=scores, estimate=estimate, adjacency=adjacency,
        mechanism=(2.0, 0.5, 7) if upper else None, accounted=accounted, seconds=1.0, findings=[],
    )  # fmt: skip


@pytest.mark.parametrize("adjacency", Adjacency)
def test_an_own_audit_is_compared_with_the_epsilon_of_its_adjacency(adjacency):
    """A bound between both epsilons is an alarm, unless the audit is of a substitution."""
    bound, report = _own_report("split", adjacency, -1, 1, 2)
    is_substitute = adjacency == "substitute"
    assert report.headline.add_remove == bound - 1
    expected = bound + 1 if is_substitute else pytest.approx(nan, nan_ok=True)
    assert report.headline.substitute == expected
    assert ("exceeds what is accounted" in " ".join(report.headline.answer)) is not is_substitute
    methods = " ".join(report.methods)
    assert "400 models were trained on two" in methods
    assert "The bound holds at delta 1e-05 with significance 0.05, and assumes: " in methods
    assert "400 scores" in html_of(report)


def test_methods_do_not_call_a_number_of_in_sample_a_bound():
    _, report = _own_report("in_sample", Adjacency.SUBSTITUTE)
    methods = " ".join(report.methods)
    assert "may exceed the truth with a probability above 0.05. It rests on this: NOT" in methods
    assert "The bound holds" not in methods


PROCESS = {"num_steps": 2, "canary": "worst_case", "noise_multiplier": 2}
POISSON = PROCESS | {"sample_rate": 0.5}


FIGURES = {
    "both": {"kind": "epsilon_by_step", "sweeps": ["a", "b"], "note": "a note"},
    "grown": {"kind": "epsilon_by_step", "sweeps": ["b"]},
    "other": {"kind": "epsilon_by_step", "sweeps": ["a"]},
    "curves": {"kind": "trade_off", "sweeps": ["b"], "shown": True},
    "errors": {"kind": "trade_off", "sweeps": ["b"]},
    "scores": {"kind": "score_histograms", "sweeps": ["b"]},
}


def _experiment_after(
    folder: Path, *all_runs: int, growing: str, audit: dict = POISSON, **options: object
) -> Experiment:
    """Audits a and b of a process have been summarised; those that grow had more runs each time."""
    folder.mkdir(exist_ok=True)
    for num_runs in all_runs:
        runs = {name: num_runs if name in growing else all_runs[-1] for name in "ab"}
        experiment = parse_experiment(
            {"experiment": "e", "delta": 1e-5, "threshold_rules": ["combined"], "figures": FIGURES,
             "audits": {name: audit | {"num_runs": number} for name, number in runs.items()}}
            | options
        )  # fmt: skip
        record_looks(folder, experiment)
        (folder / "experiment.json").write_text(experiment.to_json())
        fields = {"canary": "worst_case", "sample_rate": 0.5, "noise_multiplier": 2.0}
        fields |= {"threshold_rule": "combined", "epsilon_lower": 1.0, "assumption": "a curve"}
        rows = [
            row(
                **fields, audit=name, origin=product.origin, num_runs=runs[name], configuration=name
            )
            for name, product in zip("ab", Products(experiment).summary(["a", "b"]), strict=True)
        ]
        write_table(folder / "summary.tsv", pd.DataFrame(rows))
    return experiment


def _report_after(folder: Path, *all_runs: int, **options: Any) -> Report:
    _experiment_after(folder, *all_runs, **options)
    return report_of_experiment(folder)


def _notes_after(folder: Path, *all_runs: int, **options: Any) -> dict[str, str]:
    """The notes that figures have."""
    figures = FigureRules(str(folder), Products(_experiment_after(folder, *all_runs, **options)))
    settings = {name: figures.settings(SimpleNamespace(figure=name)) for name in FIGURES}
    return {name: note for name, text in settings.items() if (note := json.loads(text)["note"])}


def test_figures_say_which_bounds_were_made_after_a_look_without_a_plan(tmp_path):
    """Those of a figure that shows bounds, if the rule needs the number of runs to be planned."""
    assert _notes_after(tmp_path, 8, growing="b") == {"both": "a note"}
    seen = "(looked at before, with 8 runs), for which no confidence holds"
    of_all = f"NOT valid: the bounds of all audits {seen}"
    both = f"NOT valid: the bounds of b {seen}. a note"
    looked = {"both": both, "grown": of_all, "curves": of_all}
    assert _notes_after(tmp_path / "x", 8, 12, growing="b") == looked
    after = partial(_notes_after, tmp_path / "x", growing="b")
    assert after(12, threshold_rules=["anytime"]) == {"both": "a note"}
    grown = after(16, threshold_rules=["combined", "anytime"])["grown"]
    assert grown.endswith("confidence holds; those of rule anytime hold")
    assert "with 8, 12 runs)" in grown


def test_shuffled_passes_have_no_sample_rate(tmp_path):
    shuffled = PROCESS | {"sampling": "shuffled", "batches_per_pass": 2}
    options = {"audit": shuffled, "conversions": ["direct"], "figures": {}}
    report = _report_after(tmp_path / "x", 12, growing="", **options)
    assert "Settings: batches of a shuffled pass 2; noise multiplier 2;" in " ".join(report.methods)
    assert "shuffled passes of 2 batches" in report.headline.training


def test_methods_say_how_models_were_trained_and_the_range_of_many_values():
    varied = {"noise_multiplier": [1.0, 3.0], "learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5]}
    swept = varied | {
        "canary": "gradient", "dataset": "d", "sample_rate": 1.0, "num_steps": 2, "num_runs": 8,
        "loss": "binary_cross_entropy",
    }  # fmt: skip
    process = PROCESS | {"num_runs": 8, "sample_rate": 0.5}
    datasets = {"d": {"source": "digits", "num_records": 40}}
    config = {"experiment": "e", "delta": 1e-5, "datasets": datasets}
    audits = parse_experiment(config | {"audits": {"a": swept, "b": process}}).audits
    rows = pd.DataFrame([vars(audit) | {"data": "digits"} for audit in audits.values()], [*audits])
    _, settings, training = _settings_in_words(rows, [*audits.values()])
    assert settings.startswith("Settings: sample rate 0.5 and 1; noise multiplier 1, 2 and 3;")
    assert training == (
        "Training: model linear; loss binary_cross_entropy; optimiser sgd; first parameters zeros;"
        " score coordinate; learning rate 0.1 to 0.5 (5 values)."
    )


@pytest.mark.parametrize(("canary", "has_other_label"), [("mislabeled", True), ("natural", False)])
def test_methods_say_which_label_a_canary_has_where_labels_are_numbers(canary, has_other_label):
    audit = {
        "canary": canary, "dataset": "d", "sample_rate": 1.0, "num_steps": 2, "num_runs": 8,
        "noise_multiplier": 1.0, "loss": "squared_error",
    }  # fmt: skip
    dataset = {"source": "mine.csv", "num_records": 40, "label_kind": "numbers"}
    config = {"experiment": "e", "delta": 1e-5, "datasets": {"d": dataset}, "audits": {"a": audit}}
    audits = parse_experiment(config).audits
    rows = pd.DataFrame([vars(audit) | {"data": "mine"} for audit in audits.values()], [*audits])
    *_, last = _settings_in_words(rows, [*audits.values()])
    assert last.startswith("Labels are numbers: the label of a canary") is has_other_label


def test_methods_and_the_first_page_say_which_bounds_are_not_valid(tmp_path):
    valid = _report_after(tmp_path / "x", 12, growing="")
    methods = " ".join(valid.methods)
    assert "in both worlds, 12 times for each audit." in methods
    assert "0.05 each, and assumes of this what its row names: a curve." in methods
    assert "VALID" not in methods
    assert valid.headline.chosen.endswith("Each bound holds alone.")
    assert "Of the 2 rows of the table it is the first" in valid.headline.chosen  # one training
    assert [text.partition(":")[0] for text in valid.headline.not_examined] == ["Any training"]
    assert [name for name, _ in valid.sources] == ["summary.tsv", "experiment.json"]
    some = _report_after(tmp_path / "y", 8, 12, growing="b")
    methods = " ".join(some.methods)
    assert "and assume of this what their rows name: a curve. Those of b (rule" in methods
    assert "(rule combined) ARE NOT VALID LOWER BOUNDS: the audit was looked at with 8" in methods
    assert some.headline.chosen.endswith("Each valid bound holds alone.")
    assert [row.cells[4] for row in some.rows] == ["1.00", "no valid bound"]
    none = _report_after(tmp_path / "z", 8, 12, growing="ab")
    methods = " ".join(none.methods)
    assert "The numbers are computed at delta 1e-05 with significance 0.05 each. THEY" in methods
    assert none.headline.chosen.endswith("None of the bounds is valid.")
    assert "THEY ARE NOT VALID LOWER BOUNDS: each audit was looked at with 8 runs, and" in methods
    assert "Rule combined would be valid for a number of runs that was fixed before" in methods
    assert "Bounds hold" not in methods


def test_the_overview_shows_what_is_finite():
    table = pd.DataFrame({
        "audit": ["a", "b", "c"], "canary": "gradient", "rule": "combined",
        "shown": [3.219, 0.0, 0.5], "add_remove": [inf, 1, 1], "substitute": [inf, 2, 2],
        "adjacency": ["substitute", "substitute", "add_remove"], "bounds": 1,
    })  # fmt: skip
    # Numbers that are not valid are not shown.
    for proof, width, text in (("simulated", 3.219, "3.21"), ("not valid", 0.0, "no valid bound")):
        figure = draw_overview(table.assign(proof=[proof, "simulated", "simulated"]))
        [axes] = [axes for axes in figure.axes if axes.patches]
        assert [bar.get_width() for bar in axes.patches] == [width, 0.0, 0.5]
        assert [text.get_text() for text in axes.texts] == [text, "0.00", "0.50"]
        # The second row has both marks, the third only that of its own adjacency.
        assert len(axes.collections) == 3
    assert "shown by attack: epsilon is at least this" in legend(figure)
    of_means = draw_overview(table.assign(proof="simulated", bounds=[2, 1, 1]))
    assert "shown by attack: a lower bound, or a mean of several" in legend(of_means)
    [axes] = [axes for axes in of_means.axes if axes.patches]
    assert [text.get_text() for text in axes.texts] == ["3.21 (mean of 2)", "0.00", "0.50"]
    notes = " ".join(text.get_text() for part in of_means.subfigs for text in part.texts)
    assert "A mean of several bounds is no bound" in notes
    with pytest.raises(InputError, match="no valid bound"):
        draw_overview(table[:0])


def test_the_origin_of_a_figure_is_found_behind_other_parts_of_its_file(tmp_path):
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", len(content), kind) + content + b"\0\1\2\3"

    parts = [chunk(b"IHDR", bytes(13)), chunk(b"tEXt", b"Software\0something")]
    path, origin = tmp_path / "figure.png", chunk(b"tEXt", KEY.encode() + b"\0of this")
    for chunks, text in (([*parts, origin], "of this"), (parts, "")):
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
        assert text_of_png(path) == text
    for damaged in (b"\0\0\0", b"\0\0\0\0\0\xff"):
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"iTXt", KEY.encode() + damaged))
        with pytest.raises(InputError, match=r"figure\.png is damaged"):
            text_of_png(path)
