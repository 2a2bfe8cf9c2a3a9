"""`dpcanary statement`: a paragraph on privacy for a model card."""

from typing import Annotated

import typer

from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    Epochs,
    Json,
    NoiseMultiplier,
    NumRecords,
    NumSteps,
    SampleRate,
    mechanism_of,
    warn_of_large_delta,
)
from dpcanary.printing import print_json, print_text


def statement(
    noise_multiplier: NoiseMultiplier,
    delta: Delta,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    unit: Annotated[
        str,
        typer.Option(
            help="Whose data a record is, as in: 'one record is ...'.",
        ),
    ] = "one example",
    as_json: Json = False,
) -> None:
    """Print a statement on privacy that can be pasted into a model card.

    It names the guarantee, adjacency, sampling and attacker, both epsilons, and what is not
    covered.

    \b
    Example:
      dpcanary statement --batch-size 256 --num-records 60000 --epochs 10 \\
                         --noise-multiplier 1.1 --delta 1e-5 --unit "one image"
    """
    mechanism = mechanism_of(
        sample_rate, batch_size, num_records, num_steps, epochs, noise_multiplier
    )
    warn_of_large_delta(delta, num_records)
    from dpcanary.accounting.by_adjacency import account_by_adjacency, privacy_statement

    found = account_by_adjacency(mechanism, delta=delta)
    paragraphs = privacy_statement(found, mechanism, num_records=num_records, unit=unit)
    if as_json:
        print_json({"statement": "\n\n".join(paragraphs)})
        return
    for index, paragraph in enumerate(paragraphs):
        if index:
            print()
        print_text(paragraph)
