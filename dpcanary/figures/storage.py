"""What figures are read from and written to; the drawing functions do not access files."""

import io
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, Profile, Proven
from dpcanary.figures.rows import valid_rows
from dpcanary.files import write_atomically, write_text
from dpcanary.provenance import KEY
from dpcanary.scoring.score_file import read_scores
from dpcanary.summary import COLUMNS
from dpcanary.tables import read_table

if TYPE_CHECKING:  # so that a change of a kind redraws its own figures alone
    from dpcanary.figures.accuracy import Accuracies
    from dpcanary.figures.set_ups import Norms

_RATIO_COLUMNS = (
    "sample_rate", "num_steps", "noise_multiplier", "delta", "accounting_method", "ratio",
)  # fmt: skip


def read_summary(path: Path) -> pd.DataFrame:
    """A summary of audits; for errors, see `tables.read_table`."""
    return read_table(path, columns=COLUMNS)


def read_ratios(path: Path) -> pd.DataFrame:
    """Ratios of epsilons from `accounting.comparison`; for errors, see `tables.read_table`."""
    return read_table(path, columns=_RATIO_COLUMNS)


def read_accuracies(scores: Sequence[Path]) -> "Accuracies":
    """Test accuracies after the last step, by audit, from score files."""
    found = [read_scores(path) for path in scores]
    return {one.audit: one.test_accuracy.astype(np.float64) for one in found}


def read_attacks(
    scores: Sequence[Path],
    profiles: Sequence[Path] = (),
    summary: pd.DataFrame | None = None,
    ceilings: Path | None = None,
) -> list[Attack]:
    """The attacks of the first repeat at the last step.

    Args:
        scores: score files.
        profiles: accounted profiles of the same audits in the same order, if needed.
        summary: has further settings of the audits.
        ceilings: the table of `bound_ceiling`, if the figure shows what is proven.
    """
    if profiles and len(profiles) != len(scores):
        raise InputError(
            f"there are {len(scores)} score files and {len(profiles)} profiles; give one for each"
        )
    known = [read_profiles(path) for path in profiles] or [{} for _ in scores]
    attacks = [_read_attack(*both) for both in zip(scores, known, strict=True)]
    if summary is None:
        return attacks
    first = summary.groupby("audit").head(1)
    settings = {str(row["audit"]): dict(row) for _, row in first.iterrows()}
    if missing := [attack.audit for attack in attacks if attack.audit not in settings]:
        raise InputError(f"the summary has no audit {missing[0]}: delete it and run again")
    proven = _read_proven(summary, ceilings) if ceilings else {}
    return [
        replace(one, settings=settings[one.audit], proven=proven.get(one.audit)) for one in attacks
    ]


def _read_proven(summary: pd.DataFrame, ceilings: Path) -> dict[str, Proven]:
    """What is proven of each audit, from its first repeat after the last step."""
    table = read_table(ceilings, columns=("audit", "epsilon"))
    epsilons = dict(zip(table["audit"], table["epsilon"], strict=True))
    rows = valid_rows(summary)
    found = {}
    for audit, group in rows[rows["repeat"] == 0].groupby("audit"):
        if audit in epsilons:
            first = group.iloc[0]
            level = f"{100 * (1 - first['significance']):g} % confidence"
            found[str(audit)] = Proven(
                mu=float(group["mu_lower"].mean()),
                ceiling=float(epsilons[audit]),
                delta=float(first["delta"]),
                stated=f"{first['threshold_rule']} rule, {level}",
            )
    return found


def read_norms(scores: Sequence[Path]) -> "dict[str, Norms]":
    """The norms of canaries' gradients of all runs, by audit and recorded step."""
    norms: dict[str, Norms] = {}
    for path in scores:
        found = read_scores(path)
        if found.header["score"] != "gradient_norm":
            raise InputError(
                f"audit {found.audit} has score {found.header['score']}, which keeps no norms"
            )
        # The scores are minus the norms, or the norms: as the adjacency needs it.
        values = np.abs(found.scores).reshape(-1, len(found.step))
        norms[found.audit] = dict(zip(found.step.tolist(), values.T, strict=True))
    return norms


def read_loss_gaps(scores: Sequence[Path]) -> pd.DataFrame:
    """Mean loss of the slots that are out minus that of those that are in, in nats.

    Columns audit, repeat, step and `loss_gap`.
    """
    rows = []
    for path in scores:
        found = read_scores(path)
        if found.header["score"] != "loss":
            raise InputError(f"audit {found.audit} has score {found.header['score']}, not loss")
        for repeat, (index, step) in product(range(len(found.scores)), enumerate(found.step)):
            # Scores are minus losses, and world 0 is in.
            both = found.of_worlds(repeat=repeat, step=index)
            if min(map(len, both)) == 0:
                raise InputError(f"audit {found.audit}: all slots are in one world: add slots")
            gap = both[0].mean() - both[1].mean()
            rows.append({"audit": found.audit, "repeat": repeat, "step": step, "loss_gap": gap})
    return pd.DataFrame(rows)


def read_profiles(path: Path) -> dict[str, Profile]:
    """Accounted profiles of one audit, by adjacency; for errors, see `tables.read_table`."""
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
        settings={"batch_size": scores.header.get("batch_size")},
    )


# What figures are drawn from, by the name of the argument of their functions. Each is read from the
# files of a figure, by what they are.
FILES = ("summary", "scores", "profiles", "ceilings", "ratios")
READ: dict[str, Callable[[Mapping[str, Sequence[Path]]], Any]] = {
    "summary": lambda files: read_summary(files["summary"][0]),
    "ratios": lambda files: read_ratios(files["ratios"][0]),
    "accuracies": lambda files: read_accuracies(files["scores"]),
    "norms": lambda files: read_norms(files["scores"]),
    "gaps": lambda files: read_loss_gaps(files["scores"]),
    "profiles": lambda files: {path.stem: read_profiles(path) for path in files["profiles"]},
    "attacks": lambda files: read_attacks(
        files["scores"],
        files["profiles"],
        read_summary(files["summary"][0]) if files["summary"] else None,
        files["ceilings"][0] if files["ceilings"] else None,
    ),
}


def write_figure(
    figure: Figure, table: pd.DataFrame, *, pdf: Path, png: Path, tsv: Path, origin: str = ""
) -> None:
    """Writes a figure twice and its numbers; the same input gives the same bytes.

    The PDF is without the time of its creation, and the PNG without the name of the software. The
    PNG carries `origin`: what the figure is of an experiment; see `provenance`. Nothing is written
    before all is drawn.
    """
    rendered = {pdf: io.BytesIO(), png: io.BytesIO()}
    metadata: dict[str, dict[str, str | None]] = {
        "pdf": {"CreationDate": None},
        "png": {"Software": None} | ({KEY: origin} if origin else {}),
    }
    for path, kind in ((pdf, "pdf"), (png, "png")):
        file = rendered[path]
        with style.applied():
            figure.savefig(file, format=kind, dpi=style.RASTER_DPI, metadata=metadata[kind])
        file.seek(0)
    for path, file in rendered.items():
        write_atomically(path, partial(shutil.copyfileobj, file))
    write_text(tsv, table.to_csv(sep="\t", index=False, lineterminator="\n"))
