"""The report of a watched training."""

from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

from dpcanary.accounting.meaning import meaning_of
from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.files import sha256_of_file
from dpcanary.core.printing import percent_up, rounded_down, rounded_up
from dpcanary.errors import AccountingError
from dpcanary.reports.headline import (
    Headline,
    Methods,
    accounting_sentence,
    bound_sentences,
    meaning_in_words,
)
from dpcanary.reports.own_audit_report import drawn_scores, software_used
from dpcanary.reports.report_page import Report, Row

if TYPE_CHECKING:
    from dpcanary.watching.watched_training import WatchedTraining

_SCOPE = (
    "The canaries enter after clipping. They test the noise and the accounting of this training as"
    " it ran. They say nothing about which records batches have, about their gradients or clipping,"
    " nor about how much a real record leaks."
)


def report_of_watched_training(
    watched: "WatchedTraining", *, name: str, journal: Path | None = None
) -> Report:
    """What a report says of such a training, also of one that is known by its journal alone."""
    of_journal = (
        f"All of this is about the {watched.num_steps:,} steps that the journal holds. A training"
        " that was killed, or goes on, has made more, which are neither watched nor accounted here."
        if journal
        else ""
    )
    try:
        accounted = watched.accounted
    except AccountingError:
        accounted = None
    estimate, adjacency = watched.estimate, ADJACENCIES[watched.adjacency]
    add_remove = accounted.add_remove if accounted else nan
    substitute = accounted.substitute if accounted else nan
    if watched.adjacency is not Adjacency.SUBSTITUTE:
        substitute = nan
    upper = add_remove if isnan(substitute) else substitute
    alarm = "" if watched.alarm is None else watched.alarm_line()
    is_valid = estimate.is_valid and watched.alarm is None
    assumption = watched.assumption if watched.alarm is None else watched.alarm_line()
    correlated = f", accounted if {watched.noise_assumed}" if watched.is_correlated else ""
    methods = _methods(
        watched, accounted.method.value if accounted else "", "" if is_valid else assumption
    )
    headline = Headline(
        training=(
            f"The user's own training of {watched.num_parameters:,} parameters in"
            f" {watched.num_steps:,} steps, watched while it ran{correlated}."
            f" {watched.earlier_condition}"
        ).rstrip(),
        guaranteed_of=f"{watched.earlier_condition} {of_journal}".strip(),
        attack=f"{watched.num_canaries:,} canaries in this one training",
        adjacency=adjacency,
        delta=watched.delta,
        significance=watched.significance,
        shown=estimate.epsilon_lower,
        assumption=assumption,
        substitute=substitute,
        add_remove=add_remove,
        above=int(estimate.epsilon_lower > upper),
        advice=" `dpcanary check` measures its sampling, normalisation, clipping and noise.",
        is_valid=is_valid,
        difference="crafted gradients that are put in after clipping",
        is_real=False,
        conversion=estimate.conversion,
        meaning=meaning_in_words(meaning_of(accounted) if accounted else None),
        data="The training's own records. dpcanary read sums of their gradients and sizes of"
        " batches; what it measured of them stands here without noise, so keep this page as private"
        " as they are.",
        refuted=alarm,
        not_examined=[_SCOPE, *([of_journal] if journal else [])],
    )

    caption = (
        "The scores of the canaries of both worlds, for an attacker who sees all updates and knows"
        " the other records, and the errors of deciding by a threshold on the score."
    )
    scores = watched.scores["all_updates_known"]
    pictures, left_out = drawn_scores(
        scores,
        estimate,
        name="watched training",
        caption=caption,
        alarm=alarm,
    )
    return Report(
        title=name,
        headline=headline,
        columns=("an attacker who", "rule", "holds", "bound", "accounted"),
        rows=_rows(watched, upper if watched.alarm is None else nan),
        notes=[
            *([alarm] if alarm else []),
            _SCOPE,
            *([f"All bounds: if {watched.looks_condition}."] if watched.looks_condition else []),
            *filter(None, [watched.order_in_words]),
            *(watched.accounted_lines() if watched.alarm is None else []),
            *watched.measured_lines(),
            *([watched.alarm_line()] if watched.alarm is None else []),
            *left_out,
        ],
        pictures=pictures,
        data=[("data", headline.data)],
        provenance=[("software", software_used())],
        sources=[(journal.name, sha256_of_file(journal))] if journal else [],
        methods=methods.paragraphs,
        references=methods.references,
    )


def _rows(watched: "WatchedTraining", upper: float) -> list[Row]:
    details = [
        ("adjacency", ADJACENCIES[watched.adjacency]),
        ("delta", f"{watched.delta:g}"),
        ("significance", f"{watched.significance:g}, of each bound"),
        ("canaries", f"{watched.num_canaries:,}"),
        ("share of a step's noise variance", f"at most {percent_up(watched.share)} on average"),
    ]
    for phase in watched.phases[:3]:
        words = (
            f"noise multiplier {phase.noise_multiplier:.4g}, sample rate {phase.sample_rate:.4g},"
            f" {phase.num_steps:,} steps"
        )
        if watched.is_correlated:
            words = f"one Gaussian mechanism, noise multiplier {phase.noise_multiplier:.4g}"
        details.append(("accounted as", words))
    if len(watched.phases) > 3:
        details.append(("accounted as", f"and {len(watched.phases) - 3:,} more phases"))
    return [
        Row(
            [
                row.attacker,
                f"{row.rule}, {row.conversion}",
                row.dependence,
                rounded_down(row.epsilon_lower) if row.is_proven else row.in_words,
                rounded_up(upper),
            ],
            details,
        )
        for row in watched.all_bounds
    ]


def _methods(watched: "WatchedTraining", method: str, why_not_valid: str) -> Methods:
    level = f"at delta {watched.delta:g} with significance {watched.significance:g}"
    holds = f"The bound holds {level}, and assumes: {watched.assumption}."
    if why_not_valid:
        why = f"{why_not_valid[:1].upper()}{why_not_valid[1:]}"
        holds = f"The number is computed {level}, and is not to be quoted as a lower bound. {why}."
    methods = Methods()
    methods.add(
        "We watched one training with dpcanary: canary gradients were added to the sum of clipped"
        " gradients before the noise, each in coordinates of its own with random signs, scaled to"
        f" the clipping norm, under {ADJACENCIES[watched.adjacency]} adjacency in random steps of"
        " its own {steinke} {andrew}. The log-likelihood ratio of the noisy sums, less those of"
        " the other records, guessed the world of each canary."
    )
    estimate = watched.estimate
    methods.add(
        holds,
        *bound_sentences([str(estimate.threshold_rule)], [estimate.conversion.value]),
        accounting_sentence([method] if method else []),
        f"Bounds of any dependence have {watched.any_dependence}.",
    )
    methods.add(
        "The noise (and the batch sizes, if the number of records was known) was tested in each"
        " step by an e-process, which stays valid however often it is looked at; its level was"
        f" {watched.alarm_level:g}."
    )
    return methods
