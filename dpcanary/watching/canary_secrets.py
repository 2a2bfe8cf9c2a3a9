"""The secrets of a watched training's canaries, and what the noisy sums say about them."""

import numpy as np
from numpy.typing import NDArray

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.randomness import generator
from dpcanary.watching.purposes import Purpose

Floats = NDArray[np.float64]

# With fewer canaries, coins often leave too few in one world. The rules that take worlds as given
# need no coins. The rule that guesses does, and guesses too few of so few to show anything.
FEWEST_COINS = 40
# Steps whose coins are drawn together.
_COINS_AT_ONCE = 16
# Exponents are cut here, so that ratios of densities stay numbers in single precision.
_LARGEST_EXPONENT = 40.0


class Secrets:
    """Which world each canary is in, and the steps in which it takes part.

    Worlds are fair coins; of fewer than 40 canaries exactly half are in each world. In each step a
    canary takes part with the training's own probability, as a record does with Poisson sampling.

    Attributes:
        worlds: 0 or 1, shape (K,).
        sizes: what each canary adds when it takes part, in units of C; shape (K,). It is 1 in world
            0. In world 1 it is -1 under substitute adjacency, and 0 under the others.
    """

    def __init__(self, *, num_canaries: int, adjacency: Adjacency, seed: int) -> None:
        rng = generator(seed=seed, purpose=Purpose.WORLDS)
        self.worlds: NDArray[np.int64] = rng.integers(0, 2, num_canaries)
        if num_canaries < FEWEST_COINS:
            self.worlds = rng.permutation(np.arange(num_canaries) % 2)
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
    # In single precision, which is a third of the time: a score may be any function.
    sigma, q, z = (
        np.asarray(values, np.float32)
        for values in (noise_multiplier[:, None], sample_rate[:, None], seen)
    )
    ratio = _density_ratio(z, 1.0, sigma, q)
    if adjacency is Adjacency.SUBSTITUTE:
        ratio /= _density_ratio(z, -1.0, sigma, q)
    return np.log(ratio, out=ratio).astype(np.float64)


def _density_ratio(
    seen: NDArray[np.float32], size: float, sigma: NDArray[np.float32], q: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The density with a canary of this size over that without one."""
    ratios = (seen * np.float32(size) - np.float32(size**2 / 2)) / sigma**2
    np.clip(ratios, -_LARGEST_EXPONENT, _LARGEST_EXPONENT, out=ratios)
    np.exp(ratios, out=ratios)
    ratios *= q
    ratios += 1 - q
    return ratios
