"""Which accounted curves a figure shows, and how."""

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.lines import Line2D

from dpcanary.adjacency import Adjacency
from dpcanary.figures import style
from dpcanary.figures.wording import setting_in_words

Styles = dict[str, dict[str, Any]]


def accounted_styles(names: Sequence[str], audited: Iterable[str]) -> tuple[str, Styles]:
    """Keyword arguments of `plot` for each accounted curve, and how their heading goes on.

    Audits of membership alone are bounded by the add/remove curve, so it is the only one and solid.

    Args:
        names: the curves of audits of substitution, of `style.ACCOUNTED`.
        audited: the adjacencies of the figure's audits.
    """
    known = sorted({*audited})
    if Adjacency.SUBSTITUTE in known:
        return "", {name: style.ACCOUNTED[name] for name in names}
    words = " and ".join(setting_in_words("adjacency", {"adjacency": one}) for one in known)
    options = style.ACCOUNTED["add_remove"] | {"linestyle": "-", "label": words}
    return ", audited adjacency", {"add_remove": options}


def accounted_of_panel(styles: Styles, audited: Iterable[str]) -> Styles:
    """The curves of a panel. Audits of membership have one: that of their own adjacency."""
    if Adjacency.SUBSTITUTE in {*audited}:
        return styles
    return {name: one for name, one in styles.items() if name == "add_remove"}


def accounted_legend(styles: Styles, audited: str) -> list[Line2D | str]:
    """The group of a legend for these curves; nothing if there is none.

    Args:
        styles: of the curves.
        audited: how the heading goes on, from `accounted_styles`.
    """
    if not styles:
        return []
    return [
        f"accounted ε (upper bound){audited}:",
        *(Line2D([], [], **one) for one in styles.values()),
    ]
