"""Splits a dataset into private, auxiliary and test records."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.records import write_split
from dpcanary.data.sources import load_records
from dpcanary.data.splitting import split_records


def main(argv: Sequence[str]) -> None:
    """Reads the source named by the settings, or its encoded records, and writes the split."""
    parser = stage_parser(__doc__, DatasetStage, optional=["features"])
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="the files of the source")
    args = parsed(parser, argv)
    stage: DatasetStage = args.settings
    split = split_records(
        load_records(stage, files=args.files, features=args.features),
        num_records=stage.num_records,
        balanced=stage.balanced,
        num_auxiliary=stage.num_auxiliary,
        num_test=stage.num_test,
        seed=stage.seed,
        standardised=stage.standardised,
    )
    settings = stage.model_dump(mode="json")
    write_split(args.output, split, settings=settings, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
