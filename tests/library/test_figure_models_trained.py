"""The figure of what models trained prove: its lines, its numbers, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
from summaries import legend, row, titles, written_below

from dpcanary.errors import InputError
from dpcanary.estimation.rules import RULES
from dpcanary.figures.models_trained import draw_models_trained

_RULES = [("combined", "gdp"), ("combined", "direct"), ("in_sample", "gdp")]
_GUESSES = [("mahloujifar", "gdp"), ("mahloujifar", "direct"), ("steinke", "direct")]


def summary(**changes: object) -> pd.DataFrame:
    """Audits with 1 and with 500 slots, at several numbers of runs, two repeats each."""
    rows = [
        row(
            canary="gradient",
            sample_rate=1.0,
            noise_multiplier=10.0,
            audit=f"a-{slots}",
            num_slots=slots,
            num_runs=runs,
            repeat=repeat,
            threshold_rule=rule,
            conversion=conversion,
            epsilon_lower=runs / 100 + len(rule) + repeat,
        )
        | changes
        for slots, numbers, rules in ((1, (10, 100), _RULES), (500, (1, 10), _RULES + _GUESSES))
        for runs in numbers
        for repeat in (0, 1)
        for rule, conversion in rules
    ]
    return pd.DataFrame(rows)


def test_a_line_for_each_number_of_slots_and_valid_rule():
    figure, table = draw_models_trained(summary(), note="mine")
    lines = table.groupby(["num_slots", "threshold_rule", "conversion"])["num_runs"].apply(list)
    assert lines.to_dict() == {
        (1, "combined", "gdp"): [10, 100],
        (500, "combined", "gdp"): [1, 10],
        (500, "mahloujifar", "gdp"): [1, 10],
        (500, "steinke", "direct"): [1, 10],
    }
    np.testing.assert_allclose(
        table["epsilon"], table["num_runs"] / 100 + table["threshold_rule"].str.len() + 0.5
    )
    np.testing.assert_allclose(table["error_bar"], 1.0)  # two standard errors of 0 and 1
    below = " ".join(written_below(figure))
    assert "mine" in below
    assert "95 % confidence" in below
    assert {
        "500 canaries in each model: Mahloujifar (any dependence)",
        "500 canaries in each model: Steinke (any dependence, direct conversion)",
        "500 canaries in each model: combined (independent slots)",
        "1 canary in each model: combined",
    } < {*legend(figure)}


def test_rules_with_one_canary_are_told_apart():
    """In the order of the catalogue, whatever the order of a set."""
    rules = ["split", "calibrated", "anytime", "combined"]
    rows = pd.concat([summary(threshold_rule=rule).query("num_slots == 1") for rule in rules])
    [axes] = draw_models_trained(rows)[0].axes
    looks = [(line.get_color(), line.get_marker()) for line in axes.lines if len(line.get_xdata())]
    drawn = {look for look in looks if look[1] not in ("None", "_", "|")}
    assert len({colour for colour, _ in drawn}) == len({marker for _, marker in drawn}) == 4
    named = [text for text in legend(draw_models_trained(rows)[0]) if text.startswith("1 canary")]
    in_order = [f"1 canary in each model: {rule}" for rule in RULES if rule in rules]
    assert named == in_order


def test_with_several_audits_the_error_is_that_over_audits():
    """By hand: audits of means 2 and 6 have mean 4 and standard error sqrt(8 / 2) = 2."""
    bounds = {"a": (1.0, 3.0), "b": (5.5, 6.5)}
    common: dict[str, object] = {"sample_rate": 1.0, "noise_multiplier": 10.0, "canary": "gradient"}
    common |= {"threshold_rule": "combined", "conversion": "gdp"}
    rows = [
        row(audit=audit, repeat=repeat, epsilon_lower=value, **common)
        for audit, values in bounds.items()
        for repeat, value in enumerate(values)
    ]
    table = draw_models_trained(pd.DataFrame(rows))[1]
    assert table[["epsilon", "error_bar", "num_repeats"]].to_numpy().tolist() == [[4.0, 4.0, 4]]


def test_panels():
    both = pd.concat([summary(), summary(sample_rate=0.25, noise_multiplier=3.0)])
    figure, table = draw_models_trained(both)
    assert titles(figure) == ["q = 1, σ = 10", "q = 0.25, σ = 3"]  # noqa: RUF001
    assert len(table) == 16


@pytest.mark.parametrize("column", ["canary", "delta", "significance", "adjacency"])
def test_audits_that_differ_in_what_is_not_shown(column):
    other = {"canary": "natural", "delta": 1e-6, "significance": 0.1, "adjacency": "add_remove"}
    both = pd.concat([summary(), summary(**{column: other[column]})])
    with pytest.raises(InputError, match=f"the audits differ in {column}"):
        draw_models_trained(both)


def test_bounds_that_are_not_valid_are_not_drawn():
    rows = summary()
    with pytest.raises(InputError, match="no valid bound"):
        draw_models_trained(rows[~rows["is_valid"]])
