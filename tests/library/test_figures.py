"""Figures show the numbers they were given, and the curves they compute are right."""

from itertools import product
from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import norm

from dpcanary.errors import InputError
from dpcanary.figures.attacks import Attack, Profile
from dpcanary.figures.bounds import selected_sweeps
from dpcanary.figures.curves import accounted_false_negative_rate, measured_error_curve, thinned
from dpcanary.figures.epsilon_by_noise import draw_epsilon_by_noise
from dpcanary.figures.epsilon_by_step import draw_epsilon_by_step
from dpcanary.figures.score_histograms import draw_score_histograms
from dpcanary.figures.trade_off import draw_trade_off
from dpcanary.gdp import gdp_epsilon
from dpcanary.vocabulary import SCORES_OF, Canary, Score

_ACCOUNTED = {"substitute": 10.0, "add_remove": 4.4, "group_privacy": 11.0}


def _row(**changes: object) -> dict[str, object]:
    row = {
        "audit": f"{changes['canary']}-{changes['sample_rate']}-{changes['noise_multiplier']}",
        "sweep": "fig",
        "score": SCORES_OF[Canary(str(changes["canary"]))][0].value,
        "num_runs": 1000,
        "repeat": 0,
        "step": 500,
        "threshold_rule": "simultaneous",
        "conversion": "gdp",
        "significance": 0.05,
        "delta": 1e-5,
        **{f"epsilon_upper_{name}": value for name, value in _ACCOUNTED.items()},
    }
    return row | changes


def _summary(num_repeats: int = 3) -> pd.DataFrame:
    """Two settings, two canaries, three steps, all rules and conversions."""
    rng = np.random.default_rng(0)
    cases = product(
        [(1.0, 22.37), (0.25, 5.574)],
        ["gradient", "natural"],
        range(num_repeats),
        [100, 300, 500],
        ["simultaneous", "split", "in_sample"],
        ["gdp", "direct"],
    )
    rows = [
        _row(
            canary=canary,
            sample_rate=q,
            noise_multiplier=sigma,
            repeat=repeat,
            step=step,
            threshold_rule=rule,
            conversion=conversion,
            epsilon_lower=rng.uniform(1, 9),
            **{f"epsilon_upper_{name}": x * step / 500 for name, x in _ACCOUNTED.items()},
        )
        for (q, sigma), canary, repeat, step, rule, conversion in cases
    ]
    return pd.DataFrame(rows)


def _attack(canary: Canary = Canary.GRADIENT, *, num_runs: int = 300, **changes: object) -> Attack:
    rng = np.random.default_rng(1)
    values = {
        "audit": f"{canary}-1",
        "canary": canary,
        "sample_rate": 1.0,
        "noise_multiplier": 22.37,
        "step": 500,
        "world0_scores": rng.normal(1.0, 1.0, num_runs),
        "world1_scores": rng.normal(-1.0, 1.0, num_runs),
        "profiles": {"substitute": _profile(2.0), "add_remove": _profile(1.0)},
    }
    return Attack(**(values | changes))  # type: ignore[arg-type]


def _profile(mu: float) -> Profile:
    delta = np.union1d(np.logspace(-12, -0.01, 400), np.linspace(0.001, 0.999, 300))
    epsilon = np.array([gdp_epsilon(mu=mu, delta=float(d)) for d in delta])
    return Profile(delta=delta, epsilon=epsilon)


def _drawn(axes, colour: str) -> list[np.ndarray]:
    """Points of the panel's lines of a colour that have a canary's marker."""
    return [
        np.column_stack(line.get_data())
        for line in axes.get_lines()
        if line.get_color() == colour and line.get_marker() not in ("", ".", "None", "_", "|")
    ]


def test_audited_points_are_means_with_two_standard_errors() -> None:
    summary = _summary()
    _, table = draw_epsilon_by_step(summary)
    audited = table[table["series"] == "audited"]
    assert len(audited) == 2 * 2 * 3
    for point in audited.itertuples():
        values = [
            row.epsilon_lower
            for row in summary.itertuples()
            if (row.canary, row.sample_rate) == (point.canary, point.sample_rate)
            and row.step == point.step
            and (row.threshold_rule, row.conversion) == ("simultaneous", "gdp")
        ]
        assert len(values) == point.num_repeats == 3
        assert point.epsilon == pytest.approx(mean(values))
        assert point.error_bar == pytest.approx(2 * stdev(values) / 3**0.5)


def test_accounted_curves_are_those_of_the_summary() -> None:
    _, table = draw_epsilon_by_step(_summary())
    for name, value in _ACCOUNTED.items():
        curve = table[(table["series"] == f"accounted_{name}") & (table["sample_rate"] == 1.0)]
        assert curve["step"].tolist() == [100, 300, 500]
        assert curve["epsilon"].tolist() == pytest.approx([0.2 * value, 0.6 * value, value])


def test_the_lines_and_bars_drawn_are_the_tables() -> None:
    figure, table = draw_epsilon_by_step(_summary())
    axes = next(axes for axes in figure.axes if axes.get_title() == "q = 0.25, σ = 5.57")  # noqa: RUF001
    points = table[(table["sample_rate"] == 0.25) & (table["canary"] == "gradient")]
    points = points[points["series"] == "audited"]
    (drawn,) = _drawn(axes, "#0072B2")
    assert drawn.tolist() == points[["step", "epsilon"]].to_numpy().tolist()
    bars = axes.containers[0].lines[2][0].get_segments()
    heights = [segment[1, 1] - segment[0, 1] for segment in bars]
    assert heights == pytest.approx((2 * points["error_bar"]).tolist())


def test_one_repeat_has_no_error_bar() -> None:
    _, table = draw_epsilon_by_step(_summary(num_repeats=1))
    assert table["error_bar"].isna().all()


@pytest.mark.parametrize(
    ("rules", "shown"),
    [
        (["split", "simultaneous"], {"simultaneous"}),
        (["split"], {"split"}),
        (["split", "in_sample"], {"split", "in_sample"}),
        (["in_sample"], {"in_sample"}),
    ],
)
def test_one_valid_rule_is_shown_and_in_sample_apart(rules: list[str], shown: set[str]) -> None:
    summary = _summary()
    _, table = draw_epsilon_by_step(summary[summary["threshold_rule"].isin(rules)])
    assert set(table["threshold_rule"].dropna()) == shown
    in_sample = table[table["threshold_rule"] == "in_sample"]
    assert (in_sample["series"] == "audited_in_sample").all()
    assert ((table["series"] == "audited_in_sample").sum() > 0) == ("in_sample" in shown)


def test_direct_conversion_is_shown_only_without_gdp() -> None:
    summary = _summary()
    _, table = draw_epsilon_by_step(summary)
    assert set(table["conversion"].dropna()) == {"gdp"}
    _, table = draw_epsilon_by_step(summary[summary["conversion"] == "direct"])
    assert set(table["conversion"].dropna()) == {"direct"}


def test_the_note_states_what_the_bounds_assume() -> None:
    figure, _ = draw_epsilon_by_step(_summary())
    note = " ".join(text.get_text() for text in figure.subfigs[1].texts)
    assert note == (
        "Lower bounds: simultaneous rule, GDP conversion, 95 % confidence for each point,"
        " R = 1,000 models; mean ± 2 standard errors of 3 repeats"
    )


@pytest.mark.parametrize("draw", [draw_epsilon_by_step, draw_epsilon_by_noise])
def test_accounted_epsilons_of_one_point_are_visible(draw) -> None:
    summary = _summary()
    figure, _ = draw(summary[summary["step"] == 500])
    for axes in figure.axes:
        black = [np.column_stack(line.get_data()) for line in axes.get_lines()[:3]]
        assert [line[:, 1].tolist() for line in black] == [[10.0] * 2, [4.4] * 2, [11.0] * 2]
        low, high = axes.get_xlim()
        assert all(low < line[0, 0] < line[1, 0] < high for line in black)


def test_by_noise_shows_each_audits_last_step() -> None:
    figure, table = draw_epsilon_by_noise(_summary())
    assert set(table["step"]) == {500}
    assert [axes.get_title() for axes in figure.axes] == ["q = 1", "q = 0.25"]
    (drawn,) = _drawn(figure.axes[0], "#0072B2")
    here = table[(table["series"] == "audited") & (table["canary"] == "gradient")]
    expected = here[here["sample_rate"] == 1.0][["noise_multiplier", "epsilon"]]
    assert drawn.tolist() == expected.to_numpy().tolist()


def test_a_bound_of_zero_stays_visible() -> None:
    summary = _summary()
    assert draw_epsilon_by_noise(summary)[0].axes[0].get_yscale() == "log"
    summary["epsilon_lower"] = 0.0
    figure, table = draw_epsilon_by_noise(summary)
    assert (table.loc[table["series"] == "audited", "epsilon"] == 0).all()
    assert figure.axes[0].get_yscale() == "linear"


def test_scores_of_one_canary_are_told_apart() -> None:
    shared = {"canary": "worst_case", "sample_rate": 1.0, "noise_multiplier": 22.37}
    rows = [
        _row(**shared, audit=score, score=score, epsilon_lower=epsilon)
        for score, epsilon in (("final_sum", 8.0), ("transcript", 9.0))
    ]
    _, table = draw_epsilon_by_noise(pd.DataFrame(rows))
    audited = table[table["series"] == "audited"].set_index("score")["epsilon"]
    assert audited.to_dict() == {"final_sum": 8.0, "transcript": 9.0}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("delta", 1e-6, "differ in delta"),
        ("significance", 0.1, "differ in significance"),
        ("audit", "other", "gradient-1.0-22.37 and other have the same canary"),
        ("epsilon_upper_substitute", 12.0, "differ in their accounted epsilon"),
    ],
)
def test_audits_that_a_panel_would_mix_up_are_refused(
    column: str, value: object, message: str
) -> None:
    summary = _summary()
    mixed = summary[(summary["canary"] == "gradient") & (summary["sample_rate"] == 1.0)]
    with pytest.raises(InputError, match=message):
        draw_epsilon_by_step(pd.concat([summary, mixed.assign(**{column: value})]))


def test_sweeps_are_selected_and_missing_ones_named() -> None:
    summary = pd.concat([_summary(), _summary().assign(sweep="other")])
    assert set(selected_sweeps(summary, ["other"])["sweep"]) == {"other"}
    with pytest.raises(InputError, match="no row of sweeps absent; it has: fig, other"):
        selected_sweeps(summary, ["fig", "absent"])


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
def test_envelope_meets_the_gaussian_trade_off_curve(mu: float) -> None:
    rates = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 200)])
    exact = norm.cdf(norm.isf(rates) - mu)
    envelope = accounted_false_negative_rate(_profile(mu), rates)
    assert (envelope <= exact + 1e-12).all()
    assert np.abs(envelope - exact).max() < 1e-3


def test_envelope_of_one_point_is_its_two_lines() -> None:
    profile = Profile(delta=np.array([0.1]), epsilon=np.array([np.log(2.0)]))
    fnr = accounted_false_negative_rate(profile, [0.0, 0.2, 0.5, 0.9, 1.0])
    assert fnr == pytest.approx([0.9, 0.5, 0.2, 0.0, 0.0])


def test_envelope_survives_epsilons_that_no_float_can_exponentiate() -> None:
    profile = Profile(delta=np.array([1e-12, 0.3, 0.5]), epsilon=np.array([np.inf, 5000.0, 0.0]))
    fnr = accounted_false_negative_rate(profile, [0.0, 0.1, 1.0])
    assert fnr == pytest.approx([0.7, 0.4, 0.0])


def test_measured_curve_counts_as_a_loop_does() -> None:
    rng = np.random.default_rng(2)
    # Rounded, so that scores are tied within and across worlds.
    world0, world1 = rng.normal(1, 1, 60).round(1), rng.normal(-1, 1, 50).round(1)
    fpr, fnr = measured_error_curve(world0, world1)
    thresholds = sorted(set(world0))
    assert fpr.tolist() == [sum(s >= t for s in world1) / 50 for t in thresholds]
    assert fnr.tolist() == [sum(s < t for s in world0) / 60 for t in thresholds]


def test_thinning_keeps_ends_and_shape() -> None:
    rng = np.random.default_rng(3)
    # Skewed, so that the two axes need different points.
    fpr, fnr = measured_error_curve(rng.normal(1, 1, 20_000), -rng.exponential(1, 20_000))
    seen = (fpr > 0) & (fnr > 0)
    fpr, fnr = fpr[seen], fnr[seen]
    kept = thinned(fpr, fnr, most=400)
    assert 200 < len(kept) <= 400
    assert (kept[0], kept[-1]) == (0, len(fpr) - 1)
    # Between kept points, the drawn line is not off by a tenth, upwards or across.
    log_fpr, log_fnr = np.log(fpr), np.log(fnr)
    upwards = np.interp(-log_fpr, -log_fpr[kept], log_fnr[kept]) - log_fnr
    across = np.interp(log_fnr, log_fnr[kept], log_fpr[kept]) - log_fpr
    assert max(np.abs(upwards).max(), np.abs(across).max()) < 0.1
    assert thinned(fpr[:5], fnr[:5], most=400).tolist() == [0, 1, 2, 3, 4]


def test_trade_off_table_holds_measured_and_accounted_curves() -> None:
    attacks = [_attack(), _attack(Canary.NATURAL, audit="natural-1")]
    figure, table = draw_trade_off(attacks)
    measured = table[table["audit"] == "natural-1"]
    world0, world1 = attacks[1].world0_scores, attacks[1].world1_scores
    rates = [(np.mean(world1 >= t), np.mean(world0 < t)) for t in sorted(world0)]
    expected = [pair for pair in rates if min(pair) > 0]
    shown = measured[["false_positive_rate", "false_negative_rate"]].to_numpy()
    assert shown == pytest.approx(np.array(expected))
    for adjacency, mu in (("substitute", 2.0), ("add_remove", 1.0)):
        curve = table[table["series"] == f"accounted_{adjacency}"]
        exact = norm.cdf(norm.isf(curve["false_positive_rate"]) - mu)
        assert np.abs(curve["false_negative_rate"] - exact).max() < 1e-3
    assert figure.axes[0].get_xlim() == (1 / 300, 1.0)


def test_trade_off_of_an_attack_without_errors_is_drawn() -> None:
    perfect = _attack(world0_scores=np.arange(10.0) + 100, world1_scores=np.arange(10.0))
    _, table = draw_trade_off([perfect])
    assert (table["series"] != "measured").all()


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ({"substitute": _profile(2.0)}, "no adjacency add_remove"),
        ({"substitute": _profile(2.1), "add_remove": _profile(1.0)}, "differ in their accounted"),
    ],
)
def test_trade_off_refuses_profiles_that_do_not_fit(profiles: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_trade_off([_attack(), _attack(Canary.NATURAL, profiles=profiles)])


def test_histograms_count_every_model_in_shared_bins() -> None:
    attacks = [_attack(), _attack(Canary.NATURAL, sample_rate=0.25, num_runs=40)]
    figure, table = draw_score_histograms(attacks)
    for attack in attacks:
        bins = table[table["audit"] == attack.audit]
        for world, scores in ((0, attack.world0_scores), (1, attack.world1_scores)):
            edges = zip(bins["bin_left"], bins["bin_right"], strict=True)
            counts = [int(((scores >= left) & (scores < right)).sum()) for left, right in edges]
            counts[-1] += int((scores == bins["bin_right"].iloc[-1]).sum())
            assert bins[f"world{world}_models"].tolist() == counts
            assert sum(counts) == len(scores)
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles == ["gradient, q = 1, σ = 22.4", "natural, q = 0.25, σ = 22.4"]  # noqa: RUF001


def test_equal_scores_have_a_histogram() -> None:
    same = _attack(world0_scores=np.zeros(7), world1_scores=np.zeros(5))
    _, table = draw_score_histograms([same])
    assert (table["world0_models"].max(), table["world1_models"].max()) == (7, 5)


@pytest.mark.parametrize("draw", [draw_score_histograms, draw_trade_off])
def test_attacks_that_a_panel_would_mix_up_are_refused(draw) -> None:
    with pytest.raises(InputError, match="gradient-1 and other have the same canary"):
        draw([_attack(), _attack(audit="other")])
    with pytest.raises(InputError, match="no audit to show"):
        draw([])


@pytest.mark.parametrize("draw", [draw_score_histograms, draw_trade_off])
def test_attacks_by_other_scores_are_told_apart(draw) -> None:
    attacks = [
        _attack(Canary.WORST_CASE, audit=score.value, score=score)
        for score in (Score.FINAL_SUM, Score.TRANSCRIPT)
    ]
    _, table = draw(attacks)
    assert set(table["audit"].dropna()) == {"final_sum", "transcript"}


@pytest.mark.parametrize("num_canaries", [1, 5])
def test_no_text_overlaps_or_leaves_the_figure(num_canaries: int) -> None:
    attacks = [_attack(canary) for canary in list(Canary)[:num_canaries]]
    figure, _ = draw_trade_off(attacks)
    FigureCanvasAgg(figure).draw()
    texts = [text for legend in figure.subfigs[1].legends for text in legend.get_texts()]
    texts += [text for part in figure.subfigs for text in part.texts]
    boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) > 5
    for index, box in enumerate(boxes):
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height
        assert not any(box.overlaps(other) for other in boxes[index + 1 :])
