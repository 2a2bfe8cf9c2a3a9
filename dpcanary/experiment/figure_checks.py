"""Which audits the kinds of figures of general use can show; see `FigureKind.check`."""

from collections.abc import Mapping, Sequence

from dpcanary.estimation.estimation_settings import Conversion, Independence
from dpcanary.estimation.rule_catalogue import threshold_rule_named
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings
from dpcanary.experiment.figure_config import Figure
from dpcanary.scoring.score_file import GRADIENT_NORM

Audits = Mapping[str, Audit]


def why_not_so_many_runs(audits: Audits, figure: Figure, _: Settings) -> str:
    """Why the runs of some audit cannot be cut into such numbers; empty if they can."""
    for name, audit in audits.items():
        if (most := max(figure.num_runs, default=0)) > audit.num_runs:
            return f"num_runs: {most} is more than the {audit.num_runs} runs of audit {name}"
        odd = [number for number in figure.num_runs if number % 2 or number < 4]
        if odd and audit.num_slots == 1:
            return f"num_runs: {odd[0]} must be even, for two worlds, and at least 4"
    return ""


def why_no_common_panels(audits: Audits, figure: Figure, _: Settings) -> str:
    """Why audits cannot share panels whose titles name neither canary nor adjacency."""
    for key in ("canary", "adjacency"):
        values = {str(getattr(audit, key)): name for name, audit in audits.items()}
        if len(values) > 1:
            return (
                f"audits {' and '.join([*values.values()][:2])} differ in {key}, of which kind"
                " models_trained shows one: show them in different figures"
            )
    for name, audit in audits.items():
        if not audit.fitting(figure.num_runs):
            least = "even numbers of at least 4" if audit.num_slots == 1 else "numbers"
            return f"num_runs: none fits audit {name}, which needs {least} up to {audit.num_runs}"
    return ""


def why_no_accuracy(audits: Audits, *_: object) -> str:
    """Why an audit has no accuracy on test records; empty if all have one."""
    for name, audit in audits.items():
        if not (audit.is_trained and audit.loss.is_of_classes):
            reason = "its labels are numbers" if audit.is_trained else "it trains no models"
            return f"audit {name} has no test accuracy: {reason}"
    return ""


def why_no_inputs(inputs: Sequence[str], audits: Audits) -> str:
    """Why audits leave a figure without norms or gaps of losses that it draws; empty if not."""
    scores = {audit.score for audit in audits.values()}
    if "norms" in inputs and GRADIENT_NORM not in scores:
        return f"no audit of its sweeps has score {GRADIENT_NORM}"
    if "gaps" in inputs and scores != {"loss"}:
        return "it compares losses: all audits of its sweeps need score loss"
    return ""


def why_no_profile(audits: Audits, _: Figure, settings: Settings) -> str:
    """Why there is no accounted or audited curve of some audit; empty if all have both."""
    return without_gaussian_bounds(settings) or why_without_privacy(audits)


def without_gaussian_bounds(settings: Settings) -> str:
    """Why there is no audited curve; empty if there is one."""
    if Conversion.GDP in settings.conversions:
        return ""
    return "conversions has no gdp, which gives the audited curve"


def why_no_shown_bound(audits: Audits, settings: Settings) -> str:
    """Why some audit has no Gaussian bound of all its scores together; empty if all have one."""
    several = [name for name, audit in audits.items() if audit.num_slots > 1]
    rules = [threshold_rule_named(name) for name in settings.threshold_rules]
    gaussian = [rule for rule in rules if rule.is_valid and Conversion.GDP in rule.conversions]
    is_by_slot = settings.independent is Independence.RUNS and gaussian and not gaussian[0].guesses
    if several and is_by_slot:
        return (
            f"shown: audit {several[0]} has a bound for each slot, and none of all scores together:"
            " leave it out, or set `independent: slots`, which assumes that slots do not influence"
            " each other"
        )
    return without_gaussian_bounds(settings)


def why_without_privacy(audits: Audits, *_: object) -> str:
    """Which audit trains without privacy; empty if none does."""
    for name, audit in audits.items():
        if audit.noise_multiplier == 0:
            return (
                f"audit {name} trains without privacy, which this figure cannot show: take another"
                " sweep"
            )
    return ""
