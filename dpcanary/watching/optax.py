"""Watches a training with optax or jax_privacy: a wrapper around what adds the noise."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpcanary.core.argument_checks import checked_real
from dpcanary.core.optional_packages import lacking
from dpcanary.watching.directions import Directions, NoiseSeen
from dpcanary.watching.recorder import Recorder
from dpcanary.watching.watched_step import StepSettings

try:
    import jax
    import jax.numpy as jnp
    import optax
    from jax.experimental import io_callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(lacking("jax", subject=__name__), name=error.name) from None


def shapes_of(parameters: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a tree of parameters by name, as `Recorder` takes them."""
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def watched(
    privatizer: optax.GradientTransformation,
    recorder: Recorder,
    step_settings: StepSettings,
    *,
    scale: float = 1.0,
) -> optax.GradientTransformation:
    """A gradient transformation that adds noise as the given one, and is watched.

    Its updates must be the sum of clipped gradients, before anything divides it. It works under
    `jax.jit`: projections are computed where the parameters are, and K numbers per step go to the
    recorder and back.

    Args:
        privatizer: adds the noise, such as `jax_privacy.noise_addition.gaussian_privatizer`, or
            `matrix_factorization_privatizer` with a `CorrelatedRecorder`.
        recorder: made with `shapes_of(parameters)`.
        step_settings: what the training says of each step: noise multiplier, clipping norm,
            sample rate.
        scale: what the noisy sum is to be multiplied by to be in the units of the sum, if the
            privatizer divides it.

    Raises:
        InputError: if the scale is not positive and finite.

    What the recorder or its `on_alarm` raises ends a step as a RuntimeError of jax that names it.
    """
    checked_real("scale", scale)
    passes = _Passes(recorder.directions)
    slots = jax.ShapeDtypeStruct((recorder.num_canaries,), jnp.float32)

    def begin(projections: Any) -> Any:
        return recorder.begin(step_settings, np.asarray(projections, np.float64)).astype(np.float32)

    def end(*seen: Any) -> None:
        projections, squares, sums, first, with_sum = (
            np.asarray(values, np.float64) for values in seen
        )
        values = recorder.directions.sampled_values(first)
        recorder.record(NoiseSeen(projections, squares, sums, values, with_sum), recorder.others)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        leaves, tree = jax.tree.flatten(updates)
        amounts = io_callback(begin, slots, passes.project(leaves), ordered=True)
        sums = passes.add(leaves, amounts)
        noisy, state = privatizer.update(jax.tree.unflatten(tree, sums), state, params)
        noise = [
            scale * values.astype(jnp.float32) - other
            for values, other in zip(jax.tree.leaves(noisy), sums, strict=True)
        ]
        seen = passes.project(noise), *passes.moments(noise), _with_sum(noise, sums)
        io_callback(end, None, *seen, ordered=True)
        return noisy, state

    return optax.GradientTransformation(privatizer.init, update)


def _with_sum(noise: Sequence[Any], sums: Sequence[Any]) -> Any:
    """The product of the noise with the sum, and the square of the sum's norm."""
    exact = [part.astype(jnp.float32) for part in sums]
    products = [jnp.vdot(values, other) for values, other in zip(noise, exact, strict=True)]
    return jnp.stack([sum(products), sum(jnp.vdot(part, part) for part in exact)])


class _Passes:
    """The passes of `Directions` over lists of arrays of jax."""

    def __init__(self, directions: Directions) -> None:
        self._directions = directions
        self._columns = jnp.asarray(directions.slot_columns)
        slot_of_column = np.full(directions.num_columns, directions.num_slots)
        slot_of_column[directions.slot_columns] = np.arange(directions.num_slots)
        scales = np.append(directions.scales, np.float32(0))
        self._slots = jnp.asarray(slot_of_column)
        self._weights = jnp.asarray(directions.column_signs * scales[slot_of_column])
        self._rows = jnp.asarray(directions.row_signs)

    def _matrix(self, leaves: Sequence[Any]) -> Any:
        """All parameters as rows: those of the tensors, then the joined ones."""
        here = self._directions
        flat = [leaf.reshape(-1).astype(jnp.float32) for leaf in leaves]
        ends = [rows * here.num_columns for rows in here.own_rows]
        own = [values[:end] for values, end in zip(flat, ends, strict=True)]
        rest = [values[end:] for values, end in zip(flat, ends, strict=True)]
        whole = jnp.concatenate([*own, *rest])
        padded = len(here.row_signs) * here.num_columns - whole.size
        return jnp.pad(whole, (0, padded)).reshape(-1, here.num_columns)

    def project(self, leaves: Sequence[Any]) -> Any:
        """The components in the directions, shape (K,)."""
        by_column = (self._rows @ self._matrix(leaves)) * self._weights
        return by_column[self._columns].sum(axis=0)

    def add(self, leaves: Sequence[Any], amounts: Any) -> list[Any]:
        """The leaves and the sum of amounts times directions."""
        here = self._directions
        by_column = jnp.append(amounts, 0.0)[self._slots] * self._weights
        whole = jnp.outer(self._rows, by_column).reshape(-1)
        out, joined = [], here.first_rows[-1] * here.num_columns
        for place, leaf in enumerate(leaves):
            start = here.first_rows[place] * here.num_columns
            size = here.own_rows[place] * here.num_columns
            rest = here.joined_sizes[place]
            added = jnp.concatenate([whole[start : start + size], whole[joined : joined + rest]])
            joined += rest
            out.append(leaf + added.reshape(leaf.shape).astype(leaf.dtype))
        return out

    def moments(self, noise: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Sums of squares and sums by tensor, and the values that are looked at one by one."""
        here = self._directions
        squares = jnp.stack([jnp.vdot(values, values) for values in noise])
        sums = jnp.stack([values.sum() for values in noise])
        first = here.first_rows[-1] * here.num_columns
        return squares, sums, self._matrix(noise).reshape(-1)[first + here.joined_positions]
