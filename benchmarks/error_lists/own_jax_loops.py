"""Training loops with jax_privacy for `dpcanary check`: wrong ones and right ones."""

import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax
from jax_privacy import batch_selection, clipping, noise_addition

from benchmarks.error_lists.own_loops import (
    ALONE,
    CLIPPING,
    COORDINATES,
    NEW,
    POISSON,
    RATE,
    TIMES,
    Loop,
)


def batches(settings: Any, count: int, **changes: Any) -> Iterator[Any]:
    """Indices of records by step."""
    sampling = batch_selection.CyclicPoissonSampling(
        settings.sample_rate, settings.num_steps, **changes
    )
    return sampling.batch_iterator(count, rng=settings.seed)


def sums_of(probe: Any, limit: float, **changes: Any) -> Any:
    """What computes the sum of clipped gradients of a batch."""
    return clipping.clipped_grad(
        probe.loss, **{"l2_clip_norm": limit, "batch_argnums": (1, 2), **changes}
    )


def gaussian(scale: float, key: Any) -> Any:
    """What adds the noise to the sum."""
    return noise_addition.gaussian_privatizer(stddev=scale, prng_key=key)


@cache
def compiled(
    probe: Any,
    limit: float,
    noise_multiplier: float,
    size: float,
    learning_rate: float,
    sums: Callable[..., Any],
    noise: Callable[..., Any],
    keeps_state: bool,
    has_padding: bool,
) -> Callable[..., Any]:
    """One step, which is compiled once for all trainings of a probe."""
    clipped = sums(probe, limit)
    optimizer = optax.sgd(learning_rate)

    @jax.jit
    def step(parameters: Any, state: Any, key: Any, features: Any, labels: Any, pads: Any) -> Any:
        privatizer = noise(noise_multiplier * clipped.sensitivity(), key)
        noise_state = privatizer.init(parameters) if state is None else state
        padding = {"is_padding_example": pads} if has_padding else {}
        total = clipped(parameters, features, labels, **padding)
        noisy, state = privatizer.update(total, noise_state)
        mean = jax.tree.map(lambda own: own / size, noisy)
        updates, _ = optimizer.update(mean, optimizer.init(parameters))
        return optax.apply_updates(parameters, updates), state if keeps_state else noise_state

    return step


def jax_privacy(
    probe: Any,
    dataset: Any,
    settings: Any,
    *,
    select: Callable[..., Iterator[Any]] = batches,
    sums: Callable[..., Any] = sums_of,
    noise: Callable[..., Any] = gaussian,
    keeps_state: bool = True,
    has_padding: bool = True,
    key: int | None = None,
) -> Iterator[Any]:
    """A loop with the parts of jax_privacy."""
    warnings.simplefilter("ignore")  # jax_privacy 2.0 calls what optax 0.2.8 will remove
    features, labels = dataset
    parameters, state = probe.parameters, None
    step = compiled(
        probe,
        settings.max_grad_norm,
        settings.noise_multiplier,
        settings.sample_rate * len(labels),
        settings.learning_rate,
        sums,
        noise,
        keeps_state,
        has_padding,
    )
    noise_key = jax.random.key(settings.seed if key is None else key)
    for index in select(settings, len(labels)):
        # With one row of padding at least: clipped_grad takes no empty batches.
        padded = batch_selection.pad_to_multiple_of(np.append(index, -1), 64)
        parameters, state = step(
            parameters, state, noise_key, features[padded], labels[padded], padded == -1
        )
        yield parameters


def one_draw_for_all(scale: float, key: Any) -> Any:
    """Every tensor with the same key."""

    def update(sums: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        own, state = jax.random.split(state)
        leaves, tree = jax.tree.flatten(sums)
        noisy = [one + scale * jax.random.normal(own, one.shape) for one in leaves]
        return jax.tree.unflatten(tree, noisy), state

    return optax.GradientTransformation(lambda parameters: key, update)


class ClippedAsAWhole:
    """The sum of a batch's gradients, clipped to C after adding up."""

    def __init__(self, probe: Any, limit: float) -> None:
        self.probe, self.limit = probe, limit

    def sensitivity(self) -> float:
        """That of one record, if each were clipped."""
        return self.limit

    def __call__(self, parameters: Any, features: Any, labels: Any, is_padding_example: Any) -> Any:
        """The clipped sum of the gradients that are not padding's."""

        def total(own: Any) -> Any:
            each = jax.vmap(self.probe.loss, (None, 0, 0))
            losses = each(own, features[:, None], labels[:, None])
            return (losses * ~is_padding_example).sum()

        return clipping.clip_pytree(jax.grad(total)(parameters), self.limit)[0]


def _loop(name: str, *found_by: str, **changes: Any) -> Loop:
    return Loop(name, partial(jax_privacy, **changes), found_by, framework="jax")


WRONG = (
    _loop("jax_privacy, state of the noise not kept", TIMES, keeps_state=False),
    _loop("jax_privacy, one key for all trainings", TIMES, key=0),
    _loop("jax_privacy, padding as records", CLIPPING, RATE, has_padding=False),
    _loop("jax_privacy, one key for all tensors", COORDINATES, noise=one_draw_for_all),
    _loop(
        "jax_privacy, cyclic batches", RATE, NEW, POISSON, select=partial(batches, cycle_length=2)
    ),
    _loop(
        "jax_privacy, batches cut at the expected size",
        RATE,
        POISSON,
        select=lambda settings, count: batches(
            settings, count, truncated_batch_size=round(settings.sample_rate * count)
        ),
    ),
    _loop("jax_privacy, sums clipped", ALONE, sums=ClippedAsAWhole),
)

RIGHT = (
    _loop("jax_privacy"),
    _loop("jax_privacy, in microbatches", sums=partial(sums_of, microbatch_size=16)),
)
