"""The kind of figure that Pradhan et al. alone have."""

from dpcanary.extend import FigureKind

ADJACENCY_RATIO = FigureKind(
    "adjacency_ratio",
    draw="dpcanary.papers.pradhan.adjacency_ratio:draw_adjacency_ratio",
    inputs=("ratios",),
    files=("ratios",),
    caption=(
        "How much larger epsilon is under substitute than under add/remove adjacency, for "
        "the same mechanism at the same delta, with a panel for each sampling rate q and "
        "a line for each number of steps T.",
        "Nothing is trained here: both epsilons are accounted.",
        "Above the dashed line, the substitute epsilon is more than twice the add/remove "
        "one. There, doubling an add/remove epsilon at the same delta does not bound what "
        "an attacker learns about a record's content.",
        "A line has a gap where no accountant gives both epsilons, or where the "
        "add/remove epsilon is 0; the log of compare_adjacencies says why.",
    ),
    needs=("sample_rates", "noise_multipliers", "num_steps"),
    has_bounds=False,
)
