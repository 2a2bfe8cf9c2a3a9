"""What bounds prove, in figures of trade-off curves.

The Gaussian curve of the audited mu, which needs the assumption that the mechanism's curve is
Gaussian, and the curve of the largest epsilon that can be proven without it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D
from scipy.special import ndtr, ndtri

from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, Profile
from dpcanary.figures.curves import Array, accounted_false_negative_rate

Curve = tuple[str, str | None, str | None, Array, Array]
_CEILING: dict[str, Any] = {"color": "#B2182B", "linestyle": "-.", "linewidth": 1.4, "zorder": 2.6}
GAUSSIAN, CEILING = "gaussian", "direct_ceiling"


def proven_curves(panel: Sequence[Attack], rates: Array) -> list[Curve]:
    """The curves of a panel: series, canary, audit, false positive and false negative rates."""
    curves: list[Curve] = []
    for attack in panel:
        if attack.proven:
            fnr = ndtr(-ndtri(rates) - attack.proven.mu)
            curves.append((GAUSSIAN, attack.canary, attack.audit, rates, fnr))
    highest = max((attack.proven for attack in panel if attack.proven), key=_ceiling, default=None)
    if highest:
        point = Profile(np.array([highest.delta]), np.array([highest.ceiling]))
        curves.append((CEILING, None, None, rates, accounted_false_negative_rate(point, rates)))
    return curves


def proven_options(series: str, attack: Attack | None = None) -> dict[str, Any]:
    """Keyword arguments of `plot` for one of these curves."""
    if attack is None or series == CEILING:
        return _CEILING
    options = style.canary_options(*attack.series)
    colour, is_default = options["color"], options["color"] == options["markerfacecolor"]
    dash = (0, (4, 1.5)) if is_default else (0, (1.5, 1.5))
    return {"color": colour, "linestyle": dash, "linewidth": 1.2, "zorder": 2.7}


def proven_legend(panels: Sequence[Sequence[Attack]]) -> list[list[Line2D | str]]:
    """Groups of the legend; values that differ between panels stand in the panels' order."""
    attacks = [attack for panel in panels for attack in panel if attack.proven]
    if not attacks:
        return []
    entries: list[Line2D | str] = ["proven under the Gaussian assumption (by panel):"]
    if len(panels) == 1:
        entries = ["proven under the Gaussian assumption:"]
    series = dict.fromkeys(attack.series for attack in attacks)
    for one in series:
        own = [attack for attack in attacks if attack.series == one]
        mus = _listed([f"{attack.proven.mu:.3g}" for attack in own if attack.proven])
        name = f"{style.canary_name(*one)}: " if len(series) > 1 else ""
        label = f"{name}Gaussian, audited μ = {mus}"
        entries.append(Line2D([], [], **proven_options(GAUSSIAN, own[0]), label=label))
    sizes = _listed([f"{len(a.world0_scores) + len(a.world1_scores):,}" for a in attacks])
    epsilons = _listed([f"{attack.proven.ceiling:.3g}" for attack in attacks if attack.proven])
    label = f"direct: at most ε = {epsilons} with {sizes} scores"
    ceiling = Line2D([], [], **_CEILING, label=label)
    return [entries, ["provable without it:", ceiling]]


def proven_table(summary: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """For each audit, the attributes of `Proven` for its first repeat after the last step.

    Args:
        summary: of the audits; rows of `view.valid_rows`.
        ceilings: columns audit and epsilon.
    """
    first = summary[summary["repeat"] == 0].groupby("audit")
    table = first[["delta", "significance", "threshold_rule"]].first()
    table = table.assign(mu=first["mu_lower"].mean())
    level = (100 * (1 - table["significance"])).map("{:g}".format)
    table["stated"] = table["threshold_rule"] + " rule, " + level + " % confidence"
    known = table.join(ceilings.set_index("audit")["epsilon"].rename("ceiling"), how="inner")
    return known[["mu", "ceiling", "delta", "stated"]]


def proven_note(attacks: Sequence[Attack]) -> str:
    """The rule and the confidence of what is proven; nothing where nothing is."""
    stated = dict.fromkeys(attack.proven.stated for attack in attacks if attack.proven)
    return f"Audited μ and the bound of direct: {'; '.join(stated)}" if stated else ""


def _ceiling(proven: Any) -> float:
    return float(proven.ceiling)


def _listed(values: Sequence[str]) -> str:
    return " / ".join(values if len({*values}) > 1 else values[:1])
