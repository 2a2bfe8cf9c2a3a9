"""Made-up summaries and scores of audits for the tests of figures."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dpcanary.adversaries.catalogue import adversary
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.estimation.rule_catalogue import threshold_rule_named
from dpcanary.experiment.summary import COLUMNS
from dpcanary.figures.attacks import Attack, Profile

ACCOUNTED = {"substitute": 10.0, "add_remove": 4.4, "group_privacy": 11.0}


def row(**changes: object) -> dict[str, object]:
    """A row of a summary; the audit's name has its canary, sample rate and noise."""
    canary = adversary(str(changes["canary"]))
    rule = str(changes.get("threshold_rule", "simultaneous"))
    data, model, num_records = ("process", "process", float("nan"))
    if canary.is_trained:
        data, model, num_records = ("digits", "linear", 500.0)
    values = dict.fromkeys(COLUMNS) | {
        "audit": f"{canary.name}-{changes['sample_rate']}-{changes['noise_multiplier']}",
        "sweep": "fig", "score": canary.scores[0].name, "adjacency": "substitute", "seed": 0,
        "data": data, "dataset": data, "num_records": num_records, "model": model,
        "max_grad_norm": 2.0, "num_steps": 500, "learning_rate": 0.01, "num_slots": 1,
        "num_runs": 1000, "num_looks": 1, "repeat": 0, "step": 500,
        **dict.fromkeys(("batch_size", "canary_period", "slot"), float("nan")),
        "threshold_rule": rule, "proof": threshold_rule_named(rule).proof.value,
        "is_valid": threshold_rule_named(rule).is_valid, "conversion": "gdp",
        "significance": 0.05, "delta": 1e-5, "gaussian_distance": 0.0,
        **{f"epsilon_upper_{name}": value for name, value in ACCOUNTED.items()},
    } | changes  # fmt: skip
    return values | {"configuration": changes.get("configuration", f"of {values['audit']}")}


def summary_of(
    *,
    settings: Sequence[tuple[float, float]] = ((1.0, 22.37), (0.25, 5.574)),
    canaries: Sequence[str] = ("gradient", "natural"),
    num_repeats: int = 3,
    steps: Sequence[int] = (100, 300, 500),
    rules: Sequence[str] = ("simultaneous", "split", "in_sample"),
    conversions: Sequence[str] = ("gdp", "direct"),
    axis: dict[str, Sequence[float]] | None = None,
    **changes: object,
) -> pd.DataFrame:
    """A summary of all combinations of the arguments, with random lower bounds.

    `settings` are sample rates and noise multipliers; `axis` is a further column with its values,
    each of which has an audit; `changes` are columns with one value.
    """
    rng = np.random.default_rng(0)
    name, values = next(iter((axis or {"num_runs": [1000]}).items()))
    cases = product(settings, canaries, values, range(num_repeats), steps, rules, conversions)
    rows = []
    for (q, sigma), canary, value, repeat, step, rule, conversion in cases:
        upper = {f"epsilon_upper_{which}": x * step / 500 for which, x in ACCOUNTED.items()}
        own = {"canary": canary, "sample_rate": q, "noise_multiplier": sigma, name: value}
        own |= {} if name == "num_runs" else {"audit": f"{canary}-{q}-{name}{value}"}
        bound = {"threshold_rule": rule, "conversion": conversion}
        bound["epsilon_lower"] = rng.uniform(1, 9)
        rows.append(row(**own, **bound, **upper, repeat=repeat, step=step, **changes))
    return pd.DataFrame(rows)


def written_below(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.subfigs[-1].texts]


def below(figure: Figure) -> str:
    return " ".join(written_below(figure))


def legend(figure: Figure) -> dict[str, Any]:
    legends = [legend for part in figure.subfigs for legend in part.legends]
    pairs = [zip(box.get_texts(), box.legend_handles, strict=True) for box in legends]
    return {text.get_text(): handle for entries in pairs for text, handle in entries}


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_visible()]


@cache
def gaussian_profile(mu: float) -> Profile:
    delta = np.union1d(np.logspace(-12, -0.01, 400), np.linspace(0.001, 0.999, 300))
    return Profile(delta, np.array([gdp_epsilon(mu=mu, delta=float(value)) for value in delta]))


def attack(canary: str = "gradient", *, num_runs: int = 300, **changes: object) -> Attack:
    """An attack with normal scores, under both adjacencies."""
    rng = np.random.default_rng(1)
    values = {
        "audit": f"{canary}-1", "canary": canary, "sample_rate": 1.0, "noise_multiplier": 22.37,
        "step": 500,
        "world0_scores": rng.normal(1.0, 1.0, num_runs),
        "world1_scores": rng.normal(-1.0, 1.0, num_runs),
        "profiles": {"substitute": gaussian_profile(2.0), "add_remove": gaussian_profile(1.0)},
    }  # fmt: skip
    return Attack(**(values | changes))  # type: ignore[arg-type]
