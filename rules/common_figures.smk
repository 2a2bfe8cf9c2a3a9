"""Helpers of the rules that summarise audits and draw figures."""


def figures_of(kind):
    """Names of the figures of one kind, as a wildcard constraint."""
    figures = EXPERIMENT.settings.figures
    return any_of([name for name, figure in figures.items() if figure.kind == kind])


def of_figure(key):
    """A params function: what the config says of the job's figure under a key."""
    return lambda wildcards: getattr(EXPERIMENT.settings.figures[wildcards.figure], key)


def shown(pattern):
    """An input function: the files of all audits that the job's figure shows."""
    return lambda wildcards: [
        pattern.format(audit=audit, figure=wildcards.figure)
        for sweep in of_figure("sweeps")(wildcards)
        for audit in EXPERIMENT.sweeps[sweep]
    ]


def drawn(kind):
    """A PNG that the report shows, with the caption of its kind."""
    return report(
        f"{RESULTS}/figures/{{figure}}.png",
        caption=f"../report/figure_{kind}.rst",
        category="Figures",
        labels={"figure": "{figure}"},
    )


# Tables of bounds, and the sweeps they show: a figure waits for its own audits alone.
SUMMARIES = {
    "summary": list(EXPERIMENT.sweeps),
    **{
        f"summaries/{name}": list(figure.sweeps)
        for name, figure in EXPERIMENT.settings.figures.items()
        if figure.sweeps
    },
}


def summarised(pattern):
    """An input function: the files of all audits that the job's table shows."""
    return lambda wildcards: [
        pattern.format(audit=audit)
        for sweep in SUMMARIES[wildcards.table]
        for audit in EXPERIMENT.sweeps[sweep]
    ]
