"""The base class of every fixed set of names that a config or a function takes."""

import re
from enum import StrEnum
from typing import NoReturn

from dpcanary.errors import InputError, suggestion


class Choice(StrEnum):
    """A fixed set of names. A function takes a member or its name; anything else is an error."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        kind = re.sub("(?<=[a-z])(?=[A-Z])", " ", cls.__name__).lower()
        raise InputError(f"unknown {kind} {value!r}: {suggestion(str(value), cls)}")
