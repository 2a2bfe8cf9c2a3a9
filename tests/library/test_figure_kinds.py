"""What every kind of figure keeps, from the catalogue itself: a new kind needs an example."""

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
from dpcanary.experiment import figure_catalogue
from dpcanary.experiment.figure_catalogue import figure_kind, figure_kind_names
from dpcanary.experiment.summary import NOT_VALID
from dpcanary.figures.layout import value_ticks
from dpcanary.figures.storage import FILES, READ

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
_NO_LINES = {"audited_not_valid", "confidence_low", "confidence_high"}


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


def test_the_catalogue_names_what_figures_can_be_drawn_from():
    assert {*figure_catalogue._INPUTS} == READ.keys()
    assert figure_catalogue._FILES == FILES


@pytest.mark.parametrize("kind", figure_kind_names())
def test_a_kind_has_a_caption_and_a_function_with_the_arguments_that_it_declares(kind):
    entry = figure_kind(kind)
    assert EXAMPLES[kind], "a new kind needs an example"
    assert entry.caption
    assert all(text.endswith(".") and "  " not in text for text in entry.caption)
    arguments = {*inspect.signature(function_named(entry.draw)).parameters}
    has_axis = entry.axis is not None or "setting" in entry.needs
    entry.check_function(has_axis=has_axis)
    by_file = {"shown"}  # shown by the file of ceilings
    axis = {"axis"} if has_axis else set()
    assert arguments == {*entry.inputs, "note", *axis} | ({*entry.keys} - by_file)


SLOW = {"score_histograms", "trade_off", "epsilon_by_runs"}  # two seconds and more


@pytest.mark.parametrize(("kind", "number"), [
    pytest.param(kind, number, marks=[pytest.mark.long] * (number > 0 or kind in SLOW))
    for kind, of_kind in EXAMPLES.items()
    for number in range(len(of_kind))
])  # fmt: skip
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
    for first, second in combinations(boxes, 2):
        assert not boxes[first].overlaps(boxes[second]), (first, second)


@pytest.mark.parametrize("kind", ["privacy_profile", "secrets", "shuffling"])
def test_a_figure_whose_note_says_so_calls_nothing_audited_a_lower_bound(kind):
    inputs, settings = EXAMPLES[kind][0]
    marked, _ = draw(kind, *inputs(), note=f"{NOT_VALID}: the bounds of one", **settings)
    texts = [text for text in legend(marked) if text.startswith("audited")]
    assert any("(NOT valid, see the note)" in text for text in texts)
    assert "lower bound" not in " ".join(texts)
    assert "confidence" not in below(marked)


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
_SUMMARY, _GAPS = examples.sets()
_MODELS, _SHUFFLED = examples.models(), examples.shuffled()
_ALIKE = membership(1.0)
_SAME = "differ in nothing that this figure shows"


def _beside_natural(audit: str, **changes: object) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    settings = {"canary": "natural", "sample_rate": 1.0, "noise_multiplier": 22.37}
    rows = pd.DataFrame([row(**(settings | changes | {"audit": audit}))])
    return accuracies_of(NATURAL, audit), pd.concat([_CANARIES, rows])


def _twice(rows: pd.DataFrame, **changes: object) -> pd.DataFrame:
    """Rows, and again with other columns."""
    return pd.concat([rows, rows.assign(**changes)])


def _of_less_noise(**changes: object) -> pd.DataFrame:
    """Audits of landscapes, of which those with a noise of 1 have other columns."""
    rows = landscapes()
    return pd.concat(
        [rows[rows["noise_multiplier"] > 1], rows[rows["noise_multiplier"] == 1].assign(**changes)]
    )


def _profiles(adjacency: str, mu: float) -> tuple[list[Any]]:
    """Two attacks, the second with one profile more than that of a substitution."""
    profiles = {"substitute": gaussian_profile(2.0), adjacency: gaussian_profile(mu)}
    return ([attack(), attack("natural", profiles=profiles)],)


_OTHER_STEPS = _SHUFFLED["num_steps"].mask(_SHUFFLED["sampling"] == "poisson", 160)
_NORMS = norms_of(_twice(_ALIKE, audit="other"))
_NO_PROFILE = {audit: {"substitute": None} for audit in _ALIKE["audit"]}
_NO_LAW = landscapes(canary="worst_case", epsilon_hidden_state=np.nan)
REFUSED: dict[str, list[tuple[tuple[Any, ...], str]]] = {
    "trade-off": [((), "unknown kind 'trade-off': did you mean 'trade_off'")],
    "test_accuracy": [
        (_beside_natural("w", canary="worst_case"), "audit w trains no models"),
        (_beside_natural("a", adjacency="add_remove"), "a audits adjacency add_rem"),
        (_beside_natural("s", num_slots=4), "audit s has 4 slots"),
        (_beside_natural("b", max_grad_norm=4.0), r"in max_grad_norm \(2 and 4\)"),
        (_beside_natural("b", noise_multiplier=30.0), "differ in noise_multiplier"),
        (_beside_natural("b"), f"{NATURAL} and b have the same canary, score and sam"),
        ((accuracies_of(NATURAL, "absent"), _CANARIES), "summary has no audit absent"),
        (({NATURAL: np.full((1, 4), np.nan)}, _CANARIES), "of a model is NaN"),
        (({}, _CANARIES), "no audit to show"),
    ],
    "adjacency_ratio": [
        ((examples.ratios(ratio=np.nan),), "no ratio could be accounted"),
        ((_twice(examples.ratios(), delta=1e-6),), "differ in delta"),
    ],
    "canary_sets": [
        ((_twice(_SUMMARY, model="convnet"), _GAPS), "differ in model"),
        ((_twice(_SUMMARY, noise_multiplier=2.0), _GAPS), "differ in noise_multiplier"),
        ((_twice(_SUMMARY, num_slots=10), _GAPS), "differ in num_slots"),
        ((_twice(_SUMMARY, delta=1e-6), _GAPS), "differ in delta"),
        ((_twice(_SUMMARY, seed=3), _GAPS), "differ in seed"),
        (examples.sets(slot=1.0), "no valid bound of all slots together"),
        ((_twice(_SUMMARY, audit="other"), _GAPS), "two audits have the same canary"),
    ],
    "models_trained": [
        ((_twice(_MODELS, canary="natural"),), "in canary"),
        ((_twice(_MODELS, delta=1e-6),), "in delta"),
        ((_twice(_MODELS, significance=0.1),), "in significance"),
        ((_twice(_MODELS, adjacency="zero_out"),), "in adjacency"),
        ((_MODELS.assign(is_valid=False),), "no valid bound"),
        ((_twice(_MODELS, audit="other", num_steps=_OTHER_STEPS),), "differ in num_steps"),
        ((_twice(_MODELS, audit="other", model="convnet"),), "differ in model"),
        (
            (_twice(_MODELS, audit="other", configuration="x", seed=1),),
            "a-1 and other have the same",
        ),
    ],
    "shuffling": [
        ((_SHUFFLED.assign(is_valid=False),), "no bound of a valid rule"),
        ((_SHUFFLED.assign(sampling="poisson", sample_rate=0.025),), "no audit has shuffled"),
        ((_SHUFFLED.assign(sample_rate=0.5),), r"1 / 40: show it in another figure"),
        ((_SHUFFLED.assign(noise_multiplier=1.0),), "differ in what this figure does not show"),
        ((_SHUFFLED.assign(num_steps=_OTHER_STEPS),), "differ in num_steps"),
    ],
    "hidden_state_by_step": [
        ((_twice(landscapes(), audit="other"),), "point of this figure, which shows noise, b"),
        ((_NO_LAW,), r"audit a-1\.0-1: the exact law of canary worst_case"),
        ((landscapes(is_valid=False),), "no bound of a valid rule"),
        *(
            ((_of_less_noise(**{column: value}),), f"differ in {column}")
            for column, value in (
                *(("adjacency", "substitute"), ("landscape", "converging"), ("delta", 1e-6)),
                *(("landscape_threshold", 2.5), ("significance", 0.1)),
            )
        ),
    ],
    "amplification": [
        ((landscapes().query("step == 3"),), "only one step was recorded"),
        ((landscapes().query("step < 3 or noise_multiplier > 1"),), "first or last recorded step"),
        ((_of_less_noise(landscape="converging"),), "differ in landscape"),
    ],
    "loss_landscape": [
        ((landscapes(),), "4 audits: this figure shows one"),
        ((examples.one_landscape(landscape=None),), "with a crafted landscape"),
    ],
    "score_histograms": [
        (([attack(), attack(audit="other")],), "gradient-1 and other have the same canary"),
        (([],), "no audit to show"),
    ],
    "trade_off": [
        (
            ([attack(), attack(audit="other", settings={"max_grad_norm": 3.0})],),
            "gradient-1 and other have the same canary, score, sample rate and noise, by which"
            " this figure distinguishes audits: name max_grad_norm in panels, or show them",
        ),
        (([],), "no audit to show"),
        (_profiles("substitute", 2.0), "no adjacency add_remove"),
        (_profiles("add_remove", 1.5), "in their accounted"),
    ],
    "gradient_norm": [
        ((_NORMS, _twice(_ALIKE, audit="other", configuration="x", seed=1)), f"other {_SAME}"),
        ((_NORMS, _twice(_ALIKE, audit="other")), f"other {_SAME}"),
        ((norms_of(_ALIKE) | {"more": {}}, _ALIKE), "the summary lacks an audit"),
    ],
    "privacy_profile": [
        ((examples.profiles_of(_ALIKE), _ALIKE.query("not is_valid")), "no bound of a valid rule"),
        (({}, _ALIKE), "has no accounted profile"),
        ((_NO_PROFILE, _ALIKE), "its profile has no adjacency add_remove"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "inputs", "message"), [(kind, *case) for kind in REFUSED for case in REFUSED[kind]]
)
def test_a_kind_refuses_what_it_would_mix_up_or_cannot_show(kind, inputs, message):
    with pytest.raises(InputError, match=message):
        draw(kind, *inputs)
