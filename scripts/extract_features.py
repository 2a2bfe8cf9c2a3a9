"""Turns the images or texts of a source into features, by a frozen encoder."""

import argparse
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from dpcanary.datasets.sources import load_source
from dpcanary.encoders.extraction import extract_features, load_encoder
from dpcanary.encoders.folders import find_encoder
from dpcanary.files import read_json, write_arrays
from dpcanary.program import progress, run
from dpcanary.stages import FeaturesStage
from dpcanary.training.devices import chosen_device

_SOFTWARE = ("numpy", "pillow", "sentence-transformers", "tokenizers", "torch", "transformers")


def main(argv: Sequence[str]) -> None:
    """Reads the source, encodes its records and its test part, and writes both."""
    args = parsed(argv)
    stage: FeaturesStage = args.settings
    start = time.perf_counter()
    source = load_source(
        stage.source,
        files=args.files,
        max_records=stage.max_records,
        num_test=stage.num_test,
        seed=stage.seed,
    )
    downloaded = read_json(args.downloaded) if args.downloaded else {}
    found = find_encoder(downloaded.get("folder") or args.encoder or stage.encoder)
    device = chosen_device(args.device)
    encoder = load_encoder(found, source.records, device=device)
    records, labels = {"features": source.records}, {"labels": source.labels}
    if source.test_records is not None and source.test_labels is not None:
        records["test_features"] = source.test_records
        labels["test_labels"] = source.test_labels
    with progress(sum(map(len, records.values())), "record") as bar:
        features = {
            name: extract_features(encoder, part, num_threads=args.threads, on_progress=bar.update)
            for name, part in records.items()
        }
    header = {
        "settings": stage.model_dump(mode="json"),
        "encoder": {
            "name": stage.encoder,
            "commit": downloaded.get("commit"),
            "weights": found.weights,
        },
        "device": str(device),
        "seconds": time.perf_counter() - start,
        "software": {"python": platform.python_version(), **{n: version(n) for n in _SOFTWARE}},
    }
    write_arrays(args.output, header=header, arrays={**features, **labels})


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=FeaturesStage.model_validate_json, required=True)
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="what it is read from")
    parser.add_argument("--encoder", help="where the encoder is; by default the settings' name")
    parser.add_argument("--downloaded", type=Path, help="what download_encoder wrote")
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
