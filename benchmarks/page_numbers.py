"""The numbers in pages of the documentation, from the tables beside them.

    python -m benchmarks.page_numbers [--check]

A number that a comment follows is written from a row of docs/results/TABLE.tsv:

    <!-- numbers: figure3 sample_rate=1 step=500 -->
    Attacks show 9.93<!-- gradient --> with a crafted gradient.

The first comment names the table and words that hold for the comments after it. Words choose rows:
`column=value`, `column<value`, `last` (rows of the last step), or one cell of the row. `.column` is
the column of the number (default: epsilon or mean), `@max`, `@min`, `@mean` and `@count` join rows,
`%` is for per cent, `up` and `down` are directions of rounding; without them, epsilons that are
`audited` are rounded down and `accounted` ones up. `TABLE:` as first word takes another table,
without the words of the first comment. `=NAME key=value ...` is a function of this
module. A number keeps the decimals that it has. Tables between markers are those of
`benchmarks.published` and `benchmarks.peers`.
"""

import argparse
import csv
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, floor, log, sqrt
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.stats import binom, norm

from benchmarks import peers, published
from dpcanary import estimate_epsilon
from dpcanary.accounting import (
    ShuffledMechanism,
    account_by_adjacency,
    account_shuffled,
    gdp_epsilon,
)
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.files import read_json, write_text
from dpcanary.estimation import epsilon_of_guesses, expected_bound
from dpcanary.estimation.one_run.slot_guesses import Guesses

DOCS = published.DOCS
_COMMENTS = re.compile(
    r"<!-- numbers: (?P<scope>[^>]+?) -->"
    r"|(?P<number>-?(?:\d[\d,]*)?\.?\d+)(?P<comment><!--\s(?P<words>[^>]+?)\s-->)"
    r"|<!-- (?:table|peers|end)\b[^>]* -->"
    r"|(?P<other><!--.*?-->)",
    re.DOTALL,
)
# What a page with numbers or tables to fill in has, beside comments that are for Sphinx.
_OWN = re.compile(r"\d<!--\s|<!-- (?:table|peers):")
# What a function of this module is given by name.
_TEXTS = {"adjacency", "canary", "figures", "series", "what"}


_JOINS: dict[str, Callable[[list[float]], float]] = {"@max": max, "@min": min, "@mean": fmean}


def pages() -> list[str]:
    """The pages that have numbers or tables to fill in, relative to docs."""
    marked = [path for path in DOCS.rglob("*.md") if _OWN.search(path.read_text())]
    return sorted(str(path.relative_to(DOCS)) for path in marked)


def filled(name: str) -> str:
    """A page as it should be.

    Raises:
        ValueError: if words do not choose one number.
    """
    page = (DOCS / name).read_text(encoding="utf-8")
    if DOCS / name == published.PAGE:
        page = published.page()
    if DOCS / name == peers.PAGE:
        page = peers.filled(page, read_json(peers.RESULTS))
    return with_numbers(page)


def with_numbers(page: str) -> str:
    """The text with its numbers from the tables."""
    scope: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        if match["other"]:
            raise ValueError(f"{match[0]} does not follow a number")
        if match["scope"]:
            scope[:] = match["scope"].split()
        if not match["number"]:
            return match[0]
        try:
            words = match["words"].split()
            value = value_of(words, scope)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{match[0]} in the scope {' '.join(scope)}: {error}") from error
        return (
            written(value, match["number"], [*_inherited(words, scope), *words]) + match["comment"]
        )

    return _COMMENTS.sub(replaced, page)


def written(value: float, old: str, words: Sequence[str] = ()) -> str:
    """The number with as many decimals as the old one has."""
    digits = len(old.partition(".")[2])
    direction = _direction(words)
    if direction is not None:
        value = direction(round(value * 10**digits, 9)) / 10**digits
    return f"{value:,.{digits}f}"


def _direction(words: Sequence[str]) -> Callable[[float], int] | None:
    """How to round: as the last word says, else lower bounds down and upper bounds up."""
    directions = {"up": ceil, "down": floor}
    roundings = [directions[word] for word in words if word in directions]
    if roundings or any(word[0] in ".=" or word == "@count" for word in words):
        return roundings[-1] if roundings else None
    if any(word.startswith("audited") for word in words):
        return floor
    return ceil if any(word.startswith("accounted") for word in words) else None


def _inherited(words: Sequence[str], scope: Sequence[str]) -> list[str]:
    """The words of a scope that hold for a number with some words."""
    if words[0].startswith("=") or words[0].endswith(":"):
        return []
    own = {word.partition("=")[0] for word in words if "=" in word}
    return [word for word in scope[1:] if word.partition("=")[0] not in own]


def value_of(words: list[str], scope: list[str]) -> float:
    """The number that the words choose, after a table and the words of a scope."""
    if words[0].startswith("="):
        pairs = [word.partition("=")[::2] for word in words[1:] if "=" in word]
        arguments = {key: text if key in _TEXTS else float(text) for key, text in pairs}
        return float(COMPUTED[words[0][1:]](**arguments))
    if words[0].endswith(":"):
        scope, words = [words[0][:-1]], words[1:]
    words = [*_inherited(words, scope), *words]
    rows = [row for row in _table(scope[0]) if all(_matches(row, word) for word in words)]
    if "last" in words:
        most = max(float(row["step"]) for row in rows)
        rows = [row for row in rows if float(row["step"]) == most]
    if "@count" in words:
        return len(rows)
    column = next((word[1:] for word in words if word.startswith(".")), None)
    column = column or ("epsilon" if "epsilon" in rows[0] else "mean")
    numbers = [float(row[column]) for row in rows]
    joined = [join(numbers) for word, join in _JOINS.items() if word in words]
    if len({*numbers}) > 1 and not joined:
        raise ValueError(f"{len(rows)} rows with {len({*numbers})} numbers")
    return float((joined or numbers)[0]) * (100 if "%" in words else 1)


def _matches(row: dict[str, str], word: str) -> bool:
    if word[0] in ".@%" or word in ("last", "up", "down"):
        return True
    for sign in "<=":
        column, operator, value = word.partition(sign)
        if operator:
            cell = row[column]
            if sign == "<":
                return float(cell) < float(value)
            both = _is_number(cell) and _is_number(value)
            return cell == value or (both and float(cell) == float(value))
    return word in row.values()


def _is_number(cell: str) -> bool:
    return bool(re.fullmatch(r"-?[\d.]+(e-?\d+)?", cell))


@cache
def _table(name: str) -> list[dict[str, str]]:
    with (DOCS / f"results/{name}.tsv").open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file, delimiter="\t")]


def _frame(name: str) -> pd.DataFrame:
    return pd.read_csv(DOCS / f"results/{name}.tsv", sep="\t")


def account(*, adjacency: str, **settings: float) -> float:
    """What `dpcanary account` prints for a training at delta 1e-5, before rounding."""
    mechanism = Mechanism(
        Adjacency.SUBSTITUTE,
        sample_rate=settings.get("sample_rate", 0.01),
        noise_multiplier=settings.get("noise_multiplier", 1.0),
        num_steps=int(settings.get("num_steps", 1000)),
    )
    epsilons = account_by_adjacency(mechanism, delta=1e-5)
    return float(getattr(epsilons, adjacency))


def account_passes(*, adjacency: str, passes: float) -> float:
    """What passes of 100 shuffled batches guarantee, noise multiplier 1, at delta 1e-5."""
    protected = Adjacency(adjacency)
    mechanism = ShuffledMechanism(
        protected, batches_per_pass=100, num_steps=int(100 * passes), noise_multiplier=1.0
    )
    return account_shuffled(mechanism, delta=1e-5).guaranteed[protected]


def gaussian(*, num_steps: float = 1, noise_multiplier: float = 1, period: float = 1) -> float:
    """Epsilon of a canary in every k-th step, of which only the last model is seen."""
    mu = sqrt(num_steps / period) / noise_multiplier
    return gdp_epsilon(mu=mu, delta=1e-5)


def share_of_mu(epsilon: float, mu: float) -> float:
    """How much of mu a bound shows."""
    mu_shown = brentq(lambda part: gdp_epsilon(mu=part, delta=1e-5) - epsilon, 0.01, 2 * mu)
    return float(mu_shown) / mu


def share_of_housing() -> float:
    """What share of the mu of the Housing audits a simulated coordinate shows."""
    words = ["cebere-housing-figure1c:", "audited", "simulated_dimension", "learning_rate=0.1"]
    return share_of_mu(value_of([*words, "last"], []), sqrt(250) / 4)


def separated(*, num_runs: float) -> float:
    """The bound of scores that a threshold separates without an error."""
    scores = np.arange(num_runs / 2)
    bound = estimate_epsilon(world0_scores=scores + 1e6, world1_scores=scores, delta=1e-5)
    return bound.epsilon_lower


def ceiling() -> float:
    """The epsilon of the red curve in figure 6a of the ConvNet, which is a line at its left."""
    rows = _frame("cebere-convnet-figure6a").query("series == 'direct_ceiling'")
    first = rows.sort_values("false_positive_rate").iloc[0]
    return log((1 - 1e-5 - first["false_negative_rate"]) / first["false_positive_rate"])


def expected(*, num_runs: float) -> float:
    """The expected bound of a perfect attack on a Gaussian mechanism of mu = 2."""
    return expected_bound(mechanism=2.0, num_runs=int(num_runs), delta=1e-5).mean


def guesses(*, slots: float, guessed: float) -> float:
    """The bound of guesses that are all right."""
    right = Guesses(int(slots), int(guessed), int(guessed))
    return epsilon_of_guesses(right, delta=1e-5, conversion="gdp").epsilon_lower


def parameters() -> float:
    """How many parameters the small ResNet-9 has."""
    from dpcanary.training.residual_networks import resnet9

    return sum(parameter.numel() for parameter in resnet9(width=4).parameters())


def exact_of_sum(*, adjacency: str, sigma: float) -> float:
    """Epsilon of the sum of all noisy gradients, by integration of its densities."""
    rate, steps, second = 0.05, 100, {"add_remove": 0, "substitute": -1}[adjacency]
    sums, spacing = np.linspace(-250, 250, 100_001, retstep=True)
    counts = np.arange(steps + 1)
    likely = [count for count in counts if binom.pmf(count, steps, rate) > 1e-18]
    worlds = [
        sum(
            binom.pmf(count, steps, rate) * norm.pdf(sums, sign * count, sigma * np.sqrt(steps))
            for count in likely
        )
        for sign in (1, second)
    ]

    def excess(epsilon: float) -> float:
        pairs = (worlds, worlds[::-1])
        parts = [np.maximum(world - np.exp(epsilon) * other, 0).sum() for world, other in pairs]
        return float(max(parts) * spacing - 1e-5)

    return float(brentq(excess, 0, 20))


def of_comparison(*, what: str) -> float:
    """From the chart of other tools: the truth, or what a tool states, or how often it is above."""
    name = "many_trainings-mu1-n1250"
    if what == "truth":
        [cell] = [cell for cell in read_json(peers.RESULTS)["cells"] if cell["name"] == name]
        return float(cell["truth"])
    rows = [row for row in _table("peers") if row["cell"] == name]
    rule = what.removesuffix("_above")
    [row] = [row for row in rows if f"`{rule}`" in row["label"]]
    above = 100 * float(row["above"]) / float(row["audits"])
    return above if what.endswith("_above") else float(row["median"])


def in_common(*, canary: str) -> float:
    """Which part of the histograms of both worlds overlaps, in per cent."""
    rows = _frame("demo-score-histograms").query("sample_rate == 1 and canary == @canary")
    worlds = rows[["world0_scores", "world1_scores"]]
    return float(100 * worlds.min(axis=1).sum() / worlds["world0_scores"].sum())


def of_landscape(*, what: str) -> float:
    """How many bounds of figure 14 are above the exact epsilon, or the worst of them."""
    table = _frame("cebere-figure14")
    keys = ["noise_multiplier", "batch_size", "step"]
    exact = table[table["series"] == "exact"].set_index(keys)["epsilon"]
    audited = table[table["series"] == "audited"].set_index([*keys, "conversion"])["epsilon"]
    bounds = audited.unstack("conversion").assign(exact=exact)
    worst = bounds.iloc[(bounds["gdp"] / bounds["exact"]).to_numpy().argmax()]
    return float(
        {
            "number": len(exact),
            "gdp": (bounds["gdp"] > bounds["exact"]).sum(),
            "direct": (bounds["direct"] > bounds["exact"]).sum(),
            "worst": worst["gdp"],
            "worst_exact": worst["exact"],
        }[what]
    )


def curves_apart(*, sigma: float) -> float:
    """The largest difference in FNR between the exact curve of figure 6b and the Gaussian one."""
    rows = _frame("cebere-figure6b")
    curves = [
        rows[(rows["noise_multiplier"] == sigma) & (rows["series"] == f"exact_{name}")]
        for name in ("hidden_state", "hidden_state_gdp")
    ]
    exact, of_gdp = (
        curve.set_index("false_positive_rate")["false_negative_rate"] for curve in curves
    )
    return float((exact - of_gdp).abs().max())


def one_over_many() -> float:
    """What one training of the head shows, over what 500 trainings do."""
    table = ["one-run-cifar10-head:", "combined"]
    single_run = value_of([*table, "num_slots=500", "num_runs=1"], [])
    return single_run / value_of([*table, "num_slots=1", "num_runs=500"], [])


def of_published(*, what: str) -> float:
    """Counts and largest excess of valid published bounds, without those of shuffled batches."""
    tables = [pd.read_csv(path, sep="\t") for path in published.KEPT.glob("*.tsv")]
    bounds = pd.concat(tables)
    bounds = bounds[bounds["is_valid"] & ~bounds["audit"].str.startswith("shuffled")]
    ratio = bounds["epsilon"] / bounds["accounted"]
    shares = {"number": len(bounds), "above": (ratio > 1).sum(), "most": 100 * (ratio.max() - 1)}
    return float(shares[what])


def more_by_exact_curve(*, what: str) -> float:
    """What the exact trade-off curve shows more than the Gaussian one: the least or the most."""
    bounds = pd.read_csv(published.KEPT / "nasr-digits.tsv", sep="\t")
    of_steps = bounds["audit"].isin(["two_add_remove", "many_add_remove"])
    valid = bounds[of_steps & (bounds["threshold_rule"] == "combined")]
    by_conversion = valid.pivot(index="audit", columns="conversion", values="epsilon")
    more = by_conversion["subsampled_gaussian"] - by_conversion["gdp"]
    return float(more.min() if what == "least" else more.max())


def shuffled_ratio(*, adjacency: str) -> float:
    """What shuffled batches show over what accounting of Poisson samples states."""
    bounds = pd.read_csv(published.KEPT / "shuffling.tsv", sep="\t")
    name = f"shuffled-adjacency{adjacency}-other_recordsopposite-sigma1.1"
    row = bounds[bounds["audit"] == name].iloc[0]
    return float(row["epsilon"] / row["accounted"])


def _of_figure_2() -> pd.DataFrame:
    """The series of figure 2, by setting."""
    keys = ["sample_rate", "noise_multiplier"]
    return _frame("figure2").pivot_table(index=keys, columns="series", values="epsilon")


def below_truth(*, low: float, high: float, what: str) -> float:
    """How far the valid bounds of figure 2 stay below epsilons of a range, in per cent."""
    rows = _of_figure_2()
    truth = rows["accounted_substitute"]
    below = 100 * (1 - rows["audited"] / truth)[(truth > low) & (truth < high)]
    return float(below.min() if what == "least" else below.max())


def beyond_truth() -> float:
    """How many audits of figure 2 go beyond the truth by the published rule."""
    rows = _of_figure_2()
    return float((rows["audited_not_valid"] > rows["accounted_substitute"]).sum())


def first_step_above(*, sample_rate: float, canary: str = "") -> float:
    """The step of figure 3 from which on a canary, or each, exceeds the add/remove epsilon."""
    rows = _frame("figure3").query("sample_rate == @sample_rate")
    accounted = rows.query("series == 'accounted_add_remove'").groupby("step")["epsilon"].mean()
    bounds = rows.query("series == 'audited'").pivot(index="step", columns="canary")["epsilon"]
    chosen = bounds.filter([canary]) if canary else bounds
    is_above = (chosen.to_numpy() > accounted.to_numpy()[:, None]).all(axis=1)
    return float(bounds.index[np.flatnonzero(~is_above).max(initial=-1) + 1])


def of_gradients(*, what: str) -> float:
    """Counts and extremes of the bounds of the gradient canary in figures A2 to A4."""
    figures = [_frame(f"figureA{number}") for number in (2, 3, 4)]
    bounds = pd.concat(figures).query("series == 'audited' and canary == 'gradient'")["epsilon"]
    beyond = (bounds > 10).sum()
    shares = {"number": len(bounds), "least": bounds.min(), "most": bounds.max(), "beyond": beyond}
    return float(shares[what])


COMPUTED: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(
            account,
            account_passes,
            gaussian,
            share_of_housing,
            separated,
            ceiling,
            expected,
            guesses,
            parameters,
        ),
        *(exact_of_sum, of_comparison, in_common, of_landscape, curves_apart),
        *(one_over_many, of_published, more_by_exact_curve, shuffled_ratio),
        *(below_truth, beyond_truth, first_step_above, of_gradients),
    )
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the pages, or says which of them are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if pages differ")
    is_check = parser.parse_args(arguments).check
    changed = [name for name in pages() if filled(name) != (DOCS / name).read_text()]
    for name in changed:
        if not is_check:
            write_text(DOCS / name, filled(name))
        print(f"docs/{name}: {'not up to date' if is_check else 'written'}")
    if is_check and changed:
        sys.exit("run: python -m benchmarks.page_numbers")


if __name__ == "__main__":
    main()
