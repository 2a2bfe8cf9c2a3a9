"""What a file of results is: its name, and a digest of its settings and of what it was made from.

A product says its origin: in the header of an `.npz`, as a key of a `.json`, in the column `origin`
of a `.tsv`, in a text of a `.png`. A job knows the origins that its inputs must have, and refuses
others: a file that is valid, but of another audit or of other settings, must not become a number.
"""

import csv
import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from dpcanary.core.files import read_header, read_json, reading, sha256_of_file, sha256_of_text
from dpcanary.core.sealed_tables import read_sealed_object, read_sealed_table
from dpcanary.core.setting_fields import ClosedModel
from dpcanary.errors import InputError

KEY = "origin"
# The keyword of a caption in a PNG file, by the PNG specification.
DESCRIPTION = "Description"
# Beside results: what `dpcanary verify` found, and of which summary.
VERIFIED = "verified.json"
# What describes them for an archive; the name is that of the standard.
CRATE = "ro-crate-metadata.json"
_DIGITS = 16  # of the digest: no two products meet by chance
# A PNG file's signature; the size and kind of a chunk; the bytes of its checksum.
_PNG, _CHUNK, _CHECKSUM = b"\x89PNG\r\n\x1a\n", struct.Struct(">I4s"), 4
_MOST_LISTED = 200
_MANY = "many"


def as_json(settings: Mapping[str, Any]) -> str:
    """Settings that were read from a file, as `ClosedModel.to_json` writes them."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))


def origin_of(name: str, *, settings: str, inputs: Mapping[str, Sequence[str]]) -> str:
    """The origin of a product, `name:digest`; its inputs are origins by role."""
    roles = [f"{role} {' '.join(origins)}" for role, origins in sorted(inputs.items())]
    digest = sha256_of_text("\n".join([name, settings, *roles]))
    return f"{name}:{digest[:_DIGITS]}"


def listed(origins: Sequence[str]) -> tuple[str, ...]:
    """Origins for a command line, which has an end: of many, a digest of all."""
    if len(origins) <= _MOST_LISTED:
        return tuple(origins)
    return (f"{_MANY}:{sha256_of_text(' '.join(origins))[:_DIGITS]}",)


class Job(ClosedModel):
    """What a job makes and reads; every program of the workflow gets it as `--job`.

    Attributes:
        origin: of what it makes.
        inputs: by role, the origins of what it reads, in the order of the files; see `listed`.
    """

    origin: str = ""
    inputs: dict[str, tuple[str, ...]] = Field({})

    def check(self, role: str, files: Path | Sequence[Path] | None) -> None:
        """Compares the origins of files with those that they must have."""
        paths = [files] if isinstance(files, Path) else [*(files or ())]
        expected = [*self.inputs.get(role, ())]
        origins = [(path, origin) for path in paths for origin in origins_in(path)]
        if expected and expected[0].startswith(f"{_MANY}:"):
            if expected == [*listed([origin for _, origin in origins])]:
                return
            raise InputError(
                f"{role}: one of {len(origins)} products, from {origins[0][0]} on, is of another"
                " audit or was made with other settings: delete these files and run again"
            )
        for (path, origin), expected_origin in zip(origins, expected, strict=False):
            check_origin(path, origin, expected_origin)
        if len(origins) != len(expected):
            named = ", ".join(map(str, paths)) or "no file"
            raise InputError(
                f"{role}: {named} holds {len(origins)} products where {len(expected)} are needed;"
                " delete it and run again"
            )


def check_origin(path: Path, recorded: str | None, expected: str) -> None:
    """Compares the origin that a file states with the one that it must have."""
    if recorded == expected:
        return
    if not recorded:
        raise InputError(
            f"{path} does not say what it was made from: it is of an older version of dpcanary, or"
            " of something else; delete it and run again"
        )
    name, wanted_name = (origin.partition(":")[0] for origin in (recorded, expected))
    if name != wanted_name:
        raise InputError(
            f"{path} is {name}, not {wanted_name}: put the right file back, or delete it and run"
            " again"
        )
    raise InputError(
        f"{path} was made with other settings, or from other inputs, than those of this config;"
        " delete it and run again"
    )


def origins_in(path: Path) -> list[str]:
    """The origins that a file states: one, or in a summary one for each audit, in their order."""
    if path.suffix == ".tsv":
        return _origins_in_table(path)
    header = read_sealed_object(path) if path.suffix == ".json" else read_header(path)
    return [str(header.get(KEY, ""))]


def _origins_in_table(path: Path) -> list[str]:
    # Not by pandas: jobs that read no table must not wait for it.
    rows = csv.DictReader(io.StringIO(read_sealed_table(path)), delimiter="\t")
    with reading(path, what="is not a table", remedy="delete it and run again"):
        return [*dict.fromkeys(row.get(KEY) or "" for row in rows)]


def text_of_png(path: Path, key: str = KEY) -> str:
    """A text that a figure carries: what it is of an experiment, or its caption; empty if none.

    It is in a chunk `tEXt` of the PNG file, or in one `iTXt` where Latin-1 lacks its letters; see
    the PNG specification, sections 5.3 and 11.3.
    """
    content = path.read_bytes()
    if not content.startswith(_PNG):
        return ""
    start = len(_PNG)
    while start + _CHUNK.size <= len(content):
        size, kind = _CHUNK.unpack_from(content, start)
        start += _CHUNK.size
        keyword, _, text = content[start : start + size].partition(b"\0")
        if kind == b"tEXt" and keyword == key.encode():
            return text.decode("latin-1")
        if kind == b"iTXt" and keyword == key.encode():
            # Two bytes on compression, which is not used, then a language and a translated key.
            with reading(path, what="is damaged", remedy="delete it and run again"):
                return text[2:].split(b"\0", 2)[2].decode()
        start += size + _CHECKSUM
    return ""


def verified_in_words(results: Path) -> str:
    """When and how the summary that is in a folder was verified; empty if it was not."""
    if not (results / VERIFIED).exists():
        return ""
    noted = read_json(results / VERIFIED)
    if noted.get("exit_status") != 0 or noted.get("summary") != sha256_of_file(
        results / "summary.tsv"
    ):
        return ""
    replayed = len(noted.get("replayed", []))
    return f"{noted.get('when')}: {noted.get('files')} files recomputed, {replayed} retrained"
