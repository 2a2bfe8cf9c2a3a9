"""`dpcanary calibrate`: the noise for a target epsilon."""

from math import ceil
from typing import Annotated

import typer

from dpcanary.adjacency import ADJACENCIES, Adjacency
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    Epochs,
    Json,
    NumRecords,
    NumSteps,
    SampleRate,
    mechanism_of,
    warn_of_large_delta,
)
from dpcanary.printing import print_json, print_table, print_text, rounded_up


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The epsilon that must not be exceeded.")],
    adjacency: Annotated[
        Adjacency,
        typer.Option(
            help="What it protects: `substitute` the content of a record, `add_remove` its"
            " membership. There is no default, because the answers differ by a factor of about two."
        ),
    ],
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    as_json: Json = False,
) -> None:
    """Print the least noise multiplier for a target epsilon.

    \b
    Example:
      dpcanary calibrate --epsilon 8 --adjacency substitute --delta 1e-5 \\
                         --batch-size 256 --num-records 60000 --epochs 10
    """
    mechanism = mechanism_of(
        sample_rate, batch_size, num_records, num_steps, epochs, adjacency=adjacency
    )
    warn_of_large_delta(delta, num_records)
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.accounting.calibration import calibrate_with_fallback

    noise, method = calibrate_with_fallback(
        mechanism, epsilon=epsilon, delta=delta, instead="choose another epsilon or delta"
    )
    rate, steps = mechanism.sample_rate, mechanism.num_steps
    found = account_by_adjacency(mechanism.with_noise(noise), delta=delta)
    epsilons = {"add_remove": found.add_remove, "substitute": found.substitute}
    if adjacency is Adjacency.ZERO_OUT:  # for DP-SGD it has the values of add/remove
        epsilons = {"zero_out": found.add_remove, **epsilons}
    if as_json:
        print_json(
            {
                "noise_multiplier": noise,
                "adjacency": adjacency.value,
                "sample_rate": rate,
                "num_steps": steps,
                "delta": delta,
                "epsilon": epsilons,
                "method": method.value,
            }
        )
        return
    print_text(
        f"Noise multiplier {ceil(1e4 * noise) / 1e4:.4f} for epsilon {epsilon:g} under"
        f" {ADJACENCIES[adjacency]} adjacency: sample rate {rate:.4g}, {steps:,} steps,"
        f" delta {delta:g}."
    )
    print()
    rows = [(ADJACENCIES[name], rounded_up(value)) for name, value in epsilons.items()]
    print_table(("adjacency", "epsilon with this noise"), rows)
