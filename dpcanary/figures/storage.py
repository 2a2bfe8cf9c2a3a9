"""What the figure programs read and write; the drawing functions know nothing of files."""

import argparse
import io
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, Profile
from dpcanary.figures.bounds import POINT
from dpcanary.figures.model_accuracies import ModelAccuracies
from dpcanary.files import write_atomically, write_text
from dpcanary.scoring.score_file import read_scores

_SUMMARY_COLUMNS = {
    *POINT, "audit", "sweep", "canary", "score", "adjacency", "data", "num_records", "model",
    "max_grad_norm", "num_steps", "learning_rate", "num_slots", "num_runs", "repeat",
    "threshold_rule", "conversion", "is_valid", "significance", "delta", "epsilon_lower",
    "epsilon_upper_substitute", "epsilon_upper_add_remove", "epsilon_upper_group_privacy",
}  # fmt: skip
_RATIO_COLUMNS = {
    "sample_rate", "num_steps", "noise_multiplier", "delta", "accounting_method", "ratio",
}  # fmt: skip


def figure_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows what every figure program takes: a note, and three files to write."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--note", default="", help="what a reader must know, printed below")
    for output in ("pdf", "png", "tsv"):
        parser.add_argument(f"--{output}", type=Path, required=True)
    return parser


def read_summary(path: Path) -> pd.DataFrame:
    """A summary of audits.

    Raises:
        InputError: if the file is missing, empty or lacks a column.
    """
    return _read_table(path, _SUMMARY_COLUMNS)


def read_ratios(path: Path) -> pd.DataFrame:
    """Ratios of epsilons, as `accounting.comparison` makes them.

    Raises:
        InputError: if the file is missing, empty or lacks a column.
    """
    return _read_table(path, _RATIO_COLUMNS)


def read_accuracies(scores: Sequence[Path]) -> list[ModelAccuracies]:
    """Test accuracies at the last step.

    Args:
        scores: score files.

    Raises:
        InputError: if a file is not what it must be.
    """
    return [_read_accuracies(path) for path in scores]


def read_attacks(scores: Sequence[Path], profiles: Sequence[Path] | None = None) -> list[Attack]:
    """The attacks of the first repeat at the last step.

    Args:
        scores: score files.
        profiles: accounted profiles of the same audits in the same order, if needed.

    Raises:
        InputError: if the numbers of files differ, or a file is not what it must be.
    """
    if profiles is not None and len(profiles) != len(scores):
        raise InputError(
            f"there are {len(scores)} score files and {len(profiles)} profiles; give one for each"
        )
    return [
        _read_attack(path, _read_profiles(profiles[index]) if profiles is not None else {})
        for index, path in enumerate(scores)
    ]


def write_figure(figure: Figure, table: pd.DataFrame, *, pdf: Path, png: Path, tsv: Path) -> None:
    """Writes a figure twice and its numbers; the same input gives the same bytes.

    Args:
        figure: as drawn under `style.applied`.
        table: the plotted numbers.
        pdf: vector graphics, without the time of their creation.
        png: at `style.RASTER_DPI`, without the name of the software.
        tsv: the table.

    Raises:
        InputError: if a file cannot be written. Nothing is written before all is drawn.
    """
    rendered = {
        pdf: _rendered(figure, "pdf", {"CreationDate": None}),
        png: _rendered(figure, "png", {"Software": None}),
    }
    for path, content in rendered.items():
        write_atomically(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
    write_text(tsv, table.to_csv(sep="\t", index=False, lineterminator="\n"))


def _rendered(figure: Figure, kind: str, metadata: dict[str, Any]) -> bytes:
    content: IO[bytes] = io.BytesIO()
    with style.applied():
        figure.savefig(content, format=kind, dpi=style.RASTER_DPI, metadata=metadata)
    content.seek(0)
    return content.read()


def _read_table(path: Path, columns: Collection[str]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path, sep="\t", dtype={"audit": str, "sweep": str})
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not a table of tab-separated values ({error})") from None
    missing = sorted(set(columns) - set(table.columns))
    if missing:
        raise InputError(f"{path} has no column {', '.join(missing)}; delete it and run again")
    return table


def _read_profiles(path: Path) -> dict[str, Profile]:
    table = _read_table(path, ("adjacency", "delta", "epsilon"))
    return {
        str(adjacency): Profile(
            delta=group["delta"].to_numpy(dtype=float),
            epsilon=group["epsilon"].to_numpy(dtype=float),
        )
        for adjacency, group in table.groupby("adjacency")
    }


def _read_accuracies(path: Path) -> ModelAccuracies:
    scores = read_scores(path)
    return ModelAccuracies(scores.audit, scores.test_accuracy.astype(np.float64))


def _read_attack(path: Path, profiles: dict[str, Profile]) -> Attack:
    scores = read_scores(path)
    world0, world1 = scores.of_worlds(repeat=0, step=-1)
    return Attack(
        audit=scores.audit,
        canary=str(scores.header["canary"]),
        score=str(scores.header["score"]),
        sample_rate=float(scores.header["sample_rate"]),
        noise_multiplier=float(scores.header["noise_multiplier"]),
        step=int(scores.step[-1]),
        world0_scores=world0,
        world1_scores=world1,
        profiles=profiles,
    )
