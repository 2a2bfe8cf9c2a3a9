"""Tables and objects with a checksum: every change of a byte is noticed, and named."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpcanary.errors import InputError
from dpcanary.provenance import origins_in
from dpcanary.sealed import (
    read_number,
    read_sealed_object,
    read_sealed_table,
    write_sealed_object,
    write_sealed_table,
)
from dpcanary.tables import read_table, write_table

TABLES = {
    "numbers": pd.DataFrame({"audit": ["a", "b"], "epsilon": [9.999, np.nan]}),
    "texts": pd.DataFrame({"audit": ["a", "b"], "note": ['has "quotes"', "and two\nlines"]}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_comes_back_and_any_other_reader_sees_one_more_column(tmp_path, name):
    path = tmp_path / "table.tsv"
    write_table(path, TABLES[name], origin="accounting/a:0123456789abcdef")
    found = read_table(path).drop(columns="origin")
    expected = TABLES[name]
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    assert origins_in(path) == ["accounting/a:0123456789abcdef"]
    assert [*pd.read_csv(path, sep="\t").columns][-2:] == ["origin", "checksum"]


def everything_done_to(content: bytes):
    """Each bit of the bytes flipped, each cut, each line left out or twice, and more at the end."""
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            yield bytes(changed)
        yield content[:place]
    lines = content.splitlines(keepends=True)
    for place, line in enumerate(lines):
        yield b"".join([*lines[:place], *lines[place + 1 :]])
        yield b"".join([*lines[:place], line, *lines[place:]])
    yield b"".join([lines[0], *lines[:0:-1]])
    for more in (b"\n", b" ", b"a\t1\n", b"\0"):
        yield content + more


def refuses(path: Path, read) -> bool:
    try:
        read(path)
    except InputError as error:
        return str(path) in str(error)
    return False


def test_whatever_is_done_to_a_table_is_noticed(tmp_path):
    path = tmp_path / "table.tsv"
    write_table(path, TABLES["numbers"], origin="accounting/a:0123456789abcdef")
    content = path.read_bytes()
    tried = [*everything_done_to(content)]
    assert len(tried) > 8 * len(content)
    for changed in tried:
        path.write_bytes(changed)
        if changed != content:
            assert refuses(path, read_sealed_table), changed
            assert refuses(path, origins_in), changed


def test_whatever_is_done_to_an_object_is_noticed_or_says_the_same(tmp_path):
    path = tmp_path / "noise.json"
    values = {"noise_multiplier": 1.25, "origin": "noise/a:0123456789abcdef"}
    write_sealed_object(path, values)
    assert read_sealed_object(path) == values
    assert read_number(path, "noise_multiplier") == 1.25
    for changed in everything_done_to(path.read_bytes()):
        path.write_bytes(changed)
        if not refuses(path, read_sealed_object):
            assert read_sealed_object(path) == values, changed


def test_files_without_a_checksum_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("audit\tepsilon\na\t1\n")
    assert refuses(tmp_path / "a.tsv", read_table)
    (tmp_path / "a.json").write_text(json.dumps({"noise_multiplier": 1.0}))
    assert refuses(tmp_path / "a.json", lambda path: read_number(path, "noise_multiplier"))


def test_a_number_must_be_there(tmp_path):
    for values in ({}, {"sigma": "1"}, {"sigma": True}):
        write_sealed_object(tmp_path / "a.json", values)
        with pytest.raises(InputError, match=r"a\.json has no number sigma"):
            read_number(tmp_path / "a.json", "sigma")


def test_line_ends_of_other_kinds_stay(tmp_path):
    write_sealed_table(tmp_path / "a.tsv", "name\nx\u2028y\x0bz\n")
    assert read_sealed_table(tmp_path / "a.tsv") == "name\nx\u2028y\x0bz\n"
