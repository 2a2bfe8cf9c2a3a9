"""The kind of figure for audits of shuffled batches."""

from dpcanary.extend import FigureKind

SHUFFLING = FigureKind(
    "shuffling",
    draw="dpcanary.papers.published.shuffling_figure:draw_shuffling",
    caption=(
        "What can be shown of trainings whose batches are cut from shuffled records, against "
        "the noise multiplier, with a panel for each adjacency.",
        "Markers are lower bounds from audits of worst cases: of shuffled batches where the "
        "other records contribute the gradient -C or nothing, and of Poisson samples at the "
        "same rate. Bars are two standard errors, where there are several repeats. Lines have "
        "a gap at bounds of 0, which are hollow markers on the axis.",
        "The solid line is guaranteed with shuffling: a record is used once in each pass, and no"
        " amplification is counted. The dashed line is what accounting of Poisson samples states"
        " for the same numbers. It bounds the audits of Poisson samples, and not those of shuffled"
        " batches: a bound above it shows that Poisson accounting does not hold for these.",
    ),
)
