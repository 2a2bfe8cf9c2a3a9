"""The options that describe a training, which several subcommands share."""

from math import ceil, inf, nan
from typing import Annotated

import typer

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adjacency import Adjacency
from dpcanary.checks import large_delta

_TRAINING = "The training"

SampleRate = Annotated[
    float | None,
    typer.Option(
        help="Probability that a record enters a step's batch (Poisson sampling). Or give"
        " --batch-size and --num-records.",
        rich_help_panel=_TRAINING,
    ),
]
BatchSize = Annotated[
    float | None, typer.Option(help="Expected size of a batch.", rich_help_panel=_TRAINING)
]
NumRecords = Annotated[
    int | None, typer.Option(help="Records of the training data.", rich_help_panel=_TRAINING)
]
NumSteps = Annotated[
    int | None,
    typer.Option(help="Training steps. Or give --epochs.", rich_help_panel=_TRAINING),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        help="Passes over the data: epochs / sample rate steps.", rich_help_panel=_TRAINING
    ),
]
NoiseMultiplier = Annotated[
    float,
    typer.Option(
        help="Standard deviation of the noise, in units of the clipping norm.",
        rich_help_panel=_TRAINING,
    ),
]
Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta).")]
Cores = Annotated[
    int | None,
    typer.Option(min=1, help="Jobs side by side; by default all cores.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def warn_of_large_delta(delta: float, num_records: int | None) -> None:
    """Says on stderr that a delta is too large for the records, if their number is known."""
    if num_records and (reason := large_delta(delta, num_records)):
        typer.echo(f"warning: {reason}", err=True)


def mechanism_of(
    sample_rate: float | None,
    batch_size: float | None,
    num_records: int | None,
    num_steps: int | None,
    epochs: float | None,
    noise_multiplier: float = nan,
    *,
    adjacency: Adjacency = Adjacency.SUBSTITUTE,
) -> Mechanism:
    """The mechanism that options describe; a part of a step of an epoch counts as one step."""
    rate = _sample_rate_of(sample_rate, batch_size, num_records)
    if (num_steps is None) == (epochs is None):
        raise typer.BadParameter("give either --num-steps or --epochs")
    if epochs is not None:
        if not 0 < epochs < inf:
            raise typer.BadParameter(f"--epochs {epochs:g} must be a finite number above 0")
        num_steps = ceil(round(epochs / rate, 6))
    assert num_steps is not None
    return Mechanism(
        adjacency, sample_rate=rate, num_steps=num_steps, noise_multiplier=noise_multiplier
    )


def _sample_rate_of(
    sample_rate: float | None, batch_size: float | None, num_records: int | None
) -> float:
    """The sample rate, given itself or as expected batch size over records."""
    if sample_rate is not None:
        if batch_size is not None:
            raise typer.BadParameter("give --sample-rate or --batch-size, not both")
        if not 0 < sample_rate <= 1:
            raise typer.BadParameter(f"--sample-rate {sample_rate:g} must be above 0 and at most 1")
        return sample_rate
    if batch_size is None or num_records is None:
        raise typer.BadParameter("give --sample-rate, or --batch-size and --num-records")
    if not 0 < batch_size <= num_records:
        raise typer.BadParameter(
            f"--batch-size {batch_size:g} must be above 0 and at most --num-records {num_records}"
        )
    return batch_size / num_records
