"""Optimises canaries through whole trainings; audits of different trainings share them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.adversaries.metagradient import optimised_canaries
from dpcanary.adversaries.settings import MetagradientStage
from dpcanary.canaries import write_canaries
from dpcanary.devices import DEVICES, chosen_device
from dpcanary.program import parsed, progress, run
from dpcanary.records import read_split


def main(argv: Sequence[str]) -> None:
    """Reads the data and writes a canary file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=MetagradientStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    found = optimised_canaries(
        args.settings,
        private=read_split(args.data).private,
        device=chosen_device(args.device),
        progress=progress,
    )
    write_canaries(args.output, found, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
