"""Figures of audits whose exact law is known; variants of the rule of all figures."""

from dpcanary.settings.figure import EXACT_KINDS


# Seconds each: not worth a place in a cluster's queue.
localrules:
    figure_hidden_state,
    figure_amplification,
    figure_loss_landscape,


use rule figure_bounds as figure_hidden_state with:
    input:
        program=program("figure_hidden_state"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_hidden_state"),
    log:
        f"{LOGS}/figure_hidden_state/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds(*EXACT_KINDS)),
    params:
        code=code("figure_hidden_state"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("summary", settings=["axis"]),


use rule figure_bounds as figure_amplification with:
    input:
        program=program("figure_amplification"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_amplification"),
    log:
        f"{LOGS}/figure_amplification/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("amplification")),
    params:
        code=code("figure_amplification"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("summary"),


use rule figure_amplification as figure_loss_landscape with:
    input:
        program=program("figure_loss_landscape"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_loss_landscape"),
    log:
        f"{LOGS}/figure_loss_landscape/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("loss_landscape")),
    params:
        code=code("figure_loss_landscape"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("summary"),
