"""What a metastep draws: which canaries are in, where training starts, and the order of batches."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.metagradients.batches import shuffled_batches
from dpcanary.metagradients.descent import Descent
from dpcanary.metagradients.purposes import Purpose
from dpcanary.metagradients.task import Task
from dpcanary.metagradients.training import Training
from dpcanary.randomness import derived_seed, generator
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.options import Initialisation


@dataclass(frozen=True)
class Draw:
    """A training on a random half of the canaries.

    Attributes:
        training: the training.
        inserted: indices of the canaries that are trained on, ascending, shape (m / 2,).
    """

    training: Training
    inserted: NDArray[np.int64]


def drawn(task: Task, *, descent: Descent, batch_size: int, seed: int, index: int) -> Draw:
    """The draw of an index; draws of different indices or seeds are independent.

    Args:
        task: what is learned.
        descent: the optimiser.
        batch_size: records and canaries of each batch.
        seed: the canaries' seed. Runs of an audit with the same seed start elsewhere.
        index: of the metastep, >= 0.

    Raises:
        InputError: if the number of canaries is odd, or batches are too large.
    """
    num_canaries = len(task.canary_labels)
    if num_canaries % 2:
        raise InputError(f"{num_canaries} canaries cannot be split into halves; add or remove one")
    own = derived_seed(seed=seed, name="metagradients")
    splits = generator(seed=own, purpose=Purpose.METAGRADIENT_SPLITS, index=index)
    inserted = np.sort(splits.permutation(num_canaries)[: num_canaries // 2])
    batches = shuffled_batches(
        num_records=len(task.labels),
        inserted=inserted,
        batch_size=batch_size,
        num_steps=descent.num_steps,
        stream=generator(seed=own, purpose=Purpose.METAGRADIENT_ORDERS, index=index),
    )
    starts = initial_parameters(task.module, Initialisation.PER_RUN, seed=own, runs=[index])
    return Draw(Training(task, starts[0], batches, descent), inserted)
