"""Turns the images or texts of a source into features, with a frozen encoder."""

import time
from collections.abc import Sequence
from pathlib import Path

from dpcanary.core.devices import chosen_device
from dpcanary.core.files import read_json
from dpcanary.core.program_messages import parsed, progress, run, stage_parser
from dpcanary.data.encoder_extraction import encode_source, load_encoder, write_features
from dpcanary.data.encoder_folders import find_encoder
from dpcanary.data.encoder_settings import FeaturesStage
from dpcanary.data.sources import load_records


def main(argv: Sequence[str]) -> None:
    """Reads the source, encodes its records and its test part, and writes both."""
    parser = stage_parser(__doc__, FeaturesStage, optional=["downloaded"], device=True)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="the files of the source")
    parser.add_argument("--encoder", help="its folder or package; by default as in the settings")
    parser.add_argument("--threads", type=int, default=1)
    args = parsed(parser, argv)
    downloaded = read_json(args.downloaded) if args.downloaded else {}
    encoder_folder = find_encoder(downloaded.get("folder") or args.encoder or args.settings.encoder)
    device = chosen_device(args.device)
    source = load_records(args.settings, files=args.files)
    start = time.perf_counter()
    encoder = load_encoder(encoder_folder, source.training.features, device=device)
    num_records = len(source.training) + (len(source.test) if source.test else 0)
    with progress(num_records, "record") as bar:
        arrays = encode_source(source, encoder, num_threads=args.threads, on_progress=bar.update)
    write_features(
        args.output,
        arrays,
        stage=args.settings,
        encoder=encoder_folder,
        commit=downloaded.get("commit"),
        device=device,
        seconds=time.perf_counter() - start,
        origin=args.job.origin,
    )


if __name__ == "__main__":
    run(main)
