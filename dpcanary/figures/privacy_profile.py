"""Accounted and audited privacy profiles: delta as a function of epsilon."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import Profile
from dpcanary.figures.layout import make_frame
from dpcanary.figures.notes import data_note, means_in_words, number_range, shared_note
from dpcanary.figures.panels import SetUp, panels_of, set_ups_of
from dpcanary.figures.view import valid_rows
from dpcanary.figures.wording import setting_in_words
from dpcanary.gdp import gdp_delta
from dpcanary.printing import confidence_in_words

_LOWEST_DELTA, _POINTS = 1e-9, 200
_ACCOUNTED: dict[str, Any] = {"color": "black", "linestyle": "-", "zorder": 2.5}
_DELTA: dict[str, Any] = {"color": "#7A7A7A", "linestyle": ":", "linewidth": 1.2, "zorder": 2}


@style.applied()
def draw_privacy_profile(
    profiles: Mapping[str, Mapping[str, Profile]],
    summary: pd.DataFrame,
    *,
    note: str = "",
    panels: Sequence[str] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draws the accounted profile under the audited adjacency, and the audited Gaussian one.

    Args:
        profiles: accounted, by audit and adjacency.
        summary: has the bounds of these audits.
        note: what a reader must know; printed below.
        panels: the settings that tell panels apart; by default there is one panel.

    Returns:
        The figure, and its numbers: one row per point of a set-up, with its `series`, `mu` (of the
        audited one: the mean over repeats), `epsilon` and `delta`.

    Raises:
        InputError: if there is no bound by a valid rule and conversion gdp, if an audit has no
            profile, or see `set_ups_of`.
    """
    rows = valid_rows(summary)
    if missing := sorted({*rows["audit"]} - {*profiles}):
        raise InputError(f"audit {missing[0]} has no accounted profile: delete it and run again")
    set_ups = set_ups_of(rows, panels)
    labels = [*dict.fromkeys(one.label for one in set_ups)]
    looks = {label: style.rank_options(rank, len(labels)) for rank, label in enumerate(labels)}
    table = pd.concat([_table(one, profiles) for one in set_ups], ignore_index=True)
    places = panels_of(rows, panels)
    delta = float(rows["delta"].iloc[0])
    figure, [grid] = make_frame(
        num_panels=len(places),
        panel_size=(5.2, 3.6) if len(places) == 1 else (4.2, 3.4),
        legend=[
            [
                "audited (lower bound), Gaussian:",
                *(_legend_line(looks[label], label) for label in labels),
            ],
            [
                "accounted (upper bound), audited adjacency:",
                Line2D([], [], **_ACCOUNTED, label=_adjacencies(rows)),
                Line2D([], [], **_DELTA, label=f"δ = {style.number(delta)}"),
            ],
        ],
        notes=[note, _bound_note(rows), shared_note(rows, panels, needed=True), data_note(rows)],
        labels=("ε", "δ(ε)"),
        sharey=True,
    )
    for axes, place in zip(grid, places, strict=True):
        inside = {*place.of(rows)["audit"]}
        axes.set_title(place.title)
        axes.axhline(delta, **_DELTA)
        own = [one for one in set_ups if one.audits[0] in inside]
        _draw_panel(axes, own, table, looks)
    return figure, table


def _adjacencies(rows: pd.DataFrame) -> str:
    known = rows["adjacency"].unique()
    return " or ".join(setting_in_words("adjacency", {"adjacency": one}) for one in known)


def _legend_line(look: dict[str, Any], label: str) -> Line2D:
    return Line2D([], [], **look, linestyle="--", label=label)


def _bound_note(rows: pd.DataFrame) -> str:
    level = confidence_in_words(rows["significance"].iloc[0])
    return (
        f"Audited: δ(ε) of the Gaussian curve of the lower bound on μ, by the"
        f" {rows['threshold_rule'].iloc[0]} rule, {level} confidence for each bound alone,"
        f" R = {number_range(rows['num_runs'])} models{means_in_words(rows, errors=False)}."
        f" Assumption: {rows['assumption'].iloc[0]}"
    )


def _table(set_up: SetUp, profiles: Mapping[str, Mapping[str, Profile]]) -> pd.DataFrame:
    audit, rows = set_up.audits[0], set_up.rows
    adjacency = str(rows["adjacency"].iloc[0])
    known = "substitute" if adjacency == Adjacency.SUBSTITUTE else "add_remove"
    if known not in profiles[audit]:
        raise InputError(f"audit {audit}: its profile has no adjacency {known}")
    profile = profiles[audit][known]
    finite = np.isfinite(profile.epsilon) & (profile.delta > 0)
    epsilons, deltas = profile.epsilon[finite], profile.delta[finite]
    order = np.argsort(epsilons)
    mu = float(rows["mu_lower"].mean())
    grid = np.linspace(0.0, float(epsilons.max()), _POINTS)
    audited = np.array([gdp_delta(mu=mu, epsilon=float(epsilon)) for epsilon in grid])
    parts = [
        pd.DataFrame({"series": "accounted", "epsilon": epsilons[order], "delta": deltas[order]}),
        pd.DataFrame({"series": "audited", "mu": mu, "epsilon": grid, "delta": audited}),
    ]
    named = {"audit": audit, "label": set_up.label, "adjacency": adjacency, "mu": np.nan}
    table = pd.concat([pd.DataFrame(named, part.index).combine_first(part) for part in parts])
    columns = ["audit", "label", "adjacency", "series", "mu", "epsilon", "delta"]
    return table[table["delta"] >= 0.1 * _LOWEST_DELTA][columns]  # the lines leave the panel


def _profile(curve: pd.DataFrame) -> Profile:
    return Profile(curve["delta"].to_numpy(), curve["epsilon"].to_numpy())


def _draw_panel(
    axes: Axes, set_ups: Sequence[SetUp], table: pd.DataFrame, looks: dict[str, dict[str, Any]]
) -> None:
    curves = [table[table["audit"] == one.audits[0]] for one in set_ups]
    accounted = [curve[curve["series"] == "accounted"] for curve in curves]
    shared = all(_profile(one).is_like(_profile(accounted[0])) for one in accounted)
    for set_up, curve, upper in zip(set_ups, curves, accounted, strict=True):
        look = looks[set_up.label]
        colour = _ACCOUNTED if shared else _ACCOUNTED | {"color": look["color"]}
        axes.plot(upper["epsilon"], upper["delta"], **colour)
        lower = curve[curve["series"] == "audited"]
        axes.plot(lower["epsilon"], lower["delta"], **look, linestyle="--", markevery=0.1)
    axes.set_yscale("log")
    axes.set_ylim(_LOWEST_DELTA, 1.0)
    axes.set_xlim(left=0)
    axes.tick_params(labelleft=True)
