"""Figures of attacks show the given scores, and their curves are right."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import StepPatch
from scipy.stats import binomtest, norm
from summaries import attack, gaussian_profile, legend, titles, written_below

from dpcanary import estimate_epsilon
from dpcanary.errors import InputError
from dpcanary.figures.attacks import (
    Profile,
    accounted_false_negative_rate,
    confidence_band,
    measured_error_curve,
    thinned,
)
from dpcanary.figures.scores_of_worlds import draw_score_histograms, draw_scores_of_worlds
from dpcanary.figures.trade_off import draw_trade_off
from dpcanary.scoring.world_scores import WorldScores


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0])
def test_envelope_meets_the_gaussian_trade_off_curve(mu: float) -> None:
    rates = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 200)])
    exact = norm.cdf(norm.isf(rates) - mu)
    envelope = accounted_false_negative_rate(gaussian_profile(mu), rates)
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
    # Rounding makes ties within and across worlds.
    world0, world1 = rng.normal(1, 1, 60).round(1), rng.normal(-1, 1, 50).round(1)
    fpr, fnr = measured_error_curve(world0, world1)
    thresholds = sorted(set(world0))
    assert fpr.tolist() == [sum(s >= t for s in world1) / 50 for t in thresholds]
    assert fnr.tolist() == [sum(s < t for s in world0) / 60 for t in thresholds]


def test_confidence_bands_are_exact_binomial_intervals() -> None:
    rng = np.random.default_rng(4)
    world0, world1 = rng.normal(1, 1, 40).round(1), rng.normal(-1, 1, 30).round(1)
    low, high = confidence_band(world0, world1, confidence=0.9)
    for index, threshold in enumerate(sorted(set(world0))):
        for side, (errors, trials) in enumerate(
            [(sum(world1 >= threshold), 30), (sum(world0 < threshold), 40)]
        ):
            exact = binomtest(int(errors), trials).proportion_ci(0.95, method="exact")
            assert low[side][index] == pytest.approx(exact.low)
            assert high[side][index] == pytest.approx(exact.high)


def test_thinning_keeps_ends_and_shape() -> None:
    rng = np.random.default_rng(3)
    # One world's scores are skewed, so that the two axes need different points.
    fpr, fnr = measured_error_curve(rng.normal(1, 1, 20_000), -rng.exponential(1, 20_000))
    seen = (fpr > 0) & (fnr > 0)
    fpr, fnr = fpr[seen], fnr[seen]
    kept = thinned(fpr, fnr, most=400)
    assert 200 < len(kept) <= 400
    assert (kept[0], kept[-1]) == (0, len(fpr) - 1)
    # Between kept points, the drawn line errs by less than a tenth along both axes.
    log_fpr, log_fnr = np.log(fpr), np.log(fnr)
    upwards = np.interp(-log_fpr, -log_fpr[kept], log_fnr[kept]) - log_fnr
    across = np.interp(log_fnr, log_fnr[kept], log_fpr[kept]) - log_fpr
    assert max(np.abs(upwards).max(), np.abs(across).max()) < 0.1
    assert thinned(fpr[:5], fnr[:5], most=400).tolist() == [0, 1, 2, 3, 4]


def test_trade_off_table_holds_measured_and_accounted_curves() -> None:
    attacks = [attack(), attack("natural", audit="natural-1")]
    figure, table = draw_trade_off(attacks)
    measured = table[(table["audit"] == "natural-1") & (table["series"] == "measured")]
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
    perfect = attack(world0_scores=np.arange(10.0) + 100, world1_scores=np.arange(10.0))
    _, table = draw_trade_off([perfect])
    assert (table["series"] != "measured").all()


@pytest.mark.parametrize(
    ("mus", "message"),
    [
        ({"substitute": 2.0}, "no adjacency add_remove"),
        ({"substitute": 2.1, "add_remove": 1.0}, "differ in their accounted"),
    ],
)
def test_trade_off_refuses_profiles_that_do_not_fit(mus: dict[str, float], message: str) -> None:
    profiles = {name: gaussian_profile(mu) for name, mu in mus.items()}
    with pytest.raises(InputError, match=message):
        draw_trade_off([attack(), attack("natural", profiles=profiles)])


def test_histograms_count_every_score_in_shared_bins() -> None:
    attacks = [attack(), attack("natural", sample_rate=0.25, num_runs=40)]
    figure, table = draw_score_histograms(attacks)
    for one in attacks:
        bins = table[table["audit"] == one.audit]
        for world, scores in ((0, one.world0_scores), (1, one.world1_scores)):
            edges = zip(bins["bin_left"], bins["bin_right"], strict=True)
            counts = [int(((scores >= left) & (scores < right)).sum()) for left, right in edges]
            counts[-1] += int((scores == bins["bin_right"].iloc[-1]).sum())
            assert bins[f"world{world}_scores"].tolist() == counts
            assert sum(counts) == len(scores)
    assert titles(figure) == ["gradient, q = 1, σ = 22.4", "natural, q = 0.25, σ = 22.4"]  # noqa: RUF001


def test_histograms_of_an_own_audit_have_the_colours_of_the_legend() -> None:
    rng = np.random.default_rng(0)
    scores = WorldScores(rng.normal(4.0, 1.0, 50), rng.normal(0.0, 1.0, 40))
    bound = estimate_epsilon(
        world0_scores=scores.world0, world1_scores=scores.world1, delta=1e-5, threshold_rule="split"
    )
    figure = draw_scores_of_worlds(scores, bound, name="mine")
    for world, own in enumerate((scores.world0, scores.world1)):
        colour = to_rgb(legend(figure)[f"world {world}"].get_facecolor())
        steps = [one for one in figure.axes[0].patches if isinstance(one, StepPatch)]
        filled = [one for one in steps if one.get_fill() and to_rgb(one.get_facecolor()) == colour]
        lines = [one for one in steps if not one.get_fill() and one.get_edgecolor()[:3] == colour]
        assert (len(filled), len(lines)) == (1, 1)
        for one in [*filled, *lines]:
            counts, edges, _ = one.get_data()
            assert counts.tolist() == np.histogram(own, edges)[0].tolist()
            assert counts.sum() == len(own)


def test_histograms_of_a_figure_have_the_colours_of_the_legend() -> None:
    figure, table = draw_score_histograms([attack(world0_scores=np.arange(30.0) + 8)])
    for world in (0, 1):
        colour = to_rgb(legend(figure)[f"world {world}"].get_facecolor())
        steps = [one for one in figure.axes[0].patches if isinstance(one, StepPatch)]
        own = [one for one in steps if one.get_fill() and to_rgb(one.get_facecolor()) == colour]
        [counts] = [one.get_data()[0].tolist() for one in own]
        assert counts == table[f"world{world}_scores"].tolist()
    assert table["world0_scores"].tolist() != table["world1_scores"].tolist()


def test_equal_scores_have_a_histogram() -> None:
    same = attack(world0_scores=np.zeros(7), world1_scores=np.zeros(5))
    _, table = draw_score_histograms([same])
    assert (table["world0_scores"].max(), table["world1_scores"].max()) == (7, 5)


@pytest.mark.parametrize("draw", [draw_score_histograms, draw_trade_off])
def test_attacks_that_a_panel_would_mix_up_are_refused(draw) -> None:
    with pytest.raises(InputError, match="gradient-1 and other have the same canary"):
        draw([attack(), attack(audit="other")])
    with pytest.raises(InputError, match="no audit to show"):
        draw([])


@pytest.mark.parametrize("draw", [draw_score_histograms, draw_trade_off])
def test_attacks_by_other_scores_are_told_apart(draw) -> None:
    attacks = [
        attack("worst_case", audit=score, score=score) for score in ("final_sum", "transcript")
    ]
    _, table = draw(attacks)
    assert set(table["audit"].dropna()) == {"final_sum", "transcript"}


@pytest.mark.parametrize("draw", [draw_score_histograms, draw_trade_off])
def test_the_users_note_comes_first(draw) -> None:
    assert written_below(draw([attack()], note="Reduced scale")[0])[0] == "Reduced scale"
    assert "" not in written_below(draw([attack()])[0])
