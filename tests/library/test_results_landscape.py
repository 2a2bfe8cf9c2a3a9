"""The numbers in the text on the crafted loss landscape are those of the tables beside it."""

import re

import numpy as np
import pandas as pd
import pytest
from published import DOCS, Page, number, table_of

from dpcanary.adversaries.landscape_law import curves_of, exact_law
from dpcanary.adversaries.loss_landscape import Process, two_levels
from dpcanary.adversaries.settings import LandscapeShape

FOLDER, PAGE = DOCS / "results", Page("results/cebere-landscape.md")
TEXT, says = PAGE.text, PAGE.says
KEYS = ["noise_multiplier", "batch_size", "step"]


def series(figure: str, name: str, conversion: str | None = None) -> "pd.Series[float]":
    rows = table_of(f"cebere-{figure}").query("series == @name")
    rows = rows if conversion is None else rows[rows["conversion"] == conversion]
    return rows.set_index([key for key in KEYS if key in rows])["epsilon"]


def test_the_signs():
    pushed, pulled = series("figure3a", "exact_gdp"), series("figure3a-printed", "exact_gdp")
    accounted = series("figure3a", "accounted")[1, 16, 25]
    assert number(accounted, 3) == number(pushed[1, 16, 25], 3)
    says(
        f"gives an epsilon of {number(pushed[1, 16, 25], 3)} with the opposite sign, as accounted"
        f" and as published, and of {number(pulled[1, 16, 25], 3)} with the printed one. At B = 1"
        f" these are {number(pushed[1, 1, 25], 3)} and {number(pulled[1, 1, 25], 3)}."
    )


def test_figure_14():
    exact, limit = series("figure14", "exact"), series("figure14", "exact_gdp")
    accounted = series("figure14", "accounted")
    gdp, direct = (series("figure14", "audited", name) for name in ("gdp", "direct"))
    assert len(exact) == len(gdp) == len(direct) == 1000
    values = [f"{exact[1, size, 25]:.3f}" for size in (1, 2, 4, 8, 16)]
    says(f"{', '.join(values[:-1])} and {values[-1]} at B = 1, 2, 4, 8 and 16")
    least = min(limit[1, size, 25] for size in (1, 2, 4, 8, 16))
    says(f"where the conversion gives at least {least:.3f}")
    above = gdp > exact
    worst = (gdp / exact).idxmax()
    says(f"{above.sum()} by the conversion `gdp` are above the exact epsilon")
    says(f"at worst {gdp[worst]:.2f} against {exact[worst]:.3f}")
    assert not (gdp > limit).any()
    assert not (gdp > accounted).any()
    says(f"Of the bounds by `direct`, which assume nothing, {(direct > exact).sum()} is")


def test_figure_3b():
    table = table_of("cebere-figure3b")
    by = table.set_index(["noise_multiplier", "batch_size"])
    limit, exact = by["epsilon_hidden_state_gdp"], by["epsilon_hidden_state"]
    assert set(limit.xs(16, level="batch_size").round(2)) == {1.0}
    says(f"from {number(limit[1, 1], 2)} (sigma = 1) to {number(limit[8, 1], 2)} (sigma = 8)")
    assert set(exact.xs(16, level="batch_size").round(2)) == {0.95}
    says(f"is {number(exact[1, 1], 2)} to {number(exact[8, 1], 2)} at B = 1, and .95 at B = 16")


def test_figure_6():
    rows = table_of("cebere-figure6").query("noise_multiplier == 1")
    by = rows.set_index("landscape_threshold")
    exact = by.query("series == 'exact'")["epsilon"]
    assert exact.idxmax() == 4.5
    assert exact[:4.5].is_monotonic_increasing
    assert by.query("series == 'exact_gdp'")["epsilon"].idxmax() == 0.5
    for conversion in ("gdp", "direct"):
        found = by.loc[by["conversion"] == conversion, "epsilon"]
        assert found[4.5] < found[0.5]


def test_the_curves():
    """The largest differences in FNR between the measured table's exact and Gaussian curves."""
    rows = table_of("cebere-figure6b")
    for noise, told in ((4.0, ".019"), (1.0, ".127")):
        of_noise = rows[rows["noise_multiplier"] == noise].set_index("false_positive_rate")
        exact, gaussian = (
            of_noise.loc[of_noise["series"] == f"exact_{name}", "false_negative_rate"]
            for name in ("hidden_state", "hidden_state_gdp")
        )
        assert float((exact - gaussian).abs().max()) == pytest.approx(float(told), abs=1.5e-3)
        says(f"up to {told}")


def test_substitute():
    exact = series("substitute", "exact")
    says(f"the exact epsilon is {exact[2, 1, 25]:.3f} (add/remove at sigma = 1: ")


def test_the_search():
    table = table_of("cebere-landscape-search")
    assert len(table) == len(re.findall(r"\| (?:2|5|25) \| [14] \| \d+ \|", TEXT))
    for row in table.itertuples():
        cells = [number(row.accounted, 3), number(row.constant, 3), number(row.published, 3)]
        best = f"{row.best_threshold:.2f} | {number(row.of_best_threshold, 3)}"
        name = f"{row.num_steps} | {row.noise_multiplier:g} | {row.batch_size}"
        says(f"| {name} | {' | '.join(cells)} | {best} |")
        landscape = two_levels(threshold=row.best_threshold, shape=LandscapeShape.DIVERGING)
        noises = row.noise_multiplier, row.noise_multiplier / row.batch_size
        law = exact_law(Process(landscape, (1.0, 0.0), *noises), (row.num_steps,))
        assert curves_of(law)[0].epsilon(1e-5) == pytest.approx(row.of_best_threshold, abs=1e-3)
    assert (table["wide"] - table["of_best_threshold"]).max() < 0.003
    large = table[table["batch_size"] >= 4]
    assert (large["of_best_threshold"] / large["accounted"] > 0.98).all()
    two = table[table["num_steps"] == 2]
    formula = 0.5 + two["noise_multiplier"] ** 2 * two["of_best_threshold"]
    np.testing.assert_allclose(two["best_threshold"], formula, atol=0.06)


def test_every_figure_has_its_table_and_image():
    for name in re.findall(r"\]\((cebere-[\w-]+)\.png\)", TEXT):
        assert (FOLDER / f"{name}.png").exists()
        assert (FOLDER / f"{name}.tsv").exists()
