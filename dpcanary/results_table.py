"""The results of an experiment in a few columns: what is proven, beside what is accounted."""

from pathlib import Path

import pandas as pd

from dpcanary.estimation.options import Conversion
from dpcanary.printing import number, print_table, print_text
from dpcanary.tables import read_table

COLUMNS = (
    "audit", "canary", "runs", "rule", "proven", "add_remove", "substitute",
)  # fmt: skip
_MOST_ROWS = 40
_SHARED = ["sweep", "configuration", "canary", "score"]
# What a summary must have.
_NEEDED = (
    *_SHARED, "audit", "step", "num_runs", "threshold_rule", "conversion", "is_valid",
    "epsilon_lower", "epsilon_upper_add_remove", "epsilon_upper_substitute",
)  # fmt: skip


def results_table(summary: pd.DataFrame) -> pd.DataFrame:
    """One row per set-up and valid threshold rule, after the last step and from the most runs.

    Audits that differ in their seed alone are one set-up. Several repeats, slots or seeds of it are
    averaged: no bound is picked because it is the largest.

    Args:
        summary: of an experiment.

    Returns:
        Columns `audit` (the first of the set-up), `canary`, `runs`, `rule`, `proven` (the mean
        lower bound on epsilon), and the accounted epsilons `add_remove` and `substitute`.
    """
    gdp = summary["conversion"] == Conversion.GDP
    has_gdp = gdp.groupby([summary["audit"], summary["threshold_rule"]]).transform("any")
    rows = summary[summary["is_valid"] & (gdp | ~has_gdp)]
    for key in ("step", "num_runs"):
        rows = rows[rows[key] == rows.groupby("audit")[key].transform("max")]
    groups = rows.groupby([*_SHARED, "threshold_rule"], sort=False, dropna=False)
    found = groups.agg(
        audit=("audit", "first"),
        canary=("canary", "first"),
        runs=("num_runs", "first"),
        rule=("threshold_rule", "first"),
        proven=("epsilon_lower", "mean"),
        add_remove=("epsilon_upper_add_remove", "first"),
        substitute=("epsilon_upper_substitute", "first"),
    )
    return found.reset_index(drop=True)[[*COLUMNS]]


def in_words(table: pd.DataFrame) -> str:
    """What a table of results shows, in one or two sentences."""
    above = table[table["proven"] > table["add_remove"]]
    rules = ", ".join(dict.fromkeys(table["rule"]))
    valid = "Each bound exceeds the truth with a probability of at most the significance."
    if above.empty:
        return f"No bound exceeds its add/remove epsilon (rule {rules}). {valid}"
    return (
        f"{len(above)} of {len(table)} bounds exceed the add/remove epsilon, which is what most"
        f" libraries report (rule {rules}). {valid}"
    )


def print_results(folder: Path) -> None:
    """Prints the table of an experiment's results, and what it shows.

    Raises:
        InputError: if there is no summary in the folder, or an old one.
    """
    table = read_results(folder)
    rows = table.head(_MOST_ROWS).to_dict("records")
    print_table(
        ("audit", "canary", "runs", "proven", "add/remove", "substitute", "rule"),
        [
            (
                row["audit"],
                row["canary"].replace("_", " "),
                f"{row['runs']:,}",
                *(number(row[name]) for name in ("proven", "add_remove", "substitute")),
                row["rule"],
            )
            for row in rows
        ],
    )
    if len(table) > len(rows):
        print(f"... and {len(table) - len(rows)} more in {folder / 'summary.tsv'}")
    print()
    print_text(
        "proven: lower bound on epsilon by attack, at the last step; add/remove and substitute:"
        f" accounted upper bounds. {in_words(table)}"
    )


def read_results(folder: Path) -> pd.DataFrame:
    """The table of an experiment's results, from its folder.

    Raises:
        InputError: if there is no summary in the folder, or an old one.
    """
    return results_table(read_table(folder / "summary.tsv", columns=_NEEDED))
