"""Figures of bounds show the numbers of the summary, and refuse what they cannot show."""

import re
from itertools import product
from statistics import mean, stdev
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from summaries import ACCOUNTED, below, legend, row, summary_of, titles, written_below

from dpcanary.errors import InputError
from dpcanary.experiment.summary import AXES, NOT_VALID
from dpcanary.figures import notes
from dpcanary.figures.bounds import draw_bounds_figure
from dpcanary.figures.rows import valid_rows
from dpcanary.figures.style import canary_colour, variant_options

BOTH = ("simultaneous", "in_sample")
RUNS = {"num_runs": [100, 500, 2000]}
# By axis: what changes in addition to the settings of `summary_of`.
ALONG = {"num_runs": RUNS, "max_grad_norm": {"max_grad_norm": [0.25, 4.0, 16.0]}}


def _drawn(axes, canary: str = "gradient", colour: str = "") -> list[np.ndarray]:
    """The points of each line in the panel that has a canary's colour, or another, and a marker."""
    return [
        np.column_stack(line.get_data())
        for line in axes.get_lines()
        if line.get_color() == (colour or canary_colour(canary))
        and line.get_marker() not in ("", ".", "None", "_", "|")
    ]


def _bars(axes) -> list[float]:
    segments = axes.containers[0].lines[2][0].get_segments()
    return [segment[1, 1] - segment[0, 1] for segment in segments]


def _epsilons(figure) -> list:
    """The panels of epsilons; a figure by noise has panels of shares below them."""
    [body, _] = figure.subfigs
    return [axes for axes in (body.subfigs or [body])[0].axes if axes.get_visible()]


def _audited(table: pd.DataFrame, *columns: str, **where: object) -> list:
    points = table[table["series"] == "audited"]
    for name, value in where.items():
        points = points[points[name] == value]
    return points[[*columns]].to_numpy().tolist()


def _with_looks(*alone: int, **changes: object) -> pd.DataFrame:
    summary = summary_of(rules=["simultaneous"], conversions=["gdp"], axis=RUNS, **changes)
    return summary.assign(num_looks=[1 if runs in alone else 3 for runs in summary["num_runs"]])


def _fixed(**changes: object) -> pd.DataFrame:
    """A summary of an audit with known batches, under add/remove adjacency."""
    defaults = {"adjacency": "add_remove", "sampling": "fixed", "batch_size": 128.0}
    defaults |= {"canary_period": 1.0, "initialisation": "fixed", "model": "convnet"}
    values = defaults | changes
    name = "-".join(map(str, changes.values())) or "plain"
    values |= {"canaries": [str(values.pop("canary", "random_dimension"))], "num_repeats": 1}
    summary = summary_of(settings=[(1.0, 4.0)], conversions=["gdp"], **values)
    return summary.assign(audit=name, configuration=f"of {name}")


def _seeds(*seeds: int, num_repeats: int = 1) -> pd.DataFrame:
    summary = pd.concat(
        _fixed().assign(audit=f"seed{seed}", seed=seed, repeat=repeat)
        for seed, repeat in product(seeds, range(num_repeats))
    )
    more = summary["seed"] ** 2 + 0.1 * summary["repeat"]
    return summary.assign(epsilon_lower=summary["epsilon_lower"] + more)


def _slots() -> pd.DataFrame:
    summary = pd.concat([summary_of(num_slots=3, slot=slot) for slot in range(3)])
    return summary.assign(epsilon_lower=summary["epsilon_lower"] + 5 * summary["slot"] ** 2)


VALID = summary_of(rules=["simultaneous"], canaries=["gradient"])
_MEAN = "mean ± 2 standard errors of 3 repeats"
_OF_SEEDS = "standard errors over 3 canaries of 2 repeats each"


@pytest.mark.parametrize(("summary", "axis", "unit", "num_points", "words"), [
    (summary_of(), "step", "repeat", 12, _MEAN),
    (_slots(), "step", "repeat", 12, _MEAN),  # are averaged before repeats
    (summary_of(axis=RUNS), "num_runs", "repeat", 12, _MEAN),
    (_seeds(1, 2, 4), "step", "seed", 3, f"{_MEAN}, each with a seed of its own"),
    (_seeds(1, 2, 4, num_repeats=2), "step", "seed", 3, _OF_SEEDS),
    *((summary_of(axis={x: [0.5, 2.0, 8.0]}), x, "repeat", 12, _MEAN) for x in AXES),
])  # fmt: skip
def test_points_are_means_with_two_standard_errors(summary, axis, unit, num_points, words):
    """By a loop. Repeats of one audit share its canary, so the error is that over canaries.

    By a setting, points are those of the last step, and so is what is accounted.
    """
    figure, table = draw_bounds_figure(summary, axis=axis)
    audited = table[table["series"] == "audited"]
    assert len(audited) == num_points
    shown = summary.query("threshold_rule == 'simultaneous' and conversion == 'gdp'")
    for point in audited.itertuples():
        here = shown
        for key in dict.fromkeys(("canary", "sample_rate", "step", axis)):
            here = here[here[key] == getattr(point, key)]
        means = [mean(rows["epsilon_lower"]) for _, rows in here.groupby(unit)]
        assert point.num_repeats == len(here[["seed", "repeat"]].drop_duplicates())
        assert point.epsilon == pytest.approx(mean(means))
        assert point.error_bar == pytest.approx(2 * stdev(means) / len(means) ** 0.5)
    assert words in below(figure)
    if axis in AXES:
        assert set(table["step"]) == {500}
        curve = table[table["series"] == "accounted_substitute"]
        assert curve[[axis, "epsilon"]].to_numpy().tolist() == 2 * [[x, 10.0] for x in (0.5, 2, 8)]


def test_accounted_curves_are_those_of_the_summary_and_one_repeat_has_no_bar():
    _, table = draw_bounds_figure(VALID[VALID["repeat"] == 0], axis="step")
    assert table["error_bar"].isna().all()
    for name, value in ACCOUNTED.items():
        curve = table[(table["series"] == f"accounted_{name}") & (table["sample_rate"] == 1.0)]
        assert curve["step"].tolist() == [100, 300, 500]
        assert curve["epsilon"].tolist() == pytest.approx([0.2 * value, 0.6 * value, value])


@pytest.mark.parametrize(("noise", "labels"), [
    ([0.8, 1, 1.5], "0.8 1 1.5"), ([1.23456, 2], "1.23 2"), ([1, 7, 20], "1 2 5 10 20"),
])  # fmt: skip
def test_an_axis_of_noise_has_labels_also_in_a_small_range(noise, labels):
    summary = summary_of(settings=[(0.25, float(sigma)) for sigma in noise], canaries=["natural"])
    figure, _ = draw_bounds_figure(summary, axis="noise_multiplier")
    figure.canvas.draw()
    for axes in (axes for axes in figure.axes if axes.get_title()):
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticklabels() if low < tick.get_position()[0] < high]
        assert [tick.get_text() for tick in ticks] == labels.split()


def test_by_noise_further_panels_show_bounds_as_shares_of_their_own_limit():
    for adjacency, limit in (("substitute", 10.0), ("add_remove", 4.4)):
        summary = summary_of(adjacency=adjacency, steps=[500])
        summary["epsilon_lower"] *= limit / 10
        figure, table = draw_bounds_figure(summary, axis="noise_multiplier")
        for part, unit in zip(figure.subfigs[0].subfigs, (1.0, limit), strict=True):
            for axes, rate in zip(part.axes, (1.0, 0.25), strict=True):
                (drawn,) = _drawn(axes)
                where = {"sample_rate": rate, "canary": "gradient"}
                [[epsilon, bar]] = _audited(table, "epsilon", "error_bar", **where)
                assert drawn[0, 1] == pytest.approx(epsilon / unit)
                assert _bars(axes) == pytest.approx([2 * bar / unit])


@pytest.mark.parametrize(("least", "per_repeat", "is_bar_beyond", "is_point_beyond"), [
    (9.7, 0.1, False, False), (10.2, 0.1, False, True), (9.0, 0.9, True, False),
])  # fmt: skip
def test_points_and_bars_beyond_what_is_accounted_are_explained(
    least, per_repeat, is_bar_beyond, is_point_beyond
):
    summary = summary_of(rules=["split"], steps=[500])
    bounds = least + per_repeat * summary["repeat"]
    note = below(draw_bounds_figure(summary.assign(epsilon_lower=bounds), axis="step")[0])
    assert ("error of a mean" in note) is is_bar_beyond
    assert ("4 of 4 points exceed the accounted ε" in note) is is_point_beyond


def test_points_are_compared_with_the_limit_of_their_own_adjacency():
    parts = [summary_of(rules=["split"], adjacency=name) for name in ("substitute", "add_remove")]
    for part, adjacency in zip(parts, ("substitute", "add_remove"), strict=True):
        part["audit"] += adjacency
        part["configuration"] = part["audit"]
    summary = pd.concat(parts).assign(epsilon_lower=6.0)
    options = {"axis": "noise_multiplier", "lines": ["adjacency"]}
    figure, _ = draw_bounds_figure(summary, **options)
    assert "4 of 8 points exceed the accounted ε" in below(figure)
    lines = [line for axes in figure.subfigs[0].subfigs[1].axes for line in axes.get_lines()]
    shares = {round(float(share), 9) for line in lines for share in line.get_ydata()}
    assert {0.6, round(6 / 4.4, 9)} < shares


@pytest.mark.parametrize(("rules", "shown"), [
    (["steinke", "mahloujifar", "in_sample"], "mahloujifar"),
    (["steinke", "mahloujifar"], "mahloujifar"),
    (["steinke", "in_sample"], "steinke"),
])  # fmt: skip
def test_the_valid_rule_is_one_that_has_the_conversion(rules, shown):
    summary = summary_of(rules=rules, num_slots=10)
    is_missing = (summary["threshold_rule"] == "steinke") & (summary["conversion"] == "gdp")
    _, table = draw_bounds_figure(summary[~is_missing], axis="step")
    assert {*table.loc[table["series"] == "audited", "threshold_rule"]} == {shown}
    if "mahloujifar" in rules:
        assert {*valid_rows(summary[~is_missing])["threshold_rule"]} == {shown}


def test_ticks_of_few_steps_are_whole():
    figure, _ = draw_bounds_figure(summary_of(steps=[1, 2, 3]), axis="step")
    ticks = [tick for axes in figure.axes if axes.get_title() for tick in axes.get_xticks()]
    assert 2 in ticks
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize("group_privacy", [12.0, 900.0, float("inf")])
def test_every_line_but_that_of_group_privacy_is_inside_the_panels(group_privacy):
    upper = {"epsilon_upper_group_privacy": group_privacy}
    figure, table = draw_bounds_figure(summary_of(steps=[500]).assign(**upper), axis="step")
    others = table[table["series"] != "accounted_group_privacy"]
    highest = (others["epsilon"] + others["error_bar"].fillna(0)).max()
    tops = {axes.get_ylim()[1] for axes in figure.axes if axes.get_title()}
    assert all(highest < top < 2 * highest for top in tops)
    assert all((group_privacy < top) == (group_privacy < 100) for top in tops)
    assert ("group privacy" in legend(figure)) is bool(np.isfinite(group_privacy))


@pytest.mark.parametrize(("times", "leaves"), [(1.55, False), (1.59, False), (1.65, True)])
def test_group_privacy_that_leaves_the_panels_is_noted(times, leaves):
    summary = summary_of(steps=[500]).assign(epsilon_upper_group_privacy=np.inf)
    _, table = draw_bounds_figure(summary, axis="step")
    tops = table["epsilon"] + table["error_bar"].fillna(0.0)
    upper = times * tops[tops < np.inf].max()
    figure, _ = draw_bounds_figure(summary.assign(epsilon_upper_group_privacy=upper), axis="step")
    assert bool(_epsilons(figure)[0].get_ylim()[1] < upper) is leaves
    reached = re.search(r"Group privacy reaches ([\d.]+), above the panels", below(figure))
    assert (reached is not None) is leaves
    assert not leaves or upper <= float(reached[1]) < upper + 0.01


def test_accounted_values_between_gaps_are_drawn_and_gaps_of_group_privacy_are_named():
    summary = summary_of(steps=[100, 200, 300, 400, 500])
    is_known = summary["step"].isin([200, 400, 500])
    upper = summary["epsilon_upper_group_privacy"].where(is_known)
    figure, _ = draw_bounds_figure(summary.assign(epsilon_upper_group_privacy=upper), axis="step")
    axes = _epsilons(figure)[0]
    [line] = [line for line in axes.lines if upper.max() in np.asarray(line.get_ydata())]
    positions, epsilons = line.get_data()
    low, high = np.array(positions)[np.isfinite(epsilons)][:2]
    assert 180 < low < 200 < high < 220
    assert np.array(positions)[np.isfinite(epsilons)][2:].tolist() == [400, 500]
    assert not np.isfinite(epsilons[positions.tolist().index(300)])  # no line over the gap
    note = "Group privacy has no line where it cannot be accounted"
    assert note in written_below(figure)
    assert note not in written_below(draw_bounds_figure(summary, axis="step")[0])


def test_models_and_files_of_the_users_keep_their_names():
    figure, _ = draw_bounds_figure(summary_of(data="my_patients.csv"), axis="step")
    assert "Data: my_patients.csv, N = " in below(figure)
    for model, shown in (("my_nets:build", "my_nets:build"), ("two_layers", "two layers")):
        figure, _ = draw_bounds_figure(summary_of(model=model), axis="step")
        assert f"model: {shown}" in below(figure)


def test_a_heuristic_that_is_not_known_is_said_and_not_drawn():
    for value in (3.0, np.nan):
        summary = summary_of(epsilon_heuristic=value)
        figure, table = draw_bounds_figure(summary, axis="step", heuristic=True)
        is_known = value == 3.0
        assert ("not a bound:" in legend(figure)) is is_known
        assert ("The heuristic is not known here" in written_below(figure)) is not is_known
        assert (table[table["series"] == "heuristic"]["epsilon"] == 3.0).all() == is_known
    assert "heuristic" not in {*draw_bounds_figure(summary_of(), axis="step")[1]["series"]}


@pytest.mark.parametrize(("rules", "shown"), [
    (["split", "simultaneous"], {"split"}),
    (["in_sample", "split", "simultaneous"], {"split", "in_sample"}),
    (["in_sample"], {"in_sample"}),
])  # fmt: skip
def test_the_first_valid_rule_is_shown_and_in_sample_apart(rules, shown):
    figure, table = draw_bounds_figure(summary_of(rules=rules), axis="step")
    assert set(table["threshold_rule"].dropna()) == shown
    assert _drawn(figure.axes[0])
    named = "Estimates, NOT valid as bounds: best threshold on the same scores (the rule of most"
    for words, where, of_valid in (
        ("audited ε (NOT valid, see the note):", legend(figure), False),
        ("audited ε (lower bound):", legend(figure), True),
        (named, below(figure), False),
        ("confidence", below(figure), True),
    ):
        assert (words in where) is (of_valid == (len(rules) > 1))
    assert "in_sample" not in below(figure)
    is_in_sample = table["threshold_rule"] == "in_sample"
    assert (is_in_sample == (table["series"] == "audited_not_valid")).all()
    for conversions in (["direct", "gdp"], ["direct"]):  # the second one only without the first
        summary = summary_of(rules=rules, conversions=conversions)
        _, table = draw_bounds_figure(summary, axis="step")
        assert set(table["conversion"].dropna()) == {conversions[-1]}


def _other_rule(more: float, rule: str = "in_sample") -> pd.DataFrame:
    """The rows of a rule that is not valid and gives `more` than the valid one."""
    changes = {"threshold_rule": rule, "is_valid": False}
    return VALID.assign(**changes, epsilon_lower=VALID["epsilon_lower"] + more)


def _price(*parts: pd.DataFrame) -> str:
    figure, _ = draw_bounds_figure(pd.concat(parts), axis="step")
    return figure.get_label()


_IN_SAMPLE = "Best threshold on the same scores (the rule of most papers)"


@pytest.mark.parametrize(("more", "rule", "sentence"), [
    (-0.12, "mine", "Mine rule: not valid, and 0.12 lower"),
    (0.006, "in_sample", f"{_IN_SAMPLE}: not valid, and 0.01 higher"),
    (0.004, "mine", "Mine rule: not valid, and the same to within 0.01"),
])  # fmt: skip
def test_the_caption_says_how_far_the_rule_that_is_not_valid_is(more, rule, sentence):
    assert _price(VALID, _other_rule(more, rule)) == f"{sentence} on average."


def test_the_difference_of_two_rules_is_the_mean_over_the_points_of_both():
    valid, other = VALID.copy(), _other_rule(0.5)
    valid.loc[valid["step"] == 100, "epsilon_lower"] += 7  # a point of one rule alone
    other = other[other["step"] != 100].copy()
    other.loc[other["step"] == 300, "epsilon_lower"] += 4  # one of two points
    other.loc[other["repeat"] == 0, "epsilon_lower"] += 3  # one of three repeats
    assert "and 3.50 higher" in _price(valid, other)
    assert _price(valid[valid["step"] == 100], other[other["step"] == 500]) == ""
    for rules in (["simultaneous", "split"], ["in_sample"]):
        assert _price(summary_of(rules=rules)) == ""
    # With two rules that are not valid, the figure shows the one that most papers use.
    assert "0.10 higher" in _price(VALID, _other_rule(0.5, "mine"), _other_rule(0.1))


def test_the_default_panels_are_the_same_when_they_are_named():
    summary = summary_of(settings=[(0.25, 2.0), (1.0, 2.0), (0.25, 4.0), (1.0, 4.0)])
    by_default, named = (
        titles(draw_bounds_figure(summary, axis="step", panels=panels)[0])
        for panels in ((), ("sample_rate", "noise_multiplier"))
    )
    assert by_default == [f"q = {q}, σ = {sigma}" for q in ("1", "0.25") for sigma in (4, 2)]  # noqa: RUF001
    assert named == by_default


@pytest.mark.parametrize("axis", ["step", "noise_multiplier", "num_runs", "max_grad_norm"])
def test_only_the_valid_rule_is_drawn(axis):
    summary = summary_of(rules=BOTH, axis=ALONG.get(axis))
    summary.loc[~summary["is_valid"], "epsilon_lower"] += 90
    figure, table = draw_bounds_figure(summary, axis=axis)
    alone, _ = draw_bounds_figure(summary[summary["is_valid"]], axis=axis)
    assert titles(figure) == titles(alone)
    for axes, expected in zip(figure.axes, alone.axes, strict=True):
        assert (axes.get_ylim(), axes.get_yscale()) == (expected.get_ylim(), expected.get_yscale())
        lines, of_alone = ([x.get_ydata() for x in part.get_lines()] for part in (axes, expected))
        np.testing.assert_equal(lines, of_alone)
    hidden = table[table["series"] == "audited_not_valid"]
    assert len(hidden) == (table["series"] == "audited").sum() > 0
    assert (hidden["epsilon"] > 90).all()
    assert len({(axes.get_ylim(), axes.get_yscale()) for axes in _epsilons(figure)}) == 1


@pytest.mark.parametrize(("note", "confidence"), [
    ("Reduced scale: 2 settings, $5 and $6",
     "90 % confidence for each bound alone, before the mean, "),
    (f"{NOT_VALID}: the bounds of a.", ""),
])  # fmt: skip
def test_the_notes_state_what_the_bounds_assume_and_were_measured_on(note, confidence):
    summary = summary_of(significance=0.1)
    summary["epsilon_lower"] /= 10  # below what is accounted, so that nothing is said of it
    figure, _ = draw_bounds_figure(summary, axis="step", note=note)
    assert below(figure) == (
        f"{note} Lower bounds: simultaneous rule, GDP conversion, {confidence}R = 1,000 models;"
        " mean ± 2 standard errors of 3 repeats Data: digits, N = 500 private records; model:"
        " linear"
    )
    assert ("audited ε (NOT valid, see the note):" in legend(figure)) is not confidence


_RATE = "in the false negative rate"


@pytest.mark.parametrize(("distances", "stated"), [
    ([float("nan"), 0.0], ""),
    ([0.0, 0.00412], f"0.0042 {_RATE}."),  # rounded up
    ([0.012, 0.004], f"0.012 {_RATE}."),
    ([0.0, 0.00025], f"2.5·10⁻⁴ {_RATE}."),
    ([float("nan"), 0.03], f"0.03 {_RATE}, where this is known."),
])  # fmt: skip
def test_the_caption_says_how_far_the_mechanisms_are_from_gaussian_ones(distances, stated):
    summary = summary_of(rules=["simultaneous"])
    of_rate = dict(zip((1.0, 0.25), distances, strict=True))
    summary["gaussian_distance"] = summary["sample_rate"].map(of_rate)
    differ = "The accounted trade-off curves differ from Gaussian ones by at most "
    for conversion, expected in {"gdp": differ + stated if stated else "", "direct": ""}.items():
        figure, _ = draw_bounds_figure(summary[summary["conversion"] == conversion], axis="step")
        assert figure.get_label() == expected


_DRAWN = "worst case: simulated, without records"


@pytest.mark.parametrize(("changes", "words"), [
    ({"canaries": ["worst_case"]}, f"Data: {_DRAWN}"),
    ({"canaries": ["worst_case", "gradient"]},
     f"Data: digits, N = 500 private records; model: linear; {_DRAWN}"),
    ({"num_slots": 32}, "models with 32 canaries in each, taken as independent"),
    ({"num_slots": 32, "slot": 3.0}, "models with 32 canaries in each;"),
    ({"num_slots": 32, "rules": ["mahloujifar"]}, "models with 32 canaries in each;"),
])  # fmt: skip
def test_the_note_names_the_data_and_what_is_taken_of_several_canaries(changes, words):
    assert words in below(draw_bounds_figure(summary_of(**changes), axis="step")[0])


@pytest.mark.parametrize("axis", ["step", "noise_multiplier", "num_runs"])
def test_accounted_epsilons_of_one_point_are_visible_and_by_runs_they_are_level(axis):
    summary = summary_of(rules=BOTH, axis=ALONG.get(axis), steps=[500])
    figure, table = draw_bounds_figure(summary, axis=axis)
    expected = [10.0, 4.4] if axis == "num_runs" else [10.0, 4.4, 11.0]  # no group privacy
    for axes in _epsilons(figure):
        black = axes.get_lines()[: len(expected)]
        lines = [np.column_stack(line.get_data()) for line in black]
        assert [line[:, 1].tolist() for line in lines] == [[value] * 2 for value in expected]
        assert [line.get_linestyle() for line in black] == ["-", "--", ":"][: len(expected)]
        low, high = axes.get_xlim()
        assert axis == "num_runs" or all(low < line[0, 0] < line[1, 0] < high for line in lines)
    accounted = table[table["series"].str.startswith("accounted")]
    assert len({*accounted["series"]}) == len(expected)
    if axis == "num_runs":
        assert accounted["num_runs"].isna().all()
        assert axes.get_xscale() == "log"


def test_values_of_zero_stay_visible():
    axes = draw_bounds_figure(
        summary_of(axis={"learning_rate": [0.0, 10.0]}, steps=(500,)), axis="learning_rate"
    )[0].axes[0]
    assert axes.get_xscale() == "linear"
    assert axes.get_xlim()[0] <= 0.0 < 10.0 < axes.get_xlim()[1]
    for changes, scale in (({}, "log"), ({"epsilon_lower": 0.0}, "linear")):
        summary = summary_of().assign(**changes)
        figure, table = draw_bounds_figure(summary, axis="noise_multiplier")
        assert figure.axes[0].get_yscale() == scale
    assert (table.loc[table["series"] == "audited", "epsilon"] == 0).all()


@pytest.mark.parametrize("axis", ["step", "noise_multiplier", "max_grad_norm"])
def test_other_axes_show_the_largest_number_of_runs_of_every_audit(axis):
    largest = summary_of(rules=BOTH, axis=ALONG.get(axis), num_looks=3)
    largest.loc[largest["canary"] == "natural", "num_runs"] = 800
    fewer = largest.assign(num_runs=500, epsilon_lower=largest["epsilon_lower"] - 1)
    figure, table = draw_bounds_figure(pd.concat([fewer, largest]), axis=axis)
    expected, numbers = draw_bounds_figure(largest, axis=axis)
    pd.testing.assert_frame_equal(table, numbers)
    assert set(table["num_runs"].dropna()) == {800, 1000}
    assert written_below(figure) == written_below(expected)
    assert "95 % confidence for each bound alone, before the mean, R = 800 to " in below(figure)
    alone, _ = draw_bounds_figure(largest[largest["repeat"] == 0], axis=axis)
    assert "95 % confidence for each point alone, R = " in below(alone)


@pytest.mark.parametrize(("alone", "stated"), [
    ([100, 500, 2000], "each bound alone"),
    ([], "all bounds of a curve jointly"),
    ([500], "all filled bounds of a curve jointly and for each hollow bound alone"),
])  # fmt: skip
def test_by_runs_markers_tell_joint_bounds_from_others(alone, stated):
    """And the note says which hold jointly. Without both kinds, all markers are filled."""
    blue, is_mixed = canary_colour("gradient"), alone == [500]
    other = _with_looks(100, 500, 2000).assign(threshold_rule="in_sample", is_valid=False)
    for summary in (_with_looks(*alone), pd.concat([_with_looks(*alone), other])):
        figure, table = draw_bounds_figure(summary, axis="num_runs")
        assert f"95 % confidence for {stated}, before the mean, R = 100 to 2,000" in below(figure)
        for axes in figure.axes:
            faces = {
                place: str(line.get_markerfacecolor())
                for line in axes.get_lines()
                if line.get_color() == blue and line.get_marker() == "o"
                for place in line.get_xdata()
            }
            assert faces == {100: blue, 500: "white" if is_mixed else blue, 2000: blue}
        faces = {label: line.get_markerfacecolor() for label, line in legend(figure).items()}
        assert faces["gradient"] == blue
        assert ("alone" in faces) is is_mixed
        if is_mixed:
            assert faces["alone"] == "white" != faces["jointly with those of its curve"]
    looks = _audited(table, "num_runs", "num_looks")
    assert {*map(tuple, looks)} == {(runs, 1 if runs in alone else 3) for runs in RUNS["num_runs"]}
    # Bounds of both kinds at the same numbers of runs have lines of their own.
    both = pd.concat([_with_looks(), _with_looks(100, 500, 2000)])
    figure, table = draw_bounds_figure(both, axis="num_runs")
    assert (len(_drawn(figure.axes[0])), len(_audited(table))) == (2, 2 * 2 * 3 * 2)


def test_scores_of_one_canary_have_lines_of_their_own():
    shared = {"canary": "worst_case", "sample_rate": 1.0, "noise_multiplier": 22.37}
    scores = {"final_sum": 8.0, "transcript": 9.0}
    rows = [row(**shared, audit=s, score=s, epsilon_lower=bound) for s, bound in scores.items()]
    _, table = draw_bounds_figure(pd.DataFrame(rows), axis="noise_multiplier")
    assert dict(_audited(table, "score", "epsilon")) == scores
    # Where markers tell joint bounds, lines tell scores.
    default = _with_looks(500, canaries=["worst_case"])
    other = default.assign(score="transcript", audit=default["audit"] + "-transcript")
    figure, _ = draw_bounds_figure(pd.concat([default, other]), axis="num_runs")
    dashes = {label: line.get_linestyle() for label, line in legend(figure).items()}
    assert (dashes["worst case"], dashes["worst case (score: transcript)"]) == ("-", "--")


NAMES = [("add_remove", "add/remove"), ("zero_out", "zero-out")]


@pytest.mark.parametrize(("adjacency", "name"), NAMES)
def test_audits_of_membership_have_the_curve_of_their_own_adjacency(adjacency, name):
    figure, table = draw_bounds_figure(_fixed(adjacency=adjacency), axis="step")
    assert {*table["series"]} == {"audited", "accounted_add_remove", "audited_not_valid"}
    (axes,) = figure.axes
    [curve] = [line for line in axes.get_lines() if line.get_color() == "black"]
    assert (curve.get_linestyle(), max(curve.get_ydata())) == ("-", ACCOUNTED["add_remove"])
    assert [*legend(figure)][-2:] == ["accounted ε (upper bound), audited adjacency:", name]
    assert axes.get_title() == "known batches of 128, σ = 4"  # noqa: RUF001
    assert "All audits: convnet, k = 1, C = 2, learning rate 0.01" in figure.get_label()
    # Beside audits of content, each panel has the curves of its own.
    both = pd.concat([_fixed(adjacency=which) for which in ("substitute", adjacency)])
    figure, _ = draw_bounds_figure(both, axis="step", panels=["adjacency"])
    styles = [[line.get_linestyle() for line in axes.get_lines()[:3]] for axes in figure.axes]
    assert (styles[0], styles[1][0]) == (["-", "--", ":"], "--")
    assert titles(figure) == ["substitute", name]


def test_panels_show_the_settings_that_are_named():
    parts = {
        (model, period): _fixed(model=model, canary_period=float(period), num_steps=250 * period)
        for model, period in product(("resnet18", "convnet"), (5, 1))
    }
    summary, panels = pd.concat(parts.values()), ["model", "canary_period"]
    figure, table = draw_bounds_figure(summary, axis="step", panels=panels)
    order = [("resnet18", 1), ("resnet18", 5), ("convnet", 1), ("convnet", 5)]
    assert titles(figure) == [f"{model}, k = {period}" for model, period in order]
    for axes, place in zip(figure.axes, order, strict=True):
        (drawn,) = _drawn(axes, "random_dimension")
        shown = parts[place].query("threshold_rule == 'simultaneous'")
        assert drawn[:, 1].tolist() == shown["epsilon_lower"].tolist()
    assert {*table["model"]} == {"resnet18", "convnet"}
    shared = "All audits: known batches of 128, σ = 4, C = 2, learning rate 0.01"  # noqa: RUF001
    assert shared in figure.get_label()


def test_variants_of_a_canary_are_lines_of_their_own():
    simulations = [*product(("noiseless", "noisy"), ("final_model", "per_step"))]
    parts = [
        _fixed(canary="simulated_dimension", simulation=simulation, ranking=ranking)
        for simulation, ranking in simulations[::-1]
    ]
    summary, lines = pd.concat([_fixed(), *parts]), ["simulation", "ranking"]
    figure, table = draw_bounds_figure(summary, axis="step", lines=lines)
    names = {
        f"simulated dimension ({simulation}, {ranking.replace('_', ' ')})": (simulation, ranking)
        for simulation, ranking in simulations
    }
    entries = {name: line for name, line in legend(figure).items() if "dimension" in name}
    assert [*entries] == ["random dimension", *names]
    assert len({line.get_color() for line in entries.values()}) == 5
    assert len({(line.get_linestyle(), line.get_marker()) for line in entries.values()}) == 5
    (axes,) = figure.axes
    for name, (simulation, ranking) in names.items():
        [drawn] = _drawn(axes, colour=entries[name].get_color())
        where = {"simulation": simulation, "ranking": ranking}
        assert drawn.tolist() == _audited(table, "step", "epsilon", **where)
    assert entries["random dimension"].get_color() == canary_colour("random_dimension")
    # A variant of a light canary is darker, and of a dark one lighter.
    for canary, sign in (("worst_case", -1), ("simulated_dimension", 1)):
        looks = [variant_options(canary, None, "x", rank=rank, number=2) for rank in (0, 1)]
        first, second = (sum(to_rgb(look["color"])) for look in looks)
        assert sign * (second - first) > 0.3
    assert "not valid, and" in figure.get_label()


def _mixed(column: str, value: object) -> pd.DataFrame:
    summary = summary_of(rules=["split"], conversions=["gdp"], num_repeats=1)
    mixed = summary[(summary["canary"] == "gradient") & (summary["sample_rate"] == 1.0)]
    return pd.concat([summary, mixed.assign(**{column: value})])


STEP = {"axis": "step"}
STEPS = summary_of(axis={"num_steps": [125, 500]}, conversions=["gdp"])
STEPS["noise_multiplier"] *= (STEPS["num_steps"] / 500) ** 0.5
NORMS = summary_of(axis={"max_grad_norm": [1.0, 2.0]}, rules=["split"])
OF_NORM = NORMS.assign(noise_multiplier=NORMS["noise_multiplier"] * NORMS["max_grad_norm"])
SHORT = (STEPS["num_steps"] == 125) & (STEPS["canary"] == "natural")
OTHER_NOISE = STEPS.assign(noise_multiplier=STEPS["noise_multiplier"].mask(SHORT, 1.0))
RUNS_TWICE = summary_of(axis={"num_runs": [100, 200]}, rules=["split"])
TWICE = pd.concat([NORMS, NORMS.query("max_grad_norm == 1").assign(audit="other")])
FEWER = pd.concat([RUNS_TWICE, RUNS_TWICE.query("num_runs == 100").assign(audit="other")])


def _beside(*summaries: pd.DataFrame, **changes: object) -> pd.DataFrame:
    """Summaries beside the plain one; without any, that of an audit with these settings."""
    return pd.concat([_fixed(), *(summaries or [_fixed(**changes)])])


KINDS = [
    _fixed(canary="simulated_dimension", ranking=ranking) for ranking in ("per_step", "final_model")
]
MIXED = {
    "delta": (1e-6, "differ in delta"),
    "significance": (0.1, "differ in significance"),
    "audit": ("other", "gradient-1.0-22.37 and other have the same canary"),
    "epsilon_upper_substitute": (12.0, "noise_multiplier 22.37, step 100 differ in their acc"),
    "num_steps": (1000, r"differ in num_steps \(500 and 1000\), which this figure does not"),
    "learning_rate": (0.1, r"differ in learning_rate \(0.01 and 0.1\)"),
    "data": ("sst2", r"differ in data \(digits and sst2\)"),
    "num_slots": (4, r"differ in num_slots \(1 and 4\)"),
    "adjacency": ("zero_out", r"differ in adjacency \(substitute and zero_out\)"),
}
REFUSED = [
    *((_mixed(column, value), STEP, message) for column, (value, message) in MIXED.items()),
    (summary_of().iloc[:0], STEP, "the summary has no row to show"),
    (summary_of(), {"axis": "num_step"}, "unknown axis 'num_step': did you mean 'num_steps'"),
    (NORMS, {"axis": "num_steps"}, r"differ in max_grad_norm \(1 and 2\)"),
    (OTHER_NOISE, {"axis": "num_steps"}, "num_steps125 differ in noise_multiplier"),
    (OF_NORM, {"axis": "max_grad_norm"}, r"differ in noise_multiplier \(5.574 and 11.148\)"),
    (TWICE, {"axis": "max_grad_norm"}, "canary, score, sample rate and max_grad_norm, by which"),
    (FEWER, {"axis": "num_runs"}, "same canary, score, sample rate and noise, by which"),
    *(
        (pd.concat([_fixed(), _fixed(**changes)]), STEP | {"panels": panels}, message)
        for changes, panels, message in (
            ({"canary_period": 5.0, "num_steps": 1250}, [], r"period \(1 and 5\).* in panels or l"),
            ({"initialisation": "per_run"}, [], "in initialisation .*: name it in panels or"),
            ({"initial_weights": "xavier"}, [], "in initial_weights .*: name it in lines, or"),
            ({"num_steps": 250}, ["canary_period"], "in num_steps .* show: show them in differ"),
        )
    ),
    # Settings of a canary are compared among its own audits.
    (pd.concat([*KINDS, _fixed()]), STEP, r"differ in ranking .*: name it in lines, or show them"),
    *(
        (pd.concat([_seeds(1, 2), other]), STEP, f"seed1 and {name} have the same canary, score, s")
        for name, other in (
            ("again", _seeds(1).assign(audit="again")),
            ("other", _seeds(3).assign(configuration="else", audit="other")),
        )
    ),
]


@pytest.mark.parametrize(("summary", "options", "message"), REFUSED)
def test_audits_that_a_panel_would_mix_up_are_refused(summary, options, message):
    with pytest.raises(InputError, match=message):
        draw_bounds_figure(summary, **options)


def test_all_settings_that_a_figure_lacks_are_named_but_those_that_follow_from_others():
    other = _fixed(canary_period=5.0, num_steps=1250, learning_rate=0.1, data="sst2")
    more = other.assign(audit="more", configuration="of more", num_steps=2500)
    for rows, further in (([other], set()), ([other, more], {"num_steps"})):
        with pytest.raises(InputError) as refusal:
            draw_bounds_figure(pd.concat([_fixed(), *rows]), **STEP)
        pattern = r"(?m)^audits \S+ and \S+ differ in (\w+)"
        lacking = {*re.findall(pattern, str(refusal.value))}
        assert lacking == {"data", "canary_period", "learning_rate"} | further


def test_noise_may_follow_the_number_of_steps_and_no_other_setting():
    _, table = draw_bounds_figure(STEPS, axis="num_steps")
    assert table["noise_multiplier"].nunique() == 4


def test_rules_of_packages_have_their_labels(monkeypatch):
    own = {"at_cent": SimpleNamespace(label="one-cent rule"), "bare": SimpleNamespace(label=None)}
    monkeypatch.setattr(notes, "threshold_rule_named", own.__getitem__)
    named = [notes.rule_in_words(name) for name in ("at_cent", "bare", "order_statistic")]
    assert named == ["one-cent rule", "bare rule", "order statistic rule"]
