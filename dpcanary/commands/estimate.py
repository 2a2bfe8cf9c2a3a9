"""`dpcanary estimate`: lower bounds from a file of scores."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.commands.training_options import Delta, Json, NumSteps, SampleRate
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.printing import (
    confidence_in_words,
    each_alone,
    percent,
    percent_down,
    print_bounds,
    print_json,
    print_text,
    rounded_down,
)
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import ThresholdRule, state_of_proof, threshold_rule_named

if TYPE_CHECKING:
    from dpcanary.estimation.lower_bound import EpsilonEstimate
    from dpcanary.estimation.success import ShownSuccess
    from dpcanary.scoring.world_scores import WorldScores

# Of any file: `fixed` needs a threshold, the exact curves a mechanism, and `anytime` the order of
# the runs.
_RULES = [
    rule.value for rule in ThresholdRule if rule not in (ThresholdRule.FIXED, ThresholdRule.ANYTIME)
]
_CONVERSIONS = [Conversion.GDP, Conversion.DIRECT]
_OF_RANKS = "Ranks of secrets"
# The others are valid whatever scores have in common.
_INDEPENDENT = (
    "the scores are independent: one of each training, or of slots that do not influence each other"
)


def estimate(
    delta: Delta,
    scores: Annotated[
        Path | None,
        typer.Argument(
            help="A .csv, .tsv or .parquet file with a column of scores and one of worlds; an .npz"
            " file with the same as arrays, or with arrays world0_scores and world1_scores; or"
            " scores/<audit>.npz of an experiment.",
            show_default=False,
        ),
    ] = None,
    significance: Annotated[
        float, typer.Option(help="Probability that a bound exceeds the truth.")
    ] = 0.05,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Threshold rule, or rule of ranks; may be given several times. By default"
            " `combined`. `anytime` needs the scores in the order of the runs."
        ),
    ] = None,
    conversion: Annotated[
        list[Conversion] | None,
        typer.Option(
            help="Family of trade-off curves; may be given several times. `subsampled_gaussian`"
            " needs --sample-rate and --num-steps."
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All rules but `anytime`, and all conversions.")
    ] = False,
    score_column: Annotated[str, typer.Option(help="The column of scores.")] = "score",
    world_column: Annotated[str, typer.Option(help="The column of worlds.")] = "world",
    world0: Annotated[
        str | None,
        typer.Option(help="Which of the two worlds has high scores, if they are not 0 and 1."),
    ] = None,
    lower: Annotated[
        bool, typer.Option("--lower-is-world0", help="Low scores stand for world 0, as losses do.")
    ] = False,
    one_run: Annotated[
        bool,
        typer.Option(
            "--one-run",
            help="The scores are of records in one training, each in or out by a fair coin: by"
            " default rule `mahloujifar`, which allows any dependence between them.",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the scores and the bound into this .png or .pdf.")
    ] = None,
    ranks: Annotated[
        Path | None,
        typer.Option(
            help="In place of scores: a file with a column `rank`, the rank of each secret's true"
            " value among its candidates (1: likeliest), and perhaps `confidence`.",
            rich_help_panel=_OF_RANKS,
        ),
    ] = None,
    num_candidates: Annotated[
        int | None,
        typer.Option(
            help="Values that each secret could have had, all equally likely; may be a column of"
            " the file.",
            rich_help_panel=_OF_RANKS,
        ),
    ] = None,
    list_size: Annotated[
        list[int] | None,
        typer.Option(
            help="A guess names so many of the likeliest candidates; fixed beforehand. Several"
            " share the significance. By default 1.",
            rich_help_panel=_OF_RANKS,
        ),
    ] = None,
    num_guesses: Annotated[
        int | None,
        typer.Option(
            help="Secrets that are guessed, those of the highest confidence; fixed beforehand. By"
            " default all.",
            rich_help_panel=_OF_RANKS,
        ),
    ] = None,
    adjacency: Annotated[
        Adjacency,
        typer.Option(
            help="What the bound is under; for ranks, `single`, `count` and `bits` have all. For"
            " scores, conversion `subsampled_gaussian` alone uses it.",
            rich_help_panel="The training",
        ),
    ] = Adjacency.SUBSTITUTE,
    claim: Annotated[
        float | None,
        typer.Option(
            help="An epsilon, at this delta: also print the p-value of the claim that it holds.",
            rich_help_panel=_OF_RANKS,
        ),
    ] = None,
    uniform: Annotated[
        bool,
        typer.Option(
            "--uniform",
            help="In place of a bound: whether the ranks are uniform, as they must be on a model"
            " that never saw the secrets.",
            rich_help_panel=_OF_RANKS,
        ),
    ] = False,
    sample_rate: SampleRate = None,
    num_steps: NumSteps = None,
    as_json: Json = False,
) -> None:
    """Print lower bounds on epsilon from the scores of an audit, also of other people's.

    A score is a number that an attack gives a model, or a record in it. High scores mean that
    world 0 is likelier (the first dataset, or: the record is a member).

    \b
    Examples:
      dpcanary estimate scores.csv --delta 1e-5 --plot scores.png
      dpcanary estimate losses.csv --delta 1e-5 --score-column loss --lower-is-world0 \\
                        --world-column split --world0 member --one-run
      dpcanary estimate --ranks ranks.csv --num-candidates 10000 --delta 1e-6
    """
    if (scores is None) == (ranks is None):
        raise typer.BadParameter("give a file of scores, or --ranks with a file of ranks")
    mechanism = _mechanism(conversion or [], adjacency, sample_rate, num_steps)
    if ranks is not None:
        from dpcanary.commands.ranks import RanksAsked, print_ranks

        print_ranks(
            RanksAsked(
                path=ranks,
                num_candidates=num_candidates,
                delta=delta,
                significance=significance,
                rules=tuple(rule or ()),
                conversions=tuple(conversion or ()),
                every=every,
                list_sizes=tuple(list_size or (1,)),
                num_guesses=num_guesses,
                adjacency=adjacency,
                mechanism=mechanism,
                claim=claim,
            ),
            uniform=uniform,
            as_json=as_json,
        )
        return
    assert scores is not None
    if ThresholdRule.FIXED in (rule or ()):
        raise typer.BadParameter(
            "rule fixed needs a threshold that was chosen before the scores were seen, which this"
            " command does not take: call dpcanary.estimate_epsilon(..., threshold=...), or give"
            " another rule"
        )
    from dpcanary.estimation.hints import hint_of_zero
    from dpcanary.estimation.success import shown_success
    from dpcanary.scoring.world_scores import read_world_scores

    found = read_world_scores(scores, score=score_column, world=world_column, world0=world0)
    found = found.swapped if lower else found
    default = ThresholdRule.MAHLOUJIFAR if one_run else ThresholdRule.COMBINED
    rules = [*_RULES] if every else [*(rule or [default.value])]
    of_mechanism = [Conversion.SUBSAMPLED_GAUSSIAN] * (mechanism is not None)
    conversions = [*_CONVERSIONS, *of_mechanism] if every else conversion or [Conversion.GDP]
    bounds = _bounds(found, rules, conversions, delta, significance, mechanism)
    ceiling = _ceiling(found, bounds[0])
    hint = hint_of_zero(
        world0_scores=found.world0,
        world1_scores=found.world1,
        bound=bounds[0],
        if_reversed="add --lower-is-world0",
        if_weak="",
    )
    shown = shown_success(
        world0_scores=found.world0, world1_scores=found.world1, significance=significance
    )
    if plot:
        from dpcanary.figures.overview_figure import save
        from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds

        save(draw_scores_of_worlds(found, bounds[0], name=scores.name), plot)
    if as_json:
        rows = [{**vars(one), "assumption": _assumption(one)} for one in bounds]
        numbers = {"num_world0": len(found.world0), "num_world1": len(found.world1)}
        print_json(
            {
                **numbers,
                "bounds": rows,
                "largest_without_assumption": ceiling,
                "shown_success": vars(shown),
                "hint": hint,
            }
        )
        return
    _print(scores, found, bounds, ceiling, hint, shown)
    if plot:
        print(f"\nFigure: {plot}")


def _mechanism(
    conversions: list[Conversion],
    adjacency: Adjacency,
    sample_rate: float | None,
    num_steps: int | None,
) -> Mechanism | None:
    """The training whose exact curves are asked for; None if its options are not given."""
    if (sample_rate, num_steps) == (None, None):
        if Conversion.SUBSAMPLED_GAUSSIAN in conversions:
            raise typer.BadParameter(
                "--conversion subsampled_gaussian needs --sample-rate and --num-steps, which name"
                " the curves of the training"
            )
        return None
    if sample_rate is None or num_steps is None:
        raise typer.BadParameter("give --sample-rate and --num-steps together")
    return Mechanism(adjacency, sample_rate=sample_rate, num_steps=num_steps)


def _bounds(
    found: "WorldScores",
    rules: list[str],
    conversions: list[Conversion],
    delta: float,
    significance: float,
    mechanism: Mechanism | None,
) -> "list[EpsilonEstimate]":
    from dpcanary.estimation.lower_bound import estimate_epsilon

    pairs = [
        (rule, threshold_rule_named(rule).conversion(conversion))
        for rule in rules
        for conversion in conversions
    ]
    bounds = [
        estimate_epsilon(
            world0_scores=found.world0,
            world1_scores=found.world1,
            delta=delta,
            significance=significance,
            threshold_rule=rule,
            conversion=conversion,
            mechanism=mechanism if conversion is Conversion.SUBSAMPLED_GAUSSIAN else None,
        )
        for rule, conversion in dict.fromkeys(pairs)
    ]
    if found.num_slots == 1:
        return bounds
    return [
        one
        if threshold_rule_named(one.threshold_rule).any_dependence
        else replace(one, proof=one.proof.of_pooled_slots())
        for one in bounds
    ]


def _ceiling(found: "WorldScores", bound: "EpsilonEstimate") -> float:
    """The most that a perfect attack shows, by the valid rule that needs no simulation."""
    from dpcanary.estimation.table import ceiling_of

    return ceiling_of(
        num_world0=len(found.world0),
        num_world1=len(found.world1),
        delta=bound.delta,
        significance=bound.significance,
        threshold_rule=ThresholdRule.SIMULTANEOUS,
    )


def _assumption(bound: "EpsilonEstimate") -> str:
    if threshold_rule_named(bound.threshold_rule).any_dependence:
        return bound.assumption
    return f"{bound.assumption}; {_INDEPENDENT}"


def _print(
    path: Path,
    found: "WorldScores",
    bounds: "list[EpsilonEstimate]",
    ceiling: float,
    hint: str,
    shown: "ShownSuccess",
) -> None:
    first = bounds[0]
    print(f"{path}: {len(found.world0):,} scores of world 0, {len(found.world1):,} of world 1")
    print()
    rows = [
        (
            bound.threshold_rule,
            bound.conversion.value,
            rounded_down(bound.epsilon_lower),
            state_of_proof(bound.proof),
        )
        for bound in bounds
    ]
    header = ("rule", "conversion", "epsilon is at least", "proof")
    print_bounds(header, rows, [*map(_assumption, bounds)])
    print_text(
        f"At delta {first.delta:g}. A valid bound exceeds the true epsilon with a probability of at"
        f" most {first.significance:g}.{each_alone(len(bounds))} Without an assumption on the"
        " mechanism (rule simultaneous, conversion direct), a perfect attack would show"
        f" {rounded_down(ceiling)} from so many scores."
    )
    if shown.advantage > 0:
        rates = ", ".join(
            f"{percent_down(power)} at {percent(rate)} false ones"
            for rate, power in shown.true_positive_rates.items()
            if power > rate
        )
        print()
        print_text(
            "Without any epsilon: an advantage (true less false positives) of at least"
            f" {percent_down(shown.advantage)}{'; true positives: ' if rates else ''}{rates}."
            f" These hold jointly with {confidence_in_words(shown.significance)} confidence, for"
            " independent scores; `dpcanary account` prints what no attack exceeds."
        )
    if hint:
        print()
        print_text(f"Hint: {hint}")
