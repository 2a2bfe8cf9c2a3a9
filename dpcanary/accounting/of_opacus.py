"""The epsilons of a training with Opacus, which reports the one under add/remove alone."""

import gc
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from math import nan
from typing import Any

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency, account_by_adjacency
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism, Phase
from dpcanary.accounting.phases import account_phases
from dpcanary.accounting.shuffled_epsilons import guaranteed_epsilon
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism, least_batches_of_pass
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.printing import rounded_up
from dpcanary.errors import AccountingError, InputError

# Where `noted_sampling` keeps what it sees.
_NOTE = "_dpcanary_poisson_sampling"


def epsilons_of(
    privacy_engine_or_optimizer: Any,
    *,
    delta: float,
    sample_rate: float | None = None,
    num_steps: int | None = None,
    poisson_sampling: bool | None = None,
) -> EpsilonsByAdjacency:
    """The epsilons of a training with Opacus under each adjacency.

    They hold if batches are Poisson samples. Where `make_private` was called with
    `poisson_sampling=False`, a warning says what is guaranteed instead.

    The noise of Opacus has the standard deviation `noise_multiplier * max_grad_norm`. Replacing a
    record moves the clipped sum by up to `2 * max_grad_norm`, adding one by `max_grad_norm`. That
    is why the same noise gives different epsilons. Opacus accounts the latter.

    Args:
        privacy_engine_or_optimizer: Opacus's `PrivacyEngine`, which knows the steps that have been
            done; or its `DPOptimizer`, for a training that is planned.
        delta: between 0 and 1, both excluded.
        sample_rate: expected batch size over the number of records; by default that of the steps
            that the engine has accounted.
        num_steps: steps of the whole training; by default those that the engine has accounted.
        poisson_sampling: whether batches are Poisson samples, as `make_private` was told. By
            default the model that belongs to the optimizer is asked, if it is still there.

    If noise or sample rate changed in the training, the engine's phases are composed; see
    `account_phases`.

    Raises:
        InputError: if the object is none of Opacus, if it does not know what is not given, or if
            noise or sample rate changed and numbers are given for the whole training.
        AccountingError: see `account_by_adjacency`.
    """
    phases = changed_phases(privacy_engine_or_optimizer)
    if phases and sample_rate is None and num_steps is None:
        if poisson_sampling is None:
            poisson_sampling = samples_poisson(privacy_engine_or_optimizer)
        if poisson_sampling is False and any(phase.sample_rate < 1 for phase in phases):
            raise InputError(
                "batches are no Poisson samples (poisson_sampling=False), and noise or sample rate"
                " changed in the training: nothing here accounts that"
            )
        return account_phases(phases, delta=delta)
    noise_multiplier, known_rate, known_steps = accounted_steps(privacy_engine_or_optimizer)
    rate = known_rate if sample_rate is None else sample_rate
    steps = known_steps if num_steps is None else num_steps
    if noise_multiplier is None:
        raise InputError(
            "the privacy engine has accounted no step yet: give the optimizer that make_private"
            " returned, with sample_rate and num_steps; or ask after training"
        )
    if rate is None or steps is None:
        raise InputError(
            "an optimizer does not know its sample rate and number of steps: give sample_rate"
            " (expected batch size / number of records) and num_steps"
        )
    mechanism = Mechanism(
        Adjacency.SUBSTITUTE, sample_rate=rate, num_steps=steps, noise_multiplier=noise_multiplier
    )
    if poisson_sampling is None:
        poisson_sampling = samples_poisson(privacy_engine_or_optimizer)
    if poisson_sampling is False and rate < 1:  # full batches are what is accounted
        guaranteed = without_poisson_sampling(mechanism, delta=delta)
        warnings.warn(guaranteed, UserWarning, stacklevel=2)
    return account_by_adjacency(mechanism, delta=delta)


def without_poisson_sampling(mechanism: Mechanism, *, delta: float) -> str:
    """What is guaranteed where batches are no Poisson samples, in words.

    A record that takes part once in each pass over the data is in as many steps as there are
    passes; no amplification by shuffling is counted, so that is the accounting of full batches.
    """
    shuffled = in_passes(mechanism)
    text = (
        "batches are no Poisson samples (poisson_sampling=False): the accounted epsilons do not"
        " hold. If each record is used once in each pass over the data"
    )
    try:
        epsilons = {
            adjacency: guaranteed_epsilon(shuffled.under(adjacency), delta=delta)
            for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ZERO_OUT)
        }
    except AccountingError as error:
        return f"{text}, no accountant gives a number: {error}"
    return (
        f"{text}, so in {shuffled.num_passes:,} steps at most, what is guaranteed is epsilon"
        f" {rounded_up(epsilons[Adjacency.SUBSTITUTE])} under substitute adjacency, and"
        f" {rounded_up(epsilons[Adjacency.ZERO_OUT])} for a record that is there or replaced by"
        " nothing (zero-out); no amplification by shuffling is counted"
    )


def in_passes(mechanism: Mechanism) -> ShuffledMechanism:
    """A mechanism whose batches are no Poisson samples: each record is used once in each pass."""
    return ShuffledMechanism(
        mechanism.adjacency,
        batches_per_pass=least_batches_of_pass(mechanism.sample_rate),
        num_steps=mechanism.num_steps,
        noise_multiplier=mechanism.noise_multiplier,
    )


def guaranteed_in_passes(mechanism: Mechanism, *, delta: float) -> EpsilonsByAdjacency:
    """The upper bounds of such a mechanism; `group_privacy` is NaN.

    Raises:
        AccountingError: if no accountant gives a number.
    """
    add_remove, substitute = (
        guaranteed_epsilon(in_passes(mechanism).under(adjacency), delta=delta)
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE)
    )
    return EpsilonsByAdjacency(add_remove, substitute, nan, delta, AccountingMethod.CLOSED_FORM)


def samples_poisson(
    privacy_engine_or_optimizer: Any, among: Sequence[Any] | None = None
) -> bool | None:
    """Whether `make_private` was told to draw Poisson samples; None if this cannot be seen.

    Opacus keeps this in the model alone: there, Poisson sampling forbids that gradients
    accumulate. So the model is looked for among the living objects, or among some that are given.
    """
    noted = noted_sampling_of(privacy_engine_or_optimizer)
    if noted is not None or "opacus" not in sys.modules:
        return noted
    opacus: Any = sys.modules["opacus"]
    samplers: tuple[Any, ...] = poisson_samplers()
    kinds = (opacus.GradSampleModule, opacus.optimizers.DPOptimizer, opacus.PrivacyEngine)
    living = living_objects((*kinds, *samplers), among)
    models, optimizers, engines = ([own for own in living if isinstance(own, k)] for k in kinds)
    if privacy_engine_or_optimizer in optimizers:
        optimizers = [privacy_engine_or_optimizer]
    else:
        accountant = getattr(privacy_engine_or_optimizer, "accountant", None)
        optimizers = [
            optimizer for optimizer in optimizers if accountant in captured_by(optimizer.step_hook)
        ]
    trained = {id(parameter) for optimizer in optimizers for parameter in optimizer.params}
    sampling = {
        not model.grad_accumulation_allowed
        for model in models
        if any(id(parameter) in trained for parameter in model.parameters())
    }
    if len(sampling) != 1:
        return None
    is_poisson = sampling.pop()
    # Models that are put together without an engine may always accumulate.
    hooked = [own for optimizer in optimizers for own in captured_by(optimizer.step_hook)]
    by_engine = any(engine.accountant is own for engine in engines for own in hooked)
    rates = {own.sample_rate for own in living_objects(samplers, living)}
    is_own = not hooked or any(isinstance(own, float) and own in rates for own in hooked)
    return None if is_own and not by_engine and not is_poisson else is_poisson


def poisson_samplers() -> tuple[type, ...]:
    """Opacus's classes that draw Poisson samples."""
    from opacus.utils import uniform_sampler

    return (
        uniform_sampler.UniformWithReplacementSampler,
        uniform_sampler.DistributedUniformWithReplacementSampler,
    )


def living_objects(kinds: tuple[type, ...], among: Sequence[Any] | None = None) -> list[Any]:
    """The objects of some types that are alive: of all objects, or of a sequence.

    A process with PyTorch and Opacus has half a million objects, so its loops are those of C.
    """
    objects = gc.get_objects() if among is None else among
    # By type: asking some objects for their class runs code of theirs.
    of_kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, kinds)}
    return [*compress(objects, map(of_kinds.__contains__, map(type, objects)))] if of_kinds else []


def captured_by(function: Any) -> list[Any]:
    """What a function has captured."""
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def noted_sampling_of(privacy_engine: Any) -> bool | None:
    """What an engine remembers that was made under `noted_sampling`; None if it was not."""
    return getattr(privacy_engine, _NOTE, None)


@contextmanager
def noted_sampling() -> Iterator[None]:
    """While inside, privacy engines remember whether they were told to draw Poisson samples."""
    if "opacus" not in sys.modules:
        yield
        return
    opacus: Any = sys.modules["opacus"]
    engine = opacus.PrivacyEngine
    original = engine._prepare_data_loader

    def noting(self: Any, *args: Any, poisson_sampling: bool, **keys: Any) -> Any:
        setattr(self, _NOTE, poisson_sampling)
        return original(self, *args, poisson_sampling=poisson_sampling, **keys)

    engine._prepare_data_loader = noting
    try:
        yield
    finally:
        engine._prepare_data_loader = original


def _history(asked: Any) -> list[Any] | None:
    """What an engine has accounted; an optimizer, or another object, has none."""
    return getattr(getattr(asked, "accountant", None), "history", None)


def changed_phases(privacy_engine: Any) -> tuple[Phase, ...]:
    """The phases that an engine has accounted, if noise or sample rate changed; else none."""
    history = _history(privacy_engine) or []
    phases = (Phase(float(noise), float(rate), int(steps)) for noise, rate, steps in history)
    return tuple(phases) if len(history) > 1 else ()


def accounted_steps(
    privacy_engine_or_optimizer: Any,
) -> tuple[float | None, float | None, int | None]:
    """The noise multiplier, sample rate and number of steps that an object of Opacus knows.

    Raises:
        InputError: if noise or sample rate changed in the training, or it is no object of Opacus.
    """
    asked = privacy_engine_or_optimizer
    if hasattr(asked, "noise_multiplier"):
        return float(asked.noise_multiplier), None, None
    history = _history(asked)
    if history is None:
        raise InputError(
            "privacy_engine_or_optimizer must be a PrivacyEngine or a DPOptimizer of Opacus, not"
            f" {type(asked).__name__}"
        )
    if len(history) > 1:
        raise InputError(
            f"noise or sample rate changed in the training ({len(history)} phases): one noise"
            " multiplier, sample rate and number of steps cannot stand for it"
        )
    if not history:
        return None, None, None
    [(noise_multiplier, sample_rate, num_steps)] = history
    return float(noise_multiplier), float(sample_rate), int(num_steps)
