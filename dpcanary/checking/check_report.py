"""The result of a check as a page."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.checking.findings import Finding
from dpcanary.core.files import write_text
from dpcanary.reports.report_page import rendered
from dpcanary.version import VERSION


def write_check_page(
    path: Path,
    *,
    title: str,
    summary: Sequence[str],
    findings: Sequence[Finding],
    scope: Sequence[str],
    not_seen: Sequence[str],
) -> None:
    """Writes one file without links to others.

    Args:
        path: of the file.
        title: its heading: what was checked, and the verdict.
        summary: paragraphs below it.
        findings: in the order in which they are shown.
        scope: what was run, in words.
        not_seen: errors that pass all the same.
    """
    page = rendered(
        "dpcanary.checking",
        "check.html.j2",
        title=title,
        summary=summary,
        findings=findings,
        scope=scope,
        not_seen=not_seen,
        version=VERSION,
    )
    write_text(path, page)
