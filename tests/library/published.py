"""The pages of docs, and the tables of docs/results that their numbers are compared with."""

from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[2] / "docs"


class Page:
    """A page of docs, as one line of text."""

    def __init__(self, path: str) -> None:
        self.text = " ".join((DOCS / path).read_text().split())

    def says(self, sentence: str) -> None:
        assert sentence in self.text, f"the tables say: {sentence}"


def table_of(name: str) -> pd.DataFrame:
    """A table of docs/results."""
    return pd.read_csv(DOCS / "results" / f"{name}.tsv", sep="\t")


def number(value: float, digits: int = 2) -> str:
    """As the pages write numbers: .05, 1.90, 10."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"
