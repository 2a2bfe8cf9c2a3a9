"""The steps of models that are trained side by side: of audits, and of simulated trainings."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.training.dpsgd import DPSGD, Stepping
from dpcanary.training.gradient_path import Batch, GradientPath
from dpcanary.training.modules.dropout import dropout_seeds
from dpcanary.training.noise import Noise
from dpcanary.training.training_settings import Purpose


class Lockstep:
    """Models that do each step of DP-SGD together, each on a batch of its own.

    A step is `add_up`, then `move`. Between them, canaries may be added to the sums.

    Attributes:
        path: computes logits and gradients.
        parameters: shape (models, columns), in the layout of the path; changed in place.
        sums: of the same shape: the clipped gradients of the step, then their noisy mean.
        noise: draws of the seed.
        noise_scale: the standard deviation of the noise in a mean gradient; 0 without noise.
    """

    def __init__(
        self,
        path: GradientPath,
        parameters: Tensor,
        dpsgd: DPSGD,
        *,
        batch_size: float,
        seed: int,
        dropout_runs: NDArray[np.int64],
        noise_runs: Tensor,
        purpose: Purpose = Purpose.NOISE,
    ) -> None:
        """Starts before the first step.

        Args:
            path: see above.
            parameters: see above.
            dpsgd: clipping, noise and learning rates.
            batch_size: what sums are divided by.
            seed: of noise and dropout.
            dropout_runs: indices of the models' dropout, shape (models,).
            noise_runs: indices of the models' noise, shape (models,), on the path's device.
            purpose: of the noise.
        """
        self.path, self.parameters, self._dpsgd = path, parameters, dpsgd
        self.sums = torch.empty_like(parameters)
        self.noise = Noise(seed=seed)
        # Without noise, gradients may be unclipped, and 0 times infinity is no number.
        norm = dpsgd.max_grad_norm if dpsgd.noise_multiplier else 0.0
        self.noise_scale = dpsgd.noise_multiplier * norm / batch_size
        self._batch_size, self._seed, self._purpose = batch_size, seed, purpose
        self._dropout_runs, self._noise_runs = dropout_runs, noise_runs
        self._optimizer = Stepping(dpsgd.optimizer, parameters, momentum=dpsgd.momentum)

    def add_up(self, batch: Batch, *, step: int) -> None:
        """Writes the sums of the clipped gradients of a batch, in a step counted from 0."""
        if self.path.draws_masks:
            seeds = dropout_seeds(seed=self._seed, step=step, runs=self._dropout_runs)
            batch = replace(batch, seeds=seeds)
        self.path.clipped_sums(self.parameters, batch, self._dpsgd.max_grad_norm, self.sums)

    def move(self, *, step: int) -> None:
        """Makes the sums noisy means, and moves the parameters by the optimiser."""
        if self.noise_scale:
            self.noise.add(
                self.sums,
                factor=1.0 / self._batch_size,
                scale=self.noise_scale,
                runs=self._noise_runs,
                step=step,
                purpose=self._purpose,
            )
        else:
            self.sums /= self._batch_size
        self._optimizer.step(self.sums, self._dpsgd.learning_rate_at(step))
