"""Text in a figure neither overlaps nor leaves the figure, and ticks have the right labels."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from summaries import attack, summary_of

from dpcanary.adversaries.catalogue import BUILT_IN
from dpcanary.figures.accuracy import draw_test_accuracy
from dpcanary.figures.adjacency_ratio import draw_adjacency_ratio
from dpcanary.figures.attacks import Attack, Proven
from dpcanary.figures.bounds import draw_bounds_figure
from dpcanary.figures.layout import value_ticks
from dpcanary.figures.scores_of_worlds import draw_score_histograms
from dpcanary.figures.set_ups import draw_gradient_norm, draw_privacy_profile
from dpcanary.figures.trade_off import draw_trade_off

ALL = [*BUILT_IN]
TRAINED = [name for name, canary in BUILT_IN.items() if canary.is_trained]
THREE = ((1.0, 22.37), (0.25, 5.574), (0.0625, 1.42))
NOTE = "Reduced scale: features of a smaller encoder, 1,000 runs in place of 2,500, one repeat" * 2


def _by_step(num_settings: int, *, in_sample: bool = False) -> Figure:
    summary = summary_of(settings=THREE[:num_settings], canaries=ALL)
    summary["gaussian_distance"] = 0.0041
    return draw_bounds_figure(summary, axis="step", note=NOTE, in_sample=in_sample)[0]


def _by_noise() -> Figure:
    grid = [(q, sigma * factor) for q, sigma in THREE for factor in (1, 2, 4, 8)]
    summary = summary_of(settings=grid, canaries=["worst_case"], steps=[500])
    return draw_bounds_figure(summary, axis="noise_multiplier", note=NOTE)[0]


def _by(axis: str, values: list[float]) -> Figure:
    summary = summary_of(settings=THREE, canaries=TRAINED, axis={axis: values}, steps=[500])
    return draw_bounds_figure(summary, axis=axis, note=NOTE)[0]


def _by_runs_with_looks() -> Figure:
    numbers = [100, 250, 500, 1000, 1500, 2000, 2500]
    summary = summary_of(settings=THREE, canaries=ALL, axis={"num_runs": numbers}, steps=[500])
    summary["num_looks"] = [2 if runs in (500, 2500) else 1 for runs in summary["num_runs"]]
    return draw_bounds_figure(summary, axis="num_runs", note=NOTE)[0]


def _accuracies() -> Figure:
    summary = summary_of(settings=THREE, canaries=TRAINED)
    rng = np.random.default_rng(0)
    tested = {name: rng.uniform(0.8, 1.0, (3, 40)) for name in summary["audit"].unique()}
    return draw_test_accuracy(tested, summary, note=NOTE)[0]


def _ratios() -> Figure:
    names = ["sample_rate", "num_steps", "noise_multiplier"]
    grid = pd.DataFrame(product((1.0, 0.25, 0.0625), (125, 500, 2000), (1.0, 9.0)), columns=names)
    table = grid.assign(delta=1e-5, accounting_method="pld", ratio=2.1)
    return draw_adjacency_ratio(table, note=NOTE)[0]


def _attacks() -> list[Attack]:
    rng = np.random.default_rng(0)
    return [
        attack(
            canary,
            audit=f"{canary}-{q}",
            sample_rate=q,
            noise_multiplier=sigma,
            world0_scores=rng.normal(1, 1, 100),
            world1_scores=rng.normal(-1, 1, 100),
        )
        for canary, (q, sigma) in product(ALL, THREE)
    ]


def _variants() -> Figure:
    simulations = [
        (one, other) for one in ("noisy", "noiseless") for other in ("per_step", "final")
    ]
    known = {"adjacency": "add_remove", "sampling": "fixed", "batch_size": 128.0}
    fixed = ((1.0, 4.0),)
    parts = [
        summary_of(
            settings=fixed,
            canaries=["simulated_dimension", "random_dimension", "loss"],
            axis={"canary_period": [1.0, 5.0, 25.0]},
            simulation=simulation,
            ranking=ranking,
            **known,
        ).assign(configuration=lambda rows, n=number: rows["audit"] + str(n))
        for number, (simulation, ranking) in enumerate(simulations)
    ]
    summary = pd.concat(parts)
    summary["audit"] = summary["configuration"]
    return draw_bounds_figure(
        summary,
        axis="step",
        note=NOTE,
        panels=["model", "canary_period", "max_grad_norm"],
        lines=["simulation", "ranking"],
    )[0]


def _membership() -> pd.DataFrame:
    summary = summary_of(
        settings=((1.0, 4.0),),
        canaries=["loss"],
        rules=["simultaneous"],
        axis={"canary_period": [1.0, 5.0, 25.0]},
        adjacency="add_remove",
        sampling="fixed",
        batch_size=128.0,
    )
    return summary.assign(mu_lower=1.0, assumption="the curve is Gaussian")


def _norms(*panels: str) -> Figure:
    summary, rng = _membership(), np.random.default_rng(0)
    norms = {
        audit: {step: rng.gamma(2, size=60) for step in (100, 300, 500)}
        for audit in summary["audit"].unique()
    }
    return draw_gradient_norm(norms, summary, note=NOTE, panels=panels)[0]


def _profiles(*panels: str) -> Figure:
    summary, profile = _membership(), _attacks()[0].profiles
    profiles = dict.fromkeys(summary["audit"].unique(), profile)
    return draw_privacy_profile(profiles, summary, note=NOTE, panels=panels)[0]


def _proven() -> Figure:
    proven = Proven(mu=1.234, ceiling=4.56, delta=1e-5, stated="combined rule, 95 % confidence")
    attacks = [replace(one, proven=proven) for one in _attacks()]
    return draw_trade_off(attacks, note=NOTE)[0]


FIGURES = {
    "one setting": lambda: _by_step(1),
    "two settings": lambda: _by_step(2),
    "three settings": lambda: _by_step(3),
    "one setting, both rules": lambda: _by_step(1, in_sample=True),
    "three settings, both rules": lambda: _by_step(3, in_sample=True),
    "noise": _by_noise,
    "runs with looks": _by_runs_with_looks,
    "runs": lambda: _by("num_runs", [100, 250, 500, 1000, 1500, 2000, 2500]),
    "norms": lambda: _by("max_grad_norm", [0.5, 1.0, 2.0, 4.0, 8.0]),
    "steps": lambda: _by("num_steps", [125, 250, 500, 1000, 2000]),
    "rates": lambda: _by("learning_rate", [0.001, 0.01, 0.1, 1.0]),
    "accuracies": _accuracies,
    "ratios": _ratios,
    "trade-off": lambda: draw_trade_off(_attacks(), note=NOTE)[0],
    "variants": _variants,
    "norms of gradients": _norms,
    "norms of gradients in panels": lambda: _norms("canary_period"),
    "profiles": _profiles,
    "profiles in panels": lambda: _profiles("canary_period"),
    "trade-off and what is proven": _proven,
    "histograms": lambda: draw_score_histograms(_attacks(), note=NOTE)[0],
}


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


@pytest.mark.parametrize("kind", FIGURES)
def test_no_text_overlaps_or_leaves_the_figure(kind: str) -> None:
    figure = FIGURES[kind]()
    FigureCanvasAgg(figure).draw()
    boxes = {text: text.get_window_extent() for text in _written(figure)}
    assert len(boxes) > 20
    for text, box in boxes.items():
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width, text
        assert 0 <= box.y0 < box.y1 <= figure.bbox.height, text
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), (one, other)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0.001, 0.01, 0.1, 1.0], ["0.001", "0.01", "0.1", "1"]),
        ([100, 250, 500, 1000, 1500, 2000, 2500], ["100", "250", "500", "1,000", "2,500"]),
        ([1000], ["1,000"]),
        ([1e6, 2e6], ["1,000,000", "2,000,000"]),
    ],
)
def test_ticks_are_at_values_and_round_ones_go_first(values: list[float], labels: list[str]):
    axes = Figure().subplots()
    value_ticks(axes, [*values, *values])
    assert [text.get_text() for text in axes.get_xticklabels()] == labels
    ticks = {*axes.get_xticks(), *axes.xaxis.get_minorticklocs()}
    assert ticks == set(values)
    low, high = axes.get_xlim()
    assert low < min(values) <= max(values) < high
