"""`dpcanary account`: the epsilons of a training, before it runs."""

from math import isnan
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    DropLast,
    Epochs,
    GroupSize,
    Json,
    NoiseMultiplierOrPhases,
    NumRecords,
    NumSteps,
    Phases,
    SampleRate,
    Sampling,
    Values,
    mechanism_of,
    noise_of,
    phases_of,
    refuse_drop_last,
    shuffled_in_json,
    shuffled_mechanism_of,
    values_of,
    warn_of_large_delta,
)
from dpcanary.core.adjacency import ADJACENCIES, PROTECTS, Adjacency
from dpcanary.core.printing import print_answer, rounded_up, table_lines, wrapped
from dpcanary.errors import AccountingError, InputError

if TYPE_CHECKING:  # its accountants load slowly
    from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
    from dpcanary.accounting.groups import EpsilonsOfGroup
    from dpcanary.accounting.meaning import Meaning

_LOOSE = (
    "The exact accountants cannot represent this training. These bounds are looser: the true"
    " epsilons may be well below them."
)

_NO_GROUP_PRIVACY = (
    "-: group privacy cannot be accounted at these settings, by rounding. The other epsilons do not"
    " rest on it."
)


def account(
    delta: Delta,
    noise_multiplier: NoiseMultiplierOrPhases = None,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    phase: Phases = None,
    group_size: GroupSize = 1,
    sampling: Sampling = "poisson",
    drop_last: DropLast = False,
    last_model: Annotated[
        bool,
        typer.Option(
            "--last-model",
            help="Also a heuristic, which is no bound: what the last model alone would reveal if"
            " losses were linear (Steinke et al., 2025).",
        ),
    ] = False,
    values: Values = None,
    as_json: Json = False,
) -> None:
    """Print the epsilons of a training, what each of them protects, and what it means.

    \b
    Examples:
      dpcanary account --batch-size 256 --num-records 60000 --epochs 10 \\
                       --noise-multiplier 1.1 --delta 1e-5
      dpcanary account --sample-rate 0.25 --num-steps 500 \\
                       --noise-multiplier 5.574 --delta 1e-5 --json
      dpcanary account --phase 1000,0.01,1.1 --phase 500,0.02,0.9 --delta 1e-5
      dpcanary account --sampling shuffled --batch-size 256 --num-records 60000 \\
                       --epochs 10 --noise-multiplier 1.1 --delta 1e-5
    """
    if sampling == "shuffled" or phase:
        if last_model:
            raise InputError("--last-model: the heuristic is for Poisson sampling in one phase")
        if group_size > 1:
            raise InputError("--group-size: groups are accounted for Poisson sampling in one phase")
    if sampling == "shuffled":
        if phase:
            raise InputError("--phase: shuffled batches are accounted in one phase")
        shuffled, rate = shuffled_mechanism_of(
            sample_rate, batch_size, num_records, num_steps, epochs, noise_of(noise_multiplier),
            drop_last=drop_last,
        )  # fmt: skip
        warn_of_large_delta(delta, num_records)
        _account_shuffled(shuffled, rate, delta, values_of(values), as_json)
        return
    refuse_drop_last(drop_last)
    from dpcanary.accounting.by_adjacency import account_by_adjacency
    from dpcanary.accounting.groups import account_group
    from dpcanary.accounting.last_iterate import heuristic_epsilon
    from dpcanary.accounting.phases import account_phases

    warn_of_large_delta(delta, num_records)
    if phase:
        phases = phases_of(
            phase, noise_multiplier=noise_multiplier, sample_rate=sample_rate,
            batch_size=batch_size, num_steps=num_steps, epochs=epochs,
        )  # fmt: skip
        epsilons = account_phases(phases, delta=delta)
        training: dict[str, Any] = {"phases": [vars(phase) for phase in phases], "delta": delta}
        words = f"{len(phases)} phases, {sum(phase.num_steps for phase in phases):,} steps"
        group, heuristic = None, {}
    else:
        mechanism = mechanism_of(
            sample_rate, batch_size, num_records, num_steps, epochs, noise_of(noise_multiplier)
        )
        epsilons = account_by_adjacency(mechanism, delta=delta)
        training = {
            "sample_rate": mechanism.sample_rate,
            "noise_multiplier": mechanism.noise_multiplier,
            "num_steps": mechanism.num_steps,
            "delta": delta,
        }
        words = (
            f"sample rate {mechanism.sample_rate:.4g}, noise multiplier"
            f" {mechanism.noise_multiplier:g}, {mechanism.num_steps:,} steps"
        )
        group = None
        if group_size > 1:
            group = account_group(mechanism, group_size=group_size, delta=delta)
        heuristic = {
            name.value: heuristic_epsilon(mechanism.under(name), delta=delta)
            for name in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE)
            if last_model
        }
    by_name = {name: getattr(epsilons, name) for name in PROTECTS}
    meaning = _meaning(epsilons, values_of(values), group_size=group_size)
    rows = [(ADJACENCIES[name], rounded_up(by_name[name]), text) for name, text in PROTECTS.items()]
    if group:
        rows += _group_rows(group)
    times = ""
    if epsilons.add_remove > 0 and epsilons.method != "loose":
        ratio = epsilons.substitute / epsilons.add_remove
        times = f": it is {ratio:.1f} times the one that most libraries report"
    parts = [
        wrapped(f"DP-SGD with Poisson sampling: {words}, delta {delta:g}."),
        "\n".join(table_lines(("adjacency", "epsilon", "protects"), rows)),
        wrapped(
            "These are upper bounds on the true epsilons. If what records say needs protection,"
            f" quote the substitute epsilon{times}."
        ),
        *([wrapped(_NO_GROUP_PRIVACY)] if isnan(epsilons.group_privacy) else []),
        *([wrapped(_LOOSE)] if epsilons.method == "loose" else []),
        str(meaning),
    ]
    more: dict[str, Any] = {"meaning": meaning.numbers}
    if group:
        more["group"] = vars(group)
    if last_model:
        more["heuristic_of_last_model"] = heuristic
        of_last = [f"{value:.2f} ({ADJACENCIES[name]})" for name, value in heuristic.items()]
        parts.append(
            wrapped(
                "A heuristic, which is no bound, for a training that releases its last model alone:"
                f" if losses were linear, epsilon would be {' and '.join(of_last)}. Some losses"
                " reveal more."
            )
        )
    print_answer(
        {**training, "epsilon": by_name, "method": epsilons.method.value, **more},
        "\n\n".join(parts),
        as_json=as_json,
    )


def _meaning(
    epsilons: "EpsilonsByAdjacency", values: tuple[int, ...], *, group_size: int
) -> "Meaning":
    """What the epsilons mean; for a group of records, what those of the group do if they can be."""
    from dpcanary.accounting.meaning import meaning_of

    if group_size > 1 and epsilons.mechanism is not None:
        try:
            return meaning_of(epsilons.mechanism, values=values, group_size=group_size)
        except AccountingError as error:
            typer.echo(f"warning: limits are those of one record: {error}", err=True)
    return meaning_of(epsilons, values=values)


def _group_rows(group: "EpsilonsOfGroup") -> list[tuple[str, str, str]]:
    """The rows of a table for a person with several records."""
    size = group.group_size
    return [
        (f"add/remove, {size} records", rounded_up(group.add_remove),
         f"Whether a person with at most {size} records is in the data."),
        (f"substitute, {size} records", rounded_up(group.substitute),
         f"What these {size} records say."),
    ]  # fmt: skip


def _account_shuffled(
    mechanism: ShuffledMechanism, rate: float, delta: float, values: tuple[int, ...], as_json: bool
) -> None:
    """Prints what shuffled batches guarantee, beside what Poisson accounting would claim."""
    from dpcanary.accounting.meaning import meaning_of
    from dpcanary.accounting.shuffled_epsilons import account_shuffled

    accounted = account_shuffled(mechanism, delta=delta, sample_rate=rate)
    meaning = meaning_of(mechanism, values=values)
    paragraphs = [
        f"DP-SGD on shuffled records: {mechanism.batches_per_pass:,} batches in a pass,"
        f" {mechanism.num_steps:,} steps in {mechanism.num_passes:,} passes, noise multiplier"
        f" {mechanism.noise_multiplier:g}, delta {delta:g}.",
        "Guaranteed: upper bounds on the true epsilons, for one use of a record in each pass"
        f" ({mechanism.num_passes:,} in all). No amplification by shuffling is counted: the true"
        " epsilons may be smaller. They hold if noise is"
        " added to each batch's sum, and a constant divides it. Add/remove: the number of batches"
        " must not depend on the record; one that is added moves another one to the last batch.",
        "Poisson claims: what an accountant states that takes the batches for Poisson samples at"
        f" rate {rate:.4g}. They are no guarantee of this training: attacks on shuffled batches can"
        " exceed them, and `dpcanary run published/shuffling` shows by how much on worst cases."
        " Draw Poisson samples to have them.",
    ]
    first, *others = map(wrapped, paragraphs)
    print_answer(
        {**shuffled_in_json(mechanism, rate, accounted), "meaning": meaning.numbers},
        "\n\n".join([first, str(accounted), *others, str(meaning)]),
        as_json=as_json,
    )
