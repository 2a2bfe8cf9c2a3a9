"""The secrets of a watched training's canaries, and what the noisy sums say about them."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.adjacency import Adjacency
from dpcanary.randomness import generator
from dpcanary.watching.randomness import Purpose

Floats = NDArray[np.float64]

# Steps whose coins are drawn together.
_COINS_AT_ONCE = 16
# Exponents are cut here, so that densities stay numbers.
_LARGEST_EXPONENT = 700.0


class Secrets:
    """Which world each canary is in, and the steps in which it takes part.

    Worlds are fair coins. In each step a canary takes part with the training's own probability, as
    a record does with Poisson sampling.

    Attributes:
        worlds: 0 or 1, shape (K,).
        sizes: what each canary adds when it takes part, in units of C; shape (K,). It is 1 in world
            0. In world 1 it is -1 under substitute adjacency, and 0 under the others.
    """

    def __init__(self, *, num_canaries: int, adjacency: Adjacency, seed: int) -> None:
        rng = generator(seed=seed, purpose=Purpose.WORLDS)
        self.worlds: NDArray[np.int64] = rng.integers(0, 2, num_canaries)
        self.sizes: Floats = np.asarray(1 - adjacency.sensitivity * self.worlds, np.float64)
        self._seed, self._block = seed, -1
        self._coins = np.empty((0, 0), np.float32)

    def added(self, step: int, *, sample_rate: float) -> Floats:
        """What each canary adds to the sum of a step, in units of C; shape (K,)."""
        block, place = divmod(step, _COINS_AT_ONCE)
        if block != self._block:
            rng = generator(seed=self._seed, purpose=Purpose.CANARY_BATCHES, index=block)
            shape = _COINS_AT_ONCE, len(self.sizes)
            self._block, self._coins = block, rng.random(shape, np.float32)
        return np.asarray(self.sizes * (self._coins[place] < sample_rate))


def log_likelihood_ratio(
    seen: Floats, *, noise_multiplier: Floats, sample_rate: Floats, adjacency: Adjacency
) -> Floats:
    """How much likelier world 0 makes what is seen of each canary in each step; shape (T, K).

    With noise of density phi, what is seen has the density (1 - q) phi(z) + q phi(z - s), where s
    is what the canary adds in its world. This is the accountant's dominating pair, so no other
    score tells more.

    Args:
        seen: the noisy sum without the other records, by canary, in units of C; shape (T, K).
        noise_multiplier: standard deviation of the noise of each step, shape (T,).
        sample_rate: q of each step, shape (T,).
        adjacency: of the worlds.
    """
    sigma, q = noise_multiplier[:, None], sample_rate[:, None]
    ratio = _log_ratio(seen, 1.0, sigma, q)
    if adjacency is Adjacency.SUBSTITUTE:
        ratio -= _log_ratio(seen, -1.0, sigma, q)
    return ratio


def _log_ratio(seen: Floats, size: float, sigma: Floats, q: Floats) -> Floats:
    """Log of the density with a canary of this size over that without one."""
    exponents = (seen * size - size**2 / 2) / sigma**2
    np.clip(exponents, -_LARGEST_EXPONENT, _LARGEST_EXPONENT, out=exponents)
    np.exp(exponents, out=exponents)
    exponents *= q
    exponents += 1 - q
    return np.asarray(np.log(exponents, out=exponents))
