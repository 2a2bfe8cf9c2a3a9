"""Checks the results of an experiment: everything after its training is recomputed and compared."""

import io
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from dpcanary.accounting.audit_noise import NoiseStage, noise_of
from dpcanary.audits.own_audit import ARRAYS, CONFIG, COST
from dpcanary.audits.workflow_run import run_config
from dpcanary.core.files import read_arrays, read_json, sha256_of_file, write_text
from dpcanary.core.printing import wrapped
from dpcanary.core.provenance import CRATE, KEY, VERIFIED, as_json, origins_in
from dpcanary.core.sealed_tables import CHECKSUM, read_sealed_table, write_sealed_object
from dpcanary.errors import AccountingError, InputError
from dpcanary.experiment.data_files import DataFiles
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.products import Product, Products
from dpcanary.experiment.results_lock import locked
from dpcanary.experiment.unplanned_looks import LOOKS

# What training leaves; these files are read as they are, unless some are replayed.
OBSERVED = ("shards", "pretrained", "reference", "optimised")
# The rules that make them; a test compares both lists with those of the workflow.
TRAINING_RULES = ("train_shard", "draw_shard", "pretrain", "train_reference", "optimise_canaries")
DERIVING_RULES = (
    "all", "download_file", "download_encoder", "extract_features", "prepare_dataset",
    "craft_canaries", "calibrate_noise", "account", "compare_adjacencies", "resolve_config",
    "score_runs", "estimate", "estimate_by_runs", "bound_ceiling", "summarise", "draw_figure",
    "unpack_release",
)  # fmt: skip
_NOISE = "noise_multiplier"
# Beside results: no products, or made by request.
_IGNORED = ("logs", ".lock", "report.html", VERIFIED, CRATE, "planned.json", CONFIG, COST, ARRAYS)
# Relative differences of numbers that another machine or library may make; training is in single
# precision, whose rounding adds up over the steps.
CLOSE, _CLOSE_SINGLE = 1e-6, 1e-4
STATUSES = ("same", "close", "changed", "missing", "stale", "unverifiable", "not of this config")
# Exit statuses of the command, by the worst of what is found.
EXIT = {"changed": 3, "missing": 4, "stale": 5, "unverifiable": 6}


@dataclass(frozen=True)
class Verified:
    """One file of the results.

    Attributes:
        file: its path below the results.
        status: one of `STATUSES`.
        detail: what differs, in words.
    """

    file: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Verification:
    """The result of `verify_results`. `print` shows it as text.

    Attributes:
        files: all that were compared.
        replayed: what was trained again of `files`: shards, and reference, pretrained and optimised
            models.
        num_observed: files that training left.
        error: why some files could not be recomputed; empty if all were.
        seconds: that it took.
        archive: the release that all was made from, in place of shards; empty if there is none.
    """

    files: tuple[Verified, ...]
    replayed: tuple[str, ...]
    num_observed: int
    error: str
    seconds: float
    archive: str = ""

    @property
    def exit_status(self) -> int:
        """0 if every number is what its evidence gives."""
        statuses = {*(file.status for file in self.files), *["unverifiable"] * bool(self.error)}
        return next((status for name, status in EXIT.items() if name in statuses), 0)

    def __str__(self) -> str:
        lines = [
            wrapped(
                file.file + (f": {file.detail}" if file.detail else ""),
                start=f"{file.status:<12}  ",
            )
            for file in self.files
            if file.status not in ("same", "close")
        ]
        counts = {name: sum(file.status == name for file in self.files) for name in STATUSES}
        summary = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        if self.error:
            lines.append(wrapped(self.error))
        verdict = (
            f"Every number is what {self.archive or 'its shards'} give{'s' * bool(self.archive)}."
            if not self.exit_status
            else "These results must not be believed as they are."
        )
        scope = f"{summary}. {self.seconds:.0f} seconds."
        trained = (
            f"Of {self.num_observed} shards and other trained models, {len(self.replayed)} were"
            " trained again, and the others read as they are; `--replay N` retrains N."
            if not self.archive
            else f"What {self.archive} holds was read as it is."
        )
        texts = map(wrapped, (verdict, scope, trained))
        return "\n".join([*lines, *([""] if lines else []), *texts])


def verify_results(
    results: Path, *, replay: int = 0, seed: int = 0, cores: int | None = None
) -> Verification:
    """Recomputes everything that follows from the training of an experiment, and compares it.

    Datasets, noise, canaries, scores, estimates, accounting, the summary and the figures are made
    again from the resolved config and the shards, in a folder of their own. Critical values are
    simulated again as well. Shards that are not of the config are refused as in any run. If the
    observations are released, all is made from the archive.

    Args:
        results: the folder of an experiment, such as `results/demo`; it is not changed, but for
            `verified.json`, which says what was found.
        replay: number of files that training left, drawn at random, that are retrained, too:
            shards, and reference, pretrained and optimised models.
        seed: of that draw.
        cores: by default all of this machine.

    Raises:
        InputError: if there is no resolved config, or if released observations are to be replayed.
    """
    start = time.monotonic()
    results = results.resolve()
    experiment = read_experiment(results / "experiment.json")
    archive = experiment.settings.archive
    if archive and replay:
        raise InputError(
            f"{results} is made from {archive}, a release: nothing can be retrained without the"
            " data; leave out --replay, or verify the results of the training"
        )
    error = ""
    with (
        locked(results),
        _copy(results, experiment) as (copy, left),
        ThreadPoolExecutor(1) as pool,
    ):
        config = copy.parents[1] / "resolved.yaml"
        # Not the JSON itself: YAML reads 1e-05 as text.
        resolved = read_json(results / "experiment.json")
        write_text(config, yaml.safe_dump(resolved, sort_keys=False))
        noise = {} if archive else _noise_in(results, experiment)
        for name in noise:
            _link(copy / name, results / name)
        recomputed = pool.submit(_recomputed_noise, noise)  # while Snakemake starts
        try:
            # With a second target, so that it does not end with a table of results.
            _make(config, copy, DERIVING_RULES, ["all", "resolve_config"], cores)
        except InputError as reason:
            error = (
                f"not everything could be recomputed, with the config's files looked up in"
                f" {_base_of_paths(results)}: {reason}"
            )
        replayed = _drawn(left, replay, seed) if not error else ()
        for name in replayed:
            (copy / name).unlink()
        if replayed:
            targets = [str((copy / name).relative_to(copy.parents[1])) for name in replayed]
            _make(config, copy, TRAINING_RULES, targets, cores)
        for name in noise:  # only now: retraining needs what training had
            (copy / name).unlink(missing_ok=True)
        try:
            for name, value in recomputed.result().items():
                write_sealed_object(copy / name, {_NOISE: value, KEY: noise[name][0].origin})
        except (AccountingError, InputError, MemoryError) as reason:
            error = (
                error
                or f"the noise could not be calibrated again: {str(reason) or 'out of memory'}"
            )
        as_they_are = {*left} - {*replayed}
        files = _with_figures([*_compared(results, copy, as_they_are, is_whole=not error)])
        seconds = time.monotonic() - start
        verification = Verification(files, replayed, len(left), error, seconds, archive or "")
        _note(results, verification)  # before another run may write a summary
    return verification


@contextmanager
def _copy(results: Path, experiment: Experiment) -> Iterator[tuple[Path, list[str]]]:
    """A folder with what training has left, and beside it all else that jobs may read."""
    settings, left = experiment.settings, _observed(results, experiment)
    with TemporaryDirectory(prefix="dpcanary-verify-") as folder:
        root, copy = Path(folder), Path(folder) / "results" / settings.experiment
        copy.mkdir(parents=True)
        base = _base_of_paths(results)
        for beside in base.iterdir():
            if beside.name not in ("results", ".snakemake"):
                (root / beside.name).symlink_to(beside)
        data_files = DataFiles(settings, folder=base)
        for file in {Path(file) for name in settings.datasets for file in data_files.of(name)}:
            if file.parts[0] == "results":  # such as the preparation of an audit's own table
                _link(root / file, base / file)
        for name in left:
            _link(copy / name, results / name)
        if (results / LOOKS).exists():  # figures say at which numbers of runs bounds were seen
            _link(copy / LOOKS, results / LOOKS)
        # Cached critical values are not evidence: this folder is new, not a link to the user's.
        variables = {"DPCANARY_CACHE": str(copy.with_name(".cache"))}
        if settings.archive:  # which may lie among results, or above the folder
            variables["DPCANARY_DATA"] = os.getenv("DPCANARY_DATA") or str(base)
        with patch.dict(os.environ, variables):
            yield copy, left


def _base_of_paths(results: Path) -> Path:
    """Where the paths of a config begin: the folder in which it was run, if `results` is in it."""
    return results.parents[1] if results.parent.name == "results" else Path.cwd()


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def _noise_in(results: Path, experiment: Experiment) -> dict[str, tuple[Product, NoiseStage]]:
    """The noise that an experiment's results have, by its path; not what is damaged or not of it.

    An accountant of another version, or on another machine, may calibrate noise to another last
    digit. Training had what was written, so all that follows is recomputed from that.
    """
    products, noise_files = Products(experiment), {}
    for audit in experiment.first_audits.values():
        product = products.noise(audit)
        with suppress(InputError):
            if origins_in(results / product.path) == [product.origin]:
                noise_files[product.path] = product, experiment.stage(NoiseStage, audit=audit)
    return noise_files


def _recomputed_noise(noise: Mapping[str, tuple[Product, NoiseStage]]) -> dict[str, float]:
    """What the noise must be, but for rounding."""
    cached_noise = cache(noise_of)
    return {name: cached_noise(stage) for name, (_, stage) in noise.items()}


def _observed(results: Path, experiment: Experiment) -> list[str]:
    """What training has left of the files that a config needs, by their paths below the results."""
    if experiment.settings.archive:
        return []
    products, needed = Products(experiment), set[str]()
    for name in experiment.first_audits.values():
        folder, shards = products.shards(name).path, experiment.audits[name].shards
        needed |= {f"{folder}/{shard}.npz" for shard in shards}
        for models in (products.pretrained, products.reference, products.optimised):
            needed |= {product.path for product in models(name)}
    paths = (path for kind in OBSERVED for path in sorted((results / kind).rglob("*.npz")))
    return [name for name in (str(path.relative_to(results)) for path in paths) if name in needed]


def _make(
    config: Path, copy: Path, rules: Sequence[str], targets: Sequence[str], cores: int | None
) -> None:
    root = copy.parents[1]
    try:
        # What other rules make is an input that is there, whatever its time stamp.
        run_config(
            config,
            folder=root,
            targets=targets,
            cores=cores,
            options=["--allowed-rules", *rules, "--keep-going"],
            prints_results=False,
            is_kept=False,
        )
    except InputError as reason:  # files beside the copy are links to those beside the results
        raise InputError(str(reason).replace(f"{root}{os.sep}", "")) from None


def _drawn(left: Sequence[str], count: int, seed: int) -> tuple[str, ...]:
    chosen = np.random.default_rng(seed).permutation(len(left))[:count]
    return tuple(left[index] for index in sorted(chosen))


def _compared(
    results: Path, copy: Path, as_they_are: Collection[str], *, is_whole: bool
) -> Iterator[Verified]:
    """Every file of the results and of the copy, but for those that were read `as_they_are`."""
    names = sorted(
        {
            str(path.relative_to(folder))
            for folder in (results, copy)
            for path in folder.rglob("*")
            if path.is_file() and path.relative_to(folder).parts[0] not in _IGNORED
        }
    )
    for name in names:
        ours, recomputed = results / name, copy / name
        if not ours.exists():
            yield Verified(name, "missing", "it follows from the config and the shards")
        elif not recomputed.exists():
            if is_whole:
                yield Verified(name, "not of this config")
            else:
                yield Verified(name, "unverifiable", "it could not be recomputed")
        elif name not in as_they_are:
            yield _verified(name, ours, recomputed)


def _with_figures(files: Sequence[Verified]) -> tuple[Verified, ...]:
    """Figures do not say what they were drawn from: they are stale if anything else is."""
    is_stale = any(file.status == "stale" for file in files)
    return tuple(
        Verified(file.file, "stale", file.detail)
        if is_stale and file.status == "changed" and file.file.startswith("figures/")
        else file
        for file in files
    )


def _verified(name: str, ours: Path, recomputed: Path) -> Verified:
    if sha256_of_file(ours) == sha256_of_file(recomputed):
        return Verified(name, "same")
    is_product = name != "experiment.json" and not name.startswith("figures/")
    has_origin = is_product and ours.suffix in (".tsv", ".npz", ".json")
    try:
        if has_origin and {*origins_in(ours)} != {*origins_in(recomputed)}:
            return Verified(name, "stale", "it was made with other settings or inputs")
        kind = {".tsv": _tables, ".npz": _archives, ".json": _objects}.get(ours.suffix)
        detail, is_close = kind(ours, recomputed) if kind else ("it is drawn differently", False)
    except InputError as error:
        return Verified(name, "changed", str(error))
    if not detail:
        return Verified(name, "same")
    return Verified(name, "close" if is_close else "changed", detail)


def _tables(ours: Path, recomputed: Path) -> tuple[str, bool]:
    """What differs between two tables, whatever the order of their audits."""
    try:
        table, other = (_cells(path) for path in (ours, recomputed))
    except (ValueError, pd.errors.ParserError) as error:
        return f"it is no table: {error}", False
    if [*table.columns] != [*other.columns] or len(table) != len(other):
        return "its rows or columns differ", False
    if "audit" in table:
        table, other = (
            each.sort_values("audit", kind="stable", ignore_index=True) for each in (table, other)
        )
    differs = table != other
    if not differs.to_numpy().any():
        return "", True
    row, column = np.argwhere(differs.to_numpy())[0]
    name = table.columns[column]
    audit = f", audit {table['audit'].iloc[row]}" if "audit" in table else ""
    first, second = table.iloc[row, column], other.iloc[row, column]
    pairs = zip(table.to_numpy()[differs], other.to_numpy()[differs], strict=True)
    is_close = all(_close(a, b) for a, b in pairs)
    count = int(differs.to_numpy().sum())
    return f"{count} cells differ: {name}{audit}: {first}, and must be {second}", is_close


def _cells(path: Path) -> pd.DataFrame:
    # Those of figures, which nothing reads, have no checksum.
    text = path.read_text() if path.parent.name == "figures" else read_sealed_table(path)
    return pd.read_csv(io.StringIO(text), sep="\t", dtype=str, keep_default_na=False)


def _close(left: str, right: str) -> bool:
    """Whether two numbers differ as rounding makes them; counts and seeds are not rounded."""
    if left.isdecimal() and right.isdecimal():
        return left == right
    try:
        return bool(np.isclose(float(left), float(right), rtol=CLOSE, atol=0.0, equal_nan=True))
    except ValueError:
        return False


def _archives(ours: Path, recomputed: Path) -> tuple[str, bool]:
    (header, arrays), (other_header, others) = read_arrays(ours), read_arrays(recomputed)
    for document in (header, other_header):
        document.pop("seconds", None)  # that training took
    if header != other_header:
        keys = [
            key for key in {**header, **other_header} if header.get(key) != other_header.get(key)
        ]
        return f"its header differs in {', '.join(sorted(keys))}", False
    if arrays.keys() != others.keys():
        return "it has other arrays", False
    wrong = [
        name
        for name, values in arrays.items()
        if (values.shape, values.dtype) != (others[name].shape, others[name].dtype)
        or not np.array_equal(values, others[name], equal_nan=values.dtype.kind == "f")
    ]
    is_close = all(
        (arrays[name].shape, arrays[name].dtype) == (others[name].shape, others[name].dtype)
        and arrays[name].dtype.kind == "f"
        and _arrays_are_close(arrays[name], others[name])
        for name in wrong
    )
    return (f"numbers differ in {', '.join(wrong)}" if wrong else ""), is_close


def _arrays_are_close(left: NDArray[np.floating], right: NDArray[np.floating]) -> bool:
    """Whether all differences are small beside the array's largest number."""
    close = CLOSE if left.dtype == np.float64 else _CLOSE_SINGLE
    scale = np.max(np.abs(left), initial=0.0, where=np.isfinite(left))
    return bool(np.allclose(left, right, rtol=close, atol=close * scale, equal_nan=True))


def _objects(ours: Path, recomputed: Path) -> tuple[str, bool]:
    left, right = read_json(ours), read_json(recomputed)
    if as_json(left) == as_json(right):
        return "", True
    keys = [
        key
        for key in {**left, **right}
        if left.get(key) != right.get(key) and key not in (KEY, CHECKSUM)
    ]
    is_close = left.keys() == right.keys() and all(
        _close(str(left[k]), str(right[k])) for k in keys
    )
    return f"{', '.join(sorted(keys))} differ", is_close


def _note(results: Path, verification: Verification) -> None:
    """Says in the results what was found, of which summary."""
    noted: dict[str, Any] = {
        "when": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()) + " UTC",
        "exit_status": verification.exit_status,
        "files": len(verification.files),
        "replayed": [*verification.replayed],
    }
    if (results / "summary.tsv").exists():
        noted["summary"] = sha256_of_file(results / "summary.tsv")
    write_text(results / VERIFIED, as_json(noted) + "\n")
