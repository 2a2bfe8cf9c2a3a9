"""The report of an audit of the user's own training loop."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from math import inf, isnan, nan
from platform import python_version
from typing import TYPE_CHECKING

import numpy as np

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
from dpcanary.accounting.meaning import meaning_of
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.printing import (
    confidence_in_words,
    percent,
    percent_down,
    rounded_down,
    rounded_up,
)
from dpcanary.estimation.lower_bound import EpsilonEstimate
from dpcanary.estimation.rule_catalogue import state_of_proof, threshold_rule_named
from dpcanary.estimation.success import shown_success
from dpcanary.reports.headline import (
    CAPTION_OF_SCORES,
    Headline,
    Methods,
    accounting_sentence,
    bound_sentences,
    meaning_in_words,
)
from dpcanary.reports.report_page import Picture, Report, Row, drawn
from dpcanary.scoring.world_scores import WorldScores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PACKAGES = ("dpcanary", "opacus", "torch", "numpy")


def report_of_own_audit(
    *,
    name: str,
    scores: WorldScores,
    estimate: EpsilonEstimate,
    adjacency: Adjacency,
    mechanism: tuple[float, float, int] | None,
    accounted: EpsilonsByAdjacency | None,
    seconds: float,
    findings: list[str],
    in_passes: ShuffledMechanism | None = None,
) -> Report:
    """What a report says of such an audit.

    The `mechanism` is noise multiplier, sample rate and steps as they were accounted, if known, and
    `accounted` the upper bounds that hold: those of `in_passes`, if batches are no Poisson samples.
    `seconds` are those of all trainings, and `findings` more sentences for the notes, such as the
    test of the claim.
    """
    without_noise = inf if mechanism is not None and mechanism[0] == 0 else nan
    add_remove = accounted.add_remove if accounted else without_noise
    substitute = accounted.substitute if accounted else without_noise
    if adjacency is not Adjacency.SUBSTITUTE:
        substitute = nan
    upper = add_remove if isnan(substitute) else substitute
    num_runs = len(scores.world0) + len(scores.world1)
    training = "The user's own training loop, run as it is"
    details = [("adjacency", ADJACENCIES[adjacency]), ("delta", f"{estimate.delta:g}")]
    if mechanism is not None:
        noise, rate, steps = mechanism
        words = f"noise multiplier {noise:.4g}, sample rate {rate:.4g}, {steps:,} steps"
        training += f", accounted as DP-SGD with {words}"
        if in_passes is not None:
            training += ", which does not hold"
        if in_passes is not None and accounted is not None:
            training += (
                f"; the epsilons here are accounted for {in_passes.num_passes:,} passes, each with"
                " every record once, in as many batches of one size in both worlds"
            )
        details.append(("accounted as", words))
    details += [
        ("significance", f"{estimate.significance:g}"),
        ("assumption", estimate.assumption),
        *_success(scores, estimate),
        ("mean score, world 0", f"{np.mean(scores.world0):.4g}"),
        ("mean score, world 1", f"{np.mean(scores.world1):.4g}"),
    ]
    headline = Headline(
        training=f"{training}.",
        attack=f"{num_runs:,} models",
        adjacency=ADJACENCIES[adjacency],
        delta=estimate.delta,
        significance=estimate.significance,
        shown=estimate.epsilon_lower,
        assumption=estimate.assumption,
        substitute=substitute,
        add_remove=add_remove,
        above=int(estimate.epsilon_lower > upper),
        advice=" `dpcanary check` measures its sampling, normalisation, clipping and noise.",
        is_valid=estimate.is_valid,
        conversion=estimate.conversion,
        meaning=meaning_in_words(meaning_of(accounted) if accounted else None),
        data="The training's own records, which the audit does not see.",
    )
    row = Row(
        [
            name,
            f"{num_runs:,}",
            rounded_down(estimate.epsilon_lower) if estimate.is_valid else "no valid bound",
            rounded_up(add_remove),
            rounded_up(headline.substitute),
            f"{estimate.threshold_rule}, {estimate.conversion.value}",
            state_of_proof(estimate.proof),
        ],
        details,
    )
    methods = _methods(num_runs, estimate, adjacency, accounted)
    caption = (
        "The scores of the models of both worlds, and the errors of an attacker who decides between"
        " the worlds by a threshold on the score."
    )
    pictures, left_out = drawn_scores(scores, estimate, name=name, caption=caption)
    return Report(
        title=name,
        headline=headline,
        columns=("training", "models", "shown", "add/remove", "substitute", "rule", "proof"),
        rows=[row],
        notes=[*findings, *left_out],
        pictures=pictures,
        data=[("data", headline.data)],
        provenance=[("training", f"{seconds:,.0f} seconds"), ("software", software_used())],
        methods=methods.paragraphs,
        references=methods.references,
        sources=[
            (f"{num_runs:,} scores of the process that audited the training", "not in a file")
        ],
    )


def drawn_scores(
    scores: WorldScores, estimate: EpsilonEstimate, *, name: str, caption: str, alarm: str = ""
) -> tuple[list[Picture], list[str]]:
    """The figure of an audit's scores and error rates; see `report_page.drawn`."""

    def draw() -> "Figure":
        from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds

        return draw_scores_of_worlds(scores, estimate, name=name, alarm=alarm)

    return drawn("Scores and error rates", draw, (caption, CAPTION_OF_SCORES))


def _success(scores: WorldScores, estimate: EpsilonEstimate) -> Iterator[tuple[str, str]]:
    """How often the attack succeeds at least, if the number of scores was fixed beforehand."""
    anytime = threshold_rule_named(estimate.threshold_rule).anytime
    if not estimate.is_valid or anytime or estimate.num_looks > 1:
        return
    shown = shown_success(
        world0_scores=scores.world0, world1_scores=scores.world1, significance=estimate.significance
    )
    powers = ", ".join(
        f"{percent_down(power)} at {percent(rate)} false ones"
        for rate, power in shown.true_positive_rates.items()
    )
    yield (
        f"shown without an epsilon, {confidence_in_words(estimate.significance)} jointly",
        f"an advantage of at least {percent_down(shown.advantage)}; true positives of at least"
        f" {powers}",
    )


def _methods(
    num_runs: int,
    estimate: EpsilonEstimate,
    adjacency: Adjacency,
    accounted: EpsilonsByAdjacency | None,
) -> Methods:
    level = f"at delta {estimate.delta:g} with significance {estimate.significance:g}"
    holds = f"The bound holds {level}, and assumes: {estimate.assumption}."
    if not estimate.is_valid:
        holds = (
            f"The number is computed {level}, and may exceed the truth with a probability above"
            f" {estimate.significance:g}. It rests on this: {estimate.assumption}."
        )
    methods = Methods()
    methods.add(
        "We audited a training loop as a black box, with dpcanary:"
        f" {num_runs:,} models were trained on two neighbouring datasets under"
        f" {ADJACENCIES[adjacency]} adjacency, and a score guessed which of the two a model was"
        " trained on {pradhan} {nasr}."
    )
    methods.add(
        holds,
        *bound_sentences([str(estimate.threshold_rule)], [estimate.conversion.value]),
        accounting_sentence([accounted.method.value] if accounted else []),
    )
    return methods


def software_used() -> str:
    """Versions of what matters to a training."""
    software = [f"python {python_version()}"]
    for package in _PACKAGES:
        try:
            software.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(software)
