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

from dpcanary.core.files import write_atomically, write_text
from dpcanary.core.provenance import DESCRIPTION, KEY
from dpcanary.core.tsv_tables import read_table
from dpcanary.errors import InputError
from dpcanary.experiment.summary import COLUMNS
from dpcanary.figures import style
from dpcanary.figures.attacks import Attack, Profile, ShownBound
from dpcanary.figures.rows import valid_rows
from dpcanary.scoring.score_file import GRADIENT_NORM, read_scores

if TYPE_CHECKING:  # so that a change of a kind redraws its own figures alone
    from dpcanary.figures.accuracy import Accuracies
    from dpcanary.figures.set_ups import Norms

_RATIO_COLUMNS = (
    "sample_rate", "num_steps", "noise_multiplier", "delta", "accounting_method", "ratio",
)  # fmt: skip


# The files of a figure, by what they are.
Files = Mapping[str, Sequence[Path]]


def _summary(files: Files) -> pd.DataFrame:
    return read_table(files["summary"][0], columns=COLUMNS)


def _accuracies(files: Files) -> "Accuracies":
    """Test accuracies after the last step, by audit."""
    scores = [read_scores(path) for path in files["scores"]]
    return {
        audit_scores.audit: audit_scores.test_accuracy.astype(np.float64) for audit_scores in scores
    }


def _attacks(files: Files) -> list[Attack]:
    """The attacks of the first repeat at the last step; each file of profiles is of one audit."""
    scores, profiles = files["scores"], files["profiles"]
    if profiles and len(profiles) != len(scores):
        raise InputError(
            f"there are {len(scores)} score files and {len(profiles)} profiles; give one for each"
        )
    profiles_of_scores = [_profiles(path) for path in profiles] or [{} for _ in scores]
    attacks = [_attack(*both) for both in zip(scores, profiles_of_scores, strict=True)]
    if not files["summary"]:
        return attacks
    summary = _summary(files)
    first = summary.groupby("audit").head(1)
    settings = {str(row["audit"]): dict(row) for _, row in first.iterrows()}
    if missing := [attack.audit for attack in attacks if attack.audit not in settings]:
        raise InputError(f"the summary has no audit {missing[0]}: delete it and run again")
    shown = _shown_bounds(summary, files["ceilings"][0]) if files["ceilings"] else {}
    return [
        replace(attack, settings=settings[attack.audit], shown=shown.get(attack.audit))
        for attack in attacks
    ]


def _shown_bounds(summary: pd.DataFrame, ceilings: Path) -> dict[str, ShownBound]:
    """What is shown of each audit, from its first repeat after the last step."""
    table = read_table(ceilings, columns=("audit", "epsilon"))
    epsilons = dict(zip(table["audit"], table["epsilon"], strict=True))
    rows = valid_rows(summary)
    shown = {}
    for audit, group in rows[rows["repeat"] == 0].groupby("audit"):
        if audit in epsilons:
            first = group.iloc[0]
            level = f"{100 * (1 - first['significance']):g} % confidence"
            shown[str(audit)] = ShownBound(
                mu=float(group["mu_lower"].mean()),
                ceiling=float(epsilons[audit]),
                delta=float(first["delta"]),
                stated=f"{first['threshold_rule']} rule, {level}",
            )
    return shown


def _norms(files: Files) -> "dict[str, Norms]":
    """The norms of canaries' gradients of all runs, by audit and recorded step."""
    norms: dict[str, Norms] = {}
    for path in files["scores"]:
        file = read_scores(path)
        if file.header["score"] != GRADIENT_NORM:
            raise InputError(
                f"audit {file.audit} has score {file.header['score']}, which keeps no norms"
            )
        # The scores are minus the norms, or the norms: as the adjacency needs it.
        values = np.abs(file.scores).reshape(-1, len(file.step))
        norms[file.audit] = dict(zip(file.step.tolist(), values.T, strict=True))
    return norms


def _loss_gaps(files: Files) -> pd.DataFrame:
    """Mean loss of the slots that are out minus that of those that are in, in nats.

    Columns audit, repeat, step and `loss_gap`.
    """
    rows = []
    for path in files["scores"]:
        file = read_scores(path)
        if file.header["score"] != "loss":
            raise InputError(f"audit {file.audit} has score {file.header['score']}, not loss")
        for repeat, (index, step) in product(range(len(file.scores)), enumerate(file.step)):
            # Scores are minus losses, and world 0 is in.
            both = file.of_worlds(repeat=repeat, step=index)
            if min(map(len, both)) == 0:
                raise InputError(f"audit {file.audit}: all slots are in one world: add slots")
            gap = both[0].mean() - both[1].mean()
            rows.append({"audit": file.audit, "repeat": repeat, "step": step, "loss_gap": gap})
    return pd.DataFrame(rows)


def _profiles(path: Path) -> dict[str, Profile]:
    """Accounted profiles of one audit, by adjacency."""
    table = read_table(path, columns=("adjacency", "delta", "epsilon"))
    return {
        str(adjacency): Profile(*group[["delta", "epsilon"]].to_numpy(dtype=float).T)
        for adjacency, group in table.groupby("adjacency")
    }


def _attack(path: Path, profiles: dict[str, Profile]) -> Attack:
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


FILES = ("summary", "scores", "profiles", "ceilings", "ratios")
# What figures are drawn from, by the name of the argument of their functions.
READ: dict[str, Callable[[Files], Any]] = {
    "summary": _summary,
    "ratios": lambda files: read_table(files["ratios"][0], columns=_RATIO_COLUMNS),
    "accuracies": _accuracies,
    "norms": _norms,
    "gaps": _loss_gaps,
    "profiles": lambda files: {path.stem: _profiles(path) for path in files["profiles"]},
    "attacks": _attacks,
}


def write_figure(
    figure: Figure, table: pd.DataFrame, *, pdf: Path, png: Path, tsv: Path, origin: str = ""
) -> None:
    """Writes a figure twice and its numbers; the same input gives the same bytes.

    The PDF is without the time of its creation, and the PNG without the name of the software. The
    PNG carries `origin`, what the figure is of an experiment (see `provenance`), and its caption.
    Nothing is written before all is drawn.
    """
    texts = {KEY: origin, DESCRIPTION: str(figure.get_label())}
    metadata: dict[Path, dict[str, str | None]] = {
        pdf: {"CreationDate": None},
        png: {"Software": None} | {key: text for key, text in texts.items() if text},
    }
    rendered = {path: io.BytesIO() for path in metadata}
    for path, kind in ((png, "png"), (pdf, "pdf")):
        with style.applied():
            figure.savefig(
                rendered[path], format=kind, dpi=style.RASTER_DPI, metadata=metadata[path]
            )
        rendered[path].seek(0)
        figure.set_layout_engine("none")  # it is laid out, which takes half the time
    for path, file in rendered.items():
        write_atomically(path, partial(shutil.copyfileobj, file))
    write_text(tsv, table.to_csv(sep="\t", index=False, lineterminator="\n"))
