"""How settings are declared.

A setting is a field of a class of keys, in the package that uses it: type, limits, default and
description as pydantic has them, and metadata of when it is used and how it is shown. The audit of
a config inherits all classes of keys, and a stage inherits its own.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dpcanary.core.argument_checks import NAME_PATTERN

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0, lt=1)]
SampleRate = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ClosedModel(BaseModel):
    """Settings: a frozen pydantic model that refuses unknown keys and does not convert types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    def to_json(self) -> str:
        """Compact JSON with sorted keys: the same settings always give the same text."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, eq=False)
class UsedIf:
    """Metadata of a key that only some audits use: which, by the whole audit."""

    condition: Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class Shown:
    """Metadata of a key that figures name.

    Attributes:
        words: a format of the value, such as `C = {:g}`, or the words for each value; by default
            the value itself without underscores.
        panel: whether it may tell panels apart.
        line: whether it may tell lines of one canary apart.
        axis: the label of the axis, if it may be the axis.
        common: whether it is named below a figure that does not show it.
        follows: keys of which one must be shown where audits of a figure differ in this one.
        of: which audits of a figure must agree in it, if it is not shown: `all`, those that do
            `training`, those of a `canary` that has it, or none.
    """

    words: str | Mapping[str, str] = ""
    panel: bool = False
    line: bool = False
    axis: str = ""
    common: bool = False
    follows: tuple[str, ...] = ()
    of: str = "training"


@dataclass(frozen=True)
class Offered:
    """Metadata of a name: an editor offers those that are known here, and accepts others."""

    names: Callable[[], list[str]]

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        """Lists the names when the schema is asked for, as plugins are looked up for that."""
        return {"anyOf": [{"enum": self.names()}, {"type": "string"}]}


@dataclass(frozen=True)
class Flag:
    """Metadata of a key that is an option of `dpcanary audit`.

    Attributes:
        panel: the group of options that it is listed in.
        name: of the option, if it is not that of the key.
    """

    panel: str
    name: str = ""


def metadata_of(model: type[ClosedModel], kind: type[Any]) -> dict[str, Any]:
    """The metadata of this kind, by the keys of a model that have it."""
    return {
        key: note
        for key, field in model.model_fields.items()
        for note in field.metadata
        if isinstance(note, kind)
    }
