"""What damage does to each kind of file: `python tests/faults/corruption.py` prints the table.

The outcome is `refused` by an error that names the file, `recomputed`, `harmless` or SILENT.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock, patch

import numpy as np
import pandas as pd
import study
from miniatures import california_housing, cifar10, sst2

from dpcanary.core.files import read_arrays, read_header, sha256_of_file, shape_in_npz, write_arrays
from dpcanary.core.provenance import check_origin, origins_in
from dpcanary.core.sealed_tables import read_sealed_object, write_sealed_object
from dpcanary.core.tsv_tables import read_table, write_table
from dpcanary.data.sources import load_source
from dpcanary.errors import InputError
from dpcanary.estimation.null_distributions.null_tables import cached_arrays
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import read_experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.release import Released, open_release, write_release

# By content: another one is a file of another audit, which is valid by itself.
ORIGINS = ("scores/a:0123456789abcdef", "scores/b:fedcba9876543210")
MADE = "recomputed"
HOUSES = "california_housing"


class Kind(NamedTuple):
    name: str
    file: str
    write: Callable[[Path, int], object]
    read: Callable[[Path], Any]


def _arrays(content: int) -> dict[str, Any]:
    rng = np.random.default_rng(content)
    return {"scores": rng.normal(size=(2, 20)), "world": np.arange(20) % 2}


def _read_product(path: Path) -> Any:
    [origin] = origins_in(path)
    check_origin(path, origin, ORIGINS[0])
    if path.suffix == ".npz":
        assert read_header(path)
        shape_in_npz(path, "scores")
        return read_arrays(path)
    return read_table(path).to_dict("list") if path.suffix == ".tsv" else read_sealed_object(path)


def _write_product(path: Path, content: int) -> None:
    origin = ORIGINS[content]
    if path.suffix == ".npz":
        write_arrays(path, header={"seed": content}, arrays=_arrays(content), origin=origin)
    elif path.suffix == ".tsv":
        table = pd.DataFrame({"audit": ["a", "a"], "epsilon": [9.999 + content, 2.0]})
        write_table(path, table, origin=origin)
    else:
        write_sealed_object(path, {"noise_multiplier": 1.5 + content, "origin": origin})


def _cached(folder: Path, content: int, compute: Callable[[], Any]) -> Any:
    with patch.dict(os.environ, {"DPCANARY_CACHE": str(folder)}):
        return cached_arrays("critical", about=f"question {content}", compute=compute)


def _write_cache(path: Path, content: int) -> None:
    _cached(path.parent, content, lambda: _arrays(content))
    [kept] = path.parent.glob("critical-*.npz")
    kept.replace(path)


def _read_cache(path: Path) -> Any:
    compute = Mock(side_effect=lambda: _arrays(0))
    with tempfile.TemporaryDirectory() as folder:
        _cached(Path(folder), 0, compute)
        [kept] = Path(folder).glob("critical-*.npz")
        kept.unlink()
        if path.exists():
            shutil.copy(path, kept)
        values = _cached(Path(folder), 0, compute)
    return values if compute.call_count == 1 else MADE


def _archive(write: Callable[[Path], Path]) -> Callable[[Path, int], object]:
    return lambda path, _: write(path.parent).replace(path)


def _read_source(path: Path, name: str = "") -> Any:
    source = load_source(name or str(path), files=[path])
    return [(part.features, part.labels) for part in (source.training, source.test) if part]


def _read_own(path: Path) -> Any:
    """A user's own file: its hash is a setting of what is made from it, and is compared."""
    if sha256_of_file(path) != _HASHES[path]:
        raise InputError(f"{path} has another sha256")
    return _read_source(path)


_HASHES: dict[Path, str] = {}


def _write_own(path: Path, content: int) -> None:
    frame = pd.DataFrame({"a": np.arange(20.0) + content, "label": np.arange(20) % 2})
    if path.suffix == ".npz":
        np.savez(path, features=frame[["a"]].to_numpy(), labels=frame["label"].to_numpy())
    elif path.suffix == ".parquet":
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False)
    _HASHES.setdefault(path, sha256_of_file(path))


def _experiment(content: int) -> Any:
    return parse_experiment({**study.CONFIG, "seed": content})


def _write_resolved(path: Path, content: int) -> None:
    path.write_text(json.dumps(json.loads(_experiment(content).to_json()), indent=2))


def _read_resolved(path: Path) -> Any:
    """A config is compared by the origins of the summary, which follow from it."""
    origins = {rows.origin for rows in Products(_experiment(0)).summary(["trained", "drawn"])}
    experiment = read_experiment(path)
    if {rows.origin for rows in Products(experiment).summary([*experiment.sweeps])} != origins:
        raise InputError(f"{path}: the summary was made with another config")
    return origins


def _write_release(path: Path, content: int) -> None:
    origin, file = ORIGINS[content], path.with_suffix(".npz")
    name = f"{origin.partition(':')[0]}.npz"
    _write_product(file, content)
    header = {"experiment": "study", "holds": Released.SCORES, "config": "settings: {}"}
    write_release(path, files={name: file}, origins={name: origin}, **header)
    _HASHES.setdefault(path, sha256_of_file(path))


def _read_release(path: Path) -> Any:
    """A config states its hash."""
    with (
        open_release(path, sha256=_HASHES[path]) as release,
        tempfile.TemporaryDirectory() as folder,
    ):
        release.check({"scores/a.npz": ORIGINS[0]})
        release.unpack(Path(folder), members=ORIGINS[:1])
        return read_arrays(Path(folder) / "scores/a.npz")


# By name in the table: a file, how it is made with a content of this number, and how its readers
# read it, which gives all that they see.
KINDS = [
    Kind("shards, scores, canaries, data (.npz)", "p.npz", _write_product, _read_product),
    Kind("estimates, accounting, summary (.tsv)", "p.tsv", _write_product, _read_product),
    Kind("noise (.json)", "p.json", _write_product, _read_product),
    Kind("resolved config (.json)", "experiment.json", _write_resolved, _read_resolved),
    Kind("a release of observations", "r.zip", _write_release, _read_release),
    Kind("critical values in the cache", "critical.npz", _write_cache, _read_cache),
    Kind(
        "CIFAR-10 (.tar.gz)", "c.tar.gz", _archive(cifar10), partial(_read_source, name="cifar10")
    ),
    Kind(
        "Housing (.tgz)", "h.tgz", _archive(california_housing), partial(_read_source, name=HOUSES)
    ),
    Kind("SST-2 (.zip)", "s.zip", _archive(sst2), partial(_read_source, name="sst2")),
    Kind("own data (.npz)", "own.npz", _write_own, _read_own),
    Kind("own data (.parquet)", "own.parquet", _write_own, _read_own),
    Kind("own data (.csv)", "own.csv", _write_own, _read_own),
]


def _flips(content: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    for place in rng.choice(8 * len(content), size=min(200, 8 * len(content)), replace=False):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << (place % 8)
        yield bytes(changed)


def _zeros(content: bytes, rng: np.random.Generator) -> Iterator[bytes]:
    """Blocks that a disk has not written."""
    for start in rng.integers(len(content), size=20):
        size = int(rng.integers(1, 1 + min(512, len(content) - start)))
        yield content[:start] + bytes(size) + content[start + size :]


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], Iterator[bytes]]] = {
    "a bit": _flips,
    "cut short": lambda content, rng: (
        content[:end] for end in rng.choice(len(content), size=min(40, len(content)), replace=False)
    ),
    "zeros": _zeros,
    "a part twice": lambda content, rng: (
        content[: start + 1] + content[start // 2 :]
        for start in rng.integers(len(content), size=20)
    ),
    "empty": lambda content, rng: iter([b""]),
    "other bytes": lambda content, rng: (rng.bytes(len(content)) for _ in range(5)),
}
EXCHANGED = "another's file"


def outcome(kind: Kind, path: Path, expected: Any) -> str:
    try:
        content = kind.read(path)
    except InputError as error:
        return "refused" if path.name in str(error) else f"NOT NAMED: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if isinstance(content, str) and content == MADE:
        return MADE
    try:
        np.testing.assert_equal(content, expected)
    except AssertionError:
        return "SILENT"
    return "harmless"


def outcomes(kind: Kind, folder: Path, *, seed: int = 0, every: int = 1) -> dict[str, set[str]]:
    """By damage, everything that it may come to; of the damaged files, one of so many."""
    rng = np.random.default_rng(seed)
    path = folder / kind.file
    kind.write(path, 0)
    content, expected = path.read_bytes(), kind.read(path)
    results: dict[str, set[str]] = {name: set() for name in DAMAGES}
    for name, damage in DAMAGES.items():
        for changed in islice(damage(content, rng), 0, None, every):
            path.write_bytes(changed)
            if changed != content:
                results[name].add(outcome(kind, path, expected))
    if not kind.name.endswith(("(.tar.gz)", "(.tgz)", "(.zip)")):
        path.unlink()
        kind.write(path, 1)
        results[EXCHANGED] = {outcome(kind, path, expected)}
    path.unlink()
    results["missing"] = {outcome(kind, path, expected)}
    return results


def markdown() -> list[str]:
    damages = [*DAMAGES, EXCHANGED, "missing"]
    lines = ["| file | " + " | ".join(damages) + " |", "|---" * (1 + len(damages)) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            results = outcomes(kind, Path(folder))
            cells = [" or ".join(sorted(results.get(name, {"by its hash"}))) for name in damages]
            lines.append(f"| {kind.name} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    print("\n".join(markdown()))
