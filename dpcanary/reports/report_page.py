"""What a report says, and the page that says it."""

import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpcanary.core.files import write_text
from dpcanary.core.optional_packages import is_installed, lacking
from dpcanary.figures import style
from dpcanary.reports.headline import Headline
from dpcanary.version import VERSION

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Row:
    """An audit in the table: its cells, and its settings and measurements as names and values."""

    cells: Sequence[str]
    details: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Picture:
    """A figure: its heading, the content of the file, and paragraphs."""

    title: str
    png: bytes
    caption: Sequence[str]

    @property
    def source(self) -> str:
        """The picture as a data URL."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Report:
    """What a report says. Facts on data and provenance are names and values.

    Attributes:
        headline: the first page.
        notes: what the table's letters mean, and how it is to be read.
        methods: paragraphs for a paper, and the references of these.
        sources: what the report was made from: files, each with its SHA-256, or words.
    """

    title: str
    headline: Headline
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str]
    pictures: Sequence[Picture]
    data: Sequence[tuple[str, str]]
    provenance: Sequence[tuple[str, str]]
    methods: Sequence[str]
    references: Sequence[str]
    sources: Sequence[tuple[str, str]] = ()
    version: str = field(default=VERSION)


def drawn(
    title: str, draw: "Callable[[], Figure]", caption: Sequence[str]
) -> tuple[list[Picture], list[str]]:
    """A figure that is drawn for the page; where Matplotlib is not installed, a note instead."""
    if is_installed("matplotlib"):
        png = io.BytesIO()
        with style.applied():
            draw().savefig(png, format="png", dpi=style.RASTER_DPI)
        return [Picture(title, png.getvalue(), caption)], []
    return [], [f"A figure is left out: {lacking('matplotlib', subject=f'“{title}”')}."]


def html_of(report: Report, *, author: str = "") -> str:
    """The page: one file without links to others, made now by the author."""
    written_at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return rendered(
        "dpcanary.reports", "page.html.j2", report=report, author=author, written_at=written_at
    )


def rendered(package: str, template: str, **values: object) -> str:
    """A page from the template of a package, with what stands in it escaped."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(values)


def write_report(path: Path, report: Report, *, author: str = "") -> None:
    """Writes the page; the author is named on it."""
    write_text(path, html_of(report, author=author))
