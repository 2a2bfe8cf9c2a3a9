"""For trainings with optax or jax_privacy: a wrapper around what adds the noise."""

from typing import Any

import numpy as np

from dpcanary.checking.neighbours.session import Setting, current
from dpcanary.core.optional_packages import lacking

try:
    import jax
    import optax
    from jax.experimental import io_callback
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(lacking("jax", subject=__name__), name=error.name) from None


def recorded(
    privatizer: optax.GradientTransformation,
    *,
    max_grad_norm: float,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
) -> optax.GradientTransformation:
    """A gradient transformation as the given one, whose sums pass through a check of neighbours.

    Outside of a check it does nothing more than the given one. It works under `jax.jit`, and what
    was compiled in one run serves the next ones.

    Args:
        privatizer: adds the noise to the sum of clipped gradients, such as
            `jax_privacy.noise_addition.gaussian_privatizer`.
        max_grad_norm: C, to which the gradient of each record is clipped.
        noise_multiplier: of the steps.
        sample_rate: of the steps.
    """
    settings: dict[str, Setting] = {"max_grad_norm": float(max_grad_norm)}
    if noise_multiplier is not None:
        settings["noise_multiplier"] = float(noise_multiplier)
    if sample_rate is not None:
        settings["sample_rate"] = float(sample_rate)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        noisy, state = privatizer.update(updates, state, params)
        named = jax.tree_util.tree_leaves_with_path(updates)
        names = [jax.tree_util.keystr(path) for path, _ in named]
        leaves, tree = jax.tree.flatten(noisy)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

        def step(sums: Any, with_noise: Any, parameters: Any) -> list[Any]:
            session = current()
            if session is None:
                return [np.asarray(array) for array in with_noise]
            own = {} if parameters is None else dict(zip(names, parameters, strict=True))
            return session.step(
                dict(zip(names, map(np.asarray, sums), strict=True)),
                [np.asarray(array) for array in with_noise],
                limit=float(max_grad_norm),
                settings=settings,
                parameters={name: np.asarray(value) for name, value in own.items()},
            )

        own = None if params is None else jax.tree.leaves(params)
        sums = [leaf for _, leaf in named]
        replaced = io_callback(step, shapes, sums, leaves, own, ordered=True)
        return jax.tree.unflatten(tree, replaced), state

    return optax.GradientTransformation(privatizer.init, update)
