"""Other tools that audit differential privacy, on the same scores as dpcanary.

    python -m benchmarks.peers [--work FOLDER] [--tools TOOL ...] [--demo results/demo]

Makes a virtual environment for each tool, asks it in a process of its own
(benchmarks/peer_adapters.py, JSON both ways), and writes docs/results/peers.json and peers.tsv, the
tables of docs/comparison.md and its chart. With `--page`, the page and the chart are regenerated
from the stored results.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import beta

from benchmarks.tables_in_pages import markdown_table, with_table
from dpcanary.core.files import read_json, write_text
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.printing import rounded_down, rounded_up
from dpcanary.core.tsv_tables import write_table
from dpcanary.figures import style
from dpcanary.scoring.score_file import read_scores

ROOT = Path(__file__).parents[1]
ADAPTERS = ROOT / "benchmarks/peer_adapters.py"
RESULTS = ROOT / "docs/results/peers.json"
PAGE = ROOT / "docs/comparison.md"
CHART = ROOT / "docs/images/comparison.png"

DELTA, SIGNIFICANCE, SEED = 1e-5, 0.05, 20_261_125
MUS, SIZES = (0.0, 1.0, 3.0), (250, 1_250)
# A bound above the truth by less is rounding: tools look for epsilon to 1e-6 or more.
TOLERANCE = 1e-5
MANY, ONE = "many trainings", "one training"


@dataclass(frozen=True)
class Tool:
    """What is compared.

    Attributes:
        name: in tables.
        requirement: for pip; empty for dpcanary and for a tool that is in no registry.
        clone: where its source is, if it is in no registry: the folder below a clone to import
            from. Give the clone by `--clone NAME=FOLDER`.
        has_demo: whether it is asked about the demo's scores, too.
    """

    name: str
    requirement: str = ""
    clone: str = ""
    has_demo: bool = True


@dataclass(frozen=True)
class Estimator:
    """A number that a tool gives.

    Attributes:
        tool: its name.
        call: the name of the call in benchmarks/peer_adapters.py.
        value: which of the numbers that the call gives.
        game: many trainings with one canary, or one training with many.
        label: in tables.
        written: the call, as its documentation has it.
        claims: what the tool says of the number.
        curve: which trade-off curves are considered.
        audits: simulated audits with 250 and with 1,250 scores per world.
    """

    tool: str
    call: str
    value: str
    game: str
    label: str
    written: str
    claims: str
    curve: str
    audits: tuple[int, int] = (300, 300)


@dataclass(frozen=True)
class Cell:
    """Scores, and what no valid bound may exceed.

    Attributes:
        name: of the score file.
        game: as in `Estimator`.
        truth: the true epsilon; for the demo, the accounted one.
        audits: how many there are.
        mu: of the simulated scores; None for the demo.
        size: scores per world, or half of the slots.
    """

    name: str
    game: str
    truth: float
    audits: int
    mu: float | None = None
    size: int = 0


TOOLS = (
    Tool("dpcanary"),
    Tool("jax_privacy", "jax-privacy==2.0.0"),
    Tool("privacy-estimates", "privacy-estimates==0.1.0.post1"),
    Tool("PrivacyGuard", "privacyguard-platform==0.0.2"),
    Tool("dpsgd-auditbench", clone="src"),
    Tool("opake-auditing", "opake-auditing==0.16.1", has_demo=False),
)
_GAUSSIAN, _ANY = "Gaussian", "any"
_BOUND = "lower bound, 95 %"
_CP = "CanaryScoreAuditor(in_, out).epsilon_clopper_pearson(.05, 1e-5{})"
_NODE = "AnalysisNode(input, delta=1e-5, n_users_for_eval=n).run_analysis().{}"
ESTIMATORS = (
    Estimator(
        "dpcanary", "combined", "epsilon_lower", MANY, "dpcanary, default (`combined`)",
        "estimate_epsilon(world0_scores=in_, world1_scores=out, delta=1e-5)", _BOUND, _GAUSSIAN,
    ),
    Estimator(
        "dpcanary", "combined, direct", "epsilon_lower", MANY, "dpcanary, any curve (`direct`)",
        'estimate_epsilon(..., conversion="direct")', _BOUND, _ANY,
    ),
    Estimator(
        "dpcanary", "split", "epsilon_lower", MANY, "dpcanary, Clopper-Pearson (`split`)",
        'estimate_epsilon(..., threshold_rule="split")', _BOUND, _GAUSSIAN,
    ),
    Estimator(
        "dpcanary", "in_sample", "epsilon_lower", MANY, "dpcanary, the papers' rule (`in_sample`)",
        'estimate_epsilon(..., threshold_rule="in_sample")', "marked as not valid", _GAUSSIAN,
    ),
    Estimator(
        "jax_privacy", "clopper_pearson", "epsilon", MANY, "jax_privacy, `epsilon_clopper_pearson`",
        _CP.format(""), _BOUND, _ANY,
    ),
    Estimator(
        "jax_privacy", "clopper_pearson, Split", "epsilon", MANY,
        "jax_privacy, the same with `Split`", _CP.format(", threshold_strategy=Split(seed=...)"),
        _BOUND, _ANY,
    ),
    Estimator(
        "jax_privacy", "clopper_pearson, MultiSplit", "epsilon", MANY,
        "jax_privacy, the same with `MultiSplit`",
        _CP.format(", threshold_strategy=MultiSplit(seed=...)"), _BOUND, _ANY, (100, 100),
    ),
    Estimator(
        "jax_privacy", "from_gdp", "epsilon", MANY, "jax_privacy, `epsilon_from_gdp`",
        "CanaryScoreAuditor(in_, out).epsilon_from_gdp(.05, 1e-5)",
        '"estimate", failure probability 0.05', _GAUSSIAN,
    ),
    Estimator(
        "privacy-estimates", "beta", "eps_lo", MANY, "privacy-estimates, `beta`",
        'compute_eps_lo(counts, 1e-5, .05, "beta")', _BOUND, _ANY, (100, 100),
    ),
    Estimator(
        "privacy-estimates", "jeffreys", "eps_lo", MANY, "privacy-estimates, `jeffreys`",
        'compute_eps_lo(counts, 1e-5, .05, "jeffreys")', "credible, 95 %", _ANY, (100, 100),
    ),
    Estimator(
        "privacy-estimates", "joint-beta", "eps_lo", MANY, "privacy-estimates, `joint-beta`",
        'compute_eps_lo(counts, 1e-5, .05, "joint-beta")', "credible, 95 %", _ANY, (1, 0),
    ),
    Estimator(
        "PrivacyGuard", "AnalysisNode", "eps", MANY, "PrivacyGuard, `eps`", _NODE.format("eps"),
        "upper end of a 95 % interval, TPR 1 %", _ANY, (30, 20),
    ),
    Estimator(
        "PrivacyGuard", "AnalysisNode", "eps_lb", MANY, "PrivacyGuard, `eps_lb`",
        _NODE.format("eps_lb"), "lower end of a 95 % interval, TPR 1 %", _ANY, (30, 20),
    ),
    Estimator(
        "PrivacyGuard", "AnalysisNode, one bootstrap sample", "eps_cp", MANY,
        "PrivacyGuard, `eps_cp`",
        _NODE.format("eps_cp"), "95 % Clopper-Pearson", _ANY, (100, 30),
    ),
    Estimator(
        "dpcanary", "mahloujifar", "epsilon_lower", ONE, "dpcanary, `mahloujifar`",
        'estimate_epsilon(..., threshold_rule="mahloujifar")', _BOUND, _GAUSSIAN,
    ),
    Estimator(
        "dpcanary", "steinke", "epsilon_lower", ONE, "dpcanary, `steinke`",
        'estimate_epsilon(..., threshold_rule="steinke", conversion="direct")', _BOUND, _ANY,
    ),
    Estimator(
        "dpcanary", "combined", "epsilon_lower", ONE, "dpcanary, `combined`, slots independent",
        "estimate_epsilon(world0_scores=in_, world1_scores=out, delta=1e-5)", _BOUND, _GAUSSIAN,
        (20, 300),
    ),
    Estimator(
        "jax_privacy", "one_run", "epsilon", ONE, "jax_privacy, `epsilon_one_run`",
        "CanaryScoreAuditor(in_, out).epsilon_one_run(.05, 1e-5)", _BOUND, _ANY,
    ),
    Estimator(
        "jax_privacy", "one_run_fdp", "epsilon", ONE, "jax_privacy, `epsilon_one_run_fdp`",
        "CanaryScoreAuditor(in_, out).epsilon_one_run_fdp(.05, 1e-5)", _BOUND, _GAUSSIAN,
        (100, 100),
    ),
    Estimator(
        "PrivacyGuard", "FDPAnalysisNode", "eps", ONE, "PrivacyGuard, `FDPAnalysisNode`",
        "FDPAnalysisNode(m, c, c_cap=m // 4, delta=1e-5).run_analysis().eps", "p-value 0.05",
        _GAUSSIAN, (3, 0),
    ),
    Estimator(
        "dpsgd-auditbench", "bootstrap", "eps", ONE, "dpsgd-auditbench, bootstrap",
        "ndis_eps_lower_bound_with_ci(in_, out, 1e-5, alpha=.05, n_bootstrap=2000,"
        " pool_variance=True)",
        "lower bound, 95 %, slots independent and Gaussian", _GAUSSIAN, (4, 4),
    ),
    Estimator(
        "opake-auditing", "gdp", "epsilon", ONE, "opake-auditing, `gdp`",
        "one_run(scores, coin_flip=coins).gdp().epsilon_at(delta=1e-5)",
        _BOUND, _GAUSSIAN, (30, 4),
    ),
    Estimator(
        "opake-auditing", "eps_delta", "epsilon", ONE, "opake-auditing, `eps_delta`",
        "one_run(scores, coin_flip=coins).eps_delta().epsilon_at(delta=1e-5)", _BOUND, _ANY,
    ),
)  # fmt: skip
# Those of the chart: name there, and the label above.
CHARTED = {
    MANY: {
        "dpcanary, default": "dpcanary, default (`combined`)",
        "dpcanary, any curve": "dpcanary, any curve (`direct`)",
        "dpcanary, papers' rule": "dpcanary, the papers' rule (`in_sample`)",
        "jax_privacy, Clopper-Pearson": "jax_privacy, `epsilon_clopper_pearson`",
        "jax_privacy 2.0.0, GDP": "jax_privacy, `epsilon_from_gdp`",
        "privacy-estimates, Clopper-P.": "privacy-estimates, `beta`",
        "PrivacyGuard, eps_cp": "PrivacyGuard, `eps_cp`",
        "PrivacyGuard, eps": "PrivacyGuard, `eps`",
    },
    ONE: {
        "dpcanary, combined": "dpcanary, `combined`, slots independent",
        "dpcanary, mahloujifar": "dpcanary, `mahloujifar`",
        "jax_privacy, one_run_fdp": "jax_privacy, `epsilon_one_run_fdp`",
        "opake-auditing, gdp": "opake-auditing, `gdp`",
        "opake-auditing, eps_delta": "opake-auditing, `eps_delta`",
    },
}
# What their makers do not call a lower bound that holds with 95 % confidence.
NOT_CALLED_BOUNDS = frozenset({"dpcanary, the papers' rule (`in_sample`)", "PrivacyGuard, `eps`"})
BLUE, RED, GREY = "#1f5fa8", "#c0392b", "#7f8c8d"


def main(argv: list[str] | None = None) -> int:
    """Asks every tool, and writes results, tables and chart; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [tool.name for tool in TOOLS]
    parser.add_argument("--page", action="store_true", help="only page and chart, as stored")
    parser.add_argument("--work", type=Path, help="environments, scores, answers; kept, and reused")
    parser.add_argument("--tools", nargs="+", choices=names, default=names, help="which to ask")
    parser.add_argument("--installer", choices=("pip", "uv"), default="pip")
    parser.add_argument(
        "--clone", nargs="+", default=[], metavar="TOOL=FOLDER", help="tools that no registry has"
    )
    parser.add_argument("--demo", type=Path, default=ROOT / "results/demo", help="its results")
    parser.add_argument("--processes", type=int, default=1, help="questions asked at once")
    options = parser.parse_args(argv)
    if not options.page:
        clones = dict(clone.split("=", 1) for clone in options.clone)
        with TemporaryDirectory() as place:
            results = compare(options, options.work or Path(place), clones)
        if options.tools != names:
            results = merged(read_json(RESULTS), results)
        write_text(RESULTS, json.dumps(results, indent=1, allow_nan=False) + "\n")
        write_table(RESULTS.with_suffix(".tsv"), pd.DataFrame(results["rows"]))
    results = read_json(RESULTS)
    write_text(PAGE, filled(PAGE.read_text(), results))
    with style.applied():
        chart(results).savefig(CHART, dpi=200)
    for name, text in tables(results).items():
        print(f"{name}\n\n{text}\n")
    return 0


def compare(options: argparse.Namespace, work: Path, clones: dict[str, str]) -> dict[str, Any]:
    """The results of all tools that can be run, and why others cannot."""
    cells = [*simulated_cells(), *demo_cells(options.demo)]
    hashes = {cell.name: write_request(cell, work, options.demo) for cell in cells}
    tools: dict[str, dict[str, str]] = {}
    questions = []
    for tool in (tool for tool in TOOLS if tool.name in options.tools):
        try:
            command, path = interpreter(tool, work, clones, options.installer)
        except (subprocess.CalledProcessError, OSError) as error:
            tools[tool.name] = {"not_run": str(error)}
            continue
        for cell in (cell for cell in cells if tool.has_demo or cell.mu is not None):
            calls = {e.call: e for e in ESTIMATORS if (e.tool, e.game) == (tool.name, cell.game)}
            questions += [(tool, e, cell, hashes[cell.name], command, path) for e in calls.values()]
    with ThreadPoolExecutor(options.processes) as pool:
        asking = [pool.submit(asked, *question, work=work) for question in questions]
        try:
            answers = [future.result() for future in asking]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    rows = []
    for (tool, asked_for, cell, *_), answer in zip(questions, answers, strict=True):
        if answer is None:
            continue
        tools[tool.name] = {name: answer[name] for name in ("version", "python")}
        same = [e for e in ESTIMATORS if (e.tool, e.call) == (tool.name, asked_for.call)]
        rows += [row(e, cell, answer) for e in same if e.game == cell.game]
    return {
        "made": date.today().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "tools": tools,
        "cells": [{**vars(cell), "sha256": hashes[cell.name]} for cell in cells],
        "rows": rows,
    }


def merged(stored: dict[str, Any], latest: dict[str, Any]) -> dict[str, Any]:
    """The stored results with those of the tools that were asked now, on the same scores.

    Raises:
        ValueError: if scores of a cell are others than those that the stored results are of.
    """
    hashes = {cell["name"]: cell["sha256"] for cell in stored["cells"]}
    for cell in latest["cells"]:
        if hashes.get(cell["name"]) != cell["sha256"]:
            raise ValueError(f"the scores of {cell['name']} are not those of the stored results")
    labels = {e.label for e in ESTIMATORS if e.tool in latest["tools"]}
    kept = [row for row in stored["rows"] if row["label"] not in labels]
    tools = {**stored["tools"], **latest["tools"]}
    return {**stored, "tools": tools, "rows": [*kept, *latest["rows"]]}


def simulated_cells() -> list[Cell]:
    """Gaussian scores: of many trainings, and of the slots of one, whose worlds are coins."""
    return [
        Cell(
            _cell_name(game, mu, size), game, gdp_epsilon(mu=mu, delta=DELTA),
            max(e.audits[place] for e in ESTIMATORS if e.game == game), mu, size,
        )
        for game in (MANY, ONE)
        for mu in MUS
        for place, size in enumerate(SIZES)
    ]  # fmt: skip


def demo_cells(demo: Path) -> list[Cell]:
    """Three sets of trainings of the demo, and one training with 250 canaries."""
    audits = {
        "steps-worst_case-q1": MANY,
        "steps-gradient-q1": MANY,
        "steps-natural-q1": MANY,
        "one_training": ONE,
    }
    if not (demo / "summary.tsv").exists():
        print(f"{demo} has no results: only simulated scores are compared", file=sys.stderr)
        return []
    summary = pd.read_csv(demo / "summary.tsv", sep="\t").groupby("audit")
    accounted = summary["epsilon_upper_substitute"].max()
    return [Cell(f"demo-{name}", game, float(accounted[name]), 1) for name, game in audits.items()]


def scores_of(cell: Cell, demo: Path) -> Iterator[tuple[list[float], list[float]]]:
    """The scores of a cell's audits: of world 0, or of canaries that are in, and of world 1."""
    if cell.mu is None:
        name = cell.name.removeprefix("demo-")
        worlds = read_scores(demo / "scores" / f"{name}.npz").of_worlds(repeat=0, step=-1)
        yield tuple(scores.tolist() for scores in worlds)
        return
    for number in range(cell.audits):
        key = [SEED, (MANY, ONE).index(cell.game), int(cell.mu), cell.size, number]
        rng = np.random.default_rng(key)
        in_ = np.repeat([True, False], cell.size)
        if cell.game == ONE:
            in_ = rng.random(2 * cell.size) < 0.5
        scores = np.round(rng.normal(cell.mu * in_), 6)
        yield scores[in_].tolist(), scores[~in_].tolist()


def write_request(cell: Cell, work: Path, demo: Path) -> str:
    """Writes what every tool is given; returns the start of the file's SHA-256."""
    request = {
        "audits": list(scores_of(cell, demo)),
        "delta": DELTA,
        "significance": SIGNIFICANCE,
        "seed": SEED,
    }
    text = json.dumps(request)
    write_text(work / "scores" / f"{cell.name}.json", text)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def interpreter(tool: Tool, work: Path, clones: dict[str, str], installer: str) -> tuple[str, str]:
    """The interpreter that has the tool, and what it needs on its path.

    Raises:
        CalledProcessError: if the tool cannot be installed.
        OSError: if the tool is in no registry, and no clone is given.
    """
    if not tool.requirement:
        if tool.name in clones:
            return sys.executable, str(Path(clones[tool.name]) / tool.clone)
        if tool.clone:
            raise OSError("it is in no registry, and no clone was given")
        return sys.executable, str(ROOT)
    place = work / "environments" / tool.name
    python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (place / "installed").exists():
        shutil.rmtree(place, ignore_errors=True)
        if installer == "uv":
            subprocess.run(["uv", "venv", str(place)], check=True)
            command = ["uv", "pip", "install", "--python", str(python), tool.requirement]
        else:
            venv.create(place, with_pip=True)
            command = [str(python), "-m", "pip", "install", "--quiet", tool.requirement]
        subprocess.run(command, check=True)
        (place / "installed").touch()
    return str(python), ""


def asked(
    tool: Tool,
    estimator: Estimator,
    cell: Cell,
    digest: str,
    command: str,
    path: str,
    *,
    work: Path,
) -> dict[str, Any] | None:
    """The answer to one question, from its file if it was asked before; None for no audits."""
    small, large = estimator.audits
    number = min(1, large) if cell.mu is None else (small, large)[SIZES.index(cell.size)]
    if not number:
        return None
    name = re.sub(r"\W+", "_", f"{tool.name}-{estimator.call}-{cell.name}-{digest}-{number}")
    request, answer = (work / kind / f"{name}.json" for kind in ("requests", "answers"))
    if not answer.exists():
        print(f"{tool.name}: {estimator.call}, {cell.name}", file=sys.stderr)
        stored = read_json(work / "scores" / f"{cell.name}.json")
        write_text(request, json.dumps({**stored, "audits": stored["audits"][:number]}))
        answer.parent.mkdir(exist_ok=True)
        partial = answer.with_suffix(".partial")
        words = [command, str(ADAPTERS), tool.name, estimator.call, str(request), str(partial)]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
        done = subprocess.run(
            words, env={**os.environ, **environment}, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)}\n{done.stderr}")
        partial.replace(answer)
    return read_json(answer)


def row(estimator: Estimator, cell: Cell, answer: dict[str, Any]) -> dict[str, Any]:
    """The summary of an estimator's numbers in one cell. A number that is missing counts as 0."""
    epsilons = [numbers[estimator.value] for numbers in answer["epsilons"]]
    values = [0.0 if value is None else value for value in epsilons]
    return {
        "cell": cell.name,
        "label": estimator.label,
        "audits": len(values),
        "median": round(median(values), 4),
        "above": sum(value > cell.truth + TOLERANCE for value in values),
        "missing": epsilons.count(None),
        "seconds": float(f"{median(answer['seconds']):.2g}"),
    }


def share_interval(above: int, audits: int) -> tuple[float, float]:
    """The Clopper-Pearson interval of a share, 95 %."""
    low = beta.ppf(0.025, above, audits - above + 1) if above else 0.0
    high = beta.ppf(0.975, above + 1, audits - above) if above < audits else 1.0
    return float(low), float(high)


def is_too_often(summary: dict[str, Any]) -> bool:
    """Whether the share above the truth is more than the significance, beyond doubt."""
    return share_interval(summary["above"], summary["audits"])[0] > SIGNIFICANCE


def tables(results: dict[str, Any]) -> dict[str, str]:
    """Every table of the page, by the name of its marker."""
    texts = {"versions": _versions(results), "scores": _scores(results)}
    for game, name in ((MANY, "many"), (ONE, "one")):
        texts[f"{name}-medians"] = _table(results, game, _median, seconds=True)
        texts[f"{name}-above"] = _table(results, game, _above)
        texts[f"{name}-demo"] = _demo(results, game)
    return texts


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its tables between their markers.

    Raises:
        ValueError: if a table has no markers.
    """
    for name, text in tables(results).items():
        page = with_table(page, f"peers: {name}", text)
    return page


def _versions(results: dict[str, Any]) -> str:
    lines = [("number", "version", "call", "what the tool says of it", "curves")]
    for game in (MANY, ONE):
        for e in _present(results, game):
            version = results["tools"][e.tool]["version"] or "see below"
            lines.append((e.label, version, f"`{e.written}`", e.claims, e.curve))
    lines += [
        (tool, "not run", entry["not_run"], "-", "-")
        for tool, entry in results["tools"].items()
        if "not_run" in entry
    ]
    return markdown_table(lines)


def _scores(results: dict[str, Any]) -> str:
    lines = [("scores", "truth", "audits", "SHA-256 of the file")]
    lines += [
        (cell["name"], f"{cell['truth']:.3f}", str(cell["audits"]), f"`{cell['sha256']}`")
        for cell in results["cells"]
    ]
    return markdown_table(lines)


def _present(results: dict[str, Any], game: str) -> list[Estimator]:
    run = {tool for tool, entry in results["tools"].items() if "version" in entry}
    return [e for e in ESTIMATORS if e.game == game and e.tool in run]


def _row_of(results: dict[str, Any], label: str, cell: str) -> dict[str, Any] | None:
    return next((r for r in results["rows"] if (r["label"], r["cell"]) == (label, cell)), None)


def _median(summary: dict[str, Any]) -> str:
    text = f"{max(summary['median'], 0.0):.2f}"
    return f"**{text}**" if is_too_often(summary) else text


def _above(summary: dict[str, Any]) -> str:
    low, high = share_interval(summary["above"], summary["audits"])
    text = f"{summary['above']} of {summary['audits']} ({100 * low:.0f}-{100 * high:.0f} %)"
    return f"**{text}**" if is_too_often(summary) else text


def _table(results: dict[str, Any], game: str, shown: Any, *, seconds: bool = False) -> str:
    cells = [c for c in results["cells"] if c["game"] == game and c["mu"] is not None]
    unit = "n" if game == MANY else "slots"
    heads = [f"mu {c['mu']:g}, {unit} {c['size'] * (1 if game == MANY else 2):,}" for c in cells]
    truths = [f"{c['truth']:.2f}" for c in cells]
    lines = [["", *heads, *(["seconds"] if seconds else [])]]
    if seconds:
        lines.append(["the true epsilon", *truths, ""])
    for e in _present(results, game):
        rows = [_row_of(results, e.label, c["name"]) for c in cells]
        line = [e.label, *(shown(r) if r else "-" for r in rows)]
        if seconds:
            times = [r["seconds"] for r, c in zip(rows, cells, strict=True) if r and c["mu"] == 1]
            line.append(" / ".join(f"{time:.2g}" for time in times))
        lines.append(line)
    return markdown_table(lines)


def _demo(results: dict[str, Any], game: str) -> str:
    cells = [c for c in results["cells"] if c["game"] == game and c["mu"] is None]
    names = [c["name"].removeprefix("demo-") for c in cells]
    lines = [["", *(f"`{name}`" for name in names)]]
    lines.append(["accounted (an upper bound)", *(rounded_up(c["truth"]) for c in cells)])
    for e in _present(results, game):
        rows = [_row_of(results, e.label, c["name"]) for c in cells]
        # The median of one audit is its lower bound.
        lines.append([e.label, *(rounded_down(max(r["median"], 0)) if r else "-" for r in rows)])
    return markdown_table(lines)


def chart(results: dict[str, Any]) -> Figure:
    """What each tool states at mu = 1 from 2,500 scores, and how often it is above the truth.

    The shares are of the audits with the same scores, and of those with as many scores without any
    leakage, with their Clopper-Pearson intervals.
    """
    figure = Figure(figsize=(7.6, 6.6), layout="constrained", facecolor="white")
    axes = figure.subplots(1, 3, sharey=True, width_ratios=(1.7, 1, 1))
    names, truth = [], gdp_epsilon(mu=1.0, delta=DELTA)
    for game, charted in CHARTED.items():
        names.append(f"{game.upper()}:")
        for name, label in charted.items():
            place = len(names)
            rows = [_row_of(results, label, _cell_name(game, mu, SIZES[-1])) for mu in (1.0, 0.0)]
            is_bound = label not in NOT_CALLED_BOUNDS
            _draw_stated(axes[0], place, rows, is_bound=is_bound)
            for panel, row in zip(axes[1:], rows, strict=True):
                _draw_share(panel, place, row, is_bound=is_bound)
            names.append(name)
    axes[0].axvline(truth, color="black", linewidth=1.4)
    axes[0].set_title(f"epsilon stated\n(line: the truth, {truth:.2f})", fontsize=11)
    axes[0].set_yticks(range(len(names)), names, fontsize=10)
    axes[0].invert_yaxis()
    axes[0].set(xlim=(0, 7.5), xticks=range(0, 8, 2))
    for panel, what in zip(axes[1:], ("the same scores", "no leakage"), strict=True):
        panel.axvline(100 * SIGNIFICANCE, color="black", linewidth=1.4, linestyle=":")
        panel.set_title(f"% above the truth,\n{what}", fontsize=11)
        panel.set(xlim=(-4, 104), xticks=(0, 50, 100))
    for panel in axes:
        panel.grid(visible=False, axis="y")
        panel.tick_params(axis="x", labelsize=10)
    return figure


def _cell_name(game: str, mu: float, size: int) -> str:
    return f"{game.replace(' ', '_')}-mu{mu:g}-n{size}"


def _draw_stated(
    axes: Axes, place: int, rows: list[dict[str, Any] | None], *, is_bound: bool
) -> None:
    """A bar for the median; red if the number is above the truth too often in either panel."""
    [own, _] = rows
    if own is None:
        return
    colour = BLUE
    if not is_bound:
        colour = GREY
    elif any(is_too_often(row) for row in rows if row):
        colour = RED
    axes.barh(place, own["median"], color=colour, height=0.7)
    is_long = own["median"] > 1.6
    axes.annotate(
        f"{own['median']:.2f}", (own["median"], place), (-4 if is_long else 4, 0),
        textcoords="offset points", va="center", ha="right" if is_long else "left", fontsize=10.5,
        color="white" if is_long else "black", weight="bold",
    )  # fmt: skip


def _draw_share(axes: Axes, place: int, row: dict[str, Any] | None, *, is_bound: bool) -> None:
    """A point for the share above the truth with its interval; red if that lies above 5 %."""
    if row is None:
        return
    colour = (RED if is_too_often(row) else BLUE) if is_bound else GREY
    low, high = (100 * end for end in share_interval(row["above"], row["audits"]))
    axes.plot((low, high), (place, place), color=colour, linewidth=2)
    filled = colour if is_bound else "white"
    axes.plot(100 * row["above"] / row["audits"], place, "o", color=colour, markerfacecolor=filled)


if __name__ == "__main__":
    raise SystemExit(main())
