"""Crafts an audit's canaries, from what they need of earlier jobs."""

from collections.abc import Sequence

from dpcanary.adversaries.adversary_settings import CraftingStage
from dpcanary.adversaries.crafting import Crafting, craft_canaries
from dpcanary.core.devices import chosen_device
from dpcanary.core.program_messages import parsed, progress, run, stage_parser
from dpcanary.core.sealed_tables import read_number
from dpcanary.data.canaries import read_canaries, write_canaries
from dpcanary.data.records import read_split
from dpcanary.training.pretraining import read_pretrained
from dpcanary.training.simulated_trainings import read_reference


def main(argv: Sequence[str]) -> None:
    """Reads the data and what else the canaries need, and writes their file."""
    optional = ["reference", "noise", "optimised", "pretrained"]
    parser = stage_parser(__doc__, CraftingStage, inputs=["data"], optional=optional, device=True)
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
