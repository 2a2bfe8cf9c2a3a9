"""Accounts an audit's mechanism: upper bounds at every recorded step, and its privacy profile."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dpcanary.accounting import account_epsilon_curve, privacy_profile
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError
from dpcanary.files import read_json
from dpcanary.program import run
from dpcanary.stages import AccountingStage
from dpcanary.tables import write_table

# Smallest delta of the profile: far below one over any number of runs.
_PROFILE_DELTA = 1e-9
_PROFILE_POINTS = 300


def main(argv: Sequence[str]) -> None:
    """Writes both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=AccountingStage.model_validate_json, required=True)
    parser.add_argument("--noise", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--profile", type=Path, required=True)
    args = parser.parse_args(argv)
    noise_multiplier = read_json(args.noise)["noise_multiplier"]
    write_table(args.output, upper_bounds(args.settings, noise_multiplier))
    write_table(args.profile, profile(args.settings, noise_multiplier))


def upper_bounds(stage: AccountingStage, noise_multiplier: float) -> pd.DataFrame:
    """One row per recorded step."""
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


def profile(stage: AccountingStage, noise_multiplier: float) -> pd.DataFrame:
    """Points (epsilon, delta) of the privacy profile at the last step, by adjacency.

    Where losses cannot be represented on a grid there are none: the upper bounds stand without.
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


if __name__ == "__main__":
    run(main)
