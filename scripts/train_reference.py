"""Trains the reference model without privacy. It determines the target records."""

from collections.abc import Sequence

from dpcanary.core.devices import chosen_device
from dpcanary.core.program_messages import parsed, progress, run, stage_parser
from dpcanary.data.records import read_split
from dpcanary.training.models import descent, module_of
from dpcanary.training.pretraining import read_pretrained
from dpcanary.training.simulated_trainings import train_reference, write_reference
from dpcanary.training.training_settings import ReferenceStage


def main(argv: Sequence[str]) -> None:
    """Reads the split dataset and writes the reference file."""
    parser = stage_parser(
        __doc__, ReferenceStage, inputs=["data"], optional=["pretrained"], device=True
    )
    args = parsed(parser, argv)
    stage: ReferenceStage = args.settings
    data = read_split(args.data)
    shape = data.private.features.shape[1:]
    with progress(stage.num_steps, "step") as bar:
        reference = train_reference(
            module=module_of(
                stage,
                shape=shape,
                num_classes=data.num_classes,
                pretrained=read_pretrained(args.pretrained) if args.pretrained else None,
            ),
            records=data.private,
            dpsgd=descent(stage, loss=stage.loss),
            initialisation=stage.initialisation,
            device=chosen_device(args.device),
            on_progress=bar.update,
        )
    write_reference(args.output, reference, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
