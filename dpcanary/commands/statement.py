"""`dpcanary statement`: the guarantees of a training, in words for a model card."""

import re
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    Epochs,
    GroupSize,
    Json,
    NoiseMultiplier,
    NumRecords,
    NumSteps,
    SampleRate,
    Values,
    mechanism_of,
    values_of,
    warn_of_large_delta,
)
from dpcanary.core.printing import print_answer, rounded_up, wrapped
from dpcanary.errors import InputError

if TYPE_CHECKING:  # its accountants load slowly
    from dpcanary.accounting.groups import EpsilonsOfGroup


def statement(
    delta: Delta,
    noise_multiplier: NoiseMultiplier,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    unit: Annotated[
        str, typer.Option(help="What one record is, as in: 'one record is ...'.")
    ] = "one example",
    group_size: GroupSize = 1,
    values: Values = None,
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
    refuse_several_records(unit)
    warn_of_large_delta(delta, num_records)
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.accounting.groups import account_group
    from dpcanary.accounting.privacy_statement import privacy_statement

    epsilons = account_by_adjacency(mechanism, delta=delta)
    paragraphs = privacy_statement(
        epsilons, mechanism, num_records=num_records, unit=unit, values=values_of(values)
    )
    if group_size > 1:
        group = account_group(mechanism, group_size=group_size, delta=delta)
        paragraphs.insert(3, _group_paragraph(group))
        paragraphs[-1] = paragraphs[-1].replace(
            "a person who has several records in the data",
            f"a person who has more than {group_size} records in the data",
        )
    print_answer(
        {"statement": "\n\n".join(paragraphs)},
        "\n\n".join(map(wrapped, paragraphs)),
        as_json=as_json,
    )


def refuse_several_records(unit: str) -> None:
    """An error if a unit speaks of several records, whose epsilon is larger than that of one.

    Raises:
        InputError: the unit says "all", "every" or "records".
    """
    if re.search(r"\b(all|every|each|records|rows|examples)\b", unit, re.IGNORECASE):
        raise InputError(
            f"--unit {unit!r} speaks of several records, and the statement is about one: say what"
            " one record is, and give --group-size with the largest number of records of one person"
        )


def _group_paragraph(group: "EpsilonsOfGroup") -> str:
    """The guarantee for a person with several records."""
    size, delta = group.group_size, group.delta
    content = (
        f" For what these records say, it is ({rounded_up(group.substitute)}, {delta:g})."
        if isfinite(group.substitute)
        else " For what these records say, no useful epsilon can be stated."
    )
    return (
        f"Persons: for a person with at most {size} records, whether they are in the data is"
        f" protected by ({rounded_up(group.add_remove)}, {delta:g})-differential privacy.{content}"
    )
