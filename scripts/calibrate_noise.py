"""Finds an audit's noise multiplier: as given, or calibrated to an epsilon."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dpcanary.accounting.noise import NoiseStage, noise_of
from dpcanary.files import write_text
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Writes the noise multiplier as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=NoiseStage.model_validate_json, required=True)
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    found = {"noise_multiplier": noise_of(args.settings), "origin": args.job.origin}
    write_text(args.output, json.dumps(found))


if __name__ == "__main__":
    run(main)
