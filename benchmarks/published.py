"""What the published audits show, beside the numbers of their papers: the table of a page.

    python -m benchmarks.published [results/NAME ...]

Keeps what the results of published audits say in docs/results/published/NAME.tsv, and writes the
table of docs/papers.md from all that is kept, and from papers.yaml beside it: what each paper
says, where, and what differs.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from benchmarks.tables_in_pages import markdown_table, with_table
from dpcanary.core.files import write_text
from dpcanary.core.printing import rounded_down, rounded_up
from dpcanary.core.tsv_tables import read_table, write_table
from dpcanary.experiment.experiment_config import read_experiment

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "results/published"
PAGE = DOCS / "papers.md"
_COLUMNS = ["audit", "num_runs", "num_slots", "threshold_rule", "conversion", "is_valid", "epsilon"]
_HEAD = (
    "audit",
    "models",
    "accounted",
    "paper's rule",
    "exact rule",
    "the paper",
    "minutes",
    "what differs",
)


def kept(results: Path) -> pd.DataFrame:
    """The bounds of an experiment after all steps, with accounted epsilons and minutes.

    They are those by numbers of runs, where a figure of the experiment has these. Minutes are those
    of training or drawing all models of an audit on two cores.
    """
    experiment = read_experiment(results / "experiment.json")
    summary = pd.read_csv(results / "summary.tsv", sep="\t")
    last = summary[summary["step"] == summary.groupby("audit")["step"].transform("max")]
    whole = last.drop_duplicates("audit").set_index("audit")
    # Not those of a config that it was before.
    names, by_runs = experiment.settings.figures, results / "estimates_by_runs"
    tables = [
        read_table(path).assign(audit=path.stem)
        for name in names
        for path in by_runs.glob(f"{name}/*.tsv")
    ]
    bounds = (pd.concat(tables) if tables else last).rename(columns={"epsilon_lower": "epsilon"})
    of_audits = whole.loc[bounds["audit"]].reset_index()
    bounds = bounds.reset_index(drop=True).assign(
        num_slots=of_audits["num_slots"],
        accounted=_accounted(of_audits),
        minutes=bounds["num_runs"].to_numpy() / of_audits["num_runs"] * of_audits["seconds"] / 120,
    )
    bounds = bounds[[*_COLUMNS, "accounted", "minutes"]]
    return bounds.sort_values([*_COLUMNS]).reset_index(drop=True)


def _accounted(audits: pd.DataFrame) -> "pd.Series[float]":
    """What is claimed of each: by Poisson accounting, also where batches are shuffled."""
    substitute = audits["adjacency"] == "substitute"
    upper = audits["epsilon_upper_substitute"].where(substitute, audits["epsilon_upper_add_remove"])
    return audits["epsilon_poisson"].where(audits["sampling"] == "shuffled", upper)


def is_of(bounds: pd.DataFrame, rule: str, conversion: str) -> "pd.Series[bool]":
    """Which bounds are by a rule and a conversion."""
    return (bounds["threshold_rule"] == rule) & (bounds["conversion"] == conversion)


def row(name: str, said: dict[str, Any], bounds: pd.DataFrame) -> tuple[str, ...]:
    """A row of the table: numbers of an audit, and what stands in papers.yaml."""
    chosen = bounds[(bounds["audit"] == said["audit"]) & (bounds["num_runs"] == said["models"])]
    theirs = chosen[is_of(chosen, "in_sample", "gdp")]["epsilon"]
    valid = chosen[chosen["is_valid"]]
    # The exact curves, where the config has them: at sample rate 1 the Gaussian one is exact.
    exact, gaussian = (
        valid[is_of(valid, "combined", conversion)] for conversion in ("subsampled_gaussian", "gdp")
    )
    valid = next((table for table in (exact, gaussian) if len(table)), valid)
    if len(valid) != 1:
        text = f"{len(valid)} valid bounds of audit {said['audit']} with {said['models']} models"
        raise ValueError(f"{name}: {text}; there must be one")
    [(_, valid)] = valid.iterrows()
    minutes = valid["minutes"]
    return (
        f"`{name}`: {said['of']}",
        f"{said['models']:,}",
        rounded_up(valid["accounted"]),
        rounded_down(theirs.item()) if len(theirs) else "-",
        f"**{rounded_down(valid['epsilon'])}**",
        said.get("theirs", "-"),
        "< 1" if minutes < 1 else f"{minutes:.0f}",
        said.get("differs", ""),
    )


def table() -> str:
    """The table, as Markdown."""
    papers = yaml.safe_load((KEPT / "papers.yaml").read_text(encoding="utf-8"))
    lines = [_HEAD]
    for name, said in papers.items():
        bounds = pd.read_csv(KEPT / f"{name}.tsv", sep="\t")
        lines += [row(name, audit, bounds) for audit in said]
    return markdown_table(lines)


def page() -> str:
    """The page with the table as it is now."""
    page = PAGE.read_text(encoding="utf-8")
    return with_table(page, "table: python -m benchmarks.published", table())


def main() -> None:
    """Keeps the results that are given, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path)
    for results in parser.parse_args().results:
        write_table(KEPT / f"{results.resolve().name}.tsv", kept(results))
    write_text(PAGE, page())


if __name__ == "__main__":
    main()
