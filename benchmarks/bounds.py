"""How tight the bounds of each threshold rule are, and how often they exceed the truth.

Run as `python -m benchmarks.bounds`. benchmarks/README.md says what is measured. Exits with 1 if a
valid rule exceeds the truth too often, or if a planted failure is not noticed.
"""

import argparse
import os
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.score_laws import DELTA, Law, laws
from dpcanary.estimation import Conversion, ThresholdRule
from dpcanary.estimation.conversion_families import family_of
from dpcanary.estimation.error_rates import clopper_pearson_upper_table
from dpcanary.estimation.families import Family
from dpcanary.estimation.null_distributions.null_tables import calibrated_bound, null_table
from dpcanary.estimation.null_distributions.statistics import (
    NullTable,
    observed_statistics,
    scan_terms,
)
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.estimation.threshold_rules import Problem, bounded

SIGNIFICANCE = 0.05
SIZES = (125, 1_250, 12_500)
# The planted failure `shifted`: rule `combined` with critical values that are too small by 1 %.
SHIFTED, SHIFT = "shifted", 1.01
PLANTED = (
    ("Gaussian, mu 1", 12_500, ThresholdRule.IN_SAMPLE.value),
    ("Gaussian, mu 1", 25_000, ThresholdRule.IN_SAMPLE.value),
    ("Gaussian, mu 2", 12_500, SHIFTED),
)
CALIBRATED = (ThresholdRule.COMBINED, ThresholdRule.CALIBRATED, ThresholdRule.RANK_SUM)
SCANS = (ThresholdRule.SIMULTANEOUS, ThresholdRule.SPLIT, ThresholdRule.IN_SAMPLE)
RULE_NAMES = (*(name for name, rule in RULES.items() if not rule.guesses), SHIFTED)
RESULTS = Path(__file__).with_name("results")
# `subsampled_gaussian` takes long to convert each threshold: scans see so many scores in all.
_SLOW_SCORES = 500_000
_AUDITS_PER_TASK = 50


@dataclass(frozen=True)
class Task:
    """Some audits of one cell.

    Attributes:
        law: name of the law.
        size: scores per world.
        start: number of the first audit.
        stop: the end of the audits.
    """

    law: str
    size: int
    start: int
    stop: int


def main(argv: list[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bounds", description=__doc__)
    parser.add_argument("--audits", type=int, default=2_000, help="simulated audits per cell")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="scores per world")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of laws")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(argv)
    chosen = [name for name in laws() if any(part in name for part in options.only)]
    cells = {(name, size) for name in chosen for size in options.sizes}
    cells |= {(name, size) for name, size, _ in PLANTED if name in chosen}
    order = list(laws())
    ordered = sorted(cells, key=lambda cell: (order.index(cell[0]), cell[1]))
    table = measure(ordered, options.audits, options.processes)
    RESULTS.mkdir(exist_ok=True)
    table.to_csv(RESULTS / "bounds.tsv", sep="\t", index=False)
    text = markdown(table)
    (RESULTS / "bounds.md").write_text(text)
    print(text)
    problems = failures(table)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def measure(cells: list[tuple[str, int]], num_audits: int, processes: int) -> pd.DataFrame:
    """One row for each cell and rule."""
    for name, size in tqdm(cells, desc="null tables"):
        null_table_of(laws()[name], size)  # workers find it on disk
        best_threshold(name, size)
    tasks = [
        Task(name, size, start, min(start + _AUDITS_PER_TASK, num_audits))
        for name, size in sorted(cells, key=lambda cell: -cell[1])  # long ones first
        for start in range(0, num_audits, _AUDITS_PER_TASK)
    ]
    bounds_by_cell: dict[tuple[str, int], list[NDArray[np.float64]]] = {cell: [] for cell in cells}
    with ProcessPoolExecutor(processes) as pool:
        bounds = tqdm(pool.map(bounds_of, tasks), total=len(tasks), desc="audits, in fifties")
        for task, of_task in zip(tasks, bounds, strict=True):
            bounds_by_cell[task.law, task.size].append(of_task)
    return pd.DataFrame(
        row for (name, size), parts in bounds_by_cell.items() for row in rows(name, size, parts)
    )


def rows(name: str, size: int, parts: Iterable[NDArray[np.float64]]) -> Iterable[dict[str, object]]:
    """The summaries of one cell, by rule."""
    law = laws()[name]
    for rule, values in zip(RULE_NAMES, np.concatenate(list(parts), axis=1), strict=True):
        bounds = values[~np.isnan(values)]
        if rule == SHIFTED and (name, size, rule) not in PLANTED:
            continue
        above = float((bounds > law.truth + 1e-9).mean())
        scaled = bounds / law.truth if law.truth else bounds
        yield {
            "law": name,
            "conversion": str(law.conversion),
            "truth": law.truth,
            "is_mu": law.is_mu,
            "must_hold": law.must_hold and rule in RULES and RULES[rule].is_valid,
            "scores_per_world": size,
            "threshold_rule": rule,
            "audits": len(bounds),
            "mean_ratio": scaled.mean(),
            "mean_ratio_error": scaled.std() / len(bounds) ** 0.5,
            "above": above,
            "above_error": (above * (1 - above) / len(bounds)) ** 0.5,
            "allowed": SIGNIFICANCE + 3 * (SIGNIFICANCE * (1 - SIGNIFICANCE) / len(bounds)) ** 0.5,
        }


def failures(table: pd.DataFrame) -> list[str]:
    """Valid rules that exceed the truth too often, and planted failures that do not."""
    exceeds = table["above"] > table["allowed"]
    cell = table[["law", "scores_per_world", "threshold_rule"]].apply(tuple, axis=1)
    planted = cell.isin(PLANTED)
    broken = [f"not valid: {tuple(row)}" for row in cell[exceeds & table["must_hold"]]]
    missed = [f"planted failure not noticed: {tuple(row)}" for row in cell[planted & ~exceeds]]
    return broken + missed


def markdown(table: pd.DataFrame) -> str:
    """A line for each cell: mean of bound / truth, and the share above the truth in per cent."""
    rules = [rule for rule in RULE_NAMES if rule in set(table["threshold_rule"])]
    lines = [
        "Mean of bound / truth, and bounds above the truth in per cent; in brackets, Monte-Carlo"
        " errors of the last digits. At mu 0, the mean of the bound itself.",
        "",
        "| scores | truth | per world | " + " | ".join(rules) + " |",
        "|---" * (3 + len(rules)) + "|",
    ]
    for (name, size), group in table.groupby(["law", "scores_per_world"], sort=False):
        by_rule = group.set_index("threshold_rule")
        cells = [_cell(by_rule.loc[rule]) if rule in by_rule.index else "" for rule in rules]
        lines.append(f"| {name} | {by_rule['truth'].iloc[0]:.4g} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(row: "pd.Series[float]") -> str:
    mean = f"{row['mean_ratio']:.3f}({1000 * row['mean_ratio_error']:.0f})"
    return f"{mean}, {100 * row['above']:.1f}({1000 * row['above_error']:.0f})"


def bounds_of(task: Task) -> NDArray[np.float64]:
    """The bounds of some audits, shape (rules, audits); NaN where a rule was left out."""
    law = laws()[task.law]
    family, table = family_of_law(law), null_table_of(law, task.size)
    terms = scan_terms(family=family, sizes=(task.size, task.size), significance=SIGNIFICANCE)
    out = np.full((len(RULE_NAMES), task.stop - task.start), np.nan)
    for place, audit in enumerate(range(task.start, task.stop)):
        rng = np.random.default_rng([task.size, audit, *task.law.encode()])
        world0, world1 = law.draw(rng, task.size)
        problem = Problem(
            world0_scores=world0,
            world1_scores=world1,
            significance=SIGNIFICANCE,
            family=family,
            threshold=best_threshold(task.law, task.size),
        )
        is_slow = law.conversion is Conversion.SUBSAMPLED_GAUSSIAN
        left_out = SCANS if is_slow and audit * task.size >= _SLOW_SCORES else ()
        thetas = thetas_of(problem, table, observed_statistics(world0, world1, terms), left_out)
        out[:, place] = thetas if law.is_mu else [_epsilon(family, theta) for theta in thetas]
    return out


def thetas_of(
    problem: Problem, table: NullTable, statistics: NDArray[np.float32], left_out: tuple[str, ...]
) -> list[float]:
    """The bound on theta by each of `RULE_NAMES`; NaN for rules that are left out."""
    smaller = {rule: values / np.float32(SHIFT) for rule, values in table.critical.items()}
    shifted = replace(table, critical=smaller)
    thetas = []
    for rule in RULE_NAMES:
        if rule in left_out:
            theta = np.nan
        elif rule == SHIFTED:
            theta = shifted.bound(rule=ThresholdRule.COMBINED, look=0, statistics=statistics)
        elif rule in CALIBRATED:
            theta = calibrated_bound(
                family=problem.family,
                looks=((len(problem.world0_scores), len(problem.world1_scores)),),
                look=0,
                significance=SIGNIFICANCE,
                rule=rule,
                statistics=statistics,
            )
        else:
            theta = max(0.0, bounded(problem, RULES[rule]).strength)
        thetas.append(theta)
    return thetas


def _epsilon(family: Family, theta: float) -> float:
    return family.epsilon(theta, DELTA) if not np.isnan(theta) else np.nan


def family_of_law(law: Law) -> Family:
    """The curves among which a law's bounds look."""
    needs = law.conversion is Conversion.SUBSAMPLED_GAUSSIAN
    return family_of(law.conversion, delta=DELTA, mechanism=law.mechanism if needs else None)


def null_table_of(law: Law, size: int) -> NullTable:
    """The null table of a cell."""
    return null_table(family=family_of_law(law), looks=((size, size),), significance=SIGNIFICANCE)


@cache
def best_threshold(name: str, size: int) -> float:
    """The threshold of the largest bound, at the error rates of a large sample of its own."""
    law = laws()[name]
    drawn = law.draw(np.random.default_rng([7, *name.encode()]), 400_000)
    world0, world1 = (np.sort(scores) for scores in drawn)
    thresholds = np.unique(np.quantile(world0, np.linspace(0.0, 1.0, 201)))
    fnr = np.searchsorted(world0, thresholds) / len(world0)
    fpr = 1 - np.searchsorted(world1, thresholds) / len(world1)
    table = clopper_pearson_upper_table(num_trials=size, level=SIGNIFICANCE / 2)
    fpr_upper, fnr_upper = (table[np.rint(rates * size).astype(int)] for rates in (fpr, fnr))
    return float(thresholds[np.argmax(family_of_law(law).strength(fpr_upper, fnr_upper))])


if __name__ == "__main__":
    sys.exit(main())
