"""Figures with a line for each set-up: norms of the canary's gradient, and privacy profiles.

Audits that differ in their seed alone are one set-up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.gdp import gdp_delta
from dpcanary.errors import InputError
from dpcanary.experiment.summary import LINES, PANELS, SHOWN
from dpcanary.figures import style
from dpcanary.figures.attacks import Profile
from dpcanary.figures.layout import draw_band, make_frame
from dpcanary.figures.notes import (
    audited_heading,
    bounds_note,
    data_note,
    number_range,
    shared_note,
)
from dpcanary.figures.panels import known_batches, panels_of, settings_in_words
from dpcanary.figures.rows import valid_rows

# For each recorded step, the norms of all runs.
Norms = Mapping[int, NDArray[np.float64]]
_CLIPPED: dict[str, Any] = {"color": "#7A7A7A", "linestyle": "--", "linewidth": 1.2, "zorder": 2}
_LOWEST_DELTA, _POINTS = 1e-9, 200
_ACCOUNTED: dict[str, Any] = {"color": "black", "linestyle": "-", "zorder": 2.5}
_DELTA: dict[str, Any] = {"color": "#7A7A7A", "linestyle": ":", "linewidth": 1.2, "zorder": 2}


@dataclass(frozen=True)
class _SetUp:
    """Audits of one configuration: what tells it from the others of its panel, and its rows."""

    label: str
    rows: pd.DataFrame

    @property
    def audits(self) -> list[str]:
        return [str(audit) for audit in self.rows["audit"].unique()]


def _set_ups(rows: pd.DataFrame, panels: Sequence[str]) -> list[_SetUp]:
    """The set-ups of a figure; labels name the settings in which they differ.

    An error if two set-ups of a panel have the same label, or two audits of one the same seed.
    """
    differ = [
        key
        for key in SHOWN
        if key in {*PANELS, *LINES} - {*panels} and rows[key].nunique(dropna=False) > 1
    ]
    of_one_label = rows.groupby([*differ, *panels, "canary", "score"], dropna=False)
    if of_one_label["num_steps"].nunique().max() > 1:
        differ.append("num_steps")
    several = len(rows[["canary", "score"]].drop_duplicates()) > 1
    set_ups: list[_SetUp] = []
    audit_of_place: dict[object, str] = {}
    for _, group in rows.groupby("configuration", sort=False):
        first = {str(key): value for key, value in group.iloc[0].items()}
        words = settings_in_words(differ, first | known_batches(group))
        name = style.canary_name(first["canary"], first["score"] if several else None)
        label = f"{name}, {words}" if several and words else words or name
        place = (label, *(str(first[key]) for key in panels))
        other = audit_of_place.setdefault(place, first["audit"])
        audits = group.drop_duplicates("audit")
        again = audits.loc[audits["seed"].duplicated(), "audit"]
        if other != first["audit"] or len(again):
            alike = first["audit"] if other != first["audit"] else again.iloc[0]
            raise InputError(
                f"audits {other} and {alike} differ in nothing that this figure shows: show them in"
                " different figures"
            )
        set_ups.append(_SetUp(label, group))
    return set_ups


def check_rows(rows: pd.DataFrame, *, panels: Sequence[str] = (), **_: object) -> None:
    """Refuses audits that differ in nothing that labels and panels show."""
    _set_ups(rows, panels)


@style.applied()
def draw_gradient_norm(
    norms: Mapping[str, Norms], summary: pd.DataFrame, *, note: str = "", panels: Sequence[str] = ()
) -> tuple[Figure, pd.DataFrame]:
    """Draws a line for each set-up, a band of two standard deviations, and the clipping norm.

    The norms are those of the canary's gradient before it is clipped, by audit. The table has one
    row per step of a set-up, with the `mean` and `standard_deviation` over the runs of all repeats
    and both worlds. By default there is one panel.
    """
    rows = summary[summary["audit"].isin([*norms])].drop_duplicates("audit")
    if rows.empty or len(rows) < len(norms):
        raise InputError("the summary lacks an audit of the figure: delete it and run again")
    set_ups = _set_ups(rows, panels)
    looks = style.ranked(set_up.label for set_up in set_ups)
    table = pd.concat([_norms_table(set_up, norms) for set_up in set_ups], ignore_index=True)
    panel_places = panels_of(rows, panels)
    limits = dict.fromkeys(f"{set_up.rows['max_grad_norm'].iloc[0]:g}" for set_up in set_ups)
    figure, [grid] = make_frame(
        titles=[place.title for place in panel_places],
        panel_size=(5.2, 3.4) if len(panel_places) == 1 else (4.2, 3.1),
        legend=[
            ["mean over models:", *looks.values()],
            [_CLIPPED | {"label": f"clipping norm C = {' / '.join(limits)}"}],
        ],
        notes=[
            note,
            "Before clipping. Bands: mean ± 2 standard deviations over"
            f" {number_range(table['num_runs'])} models of both worlds",
            data_note(rows),
        ],
        caption=[shared_note(rows, (*panels, "max_grad_norm"), needed=True)],
        labels=("training step", "norm of the canary's gradient"),
        sharey=True,
    )
    for axes, place in zip(grid, panel_places, strict=True):
        inside = {*place.of(rows)["audit"]}
        for label, points in table[table["audit"].isin(inside)].groupby("label", sort=False):
            steps, mean, spread = points["step"], points["mean"], 2 * points["standard_deviation"]
            look = looks[label]
            axes.axhline(float(points["max_grad_norm"].iloc[0]), **_CLIPPED)
            draw_band(axes, steps, np.maximum(mean - spread, 0.0), mean + spread, look["color"])
            axes.plot(steps, mean, **look)
    for axes in grid:  # after all, because they share their scale
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    return figure, table


def _norms_table(set_up: _SetUp, norms: Mapping[str, Norms]) -> pd.DataFrame:
    first = set_up.rows.iloc[0]
    rows = []
    for step in norms[set_up.audits[0]]:  # audits of one configuration record the same steps
        values = np.concatenate([norms[audit][step] for audit in set_up.audits])
        rows.append(
            {
                "audit": set_up.audits[0],
                "label": set_up.label,
                "model": first["model"],
                "max_grad_norm": first["max_grad_norm"],
                "step": step,
                "mean": values.mean(),
                "standard_deviation": values.std(ddof=1),
                "num_runs": len(values),
            }
        )
    return pd.DataFrame(rows)


@style.applied()
def draw_privacy_profile(
    profiles: Mapping[str, Mapping[str, Profile]],
    summary: pd.DataFrame,
    *,
    note: str = "",
    panels: Sequence[str] = (),
) -> tuple[Figure, pd.DataFrame]:
    """Draws the accounted profile under the audited adjacency, and the audited Gaussian one.

    The profiles are by audit and adjacency. The table has one row per point of a set-up, with its
    `series`, `mu` (of the audited one: the mean over repeats), `epsilon` and `delta`. By default
    there is one panel.
    """
    rows = valid_rows(summary)
    if missing := sorted({*rows["audit"]} - {*profiles}):
        raise InputError(f"audit {missing[0]} has no accounted profile: delete it and run again")
    set_ups = _set_ups(rows, panels)
    looks = style.ranked(set_up.label for set_up in set_ups)
    table = pd.concat([_profile_table(set_up, profiles) for set_up in set_ups], ignore_index=True)
    panel_places = panels_of(rows, panels)
    delta = float(rows["delta"].iloc[0])
    adjacencies = " or ".join(ADJACENCIES[name] for name in rows["adjacency"].unique())
    figure, [grid] = make_frame(
        titles=[place.title for place in panel_places],
        panel_size=(5.2, 3.6) if len(panel_places) == 1 else (4.2, 3.4),
        legend=[
            [
                audited_heading(note, start="audited", end=", Gaussian:"),
                *(look | {"linestyle": "--"} for look in looks.values()),
            ],
            [
                "accounted (upper bound), audited adjacency:",
                _ACCOUNTED | {"label": adjacencies},
                _DELTA | {"label": f"δ = {style.number(delta)}"},
            ],
        ],
        notes=[note, bounds_note(rows, note, errors=False), data_note(rows)],
        caption=[
            f"Assumption: {rows['assumption'].iloc[0]}.",
            shared_note(rows, panels, needed=True),
        ],
        labels=("ε", "δ(ε)"),
        sharey=True,
    )
    for axes, place in zip(grid, panel_places, strict=True):
        axes.axhline(delta, **_DELTA)
        inside = table["audit"].isin(place.of(rows)["audit"])
        _draw_profiles(axes, table[inside], looks)
    return figure, table


def _profile_table(set_up: _SetUp, profiles: Mapping[str, Mapping[str, Profile]]) -> pd.DataFrame:
    audit, rows = set_up.audits[0], set_up.rows
    adjacency = str(rows["adjacency"].iloc[0])
    bounded_by = "substitute" if adjacency == Adjacency.SUBSTITUTE else "add_remove"
    if bounded_by not in profiles[audit]:
        raise InputError(f"audit {audit}: its profile has no adjacency {bounded_by}")
    profile = profiles[audit][bounded_by]
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
    table = pd.concat(parts).assign(audit=audit, label=set_up.label, adjacency=adjacency)
    columns = ["audit", "label", "adjacency", "series", "mu", "epsilon", "delta"]
    return table[table["delta"] >= 0.1 * _LOWEST_DELTA][columns]  # the lines leave the panel


def _draw_profiles(axes: Axes, table: pd.DataFrame, looks: Mapping[str, dict[str, Any]]) -> None:
    accounted = [curve for _, curve in table[table["series"] == "accounted"].groupby("audit")]
    profiles = [Profile(*points[["delta", "epsilon"]].to_numpy().T) for points in accounted]
    shared = all(profile.is_like(profiles[0]) for profile in profiles)
    for label, curve in table.groupby("label", sort=False):
        upper, lower = (curve[curve["series"] == name] for name in ("accounted", "audited"))
        colour = _ACCOUNTED if shared else _ACCOUNTED | {"color": looks[str(label)]["color"]}
        axes.plot(upper["epsilon"], upper["delta"], **colour)
        look = looks[str(label)] | {"linestyle": "--", "markevery": 0.1}
        axes.plot(lower["epsilon"], lower["delta"], **look)
    axes.set_yscale("log")
    axes.set_ylim(_LOWEST_DELTA, 1.0)
    axes.set_xlim(left=0)
