"""`dpcanary plan`: how many runs an audit needs."""

from typing import Annotated

import typer

from dpcanary.adjacency import Adjacency
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    Epochs,
    Json,
    NoiseMultiplier,
    NumRecords,
    NumSteps,
    SampleRate,
    rate_and_steps,
)
from dpcanary.errors import InputError
from dpcanary.printing import number, print_json, print_table, print_text

_POWERS = (0.5, 0.8, 0.95)


def plan(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    exceed: Annotated[
        float | None,
        typer.Option(help="The epsilon to be exceeded; by default that under add/remove."),
    ] = None,
    significance: Annotated[
        float, typer.Option(help="Probability that a bound exceeds the truth.")
    ] = 0.05,
    num_runs: Annotated[
        list[int] | None,
        typer.Option(help="Also print the bound to expect from so many runs; may be repeated."),
    ] = None,
    seconds_per_run: Annotated[
        float | None, typer.Option(help="Of one training, to print the time of all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print how many trainings an audit needs, before anything is trained.

    The audit is one under substitute adjacency. The numbers are for the best attack that there can
    be. A weaker one needs more.

    \b
    Example:
      dpcanary plan --sample-rate 1 --num-steps 500 --noise-multiplier 22.37 --delta 1e-5 \\
                    --num-runs 1000 --seconds-per-run 30
    """
    rate, steps = rate_and_steps(sample_rate, batch_size, num_records, num_steps, epochs)
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.accounting.mechanism import Mechanism
    from dpcanary.estimation.power import expected_bound, runs_needed

    known = account_by_adjacency(
        sample_rate=rate, noise_multiplier=noise_multiplier, num_steps=steps, delta=delta
    )
    mechanism = Mechanism(
        adjacency=Adjacency.SUBSTITUTE,
        sample_rate=rate,
        noise_multiplier=noise_multiplier,
        num_steps=steps,
    )
    goal = known.add_remove if exceed is None else exceed
    if goal == 0:
        raise InputError(
            f"the add/remove epsilon is 0 at delta {delta:g}, so there is nothing to exceed: lower"
            " delta, or give --exceed"
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
    if as_json:
        print_json(
            {
                "epsilon": {"add_remove": known.add_remove, "substitute": known.substitute},
                "exceed": goal,
                "runs_needed": needed,
                "expected_bound": {count: vars(one) for count, one in expected.items()},
            }
        )
        return
    print_text(
        f"Substitute epsilon {number(known.substitute)}, add/remove epsilon"
        f" {number(known.add_remove)}, at delta {delta:g}. Runs that prove more than"
        f" {number(goal)}, half of them in each world:"
    )
    print()
    print_table(
        ("in this share of audits", "runs", "time"),
        [
            (f"{power:.0%}", f"{count:,}", _duration(seconds_per_run, count))
            for power, count in needed.items()
        ],
    )
    if expected:
        print()
        print_table(
            ("runs", "bound to expect", "90 % of audits are between"),
            [
                (f"{count:,}", number(one.mean), f"{number(one.low)} and {number(one.high)}")
                for count, one in expected.items()
            ],
        )
    print()
    print_text(
        "For the best attack that there can be, with the default rule. With many canaries in each"
        " run (key num_slots), few trainings do, or one: see docs/one_run.md."
    )


def _duration(seconds_per_run: float | None, num_runs: int) -> str:
    if seconds_per_run is None:
        return "-"
    hours = seconds_per_run * num_runs / 3600
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
