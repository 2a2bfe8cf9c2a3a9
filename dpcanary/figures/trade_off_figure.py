"""Measured error rates of attacks against the trade-off curves that accountants allow.

Bounds show curves too: the Gaussian curve of the audited mu, which needs the assumption that the
mechanism's curve is Gaussian, and that of the largest epsilon that can be shown without it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy.special import ndtr, ndtri

from dpcanary.core.printing import rounded_down, rounded_up
from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import (
    MECHANISM,
    Array,
    Attack,
    Profile,
    accounted_false_negative_rate,
    confidence_band,
    first_in_words,
    first_of_place,
    measured_error_curve,
    ordered,
    thinned,
)
from dpcanary.figures.layout import Entry, make_frame
from dpcanary.figures.notes import is_marked, shared_note
from dpcanary.figures.panels import panels_of

# Series, canary, audit, false positive and false negative rates.
_Curve = tuple[str, str | None, str | None, Array, Array]
_ADJACENCIES = ("substitute", "add_remove")
_COLUMNS = ("series", "canary", "audit", "false_positive_rate", "false_negative_rate")
_MOST_POINTS = 400
_NOTE = "last step; bands: 95 % confidence for each point alone; rates of 0 are not shown"
_BAND = ("confidence_low", "confidence_high")
_CEILING: dict[str, Any] = {"color": "#B2182B", "linestyle": "-.", "linewidth": 1.4, "zorder": 2.6}


@style.applied()
def draw_trade_off(
    attacks: Sequence[Attack], *, note: str = "", panels: Sequence[str] = ()
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate and noise, with a line for each canary.

    Of audits that differ in their seed alone, the first one is shown. Each attack has its
    `profiles` under both adjacencies; if `shown` is known, the curves that it names are drawn too.
    The table has one row per point of a curve.
    """
    all_attacks = attacks
    attacks = ordered(attacks, panels or MECHANISM, takes_panels=True)
    if is_marked(note):  # a curve of a bound that does not hold would look like one that does
        attacks = [replace(attack, shown=None) for attack in attacks]
    rows = pd.DataFrame([attack.row for attack in attacks])
    panel_places = panels_of(rows, panels or MECHANISM)
    groups = [[attacks[index] for index in place.of(rows).index] for place in panel_places]
    accounted = style.accounted_styles(_ADJACENCIES, rows["adjacency"])
    of_panels = [
        style.accounted_of_panel(accounted, rows.loc[place.of(rows).index, "adjacency"])
        for place in panel_places
    ]
    stated = dict.fromkeys(attack.shown.stated for attack in attacks if attack.shown)
    figure, [grid] = make_frame(
        titles=[place.title for place in panel_places],
        panel_size=(4.2, 3.9),
        legend=_legend(attacks, accounted, groups),
        notes=[
            note,
            f"Scores of {first_in_words(attacks, all_attacks)}, {_NOTE}",
            f"Audited μ and the bound of direct: {'; '.join(stated)}" if stated else "",
        ],
        # What all audits share, if their settings are known.
        caption=[
            shared_note(rows, panels or MECHANISM, needed=bool(panels))
            if "num_records" in rows
            else ""
        ],
        labels=("false positive rate", "false negative rate"),
    )
    tables = []
    for axes, place, group, styles in zip(grid, panel_places, groups, of_panels, strict=True):
        table = _panel_table(group, [*styles])
        _draw_panel(axes, group, table, styles)
        for number, (key, value) in enumerate(place.settings.items()):
            table.insert(number, key, value)
        tables.append(table)
    return figure, pd.concat(tables, ignore_index=True)


def check_rows(rows: pd.DataFrame, *, panels: Sequence[str] = (), **_: object) -> None:
    """Refuses audits of one panel that have the same canary and score, or other steps."""
    by_panel = [*(panels or MECHANISM)]
    first_of_place(rows.to_dict("records"), by_panel, takes_panels=True)
    # A canary of the first step alone has the same profile after any number of steps.
    every_step = rows[rows["landscape"].isna()]
    for _place, group in every_step.groupby([*by_panel, "canary_period"], dropna=False):
        first = group.drop_duplicates("num_steps")["audit"].tolist()
        if len(first) > 1:
            raise _other_profile(first[0], first[1])


def _legend(
    attacks: Sequence[Attack], accounted: style.Styles, panels: Sequence[Sequence[Attack]]
) -> Sequence[Sequence[Entry]]:
    series = dict.fromkeys(attack.series for attack in attacks)
    exact = [style.EXACT[name] for name in style.EXACT if any(name in a.profiles for a in attacks)]
    shade = Patch(
        **(style.SHADED | {"hatch": "////", "linewidth": 0.6}),
        label="fewer errors than the add/remove curve would allow if it covered substitutions",
    )
    return [
        ["measured:", *(style.canary_options(*canary) for canary in series)],
        style.accounted_legend(
            "fewest errors that the accountant allows",
            accounted,
            [attack.row["adjacency"] for attack in attacks],
        ),
        ["fewest errors of any test:", *exact] if exact else [],
        *_shown_legend(panels),
        [shade] if len(accounted) > 1 else [],
    ]


def _shown_legend(panels: Sequence[Sequence[Attack]]) -> list[list[Entry]]:
    """Groups of the legend; values that differ between panels stand in the panels' order."""
    shown_attacks = [(attack, attack.shown) for panel in panels for attack in panel if attack.shown]
    if not shown_attacks:
        return []
    by_panel = " (by panel)" if len(panels) > 1 else ""
    entries: list[Entry] = [f"shown under the Gaussian assumption{by_panel}:"]
    series = dict.fromkeys(attack.series for attack, _ in shown_attacks)
    for canary in series:
        mus = _listed(
            [rounded_down(shown.mu) for attack, shown in shown_attacks if attack.series == canary]
        )
        name = f"{style.canary_name(*canary)}: " if len(series) > 1 else ""
        entries.append(_gaussian(*canary) | {"label": f"{name}Gaussian, audited μ = {mus}"})
    sizes = _listed(
        [
            f"{len(attack.world0_scores) + len(attack.world1_scores):,}"
            for attack, _ in shown_attacks
        ]
    )
    epsilons = _listed([rounded_up(shown.ceiling) for _, shown in shown_attacks])
    label = f"direct: at most ε = {epsilons} with {sizes} scores"
    return [entries, ["could be shown without it:", _CEILING | {"label": label}]]


def _listed(values: Sequence[str]) -> str:
    return " / ".join(values if len({*values}) > 1 else values[:1])


def _gaussian(canary: str, score: str | None) -> dict[str, Any]:
    """The look of the Gaussian curve of an audited mu."""
    options = style.canary_options(canary, score)
    colour, is_default = options["color"], options["color"] == options["markerfacecolor"]
    dash = (0, (4, 1.5)) if is_default else (0, (1.5, 1.5))
    return {"color": colour, "linestyle": dash, "linewidth": 1.2, "zorder": 2.7}


def _lowest_rate(panel: Sequence[Attack]) -> float:
    """One error in the largest world: the lowest rate above 0 that can be measured."""
    return 1.0 / max(max(len(a.world0_scores), len(a.world1_scores)) for a in panel)


def _panel_table(panel: Sequence[Attack], adjacencies: Sequence[str]) -> pd.DataFrame:
    lowest = _lowest_rate(panel)
    rates = np.geomspace(lowest, 1.0, 301)
    curves: list[_Curve] = []
    for adjacency in adjacencies:
        fnr = accounted_false_negative_rate(_shared_profile(panel, adjacency), rates)
        curves.append((f"accounted_{adjacency}", None, None, rates, fnr))
    for name in [name for name in style.EXACT if name in panel[0].profiles]:
        fnr = accounted_false_negative_rate(_shared_profile(panel, name), rates)
        curves.append((f"exact_{name}", None, None, rates, fnr))
    curves += _shown_curves(panel, rates)
    for attack in panel:
        fpr, fnr = measured_error_curve(attack.world0_scores, attack.world1_scores)
        seen = (fpr > 0) & (fnr > 0)
        fpr, fnr = fpr[seen], fnr[seen]
        kept = thinned(fpr, fnr, most=_MOST_POINTS)
        curves.append(("measured", attack.canary, attack.audit, fpr[kept], fnr[kept]))
        band = confidence_band(attack.world0_scores, attack.world1_scores)
        for name, rates_of_band in zip(_BAND, band, strict=True):
            x, y = (np.maximum(values[seen][kept], 0.5 * lowest) for values in rates_of_band)
            curves.append((name, attack.canary, attack.audit, x, y))
    parts = [pd.DataFrame(dict(zip(_COLUMNS, curve, strict=True))) for curve in curves]
    table = pd.concat(parts, ignore_index=True)
    return table[table["false_negative_rate"] >= lowest * 0.5].copy()


def _shown_curves(panel: Sequence[Attack], rates: Array) -> list[_Curve]:
    with_shown = [(attack, attack.shown) for attack in panel if attack.shown]
    curves: list[_Curve] = [
        ("gaussian", attack.canary, attack.audit, rates, ndtr(-ndtri(rates) - shown.mu))
        for attack, shown in with_shown
    ]
    if with_shown:
        highest = max((shown for _, shown in with_shown), key=lambda shown: shown.ceiling)
        point = Profile(np.array([highest.delta]), np.array([highest.ceiling]))
        fnr = accounted_false_negative_rate(point, rates)
        curves.append(("direct_ceiling", None, None, rates, fnr))
    return curves


def _shared_profile(panel: Sequence[Attack], adjacency: str) -> Profile:
    first = panel[0]
    for attack in panel:
        if adjacency not in attack.profiles:
            raise InputError(f"audit {attack.audit}: its profile has no adjacency {adjacency}")
        if not attack.profiles[adjacency].is_like(first.profiles[adjacency]):
            raise _other_profile(first.audit, attack.audit)
    return first.profiles[adjacency]


def _other_profile(audit: str, other: str) -> InputError:
    return InputError(
        f"audits {audit} and {other} differ in their accounted profile: show audits with other"
        " num_steps in different figures"
    )


def _draw_panel(
    axes: Axes, panel: Sequence[Attack], table: pd.DataFrame, accounted: style.Styles
) -> None:
    lowest = _lowest_rate(panel)
    of_audits = {attack.audit: attack.series for attack in panel}
    if len(accounted) > 1:
        allowed = table[table["series"] == "accounted_add_remove"]
        x, y = allowed["false_positive_rate"], allowed["false_negative_rate"]
        axes.fill_between(x, lowest * 0.5, y, **style.SHADED, zorder=0.5)
    for (series, audit), curve in table.groupby(["series", "audit"], dropna=False, sort=False):
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        kind, _, name = str(series).partition("_")
        if kind == "accounted":
            axes.plot(x, y, **accounted[name])
        elif kind == "exact":
            axes.plot(x, y, **style.EXACT[name])
        elif kind == "direct":
            axes.plot(x, y, **_CEILING)
        elif kind == "gaussian":
            axes.plot(x, y, **_gaussian(*of_audits[str(audit)]))
        elif kind == "measured":
            axes.plot(x, y, markevery=0.12, **style.canary_options(*of_audits[str(audit)]))
            _draw_band(axes, table[table["audit"] == audit], of_audits[str(audit)][0])
    if any(name in panel[0].profiles for name in style.EXACT):
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))  # what differs then is the middle of the curves
    else:
        axes.set(xscale="log", yscale="log", xlim=(lowest, 1.0), ylim=(lowest, 1.0))


def _draw_band(axes: Axes, curves: pd.DataFrame, canary: str) -> None:
    """The region between the lower and the upper bounds of the rates.

    Beyond the first and the last threshold that is shown, the upper bound of a rate is 1.
    """
    rates = ["false_positive_rate", "false_negative_rate"]
    low, high = (
        curves[curves["series"] == name].sort_values(rates, ascending=[True, False])[rates]
        for name in _BAND
    )
    lower, upper = low.to_numpy(), high.to_numpy()[::-1]
    ends = [(1.0, lower[-1, 1]), (1.0, upper[0, 1])], [(upper[-1, 0], 1.0), (lower[0, 0], 1.0)]
    outline = np.concatenate([lower, ends[0], upper, ends[1]])
    axes.fill(*outline.T, color=style.canary_colour(canary), alpha=0.14, linewidth=0, zorder=1)
