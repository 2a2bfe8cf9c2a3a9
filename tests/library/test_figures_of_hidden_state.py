"""Figures of hidden-state audits: norms of gradients, privacy profiles, what bounds prove."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from summaries import attack, legend, summary_of, titles, written_below

from dpcanary.errors import InputError
from dpcanary.figures.attacks import Attack, Profile, Proven
from dpcanary.figures.set_ups import draw_gradient_norm, draw_privacy_profile
from dpcanary.figures.trade_off import draw_trade_off
from dpcanary.gdp import gdp_delta, gdp_epsilon

FIXED = {"adjacency": "add_remove", "sampling": "fixed", "batch_size": 128.0}


def _summary(**axis: list[object]) -> pd.DataFrame:
    """A summary of audits of known batches; one setting changes."""
    summary = summary_of(
        settings=((1.0, 4.0),),
        canaries=["loss"],
        rules=["simultaneous", "in_sample"],
        axis=axis or {"canary_period": [1.0, 5.0]},
        **FIXED,
    )
    mu = 1.0 + 0.5 * summary["repeat"] + 5.0 * ~summary["is_valid"]
    return summary.assign(mu_lower=mu, assumption="the curve is Gaussian")


def _norms(summary: pd.DataFrame) -> dict[str, dict[int, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        audit: {step: rng.gamma(2.0, size=30) for step in (100, 300, 500)}
        for audit in summary["audit"].unique()
    }


def test_norms_are_drawn_as_means_with_bands_of_two_deviations() -> None:
    summary = _summary()
    norms = _norms(summary)
    figure, table = draw_gradient_norm(norms, summary)
    (axes,) = figure.axes
    assert [*legend(figure)] == ["mean over models:", "k = 1", "k = 5", "clipping norm C = 2"]
    for number, (audit, of_audit) in enumerate(norms.items()):
        rows = table[table["audit"] == audit]
        assert rows["mean"].tolist() == pytest.approx([one.mean() for one in of_audit.values()])
        deviations = [one.std(ddof=1) for one in of_audit.values()]
        assert rows["standard_deviation"].tolist() == pytest.approx(deviations)
        [line] = [one for one in axes.get_lines() if one.get_marker() == "os"[number]]
        assert line.get_ydata().tolist() == rows["mean"].tolist()
        band = axes.collections[number].get_paths()[0].vertices[:, 1]
        high = (rows["mean"] + 2 * rows["standard_deviation"]).max()
        assert band.max() == pytest.approx(high)
        assert band.min() >= 0
    clipped = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert {*map(tuple, (line.get_ydata() for line in clipped))} == {(2.0, 2.0)}


def test_panels_of_norms_share_a_scale_that_holds_every_band() -> None:
    summary = _summary()
    norms = _norms(summary)
    last = [*norms][-1]
    norms[last] = {step: 100 * values for step, values in norms[last].items()}
    figure, table = draw_gradient_norm(norms, summary, panels=["canary_period"])
    assert titles(figure) == ["k = 1", "k = 5"]
    highest = (table["mean"] + 2 * table["standard_deviation"]).max()
    for axes in figure.axes:
        assert axes.get_ylim()[0] == 0
        assert axes.get_ylim()[1] > highest
    assert [*legend(figure)][1] == "loss"


def test_norms_of_audits_that_differ_in_their_seed_are_of_one_line() -> None:
    summary = _summary(canary_period=[1.0])
    other = summary.assign(audit="other", seed=1)
    both = pd.concat([summary, other])
    norms = _norms(both)
    _, table = draw_gradient_norm(norms, both)
    pooled = [np.concatenate([one[step] for one in norms.values()]) for step in (100, 300, 500)]
    assert table["mean"].tolist() == pytest.approx([values.mean() for values in pooled])
    assert set(table["num_runs"]) == {60}


def test_norms_that_could_not_be_told_apart_are_refused() -> None:
    summary = _summary(canary_period=[1.0])
    for changes in ({"configuration": "another", "seed": 1}, {}):
        both = pd.concat([summary, summary.assign(audit="other", **changes)])
        with pytest.raises(InputError, match="other differ in nothing that this figure shows"):
            draw_gradient_norm(_norms(both), both)
    with pytest.raises(InputError, match="the summary lacks an audit"):
        draw_gradient_norm(_norms(summary) | {"more": {}}, summary)


def _profile(mu: float) -> Profile:
    delta = np.geomspace(1e-10, 0.5, 200)
    return Profile(delta, np.array([gdp_epsilon(mu=mu, delta=float(one)) for one in delta]))


def _profiles(summary: pd.DataFrame, *mus: float) -> dict[str, dict[str, Profile]]:
    audits = summary["audit"].unique().tolist()
    known = {"substitute": _profile(9.0)}
    return {
        audit: known | {"add_remove": _profile(mu)} for audit, mu in zip(audits, mus, strict=True)
    }


def test_audited_profiles_are_gaussian_with_the_mean_of_the_valid_bounds() -> None:
    summary = _summary()
    figure, table = draw_privacy_profile(_profiles(summary, 3.0, 3.0), summary)
    for _, rows in table.groupby("audit"):
        audited = rows[rows["series"] == "audited"]
        assert set(audited["mu"]) == {1.5}  # the mean of 1, 1.5 and 2
        expected = [gdp_delta(mu=1.5, epsilon=epsilon) for epsilon in audited["epsilon"]]
        assert audited["delta"].tolist() == pytest.approx(expected)
        accounted = rows[rows["series"] == "accounted"]
        expected = [gdp_delta(mu=3.0, epsilon=epsilon) for epsilon in accounted["epsilon"]]
        assert accounted["delta"].tolist() == pytest.approx(expected, rel=1e-6)
    (axes,) = figure.axes
    assert sum(line.get_color() == "black" for line in axes.get_lines()) == 2
    assert {"k = 1", "k = 5", "add/remove", "δ = 10⁻⁵"} < {*legend(figure)}
    below = " ".join(written_below(figure))
    assert "by the simultaneous rule, 95 % confidence" in below
    assert "mean of 3 repeats. Assumption: the curve is Gaussian" in below


def test_accounted_profiles_that_differ_have_the_colours_of_their_set_ups() -> None:
    summary = _summary()
    figure, _ = draw_privacy_profile(_profiles(summary, 3.0, 2.0), summary)
    (axes,) = figure.axes
    solid = [line.get_color() for line in axes.get_lines() if line.get_linestyle() == "-"]
    dashed = [line.get_color() for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert solid == dashed
    assert "black" not in solid


def test_profiles_need_a_valid_bound_and_an_accounted_profile() -> None:
    summary = _summary()
    with pytest.raises(InputError, match="no bound of a valid rule by conversion gdp"):
        draw_privacy_profile(_profiles(summary, 3.0, 3.0), summary[~summary["is_valid"]])
    with pytest.raises(InputError, match="has no accounted profile"):
        draw_privacy_profile({}, summary)
    without = {audit: {"substitute": _profile(1.0)} for audit in summary["audit"]}
    with pytest.raises(InputError, match="its profile has no adjacency add_remove"):
        draw_privacy_profile(without, summary)


PROVEN = Proven(mu=1.25, ceiling=5.0, delta=1e-5, stated="combined rule, 95 % confidence")


def _attack(**changes: object) -> Attack:
    settings = {**FIXED, "canary_period": 1.0, "configuration": "first"}
    known = {"audit": "one", "score": "coordinate", "settings": settings, "proven": PROVEN}
    return attack("random_dimension", noise_multiplier=4.0, **known | changes)


def test_the_trade_off_of_membership_has_the_curve_of_its_adjacency_alone() -> None:
    figure, table = draw_trade_off([_attack(proven=None)])
    bands = {"confidence_low", "confidence_high"}
    assert {*table["series"]} == {"accounted_add_remove", "measured"} | bands
    (axes,) = figure.axes
    assert axes.get_title() == "known batches of 128, σ = 4"  # noqa: RUF001
    assert not axes.collections  # no shade
    assert axes.get_lines()[0].get_linestyle() == "-"
    assert "fewest errors that the accountant allows, audited adjacency:" in legend(figure)


def test_the_trade_off_shows_what_is_proven_with_and_without_the_assumption() -> None:
    figure, table = draw_trade_off([_attack()])
    gaussian = table[table["series"] == "gaussian"]
    expected = norm.cdf(norm.isf(gaussian["false_positive_rate"]) - 1.25)
    assert gaussian["false_negative_rate"].to_numpy() == pytest.approx(expected)
    ceiling = table[table["series"] == "direct_ceiling"]
    rates = ceiling["false_positive_rate"]
    steep, flat = 1 - 1e-5 - np.exp(5.0) * rates, np.exp(-5.0) * (1 - 1e-5 - rates)
    assert ceiling["false_negative_rate"].to_numpy() == pytest.approx(np.maximum(steep, flat))
    labels = legend(figure)
    assert "Gaussian, audited μ = 1.25" in labels
    assert "direct: at most ε = 5 with 600 scores" in labels
    assert "Audited μ and the bound of direct: combined rule, 95 % confidence" in written_below(
        figure
    )


def test_panels_of_the_trade_off_can_be_chosen_and_repeats_are_shown_once() -> None:
    again = _attack(audit="again")
    settings = {**FIXED, "canary_period": 5.0, "configuration": "second"}
    other = _attack(audit="other", settings=settings, proven=replace(PROVEN, mu=0.5))
    figure, table = draw_trade_off([other, _attack(), again], panels=["canary_period"])
    assert titles(figure) == ["k = 1", "k = 5"]
    assert set(table["audit"].dropna()) == {"one", "other"}
    assert table.columns[0] == "canary_period"
    assert "Gaussian, audited μ = 1.25 / 0.5" in legend(figure)
    with pytest.raises(InputError, match="have the same canary, score and model, by which"):
        draw_trade_off([other, _attack()], panels=["model"])
