"""Input and output of the figure programs; the drawing functions do not access files."""

import argparse
import io
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, Profile
from dpcanary.figures.model_accuracies import Accuracies
from dpcanary.files import write_atomically, write_text
from dpcanary.scoring.score_file import read_scores
from dpcanary.tables import read_table

_SUMMARY_COLUMNS = (
    "audit", "sweep", "canary", "score", "adjacency", "data", "num_records", "model",
    "sample_rate", "noise_multiplier", "max_grad_norm", "num_steps", "learning_rate", "num_slots",
    "num_runs", "num_looks", "repeat", "step", "threshold_rule", "conversion", "is_valid",
    "significance", "delta", "epsilon_lower", "epsilon_upper_substitute",
    "epsilon_upper_add_remove", "epsilon_upper_group_privacy",
)  # fmt: skip
_EXACT_COLUMNS = (
    *_SUMMARY_COLUMNS, "batch_size", "landscape", "landscape_threshold", "epsilon_hidden_state",
    "epsilon_hidden_state_gdp",
)  # fmt: skip
_RATIO_COLUMNS = (
    "sample_rate", "num_steps", "noise_multiplier", "delta", "accounting_method", "ratio",
)  # fmt: skip


def figure_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options that all figure programs have: a note, and three files to write."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--note", default="", help="what a reader must know, printed below")
    for output in ("pdf", "png", "tsv"):
        parser.add_argument(f"--{output}", type=Path, required=True)
    return parser


def read_summary(path: Path) -> pd.DataFrame:
    """A summary of audits; for errors, see `tables.read_table`."""
    return read_table(path, columns=_SUMMARY_COLUMNS)


def read_exact_summary(path: Path) -> pd.DataFrame:
    """A summary with what is known of exact laws; for errors, see `tables.read_table`."""
    return read_table(path, columns=_EXACT_COLUMNS)


def read_ratios(path: Path) -> pd.DataFrame:
    """Ratios of epsilons from `accounting.comparison`; for errors, see `tables.read_table`."""
    return read_table(path, columns=_RATIO_COLUMNS)


def read_accuracies(scores: Sequence[Path]) -> Accuracies:
    """Test accuracies after the last step, by audit, from score files.

    Raises:
        InputError: see `score_file.read_scores`.
    """
    found = [read_scores(path) for path in scores]
    return {one.audit: one.test_accuracy.astype(np.float64) for one in found}


def read_attacks(scores: Sequence[Path], profiles: Sequence[Path] = ()) -> list[Attack]:
    """The attacks of the first repeat at the last step.

    Args:
        scores: score files.
        profiles: accounted profiles of the same audits in the same order, if needed.

    Raises:
        InputError: if the numbers of files differ, or a file is not what it must be.
    """
    if profiles and len(profiles) != len(scores):
        raise InputError(
            f"there are {len(scores)} score files and {len(profiles)} profiles; give one for each"
        )
    known = [_read_profiles(path) for path in profiles] or [{} for _ in scores]
    return [_read_attack(*both) for both in zip(scores, known, strict=True)]


def _read_profiles(path: Path) -> dict[str, Profile]:
    table = read_table(path, columns=("adjacency", "delta", "epsilon"))
    return {
        str(adjacency): Profile(*group[["delta", "epsilon"]].to_numpy(dtype=float).T)
        for adjacency, group in table.groupby("adjacency")
    }


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
    rendered = {pdf: io.BytesIO(), png: io.BytesIO()}
    for path, kind, metadata in ((pdf, "pdf", "CreationDate"), (png, "png", "Software")):
        file = rendered[path]
        with style.applied():
            figure.savefig(file, format=kind, dpi=style.RASTER_DPI, metadata={metadata: None})
        file.seek(0)
    for path, file in rendered.items():
        write_atomically(path, partial(shutil.copyfileobj, file))
    write_text(tsv, table.to_csv(sep="\t", index=False, lineterminator="\n"))
