"""The numbers of all figures but those of bounds, compared with loops and closed forms."""

from dataclasses import replace
from statistics import mean, stdev

import figure_examples as examples
import numpy as np
import pandas as pd
import pytest
from figure_examples import FIXED, SHOWN_BOUND, accuracies_of, draw, landscapes, membership
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, StepPatch
from scipy.stats import binomtest, norm, ttest_1samp
from summaries import attack, below, legend, summary_of, titles

from dpcanary import estimate_epsilon
from dpcanary.core.gdp import gdp_delta
from dpcanary.errors import InputError
from dpcanary.estimation.rule_catalogue import RULES, Proof
from dpcanary.experiment.summary import NOT_VALID
from dpcanary.figures import attacks as of_attacks
from dpcanary.figures import scores_of_worlds
from dpcanary.figures.accuracy import accuracy_table
from dpcanary.figures.attacks import Attack, Profile
from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds
from dpcanary.figures.style import canary_colour
from dpcanary.scoring.world_scores import WorldScores


def test_envelope_of_few_points_is_their_lines_and_survives_epsilons_beyond_floats():
    profile = Profile(delta=np.array([0.1]), epsilon=np.array([np.log(2.0)]))
    fnr = of_attacks.accounted_false_negative_rate(profile, [0.0, 0.2, 0.5, 0.9, 1.0])
    assert fnr == pytest.approx([0.9, 0.5, 0.2, 0.0, 0.0])
    profile = Profile(delta=np.array([1e-12, 0.3, 0.5]), epsilon=np.array([np.inf, 5000.0, 0.0]))
    fnr = of_attacks.accounted_false_negative_rate(profile, [0.0, 0.1, 1.0])
    assert fnr == pytest.approx([0.7, 0.4, 0.0])


def test_measured_curve_counts_as_a_loop_does_and_bands_are_exact_binomial_intervals():
    rng = np.random.default_rng(2)
    # Rounding makes ties within and across worlds.
    world0, world1 = rng.normal(1, 1, 40).round(1), rng.normal(-1, 1, 30).round(1)
    fpr, fnr = of_attacks.measured_error_curve(world0, world1)
    thresholds = sorted(set(world0))
    assert fpr.tolist() == [sum(s >= t for s in world1) / 30 for t in thresholds]
    assert fnr.tolist() == [sum(s < t for s in world0) / 40 for t in thresholds]
    low, high = of_attacks.confidence_band(world0, world1, confidence=0.9)
    for index in range(len(thresholds)):
        counts = [(round(30 * fpr[index]), 30), (round(40 * fnr[index]), 40)]
        for side, (errors, trials) in enumerate(counts):
            exact = binomtest(errors, trials).proportion_ci(0.95, method="exact")
            assert low[side][index] == pytest.approx(exact.low)
            assert high[side][index] == pytest.approx(exact.high)


def test_thinning_keeps_ends_and_shape():
    rng = np.random.default_rng(3)
    # One world's scores are skewed, so that the two axes need different points.
    fpr, fnr = of_attacks.measured_error_curve(
        rng.normal(1, 1, 20_000), -rng.exponential(1, 20_000)
    )
    seen = (fpr > 0) & (fnr > 0)
    fpr, fnr = fpr[seen], fnr[seen]
    kept = of_attacks.thinned(fpr, fnr, most=400)
    assert 200 < len(kept) <= 400
    assert (kept[0], kept[-1]) == (0, len(fpr) - 1)
    # Between kept points, the drawn line errs by less than a tenth along both axes.
    for x, y in ((-np.log(fpr), np.log(fnr)), (np.log(fnr), np.log(fpr))):
        assert np.abs(np.interp(x, x[kept], y[kept]) - y).max() < 0.1
    assert of_attacks.thinned(fpr[:5], fnr[:5], most=400).tolist() == [0, 1, 2, 3, 4]


def test_trade_off_table_holds_measured_and_accounted_curves():
    attacks = [attack(), attack("natural", audit="natural-1")]
    figure, table = draw("trade_off", attacks)
    words = "fewer errors than the add/remove curve would allow if it covered substitutions"
    assert words in legend(figure)
    measured = table[(table["audit"] == "natural-1") & (table["series"] == "measured")]
    world0, world1 = attacks[1].world0_scores, attacks[1].world1_scores
    rates = [(np.mean(world1 >= t), np.mean(world0 < t)) for t in sorted(world0)]
    shown = measured[["false_positive_rate", "false_negative_rate"]].to_numpy()
    assert shown == pytest.approx(np.array([pair for pair in rates if min(pair) > 0]))
    _, band = (patch for patch in figure.axes[0].patches if isinstance(patch, Polygon))
    assert band.get_path().contains_points(shown).all()
    assert not band.get_path().contains_point((0.5, 0.5))
    for adjacency, mu in (("substitute", 2.0), ("add_remove", 1.0)):
        curve = table[table["series"] == f"accounted_{adjacency}"]
        exact = norm.cdf(norm.isf(curve["false_positive_rate"]) - mu)
        assert (curve["false_negative_rate"] - exact).min() > -1e-3
        assert (curve["false_negative_rate"] <= exact + 1e-12).all()
    assert figure.axes[0].get_xlim() == (1 / 300, 1.0)
    perfect = attack(world0_scores=np.arange(10.0) + 100, world1_scores=np.arange(10.0))
    assert (draw("trade_off", [perfect])[1]["series"] != "measured").all()


def _attack(**changes: object) -> Attack:
    settings = {**FIXED, "canary_period": 1.0, "configuration": "first"}
    defaults = {"audit": "one", "score": "coordinate", "settings": settings, "shown": SHOWN_BOUND}
    return attack("random_dimension", noise_multiplier=4.0, **defaults | changes)


def test_the_trade_off_of_membership_has_one_curve_and_what_is_shown_with_the_assumption_or_not():
    figure, table = draw("trade_off", [_attack(shown=None)])
    bands = {"confidence_low", "confidence_high"}
    assert {*table["series"]} == {"accounted_add_remove", "measured"} | bands
    (axes,) = figure.axes
    assert axes.get_title() == "known batches of 128, σ = 4"  # noqa: RUF001
    assert not axes.collections  # no shade
    assert axes.get_lines()[0].get_linestyle() == "-"
    assert "fewest errors that the accountant allows, audited adjacency:" in legend(figure)
    figure, table = draw("trade_off", [_attack()])
    gaussian = table[table["series"] == "gaussian"]
    expected = norm.cdf(norm.isf(gaussian["false_positive_rate"]) - 1.256)
    assert gaussian["false_negative_rate"].to_numpy() == pytest.approx(expected)
    ceiling = table[table["series"] == "direct_ceiling"]
    rates = ceiling["false_positive_rate"]
    steep, flat = 1 - 1e-5 - np.exp(5.001) * rates, np.exp(-5.001) * (1 - 1e-5 - rates)
    assert ceiling["false_negative_rate"].to_numpy() == pytest.approx(np.maximum(steep, flat))
    assert "Gaussian, audited μ = 1.25" in legend(figure)
    assert "direct: at most ε = 5.01 with 600 scores" in legend(figure)
    assert "Audited μ and the bound of direct: combined rule, 95 % confidence" in below(figure)
    marked, table = draw("trade_off", [_attack()], note=f"{NOT_VALID}: the bounds of one")
    assert not {"gaussian", "direct_ceiling"} & {*table["series"]}
    assert "audited μ" not in " ".join(legend(marked))
    # Panels can be chosen, and repeats are shown once.
    settings = {**FIXED, "canary_period": 5.0, "configuration": "second"}
    other = _attack(audit="other", settings=settings, shown=replace(SHOWN_BOUND, mu=0.5))
    three = [other, _attack(), _attack(audit="again")]
    figure, table = draw("trade_off", three, panels=["canary_period"])
    assert titles(figure) == ["k = 1", "k = 5"]
    assert set(table["audit"].dropna()) == {"one", "other"}
    assert table.columns[0] == "canary_period"
    assert "Gaussian, audited μ = 1.25 / 0.50" in legend(figure)


def _check_histogram(axes: Axes, colour: object, scores: np.ndarray) -> None:
    """Whether each drawing of a colour counts every score in its bin."""
    steps = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    colour = to_rgb(colour)
    filled = [step for step in steps if step.get_fill() and to_rgb(step.get_facecolor()) == colour]
    lines = [step for step in steps if not step.get_fill() and step.get_edgecolor()[:3] == colour]
    assert (len(filled), len(lines)) == (1, 1)
    for step in [*filled, *lines]:
        counts, edges, _ = step.get_data()
        assert counts.tolist() == np.histogram(scores, edges)[0].tolist()
        assert counts.sum() == len(scores)


def test_histograms_have_the_colours_of_the_legend():
    """They count every score in bins that both worlds share, also those of an own audit."""
    rng = np.random.default_rng(0)
    scores = WorldScores(rng.normal(4.0, 1.0, 50), rng.normal(0.0, 1.0, 40))
    worlds = {"world0_scores": scores.world0, "world1_scores": scores.world1}
    bound = estimate_epsilon(**worlds, delta=1e-5, threshold_rule="split")
    figure = draw_scores_of_worlds(scores, bound, name="mine")
    assert any(label.startswith("bound: ε ≥") for label in legend(figure))
    direct = estimate_epsilon(**worlds, delta=1e-5, threshold_rule="split", conversion="direct")
    of_point = legend(draw_scores_of_worlds(scores, direct, name="mine"))
    assert any(label.startswith("(ε, δ)-DP of the bound: ε ≥") for label in of_point)
    assert figure.get_label() == f"The bound assumes: {bound.assumption}."
    # For a bound that does not hold, neither the number nor a curve is shown.
    without = draw_scores_of_worlds(scores, replace(bound, proof=Proof.NOT_VALID), name="mine")
    assert len(without.axes[1].get_lines()) == len(figure.axes[1].get_lines()) - 1
    assert "bound: " not in " ".join(legend(without))
    assert below(without) == f"mine: no valid bound, {bound.assumption}"
    for world, own in enumerate((scores.world0, scores.world1)):
        colour = legend(figure)[f"world {world}"].get_facecolor()
        _check_histogram(figure.axes[0], colour, own)
    # Floats hardly distinguish such scores.
    for close in ([1e17, 1e17 + 16], [1e17, 1e17], [0.0, 0.0], [np.inf, 3.0]):
        edges = scores_of_worlds._bin_edges(np.array(close), np.array(close))
        counted = sum(np.isfinite(close))
        assert np.histogram(close, edges)[0].sum() == counted
        assert (np.diff(edges) > 0).all()
    natural = attack("natural", sample_rate=0.25, num_runs=40)
    attacks = [attack(world0_scores=np.arange(30.0) + 8), natural]
    figure, table = draw("score_histograms", attacks)
    panels = [axes for axes in figure.axes if axes.get_title()]
    for axes, shown in zip(panels, attacks, strict=True):
        bins = table[table["audit"] == shown.audit]
        edges = [*bins["bin_left"], bins["bin_right"].iloc[-1]]
        for world, own in enumerate((shown.world0_scores, shown.world1_scores)):
            counts = bins[f"world{world}_scores"].tolist()
            assert counts == np.histogram(own, edges)[0].tolist()
            colour = legend(figure)[f"world {world}"].get_facecolor()
            _check_histogram(axes, colour, own)
    assert titles(figure) == ["gradient, q = 1, σ = 22.37", "natural, q = 0.25, σ = 22.37"]  # noqa: RUF001
    noises = [attack(noise_multiplier=sigma, audit=str(sigma)) for sigma in (3.0, 1.0, 2.0)]
    of_noises = titles(draw("score_histograms", noises)[0])
    assert [title.rpartition(" = ")[2] for title in of_noises] == ["1", "2", "3"]
    same = attack(world0_scores=np.zeros(7), world1_scores=np.zeros(5))
    table = draw("score_histograms", [same])[1]
    assert (table["world0_scores"].max(), table["world1_scores"].max()) == (7, 5)
    scores = ("final_sum", "transcript")  # of one canary, beside each other
    for kind in ("score_histograms", "trade_off"):
        table = draw(kind, [attack("worst_case", audit=score, score=score) for score in scores])[1]
        assert set(table["audit"].dropna()) == {*scores}


def test_norms_are_drawn_as_means_with_bands_of_two_deviations():
    summary = membership()
    norms = examples.norms_of(summary)
    figure, table = draw("gradient_norm", norms, summary)
    (axes,) = figure.axes
    assert [*legend(figure)] == ["mean over models:", "k = 1", "k = 5", "clipping norm C = 2"]
    for number, (audit, of_audit) in enumerate(norms.items()):
        rows = table[table["audit"] == audit]
        assert rows["mean"].tolist() == pytest.approx(
            [values.mean() for values in of_audit.values()]
        )
        deviations = [values.std(ddof=1) for values in of_audit.values()]
        assert rows["standard_deviation"].tolist() == pytest.approx(deviations)
        band = axes.collections[number].get_paths()[0].vertices[:, 1]
        high = (rows["mean"] + 2 * rows["standard_deviation"]).max()
        assert band.max() == pytest.approx(high)
        assert band.min() >= 0
    clipped = {tuple(x.get_ydata()) for x in axes.get_lines() if x.get_linestyle() == "--"}
    assert clipped == {(2.0, 2.0)}
    # Panels share a scale that holds every band.
    last = [*norms][-1]
    norms[last] = {step: 100 * values for step, values in norms[last].items()}
    figure, table = draw("gradient_norm", norms, summary, panels=["canary_period"])
    assert titles(figure) == ["k = 1", "k = 5"]
    highest = (table["mean"] + 2 * table["standard_deviation"]).max()
    assert all(axes.get_ylim()[0] == 0 < highest < axes.get_ylim()[1] for axes in figure.axes)
    assert [*legend(figure)][1] == "loss"
    # Audits that differ in their seed have one line.
    summary = membership(1.0)
    both = pd.concat([summary, summary.assign(audit="other", seed=1)])
    norms = examples.norms_of(both)
    _, table = draw("gradient_norm", norms, both)
    pooled = [
        np.concatenate([by_step[step] for by_step in norms.values()]) for step in (100, 300, 500)
    ]
    assert table["mean"].tolist() == pytest.approx([values.mean() for values in pooled])
    assert set(table["num_runs"]) == {60}


def test_audited_profiles_are_gaussian_with_the_mean_of_the_valid_bounds():
    summary = membership()
    figure, table = draw("privacy_profile", examples.profiles_of(summary), summary)
    for _, rows in table.groupby("audit"):
        audited = rows[rows["series"] == "audited"]
        assert set(audited["mu"]) == {1.5}  # the mean of 1, 1.5 and 2
        for series, mu in (("audited", 1.5), ("accounted", 3.0)):
            curve = rows[(rows["series"] == series) & (rows["epsilon"] > 0)]
            expected = [gdp_delta(mu=mu, epsilon=epsilon) for epsilon in curve["epsilon"]]
            assert curve["delta"].tolist() == pytest.approx(expected, rel=1e-6)
    (axes,) = figure.axes
    assert sum(line.get_color() == "black" for line in axes.get_lines()) == 2
    assert {"k = 1", "k = 5", "add/remove", "δ = 10⁻⁵"} < {*legend(figure)}
    assert "simultaneous rule, GDP conversion, 95 % confidence" in below(figure)
    assert "mean of 3 repeats" in below(figure)
    assert "Assumption: the curve is Gaussian." in figure.get_label()
    # Accounted profiles that differ have the colours of their set-ups.
    (axes,) = draw("privacy_profile", examples.profiles_of(summary, 3.0, 2.0), summary)[0].axes
    solid, dashed = (
        [line.get_color() for line in axes.get_lines() if line.get_linestyle() == style]
        for style in ("-", "--")
    )
    assert solid == dashed
    assert "black" not in solid


NAMES = ("gradient", "crafted_input", "natural")
CANARIES = summary_of(canaries=NAMES)
GRADIENT, CRAFTED, NATURAL = (f"{name}-1.0-22.37" for name in NAMES)


def _row_of(table: pd.DataFrame, trained_on: str) -> "pd.Series[float]":
    return table.set_index("trained_on").loc[trained_on]


def test_accuracies_and_their_errors_are_those_of_a_loop():
    tested = accuracies_of(GRADIENT, CRAFTED, NATURAL)
    table = accuracy_table(tested, CANARIES)
    gradient, crafted, natural = (accuracy.tolist() for accuracy in tested.values())
    means_of = {
        "target_record": [mean(repeat[0::2]) for repeat in [*crafted, *natural]],
        "gradient": [mean(repeat) for repeat in gradient],
        "crafted_input": [mean(repeat[1::2]) for repeat in crafted],
        "natural": [mean(repeat[1::2]) for repeat in natural],
    }
    assert table["trained_on"].tolist() == [*means_of]
    for trained_on, means in means_of.items():
        shown = _row_of(table, trained_on)
        assert shown["accuracy"] == pytest.approx(mean(means))
        assert shown["error_bar"] == pytest.approx(2 * stdev(means) / len(means) ** 0.5)
        assert shown["num_repeats"] == len(means)
        assert shown["num_models"] == (9 if trained_on in ("crafted_input", "natural") else 18)
    accuracy = np.random.default_rng(1).permutation(np.arange(1001) / 1000)
    spread = accuracy_table({GRADIENT: accuracy[None]}, CANARIES).iloc[0]
    assert (spread["models_low"], spread["models_high"]) == pytest.approx((0.025, 0.975))
    # Audits with the same models of world 0 count them once.
    tested[NATURAL][:, 0::2] = tested[CRAFTED][:, 0::2]
    target = _row_of(accuracy_table(tested, CANARIES), "target_record")
    assert (target["num_repeats"], target["num_models"]) == (3, 9)


def test_accuracies_are_compared_with_the_target_record_of_the_same_sample_rate():
    figure, table = draw("test_accuracy", accuracies_of(*CANARIES["audit"].unique()), CANARIES)
    assert table["sample_rate"].tolist() == [1.0] * 4 + [0.25] * 4
    for _, rows in table.groupby("sample_rate"):
        target = _row_of(rows, "target_record")
        assert np.isnan(target["difference"])
        for canary in NAMES:
            shown = _row_of(rows, canary)
            assert shown["difference"] == pytest.approx(shown["accuracy"] - target["accuracy"])
            squares = shown["error_bar"] ** 2 + target["error_bar"] ** 2
            assert shown["difference_error_bar"] == pytest.approx(squares**0.5)
    bars, differences = figure.axes
    heights = sorted(patch.get_height() for patch in bars.patches)
    assert heights == pytest.approx(sorted(100 * table["accuracy"]))
    labels = sorted(text.get_text() for text in bars.texts)
    assert labels == sorted(f"{100 * value:.1f}" for value in table["accuracy"])
    drawn = [y for line in differences.containers for y in line.lines[0].get_ydata()]
    assert sorted(drawn) == pytest.approx(sorted(100 * table["difference"].dropna()))
    low, high = differences.get_ylim()
    assert low == -high <= -1.0
    assert below(figure).endswith("N = 500 private records; model: linear")
    # The target record comes first, and one repeat has no error bar.
    tested = accuracies_of(GRADIENT, "gradient-0.25-5.574", "natural-0.25-5.574")
    figure, _ = draw("test_accuracy", tested, CANARIES)
    assert [*legend(figure)][1:4] == ["target record", "gradient", "natural"]
    # The bars are drawn in this order: one of the target record, two of gradient, one of natural.
    positions = [patch.get_x() for patch in figure.axes[0].patches]
    assert positions[1] < positions[0] < positions[2] < positions[3]
    for name, missing, num_panels in ((GRADIENT, "difference", 1), (CRAFTED, "error_bar", 2)):
        figure, table = draw("test_accuracy", accuracies_of(name, num_repeats=1), CANARIES)
        assert table[["error_bar", missing]].isna().all(axis=None)
        assert len(figure.axes) == num_panels


def _panels(figure: Figure) -> list[Axes]:
    return [axes for part in figure.subfigs for axes in part.axes]


def test_means_and_paired_differences_of_sets_are_those_of_scipy():
    summary, gaps = examples.sets()
    figure, table = draw("canary_sets", summary, gaps)
    assert {*table["measure"]} == {"loss_gap", "mahloujifar", "steinke"}
    assert len(table) == 3 * 2 * (3 + 6)
    wide = gaps.assign(canary=gaps["audit"].str.removeprefix("a-"))
    wide = wide[wide["step"] == 100].pivot(index="repeat", columns="canary", values="loss_gap")
    at = table.set_index(["measure", "step", "canary", "compared_with"])
    for other in ("", "loss"):
        shown = at.loc[("loss_gap", 100, "metagradient", other)]
        values = wide["metagradient"] - (wide[other] if other else 0)
        interval = ttest_1samp(values, 0).confidence_interval(0.95)
        numbers = [values.mean(), values.median(), *interval, 5]
        columns = ["mean", "median", "lower", "upper", "num_repeats"]
        np.testing.assert_allclose(shown[columns].astype(float), numbers)
    bounds = summary.query("threshold_rule == 'steinke' and step == 50 and canary == 'loss'")
    mean_of_bounds = bounds["epsilon_lower"].mean()
    assert at["mean"]["steinke", 50, "loss", ""] == pytest.approx(mean_of_bounds)
    assert "5 repeats" in below(figure)
    # Bands of bounds end where trainings do; those of the loss gap are one standard deviation.
    gap, _, steinke = _panels(figure)
    of_loss = summary.query("threshold_rule == 'steinke' and canary == 'loss'")
    for axes, of_step in (
        (gap, gaps[gaps["audit"] == "a-loss"].groupby("step")["loss_gap"]),
        (steinke, of_loss.groupby("step")["epsilon_lower"]),
    ):
        low, high = of_step.mean() - of_step.std(), of_step.mean() + of_step.std()
        if axes is steinke:
            assert (low < of_step.min()).any()
            low, high = np.fmax(low, of_step.min()), np.fmin(high, of_step.max())
        colour = to_rgb(canary_colour("loss"))
        [band] = [
            collection
            for collection in axes.collections
            if to_rgb(collection.get_facecolor()[0][:3]) == colour
        ]
        drawn = band.get_paths()[0].vertices[:, 1]
        assert (drawn.min(), drawn.max()) == pytest.approx((low.min(), high.max()))
    rules = ["Mahloujifar (any dependence)", "Steinke (any dependence)"]
    assert titles(figure) == ["Loss of canaries out minus in", *rules]
    assert {"random record", "mislabeled record (loss)", "metagradient"} <= {*legend(figure)}
    _, table = draw("canary_sets", *(part[part["repeat"] == 0] for part in (summary, gaps)))
    assert table[["lower", "upper"]].isna().all(axis=None)
    assert table["mean"].notna().all()
    # Repeats that a set lacks do not count.
    parts = [part[(part["audit"] != "a-loss") | (part["repeat"] < 2)] for part in (summary, gaps)]
    figure, table = draw("canary_sets", *parts)
    lacking = (table["canary"] == "loss") | (table["compared_with"] == "loss")
    assert {*table.loc[lacking, "num_repeats"]} == {2}
    assert {*table.loc[~lacking, "num_repeats"]} == {5}
    assert "2 to 5 repeats" in below(figure)
    # The accounted lines are those of the adjacency, and finite.
    without = examples.sets(noise_multiplier=0.0, epsilon_upper_add_remove=np.inf)
    figure, _ = draw("canary_sets", *without)
    assert "the true ε is infinite" in below(figure)
    assert "GDP conversion" not in below(figure)  # no curve is assumed without noise
    assert np.isfinite([axes.get_ylim()[1] for axes in _panels(figure)]).all()
    summary, gaps = examples.sets(adjacency="substitute")
    figure, _ = draw("canary_sets", summary[summary["canary"] != examples.SETS[0]], gaps)
    heights = [line.get_ydata() for line in _panels(figure)[1].lines]
    assert {10.0, 4.4} <= {float(height[0]) for height in heights if len(height) == 2}


def test_numbers_of_models_have_a_line_for_each_number_of_slots_and_valid_rule():
    figure, table = draw("models_trained", examples.models())
    lines = table.groupby(["num_slots", "threshold_rule", "conversion"])["num_runs"].apply(list)
    assert lines.to_dict() == {
        (1, "combined", "gdp"): [10, 100],
        (500, "combined", "gdp"): [1, 10],
        (500, "mahloujifar", "gdp"): [1, 10],
        (500, "steinke", "direct"): [1, 10],
    }
    expected = table["num_runs"] / 100 + table["threshold_rule"].str.len() + 0.5
    np.testing.assert_allclose(table["epsilon"], expected)
    np.testing.assert_allclose(table["error_bar"], 1.0)  # two standard errors of 0 and 1
    assert "95 % confidence" in below(figure)
    rules = ["Mahloujifar (any dependence)", "Steinke (any dependence, direct conversion)"]
    names = {f"500 canaries in each model: {x}" for x in [*rules, "combined (independent slots)"]}
    assert names | {"1 canary in each model: combined"} < {*legend(figure)}
    less_noise = examples.models(sample_rate=0.25, noise_multiplier=3.0)
    less_noise = less_noise.assign(epsilon_lower=less_noise["epsilon_lower"] + 50)
    figure, table = draw("models_trained", pd.concat([examples.models(), less_noise]))
    for axes in _panels(figure):
        heights = [height for line in axes.lines for height in line.get_ydata()]
        low, high = axes.get_ylim()
        assert low == 0 <= min(heights)
        assert max(heights, default=0) < high
    assert titles(figure) == ["q = 1, σ = 10", "q = 0.25, σ = 3"]  # noqa: RUF001
    assert len(table) == 16
    # Rules with one canary have looks of their own in the order of the catalogue.
    rules = ["split", "calibrated", "anytime", "combined"]
    rows = pd.concat([examples.models(threshold_rule=rule) for rule in rules])
    figure, _ = draw("models_trained", rows[rows["num_slots"] == 1])
    named = {text: line for text, line in legend(figure).items() if text.startswith("1 canary")}
    assert [*named] == [f"1 canary in each model: {rule}" for rule in RULES if rule in rules]
    looks = [(line.get_color(), line.get_marker()) for line in named.values()]
    assert [len({*values}) for values in zip(*looks, strict=True)] == [4, 4]


def test_bounds_of_shuffled_batches_stand_beside_the_guarantee_and_the_claim():
    figure, table = draw("shuffling", examples.shuffled())
    assert [title for title in titles(figure) if title] == ["zero-out", "substitute"]
    at = table.set_index(["adjacency", "series", "noise_multiplier"])
    expected = {
        ("substitute", "guaranteed", 0.5): 40.0,
        ("zero_out", "guaranteed", 2.0): 4.5,
        ("zero_out", "claimed", 0.5): 1.8,
        ("substitute", "shuffled_opposite", 2.0): 0.75,
        ("substitute", "poisson", 0.5): 2.2,
    }
    for place, epsilon in expected.items():
        assert at["epsilon"][place] == pytest.approx(epsilon)
    assert at["error_bar"]["zero_out", "shuffled_opposite", 0.5] == pytest.approx(2.0)
    assert "40 batches in a pass, 3 passes" in below(figure)


def test_a_line_of_shuffled_batches_has_a_gap_at_a_bound_of_zero():
    """Its neighbours are not joined: that would show a bound that nobody has."""
    summary = pd.concat(
        examples.shuffled().query("noise_multiplier == 2").assign(noise_multiplier=noise)
        for noise in (1.0, 2.0, 3.0)
    )
    is_poisson, is_middle = summary["sampling"] == "poisson", summary["noise_multiplier"] == 2
    summary.loc[is_poisson & is_middle, "epsilon_lower"] = 0.0
    summary["audit"] += summary["noise_multiplier"].astype(str)
    figure, _ = draw("shuffling", summary)
    axes = next(axes for axes in figure.axes if axes.get_title())
    points = [line for line in axes.get_lines() if line.get_marker() == "o"]
    (_, poisson), (zero, height) = (np.asarray(line.get_data(), dtype=float) for line in points)
    assert np.isnan(poisson).tolist() == [False, True, False]
    # The bound itself is a hollow marker on the axis.
    assert (zero.tolist(), height.tolist()) == ([2.0], [0.0])
    assert points[1].get_markerfacecolor() == "white"
    assert "0, at the axis" in legend(figure)


def test_audited_and_exact_epsilon_by_step_and_by_threshold():
    figure, table = draw("hidden_state_by_step", landscapes())
    at = table.query("noise_multiplier == 8 and batch_size == 16 and step == 2")
    shown = at.set_index(["series", at["conversion"].fillna("")])["epsilon"].to_dict()
    assert shown == {
        **{("audited", "gdp"): 5.5, ("audited", "direct"): 1.0, ("accounted", ""): 4.4},
        **{("exact", ""): 4.0, ("exact_gdp", ""): 6.0},
    }
    audited = table[table["series"] == "audited"]
    assert set(audited["threshold_rule"]) == {"combined"}  # the valid one
    np.testing.assert_allclose(audited["error_bar"], 1.0)  # two standard errors of 0 and 1
    assert set(audited["num_repeats"]) == {2}
    assert titles(figure) == 2 * ["σ = 1", "σ = 8"]  # noqa: RUF001
    # Each conversion has panels of its own, with the exact law that it estimates.
    blocks = figure.subfigs[0].subfigs
    names = [part.get_suptitle().partition(":")[0] for part in blocks]
    assert names == ["GDP conversion", "Direct conversion"]
    for part, levels in zip(blocks, ([12.0, 6.0, 4.0], [8.0, 4.0, 8.0 / 3]), strict=True):
        exact = [line for line in part.axes[1].get_lines() if line.get_marker() in ("", "None")]
        drawn = [line.get_ydata().tolist() for line in exact if line.get_color() != "black"]
        assert drawn == 2 * [pytest.approx(levels)]
    assert "95 % confidence for each bound alone, before the mean, R = 1,000 runs" in below(figure)
    _, table = draw("hidden_state_by_threshold", landscapes(0.5, 2.5))
    assert set(table["landscape_threshold"]) == {0.5, 2.5}
    assert set(table.loc[table["series"] == "exact", "epsilon"]) == {8.0 / 3}


def test_amplification_is_the_last_step_over_the_first_and_the_landscape_is_of_one_audit():
    figure, table = draw("amplification", landscapes())
    assert len(table) == 4
    np.testing.assert_allclose(table["epsilon_hidden_state"], 1 / 3)
    np.testing.assert_allclose(table["epsilon_hidden_state_gdp"], 1 / 3)
    np.testing.assert_allclose(table["epsilon_lower"], (10 / 3 + 0.5) / 10.5)
    texts = [text.get_text() for axes in figure.subfigs[0].axes for text in axes.texts]
    assert texts == [*["0.37"] * 4, *["0.33"] * 8]
    figure, table = draw("loss_landscape", examples.one_landscape())
    loss = table[table["step"] == 0]
    np.testing.assert_allclose(loss["loss"], -np.abs(loss["position"] - 0.5))  # pushed apart
    assert sorted(table["step"].unique()) == [0, 1, 2, 3]
    last = table[table["step"] == 3]
    for world in ("world0", "world1"):
        assert np.trapezoid(last[world], last["position"]) == pytest.approx(1.0, abs=2e-3)
    assert "B = 16, σ = 1, add/remove adjacency" in below(figure)  # noqa: RUF001


def test_secret_labels_are_in_one_record_and_a_line_along_epsilon_is_in_the_legend():
    """A summary has no number of copies of a secret label."""
    summary = examples.of_secrets(canary="random_label", num_copies=np.nan)
    by_noise = summary[summary["sweep"] == "by_noise"]
    figure, table = draw("secrets", by_noise)
    assert table["num_copies"].eq(1).all()
    assert "copies of a secret: 1" in below(figure)
    along = "audited ε (lower bound), along the accounted ε"
    assert [*legend(figure)] == [along, "accounted ε of all copies of a secret"]
    by_slots = summary[summary["sweep"] == "by_num_slots"]
    figure, table = draw("secrets", by_slots)
    assert along not in legend(figure)
    assert {*table["line"]} < {*legend(figure)}
    # Audits that differ in more than this figure shows are no repeats of one another.
    other = by_noise.assign(audit=by_noise["audit"] + "-lr0.2", configuration="another")
    with pytest.raises(InputError, match="by which this figure distinguishes audits"):
        draw("secrets", pd.concat([by_noise, other]))
