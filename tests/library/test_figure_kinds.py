"""What every kind of figure keeps, from the catalogue itself: a new kind needs an example.

Its lines, its layout, its legend, labels, note and caption, and what it refuses.
"""

import inspect
from itertools import combinations
from typing import Any

import figure_examples as examples
import numpy as np
import pandas as pd
import pytest
from figure_examples import EXAMPLES, NOTE, accuracies_of, draw, landscapes, membership, norms_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from summaries import attack, below, gaussian_profile, legend, row, summary_of

from dpcanary.core.plugins import function_named
from dpcanary.errors import InputError
from dpcanary.experiment.figure_catalogue import figure_kind, figure_kind_names
from dpcanary.figures.layout import value_ticks

# The columns of the points of lines, where a kind has lines, then labels of axes with their units.
_RUNS = "number of runs R, of both worlds together"
_EPSILON, _RATES = "ε at δ = 10⁻⁵", ("false_positive_rate", "false_negative_rate")
SHOWN = {
    "epsilon_by_step": ("step", "epsilon", "training step", _EPSILON),
    "epsilon_by_noise": ("noise_multiplier", "epsilon", "noise multiplier σ", _EPSILON),  # noqa: RUF001
    "epsilon_by_runs": ("num_runs", "epsilon", _RUNS, _EPSILON),
    "epsilon_by_setting": ("max_grad_norm", "epsilon", "clipping norm C", _EPSILON),
    "models_trained": ("num_runs", "epsilon", "models trained", _EPSILON),
    "canary_sets": ("step", "mean", "step", "loss gap (nats)", _EPSILON),
    "test_accuracy": ("", "", "test accuracy (%)"),
    "adjacency_ratio": ("noise_multiplier", "ratio", "substitute ε / add/remove ε"),
    "score_histograms": ("", "", "score (higher: world 0)", "scores per bin"),
    "trade_off": (*_RATES, *(name.replace("_", " ") for name in _RATES)),
    "gradient_norm": ("step", "mean", "training step", "norm of the canary's gradient"),
    "privacy_profile": ("epsilon", "delta", "ε", "δ(ε)"),
    "hidden_state_by_step": ("step", "epsilon", "training step", _EPSILON),
    "hidden_state_by_threshold": (
        *("landscape_threshold", "epsilon", "threshold h of the landscape / C", _EPSILON),
    ),
    "shuffling": ("noise_multiplier", "epsilon", "noise multiplier σ", _EPSILON),  # noqa: RUF001
    "secrets": ("value", "epsilon", "values of a secret", _EPSILON),
    "amplification": ("", "", "batch size B", "noise multiplier σ"),  # noqa: RUF001
    "loss_landscape": ("position", "world0", "position θ / C", "exact density, step 2"),
}
# Series that are not lines.
_NO_LINES = {"audited_in_sample", "confidence_low", "confidence_high"}


def _check_lines(columns: tuple[str, ...], figure: Figure, table: pd.DataFrame) -> None:
    if "series" in table:
        table = table[~table["series"].isin(_NO_LINES)]
    if "compared_with" in table:
        table = table[table["compared_with"] == ""]
    lines = [line.get_data() for axes in figure.axes for line in axes.get_lines()]
    drawn = {(f"{x:.9g}", f"{y:.9g}") for line in lines for x, y in zip(*line, strict=True)}
    points = table[[*columns]].dropna().to_numpy()
    assert len(points) > 3
    assert {(f"{x:.9g}", f"{y:.9g}") for x, y in points} <= drawn


def _written(figure: Figure) -> list[Text]:
    """All text that is drawn; labels of ticks outside of the axes are not."""
    shown = {axes for axes in figure.axes if axes.get_visible()}
    ticks = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            labels = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            ticks |= {text for place, text in labels if not low <= place <= high}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_text().strip()
        and text.get_visible()
        and (text.axes is None or text.axes in shown)
        and text not in ticks
    ]


@pytest.mark.parametrize("kind", figure_kind_names())
def test_a_kind_has_a_caption_and_a_function_with_the_arguments_that_it_declares(kind):
    entry = figure_kind(kind)
    assert EXAMPLES[kind], "a new kind needs an example"
    assert entry.caption
    assert all(text.endswith(".") and "  " not in text for text in entry.caption)
    arguments = {*inspect.signature(function_named(entry.draw)).parameters}
    by_file = {"shown"}  # shown by the file of ceilings
    has_axis = entry.axis is not None or "setting" in entry.needs
    axis = {"axis"} if "axis" in arguments and has_axis else set()
    assert arguments == {*entry.inputs, "note", *axis} | ({*entry.keys} - by_file)


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(kind, number, marks=[pytest.mark.long] * (number > 0))
        for kind, of_kind in EXAMPLES.items()
        for number in range(len(of_kind))
    ],
)
def test_a_figure_has_its_table_its_labels_and_text_that_neither_overlaps_nor_leaves_it(
    kind, number
):
    inputs, settings = EXAMPLES[kind][number]
    figure, table = draw(kind, *inputs(), **settings)
    if number == 0 and all(SHOWN[kind][:2]):
        _check_lines(SHOWN[kind][:2], figure, table)
    assert len(table) > 0
    assert below(figure).startswith(NOTE)
    assert legend(figure) or kind == "amplification"
    FigureCanvasAgg(figure).draw()
    boxes = {text: text.get_window_extent() for text in _written(figure)}
    assert len(boxes) > 20
    if number == 0:
        assert {*SHOWN[kind][2:]} <= {text.get_text() for text in boxes}
    for text, box in boxes.items():
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, text
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, text
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one, other)


def test_captions_take_numbers_for_evidence_and_no_proof():
    bounds, trade_off = (
        " ".join(figure_kind(kind).caption) for kind in ("epsilon_by_step", "trade_off")
    )
    assert "a valid marker above the dashed line is evidence, at the stated confidence" in bounds
    assert "leaves little room between what is shown and what is accounted" in bounds
    assert "Each valid bound (not a mean of several) is at most the true epsilon" in bounds
    assert "Where its band lies in the region as a whole, this is evidence that" in trade_off


def test_ticks_are_at_values_and_round_ones_go_first():
    for values, labels in (
        ([0.001, 0.01, 0.1, 1.0], ["0.001", "0.01", "0.1", "1"]),
        ([100, 250, 500, 1000, 1500, 2000, 2500], ["100", "250", "500", "1,000", "2,500"]),
        ([1000], ["1,000"]),
        ([1e6, 2e6], ["1,000,000", "2,000,000"]),
    ):
        axes = Figure().subplots()
        value_ticks(axes, [*values, *values])
        assert [text.get_text() for text in axes.get_xticklabels()] == labels
        assert {*axes.get_xticks(), *axes.xaxis.get_minorticklocs()} == set(values)
        low, high = axes.get_xlim()
        assert low < min(values) <= max(values) < high


_CANARIES = summary_of(canaries=["gradient", "crafted_input", "natural"])
NATURAL = "natural-1.0-22.37"


def _beside_natural(audit: str, **changes: object) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    settings = {"canary": "natural", "sample_rate": 1.0, "noise_multiplier": 22.37}
    rows = pd.DataFrame([row(**(settings | changes | {"audit": audit}))])
    return accuracies_of(NATURAL, audit), pd.concat([_CANARIES, rows])


def _other_steps() -> pd.DataFrame:
    rows = examples.shuffled()
    return rows.assign(num_steps=rows["num_steps"].where(rows["sampling"] != "poisson", 160))


def _other_set(column: str, value: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Sets of canaries of which one has another value of a column."""
    summary, gaps = examples.sets()
    summary.loc[summary["canary"] == "loss", column] = value
    return summary, gaps


def _two_sets_of_one_canary() -> tuple[pd.DataFrame, pd.DataFrame]:
    summary, gaps = examples.sets()
    return pd.concat([summary, summary.query("canary == 'loss'").assign(audit="b-loss")]), gaps


_OTHER_SET = {
    "model": "convnet",
    "noise_multiplier": 2.0,
    "num_slots": 10,
    "delta": 1e-6,
    "seed": 3,
}
_OTHER_MODELS = {"canary": "natural", "delta": 1e-6, "significance": 0.1, "adjacency": "zero_out"}
_ALIKE = membership(1.0)
_NOT_VALID = examples.profiles_of(_ALIKE), _ALIKE.query("not is_valid")
_NO_PROFILE = {audit: {"substitute": None} for audit in _ALIKE["audit"]}
_NO_LAW = landscapes(canary="worst_case", epsilon_hidden_state=np.nan)
_MIXED = [attack(), attack("natural", profiles={"substitute": gaussian_profile(2.0)})]
_OTHER_PROFILES = {"substitute": gaussian_profile(2.1), "add_remove": gaussian_profile(1.0)}
REFUSED: list[tuple[str, tuple[Any, ...], str]] = [
    ("trade-off", (), "unknown kind 'trade-off': did you mean 'trade_off'"),
    ("test_accuracy", _beside_natural("w", canary="worst_case"), "audit w trains no models"),
    ("test_accuracy", _beside_natural("a", adjacency="add_remove"), "a audits adjacency add_rem"),
    ("test_accuracy", _beside_natural("s", num_slots=4), "audit s has 4 slots"),
    ("test_accuracy", _beside_natural("b", max_grad_norm=4.0), r"in max_grad_norm \(2 and 4\)"),
    ("test_accuracy", _beside_natural("b", noise_multiplier=30.0), "differ in noise_multiplier"),
    ("test_accuracy", _beside_natural("b"), f"{NATURAL} and b have the same canary, score and sam"),
    ("test_accuracy", (accuracies_of(NATURAL, "absent"), _CANARIES), "summary has no audit absent"),
    ("test_accuracy", ({NATURAL: np.full((1, 4), np.nan)}, _CANARIES), "of a model is NaN"),
    ("test_accuracy", ({}, _CANARIES), "no audit to show"),
    ("adjacency_ratio", (examples.ratios(ratio=np.nan),), "no ratio could be accounted"),
    (
        "adjacency_ratio",
        (pd.concat([examples.ratios(), examples.ratios(delta=1e-6)]),),
        "differ in delta",
    ),
    *(
        ("canary_sets", _other_set(column, value), f"differ in {column}")
        for column, value in _OTHER_SET.items()
    ),
    ("canary_sets", examples.sets(slot=1.0), "no valid bound of all slots together"),
    ("canary_sets", _two_sets_of_one_canary(), "two audits have the same canary"),
    *(
        (
            "models_trained",
            (pd.concat([examples.models(), examples.models(**{column: value})]),),
            f"in {column}",
        )
        for column, value in _OTHER_MODELS.items()
    ),
    ("models_trained", (examples.models(is_valid=False),), "no valid bound"),
    ("shuffling", (examples.shuffled(is_valid=False),), "no bound of a valid rule"),
    (
        "shuffling",
        (examples.shuffled(sampling="poisson", sample_rate=0.025),),
        "no audit has shuffled",
    ),
    ("shuffling", (examples.shuffled(sample_rate=0.5),), r"1 / 40: show it in another figure"),
    (
        "shuffling",
        (examples.shuffled(noise_multiplier=1.0),),
        "differ in what this figure does not show",
    ),
    ("shuffling", (_other_steps(),), "differ in num_steps"),
    ("hidden_state_by_step", (landscapes(0.5, 2.5),), "point of this figure, which shows noise, b"),
    ("hidden_state_by_step", (_NO_LAW,), r"audit a-1\.0-1: the exact law of canary worst_case"),
    ("hidden_state_by_step", (landscapes(is_valid=False),), "no bound of a valid rule"),
    ("amplification", (landscapes().query("step == 3"),), "only one step was recorded"),
    ("loss_landscape", (landscapes(),), "4 audits: this figure shows one"),
    ("loss_landscape", (examples.one_landscape(landscape=None),), "with a crafted landscape"),
    *(
        (kind, ([attack(), attack(audit="other")],), "gradient-1 and other have the same canary")
        for kind in ("score_histograms", "trade_off")
    ),
    *((kind, ([],), "no audit to show") for kind in ("score_histograms", "trade_off")),
    ("trade_off", (_MIXED,), "no adjacency add_remove"),
    ("trade_off", ([attack(), attack("natural", profiles=_OTHER_PROFILES)],), "in their accounted"),
    *(
        ("gradient_norm", (norms_of(both), both), "other differ in nothing that this figure shows")
        for both in (
            pd.concat([_ALIKE, _ALIKE.assign(audit="other", configuration="another", seed=1)]),
            pd.concat([_ALIKE, _ALIKE.assign(audit="other")]),
        )
    ),
    ("gradient_norm", (norms_of(_ALIKE) | {"more": {}}, _ALIKE), "the summary lacks an audit"),
    ("privacy_profile", _NOT_VALID, "no bound of a valid rule by conversion gdp"),
    ("privacy_profile", ({}, _ALIKE), "has no accounted profile"),
    ("privacy_profile", (_NO_PROFILE, _ALIKE), "its profile has no adjacency add_remove"),
]


@pytest.mark.parametrize(("kind", "inputs", "message"), REFUSED)
def test_a_kind_refuses_what_it_would_mix_up_or_cannot_show(kind, inputs, message):
    with pytest.raises(InputError, match=message):
        draw(kind, *inputs)
