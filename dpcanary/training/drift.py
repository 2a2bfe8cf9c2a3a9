"""How a training without canaries is expected to move parameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.known_batches import Batches, weighted_batches
from dpcanary.training.options import Initialisation, Sampling
from dpcanary.training.simulation import Simulation, check_finite


def expected_changes(
    *,
    module: nn.Module,
    records: Records,
    dpsgd: DPSGD,
    initialisation: Initialisation,
    seed: int,
    device: torch.device,
    targets: Sequence[int],
    coordinates: NDArray[np.int64],
    on_progress: Callable[[int], object] = lambda steps: None,
) -> NDArray[np.float64]:
    """How far some parameters move in a training without noise, canaries and their targets.

    Sampled batches are replaced by their mean: every record enters every step, with the sample rate
    as its weight.

    Args:
        module: the architecture.
        records: the private records.
        dpsgd: the mechanism; its noise is not used.
        initialisation: where runs start. If each draws its own start, the module's is used.
        seed: the audit's seed.
        device: where to compute.
        targets: records that are left out.
        coordinates: indices into the parameters, in the module's order, shape (K,).
        on_progress: called with the number of steps just done.

    Returns:
        Changes since the start after each recorded step, shape (steps, K).

    Raises:
        InputError: if the training diverges.
    """
    quiet = replace(dpsgd, noise_multiplier=0.0)
    simulation = Simulation(module, records, quiet, initialisation, device, seed=seed)
    batches = _mean_batches(len(records), dpsgd, seed, targets)
    divisor, last = dpsgd.expected_batch_size(len(records)), dpsgd.record_steps[-1]
    start, changes = simulation.buffer.clone(), []
    for step in range(last):
        simulation.advance(step, *batches(step), divisor=divisor)
        if step + 1 in dpsgd.record_steps:
            moved = simulation.decoded(simulation.buffer - start)
            changes.append(moved[0, coordinates])
        on_progress(1)
    found = np.array(changes)
    check_finite("training without noise", dpsgd, found)
    return found


def _mean_batches(num_records: int, dpsgd: DPSGD, seed: int, targets: Sequence[int]) -> Batches:
    others = np.delete(np.arange(num_records), [*targets])
    if dpsgd.sampling is Sampling.FIXED:
        assert dpsgd.batch_size is not None
        return weighted_batches(others, batch_size=dpsgd.batch_size, seed=seed, count=1)
    weights = np.full((1, len(others)), dpsgd.sample_rate, np.float32)
    return lambda step: (others, weights)
