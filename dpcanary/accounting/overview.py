"""What a summary says of a mechanism: its upper bounds along training, and its profile."""

import sys
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpcanary.accounting.epsilon import account_epsilon_curve, privacy_profile
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError
from dpcanary.stages import AccountingStage

# Smallest delta of the profile: far below one over any number of runs.
_PROFILE_DELTA = 1e-9
_PROFILE_POINTS = 300


def upper_bounds(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Upper bounds, one row per recorded step.

    Where the first accountant refuses, the second one serves, and `accounting_method` says so.

    Args:
        stage: the mechanism, beside its noise.
        noise_multiplier: sigma.

    Raises:
        AccountingError: if both refuse.
    """
    substitute, method = _curve(stage, noise_multiplier, Adjacency.SUBSTITUTE, ("pld", "prv"))
    add_remove, _ = _curve(stage, noise_multiplier, Adjacency.ADD_REMOVE, ("pld", "prv"))
    return pd.DataFrame(
        {
            "step": stage.record_steps,
            "noise_multiplier": noise_multiplier,
            "accounting_method": method,
            "epsilon_upper_substitute": substitute,
            "epsilon_upper_add_remove": add_remove,
            "epsilon_upper_group_privacy": _group_privacy(stage, noise_multiplier),
        }
    )


def _curve(
    stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency, methods: Sequence[str]
) -> tuple[list[float], str]:
    """Upper epsilons by the first method that gives them, and that method."""
    method, *others = methods
    try:
        curve = account_epsilon_curve(
            adjacency=adjacency,
            sample_rate=stage.sample_rate,
            noise_multiplier=noise_multiplier,
            steps=stage.record_steps,
            delta=stage.delta,
            method=method,
        )
    except AccountingError as error:
        if not others:
            raise
        print(f"warning: falling back to {others[0]}: {error}", file=sys.stderr)
        return _curve(stage, noise_multiplier, adjacency, others)
    return curve, method


def _group_privacy(stage: AccountingStage, noise_multiplier: float) -> list[float]:
    """The loose bound; where it cannot be told, no reason to give up the tight ones."""
    try:
        return _curve(stage, noise_multiplier, Adjacency.SUBSTITUTE, ("group_privacy",))[0]
    except AccountingError as error:
        print(f"warning: no group privacy bound: {error}", file=sys.stderr)
        return [float("nan")] * len(stage.record_steps)


def profile(stage: AccountingStage, *, noise_multiplier: float) -> pd.DataFrame:
    """Points (epsilon, delta) of the privacy profile at the last step, by adjacency.

    Where losses cannot be represented on a grid there are none: the upper bounds stand without.

    Args:
        stage: the mechanism, beside its noise.
        noise_multiplier: sigma.
    """
    columns = ["adjacency", "delta", "epsilon"]
    try:
        points = [
            _profile(stage, noise_multiplier, adjacency)
            for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE)
        ]
    except AccountingError as error:
        print(f"warning: no privacy profile: {error}", file=sys.stderr)
        return pd.DataFrame(columns=columns)
    return pd.concat(points)[columns]


def _profile(stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency) -> pd.DataFrame:
    last = AccountingStage(
        sample_rate=stage.sample_rate,
        record_steps=stage.record_steps[-1:],
        delta=min(stage.delta, _PROFILE_DELTA),
    )
    [highest], _ = _curve(last, noise_multiplier, adjacency, ("pld",))
    epsilons = np.linspace(0.0, highest, _PROFILE_POINTS).tolist()
    deltas = privacy_profile(
        adjacency=adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=stage.record_steps[-1],
        epsilons=epsilons,
    )
    return pd.DataFrame({"adjacency": adjacency, "delta": deltas, "epsilon": epsilons})
