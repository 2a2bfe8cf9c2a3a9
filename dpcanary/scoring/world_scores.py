"""Scores of two worlds from files, also from other people's audits."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.core.files import read_npz, reading
from dpcanary.core.optional_packages import is_installed
from dpcanary.errors import InputError, suggestion
from dpcanary.scoring.score_file import read_scores

Columns = Mapping[str, NDArray[Any]]

_READ: dict[str, Callable[[Path], Columns]] = {
    ".npz": lambda path: read_npz(path),
    ".npy": lambda path: _read_npy(path),
    ".json": lambda path: _read_json(path),
    ".csv": lambda path: _of_text(path, _read_csv(path)),
    ".tsv": lambda path: _of_text(path, _read_csv(path)),
    ".parquet": lambda path: _of_table(path, _read_parquet(path)),
}
# Pairs of arrays that hold the scores of world 0 and of world 1, without "scores" and the like in
# their names. All but the first are of records in the training data and of others: those of
# PrivacyGuard are called train and test, or df_train_user and df_test_user, those of jax_privacy
# in_canary and out_canary.
_PAIRS = (
    ("world0", "world1"),
    ("member", "nonmember"),
    ("member", "other"),
    ("in", "out"),
    ("train", "test"),
    ("train", "holdout"),
    ("dftrainuser", "dftestuser"),
    ("incanary", "outcanary"),
)
_MEMBERS = {member for member, _ in _PAIRS[1:]}
# With names that label the rows of other records in a column of worlds.
_OTHERS = {other for _, other in _PAIRS[1:]} | {
    *("heldout", "val", "valid", "validation", "dev", "nontrain", "nontraining"),
}
# A column that is 1 for records in the training data; LiRA calls it keep.
_MEMBERSHIP = {"member", "ismember", "membership", "keep", "intraining"}
_LIRA = "keep.npy"
# A score that stands in place of a name, with what pandas appends to a second column of this name.
_NUMBER = re.compile(r"[-+]?(\d*\.\d[\d.]*|\d+(?=e)|inf|nan)(e[-+]?\d+)?(\.\d+)?", re.IGNORECASE)
_JOIN = "save them as one table, with a column score and a column world (0 for the first world)"
_CUT = (
    "if a row is a model and a column a record, save one row of both, the records of one model"
    " (with --one-run), or one column, the models of one record"
)


@dataclass(frozen=True)
class WorldScores:
    """The scores of an audit by world, shape (n0,) and (n1,); higher: world 0 is likelier.

    Attributes:
        world0: scores of world 0.
        world1: scores of world 1.
        num_slots: scores that one run gives: 1 unless the file says otherwise.
        names: what the file calls the worlds, if neither 0 and 1 nor world0 and world1.
        of_membership: whether world 0 is known to be "the record is in the training data".
    """

    world0: NDArray[np.float64]
    world1: NDArray[np.float64]
    num_slots: int = 1
    names: tuple[str, str] | None = None
    of_membership: bool = False

    @property
    def swapped(self) -> "WorldScores":
        """These scores where lower ones stand for world 0."""
        return replace(self, world0=-self.world0, world1=-self.world1)


def read_world_scores(
    path: Path,
    other: Path | None = None,
    *,
    score: str = "score",
    world: str = "world",
    world0: str | None = None,
) -> WorldScores:
    """Reads scores from .csv, .tsv, .parquet, .json, .npz or .npy files.

    A table has a row for each score, with a column of scores and one of worlds. An .npz or .json
    file has the same as two arrays, or an array for each world; or it is a score file of dpcanary,
    of which the last step of the first repeat is taken. Worlds are 0 and 1, or two labels of which
    `world0` names one. A column of membership, such as `member`, is 1 in world 0.

    A folder is that of one model of LiRA (Carlini et al., 2022; tensorflow/privacy,
    research/mi_lira_2021): `keep.npy`, and the last file of `scores/`, or `scores.npy`. The scores
    of a record's augmentations are averaged.

    Args:
        path: the file, or the folder.
        other: a file with the scores of world 1, if those of world 0 are in `path`. If one of the
            files holds only 0 and 1, or truth values, it says which scores of the other one are of
            members.
        score: the column or array of scores.
        world: that of worlds.
        world0: the label of world 0, in which high scores are expected, such as `member`; or the
            array of its scores, if the file has two.

    Raises:
        InputError: if a file or a column is missing, or holds something else.
    """
    if path.is_dir():
        if other is not None:
            raise InputError(f"{path} is a folder, which is read alone: leave {other} out")
        return _of_lira(path)
    columns = columns_of_file(path)
    if score == "score" and score not in columns and "scores" in columns:
        score = "scores"
    if other is not None:
        others = columns_of_file(other)
        for file, of_file in ((path, columns), (other, others)):
            _check_one_world(file, of_file, score, world)
        return _of_two_files(path, columns, other, others, score)
    if "header" in columns and path.suffix == ".npz":
        scored = read_scores(path)
        if scored.num_candidates:
            raise InputError(
                f"{path} holds ranks of secrets, not scores of two worlds; give them as a column"
                " `rank` of a table, by --ranks"
            )
        return WorldScores(*scored.of_worlds(repeat=0, step=-1), num_slots=scored.num_slots)
    if pair := _pair(path, columns, score=score, world0=world0):
        for name in pair:
            if _are_truth_values(columns[name]):
                raise InputError(
                    f"{path}: {name} holds truth values, not scores: name the scores by"
                    " --score-column, and what says the world by --world-column"
                )
        first, second = (_scores(path, name, columns[name]) for name in pair)
        is_plain = _plain(pair[0]) == "world0"
        names = None if is_plain else pair
        return WorldScores(first, second, names=names, of_membership=_is_known(*pair))
    if len(columns) == 1:
        raise InputError(
            f"{path} holds {next(iter(columns))} alone: give the file of the other world too, that"
            " of world 0 first (as members.npy others.npy); or a table with a column of worlds"
        )
    world = _world_column(columns, world)
    for name, option in ((score, "--score-column"), (world, "--world-column")):
        if name not in columns:
            advice = suggestion(name, columns)
            raise InputError(f"{path} has no {name!r}; {advice} (option {option})")
    scores = _scores(path, score, columns[score])
    if len(columns[world]) != len(scores):
        raise InputError(f"{path}: {len(scores)} scores, and {len(columns[world])} worlds")
    missing = np.flatnonzero(pd.isna(columns[world]))
    if missing.size:
        raise InputError(
            f"{path}: {world} is missing in row {missing[0] + 1} ({missing.size:,} in all): give"
            " each score its world; or leave such rows out, if which ones they are depends neither"
            " on their worlds nor on their scores"
        )
    labels = _labels(columns[world], world0)
    of_membership = _plain(world) in _MEMBERSHIP and {*labels} == {"0", "1"}
    if of_membership and world0 is None:
        world0 = "1"
    is_world0 = _is_world0(path, world, labels, world0)
    names = None
    of_membership &= world0 == "1"
    if world0 is not None:
        [name1] = {*labels} - {world0}
        names = (f"{world} {world0}", f"{world} {name1}")
        of_membership |= _is_known(world0, name1)
    return WorldScores(
        scores[is_world0],
        scores[~is_world0],
        names=names,
        of_membership=of_membership,
    )


def columns_of_file(path: Path) -> Columns:
    """The columns of a table, or the arrays of another file, by name.

    Raises:
        InputError: if the file is missing, or is not of a known kind.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file of scores in it")
    if path.suffix not in _READ:
        suffixes = ", ".join(_READ)
        raise InputError(f"{path}: scores are read from {suffixes} files, not from {path.suffix!r}")
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    try:
        return _READ[path.suffix](path)
    except InputError:
        raise
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not in UTF-8, from byte {error.start} on: save it with this encoding"
        ) from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from None


def _read_csv(path: Path) -> pd.DataFrame:
    """A table with commas; or with semicolons or tabs, as of spreadsheets, and decimal commas."""
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    separator = ";" if header.count(";") > header.count(",") else ","
    separator = "\t" if path.suffix == ".tsv" else separator
    table = pd.read_csv(path, sep=separator)
    if not table.index.equals(pd.RangeIndex(len(table))):
        raise InputError(
            f"{path}: its rows have more values than its header has names: name the column of row"
            " numbers; or, if these are decimal commas, write points"
        )
    texts = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    if separator == "," or not texts:
        return table
    with_decimal_commas = pd.read_csv(path, sep=separator, decimal=",")
    return table.assign(**{str(name): with_decimal_commas[name] for name in texts})


def _read_parquet(path: Path) -> pd.DataFrame:
    if not is_installed("pyarrow"):
        raise InputError(
            f"{path}: Parquet files need the package 'pyarrow', which is not installed here:"
            " pip install pyarrow, or save the scores as .csv"
        )
    return pd.read_parquet(path)


def _of_text(path: Path, table: pd.DataFrame) -> Columns:
    """The columns of a text file, whose first row has names: pandas takes the first scores else."""
    for name in map(str, table.columns):
        # Whole numbers are the names that pandas gives; to a single column it gives 0.
        is_number = len(table.columns) == 1 and re.fullmatch(r"[-+]?\d+", name) and name != "0"
        if is_number or _NUMBER.fullmatch(name):
            raise InputError(
                f"{path} has no header: its first row has {name}, a number; write the names of the"
                " columns above it, such as score"
            )
    return _of_table(path, table)


def _of_table(path: Path, table: pd.DataFrame) -> Columns:
    if table.empty:
        raise InputError(f"{path} has no rows")
    return {str(name): table[name].to_numpy() for name in table.columns}


def _read_npy(path: Path) -> Columns:
    """One array, called as the file; or the fields of a structured one."""
    with reading(path, what="is not an array of numbers", remedy="save it by numpy.save"):
        array = np.load(path, allow_pickle=False)
    names = array.dtype.names
    return {path.stem: array} if names is None else {name: array[name] for name in names}


def _read_json(path: Path) -> Columns:
    """A list of objects, one for each score; or an object of lists.

    Beside two lists or more, what is not a list is left out, such as a name of the attack.
    """
    with reading(path, what="is not JSON", remedy="give lists of numbers by name"):
        content = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        return _of_table(path, pd.DataFrame(content))
    described = (
        f"{path} must hold an object with lists of scores, as"
        ' {"member": [...], "nonmember": [...]}, or a list of objects'
    )
    if not isinstance(content, dict):
        raise InputError(described)
    lists = {name: values for name, values in content.items() if isinstance(values, list)}
    others = [name for name in content if name not in lists]
    if others and len(lists) < 2:
        name, value = others[0], content[others[0]]
        remedy = (
            f"is an object: take its lists ({', '.join(value)}) out of it"
            if isinstance(value, dict)
            else "is not a list: remove it"
        )
        raise InputError(f"{described}; {name!r} {remedy}")
    return {name: np.asarray(values) for name, values in lists.items()}


def _plain(name: str) -> str:
    """The name of an array without "scores" and the like."""
    return re.sub(r"scores?|[\W_]", "", name.lower()).removesuffix("s")


def _is_known(first: str, second: str) -> bool:
    """Whether these are names of members and of others."""
    return _plain(first) in _MEMBERS and _plain(second) in _OTHERS


def _known_pair(path: Path, names: Iterable[str]) -> tuple[str, str] | None:
    """The names of world 0 and world 1, if two of these are known to be such."""
    by_plain: dict[str, list[str]] = {}
    for name in names:
        by_plain.setdefault(_plain(name), []).append(name)
    pairs = [
        pair
        for first, second in _PAIRS
        for pair in product(by_plain.get(first, ()), by_plain.get(second, ()))
    ]
    if len(pairs) > 1:
        listed = ", or ".join(" and ".join(pair) for pair in pairs)
        raise InputError(f"{path} holds {listed}: keep the scores of two worlds alone in it")
    return pairs[0] if pairs else None


def _pair(
    path: Path, columns: Columns, *, score: str, world0: str | None
) -> tuple[str, str] | None:
    """The arrays of world 0 and world 1; None if the file has a column of scores.

    Raises:
        InputError: if there are two arrays, of which nothing says which is that of world 0; or
            several pairs of them.
    """
    if score in columns:
        return None
    if world0 is not None and world0 in columns and len(columns) == 2:
        [second] = {*columns} - {world0}
        return world0, second
    if pair := _known_pair(path, columns):
        return pair
    are_scores = not any(
        _are_truth_values(values) or _have_text(values) for values in columns.values()
    )
    if len(columns) == 2 and path.suffix in (".npz", ".json") and are_scores:
        first, second = columns
        raise InputError(
            f"{path} holds {first} and {second}: if these are the scores of two worlds, which is"
            " world 0, in which high scores are expected (as members have)? Say it by world0"
            f" (option --world0 {first} or --world0 {second})"
        )
    return None


def _have_text(values: NDArray[Any]) -> bool:
    """Whether some of them are text; of numbers, only their type is looked at."""
    if values.dtype.kind != "O":
        return values.dtype.kind in "US"
    return any(isinstance(value, str) for value in values)


def _world_column(columns: Columns, world: str) -> str:
    """The column of worlds: that of membership if there is one, and no other name is asked for."""
    if world in columns or world != "world":
        return world
    return next((name for name in columns if _plain(name) in _MEMBERSHIP), world)


def _check_one_world(path: Path, columns: Columns, score: str, world: str) -> None:
    """Refuses one of two files that says of its own scores which of them are of which world."""
    world = _world_column(columns, world)
    if score in columns and world in columns and len({*columns[world].tolist()}) > 1:
        raise InputError(
            f"{path} holds both worlds, by {world}: give it alone, or join the files to one table"
        )


def _of_two_files(
    path: Path, columns: Columns, other: Path, others: Columns, score: str
) -> WorldScores:
    """Scores of world 0 and of world 1; or all scores, and whether each is of a member."""
    files = [(path, _only(path, columns, score)), (other, _only(other, others, score))]
    truths = [_are_truth_values(values) for _, values in files]
    if all(truths):
        raise InputError(
            f"{path} and {other} hold only 0 and 1, which may be scores or truth values; {_JOIN}"
        )
    if any(truths):
        (scored, scores), (keep, is_member) = files if truths[1] else files[::-1]
        if len(np.unique(is_member)) == 1:
            raise InputError(
                f"{keep} holds only {is_member.flat[0]}: as truth values, these name no second"
                f" world; if they are scores, {_JOIN}"
            )
        return _of_members(scored, scores, keep, is_member)
    first, second = (_scores(file, "score", values) for file, values in files)
    return WorldScores(
        first, second, names=(path.name, other.name), of_membership=_is_known(path.stem, other.stem)
    )


def _are_truth_values(values: NDArray[Any]) -> bool:
    return values.size > 0 and bool(np.isin(values, (0, 1)).all())


def _only(path: Path, columns: Columns, score: str) -> NDArray[Any]:
    if score in columns:
        return columns[score]
    if len(columns) > 1:
        raise InputError(f"{path} has no {score!r}; {suggestion(score, columns)}")
    return next(iter(columns.values()))


def is_of_lira(path: Path) -> bool:
    """Whether a path is the folder of one model of LiRA."""
    return (path / _LIRA).is_file()


def _of_lira(folder: Path) -> WorldScores:
    if not is_of_lira(folder):
        raise InputError(
            f"{folder} is a folder: name a file of scores in it; or the folder of one model of"
            f" LiRA, which holds {_LIRA} and scores/"
        )
    files = [*sorted((folder / "scores").glob("*.npy")), folder / "scores.npy"]
    there = [path for path in files if path.is_file()]
    if not there:
        raise InputError(f"{folder} has {_LIRA}, but no scores.npy, and no file in scores/")
    path = there[-1]
    [scores] = columns_of_file(path).values()
    [keep] = columns_of_file(folder / _LIRA).values()
    if not _are_truth_values(keep):
        raise InputError(
            f"{folder / _LIRA} must hold a truth value, or 0 or 1, for each record: whether it is"
            " in the training data"
        )
    return _of_members(path, scores, folder / _LIRA, keep[: len(scores)])


def _of_members(
    path: Path, values: NDArray[Any], keep: Path, is_member: NDArray[Any]
) -> WorldScores:
    """Scores of shape (n,) or (n, augmentations), and which of them are of members."""
    if values.ndim == is_member.ndim == 2 and values.shape == is_member.shape:
        raise InputError(f"{path} and {keep} have shape {values.shape}: {_CUT}")
    scores = _scores(path, "score", values.mean(axis=1) if values.ndim == 2 else values)
    if is_member.shape != scores.shape:
        raise InputError(
            f"{path}: {len(scores)} scores, and {is_member.size} truth values in {keep}, which"
            f" must be one for each score: the shapes are {values.shape} and {is_member.shape}; if"
            f" they are scores, {_JOIN}"
        )
    is_member = is_member.astype(bool)
    names = ("member", "nonmember")
    return WorldScores(scores[is_member], scores[~is_member], names=names, of_membership=True)


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
        cut = f": {_CUT}" if scores.ndim == 2 else ""
        raise InputError(
            f"{path}: {name} has shape {scores.shape}; it must have one score per run{cut}"
        )
    if np.isnan(scores).any():
        first, count = int(np.flatnonzero(np.isnan(scores))[0]), int(np.isnan(scores).sum())
        raise InputError(
            f"{path}: {name} is missing or NaN in row {first + 1} ({count:,} in all): leave such"
            " rows out if the world does not influence which scores are missing; else give each the"
            " score that speaks most against its world"
        )
    return scores


def _labels(values: NDArray[Any], label: str | None) -> list[str]:
    """The worlds as texts; truth values and whole numbers, however they are stored, as 0 and 1."""
    texts = [
        value.decode() if isinstance(value, bytes) else str(value) for value in values.tolist()
    ]
    if label in texts:
        return texts
    return [
        str(int(value)) if _is_whole(value) else text
        for value, text in zip(values.tolist(), texts, strict=True)
    ]


def _is_world0(path: Path, name: str, texts: list[str], label: str | None) -> NDArray[np.bool_]:
    """Which rows are of world 0, by its label or by 0 and 1."""
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
    chosen = "0" if label is None else label
    return np.array([text == chosen for text in texts])


def _is_whole(value: object) -> bool:
    return isinstance(value, bool | int | float) and float(value).is_integer()
