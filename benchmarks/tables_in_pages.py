"""Tables of Markdown in pages: between a comment with the table's name and `<!-- end -->`."""

from collections.abc import Iterable, Sequence


def markdown_table(lines: Iterable[Sequence[str]]) -> str:
    """A table of these lines, of which the first is the header."""
    header, *rows = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def with_table(page: str, name: str, table: str) -> str:
    """A page with this table in the place of that name.

    Raises:
        ValueError: if the page has no comment of that name, or no end after it.
    """
    start, end = f"<!-- {name} -->", "<!-- end -->"
    before, _, rest = page.partition(start)
    _, has_end, after = rest.partition(end)
    if not has_end:
        raise ValueError(f"the page has no place for a table: {start}, and {end} after it")
    return f"{before}{start}\n\n{table}\n\n{end}{after}"
