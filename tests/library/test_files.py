"""Files are written whole or not at all; damaged and foreign files are refused."""

import errno
import os
import pickle
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpcanary import files
from dpcanary.errors import InputError, explained


def test_arrays_and_header_come_back(tmp_path):
    path = tmp_path / "new" / "x.npz"
    files.write_arrays(path, header={"a": [1, "é"]}, arrays={"x": np.arange(3.0)})
    header, arrays = files.read_arrays(path)
    assert header == {"a": [1, "é"]}
    np.testing.assert_array_equal(arrays["x"], np.arange(3.0))


def test_the_same_content_is_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        files.write_arrays(tmp_path / f"{name}.npz", header={}, arrays={"x": np.arange(3)})
    assert files.sha256_of_file(tmp_path / "a.npz") == files.sha256_of_file(tmp_path / "b.npz")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, number):
    path = tmp_path / "x.txt"
    files.write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*x\.txt: .*; free some space"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_really_refuses_more_bytes(tmp_path):
    """The operating system stops the write halfway, as on a full disk."""
    program = (
        "import sys, signal, numpy as np\n"
        "from pathlib import Path\n"
        "import resource\n"
        "from dpcanary.files import write_arrays\n"
        "from dpcanary.program import run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "run(lambda argv: write_arrays(Path(argv[0]), header={}, arrays={'x': np.ones(10_000)}))\n"
    )
    assert resource.RLIMIT_FSIZE is not None
    path = tmp_path / "x.npz"
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot write {path}:")
    assert "free some space" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        files.write_text(tmp_path / "file" / "x.txt", "text")


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def interrupted(file) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(tmp_path / "x", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_truncated_files_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    files.write_arrays(path, header={}, arrays={"x": np.arange(1000)})
    whole = path.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"x\.npz"):
            files.read_arrays(path)


def test_a_file_that_lost_or_gained_an_array_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    files.write_arrays(path, header={"seed": 3}, arrays={"x": np.arange(4), "y": np.ones(2)})
    whole = files.read_npz(path)
    lost = {name: array for name, array in whole.items() if name != "y"}
    for changed in (lost, {**whole, "z": np.zeros(3)}):
        np.savez(path, **changed)
        with pytest.raises(InputError, match=r"x\.npz does not hold the arrays that were written"):
            files.read_arrays(path)
    np.savez(path, **whole)
    assert files.read_arrays(path)[1].keys() == {"x", "y"}


def test_flipped_bytes_are_noticed(tmp_path):
    path = tmp_path / "x.npz"
    files.write_arrays(path, header={}, arrays={"x": np.zeros(1000)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="not a whole"):
        files.read_arrays(path)


class Exploit:
    def __reduce__(self):
        return (os.mkdir, ("exploited",))


def test_pickles_are_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "object.npz", x=np.array([Exploit()], dtype=object))
    Path("plain.npz").write_bytes(pickle.dumps(Exploit()))
    for name in ("object.npz", "plain.npz"):
        with pytest.raises(InputError, match=name):
            files.read_npz(tmp_path / name)
    assert not Path("exploited").exists()


def test_missing_and_foreign_files_are_named(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        files.read_npz(tmp_path / "none.npz")
    np.savez(tmp_path / "foreign.npz", x=np.arange(3))
    with pytest.raises(InputError, match="was not written by dpcanary"):
        files.read_arrays(tmp_path / "foreign.npz")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(InputError, match="no JSON object"):
        files.read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        files.read_json(tmp_path / "x.json")


def test_the_shape_of_an_array_is_read_without_the_array(tmp_path):
    path = tmp_path / "a.npz"
    files.write_arrays(
        path, header={}, arrays={"x": np.zeros((3, 2, 5), np.float32), "y": np.arange(4)}
    )
    assert files.shape_in_npz(path, "x") == (3, 2, 5)
    assert files.shape_in_npz(path, "y") == (4,)
    with pytest.raises(InputError, match="has no array 'z'"):
        files.shape_in_npz(path, "z")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="is not a whole"):
        files.shape_in_npz(path, "x")


def test_a_header_is_read_alone(tmp_path):
    path = tmp_path / "a.npz"
    files.write_arrays(path, header={"seed": 3}, arrays={"x": np.arange(4)})
    assert files.read_header(path) == {"seed": 3}
    assert files.read_npz(path, names=("x",)).keys() == {"x"}
    np.savez(path, x=np.arange(4))
    with pytest.raises(InputError, match="was not written by dpcanary"):
        files.read_header(path)


def test_what_a_killed_process_left_goes_when_its_file_is_written_again(tmp_path):
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
    assert {one.name for one in tmp_path.iterdir()} == {path.name, *names.values()}


def test_leftovers_that_cannot_be_removed_spare_the_file(tmp_path, monkeypatch):
    def refused(_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(files, "_remove_leftovers", refused)
    files.write_text(tmp_path / "a.txt", "whole")
    assert (tmp_path / "a.txt").read_text() == "whole"


def test_a_temporary_file_of_this_process_is_recognised_later(tmp_path, monkeypatch):
    """The name that is written is the one that is looked for."""
    path, left = tmp_path / "a.txt", []

    def fail(file):
        [part] = tmp_path.iterdir()
        left.append(part.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, fail)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(path, fail)
    # Two processes, or two threads of one, may write the same file.
    assert left[0] != left[1]
    assert f".{os.getpid()}-" in left[0]
    (tmp_path / left[0]).write_text("part")  # as if it had been killed then
    monkeypatch.setattr(files, "is_alive", lambda process: process != os.getpid())
    files.write_text(path, "whole")
    assert [one.name for one in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_also_where_no_file_is_named(number):
    """As by writing to an open one."""
    said = explained(OSError(number, os.strerror(number)))
    assert (
        said == f"{os.strerror(number)}: free some space, then run again: finished files are kept"
    )
    assert explained(OSError(errno.EIO, "Input/output error")) is None


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 8.00 GiB for an array"),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "site-packages/scipy/ndimage"),
        ImportError("libopenblas.so: failed to map segment from shared object"),
        ImportError("libopenblas.so: cannot allocate memory in static TLS block"),
        ImportError("x.so: cannot create shared object descriptor: Cannot allocate memory"),
        ImportError("std::bad_alloc"),
    ],
)
def test_little_memory_is_told_whoever_meets_it(error):
    said = explained(error)
    assert said is not None
    assert said.startswith("out of memory")
    assert str(error) in said


def test_other_errors_of_an_import_are_not_of_memory():
    assert explained(ImportError("undefined symbol: cblas_dgemm")) is None
    assert explained(ValueError("std::bad_alloc")) is None
