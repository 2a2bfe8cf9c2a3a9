"""Accuracies of models by their training record, compared with sums by hand."""

from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
from summaries import legend, row, summary_of, written_below

from dpcanary.errors import InputError
from dpcanary.figures.accuracy import accuracy_table, draw_test_accuracy

SUMMARY = summary_of(canaries=["gradient", "crafted_input", "natural"])
GRADIENT, CRAFTED, NATURAL = "gradient-1.0-22.37", "crafted_input-1.0-22.37", "natural-1.0-22.37"


def _tested(*names: str, num_repeats: int = 3, num_runs: int = 6) -> dict[str, np.ndarray]:
    """Accuracies on a thousand test records, by audit: even runs are of world 0."""
    rng = np.random.default_rng(0)
    return {name: rng.integers(700, 900, (num_repeats, num_runs)) / 1000 for name in names}


def _row_of(table: pd.DataFrame, trained_on: str) -> "pd.Series[float]":
    return table[table["trained_on"] == trained_on].iloc[0]


def test_means_and_errors_are_those_of_a_loop() -> None:
    tested = _tested(GRADIENT, CRAFTED, NATURAL)
    table = accuracy_table(tested, SUMMARY)
    gradient, crafted, natural = (accuracy.tolist() for accuracy in tested.values())
    wanted = {
        "target_record": [mean(repeat[0::2]) for repeat in [*crafted, *natural]],
        "gradient": [mean(repeat) for repeat in gradient],
        "crafted_input": [mean(repeat[1::2]) for repeat in crafted],
        "natural": [mean(repeat[1::2]) for repeat in natural],
    }
    assert table["trained_on"].tolist() == list(wanted)
    for trained_on, means in wanted.items():
        found = _row_of(table, trained_on)
        assert found["accuracy"] == pytest.approx(mean(means))
        assert found["error_bar"] == pytest.approx(2 * stdev(means) / len(means) ** 0.5)
        assert found["num_repeats"] == len(means)
    assert _row_of(table, "target_record")["num_models"] == 18
    assert _row_of(table, "gradient")["num_models"] == 18
    assert _row_of(table, "natural")["num_models"] == 9


def test_differences_are_from_the_target_record_of_the_same_sample_rate() -> None:
    names = SUMMARY["audit"].unique()
    table = accuracy_table(_tested(*names), SUMMARY)
    assert table["sample_rate"].tolist() == [1.0] * 4 + [0.25] * 4
    for _, rows in table.groupby("sample_rate"):
        target = _row_of(rows, "target_record")
        assert np.isnan(target["difference"])
        for canary in ("gradient", "crafted_input", "natural"):
            found = _row_of(rows, canary)
            assert found["difference"] == pytest.approx(found["accuracy"] - target["accuracy"])
            squares = found["error_bar"] ** 2 + target["error_bar"] ** 2
            assert found["difference_error_bar"] == pytest.approx(squares**0.5)


def test_spread_is_the_central_95_per_cent_of_the_models() -> None:
    accuracy = np.random.default_rng(1).permutation(np.arange(1001) / 1000)
    found = accuracy_table({GRADIENT: accuracy[None]}, SUMMARY).iloc[0]
    assert (found["models_low"], found["models_high"]) == pytest.approx((0.025, 0.975))


def test_audits_with_the_same_models_of_world_0_count_them_once() -> None:
    tested = _tested(CRAFTED, NATURAL)
    tested[NATURAL][:, 0::2] = tested[CRAFTED][:, 0::2]
    target = _row_of(accuracy_table(tested, SUMMARY), "target_record")
    assert (target["num_repeats"], target["num_models"]) == (3, 9)


def test_bars_begin_at_zero_and_show_the_table() -> None:
    figure, table = draw_test_accuracy(_tested(*SUMMARY["audit"].unique()), SUMMARY, note="A note")
    bars, differences = figure.axes
    assert bars.get_ylim()[0] == 0
    assert bars.get_ylim()[1] > 100
    heights = sorted(patch.get_height() for patch in bars.patches)
    assert heights == pytest.approx(sorted(100 * table["accuracy"]))
    labels = sorted(text.get_text() for text in bars.texts)
    assert labels == sorted(f"{100 * value:.1f}" for value in table["accuracy"])
    drawn = [y for line in differences.containers for y in line.lines[0].get_ydata()]
    assert sorted(drawn) == pytest.approx(sorted(100 * table["difference"].dropna()))
    low, high = differences.get_ylim()
    assert low == -high <= -1.0
    assert written_below(figure)[0] == "A note"
    assert written_below(figure)[-1] == "Data: digits, N = 500 private records"


def test_the_target_record_comes_first_even_where_one_sample_rate_has_none() -> None:
    tested = _tested(GRADIENT, "gradient-0.25-5.574", "natural-0.25-5.574")
    figure, _ = draw_test_accuracy(tested, SUMMARY)
    assert [*legend(figure)][1:4] == ["target record", "gradient", "natural"]
    # The bars are drawn in this order: one of the target record, two of gradient, one of natural.
    places = [patch.get_x() for patch in figure.axes[0].patches]
    assert places[1] < places[0] < places[2] < places[3]


def test_one_repeat_has_no_error_bar_and_gradients_alone_no_difference() -> None:
    figure, table = draw_test_accuracy(_tested(GRADIENT, num_repeats=1), SUMMARY)
    assert table[["error_bar", "difference"]].isna().all(axis=None)
    assert len(figure.axes) == 1
    figure, table = draw_test_accuracy(_tested(CRAFTED, num_repeats=1), SUMMARY)
    assert table["error_bar"].isna().all()
    assert len(figure.axes) == 2


@pytest.mark.parametrize(
    ("audit", "changes", "message"),
    [
        ("w", {"canary": "worst_case"}, "audit w trains no models"),
        ("a", {"adjacency": "add_remove"}, "audit a audits adjacency add_remove"),
        ("s", {"num_slots": 4}, "audit s has 4 slots"),
        ("b", {"max_grad_norm": 4.0}, r"differ in max_grad_norm \(2 and 4\)"),
        ("b", {"noise_multiplier": 30.0}, "differ in noise_multiplier"),
        ("b", {}, "natural-1.0-22.37 and b have the same canary, score and sample rate"),
        ("absent", None, "the summary has no audit absent"),
    ],
)
def test_audits_that_do_not_fit_are_refused(audit: str, changes: dict | None, message: str) -> None:
    settings = {"canary": "natural", "sample_rate": 1.0, "noise_multiplier": 22.37}
    rows = [] if changes is None else [row(**(settings | changes | {"audit": audit}))]
    summary = pd.concat([SUMMARY, pd.DataFrame(rows)])
    with pytest.raises(InputError, match=message):
        draw_test_accuracy(_tested(NATURAL, audit), summary)


def test_models_without_a_test_accuracy_are_refused() -> None:
    models = {NATURAL: np.full((1, 4), np.nan)}
    with pytest.raises(InputError, match=f"audit {NATURAL}: the test accuracy of a model is NaN"):
        draw_test_accuracy(models, SUMMARY)
    with pytest.raises(InputError, match="no audit to show"):
        draw_test_accuracy({}, SUMMARY)
