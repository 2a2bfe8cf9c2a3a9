"""Sources that need no file: scikit-learn's digits, and generated data of Purchase100's shape.

The latter are for use where the real file is not available; no number measured on them is a result
about Purchase100. The model: each item has its own popularity, each of the 100 groups shifts the
log-odds of every item by its own normal draw, and a record buys each item independently with its
group's probability. Groups differ in size.
"""

import numpy as np

from dpcanary.datasets.settings import KNOWN_SOURCES
from dpcanary.datasets.source import Purpose, Source
from dpcanary.randomness import generator
from dpcanary.records import Records

_NUM_GROUPS = KNOWN_SOURCES["purchase100_synthetic"].num_classes
(_NUM_ITEMS,) = KNOWN_SOURCES["purchase100_synthetic"].shape
# Log-odds. The group spread decides how hard groups are to tell apart: with this value the best
# possible accuracy is 0.91. A linear model reaches 0.90 on 150,000 records (0.88 on 50,000), a
# perceptron with 128 hidden units 0.86 (0.81). On the real data perceptrons reach 0.8 to 0.9.
_MEAN_LOG_ODDS = -1.6
_ITEM_SPREAD = 1.0
_GROUP_SPREAD = 0.43
_SIZE_SPREAD = 0.5  # of the logarithm of a group's size
_BLOCK = 4096  # records per random stream; a change would change the data


def purchase100_synthetic(*, num_records: int, seed: int) -> Source:
    """Draws bits, as bytes of shape (num_records, 600), and labels from 0 to 99.

    The first records do not depend on how many are drawn.
    """
    rng = generator(seed=seed, purpose=Purpose.SYNTHETIC_RECORDS)
    popularity = _MEAN_LOG_ODDS + _ITEM_SPREAD * rng.standard_normal(_NUM_ITEMS)
    log_odds = popularity + _GROUP_SPREAD * rng.standard_normal((_NUM_GROUPS, _NUM_ITEMS))
    probabilities = (1 / (1 + np.exp(-log_odds))).astype(np.float32)
    sizes = np.exp(_SIZE_SPREAD * rng.standard_normal(_NUM_GROUPS))
    shares = sizes / sizes.sum()
    records = np.empty((num_records, _NUM_ITEMS), dtype=np.uint8)
    labels = np.empty(num_records, dtype=np.int64)
    for index, start in enumerate(range(0, num_records, _BLOCK)):
        block = slice(start, min(start + _BLOCK, num_records))
        rng = generator(seed=seed, purpose=Purpose.SYNTHETIC_RECORDS, index=1 + index)
        drawn = rng.choice(_NUM_GROUPS, size=_BLOCK, p=shares)[: block.stop - start]
        labels[block] = drawn
        uniform = rng.random((len(drawn), _NUM_ITEMS), dtype=np.float32)
        records[block] = uniform < probabilities[drawn]
    return Source("purchase100_synthetic", Records(records, labels), synthetic=True)


def digits() -> Source:
    """Scikit-learn's digits: 64 numbers each, and labels from 0 to 9."""
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    return Source("digits", Records(features, labels), class_names=tuple("0123456789"))
