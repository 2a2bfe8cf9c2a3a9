"""Which looks at bounds were no planned ones."""

from collections.abc import Iterable

# A number of runs at which a bound was seen, and the looks that were planned then.
Look = tuple[int, tuple[int, ...]]


def unplanned_looks(looks: Iterable[Look], num_runs: int, planned: tuple[int, ...]) -> list[int]:
    """At which other numbers of runs bounds were seen, ascending; one planned afterwards is one.

    Args:
        looks: those that were made.
        num_runs: of the bound that is looked at now.
        planned: the looks that are planned now.
    """
    return sorted(
        {
            seen
            for seen, planned_then in looks
            if seen != num_runs and not (seen in planned and planned_then == planned)
        }
    )
