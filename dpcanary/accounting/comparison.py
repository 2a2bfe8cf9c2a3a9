"""How much larger epsilon is under substitute than under add/remove adjacency."""

import itertools
import sys
from collections.abc import Sequence

import pandas as pd

from dpcanary.accounting.epsilon import account_epsilon_curve
from dpcanary.accounting.fallback import with_fallback
from dpcanary.accounting.options import AccountingMethod
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError


def compare_adjacencies(
    *,
    sample_rates: Sequence[float],
    noise_multipliers: Sequence[float],
    num_steps: Sequence[int],
    delta: float,
) -> pd.DataFrame:
    """Both epsilons for every combination of the three settings.

    Args:
        sample_rates: rates q of Poisson sampling.
        noise_multipliers: standard deviations of the noise over the clipping norm.
        num_steps: numbers of composed steps.
        delta: of both epsilons.

    Returns:
        One row per mechanism: `sample_rate`, `num_steps`, `noise_multiplier`, `delta`,
        `accounting_method`, `epsilon_substitute`, `epsilon_add_remove` (upper bounds) and their
        `ratio`. If no accountant gives an epsilon, or the lower one is 0, the ratio is NaN, and
        stderr says where and why.

    Raises:
        InputError: if a setting is out of its range.
    """
    mechanisms = itertools.product(sorted({*sample_rates}), sorted({*noise_multipliers}))
    parts = [_by_steps(q, sigma, sorted({*num_steps}), delta) for q, sigma in mechanisms]
    table = pd.concat(parts).sort_values(
        ["sample_rate", "num_steps", "noise_multiplier"], ignore_index=True
    )
    positive = table["epsilon_add_remove"].where(table["epsilon_add_remove"] > 0)
    return table.assign(ratio=table["epsilon_substitute"] / positive)


def _by_steps(q: float, sigma: float, steps: list[int], delta: float) -> pd.DataFrame:
    """A row for each number of steps. If these fail together, each is tried alone."""
    epsilons, method = [[float("nan")], [float("nan")]], "none"
    try:
        epsilons, method = _both_epsilons(q, sigma, steps, delta)
    except AccountingError as error:
        if len(steps) > 1:
            return pd.concat([_by_steps(q, sigma, [count], delta) for count in steps])
        print(f"warning: no ratio: {error}", file=sys.stderr)
    for count, add_remove in zip(steps, epsilons[1], strict=True):
        if add_remove <= 0:
            print(
                f"warning: no ratio at sample_rate={q:g}, noise_multiplier={sigma:g},"
                f" num_steps={count}, delta={delta:g}: epsilon under add/remove is 0",
                file=sys.stderr,
            )
    mechanism = {"sample_rate": q, "noise_multiplier": sigma, "delta": delta, "num_steps": steps}
    both = {"epsilon_substitute": epsilons[0], "epsilon_add_remove": epsilons[1]}
    return pd.DataFrame({**mechanism, "accounting_method": str(method), **both})


def _both_epsilons(
    q: float, sigma: float, steps: list[int], delta: float
) -> tuple[list[list[float]], str]:
    """Epsilon after each number of steps under substitute and under add/remove, and the method."""

    def account(method: AccountingMethod) -> list[list[float]]:
        return [
            account_epsilon_curve(
                adjacency=adjacency,
                sample_rate=q,
                noise_multiplier=sigma,
                steps=steps,
                delta=delta,
                method=method,
            )
            for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE)
        ]

    if q == 1:  # exact, and possible at any epsilon
        return account(AccountingMethod.CLOSED_FORM), AccountingMethod.CLOSED_FORM
    return with_fallback(account, instead="there is no ratio here")
