"""The figure of canary sets: its means and paired differences, and what it refuses."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_1samp, ttest_rel
from summaries import legend, row, titles, written_below

from dpcanary.errors import InputError
from dpcanary.figures.canary_sets import draw_canary_sets

CANARIES, STEPS, REPEATS = ("random_record", "loss", "metagradient"), (50, 100), 5
RULES = [("mahloujifar", "gdp"), ("mahloujifar", "direct"), ("steinke", "direct")]


def tables(**changes: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Bounds and loss gaps of three sets, at two steps of five trainings."""
    rng = np.random.default_rng(0)
    rows, gaps = [], []
    known = {"score": "loss", "sample_rate": 0.5, "noise_multiplier": 1.0, "num_runs": 1}
    known |= {"adjacency": "add_remove", "num_slots": 200}
    for canary, step, repeat in product(CANARIES, STEPS, range(REPEATS)):
        place = {"audit": f"a-{canary}", "step": step, "repeat": repeat}
        gaps.append(place | {"loss_gap": len(canary) / 10 + rng.normal()})
        for rule, conversion in RULES:
            bound = {"threshold_rule": rule, "conversion": conversion}
            bound["epsilon_lower"] = rng.exponential()
            rows.append(row(canary=canary, **known, **place, **bound) | changes)
    return pd.DataFrame(rows), pd.DataFrame(gaps)


def test_means_and_paired_differences_are_those_of_scipy():
    summary, gaps = tables()
    figure, table = draw_canary_sets(summary, gaps, note="mine")
    assert {*table["measure"]} == {"loss_gap", "mahloujifar", "steinke"}
    assert len(table) == 3 * 2 * (3 + 6)
    wide = gaps.assign(canary=gaps["audit"].str.removeprefix("a-"))
    wide = wide[wide["step"] == 100].pivot(index="repeat", columns="canary", values="loss_gap")
    place = table.set_index(["measure", "step", "canary", "compared_with"])
    own = place.loc[("loss_gap", 100, "metagradient", "")]
    interval = ttest_1samp(wide["metagradient"], 0).confidence_interval(0.95)
    np.testing.assert_allclose(own[["lower", "upper"]].astype(float), interval)
    assert own["mean"] == pytest.approx(wide["metagradient"].mean())
    assert own["median"] == pytest.approx(wide["metagradient"].median())
    assert own["num_repeats"] == REPEATS
    paired = place.loc[("loss_gap", 100, "metagradient", "loss")]
    interval = ttest_rel(wide["metagradient"], wide["loss"]).confidence_interval(0.95)
    np.testing.assert_allclose(paired[["lower", "upper"]].astype(float), interval)
    bounds = summary[
        (summary["threshold_rule"] == "steinke")
        & (summary["step"] == 50)
        & (summary["canary"] == "loss")
    ]
    assert place.loc[("steinke", 50, "loss", "")]["mean"] == pytest.approx(
        bounds["epsilon_lower"].mean()
    )
    below = " ".join(written_below(figure))
    assert "mine" in below
    assert "5 repeats" in below
    assert titles(figure) == [
        "Loss of canaries out minus in",
        "Mahloujifar (any dependence)",
        "Steinke (any dependence)",
    ]
    assert {"random record", "mislabeled record (loss)", "metagradient"} <= {*legend(figure)}


def test_one_training_has_no_interval():
    summary, gaps = (one[one["repeat"] == 0] for one in tables())
    _, table = draw_canary_sets(summary, gaps)
    assert table[["lower", "upper"]].isna().all(axis=None)
    assert table["mean"].notna().all()


def test_training_without_privacy_has_no_accounted_line():
    summary, gaps = tables(noise_multiplier=0.0, epsilon_upper_add_remove=np.inf)
    figure, _ = draw_canary_sets(summary, gaps)
    assert "no finite upper bound" in " ".join(written_below(figure))
    limits = [axes.get_ylim()[1] for part in figure.subfigs for axes in part.axes]
    assert np.isfinite(limits).all()


def test_under_substitute_the_bound_is_that_of_substitution():
    summary, gaps = tables(adjacency="substitute")
    summary = summary[summary["canary"] != "random_record"]
    figure, _ = draw_canary_sets(summary, gaps)
    axes = [one for part in figure.subfigs for one in part.axes][1]
    drawn = {float(line.get_ydata()[0]) for line in axes.lines if len(line.get_ydata()) == 2}
    assert {10.0, 4.4} <= drawn


def test_bounds_of_single_slots_are_not_shown():
    with pytest.raises(InputError, match="no valid bound of all slots together"):
        draw_canary_sets(*tables(slot=1.0))


OTHER = {
    "model": "convnet",
    "noise_multiplier": 2.0,
    "max_grad_norm": 4.0,
    "num_slots": 10,
    "delta": 1e-6,
    "batch_size": 8.0,
    "seed": 3,
}


@pytest.mark.parametrize(("column", "value"), OTHER.items())
def test_audits_that_differ_in_more_than_the_canary(column, value):
    summary, gaps = tables()
    summary.loc[summary["canary"] == "loss", column] = value
    with pytest.raises(InputError, match=f"the audits differ in {column}"):
        draw_canary_sets(summary, gaps)


def test_two_audits_of_one_canary():
    summary, gaps = tables()
    again = summary[summary["canary"] == "loss"].assign(audit="b-loss")
    with pytest.raises(InputError, match="two audits have the same canary"):
        draw_canary_sets(pd.concat([summary, again]), gaps)
