"""The settings of DP-SGD that an ensemble is trained with."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.training.training_settings import Loss, Optimizer, Sampling

Schedule = Callable[[int], float]
_CHOICES = {"adjacency": Adjacency, "sampling": Sampling, "optimizer": Optimizer, "loss": Loss}


@dataclass(frozen=True)
class DPSGD:
    """Settings of DP-SGD. Options may be given by name, such as `optimizer="adam"`.

    Attributes:
        noise_multiplier: sigma, in units of max_grad_norm; 0 for training without noise.
        max_grad_norm: C; infinity for training without clipping.
        learning_rate: a number, or a function of the step (0 for the first).
        record_steps: steps at which the models are observed, ascending. Training ends with the
            last one. A single number stands for the last step alone.
        sample_rate: q of Poisson sampling.
        adjacency: how the worlds differ.
        sampling: Poisson or fixed batches; models are not trained on shuffled ones.
        batch_size: of fixed batches.
        canary_period: k; with fixed batches, canaries are inserted at steps k, 2 k, ...
        optimizer: what a noisy gradient does to the parameters.
        momentum: of Optimizer.MOMENTUM.
        loss: what a model minimises.
        augmentation_multiplicity: views of each record, drawn at every step, over which its
            gradient is averaged before it is clipped (De et al., 2022); 0 for the record itself.

    Raises:
        InputError: if a setting is out of its range, or two settings contradict each other.
    """

    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float | Schedule
    record_steps: tuple[int, ...]
    sample_rate: float = 1.0
    adjacency: Adjacency = Adjacency.SUBSTITUTE
    sampling: Sampling = Sampling.POISSON
    batch_size: int | None = None
    canary_period: int | None = None
    optimizer: Optimizer = Optimizer.SGD
    momentum: float = 0.9
    loss: Loss = Loss.CROSS_ENTROPY
    augmentation_multiplicity: int = 0

    def __post_init__(self) -> None:
        for name, choice in _CHOICES.items():
            object.__setattr__(self, name, choice(getattr(self, name)))
        steps_in_order = (
            self.record_steps if isinstance(self.record_steps, Iterable) else [self.record_steps]
        )
        object.__setattr__(self, "record_steps", tuple(steps_in_order))
        steps = (0, *(checked_count("record_steps", step) for step in self.record_steps))
        if len(steps) == 1 or any(step >= following for step, following in pairwise(steps)):
            raise InputError(f"record_steps must ascend from 1; they are {self.record_steps}")
        checked_real("noise_multiplier", self.noise_multiplier, zero_included=True)
        if self.max_grad_norm != float("inf"):
            checked_real("max_grad_norm", self.max_grad_norm)
        if not callable(self.learning_rate):
            checked_real("learning_rate", self.learning_rate)
        checked_real("momentum", self.momentum, most=1.0, zero_included=True)
        checked_real("sample_rate", self.sample_rate, most=1.0, most_included=True)
        checked_count("augmentation_multiplicity", self.augmentation_multiplicity, least=0)
        if self.sampling is Sampling.SHUFFLED:
            raise InputError(
                "models are not trained on shuffled batches here: use sampling poisson or fixed, or"
                " audit shuffled batches by canary worst_case, which trains nothing"
            )
        if self.sampling is Sampling.FIXED:
            if self.batch_size is None or self.canary_period is None:
                raise InputError("sampling fixed needs batch_size and canary_period")
            checked_count("batch_size", self.batch_size)
            checked_count("canary_period", self.canary_period)
            if self.sample_rate != 1.0:
                raise InputError("sampling fixed has no sample_rate; leave it at 1")
        elif self.batch_size is not None or self.canary_period is not None:
            raise InputError(
                "sampling poisson has no batch_size or canary_period: batches have no fixed size;"
                " give sample_rate = batch size / number of records, or sampling='fixed'"
            )

    @property
    def steps_between(self) -> tuple[int, ...]:
        """Steps up to the first recorded one, and from each recorded one to the next."""
        return tuple(following - step for step, following in pairwise((0, *self.record_steps)))

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, 0 for the first; a finite number of at least 0."""
        rate = self.learning_rate
        if not callable(rate):
            return rate
        return checked_real(f"learning_rate({step})", rate(step), zero_included=True)

    def expected_batch_size(self, num_records: int) -> float:
        """What gradient sums are divided by: never the size of the batch that was drawn."""
        return float(self.batch_size or self.sample_rate * num_records)


class Stepping:
    """The steps of an optimiser on one tensor.

    They are those of `torch.optim`, by the functions below its classes. The classes load PyTorch's
    compiler, which takes a second of every job.

    Args:
        optimizer: which.
        parameters: changed in place by every step.
        momentum: of `momentum`.
        fused: whether a step is one kernel, which rounds differently.
    """

    def __init__(
        self, optimizer: Optimizer, parameters: Tensor, *, momentum: float = 0.0, fused: bool = True
    ) -> None:
        """Starts before the first step."""
        self._optimizer, self._parameters = optimizer, parameters
        self._momentum, self._fused = momentum, fused
        self._sums: list[Tensor | None] = [None]
        if optimizer is Optimizer.ADAM:
            self._means, self._squares = torch.zeros_like(parameters), torch.zeros_like(parameters)
            self._steps = torch.zeros((), device=parameters.device if fused else "cpu")

    @torch.no_grad()
    def step(self, gradients: Tensor, learning_rate: float) -> None:
        """Changes the parameters; the gradients have their shape."""
        if self._optimizer is Optimizer.ADAM:
            adam(
                [self._parameters], [gradients], [self._means], [self._squares], [], [self._steps],
                lr=learning_rate, beta1=0.9, beta2=0.999, eps=1e-8, fused=self._fused,
                weight_decay=0.0, amsgrad=False, maximize=False, foreach=False,
            )  # fmt: skip
        else:
            sgd(
                [self._parameters], [gradients], self._sums, lr=learning_rate, fused=self._fused,
                momentum=self._momentum if self._optimizer is Optimizer.MOMENTUM else 0.0,
                weight_decay=0.0, dampening=0.0, nesterov=False, maximize=False, foreach=False,
            )  # fmt: skip


def state_tensors(optimizer: Optimizer) -> int:
    """Tensors of the parameters' size that an optimiser keeps."""
    return {Optimizer.SGD: 0, Optimizer.MOMENTUM: 1, Optimizer.ADAM: 2}[optimizer]
