"""Unpacks the observations of a release, after all have been found to be those of its job."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.program_messages import parsed, run
from dpcanary.experiment.release import open_release


def main(argv: Sequence[str]) -> None:
    """Writes scores or shards, and noise, below a folder of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", type=Path, required=True, help="of `dpcanary release`")
    parser.add_argument("--sha256", help="that it must have; by default any")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    args = parsed(parser, argv, read_later=["archive"])
    with open_release(args.archive, sha256=args.sha256) as release:
        release.unpack(args.output, members=args.job.inputs.get("archive"))


if __name__ == "__main__":
    run(main)
