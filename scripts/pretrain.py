"""Trains the model that runs start from, on public records and without privacy."""

import sys
from collections.abc import Sequence

from dpcanary.core.devices import chosen_device
from dpcanary.core.program_messages import parsed, progress, run, stage_parser
from dpcanary.data.records import read_split
from dpcanary.training.pretraining import pretrain, public_records, write_pretrained
from dpcanary.training.training_settings import PretrainingStage


def main(argv: Sequence[str]) -> None:
    """Reads the split datasets and writes the pretrained model."""
    parser = stage_parser(
        __doc__, PretrainingStage, inputs=["data"], optional=["other"], device=True
    )
    args = parsed(parser, argv)
    stage: PretrainingStage = args.settings
    data = read_split(args.data)
    public, left_out = public_records(data, read_split(args.other) if args.other else None)
    if left_out:
        note = f"left out {left_out} records that are private or test records of the audit"
        print(note, file=sys.stderr)
    with progress(stage.pretraining.num_steps, "step") as bar:
        pretrained = pretrain(
            stage,
            data=data,
            public=public,
            device=chosen_device(args.device),
            on_progress=bar.update,
        )
    measure = "accuracy" if stage.loss.is_of_classes else "R^2"
    print(f"{measure} on the audit's test records: {pretrained.test_accuracy:.3f}", file=sys.stderr)
    write_pretrained(args.output, pretrained, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
