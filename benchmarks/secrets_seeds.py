"""How often the bounds of docs/examples/secrets_language_model.py exceed what is accounted.

    python -m benchmarks.secrets_seeds [--seeds 20] [--epsilons 8 4]

Runs the example once for each seed, with codes, pretraining and noise of its own, and writes
docs/results/secrets-seeds.tsv: a row for each seed and epsilon. Seeds that the table has are kept.
A seed takes some minutes on one core.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

from dpcanary.core.files import write_text

ROOT = Path(__file__).parents[1]
PROGRAM, TABLE = (
    ROOT / f"docs/{path}"
    for path in ("examples/secrets_language_model.py", "results/secrets-seeds.tsv")
)
_UNIFORM = re.compile(r"uniform with p-value ([\d.]+)")
_SHOWN = re.compile(
    r"accounted ([\d.]+) add/remove, ([\d.]+) substitute: epsilon shown >= ([\d.]+);"
    r" (\d+) of \d+ codes guessed, mean exposure ([\d.]+) bits"
)
COLUMNS = ("add_remove", "substitute", "shown", "codes_guessed", "mean_exposure")


def rows_of(seed: int, epsilons: list[float]) -> list[dict[str, float]]:
    """What the example prints of each epsilon."""
    command = [sys.executable, str(PROGRAM), "--seed", str(seed), "--epsilons", *map(str, epsilons)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    [uniform] = _UNIFORM.findall(printed)
    return [
        {
            "seed": seed,
            "epsilon": epsilon,
            "p_value_before": float(uniform),
            **dict(zip(COLUMNS, map(float, numbers), strict=True)),
        }
        for epsilon, numbers in zip(epsilons, _SHOWN.findall(printed), strict=True)
    ]


def main(argv: list[str] | None = None) -> None:
    """Runs the seeds that the table lacks, and prints how many bounds exceed what is accounted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.secrets_seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 4.0])
    parser.add_argument("--output", type=Path, default=TABLE)
    options = parser.parse_args(argv)
    table = pd.read_csv(options.output, sep="\t") if options.output.exists() else pd.DataFrame()
    for seed in range(options.seeds):
        if seed in {*table.get("seed", ())}:
            continue
        table = pd.concat([table, pd.DataFrame(rows_of(seed, options.epsilons))])
        write_text(options.output, table.to_csv(sep="\t", index=False, float_format="%.6g"))
    for epsilon, rows in table.groupby("epsilon"):
        above = int((rows["shown"] > rows["substitute"]).sum())
        print(
            f"epsilon {epsilon:g}: {above} of {len(rows)} bounds exceed what is accounted; the"
            f" largest is {rows['shown'].max():.2f}, the mean {rows['shown'].mean():.2f}"
        )


if __name__ == "__main__":
    main()
