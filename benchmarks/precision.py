"""What products in bfloat16 do to an audit: the same runs, trained in either precision.

The runs draw the same noise and batches, so that what differs is rounding alone: by how much the
scores move in units of their standard deviation, and epsilon with them. Run as
`python -m benchmarks.precision`.
"""

import argparse
import json

import numpy as np
import torch
from torch import nn

from dpcanary import estimate_epsilon
from dpcanary.adjacency import world_of
from dpcanary.canaries import AnyCanary
from dpcanary.canaries.gradient import least_updated_coordinate
from dpcanary.canaries.natural import natural
from dpcanary.canaries.record_gradients import RecordGradients
from dpcanary.datasets.sources import load_source
from dpcanary.datasets.splitting import split_dataset
from dpcanary.scores import coordinate_score, logit_difference_score
from dpcanary.splits import SplitDataset
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.simulation import accumulated_updates, train_reference
from dpcanary.vocabulary import Initialisation, Loss, Precision

CPU = torch.device("cpu")
SAMPLE_RATES = {1.0: 22.370, 0.25: 5.574}  # with the noise of substitute epsilon 10
STEPS, DELTA = 500, 1e-5


def scores_of(
    data: SplitDataset,
    canary: AnyCanary,
    target: int,
    dpsgd: DPSGD,
    runs: int,
    precision: Precision,
) -> np.ndarray:
    """Scores at the last step, shape (runs,)."""
    seen = (
        train_ensemble(
            module=nn.Linear(data.features.shape[1], data.num_classes),
            records=Records.from_split(data, target=target),
            canary=canary,
            dpsgd=dpsgd,
            runs=range(runs),
            seed=0,
            device=CPU,
            precision=precision,
            num_threads=torch.get_num_threads(),
        )
        .observations[:, -1]
        .astype(np.float64)
    )
    if seen.ndim == 1:
        return coordinate_score(seen)
    label = int(data.labels[target])
    return logit_difference_score(seen, target_label=label, substitute_label=canary.label)


def canaries_of(data: SplitDataset, dpsgd: DPSGD) -> tuple[dict[str, AnyCanary], int]:
    """The gradient and the natural canary, and their target."""
    module = nn.Linear(data.features.shape[1], data.num_classes)
    known = {
        "module": module,
        "records": Records.from_split(data, target=0),
        "initialisation": Initialisation.ZEROS,
        "device": CPU,
    }
    descent = DPSGD(0.0, float("inf"), dpsgd.learning_rate, (STEPS,))
    reference = train_reference(**known, dpsgd=descent)
    canary = natural(
        gradients=RecordGradients(module, reference.parameters, Loss.CROSS_ENTROPY),
        auxiliary_features=data.auxiliary_features,
        auxiliary_labels=data.auxiliary_labels,
        target_features=data.features[reference.target],
        target_label=int(data.labels[reference.target]),
    )
    moved = accumulated_updates(**known, dpsgd=dpsgd, seed=0)
    return {"gradient": least_updated_coordinate(moved), "natural": canary}, reference.target


def main(argv: list[str] | None = None) -> None:
    """Trains in either precision, and prints a row of JSON for each audit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args(argv)
    data = split_dataset(load_source("digits"), num_records=500, seed=0)
    for rate, noise in SAMPLE_RATES.items():
        dpsgd = DPSGD(noise, 1.0, 0.01, (STEPS,), rate)
        canaries, target = canaries_of(data, dpsgd)
        for name, canary in canaries.items():
            scores = {
                precision: scores_of(data, canary, target, dpsgd, options.runs, precision)
                for precision in Precision
            }
            world = world_of(np.arange(options.runs))
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
