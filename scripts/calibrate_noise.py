"""Finds an audit's noise multiplier: as given, or calibrated to an epsilon."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dpcanary.errors import InputError
from dpcanary.files import write_text
from dpcanary.program import run
from dpcanary.stages import NoiseStage


def main(argv: Sequence[str]) -> None:
    """Writes {"noise_multiplier": sigma} as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=NoiseStage.model_validate_json, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    write_text(args.output, json.dumps({"noise_multiplier": noise_multiplier(args.settings)}))


def noise_multiplier(stage: NoiseStage) -> float:
    """The noise standard deviation in units of the clipping norm."""
    if stage.noise_multiplier is not None:
        return stage.noise_multiplier
    from dpcanary.accounting.overview import with_fallback  # loads slowly, and is seldom needed

    sigma, _ = with_fallback(lambda method: calibrated(stage, method=method))
    return sigma


def calibrated(stage: NoiseStage, *, method: str) -> float:
    """The noise that reaches the stage's target, by one accountant."""
    if stage.target_epsilon is None or stage.delta is None:
        raise InputError("settings: give noise_multiplier, or target_epsilon and delta")
    from dpcanary.accounting import calibrate_noise

    return calibrate_noise(
        adjacency=stage.adjacency,
        epsilon=stage.target_epsilon,
        delta=stage.delta,
        sample_rate=stage.sample_rate,
        num_steps=stage.num_steps,
        method=method,
    )


if __name__ == "__main__":
    run(main)
