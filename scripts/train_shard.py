"""Trains the models of one shard and records what the adversary observes."""

from collections.abc import Sequence

from dpcanary.core.devices import chosen_device
from dpcanary.core.program_messages import parsed, progress, run, stage_parser
from dpcanary.core.sealed_tables import read_number
from dpcanary.data.canaries import read_canaries
from dpcanary.data.observations import hashes_of, write_shard
from dpcanary.data.records import read_split
from dpcanary.training.pretraining import read_pretrained
from dpcanary.training.shard import train_shard
from dpcanary.training.training_settings import TrainingStage


def main(argv: Sequence[str]) -> None:
    """Trains the runs of a shard and writes the shard file."""
    inputs = ["data", "canaries", "noise"]
    parser = stage_parser(
        __doc__, TrainingStage, inputs=inputs, optional=["pretrained"], device=True
    )
    parser.add_argument("--runs", type=int, nargs=2, required=True, metavar=("FIRST", "STOP"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs-at-once", type=int, default=0, help="0: as many as fit")
    args = parsed(parser, argv)
    stage: TrainingStage = args.settings
    inputs = {"data": args.data, "canaries": args.canaries, "pretrained": args.pretrained}
    runs = range(*args.runs)
    with progress(len(runs) * stage.num_steps, "model-step") as bar:
        shard = train_shard(
            stage,
            data=read_split(args.data),
            canaries=read_canaries(args.canaries).canaries,
            noise_multiplier=read_number(args.noise, "noise_multiplier"),
            runs=runs,
            inputs=hashes_of({role: path for role, path in inputs.items() if path}),
            device=chosen_device(args.device),
            pretrained=read_pretrained(args.pretrained) if args.pretrained else None,
            num_threads=args.threads,
            runs_at_once=args.runs_at_once or None,
            on_progress=bar.update,
        )
    write_shard(args.output, shard, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
