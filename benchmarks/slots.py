"""Milliseconds per model-step with one slot and with many, in one process.

Run as `python -m benchmarks.slots`. benchmarks/README.md says what is measured.
"""

import argparse
import json
from dataclasses import replace
from statistics import median

import torch

from benchmarks.contenders import CASES, ours
from benchmarks.training import milliseconds

SLOTS = (1, 100, 500)


def main(argv: list[str] | None = None) -> None:
    """Measures and prints a row for each model and sample rate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slots", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--models", nargs="+", choices=[*CASES], default=["linear", "mlp"])
    parser.add_argument("--runs", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(argv)
    device, rows = torch.device("cpu"), []
    for name in options.models:
        # Twice as many records as slots, so that other records are trained on as well.
        case, share = replace(CASES[name], num_records=2 * SLOTS[-1]), 1 if name == "linear" else 8
        for rate in case.sample_rates:
            effort = {"runs": options.runs // share, "steps": options.steps, "device": device}
            contenders = {
                slots: ours(case, rate, **effort, threads=options.threads, num_slots=slots)
                for slots in SLOTS
            }
            # In turn, so that a disturbance affects all alike; the first repeat warms up.
            times = [
                {
                    slots: milliseconds(contender, device)[0]
                    for slots, contender in contenders.items()
                }
                for _ in range(options.repeats + 1)
            ][1:]
            row = {f"ms_{slots}": median(time[slots] for time in times) for slots in SLOTS}
            ratios = {
                f"ratio_{slots}": median(time[slots] / time[1] for time in times)
                for slots in SLOTS[1:]
            }
            rows.append({"model": name, "sample_rate": rate, **row, **ratios})
            if not options.json:
                cells = (f"{key} {value:.4g}" for key, value in rows[-1].items() if key != "model")
                print(f"{name:<8}", *cells, flush=True)
    if options.json:
        print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
