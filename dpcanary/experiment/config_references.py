"""Checks between the parts of a config: names that must exist, and counts that must fit."""

from collections.abc import Mapping, Sequence

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.plugins import function_named
from dpcanary.errors import InputError, suggestion
from dpcanary.estimation.estimation_settings import (
    LARGEST_EXACT_DELTA,
    LEAST_CALIBRATED_SIGNIFICANCE,
    LEAST_EXACT_DELTA,
    Conversion,
    Independence,
    RankRule,
)
from dpcanary.estimation.rule_catalogue import RULES, threshold_rule_named
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Settings
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.experiment.figure_checks import why_no_inputs, why_no_shown_bound
from dpcanary.experiment.figure_config import Figure
from dpcanary.training.training_settings import WorldAssignment

# Accountants work with exp(epsilon), which overflows at 709.
_LARGEST_TARGET = 500.0


def check_references(
    settings: Settings, sweeps: Mapping[str, Sequence[str]], audits: Mapping[str, Audit]
) -> None:
    """Checks audits against datasets, and figures against audits.

    Args:
        settings: the config without its audits.
        sweeps: names of each sweep's audits.
        audits: by name.

    Raises:
        InputError: names the audit or figure, and the key.
    """
    _check_rules(settings)
    for name, audit in audits.items():
        where = f"config: audit {name}"
        if audit.has_two_worlds:
            _check_guesses(where, audit, settings)
            _check_single_run(where, audit, settings)
        else:
            _check_ranks(where, audit, settings)
        if audit.looks:
            _check_looks(where, settings.threshold_rules)
        if Conversion.SUBSAMPLED_GAUSSIAN in settings.conversions and audit.sample_rate < 1:
            _check_exact_delta(where, audit, settings.delta)
        gaussian = [own for own in settings.conversions if own is not Conversion.DIRECT]
        if gaussian and audit.batches_per_pass:
            raise InputError(
                f"{where}: conversion {gaussian[0]} has no curves of shuffled batches; give"
                " conversions: [direct], which assumes nothing, or audit them in another config"
            )
        if audit.pretraining and audit.pretraining.dataset:
            _check_known(f"{where}: pretraining.dataset", audit.pretraining.dataset, settings)
        if audit.dataset is not None:
            _check_dataset(where, audit, audit.dataset, settings)
        if audit.target_epsilon is not None:
            _check_target(where, audit, audit.target_epsilon, settings.delta)
    for name, figure in settings.figures.items():
        where = f"config: figures.{name}"
        _check_figure(where, figure, sweeps, audits, settings)


def _check_rules(settings: Settings) -> None:
    least = LEAST_CALIBRATED_SIGNIFICANCE
    calibrated = [
        rule for rule in settings.threshold_rules if threshold_rule_named(rule).is_calibrated
    ]
    if calibrated and settings.significance < least:
        raise InputError(
            f"config: significance: threshold rule {calibrated[0]} needs at least {least:g};"
            " give threshold_rules: [simultaneous] below"
        )


def _check_guesses(where: str, audit: Audit, settings: Settings) -> None:
    guessing = [rule for rule in settings.threshold_rules if threshold_rule_named(rule).guesses]
    if guessing and audit.worlds is WorldAssignment.HALVES:
        raise InputError(
            f"{where}: worlds: threshold rule {guessing[0]} counts right guesses of fair coins; it"
            " needs coins, not halves"
        )
    if audit.worlds is WorldAssignment.HALVES and settings.independent is Independence.RUNS:
        raise InputError(
            f"{where}: worlds: with halves, a slot's two worlds differ in other slots, too, so a"
            " bound of one slot needs coins; or set independent: slots, which pools slots and"
            " assumes that they do not influence each other"
        )
    if audit.num_slots == 1 and len(guessing) == len(settings.threshold_rules):
        raise InputError(
            f"{where}: num_slots is 1, and threshold rule {guessing[0]} guesses several slots; add"
            " another rule to threshold_rules, or slots"
        )
    exact = Conversion.SUBSAMPLED_GAUSSIAN in settings.conversions and audit.sample_rate < 1
    if guessing and exact and audit.adjacency is not Adjacency.SUBSTITUTE:
        raise InputError(
            f"{where}: threshold rule {guessing[0]} guesses both worlds; with conversion"
            " subsampled_gaussian it needs adjacency: substitute, where they are alike"
        )


def _check_single_run(where: str, audit: Audit, settings: Settings) -> None:
    others = [rule for rule in settings.threshold_rules if not threshold_rule_named(rule).guesses]
    if audit.num_runs == 1 and others and settings.independent is Independence.RUNS:
        raise InputError(
            f"{where}: num_runs is 1, and threshold rule {others[0]} compares the runs of a slot in"
            " both worlds; give threshold_rules: [mahloujifar], which needs one run, or set"
            " independent: slots, which assumes that slots do not influence each other"
        )


def _check_ranks(where: str, audit: Audit, settings: Settings) -> None:
    if [*settings.rank_rules] == [RankRule.SINGLE] and audit.num_slots * audit.num_runs > 1:
        raise InputError(
            f"{where}: rank rule single is for one secret, and there are"
            f" {audit.num_slots * audit.num_runs}; add another rule to rank_rules"
        )


def _check_looks(where: str, rules: Sequence[str]) -> None:
    for rule in rules:
        if not threshold_rule_named(rule).has_looks:
            with_looks = ", ".join(name for name, rule in RULES.items() if rule.has_looks)
            raise InputError(
                f"{where}: looks: threshold rule {rule} has no bounds that hold jointly at looks;"
                f" take it out of threshold_rules, which may then have {with_looks}"
            )


def _check_exact_delta(where: str, audit: Audit, delta: float) -> None:
    # 5 times what rounding adds to a delta in so many steps; see `accounting.pld.least_delta`.
    least = max(LEAST_EXACT_DELTA, 1e-14 + 5e-16 * audit.num_steps)
    if not least <= delta <= LARGEST_EXACT_DELTA:
        raise InputError(
            f"{where}: delta: {delta:g} with conversion subsampled_gaussian and"
            f" {audit.num_steps} steps; it must be from {least:.2g} to {LARGEST_EXACT_DELTA:g}"
        )


def _check_known(where: str, dataset: str, settings: Settings) -> None:
    if dataset not in settings.datasets:
        hint = suggestion(dataset, settings.datasets)
        raise InputError(f"{where}: no {dataset!r}; {hint}")


def _check_dataset(where: str, audit: Audit, dataset: str, settings: Settings) -> None:
    _check_known(f"{where}: dataset", dataset, settings)
    kind = "classes" if audit.loss.is_of_classes else "numbers"
    if audit.is_trained and settings.datasets[dataset].label_kind != kind:
        raise InputError(
            f"{where}: loss: {audit.loss} needs labels that are {kind}: set label_kind: {kind} in"
            f" datasets.{dataset}, or another loss"
        )
    most = settings.datasets[dataset].num_records
    if audit.num_slots > most:
        raise InputError(
            f"{where}: num_slots: {audit.num_slots} is more than the {most} private records"
        )
    if audit.adversary.optimise:
        trained_on = most - audit.num_slots // 2
        if audit.num_slots == most or audit.metagradient.batch_size > trained_on:
            raise InputError(
                f"{where}: metagradient.batch_size: {audit.metagradient.batch_size} must be at most"
                f" the {trained_on} records of its trainings: half of {audit.num_slots} canaries,"
                f" and {most - audit.num_slots} others, which must be at least one"
            )
    if audit.adjacency is Adjacency.SUBSTITUTE:
        most -= audit.num_slots  # batches are made of the other records; targets are added
    if audit.batch_size is not None and audit.batch_size > most:
        raise InputError(
            f"{where}: batch_size: {audit.batch_size} is more than the {most} records that batches"
            " are made of"
        )


def _check_target(where: str, audit: Audit, target: float, delta: float) -> None:
    """Refuses a target that no noise can reach, before anything is downloaded or trained."""
    # Delta must be below the probability that the canary is in some batch. Otherwise the mechanism
    # is (0, delta)-DP even without noise.
    ever_in = 1.0 - (1.0 - audit.sample_rate) ** audit.accounted_steps
    if delta >= ever_in:
        raise InputError(
            f"{where}: target_epsilon: delta {delta:g} alone covers the leak, whatever the noise:"
            f" the canary is in a batch with probability {ever_in:.2g}; lower delta"
        )
    if target > _LARGEST_TARGET:
        raise InputError(
            f"{where}: target_epsilon: {target:g} is more than accountants can compute; give at"
            f" most {_LARGEST_TARGET:g}, or noise_multiplier"
        )


def _check_figure(
    where: str,
    figure: Figure,
    sweeps: Mapping[str, Sequence[str]],
    audits: Mapping[str, Audit],
    settings: Settings,
) -> None:
    for sweep in figure.sweeps:
        if sweep not in sweeps:
            raise InputError(f"{where}.sweeps: no {sweep!r}; {suggestion(sweep, sweeps)}")
    shown = {name: audits[name] for sweep in figure.sweeps for name in sweeps[sweep]}
    kind = figure_kind(figure.kind)
    if not kind.draw.startswith("dpcanary."):  # else tests have checked it
        kind.check_function(has_axis=figure.axis is not None)
    for name, audit in shown.items():
        if audit.has_two_worlds == kind.is_of_secrets:
            is_of = "slots that hold secrets" if kind.is_of_secrets else "slots in two worlds"
            raise InputError(f"{where}: this kind shows {is_of}, which audit {name} does not have")
        if audit.noise_multiplier == 0 and figure.axis == "noise_multiplier":
            raise InputError(
                f"{where}: audit {name} trains without privacy, and has no place on an axis of"
                " noise: take another sweep"
            )
    reason = why_no_shown_bound(shown, settings) if figure.shown else ""
    reason = reason or why_no_inputs(kind.inputs, shown)
    reason = reason or function_named(kind.check)(shown, figure, settings)
    if reason:
        raise InputError(f"{where}: {reason}")
