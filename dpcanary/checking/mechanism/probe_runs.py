"""Runs of a training loop on probes, in PyTorch and in jax."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcanary.checking.mechanism.noisy_sums import SumsMode, steps_of
from dpcanary.checking.mechanism.probe import Probe, ProbeRecords, probe_records
from dpcanary.checking.mechanism.trace import Trace
from dpcanary.core.global_generators import seed_global_generators
from dpcanary.errors import InputError

# As good as no noise; many libraries refuse 0.
QUIET = 1e-7
# Trainings in jax after which what was compiled is dropped.
_MOST_COMPILED = 200


@dataclass(frozen=True)
class Settings:
    """What a training loop is asked to do.

    Attributes:
        sample_rate: of Poisson sampling. The expected batch size is that times the records.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        max_grad_norm: the clipping norm C.
        learning_rate: of SGD.
        num_steps: optimiser steps, not epochs.
        seed: another one for each training.
    """

    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    learning_rate: float
    num_steps: int
    seed: int


# Trains a module of PyTorch on a dataset, in place. A generator is run to its end, and what it
# yields is not used: it says that a step is done. What is returned is not used. In jax, a generator
# that yields the parameters after each step.
Train = Callable[[Any, Any, Settings], object]
# Trains a probe once.
Run = Callable[[Settings], Trace]


def records_of(settings: Settings, count: int) -> ProbeRecords:
    """So many records for trainings at these settings."""
    return probe_records(
        num_records=count,
        max_grad_norm=settings.max_grad_norm,
        step=settings.learning_rate * settings.max_grad_norm / (settings.sample_rate * count),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """On so small modules, a second thread that waits for a core takes far longer than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def trained(run: Run, settings: Settings) -> Trace:
    """Trains a probe; raises an InputError if that fails or diverges."""
    seed_global_generators(settings.seed)
    try:
        trace = run(settings)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(
            f"the training failed on a probe ({type(error).__name__}: {error}); it must train any"
            " module with two outputs, such as one with a bias and an embedding, on a dataset of"
            " vectors and labels, as its settings say, also if a batch is empty"
        ) from error
    if not np.isfinite(trace.states[-1]).all():
        raise InputError("the training of a probe has diverged: lower the learning rate")
    return trace


@contextmanager
def _with_torch(train: Train, records: ProbeRecords) -> Iterator[Run]:
    dataset = records.dataset()

    def run(settings: Settings) -> Trace:
        trace = Trace()
        probe = Probe(records, trace)
        _train_probe(train, probe, dataset, settings)
        return trace

    yield run


def _train_probe(train: Train, probe: Probe, dataset: Any, settings: Settings) -> None:
    """Trains once; the probe's trace then has what was seen."""
    trace, parameters = probe.trace, [*probe.parameters()]
    trace.keep(parameters)
    trace.last_called = trace.states[0]
    with trace.of(probe):
        steps = train(probe, dataset, settings)
        if isinstance(steps, GeneratorType):
            trace.by_yields = True
            for _ in steps:
                trace.keep(parameters)
    trace.end(parameters)


@contextmanager
def with_sums(train: Train, records: ProbeRecords, sums: Sequence[Tensor] = ()) -> Iterator[Run]:
    """Trains probes and keeps their noisy sums; those that are given take the loop's place."""
    dataset = records.dataset()

    def run(settings: Settings) -> Trace:
        trace = Trace()
        probe = Probe(records, trace)
        shapes = [parameter.shape for parameter in probe.parameters()]
        with SumsMode(shapes, lambda: trace.last_called, sums) as mode:
            _train_probe(train, probe, dataset, settings)
        trace.sums = [own.values for own in mode.seen]
        trace.noisy_steps = steps_of(mode.seen, shapes)
        return trace

    yield run


@contextmanager
def _with_jax(train: Train, records: ProbeRecords) -> Iterator[Run]:
    from dpcanary.checking.mechanism.jax_probe import JaxProbe, forget_compiled

    # One probe for all trainings: what is compiled for it can be used again.
    probe, dataset = JaxProbe(records), records.arrays()

    count = 0

    def run(settings: Settings) -> Trace:
        nonlocal count
        count += 1
        if count % _MOST_COMPILED == 0:
            forget_compiled()
        trace = Trace(by_yields=True)
        trace.keep(probe.tensors(probe.parameters))
        steps = train(probe, dataset, settings)
        if not isinstance(steps, Iterator):
            raise InputError("in jax, it must be a generator that yields the parameters")
        for parameters in steps:
            trace.keep(probe.tensors(parameters))
        return trace

    try:
        yield run
    finally:
        forget_compiled()


# What trains a probe on records, by what the loop is written in.
FRAMEWORKS = {"torch": _with_torch, "jax": _with_jax}
