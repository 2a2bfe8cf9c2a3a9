"""`dpcanary plan`: how many runs an audit needs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpcanary.commands.estimate import LowerIsWorld0, ScoreColumn, World0, WorldColumn
from dpcanary.commands.training_options import (
    NOISE,
    BatchSize,
    Epochs,
    Json,
    NumRecords,
    NumSteps,
    SampleRate,
    Significance,
    mechanism_of,
)
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.printing import (
    number,
    print_answer,
    rounded_up,
    table_lines,
    wrapped,
)
from dpcanary.errors import InputError

if TYPE_CHECKING:
    from dpcanary.costs.run_costs import PlannedAudit
    from dpcanary.scoring.world_scores import WorldScores

_POWERS = (0.5, 0.8, 0.95)


def plan(
    noise_multiplier: Annotated[float | None, NOISE] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of (epsilon, delta).")] = None,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    exceed: Annotated[
        float | None,
        typer.Option(help="The epsilon to be exceeded; by default that under add/remove."),
    ] = None,
    significance: Significance = 0.05,
    num_runs: Annotated[
        list[int] | None,
        typer.Option(help="Also print the bound to expect from so many runs; may be repeated."),
    ] = None,
    seconds_per_run: Annotated[
        float | None, typer.Option(help="Of one training, to print the time of all.")
    ] = None,
    pilot: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            help="In place of a training: a file of scores of a few runs, as `estimate` takes it;"
            " twice for a file of each world. Says how many new runs show more than --exceed, if"
            " they are like these.",
        ),
    ] = None,
    score_column: ScoreColumn = "score",
    world_column: WorldColumn = "world",
    world0: World0 = None,
    lower: LowerIsWorld0 = False,
    config: Annotated[
        Path | None,
        typer.Option(
            help="In place of a training: the config of an experiment. A few models of each of its"
            " audits are timed here."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print how many trainings an audit needs, before anything is trained.

    The audit is one under substitute adjacency. The numbers are for the best attack that there can
    be. A weaker one needs more.

    \b
    Examples:
      dpcanary plan --sample-rate 1 --num-steps 500 --noise-multiplier 22.37 \\
                    --delta 1e-5 --num-runs 1000 --seconds-per-run 30
      dpcanary plan --from pilot.csv --exceed 4 --delta 1e-5
      dpcanary plan --config results/my/audit.yaml
    """
    if config is not None:
        _plan_config(config, as_json=as_json)
        return
    if pilot:
        if exceed is None or delta is None:
            named = {"--exceed": exceed, "--delta": delta}
            missing = " and ".join(name for name, value in named.items() if value is None)
            raise typer.BadParameter(f"--from: give {missing}")
        of_training = {
            "--noise-multiplier": noise_multiplier, "--sample-rate": sample_rate,
            "--batch-size": batch_size, "--num-records": num_records, "--num-steps": num_steps,
            "--epochs": epochs, "--num-runs": num_runs, "--seconds-per-run": seconds_per_run,
        }  # fmt: skip
        if unused := [option for option, value in of_training.items() if value]:
            raise typer.BadParameter(f"--from does not use {', '.join(unused)}: leave it out")
        from dpcanary.scoring.world_scores import is_of_lira, read_world_scores

        if is_of_lira(pilot[0]):
            raise InputError(
                f"{pilot[0]} has scores of the records of one model, which are no runs; what one"
                " training shows does not follow from a pilot, see docs/one_run.md"
            )
        if len(pilot) > 2:
            raise typer.BadParameter(
                f"--from: give one file, or one of each world; these are {len(pilot)}"
            )
        scores = read_world_scores(*pilot, score=score_column, world=world_column, world0=world0)
        if scores.num_slots > 1:
            raise InputError(
                f"{pilot[0]} has {scores.num_slots} scores of each run, one of each slot, so that"
                " they do not say how many runs are needed: give a pilot with one slot"
            )
        _plan_from(
            scores.swapped if lower else scores,
            name=" and ".join(map(str, pilot)),
            exceed=exceed,
            delta=delta,
            significance=significance,
            as_json=as_json,
        )
        return
    if noise_multiplier is None or delta is None:
        raise typer.BadParameter("give --noise-multiplier and --delta, or --from, or --config")
    _check(significance, num_runs or [], seconds_per_run)
    mechanism = mechanism_of(
        sample_rate, batch_size, num_records, num_steps, epochs, noise_multiplier
    )
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.estimation.power import expected_bound, runs_needed

    accounted = account_by_adjacency(mechanism, delta=delta)
    goal = accounted.add_remove if exceed is None else exceed
    if goal == 0:
        raise InputError(
            f"the add/remove epsilon is 0 at delta {delta:g}, so there is nothing to exceed: lower"
            " delta, or give --exceed"
        )
    if goal >= accounted.substitute:  # before it is simulated, with more and more runs
        raise InputError(
            f"--exceed {goal:g} is not below {rounded_up(accounted.substitute)}, the accounted"
            " epsilon: if the training is what is accounted, a valid bound exceeds it only by"
            " chance, whatever the number of runs"
        )
    needed = {
        power: runs_needed(mechanism=mechanism, exceed=goal, delta=delta, significance=significance,
                           power=power)
        for power in _POWERS
    }  # fmt: skip
    expected = {
        count: expected_bound(
            mechanism=mechanism, num_runs=count, delta=delta, significance=significance
        )
        for count in num_runs or []
    }
    of_needed = table_lines(
        ("in this share of audits", "runs", "time"),
        [
            (f"{power:.0%}", f"{count:,}", _duration(seconds_per_run, count))
            for power, count in needed.items()
        ],
    )
    of_expected = table_lines(
        ("runs", "bound to expect", "90 % of audits are between"),
        [
            (
                f"{count:,}",
                number(forecast.mean),
                f"{number(forecast.low)} and {number(forecast.high)}",
            )
            for count, forecast in expected.items()
        ],
    )
    paragraphs = [
        wrapped(
            f"Substitute epsilon {rounded_up(accounted.substitute)}, add/remove epsilon"
            f" {rounded_up(accounted.add_remove)}, at delta {delta:g}. Runs that show more than"
            f" {number(goal)}, half of them in each world:"
        ),
        "\n".join(of_needed),
        "\n".join(of_expected) if expected else "",
        wrapped(
            "For the best attack that there can be, by the default rule and conversion `gdp`;"
            " `direct` needs many more. With many canaries in each run (key num_slots), few"
            " trainings do, or one: see docs/one_run.md."
        ),
    ]
    print_answer(
        {
            "epsilon": {"add_remove": accounted.add_remove, "substitute": accounted.substitute},
            "exceed": goal,
            "runs_needed": needed,
            "expected_bound": {count: vars(forecast) for count, forecast in expected.items()},
        },
        "\n\n".join(filter(None, paragraphs)),
        as_json=as_json,
    )


def _check(significance: float, num_runs: Sequence[int], seconds_per_run: float | None) -> None:
    """Refuses numbers that would be refused after minutes of simulation, or not at all."""
    from dpcanary.estimation.error_rates import checked_significance

    checked_significance(significance)
    for count in num_runs:
        checked_count("num_runs", count, least=4)
    if seconds_per_run is not None:
        checked_real("seconds_per_run", seconds_per_run)


def _plan_from(
    scores: "WorldScores",
    *,
    name: str,
    exceed: float,
    delta: float,
    significance: float,
    as_json: bool,
) -> None:
    """The new runs that a pilot suggests."""
    from dpcanary.estimation.pilot import runs_after_pilot

    power, count = _POWERS[1], len(scores.world0) + len(scores.world1)
    pilot_plan = runs_after_pilot(
        world0_scores=scores.world0,
        world1_scores=scores.world1,
        exceed=exceed,
        delta=delta,
        power=power,
        significance=significance,
    )
    rows = [
        (attack, f"{mu:.2f}", number(epsilon), _enough(runs, can_show=epsilon > exceed))
        for attack, mu, epsilon, runs in zip(
            _ATTACKS if pilot_plan.overlaps else _ATTACKS[:2],
            pilot_plan.mu, pilot_plan.epsilon, pilot_plan.runs, strict=False,
        )
    ]  # fmt: skip
    header = ("if the attack is", "its mu", "it can show", f"new runs for {power:.0%}")
    notes = (
        f"{name}: a pilot of {count:,} runs. New runs that show more than {exceed:g} at delta"
        f" {delta:g} in {power:.0%} of audits, half of them in each world:",
        "These are taken as the scores of a training each; a pilot of records of one training says"
        " nothing of runs."
        if scores.of_membership
        else "",
        "The scores of world 0 are lower than those of world 1. If they are losses or distances,"
        " give --lower-is-world0."
        if pilot_plan.mu[-1] == 0 and scores.world0.mean() < scores.world1.mean()
        else "",
        f"{_LIMITS if pilot_plan.overlaps else _NO_UPPER_LIMIT} All holds for new runs like"
        " these, with the default rule, if the trade-off curve is Gaussian. Leave the pilot out of"
        " the bound: its scores chose the number of runs. Or estimate all runs by rule `anytime`,"
        " which allows it and needs more.",
    )
    print_answer(
        {"num_pilot": count, "exceed": exceed, "power": power, **vars(pilot_plan)},
        "\n\n".join(
            [wrapped(notes[0]), "\n".join(table_lines(header, rows))]
            + [wrapped(note) for note in notes[1:] if note]
        ),
        as_json=as_json,
    )


_ATTACKS = ("weaker (5 % limit)", "as the pilot's", "stronger (95 % limit)")
_LIMITS = "The limits are a 90 % bootstrap interval of the pilot's AUC."
_NO_UPPER_LIMIT = (
    "The pilot's scores do not overlap, so it sets no upper limit: its own mu would be that of half"
    " a pair in the wrong order. Of the weaker attack, 5 % of such pilots do not overlap."
)


def _enough(runs: int | None, *, can_show: bool) -> str:
    """Runs, if so many are enough that can be tried."""
    from dpcanary.estimation.power import MOST_RUNS

    if runs is None:
        return f"more than {MOST_RUNS:,}" if can_show else "none is enough"
    return f"{runs:,}"


def _plan_config(path: Path, *, as_json: bool) -> None:
    """The runs that the audits of a config need, and their time on one core or GPU of this machine.

    A weaker canary than the best needs more.
    """
    import os
    import sys

    from dpcanary.core.installation import config_named
    from dpcanary.costs.run_costs import planned_audits
    from dpcanary.experiment.config_parsing import parse_experiment, read_config

    power = _POWERS[1]
    experiment = parse_experiment(read_config(config_named(path)))
    if experiment.own_functions:
        sys.path.append(str(Path.cwd()))
    plans = planned_audits(experiment, power=power, num_workers=os.cpu_count() or 1)
    left_out = sorted(experiment.audits.keys() - {plan.audit for plan in plans})
    print_answer(
        {"power": power, "audits": [vars(plan) for plan in plans]},
        "\n\n".join(_plans_in_words(plans, left_out, power=power)),
        as_json=as_json,
    )


def _plans_in_words(
    plans: "Sequence[PlannedAudit]", left_out: Sequence[str], *, power: float
) -> Iterator[str]:
    """The table of the audits of a config, and what it leaves out and means: paragraphs."""
    if not plans:
        yield wrapped("No audit of it trains models with one canary under substitute adjacency.")
        return
    table = table_lines(
        ("audit", "add/remove", "substitute", "runs needed", "planned", "time of those planned"),
        [
            (
                plan.audit,
                rounded_up(plan.add_remove),
                rounded_up(plan.substitute),
                "-" if plan.runs_needed is None else f"{plan.runs_needed:,}",
                f"{plan.planned_runs:,}",
                _duration(plan.seconds_per_run, plan.planned_runs),
            )
            for plan in plans
        ],
    )
    yield "\n".join(table)
    if left_out:
        yield wrapped(
            f"Not listed: {', '.join(left_out)}, which train no models, have no noise or"
            " several slots, or are under another adjacency than substitute."
        )
    yield wrapped(
        f"Runs needed: so many show more than the add/remove epsilon in {power:.0%} of audits, for"
        " the best attack that there can be; a weaker canary needs more. The time is that of"
        " training, on one core or GPU of this machine; `dpcanary run CONFIG --target"
        " estimate_cost` counts all jobs."
    )


def _duration(seconds_per_run: float | None, num_runs: int) -> str:
    if seconds_per_run is None:
        return "-"
    hours = seconds_per_run * num_runs / 3600
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{60 * hours:.0f} minutes" if hours >= 1 / 60 else f"{3600 * hours:.0f} seconds"
