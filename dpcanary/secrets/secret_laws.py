"""Uniform laws of secrets: codes of digits, bits, or words of a list."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from dpcanary.core.argument_checks import checked_count
from dpcanary.errors import InputError


class Purpose(IntEnum):
    """Streams of random numbers; see `dpcanary.core.randomness`."""

    SECRETS = 28
    CANDIDATES = 29
    PLACES_OF_SECRETS = 30


@dataclass(frozen=True)
class Law:
    """The uniform law of all sequences of `length` symbols.

    Attributes:
        symbols: at least two, all different.
        length: number of symbols of a value.
        separator: stands between symbols.
    """

    symbols: tuple[str, ...]
    length: int
    separator: str = ""

    def __post_init__(self) -> None:
        checked_count("length", self.length)
        if not all(isinstance(symbol, str) and symbol for symbol in self.symbols):
            raise InputError("symbols must be texts that are not empty")
        if len(self.symbols) < 2 or len({*self.symbols}) < len(self.symbols):
            raise InputError("a law needs at least two symbols, all of them different")
        # Otherwise two sequences may read alike, and their value would be likelier than others.
        if (
            self.length > 1
            and not self.separator
            and len({len(symbol) for symbol in self.symbols}) > 1
        ):
            raise InputError("symbols of several lengths need a separator")
        if self.length > 1 and self.separator and self.separator in "\0".join(self.symbols):
            raise InputError(f"a symbol contains the separator {self.separator!r}")
        # With "aa" between them, "ba" and "b" read as "b" and "ab" do.
        unclear = [
            symbol for symbol in self.symbols if self._first_separator(symbol) != len(symbol)
        ]
        if self.length > 1 and self.separator and unclear:
            raise InputError(
                f"the separator {self.separator!r} begins within symbol {unclear[0]!r}: choose one"
                " with no character that symbols have"
            )

    def _first_separator(self, symbol: str) -> int:
        """Where a separator begins first in a symbol and the separator after it."""
        return f"{symbol}{self.separator}".find(self.separator)

    @property
    def size(self) -> int:
        """The number of values, each of the same probability."""
        size: int = len(self.symbols) ** self.length
        return size

    def value(self, index: int) -> str:
        """The value with this index, from 0 to size - 1.

        Example:
            >>> digits(4).value(37)
            '0037'
        """
        parts = []
        for _ in range(self.length):
            index, part = divmod(index, len(self.symbols))
            parts.append(self.symbols[part])
        return self.separator.join(reversed(parts))

    def draw(self, generator: np.random.Generator) -> str:
        """A value, drawn by this generator."""
        parts = generator.integers(len(self.symbols), size=self.length)
        return self.separator.join(self.symbols[part] for part in parts.tolist())

    def has(self, value: str) -> bool:
        """Whether a value may be drawn."""
        if self.length == 1:
            return value in self.symbols
        if self.separator:
            parts = value.split(self.separator)
        else:
            width = len(self.symbols[0])
            parts = [value[start : start + width] for start in range(0, len(value), width)]
        return len(parts) == self.length and {*parts} <= {*self.symbols}

    def alternatives(self, value: str, count: int, generator: np.random.Generator) -> set[str]:
        """Other values, `count` of them: each such set has the same probability."""
        if 2 * count < self.size:  # few draws are in vain
            others: set[str] = set()
            while len(others) < count:
                others.add(self.draw(generator))
                others.discard(value)
            return others
        every = [
            value_of_law
            for value_of_law in map(self.value, range(self.size))
            if value_of_law != value
        ]
        if count == len(every):
            return {*every}
        return {every[index] for index in generator.permutation(len(every))[:count].tolist()}

    def to_json(self) -> dict[str, Any]:
        """What `of_json` reads."""
        return {"symbols": [*self.symbols], "length": self.length, "separator": self.separator}

    @classmethod
    def of_json(cls, content: dict[str, Any]) -> "Law":
        """The law that `to_json` describes."""
        return cls(tuple(content["symbols"]), content["length"], content["separator"])


def digits(length: int) -> Law:
    """Codes of decimal digits, such as a PIN.

    Example:
        >>> digits(6).size
        1000000
    """
    return Law(tuple("0123456789"), length)


def bits(length: int) -> Law:
    """Sequences of 0 and 1."""
    return Law(("0", "1"), length)


def words(words: Iterable[str], length: int = 1, separator: str = " ") -> Law:
    """Passphrases of words from a list; of one word, such as the arm of a trial.

    Example:
        >>> words(["treated", "control"]).size
        2
    """
    return Law(tuple(words), length, separator)
