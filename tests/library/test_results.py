"""The numbers in the text of docs/results are those of the tables beside the figures."""

import re

import numpy as np
import pandas as pd
import pytest
from published import DOCS, Page, number, table_of

FOLDER, PAGE = DOCS / "results", Page("results/README.md")
TEXT, says = PAGE.text, PAGE.says
CANARIES = ("gradient", "crafted_input", "mislabeled", "natural")


def epsilons(figure: str, *index: str, series: str = "audited") -> "pd.Series[float]":
    rows = table_of(figure).query("series == @series")
    return rows.groupby(list(index))["epsilon"].mean()


def price(figure: str, *settings: str) -> float:
    """How much more the published rule gives, on average over the points of a figure."""
    keys = ["canary", "score", "sample_rate", "noise_multiplier", "step", "num_runs", *settings]
    rows = table_of(figure)
    valid, published = (
        rows[rows["series"] == series].set_index(keys)["epsilon"]
        for series in ("audited", "audited_in_sample")
    )
    return float((published - valid).mean())


def test_figure_2():
    by = ("sample_rate", "noise_multiplier")
    found, published = (
        epsilons("figure2", *by, series=s) for s in ("audited", "audited_in_sample")
    )
    truth = epsilons("figure2", *by, series="accounted_substitute")
    assert len(found) == 17
    assert (found > epsilons("figure2", *by, series="accounted_add_remove")).all()
    assert (found < truth).all()
    below = 100 * (1 - found / truth)
    at = [below[(truth > low) & (truth < high)] for low, high in ((3, 20), (1.5, 3), (0.5, 1.5))]
    ranges = [f"{part.min():.0f} to {part.max():.0f} %" for part in at]
    says(
        f"by {ranges[0]} at epsilon 4 and more, by {ranges[1]} at epsilon 2, and by {ranges[2]} at"
        " epsilon 1"
    )
    says(f"The published rule gives {number(price('figure2'), 2)} more on average.")
    says(f"It goes beyond the truth in {(published > truth).sum()} of the 17 audits.")


def row_at_last_step(figure: str, sample_rate: float) -> str:
    """A line of the page's tables of bounds."""
    rows = table_of(figure)
    rows = rows[(rows["step"] == rows["step"].max()) & (rows["sample_rate"] == sample_rate)]
    by = rows.pivot_table(index="canary", columns="series", values="epsilon")
    add_remove = rows.loc[rows["series"] == "accounted_add_remove", "epsilon"].iloc[0]
    cells = [f"{by.audited[name]:.2f} ({by.audited_in_sample[name]:.2f})" for name in CANARIES]
    name = f"{sample_rate:g}".removeprefix("0")
    return f"| q = {name} | {add_remove:.2f} | {' | '.join(cells)} |"


@pytest.mark.parametrize(
    ("figure", "rates", "step"),
    [
        ("figure3", (1, 0.25, 0.0625), 500),
        ("figureA6", (1, 0.25, 0.0625), 500),
        ("figure4", (1, 0.25), 250),
    ],
)
def test_the_tables_of_bounds(figure, rates, step):
    """And which canaries prove more than the add/remove epsilon, the gradient the most."""
    last = epsilons(figure, "canary", "sample_rate", "step").xs(step, level="step")
    add_remove = epsilons(figure, "sample_rate", "step", series="accounted_add_remove")
    not_above = {("figure4", 1): {"mislabeled"}, ("figure4", 0.25): {"mislabeled"}}
    not_above["figureA6", 0.0625] = {*CANARIES[1:]}
    for q in rates:
        says(row_at_last_step(figure, q))
        above = {name for name in CANARIES if last[name, q] > add_remove[q, step]}
        if figure != "figure3":
            assert above == {*CANARIES} - not_above.get((figure, q), set())
            assert last.xs(q, level="sample_rate").idxmax() == "gradient"
    if figure == "figure4":
        assert last["crafted_input", 0.25] < last["crafted_input", 1]


def first_step_above(figure: str, canary: str, q: float) -> int:
    """The first step from which on the mean bound exceeds the add/remove epsilon."""
    by = epsilons(figure, "canary", "sample_rate", "step")[canary, q]
    above = by > epsilons(figure, "sample_rate", "step", series="accounted_add_remove")[q]
    return int(above.index[np.flatnonzero(~above).max() + 1 if not above.all() else 0])


def test_figure_3():
    last = epsilons("figure3", "canary", "sample_rate", "step").xs(500, level="step")
    crafted, mislabeled, natural = (last[name] for name in CANARIES[1:])
    says(
        f"({crafted[1]:.1f} to {crafted[0.0625]:.1f}, {mislabeled[1]:.1f} to"
        f" {mislabeled[0.0625]:.1f})"
    )
    assert (crafted.diff()[1:] > 0).all()
    assert (mislabeled.diff()[1:] > 0).all()
    assert {first_step_above("figure3", name, q) for name in CANARIES for q in (1, 0.25)} == {25}
    assert {first_step_above("figure3", name, 0.0625) for name in CANARIES[:2]} == {25}
    steps = [first_step_above("figure3", name, 0.0625) for name in CANARIES[2:]]
    says(
        f"at q = .0625 mislabeled inputs do so from step {steps[0]} on and natural ones from step"
        f" {steps[1]} on"
    )
    values = [f"{natural[q]:.1f}" for q in (1, 0.25, 0.0625)]
    rows = table_of("figure3").query("series == 'audited' and step == 500 and canary == 'natural'")
    errors = [number(value, 1) for value in (rows["error_bar"].min(), rows["error_bar"].max())]
    says(
        f"{values[0]}, {values[1]} and {values[2]} at q = 1, .25 and .0625, each with two standard"
        f" errors of {errors[0]} to {errors[1]}"
    )
    says(f"The published rule gives {number(price('figure3'), 2)} more on average.")
    published = epsilons("figure3", "canary", "sample_rate", "step", series="audited_in_sample")
    says(
        f"At q = 1 its gradient audit gives {published['gradient', 1, 500]:.2f}, above the true 10"
    )


def test_figure_5():
    by = ("canary", "sample_rate", "num_runs")
    found, published = (
        epsilons("figure5", *by, series=s) for s in ("audited", "audited_in_sample")
    )
    add_remove = epsilons("figure5", "sample_rate", series="accounted_add_remove")
    above = found.unstack("num_runs").gt(
        add_remove.reindex(found.unstack("num_runs").index, level="sample_rate"), axis=0
    )
    assert above[250].all()
    assert {name for (name, _), value in above[100].items() if not value} == {"natural"}
    for runs, clause in ((100, "with 100 models"), (2500, "with 2,500")):
        means = [series.xs(runs, level="num_runs").mean() for series in (published, found)]
        average = " on average" if runs == 100 else ""
        says(f"{clause} ({means[0]:.1f} against {means[1]:.1f}{average})")


def test_figure_a1():
    rows = table_of("figureA1")
    low, high = 100 * rows["accuracy"].min(), 100 * rows["accuracy"].max()
    says(f"the accuracy is {low:.1f} to {high:.1f} % with any canary or none")
    largest = number(100 * rows["difference"].abs().max(), 2)
    says(f"the largest mean difference is {largest} percentage points")


def at(figure: str, setting: str, canary: str, series: str = "audited") -> "pd.Series[float]":
    return epsilons(figure, "canary", setting, series=series)[canary]


def test_figures_a2_to_a4():
    settings = {"figureA2": "max_grad_norm", "figureA3": "num_steps", "figureA4": "learning_rate"}
    bounds = {
        (figure, canary): at(figure, setting, canary)
        for figure, setting in settings.items()
        for canary in CANARIES
    }
    gradients = [value for figure in settings for value in bounds[figure, "gradient"]]
    assert len(gradients) == 14
    assert sum(value > 10 for value in gradients) == 1
    says(f"its 14 bounds are {min(gradients):.1f} to {max(gradients):.1f}")
    same = [
        bounds[figure, "gradient"][at]
        for figure, at in (("figureA2", 2.0), ("figureA3", 500), ("figureA4", 0.01))
    ]
    says(f"gave {same[0]:.1f}, {same[1]:.1f} and {same[2]:.1f}")
    crafted, mislabeled, natural = (bounds["figureA2", name] for name in CANARIES[1:])
    says(
        f"crafted {crafted[0.5]:.1f} at C = .5 and {crafted[8]:.1f} at C = 8, mislabeled and"
        f" natural from {mislabeled[2]:.1f} and {natural[2]:.1f} at C = 2 to"
        f" {mislabeled[8]:.1f} and {natural[8]:.1f} at C = 8"
    )
    crafted, mislabeled, natural = (bounds["figureA3", name] for name in CANARIES[1:])
    says(
        f"crafted {crafted[125]:.1f} at T = 125 and {crafted[2000]:.1f} at T = 2,000, mislabeled"
        f" and natural from {mislabeled[500]:.1f} and {natural[500]:.1f} at T = 500 to"
        f" {mislabeled[2000]:.1f} and {natural[2000]:.1f}"
    )
    crafted, mislabeled, natural = (bounds["figureA4", name] for name in CANARIES[1:])
    says(
        f"mislabeled and natural fall from {mislabeled[0.01]:.1f} and {natural[0.01]:.1f} at .01 to"
        f" {mislabeled[0.1]:.1f} and {natural[0.1]:.1f} at .1, crafted from {crafted[0.001]:.1f} at"
        f" .001 to {crafted[1]:.1f} at 1"
    )
    below = -np.mean([price(figure, setting) for figure, setting in settings.items()])
    says(f"the published rule gives {number(below, 1)} less than the valid one on average")


def test_figure_a5():
    rows = table_of("figureA5")
    most, least = rows["ratio"].max(), rows["ratio"].min()
    says(f"the substitute epsilon is up to {most:.1f} times the add/remove one")
    assert rows.loc[rows["ratio"].idxmax(), "sample_rate"] == 1
    assert rows.loc[rows["ratio"].idxmin(), "sample_rate"] < 0.25
    assert least < 2


def test_every_figure_has_its_table_and_image():
    for name in re.findall(r"\]\((figure\w+)\.png\)", TEXT):
        assert (FOLDER / f"{name}.png").exists()
        assert (FOLDER / f"{name}.tsv").exists()
