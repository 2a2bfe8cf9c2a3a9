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
    return pd.DataFrame(
        {
            "step": stage.record_steps,
            "noise_multiplier": noise_multiplier,
            "epsilon_upper_substitute": _curve(stage, noise_multiplier, Adjacency.SUBSTITUTE),
            "epsilon_upper_add_remove": _curve(stage, noise_multiplier, Adjacency.ADD_REMOVE),
            "epsilon_upper_group_privacy": _group_privacy(stage, noise_multiplier),
        }
    )


def _curve(
    stage: AccountingStage, noise_multiplier: float, adjacency: Adjacency, method: str = "pld"
) -> list[float]:
    return account_epsilon_curve(
        adjacency=adjacency,
        sample_rate=stage.sample_rate,
        noise_multiplier=noise_multiplier,
        steps=stage.record_steps,
        delta=stage.delta,
        method=method,
    )


def _group_privacy(stage: AccountingStage, noise_multiplier: float) -> list[float]:
    """The loose bound; where it cannot be told, no reason to give up the tight ones."""
    try:
        return _curve(stage, noise_multiplier, Adjacency.SUBSTITUTE, "group_privacy")
    except AccountingError as error:
        print(f"warning: no group privacy bound: {error}", file=sys.stderr)
        return [float("nan")] * len(stage.record_steps)


def profile(stage: AccountingStage, noise_multiplier: float) -> pd.DataFrame:
    """Points (epsilon, delta) of the privacy profile at the last step, by adjacency."""
    tables = []
    for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE):
        highest = account_epsilon_curve(
            adjacency=adjacency,
            sample_rate=stage.sample_rate,
            noise_multiplier=noise_multiplier,
            steps=stage.record_steps[-1:],
            delta=min(stage.delta, _PROFILE_DELTA),
        )[0]
        epsilons = np.linspace(0.0, highest, _PROFILE_POINTS).tolist()
        deltas = privacy_profile(
            adjacency=adjacency,
            sample_rate=stage.sample_rate,
            noise_multiplier=noise_multiplier,
            num_steps=stage.record_steps[-1],
            epsilons=epsilons,
        )
        tables.append(pd.DataFrame({"adjacency": adjacency, "delta": deltas, "epsilon": epsilons}))
    return pd.concat(tables)


if __name__ == "__main__":
    run(main)
