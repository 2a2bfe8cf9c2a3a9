"""What products in bfloat16 do to an audit: the same runs are trained in either precision.

The runs draw the same noise and batches, so they differ only by rounding. The program prints how
far the scores move, in units of their standard deviation, and the epsilon of either precision. Run
as `python -m benchmarks.precision`.
"""

import argparse
import json

import numpy as np
import torch
from torch import nn

from dpcanary import (
    DPSGD,
    GradientCanary,
    InputCanary,
    Loss,
    Precision,
    ensemble_scores,
    estimate_epsilon,
    train_ensemble,
)
from dpcanary.adversaries.crafting import Target, input_canary
from dpcanary.adversaries.gradient import least_updated_coordinates
from dpcanary.adversaries.most_opposed import most_opposed
from dpcanary.adversaries.record_gradients import RecordGradients
from dpcanary.datasets.sources import load_source
from dpcanary.datasets.splitting import split_records
from dpcanary.records import Split
from dpcanary.training.options import Initialisation
from dpcanary.training.simulation import simulated_movement, train_reference
from dpcanary.worlds import parity

CPU = torch.device("cpu")
SAMPLE_RATES = {1.0: 22.370, 0.25: 5.574}  # noise for a substitute epsilon of 10
STEPS, DELTA = 500, 1e-5


def scores_of(
    data: Split,
    canary: GradientCanary | InputCanary,
    dpsgd: DPSGD,
    runs: int,
    precision: Precision,
) -> np.ndarray:
    """Scores at the last step, shape (runs,)."""
    result = train_ensemble(
        module=nn.Linear(data.private.features.shape[1], data.num_classes),
        records=data.private,
        canary=canary,
        dpsgd=dpsgd,
        runs=runs,
        seed=0,
        initialisation="zeros",
        precision=precision,
        num_threads=torch.get_num_threads(),
    )
    return ensemble_scores(result)[:, -1, 0]


def canaries_of(data: Split, dpsgd: DPSGD) -> dict[str, GradientCanary | InputCanary]:
    """The gradient and the natural canary."""
    private = data.private
    module = nn.Linear(private.features.shape[1], data.num_classes)
    known = {
        "module": module,
        "records": private,
        "initialisation": Initialisation.ZEROS,
        "device": CPU,
    }
    descent = DPSGD(0.0, float("inf"), dpsgd.learning_rate, (STEPS,))
    reference = train_reference(**known, dpsgd=descent)
    [index] = reference.least_confident(1)
    target = Target(int(index), private.features[index], int(private.labels[index]))
    gradients = RecordGradients(module, reference.parameters, Loss.CROSS_ENTROPY)
    moved = simulated_movement(**known, dpsgd=dpsgd, seed=0).absolute
    [coordinate] = least_updated_coordinates(moved, num_slots=1)
    return {
        "gradient": GradientCanary(int(coordinate), target.index),
        "natural": input_canary(most_opposed(gradients, data.auxiliary, target), target),
    }


def main(argv: list[str] | None = None) -> None:
    """Trains in either precision, and prints a row of JSON for each audit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args(argv)
    data = split_records(load_source("digits"), num_records=500, seed=0)
    for rate, noise in SAMPLE_RATES.items():
        dpsgd = DPSGD(noise, 1.0, 0.01, (STEPS,), rate)
        for name, canary in canaries_of(data, dpsgd).items():
            scores = {
                precision: scores_of(data, canary, dpsgd, options.runs, precision)
                for precision in Precision
            }
            world = parity(np.arange(options.runs))
            epsilons = {
                precision.value: estimate_epsilon(
                    world0_scores=values[world == 0], world1_scores=values[world == 1], delta=DELTA
                ).epsilon_lower
                for precision, values in scores.items()
            }
            exact = scores[Precision.FLOAT32]
            moved = scores[Precision.BFLOAT16] - exact
            spread = np.sqrt(np.mean([exact[world == w].var() for w in (0, 1)]))
            row = {"canary": name, "sample_rate": rate, "epsilon_lower": epsilons}
            print(json.dumps(row | {"score_error": float(np.sqrt(np.mean(moved**2)) / spread)}))


if __name__ == "__main__":
    main()
