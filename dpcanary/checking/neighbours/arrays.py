"""For loops of one's own: the call through which the sums of a step pass."""

from typing import Any

from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from dpcanary.checking.neighbours.session import current


def record_sums(
    sums: Any,
    noisy: Any,
    *,
    max_grad_norm: float,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    parameters: Any = None,
    records: Any = None,
    **settings: float,
) -> Any:
    """Passes the sums of a step through a check of neighbours; outside of one it does nothing.

    A loop calls it once in each step, after the noise was added and before anything else is done,
    and goes on with what it returns:

        noisy = record_sums(sums, noisy, max_grad_norm=C, noise_multiplier=sigma)

    Args:
        sums: of clipped gradients: an array, or a list, tuple or dict of arrays of NumPy or of
            PyTorch.
        noisy: these with noise.
        max_grad_norm: C, to which the gradient of each record is clipped.
        noise_multiplier: of the step.
        sample_rate: of the step.
        parameters: at which the gradients were taken, in the same way.
        records: numbers of the records in the batch, if the loop knows them.
        settings: more numbers of which the step makes use, such as the learning rate.

    Returns:
        The noisy sums with which the loop is to go on.
    """
    session = current()
    if session is None:
        return noisy
    leaves, tree = tree_flatten_with_path(noisy)
    values = {
        "max_grad_norm": max_grad_norm,
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate,
        **settings,
    }
    replaced = session.step(
        named(sums),
        [leaf for _, leaf in leaves],
        limit=float(max_grad_norm),
        settings={name: float(value) for name, value in values.items() if value is not None},
        parameters=named(parameters) if parameters is not None else {},
        records=records,
    )
    return tree_unflatten(replaced, tree)


def named(values: Any) -> dict[str, Any]:
    """The arrays of a tree by name."""
    leaves, _ = tree_flatten_with_path(values)
    return {"".join(map(str, path)) or "the array": leaf for path, leaf in leaves}
