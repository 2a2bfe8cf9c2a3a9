"""Gets a file of the catalogue from a local mirror or its address, and checks it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.program_messages import progress, run
from dpcanary.data.dataset_catalogue import entry_of, read_catalogue
from dpcanary.data.downloads import fetch


def main(argv: Sequence[str]) -> None:
    """Writes the file of a source to the output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--catalogue", type=Path, required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--data-folder", type=Path, help="folder of local mirrors")
    parser.add_argument("--lock", type=Path, required=True, help="records the first hash seen")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    entry = entry_of(args.source, read_catalogue(args.catalogue))
    with progress(entry.bytes or 0, "B") as bar:
        fetch(
            entry,
            source=args.source,
            output=args.output,
            lock=args.lock,
            bar=bar,
            data_folder=args.data_folder,
        )


if __name__ == "__main__":
    run(main)
