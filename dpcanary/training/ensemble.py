"""DP-SGD for many models at once, each with its own batches and noise."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.adjacency import world_of
from dpcanary.canaries import GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.linear import (
    LinearProblem,
    clipped_residuals,
    descend,
    linear_problem,
    logits,
)
from dpcanary.training.sampling import RunStreams

# Runs in lockstep: enough to fill the matrix products, few enough for the caches.
RUNS_AT_ONCE = 64
# Noise and batches drawn ahead for a block of runs, in bytes.
_BYTES_AHEAD = 32 * 2**20

Canary = GradientCanary | InputCanary


@dataclass(frozen=True)
class EnsembleResult:
    """What is kept of the runs.

    Attributes:
        observations: shape (runs, steps) for a gradient canary: the change of its coordinate; or
            (runs, steps, 2, classes) for an input canary: logits of target and substitute.
        test_accuracy: shape (runs,), of the last step's models.
    """

    observations: NDArray[np.float32]
    test_accuracy: NDArray[np.float32]


def train_ensemble(
    *,
    records: Records,
    canary: Canary,
    dpsgd: DPSGD,
    runs: Sequence[int],
    seed: int,
    device: torch.device,
    num_threads: int = 1,
    on_progress: Callable[[int], object] = lambda model_steps: None,
) -> EnsembleResult:
    """Trains one zero-initialised linear head per run.

    Runs of world 0 train on the records with the target, runs of world 1 with the canary in its
    place (see `world_of`). A gradient canary replaces the target's gradient in both worlds.

    Args:
        records: private and test records.
        canary: what stands in the target's place.
        dpsgd: settings of the mechanism.
        runs: run indices, which fix each run's world and randomness.
        seed: the audit's seed.
        device: where to compute; noise and batches are drawn on the host.
        num_threads: threads that draw noise.
        on_progress: told the number of model-steps just done.

    Raises:
        InputError: if a run diverges; names the run and the step.
    """
    trainer = _Trainer(records, canary, dpsgd, seed, device)
    observations, accuracies = [], []
    with ThreadPoolExecutor(num_threads) as pool:
        for first in range(0, len(runs), RUNS_AT_ONCE):
            block = runs[first : first + RUNS_AT_ONCE]
            seen = [
                trainer.observed(step, block) for step in trainer.steps(block, pool, on_progress)
            ]
            observations.append(np.stack(seen, axis=1))
            accuracies.append(trainer.test_accuracy())
    return EnsembleResult(np.concatenate(observations), np.concatenate(accuracies))


class _Trainer:
    """One block of runs at a time: the weights, and what they are trained on."""

    def __init__(
        self, records: Records, canary: Canary, dpsgd: DPSGD, seed: int, device: torch.device
    ) -> None:
        self._records, self._canary, self._dpsgd = records, canary, dpsgd
        self._seed, self._device = seed, device
        self._problem = _problem_with_canary(records, canary, device)
        self._rate = dpsgd.learning_rate / (dpsgd.sample_rate * len(records.labels))
        self._noise_scale = dpsgd.noise_multiplier * dpsgd.max_grad_norm
        self._weights = torch.empty(0)

    def steps(
        self, runs: Sequence[int], pool: ThreadPoolExecutor, on_progress: Callable[[int], object]
    ) -> Iterator[int]:
        """Trains a block, pausing at each step to observe."""
        problem, dpsgd = self._problem, self._dpsgd
        shape = (len(runs), problem.num_classes, problem.features.shape[1])
        self._weights = torch.zeros(shape, device=self._device)
        world1 = torch.from_numpy(world_of(np.asarray(runs)) == 1).to(self._device)
        streams = RunStreams(
            seed=self._seed,
            runs=runs,
            sample_rate=dpsgd.sample_rate,
            num_records=len(self._records.labels),
            width=problem.num_parameters,
        )
        # Four bytes a parameter; five a record: whether it is sampled, then its weight.
        per_step = len(runs) * (4 * problem.num_parameters + 5 * len(problem.features))
        ahead = max(1, _BYTES_AHEAD // per_step)
        step = 0
        for record_step in dpsgd.record_steps:
            while step < record_step:
                count = min(ahead, record_step - step)
                draws = streams.draw(count, pool)
                inclusion, injected = self._inclusion(draws.sampled, world1)
                noise = torch.from_numpy(draws.noise).to(self._device).mul_(self._noise_scale)
                if injected is not None:
                    noise[:, :, injected[0]] += injected[1]
                for index in range(count):
                    self._advance(inclusion[:, index], noise[:, index])
                step += count
                on_progress(count * len(runs))
            yield step

    def _advance(self, inclusion: Tensor, noise: Tensor) -> None:
        residuals = clipped_residuals(
            self._problem, self._weights, inclusion, self._dpsgd.max_grad_norm
        )
        descend(self._problem, self._weights, residuals, noise, self._rate)

    def _inclusion(
        self, sampled: NDArray[np.bool_], world1: Tensor
    ) -> tuple[Tensor, tuple[int, Tensor] | None]:
        """Batches as 0/1 weights, (runs, steps, records), and what a gradient canary adds.

        The second part is the coordinate and, for every run and step, +C or -C or 0.
        """
        runs, steps, num_records = sampled.shape
        inclusion = torch.empty(runs, steps, len(self._problem.features), device=self._device)
        inclusion[:, :, :num_records] = torch.from_numpy(sampled).to(self._device)
        target = inclusion[:, :, self._records.target].clone()
        sign = 1.0 - 2.0 * world1.float().unsqueeze(1)
        if isinstance(self._canary, GradientCanary):
            inclusion[:, :, self._records.target] = 0.0
            return inclusion, (
                self._canary.coordinate,
                target * sign * self._dpsgd.max_grad_norm,
            )
        substitute = target * world1.float().unsqueeze(1)
        inclusion[:, :, self._records.target] -= substitute
        inclusion[:, :, num_records] = substitute
        return inclusion, None

    def observed(self, step: int, runs: Sequence[int]) -> NDArray[np.float32]:
        """The block's observations, of models that are all finite."""
        finite = torch.isfinite(self._weights).flatten(start_dim=1).all(dim=1).cpu()
        if not finite.all():
            run = runs[int(finite.int().argmin())]
            raise InputError(
                f"run {run} diverged by step {step}; lower learning_rate"
                f" ({self._dpsgd.learning_rate:g}) or noise_multiplier"
            )
        return self._observe().cpu().numpy()

    def _observe(self) -> Tensor:
        if isinstance(self._canary, GradientCanary):
            return self._weights.view(len(self._weights), -1)[:, self._canary.coordinate].clone()
        pair = [self._records.target, len(self._records.labels)]
        columns = self._problem.features[pair]  # the target, and its substitute behind the others
        return torch.einsum("rcf,pf->rpc", self._weights, columns)

    def test_accuracy(self) -> NDArray[np.float32]:
        """Share of test records that each run's model gets right, shape (runs,)."""
        records = self._records
        test = linear_problem(
            features=records.test_features,
            labels=records.test_labels,
            num_classes=records.num_classes,
            device=self._device,
        )
        predicted = logits(test, self._weights).argmax(dim=1)
        right = predicted == test.one_hot.argmax(dim=0)
        return right.float().mean(dim=1).cpu().numpy()


def _problem_with_canary(records: Records, canary: Canary, device: torch.device) -> LinearProblem:
    """The private records, with an input canary as one record more."""
    features, labels = records.features, records.labels
    if isinstance(canary, InputCanary):
        features = np.vstack([features, canary.features[None, :]]).astype(np.float32)
        labels = np.append(labels, canary.label)
    return linear_problem(
        features=features, labels=labels, num_classes=records.num_classes, device=device
    )
