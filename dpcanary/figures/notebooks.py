"""Figures in notebooks."""

import sys


def show_figures_in_notebooks() -> None:
    """Makes a notebook show a figure that is the value of a cell.

    Notebooks do so by themselves only after `matplotlib.pyplot` was imported, which this library
    does not use.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, {"png"}, bbox_inches=None)  # type: ignore[no-untyped-call]
