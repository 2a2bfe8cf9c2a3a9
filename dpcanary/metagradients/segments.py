"""Which states of a training are kept for the way back, and which are computed again."""

from itertools import count

from dpcanary.errors import InputError


def planned_segments(num_steps: int, capacity: int | None) -> tuple[range, ...]:
    """Consecutive steps; the parameters at all steps of one segment are held at a time.

    Those of the last segment are kept on the way there. At the start of each earlier segment the
    whole state is kept, and its steps are done again when the way back reaches it. There are as
    few segments as fit. With the least capacity that is enough, about sqrt(8 x steps), there are
    about sqrt(steps / 2) of them.

    Args:
        num_steps: of the training.
        capacity: how many vectors of parameters fit into memory; None: all.

    Raises:
        InputError: if there are too few for any plan.

    Example:
        >>> planned_segments(10, 10)
        (range(0, 10),)
        >>> planned_segments(10, 7)
        (range(0, 5), range(5, 10))
    """
    length = num_steps if capacity is None else _longest(num_steps, capacity)
    if not length:
        needed = next(size for size in count(1) if _longest(num_steps, size))
        raise InputError(
            f"memory_budget holds {capacity} vectors of parameters; a way back through"
            f" {num_steps} steps needs at least {needed}: raise it, or train fewer steps"
        )
    # Only the first segment may be shorter: the last one is the one that costs nothing.
    starts = range(num_steps - length, -length, -length)
    return tuple(range(max(0, start), start + length) for start in reversed(starts))


def _longest(num_steps: int, capacity: int) -> int:
    """Steps of a segment if as few states as possible are kept; 0 if there is no way."""
    for num_kept in range(num_steps):
        length = capacity - 2 * num_kept  # a kept state is parameters and momentum
        if length <= 0:
            return 0
        if (num_kept + 1) * length >= num_steps:
            return min(length, num_steps)
    return 0
