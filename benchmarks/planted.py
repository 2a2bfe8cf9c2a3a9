"""Errors that are planted in the library, each with the tests that must find it.

    python -m benchmarks.planted [NAME ...]

Copies the project, plants one error at a time, and runs its tests: they must fail. Prints which
errors pass, and ends with status 1 if any does.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpcanary.printing import print_table

ROOT = Path(__file__).parents[1]
# What tests read besides the package.
COPIED = ("dpcanary", "tests", "scripts", "benchmarks", "config", "docs", "rules", "profiles")
FILES = ("Snakefile", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")


@dataclass(frozen=True)
class Planted:
    """An error.

    Attributes:
        name: what is wrong, in a few words.
        file: below the package.
        before: text that the file holds once.
        after: what stands there instead.
        tests: that must find it, as pytest takes them; below the folder of the library's tests.
    """

    name: str
    file: str
    before: str
    after: str
    tests: str


ERRORS = [
    Planted(
        "no alarm in the report of an own add/remove audit above what is accounted",
        "reports/of_own_audit.py",
        "upper = add_remove if isnan(substitute) else substitute",
        "upper = substitute",
        "test_report.py",
    ),
    Planted(
        "bounds of earlier steps with the last step's number of steps",
        "estimation/table.py",
        "else int(step) // (stage",
        "else int(scores.step[-1]) // (stage",
        "test_estimation_table.py",
    ),
    Planted(
        "gradient canaries of 1.05 C are accepted",
        "training/slots.py",
        "max_grad_norm * (1 + 1e-6)",
        "max_grad_norm * 1.06",
        "test_training_arguments.py",
    ),
    Planted(
        "delta of a landscape in one order of the worlds alone",
        "adversaries/landscape_law.py",
        "return max(_hockey_stick(*pair, self.spacing, epsilon) for pair in pairs)",
        "return _hockey_stick(*next(iter(pairs)), self.spacing, epsilon)",
        "test_landscape.py",
    ),
    Planted(
        "the claim's p-value is not corrected for looks",
        "own_training/result.py",
        "assessed.p_value * self.estimate.num_looks",
        "assessed.p_value",
        "test_own_training.py",
    ),
    Planted(
        "the sign of gradient_norm under zero-out",
        "scoring/scores.py",
        "return observed if context.adjacency is Adjacency.SUBSTITUTE else -observed",
        "return -observed if context.adjacency is Adjacency.ADD_REMOVE else observed",
        "test_scoring_scores.py",
    ),
    Planted(
        "ceilings at .05 whatever the significance",
        "estimation/table.py",
        "significance=stage.significance,\n            threshold_rule=valid[0],",
        "significance=0.05,\n            threshold_rule=valid[0],",
        "test_estimation_table.py",
    ),
    Planted(
        "histograms of the worlds exchanged in a report",
        "figures/scores_of_worlds.py",
        "zip((scores.world0, scores.world1), style.WORLD_COLOURS",
        "zip((scores.world1, scores.world0), style.WORLD_COLOURS",
        "test_figures.py",
    ),
    Planted(
        "histograms of the worlds exchanged in a figure",
        "figures/scores_of_worlds.py",
        '_draw_histogram(axes, table[f"world{world}_scores"]',
        '_draw_histogram(axes, table[f"world{1 - world}_scores"]',
        "test_figures.py",
    ),
    Planted(
        "an explicit sample rate is ignored",
        "accounting/of_opacus.py",
        "rate = known_rate if sample_rate is None else sample_rate",
        "rate = known_rate or sample_rate",
        "test_accounting_of_opacus.py",
    ),
    Planted(
        "simulated noise from the audit's own stream",
        "training/simulation.py",
        "purpose=Purpose.SIMULATED_NOISE",
        "purpose=Purpose.NOISE",
        "test_training_simulation.py",
    ),
    Planted(
        "the report's test accuracy is that of the first step",
        "reports/of_experiment.py",
        'last = summary.drop_duplicates("audit", keep="last")',
        'last = summary.drop_duplicates("audit", keep="first")',
        "test_report.py",
    ),
    Planted(
        "hours a third too low",
        "costs/report.py",
        'hours = (jobs["seconds"] + probed) / 3600',
        'hours = (jobs["seconds"] + probed) / 5400',
        "test_costs.py",
    ),
    Planted(
        "the eps of LayerNorm",
        "training/modules/layer_rules.py",
        "return layer_norm(x, layer.normalized_shape, eps=layer.eps)",
        "return layer_norm(x, layer.normalized_shape, eps=1e-5)",
        "test_training_models.py test_training_supported.py test_training_gradients.py",
    ),
    Planted(
        "temporary files of processes have one name",
        "files.py",
        'f".{path.name}.{_HOST}.{os.getpid()}-{secrets.token_hex(4)}.part"',
        'f".{path.name}.part"',
        "test_files.py",
    ),
    Planted(
        "pooled slots keep the proof of single ones",
        "estimation/table.py",
        "Proof(proof).of_pooled_slots().value",
        "Proof(proof).value",
        "test_estimation_table.py",
    ),
    Planted(
        "a table's checksum is not compared",
        "sealed.py",
        "if not is_whole or {told for _, _, told in parts} != {_checksum(bare)}:",
        "if not is_whole:",
        "test_sealed.py",
    ),
    Planted(
        "a file's hash is not compared",
        "datasets/source.py",
        "if one != other:",
        "if one == '':",
        "test_data_files.py",
    ),
    Planted(
        "accountants take lack of memory for a refusal",
        "accounting/mechanism.py",
        "            raise error\n",
        "            return\n",
        "test_accounting_errors.py",
    ),
    Planted(
        "the checksum of gzip is not read",
        "datasets/archives.py",
        "while stream.read(_BLOCK_BYTES):",
        "while False:",
        "../faults/test_corruption.py",
    ),
]


def find(error: Planted, copy: Path) -> str:
    """Plants an error in a copy of the project and runs its tests; how they end."""
    path = copy / "dpcanary" / error.file
    text = path.read_text()
    if text.count(error.before) != 1:
        return "NOT PLANTED: the text is not there once"
    path.write_text(text.replace(error.before, error.after))
    try:
        tests = [f"tests/library/{name}" for name in error.tests.split()]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    finally:
        path.write_text(text)
    if done.returncode == 1:
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return lines[0].partition("::")[2].partition(" ")[0] if lines else "found"
    return "NOT FOUND" if done.returncode == 0 else f"NOT RUN: {done.stdout[-300:]}"


def chosen(names: list[str]) -> Iterator[Planted]:
    """All errors, or those of which a name is a part."""
    for error in ERRORS:
        if not names or any(name in error.name for name in names):
            yield error


def main() -> int:
    """Plants one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; by default all")
    rows = []
    with tempfile.TemporaryDirectory(prefix="dpcanary-planted-") as folder:
        copy = Path(folder)
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "results", "_build")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, copy)
        for error in chosen(parser.parse_args().names):
            rows.append((error.name, find(error, copy)))
            print(*rows[-1], sep=": ", file=sys.stderr, flush=True)
    print_table(["error", "found by"], rows)
    missed = sum(how.startswith("NOT") for _, how in rows)
    print(f"\n{len(rows) - missed} of {len(rows)} are found.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
