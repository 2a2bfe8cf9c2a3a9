"""Files are written whole or not at all; damaged and foreign files are refused by name."""

import errno
import io
import json
import os
import pickle
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from dpcanary.core import files
from dpcanary.core import sealed_tables as sealed
from dpcanary.core.errors_in_words import explained
from dpcanary.core.provenance import origins_in
from dpcanary.core.tsv_tables import read_table, write_table
from dpcanary.data import canaries
from dpcanary.data.canaries import CanarySet, GradientCanary, InputCanary
from dpcanary.data.observations import Shard, read_shard, write_shard
from dpcanary.data.records import Records, Scaling, Split, read_split, write_split
from dpcanary.errors import InputError
from dpcanary.scoring.score_file import AuditScores, read_scores, write_scores
from dpcanary.training.pretraining import Pretrained, read_pretrained, write_pretrained
from dpcanary.training.simulated_trainings import Reference, read_reference, write_reference

ORIGIN = "accounting/a:0123456789abcdef"
RNG = np.random.default_rng(0)
RECORDS = Records(RNG.normal(size=(4, 3)).astype(np.float32), [0, 1, 0, 4])
SPLIT = Split(
    RECORDS, RECORDS[:2], RECORDS[1:], Scaling(RNG.normal(size=(1, 3)), np.ones((1, 3))),
    np.array([5, 2, 3, 9]), private_names=np.array(["a/1.png", "ä/2.png", "", "b.png"]),
)  # fmt: skip
RUNS = {"world": np.array([[0, 1], [1, 1]], np.uint8), "step": np.array([5, 10])}
SHARD = Shard(
    {"settings": {"a": 1}}, np.arange(2), observation=RNG.normal(size=(2, 2, 2)),
    test_accuracy=np.array([0.5, np.nan], np.float32), **RUNS,
)  # fmt: skip
SCORES = AuditScores(
    {"audit": "a"}, RUNS["step"], RNG.normal(size=(1, 2, 2, 2)), RUNS["world"][None],
    np.ones((1, 2), np.float32),
)  # fmt: skip
OF_INPUTS = InputCanary(np.float32([1, 2]), 3, 1), InputCanary(np.float32([0, 5]), 2, 0)
NOTES = ['has "quotes"', "two\nlines"]
TABLE = pd.DataFrame({"audit": ["a", "NA"], "note": NOTES, "x": [1.5, np.nan]})


class Kind(NamedTuple):
    write: Callable[[Path, Any], object]
    read: Callable[[Path], Any]
    value: Any
    suffix: str = ".npz"


def split(value: Split) -> Kind:
    settings = {"source": "digits"}
    return Kind(lambda path, value: write_split(path, value, settings=settings), read_split, value)


def of_canaries(*crafted: Any, labels: tuple[int, ...]) -> Kind:
    return Kind(canaries.write_canaries, canaries.read_canaries, CanarySet(crafted, labels))


FLOATS = np.float32([1, 2])
TEXTS = Records(["a text", "ein längerer Text", ""], [2, 0, 1])
OF_NUMBERS = Records(np.arange(6.0).reshape(3, 2), [0.5, -2.0, 1e6])
NUMBERS = Split(
    OF_NUMBERS, OF_NUMBERS[:1], OF_NUMBERS[:0], label_scaling=Scaling(np.ones(1), np.ones(1))
)
IMAGES = Records(RNG.integers(0, 256, (3, 3, 5, 4)).astype(np.uint8), [1, 0, 1])
KINDS = {
    "split": split(SPLIT),
    "split of numbers": split(NUMBERS),
    "split of texts": split(Split(TEXTS, TEXTS[1:], TEXTS[:0])),
    "split of images": split(Split(IMAGES, IMAGES[:0], IMAGES[1:])),
    "shard": Kind(write_shard, read_shard, SHARD),
    "scores": Kind(write_scores, read_scores, SCORES),
    "inputs": of_canaries(*OF_INPUTS, labels=(1, 0)),
    "gradients": of_canaries(GradientCanary(7, 2), labels=(4,)),
    "reference": Kind(write_reference, read_reference, Reference(FLOATS, np.array([0.5]))),
    "pretrained": Kind(
        lambda path, value: write_pretrained(path, Pretrained(value, 0.5)), read_pretrained, FLOATS
    ),
    "arrays": Kind(
        lambda path, value: files.write_arrays(path, header=value[0], arrays=value[1]),
        files.read_arrays,
        ({"a": [1, "é"], "origin": ORIGIN}, {"x": np.arange(3.0), "y": np.ones((2, 1), np.uint8)}),
    ),
    "table": Kind(write_table, read_table, TABLE, ".tsv"),
    "text": Kind(
        sealed.write_sealed_table, sealed.read_sealed_table, "name\nx\u2028y\x0bz\n", ".tsv"
    ),
    "object": Kind(
        sealed.write_sealed_object, sealed.read_sealed_object, {"noise": 1.25, "b": [1, "é"]},
        ".json",
    ),
}  # fmt: skip
ARCHIVES = [name for name, kind in KINDS.items() if kind.suffix == ".npz"]


def plain(value: Any) -> Any:
    """What can be compared: each array as its type, shape and bytes."""
    if isinstance(value, pd.DataFrame):
        return value.astype(object).where(value.notna(), None).to_dict("list")
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if is_dataclass(value):
        return {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def written(name: str, folder: Path) -> Path:
    kind = KINDS[name]
    path = folder / "new" / f"{name}{kind.suffix}"
    kind.write(path, kind.value)
    return path


def result_of(path: Path, read: Callable[[Path], Any]) -> Any:
    """What is read, or None if the file is refused by its name."""
    try:
        return plain(read(path))
    except InputError as error:
        if str(path) not in str(error):
            raise
        return None


class Exploit:
    def __reduce__(self):
        return (os.mkdir, ("exploited",))


OBJECTS = io.BytesIO()
np.savez(OBJECTS, x=np.array([Exploit()], dtype=object))
FOREIGN = [b"", b"\x80", b"a\tb\n1\t2\n", b'{"noise": 1.0}', pickle.dumps(Exploit())]


@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_comes_back_and_other_files_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, kind = written(name, tmp_path), KINDS[name]
    assert plain(kind.read(path)) == plain(kind.value)
    content = path.read_bytes()
    kind.write(path, kind.value)
    assert path.read_bytes() == content  # the same content is the same bytes
    for other, another in KINDS.items():
        is_alike = another.read is kind.read or {name, other} <= {"table", "text"}
        if not is_alike and name != "arrays":
            path.write_bytes(written(other, tmp_path / "other").read_bytes())
            assert result_of(path, kind.read) is None, other
    for foreign in (*FOREIGN, OBJECTS.getvalue()):
        path.write_bytes(foreign)
        for read in (kind.read, files.read_npz):
            assert result_of(path, read) is None, foreign
    assert not Path("exploited").exists()
    path.unlink()
    with pytest.raises(InputError, match=f"{path} does not exist"):
        kind.read(path)


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_lost_or_gained_or_changed_an_array_is_refused(name, tmp_path):
    path, read = written(name, tmp_path), KINDS[name].read
    whole = files.read_npz(path)
    for array in whole:
        lost = {key: value for key, value in whole.items() if key != array}
        for changed in (lost, {**whole, "z": np.zeros(3)}):
            np.savez(path, **changed)
            assert result_of(path, read) is None, array
    np.savez(path, **whole)
    assert result_of(path, read) == plain(KINDS[name].value)


def test_objects_without_a_checksum_or_a_number_are_refused(tmp_path, refuses):
    path = tmp_path / "a.json"
    for value in ({}, {"sigma": "1"}, {"sigma": True}):
        sealed.write_sealed_object(path, value)
        refuses(r"a\.json has no number sigma", sealed.read_number, path, "sigma")
    sealed.write_sealed_object(path, {"sigma": 2})
    assert sealed.read_number(path, "sigma") == 2.0
    other_value = path.read_text().replace(" 2", " 3")
    assert other_value != path.read_text()
    for text in (json.dumps({"sigma": 1.0}), other_value):
        path.write_text(text)
        with pytest.raises(InputError, match=r"a\.json was damaged or changed since it was writ"):
            sealed.read_number(path, "sigma")
    for text, message in (("[1]", "no JSON object"), ("{", "is not JSON")):
        path.write_text(text)
        refuses(message, files.read_json, path)


def test_names_stay_text(tmp_path):
    path, texts = tmp_path / "t.tsv", ["audit", "sweep", "configuration"]
    for name in ("NA", "null", "nan", "None", "007", "1e5", "true", "a b"):
        table = pd.DataFrame({key: [name] for key in texts} | {"step": [3]})
        write_table(path, table, origin=ORIGIN)
        assert read_table(path)[texts].to_numpy().tolist() == [[name] * 3]
    assert origins_in(path) == [ORIGIN]
    assert [*pd.read_csv(path, sep="\t").columns] == [*table.columns, "origin", "checksum"]
    with pytest.raises(InputError, match=r"has no column a, b; delete it and run again"):
        read_table(path, columns=("b", "step", "a"))


def test_splits_with_wrong_arrays_are_refused_by_name(tmp_path, refuses):
    path = written("split", tmp_path)
    own = files.read_arrays(path)[1]
    without = {key: own[key] for key in own if key != "test_labels"}
    for arrays, message in [
        (without, "holds no split dataset; delete it and run"),
        (own | {"labels": np.arange(3)}, "one per record"),
        (own | {"auxiliary_labels": np.zeros(2)}, "in all parts"),
    ]:
        files.write_arrays(path, header={"settings": {}}, arrays=arrays)
        refuses(f"{path}.*{message}", read_split, path)


def test_headers_and_shapes_are_read_alone(tmp_path, refuses):
    assert files.read_header(written("split", tmp_path)) == {"settings": {"source": "digits"}}
    path = tmp_path / "a.npz"
    arrays = {"x": np.zeros((3, 2, 5), np.float32), "y": np.arange(4)}
    files.write_arrays(path, header={"seed": 3}, arrays=arrays)
    assert files.read_header(path) == {"seed": 3}
    assert files.read_npz(path, names=("x",)).keys() == {"x"}
    assert [files.shape_in_npz(path, name) for name in "xy"] == [(3, 2, 5), (4,)]
    refuses("has no array 'z'", files.shape_in_npz, path, "z")
    np.savez(path, x=np.arange(4))
    for read in (files.read_header, files.read_arrays):
        refuses("was not written by dpcanary", read, path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, number):
    path = tmp_path / "x.txt"
    files.write_text(path, "old")
    full, limits = OSError(number, os.strerror(number)), resource.getrlimit(resource.RLIMIT_FSIZE)
    if number == errno.EFBIG:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))  # as by `ulimit -f`
    else:
        monkeypatch.setattr(files.os, "fsync", Mock(side_effect=full))
    try:
        with pytest.raises(InputError, match=r"cannot write .*x\.txt: .*; free some space"):
            files.write_text(path, "new" * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="cannot write"):  # in a folder that is a file
        files.write_text(path / "y.txt", "text")
    # As by writing to an open file, whose error names no file.
    free = "free some space, then run again: finished files are kept"
    assert explained(full) == f"{full.strerror}: {free}"
    assert explained(OSError(errno.EIO, "Input/output error")) is None


def test_what_a_killed_process_left_goes_when_its_file_is_written_again(tmp_path, monkeypatch):
    path = tmp_path / "a[1].npz"
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    host = re.sub(r"\W+", "-", platform.node())
    names = {
        "killed": f".a[1].npz.{host}.{killed.pid}-00ff00ff.part",
        "own": f".a[1].npz.{host}.{os.getpid()}-00ff00ff.part",
        "of another machine": f".a[1].npz.{host}x.{killed.pid}-00ff00ff.part",
        "of another file": f".b.npz.{host}.{killed.pid}-00ff00ff.part",
    }
    for name in names.values():
        (tmp_path / name).write_text("part")
    files.write_text(path, "whole")
    del names["killed"]
    assert {file.name for file in tmp_path.iterdir()} == {path.name, *names.values()}

    refused = Mock(side_effect=PermissionError(errno.EPERM, "Operation not permitted"))
    monkeypatch.setattr(files, "_remove_leftovers", refused)
    files.write_text(path, "whole again")
    assert path.read_text() == "whole again"


def test_a_temporary_file_of_this_process_is_recognised_later(tmp_path, monkeypatch):
    path, left = tmp_path / "a.txt", []

    def fail(file):
        [part] = tmp_path.iterdir()
        left.append(part.name)
        file.write(b"half")
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            files.write_atomically(path, fail)
        assert not [*tmp_path.iterdir()]
    # Two processes, or two threads of one, may write the same file.
    assert left[0] != left[1]
    assert f".{os.getpid()}-" in left[0]
    (tmp_path / left[0]).write_text("part")  # as if it had been killed then
    monkeypatch.setattr(files, "is_alive", lambda process: process != os.getpid())
    files.write_text(path, "whole")
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_little_memory_is_told_whoever_meets_it():
    for error in (
        MemoryError(),
        MemoryError("Unable to allocate 8.00 GiB for an array"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "site-packages/scipy/ndimage"),
        ImportError("libopenblas.so: failed to map segment from shared object"),
        ImportError("x.so: cannot create shared object descriptor: Cannot allocate memory"),
        ImportError("std::bad_alloc"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
    ):
        said = explained(error)
        assert said.startswith("out of memory")
        assert str(error) in said
    assert explained(ImportError("undefined symbol: cblas_dgemm")) is None
    assert explained(ValueError("std::bad_alloc")) is None
    assert explained(RuntimeError("CUDA error: an illegal memory access")) is None
