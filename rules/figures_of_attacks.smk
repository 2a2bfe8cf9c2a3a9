"""Figures of what attacks see and prove; variants of rule figure_bounds."""


# Seconds each: not worth a place in a cluster's queue.
localrules:
    figure_score_histograms,
    figure_trade_off,
    figure_gradient_norm,
    figure_privacy_profile,
    figure_models_trained,
    figure_canary_sets,


use rule figure_bounds as figure_score_histograms with:
    input:
        program=program("figure_score_histograms"),
        scores=FIGURES.files("scores/{audit}.npz"),
    output:
        **files_of_figure("figure_score_histograms"),
    log:
        f"{LOGS}/figure_score_histograms/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("score_histograms")),
    params:
        code=code("figure_score_histograms"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("scores"),


use rule figure_bounds as figure_trade_off with:
    input:
        program=program("figure_trade_off"),
        scores=FIGURES.files("scores/{audit}.npz"),
        profiles=FIGURES.files("profiles/{audit}.tsv"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
        ceilings=FIGURES.ceilings,
    output:
        **files_of_figure("figure_trade_off"),
    log:
        f"{LOGS}/figure_trade_off/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("trade_off")),
    params:
        code=code("figure_trade_off"),
        note=FIGURES.setting("note"),
        options=FIGURES.options(
            "scores", "profiles", "ceilings", "summary", settings=["panels"]
        ),


use rule figure_bounds as figure_gradient_norm with:
    input:
        program=program("figure_gradient_norm"),
        scores=FIGURES.files("scores/{audit}.npz"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_gradient_norm"),
    log:
        f"{LOGS}/figure_gradient_norm/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("gradient_norm")),
    params:
        code=code("figure_gradient_norm"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("scores", "summary", settings=["panels"]),


use rule figure_bounds as figure_privacy_profile with:
    input:
        program=program("figure_privacy_profile"),
        profiles=FIGURES.files("profiles/{audit}.tsv"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_privacy_profile"),
    log:
        f"{LOGS}/figure_privacy_profile/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("privacy_profile")),
    params:
        code=code("figure_privacy_profile"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("profiles", "summary", settings=["panels"]),


use rule figure_bounds as figure_models_trained with:
    input:
        program=program("figure_models_trained"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_models_trained"),
    log:
        f"{LOGS}/figure_models_trained/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("models_trained")),
    params:
        code=code("figure_models_trained"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("summary", settings=["panels"]),


use rule figure_bounds as figure_canary_sets with:
    input:
        program=program("figure_canary_sets"),
        scores=FIGURES.files("scores/{audit}.npz"),
        summary=f"{RESULTS}/summaries/{{figure}}.tsv",
    output:
        **files_of_figure("figure_canary_sets"),
    log:
        f"{LOGS}/figure_canary_sets/{{figure}}.log",
    wildcard_constraints:
        figure=any_of(FIGURES.of_kinds("canary_sets")),
    params:
        code=code("figure_canary_sets"),
        note=FIGURES.setting("note"),
        options=FIGURES.options("scores", "summary"),
