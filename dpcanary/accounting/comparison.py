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

_NONE = {"accounting_method": "none"} | dict.fromkeys(
    ("epsilon_substitute", "epsilon_add_remove"), float("nan")
)


def compare_adjacencies(
    *,
    sample_rates: Sequence[float],
    noise_multipliers: Sequence[float],
    num_steps: Sequence[int],
    delta: float,
) -> pd.DataFrame:
    """Both epsilons of every mechanism that the three settings make together.

    Args:
        sample_rates: rates q of Poisson sampling.
        noise_multipliers: standard deviations of the noise over the clipping norm.
        num_steps: numbers of composed steps.
        delta: of both epsilons.

    Returns:
        One row per mechanism: `sample_rate`, `num_steps`, `noise_multiplier`, `delta`,
        `accounting_method`, `epsilon_substitute`, `epsilon_add_remove` (upper bounds) and their
        `ratio`. Where no accountant gives an epsilon, or the lower one is 0, the ratio is NaN,
        and stderr says where and why.

    Raises:
        InputError: if a setting is out of its range.
    """
    rows = []
    for q, sigma in itertools.product(sorted({*sample_rates}), sorted({*noise_multipliers})):
        mechanism = {"sample_rate": q, "noise_multiplier": sigma, "delta": delta}
        rows += [mechanism | row for row in _by_steps(q, sigma, sorted({*num_steps}), delta)]
    table = pd.DataFrame(rows).sort_values(
        ["sample_rate", "num_steps", "noise_multiplier"], ignore_index=True
    )
    positive = table["epsilon_add_remove"].where(table["epsilon_add_remove"] > 0)
    return table.assign(ratio=table["epsilon_substitute"] / positive)


def _by_steps(q: float, sigma: float, steps: list[int], delta: float) -> list[dict[str, object]]:
    """A row for each number of steps; these share the discretisation of a step where they can."""
    try:
        epsilons, method = _by_best_method(q, sigma, steps, delta)
    except AccountingError as error:
        if len(steps) > 1:
            return [row for count in steps for row in _by_steps(q, sigma, [count], delta)]
        print(f"warning: no ratio: {error}", file=sys.stderr)
        return [{"num_steps": steps[0], **_NONE}]
    rows = []
    for count, substitute, add_remove in zip(steps, *epsilons, strict=True):
        if add_remove <= 0:
            print(
                f"warning: no ratio at sample_rate={q:g}, noise_multiplier={sigma:g},"
                f" num_steps={count}, delta={delta:g}: epsilon under add/remove is 0",
                file=sys.stderr,
            )
        both = {"epsilon_substitute": substitute, "epsilon_add_remove": add_remove}
        rows.append({"num_steps": count, "accounting_method": method, **both})
    return rows


def _by_best_method(
    q: float, sigma: float, steps: list[int], delta: float
) -> tuple[list[list[float]], str]:
    if q == 1:  # exact, and at any epsilon
        exact = AccountingMethod.CLOSED_FORM
        return _epsilons(q, sigma, steps, delta, exact), exact.value
    found, method = with_fallback(
        lambda method: _epsilons(q, sigma, steps, delta, method),
        instead="there is no ratio here",
    )
    return found, method.value


def _epsilons(
    q: float, sigma: float, steps: list[int], delta: float, method: AccountingMethod
) -> list[list[float]]:
    """Epsilon after each number of steps, under substitute and then under add/remove."""
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
