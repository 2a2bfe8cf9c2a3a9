"""Is there a better loss landscape than that of Cebere et al.? A search by exact epsilon.

For each cell (steps, noise, batch size), it gives the accounted epsilon, and the exact epsilon of
the final model for a constant gradient, for the published threshold C/2, for the best threshold,
and for the best landscape that a search among all of them finds. Gradients depend on the position
alone in these, and `changing` is the best that is found if they may also depend on the step.

Run as `python -m benchmarks.landscape_search`; with 25 steps, a cell takes minutes.
"""

import argparse
import json
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from dpcanary.adversaries.adversary_settings import LandscapeShape
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.program_messages import progress
from dpcanary.papers.cebere.landscape_law import curves_of, exact_law
from dpcanary.papers.cebere.loss_landscape import Landscape, Process, two_levels

Array = NDArray[np.float64]

CELLS = [(T, sigma, B) for T in (2, 5, 25) for sigma in (1.0, 4.0) for B in (1, 4, 16)]
DELTA = 1e-5
# Grid points per standard deviation of a step's noise, in the search among all landscapes.
POINTS = 5
LARGEST_GRID = 1600


def exact_epsilon(landscape: Landscape, sigma: float, batch_size: int, num_steps: int) -> float:
    """Epsilon of the final model, under add/remove adjacency."""
    process = Process(landscape, (1.0, 0.0), sigma, sigma / batch_size)
    [curve] = curves_of(exact_law(process, (num_steps,)))
    return curve.epsilon(DELTA)


def best_threshold(sigma: float, batch_size: int, num_steps: int) -> tuple[float, float]:
    """The best threshold above the middle, in units of C, and its epsilon."""

    def epsilon(threshold: float) -> float:
        landscape = two_levels(threshold=threshold, shape=LandscapeShape.DIVERGING)
        return exact_epsilon(landscape, sigma, batch_size, num_steps)

    tried = 0.5 + sigma * np.linspace(0.0, 6.0, 13)
    epsilons = [epsilon(threshold) for threshold in tried]
    place = int(np.argmax(epsilons))
    bounds = (tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)])
    result = minimize_scalar(
        lambda h: -epsilon(h), bounds=bounds, method="bounded", options={"xatol": 1e-3 * sigma}
    )
    return float(result.x), float(-result.fun)


class Search:
    """Gradient ascent on the moves at every point of a grid, at each step or at all alike."""

    def __init__(self, sigma: float, batch_size: int, num_steps: int, *, changing: bool) -> None:
        """Takes a cell."""
        self.sigma, self.noise, self.num_steps = sigma, sigma / batch_size, num_steps
        reach = 7 * sigma * np.sqrt(1 + (num_steps - 1) / batch_size**2) + num_steps / 2
        self.spacing = self.noise / POINTS
        half = int(reach / self.spacing)
        self.positions = 0.5 + self.spacing * np.arange(-half, half + 1)
        self.alike = 1 if changing else num_steps - 1
        self.starts = np.stack(
            [np.exp(-0.5 * ((self.positions - c) / sigma) ** 2) for c in (1.0, 0.0)]
        )
        self.starts /= self.starts.sum(axis=1, keepdims=True)

    def kernel(self, moves: Array, *, slope: bool = False) -> Array:
        """Probabilities of positions (rows) after one step; or their derivatives by the move."""
        off = (self.positions[:, None] - self.positions - moves) / self.noise
        density = np.exp(-0.5 * off**2) * (self.spacing / self.noise / np.sqrt(2 * np.pi))
        return density * off / self.noise if slope else density

    def forward(self, moves: Array) -> list[Array]:
        """The masses of both worlds after each step; moves have shape (kinds, points)."""
        kernels = [self.kernel(row) for row in moves] if len(moves) == 1 else None
        masses = [self.starts]
        for step in range(self.num_steps - 1):
            kernel = kernels[0] if kernels else self.kernel(moves[step // self.alike])
            masses.append(masses[-1] @ kernel.T)
        return masses

    def epsilon(self, masses: Array) -> float:
        """At DELTA, of world 0 against world 1, by bisection."""
        low, high = 0.0, 50.0
        while high - low > 1e-7:
            middle = (low + high) / 2
            delta = np.maximum(masses[0] - np.exp(middle) * masses[1], 0.0).sum()
            low, high = (middle, high) if delta > DELTA else (low, middle)
        return low

    def gradient(self, moves: Array, masses: list[Array]) -> Array:
        """The gradient of delta at the present epsilon, by the move at each point."""
        weight = np.exp(self.epsilon(masses[-1]))
        value = (masses[-1][0] > weight * masses[-1][1]).astype(float)
        gradient = np.zeros_like(moves)
        for step in range(self.num_steps - 2, -1, -1):
            kind = step // self.alike
            excess = masses[step][0] - weight * masses[step][1]
            gradient[kind] += excess * (value @ self.kernel(moves[kind], slope=True))
            value = value @ self.kernel(moves[kind])
        return gradient

    def ascend(self, moves: Array, *, rounds: int) -> tuple[Array, float]:
        """Steps towards the best landscape of the linearised problem, until none helps."""
        masses = self.forward(moves)
        best = self.epsilon(masses[-1])
        for _ in range(rounds):
            towards = np.sign(self.gradient(moves, masses)) - moves
            for share in (1.0, 0.3, 0.1, 0.03):
                trial = moves + share * towards
                trial_masses = self.forward(trial)
                epsilon = self.epsilon(trial_masses[-1])
                if epsilon > best + 1e-5:
                    moves, masses, best = trial, trial_masses, epsilon
                    break
            else:
                break
        return moves, best


def best_landscape(
    sigma: float, batch_size: int, num_steps: int, threshold: float, *, changing: bool
) -> tuple[Landscape | None, float]:
    """The best that is found from several starts; epsilon by the search's own coarse grid."""
    search = Search(sigma, batch_size, num_steps, changing=changing)
    if len(search.positions) > LARGEST_GRID:
        return None, float("nan")
    kinds = num_steps - 1 if changing else 1
    x, rng = search.positions, np.random.default_rng(0)
    starts = [np.sign(x - threshold + 1e-9), np.sign(x - 0.5 + 1e-9), np.clip(x - threshold, -1, 1)]
    starts += [np.sign(np.sin(x / (2 * search.noise) + 3)), rng.uniform(-1, 1, len(x))]
    rounds, starts = (12, starts[:1]) if changing else (30, starts)
    ascents = [search.ascend(np.tile(start, (kinds, 1)), rounds=rounds) for start in starts]
    moves, epsilon = max(ascents, key=lambda ascent: ascent[1])
    return (None if changing else piecewise(x, moves[0], search.spacing)), epsilon


def piecewise(positions: Array, moves: Array, spacing: float) -> Landscape:
    """The landscape with these moves, rounded to eighths, in cells around the positions."""
    rounded = np.round(moves * 8) / 8
    [changes] = np.nonzero(np.diff(rounded))
    edges = positions[changes] + spacing / 2
    return Landscape(tuple(edges), (*rounded[changes], float(rounded[-1])))


def row_of(
    num_steps: int, sigma: float, batch_size: int, *, changing: bool = True
) -> dict[str, float]:
    """All epsilons of a cell; those of landscapes that change by step only on demand."""
    cell = (sigma, batch_size, num_steps)
    published = two_levels(threshold=0.5, shape=LandscapeShape.DIVERGING)
    flat = replace(published, moves=(0.0, 0.0))
    threshold, of_threshold = best_threshold(*cell)
    wide, _ = best_landscape(*cell, threshold, changing=False)
    of_changing = float("nan")
    if changing:
        _, of_changing = best_landscape(*cell, threshold, changing=True)
    return {
        "num_steps": num_steps,
        "noise_multiplier": sigma,
        "batch_size": batch_size,
        "accounted": gdp_epsilon(mu=1 / sigma, delta=DELTA),
        "constant": exact_epsilon(flat, *cell),
        "published": exact_epsilon(published, *cell),
        "best_threshold": threshold,
        "of_best_threshold": of_threshold,
        "wide": exact_epsilon(wide, *cell) if wide else float("nan"),
        "levels_of_wide": len(wide.moves) if wide else float("nan"),
        "changing": of_changing,
    }


def main(argv: list[str] | None = None) -> None:
    """Prints a line of JSON for each cell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.landscape_search")
    parser.add_argument("--steps", type=int, nargs="+", help="these numbers of steps alone")
    parser.add_argument("--fixed", action="store_true", help="no landscapes that change by step")
    options = parser.parse_args(argv)
    steps = options.steps
    cells = [cell for cell in CELLS if not steps or cell[0] in steps]
    with progress(len(cells), "cell") as bar:
        for cell in cells:
            print(json.dumps(row_of(*cell, changing=not options.fixed)), flush=True)
            bar.update()


if __name__ == "__main__":
    main()
