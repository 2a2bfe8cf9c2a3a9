"""How much larger accounted epsilon is under substitute than under add/remove adjacency."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dpcanary.core.provenance import KEY
from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import log_ticks, make_frame
from dpcanary.figures.panels import setting_in_words

# The ratio if the epsilons of removing one record and adding another just added up.
_TWICE: dict[str, Any] = {
    "color": "#7A7A7A", "linestyle": "--", "linewidth": 1.2, "zorder": 2,
    "label": "twice the add/remove ε",
}  # fmt: skip
_METHODS = {
    "closed_form": "the closed form",
    "pld": "privacy loss distributions",
    "prv": "privacy random variables",
}


@style.applied()
def draw_adjacency_ratio(ratios: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate, with a line for each number of steps.

    The ratios are those of `accounting.comparison.compare_adjacencies`; lines have a gap where one
    is NaN. An error if there is none at all, or deltas differ.
    """
    if ratios["ratio"].isna().all():
        raise InputError("no ratio could be accounted: the log of compare_adjacencies says why")
    if ratios["delta"].nunique() > 1:
        raise InputError("the ratios differ in delta: show them in different figures")
    rates = [*ratios.groupby("sample_rate")][::-1]
    looks = style.ranked(sorted(ratios["num_steps"].unique()), "T = {:,}".format)
    figure, [panels] = make_frame(
        titles=[setting_in_words("sample_rate", {"sample_rate": rate}) for rate, _ in rates],
        panel_size=(4.2, 3.4),
        legend=[["training steps:", *looks.values(), _TWICE]],
        notes=[note, _note(ratios)],
        labels=("noise multiplier σ", "substitute ε / add/remove ε"),  # noqa: RUF001
        sharey=True,
    )
    for axes, (_, of_rate) in zip(panels, rates, strict=True):
        axes.axhline(2.0, **_TWICE)
        for count, points in of_rate.sort_values("noise_multiplier").groupby("num_steps"):
            axes.plot(points["noise_multiplier"], points["ratio"], **looks[count])
        axes.set_xscale("log")
        log_ticks(axes, axis="x")
    return figure, ratios.drop(columns=KEY, errors="ignore")


def _note(ratios: pd.DataFrame) -> str:
    missing = int(ratios["ratio"].isna().sum())
    methods = sorted({*ratios["accounting_method"]} - {"none"})
    named = ", ".join(_METHODS.get(method, method) for method in methods)
    gaps = f"; no ratio could be accounted at {missing} of {len(ratios)} points" if missing else ""
    delta = style.number(float(ratios["delta"].iloc[0]))
    return f"Both ε of the same mechanism at δ = {delta}, by {named}{gaps}"
