"""Measured error rates of attacks against the trade-off curves that accountants allow."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import MECHANISM, Attack, Profile, ordered
from dpcanary.figures.curves import (
    accounted_false_negative_rate,
    confidence_band,
    measured_error_curve,
    thinned,
)
from dpcanary.figures.layout import Styles, accounted_of_panel, accounted_styles, make_frame
from dpcanary.figures.notes import shared_note
from dpcanary.figures.panels import panels_of
from dpcanary.figures.proven import proven_curves, proven_legend, proven_note, proven_options

_ADJACENCIES = ("substitute", "add_remove")
_COLUMNS = ("series", "canary", "audit", "false_positive_rate", "false_negative_rate")
_MOST_POINTS = 400
_NOTE = (
    "Measured: the first repeat's models after the last step; bands: 95 % confidence for each point"
    " alone; rates of 0 are not shown"
)
_BAND = ("confidence_low", "confidence_high")


@style.applied()
def draw_trade_off(
    attacks: Sequence[Attack], *, note: str = "", panels: Sequence[str] = ()
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate and noise, with a line for each canary.

    Of audits that differ in their seed alone, the first one is shown.

    Args:
        attacks: at least one, each with its `profiles` under both adjacencies. If `proven` is
            known, the curves that it names are drawn too.
        note: what a reader must know; printed below.
        panels: the settings that tell panels apart, in place of sample rate and noise.

    Returns:
        The figure, and its numbers: one row per point with its panel, series, canary, audit,
        false_positive_rate and false_negative_rate.

    Raises:
        InputError: if there is no attack, if two could not be told apart, or if those of one
            panel have different profiles.
    """
    attacks = ordered(attacks, panels or MECHANISM)
    rows = pd.DataFrame([attack.row for attack in attacks])
    places = panels_of(rows, panels or MECHANISM, falling=not panels)
    groups = [[attacks[index] for index in place.of(rows).index] for place in places]
    audited, accounted = accounted_styles(_ADJACENCIES, rows["adjacency"])
    of_panels = [accounted_of_panel(accounted, {a.row["adjacency"] for a in g}) for g in groups]
    both = [*zip(groups, of_panels, strict=True)]
    tables = [_panel_table(group, [*styles]) for group, styles in both]
    figure, [grid] = make_frame(
        num_panels=len(groups),
        panel_size=(4.2, 3.9),
        legend=_legend(attacks, audited, accounted, groups),
        notes=[note, _NOTE, proven_note(attacks), _shared(rows, panels)],
        labels=("false positive rate", "false negative rate"),
    )
    for axes, place, (group, styles), table in zip(grid, places, both, tables, strict=True):
        axes.set_title(place.title)
        _draw_panel(axes, group, table, styles)
        for number, (key, value) in enumerate(place.settings.items()):
            table.insert(number, key, value)
    return figure, pd.concat(tables, ignore_index=True)


def _shared(rows: pd.DataFrame, panels: Sequence[str]) -> str:
    """What all audits share, if their settings are known."""
    if "num_records" not in rows:
        return ""
    return shared_note(rows, panels or MECHANISM, needed=bool(panels))


def _legend(
    attacks: Sequence[Attack], audited: str, accounted: Styles, panels: Sequence[Sequence[Attack]]
) -> Sequence[Sequence[Artist | str]]:
    series = dict.fromkeys(attack.series for attack in attacks)
    measured = [Line2D([], [], **style.canary_options(*one)) for one in series]
    curves = [Line2D([], [], **options) for options in accounted.values()]
    exact = [name for name in style.EXACT if any(name in one.profiles for one in attacks)]
    shade = Patch(
        color=style.SHADE, label="an attack in this region contradicts the add/remove epsilon"
    )
    return [
        ["measured:", *measured],
        [f"fewest errors that the accountant allows{audited}:", *curves],
        ["fewest errors of any test:"] * bool(exact)
        + [Line2D([], [], **style.EXACT[name]) for name in exact],
        *proven_legend(panels),
        *([[shade]] if len(accounted) > 1 else []),
    ]


def _lowest_rate(panel: Sequence[Attack]) -> float:
    """One error in the largest world: the lowest rate above 0 that can be measured."""
    return 1.0 / max(max(len(a.world0_scores), len(a.world1_scores)) for a in panel)


def _panel_table(panel: Sequence[Attack], adjacencies: Sequence[str]) -> pd.DataFrame:
    lowest = _lowest_rate(panel)
    rates = np.geomspace(lowest, 1.0, 301)
    curves: list[tuple[object, ...]] = []
    for adjacency in adjacencies:
        fnr = accounted_false_negative_rate(_shared_profile(panel, adjacency), rates)
        curves.append((f"accounted_{adjacency}", None, None, rates, fnr))
    for name in [name for name in style.EXACT if name in panel[0].profiles]:
        fnr = accounted_false_negative_rate(_shared_profile(panel, name), rates)
        curves.append((f"exact_{name}", None, None, rates, fnr))
    curves += proven_curves(panel, rates)
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


def _shared_profile(panel: Sequence[Attack], adjacency: str) -> Profile:
    first = panel[0]
    for attack in panel:
        if adjacency not in attack.profiles:
            raise InputError(f"audit {attack.audit}: its profile has no adjacency {adjacency}")
        if not attack.profiles[adjacency].is_like(first.profiles[adjacency]):
            raise InputError(
                f"audits {first.audit} and {attack.audit} differ in their accounted profile: show"
                " audits with other num_steps in different figures"
            )
    return first.profiles[adjacency]


def _draw_panel(
    axes: Axes, panel: Sequence[Attack], table: pd.DataFrame, accounted: Styles
) -> None:
    lowest = _lowest_rate(panel)
    for adjacency, options in accounted.items():
        curve = table[table["series"] == f"accounted_{adjacency}"]
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        if adjacency == "add_remove" and len(accounted) > 1:
            axes.fill_between(x, lowest * 0.5, y, color=style.SHADE, linewidth=0, zorder=0.5)
        axes.plot(x, y, **options)
    for (series, audit), curve in table.groupby(["series", "audit"], dropna=False, sort=False):
        if str(series).startswith("accounted") or series in _BAND:
            continue
        [*found] = [attack for attack in panel if attack.audit == audit]
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        if str(series).startswith("exact_"):
            axes.plot(x, y, **style.EXACT[str(series).removeprefix("exact_")])
        elif series == "measured":
            axes.plot(x, y, markevery=0.12, **style.canary_options(*found[0].series))
            _draw_band(axes, table[table["audit"] == audit], found[0].canary)
        else:
            axes.plot(x, y, **proven_options(str(series), found[0] if found else None))
    if any(str(series).startswith("exact_") for series in table["series"]):
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))  # what differs then is the middle of the curves
    else:
        axes.set(xscale="log", yscale="log", xlim=(lowest, 1.0), ylim=(lowest, 1.0))


def _draw_band(axes: Axes, curves: pd.DataFrame, canary: str) -> None:
    """The region between the lower and the upper bounds of the rates."""
    low, high = (curves[curves["series"] == name] for name in _BAND)
    outline = pd.concat([low, high[::-1]])[["false_positive_rate", "false_negative_rate"]]
    axes.fill(
        *outline.to_numpy().T, color=style.canary_colour(canary), alpha=0.14, linewidth=0, zorder=1
    )
