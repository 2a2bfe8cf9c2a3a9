"""The catalogue of downloads: address, size, hash, licence and citation of each file."""

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from dpcanary.core.setting_fields import ClosedModel, Sha256
from dpcanary.errors import InputError, suggestion


class Entry(ClosedModel):
    """A file to download."""

    url: str = Field(pattern="^[a-z]+://", description="its address")
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="its local name")
    bytes: Annotated[int, Field(gt=0)] | None = Field(description="its size; null if unknown")
    sha256: Sha256 | None = Field(
        description="its hash; null if unknown: the lock file then records the first one seen"
    )
    licence: str = Field(description="the terms of its use")
    citation: str = Field(description="the publication to cite")


_CATALOGUE = TypeAdapter(dict[str, Entry])


def read_catalogue(path: Path) -> dict[str, Entry]:
    """Reads the entries, by source."""
    try:
        entries = _CATALOGUE.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {error}") from None
    except ValidationError as error:
        wrong = [f"{path}: {'.'.join(map(str, at['loc']))}: {at['msg']}" for at in error.errors()]
        raise InputError("\n".join(wrong)) from None
    files = [entry.file for entry in entries.values()]
    for file in files:
        if files.count(file) > 1:
            raise InputError(f"{path}: file: two sources have the name {file}; rename one")
    return entries


def entry_of(source: str, catalogue: dict[str, Entry]) -> Entry:
    """The entry of a source."""
    if source not in catalogue:
        raise InputError(f"no download for source {source!r}; {suggestion(source, catalogue)}")
    return catalogue[source]
