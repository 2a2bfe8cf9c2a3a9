"""Made-up data of Purchase100's shape, for where the real file is not at hand.

The model: item j is bought with a popularity that differs from item to item, each of the 100 groups
moves the log-odds of every item by its own normal draw, and a record buys every item independently
by its group's probabilities. Groups differ in size. It resembles the real data in shape, and
roughly in difficulty; no number measured on it is one about Purchase100.
"""

import numpy as np
from numpy.typing import NDArray

from dpcanary.datasets.purchase100 import NUM_CLASSES, NUM_ITEMS
from dpcanary.datasets.purposes import Purpose
from dpcanary.datasets.source import Source
from dpcanary.randomness import generator
from dpcanary.records import Records

# Log-odds. The spread between groups fixes how hard they are to tell apart: with it the best
# possible accuracy is 0.91, and a linear model reaches 0.90 on 150,000 records (0.88 on 50,000), a
# perceptron with 128 hidden units 0.86 (0.81). On the real data perceptrons reach 0.8 to 0.9.
_MEAN_LOG_ODDS = -1.6
_ITEM_SPREAD = 1.0
_GROUP_SPREAD = 0.43
_SIZE_SPREAD = 0.5  # of the logarithm of a group's size
_BLOCK = 4096  # records of one random stream: part of what the data are


def purchase100_synthetic(*, num_records: int, seed: int) -> Source:
    """Draws records; fewer of them are the first ones of more.

    Args:
        num_records: records.
        seed: the experiment's seed.

    Returns:
        Bits, as bytes of shape (num_records, 600), and labels from 0 to 99.
    """
    probabilities, shares = _groups(seed)
    records = np.empty((num_records, NUM_ITEMS), dtype=np.uint8)
    labels = np.empty(num_records, dtype=np.int64)
    for index, start in enumerate(range(0, num_records, _BLOCK)):
        block = slice(start, min(start + _BLOCK, num_records))
        rng = generator(seed=seed, purpose=Purpose.SYNTHETIC_RECORDS, index=1 + index)
        drawn = rng.choice(NUM_CLASSES, size=_BLOCK, p=shares)[: block.stop - start]
        labels[block] = drawn
        uniform = rng.random((len(drawn), NUM_ITEMS), dtype=np.float32)
        records[block] = uniform < probabilities[drawn]
    return Source("purchase100_synthetic", Records(records, labels), synthetic=True)


def _groups(seed: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Each group's probabilities of buying, shape (100, 600), and share of the records, (100,)."""
    rng = generator(seed=seed, purpose=Purpose.SYNTHETIC_RECORDS)
    popularity = _MEAN_LOG_ODDS + _ITEM_SPREAD * rng.standard_normal(NUM_ITEMS)
    log_odds = popularity + _GROUP_SPREAD * rng.standard_normal((NUM_CLASSES, NUM_ITEMS))
    sizes = np.exp(_SIZE_SPREAD * rng.standard_normal(NUM_CLASSES))
    return (1 / (1 + np.exp(-log_odds))).astype(np.float32), sizes / sizes.sum()
