"""Figures of bounds show the numbers of the summary, and refuse what they cannot show."""

from statistics import mean, stdev
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from summaries import ACCOUNTED, row, summary_of, written_below

from dpcanary.errors import InputError
from dpcanary.figures.bounds import selected_sweeps
from dpcanary.figures.bounds_figure import VIEWS, draw_bounds_figure
from dpcanary.settings.figure import Figure, SweptSetting


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


def test_audited_points_are_means_with_two_standard_errors() -> None:
    summary = summary_of()
    _, table = draw_bounds_figure(summary, axis="step")
    audited = table[table["series"] == "audited"]
    assert len(audited) == 2 * 2 * 3
    for point in audited.itertuples():
        values = _bounds(
            summary, canary=point.canary, sample_rate=point.sample_rate, step=point.step
        )
        assert len(values) == point.num_repeats == 3
        assert point.epsilon == pytest.approx(mean(values))
        assert point.error_bar == pytest.approx(2 * stdev(values) / 3**0.5)


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
    _, table = draw_bounds_figure(summary, axis="step")
    audited = table[table["series"] == "audited"]
    assert len(audited) == 2 * 2 * 3
    for point in audited.itertuples():
        where = {"canary": point.canary, "sample_rate": point.sample_rate, "step": point.step}
        values = [mean(_bounds(summary, **where, repeat=repeat)) for repeat in range(3)]
        assert point.num_repeats == 3
        assert point.epsilon == pytest.approx(mean(values))
        assert point.error_bar == pytest.approx(2 * stdev(values) / 3**0.5)


def test_one_repeat_has_no_error_bar() -> None:
    _, table = draw_bounds_figure(summary_of(num_repeats=1), axis="step")
    assert table["error_bar"].isna().all()


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
        f"{note} Lower bounds: simultaneous rule, GDP conversion, 95 % confidence for each point,"
        " R = 1,000 models; mean ± 2 standard errors of 3 repeats"
        " Data: digits, N = 500 private records"
    )


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
    assert [axes.get_title() for axes in figure.axes] == ["q = 1", "q = 0.25"] * 2
    (drawn,) = _drawn(figure.axes[0], "#0072B2")
    here = table[(table["series"] == "audited") & (table["canary"] == "gradient")]
    expected = here[here["sample_rate"] == 1.0][["noise_multiplier", "epsilon"]]
    assert drawn.tolist() == expected.to_numpy().tolist()


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


def test_sweeps_are_selected_and_missing_ones_named() -> None:
    summary = pd.concat([summary_of(), summary_of().assign(sweep="other")])
    assert set(selected_sweeps(summary, ["other"])["sweep"]) == {"other"}
    with pytest.raises(InputError, match="no row of sweeps absent; it has: fig, other"):
        selected_sweeps(summary, ["fig", "absent"])


BOTH = ("simultaneous", "in_sample")
ALONG = {  # by axis: what changes in addition to the settings of `summary_of`
    "step": None,
    "noise_multiplier": None,
    "num_runs": {"num_runs": [100, 500, 2000]},
    "max_grad_norm": {"max_grad_norm": [1.0, 4.0, 16.0]},
    "num_steps": {"num_steps": [125, 500, 2000]},
    "learning_rate": {"learning_rate": [0.001, 0.1, 1.0]},
}


def test_every_axis_that_a_config_can_name_has_a_view() -> None:
    figures = [
        *(Figure(kind=f"epsilon_by_{name}", sweeps=("a",)) for name in ("step", "noise")),
        Figure(kind="epsilon_by_runs", sweeps=("a",), num_runs=(100,)),
        *(
            Figure(kind="epsilon_by_setting", sweeps=("a",), setting=setting)
            for setting in get_args(SweptSetting)
        ),
    ]
    assert {figure.axis for figure in figures} == VIEWS.keys() == ALONG.keys()


@pytest.mark.parametrize("axis", ALONG)
def test_both_rules_have_panels_of_the_same_scale(axis: str) -> None:
    figure, table = draw_bounds_figure(summary_of(rules=BOTH, axis=ALONG[axis]), axis=axis)
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


def test_one_panel_for_each_rule_stand_side_by_side() -> None:
    figure, _ = draw_bounds_figure(summary_of(settings=[(1.0, 22.37)], rules=BOTH), axis="step")
    left, right = (part.bbox for part in figure.subfigs[0].subfigs)
    assert (left.y0, left.y1) == (right.y0, right.y1)
    assert left.x1 <= right.x0


def test_by_runs_has_the_mean_of_every_number_of_runs_and_level_accounts() -> None:
    summary = summary_of(rules=BOTH, axis={"num_runs": [100, 500, 2000]})
    figure, table = draw_bounds_figure(summary, axis="num_runs")
    audited = table[table["series"] == "audited"]
    assert len(audited) == 2 * 2 * 3
    for point in audited.itertuples():
        where = {"canary": point.canary, "sample_rate": point.sample_rate}
        values = _bounds(summary, **where, num_runs=point.num_runs, step=500)
        assert len(values) == point.num_repeats == 3
        assert point.epsilon == pytest.approx(mean(values))
        assert point.error_bar == pytest.approx(2 * stdev(values) / 3**0.5)
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


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("max_grad_norm", [0.5, 2.0, 8.0]),
        ("num_steps", [125, 500, 2000]),
        ("learning_rate", [0.001, 0.1, 1.0]),
    ],
)
def test_by_setting_has_a_point_for_every_value(setting: str, values: list[float]) -> None:
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
    assert [axes.get_title() for axes in figure.axes] == ["q = 1", "q = 0.25"] * 2
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
