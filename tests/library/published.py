"""The pages of docs, and the tables of docs/results."""

from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[2] / "docs"


def table_of(name: str) -> pd.DataFrame:
    return pd.read_csv(DOCS / "results" / f"{name}.tsv", sep="\t")
