"""Seconds of Figure 14 of Cebere et al. by the library: 40 cells, 25 steps, 5 repeats.

Each cell has one noise multiplier and one batch size; each repeat has 5,000 runs. Draws, scores and
bounds (rule `combined`, conversion `gdp`) are timed, and apart from them the exact law of each
cell. Run as `python -m benchmarks.landscape`; it uses one core.
"""

import argparse
import json
from itertools import product
from time import perf_counter

from dpcanary import estimate_epsilon
from dpcanary.adversaries.adversary_settings import DrawingStage, LandscapeShape
from dpcanary.adversaries.drawing import Drawing
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.program_messages import progress
from dpcanary.papers.cebere.landscape_law import exact_curves
from dpcanary.papers.cebere.loss_landscape import draw_positions

SIGMAS, BATCH_SIZES = range(1, 9), (1, 2, 4, 8, 16)
STEPS, REPEATS, RUNS, DELTA = tuple(range(1, 26)), 5, 5000, 1e-5


def main() -> None:
    """Prints the seconds of each part as JSON."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    seconds = {"draws": 0.0, "estimates": 0.0, "exact_curves": 0.0, "exact_epsilons": 0.0}
    cells = list(product(SIGMAS, BATCH_SIZES))
    with progress(len(cells), "cell") as bar:
        for index, (sigma, batch_size) in enumerate(cells):
            stage = DrawingStage(
                function="dpcanary.papers.cebere.loss_landscape:draw_positions",
                observe="position",
                adjacency=Adjacency.ADD_REMOVE,
                sample_rate=1.0,
                record_steps=STEPS,
                seed=index,
                batch_size=batch_size,
                landscape=LandscapeShape.DIVERGING,
                landscape_threshold=0.5,
            )
            times = [perf_counter()]
            scores = draw_positions(Drawing(stage, float(sigma), range(REPEATS * RUNS)))
            times.append(perf_counter())
            for repeat, step in product(range(REPEATS), range(len(STEPS))):
                own = scores[repeat * RUNS : (repeat + 1) * RUNS, step]
                estimate_epsilon(world0_scores=own[0::2], world1_scores=own[1::2], delta=DELTA)
            times.append(perf_counter())
            curves = exact_curves(stage.model_dump(), noise_multiplier=float(sigma), steps=STEPS)
            times.append(perf_counter())
            for curve in curves:
                curve.epsilon(DELTA)
            times.append(perf_counter())
            for part, start, end in zip(seconds, times, times[1:], strict=False):
                seconds[part] += end - start
            bar.update()
    print(json.dumps({part: round(value, 1) for part, value in seconds.items()}))


if __name__ == "__main__":
    main()
