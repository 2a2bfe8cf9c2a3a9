"""The accounted part of a summary: upper bounds along training, and the privacy profile."""

import sys
from collections.abc import Sequence
from math import inf, nan

import numpy as np
import pandas as pd

from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.accounting.by_adjacency import curves_by_adjacency
from dpcanary.accounting.curve import ExactCurve, GaussianCurve, curve_of_full_batches
from dpcanary.accounting.epsilon import (
    account_epsilon,
    account_epsilon_curve,
    all_methods,
    privacy_profile,
    with_fallback,
)
from dpcanary.accounting.exact_trade_off import curves_by_steps, gaussian_distance, largest_mu
from dpcanary.accounting.last_iterate import LEAST_DELTA, heuristic_epsilon
from dpcanary.accounting.mechanism import AccountingMethod, EpsilonBounds, Mechanism
from dpcanary.accounting.shuffled_epsilons import claimed_epsilon, guaranteed_epsilon
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.plugins import function_named
from dpcanary.errors import AccountingError

# Smallest delta of the profile: far below one over any number of runs.
_PROFILE_DELTA = 1e-9
_PROFILE_POINTS, _FEW_POINTS = 300, 12
_PROFILE = ["adjacency", "delta", "epsilon"]
_UNKNOWN = (
    "gaussian_distance", "epsilon_hidden_state", "epsilon_hidden_state_gdp", "epsilon_heuristic",
    "epsilon_poisson",
)  # fmt: skip
_ADJACENCIES = (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE)


def upper_bounds(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Upper bounds, one row per recorded step.

    One method gives both adjacencies, the first that refuses neither; `accounting_method` names it.
    The bound by group privacy, and `gaussian_distance`, that of the trade-off curve under the
    audited adjacency, always rest on `pld`; what it refuses is NaN. Where the exact curve of what
    is observed is known, the distance is that of this curve, `epsilon_hidden_state` is its epsilon,
    and `epsilon_hidden_state_gdp` that of its largest mu, which perfect audits with conversion
    `gdp` would state. `epsilon_heuristic` is that of the model at this step alone, under the
    audited adjacency, if losses were linear. It is no bound: see `heuristic_epsilon`. It is NaN
    where the last model would not be a sum of equal steps (momentum, Adam, a learning rate that
    falls), for a canary in the first step alone, whose losses are crafted to keep that step, for
    shuffled batches, and below the least delta of the heuristic. Without noise, every epsilon is
    infinite and nothing else is known.

    With shuffled batches, the bounds are those that are guaranteed, `closed_form`. The one in
    `epsilon_upper_add_remove` is under zero-out adjacency if that is audited, as the two differ.
    `epsilon_poisson` is what accounting of Poisson samples claims under the audited adjacency. It
    is no bound, and NaN for other batches.

    Raises:
        AccountingError: if both methods refuse.
    """
    if not noise_multiplier:
        return _without_noise(stage)
    if stage.batches_per_pass is not None:
        return _of_shuffled_batches(stage, noise_multiplier)
    mechanism = _mechanism(stage, noise_multiplier)
    counts = sorted({*stage.insertions})
    curves, method = curves_by_adjacency(
        mechanism,
        steps=counts,
        delta=stage.delta,
        instead=(
            "raise noise_multiplier or delta, or lower target_epsilon where the noise is calibrated"
        ),
    )
    group_privacy = [nan] * len(counts)
    try:
        group_privacy = account_epsilon_curve(
            mechanism.under(Adjacency.SUBSTITUTE),
            steps=counts,
            delta=stage.delta,
            method=AccountingMethod.GROUP_PRIVACY,
        )
    except AccountingError as error:
        print(f"warning: no group privacy bound: {error}", file=sys.stderr)

    def at_recorded_steps(epsilons: Sequence[float]) -> list[float]:
        return [epsilons[counts.index(count)] for count in stage.insertions]

    exact = _exact_curves(stage, noise_multiplier, stage.record_steps)
    distances = [gaussian_distance(curve, delta=stage.delta) for curve in exact]
    of_largest_mu = [gdp_epsilon(mu=largest_mu(curve), delta=stage.delta) for curve in exact]
    return pd.DataFrame(
        {
            "step": stage.record_steps,
            "noise_multiplier": noise_multiplier,
            "accounting_method": method.value,
            "epsilon_upper_substitute": at_recorded_steps(curves[Adjacency.SUBSTITUTE]),
            "epsilon_upper_add_remove": at_recorded_steps(curves[Adjacency.ADD_REMOVE]),
            "epsilon_upper_group_privacy": at_recorded_steps(group_privacy),
            "gaussian_distance": distances or _gaussian_distances(mechanism, stage),
            "epsilon_hidden_state": [curve.epsilon(stage.delta) for curve in exact] or nan,
            "epsilon_hidden_state_gdp": of_largest_mu or nan,
            "epsilon_heuristic": _heuristics(mechanism, stage),
            "epsilon_poisson": nan,
        }
    )


def _without_noise(stage: AccountingStage) -> pd.DataFrame:
    uppers = (f"epsilon_upper_{name}" for name in ("substitute", "add_remove", "group_privacy"))
    first = {"step": stage.record_steps, "noise_multiplier": 0.0, "accounting_method": "none"}
    return pd.DataFrame({**first, **dict.fromkeys(uppers, inf), **dict.fromkeys(_UNKNOWN, nan)})


def _of_shuffled_batches(stage: AccountingStage, noise_multiplier: float) -> pd.DataFrame:
    mechanisms = [_shuffled_mechanism(stage, step, noise_multiplier) for step in stage.record_steps]

    def guaranteed(adjacency: Adjacency) -> list[float]:
        return [
            guaranteed_epsilon(mechanism.under(adjacency), delta=stage.delta)
            for mechanism in mechanisms
        ]

    columns: dict[str, object] = {
        "step": stage.record_steps,
        "noise_multiplier": noise_multiplier,
        "accounting_method": AccountingMethod.CLOSED_FORM.value,
        "epsilon_upper_substitute": guaranteed(Adjacency.SUBSTITUTE),
        "epsilon_upper_add_remove": guaranteed(_membership(stage)),
        "epsilon_upper_group_privacy": nan,
        **dict.fromkeys(_UNKNOWN, nan),
        "epsilon_poisson": [
            claimed_epsilon(mechanism.as_poisson(), delta=stage.delta) for mechanism in mechanisms
        ],
    }
    return pd.DataFrame(columns)


def _shuffled_mechanism(
    stage: AccountingStage, num_steps: int, noise_multiplier: float
) -> ShuffledMechanism:
    assert stage.batches_per_pass is not None
    return ShuffledMechanism(
        stage.adjacency,
        batches_per_pass=stage.batches_per_pass,
        num_steps=num_steps,
        noise_multiplier=noise_multiplier,
    )


def _membership(stage: AccountingStage) -> Adjacency:
    """The adjacency, zero-out or add/remove, that stands beside substitute adjacency."""
    is_zero_out = stage.adjacency is Adjacency.ZERO_OUT
    return Adjacency.ZERO_OUT if is_zero_out else Adjacency.ADD_REMOVE


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


def _mechanism(stage: AccountingStage, noise_multiplier: float) -> Mechanism:
    """The audited mechanism, after the last recorded step.

    Copies that are in every batch are one record with so many times its gradient.
    """
    return Mechanism(
        stage.adjacency,
        sample_rate=stage.sample_rate,
        num_steps=max(stage.insertions),
        noise_multiplier=noise_multiplier / stage.num_copies,
    )


def _heuristics(mechanism: Mechanism, stage: AccountingStage) -> list[float]:
    if not stage.has_equal_steps or stage.in_first_step or stage.delta < LEAST_DELTA:
        return [nan] * len(stage.insertions)
    return [
        heuristic_epsilon(mechanism.after(step), delta=stage.delta, num_insertions=count)
        for step, count in zip(stage.record_steps, stage.insertions, strict=True)
    ]


def _gaussian_distances(mechanism: Mechanism, stage: AccountingStage) -> list[float]:
    """Distances of the Gaussian curve from the trade-off curve after each recorded step."""
    try:
        curves = curves_by_steps(mechanism, list(stage.insertions))
        return [gaussian_distance(curve, delta=stage.delta) for curve in curves]
    except AccountingError:
        return [nan] * len(stage.insertions)


def profile(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Points (epsilon, delta) of the privacy profile at the last step, by adjacency.

    If the losses cannot be represented on a grid, there are few points, from other accountants.
    Each point is a bound, so a trade-off curve through them lies below the exact one. Where the
    exact curve of what is observed is known, `hidden_state` stands for it in place of an adjacency,
    and `hidden_state_gdp` for the Gaussian curve of its largest mu. Without noise, delta is 1 at
    every epsilon.
    """
    if not noise_multiplier:
        points = pd.DataFrame({"delta": [1.0], "epsilon": [0.0]})
        return pd.concat([points.assign(adjacency=adjacency.value) for adjacency in _ADJACENCIES])[
            _PROFILE
        ]
    if stage.batches_per_pass is not None:
        return _profile_of_shuffled_batches(stage, noise_multiplier)
    mechanism, tables = _mechanism(stage, noise_multiplier), []
    for adjacency in _ADJACENCIES:
        try:
            points = _fine_profile(mechanism.under(adjacency), stage.delta)
        except AccountingError as error:
            print(f"warning: a coarse privacy profile: {error}", file=sys.stderr)
            points = _coarse_profile(mechanism.under(adjacency), stage.delta)
        tables.append(points.assign(adjacency=adjacency.value))
    for curve in _exact_curves(stage, noise_multiplier, stage.record_steps[-1:]):
        tables.append(_exact_profile(curve).assign(adjacency="hidden_state"))
        gaussian = GaussianCurve(largest_mu(curve))
        tables.append(_exact_profile(gaussian).assign(adjacency="hidden_state_gdp"))
    return pd.concat(tables)[_PROFILE]


def _profile_of_shuffled_batches(stage: AccountingStage, noise_multiplier: float) -> pd.DataFrame:
    shuffled = _shuffled_mechanism(stage, stage.record_steps[-1], noise_multiplier)
    tables = []
    of_membership = {Adjacency.ADD_REMOVE: _membership(stage)}
    for adjacency in _ADJACENCIES:
        guaranteed = shuffled.under(of_membership.get(adjacency, adjacency)).guaranteed
        profile = _exact_profile(curve_of_full_batches(guaranteed))
        tables.append(profile.assign(adjacency=adjacency.value))
    return pd.concat(tables)[_PROFILE]


def _exact_profile(curve: ExactCurve) -> pd.DataFrame:
    epsilons = np.linspace(0.0, curve.epsilon(_PROFILE_DELTA), _PROFILE_POINTS).tolist()
    return pd.DataFrame(
        {"delta": [curve.delta(epsilon) for epsilon in epsilons], "epsilon": epsilons}
    )


def _fine_profile(mechanism: Mechanism, delta: float) -> pd.DataFrame:
    delta = min(delta, _PROFILE_DELTA)
    [highest] = account_epsilon_curve(mechanism, steps=[mechanism.num_steps], delta=delta)
    epsilons = np.linspace(0.0, highest, _PROFILE_POINTS).tolist()
    return pd.DataFrame(
        {"delta": privacy_profile(mechanism, epsilons=epsilons), "epsilon": epsilons}
    )


def _coarse_profile(mechanism: Mechanism, delta: float) -> pd.DataFrame:
    points = []
    for point_delta in sorted({delta, *np.geomspace(_PROFILE_DELTA, 0.5, _FEW_POINTS).tolist()}):

        def bounds_by(method: AccountingMethod, delta: float = point_delta) -> EpsilonBounds:
            return account_epsilon(mechanism, delta=delta, method=method)

        try:
            bounds, _ = with_fallback(
                bounds_by,
                methods=all_methods(mechanism)[1:],
                instead="raise noise_multiplier or delta",
            )
        except AccountingError:
            continue  # the audit's own delta is left: upper_bounds would have refused otherwise
        points.append({"delta": point_delta, "epsilon": bounds.upper})
    return pd.DataFrame(points, columns=["delta", "epsilon"])
