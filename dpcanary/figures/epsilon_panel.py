"""A panel of audited and accounted epsilons, over whatever its axis is."""

import pandas as pd
from matplotlib.axes import Axes

from dpcanary.figures import style
from dpcanary.figures.bounds import series_of
from dpcanary.figures.view import View

# Half the length of the dash that stands for a curve of one point, relative to its place.
_DASH = 0.06


def draw_bounds(axes: Axes, points: pd.DataFrame, *, view: View, audited: str) -> None:
    """Draws the accounted curves, then the audited lines over them.

    Args:
        axes: the panel.
        points: rows of `bounds.bounds_table`.
        view: what is on the axis.
        audited: the audited series, one of the two rules.
    """
    x = view.axis
    for series in view.accounted:
        curve = points[points["series"] == f"accounted_{series}"]
        _draw_accounted(axes, curve[x].tolist(), curve["epsilon"].tolist(), series)
    for canary, score, curve in series_of(points, audited):
        options = {"elinewidth": 1.0, "capsize": 2.5, **style.canary_options(canary, score)}
        # A missing error bar is NaN, which draws none.
        axes.errorbar(curve[x], curve["epsilon"], yerr=curve["error_bar"], **options)
    axes.tick_params(labelleft=True)


def _draw_accounted(axes: Axes, places: list[float], epsilons: list[float], series: str) -> None:
    options = style.ACCOUNTED[series].options
    if pd.isna(places).all():  # it does not depend on what is on the axis
        axes.axhline(epsilons[0], **options)
        return
    if len(places) == 1:  # a line through one point would be invisible
        places, epsilons = [places[0] * (1 - _DASH), places[0] * (1 + _DASH)], epsilons * 2
    axes.plot(places, epsilons, **options)
