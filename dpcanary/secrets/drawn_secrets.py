"""Secrets: drawn before training, kept in a file of their own, ranked afterwards."""

import json
import secrets as system
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from string import Formatter
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.core.argument_checks import checked_count
from dpcanary.core.files import read_json, sha256_of_text, write_new_and_private
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError
from dpcanary.secrets.predictors import check_column, checked_cells
from dpcanary.secrets.ranking import Candidates, Ranking, Score, rank_of_truth
from dpcanary.secrets.secret_laws import Law, Purpose

Table = TypeVar("Table", pd.DataFrame, NDArray[Any])
Sampler = Callable[[np.random.Generator], str]
_FORMAT = 1
_MOST_BY_DEFAULT = 10_000
_OF_SAMPLERS = 1_000


@dataclass(frozen=True)
class Secrets:
    """Secrets of the training data whose law is known. `draw`, `of_values` and `read` make them.

    Each is one of `num_candidates` values, each with the same probability whatever all else is. If
    a training reveals which, that bounds its epsilon from below.

    Attributes:
        values: the secrets, shape (m,).
        num_candidates: k, fixed before training.
        law: uniform, from which candidates are drawn; None for a sampler of the user's.
        alternatives: of a sampler: the k - 1 other candidates of each secret.
        template: a text with `{secret}`, and `{index}` or `{name}` if there are several secrets.
        names: for `{name}`, one for each secret.
        seed: of candidates and of places in the data; of the secrets too, if they are drawn here.
        origin: `drawn` here, or `given` by a user who knows their law.
        time: when this object was made, by this machine's clock, in UTC.
    """

    values: tuple[str, ...]
    num_candidates: int
    law: Law | None
    alternatives: tuple[tuple[str, ...], ...]
    template: str
    names: tuple[str, ...]
    seed: int
    origin: str
    time: str

    @classmethod
    def draw(
        cls,
        law: Law | Sampler,
        count: int = 1,
        *,
        template: str = "",
        names: Iterable[str] = (),
        num_candidates: int | None = None,
        seed: int | None = None,
    ) -> "Secrets":
        """Draws secrets.

        Args:
            law: of `digits`, `bits` or `words`, or a function that draws a value with a NumPy
                generator. Candidates of such a function are further draws of it.
            count: number of secrets.
            template: of the records that will hold the secrets, for texts.
            names: for `{name}` in the template.
            num_candidates: k. By default all values, at most 10,000, and 1,000 for a function. The
                bound is for this k.
            seed: by default from the operating system. Choose a seed only to repeat an experiment:
                whoever knows it knows the secrets.

        Raises:
            InputError: if an argument is out of range, or the template does not distinguish the
                secrets.

        Example:
            >>> from dpcanary.secrets import digits
            >>> secrets = Secrets.draw(digits(4), template="The code is {secret}.", seed=0)
            >>> [record] = secrets.records()
            >>> len(record), secrets.num_candidates
            (17, 10000)
        """
        key = _checked_seed(seed)
        draw = law.draw if isinstance(law, Law) else law
        values = [
            _checked_value(draw(generator(seed=key, purpose=Purpose.SECRETS, index=index)))
            for index in range(checked_count("count", count))
        ]
        return cls._with_candidates(values, law, template, names, num_candidates, key, "drawn")

    @classmethod
    def of_values(
        cls,
        values: Iterable[object],
        law: Law | Sampler,
        *,
        template: str = "",
        names: Iterable[str] = (),
        num_candidates: int | None = None,
        seed: int | None = None,
    ) -> "Secrets":
        """Secrets that stand in data already, drawn by a known law, such as the arms of a trial.

        Args:
            values: the true ones, as text or to be made text.
            law: see `draw`. It must be the one that the values were drawn by, independently of
                each other and of everything that the attack knows.
            template: see `draw`.
            names: see `draw`.
            num_candidates: see `draw`.
            seed: of the candidates.

        Raises:
            InputError: if the law does not have a value, or as in `draw`.
        """
        texts = [str(value) for value in values]
        if isinstance(law, Law) and (strange := [text for text in texts if not law.has(text)]):
            raise InputError(f"the value {strange[0]!r} cannot have been drawn by this law")
        key = _checked_seed(seed)
        return cls._with_candidates(texts, law, template, names, num_candidates, key, "given")

    @classmethod
    def _with_candidates(
        cls,
        values: Sequence[str],
        law: Law | Sampler,
        template: str,
        names: Iterable[str],
        num_candidates: int | None,
        seed: int,
        origin: str,
    ) -> "Secrets":
        named = tuple(names)
        _check_template(template, named, len(values))
        alternatives: tuple[tuple[str, ...], ...] = ()
        if isinstance(law, Law):
            count = min(law.size, _MOST_BY_DEFAULT) if num_candidates is None else num_candidates
            if checked_count("num_candidates", count, least=2) > law.size:
                raise InputError(f"num_candidates is {count:,}; the law has {law.size:,} values")
        else:
            count = _OF_SAMPLERS if num_candidates is None else num_candidates
            others = checked_count("num_candidates", count, least=2) - 1
            alternatives = tuple(
                _drawn(law, others, generator(seed=seed, purpose=Purpose.CANDIDATES, index=index))
                for index in range(len(values))
            )
        time = datetime.now(UTC).isoformat(timespec="seconds")
        own_law = law if isinstance(law, Law) else None
        return cls(tuple(values), count, own_law, alternatives, template, named, seed, origin, time)

    @property
    def digest(self) -> str:
        """SHA-256 of all of it. Publish it before training; it reveals nothing of the secrets.

        That holds if the seed is from the operating system: 128 random bits are part of the text.
        """
        return sha256_of_text(_canonical(self._body()))

    def write(self, path: Path | str) -> None:
        """Writes a file, which must not exist yet. Keep it apart from the training data.

        No other user may read it.
        """
        content = {"secrets": self._body(), "sha256": self.digest}
        text = f"{json.dumps(content, indent=1, ensure_ascii=False)}\n"
        if not write_new_and_private(Path(path), text):
            raise InputError(
                f"{path} exists: secrets that were drawn are not replaced; choose another file"
            )

    @classmethod
    def read(cls, path: Path | str, *, digest: str | None = None) -> "Secrets":
        """Reads a file of `write`.

        Args:
            path: of the file.
            digest: that was published before training, to be compared.

        Raises:
            InputError: if the file is missing, is not of this kind, or was changed.
        """
        content = read_json(Path(path))
        body = content.get("secrets")
        if not isinstance(body, dict) or body.get("format") != _FORMAT:
            raise InputError(f"{path} is no file of secrets, or is of another version of dpcanary")
        actual, written = sha256_of_text(_canonical(body)), content.get("sha256")
        # As `Ranking.write` and other programs write it.
        committed = written if digest is None else digest.strip().lower().removeprefix("sha256:")
        if committed != actual:
            raise InputError(
                f"{path} was changed since the secrets were drawn: its hash is {actual}, and"
                f" {committed} was committed to; its bounds show nothing"
            )
        if written != actual:
            raise InputError(
                f"{path} was changed since the secrets were drawn: its hash is {actual}, and it"
                f" says {written}; the secrets are those that were committed to"
            )
        law = None if body["law"] is None else Law.of_json(body["law"])
        alternatives = tuple(tuple(row) for row in body["alternatives"])
        return cls(
            tuple(body["values"]), body["num_candidates"], law, alternatives, body["template"],
            tuple(body["names"]), int(body["seed"], 16), body["origin"], body["time"],
        )  # fmt: skip

    def _body(self) -> dict[str, Any]:
        return {
            "format": _FORMAT,
            "values": [*self.values],
            "num_candidates": self.num_candidates,
            "law": None if self.law is None else self.law.to_json(),
            "alternatives": [[*row] for row in self.alternatives],
            "template": self.template,
            "names": [*self.names],
            "seed": f"{self.seed:x}",
            "origin": self.origin,
            "time": self.time,
        }

    def filled(self, index: int, value: str) -> str:
        """The template of a secret with a value; the value itself without a template."""
        if not self.template:
            return value
        name = self.names[index] if self.names else ""
        return self.template.format(secret=value, index=index, name=name)

    def records(self, *, copies: int = 1) -> list[str]:
        """The texts to be trained on, each secret `copies` times.

        A bound is then one for groups of so many records: compare it with an epsilon that was
        accounted for this group size.
        """
        texts = [self.filled(index, value) for index, value in enumerate(self.values)]
        return texts * checked_count("copies", copies)

    def insert(self, texts: Iterable[str], *, copies: int = 1) -> list[str]:
        """The texts with the records of secrets among them, at random places."""
        every = [*texts, *self.records(copies=copies)]
        order = generator(seed=self.seed, purpose=Purpose.PLACES_OF_SECRETS).permutation(len(every))
        return [every[place] for place in order.tolist()]

    def rows(self, num_rows: int) -> NDArray[np.int64]:
        """The rows of a table that hold the secrets, shape (m,), in the order of the secrets.

        They are chosen at random; all rows, in their order, if there are as many as secrets.
        """
        if checked_count("num_rows", num_rows) < len(self.values):
            raise InputError(f"there are {len(self.values)} secrets for {num_rows} rows")
        if num_rows == len(self.values):
            return np.arange(num_rows)
        stream = generator(seed=self.seed, purpose=Purpose.PLACES_OF_SECRETS)
        return np.asarray(stream.permutation(num_rows)[: len(self.values)], np.int64)

    def insert_into_table(
        self, table: Table, column: str | int, *, as_type: Callable[[str], Any] = str
    ) -> Table:
        """A copy of a table with the secrets in a column, in the rows of `rows`.

        Args:
            table: a data frame, or an array of shape (rows, columns).
            column: its name, or its index in an array. A new column of a data frame needs a secret
                for every row.
            as_type: makes a cell of a secret, such as `int`.

        Raises:
            InputError: if there are fewer rows than secrets, if the column does not exist and there
                are more, or if an array cannot hold the secrets.
        """
        rows, cells = self.rows(len(table)), [as_type(value) for value in self.values]
        copy = table.copy()
        if not isinstance(copy, pd.DataFrame):
            check_column(copy, column)
            copy[rows, int(column)] = checked_cells(cells, copy.dtype)
            return copy
        if len(rows) == len(copy):
            copy[column] = cells
            return copy
        if column not in copy.columns:
            raise InputError(
                f"the table has no column {column!r}, and there are fewer secrets than rows: fill"
                " the column for the other rows first"
            )
        whole = copy[column].tolist()
        for row, cell in zip(rows.tolist(), cells, strict=True):
            whole[row] = cell
        copy[column] = whole
        return copy

    def candidates(self, index: int) -> Candidates:
        """The candidates of a secret: the same in every call, as they follow from the seed."""
        value = self.values[index]
        if self.law is None:
            others: Iterable[str] = self.alternatives[index]
        else:
            stream = generator(seed=self.seed, purpose=Purpose.CANDIDATES, index=index)
            others = self.law.alternatives(value, self.num_candidates - 1, stream)
        # Sorted: no score can tell from the order which one is true.
        values = tuple(sorted([value, *others]))
        return Candidates(index, values, tuple(self.filled(index, value) for value in values))

    def rank(self, score: Score) -> Ranking:
        """Ranks the candidates of every secret by a score: the higher, the likelier.

        Args:
            score: a function of `Candidates` that gives a number for each of them: a
                `CausalLanguageModel`, `MaskedLanguageModel`, `SecretFeature`, `SecretLabel`, or one
                of the user's. It may use nothing that depends on the secrets but the model.

        Raises:
            InputError: if scores are NaN or of another shape.
        """
        ranks, confidences = [], []
        for index, truth in enumerate(self.values):
            candidates = self.candidates(index)
            rank, confidence = rank_of_truth(score(candidates), candidates, truth)
            ranks.append(rank)
            confidences.append(confidence)
        return Ranking(
            np.array(ranks, np.int64), self.num_candidates, np.array(confidences), self.digest
        )


def _drawn(draw: Sampler, count: int, stream: np.random.Generator) -> tuple[str, ...]:
    return tuple(_checked_value(draw(stream)) for _ in range(count))


def _checked_value(value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"the sampler drew {value!r}; it must draw text")
    return value


def _checked_seed(seed: int | None) -> int:
    return system.randbits(128) if seed is None else checked_count("seed", seed, least=0)


def _check_template(template: str, names: tuple[str, ...], count: int) -> None:
    """Refuses one without the secret, and one that does not say whose secret it is."""
    if count == 0:
        raise InputError("there are no secrets")
    if names and (len(names) != count or len({*names}) < count):
        raise InputError(f"{count} secrets need as many names, all different, not {len(names)}")
    if not template:
        return
    try:
        parts = [*Formatter().parse(template)]
    except ValueError:
        parts = [("", "", "", "")]
    fields = {field for _, field, _, _ in parts if field is not None}
    if not fields <= {"secret", "index", "name"}:
        raise InputError(
            f"the template {template!r} may have {{secret}}, {{index}} and {{name}}; write other"
            " braces twice"
        )
    if "secret" not in fields:
        raise InputError(f"the template {template!r} has no {{secret}}")
    if any(field == "secret" and (form or change) for _, field, form, change in parts):
        raise InputError(
            f"the template {template!r} changes the secret; write {{secret}} without ':' and '!'"
        )
    if "name" in fields and not names:
        raise InputError(f"the template {template!r} has {{name}}: give names")
    if count > 1 and not fields & {"index", "name"}:
        raise InputError(
            f"{count} secrets need {{index}} or {{name}} in the template {template!r}: otherwise"
            " nothing says which secret a candidate is of"
        )


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
