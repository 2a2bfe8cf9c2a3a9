"""A release: an archive of what training has left of an experiment, from which all else is made.

It is a `.zip` whose members are stored as they are, in the order of their names and without dates:
the same results give the same bytes, and no member is larger than the archive. `manifest.json` has
the hash and the origin (see `provenance`) of each member.
"""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
from pydantic import ValidationError

from dpcanary.core.argument_checks import Choice
from dpcanary.core.files import reading, sha256_of_file, write_atomically
from dpcanary.core.provenance import KEY, listed
from dpcanary.core.setting_fields import ClosedModel, Name, Sha256
from dpcanary.errors import InputError
from dpcanary.version import VERSION

FORMAT = "dpcanary-release-1"
MANIFEST, CONFIG = "manifest.json", "config.yaml"
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that the format knows
_PERMISSIONS = 0o100644 << 16
_UNIX = 3
_MOST_BYTES_OF_MANIFEST = 2**26
# What may be unpacked: `<folder>/<name>` below the results, and nothing above or beside them.
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAMES = re.compile(
    rf"noise/{_PART}\.json|(canaries|scores)/{_PART}\.npz|shards/{_PART}/[0-9]+\.npz"
)
_REMEDY = "fetch the archive again, or make it again by `dpcanary release`"


class Released(Choice):
    """What a release holds.

    Attributes:
        SCORES: of each audit.
        SHARDS: raw observations of the runs, and the canaries that they are scored with.
    """

    SCORES = "scores"
    SHARDS = "shards"


class Member(ClosedModel):
    """A file of a release; the config that is in it has no origin."""

    name: str
    sha256: Sha256
    origin: str = ""


class Manifest(ClosedModel):
    """What a release says of itself.

    Attributes:
        format: of the archive.
        version: of dpcanary, that made it.
        experiment: its name.
        holds: what of training.
        files: all members but the manifest, in the order of their names.
    """

    format: str
    version: str
    experiment: Name
    holds: Released
    files: tuple[Member, ...]


def write_release(
    path: Path,
    *,
    experiment: str,
    holds: Released,
    config: str,
    files: Mapping[str, Path],
    origins: Mapping[str, str],
) -> None:
    """Writes a release atomically.

    Args:
        path: of the archive.
        experiment: its name.
        holds: what of training.
        config: text of a config that runs from the archive.
        files: by member.
        origins: by path; see `provenance`.
    """
    hashes = {name: sha256_of_file(file) for name, file in files.items()}
    hashes[CONFIG] = _sha256(config.encode())
    members = tuple(
        Member(name=name, sha256=hashes[name], origin=origins.get(name, ""))
        for name in sorted(hashes)
    )
    manifest = Manifest(
        format=FORMAT, version=VERSION, experiment=experiment, holds=holds, files=members
    )
    texts = {
        CONFIG: config,
        MANIFEST: json.dumps(manifest.model_dump(mode="json"), indent=1) + "\n",
    }

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted([*files, *texts]):
                content = texts[name].encode() if name in texts else files[name].read_bytes()
                if name in files and _sha256(content) != hashes[name]:
                    raise InputError(f"{files[name]} changes while it is read; run again")
                entry = zipfile.ZipInfo(name, _DATE)
                entry.create_system, entry.external_attr = _UNIX, _PERMISSIONS
                archive.writestr(entry, content)

    write_atomically(path, write)


class Release:
    """An archive that is open. Its manifest fits its members, whose content is not yet compared."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        """Takes a path for messages, and the archive; see `open_release`."""
        self._path, self._archive = path, archive
        entries = archive.infolist()
        names = [entry.filename for entry in entries]
        if len({*names}) < len(names):
            raise self._wrong("has a member twice")
        for entry in entries:
            is_stored = entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1
            if not is_stored or entry.compress_size != entry.file_size:
                raise self._wrong(f"has {entry.filename!r} in another form than dpcanary writes")
        self.manifest = self._read_manifest(names)
        listed_names = [member.name for member in self.manifest.files]
        self._members = {member.name: member for member in self.manifest.files}
        if len(self._members) < len(listed_names):
            raise self._wrong("lists a member twice")
        for name in sorted({*names} ^ {*listed_names, MANIFEST}):
            how = "has {!r}, which its manifest does not list" if name in names else "lacks {!r}"
            raise self._wrong(how.format(name))
        for name in self.origins:
            if not _NAMES.fullmatch(name):
                raise self._wrong(f"has {name!r}, which is no file of a release")

    def _read_manifest(self, names: Sequence[str]) -> Manifest:
        if MANIFEST not in names:
            raise self._wrong(f"has no {MANIFEST}")
        if self._archive.getinfo(MANIFEST).file_size > _MOST_BYTES_OF_MANIFEST:
            raise self._wrong(f"has a {MANIFEST} of more than {_MOST_BYTES_OF_MANIFEST} bytes")
        try:
            manifest = Manifest.model_validate_json(self._archive.read(MANIFEST))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise self._wrong(f"has a {MANIFEST} that is wrong: {place}: {first['msg']}") from None
        if manifest.format != FORMAT:
            raise self._wrong(f"has format {manifest.format!r}, not {FORMAT!r}")
        return manifest

    @property
    def origins(self) -> dict[str, str]:
        """The origin of each file that is unpacked, by its path below the results."""
        return {name: member.origin for name, member in self._members.items() if name != CONFIG}

    def check(self, expected: Mapping[str, str]) -> None:
        """Compares files and origins with those that a config needs.

        Raises:
            InputError: if the archive is of another experiment, or of other settings.
        """
        for name in sorted(expected.keys() | self.origins.keys()):
            if name not in self.origins:
                raise self._of_another(f"lacks {name}")
            if name not in expected:
                raise self._of_another(f"has {name}, which is not of this config")
            if self.origins[name] != expected[name]:
                raise self._of_another(
                    f"has a {name} that was made with other settings, or from other inputs, than"
                    " those of this config"
                )

    def unpack(self, folder: Path, *, members: Sequence[str] | None = None) -> None:
        """Writes all files, after all were compared with their hashes and origins.

        Args:
            folder: of the results.
            members: the origins of all files in the order of their names; see `listed`. None if
                they are not known.

        Raises:
            InputError: if anything is damaged or of something else. Then nothing is written.
        """
        in_order = [origin for _, origin in sorted(self.origins.items())]
        if members is not None and listed(in_order) != tuple(members):
            raise self._of_another("was made with other settings than those of this config")
        for name in self.origins:
            self._content(name)
        for name in self.origins:
            write_atomically(folder / name, partial(_write, content=self._content(name)))

    def _content(self, name: str) -> bytes:
        content = self._archive.read(name)
        member = self._members[name]
        if _sha256(content) != member.sha256:
            raise self._wrong(f"has a {name} with another hash than its manifest says")
        if _origin_in(name, content) != member.origin:
            raise self._wrong(f"has a {name} of another origin than its manifest says")
        return content

    def _wrong(self, how: str) -> InputError:
        return InputError(f"{self._path} {how}: {_REMEDY}")

    def _of_another(self, how: str) -> InputError:
        return InputError(
            f"{self._path} {how}: it is the release of another experiment; use the config that was"
            " released with it"
        )


@contextmanager
def open_release(path: Path, *, sha256: str | None = None) -> Iterator[Release]:
    """Opens a release for reading.

    Args:
        path: of the archive.
        sha256: that it must have; None if this is not known.

    Raises:
        InputError: if it is missing, damaged, another one, or no release.
    """
    # The file that is compared is the one that is read.
    with (
        reading(path, what="is not a whole release of dpcanary", remedy=_REMEDY),
        path.open("rb") as file,
    ):
        if sha256:
            check_hash(path, hashlib.file_digest(file, "sha256").hexdigest(), sha256)
        with zipfile.ZipFile(file) as archive:
            yield Release(path, archive)


def check_hash(path: Path, sha256: str, stated: str) -> None:
    """Compares the hash of an archive with the one that a config states."""
    if sha256 != stated:
        raise InputError(
            f"{path} has sha256 {sha256}, and the config's archive_sha256 is {stated}: it was"
            f" damaged or changed, or is another release; {_REMEDY}"
        )


def _origin_in(name: str, content: bytes) -> str:
    """The origin that a member states."""
    if name.endswith(".npz"):
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            content = arrays["header"].tobytes()
    return str(json.loads(content).get(KEY, ""))


def _write(file: IO[bytes], content: bytes) -> None:
    file.write(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
