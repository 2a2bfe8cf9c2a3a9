"""Downloads an encoder from the Hugging Face hub, and writes the name of its folder."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.files import write_text
from dpcanary.core.program_messages import run
from dpcanary.data.encoder_folders import find_encoder


def main(argv: Sequence[str]) -> None:
    """Writes folder and commit as JSON; the weights stay in the hub's cache."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", required=True, help="its name on the hub")
    parser.add_argument("--revision", help="its commit")
    parser.add_argument("--lock", type=Path, required=True, help="records the first commit seen")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args(argv)
    encoder = find_encoder(args.encoder, revision=args.revision, lock=args.lock)
    write_text(args.output, json.dumps({"folder": str(encoder.folder), "commit": encoder.commit}))


if __name__ == "__main__":
    run(main)
