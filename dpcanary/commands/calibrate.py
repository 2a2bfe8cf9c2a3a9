"""`dpcanary calibrate`: the noise for a target epsilon, or for a largest chance to guess."""

from collections.abc import Mapping
from math import ceil
from typing import Annotated

import typer

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    DropLast,
    Epochs,
    Json,
    NumRecords,
    NumSteps,
    SampleRate,
    Sampling,
    mechanism_of,
    refuse_drop_last,
    shuffled_in_json,
    shuffled_mechanism_of,
    warn_of_large_delta,
)
from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.printing import percent, print_answer, rounded_up, table_lines, wrapped


def calibrate(
    delta: Delta,
    epsilon: Annotated[
        float | None,
        typer.Option(help="The epsilon that must not be exceeded.", show_default=False),
    ] = None,
    adjacency: Annotated[
        Adjacency | None,
        typer.Option(
            help="What epsilon protects: `substitute` the content of a record, `add_remove` its"
            " membership. There is no default, because the answers differ by a factor of about"
            " two.",
            show_default=False,
        ),
    ] = None,
    max_guess: Annotated[
        float | None,
        typer.Option(
            help="In place of an epsilon: the largest chance that somebody guesses a secret in a"
            " record, which has one of --values equally likely values.",
            show_default=False,
        ),
    ] = None,
    values: Annotated[
        int | None, typer.Option(min=2, help="Only with --max-guess.", show_default=False)
    ] = None,
    group_size: Annotated[
        int,
        typer.Option(
            min=1,
            help="Only with --max-guess: the largest number of records of one person, which may all"
            " hold the secret.",
        ),
    ] = 1,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    sampling: Sampling = "poisson",
    drop_last: DropLast = False,
    as_json: Json = False,
) -> None:
    """Print the least noise multiplier for a target epsilon, or for a largest chance to guess.

    \b
    Examples:
      dpcanary calibrate --epsilon 8 --adjacency substitute --delta 1e-5 \\
                         --batch-size 256 --num-records 60000 --epochs 10
      dpcanary calibrate --max-guess 0.2 --values 10 --delta 1e-5 \\
                         --batch-size 256 --num-records 60000 --epochs 10
    """
    if max_guess is not None:
        if epsilon is not None or adjacency is not None:
            raise typer.BadParameter("--max-guess is in place of --epsilon and --adjacency")
        if values is None:
            raise typer.BadParameter("--max-guess: give --values, of which the secret has one")
        if sampling == "shuffled":
            raise typer.BadParameter(
                "--max-guess: noise is calibrated to it for Poisson sampling alone"
            )
        refuse_drop_last(drop_last)
        mechanism = mechanism_of(sample_rate, batch_size, num_records, num_steps, epochs)
        warn_of_large_delta(delta, num_records)
        _calibrate_guess(mechanism, max_guess, values, group_size, delta, as_json)
        return
    if values is not None or group_size > 1:
        raise typer.BadParameter("--values and --group-size go with --max-guess")
    if epsilon is None:
        raise typer.BadParameter("give --epsilon and --adjacency, or --max-guess and --values")
    if adjacency is None:
        raise typer.BadParameter("Missing option '--adjacency'")
    if sampling == "shuffled":
        shuffled, rate = shuffled_mechanism_of(
            sample_rate, batch_size, num_records, num_steps, epochs,
            drop_last=drop_last, adjacency=adjacency,
        )  # fmt: skip
        warn_of_large_delta(delta, num_records)
        _calibrate_shuffled(shuffled, rate, epsilon, delta, as_json)
        return
    refuse_drop_last(drop_last)
    mechanism = mechanism_of(
        sample_rate, batch_size, num_records, num_steps, epochs, adjacency=adjacency
    )
    warn_of_large_delta(delta, num_records)
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.accounting.noise_calibration import calibrate_with_fallback

    noise, method = calibrate_with_fallback(
        mechanism, epsilon=epsilon, delta=delta, instead="choose another epsilon or delta"
    )
    rate, steps = mechanism.sample_rate, mechanism.num_steps
    accounted = account_by_adjacency(mechanism.with_noise(noise), delta=delta)
    epsilons = {"add_remove": accounted.add_remove, "substitute": accounted.substitute}
    if adjacency is Adjacency.ZERO_OUT:  # for DP-SGD it has the values of add/remove
        epsilons = {"zero_out": accounted.add_remove, **epsilons}
    text = (
        f"Noise multiplier {ceil(1e4 * noise) / 1e4:.4f} for epsilon {epsilon:g} under"
        f" {ADJACENCIES[adjacency]} adjacency: sample rate {rate:.4g}, {steps:,} steps,"
        f" delta {delta:g}."
    )
    print_answer(
        {
            "noise_multiplier": noise,
            "adjacency": adjacency.value,
            "sample_rate": rate,
            "num_steps": steps,
            "delta": delta,
            "epsilon": epsilons,
            "method": method.value,
        },
        f"{wrapped(text)}\n\n{_table_of(epsilons)}",
        as_json=as_json,
    )


def _calibrate_guess(
    mechanism: Mechanism,
    max_guess: float,
    values: int,
    group_size: int,
    delta: float,
    as_json: bool,
) -> None:
    """Prints the noise with which no attack guesses a secret more often."""
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.accounting.meaning import meaning_of
    from dpcanary.accounting.noise_calibration import calibrate_guess

    noise = calibrate_guess(mechanism, max_guess=max_guess, values=values, group_size=group_size)
    mechanism = mechanism.with_noise(noise)
    epsilons = account_by_adjacency(mechanism, delta=delta)
    by_name = {"add_remove": epsilons.add_remove, "substitute": epsilons.substitute}
    meaning = meaning_of(mechanism, values=[values], group_size=group_size)
    group = f" in all {group_size} records of a person" if group_size > 1 else ""
    text = (
        f"Noise multiplier {ceil(1e4 * noise) / 1e4:.4f}: a secret{group} that has one of"
        f" {values:,} values, each equally likely given all other data, is guessed with a"
        f" probability of at most {percent(max_guess)} ({percent(1 / values)} without the model)."
        f" Sample rate {mechanism.sample_rate:.4g}, {mechanism.num_steps:,} steps, delta {delta:g}."
    )
    print_answer(
        {
            "noise_multiplier": noise,
            "max_guess": max_guess,
            "sample_rate": mechanism.sample_rate,
            "num_steps": mechanism.num_steps,
            "delta": delta,
            "epsilon": by_name,
            "method": epsilons.method.value,
            "meaning": meaning.numbers,
        },
        f"{wrapped(text)}\n\n{_table_of(by_name)}",
        as_json=as_json,
    )


def _calibrate_shuffled(
    mechanism: ShuffledMechanism, rate: float, epsilon: float, delta: float, as_json: bool
) -> None:
    """Prints the noise that guarantees an epsilon without any amplification."""
    from dpcanary.accounting.noise_calibration import calibrate_shuffled
    from dpcanary.accounting.shuffled_epsilons import account_shuffled

    noise = calibrate_shuffled(mechanism, epsilon=epsilon, delta=delta)
    with_noise = mechanism.with_noise(noise)
    accounted = account_shuffled(with_noise, delta=delta, sample_rate=rate)
    text = (
        f"Noise multiplier {ceil(1e4 * noise) / 1e4:.4f} guarantees epsilon {epsilon:g} under"
        f" {ADJACENCIES[mechanism.adjacency]} adjacency with shuffled batches:"
        f" {mechanism.batches_per_pass:,} batches in a pass, {mechanism.num_steps:,} steps in"
        f" {mechanism.num_passes:,} passes, delta {delta:g}."
    )
    print_answer(
        {**shuffled_in_json(with_noise, rate, accounted), "adjacency": mechanism.adjacency.value},
        f"{wrapped(text)}\n\n{accounted}",
        as_json=as_json,
    )


def _table_of(epsilons: Mapping[str, float]) -> str:
    rows = [(ADJACENCIES[name], rounded_up(value)) for name, value in epsilons.items()]
    return "\n".join(table_lines(("adjacency", "epsilon with this noise"), rows))
