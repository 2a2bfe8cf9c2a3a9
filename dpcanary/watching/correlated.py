"""Trainings whose noise is correlated over steps: DP-FTRL and matrix factorisation.

The noise of step t is row t of C^-1 Z, where C is the strategy, a lower triangular matrix, and Z is
independent Gaussian noise. So C times the projections of all steps has independent noise again. A
canary that takes part in known steps is then a shift of known size: its whole training is one
Gaussian mechanism with mu = (norm of C e) / sigma, or twice that under substitute adjacency. Here e
has a 1 in each step of the canary. This is exact, whatever the model. What is accounted is for
records whose gradients differ between their steps; see `LargestMove`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isclose, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from dpcanary.accounting.mechanism import Phase
from dpcanary.core.argument_checks import checked_count
from dpcanary.core.randomness import generator
from dpcanary.errors import InputError
from dpcanary.watching.purposes import Purpose
from dpcanary.watching.recorder import Recorder
from dpcanary.watching.watched_step import StepSettings

Floats = NDArray[np.float64]

# Canaries take part where the strategy is as sensitive as this share of the largest.
_SHARE = 0.999


class CorrelatedRecorder(Recorder):
    """Records a training with correlated noise; see `Recorder`, which has the calls.

    The told noise multiplier is that of Z. Each canary takes part in as many steps as a record
    does, as far apart, in steps that are no secret; its world is one. Noise is tested along the
    canaries, after whitening.

    Attributes:
        sensitivity: the norm of what a canary moves in the whitened sums, in units of the clipping
            norm.
    """

    _tests_coordinates = False

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        *,
        strategy: ArrayLike,
        num_steps: int,
        noise_multiplier: float,
        num_participations: int = 1,
        separation: int | None = None,
        **options: Any,
    ) -> None:
        """Draws the canaries and their steps.

        Args:
            shapes: of the trained parameters, by name.
            strategy: C, shape (T, T), lower triangular; or the first column of a Toeplitz matrix.
            num_steps: T, of the whole training.
            noise_multiplier: standard deviation of Z over the clipping norm.
            num_participations: steps in which a record takes part.
            separation: steps from one participation to the next; by default T divided by their
                number.
            options: as for `Recorder`, without `num_records`: batches are not tested.

        Raises:
            InputError: if the strategy is not lower triangular with a positive diagonal, or the
                participations do not fit into the training.
        """
        if options.get("num_records") is not None:
            raise InputError(
                "num_records is for tests of batch sizes, and a training with correlated noise need"
                " not draw Poisson samples: leave it out"
            )
        self._total_steps = checked_count("num_steps", num_steps)
        times = checked_count("num_participations", num_participations)
        apart = max(1, self._total_steps // times)
        if separation is not None:
            apart = checked_count("separation", separation)
        last = (times - 1) * apart
        if last >= self._total_steps:
            raise InputError(
                f"{times} participations {apart} steps apart do not fit into"
                f" {self._total_steps} steps"
            )
        self._matrix = _checked_strategy(strategy, self._total_steps)
        offsets = np.arange(self._total_steps - last)
        schedules = offsets[:, None] + apart * np.arange(times)
        norms = np.sqrt((self._matrix[:, schedules].sum(axis=2) ** 2).sum(axis=0))
        self.sensitivity = float(norms.max())
        self._schedules = schedules[norms >= _SHARE * self.sensitivity]
        self._largest_rate = _largest_rate(self._matrix, self._schedules)
        self._moved = LargestMove(self._matrix, schedules)
        rows, columns = np.nonzero(self._matrix)
        self._bands = int((rows - columns).max()) + 1
        self._noise_assumed = (
            "the noise of different coordinates is independent, and over the steps that of the"
            f" strategy of {self._total_steps:,} steps for records in {times:,} steps, {apart:,}"
            " apart"
        )
        super().__init__(
            shapes,
            noise_multiplier=noise_multiplier,
            sample_rate=min(1.0, times / self._total_steps),
            **options,
        )

    def _begin(self, **drawn: Any) -> None:
        super()._begin(**drawn)
        rng = generator(seed=drawn["seed"], purpose=Purpose.CANARY_BATCHES)
        chosen = self._schedules[rng.integers(0, len(self._schedules), self.num_canaries)]
        self._times = np.zeros((self._total_steps, self.num_canaries), bool)
        self._times[chosen, np.arange(self.num_canaries)[:, None]] = True
        self._past: deque[Floats] = deque(maxlen=self._bands)

    def _share_of_canary(self, *, noise_multiplier: float, sample_rate: float) -> float:
        """In the step that has the most canaries for its noise, which is that of C^-1 Z."""
        return super()._share_of_canary(
            noise_multiplier=noise_multiplier, sample_rate=self._largest_rate
        )

    def can_judge(self, step_settings: StepSettings) -> bool:
        """Whether a step is watched; all have the noise with which they are accounted as one."""
        if super().can_judge(step_settings) and self._phases:
            # The multiplier of earlier steps, also of those before a journal was read.
            noise = self._phases[0].noise_multiplier * self._moved.after(self.num_steps)
            if not isclose(step_settings.noise_on_gradients, noise):
                self.ends(
                    "invalid_setting",
                    f"the noise multiplier is {step_settings.noise_on_gradients:g} after"
                    f" {noise:g}, and correlated noise is accounted as one mechanism with one"
                    " multiplier. Watching ends before this step",
                )
        return self.end is None

    def _takes_part(self, step_settings: StepSettings) -> Floats:
        if self.num_steps >= self._total_steps:
            raise InputError(f"the strategy is for {self._total_steps:,} steps, and there are more")
        return np.asarray(self._secrets.sizes * self._times[self.num_steps])

    def _whitened(self, step: Floats) -> Floats:
        self._past.append(step)
        first = self.num_steps + 1 - len(self._past)
        row = self._matrix[self.num_steps, first : self.num_steps + 1]
        return np.asarray(np.einsum("t,tvk->vk", row, np.array(self._past)))

    def _shifts(self, steps: slice) -> Floats:
        """By how much a canary with size 1 shifts the whitened sums of steps, shape (T, K)."""
        return np.asarray(self._matrix[steps] @ self._times)

    def _weight_of_sum(self, step_settings: StepSettings, added: Floats) -> Floats:
        return np.asarray(self._shifts(slice(self.num_steps, self.num_steps + 1))[0])

    def _ratios(
        self, residuals: NDArray[np.float32], added: Floats, noises: Floats, rates: Floats
    ) -> Floats:
        # The ratio of two Gaussians is linear in what is seen; what else is in it is no secret.
        shifts = self._shifts(slice(self.num_steps - len(residuals), self.num_steps))
        sigma = noises[:, None]
        return np.asarray((residuals * sigma + added) * shifts / sigma**2)

    def _add_phase(self, step_settings: StepSettings) -> None:
        """The training so far is one Gaussian mechanism, with gradients of any directions."""
        norm = self._moved.after(self.num_steps)
        self._phases = [Phase(step_settings.noise_multiplier / norm, 1.0, 1)] if norm else []

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on; see `Recorder`."""
        state = super().state_dict()
        state["arrays"]["past"] = np.array(self._past)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on after what `state_dict` gave; the strategy must be the same."""
        super().load_state_dict(state)
        self._past.extend(np.array(state["arrays"]["past"]))


class LargestMove:
    """How far a record moves the whitened sums at most, in units of the clipping norm.

    The record's gradients g_i have norms of at most 1, and may have other directions in each
    participation. Then |sum_i C_i g_i|^2 is the sum of (C^T C)_ij <g_i, g_j>, at most that of
    |(C^T C)_ij| (Choquette-Choo et al. 2023, section 2). Where no product of columns is negative,
    equal gradients attain it.
    """

    def __init__(self, matrix: Floats, schedules: NDArray[np.int64]) -> None:
        """Takes the strategy and steps of a record, shape (schedules, participations)."""
        self._matrix, self._schedules = matrix, schedules
        self._products, self._num_steps = np.zeros(()), 0

    def after(self, num_steps: int) -> float:
        """The move in the sums of the first steps; what was added up before is not repeated."""
        if not 0 < self._num_steps <= num_steps:
            shape = self._schedules.shape
            self._products, self._num_steps = np.zeros((*shape, shape[1])), 0
        for row in self._matrix[self._num_steps : num_steps]:
            columns = row[self._schedules]
            self._products += columns[:, :, None] * columns[:, None, :]
        self._num_steps = num_steps
        return sqrt(float(np.abs(self._products).sum(axis=(1, 2)).max()))


def _largest_rate(matrix: Floats, schedules: NDArray[np.int64]) -> float:
    """The largest share of canaries that take part in a step, over the variance of its noise.

    The variance is in units of that of Z: the squared norm of a row of C^-1.
    """
    steps, counts = np.unique(schedules, return_counts=True)
    rows = solve_triangular(matrix.T, np.eye(len(matrix))[:, steps], lower=False)
    return float((counts / len(schedules) / (rows**2).sum(axis=0)).max())


def _checked_strategy(strategy: ArrayLike, num_steps: int) -> Floats:
    matrix = np.asarray(strategy, np.float64)
    if matrix.ndim == 1 and 0 < len(matrix) <= num_steps:
        column = np.zeros(num_steps)
        column[: len(matrix)] = matrix
        lags = np.subtract.outer(np.arange(num_steps), np.arange(num_steps))
        matrix = np.where(lags >= 0, column[np.maximum(lags, 0)], 0.0)
    if (
        matrix.shape != (num_steps, num_steps)
        or not np.isfinite(matrix).all()
        or np.triu(matrix, 1).any()
        or not (np.diag(matrix) > 0).all()
    ):
        raise InputError(
            f"strategy has shape {matrix.shape}; it must be a lower triangular matrix of finite"
            f" numbers of {num_steps} steps with a positive diagonal, or the first column of a"
            " Toeplitz one"
        )
    return matrix
