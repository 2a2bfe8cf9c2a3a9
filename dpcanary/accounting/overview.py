"""What a summary says of a mechanism: its upper bounds along training, and its profile."""

import sys

import numpy as np
import pandas as pd

from dpcanary.accounting.epsilon import account_epsilon, account_epsilon_curve, privacy_profile
from dpcanary.accounting.fallback import with_fallback
from dpcanary.accounting.options import AccountingMethod
from dpcanary.accounting.stage import AccountingStage
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError

# Smallest delta of the profile: far below one over any number of runs.
_PROFILE_DELTA = 1e-9
_PROFILE_POINTS, _FEW_POINTS = 300, 12
# What a config can do where no accountant can tell an epsilon.
INSTEAD = "raise noise_multiplier or delta, or lower target_epsilon where the noise is calibrated"


def upper_bounds(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Upper bounds, one row per recorded step.

    Where the first accountant refuses either adjacency, the second one gives both, and
    `accounting_method` says so. Group privacy always rests on the first.

    Args:
        stage: the mechanism, beside its noise.
        noise_multiplier: sigma.

    Raises:
        AccountingError: if both refuse.
    """
    (substitute, add_remove), method = with_fallback(
        lambda name: (
            _curve(stage, noise_multiplier, Adjacency.SUBSTITUTE, name),
            _curve(stage, noise_multiplier, Adjacency.ADD_REMOVE, name),
        ),
        instead=INSTEAD,
    )
    return pd.DataFrame(
        {
            "step": stage.record_steps,
            "noise_multiplier": noise_multiplier,
            "accounting_method": method.value,
            "epsilon_upper_substitute": substitute,
            "epsilon_upper_add_remove": add_remove,
            "epsilon_upper_group_privacy": _group_privacy(stage, noise_multiplier),
        }
    )


def _curve(
    stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency, method: AccountingMethod
) -> list[float]:
    return account_epsilon_curve(
        adjacency=adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        steps=stage.insertions,
        delta=stage.delta,
        method=method,
    )


def _group_privacy(stage: AccountingStage, noise_multiplier: float) -> list[float]:
    """The loose bound; where it cannot be told, no reason to give up the tight ones."""
    try:
        return _curve(stage, noise_multiplier, Adjacency.SUBSTITUTE, AccountingMethod.GROUP_PRIVACY)
    except AccountingError as error:
        print(f"warning: no group privacy bound: {error}", file=sys.stderr)
        return [float("nan")] * len(stage.record_steps)


def profile(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Points (epsilon, delta) of the privacy profile at the last step, by adjacency.

    Where losses cannot be represented on a grid, a few points of the second accountant stand in:
    each is a bound, so a trade-off curve that they span lies below the exact one.

    Args:
        stage: the mechanism, beside its noise.
        noise_multiplier: sigma.
    """
    tables = []
    for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE):
        try:
            points = _fine_profile(stage, noise_multiplier, adjacency)
        except AccountingError as error:
            print(f"warning: a coarse privacy profile: {error}", file=sys.stderr)
            points = _coarse_profile(stage, noise_multiplier, adjacency)
        tables.append(points.assign(adjacency=adjacency.value))
    return pd.concat(tables)[["adjacency", "delta", "epsilon"]]


def _fine_profile(
    stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency
) -> pd.DataFrame:
    last = AccountingStage(
        sample_rate=stage.sample_rate,
        record_steps=stage.record_steps[-1:],
        canary_period=stage.canary_period,
        delta=min(stage.delta, _PROFILE_DELTA),
    )
    [highest] = _curve(last, noise_multiplier, adjacency, AccountingMethod.PLD)
    epsilons = np.linspace(0.0, highest, _PROFILE_POINTS).tolist()
    deltas = privacy_profile(
        adjacency=adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=stage.insertions[-1],
        epsilons=epsilons,
    )
    return pd.DataFrame({"delta": deltas, "epsilon": epsilons})


def _coarse_profile(
    stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency
) -> pd.DataFrame:
    points = []
    for delta in sorted({stage.delta, *np.geomspace(_PROFILE_DELTA, 0.5, _FEW_POINTS).tolist()}):
        try:
            bounds = account_epsilon(
                adjacency=adjacency,
                sample_rate=stage.sample_rate,
                noise_multiplier=noise_multiplier,
                num_steps=stage.insertions[-1],
                delta=delta,
                method=AccountingMethod.PRV,
            )
        except AccountingError:
            continue  # the upper bounds have shown that at least the stage's own delta can be told
        points.append({"delta": delta, "epsilon": bounds.upper})
    return pd.DataFrame(points, columns=["delta", "epsilon"])
