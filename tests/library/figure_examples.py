"""Examples of every kind of figure, made up and hard to lay out."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from summaries import attack, gaussian_profile, row, summary_of

from dpcanary.adversaries.catalogue import adversaries
from dpcanary.core.plugins import function_named
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.figures.attacks import Attack, ShownBound

ALL = [*adversaries()]
TRAINED = [name for name, canary in adversaries().items() if canary.is_trained]
THREE = ((1.0, 22.37), (0.25, 5.574), (0.0625, 1.42))
FIXED = {"adjacency": "add_remove", "sampling": "fixed", "batch_size": 128.0}
NOTE = "Reduced scale: features of a smaller encoder, 1,000 runs in place of 2,500, one repeat" * 2
_STATED = "combined rule, 95 % confidence"
SHOWN_BOUND = ShownBound(mu=1.256, ceiling=5.001, delta=1e-5, stated=_STATED)
Drawn = tuple[Figure, pd.DataFrame]


def draw(kind: str, *inputs: object, note: str = NOTE, **settings: object) -> Drawn:
    """A figure of a kind, with its inputs in the order of the catalogue."""
    entry = figure_kind(kind)
    if entry.axis:
        settings = {"axis": entry.axis} | settings
    arguments = dict(zip(entry.inputs, inputs, strict=True))
    return function_named(entry.draw)(**arguments, note=note, **settings)


def variants() -> pd.DataFrame:
    """Four variants of a canary at three periods, beside two others."""
    options = {"settings": ((1.0, 4.0),), "axis": {"canary_period": [1.0, 5.0, 25.0]}, **FIXED}
    options["canaries"] = ["simulated_dimension", "random_dimension", "loss"]
    summary = pd.concat(
        summary_of(simulation=simulation, ranking=ranking, **options)
        for simulation, ranking in product(("noisy", "noiseless"), ("per_step", "final"))
    )
    names = summary["audit"] + summary["simulation"] + summary["ranking"]
    return summary.assign(audit=names, configuration=names)


def by_runs() -> pd.DataFrame:
    numbers = [100, 250, 500, 1000, 1500, 2000, 2500]
    summary = summary_of(settings=THREE, canaries=ALL, axis={"num_runs": numbers}, steps=[500])
    return summary.assign(num_looks=[2 if n in (500, 2500) else 1 for n in summary["num_runs"]])


def membership(*periods: float) -> pd.DataFrame:
    """Audits of known batches, with a bound on mu that rises with the repeat."""
    options = {"settings": ((1.0, 4.0),), "axis": {"canary_period": periods or (1.0, 5.0)}, **FIXED}
    summary = summary_of(canaries=["loss"], rules=["simultaneous", "in_sample"], **options)
    mu = 1.0 + 0.5 * summary["repeat"] + 5.0 * ~summary["is_valid"]
    return summary.assign(mu_lower=mu, assumption="the curve is Gaussian")


def norms_of(summary: pd.DataFrame) -> dict[str, dict[int, np.ndarray]]:
    rng = np.random.default_rng(0)
    return {
        audit: {step: rng.gamma(2.0, size=30) for step in (100, 300, 500)}
        for audit in summary["audit"].unique()
    }


def profiles_of(summary: pd.DataFrame, *mus: float) -> dict[str, dict[str, Any]]:
    audits = summary["audit"].unique().tolist()
    of_mu = dict(zip(audits, mus or [3.0] * len(audits), strict=True))
    profiles = {"substitute": gaussian_profile(9.0)}
    return {audit: profiles | {"add_remove": gaussian_profile(mu)} for audit, mu in of_mu.items()}


def attacks(**changes: object) -> list[Attack]:
    rng = np.random.default_rng(0)
    return [
        attack(
            **{"canary": canary, "audit": f"{canary}-{q}", "sample_rate": q} | changes,
            **{"noise_multiplier": sigma, "world0_scores": rng.normal(1, 1, 100)},
            world1_scores=rng.normal(-1, 1, 100),
        )
        for canary, (q, sigma) in product(ALL, THREE)
    ]


def accuracies_of(*names: str, num_repeats: int = 3, num_runs: int = 6) -> dict[str, np.ndarray]:
    """Accuracies on a thousand test records, by audit: even runs are of world 0."""
    rng = np.random.default_rng(0)
    return {name: rng.integers(700, 900, (num_repeats, num_runs)) / 1000 for name in names}


def accuracies(settings: Any = THREE) -> tuple[dict[str, np.ndarray], pd.DataFrame]:
    summary = summary_of(settings=settings, canaries=TRAINED)
    return accuracies_of(*summary["audit"].unique(), num_runs=40), summary


def ratios(**changes: object) -> pd.DataFrame:
    names = ["sample_rate", "num_steps", "noise_multiplier"]
    grid = pd.DataFrame(product((1.0, 0.25, 0.0625), (125, 500, 2000), (1.0, 9.0)), columns=names)
    defaults = {"delta": 1e-5, "accounting_method": "pld", "ratio": 2.1 + 0.01 * grid.index}
    return grid.assign(**defaults | changes)


_RULES = [("combined", "gdp"), ("combined", "direct"), ("in_sample", "gdp")]
_GUESSES = [("mahloujifar", "gdp"), ("mahloujifar", "direct"), ("steinke", "direct")]


def models(**changes: object) -> pd.DataFrame:
    """Audits with 1 and with 500 slots, at several numbers of runs, two repeats each."""
    rows = [
        row(
            **{"canary": "gradient", "sample_rate": 1.0, "noise_multiplier": 10.0},
            **{"audit": f"a-{slots}", "num_slots": slots, "num_runs": runs, "repeat": repeat},
            **{"threshold_rule": rule, "conversion": conversion},
            epsilon_lower=runs / 100 + len(rule) + repeat,
        )
        for slots, numbers, rules in ((1, (10, 100), _RULES), (500, (1, 10), _RULES + _GUESSES))
        for runs, repeat, (rule, conversion) in product(numbers, (0, 1), rules)
    ]
    return pd.DataFrame(rows).assign(**changes)


SETS, STEPS, REPEATS = ("random_record", "loss", "metagradient"), (50, 100), 5


def sets(**changes: object) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Bounds and loss gaps of three sets of canaries, at two steps of five trainings."""
    rng = np.random.default_rng(0)
    rows, gaps = [], []
    defaults = {"score": "loss", "sample_rate": 0.5, "noise_multiplier": 1.0, "num_runs": 1}
    defaults |= {"adjacency": "add_remove", "num_slots": 200}
    for canary, step, repeat in product(SETS, STEPS, range(REPEATS)):
        place = {"audit": f"a-{canary}", "step": step, "repeat": repeat}
        gaps.append(place | {"loss_gap": len(canary) / 10 + rng.normal()})
        for rule, conversion in _GUESSES:
            bound = {"threshold_rule": rule, "conversion": conversion}
            bound["epsilon_lower"] = rng.exponential()
            rows.append(row(canary=canary, **defaults, **place, **bound) | changes)
    return pd.DataFrame(rows), pd.DataFrame(gaps)


def shuffled(**changes: object) -> pd.DataFrame:
    """Audits of two adjacencies at two noises, with both others and Poisson samples."""
    rows = []
    others = {"zero": "shuffled", "opposite": "shuffled", None: "poisson"}
    adjacencies = (("substitute", 20.0), ("zero_out", 9.0))
    for (adjacency, upper), noise, other in product(adjacencies, (0.5, 2.0), others):
        is_shuffled = others[other] == "shuffled"
        for repeat, lower in enumerate((1.0, 2.0 if other == "opposite" else 1.2)):
            cells = {"audit": f"{adjacency}-{noise}-{other}", "repeat": repeat, "step": 120}
            cells |= {"canary": "worst_case", "adjacency": adjacency, "noise_multiplier": noise}
            cells |= {"sampling": others[other], "other_records": other, "num_steps": 120}
            cells |= {"batches_per_pass": 40 if is_shuffled else None}
            cells |= {"sample_rate": 1.0 if is_shuffled else 0.025, "epsilon_lower": lower / noise}
            cells |= {"epsilon_poisson": upper / 10 / noise if is_shuffled else float("nan")}
            cells |= {"epsilon_upper_substitute": 20.0 / noise}
            cells |= {"epsilon_upper_add_remove": 9.0 / noise}
            rows.append(row(threshold_rule="split", conversion="direct", **cells))
    return pd.DataFrame(rows).assign(**changes)


def of_secrets(**changes: object) -> pd.DataFrame:
    """Sweeps of secrets, of values, of copies and of the noise, two repeats each."""
    defaults = {"num_slots": 100, "num_candidates": 1000, "num_copies": 1}
    sweeps = {"num_slots": (1, 30, 1000), "num_candidates": (2, 10_000), "num_copies": (1, 16)}
    cells = [(f"by_{key}", {**defaults, key: x}) for key, values in sweeps.items() for x in values]
    rows = [
        row(
            canary="secret", sweep=sweep, audit=f"{sweep}-{[*cell.values()]}-{noise}",
            sample_rate=1.0, noise_multiplier=noise, repeat=repeat, threshold_rule="mahloujifar",
            epsilon_lower=sum(map(len, sweep)) / 10 + cell["num_slots"] ** 0.3 / noise + repeat,
            epsilon_upper_substitute=9.0 / noise * cell["num_copies"], num_runs=1, **cell,
        )
        for sweep, cell in [*cells, ("by_noise", defaults)]
        for noise, repeat in product((0.7, 1.5, 6.0), (0, 1))
    ]  # fmt: skip
    return pd.DataFrame(rows).assign(**changes)


def landscapes(*thresholds: float, **changes: object) -> pd.DataFrame:
    """Two noises and batch sizes, three steps, two repeats, conversions and rules."""
    rows = [
        row(
            audit=f"a-{sigma}-{size}" + f"-{threshold}" * (len(thresholds) > 1),
            **{"canary": "loss_landscape", "landscape": "diverging", "adjacency": "add_remove"},
            **{"landscape_threshold": threshold, "sample_rate": 1.0, "noise_multiplier": sigma},
            **{"batch_size": size, "num_steps": 3, "step": step, "repeat": repeat},
            **{"conversion": conversion, "threshold_rule": rule},
            **{"epsilon_hidden_state": 8.0 / step, "epsilon_hidden_state_gdp": 12.0 / step},
            epsilon_lower=(10.0 if conversion == "gdp" else 1.0) / step + repeat,
        )
        for threshold in thresholds or (0.5,)
        for sigma, size, step, repeat in product((1.0, 8.0), (1, 16), (1, 2, 3), (0, 1))
        for conversion, rule in product(("gdp", "direct"), ("combined", "in_sample"))
    ]
    return pd.DataFrame(rows).assign(**changes)


def one_landscape(**changes: object) -> pd.DataFrame:
    rows = landscapes()
    return rows[rows["audit"] == "a-1.0-16"].assign(**changes)


SIMULATED = {
    "panels": ["model", "canary_period", "max_grad_norm"],
    "lines": ["simulation", "ranking"],
}
_GRID = [(q, sigma * factor) for q, sigma in THREE for factor in (1, 2, 4, 8)]
_PERIODS = membership(1.0, 5.0, 25.0)
# Examples of each kind that are hard to lay out: their inputs and settings.
EXAMPLES: dict[str, list[tuple[Callable[[], tuple[Any, ...]], dict[str, Any]]]] = {
    "epsilon_by_step": [
        (lambda: (summary_of(settings=THREE[:1], canaries=ALL, gaussian_distance=0.0041),), {}),
        (lambda: (summary_of(settings=THREE, canaries=ALL),), {}),
        (lambda: (variants(),), SIMULATED),
    ],
    "epsilon_by_noise": [
        (lambda: (summary_of(settings=_GRID, canaries=["worst_case"], steps=[500]),), {})
    ],
    "epsilon_by_runs": [(lambda: (by_runs(),), {})],
    "epsilon_by_setting": [
        (
            lambda axis=axis, values=values: (
                summary_of(settings=THREE, canaries=TRAINED, axis={axis: values}, steps=[500]),
            ),
            {"axis": axis},
        )
        for axis, values in (
            ("max_grad_norm", [0.5, 1.0, 2.0, 4.0, 8.0]),
            ("num_steps", [125, 250, 500, 1000, 2000]),
            ("learning_rate", [0.001, 0.01, 0.1, 1.0]),
        )
    ],
    "models_trained": [(lambda: (models(),), {})],
    "canary_sets": [(sets, {})],
    "test_accuracy": [(accuracies, {})],
    "adjacency_ratio": [(lambda: (ratios(),), {})],
    "score_histograms": [(lambda: (attacks(),), {})],
    "trade_off": [
        (lambda: (attacks(),), {}),
        (lambda: ([replace(item, shown=SHOWN_BOUND) for item in attacks()],), {}),
    ],
    "gradient_norm": [
        (lambda: (norms_of(_PERIODS), _PERIODS), {}),
        (lambda: (norms_of(_PERIODS), _PERIODS), {"panels": ["canary_period"]}),
    ],
    "privacy_profile": [
        (lambda: (profiles_of(_PERIODS), _PERIODS), {}),
        (lambda: (profiles_of(_PERIODS), _PERIODS), {"panels": ["canary_period"]}),
    ],
    "hidden_state_by_step": [(lambda: (landscapes(),), {})],
    "hidden_state_by_threshold": [(lambda: (landscapes(0.5, 2.5),), {})],
    "shuffling": [(lambda: (shuffled(),), {})],
    "secrets": [(lambda: (of_secrets(),), {})],
    "amplification": [(lambda: (landscapes(),), {})],
    "loss_landscape": [(lambda: (one_landscape(),), {})],
}
