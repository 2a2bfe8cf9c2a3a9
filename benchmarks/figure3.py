"""Seconds of training for Figure 3 of Pradhan et al.: 90,000 models of 500 steps.

There are four canaries, three sample rates and three repeats of 2,500 runs on 500 records of 768
features in 10 classes, and scores are recorded every 25 steps. The features are random, because the
time depends only on their shape. Run as `python -m benchmarks.figure3 --device cuda`.
"""

import argparse
import json
from time import perf_counter

import numpy as np
from torch import nn

from benchmarks.contenders import synchronise
from dpcanary import Records
from dpcanary.core.devices import chosen_device
from dpcanary.core.program_messages import progress
from dpcanary.training import DPSGD, GradientCanary, InputCanary, train_ensemble

SAMPLE_RATES = {1.0: 22.370, 0.25: 5.574, 0.0625: 1.4}  # noise near substitute epsilon 10
CANARIES, REPEATS, RUNS, STEPS = 4, 3, 2500, 500


def main(argv: list[str] | None = None) -> None:
    """Trains, and prints the seconds by sample rate and in total as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figure3", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda", "auto"], default="auto")
    parser.add_argument("--threads", type=int, default=2, help="workers on the processor")
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the runs, for a short trial"
    )
    options = parser.parse_args(argv)
    device = chosen_device(options.device)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((500, 768), np.float32)
    records = Records(features, np.arange(500) % 10)
    inputs = InputCanary(rng.standard_normal(768, np.float32), label=1, target=0)
    canaries = [GradientCanary(coordinate=0, target=0), inputs, inputs, inputs]
    runs = round(RUNS * options.share)
    seconds = {}
    with progress(len(SAMPLE_RATES) * CANARIES * REPEATS * runs * STEPS, "model-step") as bar:
        for rate, noise in SAMPLE_RATES.items():
            started = perf_counter()
            for index, canary in enumerate(canaries):
                train_ensemble(
                    module=nn.Linear(768, 10),
                    records=records,
                    canary=canary,
                    dpsgd=DPSGD(noise, 2.0, 0.01, tuple(range(25, STEPS + 1, 25)), rate),
                    runs=range(REPEATS * runs),
                    seed=index,
                    device=device,
                    initialisation="zeros",
                    num_threads=options.threads,
                    on_progress=bar.update,
                )
            synchronise(device)
            seconds[rate] = perf_counter() - started
    models = len(SAMPLE_RATES) * CANARIES * REPEATS * runs
    total = sum(seconds.values())
    print(json.dumps({"device": str(device), "models": models, "seconds": total} | {"by": seconds}))


if __name__ == "__main__":
    main()
