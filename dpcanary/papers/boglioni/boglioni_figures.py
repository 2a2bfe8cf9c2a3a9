"""The kind of figure that Boglioni et al. alone have, and which audits it can show."""

from collections.abc import Mapping

from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import threshold_rule_named
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings
from dpcanary.experiment.figure_config import Figure
from dpcanary.extend import FigureKind

CANARY_SETS = FigureKind(
    "canary_sets",
    draw="dpcanary.papers.boglioni.canary_sets:draw_canary_sets",
    inputs=("summary", "gaps"),
    files=("scores", "summary"),
    caption=(
        "What sets of canaries show along training. The first panel shows how much larger the loss"
        " of canaries is in models that were not trained on them. The others show lower bounds on"
        " epsilon from one training, by threshold rule. Each point is a training, each line the"
        " mean of trainings, each band one standard deviation; bands of bounds end at the smallest"
        " and the largest training. The table has means, medians and differences between canaries"
        " in trainings with the same seed, with 95 % intervals.",
        "Without noise, no trade-off curve is accounted, and GDP conversion is a scale of "
        "guesses: the epsilon of the Gaussian mechanism below which so many right guesses "
        "have a probability of at most the significance.",
    ),
    check="dpcanary.papers.boglioni.boglioni_figures:why_not_comparable",
)


def why_not_comparable(audits: Mapping[str, Audit], _: Figure, settings: Settings) -> str:
    """Why a figure cannot compare the canaries of audits; empty if it can."""
    if len({audit.seed for audit in audits.values()}) > 1:
        return (
            "its audits have seeds of their own; give them the same seed, so that their trainings"
            " are pairs"
        )
    rules = settings.threshold_rules
    need_gdp = all(Conversion.GDP in threshold_rule_named(rule).conversions for rule in rules)
    if Conversion.GDP not in settings.conversions and need_gdp:
        return "conversions has no gdp, whose bounds it shows"
    return ""
