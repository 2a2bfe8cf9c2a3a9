"""`dpcanary account`, `calibrate` and `statement`: the epsilons of a training, before it runs."""

import re
from collections.abc import Mapping
from math import ceil, isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcanary.accounting.mechanism import NUM_VALUES, Mechanism
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.commands.training_options import (
    BatchSize,
    Delta,
    DropLast,
    Epochs,
    GroupSize,
    Json,
    NoiseMultiplier,
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
    shuffled_mechanism_of,
    warn_of_large_delta,
)
from dpcanary.core.adjacency import ADJACENCIES, PROTECTS, Adjacency
from dpcanary.core.printing import (
    percent,
    percent_up,
    print_json,
    print_table,
    print_text,
    rounded_up,
)
from dpcanary.errors import AccountingError, InputError

if TYPE_CHECKING:  # its accountants load slowly
    from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
    from dpcanary.accounting.groups import EpsilonsOfGroup
    from dpcanary.accounting.meaning import Meaning
    from dpcanary.accounting.shuffled_epsilons import ShuffledEpsilons

# With shuffled batches, zero-out and add/remove adjacency differ.
_SHUFFLED_PROTECTS = {
    Adjacency.ZERO_OUT: "Whether a record is in the data or replaced by an empty one.",
    Adjacency.SUBSTITUTE: PROTECTS["substitute"],
    Adjacency.ADD_REMOVE: "Whether a record is in the data at all, where batches have one size.",
}


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
        _account_shuffled(shuffled, rate, delta, _values(values), as_json)
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
        training: dict[str, Any] = {"phases": [vars(one) for one in phases], "delta": delta}
        words = f"{len(phases)} phases, {sum(one.num_steps for one in phases):,} steps"
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
    meaning = _meaning(epsilons, _values(values), group_size=group_size)
    if as_json:
        more: dict[str, Any] = {"heuristic_of_last_model": heuristic} if last_model else {}
        if group:
            more["group"] = vars(group)
        more["meaning"] = _meaning_in_json(meaning)
        print_json({**training, "epsilon": by_name, "method": epsilons.method.value, **more})
        return
    print_text(f"DP-SGD with Poisson sampling: {words}, delta {delta:g}.")
    print()
    rows = [(ADJACENCIES[name], rounded_up(by_name[name]), text) for name, text in PROTECTS.items()]
    if group:
        rows += _group_rows(group)
    print_table(("adjacency", "epsilon", "protects"), rows)
    print()
    times = ""
    if epsilons.add_remove > 0 and epsilons.method != "loose":
        ratio = epsilons.substitute / epsilons.add_remove
        times = f": it is {ratio:.1f} times the one that most libraries report"
    print_text(
        "These are upper bounds on the true epsilons. If what records say needs protection, quote"
        f" the substitute epsilon{times}."
    )
    if epsilons.method == "loose":
        print()
        print_text(
            "The exact accountants cannot represent this training. These bounds are looser: the"
            " true epsilons may be well below them."
        )
    _print_meaning(meaning)
    if last_model:
        of_last = [f"{value:.2f} ({ADJACENCIES[name]})" for name, value in heuristic.items()]
        print()
        print_text(
            "A heuristic, which is no bound, for a training that releases its last model alone: if"
            f" losses were linear, epsilon would be {' and '.join(of_last)}. Some losses reveal"
            " more."
        )


def _values(given: list[int] | None) -> tuple[int, ...]:
    """The numbers of values that a secret may have, each once, in rising order."""
    return tuple(sorted({*(given or NUM_VALUES)}))


def _meaning(
    epsilons: "EpsilonsByAdjacency", values: tuple[int, ...], *, group_size: int
) -> "Meaning":
    """What the epsilons mean; for a group of records, what those of the group do if they can be."""
    if group_size > 1 and epsilons.mechanism is not None:
        try:
            return epsilons.mechanism.meaning(values=values, group_size=group_size)
        except AccountingError as error:
            typer.echo(f"warning: limits are those of one record: {error}", err=True)
    return epsilons.meaning(values=values)


def _meaning_in_json(meaning: "Meaning") -> dict[str, Any]:
    of_each = {
        limits.adjacency.value: {
            "true_positive_rates": limits.true_positive_rates,
            "advantage": limits.advantage,
            "guesses": limits.guesses,
        }
        for limits in (meaning.add_remove, meaning.substitute)
    }
    return {
        **of_each,
        "guesses": meaning.guesses,
        "group_size": meaning.group_size,
        "is_exact": meaning.is_exact,
    }


def _print_meaning(meaning: "Meaning") -> None:
    """Prints the limits of attacks as a table, after the epsilons."""
    first, second = meaning.add_remove, meaning.substitute
    rows = [
        (f"true positives at {percent(rate)} false ones", percent_up(power),
         percent_up(second.true_positive_rates[rate]), percent(rate))
        for rate, power in first.true_positive_rates.items()
    ]  # fmt: skip
    rows.append(
        ("advantage, true less false positives", percent_up(first.advantage),
         percent_up(second.advantage), "0 %")
    )  # fmt: skip
    rows += [
        (f"right guesses of a secret of {count:,} values", percent_up(chance),
         percent_up(second.guesses[count]), percent(1 / count))
        for count, chance in first.guesses.items()
    ]  # fmt: skip
    group = f", for all {meaning.group_size} records of a person" if meaning.group_size > 1 else ""
    by = "bounds on the trade-off curves"
    if meaning.is_exact or meaning.by_epsilons:
        by = "the exact trade-off curves" if meaning.is_exact else "the epsilons and delta alone"
    print()
    print_text(f"What this means: the most that any attack achieves{group}, by {by}.")
    print()
    names = (ADJACENCIES[limits.adjacency] for limits in (first, second))
    print_table(("at most", *names, "without the model"), rows)
    print()
    print_text(
        "The training satisfies both adjacencies, so the smaller limit on a guess holds:"
        f" {_guesses_in_words(meaning)}."
    )


def _guesses_in_words(meaning: "Meaning") -> str:
    return ", ".join(
        f"{percent_up(chance)} for {count:,} equally likely values"
        for count, chance in meaning.guesses.items()
    )


def _group_rows(group: "EpsilonsOfGroup") -> list[tuple[str, str, str]]:
    """The rows of a table for a person with several records."""
    size = group.group_size
    return [
        (f"add/remove, {size} records", rounded_up(group.add_remove),
         f"Whether a person with at most {size} records is in the data."),
        (f"substitute, {size} records", rounded_up(group.substitute),
         f"What these {size} records say."),
    ]  # fmt: skip


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
        int | None,
        typer.Option(min=2, help="Only with --max-guess.", show_default=False),
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
    _print_epsilons_with_noise(epsilons)


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
    from dpcanary.accounting.noise_calibration import calibrate_guess

    noise = calibrate_guess(mechanism, max_guess=max_guess, values=values, group_size=group_size)
    mechanism = mechanism.with_noise(noise)
    epsilons = account_by_adjacency(mechanism, delta=delta)
    by_name = {"add_remove": epsilons.add_remove, "substitute": epsilons.substitute}
    meaning = mechanism.meaning(values=[values], group_size=group_size)
    if as_json:
        print_json(
            {
                "noise_multiplier": noise,
                "max_guess": max_guess,
                "sample_rate": mechanism.sample_rate,
                "num_steps": mechanism.num_steps,
                "delta": delta,
                "epsilon": by_name,
                "method": epsilons.method.value,
                "meaning": _meaning_in_json(meaning),
            }
        )
        return
    group = f" in all {group_size} records of a person" if group_size > 1 else ""
    print_text(
        f"Noise multiplier {ceil(1e4 * noise) / 1e4:.4f}: a secret{group} that has one of"
        f" {values:,} equally likely values is guessed with a probability of at most"
        f" {percent(max_guess)} ({percent(1 / values)} without the model). Sample rate"
        f" {mechanism.sample_rate:.4g}, {mechanism.num_steps:,} steps, delta {delta:g}."
    )
    print()
    _print_epsilons_with_noise(by_name)


def _print_epsilons_with_noise(epsilons: Mapping[str, float]) -> None:
    rows = [(ADJACENCIES[name], rounded_up(value)) for name, value in epsilons.items()]
    print_table(("adjacency", "epsilon with this noise"), rows)


def _account_shuffled(
    mechanism: ShuffledMechanism,
    rate: float,
    delta: float,
    values: tuple[int, ...],
    as_json: bool,
) -> None:
    """Prints what shuffled batches guarantee, beside what Poisson accounting would claim."""
    from dpcanary.accounting.meaning import meaning_of_shuffled
    from dpcanary.accounting.shuffled_epsilons import account_shuffled

    found = account_shuffled(mechanism, delta=delta, sample_rate=rate)
    meaning = meaning_of_shuffled(mechanism, values=values)
    if as_json:
        print_json(
            {
                **_shuffled_in_json(mechanism, rate, delta),
                **_epsilons_in_json(found),
                "meaning": _meaning_in_json(meaning),
            }
        )
        return
    print_text(
        f"DP-SGD on shuffled records: {mechanism.batches_per_pass:,} batches in a pass,"
        f" {mechanism.num_steps:,} steps in {mechanism.num_passes:,} passes, noise multiplier"
        f" {mechanism.noise_multiplier:g}, delta {delta:g}."
    )
    print()
    _print_shuffled(found)
    print()
    print_text(
        "Guaranteed: upper bounds on the true epsilons, exact for one use of a record in each pass"
        f" ({mechanism.num_passes:,} in all), which nothing amplifies. They hold if noise is"
        " added to each batch's sum, and a constant divides it. Add/remove: the number of batches"
        " must not depend on the record; one that is added moves another one to the last batch."
    )
    print()
    print_text(
        f"Poisson claims: what an accountant states that takes the batches for Poisson samples at"
        f" rate {rate:.4g}. They are no guarantee of this training: attacks on shuffled batches can"
        " exceed them, and `dpcanary run published/shuffling` shows by how much on worst cases."
        " Draw Poisson samples to have them."
    )
    _print_meaning(meaning)


def _calibrate_shuffled(
    mechanism: ShuffledMechanism, rate: float, epsilon: float, delta: float, as_json: bool
) -> None:
    """Prints the noise that guarantees an epsilon without any amplification."""
    from dpcanary.accounting.noise_calibration import calibrate_shuffled
    from dpcanary.accounting.shuffled_epsilons import account_shuffled

    noise = calibrate_shuffled(mechanism, epsilon=epsilon, delta=delta)
    with_noise = mechanism.with_noise(noise)
    found = account_shuffled(with_noise, delta=delta, sample_rate=rate)
    if as_json:
        settings = _shuffled_in_json(with_noise, rate, delta)
        adjacency = {"adjacency": mechanism.adjacency.value}
        print_json({**settings, **adjacency, **_epsilons_in_json(found)})
        return
    print_text(
        f"Noise multiplier {ceil(1e4 * noise) / 1e4:.4f} guarantees epsilon {epsilon:g} under"
        f" {ADJACENCIES[mechanism.adjacency]} adjacency with shuffled batches:"
        f" {mechanism.batches_per_pass:,} batches in a pass, {mechanism.num_steps:,} steps in"
        f" {mechanism.num_passes:,} passes, delta {delta:g}."
    )
    print()
    _print_shuffled(found)


def _shuffled_in_json(mechanism: ShuffledMechanism, rate: float, delta: float) -> dict[str, Any]:
    return {
        "sampling": "shuffled",
        "batches_per_pass": mechanism.batches_per_pass,
        "sample_rate": rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "num_steps": mechanism.num_steps,
        "num_passes": mechanism.num_passes,
        "delta": delta,
    }


def _epsilons_in_json(found: "ShuffledEpsilons") -> dict[str, Any]:
    return {
        "epsilon": found.guaranteed,
        "epsilon_claimed_by_poisson": found.claimed,
        "method": "closed_form",
    }


def _print_shuffled(found: "ShuffledEpsilons") -> None:
    rows = [
        (
            ADJACENCIES[one],
            rounded_up(found.guaranteed[one]),
            rounded_up(found.claimed[one]) if isfinite(found.claimed[one]) else "-",
            _SHUFFLED_PROTECTS[one],
        )
        for one in found.guaranteed
    ]
    print_table(("adjacency", "guaranteed", "Poisson claims", "protects"), rows)


def statement(
    delta: Delta,
    noise_multiplier: NoiseMultiplier,
    sample_rate: SampleRate = None,
    batch_size: BatchSize = None,
    num_records: NumRecords = None,
    num_steps: NumSteps = None,
    epochs: Epochs = None,
    unit: Annotated[
        str,
        typer.Option(
            help="What one record is, as in: 'one record is ...'.",
        ),
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
    from dpcanary.accounting.by_adjacency import account_by_adjacency, privacy_statement
    from dpcanary.accounting.groups import account_group

    epsilons = account_by_adjacency(mechanism, delta=delta)
    paragraphs = privacy_statement(
        epsilons, mechanism, num_records=num_records, unit=unit, values=_values(values)
    )
    if group_size > 1:
        group = account_group(mechanism, group_size=group_size, delta=delta)
        paragraphs.insert(3, _group_paragraph(group))
        paragraphs[-1] = paragraphs[-1].replace(
            "a person who has several records in the data",
            f"a person who has more than {group_size} records in the data",
        )
    if as_json:
        print_json({"statement": "\n\n".join(paragraphs)})
        return
    for index, paragraph in enumerate(paragraphs):
        if index:
            print()
        print_text(paragraph)


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
