"""Helpers of the rules that draw figures."""


def figures_of(kind):
    """Names of the figures of one kind, as a wildcard constraint."""
    figures = EXPERIMENT.settings.figures
    return any_of([name for name, figure in figures.items() if figure.kind == kind])


def sweeps_of(wildcards):
    """The sweeps that the job's figure shows."""
    return EXPERIMENT.settings.figures[wildcards.figure].sweeps


def shown(pattern):
    """An input function: the files of all audits that the job's figure shows."""
    return lambda wildcards: [
        pattern.format(audit=audit)
        for sweep in sweeps_of(wildcards)
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
