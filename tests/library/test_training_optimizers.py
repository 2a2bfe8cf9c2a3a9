"""A gradient canary's signal reaches the final coordinate through every optimiser."""

import numpy as np
import pytest
import torch

from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.optimizers import optimizer_of
from dpcanary.training.options import Optimizer

RUNS, STEPS, MU = 4000, 250, 2.0
# Standard error of the distance between two normal samples, in units of their standard deviation.
ERROR = np.sqrt(2 / RUNS + MU**2 / (4 * RUNS))


@pytest.mark.parametrize("optimizer", Optimizer)
def test_worlds_stay_as_far_apart_as_the_sums_of_their_gradients(optimizer):
    """Sums of +s and -s under unit noise are MU apart; Adam and momentum weigh steps unequally.

    Unequal weights lose less than 2 %. Momentum's weight k steps before the end is 1 - 0.9^k.
    """
    dpsgd = DPSGD(1.0, 1.0, 0.01, (STEPS,), optimizer=optimizer)
    generator = torch.Generator().manual_seed(0)
    signs = torch.tensor([1.0, -1.0])[:, None].expand(2, RUNS)
    parameters, gradients = torch.zeros(2, RUNS), torch.empty(2, RUNS)
    stepping = optimizer_of(dpsgd, parameters, gradients)
    for _ in range(STEPS):
        gradients.normal_(generator=generator).add_(signs, alpha=MU / (2 * STEPS**0.5))
        stepping.step()
    zero, one = parameters.numpy().astype(np.float64)
    apart = abs(zero.mean() - one.mean()) / np.sqrt((zero.var() + one.var()) / 2)
    assert 0.98 * MU - 3 * ERROR < apart < MU + 3 * ERROR
