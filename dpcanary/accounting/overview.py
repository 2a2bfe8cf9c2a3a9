"""The accounted part of a summary: upper bounds along training, and the privacy profile."""

import itertools
import sys
from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pandas as pd

from dpcanary.accounting.dispatch import checked_setting
from dpcanary.accounting.epsilon import account_epsilon, account_epsilon_curve, privacy_profile
from dpcanary.accounting.fallback import with_fallback
from dpcanary.accounting.setting import AccountingMethod
from dpcanary.accounting.settings import AccountingStage
from dpcanary.accounting.trade_off import (
    ExactCurve,
    GaussianCurve,
    curves_by_steps,
    gaussian_distance,
    largest_mu,
)
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError
from dpcanary.gdp import gdp_epsilon
from dpcanary.plugins import function_named

# Smallest delta of the profile: far below one over any number of runs.
_PROFILE_DELTA = 1e-9
_PROFILE_POINTS, _FEW_POINTS = 300, 12
_PROFILE = ["adjacency", "delta", "epsilon"]
_ADJACENCIES = (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE)


def upper_bounds(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Upper bounds, one row per recorded step.

    If method `pld` refuses either adjacency, `prv` gives both, and `accounting_method` says so.
    The bound by group privacy always rests on `pld`. If that refuses, only this bound is NaN.
    `gaussian_distance` is that of the trade-off curve under the audited adjacency; NaN if `pld`
    refuses it. Where the exact curve of what is observed is known, it is the distance of that.
    `epsilon_hidden_state` is then the epsilon of this curve, and `epsilon_hidden_state_gdp` that of
    its largest mu, which perfect audits with conversion `gdp` would state; else both are NaN.

    Without noise, every epsilon is infinite and nothing else is known.

    Raises:
        AccountingError: if both methods refuse.
    """
    if not noise_multiplier:
        return _without_noise(stage)
    (substitute, add_remove), method = with_fallback(
        lambda name: [_curve(stage, noise_multiplier, each, name) for each in _ADJACENCIES],
        instead=(
            "raise noise_multiplier or delta, or lower target_epsilon where the noise is calibrated"
        ),
    )
    group_privacy: list[float] | float = float("nan")
    try:
        group_privacy = _curve(
            stage, noise_multiplier, Adjacency.SUBSTITUTE, AccountingMethod.GROUP_PRIVACY
        )
    except AccountingError as error:
        print(f"warning: no group privacy bound: {error}", file=sys.stderr)
    exact = _exact_curves(stage, noise_multiplier, stage.record_steps)
    return pd.DataFrame(
        {
            "step": stage.record_steps,
            "noise_multiplier": noise_multiplier,
            "accounting_method": method.value,
            "epsilon_upper_substitute": substitute,
            "epsilon_upper_add_remove": add_remove,
            "epsilon_upper_group_privacy": group_privacy,
            "gaussian_distance": (
                [gaussian_distance(curve, delta=stage.delta) for curve in exact]
                or _gaussian_distances(stage, noise_multiplier)
            ),
            "epsilon_hidden_state": [curve.epsilon(stage.delta) for curve in exact] or nan,
            "epsilon_hidden_state_gdp": [
                gdp_epsilon(mu=largest_mu(curve), delta=stage.delta) for curve in exact
            ]
            or nan,
        }
    )


def _without_noise(stage: AccountingStage) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": stage.record_steps,
            "noise_multiplier": 0.0,
            "accounting_method": "none",
            "epsilon_upper_substitute": inf,
            "epsilon_upper_add_remove": inf,
            "epsilon_upper_group_privacy": inf,
            "gaussian_distance": nan,
            "epsilon_hidden_state": nan,
            "epsilon_hidden_state_gdp": nan,
        }
    )


def _exact_curves(
    stage: AccountingStage, noise_multiplier: float, steps: Sequence[int]
) -> list[ExactCurve]:
    """The exact curves after some steps of what is observed; none where they are not known."""
    if stage.exact is None:
        return []
    curves: list[ExactCurve] = function_named(stage.exact)(
        stage.exact_settings, noise_multiplier=noise_multiplier, steps=steps
    )
    return curves


def _gaussian_distances(stage: AccountingStage, noise_multiplier: float) -> list[float]:
    """Of the trade-off curve after each recorded step."""
    steps = list(stage.insertions)
    setting = checked_setting(
        adjacency=stage.adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=max(steps),
        delta=stage.delta,
        method=AccountingMethod.PLD,
    )
    try:
        curves = curves_by_steps(setting, steps)
        return [gaussian_distance(curve, delta=stage.delta) for curve in curves]
    except AccountingError:
        return [float("nan")] * len(steps)


def _curve(
    stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency, method: AccountingMethod
) -> list[float]:
    counts = sorted({*stage.insertions})
    epsilons = account_epsilon_curve(
        adjacency=adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        steps=counts,
        delta=stage.delta,
        method=method,
    )
    by_count = dict(zip(counts, epsilons, strict=True))
    return [by_count[count] for count in stage.insertions]


def profile(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Points (epsilon, delta) of the privacy profile at the last step, by adjacency.

    If the losses cannot be represented on a grid, there are only a few points, from method `prv`.
    Each point is a bound, so a trade-off curve through them lies below the exact one. Where the
    exact curve of what is observed is known, `hidden_state` stands for it in place of an adjacency,
    and `hidden_state_gdp` for the Gaussian curve of its largest mu. Without noise, delta is 1 at
    every epsilon.
    """
    if not noise_multiplier:
        points = pd.DataFrame({"delta": [1.0], "epsilon": [0.0]})
        return pd.concat([points.assign(adjacency=one.value) for one in _ADJACENCIES])[_PROFILE]
    last = stage.model_copy(update={"record_steps": stage.record_steps[-1:]})
    tables = []
    for adjacency in _ADJACENCIES:
        try:
            points = _fine_profile(last, noise_multiplier, adjacency)
        except AccountingError as error:
            print(f"warning: a coarse privacy profile: {error}", file=sys.stderr)
            points = _coarse_profile(last, noise_multiplier, adjacency)
        tables.append(points.assign(adjacency=adjacency.value))
    for curve in _exact_curves(stage, noise_multiplier, stage.record_steps[-1:]):
        tables.append(_exact_profile(curve).assign(adjacency="hidden_state"))
        gaussian = GaussianCurve(largest_mu(curve))
        tables.append(_exact_profile(gaussian).assign(adjacency="hidden_state_gdp"))
    return pd.concat(tables)[_PROFILE]


def _exact_profile(curve: ExactCurve) -> pd.DataFrame:
    epsilons = np.linspace(0.0, curve.epsilon(_PROFILE_DELTA), _PROFILE_POINTS).tolist()
    return pd.DataFrame({"delta": [curve.delta(one) for one in epsilons], "epsilon": epsilons})


def _fine_profile(
    last: AccountingStage, noise_multiplier: float, adjacency: Adjacency
) -> pd.DataFrame:
    widest = last.model_copy(update={"delta": min(last.delta, _PROFILE_DELTA)})
    [highest] = _curve(widest, noise_multiplier, adjacency, AccountingMethod.PLD)
    epsilons = np.linspace(0.0, highest, _PROFILE_POINTS).tolist()
    deltas = privacy_profile(
        adjacency=adjacency,
        sample_rate=last.sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=last.insertions[0],
        epsilons=epsilons,
    )
    return pd.DataFrame({"delta": deltas, "epsilon": epsilons})


def _coarse_profile(
    last: AccountingStage, noise_multiplier: float, adjacency: Adjacency
) -> pd.DataFrame:
    points = []
    for delta in sorted({last.delta, *np.geomspace(_PROFILE_DELTA, 0.5, _FEW_POINTS).tolist()}):
        try:
            bounds = account_epsilon(
                adjacency=adjacency,
                sample_rate=last.sample_rate,
                noise_multiplier=noise_multiplier,
                num_steps=last.insertions[0],
                delta=delta,
                method=AccountingMethod.PRV,
            )
        except AccountingError:
            continue  # the audit's own delta is left: upper_bounds would have refused otherwise
        points.append({"delta": delta, "epsilon": bounds.upper})
    return pd.DataFrame(points, columns=["delta", "epsilon"])


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
