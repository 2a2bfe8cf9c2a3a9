"""Times the masses of privacy losses, and the scores of the worst case, against plain libraries.

The masses of `dpcanary.accounting.loss_masses` and of dp-accounting are composed and asked in
turns. So are the scores of 300,000 sums, by powers and by SciPy's `logsumexp`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf
from scipy.special import logsumexp
from scipy.stats import binom

from dpcanary.accounting.mechanism import Mechanism, Question
from dpcanary.accounting.pld import _loss_of_step
from dpcanary.adversaries.worst_case import log_likelihood_ratio

# Sample rate, steps, noise multiplier.
MECHANISMS = [(0.25, 500, 12.1), (0.0625, 500, 1.6773), (0.01, 1_000, 0.7), (0.001, 10_000, 0.5)]
DELTA = 1e-5
SCORES = 300_000


def in_turns(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> list[float]:
    """Medians of seconds."""
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        for function, durations in zip((ours, theirs), seconds, strict=True):
            start = time.perf_counter()
            function()
            durations.append(time.perf_counter() - start)
    return [median(durations) for durations in seconds]


def scores_by_scipy(sums: np.ndarray, q: float, num_steps: int, sigma: float) -> np.ndarray:
    """The naive twin of `log_likelihood_ratio`, in blocks that fit into memory."""
    counts = np.arange(num_steps + 1)
    weights = binom.logpmf(counts, num_steps, q) - counts**2 / (2 * num_steps * sigma**2)
    ratios = []
    for block in np.array_split(sums, max(1, len(sums) * len(counts) // 2**21)):
        tilts = block[:, None] * (counts / (num_steps * sigma**2))
        ratios.append(logsumexp(weights + tilts, axis=1) - logsumexp(weights - tilts, axis=1))
    return np.concatenate(ratios)


def main() -> None:
    """Prints a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    print(
        "| what | sample rate, steps, noise | ours, ms | library, ms | ratio |\n"
        "|---|---|---|---|---|"
    )

    def row(what: str, mechanism: tuple[float, int, float], seconds: list[float]) -> None:
        ours, theirs = (1e3 * value for value in seconds)
        q, steps, sigma = mechanism
        print(
            f"| {what} | {q}, {steps:,}, {sigma} | {ours:.2f} | {theirs:.2f} |"
            f" {theirs / ours:.1f} |",
            flush=True,
        )

    for case in MECHANISMS:
        q, steps, sigma = case
        mechanism = Mechanism("substitute", sample_rate=q, num_steps=steps, noise_multiplier=sigma)
        masses = _loss_of_step(Question(mechanism, DELTA), True)._pmf_remove
        library = DensePLDPmf(
            masses._discretization, masses._lower_loss, masses._probs, masses._infinity_mass, True
        )
        pair = (masses, library)
        row("compose", case, in_turns(*(partial(pmf.self_compose, steps) for pmf in pair), repeats))
        composed = [pmf.self_compose(steps) for pmf in pair]
        asked = (partial(pmf.get_epsilon_for_delta, DELTA) for pmf in composed)
        row("epsilon", case, in_turns(*asked, repeats))
    for case in MECHANISMS[:2]:
        q, steps, sigma = case
        rng = np.random.default_rng(0)
        sums = rng.normal(size=SCORES) * sigma * np.sqrt(steps) + rng.binomial(steps, q, SCORES)
        settings = {"sample_rate": q, "num_steps": steps, "noise_multiplier": sigma}
        seconds = in_turns(
            partial(log_likelihood_ratio, sums, **settings),
            partial(scores_by_scipy, sums, q, steps, sigma),
            min(3, repeats),
        )
        row(f"{SCORES:,} scores", case, seconds)


if __name__ == "__main__":
    main()
