"""Crafts an audit's canaries, from what they need of earlier jobs."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.adversaries.crafting import Crafting, craft_canaries
from dpcanary.adversaries.settings import CraftingStage
from dpcanary.canaries import read_canaries, write_canaries
from dpcanary.devices import DEVICES, chosen_device
from dpcanary.files import read_number
from dpcanary.program import parsed, progress, run
from dpcanary.records import read_split
from dpcanary.training.pretraining import read_pretrained
from dpcanary.training.simulation import read_reference


def main(argv: Sequence[str]) -> None:
    """Reads the data and what else the canaries need, and writes their file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=CraftingStage.model_validate_json, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reference", type=Path, help="reference model, if canaries need it")
    parser.add_argument("--noise", type=Path, help="noise file, if it is simulated")
    parser.add_argument("--optimised", type=Path, help="optimised canaries, if they are used")
    parser.add_argument("--pretrained", type=Path, help="the model that runs start from")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    args = parsed(parser, argv)
    crafting = Crafting(
        stage=args.settings,
        data=read_split(args.data),
        reference=None if args.reference is None else read_reference(args.reference),
        device=chosen_device(args.device),
        noise_multiplier=None
        if args.noise is None
        else read_number(args.noise, "noise_multiplier"),
        optimised=None if args.optimised is None else read_canaries(args.optimised),
        pretrained=read_pretrained(args.pretrained) if args.pretrained else None,
        progress=progress,
    )
    write_canaries(args.output, craft_canaries(crafting), origin=args.job.origin)


if __name__ == "__main__":
    run(main)
