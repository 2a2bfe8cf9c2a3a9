"""What a report says, and the page that says it."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpcanary import __version__
from dpcanary.files import write_text
from dpcanary.printing import rounded_down, rounded_up


@dataclass(frozen=True)
class Headline:
    """The numbers of the first screen: one training, and one audit of it.

    Attributes:
        training: in words.
        attack: in words: the canary, and how many models.
        adjacency: that of the audit, in words.
        delta: of all epsilons.
        confidence: of the lower bound, such as "95 %".
        proven: the lower bound.
        assumption: what the lower bound rests on.
        substitute: accounted; NaN if the audit is under another adjacency or it is not known.
        add_remove: accounted; NaN if it is not known.
        chosen: how this audit was chosen among several; empty if there is one.
        is_valid: whether the lower bound holds with its confidence.
    """

    training: str
    attack: str
    adjacency: str
    delta: float
    confidence: str
    proven: float
    assumption: str
    substitute: float
    add_remove: float
    chosen: str = ""
    is_valid: bool = True

    @property
    def bars(self) -> list[dict[str, object]]:
        """The epsilons from the smallest to the largest, with widths in per cent."""
        told = [
            ("add-remove", self.add_remove, "≤ ", rounded_up,
             "Whether a record is in the data: accounted, add/remove adjacency",
             "What most libraries report."),
            ("proven", self.proven, "≥ ", rounded_down,
             f"Proven by attack, {self.adjacency} adjacency" if self.is_valid
             else "NOT a valid lower bound",
             f"A lower bound with {self.confidence} confidence." if self.is_valid
             else "It may exceed the truth more often than is said."),
            ("substitute", self.substitute, "≤ ", rounded_up,
             "What a record says: accounted, substitute adjacency",
             "Its label or any feature, if it is known to be in the data."),
        ]  # fmt: skip
        known = [one for one in told if one[1] == one[1]]
        largest = max(value for _, value, *_ in known) or 1.0
        return [
            {
                "kind": kind,
                "value": f"{sign}{rounded(value)}",
                "width": round(100 * value / largest, 1),
                "label": label,
                "note": note,
            }
            for kind, value, sign, rounded, label, note in known
        ]

    @property
    def answer(self) -> list[str]:
        """The question's answer in sentences."""
        up, down = rounded_up, rounded_down
        if not self.is_valid:
            return [
                f"This audit proves nothing: its number, {down(self.proven)}, is not a valid lower"
                f" bound. {self.assumption[:1].upper()}{self.assumption[1:]}."
            ]
        if self.substitute != self.substitute:
            accounted = f", at most {up(self.add_remove)}" if self.add_remove > 0 else ""
            return [
                f"The audited epsilon, under {self.adjacency} adjacency, is at least"
                f" {down(self.proven)}{accounted}.",
                f"{self.attack} prove the lower bound with {self.confidence} confidence.",
            ]
        found = [
            f"Whether a record is in the data is protected by epsilon {up(self.add_remove)}, the"
            " number that most libraries report.",
            f"What a record says is protected by epsilon {up(self.substitute)} only.",
        ]
        if self.proven > self.add_remove:
            found.append(
                f"The difference is real: {self.attack} prove with {self.confidence} confidence"
                f" that the latter is at least {down(self.proven)}. Who must protect the content of"
                " records should quote the substitute epsilon."
            )
        else:
            found.append(
                f"{self.attack} prove at least {down(self.proven)}, which is not above the"
                " add/remove epsilon. This is no evidence that the training protects more than is"
                " accounted: more models or a stronger canary may prove more."
            )
        return found


@dataclass(frozen=True)
class Row:
    """An audit in the table.

    Attributes:
        cells: one for each column.
        details: settings and measurements, as names and values.
    """

    cells: Sequence[str]
    details: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        title: of its heading.
        png: the file's content.
        caption: paragraphs.
    """

    title: str
    png: bytes
    caption: Sequence[str]

    @property
    def source(self) -> str:
        """The picture as a data URL."""
        return f"data:image/png;base64,{b64encode(self.png).decode()}"


@dataclass(frozen=True)
class Report:
    """What a report says.

    Attributes:
        title: of the page.
        headline: of the first screen.
        columns: of the table of audits.
        rows: of the table of audits.
        notes: what the table's letters mean, and how it is to be read.
        pictures: the first one is on the first screen.
        data: facts on the data, as names and values.
        provenance: versions, hashes and times, as names and values.
        methods: paragraphs for a paper.
        references: for them.
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
    version: str = field(default=__version__)


def html_of(report: Report) -> str:
    """The page: one file without links to others."""
    environment = Environment(
        loader=PackageLoader("dpcanary.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(report=report, headline=report.headline)


def write_report(path: Path, report: Report) -> None:
    """Writes the page.

    Raises:
        InputError: if the file cannot be written.
    """
    write_text(path, html_of(report))
