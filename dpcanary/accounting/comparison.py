"""The epsilons of a grid of mechanisms under both adjacencies, and their ratio."""

import itertools
import sys
from collections.abc import Sequence
from math import nan

import pandas as pd

from dpcanary.accounting.by_adjacency import curves_by_adjacency
from dpcanary.accounting.epsilon import exact_methods
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import AccountingError


def compare_adjacencies(
    *,
    sample_rates: Sequence[float],
    noise_multipliers: Sequence[float],
    num_steps: Sequence[int],
    delta: float,
) -> pd.DataFrame:
    """Both epsilons, at one delta, for every combination of the three settings.

    Returns:
        One row per mechanism: `sample_rate`, `num_steps`, `noise_multiplier`, `delta`,
        `accounting_method`, `epsilon_substitute`, `epsilon_add_remove` (upper bounds) and their
        `ratio`. If no accountant gives an epsilon, or the lower one is 0, the ratio is NaN, and
        stderr says where and why.

    Raises:
        InputError: if a setting is out of its range.
    """
    steps = sorted({*num_steps})
    parts = [
        _ratios_by_steps(
            Mechanism(
                Adjacency.SUBSTITUTE, sample_rate=q, num_steps=max(steps), noise_multiplier=sigma
            ),
            steps,
            delta,
        )
        for q, sigma in itertools.product(sorted({*sample_rates}), sorted({*noise_multipliers}))
    ]
    table = pd.concat(parts).sort_values(
        ["sample_rate", "num_steps", "noise_multiplier"], ignore_index=True
    )
    positive = table["epsilon_add_remove"].where(table["epsilon_add_remove"] > 0)
    return table.assign(ratio=table["epsilon_substitute"] / positive)


def _ratios_by_steps(mechanism: Mechanism, steps: list[int], delta: float) -> pd.DataFrame:
    """A row for each number of steps. If these fail together, each is tried alone."""
    nothing = [nan] * len(steps)
    substitute, add_remove, method = nothing, nothing, "none"
    # The closed form is exact, and possible at any epsilon. A ratio of loose bounds says nothing.
    methods = exact_methods(mechanism.after(max(steps)))
    if mechanism.sample_rate == 1:
        methods = [AccountingMethod.CLOSED_FORM]
    try:
        curves, method = curves_by_adjacency(
            mechanism, steps=steps, delta=delta, instead="there is no ratio here", methods=methods
        )
        substitute, add_remove = curves[Adjacency.SUBSTITUTE], curves[Adjacency.ADD_REMOVE]
    except AccountingError as error:
        if len(steps) > 1:
            return pd.concat([_ratios_by_steps(mechanism, [count], delta) for count in steps])
        print(f"warning: no ratio: {error}", file=sys.stderr)
    for count, epsilon in zip(steps, add_remove, strict=True):
        if epsilon <= 0:
            print(
                f"warning: no ratio at sample_rate={mechanism.sample_rate:g},"
                f" noise_multiplier={mechanism.noise_multiplier:g}, num_steps={count},"
                f" delta={delta:g}: epsilon under add/remove is 0",
                file=sys.stderr,
            )
    return pd.DataFrame(
        {
            "sample_rate": mechanism.sample_rate,
            "noise_multiplier": mechanism.noise_multiplier,
            "delta": delta,
            "num_steps": steps,
            "accounting_method": str(method),
            "epsilon_substitute": substitute,
            "epsilon_add_remove": add_remove,
        }
    )
