"""Measured error rates of attacks against the trade-off curves that accountants allow."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, Profile, ordered, settings_of
from dpcanary.figures.curves import accounted_false_negative_rate, measured_error_curve, thinned
from dpcanary.figures.layout import make_frame

_ADJACENCIES = ("substitute", "add_remove")
_COLUMNS = (
    "sample_rate", "noise_multiplier", "series", "canary", "audit", "false_positive_rate",
    "false_negative_rate",
)  # fmt: skip
_MOST_POINTS = 400
_NOTE = (
    "Measured: the first repeat's models after the last step, without confidence bounds; the lowest"
    " rates depend on single models, and rates of 0 are not shown"
)


@style.applied()
def draw_trade_off(attacks: Sequence[Attack], *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for each sample rate and noise, with a line for each canary.

    Args:
        attacks: at least one, each with its `profiles` under both adjacencies.
        note: what a reader must know; printed below.

    Returns:
        The figure, and its numbers: one row per point with its panel, series, canary, audit,
        false_positive_rate and false_negative_rate.

    Raises:
        InputError: if there is no attack, if two could not be told apart, or if those of one
            panel have different profiles.
    """
    attacks = ordered(attacks)
    panels = [[a for a in attacks if a.setting == setting] for setting in settings_of(attacks)]
    tables = [_panel_table(panel) for panel in panels]
    series = dict.fromkeys(attack.series for attack in attacks)
    measured = [Line2D([], [], **style.canary_options(*one)) for one in series]
    exact = [name for name in style.EXACT if any(name in one.profiles for one in attacks)]
    accounted = [Line2D([], [], **style.ACCOUNTED[adjacency]) for adjacency in _ADJACENCIES]
    shade = Patch(
        color=style.SHADE, label="an attack in this region contradicts the add/remove epsilon"
    )
    figure, [grid] = make_frame(
        num_panels=len(panels),
        panel_size=(4.2, 3.9),
        legend=[
            ["measured:", *measured],
            ["fewest errors that the accountant allows:", *accounted],
            ["fewest errors of any test:"] * bool(exact)
            + [Line2D([], [], **style.EXACT[name]) for name in exact],
            [shade],
        ],
        notes=[note, _NOTE],
        labels=("false positive rate", "false negative rate"),
    )
    for axes, panel, table in zip(grid, panels, tables, strict=True):
        _draw_panel(axes, panel, table)
    return figure, pd.concat(tables, ignore_index=True)


def _lowest_rate(panel: Sequence[Attack]) -> float:
    """One error in the largest world: the lowest rate above 0 that can be measured."""
    return 1.0 / max(max(len(a.world0_scores), len(a.world1_scores)) for a in panel)


def _panel_table(panel: Sequence[Attack]) -> pd.DataFrame:
    lowest = _lowest_rate(panel)
    rates = np.geomspace(lowest, 1.0, 301)
    curves: list[tuple[object, ...]] = []
    for adjacency in _ADJACENCIES:
        fnr = accounted_false_negative_rate(_shared_profile(panel, adjacency), rates)
        curves.append((f"accounted_{adjacency}", None, None, rates, fnr))
    for name in [name for name in style.EXACT if name in panel[0].profiles]:
        fnr = accounted_false_negative_rate(_shared_profile(panel, name), rates)
        curves.append((f"exact_{name}", None, None, rates, fnr))
    for attack in panel:
        fpr, fnr = measured_error_curve(attack.world0_scores, attack.world1_scores)
        seen = (fpr > 0) & (fnr > 0)
        fpr, fnr = fpr[seen], fnr[seen]
        kept = thinned(fpr, fnr, most=_MOST_POINTS)
        curves.append(("measured", attack.canary, attack.audit, fpr[kept], fnr[kept]))
    table = pd.concat(
        [
            pd.DataFrame(dict(zip(_COLUMNS, (*panel[0].setting, *curve), strict=True)))
            for curve in curves
        ]
    )
    return table[table["false_negative_rate"] >= lowest * 0.5]


def _shared_profile(panel: Sequence[Attack], adjacency: str) -> Profile:
    first = panel[0]
    for attack in panel:
        if adjacency not in attack.profiles:
            raise InputError(f"audit {attack.audit}: its profile has no adjacency {adjacency}")
        mine, shared = attack.profiles[adjacency], first.profiles[adjacency]
        same = mine.delta.shape == shared.delta.shape
        if not same or not np.allclose(mine.epsilon, shared.epsilon, rtol=1e-6):
            raise InputError(
                f"audits {first.audit} and {attack.audit} differ in their accounted profile: show"
                " audits with other num_steps in different figures"
            )
    return first.profiles[adjacency]


def _draw_panel(axes: Axes, panel: Sequence[Attack], table: pd.DataFrame) -> None:
    axes.set_title(style.setting_name(*panel[0].setting))
    lowest = _lowest_rate(panel)
    for adjacency in _ADJACENCIES:
        curve = table[table["series"] == f"accounted_{adjacency}"]
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        if adjacency == "add_remove":
            axes.fill_between(x, lowest * 0.5, y, color=style.SHADE, linewidth=0, zorder=0.5)
        axes.plot(x, y, **style.ACCOUNTED[adjacency])
    for name, options in style.EXACT.items():
        curve = table[table["series"] == f"exact_{name}"]
        axes.plot(curve["false_positive_rate"], curve["false_negative_rate"], **options)
    for attack in panel:
        curve = table[table["audit"] == attack.audit]
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        axes.plot(x, y, markevery=0.12, **style.canary_options(*attack.series))
    if any(series.startswith("exact_") for series in table["series"]):
        axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))  # what differs then is the middle of the curves
    else:
        axes.set(xscale="log", yscale="log", xlim=(lowest, 1.0), ylim=(lowest, 1.0))
