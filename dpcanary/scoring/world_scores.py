"""Scores of two worlds from files, also from other people's audits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.core.files import read_npz
from dpcanary.core.optional_packages import is_installed
from dpcanary.errors import InputError, suggestion
from dpcanary.scoring.score_file import read_scores

_TABLES = {
    ".csv": lambda path: pd.read_csv(path),
    ".tsv": lambda path: pd.read_csv(path, sep="\t"),
    ".parquet": lambda path: _read_parquet(path),
}
_TWO = ("world0_scores", "world1_scores")
SUFFIXES = (".npz", *_TABLES)


@dataclass(frozen=True)
class WorldScores:
    """The scores of an audit by world, shape (n0,) and (n1,); higher: world 0 is likelier.

    One run gives `num_slots` scores: 1 unless the file says otherwise.
    """

    world0: NDArray[np.float64]
    world1: NDArray[np.float64]
    num_slots: int = 1

    @property
    def swapped(self) -> "WorldScores":
        """The same where lower scores stand for world 0."""
        return WorldScores(-self.world0, -self.world1, self.num_slots)


def read_world_scores(
    path: Path, *, score: str = "score", world: str = "world", world0: str | None = None
) -> WorldScores:
    """Reads scores from a .csv, .tsv, .parquet or .npz file.

    A table has a row for each score, with a column of scores and one of worlds. An .npz file has
    the same as two arrays, or arrays `world0_scores` and `world1_scores`; or it is a score file of
    dpcanary, of which the last step of the first repeat is taken. Worlds are 0 and 1, or two labels
    of which `world0` names one.

    Args:
        path: the file.
        score: the column or array of scores.
        world: that of worlds.
        world0: the label of world 0, in which high scores are expected, such as `member`.

    Raises:
        InputError: if the file or a column is missing, or holds something else.
    """
    columns = columns_of_file(path)
    if "header" in columns and path.suffix == ".npz":
        scored = read_scores(path)
        return WorldScores(*scored.of_worlds(repeat=0, step=-1), num_slots=scored.num_slots)
    if {*_TWO} <= {*columns} and path.suffix == ".npz":
        first, second = (_scores(path, name, columns[name]) for name in _TWO)
        return WorldScores(first, second)
    for name in (score, world):
        if name not in columns:
            raise InputError(f"{path} has no {name!r}; {suggestion(name, columns)}")
    scores = _scores(path, score, columns[score])
    if len(columns[world]) != len(scores):
        raise InputError(f"{path}: {len(scores)} scores, and {len(columns[world])} worlds")
    is_world0 = _is_world0(path, world, columns[world], world0)
    return WorldScores(scores[is_world0], scores[~is_world0])


def columns_of_file(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a .csv, .tsv or .parquet file, or the arrays of an .npz file, by name.

    Raises:
        InputError: if the file is missing, or is not of this kind.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file of scores in it")
    if path.suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise InputError(f"{path}: scores are read from {known} files, not from {path.suffix!r}")
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    return _columns(path)


def _read_parquet(path: Path) -> pd.DataFrame:
    if not is_installed("pyarrow"):
        raise InputError(
            f"{path}: Parquet files need the package 'pyarrow', which is not installed here:"
            " pip install pyarrow, or save the scores as .csv"
        )
    return pd.read_parquet(path)


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    if path.suffix == ".npz":
        return read_npz(path)
    try:
        table = _TABLES[path.suffix](path)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not in UTF-8, from byte {error.start} on: save it with this encoding"
        ) from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from None
    if table.empty:
        raise InputError(f"{path} has no rows")
    return {str(name): table[name].to_numpy() for name in table.columns}


def _no_number(values: NDArray[Any]) -> str:
    """What stands there in place of numbers."""
    cells = pd.Series(values.ravel())
    words = np.flatnonzero(cells.notna() & pd.to_numeric(cells, errors="coerce").isna())
    if not len(words):
        return f"values of type {values.dtype}, which are no numbers"
    return f"{str(cells[words[0]])!r} in row {words[0] + 1}, which is no number"


def _scores(path: Path, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    try:
        scores = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{path}: {name} holds {_no_number(values)}") from None
    if scores.ndim != 1:
        raise InputError(f"{path}: {name} has shape {scores.shape}; it must have one score per run")
    if np.isnan(scores).any():
        first = int(np.flatnonzero(np.isnan(scores))[0])
        raise InputError(f"{path}: {name} is missing or NaN in row {first + 1}")
    return scores


def _is_world0(path: Path, name: str, values: NDArray[Any], label: str | None) -> NDArray[np.bool_]:
    """Which rows are of world 0, by its label or by 0 and 1, however these are stored."""
    texts = [
        value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()
    ]
    if label not in texts:
        # Truth values and whole numbers, also those stored as fractions, as 0, 1, and so on.
        texts = [
            str(int(value)) if _is_whole(value) else text
            for value, text in zip(values.tolist(), texts, strict=True)
        ]
    labels = sorted({*texts})
    if label is None and not {*labels} <= {"0", "1"}:
        raise InputError(
            f"{path}: {name} holds {', '.join(labels[:4])}, not 0 and 1; say which of them is"
            " world 0, in which high scores are expected, by world0 (option --world0)"
        )
    if label is not None and label not in labels:
        raise InputError(f"{path}: {name} is never {label!r}; {suggestion(label, labels)}")
    if len(labels) != 2:
        raise InputError(f"{path}: {name} must hold two worlds, not {', '.join(labels[:4])}")
    wanted = "0" if label is None else label
    return np.array([text == wanted for text in texts])


def _is_whole(value: object) -> bool:
    return isinstance(value, bool | int | float) and float(value).is_integer()
