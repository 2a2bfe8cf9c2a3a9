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
from dpcanary.figures.layout import Entry, grid_shape, make_frame

_ADJACENCIES = ("substitute", "add_remove")
_MEASURED = "measured"
_MOST_POINTS = 400
_NOTE = (
    "Measured: the first repeat's models after the last step, without confidence bounds; the lowest"
    " rates rest on single models, and rates of zero are not shown"
)


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
    with style.applied():
        frame = make_frame(
            shape=grid_shape(len(panels)),
            panel_size=(4.2, 3.9),
            legend=_legend(attacks),
            notes=[note, _NOTE],
        )
        for axes, panel, table in zip(frame.panels(len(panels)), panels, tables, strict=True):
            axes.set_title(style.setting_name(*panel[0].setting))
            _draw_panel(axes, panel, table)
        frame.body.supxlabel("false positive rate", fontsize=10)
        frame.body.supylabel("false negative rate", fontsize=10)
    return frame.figure, pd.concat(tables, ignore_index=True)


def _panel_table(panel: Sequence[Attack]) -> pd.DataFrame:
    lowest = _lowest_rate(panel)
    rates = np.geomspace(lowest, 1.0, 301)
    parts = []
    for adjacency in _ADJACENCIES:
        fnr = accounted_false_negative_rate(_shared_profile(panel, adjacency), rates)
        parts.append(_points(panel[0], f"accounted_{adjacency}", rates, fnr))
    for attack in panel:
        fpr, fnr = measured_error_curve(attack.world0_scores, attack.world1_scores)
        seen = (fpr > 0) & (fnr > 0)
        fpr, fnr = fpr[seen], fnr[seen]
        kept = thinned(fpr, fnr, most=_MOST_POINTS)
        measured = _points(attack, _MEASURED, fpr[kept], fnr[kept])
        parts.append(measured.assign(canary=attack.canary, audit=attack.audit))
    table = pd.concat(parts, ignore_index=True)
    return table[(table["false_negative_rate"] >= lowest * 0.5)].reset_index(drop=True)


def _points(attack: Attack, series: str, fpr: object, fnr: object) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "sample_rate": attack.sample_rate,
            "noise_multiplier": attack.noise_multiplier,
            "series": series,
            "canary": None,
            "audit": None,
            "false_positive_rate": fpr,
            "false_negative_rate": fnr,
        }
    )


def _lowest_rate(panel: Sequence[Attack]) -> float:
    """One error in the largest world: nothing lower but 0 can be measured."""
    return 1.0 / max(max(len(a.world0_scores), len(a.world1_scores)) for a in panel)


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
    lowest = _lowest_rate(panel)
    for adjacency in _ADJACENCIES:
        curve = table[table["series"] == f"accounted_{adjacency}"]
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        if adjacency == "add_remove":
            axes.fill_between(x, lowest * 0.5, y, color=style.SHADE, linewidth=0, zorder=0.5)
        axes.plot(x, y, **style.ACCOUNTED[adjacency].options)
    for attack in panel:
        curve = table[table["audit"] == attack.audit]
        x, y = curve["false_positive_rate"], curve["false_negative_rate"]
        axes.plot(x, y, markevery=0.12, **style.canary_options(*attack.series))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(lowest, 1.0)
    axes.set_ylim(lowest, 1.0)


def _legend(attacks: Sequence[Attack]) -> list[list[Entry]]:
    series = dict.fromkeys(attack.series for attack in attacks)
    measured = [
        Entry(style.canary_name(*one), Line2D([], [], **style.canary_options(*one)))
        for one in series
    ]
    lines = [style.ACCOUNTED[adjacency] for adjacency in _ADJACENCIES]
    accounted = [Entry(line.name, Line2D([], [], **line.options)) for line in lines]
    return [
        [Entry("measured:"), *measured],
        [Entry("fewest errors that the accountant allows:"), *accounted],
        [Entry("an attack in here contradicts the add/remove epsilon", Patch(color=style.SHADE))],
    ]
