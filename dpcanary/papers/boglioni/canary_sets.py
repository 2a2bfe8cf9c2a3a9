"""Sets of canaries in one training each: what they show along training, and which are better."""

from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from dpcanary.core.printing import confidence_in_words
from dpcanary.errors import InputError
from dpcanary.estimation.rule_catalogue import threshold_rule_named
from dpcanary.experiment.summary import SHOWN
from dpcanary.figures import style
from dpcanary.figures.layout import draw_band, make_frame
from dpcanary.figures.notes import (
    data_note,
    epsilon_label,
    number_range,
    shared_note,
    slots_in_words,
    stated_confidence,
)
from dpcanary.figures.rows import check_agree, has_shown_conversion

_LOSS_GAP = "loss_gap"
_CONFIDENCE = 0.95
# What the paper calls a set, where the catalogue names its adversary otherwise.
_LABELS = {"loss": {"label": "mislabeled record (loss)"}}
# In these the audits must agree.
_SET_UP = (
    *(key for key, shown in SHOWN.items() if shown.of != "canary"),
    "num_records", "num_slots", "num_runs", "delta", "significance",
)  # fmt: skip


@style.applied()
def draw_canary_sets(
    summary: pd.DataFrame, gaps: pd.DataFrame, *, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a panel for the loss gap and one for each valid rule that pools all slots.

    This is the form of Figure 2 of Boglioni et al. (2025), and the table is that of their Table 2,
    with intervals for paired differences. The audits differ in their canaries alone. They have the
    same seed, so that trainings of the same repeat are pairs.

    Args:
        summary: of the audits.
        gaps: columns audit, repeat, step and `loss_gap`, in nats.
        note: printed below.

    Returns:
        The figure, and its numbers: for each measure (`loss_gap`, or the threshold rule), step and
        canary the mean over repeats, its interval `lower` to `upper` (95 %, Student's t),
        `standard_deviation`, `median` and num_repeats. Where `compared_with` names another canary,
        they are those of the differences between trainings of the same repeat.
    """
    rows = summary[summary["is_valid"] & has_shown_conversion(summary) & summary["slot"].isna()]
    if rows.empty:
        raise InputError("the summary has no valid bound of all slots together to show")
    check_agree(rows, _SET_UP)
    if rows["seed"].nunique() > 1:
        raise InputError("the audits differ in seed: give them the same")
    twice = rows.drop_duplicates("audit")["canary"].duplicated()
    if twice.any():
        raise InputError("two audits have the same canary: show them in different figures")
    values = _values(rows, gaps)
    table = _table(values)
    rules = [str(rule) for rule in rows["threshold_rule"].drop_duplicates()]
    canaries = sorted({*values["canary"]}, key=lambda name: style.catalogue_order(name, None))
    options = {name: style.canary_options(name) | _LABELS.get(name, {}) for name in canaries}
    finite = bool(np.isfinite(rows["epsilon_upper_add_remove"]).any())
    names = ("substitute", "add_remove")
    accounted = style.accounted_styles(names, rows["adjacency"]) if finite else {}
    figure, [panels] = make_frame(
        titles=[_title(measure) for measure in (_LOSS_GAP, *rules)],
        panel_size=(3.4, 3.0),
        legend=[
            ["canaries:", *options.values()],
            style.accounted_legend("accounted ε (upper bound)", accounted, rows["adjacency"]),
        ],
        notes=[note, _note(rows, note, finite=finite), data_note(rows)],
        caption=[
            _meaning_without_noise(rows) if not finite else "",
            shared_note(rows, (), needed=True),
        ],
        labels=("step", ""),
    )
    for axes, measure in zip(panels, [_LOSS_GAP, *rules], strict=True):
        for canary in canaries:
            shown = (values["measure"] == measure) & (values["canary"] == canary)
            _draw_line(axes, values[shown], options[canary], is_bound=measure != _LOSS_GAP)
        axes.set_xlim(left=0)
        if measure == _LOSS_GAP:
            axes.set_ylabel("loss gap (nats)")
            axes.axhline(0.0, color="#9A9A9A", linewidth=0.8, zorder=1)
            continue
        axes.set_ylabel(epsilon_label(rows))
        of_steps = rows.drop_duplicates("step").sort_values("step")
        for name, line in accounted.items():
            axes.plot(of_steps["step"], of_steps[f"epsilon_upper_{name}"], **line)
        axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], 0.1))
    return figure, table


def _values(rows: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
    """Columns measure, step, canary, repeat and value."""
    bounds = rows.rename(columns={"threshold_rule": "measure", "epsilon_lower": "value"})
    canaries = rows.drop_duplicates("audit").set_index("audit")["canary"]
    loss_gaps = gaps.assign(measure=_LOSS_GAP, canary=gaps["audit"].map(canaries))
    loss_gaps = loss_gaps.rename(columns={"loss_gap": "value"}).dropna(subset="canary")
    columns = ["measure", "step", "canary", "repeat", "value"]
    return pd.concat([loss_gaps[columns], bounds[columns]], ignore_index=True)


def _table(values: pd.DataFrame) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for (measure, step), group in values.groupby(["measure", "step"], sort=False):
        wide = group.pivot_table("value", index="repeat", columns="canary")
        place = {"measure": measure, "step": step}
        for canary in wide:
            rows.append(place | {"canary": canary, "compared_with": ""} | _mean_of(wide[canary]))
        for better, other in permutations(wide, 2):
            difference = _mean_of(wide[better] - wide[other])
            rows.append(place | {"canary": better, "compared_with": other} | difference)
    return pd.DataFrame(rows)


def _mean_of(values: "pd.Series[float]") -> dict[str, float]:
    """Mean and median with an interval of the mean, which is NaN for one value.

    Repeats that are missing are NaN.
    """
    values = values.dropna()
    count, mean, deviation = len(values), float(values.mean()), float(values.std(ddof=1))
    half = np.nan
    if count > 1:
        half = float(stdtrit(count - 1, (1 + _CONFIDENCE) / 2)) * deviation / np.sqrt(count)
    return {
        "mean": mean,
        "lower": mean - half,
        "upper": mean + half,
        "median": float(values.median()),
        "standard_deviation": deviation,
        "num_repeats": count,
    }


def _draw_line(
    axes: Axes, values: pd.DataFrame, options: dict[str, Any], *, is_bound: bool
) -> None:
    """The mean with a band of one standard deviation, as in the paper, and every training.

    A bound is never below 0, nor above what right guesses of all slots show: bands of bounds end
    at the smallest and the largest training of their step.
    """
    of_step = values.groupby("step")["value"]
    mean, deviation = of_step.mean(), of_step.std(ddof=1).fillna(0.0)
    low, high = mean - deviation, mean + deviation
    if is_bound:
        low, high = low.clip(lower=of_step.min()), high.clip(upper=of_step.max())
    colour = options["color"]
    draw_band(axes, mean.index, low, high, colour, opacity=0.15)
    axes.plot(values["step"], values["value"], ".", color=colour, alpha=0.35, markersize=3)
    axes.plot(mean.index, mean, **options)


def _title(measure: str) -> str:
    if measure == _LOSS_GAP:
        return "Loss of canaries out minus in"
    return f"{measure.replace('_', ' ').capitalize()} ({threshold_rule_named(measure).slots})"


def _note(rows: pd.DataFrame, note: str, *, finite: bool) -> str:
    runs = number_range(rows["num_runs"])
    repeats = number_range(rows.groupby("audit")["repeat"].nunique())
    drawn = (
        f"{runs} model{'' if runs == '1' else 's'}{slots_in_words(rows)}; points: {repeats}"
        " repeats, lines: their mean, bands: ± 1 standard deviation within what was seen"
    )
    if finite:
        level = stated_confidence(rows, note)
        return f"Lower bounds: GDP conversion (Steinke: direct){level}, {drawn}"
    return f"Trained without noise, so that the true ε is infinite; {drawn}"


def _meaning_without_noise(rows: pd.DataFrame) -> str:
    """What bounds say that assume the curve of a mechanism which the training has not."""
    level = confidence_in_words(rows["significance"].iloc[0])
    return (
        "Numbers are the largest ε of a Gaussian mechanism (Steinke: of any mechanism) that so many"
        f" right guesses refute at {level} confidence."
    )
