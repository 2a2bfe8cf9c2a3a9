"""Test accuracy of models with a canary, and of models that were trained on the target record."""

from collections.abc import Iterator, Mapping
from typing import Any, assert_never

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dpcanary.adversaries.adversary import Inserts
from dpcanary.adversaries.catalogue import adversary, adversary_names
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.layout import make_frame
from dpcanary.figures.notes import data_note, number_range
from dpcanary.figures.panels import known_batches, setting_in_words
from dpcanary.figures.rows import check_audits

Accuracies = Mapping[str, NDArray[np.float64]]
_TARGET = "target_record"
_KEYS = ["sample_rate", "noise_multiplier", "trained_on"]
# The central 95 % of the models lie between these quantiles.
_SPREAD = (0.025, 0.975)
_MODELS: dict[str, Any] = {"color": "#8A8A8A", "linewidth": 1.0}
_REPEATS: dict[str, Any] = {"color": "black", "linewidth": 1.8}
_MOST_LARGE_LABELS = 6  # bars of a sample rate, where more would make their labels overlap
_INCHES = 0.3  # for each bar at least, so that there is room for its label
_GROUP = 0.84  # width of all bars of a sample rate; the distance of two sample rates is 1


@style.applied()
def draw_test_accuracy(
    accuracies: Accuracies, summary: pd.DataFrame, *, note: str = ""
) -> tuple[Figure, pd.DataFrame]:
    """Draws a group of bars for each sample rate, and below it the differences from the target.

    For the accuracies and the numbers, see `accuracy_table`.
    """
    table = accuracy_table(accuracies, summary)
    rates = table["sample_rate"].unique().tolist()
    rows = _settings_of(accuracies, summary)
    models = number_range(table["num_models"] // table["num_repeats"])
    figure, [panels] = make_frame(
        titles=[""] * (2 if table["difference"].notna().any() else 1),
        columns=1,
        panel_size=(max(8.0, _INCHES * len(_kinds(table)) * len(rates)), 2.6),
        legend=_legend(table),
        notes=[
            note,
            f"After the last step; each repeat is the mean of {models} models",
            data_note(rows),
        ],
    )
    for axes, draw in zip(panels, (_draw_accuracies, _draw_differences), strict=False):
        draw(axes, table)
        axes.set_xticks(range(len(rates)), [_rate_in_words(rate, rows) for rate in rates])
        axes.set_xlim(-0.5, len(rates) - 0.5)
        axes.grid(visible=False, axis="x")
    return figure, table


def _rate_in_words(rate: float, rows: pd.DataFrame) -> str:
    of_rate = rows[rows["sample_rate"] == rate]
    return setting_in_words("sample_rate", {"sample_rate": rate} | known_batches(of_rate))


def _kinds(table: pd.DataFrame) -> list[str]:
    """What models were trained on, in the order of figures."""
    return [*table["trained_on"].cat.remove_unused_categories().cat.categories]


def _colour(trained_on: str) -> str:
    return "#BDBDBD" if trained_on == _TARGET else style.canary_colour(trained_on)


def _legend(table: pd.DataFrame) -> list[list[Any]]:
    bars = [
        Patch(
            color=_colour(kind),
            label="target record" if kind == _TARGET else style.canary_name(kind),
        )
        for kind in _kinds(table)
    ]
    spread = [_MODELS | {"label": "central 95 % of the models"}]
    if (table["num_repeats"] > 1).any():
        spread.append(_REPEATS | {"label": "mean ± 2 standard errors over repeats"})
    return [["models trained on:", *bars], spread]


def _bar_positions(
    table: pd.DataFrame,
) -> Iterator[tuple[str, pd.DataFrame, NDArray[np.float64], float]]:
    """For each kind of training record: its name, its rows, and its bars' places and width."""
    rates, kinds = table["sample_rate"].unique().tolist(), _kinds(table)
    width = _GROUP / len(kinds)
    for index, kind in enumerate(kinds):
        rows = table[table["trained_on"] == kind]
        centres = np.array([float(rates.index(rate)) for rate in rows["sample_rate"]])
        yield kind, rows, centres + (index - (len(kinds) - 1) / 2) * width, width


def _percent(rows: pd.DataFrame, *columns: str) -> NDArray[np.float64]:
    """Columns in per cent, as rows of an array."""
    return 100 * rows[[*columns]].to_numpy(dtype=np.float64).T


def _draw_accuracies(axes: Axes, table: pd.DataFrame) -> None:
    for kind, rows, positions, width in _bar_positions(table):
        mean, error = _percent(rows, "accuracy", "error_bar")
        low, high = _percent(rows, "models_low", "models_high")
        axes.bar(positions, mean, 0.9 * width, color=_colour(kind), zorder=2)
        axes.vlines(positions, low, high, zorder=3, **_MODELS)
        axes.vlines(positions, mean - error, mean + error, zorder=4, **_REPEATS)
        size = 8 if len(_kinds(table)) <= _MOST_LARGE_LABELS else 6.5
        options: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": size}
        for place, value, top in zip(positions, mean, np.fmax(high, mean + error), strict=True):
            axes.annotate(
                f"{value:.1f}", (place, top), (0, 2), textcoords="offset points", **options
            )
    axes.set_ylim(0, 109)  # from 0, so that lengths compare; labels above 100 need room
    axes.set_yticks(range(0, 101, 20))
    axes.set_ylabel("test accuracy (%)")


def _draw_differences(axes: Axes, table: pd.DataFrame) -> None:
    axes.axhline(0.0, color="#8A8A8A", linewidth=1.0, zorder=2)
    for kind, rows, positions, _ in _bar_positions(table):
        if kind != _TARGET:
            mean, error = _percent(rows, "difference", "difference_error_bar")
            options = style.canary_options(kind) | {"linestyle": "none", "capsize": 4.0}
            axes.errorbar(positions, mean, yerr=error, ecolor=_REPEATS["color"], **options)
    tops = table["difference"].abs() + table["difference_error_bar"].fillna(0.0)
    limit = max(1.2 * 100 * tops.max(), 1.0)  # at least one point, so that noise looks small
    axes.set_ylim(-limit, limit)
    axes.set_ylabel("difference from target\n(percentage points)")


def accuracy_table(accuracies: Accuracies, summary: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracies: one row per sample rate and record that models were trained on.

    Models of world 0 of input canaries were trained on the target record; those of world 1 on the
    canary. With a gradient canary, those of both worlds were trained on it.

    Args:
        accuracies: by audit, in [0, 1] after the last step; shape (repeats, runs), where even runs
            are of world 0 and odd ones of world 1.
        summary: has the settings of the audits.

    Returns:
        `accuracy` is the mean over repeats (each the mean of its models; for the target record the
        repeats of all input canaries), `error_bar` two standard errors of it (NaN for one), and
        the central 95 % of the models are between `models_low` and `models_high`. `difference` is
        `accuracy` less that of the target record, `difference_error_bar` two standard errors of it.
        `trained_on` is an ordered category: the target record, then the canaries.
    """
    parts = [
        (row.sample_rate, row.noise_multiplier, trained_on, row.audit, models)
        for row in _settings_of(accuracies, summary).itertuples()
        for repeat in accuracies[str(row.audit)]
        for trained_on, models in _by_record(str(row.canary), repeat).items()
    ]
    groups = pd.DataFrame(parts, columns=[*_KEYS, "audit", "models"]).groupby(_KEYS)
    table = pd.DataFrame(
        [dict(zip(_KEYS, key, strict=True)) | _statistics(group) for key, group in groups]
    )
    others = table["trained_on"] != _TARGET
    target = table[~others].set_index("sample_rate")
    accuracy, error_bar = (
        table["sample_rate"].map(target[name]) for name in ("accuracy", "error_bar")
    )
    table["difference"] = (table["accuracy"] - accuracy).where(others)
    # The runs of two rows are independent.
    squares = table["error_bar"] ** 2 + error_bar**2
    table["difference_error_bar"] = (squares**0.5).where(others)
    table["trained_on"] = pd.Categorical(
        table["trained_on"], [_TARGET, *adversary_names()], ordered=True
    )
    return table.sort_values(
        ["sample_rate", "trained_on"], ascending=[False, True], ignore_index=True
    )


def _settings_of(accuracies: Accuracies, summary: pd.DataFrame) -> pd.DataFrame:
    """A row of the summary for each audit; an error if they do not fit into one figure."""
    if not accuracies:
        raise InputError("there is no audit to show")
    first_rows = summary.drop_duplicates("audit").set_index("audit", drop=False)
    for audit in accuracies:
        if audit not in first_rows.index:
            raise InputError(f"the summary has no audit {audit}: delete it and run again")
    rows = first_rows.loc[[*accuracies]]
    check_rows(rows)
    for audit, accuracy in accuracies.items():
        if np.isnan(accuracy).any():
            raise InputError(f"audit {audit}: the test accuracy of a model is NaN")
    return rows


def check_rows(rows: pd.DataFrame, **_: object) -> None:
    """Refuses audits whose models this figure cannot compare."""
    for _index, row in rows.iterrows():
        _check_models(row)
    check_audits(rows, shown=("sample_rate",))


def _check_models(row: "pd.Series[Any]") -> None:
    audit = row["audit"]
    if not adversary(row["canary"]).is_trained:
        raise InputError(f"audit {audit} trains no models: it has no test accuracy")
    if row["adjacency"] != Adjacency.SUBSTITUTE:
        raise InputError(
            f"audit {audit} audits adjacency {row['adjacency']}: this figure compares a record"
            " with its substitute"
        )
    if row["num_slots"] > 1:
        raise InputError(
            f"audit {audit} has {row['num_slots']} slots: the slots of one model are in different"
            " worlds"
        )


def _by_record(canary: str, models: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The models of one repeat, by what they were trained on."""
    match adversary(canary).inserts:
        case Inserts.GRADIENT:
            return {canary: models}
        case Inserts.RECORD:
            return {_TARGET: models[0::2], canary: models[1::2]}
        case Inserts.PROCESS:
            raise InputError(f"canary {canary} trains no models")
        case never:
            assert_never(never)


def _statistics(group: pd.DataFrame) -> dict[str, object]:
    # Audits with the same seed have the same models of world 0, which count once.
    group = group[~group["models"].map(lambda part: part.tobytes()).duplicated()]
    models = np.concatenate(group["models"].tolist())
    means = np.array([part.mean() for part in group["models"]])
    several = len(means) > 1
    low, high = np.quantile(models, _SPREAD)
    return {
        "accuracy": means.mean(),
        "error_bar": 2 * means.std(ddof=1) / np.sqrt(len(means)) if several else np.nan,
        "models_low": low,
        "models_high": high,
        "num_repeats": len(means),
        "num_models": len(models),
        "audits": " ".join(dict.fromkeys(group["audit"])),
    }
