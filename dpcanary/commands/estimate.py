"""`dpcanary estimate`: lower bounds from a file of scores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    Epochs,
    Json,
    NumRecords,
    NumSteps,
    SampleRate,
    Significance,
    mechanism_of,
)
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.printing import (
    bounds_in_lines,
    confidence_in_words,
    p_value_up,
    print_answer,
    rounded_down,
    table_lines,
    wrapped,
)
from dpcanary.estimation.bound_in_words import adjacency_in_words, bound_in_words, quotable
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import (
    RULES,
    ThresholdRule,
    state_of_proof,
    threshold_rule_named,
)

if TYPE_CHECKING:
    from dpcanary.estimation.lower_bound import EpsilonEstimate
    from dpcanary.estimation.power import ClaimTest
    from dpcanary.scoring.world_scores import WorldScores

# Rules that any file allows: `fixed` needs a threshold, and some rules the order of the runs. The
# exact curves need a mechanism.
_RULES = [
    str(name)
    for name, rule in RULES.items()
    if name != ThresholdRule.FIXED and not rule.needs_order
]
_CONVERSIONS = [Conversion.GDP, Conversion.DIRECT]
_OF_RANKS = "Ranks of secrets"
_HELP_OF_ALL = (
    "All rules that need no order of the scores (not `anytime` and `split`), and all conversions"
    " for which the options are given; with --one-run, the rules that allow any dependence."
)

ScoreColumn = Annotated[str, typer.Option(help="The column of scores.")]
WorldColumn = Annotated[str, typer.Option(help="The column of worlds.")]
World0 = Annotated[
    str | None,
    typer.Option(
        help="Which of the two worlds has high scores, if they are not 0 and 1; or the array of"
        " its scores."
    ),
]
LowerIsWorld0 = Annotated[
    bool, typer.Option("--lower-is-world0", help="Low scores stand for world 0, as losses do.")
]


def estimate(
    delta: Delta,
    scores: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A .csv, .tsv or .parquet table with a column of scores and one of worlds; an .npz"
            " or .json file with the same as arrays, or with two arrays, such as member and"
            " nonmember; scores/AUDIT.npz of an experiment; or the folder of one model of LiRA. Or"
            " two files: the scores of world 0, and those of world 1; or scores, and truth values"
            " (1: member).",
            show_default=False,
        ),
    ] = None,
    significance: Significance = 0.05,
    rule: Annotated[
        list[str] | None,
        typer.Option(
            help="Threshold rule, or rule of ranks; may be given several times. By default"
            " `combined`. `anytime` and `split` need the scores in the order of the runs."
        ),
    ] = None,
    conversion: Annotated[
        list[Conversion] | None,
        typer.Option(
            help="Family of trade-off curves; may be given several times. `subsampled_gaussian`"
            " needs --sample-rate and --num-steps."
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help=_HELP_OF_ALL)] = False,
    score_column: ScoreColumn = "score",
    world_column: WorldColumn = "world",
    world0: World0 = None,
    lower: LowerIsWorld0 = False,
    adjacency: Annotated[
        Adjacency | None,
        typer.Option(
            help="What the two worlds differ in, and so what the bound is about. By default"
            " add_remove for members and others, and with --one-run; substitute with --sample-rate,"
            " and for ranks, where `single`, `count` and `bits` have all three.",
            show_default=False,
        ),
    ] = None,
    claimed_epsilon: Annotated[
        float | None,
        typer.Option(
            "--claimed-epsilon",
            "--claim",
            help="An epsilon, at this delta: also print the p-value of the claim that it holds.",
        ),
    ] = None,
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
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    as_json: Json = False,
) -> None:
    """Print lower bounds on epsilon from the scores of an audit, also of other people's.

    A score is a number that an attack gives a model, or a record in it. High scores mean that
    world 0 is likelier (the first dataset, or: the record is a member).

    \b
    Examples:
      dpcanary estimate scores.csv --delta 1e-5 --plot scores.png
      dpcanary estimate members.npy others.npy --delta 1e-5 --claimed-epsilon 2
      dpcanary estimate losses.csv --delta 1e-5 --score-column loss \\
                        --lower-is-world0 --world-column split --world0 member \\
                        --one-run
      dpcanary estimate --ranks ranks.csv --num-candidates 10000 --delta 1e-6
    """
    if (not scores) == (ranks is None):
        raise typer.BadParameter("give a file of scores, or --ranks with a file of ranks")
    mechanism = _mechanism(
        conversion or [],
        adjacency or Adjacency.SUBSTITUTE,
        (sample_rate, batch_size, num_records, num_steps, epochs),
        every=every,
    )
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
                adjacency=adjacency or Adjacency.SUBSTITUTE,
                mechanism=mechanism,
                claim=claimed_epsilon,
            ),
            uniform=uniform,
            as_json=as_json,
        )
        return
    assert scores
    if len(scores) > 2:
        raise typer.BadParameter(f"give one file or two, not {len(scores)}")
    if ThresholdRule.FIXED in (rule or ()):
        raise typer.BadParameter(
            "rule fixed needs a threshold that was chosen before the scores were seen, which this"
            " command does not take: call dpcanary.estimate_epsilon(..., threshold=...), or give"
            " another rule"
        )
    from dpcanary.estimation.hints import hint_of_zero
    from dpcanary.estimation.success import shown_success
    from dpcanary.scoring.world_scores import read_world_scores

    scores_of_worlds = read_world_scores(
        *scores, score=score_column, world=world_column, world0=world0
    )
    scores_of_worlds = scores_of_worlds.swapped if lower else scores_of_worlds
    if adjacency is None and (scores_of_worlds.of_membership or one_run):
        adjacency = Adjacency.ADD_REMOVE
    if mechanism:
        adjacency = adjacency or mechanism.adjacency  # the bound is of this adjacency's curves
        mechanism = mechanism.under(adjacency)
    if len(scores) == 1 and scores[0].is_dir() and not rule:
        one_run = True  # such a folder is one model of LiRA, so all scores are of one training
    default = ThresholdRule.MAHLOUJIFAR if one_run else ThresholdRule.COMBINED
    if every:
        rules = [
            name for name in _RULES if threshold_rule_named(name).any_dependence or not one_run
        ]
    else:
        rules = rule or [default.value]
    of_mechanism = [Conversion.SUBSAMPLED_GAUSSIAN] * (mechanism is not None)
    conversions = [*_CONVERSIONS, *of_mechanism] if every else conversion or [Conversion.GDP]
    pairs = [
        (rule, threshold_rule_named(rule).conversion(conversion))
        for rule in rules
        for conversion in conversions
    ]
    if every:
        pairs = [
            (rule, conversion)
            for rule, conversion in pairs
            if conversion not in of_mechanism or _has_curves(rule, mechanism, delta)
        ]
    bounds = _bounds(scores_of_worlds, pairs, delta, significance, mechanism)
    # These assume independent scores.
    is_independent = not threshold_rule_named(bounds[0].threshold_rule).any_dependence
    ceiling = _ceiling(scores_of_worlds, bounds[0]) if is_independent else None
    hint = hint_of_zero(
        world0_scores=scores_of_worlds.world0,
        world1_scores=scores_of_worlds.world1,
        bound=bounds[0],
        if_reversed="add --lower-is-world0"
        + ("" if world_column == "world" or world0 else f", or --world0 LABEL of {world_column}"),
        if_weak="",
        mechanism=mechanism if bounds[0].conversion is Conversion.SUBSAMPLED_GAUSSIAN else None,
    )
    shown = None
    if is_independent and not threshold_rule_named(bounds[0].threshold_rule).anytime:
        shown = shown_success(  # it also assumes that the number of scores was fixed beforehand
            world0_scores=scores_of_worlds.world0,
            world1_scores=scores_of_worlds.world1,
            significance=significance,
        )
    if plot:
        from dpcanary.figures.overview_figure import save
        from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds

        save(draw_scores_of_worlds(scores_of_worlds, bounds[0], name=scores[0].name), plot)
    claim_test = None
    if claimed_epsilon is not None:
        claim_test = _claim_test(scores_of_worlds, bounds[0], claimed_epsilon, mechanism)
    # Then scores may be of records of one training.
    of_membership = adjacency in (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    notes = (
        _scores_in_words(scores, scores_of_worlds, ceiling, adjacency),
        _IF_ONE_TRAINING if of_membership and not one_run else "",
        _claim_in_words(bounds[0], claimed_epsilon, claim_test),
        f"Without any epsilon: {shown}. `dpcanary account` prints what no attack exceeds."
        if shown and shown.advantage > 0
        else "",
        f"Hint: {hint}" if hint else "",
        f"Figure: {plot}" if plot else "",
    )
    print_answer(
        {
            "num_world0": len(scores_of_worlds.world0),
            "num_world1": len(scores_of_worlds.world1),
            "adjacency": adjacency,
            "bounds": [vars(bound) for bound in bounds],
            "largest_by_simultaneous_direct": ceiling,
            "shown_success": shown and vars(shown),
            "claimed_epsilon": claimed_epsilon,
            "p_value_of_claim": claim_test and claim_test.p_value,
            "p_value_is_least": claim_test and claim_test.is_least,
            "hint": hint,
        },
        "\n\n".join([*_bounds_in_words(bounds, adjacency), *map(wrapped, filter(None, notes))]),
        as_json=as_json,
    )


_IF_ONE_TRAINING = (
    "If these are scores of records of one training, and a fair coin put each of them in or out,"
    " give --one-run, whose rules allow any dependence between them. Without coins, members and"
    " others differ in more than the training, and no bound holds."
)


def _mechanism(
    conversions: list[Conversion],
    adjacency: Adjacency,
    training: tuple[float | None, float | None, int | None, int | None, float | None],
    *,
    every: bool,
) -> Mechanism | None:
    """The training whose exact curves are asked for; None if its options are not given.

    The options are those of `mechanism_of`.
    """
    is_asked = Conversion.SUBSAMPLED_GAUSSIAN in conversions
    if training == (None,) * len(training):
        if is_asked:
            raise typer.BadParameter(
                "--conversion subsampled_gaussian needs --sample-rate and --num-steps, which name"
                " the curves of the training"
            )
        return None
    if not (is_asked or every):
        raise typer.BadParameter(
            "--sample-rate and --num-steps are for --conversion subsampled_gaussian, or --all"
        )
    return mechanism_of(*training, adjacency=adjacency)


def _bounds(
    scores: "WorldScores",
    pairs: list[tuple[str, Conversion]],
    delta: float,
    significance: float,
    mechanism: Mechanism | None,
) -> "list[EpsilonEstimate]":
    from dpcanary.estimation.lower_bound import estimate_epsilon
    from dpcanary.estimation.table import OF_SLOTS

    bounds = [
        estimate_epsilon(
            world0_scores=scores.world0,
            world1_scores=scores.world1,
            delta=delta,
            significance=significance,
            threshold_rule=rule,
            conversion=conversion,
            mechanism=mechanism if conversion is Conversion.SUBSAMPLED_GAUSSIAN else None,
        )
        for rule, conversion in dict.fromkeys(pairs)
    ]
    if scores.num_slots == 1:
        return bounds
    return [
        bound
        if threshold_rule_named(bound.threshold_rule).guesses
        else replace(
            bound,
            proof=bound.proof.of_pooled_slots(),
            assumption=f"{bound.assumption}; {OF_SLOTS}",
        )
        for bound in bounds
    ]


def _has_curves(rule: str, mechanism: Mechanism | None, delta: float) -> bool:
    """Whether the exact curves of a training are for a rule; for guesses worlds must be alike."""
    from dpcanary.estimation.conversion_families import family_of

    if not threshold_rule_named(rule).guesses:
        return True
    exact = Conversion.SUBSAMPLED_GAUSSIAN
    return family_of(exact, delta=delta, mechanism=mechanism).is_symmetric


def _ceiling(scores: "WorldScores", bound: "EpsilonEstimate") -> float:
    """The most that a perfect attack shows, by the valid rule that needs no simulation."""
    from dpcanary.estimation.table import ceiling_of

    return ceiling_of(
        num_world0=len(scores.world0),
        num_world1=len(scores.world1),
        delta=bound.delta,
        significance=bound.significance,
        threshold_rule=ThresholdRule.SIMULTANEOUS,
    )


def _claim_test(
    scores: "WorldScores",
    bound: "EpsilonEstimate",
    claimed_epsilon: float,
    mechanism: Mechanism | None,
) -> "ClaimTest":
    """The p-value of the claim that the training has this epsilon, by the bound's curves."""
    from dpcanary.accounting.noise_calibration import calibrate_noise
    from dpcanary.core.gdp import gdp_mu
    from dpcanary.estimation.power import (
        assess_claim,
        assess_claim_anytime,
        assess_claim_by_bounds,
    )

    worlds: dict[str, Any] = {"world0_scores": scores.world0, "world1_scores": scores.world1}
    claim: dict[str, Any] = {"epsilon": claimed_epsilon, "delta": bound.delta}
    if bound.conversion is not Conversion.SUBSAMPLED_GAUSSIAN:
        mechanism = None
    rule = threshold_rule_named(bound.threshold_rule)
    if rule.any_dependence:
        claim |= {"threshold_rule": bound.threshold_rule, "conversion": bound.conversion}
        return assess_claim_by_bounds(**worlds, **claim, mechanism=mechanism)
    if mechanism is not None:
        noise = calibrate_noise(mechanism, **claim)  # at most 1e-4 above that of the claim
        claim = {"mechanism": mechanism.with_noise(noise / (1 + 1e-4))}
    elif bound.conversion is Conversion.GDP:
        claim = {"mechanism": gdp_mu(**claim)}
    return (assess_claim_anytime if rule.anytime else assess_claim)(**worlds, **claim)


def _bounds_in_words(bounds: "list[EpsilonEstimate]", adjacency: Adjacency | None) -> Iterator[str]:
    """What may be stated, and the table of all bounds."""
    first, rows = (
        bounds[0],
        [
            (
                bound.threshold_rule,
                bound.conversion.value,
                rounded_down(bound.epsilon_lower),
                state_of_proof(bound.proof),
            )
            for bound in bounds
        ],
    )
    header = ("rule", "conversion", "epsilon is at least", "proof")
    if len(bounds) == 1:
        sentence = bound_in_words(
            first.epsilon_lower,
            delta=first.delta,
            significance=first.significance,
            assumption=first.assumption,
            conversion=first.conversion,
            is_valid=first.is_valid,
            adjacency=adjacency,
        )
        yield wrapped(
            quotable(sentence, epsilon_lower=first.epsilon_lower, is_valid=first.is_valid)
        )
        yield "\n".join(table_lines(header, rows))
        return
    under = adjacency_in_words(adjacency)
    which = "these bounds" if all(bound.is_valid for bound in bounds) else "the valid bounds"
    yield wrapped(
        f"You may state one of {which} on epsilon of the mechanism (by direct, of what the"
        f" attack saw) under {under} at delta {first.delta:g}, with"
        f" {confidence_in_words(first.significance)} confidence and its conditions, if you chose"
        " it before you saw them."
    )
    yield bounds_in_lines(header, rows, [bound.assumption for bound in bounds])


def _scores_in_words(
    paths: Sequence[Path],
    scores: "WorldScores",
    ceiling: float | None,
    adjacency: Adjacency | None,
) -> str:
    """What was read, and what so many scores can show."""
    name0, name1 = (f" ({name})" for name in scores.names) if scores.names else ("", "")
    about = (
        ""
        if adjacency
        else " Epsilon is that of the adjacency in which the two worlds differ: --adjacency"
        " names it."
    )
    largest = (
        ""
        if ceiling is None
        else " Without an assumption on the mechanism (rule simultaneous, conversion direct), so"
        f" many scores show {rounded_down(ceiling)} if the attack is perfect, and less if not."
    )
    return (
        f"{' and '.join(map(str, paths))}: {len(scores.world0):,} scores of world 0{name0},"
        f" {len(scores.world1):,} of world 1{name1}.{about}{largest}"
    )


def _claim_in_words(
    bound: "EpsilonEstimate", claimed_epsilon: float | None, test: "ClaimTest | None"
) -> str:
    if claimed_epsilon is None or test is None:
        return ""
    p_value = test.p_value
    least = " (the least that can be shown)" if test.is_least else ""
    verdict = (
        "the scores contradict it"
        if p_value < bound.significance
        else "the scores do not contradict it, which is no evidence for it"
    )
    return (
        f"The claim that epsilon is at most {claimed_epsilon:g} at delta {bound.delta:g} has the"
        f" p-value {p_value_up(p_value)}{least}: {verdict} (conversion {bound.conversion}, the"
        " conditions of the bound)."
    )
