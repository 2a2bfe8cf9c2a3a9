"""Figures of bounds show the numbers of the summary, and refuse what they cannot show."""

from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from summaries import ACCOUNTED, legend, row, summary_of, titles, written_below

from dpcanary.errors import InputError
from dpcanary.fields import Shown
from dpcanary.figures.bounds import draw_bounds_figure
from dpcanary.figures.style import canary_colour, variant_options
from dpcanary.summary import AXES, SHOWN


def _drawn(axes, colour: str) -> list[np.ndarray]:
    """The points of each line in the panel that has this colour and a canary's marker."""
    return [
        np.column_stack(line.get_data())
        for line in axes.get_lines()
        if line.get_color() == colour and line.get_marker() not in ("", ".", "None", "_", "|")
    ]


def _bounds(summary: pd.DataFrame, **where: object) -> list[float]:
    """The lower bounds of the shown rule and conversion, found by a loop."""
    wanted = where | {"threshold_rule": "simultaneous", "conversion": "gdp"}
    return [
        one.epsilon_lower
        for one in summary.itertuples()
        if all(getattr(one, name) == value for name, value in wanted.items())
    ]


def _check_means(
    table: pd.DataFrame, summary: pd.DataFrame, units: str, *, num_repeats: int = 3, **where: object
) -> None:
    """Each audited point is the mean over three units, with two standard errors."""
    audited = table[table["series"] == "audited"]
    assert len(audited) > 2
    for point in audited.itertuples():
        here = where | {key: getattr(point, key) for key in ("canary", "sample_rate", "step")}
        if "num_runs" in table and table["num_runs"].nunique() > 1:
            here["num_runs"] = point.num_runs
        means = [mean(_bounds(summary, **here, **{units: one})) for one in summary[units].unique()]
        assert point.num_repeats == num_repeats
        assert point.epsilon == pytest.approx(mean(means))
        assert point.error_bar == pytest.approx(2 * stdev(means) / len(means) ** 0.5)


def test_audited_points_are_means_with_two_standard_errors() -> None:
    summary = summary_of()
    _, table = draw_bounds_figure(summary, axis="step")
    assert (table["series"] == "audited").sum() == 2 * 2 * 3
    _check_means(table, summary, "repeat")


@pytest.mark.parametrize(
    ("noise", "labels"),
    [
        ([0.8, 1.0, 1.5], ["0.8", "1", "1.5"]),
        ([1.23456, 2.0], ["1.23", "2"]),
        ([1.0, 7.0, 20.0], ["1", "2", "5", "10", "20"]),
    ],
)
def test_an_axis_of_noise_has_labels_also_in_a_small_range(noise, labels):
    settings = [(0.25, one) for one in noise]
    figure, _ = draw_bounds_figure(summary_of(settings=settings), axis="noise_multiplier")
    figure.canvas.draw()
    [axes] = [axes for axes in figure.axes if axes.get_title()]
    low, high = axes.get_xlim()
    shown = [one.get_text() for one in axes.get_xticklabels() if low < one.get_position()[0] < high]
    assert shown == labels


@pytest.mark.parametrize("group_privacy", [12.0, 900.0])
def test_every_line_but_that_of_group_privacy_is_inside_the_panels(group_privacy):
    upper = {"epsilon_upper_group_privacy": group_privacy}
    figure, table = draw_bounds_figure(summary_of(steps=[500]).assign(**upper), axis="step")
    others = table[table["series"] != "accounted_group_privacy"]
    highest = (others["epsilon"] + others["error_bar"].fillna(0)).max()
    tops = {axes.get_ylim()[1] for axes in figure.axes if axes.get_title()}
    assert all(highest < top < 2 * highest for top in tops)
    assert all((group_privacy < top) == (group_privacy < 100) for top in tops)


def test_a_heuristic_that_is_not_known_is_said_and_not_drawn():
    drawn, table = draw_bounds_figure(
        summary_of(epsilon_heuristic=3.0), axis="step", heuristic=True
    )
    assert "not a bound:" in legend(drawn)
    assert table[table["series"] == "heuristic"]["epsilon"].eq(3.0).all()
    figure, _ = draw_bounds_figure(
        summary_of(epsilon_heuristic=np.nan), axis="step", heuristic=True
    )
    assert "not a bound:" not in legend(figure)
    assert "The heuristic is not known here" in written_below(figure)
    assert "The heuristic is not known here" not in written_below(drawn)


def test_accounted_curves_are_those_of_the_summary() -> None:
    _, table = draw_bounds_figure(summary_of(), axis="step")
    for name, value in ACCOUNTED.items():
        curve = table[(table["series"] == f"accounted_{name}") & (table["sample_rate"] == 1.0)]
        assert curve["step"].tolist() == [100, 300, 500]
        assert curve["epsilon"].tolist() == pytest.approx([0.2 * value, 0.6 * value, value])


def test_the_lines_and_bars_drawn_are_the_tables() -> None:
    figure, table = draw_bounds_figure(summary_of(), axis="step")
    axes = next(axes for axes in figure.axes if axes.get_title() == "q = 0.25, σ = 5.57")  # noqa: RUF001
    points = table[(table["sample_rate"] == 0.25) & (table["canary"] == "gradient")]
    points = points[points["series"] == "audited"]
    (drawn,) = _drawn(axes, "#0072B2")
    assert drawn.tolist() == points[["step", "epsilon"]].to_numpy().tolist()
    bars = axes.containers[0].lines[2][0].get_segments()
    heights = [segment[1, 1] - segment[0, 1] for segment in bars]
    assert heights == pytest.approx((2 * points["error_bar"]).tolist())


def test_slots_with_bounds_of_their_own_are_averaged_before_repeats() -> None:
    """Slots of a repeat share its models, so the error bar is that of repeats only."""
    parts = [summary_of(num_slots=3, slot=slot) for slot in range(3)]
    summary = pd.concat(
        [
            part.assign(epsilon_lower=part["epsilon_lower"] + 5 * slot**2)
            for slot, part in enumerate(parts)
        ]
    )
    _check_means(draw_bounds_figure(summary, axis="step")[1], summary, "repeat")


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        (["simultaneous", "split"], {"simultaneous"}),
        (["split", "simultaneous"], {"split"}),
        (["in_sample", "split", "simultaneous"], {"split", "in_sample"}),
        (["split"], {"split"}),
        (["split", "in_sample"], {"split", "in_sample"}),
        (["in_sample"], {"in_sample"}),
    ],
)
def test_the_first_valid_rule_is_shown_and_in_sample_apart(
    rules: list[str], shown: set[str]
) -> None:
    _, table = draw_bounds_figure(summary_of(rules=rules), axis="step")
    assert set(table["threshold_rule"].dropna()) == shown
    if "in_sample" in rules:
        drawn_too = draw_bounds_figure(summary_of(rules=rules), axis="step", in_sample=True)[1]
        pd.testing.assert_frame_equal(table, drawn_too)
    in_sample = table[table["threshold_rule"] == "in_sample"]
    assert (in_sample["series"] == "audited_in_sample").all()
    assert ((table["series"] == "audited_in_sample").sum() > 0) == ("in_sample" in shown)


def test_direct_conversion_is_shown_only_without_gdp() -> None:
    summary = summary_of()
    _, table = draw_bounds_figure(summary, axis="step")
    assert set(table["conversion"].dropna()) == {"gdp"}
    _, table = draw_bounds_figure(summary[summary["conversion"] == "direct"], axis="step")
    assert set(table["conversion"].dropna()) == {"direct"}


def test_the_notes_state_what_the_bounds_assume_and_were_measured_on() -> None:
    note = "Reduced scale: 2 settings, $5 and $6"
    figure, _ = draw_bounds_figure(summary_of(), axis="step", note=note)
    assert " ".join(written_below(figure)) == (
        f"{note} Lower bounds: simultaneous rule, GDP conversion, 95 % confidence for each point"
        " alone, R = 1,000 models; mean ± 2 standard errors of 3 repeats"
        f" {_price(summary_of())[0]}"
        " Data: digits, N = 500 private records"
    )


def _price(summary: pd.DataFrame) -> list[str]:
    """The lines below the figure that compare two rules."""
    figure, _ = draw_bounds_figure(summary, axis="step")
    return [line for line in written_below(figure) if "which is not valid" in line]


def _two_rules(more: float, rule: str = "in_sample") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows of a valid rule, and of one that is not valid and gives `more`."""
    valid = summary_of(rules=["simultaneous"])
    changes = {"threshold_rule": rule, "is_valid": False}
    return valid, valid.assign(**changes, epsilon_lower=valid["epsilon_lower"] + more)


@pytest.mark.parametrize(
    ("more", "compared"),
    [
        (0.5, "0.50 higher"),
        (-0.12, "0.12 lower"),
        (0.006, "0.01 higher"),
        (0.004, "the same to within 0.01"),
        (0.0, "the same to within 0.01"),
    ],
)
def test_a_note_says_how_far_the_rule_that_is_not_valid_is(more: float, compared: str) -> None:
    bounds = f"which is not valid, gives bounds that are {compared} on average"
    assert _price(pd.concat(_two_rules(more))) == [f"The rule of most papers (in_sample), {bounds}"]
    assert _price(pd.concat(_two_rules(more, rule="mine"))) == [f"Rule mine, {bounds}"]


def test_the_difference_of_two_rules_is_the_mean_over_the_points_of_both() -> None:
    valid, other = _two_rules(0.5)
    valid.loc[valid["step"] == 100, "epsilon_lower"] += 7  # a point of one rule alone
    other = other[other["step"] != 100].copy()
    other.loc[other["step"] == 300, "epsilon_lower"] += 4  # one of two points
    other.loc[other["repeat"] == 0, "epsilon_lower"] += 3  # one of three repeats
    assert "that are 3.50 higher" in _price(pd.concat([valid, other]))[0]
    assert _price(pd.concat([valid[valid["step"] == 100], other[other["step"] == 500]])) == []


def test_there_is_no_comparison_where_only_one_kind_of_rule_is() -> None:
    for rules in (["simultaneous", "split"], ["in_sample"]):
        assert _price(summary_of(rules=rules)) == []


@pytest.mark.parametrize(
    ("distances", "stated"),
    [
        ([0.0, 0.0], ""),
        ([float("nan"), float("nan")], ""),
        ([float("nan"), 0.0], ""),
        ([0.0, 0.0041], "at most 0.0041 in FNR)"),
        ([0.0, 0.00412], "at most 0.0042 in FNR)"),  # rounded up
        ([0.012, 0.004], "at most 0.012 in FNR)"),
        ([0.0, 0.00025], "at most 2.5·10⁻⁴ in FNR)"),
        ([float("nan"), 0.03], "at most 0.03 in FNR, where this is known)"),
    ],
)
def test_the_note_says_how_far_the_mechanisms_are_from_gaussian_ones(
    distances: list[float], stated: str
) -> None:
    summary = summary_of(rules=["simultaneous"])
    summary["gaussian_distance"] = summary["sample_rate"].map(
        dict(zip((1.0, 0.25), distances, strict=True))
    )
    differ = " (the accounted curves differ from Gaussian ones by " if stated else ""
    for conversion, expected in (
        ("gdp", f"GDP conversion{differ}{stated},"),
        ("direct", "direct conversion,"),
    ):
        figure, _ = draw_bounds_figure(summary[summary["conversion"] == conversion], axis="step")
        assert expected in " ".join(written_below(figure))


def test_data_of_drawn_and_of_trained_audits_are_both_named() -> None:
    both = summary_of(canaries=["worst_case", "gradient"])
    is_trained = both["canary"] == "gradient"
    both.loc[is_trained, "data"] = "sst2, all-MiniLM-L6-v2"
    figure, _ = draw_bounds_figure(both, axis="step")
    [data] = [line for line in written_below(figure) if "Data" in line]
    assert data == (
        "Data: sst2, all-MiniLM-L6-v2, N = 500 private records; worst case: simulated,"
        " without records"
    )
    figure, _ = draw_bounds_figure(both[~is_trained], axis="step")
    assert written_below(figure)[-1] == "Data: worst case: simulated, without records"


@pytest.mark.parametrize("axis", ["step", "noise_multiplier"])
def test_accounted_epsilons_of_one_point_are_visible(axis: str) -> None:
    summary = summary_of()
    figure, _ = draw_bounds_figure(summary[summary["step"] == 500], axis=axis)
    for axes in figure.axes:
        black = [np.column_stack(line.get_data()) for line in axes.get_lines()[:3]]
        assert [line[:, 1].tolist() for line in black] == [[10.0] * 2, [4.4] * 2, [11.0] * 2]
        low, high = axes.get_xlim()
        assert all(low < line[0, 0] < line[1, 0] < high for line in black)


def test_by_noise_shows_each_audits_last_step() -> None:
    figure, table = draw_bounds_figure(summary_of(), axis="noise_multiplier")
    assert set(table["step"]) == {500}
    assert titles(figure) == ["q = 1", "q = 0.25"]
    (drawn,) = _drawn(figure.axes[0], "#0072B2")
    here = table[(table["series"] == "audited") & (table["canary"] == "gradient")]
    expected = here[here["sample_rate"] == 1.0][["noise_multiplier", "epsilon"]]
    assert drawn.tolist() == expected.to_numpy().tolist()


def test_an_axis_of_a_setting_that_may_be_zero_is_linear() -> None:
    summary = summary_of(axis={"learning_rate": [0.0, 10.0]}, steps=(500,))
    figure, _ = draw_bounds_figure(summary, axis="learning_rate")
    (axes, *_) = figure.axes
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] <= 0.0 < 10.0 < axes.get_xlim()[1]


def test_a_bound_of_zero_stays_visible() -> None:
    summary = summary_of()
    assert draw_bounds_figure(summary, axis="noise_multiplier")[0].axes[0].get_yscale() == "log"
    summary["epsilon_lower"] = 0.0
    figure, table = draw_bounds_figure(summary, axis="noise_multiplier")
    assert (table.loc[table["series"] == "audited", "epsilon"] == 0).all()
    assert figure.axes[0].get_yscale() == "linear"


def test_scores_of_one_canary_are_told_apart() -> None:
    shared = {"canary": "worst_case", "sample_rate": 1.0, "noise_multiplier": 22.37}
    rows = [
        row(**shared, audit=score, score=score, epsilon_lower=epsilon)
        for score, epsilon in (("final_sum", 8.0), ("transcript", 9.0))
    ]
    _, table = draw_bounds_figure(pd.DataFrame(rows), axis="noise_multiplier")
    audited = table[table["series"] == "audited"].set_index("score")["epsilon"]
    assert audited.to_dict() == {"final_sum": 8.0, "transcript": 9.0}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("delta", 1e-6, "differ in delta"),
        ("significance", 0.1, "differ in significance"),
        ("audit", "other", "gradient-1.0-22.37 and other have the same canary"),
        ("epsilon_upper_substitute", 12.0, "noise_multiplier 22.37, step 100 differ in their acc"),
        ("num_steps", 1000, r"differ in num_steps \(500 and 1000\), which this figure does not"),
        ("max_grad_norm", 1.0, r"differ in max_grad_norm \(2 and 1\)"),
        ("learning_rate", 0.1, r"differ in learning_rate \(0.01 and 0.1\)"),
        ("model", "mlp", r"differ in model \(linear and mlp\)"),
        ("data", "sst2", r"differ in data \(digits and sst2\)"),
        ("num_records", 100.0, r"differ in num_records \(500 and 100\)"),
        ("num_slots", 4, r"differ in num_slots \(1 and 4\)"),
        ("adjacency", "add_remove", r"differ in adjacency \(substitute and add_remove\)"),
    ],
)
def test_audits_that_a_panel_would_mix_up_are_refused(
    column: str, value: object, message: str
) -> None:
    summary = summary_of()
    mixed = summary[(summary["canary"] == "gradient") & (summary["sample_rate"] == 1.0)]
    with pytest.raises(InputError, match=message):
        draw_bounds_figure(pd.concat([summary, mixed.assign(**{column: value})]), axis="step")


BOTH = ("simultaneous", "in_sample")
RUNS = {"num_runs": [100, 500, 2000]}
ALONG = {  # by axis: what changes in addition to the settings of `summary_of`
    **{"step": None, "noise_multiplier": None, "num_runs": RUNS},
    **{setting: {setting: [0.25, 4.0, 16.0]} for setting in AXES},
}


@pytest.mark.parametrize("axis", ALONG)
def test_only_the_valid_rule_is_drawn_by_default(axis: str) -> None:
    summary = summary_of(rules=BOTH, axis=ALONG[axis])
    summary.loc[~summary["is_valid"], "epsilon_lower"] += 90
    figure, table = draw_bounds_figure(summary, axis=axis)
    alone, _ = draw_bounds_figure(summary[summary["is_valid"]], axis=axis)
    assert titles(figure) == titles(alone)
    assert not figure.subfigs[0].subfigs
    assert not figure.subfigs[0].get_suptitle()
    for axes, expected in zip(figure.axes, alone.axes, strict=True):
        assert (axes.get_ylim(), axes.get_yscale()) == (expected.get_ylim(), expected.get_yscale())
        lines = zip(axes.get_lines(), expected.get_lines(), strict=True)
        for one, other in lines:
            assert np.array_equal(one.get_ydata(), other.get_ydata())
    hidden = table[table["series"] == "audited_in_sample"]
    assert len(hidden) == (table["series"] == "audited").sum() > 0
    assert (hidden["epsilon"] > 90).all()


def test_a_rule_that_is_not_valid_is_drawn_and_labelled_where_it_is_the_only_one() -> None:
    figure, _ = draw_bounds_figure(summary_of(rules=["in_sample"]), axis="step")
    label = "in_sample (the published rule): not a valid bound"
    assert figure.subfigs[0].get_suptitle() == label
    assert _drawn(figure.axes[0], "#0072B2")
    assert "in_sample rule (not valid)" in " ".join(written_below(figure))


def test_in_sample_goes_before_other_rules_that_are_not_valid() -> None:
    valid, mine = _two_rules(0.5, rule="mine")
    summary = pd.concat([valid, mine, _two_rules(0.1)[1]])
    _, table = draw_bounds_figure(summary, axis="step")
    assert set(table["threshold_rule"].dropna()) == {"simultaneous", "in_sample"}


def test_panels_of_a_rule_that_is_not_there_are_refused() -> None:
    with pytest.raises(InputError, match="no bounds of a rule that is not valid"):
        draw_bounds_figure(summary_of(rules=["split"]), axis="step", in_sample=True)


@pytest.mark.parametrize("axis", ALONG)
def test_both_rules_have_panels_of_the_same_scale(axis: str) -> None:
    summary = summary_of(rules=BOTH, axis=ALONG[axis])
    figure, table = draw_bounds_figure(summary, axis=axis, in_sample=True)
    assert [part.get_suptitle() for part in figure.subfigs[0].subfigs] == [
        "simultaneous rule: a valid lower bound",
        "in_sample (the published rule): not a valid bound",
    ]
    assert len({(axes.get_ylim(), axes.get_yscale()) for axes in figure.axes}) == 1
    for part, series in zip(
        figure.subfigs[0].subfigs, ("audited", "audited_in_sample"), strict=True
    ):
        points = table[(table["series"] == series) & (table["canary"] == "natural")]
        drawn = [line for axes in part.axes for line in _drawn(axes, "#CC79A7")]
        assert sorted(np.vstack(drawn)[:, 1]) == sorted(points["epsilon"])
        bars = [axes.containers[-1].lines[2][0].get_segments() for axes in part.axes]
        heights = [bar[1, 1] - bar[0, 1] for bars_of_panel in bars for bar in bars_of_panel]
        assert sorted(heights) == pytest.approx(sorted(2 * points["error_bar"]))


def test_by_runs_has_the_mean_of_every_number_of_runs_and_level_accounts() -> None:
    summary = summary_of(rules=BOTH, axis=RUNS)
    figure, table = draw_bounds_figure(summary, axis="num_runs", in_sample=True)
    _check_means(table, summary, "repeat")
    accounted = table[table["series"].str.startswith("accounted")]
    assert set(accounted["series"]) == {"accounted_substitute", "accounted_add_remove"}
    assert accounted["num_runs"].isna().all()
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        levels = {line.get_linestyle(): line.get_ydata() for line in axes.get_lines()[:2]}
        assert {dash: list(level) for dash, level in levels.items()} == {
            "-": [10.0, 10.0],
            "--": [4.4, 4.4],
        }


@pytest.mark.parametrize("setting", AXES)
def test_by_setting_has_a_point_for_every_value(setting: str) -> None:
    values = [0.5, 2.0, 8.0]
    summary = summary_of(axis={setting: values})
    figure, table = draw_bounds_figure(summary, axis=setting)
    gradient = table[(table["series"] == "audited") & (table["canary"] == "gradient")]
    here = gradient[gradient["sample_rate"] == 1.0]
    assert here[setting].tolist() == values
    for value, epsilon in zip(values, here["epsilon"], strict=True):
        where = {"canary": "gradient", "sample_rate": 1.0, "step": 500}
        assert epsilon == pytest.approx(mean(_bounds(summary, **where, **{setting: value})))
    (drawn,) = _drawn(figure.axes[0], "#0072B2")
    assert drawn.tolist() == here[[setting, "epsilon"]].to_numpy().tolist()
    assert titles(figure) == ["q = 1", "q = 0.25"]
    accounted = table[(table["series"] == "accounted_substitute") & (table["sample_rate"] == 1.0)]
    assert accounted[[setting, "epsilon"]].to_numpy().tolist() == [[v, 10.0] for v in values]


def test_noise_may_follow_the_number_of_steps_alone() -> None:
    steps = summary_of(axis={"num_steps": [125, 500]}, conversions=["gdp"])
    steps["noise_multiplier"] *= (steps["num_steps"] / 500) ** 0.5
    _, table = draw_bounds_figure(steps, axis="num_steps")
    assert table["noise_multiplier"].nunique() == 4
    other = steps[(steps["num_steps"] == 125) & (steps["canary"] == "natural")]
    mixed = pd.concat([steps.drop(other.index), other.assign(noise_multiplier=1.0)])
    with pytest.raises(InputError, match="num_steps125 differ in noise_multiplier"):
        draw_bounds_figure(mixed, axis="num_steps")
    norms = summary_of(axis={"max_grad_norm": [1.0, 2.0]}, conversions=["gdp"])
    norms["noise_multiplier"] *= norms["max_grad_norm"]
    with pytest.raises(InputError, match=r"differ in noise_multiplier \(5.574 and 11.148\)"):
        draw_bounds_figure(norms, axis="max_grad_norm")


def test_audits_that_the_setting_does_not_tell_apart_are_refused() -> None:
    summary = summary_of(axis={"max_grad_norm": [1.0, 2.0]})
    again = summary[summary["max_grad_norm"] == 1.0].assign(audit="other")
    message = "and other have the same canary, score, sample rate and max_grad_norm, by which"
    with pytest.raises(InputError, match=message):
        draw_bounds_figure(pd.concat([summary, again]), axis="max_grad_norm")
    with pytest.raises(InputError, match=r"differ in max_grad_norm \(1 and 2\)"):
        draw_bounds_figure(summary, axis="num_steps")
    with pytest.raises(InputError, match="unknown axis 'num_step': did you mean 'num_steps'"):
        draw_bounds_figure(summary, axis="num_step")
    with pytest.raises(InputError, match="differ in max_grad_norm"):
        draw_bounds_figure(summary, axis="num_runs")
    runs = summary_of(axis={"num_runs": [100, 200]})
    other = runs[runs["num_runs"] == 100].assign(audit="other")
    with pytest.raises(InputError, match="same canary, score, sample rate and noise, by which"):
        draw_bounds_figure(pd.concat([runs, other]), axis="num_runs")


def _with_looks(*alone: int, **changes: object) -> pd.DataFrame:
    """A summary of three numbers of runs, all joint but those named."""
    summary = summary_of(rules=["simultaneous"], conversions=["gdp"], axis=RUNS, **changes)
    return summary.assign(num_looks=[1 if runs in alone else 3 for runs in summary["num_runs"]])


@pytest.mark.parametrize("axis", [axis for axis in ALONG if axis != "num_runs"])
def test_other_axes_show_the_largest_number_of_runs_of_every_audit(axis: str) -> None:
    largest = summary_of(rules=BOTH, axis=ALONG[axis], num_looks=3)
    largest.loc[largest["canary"] == "natural", "num_runs"] = 800
    fewer = largest.assign(num_runs=500, epsilon_lower=largest["epsilon_lower"] - 1)
    figure, table = draw_bounds_figure(pd.concat([fewer, largest]), axis=axis)
    expected, numbers = draw_bounds_figure(largest, axis=axis)
    pd.testing.assert_frame_equal(table, numbers)
    assert set(table["num_runs"].dropna()) == {800, 1000}
    assert written_below(figure) == written_below(expected)
    assert "95 % confidence for each point alone, R = 800 to 1,000 " in " ".join(
        written_below(figure)
    )


@pytest.mark.parametrize(
    ("alone", "stated"),
    [
        ([100, 500, 2000], "each point alone"),
        ([], "all points of a curve jointly"),
        ([500], "all filled points of a curve jointly and for each hollow point alone"),
    ],
)
def test_by_runs_the_note_says_which_bounds_hold_jointly(alone: list[int], stated: str) -> None:
    figure, table = draw_bounds_figure(_with_looks(*alone), axis="num_runs")
    assert f"95 % confidence for {stated}, R = 100 to 2,000" in " ".join(written_below(figure))
    assert ("alone" in legend(figure)) is (alone == [500])
    faces = {*_faces(figure.axes[0], "#0072B2").values()}
    assert faces == ({"#0072B2", "white"} if alone == [500] else {"#0072B2"})
    audited = table[table["series"] == "audited"]
    assert {*zip(audited["num_runs"], audited["num_looks"], strict=True)} == {
        (runs, 1 if runs in alone else 3) for runs in RUNS["num_runs"]
    }


def _faces(axes, colour: str) -> dict[float, str]:
    """The face colour of the markers of a colour, by their place on the axis."""
    return {
        float(place): str(line.get_markerfacecolor())
        for line in axes.get_lines()
        if line.get_color() == colour and line.get_marker() == "o"
        for place in np.asarray(line.get_xdata())
    }


def test_by_runs_markers_tell_joint_bounds_from_others() -> None:
    blue, summary = "#0072B2", _with_looks(500)
    figure, table = draw_bounds_figure(summary, axis="num_runs")
    for axes in figure.axes:
        assert _faces(axes, blue) == {100.0: blue, 500.0: "white", 2000.0: blue}
    faces = {label: line.get_markerfacecolor() for label, line in legend(figure).items()}
    assert faces["alone"] == "white"
    assert faces["jointly with those of its curve"] != "white"
    assert faces["gradient"] == blue
    gradient = table[(table["series"] == "audited") & (table["canary"] == "gradient")]
    first = gradient[gradient["sample_rate"] == 1.0]
    drawn = np.vstack(_drawn(figure.axes[0], blue))
    assert sorted(drawn.tolist()) == sorted(first[["num_runs", "epsilon"]].to_numpy().tolist())


def test_joint_bounds_and_others_at_the_same_runs_are_two_lines() -> None:
    summary = pd.concat([_with_looks(), _with_looks(100, 500, 2000)])
    figure, table = draw_bounds_figure(summary, axis="num_runs")
    assert len(_drawn(figure.axes[0], "#0072B2")) == 2
    assert (table["series"] == "audited").sum() == 2 * 2 * 3 * 2


def test_only_bounds_of_the_valid_rule_count_as_joint() -> None:
    other = _with_looks(100, 500, 2000).assign(threshold_rule="in_sample", is_valid=False)
    figure, _ = draw_bounds_figure(pd.concat([_with_looks(), other]), axis="num_runs")
    assert "confidence for all points of a curve jointly" in " ".join(written_below(figure))
    assert "alone" not in legend(figure)


def test_scores_are_told_apart_by_lines_where_markers_tell_joint_bounds() -> None:
    default = _with_looks(500, canaries=["worst_case"])
    other = default.assign(score="transcript", audit=default["audit"] + "-transcript")
    figure, _ = draw_bounds_figure(pd.concat([default, other]), axis="num_runs")
    dashes = {label: line.get_linestyle() for label, line in legend(figure).items()}
    assert (dashes["worst case"], dashes["worst case (transcript)"]) == ("-", "--")


# Panels, lines, and audits that differ in their seed


def _fixed(**changes: object) -> pd.DataFrame:
    """A summary of an audit with known batches, under add/remove adjacency."""
    known = {"adjacency": "add_remove", "sampling": "fixed", "batch_size": 128.0}
    known |= {"canary_period": 1.0, "initialisation": "fixed", "model": "convnet"}
    values = known | changes
    name = "-".join(map(str, changes.values())) or "plain"
    return summary_of(
        settings=[(1.0, 4.0)],
        canaries=[str(values.pop("canary", "random_dimension"))],
        num_repeats=1,
        conversions=["gdp"],
        **values,
    ).assign(audit=name, configuration=f"of {name}")


def test_known_batches_are_named_in_place_of_a_sample_rate() -> None:
    figure, table = draw_bounds_figure(_fixed(), axis="step")
    assert titles(figure) == ["known batches of 128, σ = 4"]  # noqa: RUF001
    assert "All audits: convnet, k = 1, C = 2, learning rate 0.01" in written_below(figure)
    assert {"sample_rate", "noise_multiplier"} < set(table.columns)


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
def test_audits_of_membership_have_the_curve_of_their_own_adjacency(adjacency: str) -> None:
    figure, table = draw_bounds_figure(_fixed(adjacency=adjacency), axis="step")
    assert {*table["series"]} == {"audited", "accounted_add_remove", "audited_in_sample"}
    (axes,) = figure.axes
    [curve] = [line for line in axes.get_lines() if line.get_color() == "black"]
    assert (curve.get_linestyle(), max(curve.get_ydata())) == ("-", ACCOUNTED["add_remove"])
    name = {"add_remove": "add/remove", "zero_out": "zero-out"}[adjacency]
    assert [*legend(figure)][-2:] == ["accounted ε (upper bound), audited adjacency:", name]


def test_panels_of_both_adjacencies_have_the_curves_of_their_own() -> None:
    both = pd.concat([_fixed(adjacency=one) for one in ("substitute", "add_remove")])
    figure, _ = draw_bounds_figure(both, axis="step", panels=["adjacency"])
    dashes = {
        axes.get_title(): [line.get_linestyle() for line in axes.get_lines()[:3]]
        for axes in figure.axes
    }
    assert dashes["substitute"] == ["-", "--", ":"]
    assert dashes["add/remove"][0] == "--"
    assert titles(figure) == ["substitute", "add/remove"]


def test_panels_are_told_apart_by_the_settings_that_are_named() -> None:
    parts = [
        _fixed(model=model, canary_period=float(period), num_steps=250 * period)
        for model in ("resnet18", "convnet")
        for period in (5, 1)
    ]
    figure, table = draw_bounds_figure(
        pd.concat(parts), axis="step", panels=["model", "canary_period"]
    )
    assert titles(figure) == [
        f"{model}, k = {period}" for model in ("resnet18", "convnet") for period in (1, 5)
    ]
    for axes, part in zip(figure.axes, [parts[1], parts[0], parts[3], parts[2]], strict=True):
        (drawn,) = _drawn(axes, canary_colour("random_dimension"))
        assert drawn[:, 1].tolist() == _bounds(part)
    assert {*table["model"]} == {"resnet18", "convnet"}
    shared = "All audits: known batches of 128, σ = 4, C = 2, learning rate 0.01"  # noqa: RUF001
    assert shared in written_below(figure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"canary_period": 5.0, "num_steps": 1250},
            r"canary_period \(1 and 5\).* it in panels or l",
        ),
        ({"initialisation": "per_run"}, "differ in initialisation .* name it in panels or lines"),
        ({"initial_weights": "xavier"}, "differ in initial_weights .*: name it in lines, or show"),
        ({"num_steps": 250}, "differ in num_steps .* show: show them in different"),
    ],
)
def test_settings_that_are_not_named_are_refused_with_what_to_do(changes, message) -> None:
    panels = ["canary_period"] if "num_steps" in changes and len(changes) == 1 else []
    with pytest.raises(InputError, match=message):
        draw_bounds_figure(pd.concat([_fixed(), _fixed(**changes)]), axis="step", panels=panels)


def test_settings_of_a_canary_are_compared_among_its_own_audits() -> None:
    rankings = pd.concat(
        [_fixed(canary="simulated_dimension", ranking=one) for one in ("per_step", "final_model")]
    )
    with pytest.raises(InputError, match=r"differ in ranking .*: name it in lines, or show them"):
        draw_bounds_figure(pd.concat([rankings, _fixed()]), axis="step")


def test_a_setting_is_shown_as_its_key_declares_it(monkeypatch) -> None:
    monkeypatch.setitem(SHOWN, "momentum", Shown("momentum {:g}", panel=True))
    summary = summary_of(settings=[(1.0, 2.0)], axis={"momentum": [0.5, 0.9]})
    figure, table = draw_bounds_figure(summary, axis="step", panels=["momentum"])
    assert titles(figure) == ["momentum 0.5", "momentum 0.9"]
    assert {*table["momentum"]} == {0.5, 0.9}
    with pytest.raises(InputError, match=r"differ in momentum \(0.5 and 0.9\)"):
        draw_bounds_figure(summary, axis="step")


SIMULATIONS = [
    (simulation, ranking)
    for simulation in ("noisy", "noiseless")
    for ranking in ("per_step", "final_model")
]


def test_variants_of_a_canary_are_lines_of_their_own() -> None:
    parts = [_fixed()] + [
        _fixed(canary="simulated_dimension", simulation=simulation, ranking=ranking)
        for simulation, ranking in SIMULATIONS
    ]
    figure, table = draw_bounds_figure(
        pd.concat(parts), axis="step", lines=["simulation", "ranking"]
    )
    entries = {name: line for name, line in legend(figure).items() if "dimension" in name}
    assert [*entries] == [
        "random dimension",
        *(
            f"simulated dimension ({simulation}, {ranking.replace('_', ' ')})"
            for simulation, ranking in sorted(SIMULATIONS)
        ),
    ]
    for looks in (
        {line.get_color() for line in entries.values()},
        {(line.get_linestyle(), line.get_marker()) for line in entries.values()},
    ):
        assert len(looks) == 5
    (axes,) = figure.axes
    for simulation, ranking in SIMULATIONS:
        name = f"simulated dimension ({simulation}, {ranking.replace('_', ' ')})"
        (drawn,) = _drawn(axes, entries[name].get_color())
        points = table[(table["simulation"] == simulation) & (table["ranking"] == ranking)]
        points = points[points["series"] == "audited"]
        assert drawn[:, 1].tolist() == points["epsilon"].tolist()
    assert entries["random dimension"].get_color() == canary_colour("random_dimension")
    assert len(_price(pd.concat(parts[:1]))) == 1
    below = " ".join(written_below(figure))
    assert "which is not valid, gives bounds" in below


def test_a_variant_of_a_light_canary_is_darker_and_of_a_dark_one_lighter() -> None:
    for canary, sign in (("worst_case", -1), ("simulated_dimension", 1)):
        first, second = (
            sum(to_rgb(variant_options(canary, None, "x", rank=rank, number=2)["color"]))
            for rank in (0, 1)
        )
        assert sign * (second - first) > 0.3


def _seeds(*seeds: int, num_repeats: int = 1) -> pd.DataFrame:
    parts = []
    for seed in seeds:
        for repeat in range(num_repeats):
            one = _fixed().assign(audit=f"seed{seed}", seed=seed, repeat=repeat)
            parts.append(one.assign(epsilon_lower=one["epsilon_lower"] + seed**2 + 0.1 * repeat))
    return pd.concat(parts)


def test_audits_that_differ_in_their_seed_are_averaged_like_repeats() -> None:
    summary = _seeds(1, 2, 4)
    figure, table = draw_bounds_figure(summary, axis="step")
    _check_means(table, summary, "seed")
    below = " ".join(written_below(figure))
    assert "mean ± 2 standard errors of 3 repeats, each with a canary of its own" in below


def test_the_error_over_canaries_is_that_over_their_means() -> None:
    """Repeats of one audit share its canary, so they say nothing about other canaries."""
    summary = _seeds(1, 2, 4, num_repeats=2)
    figure, table = draw_bounds_figure(summary, axis="step")
    _check_means(table, summary, "seed", num_repeats=6)
    assert "standard errors over 3 canaries of 2 repeats each" in " ".join(written_below(figure))


def test_one_repeat_of_one_audit_has_no_error_bar() -> None:
    assert draw_bounds_figure(_seeds(1), axis="step")[1]["error_bar"].isna().all()


def test_the_same_runs_twice_are_refused() -> None:
    again = _seeds(1).assign(audit="again")
    with pytest.raises(InputError, match="seed1 and again have the same canary, score, sample"):
        draw_bounds_figure(pd.concat([_seeds(1, 2), again]), axis="step")
    other = _seeds(3).assign(configuration="another", audit="other")
    with pytest.raises(InputError, match="seed1 and other have the same canary"):
        draw_bounds_figure(pd.concat([_seeds(1, 2), other]), axis="step")


@pytest.mark.parametrize(
    ("slot", "rule", "words"),
    [
        (float("nan"), "simultaneous", "models with 32 canaries in each, taken as independent"),
        (3.0, "simultaneous", "models with 32 canaries in each;"),
        (float("nan"), "mahloujifar", "models with 32 canaries in each;"),
    ],
)
def test_the_note_says_what_is_taken_of_several_canaries(slot, rule, words):
    summary = summary_of(rules=[rule], num_slots=32, slot=slot)
    figure, _ = draw_bounds_figure(summary, axis="step")
    assert words in " ".join(written_below(figure))


def test_an_accounted_curve_without_a_finite_point_is_not_in_the_legend():
    for epsilon, is_shown in ((11.0, True), (float("inf"), False)):
        summary = summary_of().assign(epsilon_upper_group_privacy=epsilon)
        figure, _ = draw_bounds_figure(summary, axis="step")
        assert ("group privacy" in legend(figure)) is is_shown
