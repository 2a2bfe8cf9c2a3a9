"""A panel of audited and accounted epsilons, over whatever its axis is."""

import pandas as pd
from matplotlib.axes import Axes

from dpcanary.figures import style
from dpcanary.figures.bounds import AUDITED, IN_SAMPLE, series_of

# Half the length of the dash that stands for a curve of one point, relative to its place.
_DASH = 0.06


def draw_bounds(axes: Axes, points: pd.DataFrame, *, x: str) -> None:
    """Draws the accounted curves, then the audited lines over them.

    Args:
        axes: the panel.
        points: rows of `bounds.bounds_table`.
        x: the column that is the panel's axis.
    """
    for series, line in style.ACCOUNTED.items():
        curve = points[points["series"] == f"accounted_{series}"]
        places, epsilons = curve[x].tolist(), curve["epsilon"].tolist()
        if len(places) == 1:  # a line through one point would be invisible
            places, epsilons = [places[0] * (1 - _DASH), places[0] * (1 + _DASH)], epsilons * 2
        axes.plot(places, epsilons, **line.options)
    for canary, _, curve in series_of(points, IN_SAMPLE):
        options = style.in_sample_options(canary) | {"marker": "." if len(curve) == 1 else ""}
        axes.plot(curve[x], curve["epsilon"], **options)
    for canary, score, curve in series_of(points, AUDITED):
        options = {"elinewidth": 1.0, "capsize": 2.5, **style.canary_options(canary, score)}
        # A missing error bar is NaN, which draws none.
        axes.errorbar(curve[x], curve["epsilon"], yerr=curve["error_bar"], **options)
    axes.tick_params(labelleft=True)
