"""Turns the images or texts of a source into features, by a frozen encoder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dpcanary.datasets.sources import load_records
from dpcanary.devices import DEVICES, chosen_device
from dpcanary.encoders.features import encode_source, write_features
from dpcanary.encoders.folders import find_encoder
from dpcanary.encoders.stage import FeaturesStage
from dpcanary.files import read_json
from dpcanary.program import progress, run


def main(argv: Sequence[str]) -> None:
    """Reads the source, encodes its records and its test part, and writes both."""
    args = parsed(argv)
    downloaded = read_json(args.downloaded) if args.downloaded else {}
    encoder = find_encoder(downloaded.get("folder") or args.encoder or args.settings.encoder)
    device = chosen_device(args.device)
    features = encode_source(
        load_records(args.settings, files=args.files),
        encoder,
        device=device,
        num_threads=args.threads,
        progress=progress,
    )
    write_features(
        args.output,
        features,
        stage=args.settings,
        encoder=encoder,
        commit=downloaded.get("commit"),
        device=device,
    )


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=FeaturesStage.model_validate_json, required=True)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="what it is read from")
    parser.add_argument("--encoder", help="where the encoder is; by default the settings' name")
    parser.add_argument("--downloaded", type=Path, help="what download_encoder wrote")
    parser.add_argument("--device", choices=DEVICES, default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
