"""Figures in a report: their captions, and figures as files."""

import io
from typing import TYPE_CHECKING

from dpcanary.figures import style
from dpcanary.settings.figure import BOUNDS_KINDS, EXACT_KINDS
from dpcanary.workflow.location import WORKFLOW

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Kinds that share a program, and so a caption.
_PROGRAMS = {
    **dict.fromkeys(BOUNDS_KINDS, "bounds"),
    **dict.fromkeys(EXACT_KINDS, "hidden_state"),
}


def caption_of(kind: str) -> list[str]:
    """The caption of a kind of figure, as paragraphs."""
    path = WORKFLOW / "report" / f"figure_{_PROGRAMS.get(kind, kind)}.rst"
    text = path.read_text(encoding="utf-8").replace("``", "")
    return [line for line in text.splitlines() if line.strip()]


@style.applied()
def png_of(figure: "Figure") -> bytes:
    """A figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=style.RASTER_DPI)
    return buffer.getvalue()
