"""What the published audits prove, beside the numbers of their papers: the table of a page.

    python -m benchmarks.published [results/NAME ...]

Keeps what the results of published audits say in docs/results/published/NAME.tsv, and writes the
table of docs/published.md from all that is kept, and from papers.yaml beside it: what each paper
says, where, and what differs.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from dpcanary.files import write_text
from dpcanary.settings.experiment import read_experiment
from dpcanary.tables import read_table, write_table

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "results/published"
PAGE = DOCS / "published.md"
_START, _END = "<!-- table: python -m benchmarks.published -->\n", "<!-- end of table -->\n"
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
    """The bounds of an experiment by numbers of runs, with accounted epsilons and minutes.

    Minutes are those of training all models of an audit on two cores.
    """
    experiment = read_experiment(results / "experiment.json")
    audits, by_runs = experiment.audits, results / "estimates_by_runs"
    # Not those of a config that it was before.
    made = [path for name in experiment.settings.figures for path in by_runs.glob(f"{name}/*.tsv")]
    summary = pd.read_csv(results / "summary.tsv", sep="\t").drop_duplicates("audit")
    summary = summary.set_index("audit")
    tables = []
    for path in made:
        audit = path.stem
        table = read_table(path)
        adjacency = "substitute" if audits[audit].adjacency == "substitute" else "add_remove"
        whole = summary.loc[audit]
        share = table["num_runs"] / whole["num_runs"]
        tables.append(
            table.rename(columns={"epsilon_lower": "epsilon"}).assign(
                audit=audit,
                num_slots=audits[audit].num_slots,
                accounted=whole[f"epsilon_upper_{adjacency}"],
                minutes=share * whole["seconds"] / 120,
            )
        )
    found = pd.concat(tables)[[*_COLUMNS, "accounted", "minutes"]]
    return found.sort_values([*_COLUMNS]).reset_index(drop=True)


def is_of(bounds: pd.DataFrame, rule: str, conversion: str) -> "pd.Series[bool]":
    """Which bounds are by a rule and a conversion."""
    return (bounds["threshold_rule"] == rule) & (bounds["conversion"] == conversion)


@cache
def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, sep="\t")


def epsilon_in(table: str, **values: Any) -> float:
    """The epsilon in the one row of a figure's table that has some values."""
    found = _read(DOCS / f"results/{table}.tsv")
    for column, value in values.items():
        found = found[found[column] == value]
    [epsilon] = found["epsilon"]
    return float(epsilon)


def row(name: str, said: dict[str, Any], *, accounted: float, theirs: str, bound: float,
        minutes: float | None = None) -> tuple[str, ...]:  # fmt: skip
    """A row of the table: numbers, and what stands in papers.yaml."""
    return (
        f"`{name}`: {said['of']}",
        f"{said['models']:,}",
        f"{accounted:.2f}",
        theirs,
        f"**{bound:.2f}**",
        said.get("theirs", "-"),
        "-" if minutes is None else "< 1" if minutes < 1 else f"{minutes:.0f}",
        said.get("differs", ""),
    )


def rows(name: str, papers: Sequence[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    """The rows of a published audit in the table."""
    for paper in papers:
        if "table" in paper:
            bound, accounted = (
                epsilon_in(paper["table"], **paper[which]) for which in ("bound", "accounted")
            )
            yield row(name, paper, accounted=accounted, theirs="-", bound=bound)
            continue
        bounds = _read(KEPT / f"{name}.tsv")
        chosen = bounds[bounds["audit"] == paper["audit"]]
        chosen = chosen[chosen["num_runs"] == paper["models"]]
        [(_, theirs)] = chosen[is_of(chosen, "in_sample", "gdp")].iterrows()
        # The exact curves, where the config has them: at sample rate 1 the Gaussian one is exact.
        exact = chosen[is_of(chosen, "combined", "subsampled_gaussian")]
        valid = (exact if len(exact) else chosen[is_of(chosen, "combined", "gdp")]).iloc[0]
        yield row(name, paper, accounted=valid["accounted"], theirs=f"{theirs['epsilon']:.2f}",
                  bound=valid["epsilon"], minutes=valid["minutes"])  # fmt: skip


def table() -> str:
    """The table, as Markdown."""
    papers = yaml.safe_load((KEPT / "papers.yaml").read_text(encoding="utf-8"))
    lines = [_HEAD, ("---",) * len(_HEAD)]
    for name, said in papers.items():
        lines += rows(name, said)
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def page() -> str:
    """The page with the table anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_START)
    _, _, after = rest.partition(_END)
    return f"{before}{_START}\n{table()}\n{_END}{after}"


def main() -> None:
    """Keeps the results that are given, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path)
    for results in parser.parse_args().results:
        write_table(KEPT / f"{results.resolve().name}.tsv", kept(results))
    write_text(PAGE, page())


if __name__ == "__main__":
    main()
